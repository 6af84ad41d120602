//! Writes a snapshot while the training goes on.

use partita_data::checkpoint::{CheckpointError, CheckpointFolder, PartLayout, WrittenPart};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often the first rank looks for the parts of the others.
const POLL: Duration = Duration::from_millis(10);

/// What a thread writes.
pub struct Writing {
    /// Where.
    pub folder: CheckpointFolder,
    /// Name of the checkpoint.
    pub name: String,
    /// Its serial number.
    pub serial: u64,
    /// The rank.
    pub rank: usize,
    /// Layout of the rank's file.
    pub layout: Arc<PartLayout>,
    /// The shards of the rank, given back when they are written.
    pub data: Vec<u8>,
    /// What the first rank does besides.
    pub lead: Option<Lead>,
}

/// What the first rank does when all have written their parts.
pub struct Lead {
    /// The caller's part of the manifest.
    pub training: Value,
    /// Ranks that have a part.
    pub ranks: Vec<usize>,
    /// The last checkpoints that stay.
    pub keep: usize,
    /// The best one, which stays too.
    pub best: Option<PathBuf>,
    /// Checkpoints before this serial number are of a run that this one replaces.
    pub first_serial: u64,
    /// Set when a part will never come.
    pub is_abandoned: Arc<AtomicBool>,
}

/// What came of it: the data, and the whole checkpoint on the first rank.
pub struct Written {
    /// The snapshot's memory.
    pub data: Vec<u8>,
    /// The folder of the checkpoint, on the first rank.
    pub result: Result<Option<PathBuf>, String>,
}

impl Writing {
    /// Starts the thread.
    pub fn start(self) -> JoinHandle<Written> {
        thread::spawn(move || self.run())
    }

    fn run(mut self) -> Written {
        let result = self.write();
        if result.is_err() {
            self.give_up();
        }
        Written {
            data: std::mem::take(&mut self.data),
            result: result.map_err(|error| error.to_string()),
        }
    }

    fn write(&self) -> Result<Option<PathBuf>, CheckpointError> {
        let partial = self.folder.begin(&self.name, self.serial)?;
        if self.layout.bytes() > 0 {
            self.layout.write(&partial, &self.data)?;
        }
        let Some(lead) = &self.lead else {
            return Ok(None);
        };
        for &rank in &lead.ranks {
            lead.wait_for(&partial, rank)?;
        }
        let training = lead.training.clone();
        let whole = self
            .folder
            .complete(&self.name, self.serial, training, &lead.ranks)?;
        lead.prune(&self.folder, &whole);
        Ok(Some(whole))
    }

    /// Tells the first rank that a part will not come, or removes all parts.
    fn give_up(&self) {
        match &self.lead {
            Some(_) => self.folder.abandon(&self.name, self.serial),
            None => {
                if let Ok(partial) = self.folder.begin(&self.name, self.serial) {
                    // If this fails too, the first rank learns it when the ranks meet.
                    let _ = fs::write(failure_mark(&partial, self.rank), []);
                }
            }
        }
    }
}

fn failure_mark(partial: &Path, rank: usize) -> PathBuf {
    partial.join(format!("rank-{rank:05}.failed"))
}

impl Lead {
    fn wait_for(&self, partial: &Path, rank: usize) -> Result<(), CheckpointError> {
        while WrittenPart::read(partial, rank)?.is_none() {
            let has_failed = failure_mark(partial, rank).exists();
            if has_failed || self.is_abandoned.load(Ordering::Relaxed) {
                return Err(CheckpointError::Unwritable {
                    path: partial.to_owned(),
                    reason: format!("rank {rank} did not write its part"),
                });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Removes all checkpoints but the last ones and the best one.
    fn prune(&self, folder: &CheckpointFolder, whole: &Path) {
        let best = self.best.as_ref().and_then(|best| best.file_name());
        let mut kept = 0;
        for found in folder.readable().into_iter().rev() {
            let is_own = found.serial >= self.first_serial || found.path == whole;
            let is_best = best.is_some() && found.path.file_name() == best;
            if is_own && kept < self.keep {
                kept += 1;
            } else if !(is_own && is_best) {
                // What cannot be removed takes room and nothing else.
                let _ = folder.remove(&found.path);
            }
        }
    }
}
