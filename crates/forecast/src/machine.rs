//! Machines by name or file.

use partita_cluster::{Calibration, Machine, MeasuredKernel};
use partita_oracle::Features;
use partita_oracle::{CostBasis, Costs, Mode};
use partita_site::kernel_set::KernelSet;
use partita_site::{Environment, ErrorKind, Fault};
use partita_space::Help;

/// Most ranks that are simulated individually.
const RANKS_EACH: usize = 64;

/// Names of the local machine.
const HERE: [&str; 2] = ["here", "this"];

/// A machine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// No machine has this name, or its file is faulty.
    #[error(transparent)]
    Load(#[from] partita_cluster::MachineError),
    /// The calibration uses other features of kernels.
    #[error(
        "machine `{machine}` was calibrated by another version: the shapes of its kernels have other \
         coordinates{}",
        Help::advice("`partita calibrate` measures it again")
    )]
    OtherCalibration {
        /// Its name.
        machine: String,
    },
    /// More ranks than devices.
    #[error(
        "machine `{machine}` has {devices} devices, {ranks} ranks were asked for{}",
        Help::possible(format_args!("1 to {devices} ranks")).code(format_args!("--ranks {devices}"))
    )]
    TooManyRanks {
        /// Its name.
        machine: String,
        /// Its devices.
        devices: usize,
        /// Requested ranks.
        ranks: usize,
    },
}

impl Fault for MachineError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}

/// Whether a name means the local machine, which is measured.
pub fn is_local(asked: &str) -> bool {
    HERE.contains(&asked)
}

/// The machine of a name or of a machine file. Names are searched in the folders of the environment and among
/// the built-in machines.
///
/// Errors: no such machine, a faulty file, a calibration by another version.
pub fn resolve(asked: &str, environment: &Environment) -> Result<Machine, MachineError> {
    let machine = Machine::load(asked, &environment.machine_folders)?;
    if machine.calibration.as_ref().is_none_or(is_known) {
        return Ok(machine);
    }
    let machine = machine.name;
    Err(MachineError::OtherCalibration { machine })
}

/// Whether its kernels have the features of [`Features::NAMES`].
fn is_known(calibration: &Calibration) -> bool {
    let is_of_all = |row: &MeasuredKernel| row.3.len() == Features::NAMES.len();
    calibration.coordinates == Features::NAMES && calibration.measured.iter().all(is_of_all)
}

/// The requested kernels. By default the fast ones if the machine file has their measured costs, else none.
pub fn kernels(machine: &Machine, asked: Option<KernelSet>) -> Option<KernelSet> {
    let own = machine.calibration.as_ref();
    asked.or(own.map(|calibration| KernelSet::of_backend(&calibration.kernels)))
}

/// Simulation mode: each rank individually if ranks of a node slow each other down and there are few.
pub fn mode(costs: &dyn Costs, ranks: usize) -> Mode {
    match costs.basis() {
        CostBasis::Measured | CostBasis::Calibrated if ranks <= RANKS_EACH => Mode::Ranks,
        CostBasis::Measured | CostBasis::Calibrated | CostBasis::Modeled => Mode::Classes,
    }
}

/// Refuses more ranks than devices, before anything is lowered.
pub fn check_capacity(machine: &Machine, ranks: usize) -> Result<(), MachineError> {
    let devices = machine.devices();
    if ranks <= devices {
        return Ok(());
    }
    Err(MachineError::TooManyRanks {
        machine: machine.name.clone(),
        devices,
        ranks,
    })
}
