use super::kernel_set::KernelSet;
use partita_oracle::Prediction;
use partita_program::Program;

/// What the oracle says of a program on this machine, with its tasks, from kernels and links measured
/// here; none where nothing was measured. Called once, before the ranks start.
pub fn predict_here(
    _program: &Program,
    _kernels: KernelSet,
    _threads: usize,
) -> Option<Prediction> {
    None
}
