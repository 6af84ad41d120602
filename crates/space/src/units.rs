//! Units: bytes, flops, seconds and rates.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// A count of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A count of floating-point operations; a multiply-add counts two.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Flops(pub u64);

/// A duration or an instant in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

/// A rate of data movement.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BytesPerSecond(pub f64);

/// A rate of arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FlopsPerSecond(pub f64);

macro_rules! additive {
    ($name:ident, $zero:expr, $add:expr, $sub:expr) => {
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self($add(self.0, other.0))
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self($sub(self.0, other.0))
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self($zero), Add::add)
            }
        }
    };
}

// Sizes are bounded where they enter, so that counts fit. Should one not, it must not wrap in any build:
// a wrapped size passes every later check.
macro_rules! counted {
    ($name:ident) => {
        additive!($name, 0, $name::sum_of, $name::difference_of);

        impl $name {
            fn sum_of(a: u64, b: u64) -> u64 {
                let sum = a.checked_add(b);
                sum.expect(concat!(stringify!($name), " are counted in 64 bits"))
            }

            fn difference_of(a: u64, b: u64) -> u64 {
                let difference = a.checked_sub(b);
                difference.expect(concat!(stringify!($name), " are not negative"))
            }
        }

        impl Mul<u64> for $name {
            type Output = Self;
            fn mul(self, factor: u64) -> Self {
                let product = self.0.checked_mul(factor);
                Self(product.expect(concat!(stringify!($name), " are counted in 64 bits")))
            }
        }
    };
}

counted!(Bytes);
counted!(Flops);
additive!(Seconds, 0.0, Add::add, Sub::sub);

impl Mul<f64> for Seconds {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self(self.0 * factor)
    }
}

impl Div<BytesPerSecond> for Bytes {
    type Output = Seconds;
    fn div(self, rate: BytesPerSecond) -> Seconds {
        Seconds(self.0 as f64 / rate.0)
    }
}

impl Div<FlopsPerSecond> for Flops {
    type Output = Seconds;
    fn div(self, rate: FlopsPerSecond) -> Seconds {
        Seconds(self.0 as f64 / rate.0)
    }
}

impl Seconds {
    /// The later of two instants. Neither may be NaN.
    pub fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    /// The smaller of two durations.
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

fn scaled(value: f64, steps: &[(f64, &str)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // An empty sum of floats is -0.
    let value = value + 0.0;
    for &(scale, unit) in steps {
        if value.abs() >= scale {
            return write!(f, "{:.2} {unit}", value / scale);
        }
    }
    let &(scale, unit) = steps.last().expect("a unit table is never empty");
    write!(f, "{:.2} {unit}", value / scale)
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEPS: [(f64, &str); 4] = [
            (1_099_511_627_776.0, "TiB"),
            (1_073_741_824.0, "GiB"),
            (1_048_576.0, "MiB"),
            (1024.0, "KiB"),
        ];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        scaled(self.0 as f64, &STEPS, f)
    }
}

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEPS: [(f64, &str); 4] = [
            (1e12, "TFlop"),
            (1e9, "GFlop"),
            (1e6, "MFlop"),
            (1e3, "kFlop"),
        ];
        if self.0 < 1000 {
            return write!(f, "{} Flop", self.0);
        }
        scaled(self.0 as f64, &STEPS, f)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(
            self.0,
            &[(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")],
            f,
        )
    }
}

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(
            self.0,
            &[(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1.0, "B/s")],
            f,
        )
    }
}

impl fmt::Display for FlopsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(
            self.0,
            &[
                (1e12, "TFlop/s"),
                (1e9, "GFlop/s"),
                (1e6, "MFlop/s"),
                (1.0, "Flop/s"),
            ],
            f,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_never_wrap() {
        let most = Bytes(u64::MAX);
        for wraps in [
            std::panic::catch_unwind(|| most + Bytes(1)),
            std::panic::catch_unwind(|| most * 2),
            std::panic::catch_unwind(|| Bytes(1) - Bytes(2)),
            std::panic::catch_unwind(|| [most, most].into_iter().sum()),
        ] {
            assert!(wraps.is_err(), "{wraps:?}");
        }
    }

    #[test]
    fn prints_with_the_unit_that_fits() {
        assert_eq!(Bytes(56_597_000_000).to_string(), "52.71 GiB");
        assert_eq!(Bytes(17).to_string(), "17 B");
        assert_eq!(Flops(1_183_420_000_000).to_string(), "1.18 TFlop");
        assert_eq!(Seconds(0.0025).to_string(), "2.50 ms");
        assert_eq!((Bytes(100) / BytesPerSecond(50.0)).0, 2.0);
    }
}
