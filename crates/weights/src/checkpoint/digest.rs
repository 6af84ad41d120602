//! SHA-256 of a file and of its blocks.

use sha2::{Digest, Sha256};

/// Bytes of a block with a checksum of its own, so that a reader verifies no more than it reads.
pub(super) const BLOCK: usize = 1 << 20;

/// Lower-case hexadecimal digits of a SHA-256 checksum.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checksums of a file that is written piece by piece.
#[derive(Default)]
pub(super) struct FileDigest {
    whole: Sha256,
    block: Sha256,
    in_block: usize,
    bytes: u64,
    blocks: Vec<String>,
}

impl FileDigest {
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.whole.update(bytes);
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - self.in_block));
            self.block.update(now);
            self.in_block += now.len();
            bytes = rest;
            if self.in_block == BLOCK {
                self.end_block();
            }
        }
    }

    /// Bytes, checksum of the whole, and checksums of the blocks.
    pub fn finish(mut self) -> (u64, String, Vec<String>) {
        if self.in_block > 0 {
            self.end_block();
        }
        (self.bytes, hex(&self.whole.finalize()), self.blocks)
    }

    fn end_block(&mut self) {
        self.blocks.push(hex(&self.block.finalize_reset()));
        self.in_block = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, FileDigest, sha256};

    #[test]
    fn pieces_of_any_size_give_the_checksums_of_the_blocks() {
        let bytes: Vec<u8> = (0..BLOCK * 2 + 77).map(|at| (at % 251) as u8).collect();
        for piece in [1000, BLOCK, BLOCK * 3] {
            let mut digest = FileDigest::default();
            bytes.chunks(piece).for_each(|piece| digest.update(piece));
            let (count, whole, blocks) = digest.finish();
            assert_eq!((count, whole), (bytes.len() as u64, sha256(&bytes)));
            let expected: Vec<String> = bytes.chunks(BLOCK).map(sha256).collect();
            assert_eq!(blocks, expected);
        }
        // FIPS 180-4, example "abc".
        assert_eq!(
            sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
