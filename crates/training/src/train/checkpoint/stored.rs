//! Reads the persistent buffers of ranks from a checkpoint.

use partita_program::Buffer;
use partita_session::{ValuesError, persistent_name};
use partita_weights::checkpoint::{Checkpoint, TensorReader};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// Values of the persistent buffers in a checkpoint. Each thread has a reader of its own.
pub struct StoredValues<'c> {
    checkpoint: &'c Checkpoint,
    readers: Mutex<HashMap<ThreadId, TensorReader<'c>>>,
}

impl<'c> StoredValues<'c> {
    /// Values of a checkpoint.
    pub fn of(checkpoint: &'c Checkpoint) -> Self {
        Self {
            checkpoint,
            readers: Mutex::default(),
        }
    }

    /// A range of elements of the tensor of a buffer.
    ///
    /// Errors: an unreadable checkpoint; a tensor of another shape.
    pub fn read(&self, buffer: &Buffer, elements: Range<usize>) -> Result<Vec<f64>, ValuesError> {
        let name = persistent_name(&buffer.name);
        let shape = buffer
            .tensor
            .map_or(buffer.dims, |tensor| tensor.distribution.shape);
        let stored = self.checkpoint.tensor(name)?;
        if stored.shape != shape {
            return Err(format!(
                "tensor `{name}` of {} has the shape {:?}, expected {shape:?}",
                self.checkpoint.path().display(),
                stored.shape
            )
            .into());
        }
        let id = thread::current().id();
        let lock = || self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let own = lock().remove(&id);
        let mut own = own.unwrap_or_else(|| self.checkpoint.reader());
        let values = own.read(name, elements);
        lock().insert(id, own);
        Ok(values?)
    }
}
