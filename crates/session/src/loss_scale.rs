//! The loss scale of trainings in f16, whose smallest numbers would be lost.
//!
//! Gradients are multiplied by it from the loss on, and updates divide them again. Where they are not finite, the update
//! leaves everything as it is; a dynamic scale is halved then, and doubled after many updates in a row that happened, as
//! `torch.amp.GradScaler` does (PyTorch 2, `torch/amp/grad_scaler.py`). Many skipped updates in a row end the run.
//!
//! A program in f16 has the sum of squares of all gradients on every rank, as clipping needs it, as an output of
//! the step. The scale and the skipped updates follow from it (`Inputs::update_factor`), so all ranks decide alike.

use partita_run::Inputs;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// The dynamic scale at the start.
const START: f64 = 65_536.0;

/// Updates in a row after which it is doubled.
const GROWTH_INTERVAL: u64 = 2_000;

/// The dynamic scale stays between these. The least number of f16 above zero: less would lose the gradient of the loss
/// itself. The greatest: gradients of 1 are still finite in f32, in which they are summed, over many elements.
const DYNAMIC: [f64; 2] = [1.0 / (1u64 << 24) as f64, (1u64 << 60) as f64];

/// Fixed scales.
pub const LOSS_SCALES: RangeInclusive<f64> = 1e-7..=1e18;

/// Skipped updates in a row that end a run. The first 40 take a dynamic scale from its start to the least one.
const SKIPPED_MAX: u64 = 50;

/// How gradients are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossScaling {
    /// By this scale.
    Fixed(f64),
    /// By a scale that follows the gradients.
    Dynamic,
}

/// Where the loss scale stands between two updates. Equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// The scale.
    pub scale: f64,
    /// Updates that happened since it changed, or since one was skipped.
    pub growth_tracker: u64,
    /// Updates that were skipped.
    pub skipped: u64,
    /// Of these the last ones, with no other between them.
    pub skipped_in_row: u64,
}

impl LossScale {
    /// True if the run must end, because too many updates in a row were skipped.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.skipped_in_row >= SKIPPED_MAX
    }
}

impl LossScaling {
    /// At the start of a training, or where another training that began `from` here went on.
    pub(crate) fn start(self, from: Option<LossScale>) -> LossScale {
        let from = from.unwrap_or(LossScale {
            scale: START,
            growth_tracker: 0,
            skipped: 0,
            skipped_in_row: 0,
        });
        match self {
            Self::Fixed(scale) if scale != from.scale => LossScale {
                scale,
                growth_tracker: 0,
                skipped_in_row: 0,
                ..from
            },
            Self::Fixed(_) | Self::Dynamic => from,
        }
    }

    /// Learns from an update, whose gradients had squares with this sum.
    pub(crate) fn observe(self, state: &mut LossScale, total: f64) {
        let is_dynamic = self == Self::Dynamic;
        if !total.is_finite() {
            state.growth_tracker = 0;
            state.skipped += 1;
            state.skipped_in_row += 1;
            if is_dynamic {
                state.scale = (state.scale / 2.0).max(DYNAMIC[0]);
            }
            return;
        }
        state.growth_tracker += 1;
        state.skipped_in_row = 0;
        // It may be far beyond after updates with a fixed scale.
        if is_dynamic && state.growth_tracker >= GROWTH_INTERVAL {
            state.scale = (state.scale * 2.0).min(DYNAMIC[1]);
            state.growth_tracker = 0;
        }
    }
}

