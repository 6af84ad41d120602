//! Limits of the workspace of kernels.

use super::StrategyError;
use super::values::{BUCKET_MAX, unknown_value, whole_size};
use partita_space::{Bytes, UnitTable, near};
use std::fmt;

/// How much workspace the measured configurations of kernels may use. What was not measured runs by the
/// implementation that needs no measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkspaceLimit {
    /// Each kernel what the arena leaves free at its moment in the program, so that the arena does not grow.
    #[default]
    Live,
    /// No measured configurations.
    Off,
    /// Each kernel this much, which several use one after the other.
    Kernel(Bytes),
    /// All kernels of a rank this much together, as if each had a workspace of its own.
    Total(Bytes),
}

/// The limit of each kernel.
pub(super) const WORKSPACE: &str = "workspace";
/// The limit of all kernels together.
pub(super) const TOTAL: &str = "workspace_total";

/// The value in the text of a strategy.
impl fmt::Display for WorkspaceLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live => f.write_str("live"),
            Self::Off => f.write_str("off"),
            Self::Kernel(bytes) | Self::Total(bytes) => f.write_str(&whole_size(*bytes)),
        }
    }
}

/// A limit of workspaces.
pub(super) fn limit(text: &str, name: &str, value: &str) -> Result<WorkspaceLimit, StrategyError> {
    let words = [("live", WorkspaceLimit::Live), ("off", WorkspaceLimit::Off)];
    let is_each = name == WORKSPACE;
    let word = words
        .into_iter()
        .find(|(word, _)| is_each && *word == value);
    if let Some((_, limit)) = word {
        return Ok(limit);
    }
    let given = UnitTable::BYTES.parse(value);
    let is_whole =
        |bytes: &f64| bytes.fract() == 0.0 && (0.0..=BUCKET_MAX.0 as f64).contains(bytes);
    if let Some(bytes) = given.filter(is_whole) {
        let limit = if is_each {
            WorkspaceLimit::Kernel
        } else {
            WorkspaceLimit::Total
        };
        return Ok(limit(Bytes(bytes as u64)));
    }
    let others = if is_each { ", or live or off" } else { "" };
    let possible = format!(
        "a size with its unit, from 0B to {}{others}",
        whole_size(BUCKET_MAX)
    );
    // A number without a unit is taken for MiB.
    let given = given.or_else(|| Some(value.parse::<f64>().ok()? * f64::from(1 << 20)));
    let meant = match given {
        Some(bytes) if bytes >= 0.0 => whole_size(Bytes((bytes.round() as u64).min(BUCKET_MAX.0))),
        Some(_) | None => "64MiB".to_owned(),
    };
    let word = near(value, words.map(|(word, _)| word)).filter(|_| given.is_none() && is_each);
    let meant = word.map_or(meant, str::to_owned);
    Err(unknown_value(text, (name, value), &possible, meant))
}
