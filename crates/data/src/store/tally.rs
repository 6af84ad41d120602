//! What ranks read and receive in each epoch.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::{Mutex, PoisonError};

use partita_space::Bytes;
use serde::{Deserialize, Serialize};

/// Samples loaded for an epoch, in bytes as they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochLoads {
    /// Read from files of the dataset, uncompressed.
    pub read: Bytes,
    /// Taken from the memory of the rank that keeps them, by it or for another rank.
    pub memory: Bytes,
    /// Read from the file of the rank that keeps them, by it or for another rank.
    pub spilled: Bytes,
    /// Received from other ranks.
    pub received: Bytes,
    /// Sent to other ranks.
    pub sent: Bytes,
}

impl AddAssign for EpochLoads {
    fn add_assign(&mut self, more: Self) {
        let Self {
            read,
            memory,
            spilled,
            received,
            sent,
        } = more;
        self.read += read;
        self.memory += memory;
        self.spilled += spilled;
        self.received += received;
        self.sent += sent;
    }
}

/// Counts what the ranks of a process load, by the epoch in which samples are used.
#[derive(Debug, Default)]
pub struct LoadTally(Mutex<BTreeMap<u64, EpochLoads>>);

impl LoadTally {
    /// The counts of each epoch, from 0.
    pub fn epochs(&self) -> BTreeMap<u64, EpochLoads> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Adds what was loaded for an epoch.
    pub fn add(&self, epoch: u64, loads: EpochLoads) {
        let mut epochs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *epochs.entry(epoch).or_default() += loads;
    }
}
