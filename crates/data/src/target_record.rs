//! What the targets of a dataset, or the outputs of a network, are.

use serde::{Deserialize, Serialize};

/// Largest difference from a linear relation, and of two ranges that are the same, as a fraction of their span.
pub(crate) const ROUNDING: f64 = 1e-4;

/// What the outputs of a network stand for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// Whether they are scores of classes.
    pub are_classes: bool,
    /// Names of the classes or of the numbers; empty where they are unknown.
    pub names: Vec<String>,
    /// The physical values that -1 and 1 stand for, of each number whose are known; empty where none are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<Option<[f64; 2]>>,
    /// The unit of each number; empty where they are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<String>,
}

impl TargetRecord {
    /// What a number in [-1, 1] is multiplied by and what is added to it, which gives its physical value.
    pub fn physical(&self, target: usize) -> Option<(f64, f64)> {
        let [low, high] = self.ranges.get(target).copied().flatten()?;
        Some(((high - low) / 2.0, f64::midpoint(low, high)))
    }

    /// Whether names of targets are those of another record, but for case and space around them.
    pub fn has_names_of(&self, other: &Self) -> bool {
        same_names(&self.names, &other.names)
    }

    /// Whether no range is known to differ from that of another record.
    pub fn has_ranges_of(&self, other: &Self) -> bool {
        let mut pairs = self.ranges.iter().zip(&other.ranges);
        !pairs.any(|(a, b)| a.zip(*b).is_some_and(|(a, b)| is_other(a, b)))
    }

    /// The unit of a number.
    pub fn unit(&self, target: usize) -> Option<&str> {
        self.units.get(target).map(String::as_str)
    }
}

/// What is compared of a name.
pub(crate) fn key(name: &str) -> String {
    name.trim().to_lowercase()
}

/// Whether names are the same, but for case and space around them.
pub fn same_names(names: &[String], others: &[String]) -> bool {
    let keys = |names: &[String]| -> Vec<String> { names.iter().map(|name| key(name)).collect() };
    keys(names) == keys(others)
}

/// Whether two ranges differ by more than rounding.
pub(crate) fn is_other(from: [f64; 2], to: [f64; 2]) -> bool {
    let span = (to[1] - to[0]).abs();
    from.iter()
        .zip(to)
        .any(|(a, b)| (a - b).abs() > ROUNDING * span)
}
