//! The units that one rank keeps.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use partita_run::allocation::handling_failure;
use partita_space::Bytes;

use super::owners::UnitKey;
use crate::error::DataError;
use crate::samples::Samples;

/// Units of one rank. Each is read once, by whichever thread wants it first.
#[derive(Default)]
pub(crate) struct Shard {
    /// `None` while a thread reads the unit.
    units: Mutex<HashMap<UnitKey, Option<Arc<Samples>>>>,
    changed: Condvar,
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, HashMap<UnitKey, Option<Arc<Samples>>>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A unit, which is read and kept if it is not there.
    ///
    /// Errors: those of reading; the next caller tries again.
    pub(crate) fn get(
        &self,
        unit: UnitKey,
        read: impl FnOnce() -> Result<Samples, DataError>,
    ) -> Result<Arc<Samples>, DataError> {
        let mut units = self.lock();
        loop {
            match units.get(&unit) {
                Some(Some(samples)) => return Ok(Arc::clone(samples)),
                Some(None) => {
                    units = self
                        .changed
                        .wait(units)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                None => break,
            }
        }
        units.insert(unit, None);
        drop(units);
        let mut filling = Filling {
            shard: self,
            unit,
            samples: None,
        };
        let samples = Arc::new(read()?);
        filling.samples = Some(Arc::clone(&samples));
        Ok(samples)
    }

    /// Number of units that are there.
    pub(crate) fn len(&self) -> usize {
        self.lock().values().flatten().count()
    }
}

/// Ends the reading of a unit, also where that fails or panics.
struct Filling<'s> {
    shard: &'s Shard,
    unit: UnitKey,
    samples: Option<Arc<Samples>>,
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        let mut units = self.shard.lock();
        match self.samples.take() {
            Some(samples) => units.insert(self.unit, Some(samples)),
            None => units.remove(&self.unit),
        };
        drop(units);
        self.shard.changed.notify_all();
    }
}

/// A copy whose allocation holds nothing but the elements.
///
/// Errors: no memory.
pub(crate) fn copy_of(samples: &Samples) -> Result<Samples, DataError> {
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
