//! Which stored values a network can be trained on.
//!
//! A value that is infinite or not a number, or becomes so on the way into the network, spoils every
//! weight in a step. So does one whose square overflows single precision, as batch norm and Adam square
//! what they get. Files also mark missing values by huge numbers (9.97e36 in NetCDF), which a logarithm
//! would make look like data.

use partita_formats::Samples;
use partita_program::Transform;

/// What the network sees lies below this magnitude, 2^64: the largest whose square is a finite `f32`.
pub const SEEN_MAX: f32 = 18_446_744_073_709_551_616.0;
/// What is stored lies below this magnitude; fill values lie above.
pub const STORED_MAX: f32 = 1e36;
/// Values looked at before anything is decided: enough for vector instructions, few enough to stay in
/// the nearest cache.
const BLOCK: usize = 1024;

/// The open interval of stored values that can be trained on under a transform.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Valid {
    transform: Transform,
    low: f32,
    high: f32,
    /// The same bounds as they are, where single precision holds neither.
    exact: [f64; 2],
}

impl Valid {
    /// The interval under a transform.
    pub fn under(transform: Transform) -> Self {
        let exact = match transform {
            Transform::Identity => [-f64::from(SEEN_MAX), f64::from(SEEN_MAX)],
            Transform::Scale { factor } => {
                let most = (f64::from(SEEN_MAX) / factor.abs()).min(f64::from(STORED_MAX));
                [-most, most]
            }
            Transform::LogOnePlus => [-1.0, f64::from(STORED_MAX)],
        };
        // Bounds closer to 0 than all other numbers leave 0 inside.
        let least = f32::from_bits(1);
        let [low, high] = exact.map(|bound| bound as f32);
        Self {
            transform,
            low: low.min(-least),
            high: high.max(least),
            exact,
        }
    }

    /// Position of the first value outside, and that value.
    pub fn first_outside(&self, samples: &Samples) -> Option<(usize, f32)> {
        match samples {
            Samples::I16(values) => {
                // The whole numbers inside; the casts end at those of the type.
                let (low, high) = (self.low.floor() as i16, self.high.ceil() as i16);
                let low = if f32::from(low) > self.low {
                    low
                } else {
                    low.saturating_add(1)
                };
                let high = if f32::from(high) < self.high {
                    high
                } else {
                    high.saturating_sub(1)
                };
                if (low, high) == (i16::MIN, i16::MAX) {
                    return None;
                }
                let at = first(values, |value| (low <= value) & (value <= high))?;
                Some((at, f32::from(values[at])))
            }
            Samples::F32(values) => self.first_outside_floats(values),
        }
    }

    /// As [`Self::first_outside`].
    pub fn first_outside_floats(&self, values: &[f32]) -> Option<(usize, f32)> {
        let (low, high) = (self.low, self.high);
        // Not a number is neither above nor below.
        let at = first(values, |value| (low < value) & (value < high))?;
        Some((at, values[at]))
    }

    /// What is wrong with a value outside.
    pub fn fault(&self, value: f32) -> String {
        if !value.is_finite() {
            return format!("{value} is not finite");
        }
        if value.abs() >= STORED_MAX {
            return format!("{value:e} is extreme, as fill values of missing data are");
        }
        match self.transform {
            Transform::Identity => {
                format!("{value:e} is extreme: its square overflows single precision")
            }
            Transform::Scale { factor } => format!(
                "{value} is extreme: the transform makes it {:e}, whose square overflows single precision",
                f64::from(value) * factor
            ),
            Transform::LogOnePlus => {
                let result = if value == -1.0 {
                    "-inf"
                } else {
                    "not a number"
                };
                format!("log1p of {value} is {result}")
            }
        }
    }

    /// What would be valid.
    pub fn expected(&self) -> String {
        match self.transform {
            Transform::LogOnePlus => {
                format!("a number above -1 and below {STORED_MAX:e}, for log1p takes ln(1 + x)")
            }
            Transform::Identity | Transform::Scale { .. } => {
                let [low, high] = self.exact.map(|bound| {
                    if (bound as f32).is_normal() {
                        format!("{:e}", bound as f32)
                    } else {
                        format!("{bound:e}")
                    }
                });
                format!("a number between {low} and {high}")
            }
        }
    }
}

