//! Checkpoints on disk: folders of safetensors files, one per rank, with a manifest.
//!
//! A checkpoint is a folder with `manifest.json` and, for every rank that owns shards, a file
//! `rank-00000.safetensors` of the shards that it owns. The manifest names all tensors with their global
//! shapes, where each shard is, sizes and SHA-256 checksums of files and of their blocks of 1 MiB, and a value that
//! belongs to the caller. A checksum over the manifest's own text is in the manifest. A checkpoint is written
//! into a folder `NAME.partial` and renamed when it is whole.
//!
//! Source: the safetensors format description; FIPS 180-4 for SHA-256.

mod digest;
mod error;
mod folder;
mod manifest;
mod part;
mod reader;

pub use error::CheckpointError;
pub use folder::{CheckpointFolder, Found};
pub use manifest::{FORMAT_VERSION, FileEntry, MANIFEST, Manifest, Shard, TensorEntry, TensorKind};
pub use part::{PartLayout, ShardSpec, WrittenPart};
pub use reader::{Checkpoint, TensorReader};
