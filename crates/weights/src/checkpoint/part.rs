//! The file of one rank.

use super::digest::FileDigest;
use super::error::CheckpointError;
use super::manifest::{FileEntry, Shard, TensorEntry, TensorKind};
use crate::tensors::{ElementType, Entry, header};
use partita_files::{NewFile, write_whole};
use partita_program::Dtype;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

/// Bytes that are written and hashed at a time.
const PIECE: usize = 1 << 20;

/// A shard that a rank writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSpec {
    /// Name of its tensor.
    pub tensor: String,
    /// What the tensor is for.
    pub kind: TensorKind,
    /// Type of its elements: F32 or F64.
    pub dtype: Dtype,
    /// Global extents of the tensor.
    pub shape: [usize; 5],
    /// Global indices that the shard holds in each dim: start and end.
    pub region: [[usize; 2]; 5],
}

impl ShardSpec {
    /// Extents of the shard.
    pub fn extents(&self) -> [usize; 5] {
        self.region.map(|[start, end]| end - start)
    }

    fn bytes(&self) -> usize {
        self.extents().iter().product::<usize>() * self.dtype.size()
    }
}

/// Layout of the file of a rank; the same for all checkpoints of a run.
#[derive(Clone, Debug)]
pub struct PartLayout {
    rank: usize,
    /// Size of the header, then the header, as in the file.
    head: Vec<u8>,
    /// Each shard with its place in the data.
    shards: Vec<(ShardSpec, Range<usize>)>,
    bytes: usize,
}

impl PartLayout {
    /// The layout of a file of these shards, at most one of each tensor. Empty shards are left out.
    ///
    /// Panics on a tensor of integers, or one whose name the format reserves.
    pub fn new(rank: usize, shards: Vec<ShardSpec>) -> Self {
        let mut shards = shards;
        shards.retain(|shard| shard.bytes() > 0);
        // Wide elements first, so that all are aligned; then by name.
        shards.sort_by(|a, b| (b.dtype.size(), &a.tensor).cmp(&(a.dtype.size(), &b.tensor)));
        let entries: Vec<Entry> = shards.iter().map(entry).collect();
        let metadata = BTreeMap::from([("rank".to_owned(), rank.to_string())]);
        let header = header(&entries, &metadata)
            .unwrap_or_else(|error| panic!("names of trained tensors are not reserved: {error}"));
        let mut head = (header.len() as u64).to_le_bytes().to_vec();
        head.extend(header);
        let mut bytes = 0;
        let placed = shards.into_iter().map(|shard| {
            let start = bytes;
            bytes += shard.bytes();
            (shard, start..bytes)
        });
        let shards = placed.collect();
        Self {
            rank,
            head,
            shards,
            bytes,
        }
    }

    /// The shards in the order of the file, with their places in the data.
    pub fn shards(&self) -> impl Iterator<Item = (&ShardSpec, Range<usize>)> {
        self.shards.iter().map(|(shard, at)| (shard, at.clone()))
    }

    /// Bytes of the data of all shards: the size of a snapshot.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes the file of the rank to a folder, waits until the device has it, and describes it in a file beside it,
    /// by which [`WrittenPart::read`] finds it.
    ///
    /// Panics where `data` has another size than [`bytes`](Self::bytes). Errors: `Unwritable`.
    pub fn write(&self, folder: &Path, data: &[u8]) -> Result<(), CheckpointError> {
        assert_eq!(data.len(), self.bytes, "a snapshot has all shards");
        let name = file_name(self.rank);
        let path = folder.join(&name);
        let file = self.write_file(&path, data);
        let file = file.map_err(|error| CheckpointError::unwritable(&path, &error))?;
        let part = WrittenPart {
            file,
            shards: self.shards.iter().map(|it| self.written(it)).collect(),
        };
        let text = serde_json::to_string(&part)
            .unwrap_or_else(|error| panic!("a part is valid JSON: {error}"));
        let path = folder.join(part_name(self.rank));
        write_whole(&path, text.as_bytes())
            .map_err(|error| CheckpointError::unwritable(&path, &error))
    }

    fn write_file(&self, path: &Path, data: &[u8]) -> io::Result<FileEntry> {
        let mut file = NewFile::create(path)?;
        let mut digest = FileDigest::default();
        for piece in [self.head.as_slice()].into_iter().chain(data.chunks(PIECE)) {
            digest.update(piece);
            file.write_all(piece)?;
        }
        file.place()?;
        let (bytes, sha256, blocks) = digest.finish();
        Ok(FileEntry {
            name: file_name(self.rank),
            rank: self.rank,
            bytes,
            sha256,
            blocks,
        })
    }

    fn written(&self, (shard, at): &(ShardSpec, Range<usize>)) -> TensorEntry {
        TensorEntry {
            name: shard.tensor.clone(),
            kind: shard.kind,
            dtype: shard.dtype,
            shape: shard.shape,
            shards: vec![Shard {
                file: self.rank,
                offset: (self.head.len() + at.start) as u64,
                region: shard.region,
            }],
        }
    }
}

/// The file of a rank as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenPart {
    pub(super) file: FileEntry,
    /// Each with one shard, whose file is the rank.
    pub(super) shards: Vec<TensorEntry>,
}

impl WrittenPart {
    /// The part of a rank in a folder; `None` as long as it is not complete.
    ///
    /// Errors: `Unreadable`.
    pub fn read(folder: &Path, rank: usize) -> Result<Option<Self>, CheckpointError> {
        let path = folder.join(part_name(rank));
        let text = match partita_files::read_record(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CheckpointError::unreadable(&path, &error)),
        };
        let part = serde_json::from_str(&text);
        let part = part.map_err(|error| CheckpointError::unreadable(&path, &error.into()))?;
        Ok(Some(part))
    }
}

pub(super) fn part_name(rank: usize) -> String {
    format!("rank-{rank:05}.json")
}

fn file_name(rank: usize) -> String {
    format!("rank-{rank:05}.safetensors")
}

fn entry(shard: &ShardSpec) -> Entry {
    let element = match shard.dtype {
        Dtype::F32 => ElementType::F32,
        Dtype::F64 => ElementType::F64,
        Dtype::Bf16 | Dtype::F16 | Dtype::I16 => panic!("`{}` is kept in f32 or f64", shard.tensor),
    };
    Entry {
        name: shard.tensor.clone(),
        element,
        shape: shard.extents().to_vec(),
    }
}