/// Tells a step what it needs to know: the scale where gradients are scaled, and updates skipped before, which no other
/// precision has taken.
pub(crate) fn tell(scaling: Option<LossScaling>, state: &LossScale, inputs: &mut Inputs) {
    inputs.loss_scale = scaling.map(|_| state.scale);
    inputs.skipped = state.skipped;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> Inputs {
        Inputs {
            step: 10,
            epoch: 0,
            seed: 0,
            learning_rate: 1.0,
            loss_scale: None,
            skipped: 0,
            samples: Vec::new(),
            next_samples: Vec::new(),
            next_epoch: 0,
        }
    }

    #[test]
    fn a_dynamic_factor_is_halved_and_doubled() {
        let dynamic = LossScaling::Dynamic;
        let mut state = dynamic.start(None);
        for _ in 0..3 {
            dynamic.observe(&mut state, f64::INFINITY);
        }
        dynamic.observe(&mut state, f64::NAN);
        assert_eq!((state.scale, state.skipped), (4096.0, 4));
        for update in 1..GROWTH_INTERVAL {
            dynamic.observe(&mut state, 1.0);
            assert_eq!((state.scale, state.growth_tracker), (4096.0, update));
        }
        dynamic.observe(&mut state, 1.0);
        assert_eq!(
            (state.scale, state.growth_tracker, state.skipped),
            (8192.0, 0, 4)
        );
        let mut inputs = inputs();
        tell(Some(dynamic), &state, &mut inputs);
        assert_eq!((inputs.loss_scale, inputs.update()), (Some(8192.0), 6));
        // In another precision the skipped updates stay skipped.
        tell(None, &state, &mut inputs);
        assert_eq!((inputs.loss_scale, inputs.update()), (None, 6));
    }

    #[test]
    fn updates_are_skipped_below_a_scale_of_1_until_it_is_hopeless() {
        let dynamic = LossScaling::Dynamic;
        let mut state = dynamic.start(None);
        for _ in 0..20 {
            dynamic.observe(&mut state, f64::NAN);
        }
        assert_eq!((state.scale, state.skipped), (1.0 / 16.0, 20));
        let mut inputs = inputs();
        tell(Some(dynamic), &state, &mut inputs);
        assert_eq!(inputs.update_factor(f64::INFINITY, f64::MAX), None);
        assert_eq!(inputs.update_factor(1.0 / 256.0, f64::MAX), Some(16.0));
        dynamic.observe(&mut state, 1.0);
        for _ in 0..SKIPPED_MAX {
            assert!(!state.is_hopeless());
            dynamic.observe(&mut state, f64::NAN);
        }
        assert!(state.is_hopeless());
        assert_eq!((state.scale, state.skipped), (DYNAMIC[0], 20 + SKIPPED_MAX));
    }

    #[test]
    fn a_fixed_factor_stays_and_updates_are_skipped() {
        let fixed = LossScaling::Fixed(128.0);
        let mut state = fixed.start(Some(LossScale {
            scale: 512.0,
            growth_tracker: 3,
            skipped: 2,
            skipped_in_row: 2,
        }));
        fixed.observe(&mut state, f64::INFINITY);
        assert_eq!(
            (state.scale, state.growth_tracker, state.skipped),
            (128.0, 0, 3)
        );
        let mut inputs = inputs();
        assert_eq!(state.skipped_in_row, 1);
        tell(Some(fixed), &state, &mut inputs);
        assert_eq!(inputs.update_factor(f64::INFINITY, 1.0), None);
        // The norm is 2, the bound 1.
        let factor = inputs.update_factor((2.0 * 128.0_f64).powi(2), 1.0);
        assert!((factor.unwrap() * 128.0 - 0.5).abs() < 1e-6, "{factor:?}");
    }

    #[test]
    fn a_dynamic_scale_grows_after_long_trainings_with_a_fixed_one() {
        let fixed = LossScaling::Fixed(128.0);
        let mut state = fixed.start(None);
        for _ in 0..GROWTH_INTERVAL + 10 {
            fixed.observe(&mut state, 1.0);
        }
        let dynamic = LossScaling::Dynamic;
        let mut state = dynamic.start(Some(state));
        assert_eq!(state.scale, 128.0);
        dynamic.observe(&mut state, 1.0);
        assert_eq!((state.scale, state.growth_tracker), (256.0, 0));
    }
}
