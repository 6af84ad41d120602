//! Memory of everything else that a step does, which passes through the caches before a measurement.

use crate::TuneError;
use crate::barrier::zeros;
use partita_space::{Bytes, Rank};
use std::hint::black_box;

/// What fills the caches before a measurement.
pub(crate) struct OtherMemory(Vec<u64>);

impl OtherMemory {
    /// So many bytes, for a measurement of this name by a rank.
    ///
    /// Errors: there is no memory.
    pub fn new(what: &'static str, rank: Rank, bytes: Bytes) -> Result<Self, TuneError> {
        Ok(Self(zeros(what, rank, (bytes.0 / 8) as usize)?))
    }

    /// Brings so many bytes of it into the caches, or all.
    pub fn pass(&mut self, bytes: Bytes) {
        let words = self.0.len().min((bytes.0 / 8) as usize);
        // One word of each cache line of 64 bytes loads the line. Kernels write about one byte for two that
        // they read, and dirty lines are written back when they are evicted.
        let mut sum = 0;
        for (line, words) in self.0[..words].chunks_mut(8).enumerate() {
            if line % 3 == 0 {
                words[0] = words[0].wrapping_add(1);
            } else {
                sum ^= words[0];
            }
        }
        black_box(sum);
        black_box(&self.0);
    }
}
