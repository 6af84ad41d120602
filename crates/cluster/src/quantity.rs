//! Numbers with units in machine files.

use crate::machine::{Half, Share};
use partita_space::near;
use partita_space::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};
use toml::Value;

/// A number of a machine file: read from a TOML value, written back as one.
///
/// Reading what was written gives the same bits, since both shift decimal digits as text.
pub(crate) trait Quantity: Sized {
    /// The quantity, or what was expected instead of the value.
    fn read(value: &Value) -> Result<Self, String>;
    /// The TOML value, in the unit that reads best.
    fn write(&self) -> Value;
}

impl Quantity for Seconds {
    fn read(value: &Value) -> Result<Self, String> {
        TIME.read(value, |number| number >= 0.0).map(Seconds)
    }

    fn write(&self) -> Value {
        TIME.write(self.0)
    }
}

impl Quantity for BytesPerSecond {
    fn read(value: &Value) -> Result<Self, String> {
        DATA_RATE
            .read(value, |number| number > 0.0)
            .map(BytesPerSecond)
    }

    fn write(&self) -> Value {
        DATA_RATE.write(self.0)
    }
}

impl Quantity for FlopsPerSecond {
    fn read(value: &Value) -> Result<Self, String> {
        ARITHMETIC_RATE
            .read(value, |number| number > 0.0)
            .map(FlopsPerSecond)
    }

    fn write(&self) -> Value {
        ARITHMETIC_RATE.write(self.0)
    }
}

impl Quantity for Bytes {
    fn read(value: &Value) -> Result<Self, String> {
        // Above 2^53 an f64 no longer tells one byte from the next.
        let whole = |number: f64| number >= 1.0 && number.fract() == 0.0 && number <= 2f64.powi(53);
        MEMORY.read(value, whole).map(|number| Bytes(number as u64))
    }

    fn write(&self) -> Value {
        let shortest = MEMORY
            .units
            .iter()
            .filter_map(|&(unit, scale)| {
                let size = scale.integer()?;
                self.0
                    .is_multiple_of(size)
                    .then(|| format!("{} {unit}", self.0 / size))
            })
            .min_by_key(String::len);
        Value::String(shortest.unwrap_or_else(|| format!("{} B", self.0)))
    }
}

/// A number without a unit, or NaN.
pub(crate) fn bare(value: &Value) -> f64 {
    match value {
        Value::Float(number) => *number,
        Value::Integer(number) => *number as f64,
        Value::String(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Array(_)
        | Value::Table(_) => f64::NAN,
    }
}

impl Quantity for Half {
    fn read(value: &Value) -> Result<Self, String> {
        let number = bare(value);
        if number > 0.0 && number.is_finite() {
            Ok(Half(number))
        } else {
            Err("the extent at which half is reached, such as 24.0, above 0".to_owned())
        }
    }

    fn write(&self) -> Value {
        Value::Float(self.0)
    }
}

impl Quantity for Share {
    fn read(value: &Value) -> Result<Self, String> {
        let number = bare(value);
        if number > 0.0 && number <= 4.0 {
            Ok(Share(number))
        } else {
            Err("a share of the peak such as 0.5, above 0 and at most 4".to_owned())
        }
    }

    fn write(&self) -> Value {
        Value::Float(self.0)
    }
}

impl Quantity for usize {
    fn read(value: &Value) -> Result<Self, String> {
        let number = match value {
            Value::Integer(number) => *number,
            Value::String(_)
            | Value::Float(_)
            | Value::Boolean(_)
            | Value::Datetime(_)
            | Value::Array(_)
            | Value::Table(_) => 0,
        };
        // u32 keeps the product of two counts inside a usize.
        match u32::try_from(number) {
            Ok(count) if count > 0 => Ok(count as usize),
            Ok(_) | Err(_) => Err("a whole number, at least 1".to_owned()),
        }
    }

    fn write(&self) -> Value {
        Value::Integer(*self as i64)
    }
}

/// A factor in front of a unit.
#[derive(Clone, Copy)]
enum Scale {
    /// A power of ten.
    Decimal(i32),
    /// A power of two.
    Binary(u32),
}

/// What is measured, and its units from the smallest to the largest.
struct Measure {
    noun: &'static str,
    example: &'static str,
    units: &'static [(&'static str, Scale)],
}

const TIME: Measure = Measure {
    noun: "a time of 0 or more",
    example: "1.2 us",
    units: &[
        ("ns", Scale::Decimal(-9)),
        ("us", Scale::Decimal(-6)),
        ("ms", Scale::Decimal(-3)),
        ("s", Scale::Decimal(0)),
    ],
};

