//! Applies a chain of steps to values.

use std::ops::Range;

use partita_data::valid::{SEEN_MAX, STORED_MAX, first};

use super::{FittedStep, Preparation};

/// Values that go through all steps together: few enough for the nearest cache.
const BLOCK: usize = 2048;

/// A value that a step cannot take.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outside {
    /// Its position.
    pub(crate) at: usize,
    /// What is wrong with it.
    pub(crate) fault: String,
    /// What would be valid.
    pub(crate) expected: String,
}

impl Preparation {
    /// Prepares values in (C, D, H, W) order, of these channels.
    ///
    /// Errors: a value outside the domain of a step, or that is extreme before the first step or after the last.
    /// Values are unspecified then.
    pub(crate) fn apply(&self, channels: Range<usize>, values: &mut [f32]) -> Result<(), Outside> {
        if values.is_empty() {
            return Ok(());
        }
        let count = values.len() / channels.len();
        for (channel, values) in channels
            .zip(values.chunks_exact_mut(count))
            .enumerate()
            .map(|(index, (channel, values))| ((index * count, channel), values))
        {
            let (start, channel) = channel;
            for (index, block) in values.chunks_mut(BLOCK).enumerate() {
                let placed = |outside: Outside| Outside {
                    at: start + index * BLOCK + outside.at,
                    ..outside
                };
                self.apply_block(channel, block).map_err(placed)?;
            }
        }
        Ok(())
    }

    /// Makes a channel for each class of prepared values in (C, D, H, W) order, of stored channels from `first` on.
    ///
    /// Shapes: `channels` are those of the network, `classes` for each stored one; `out` is replaced by them.
    pub(crate) fn expand(
        classes: usize,
        channels: Range<usize>,
        first: usize,
        values: &[f32],
        out: &mut Vec<f32>,
    ) {
        out.clear();
        if channels.is_empty() {
            return;
        }
        let stored = (channels.end - 1) / classes + 1 - first;
        let count = values.len() / stored;
        out.reserve_exact(channels.len() * count);
        for channel in channels {
            let class = (channel % classes) as f32;
            let start = (channel / classes - first) * count;
            let indices = &values[start..start + count];
            out.extend(indices.iter().map(|&index| f32::from(index == class)));
        }
    }

    fn apply_block(&self, channel: usize, values: &mut [f32]) -> Result<(), Outside> {
        check(values, |value| value.abs() < STORED_MAX, stored_fault)?;
        for step in &self.steps {
            match step {
                FittedStep::LogOnePlus => {
                    check(
                        values,
                        |value| value > -1.0,
                        |value| domain("log1p", value, -1),
                    )?;
                    for value in &mut *values {
                        *value = value.ln_1p();
                    }
                }
                FittedStep::Log => {
                    check(values, |value| value > 0.0, |value| domain("log", value, 0))?;
                    for value in &mut *values {
                        *value = value.ln();
                    }
                }
                FittedStep::Scale { factor } => {
                    for value in &mut *values {
                        *value = (f64::from(*value) * factor) as f32;
                    }
                }
                FittedStep::Clip { low, high } => {
                    let (low, high) = (*low as f32, *high as f32);
                    for value in &mut *values {
                        *value = value.clamp(low, high);
                    }
                }
                FittedStep::Standardize {
                    mean,
                    standard_deviation,
                } => shift_and_divide(values, mean[channel], standard_deviation[channel]),
                FittedStep::Percentiles { low, high, .. } => {
                    shift_and_divide(values, low[channel], high[channel] - low[channel]);
                }
                // Values stay class indices; `expand` makes channels of them.
                FittedStep::OneHot { classes } => check(
                    values,
                    |value| value >= 0.0 && value < *classes as f32 && value.fract() == 0.0,
                    |value| no_class(value, *classes),
                )?,
            }
        }
        check(values, |value| value.abs() < SEEN_MAX, seen_fault)
    }
}

