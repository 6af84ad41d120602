//! Results of a run: memory usage, and the sink of trained tensors.

use super::error::NotSaved;
use partita_run::PackedTensor;
use partita_session::PersistentTensor;
use partita_space::Bytes;

/// Memory usage of a run.
#[derive(Clone, Debug, Default)]
pub struct MemoryUsage {
    /// Allocated arenas, in rank order.
    pub arenas: Vec<Bytes>,
    /// Peak resident set of all processes until the last step, above that before the arenas.
    pub peak: Option<Bytes>,
    /// The same until the weights were written, if all ranks are threads.
    pub peak_saving: Option<Bytes>,
}

/// Receives the trained tensors, one by one, in the order of [`partita_session::Session::persistent_tensors`].
pub trait TensorSink: Send {
    /// Writes the next tensor.
    fn keep(&mut self, tensor: &PersistentTensor, values: PackedTensor);

    /// Ends a pass over all tensors: true if they are saved, false if all are needed again because their folder
    /// could not take them.
    ///
    /// Errors: no folder can take them.
    fn finish(&mut self) -> Result<bool, NotSaved>;
}