const MEMORY: Measure = Measure {
    noun: "a size above 0 in whole bytes",
    example: "16 GiB",
    units: &[
        ("B", Scale::Decimal(0)),
        ("kB", Scale::Decimal(3)),
        ("KiB", Scale::Binary(10)),
        ("MB", Scale::Decimal(6)),
        ("MiB", Scale::Binary(20)),
        ("GB", Scale::Decimal(9)),
        ("GiB", Scale::Binary(30)),
        ("TB", Scale::Decimal(12)),
        ("TiB", Scale::Binary(40)),
    ],
};

const DATA_RATE: Measure = Measure {
    noun: "a rate above 0",
    example: "25 GB/s",
    units: &[
        ("B/s", Scale::Decimal(0)),
        ("kB/s", Scale::Decimal(3)),
        ("KiB/s", Scale::Binary(10)),
        ("MB/s", Scale::Decimal(6)),
        ("MiB/s", Scale::Binary(20)),
        ("GB/s", Scale::Decimal(9)),
        ("GiB/s", Scale::Binary(30)),
        ("TB/s", Scale::Decimal(12)),
        ("TiB/s", Scale::Binary(40)),
    ],
};

const ARITHMETIC_RATE: Measure = Measure {
    noun: "a rate above 0",
    example: "15.7 Tflop/s",
    units: &[
        ("flop/s", Scale::Decimal(0)),
        ("kflop/s", Scale::Decimal(3)),
        ("Mflop/s", Scale::Decimal(6)),
        ("Gflop/s", Scale::Decimal(9)),
        ("Tflop/s", Scale::Decimal(12)),
        ("Pflop/s", Scale::Decimal(15)),
    ],
};

impl Scale {
    fn integer(self) -> Option<u64> {
        match self {
            Scale::Decimal(power) => 10u64.checked_pow(u32::try_from(power).ok()?),
            Scale::Binary(power) => 1u64.checked_shl(power),
        }
    }
}

impl Measure {
    fn read(&self, value: &Value, sensible: impl Fn(f64) -> bool) -> Result<f64, String> {
        let text = match value {
            Value::String(text) => text.trim(),
            Value::Integer(_)
            | Value::Float(_)
            | Value::Boolean(_)
            | Value::Datetime(_)
            | Value::Array(_)
            | Value::Table(_) => return Err(self.expected("")),
        };
        let read = self
            .units
            .iter()
            .find_map(|&(unit, scale)| scaled(text.strip_suffix(unit)?.trim_end(), scale));
        match read {
            Some(number) if number.is_finite() && sensible(number) => Ok(number),
            Some(_) | None => Err(self.expected(text)),
        }
    }

    fn expected(&self, text: &str) -> String {
        let units: Vec<&str> = self.units.iter().map(|&(unit, _)| unit).collect();
        let given = text.trim_start_matches(|letter: char| !letter.is_alphabetic());
        let of_bits = given.strip_suffix("bit/s");
        let hint = match (of_bits, near(given, units.iter().copied())) {
            (Some(prefix), _) => format!(" (8 {given} are 1 {prefix}B/s)"),
            (None, Some(unit)) if unit != given => format!(" (did you mean `{unit}`?)"),
            (None, _) => String::new(),
        };
        let (noun, example, units) = (self.noun, self.example, units.join(", "));
        format!("{noun} as text with its unit, \"{example}\"; units: {units}{hint}")
    }

    /// The largest decimal unit that leaves a number of at least 1, else the base unit.
    fn write(&self, number: f64) -> Value {
        let (digits, exponent) = decimal(number);
        let fitting = self
            .units
            .iter()
            .rev()
            .find_map(|&(unit, scale)| match scale {
                Scale::Decimal(power) if power <= exponent => Some((unit, exponent - power)),
                Scale::Decimal(_) | Scale::Binary(_) => None,
            });
        Value::String(match fitting {
            Some((unit, shift)) => format!("{} {unit}", shifted(&digits, shift)),
            None => {
                let base = self.units.iter().find_map(|&(unit, scale)| match scale {
                    Scale::Decimal(0) => Some(unit),
                    Scale::Decimal(_) | Scale::Binary(_) => None,
                });
                format!("{number:e} {}", base.unwrap_or_default())
            }
        })
    }
}

