//! Names of the arrays in the HDF5 files of a dataset.

/// Key of the volumes, (C, D, H, W) or (N, C, D, H, W).
pub(crate) const VOLUME_KEY: &str = "full";
/// Key of the targets, normalized to [-1, 1].
pub(crate) const TARGET_KEY: &str = "unitPar";
/// Key of the targets in physical units; may be absent.
pub(crate) const PHYSICAL_KEY: &str = "physPar";

/// Key of class indices in place of targets, (1, D, H, W) or (N, 1, D, H, W), int16, D = H = W = 1
/// where a sample has one class.
pub(crate) const LABEL_KEY: &str = "labels";
