//! Learning-rate schedules.
//!
//! All change the rate from step to step, not only from epoch to epoch, but for `Step` and `Plateau`, which are constant
//! between milestones and reductions.
//!
//! A rate is a function of the training steps done and of [`ScheduleState`], what a schedule has learned from
//! validation losses. Both are equal on all ranks, so no rank asks another.

use serde::{Deserialize, Serialize};

/// A relative improvement of the validation loss that counts, as in `torch.optim.lr_scheduler.ReduceLROnPlateau`.
const THRESHOLD: f64 = 1e-4;

/// The learning rate as a function of the training steps done.
#[derive(Clone, Debug, PartialEq)]
pub enum LearningRateSchedule {
    /// `rate`
    Constant {
        /// The rate.
        rate: f64,
    },
    /// `rate * (1 - (1 - final_factor) * x)` with `x = min(epochs done / epochs, 1)`.
    Linear {
        /// Initial rate.
        rate: f64,
        /// Final rate divided by the initial rate.
        final_factor: f64,
        /// Epochs until the final rate.
        epochs: f64,
    },
    /// `rate * (final_factor + (1 - final_factor) * (1 + cos(pi x)) / 2)`, `x` as above.
    ///
    /// Source: Loshchilov and Hutter, "SGDR", ICLR 2017, equation 5, without restarts.
    Cosine {
        /// Initial rate.
        rate: f64,
        /// Final rate divided by the initial rate.
        final_factor: f64,
        /// Epochs until the final rate.
        epochs: f64,
    },
    /// `rate * (final_factor + (1 - final_factor) * (1 - x) ^ power)`, `x` as above.
    Polynomial {
        /// Initial rate.
        rate: f64,
        /// Final rate divided by the initial rate.
        final_factor: f64,
        /// Epochs until the final rate.
        epochs: f64,
        /// The exponent.
        power: f64,
    },
    /// `rate * gamma ^ epochs done`, with fractions of epochs.
    Exponential {
        /// Initial rate.
        rate: f64,
        /// Factor per epoch.
        gamma: f64,
    },
    /// `rate * gamma ^ k`, where k counts the milestones that are done.
    Step {
        /// Initial rate.
        rate: f64,
        /// Factor at each milestone.
        gamma: f64,
        /// When the rate falls.
        milestones: Milestones,
    },
    /// Cosines one after the other, each `multiplier` times as long as the one before.
    ///
    /// Source: Loshchilov and Hutter, "SGDR", ICLR 2017, section 3.
    CosineRestarts {
        /// Rate at each start.
        rate: f64,
        /// Lowest rate divided by this rate.
        final_factor: f64,
        /// Epochs of the first cosine.
        period: f64,
        /// Length of a cosine divided by that of the one before, at least 1.
        multiplier: f64,
    },
    /// `rate * max(factor ^ k, final_factor)`, where k counts the reductions: there is one when the validation loss
    /// has not improved for more than `patience` epochs. In the `cooldown` epochs after a reduction, epochs without
    /// improvement do not count.
    Plateau {
        /// Initial rate.
        rate: f64,
        /// Factor of a reduction.
        factor: f64,
        /// Epochs without improvement that are accepted.
        patience: u64,
        /// Epochs after a reduction that do not count.
        cooldown: u64,
        /// Lowest rate divided by the initial rate.
        final_factor: f64,
    },
    /// A linear rise from `factor` times the rate with which `then` starts; after it, `then`. A `Step` keeps its
    /// milestones, counted from the start of the run; all others start after the warm-up, and those with an end
    /// reach it when they would without warm-up.
    Warmup {
        /// Length of the rise.
        length: WarmupLength,
        /// First rate divided by that at the end of the rise.
        factor: f64,
        /// The schedule after it.
        then: Box<LearningRateSchedule>,
    },
}

/// When a `Step` schedule lowers the rate.
#[derive(Clone, Debug, PartialEq)]
pub enum Milestones {
    /// After each of these numbers of epochs.
    At(Vec<f64>),
    /// Again and again after this number of epochs.
    Every(f64),
}

/// Length of a warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WarmupLength {
    /// In epochs.
    Epochs(f64),
    /// In updates.
    Steps(u64),
}

/// A point of a run between two updates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulePoint {
    /// Epochs done; updates within an epoch count as equal fractions.
    pub epochs_done: f64,
    /// Updates of an epoch.
    pub steps_per_epoch: u64,
    /// What the schedule has learned from validation losses.
    pub state: ScheduleState,
}

/// What a schedule has learned from validation losses; a run that is resumed needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// Best validation loss since the start.
    pub best: Option<f64>,
    /// Epochs since then, or since the last reduction.
    pub epochs_without_improvement: u64,
    /// Reductions of the rate.
    pub reductions: u64,
    /// Epochs that are left of the cooldown after a reduction.
    #[serde(default)]
    pub cooldown: u64,
}

impl LearningRateSchedule {
    /// The rate of the next update.
    pub fn rate(&self, at: &SchedulePoint) -> f64 {
        let (warmup, then) = self.parts(at.steps_per_epoch);
        let Some((epochs, factor)) = warmup.filter(|(epochs, _)| at.epochs_done < *epochs) else {
            let epochs = warmup.map_or(0.0, |(epochs, _)| epochs);
            return then.rate_after(at, epochs);
        };
        let start = SchedulePoint {
            epochs_done: epochs,
            ..*at
        };
        let risen = factor + (1.0 - factor) * (at.epochs_done / epochs);
        risen * then.rate_after(&start, epochs)
    }

