//! Writes a snapshot while the training goes on.

use super::best::{Best, BestError, BestFile};
use partita_weights::checkpoint::{CheckpointError, CheckpointFolder, PartLayout, WrittenPart};
use serde_json::Value;
use std::ffi::OsStr;
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
    /// The best one, which stays too, and the file of its weights.
    pub best: Option<(Best, Arc<BestFile>)>,
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
    pub result: Result<Option<PathBuf>, CheckpointError>,
    /// Why the weights of the best checkpoint could not be written, on the first rank.
    pub best_failure: Option<BestError>,
}

impl Writing {
    /// Starts the thread.
    pub fn start(self) -> JoinHandle<Written> {
        thread::spawn(move || self.run())
    }

    fn run(mut self) -> Written {
        let result = self.write();
        let best_failure = match (&result, &self.lead) {
            (Ok(_), Some(lead)) => lead.settle(&self.folder),
            (Ok(_), None) => None,
            (Err(_), _) => {
                self.give_up();
                None
            }
        };
        Written {
            data: std::mem::take(&mut self.data),
            result,
            best_failure,
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

    /// Writes the weights of the best checkpoint, and removes all checkpoints but the last ones and the best one. Says
    /// why it could not write.
    fn settle(&self, folder: &CheckpointFolder) -> Option<BestError> {
        let best = self.best.as_ref();
        let written = best.map(|(best, file)| {
            let checkpoint = folder.path().join(&best.checkpoint);
            file.ensure(best, &checkpoint)
        });
        self.prune(folder);
        written.and_then(Result::err)
    }

    fn prune(&self, folder: &CheckpointFolder) {
        let best = self.best.as_ref();
        let best = best.map(|(best, _)| OsStr::new(best.checkpoint.as_str()));
        let mut kept = 0;
        for found in folder.readable().into_iter().rev() {
            let is_own = found.serial >= self.first_serial;
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
