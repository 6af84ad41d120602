//! Configurations of kernels: an implementation for each of the micro-batches that a kernel is cut into.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Letters of the dims that a kernel can be cut along, by index.
const LETTERS: [char; 4] = ['n', 'd', 'h', 'w'];

/// Which implementation of a kernel runs, by its name in the backend that offers it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Algorithm(pub String);

impl Algorithm {
    /// No implementation: the kernel may be costed but not run.
    pub fn unpinned() -> Self {
        Self("unpinned".to_owned())
    }

    /// Whether it may run.
    pub fn is_pinned(&self) -> bool {
        self.0 != "unpinned"
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Micro-batches of equal extent, computed by one implementation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MicroBatches {
    /// The implementation.
    pub method: String,
    /// Extent of each along the dim of the configuration.
    pub extent: usize,
    /// How many.
    pub count: usize,
}

/// How a kernel is computed: whole by one implementation, or micro-batch by micro-batch along one dim of its
/// outputs. A micro-batch of another dim than N is a spatial tile of all samples.
///
/// Text: `winograd4`, or `winograd4:n8*3,cpu:n4` for three micro-batches of 8 samples and one of 4.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Configuration {
    /// All at once.
    Undivided {
        /// The implementation.
        method: String,
    },
    /// One after the other.
    Divided {
        /// The dim of the outputs: 0 to 3 for N, D, H, W.
        dim: usize,
        /// The micro-batches in their order; at least one.
        parts: Vec<MicroBatches>,
    },
}

/// A text that is no configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no configuration of a kernel; examples are `cpu`, `winograd4` and `winograd4:n8*3,cpu:n4`"
)]
pub struct ConfigurationError {
    text: String,
}

impl Configuration {
    /// All at once by an implementation.
    pub fn undivided(method: &str) -> Self {
        Self::Undivided {
            method: method.to_owned(),
        }
    }

    /// The configuration of an algorithm. Errors: its text is none.
    pub fn of(algorithm: &Algorithm) -> Result<Self, ConfigurationError> {
        algorithm.0.parse()
    }

    /// As the algorithm of a task.
    pub fn algorithm(&self) -> Algorithm {
        Algorithm(self.to_string())
    }

    /// Number of kernels that run one after the other.
    pub fn count(&self) -> usize {
        match self {
            Self::Undivided { .. } => 1,
            Self::Divided { parts, .. } => parts.iter().map(|part| part.count).sum(),
        }
    }

    /// Whether an implementation computes any of it.
    pub fn uses(&self, name: &str) -> bool {
        match self {
            Self::Undivided { method } => method == name,
            Self::Divided { parts, .. } => parts.iter().any(|part| part.method == name),
        }
    }

    /// Start, extent and implementation of each micro-batch along the dim; none of an undivided one.
    pub fn micro_batches(&self) -> impl Iterator<Item = (usize, usize, &str)> {
        let parts: &[MicroBatches] = match self {
            Self::Undivided { .. } => &[],
            Self::Divided { parts, .. } => parts,
        };
        let each = parts
            .iter()
            .flat_map(|part| std::iter::repeat_n(part, part.count));
        each.scan(0, |end, part| {
            let start = *end;
            *end += part.extent;
            Some((start, part.extent, part.method.as_str()))
        })
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undivided { method } => f.write_str(method),
            Self::Divided { dim, parts } => {
                for (at, part) in parts.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    let letter = LETTERS[*dim];
                    write!(f, "{comma}{}:{letter}{}", part.method, part.extent)?;
                    if part.count > 1 {
                        write!(f, "*{}", part.count)?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl FromStr for Configuration {
    type Err = ConfigurationError;

    fn from_str(text: &str) -> Result<Self, ConfigurationError> {
        parsed(text).ok_or_else(|| ConfigurationError {
            text: text.to_owned(),
        })
    }
}

fn parsed(text: &str) -> Option<Configuration> {
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric());
    if is_name(text) {
        return Some(Configuration::undivided(text));
    }
    let mut along = None;
    let mut parts = Vec::new();
    for word in text.split(',') {
        let (method, extents) = word.split_once(':').filter(|(name, _)| is_name(name))?;
        let letter = extents.chars().next()?;
        let dim = LETTERS.iter().position(|&known| known == letter)?;
        if along.replace(dim).is_some_and(|other| other != dim) {
            return None;
        }
        let (extent, count) = extents[1..].split_once('*').unwrap_or((&extents[1..], "1"));
        let number = |digits: &str| digits.parse().ok().filter(|&number: &usize| number > 0);
        parts.push(MicroBatches {
            method: method.to_owned(),
            extent: number(extent)?,
            count: number(count)?,
        });
    }
    Some(Configuration::Divided { dim: along?, parts })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn texts_give_configurations_and_back() {
        for text in [
            "cpu",
            "winograd4",
            "winograd4:n8*3,cpu:n4",
            "cpu:d16*8",
            "fft:w5",
        ] {
            let read: Configuration = text.parse().unwrap();
            assert_eq!(read.to_string(), text);
        }
        for text in [
            "",
            "a:",
            "a:n",
            "a:n0",
            "a:n1*0",
            "a:x2",
            "a:n1,b:d1",
            ":n1",
            "a b",
            "a:n1,",
        ] {
            assert!(text.parse::<Configuration>().is_err(), "{text}");
        }
    }

    #[test]
    fn micro_batches_follow_each_other() {
        let read: Configuration = "winograd4:n8*2,cpu:n4".parse().unwrap();
        let all: Vec<_> = read.micro_batches().collect();
        assert_eq!(
            all,
            [(0, 8, "winograd4"), (8, 8, "winograd4"), (16, 4, "cpu")]
        );
        assert_eq!(read.count(), 3);
        assert!(read.uses("cpu") && read.uses("winograd4") && !read.uses("winograd2"));
    }
}
