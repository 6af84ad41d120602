//! Shards of Zarr 3: several chunks in a file, with an index of where each lies.
//!
//! Source: Zarr enhancement proposal 2, sharding codec (`sharding_indexed`) 1.0.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use super::extents;
use crate::formats::checksum::crc32c;
use crate::formats::flat::Order;

/// Most chunks of a shard.
const CHUNKS_MAX: usize = 1 << 22;
/// Bytes of an entry of the index: offset and length.
const ENTRY_BYTES: usize = 16;
/// Offset and length of a chunk that was never written.
const ABSENT: u64 = u64::MAX;

/// How chunks lie in shards.
pub(super) struct Shards {
    /// Chunks of a shard along each dim.
    pub(super) chunks: Vec<usize>,
    index_is_first: bool,
    index_order: Order,
    index_has_checksum: bool,
    /// The shard that was read last.
    last: RefCell<Option<Shard>>,
}

struct Shard {
    index: Vec<usize>,
    /// `None` where it was never written.
    file: Option<Indexed>,
}

/// A file, with offset and length of each chunk.
type Indexed = (File, Vec<[u64; 2]>);

impl Shards {
    /// Reads the configuration of the codec: the shards, and the extents of a chunk. `shard` are those of a shard.
    ///
    /// Errors: what is not read.
    pub(super) fn read(codec: &Value, shard: &[usize]) -> Result<(Self, Vec<usize>), String> {
        let setting = |path: &str| codec.pointer(&format!("/configuration/{path}"));
        let chunk = extents(setting("chunk_shape")).ok_or("its shards have no shape of chunks")?;
        let divides = |(shard, chunk): (&usize, &usize)| {
            *shard > 0 && *chunk > 0 && shard.is_multiple_of(*chunk)
        };
        if chunk.len() != shard.len() || !shard.iter().zip(&chunk).all(divides) {
            return Err(format!(
                "its shards of {shard:?} are not made of whole chunks of {chunk:?}"
            ));
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
            return Err(format!(
                "its shards have more than {CHUNKS_MAX} chunks, {chunks:?}"
            ));
        }
        let mut shards = Self {
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
                        shards.index_order = Order::Big;
                    }
                }
                Some("crc32c") => shards.index_has_checksum = true,
                Some(_) | None => {
                    return Err(format!(
                        "the codec {codec} of its shards' index is not read; bytes and crc32c are"
                    ));
                }
            }
        }
        Ok((shards, chunk))
    }

    /// The shard of a chunk.
    pub(super) fn of(&self, chunk: &[usize]) -> Vec<usize> {
        chunk
            .iter()
            .zip(&self.chunks)
            .map(|(at, count)| at / count)
            .collect()
    }

    /// The bytes of a chunk of the shard at `path`; `None` where it was never written.
    pub(super) fn chunk(&self, path: &Path, chunk: &[usize]) -> Result<Option<Vec<u8>>, String> {
        let index = self.of(chunk);
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|shard| shard.index != index) {
            *last = None;
            let file = self.open(path)?;
            *last = Some(Shard { index, file });
        }
        let Some((file, entries)) = last.as_ref().and_then(|shard| shard.file.as_ref()) else {
            return Ok(None);
        };
        let within = chunk.iter().zip(&self.chunks);
        let number = within.fold(0, |number, (at, count)| number * count + at % count);
        let [offset, length] = entries[number];
        if [offset, length] == [ABSENT; 2] {
            return Ok(None);
        }
        let size = file.metadata().map_err(|error| error.to_string())?.len();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(format!(
                "its index says bytes {offset} and {length} more, but it has {size}"
            ));
        }
        let mut bytes = vec![0; length as usize];
        let read = file.read_exact_at(&mut bytes, offset);
        read.map_err(|error| error.to_string())?;
        Ok(Some(bytes))
    }

    /// Opens a shard and reads its index.
    fn open(&self, path: &Path) -> Result<Option<Indexed>, String> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let entries = self.chunks.iter().product::<usize>() * ENTRY_BYTES;
        let length = entries + if self.index_has_checksum { 4 } else { 0 };
        let size = file.metadata().map_err(|error| error.to_string())?.len();
        let Some(last) = size.checked_sub(length as u64) else {
            return Err(format!(
                "its {size} bytes are fewer than those of its index"
            ));
        };
        let mut bytes = vec![0; length];
        let read = file.read_exact_at(&mut bytes, if self.index_is_first { 0 } else { last });
        read.map_err(|error| error.to_string())?;
        let (entries, sum) = bytes.split_at(entries);
        if self.index_has_checksum && sum != crc32c(entries).to_le_bytes() {
            return Err("the checksum of its index (CRC-32C) does not match".to_owned());
        }
        let word = |word: [u8; 8]| match self.index_order {
            Order::Little => u64::from_le_bytes(word),
            Order::Big => u64::from_be_bytes(word),
        };
        let (words, _) = entries.as_chunks::<8>();
        let words: Vec<u64> = words.iter().copied().map(word).collect();
        let (pairs, _) = words.as_chunks::<2>();
        Ok(Some((file, pairs.to_vec())))
    }
}