/// The number before a unit times the unit's factor, rounded once.
fn scaled(number: &str, scale: Scale) -> Option<f64> {
    match scale {
        Scale::Decimal(power) => {
            let (mantissa, exponent) = match number.split_once(['e', 'E']) {
                Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
                None => (number, 0),
            };
            format!("{mantissa}e{}", exponent.checked_add(power)?)
                .parse()
                .ok()
        }
        Scale::Binary(power) => Some(number.parse::<f64>().ok()? * 2f64.powi(power as i32)),
    }
}

/// The shortest digits that stand for a number, and the power of ten of the first of them.
fn decimal(number: f64) -> (String, i32) {
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    (mantissa.replace('.', ""), exponent.parse().unwrap_or(0))
}

/// Digits as a plain decimal number with `shift + 1` of them before the point; `shift >= 0`.
fn shifted(digits: &str, shift: i32) -> String {
    let before = shift as usize + 1;
    if digits.len() <= before {
        format!("{digits:0<before$}")
    } else {
        format!("{}.{}", &digits[..before], &digits[before..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::String(text.to_owned())
    }

    #[test]
    fn reads_prefixes_exactly() {
        assert_eq!(Seconds::read(&text("1.2 us")), Ok(Seconds(1.2e-6)));
        assert_eq!(Seconds::read(&text("90ns")), Ok(Seconds(90e-9)));
        assert_eq!(Seconds::read(&text("0 s")), Ok(Seconds(0.0)));
        assert_eq!(Bytes::read(&text("16 GB")), Ok(Bytes(16_000_000_000)));
        assert_eq!(Bytes::read(&text("1.5 GiB")), Ok(Bytes(3 << 29)));
        assert_eq!(
            BytesPerSecond::read(&text("25e-3 TB/s")),
            Ok(BytesPerSecond(25e9))
        );
        assert_eq!(
            FlopsPerSecond::read(&text("15.7 Tflop/s")),
            Ok(FlopsPerSecond(15.7e12))
        );
    }

    #[test]
    fn refuses_nonsense() {
        for wrong in [
            "-1 us", "nan us", "inf s", "1.2", "us", "", "1.2 GB", "1 2 us", "1e999 s",
        ] {
            assert!(Seconds::read(&text(wrong)).is_err(), "{wrong}");
        }
        for wrong in ["0 GB/s", "-25 GB/s", "25 GB", "25 Gbit/s", "NaN GB/s"] {
            assert!(BytesPerSecond::read(&text(wrong)).is_err(), "{wrong}");
        }
        for wrong in ["0 B", "0.5 B", "-16 GB", "16 gigabytes", "1e30 B"] {
            assert!(Bytes::read(&text(wrong)).is_err(), "{wrong}");
        }
        for wrong in [0.0, -0.5, f64::NAN, f64::INFINITY, 4.5] {
            assert!(Share::read(&Value::Float(wrong)).is_err(), "{wrong}");
        }
        for wrong in [0, -4, i64::MAX] {
            assert!(usize::read(&Value::Integer(wrong)).is_err(), "{wrong}");
        }
        assert!(Seconds::read(&Value::Float(1e-6)).is_err());
    }

    #[test]
    fn names_the_unit_that_was_meant() {
        let expected = BytesPerSecond::read(&text("25 Gb/s")).expect_err("bits");
        assert!(expected.contains("did you mean `GB/s`?"), "{expected}");
        let expected = BytesPerSecond::read(&text("100 Gbit/s")).expect_err("bits");
        assert!(expected.contains("8 Gbit/s are 1 GB/s"), "{expected}");
    }

    #[test]
    fn writes_what_it_reads() {
        for (number, written) in [
            (1.2e-6, "1.2 us"),
            (0.25, "250 ms"),
            (0.0, "0 s"),
            (40.31e-6, "40.31 us"),
            (3e-12, "3e-12 s"),
            (7200.0, "7200 s"),
        ] {
            assert_eq!(Seconds(number).write(), text(written));
        }
        assert_eq!(Bytes(16_000_000_000).write(), text("16 GB"));
        assert_eq!(Bytes(17_179_869_184).write(), text("16 GiB"));
        assert_eq!(Bytes(1_234_567).write(), text("1234567 B"));
        assert_eq!(FlopsPerSecond(15.7e12).write(), text("15.7 Tflop/s"));
        // A multiplicative walk through 40 decades meets digits of every length.
        let mut number = 1e-15;
        while number < 1e25 {
            assert_eq!(Seconds::read(&Seconds(number).write()), Ok(Seconds(number)));
            let rate = BytesPerSecond(number);
            assert_eq!(BytesPerSecond::read(&rate.write()), Ok(rate));
            number *= 1.718_281_828;
        }
    }
}
