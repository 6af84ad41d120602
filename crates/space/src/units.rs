//! Units: bytes, flops, seconds and rates.

mod table;

pub use table::{Unit, UnitTable};

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

/// Two decimals of the unit that fits.
fn show(value: f64, table: UnitTable, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // An empty sum of floats is -0.
    let value = value + 0.0;
    let unit = table.shown(value);
    write!(f, "{:.2} {}", value / unit.factor(), unit.name)
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        show(self.0 as f64, UnitTable::BYTES, f)
    }
}

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1000 {
            return write!(f, "{} flop", self.0);
        }
        show(self.0 as f64, UnitTable::FLOPS, f)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(self.0, UnitTable::TIME, f)
    }
}

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(self.0, UnitTable::BYTES_PER_SECOND, f)
    }
}

impl fmt::Display for FlopsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(self.0, UnitTable::FLOPS_PER_SECOND, f)
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
        assert_eq!(Flops(1_183_420_000_000).to_string(), "1.18 Tflop");
        assert_eq!(Seconds(0.0025).to_string(), "2.50 ms");
        assert_eq!((Bytes(100) / BytesPerSecond(50.0)).0, 2.0);
    }
}
