//! How arrays are laid out in their files.

use crate::samples::VolumeShape;

/// How the volumes lie in their file.
///
/// Contiguous is the default choice: a depth slab of all channels is then one read per channel.
/// Chunks pay where volumes compress well, or where slabs are cut along the width.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// One array in C, D, H, W order per sample, sample after sample.
    #[default]
    Contiguous,
    /// Blocks of one sample each.
    Chunked {
        /// Extents (C, D, H, W) of a chunk; need not divide the sample's.
        chunk: VolumeShape,
        /// Compression level 0 to 9 of gzip; `None` stores chunks as they are.
        deflate: Option<u32>,
        /// Whether bytes of equal significance are grouped before compression.
        shuffle: bool,
    },
}
