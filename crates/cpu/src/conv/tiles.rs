//! Tiling of the output channels of a convolution.

use crate::simd::Level;

/// The tiles of output channels at one level.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    pub level: Level,
    pub f: usize,
}

impl Tiles {
    pub(crate) fn vectors(self) -> usize {
        self.f.div_ceil(self.level.lanes())
    }

    pub(crate) fn vectors_max(self) -> usize {
        match self.level {
            Level::Portable | Level::Avx2 => 2,
            Level::Neon | Level::Avx512 | Level::Avx512Bf16 => 4,
        }
    }

    pub(crate) fn count(self) -> usize {
        self.vectors().div_ceil(self.vectors_max())
    }

    /// First channel and number of vectors of a tile.
    pub(crate) fn tile(self, index: usize) -> (usize, usize) {
        let first = index * self.vectors_max();
        let v = (self.vectors() - first).min(self.vectors_max());
        (first * self.level.lanes(), v)
    }

    /// Channels with the padding.
    pub(crate) fn padded(self) -> usize {
        self.vectors() * self.level.lanes()
    }
}
