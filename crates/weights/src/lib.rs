//! Weights and checkpoints on disk, as safetensors.
//!
//! Does: reads and writes named tensors with checksums, state dicts of PyTorch, and checkpoints that all ranks write.
//! Knows: safetensors, the manifest of a checkpoint, shards of tensors by region.
//! Must not know: datasets, models, strategies, how ranks run or talk, machines, time, printing.

pub mod checkpoint;
mod foreign;
pub mod state_dict;
mod tensors;

pub use tensors::{ElementType, Entry, Tensor, Values, Weights, Writer, load, save};
