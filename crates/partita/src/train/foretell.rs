use crate::error::CliError;
use crate::kernel_set::KernelSet;
use crate::local_machine::{Here, Ranks};
use partita_oracle::Prediction;
use partita_program::Program;

/// What the oracle says of a program on this machine, with its tasks, from kernels and links measured
/// here. Called once, before the ranks start.
///
/// Nothing where so many ranks share this machine's cores that measuring tells nothing.
/// Errors: something that cannot be measured, or measurements that cannot be kept.
pub fn predict_here(
    program: &Program,
    kernels: KernelSet,
    ranks: Ranks,
) -> Result<Option<Prediction>, CliError> {
    if ranks.count > ranks.most() {
        return Ok(None);
    }
    Here::of(kernels, ranks, false)?
        .predict(program, true)
        .map(Some)
}
