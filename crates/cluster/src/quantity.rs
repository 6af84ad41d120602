//! Numbers with units in machine files.

use crate::machine::{HalfSaturation, Share};
use crate::network::{CollectiveLibrary, Ratio};
use crate::software::{AdaptersUsed, Exponent, Factor};
use crate::words::{bare, choose};
use partita_space::help::Expected;
use partita_space::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds, UnitTable, near};
use toml::Value;

/// A number of a machine file: read from a TOML value, written back as one.
pub(crate) trait Quantity: Sized {
    /// Whether no vendor states it, so that its basis must be given.
    const NEEDS_BASIS: bool = false;

    /// Errors: what is expected instead of the value.
    fn read(value: &Value) -> Result<Self, Expected>;
    /// The TOML value, in the unit that reads best.
    fn write(&self) -> Value;
}

/// Longer than any step.
const SECONDS_MAX: f64 = 1e6;
/// Larger than any ratio of two times.
const FACTOR_MAX: f64 = 1e6;
/// More than any rate, in bytes or operations per second.
const RATE_MAX: f64 = 1e30;
/// Most of anything that is counted: the most ranks of a request.
const COUNT_MAX: usize = 1 << 24;
/// Above 2^53 an `f64` no longer tells one byte from the next.
const MEMORY_MAX: f64 = 9_007_199_254_740_992.0;

impl Quantity for Seconds {
    fn read(value: &Value) -> Result<Self, Expected> {
        let is_time = |number: f64| (0.0..=SECONDS_MAX).contains(&number);
        TIME.read(value, is_time).map(Seconds)
    }

    fn write(&self) -> Value {
        TIME.write(self.0)
    }
}

impl Quantity for BytesPerSecond {
    fn read(value: &Value) -> Result<Self, Expected> {
        DATA_RATE.read(value, is_rate).map(BytesPerSecond)
    }

    fn write(&self) -> Value {
        DATA_RATE.write(self.0)
    }
}

fn is_rate(number: f64) -> bool {
    number > 0.0 && number <= RATE_MAX
}

impl Quantity for FlopsPerSecond {
    fn read(value: &Value) -> Result<Self, Expected> {
        ARITHMETIC_RATE.read(value, is_rate).map(FlopsPerSecond)
    }

    fn write(&self) -> Value {
        ARITHMETIC_RATE.write(self.0)
    }
}

impl Quantity for Bytes {
    fn read(value: &Value) -> Result<Self, Expected> {
        let whole = |number: f64| (1.0..=MEMORY_MAX).contains(&number) && number.fract() == 0.0;
        MEMORY.read(value, whole).map(|number| Bytes(number as u64))
    }

    fn write(&self) -> Value {
        let texts = UnitTable::BYTES.units().filter_map(|unit| {
            let size = unit.whole_factor()?;
            let is_whole = self.0.is_multiple_of(size);
            is_whole.then(|| format!("{} {}", self.0 / size, unit.name))
        });
        let shortest = texts.min_by_key(String::len);
        Value::String(shortest.unwrap_or_else(|| format!("{} B", self.0)))
    }
}

impl Quantity for HalfSaturation {
    const NEEDS_BASIS: bool = true;

    fn read(value: &Value) -> Result<Self, Expected> {
        let number = bare(value);
        if number > 0.0 && number <= FACTOR_MAX {
            Ok(HalfSaturation(number))
        } else {
            Err(Expected::new(format_args!(
                "the extent at which half is reached, such as 24.0, above 0 and at most {FACTOR_MAX}"
            )))
        }
    }

    fn write(&self) -> Value {
        Value::Float(self.0)
    }
}

impl Quantity for Share {
    const NEEDS_BASIS: bool = true;

    fn read(value: &Value) -> Result<Self, Expected> {
        let number = bare(value);
        if number > 0.0 && number <= 4.0 {
            Ok(Share(number))
        } else {
            Err("a share of the peak such as 0.5, above 0 and at most 4".into())
        }
    }

    fn write(&self) -> Value {
        Value::Float(self.0)
    }
}

impl Quantity for Factor {
    const NEEDS_BASIS: bool = true;

    fn read(value: &Value) -> Result<Self, Expected> {
        let number = bare(value);
        if (0.0..=FACTOR_MAX).contains(&number) {
            Ok(Factor(number))
        } else {
            Err(format!("a factor such as 0.9, from 0 to {FACTOR_MAX}").into())
        }
    }

