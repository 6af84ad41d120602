//! Names of the arrays in the files of a dataset, and the order of their dims.

use partita_formats::{Access, DimOrder};

/// Key of the volumes.
pub(crate) const VOLUME_KEY: &str = "full";
/// Key of the targets, normalized to [-1, 1].
pub(crate) const TARGET_KEY: &str = "unitPar";
/// Key of the targets in physical units; may be absent.
pub(crate) const PHYSICAL_KEY: &str = "physPar";
/// Key of class indices in place of targets, D = H = W = 1 where a sample has one class.
pub(crate) const LABEL_KEY: &str = "labels";

/// Where a dataset keeps what, by the names of arrays in its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Array of the volumes (default: `full`).
    pub volume: String,
    /// Array of the targets that are numbers (default: `unitPar`).
    pub target: String,
    /// Array of the class indices (default: `labels`).
    pub label: String,
    /// Order of the dims of the volumes (default: N, C, D, H, W, as many as there are dims).
    pub order: Option<DimOrder>,
    /// Whether values that were never written are read as the fill value that their file states (default: refused).
    pub fill: bool,
    /// Whether values may lie in other files outside of the folder of theirs, or without a format (default: refused).
    pub external: bool,
}

impl Keys {
    /// The usual names, with or without leave to read other files.
    pub fn allowing(external: bool) -> Self {
        Self {
            external,
            ..Self::default()
        }
    }

    pub(crate) fn access(&self) -> Access {
        Access {
            fill: self.fill,
            external: self.external,
        }
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            volume: VOLUME_KEY.to_owned(),
            target: TARGET_KEY.to_owned(),
            label: LABEL_KEY.to_owned(),
            order: None,
            fill: false,
            external: false,
        }
    }
}
