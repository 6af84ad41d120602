//! Shards of Zarr 3: several chunks in a file, with an index of where each lies; a chunk may be a shard itself.
//!
//! Source: Zarr enhancement proposal 2, sharding codec (`sharding_indexed`) 1.0.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use super::{check_stored, extents};
use crate::checksum::crc32c;
use crate::decode_memory;
use crate::flat::Order;
use crate::read_error::ReadError;

/// Most shards inside one another.
const LEVELS_MAX: usize = 4;
/// Most chunks of a shard.
const CHUNKS_MAX: usize = 1 << 22;
/// Bytes of an entry of the index: offset and length.
const ENTRY_BYTES: usize = 16;
/// Offset and length of a chunk that was never written.
const ABSENT: u64 = u64::MAX;

/// How chunks lie in shards.
#[derive(Default)]
pub(super) struct Shards {
    /// Those of files first, each the shards of the next.
    levels: Vec<Level>,
    /// The file that was read last.
    last: RefCell<Option<ShardFile>>,
}

/// A shard of files; `None` where it was never written.
struct ShardFile {
    shard: Vec<usize>,
    file: Option<File>,
}

/// Shards of one size.
struct Level {
    /// Chunks of a shard along each dim.
    chunks: Vec<usize>,
    index_is_first: bool,
    index_order: Order,
    index_has_checksum: bool,
    /// The index that was read last.
    last: RefCell<Option<Index>>,
}

/// Offset and length in its shard of each chunk.
struct Index {
    shard: Vec<usize>,
    entries: Vec<[u64; 2]>,
}

/// Bytes of a file.
#[derive(Clone, Copy)]
struct Part {
    offset: u64,
    length: u64,
}

impl Shards {
    /// Reads the configuration of a codec: the shards, and the extents of a chunk. `shard` are those of a shard, which
    /// is a chunk of the level before.
    ///
    /// Errors: what is not read.
    pub(super) fn add(&mut self, codec: &Value, shard: &[usize]) -> Result<Vec<usize>, ReadError> {
        if self.levels.len() == LEVELS_MAX {
            return Err(ReadError::Unsupported(format!(
                "it has shards in more than {LEVELS_MAX} sizes inside of one another"
            )));
        }
        let (level, chunk) = Level::read(codec, shard)?;
        self.levels.push(level);
        Ok(chunk)
    }

    /// Extents of what a file holds of the array, of chunks of these extents.
    pub(super) fn extents(&self, chunk: &[usize]) -> Vec<usize> {
        let levels = self.levels.iter();
        levels.fold(chunk.to_vec(), |extents, level| {
            let dims = extents.iter().zip(&level.chunks);
            dims.map(|(extent, count)| extent * count).collect()
        })
    }

    /// Whether chunks lie in files of their own.
    pub(super) fn are_none(&self) -> bool {
        self.levels.is_empty()
    }

    /// The shard of files of a chunk.
    pub(super) fn of(&self, chunk: &[usize]) -> Vec<usize> {
        let levels = self.levels.iter().rev();
        levels.fold(chunk.to_vec(), |chunk, level| level.of(&chunk))
    }

    /// The bytes of a chunk of the shard at `path`, which has `limit` bytes decoded; `None` where it was never written.
    pub(super) fn chunk(
        &self,
        path: &Path,
        chunk: &[usize],
        limit: usize,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let mut last = self.last.borrow_mut();
        let shard = self.of(chunk);
        if last.as_ref().is_none_or(|last| last.shard != shard) {
            *last = None;
            let file = open(path)?;
            *last = Some(ShardFile { shard, file });
        }
        let Some(file) = last.as_ref().and_then(|shard| shard.file.as_ref()) else {
            return Ok(None);
        };
        let size = file.metadata()?.len();
        let mut part = Part {
            offset: 0,
            length: size,
        };
        for (level, below) in self.levels.iter().zip(1..) {
            let deeper = self.levels[below..].iter().rev();
            let chunk = deeper.fold(chunk.to_vec(), |chunk, level| level.of(&chunk));
            match level.find(file, part, &chunk)? {
                Some(found) => part = found,
                None => return Ok(None),
            }
        }
        check_stored(part.length, limit)?;
        let mut bytes = vec![0; part.length as usize];
        let read = file.read_exact_at(&mut bytes, part.offset);
        read?;
        Ok(Some(bytes))
    }
}

