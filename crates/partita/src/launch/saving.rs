//! What a run leaves: memory that it took, tensors that are kept.

use super::error::NotSaved;
use partita_run::PackedTensor;
use partita_session::PersistentTensor;
use partita_space::Bytes;

/// Memory that a run used.
#[derive(Clone, Debug, Default)]
pub struct MemoryUsage {
    /// Arenas as they were allocated, in rank order.
    pub arenas: Vec<Bytes>,
    /// Largest resident set of all processes until the last step, above that before the arenas.
    pub peak: Option<Bytes>,
    /// The same until the weights were written, where all ranks are of one process.
    pub peak_saving: Option<Bytes>,
}

/// Takes the tensors that a run leaves, one by one, in the order of [`partita_session::Session::persistent_tensors`].
pub trait TensorSink: Send {
    /// Takes the next tensor.
    fn keep(&mut self, tensor: &PersistentTensor, values: PackedTensor);

    /// Ends a pass over all tensors: true where they are safe, false where they are wanted once more from
    /// the first on, as the folder that they went to did not hold them.
    ///
    /// Errors: no folder holds them.
    fn finish(&mut self) -> Result<bool, NotSaved>;
}
