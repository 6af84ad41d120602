//! The one table of units, in which numbers are read, written exactly and shown.

/// A unit of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// As it is written, with its case.
    pub name: &'static str,
    scale: Scale,
}

/// The factor of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// A power of ten.
    Decimal(i32),
    /// A power of two.
    Binary(u32),
}

/// The units of one quantity, from the smallest to the largest.
#[derive(Clone, Copy, Debug)]
pub struct UnitTable {
    units: &'static [Unit],
    /// Whether numbers are shown in binary units; all are read.
    is_binary: bool,
}

const fn shown_in_binary(units: &'static [Unit]) -> UnitTable {
    let is_binary = true;
    UnitTable { units, is_binary }
}

const fn shown_in_decimal(units: &'static [Unit]) -> UnitTable {
    let is_binary = false;
    UnitTable { units, is_binary }
}

const fn decimal(name: &'static str, power: i32) -> Unit {
    let scale = Scale::Decimal(power);
    Unit { name, scale }
}

const fn binary(name: &'static str, power: u32) -> Unit {
    let scale = Scale::Binary(power);
    Unit { name, scale }
}

impl Unit {
    /// How many of the base unit (s, B, flop) one is.
    pub fn factor(self) -> f64 {
        match self.scale {
            Scale::Decimal(power) => 10f64.powi(power),
            Scale::Binary(power) => 2f64.powi(power as i32),
        }
    }

    /// The factor where it is a whole number of 64 bits.
    pub fn whole_factor(self) -> Option<u64> {
        match self.scale {
            Scale::Decimal(power) => 10u64.checked_pow(u32::try_from(power).ok()?),
            Scale::Binary(power) => 1u64.checked_shl(power),
        }
    }

    /// A number of this unit in the base unit, rounded once.
    fn times(self, number: &str) -> Option<f64> {
        match self.scale {
            Scale::Decimal(power) => {
                let (mantissa, exponent) = match number.split_once(['e', 'E']) {
                    Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
                    None => (number, 0),
                };
                let text = format!("{mantissa}e{}", exponent.checked_add(power)?);
                text.parse().ok()
            }
            Scale::Binary(_) => Some(number.parse::<f64>().ok()? * self.factor()),
        }
    }
}

impl UnitTable {
    /// Times, in s.
    pub const TIME: Self = shown_in_decimal(&[
        decimal("ns", -9),
        decimal("us", -6),
        decimal("ms", -3),
        decimal("s", 0),
    ]);
    /// Sizes, in B.
    pub const BYTES: Self = shown_in_binary(&[
        decimal("B", 0),
        decimal("kB", 3),
        binary("KiB", 10),
        decimal("MB", 6),
        binary("MiB", 20),
        decimal("GB", 9),
        binary("GiB", 30),
        decimal("TB", 12),
        binary("TiB", 40),
    ]);
    /// Rates of data, in B/s.
    pub const BYTES_PER_SECOND: Self = shown_in_decimal(&[
        decimal("B/s", 0),
        decimal("kB/s", 3),
        binary("KiB/s", 10),
        decimal("MB/s", 6),
        binary("MiB/s", 20),
        decimal("GB/s", 9),
        binary("GiB/s", 30),
        decimal("TB/s", 12),
        binary("TiB/s", 40),
    ]);
    /// Operations, in flop.
    pub const FLOPS: Self = shown_in_decimal(&[
        decimal("flop", 0),
        decimal("kflop", 3),
        decimal("Mflop", 6),
        decimal("Gflop", 9),
        decimal("Tflop", 12),
        decimal("Pflop", 15),
    ]);
    /// Rates of arithmetic, in flop/s.
    pub const FLOPS_PER_SECOND: Self = shown_in_decimal(&[
        decimal("flop/s", 0),
        decimal("kflop/s", 3),
        decimal("Mflop/s", 6),
        decimal("Gflop/s", 9),
        decimal("Tflop/s", 12),
        decimal("Pflop/s", 15),
    ]);

    /// All units, ascending.
    pub fn units(self) -> impl DoubleEndedIterator<Item = Unit> + Clone {
        self.units.iter().copied()
    }

    /// All names, in order, for a message.
    pub fn names(self) -> String {
        let names: Vec<&str> = self.units().map(|unit| unit.name).collect();
        names.join(", ")
    }

    /// A number before its unit, `16 GiB` or `2.5e-3s`, in the base unit.
    pub fn parse(self, text: &str) -> Option<f64> {
        let text = text.trim();
        self.units()
            .find_map(|unit| unit.times(text.strip_suffix(unit.name)?.trim_end()))
    }

    /// A number with the largest decimal unit that leaves at least 1; `parse` reads back the same bits, as
    /// both shift decimal digits as text.
    pub fn exact(self, number: f64) -> String {
        let text = format!("{number:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (digits, exponent) = (mantissa.replace('.', ""), exponent.parse().unwrap_or(0));
        let fitting = self.units().rev().find_map(|unit| match unit.scale {
            Scale::Decimal(power) if power <= exponent => Some((unit, exponent - power)),
            Scale::Decimal(_) | Scale::Binary(_) => None,
        });
        match fitting {
            Some((unit, shift)) => format!("{} {}", shifted(&digits, shift as usize), unit.name),
            None => format!("{number:e} {}", self.base().name),
        }
    }

    fn base(self) -> Unit {
        let mut units = self.units();
        let base = units.find(|unit| unit.scale == Scale::Decimal(0));
        base.expect("every table has its base unit")
    }

    /// The unit in which numbers up to `most` are shown: the largest that is not above it, else the smallest.
    pub fn shown(self, most: f64) -> Unit {
        let mut units = self.units().filter(|unit| match unit.scale {
            Scale::Decimal(0) => true,
            Scale::Decimal(_) => !self.is_binary,
            Scale::Binary(_) => self.is_binary,
        });
        let smallest = units.clone().next();
        let fitting = units.rfind(|unit| unit.factor() <= most.abs());
        fitting.or(smallest).expect("a table is not empty")
    }
}

/// Digits as a plain decimal number with `shift + 1` of them before the point.
fn shifted(digits: &str, shift: usize) -> String {
    let before = shift + 1;
    if digits.len() <= before {
        format!("{digits:0<before$}")
    } else {
        format!("{}.{}", &digits[..before], &digits[before..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_bit_by_bit() {
        for (number, written) in [
            (1.2e-6, "1.2 us"),
            (0.25, "250 ms"),
            (0.0, "0 s"),
            (40.31e-6, "40.31 us"),
            (3e-12, "3e-12 s"),
            (7200.0, "7200 s"),
        ] {
            assert_eq!(UnitTable::TIME.exact(number), written);
        }
        // A multiplicative walk through 40 decades meets digits of every length.
        let mut number = 1e-15;
        while number < 1e25 {
            for table in [UnitTable::TIME, UnitTable::BYTES_PER_SECOND] {
                assert_eq!(table.parse(&table.exact(number)), Some(number));
            }
            number *= 1.718_281_828;
        }
    }

    #[test]
    fn the_shown_unit_fits() {
        for (table, most, name) in [
            (UnitTable::BYTES, (3u64 << 30) as f64, "GiB"),
            (UnitTable::BYTES, 1e9, "MiB"),
            (UnitTable::BYTES_PER_SECOND, 1e9, "GB/s"),
            (UnitTable::FLOPS, 2e17, "Pflop"),
            (UnitTable::TIME, 0.003, "ms"),
            (UnitTable::TIME, 0.0, "ns"),
        ] {
            assert_eq!(table.shown(most).name, name);
        }
    }
}
