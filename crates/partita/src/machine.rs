use crate::args::KernelSet;
use crate::error::CliError;
use partita_cluster::{Calibration, Machine, MeasuredKernel};
use partita_oracle::{CostBasis, Costs, Mode};
use partita_program::Features;
use std::env;
use std::path::PathBuf;

/// Most ranks that are played one by one.
const RANKS_EACH: usize = 64;

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
    let machine = Machine::load(asked, &folders()).map_err(|error| CliError::user(&error))?;
    if machine.calibration.as_ref().is_none_or(is_known) {
        return Ok(machine);
    }
    Err(CliError::User(format!(
        "machine `{}` was calibrated by another version: the shapes of its kernels have other \
         coordinates; known are {}; `partita calibrate` measures it again",
        machine.name,
        Features::NAMES.map(|name| format!("\"{name}\"")).join(", ")
    )))
}

/// Whether the shapes of its kernels have the coordinates of [`Features::NAMES`].
fn is_known(calibration: &Calibration) -> bool {
    let is_of_all = |row: &MeasuredKernel| row.3.len() == Features::NAMES.len();
    calibration.coordinates == Features::NAMES && calibration.measured.iter().all(is_of_all)
}

/// The kernels whose costs a machine file holds: the fast ones where they were measured, none in
/// particular where they are modelled; or those that are asked for.
pub fn kernels(machine: &Machine, asked: KernelSet) -> KernelSet {
    match (asked, &machine.calibration) {
        (KernelSet::Unpinned, Some(_)) => KernelSet::Cpu,
        (asked, _) => asked,
    }
}

/// How programs are played: rank by rank where ranks of a node hold each other up, as long as there are
/// few.
pub fn mode(costs: &dyn Costs, ranks: usize) -> Mode {
    match costs.basis() {
        CostBasis::Measured | CostBasis::Calibrated if ranks <= RANKS_EACH => Mode::Ranks,
        CostBasis::Measured | CostBasis::Calibrated | CostBasis::Modelled => Mode::Classes,
    }
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