    fn write(&self) -> Value {
        Value::Float(self.0)
    }
}

impl Quantity for Exponent {
    const NEEDS_BASIS: bool = true;

    fn read(value: &Value) -> Result<Self, Expected> {
        let number = bare(value);
        if (0.0..=2.0).contains(&number) {
            Ok(Exponent(number))
        } else {
            Err("an exponent from 0 (k ways are k times as fast) to 2, such as 0.5".into())
        }
    }

    fn write(&self) -> Value {
        Value::Float(self.0)
    }
}

impl Quantity for bool {
    fn read(value: &Value) -> Result<Self, Expected> {
        let answer = value.as_bool();
        answer.ok_or_else(|| "true or false".into())
    }

    fn write(&self) -> Value {
        Value::Boolean(*self)
    }
}

impl Quantity for String {
    fn read(value: &Value) -> Result<Self, Expected> {
        let text = value.as_str().filter(|text| !text.trim().is_empty());
        let text = text.map(str::to_owned);
        text.ok_or_else(|| "a text that is not blank".into())
    }

    fn write(&self) -> Value {
        Value::String(self.clone())
    }
}

impl Quantity for CollectiveLibrary {
    fn read(value: &Value) -> Result<Self, Expected> {
        choose(value)
    }

    fn write(&self) -> Value {
        Value::String(self.name().to_owned())
    }
}

impl Quantity for Ratio {
    fn read(value: &Value) -> Result<Self, Expected> {
        let number = bare(value);
        if (1.0..=FACTOR_MAX).contains(&number) {
            Ok(Ratio(number))
        } else {
            Err(format!("a ratio such as 3.0, from 1 to {FACTOR_MAX}").into())
        }
    }

    fn write(&self) -> Value {
        Value::Float(self.0)
    }
}

impl Quantity for Vec<usize> {
    fn read(value: &Value) -> Result<Self, Expected> {
        let numbers = match value {
            Value::Array(numbers) => numbers.iter().map(usize::read).collect(),
            Value::Float(_)
            | Value::Integer(_)
            | Value::String(_)
            | Value::Boolean(_)
            | Value::Datetime(_)
            | Value::Table(_) => Ok(Vec::new()),
        };
        match numbers {
            Ok(numbers) if !numbers.is_empty() => Ok(numbers),
            Ok(_) | Err(_) => Err(Expected::new(format_args!(
                "a list such as [4, 4, 2] of numbers from 1 to {COUNT_MAX}"
            ))),
        }
    }

    fn write(&self) -> Value {
        Value::Array(self.iter().map(usize::write).collect())
    }
}

impl Quantity for usize {
    fn read(value: &Value) -> Result<Self, Expected> {
        let whole = value.as_integer().map(usize::try_from);
        match whole {
            Some(Ok(count)) if (1..=COUNT_MAX).contains(&count) => Ok(count),
            Some(_) | None => {
                let number = bare(value);
                // The cast of a number in range rounds it down.
                let near = number.clamp(1.0, COUNT_MAX as f64) as usize;
                Err(Expected {
                    text: format!("a whole number from 1 to {COUNT_MAX}"),
                    nearest: (!number.is_nan()).then(|| near.to_string()),
                })
            }
        }
    }

    fn write(&self) -> Value {
        Value::Integer(*self as i64)
    }
}

impl Quantity for AdaptersUsed {
    fn read(value: &Value) -> Result<Self, Expected> {
        match value.as_str() {
            Some("all") => Ok(Self::All),
            Some(_) => Err(format!("\"all\" or a whole number from 1 to {COUNT_MAX}").into()),
            None => usize::read(value)
                .map(Self::AtMost)
                .map_err(|expected| Expected {
                    text: format!("\"all\" or {}", expected.text),
                    ..expected
                }),
        }
    }

    fn write(&self) -> Value {
        match self {
            Self::All => Value::String("all".to_owned()),
            Self::AtMost(most) => most.write(),
        }
    }
}

/// What is measured, for messages.
struct Measure {
    noun: &'static str,
    example: &'static str,
    units: UnitTable,
}

const TIME: Measure = Measure {
    noun: "a time from 0 s to 1e6 s",
    example: "1.2 us",
    units: UnitTable::TIME,
};

const MEMORY: Measure = Measure {
    noun: "a size from 1 B to 8192 TiB in whole bytes",
    example: "16 GiB",
    units: UnitTable::BYTES,
};

