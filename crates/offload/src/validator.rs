//! Messages between ranks and validators.

use crate::message::{LIST_BYTES_MAX, receive_up_to, send};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// A shard of a tensor, whose values follow as little-endian bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardHead {
    /// Name of the tensor.
    pub name: String,
    /// Global extents of the tensor.
    pub shape: [usize; 5],
    /// Start and end of the shard in each dim.
    pub region: [[usize; 2]; 5],
    /// Size of an element: 4 for f32, 8 for f64. Units: bytes.
    pub element_bytes: usize,
}

impl ShardHead {
    /// Bytes of its values. None for a region that leaves the tensor, or a tensor of more bytes than there are addresses.
    pub fn bytes(&self) -> Option<usize> {
        let (mut bytes, mut whole) = (self.element_bytes, self.element_bytes);
        for ([start, end], extent) in self.region.into_iter().zip(self.shape) {
            if end > extent {
                return None;
            }
            bytes = bytes.checked_mul(end.checked_sub(start)?)?;
            whole = whole.checked_mul(extent)?;
        }
        Some(bytes)
    }
}

/// What a rank sends of a snapshot: all its shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHead {
    /// Epoch that it ends, from 0.
    pub epoch: u64,
    /// The shards, whose values follow in this order.
    pub shards: Vec<ShardHead>,
}

/// What a validator tells rank 0, with results of the type `R`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report<R> {
    /// It lives.
    Working {
        /// Shards taken and mini-batches evaluated since it was joined. What stays equal for long makes no progress.
        done: u64,
    },
    /// A snapshot is validated.
    Done {
        /// Epoch that it ends, from 0.
        epoch: u64,
        /// The results.
        results: R,
    },
    /// It cannot go on.
    Failed(String),
}

/// Sends the shards of a rank.
pub fn send_snapshot(
    stream: &mut dyn Write,
    head: &SnapshotHead,
    values: impl Iterator<Item = Vec<u8>>,
) -> io::Result<()> {
    send(stream, head)?;
    for bytes in values {
        stream.write_all(&bytes)?;
    }
    stream.flush()
}

/// Receives a report.
pub fn receive_report<R: DeserializeOwned>(stream: &mut dyn Read) -> io::Result<Report<R>> {
    receive_up_to(stream, LIST_BYTES_MAX)
}

/// Receives what precedes the values of a snapshot.
pub fn receive_snapshot(stream: &mut dyn Read) -> io::Result<SnapshotHead> {
    receive_up_to(stream, LIST_BYTES_MAX)
}
