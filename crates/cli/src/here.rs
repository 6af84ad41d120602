use crate::error::CliError;
use crate::machine;
use partita_cluster::Machine;

/// The machine on which this process runs, as it was measured.
///
/// Errors: no measurement of it is at hand.
pub fn machine() -> Result<Machine, CliError> {
    Err(CliError::User(format!(
        "machine `here` is not measured; possible are `--machine NAME` with one of {}, or the path \
         of a machine file",
        machine::names().join(", ")
    )))
}