fn shift_and_divide(values: &mut [f32], shift: f64, divisor: f64) {
    let factor = divisor.recip();
    for value in values {
        *value = ((f64::from(*value) - shift) * factor) as f32;
    }
}

/// Errors: the first value that is not valid, with its fault and what would be valid.
fn check(
    values: &[f32],
    is_valid: impl Fn(f32) -> bool,
    describe: impl Fn(f32) -> (String, String),
) -> Result<(), Outside> {
    let Some(at) = first(values, is_valid) else {
        return Ok(());
    };
    let (fault, expected) = describe(values[at]);
    Err(Outside {
        at,
        fault,
        expected,
    })
}

fn domain(name: &str, value: f32, above: i32) -> (String, String) {
    let result = if value == above as f32 {
        "-inf"
    } else {
        "not a number"
    };
    let fault = format!("{name} of {value} is {result}");
    (fault, format!("a number above {above} before `{name}`"))
}

fn no_class(value: f32, classes: usize) -> (String, String) {
    let fault = format!("{value} is not a class index for one_hot = {classes}");
    (fault, format!("a whole number from 0 to {}", classes - 1))
}

fn stored_fault(value: f32) -> (String, String) {
    let fault = if value.is_finite() {
        format!("{value:e} is extreme, as fill values of missing data are")
    } else {
        format!("{value} is not finite")
    };
    (
        fault,
        format!("a number of a magnitude below {STORED_MAX:e}"),
    )
}

fn seen_fault(value: f32) -> (String, String) {
    let fault =
        format!("the transform makes it {value:e}, whose square overflows single precision");
    let expected = format!("a number that the transform makes smaller than {SEEN_MAX:e}");
    (fault, expected)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn chain() -> Preparation {
        Preparation::new(vec![
            FittedStep::LogOnePlus,
            FittedStep::Clip {
                low: 0.0,
                high: 2.0,
            },
            FittedStep::Standardize {
                mean: vec![0.5, 1.0],
                standard_deviation: vec![2.0, 0.5],
            },
        ])
    }

    #[test]
    fn steps_act_in_order_and_by_channel() {
        let stored: Vec<f32> = (0..2 * 3000).map(|i| (i % 17) as f32).collect();
        let mut values = stored.clone();
        chain().apply(0..2, &mut values).unwrap();
        for (index, (&value, &stored)) in values.iter().zip(&stored).enumerate() {
            let (mean, deviation) = [(0.5, 2.0), (1.0, 0.5)][index / 3000];
            let plain = (f64::from(stored).ln_1p().clamp(0.0, 2.0) - mean) / deviation;
            assert!((f64::from(value) - plain).abs() < 1e-6, "{index}");
        }
        // A rank that holds the second channel alone.
        let mut part = stored[3000..].to_vec();
        chain().apply(1..2, &mut part).unwrap();
        assert_eq!(part, values[3000..]);
    }

    #[test]
    fn a_value_outside_a_domain_is_found() {
        for (value, fault) in [
            (-1.5, "log1p of -1.5 is not a number"),
            (-1.0, "log1p of -1 is -inf"),
            (f32::NAN, "NaN is not finite"),
            (9.9e36, "fill values"),
        ] {
            let mut values = vec![1.0; 2 * 3000];
            values[4321] = value;
            let outside = chain().apply(0..2, &mut values).unwrap_err();
            assert_eq!(outside.at, 4321);
            assert!(outside.fault.contains(fault), "{}", outside.fault);
        }
        let log = Preparation::new(vec![FittedStep::Log]);
        let outside = log.apply(0..1, &mut [1.0, 0.0]).unwrap_err();
        assert_eq!(outside.at, 1);
        assert!(outside.fault.contains("log of 0 is -inf"));
        let scale = Preparation::new(vec![FittedStep::Scale { factor: 1e10 }]);
        let outside = scale.apply(0..1, &mut [1e9, 2e10]).unwrap_err();
        assert_eq!(outside.at, 1);
        assert!(outside.fault.contains("overflows"));
    }
}