    /// The rate at the start, or after the warm-up.
    pub fn base_rate(&self) -> f64 {
        match *self {
            Self::Constant { rate }
            | Self::Linear { rate, .. }
            | Self::Cosine { rate, .. }
            | Self::Polynomial { rate, .. }
            | Self::Exponential { rate, .. }
            | Self::Step { rate, .. }
            | Self::CosineRestarts { rate, .. }
            | Self::Plateau { rate, .. } => rate,
            Self::Warmup { ref then, .. } => then.base_rate(),
        }
    }

    /// Epochs and first factor of the warm-up, and the schedule after it.
    fn parts(&self, steps_per_epoch: u64) -> (Option<(f64, f64)>, &Self) {
        match self {
            Self::Warmup {
                length,
                factor,
                then,
            } => {
                let epochs = match *length {
                    WarmupLength::Epochs(epochs) => epochs,
                    WarmupLength::Steps(steps) => steps as f64 / steps_per_epoch as f64,
                };
                (Some((epochs, *factor)), then)
            }
            Self::Constant { .. }
            | Self::Linear { .. }
            | Self::Cosine { .. }
            | Self::Polynomial { .. }
            | Self::Exponential { .. }
            | Self::Step { .. }
            | Self::CosineRestarts { .. }
            | Self::Plateau { .. } => (None, self),
        }
    }

    /// The rate of a schedule that starts after a warm-up of this many epochs.
    fn rate_after(&self, at: &SchedulePoint, warmup: f64) -> f64 {
        let own = (at.epochs_done - warmup).max(0.0);
        // Of the epochs after the warm-up.
        let done = |epochs: f64| {
            let rest = epochs - warmup;
            if rest > 0.0 {
                (own / rest).min(1.0)
            } else {
                1.0
            }
        };
        match *self {
            Self::Constant { rate } => rate,
            Self::Linear {
                rate,
                final_factor,
                epochs,
            } => rate * (1.0 - (1.0 - final_factor) * done(epochs)),
            Self::Cosine {
                rate,
                final_factor,
                epochs,
            } => rate * cosine(done(epochs), final_factor),
            Self::Polynomial {
                rate,
                final_factor,
                epochs,
                power,
            } => rate * (final_factor + (1.0 - final_factor) * (1.0 - done(epochs)).powf(power)),
            Self::Exponential { rate, gamma } => rate * gamma.powf(own),
            Self::Step {
                rate,
                gamma,
                ref milestones,
            } => rate * gamma.powf(milestones.done(at.epochs_done)),
            Self::CosineRestarts {
                rate,
                final_factor,
                period,
                multiplier,
            } => rate * cosine(since_restart(own, period, multiplier), final_factor),
            Self::Plateau {
                rate,
                factor,
                final_factor,
                ..
            } => rate * factor.powf(at.state.reductions as f64).max(final_factor),
            // Not nested by the run file; its own warm-up follows the first.
            Self::Warmup { .. } => self.rate(&SchedulePoint {
                epochs_done: own,
                ..*at
            }),
        }
    }

    /// Whether it depends on validation losses.
    pub fn needs_validation(&self) -> bool {
        self.plateau().is_some()
    }

    /// Epochs without improvement that a plateau allows, and its cooldown; none for other kinds.
    fn plateau(&self) -> Option<(u64, u64)> {
        match self {
            Self::Plateau {
                patience, cooldown, ..
            } => Some((*patience, *cooldown)),
            Self::Warmup { then, .. } => then.plateau(),
            Self::Constant { .. }
            | Self::Linear { .. }
            | Self::Cosine { .. }
            | Self::Polynomial { .. }
            | Self::Exponential { .. }
            | Self::Step { .. }
            | Self::CosineRestarts { .. } => None,
        }
    }

    /// Takes the validation loss of an epoch into account. It is equal on all ranks, so the state is, too.
    pub fn observe(&self, state: &mut ScheduleState, validation_loss: f64) {
        let Some((patience, cooldown)) = self.plateau() else {
            return;
        };
        // A loss may be negative, so the margin is of its magnitude.
        let is_better = |best: f64| validation_loss < best - THRESHOLD * best.abs();
        if state.best.is_none_or(is_better) {
            state.best = Some(validation_loss);
            state.epochs_without_improvement = 0;
        } else {
            state.epochs_without_improvement += 1;
        }
        if state.cooldown > 0 {
            state.cooldown -= 1;
            state.epochs_without_improvement = 0;
        }
        if state.epochs_without_improvement > patience {
            state.reductions += 1;
            state.cooldown = cooldown;
            state.epochs_without_improvement = 0;
        }
    }
}

impl Milestones {
    /// How many are done.
    fn done(&self, epochs_done: f64) -> f64 {
        match self {
            Self::At(epochs) => epochs.iter().filter(|&&at| at <= epochs_done).count() as f64,
            Self::Every(epochs) => (epochs_done / epochs).floor(),
        }
    }
}

/// From 1 to the final factor.
fn cosine(x: f64, final_factor: f64) -> f64 {
    final_factor + (1.0 - final_factor) * (1.0 + (std::f64::consts::PI * x).cos()) / 2.0
}

/// The fraction of the current cosine that is done.
fn since_restart(epochs: f64, period: f64, multiplier: f64) -> f64 {
    if multiplier <= 1.0 {
        return (epochs / period).fract();
    }
    // The k-th cosine starts at `period * (multiplier ^ k - 1) / (multiplier - 1)`.
    let start = |k: i32| period * (multiplier.powi(k) - 1.0) / (multiplier - 1.0);
    let grown = epochs / period * (multiplier - 1.0) + 1.0;
    let mut k = (grown.ln() / multiplier.ln()).floor().max(0.0) as i32;
    // Logarithms are rounded.
    while start(k + 1) <= epochs {
        k += 1;
    }
    while k > 0 && start(k) > epochs {
        k -= 1;
    }
    (epochs - start(k)) / (period * multiplier.powi(k))
}

#[cfg(test)]
mod tests;
