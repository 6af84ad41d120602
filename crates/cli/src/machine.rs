use crate::error::CliError;
use partita_cluster::Machine;
use std::env;
use std::path::PathBuf;

/// Names that mean the machine on which the command runs.
const HERE: [&str; 2] = ["here", "this"];

/// Whether MACHINE is this one, of which there is no file: it is measured.
pub fn is_here(asked: &str) -> bool {
    HERE.contains(&asked)
}

/// Resolves MACHINE: a name, or the path of a machine file.
///
/// Names are looked for in the folders of `PARTITA_MACHINES` (separated as in `PATH`), in
/// `machines/`, and among the machines that come with the binary.
pub fn resolve(asked: &str) -> Result<Machine, CliError> {
    Machine::load(asked, &folders()).map_err(|error| CliError::user(&error))
}

/// Refuses more ranks than devices, before anything is lowered.
pub fn check_capacity(machine: &Machine, ranks: usize) -> Result<(), CliError> {
    let devices = machine.devices();
    if ranks <= devices {
        return Ok(());
    }
    Err(CliError::User(format!(
        "machine `{}` has {devices} devices, {ranks} ranks were asked for; possible are 1 to \
         {devices} ranks, nearest is `--ranks {devices}`",
        machine.name
    )))
}

fn folders() -> Vec<PathBuf> {
    let listed = env::var_os("PARTITA_MACHINES").unwrap_or_default();
    let listed = env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty());
    listed.chain([PathBuf::from("machines")]).collect()
}
