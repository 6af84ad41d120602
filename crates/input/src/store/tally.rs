//! What ranks read and receive in each epoch.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::{Mutex, MutexGuard, PoisonError};

use partita_space::{Bytes, Rank, Seconds};
use serde::{Deserialize, Serialize};

/// Samples loaded for an epoch, in bytes as they are stored. In JSON its names are those of results and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochLoads {
    /// Read from files of the dataset, uncompressed.
    #[serde(rename = "read_bytes")]
    pub read: Bytes,
    /// Taken from the memory of the rank that keeps them, by it or for another rank.
    #[serde(rename = "memory_bytes")]
    pub memory: Bytes,
    /// Read from the file of the rank that keeps them, by it or for another rank.
    #[serde(rename = "spill_bytes")]
    pub spilled: Bytes,
    /// Sent to other ranks.
    #[serde(rename = "sent_bytes")]
    pub sent: Bytes,
    /// Received from other ranks.
    #[serde(rename = "received_bytes")]
    pub received: Bytes,
    /// Time in which a rank waited for samples and for nothing else.
    #[serde(rename = "wait_seconds")]
    pub waited: Seconds,
}

impl EpochLoads {
    /// Bytes that are sent.
    pub(crate) fn sent(bytes: Bytes) -> Self {
        Self {
            sent: bytes,
            ..Self::default()
        }
    }
}

impl AddAssign for EpochLoads {
    fn add_assign(&mut self, more: Self) {
        let Self {
            read,
            memory,
            spilled,
            received,
            sent,
            waited,
        } = more;
        self.read += read;
        self.memory += memory;
        self.spilled += spilled;
        self.received += received;
        self.sent += sent;
        self.waited += waited;
    }
}

/// Counts what ranks load, by the epoch in which samples are used: those of a process, and on rank 0 those of other
/// processes once they have said it.
#[derive(Debug, Default)]
pub struct LoadTally {
    /// The first epoch that is counted.
    first: u64,
    /// Those for which something was loaded.
    epochs: Mutex<BTreeMap<u64, BTreeMap<Rank, EpochLoads>>>,
}

impl LoadTally {
    /// Counts from an epoch on.
    pub fn from_epoch(first: u64) -> Self {
        Self {
            first,
            epochs: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, BTreeMap<Rank, EpochLoads>>> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts of an epoch, from 0: sums over ranks, and the time of the rank that waited longest. None for an epoch
    /// that is not counted.
    pub fn epoch(&self, epoch: u64) -> Option<EpochLoads> {
        let epochs = self.lock();
        let mut all = EpochLoads::default();
        let Some(ranks) = epochs.get(&epoch) else {
            return (epoch >= self.first).then_some(all);
        };
        ranks.values().for_each(|&loads| all += loads);
        let waits = ranks.values().map(|loads| loads.waited.0);
        all.waited = Seconds(waits.fold(0.0, f64::max));
        Some(all)
    }

    /// The counts of a rank by epoch, from an epoch on.
    pub fn of_rank(&self, rank: Rank, from: u64) -> BTreeMap<u64, EpochLoads> {
        let epochs = self.lock();
        let later = epochs.range(from..);
        let loads = later.filter_map(|(&epoch, ranks)| Some((epoch, *ranks.get(&rank)?)));
        loads.collect()
    }

    /// Adds what a rank loaded for an epoch.
    pub fn add(&self, rank: Rank, epoch: u64, loads: EpochLoads) {
        let mut epochs = self.lock();
        *epochs.entry(epoch).or_default().entry(rank).or_default() += loads;
    }

    /// Replaces the counts of a rank for some epochs by what it says.
    pub fn set_rank(&self, rank: Rank, loads: &BTreeMap<u64, EpochLoads>) {
        let mut epochs = self.lock();
        for (&epoch, &loads) in loads {
            epochs.entry(epoch).or_default().insert(rank, loads);
        }
    }
}
