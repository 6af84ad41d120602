//! Memory of everything else that a step does, which passes through the caches before a measurement.

use crate::TuneError;
use crate::barrier::zeros;
use partita_space::{Bytes, Rank};
use std::hint::black_box;

/// Bytes that flush a cache, over its size. Large shared caches do not replace the least recently used line: after twice
/// the size, weights were read some 20 % faster than in a step.
const FLUSH_FACTOR: u64 = 4;

/// Passes over these bytes. One leaves in some caches what was used twice: steps of CosmoFlow were then predicted 4 % too
/// short.
const PASSES: usize = 2;

/// What fills the caches before a measurement.
pub(crate) struct OtherMemory(Vec<u64>);

impl OtherMemory {
    /// As much as flushes a rank's part of the caches, but at most `most`: a step that moves less flushes less. `what` is
    /// measured.
    ///
    /// Errors: there is no memory.
    pub fn new(
        what: &'static str,
        rank: Rank,
        cache: Bytes,
        most: Bytes,
    ) -> Result<Self, TuneError> {
        let bytes = most.0.min(FLUSH_FACTOR * cache.0);
        Ok(Self(zeros(what, rank, (bytes / 8) as usize)?))
    }

    /// Passes this many bytes of it through the caches, or all.
    pub fn pass(&mut self, bytes: Bytes) {
        let words = self.0.len().min((bytes.0 / 8) as usize);
        // One word of each cache line of 64 bytes loads the line. Kernels write about one byte for two that
        // they read, and dirty lines are written back when they are evicted.
        let mut sum = 0;
        for _ in 0..PASSES {
            for (line, words) in self.0[..words].chunks_mut(8).enumerate() {
                if line % 3 == 0 {
                    words[0] = words[0].wrapping_add(1);
                } else {
                    sum ^= words[0];
                }
            }
            black_box(&self.0);
        }
        black_box(sum);
    }
}
