//! What ranks read and receive in each epoch.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use partita_space::Bytes;
use serde::{Deserialize, Serialize};

/// Samples loaded for an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochLoads {
    /// Bytes read from files, uncompressed.
    pub read: Bytes,
    /// Bytes that ranks took from the memory of other ranks.
    pub received: Bytes,
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
        let sum = epochs.entry(epoch).or_default();
        sum.read += loads.read;
        sum.received += loads.received;
    }
}
