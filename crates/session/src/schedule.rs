//! Learning-rate schedules.

/// The learning rate as a function of the epochs done; steps within an epoch count as fractions.
#[derive(Clone, Copy, Debug, PartialEq)]
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
}

impl LearningRateSchedule {
    /// The rate after `epochs_done` epochs.
    pub fn rate(&self, epochs_done: f64) -> f64 {
        match *self {
            LearningRateSchedule::Constant { rate } => rate,
            LearningRateSchedule::Linear {
                rate,
                final_factor,
                epochs,
            } => {
                let x = (epochs_done / epochs).min(1.0);
                rate * (1.0 - (1.0 - final_factor) * x)
            }
            LearningRateSchedule::Cosine {
                rate,
                final_factor,
                epochs,
            } => {
                let x = (epochs_done / epochs).min(1.0);
                let fall = (1.0 + (std::f64::consts::PI * x).cos()) / 2.0;
                rate * (final_factor + (1.0 - final_factor) * fall)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LearningRateSchedule;

    #[test]
    fn rates_fall_from_the_start_to_the_final_factor() {
        let linear = LearningRateSchedule::Linear {
            rate: 0.4,
            final_factor: 0.25,
            epochs: 8.0,
        };
        let cosine = LearningRateSchedule::Cosine {
            rate: 0.4,
            final_factor: 0.25,
            epochs: 8.0,
        };
        for (schedule, quarter) in [(linear, 0.325), (cosine, 0.356_066_017_177_982_13)] {
            assert_eq!(schedule.rate(0.0), 0.4);
            assert!((schedule.rate(2.0) - quarter).abs() < 1e-15);
            assert!((schedule.rate(4.0) - 0.25).abs() < 1e-15);
            assert!((schedule.rate(8.0) - 0.1).abs() < 1e-15);
            assert_eq!(schedule.rate(9.0), schedule.rate(8.0));
        }
        assert_eq!(LearningRateSchedule::Constant { rate: 0.4 }.rate(7.0), 0.4);
    }
}
