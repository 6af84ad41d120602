//! Messages between ranks and validators.

use crate::message::{receive, send};
use serde::{Deserialize, Serialize};
use serde_json::Value;
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
    /// Bytes of its values. None for a region that leaves the tensor.
    pub fn bytes(&self) -> Option<usize> {
        let mut bytes = self.element_bytes;
        for ([start, end], extent) in self.region.into_iter().zip(self.shape) {
            if end > extent {
                return None;
            }
            bytes = bytes.checked_mul(end.checked_sub(start)?)?;
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

/// What a validator tells rank 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// It lives.
    Working,
    /// A snapshot is validated.
    Done {
        /// Epoch that it ends, from 0.
        epoch: u64,
        /// The results.
        results: Value,
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
pub fn receive_report(stream: &mut dyn Read) -> io::Result<Report> {
    receive(stream)
}
