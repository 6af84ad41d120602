//! The units that one rank keeps.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use partita_formats::{DataError, Samples};
use partita_run::allocation::handling_failure;
use partita_space::{Bytes, Rank};

use super::owners::UnitKey;
use super::spill::SpillFile;

/// Units of one rank. Each is read once, by whichever thread wants it first.
#[derive(Default)]
pub(crate) struct Shard {
    /// Units of the file are there from the start, units of the memory once they are wanted.
    units: Mutex<HashMap<UnitKey, Unit>>,
    changed: Condvar,
    file: OnceLock<SpillFile>,
}

#[derive(Clone)]
enum Unit {
    /// Of the file, at an offset, and not read yet.
    Unread(u64),
    /// A thread reads it.
    Reading,
    Kept(Kept),
}

/// Where a unit is kept.
#[derive(Clone)]
pub(crate) enum Kept {
    Memory(Arc<Samples>),
    /// An offset in the file.
    File(u64),
}

/// What a thread finds that wants a unit.
pub(crate) enum Found<'s> {
    Kept(Kept),
    /// The thread must read it, and tell the shard.
    Missing(Filling<'s>),
}

impl Shard {
    /// An empty shard whose file has these units at these offsets.
    pub(crate) fn new(spilled: HashMap<UnitKey, u64>) -> Self {
        let units = spilled
            .into_iter()
            .map(|(unit, at)| (unit, Unit::Unread(at)));
        Self {
            units: Mutex::new(units.collect()),
            ..Self::default()
        }
    }

    /// Makes the file of the shard.
    ///
    /// Errors: the folder cannot be written to, or has no room.
    pub(crate) fn open(&self, folder: &Path, rank: Rank, bytes: Bytes) -> Result<(), DataError> {
        if self.file.get().is_none() {
            let file = SpillFile::create(folder, rank, bytes)?;
            // Where another thread was faster, this file is dropped.
            let _ = self.file.set(file);
        }
        Ok(())
    }

    /// The file of the shard. Panics if there is none.
    pub(crate) fn file(&self) -> &SpillFile {
        self.file.get().expect("the file was made before the run")
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<UnitKey, Unit>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A unit, or the right to read it. Waits while another thread reads it.
    pub(crate) fn find(&self, unit: UnitKey) -> Found<'_> {
        let mut units = self.lock();
        loop {
            let spilled = match units.get(&unit) {
                Some(Unit::Kept(kept)) => return Found::Kept(kept.clone()),
                Some(Unit::Reading) => {
                    units = self
                        .changed
                        .wait(units)
                        .unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                Some(&Unit::Unread(at)) => Some(at),
                None => None,
            };
            units.insert(unit, Unit::Reading);
            return Found::Missing(Filling {
                shard: self,
                unit,
                spilled,
                kept: None,
            });
        }
    }

    /// Number of units that are there.
    pub(crate) fn len(&self) -> usize {
        let is_kept = |unit: &&Unit| matches!(unit, Unit::Kept(_));
        self.lock().values().filter(is_kept).count()
    }
}

/// Ends the reading of a unit, also where that fails or panics: the next thread then tries again.
pub(crate) struct Filling<'s> {
    shard: &'s Shard,
    unit: UnitKey,
    spilled: Option<u64>,
    kept: Option<Kept>,
}

impl Filling<'_> {
    /// Keeps what was read, in memory or in the file.
    ///
    /// Errors: no memory, a full disk.
    pub(crate) fn keep(mut self, samples: &Samples) -> Result<(), DataError> {
        self.kept = Some(match self.spilled {
            None => Kept::Memory(Arc::new(copy_of(samples)?)),
            Some(at) => {
                self.shard.file().write(at, samples)?;
                Kept::File(at)
            }
        });
        Ok(())
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        let mut units = self.shard.lock();
        match (self.kept.take(), self.spilled) {
            (Some(kept), _) => units.insert(self.unit, Unit::Kept(kept)),
            (None, Some(at)) => units.insert(self.unit, Unit::Unread(at)),
            (None, None) => units.remove(&self.unit),
        };
        drop(units);
        self.shard.changed.notify_all();
    }
}

/// A copy whose allocation holds nothing but the elements.
///
/// Errors: no memory.
fn copy_of(samples: &Samples) -> Result<Samples, DataError> {
    fn copy<T: Copy>(values: &[T]) -> Result<Vec<T>, DataError> {
        let mut kept = Vec::new();
        handling_failure(|| kept.try_reserve_exact(values.len())).map_err(|_| {
            let bytes = Bytes(size_of_val(values) as u64);
            DataError::StoreMemory { bytes }
        })?;
        kept.extend_from_slice(values);
        Ok(kept)
    }
    Ok(match samples {
        Samples::I16(values) => Samples::I16(copy(values)?),
        Samples::F32(values) => Samples::F32(copy(values)?),
    })
}
