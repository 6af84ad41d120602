//! Why a training cannot be lowered, predicted or planned.

use crate::error::{ErrorKind, Fault};
use crate::local_machine::LocalError;
use crate::machine::MachineError;
use crate::model::ModelError;
use partita_lower::{LowerError, Strategy, StrategyError};
use partita_oracle::{CostError, SimulateError};
use partita_plan::{BalanceError, PlanError};
use partita_space::Bytes;
use partita_verify::Faults;

/// Why a training cannot be lowered, predicted or planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanningError {
    /// There is no such model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// There is no such machine, or it is too small.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Something of this machine is not measured.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A strategy is left open where one is needed.
    #[error(
        "`auto` stands for a strategy only where `partita train` is to choose one; `partita plan` says \
         which strategies there are for {ranks} rank(s), and one of them is `data={ranks}`"
    )]
    Auto {
        /// Ranks asked for.
        ranks: usize,
    },
    /// The strategy does not suit the model, the ranks or the mini-batch.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// The training cannot be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A program has faults, which are faults of lowering.
    #[error("`{program}`: {faults}")]
    Unsound {
        /// Its title.
        program: String,
        /// All of them.
        faults: Faults,
    },
    /// The stages of a strategy cannot be balanced.
    #[error(transparent)]
    Balance(#[from] BalanceError),
    /// No strategies can be searched.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The machine does not say how fast it reads.
    #[error("{0}; `--no-io` leaves reading out")]
    NoReading(SimulateError),
    /// A cost that the machine lacks.
    #[error(transparent)]
    Cost(SimulateError),
    /// A program cannot be simulated.
    #[error(transparent)]
    Simulate(SimulateError),
    /// The closed forms of a strategy cannot be evaluated.
    #[error("{0}")]
    ClosedForm(String),
    /// A program is too large to measure its kernels on this machine.
    #[error(
        "{strategy} needs {needed} on the largest rank, and {memory} are available here to each of {ranks} \
         ranks, too little to measure its kernels; possible are a smaller batch or model, or a machine file"
    )]
    TooLarge {
        /// The strategy of the program.
        strategy: Box<Strategy>,
        /// What its largest rank needs.
        needed: Bytes,
        /// What each rank may fill.
        memory: Bytes,
        /// Ranks asked for.
        ranks: usize,
    },
    /// No strategy fits.
    #[error(
        "no strategy fits {ranks} ranks with {memory} each for batch {batch}; {remedy}; what became of each \
         strategy is listed"
    )]
    NoneFits {
        /// Ranks asked for.
        ranks: usize,
        /// What each rank may fill.
        memory: Bytes,
        /// Samples of a step.
        batch: usize,
        /// What can be changed.
        remedy: String,
    },
}

impl Fault for PlanningError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Model(error) => error.kind(),
            Self::Machine(error) => error.kind(),
            Self::Local(error) => error.kind(),
            Self::Auto { .. }
            | Self::Strategy(_)
            | Self::Lower(_)
            | Self::Balance(_)
            | Self::Plan(_)
            | Self::NoReading(_)
            | Self::Cost(_)
            | Self::TooLarge { .. }
            | Self::NoneFits { .. } => ErrorKind::Request,
            Self::Unsound { .. } | Self::Simulate(_) | Self::ClosedForm(_) => ErrorKind::Failure,
        }
    }
}

impl From<SimulateError> for PlanningError {
    /// A fact that the machine file lacks is the user's to add; all else is a fault of the program.
    fn from(error: SimulateError) -> Self {
        match error {
            SimulateError::Cost(CostError::Missing { key: "io", .. }) => Self::NoReading(error),
            SimulateError::Cost(_) => Self::Cost(error),
            SimulateError::Peer { .. }
            | SimulateError::Unmatched { .. }
            | SimulateError::Deadlock { .. }
            | SimulateError::NoSteps => Self::Simulate(error),
        }
    }
}