/// Position of the first value that is not valid.
pub fn first<T: Copy>(values: &[T], is_valid: impl Fn(T) -> bool) -> Option<usize> {
    let blocks = values.chunks(BLOCK);
    let bad = |block: &[T]| !block.iter().fold(true, |all, &v| all & is_valid(v));
    let (block, values) = blocks.enumerate().find(|(_, block)| bad(block))?;
    let inside = values.iter().position(|&value| !is_valid(value));
    inside.map(|at| block * BLOCK + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETCDF_FILL: f32 = 9.969_21e36;

    fn outside(transform: Transform, value: f32) -> Option<String> {
        let valid = Valid::under(transform);
        let mut values = vec![1.0; 3 * BLOCK];
        values[2 * BLOCK + 5] = value;
        let (at, found) = valid.first_outside(&Samples::F32(values))?;
        assert_eq!((at, found.to_bits()), (2 * BLOCK + 5, value.to_bits()));
        Some(valid.fault(found))
    }

    #[test]
    fn what_spoils_a_network_is_found_and_named() {
        let scale = Transform::Scale { factor: 1e10 };
        let log = Transform::LogOnePlus;
        for (transform, value, says) in [
            (Transform::Identity, f32::NAN, "NaN is not finite"),
            (Transform::Identity, f32::NEG_INFINITY, "-inf is not finite"),
            (Transform::Identity, NETCDF_FILL, "fill values"),
            (Transform::Identity, 1e20, "square overflows"),
            (scale, -1e10, "makes it -1e20"),
            (log, -1.0, "log1p of -1 is -inf"),
            (log, -1.5, "log1p of -1.5 is not a number"),
            (log, NETCDF_FILL, "fill values"),
        ] {
            let fault = outside(transform, value).expect("a fault");
            assert!(fault.contains(says), "{transform:?}, {value}: {fault}");
        }
        for (transform, value) in [
            (Transform::Identity, -1.8e19),
            (scale, 1.8e9),
            (Transform::Scale { factor: 1e-20 }, 1e30),
            (log, 1e35),
            (log, -0.999),
        ] {
            assert_eq!(outside(transform, value), None, "{transform:?}, {value}");
        }
        let square = SEEN_MAX * SEEN_MAX;
        assert!(square.is_infinite() && SEEN_MAX.next_down().powi(2).is_finite());
    }

    #[test]
    fn bounds_are_told_as_they_are() {
        let factor = 1e300;
        let valid = Valid::under(Transform::Scale { factor });
        let expected = valid.expected();
        let bounds = expected.strip_prefix("a number between ").unwrap();
        let (low, high) = bounds.split_once(" and ").unwrap();
        let [low, high] = [low, high].map(|bound| bound.parse::<f64>().unwrap());
        assert!(low < 0.0 && high > 0.0, "{expected}");
        let seen = high * factor / f64::from(SEEN_MAX);
        assert!((seen - 1.0).abs() < 1e-9, "{expected}");
        let zeros = Samples::F32(vec![0.0, -0.0]);
        assert_eq!(valid.first_outside(&zeros), None);
        let least = Samples::F32(vec![0.0, f32::from_bits(1)]);
        assert_eq!(valid.first_outside(&least), Some((1, f32::from_bits(1))));
    }

    #[test]
    fn counts_are_looked_at_where_a_transform_refuses_some() {
        let counts = Samples::I16(vec![0, i16::MAX, -1, i16::MIN]);
        let first = |transform| Valid::under(transform).first_outside(&counts);
        assert_eq!(first(Transform::LogOnePlus), Some((2, -1.0)));
        assert_eq!(first(Transform::Identity), None);
        assert_eq!(first(Transform::Scale { factor: 1e18 }), Some((1, 32767.0)));
        let most = f64::from(SEEN_MAX) / 32767.5;
        assert_eq!(
            first(Transform::Scale { factor: most }),
            Some((3, -32768.0))
        );
    }
}
