use super::kernel_set::KernelSet;
use crate::error::CliError;
use crate::here::Here;
use partita_oracle::Prediction;
use partita_program::Program;

/// What the oracle says of a program on this machine, with its tasks, from kernels and links measured
/// here. Called once, before the ranks start.
///
/// Errors: something that cannot be measured, or measurements that cannot be kept.
pub fn predict_here(
    program: &Program,
    kernels: KernelSet,
    threads: usize,
) -> Result<Prediction, CliError> {
    Here::new(kernels, program.mesh.ranks(), threads, false)?.predict(program, true)
}
