//! Boxes of chunked arrays, read in pieces: the library keeps all chunks that a read decodes until its end.

use super::Hdf5Array;
use super::mapping::scatter;
use crate::array::StorageLayout;
use crate::decode_memory::{self, Claim};
use crate::element::Elements;
use crate::read_error::ReadError;

/// Most bytes that decoding one piece takes, unless one chunk takes more.
const PIECE_BYTES: u64 = 128 << 20;
/// Most chunks of a piece.
const PIECE_CHUNKS: u64 = 1 << 16;
/// Bytes of lists for each chunk of a piece.
const LISTED_BYTES: u64 = 256;

/// All that decoding a chunk takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChunkBytes(u64);

impl ChunkBytes {
    /// Of values of this size. Nothing is decoded where chunks are stored as they are.
    ///
    /// A filter gives at most five times the bytes of what comes behind it, by the bounds of the library; checksums and
    /// filters that reorder bytes give as many.
    pub(super) fn of(stored: &StorageLayout, element_bytes: usize) -> Self {
        let StorageLayout::Chunked { chunk, filters } = stored else {
            return Self::default();
        };
        if filters.is_empty() {
            return Self::default();
        }
        let extents = chunk.iter().map(|&extent| extent as u64);
        let decoded = extents.fold(element_bytes as u64, u64::saturating_mul);
        let (mut claimed, mut each) = (decoded, decoded);
        for filter in filters {
            claimed = claimed.saturating_add(each);
            if !["shuffle", "fletcher32", "nbit", "scaleoffset"].contains(&filter.as_str()) {
                each = each.saturating_mul(5);
            }
        }
        Self(claimed)
    }
}

impl Hdf5Array {
    /// Reads a box as a whole or, where that decodes much, in pieces of whole chunks.
    pub(super) fn read_in_pieces(
        &self,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        if self.is_one_piece(starts, counts) {
            let _claim = self.claim(starts, counts)?;
            return self.read_piece(starts, counts, out);
        }
        let mut left = vec![(starts.to_vec(), counts.to_vec())];
        let mut values = out.same_type();
        while let Some((low, size)) = left.pop() {
            if !self.is_one_piece(&low, &size) {
                left.extend(self.halves(low, size));
                continue;
            }
            let mut claim = self.claim(&low, &size)?;
            let elements: usize = size.iter().product();
            claim.add((elements * self.element_bytes) as u64)?;
            values.resize(elements)?;
            self.read_piece(&low, &size, &mut values)?;
            scatter(&values, &size, (&low, starts, counts), out);
        }
        Ok(())
    }

    /// Chunks of a box along each dim.
    fn grid(&self, starts: &[usize], counts: &[usize]) -> Vec<u64> {
        let dims = starts.iter().zip(counts).zip(&self.chunk);
        dims.map(|((start, count), size)| ((start + count).div_ceil(*size) - start / size) as u64)
            .collect()
    }

    fn chunks_of(&self, starts: &[usize], counts: &[usize]) -> u64 {
        let grid = self.grid(starts, counts);
        grid.into_iter().fold(1, u64::saturating_mul)
    }

    fn is_one_piece(&self, starts: &[usize], counts: &[usize]) -> bool {
        let chunks = self.chunks_of(starts, counts);
        let most = PIECE_BYTES.min(decode_memory::left() / 2);
        chunks <= 1 || chunks <= PIECE_CHUNKS && chunks.saturating_mul(self.chunk_bytes.0) <= most
    }

    fn claim(&self, starts: &[usize], counts: &[usize]) -> Result<Claim, ReadError> {
        let each = self.chunk_bytes.0.saturating_add(LISTED_BYTES);
        decode_memory::claim(self.chunks_of(starts, counts).saturating_mul(each))
    }

    /// Two parts of a box, cut between chunks along the dim that has most of them.
    fn halves(&self, starts: Vec<usize>, counts: Vec<usize>) -> [(Vec<usize>, Vec<usize>); 2] {
        let grid = self.grid(&starts, &counts);
        let dim = (0..grid.len()).max_by_key(|&dim| grid[dim]).unwrap_or(0);
        let middle = (starts[dim] / self.chunk[dim] + grid[dim] as usize / 2) * self.chunk[dim];
        let (mut first, mut second) = (counts.clone(), counts);
        first[dim] = middle - starts[dim];
        second[dim] -= first[dim];
        let mut behind = starts.clone();
        behind[dim] = middle;
        [(starts, first), (behind, second)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_behind_others_may_give_more() {
        let chunked = |filters: &[&str]| StorageLayout::Chunked {
            chunk: vec![10, 10],
            filters: filters.iter().map(|&name| name.to_owned()).collect(),
        };
        for (filters, claimed) in [
            (&["gzip"][..], 400),
            (&["shuffle", "gzip"], 600),
            (&["scaleoffset"], 400),
            (&["gzip", "gzip"], 1400),
        ] {
            let bytes = ChunkBytes::of(&chunked(filters), 2);
            assert_eq!(bytes, ChunkBytes(claimed), "{filters:?}");
        }
        let deep = vec!["gzip"; 40];
        assert_eq!(ChunkBytes::of(&chunked(&deep), 2), ChunkBytes(u64::MAX));
        for stored in [chunked(&[]), StorageLayout::Contiguous] {
            assert_eq!(ChunkBytes::of(&stored, 2), ChunkBytes::default());
        }
    }
}
