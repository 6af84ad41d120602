//! Checksums of the tensors of a weight file, which it keeps in its metadata.
//!
//! The entry [`KEY`] is a JSON object: `block_bytes`, and for each tensor the CRC-32C of each of its blocks. So a reader of a
//! part of a tensor verifies what it reads and no more.

use partita_formats::checksum::crc32c;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Name of the entry in the metadata.
pub(crate) const KEY: &str = "partita.crc32c";

/// Bytes of a block: a multiple of the size of every element.
const BLOCK: usize = 1 << 20;

/// Checksums by tensor.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Checksums {
    block_bytes: usize,
    /// Eight hexadecimal digits for each block, the last of which may be shorter.
    tensors: BTreeMap<String, Vec<String>>,
}

impl Checksums {
    /// Whether no tensor has some.
    pub(crate) fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Zeros in the place of the checksums of tensors, given with their bytes, so that a header has its final size before
    /// its tensors are known.
    pub fn blank<'n>(tensors: impl Iterator<Item = (&'n str, usize)>) -> Self {
        let blocks = |bytes: usize| vec![digits(0); bytes.div_ceil(BLOCK)];
        Self {
            block_bytes: BLOCK,
            tensors: tensors
                .map(|(name, bytes)| (name.to_owned(), blocks(bytes)))
                .collect(),
        }
    }

    /// Sets the checksums of a tensor.
    pub fn set(&mut self, name: &str, sums: TensorSums) {
        self.tensors.insert(name.to_owned(), sums.finish());
    }

    /// The entry of the metadata.
    pub fn text(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// Reads the entry of the metadata. Errors: what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let found: Self = serde_json::from_str(text)?;
        if found.block_bytes == 0 || !found.block_bytes.is_multiple_of(8) {
            let reason = format!("blocks of {} bytes", found.block_bytes);
            return Err(serde_json::Error::custom(reason));
        }
        Ok(found)
    }

    /// The bytes of whole blocks around a range of the bytes of a tensor; that range if the tensor has no checksum.
    pub fn cover(&self, name: &str, range: Range<usize>, tensor_bytes: usize) -> Range<usize> {
        if !self.tensors.contains_key(name) || range.is_empty() {
            return range;
        }
        let end = range.end.checked_next_multiple_of(self.block_bytes);
        let start = range.start / self.block_bytes * self.block_bytes;
        start..end.map_or(tensor_bytes, |end| end.min(tensor_bytes))
    }

    /// Compares bytes that [`Self::cover`] gave with their checksums, and returns the range of the first block that differs.
    pub fn damaged(&self, name: &str, start: usize, bytes: &[u8]) -> Option<Range<usize>> {
        let sums = self.tensors.get(name)?;
        let mut blocks = bytes.chunks(self.block_bytes).enumerate();
        blocks.find_map(|(number, block)| {
            let at = start + number * self.block_bytes;
            let expected = sums.get(at / self.block_bytes);
            let is_equal = expected.is_some_and(|sum| *sum == digits(crc32c(block)));
            (!is_equal).then(|| at..at + block.len())
        })
    }
}

fn digits(sum: u32) -> String {
    format!("{sum:08x}")
}

/// Checksums of a tensor that is given piece by piece.
#[derive(Default)]
pub(crate) struct TensorSums {
    done: Vec<String>,
    /// The bytes of the block that is not full yet.
    block: Vec<u8>,
}

impl TensorSums {
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - self.block.len()));
            self.block.extend_from_slice(now);
            bytes = rest;
            if self.block.len() == BLOCK {
                self.end_block();
            }
        }
    }

    fn finish(mut self) -> Vec<String> {
        if !self.block.is_empty() {
            self.end_block();
        }
        self.done
    }

    fn end_block(&mut self) {
        self.done.push(digits(crc32c(&self.block)));
        self.block.clear();
    }
}