const DATA_RATE: Measure = Measure {
    noun: "a rate above 0, at most 1e30 B/s,",
    example: "25 GB/s",
    units: UnitTable::BYTES_PER_SECOND,
};

const ARITHMETIC_RATE: Measure = Measure {
    noun: "a rate above 0, at most 1e30 flop/s,",
    example: "15.7 Tflop/s",
    units: UnitTable::FLOPS_PER_SECOND,
};

impl Measure {
    fn read(&self, value: &Value, sensible: impl Fn(f64) -> bool) -> Result<f64, Expected> {
        let text = value.as_str().unwrap_or_default().trim();
        let number = self.units.parse(text);
        number
            .filter(|&number| number.is_finite() && sensible(number))
            .ok_or_else(|| self.expected(text))
    }

    fn expected(&self, text: &str) -> Expected {
        let given = text.trim_start_matches(|letter: char| !letter.is_alphabetic());
        let of_bits = given
            .strip_suffix("bit/s")
            .or_else(|| given.strip_suffix("b/s"));
        let names = self.units.units().map(|unit| unit.name);
        let nearest = match of_bits {
            Some(prefix) => Some(format!("`{prefix}B/s`: 8 {given} are 1 {prefix}B/s")),
            None => near(given, names)
                .filter(|unit| *unit != given)
                .map(|unit| format!("`{unit}`")),
        };
        let (noun, example, units) = (self.noun, self.example, self.units.names());
        Expected {
            text: format!("{noun} as text with its unit, \"{example}\"; units: {units}"),
            nearest,
        }
    }

    fn write(&self, number: f64) -> Value {
        Value::String(self.units.exact(number))
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
            "-1 us", "nan us", "inf s", "1.2", "us", "", "1.2 GB", "1 2 us", "1e999 s", "1e13 us",
        ] {
            assert!(Seconds::read(&text(wrong)).is_err(), "{wrong}");
        }
        for wrong in [
            "0 GB/s",
            "-25 GB/s",
            "25 GB",
            "25 Gbit/s",
            "NaN GB/s",
            "1e300 GB/s",
            "1e31 B/s",
        ] {
            assert!(BytesPerSecond::read(&text(wrong)).is_err(), "{wrong}");
        }
        for wrong in ["0 B", "0.5 B", "-16 GB", "16 gigabytes", "1e30 B"] {
            assert!(Bytes::read(&text(wrong)).is_err(), "{wrong}");
        }
        for wrong in [0.0, -0.5, f64::NAN, f64::INFINITY, 4.5] {
            assert!(Share::read(&Value::Float(wrong)).is_err(), "{wrong}");
        }
        for wrong in [-0.5, f64::NAN, f64::INFINITY, 1e18] {
            assert!(Factor::read(&Value::Float(wrong)).is_err(), "{wrong}");
        }
        for wrong in [0, -4, i64::MAX] {
            assert!(usize::read(&Value::Integer(wrong)).is_err(), "{wrong}");
        }
        assert!(Seconds::read(&Value::Float(1e-6)).is_err());
    }

    #[test]
    fn names_the_nearest_count() {
        let nearest = |value: Value| usize::read(&value).expect_err("no count");
        for (value, near) in [
            (Value::Integer(0), Some("1")),
            (Value::Integer(-3), Some("1")),
            (Value::Float(3.5), Some("3")),
            (Value::Integer(i64::MAX), Some("16777216")),
            (text("many"), None),
        ] {
            let expected = nearest(value);
            assert_eq!(expected.text, "a whole number from 1 to 16777216");
            assert_eq!(expected.nearest.as_deref(), near);
        }
    }

    #[test]
    fn names_the_unit_that_was_meant() {
        for (given, near) in [
            ("25 Gb/s", "`GB/s`: 8 Gb/s are 1 GB/s"),
            ("25 GBs", "`GB/s`"),
            ("100 Gbit/s", "`GB/s`: 8 Gbit/s are 1 GB/s"),
        ] {
            let expected = BytesPerSecond::read(&text(given)).expect_err("no rate");
            assert_eq!(expected.nearest.as_deref(), Some(near));
        }
    }

    #[test]
    fn writes_what_it_reads() {
        assert_eq!(Bytes(16_000_000_000).write(), text("16 GB"));
        assert_eq!(Bytes(17_179_869_184).write(), text("16 GiB"));
        assert_eq!(Bytes(1_234_567).write(), text("1234567 B"));
        assert_eq!(FlopsPerSecond(15.7e12).write(), text("15.7 Tflop/s"));
    }
}
