//! Statistics of two datasets compared, and in words.

use super::{FittedStep, Preparation};

/// Largest difference of two statistics that counts as rounding, as a fraction of their size and of the spread.
const ROUNDING: f64 = 1e-6;
/// Channels whose statistics are printed.
const CHANNELS_SHOWN: usize = 4;

impl FittedStep {
    /// Its statistics by name: a shift and a divisor, or the two ends; none for a step without statistics.
    fn statistics(&self) -> Option<[(String, &[f64]); 2]> {
        match self {
            Self::Standardize {
                mean,
                standard_deviation,
            } => Some([
                ("mean".to_owned(), mean),
                ("standard deviation".to_owned(), standard_deviation),
            ]),
            Self::Percentiles {
                percentiles: [first, second],
                low,
                high,
            } => Some([
                (format!("percentile {first}"), low),
                (format!("percentile {second}"), high),
            ]),
            Self::LogOnePlus
            | Self::Log
            | Self::Scale { .. }
            | Self::Clip { .. }
            | Self::OneHot { .. } => None,
        }
    }

    fn differs(&self, other: &Self) -> bool {
        let (Some([first, second]), Some([other_first, other_second])) =
            (self.statistics(), other.statistics())
        else {
            return self != other;
        };
        let spread = |channel: usize| match self {
            Self::Percentiles { low, high, .. } => high[channel] - low[channel],
            _ => second.1[channel],
        };
        let pairs = [(first.1, other_first.1), (second.1, other_second.1)];
        pairs.into_iter().any(|(own, others)| {
            let is_far = |(channel, (a, b)): (usize, (&f64, &f64))| {
                (a - b).abs() > ROUNDING * (a.abs() + spread(channel).abs())
            };
            own.len() != others.len() || own.iter().zip(others).enumerate().any(is_far)
        })
    }
}

impl Preparation {
    /// Whether steps or statistics differ by more than rounding.
    pub fn differs(&self, other: &Self) -> bool {
        let mut pairs = self.steps.iter().zip(&other.steps);
        self.steps.len() != other.steps.len() || pairs.any(|(a, b)| a.differs(b))
    }

    /// Its statistics in words, like `mean 9.9, standard deviation 5.7`.
    pub fn statistics_text(&self) -> String {
        let all = self.steps.iter().filter_map(FittedStep::statistics);
        let words = all.flatten().map(|(name, values)| {
            let shown: Vec<String> = values.iter().take(CHANNELS_SHOWN).map(rounded).collect();
            match values.len() {
                1 => format!("{name} {}", shown[0]),
                count if count > CHANNELS_SHOWN => format!("{name} [{}, ...]", shown.join(", ")),
                _ => format!("{name} [{}]", shown.join(", ")),
            }
        });
        words.collect::<Vec<String>>().join(", ")
    }
}

/// A number with five digits.
fn rounded(number: &f64) -> String {
    let text = format!("{number:.4e}");
    text.parse::<f64>()
        .map_or(text, |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mean: f64, deviation: f64) -> Preparation {
        Preparation::new(vec![
            FittedStep::LogOnePlus,
            FittedStep::Standardize {
                mean: vec![mean],
                standard_deviation: vec![deviation],
            },
        ])
    }

    #[test]
    fn rounding_is_no_difference() {
        // A mean of noise about zero is compared by the spread.
        assert!(!of(1e-17, 1.0).differs(&of(-3e-17, 1.0)));
        assert!(!of(9.9, 5.0).differs(&of(9.900001, 5.0)));
        assert!(of(9.9, 5.0).differs(&of(9.901, 5.0)));
        assert!(of(9.9, 5.0).differs(&of(9.9, 5.1)));
        assert!(of(9.9, 5.0).differs(&Preparation::default()));
        assert_eq!(
            of(9.9, 5.123_456_789).statistics_text(),
            "mean 9.9, standard deviation 5.1235"
        );
    }
}