fn open(path: &Path) -> Result<Option<File>, ReadError> {
    match partita_files::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Level {
    fn read(codec: &Value, shard: &[usize]) -> Result<(Self, Vec<usize>), ReadError> {
        let setting = |path: &str| codec.pointer(&format!("/configuration/{path}"));
        let chunk = extents(setting("chunk_shape")).ok_or("its shards have no shape of chunks")?;
        let divides = |(shard, chunk): (&usize, &usize)| {
            *shard > 0 && *chunk > 0 && shard.is_multiple_of(*chunk)
        };
        if chunk.len() != shard.len() || !shard.iter().zip(&chunk).all(divides) {
            return Err(format!(
                "its shards of {shard:?} are not made of whole chunks of {chunk:?}"
            )
            .into());
        }
        let chunks: Vec<usize> = shard
            .iter()
            .zip(&chunk)
            .map(|(all, one)| all / one)
            .collect();
        let number = chunks
            .iter()
            .try_fold(1usize, |product, &count| product.checked_mul(count));
        if number.is_none_or(|number| number > CHUNKS_MAX) {
            return Err(ReadError::Unsupported(format!(
                "its shards have more than {CHUNKS_MAX} chunks, {chunks:?}"
            )));
        }
        let mut level = Self {
            chunks,
            index_is_first: setting("index_location").and_then(Value::as_str) == Some("start"),
            index_order: Order::Little,
            index_has_checksum: false,
            last: RefCell::new(None),
        };
        let codecs = setting("index_codecs").and_then(Value::as_array);
        for codec in codecs.into_iter().flatten() {
            match codec.get("name").and_then(Value::as_str) {
                Some("bytes") => {
                    let endian = codec.pointer("/configuration/endian");
                    if endian.and_then(Value::as_str) == Some("big") {
                        level.index_order = Order::Big;
                    }
                }
                Some("crc32c") => level.index_has_checksum = true,
                Some(_) | None => {
                    return Err(ReadError::Unsupported(format!(
                        "the codec {codec} of its shards' index is not read; bytes and crc32c are"
                    )));
                }
            }
        }
        Ok((level, chunk))
    }

    /// The shard of a chunk.
    fn of(&self, chunk: &[usize]) -> Vec<usize> {
        let dims = chunk.iter().zip(&self.chunks);
        dims.map(|(at, count)| at / count).collect()
    }

    /// Where a chunk lies whose shard is `part` of a file; `None` where it was never written.
    fn find(&self, file: &File, part: Part, chunk: &[usize]) -> Result<Option<Part>, ReadError> {
        let shard = self.of(chunk);
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|last| last.shard != shard) {
            *last = None;
            let entries = self.entries(file, part)?;
            *last = Some(Index { shard, entries });
        }
        let Some(Index { entries, .. }) = &*last else {
            return Ok(None);
        };
        let within = chunk.iter().zip(&self.chunks);
        let number = within.fold(0, |number, (at, count)| number * count + at % count);
        let [offset, length] = entries[number];
        if [offset, length] == [ABSENT; 2] {
            return Ok(None);
        }
        let size = part.length;
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(format!(
                "its index says bytes {offset} and {length} more, but it has {size}"
            )
            .into());
        }
        Ok(Some(Part {
            offset: part.offset + offset,
            length,
        }))
    }

    /// Reads the index of a shard.
    fn entries(&self, file: &File, part: Part) -> Result<Vec<[u64; 2]>, ReadError> {
        let entries = self.chunks.iter().product::<usize>() * ENTRY_BYTES;
        let length = entries + if self.index_has_checksum { 4 } else { 0 };
        let Some(last) = part.length.checked_sub(length as u64) else {
            return Err(format!(
                "its {} bytes are fewer than those of its index",
                part.length
            )
            .into());
        };
        let _claim = decode_memory::claim(3 * length as u64)?;
        let mut bytes = vec![0; length];
        let start = if self.index_is_first { 0 } else { last };
        let read = file.read_exact_at(&mut bytes, part.offset + start);
        read?;
        let (entries, sum) = bytes.split_at(entries);
        if self.index_has_checksum && sum != crc32c(entries).to_le_bytes() {
            return Err("the checksum of its index (CRC-32C) does not match".into());
        }
        let word = |word: [u8; 8]| match self.index_order {
            Order::Little => u64::from_le_bytes(word),
            Order::Big => u64::from_be_bytes(word),
        };
        let (words, _) = entries.as_chunks::<8>();
        let words: Vec<u64> = words.iter().copied().map(word).collect();
        let (pairs, _) = words.as_chunks::<2>();
        Ok(pairs.to_vec())
    }
}
