//! Values of settings as text.

use super::StrategyError;
use partita_space::Bytes;
use std::fmt;

/// The largest bucket: beyond the parameters of any network that is trained so.
pub(super) const BUCKET_MAX: Bytes = Bytes(1 << 40);

/// A size with the largest binary unit of which it is a multiple.
pub(super) fn whole_size(bytes: Bytes) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)].into_iter();
    let is_multiple = |power: u32| bytes.0 > 0 && bytes.0.trailing_zeros() >= power;
    let mut fitting = units.filter(|&(_, power)| is_multiple(power));
    let (name, power) = fitting.next().unwrap_or(("B", 0));
    format!("{}{name}", bytes.0 >> power)
}

/// A setting with a value that it does not take.
pub(super) fn unknown_value(
    text: &str,
    (name, value): (&str, &str),
    possible: &str,
    nearest: impl fmt::Display,
) -> StrategyError {
    StrategyError::Value {
        text: text.to_owned(),
        word: format!("{name}={value}"),
        possible: possible.to_owned(),
        nearest: format!("{name}={nearest}"),
    }
}
