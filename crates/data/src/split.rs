//! The parts of a dataset.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Part of a dataset; no universe is in two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Samples whose gradients are taken.
    Train,
    /// Samples by which training is steered.
    Validation,
    /// Samples seen once, at the end.
    Test,
}

impl Split {
    /// All splits, in the order of the index file.
    pub const ALL: [Split; 3] = [Split::Train, Split::Validation, Split::Test];

    /// Name in the index file and of the split's HDF5 file.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "validation",
            Split::Test => "test",
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
