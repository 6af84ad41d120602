//! Errors of lowering, predicting and planning.

mod epoch;

pub use epoch::EpochError;

use crate::input::InputError;
use crate::layer_times::LayerTimesError;
use crate::local_machine::LocalError;
use crate::machine::MachineError;
use crate::model::ModelError;
use crate::software::SoftwareError;
use partita_cluster::LayerPrecision;
use partita_lower::{LowerError, Strategy, StrategyError};
use partita_oracle::SimulateError;
use partita_plan::{BalanceError, LayersError, PlanError};
use partita_site::kernel_set::devices::DeviceUseError;
use partita_site::{ErrorKind, Fault};
use partita_space::Help;
use partita_space::{Bytes, Seconds};
use partita_verify::Faults;

/// An error of lowering, predicting or planning.
#[derive(Debug, thiserror::Error)]
pub enum PlanningError {
    /// There is no such model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// There is no such machine, or it is too small.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// There is no such software.
    #[error(transparent)]
    Software(#[from] SoftwareError),
    /// There is no such device.
    #[error(transparent)]
    Device(#[from] DeviceUseError),
    /// A measurement of this machine failed.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// Nothing to tune.
    #[error(
        "`{model}` has no convolution, and only convolutions have several implementations; \
         `partita inspect {model}` lists its layers"
    )]
    NoConvolution {
        /// The model.
        model: String,
    },
    /// `auto` where a strategy is needed.
    #[error(
        "`auto` is valid only for `partita train`; use one of the strategies that `partita plan` lists for \
         {ranks} rank(s), such as `data={ranks}`"
    )]
    Auto {
        /// Requested ranks.
        ranks: usize,
    },
    /// The strategy does not suit the model, the ranks or the mini-batch.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// The training cannot be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A program fails verification, which is a bug of lowering.
    #[error("`{program}`: {faults}")]
    Unsound {
        /// Its title.
        program: String,
        /// Its faults.
        faults: Faults,
    },
    /// The stages of a strategy cannot be balanced.
    #[error(transparent)]
    Balance(#[from] BalanceError),
    /// The search failed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An epoch with loaders and validators.
    #[error(transparent)]
    Epoch(#[from] EpochError),
    /// Samples are to come from files or from the host memory, and cannot.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A missing cost.
    #[error(transparent)]
    Cost(SimulateError),
    /// A program cannot be simulated.
    #[error(transparent)]
    Simulate(SimulateError),
    /// A time of a sample, where kernels are measured.
    #[error(
        "a time of {0} per sample scales the kernels that a machine file models, and on `here` they are \
         measured{help}",
        help = Help::none().nearest("`--machine` with a machine file, or no `--seconds-per-sample`")
    )]
    MeasuredHere(Seconds),
    /// A table of layers' times, where kernels are measured.
    #[error(
        "a table of layers' times scales the layers that a machine file models, and on `here` they are measured{}",
        Help::none().nearest("`--machine` with a machine file, or no `--layer-times`")
    )]
    LayersMeasuredHere,
    /// A table of layers' times cannot be used.
    #[error(transparent)]
    LayerTimes(#[from] LayerTimesError),
    /// A precision that ranks here do not compute in.
    #[error(
        "ranks compute in f32, bf16 or f16 here, so `{}` cannot be measured{}",
        .0.name(),
        Help::possible("`--precision f32`, `--precision bf16` and `--precision f16`").nearest(format_args!(
            "to predict by a machine file (`--machine`) that has a rate in {}", .0.name()
        ))
    )]
    PrecisionHere(LayerPrecision),
    /// The closed forms of a strategy cannot be evaluated.
    #[error(transparent)]
    ClosedForm(#[from] LayersError),
    /// A program is too large to measure its kernels on this machine.
    #[error(
        "{strategy} needs {needed} on the largest rank, and {memory} are available here to each of {ranks} \
         ranks, too little to measure its kernels{}",
        Help::none().nearest("a smaller batch or model, or a machine file")
    )]
    TooLarge {
        /// The strategy of the program.
        strategy: Box<Strategy>,
        /// Memory of its largest rank.
        needed: Bytes,
        /// Memory limit of each rank.
        memory: Bytes,
        /// Requested ranks.
        ranks: usize,
    },
    /// No strategy fits.
    #[error(
        "no strategy fits {ranks} rank(s) with {memory} each for batch {batch}; the result of each strategy is \
         listed{remedy}"
    )]
    NoneFits {
        /// Requested ranks.
        ranks: usize,
        /// Memory limit of each rank.
        memory: Bytes,
        /// Samples of a step.
        batch: usize,
        /// Advice.
        remedy: Help,
    },
    /// The search ended before it found a strategy that fits.
    #[error(
        "the search ended before it found a strategy that fits {ranks} ranks with {memory} each for batch \
         {batch}: {looked} do not fit or are invalid, and {untried} were not looked at; the result of each strategy is \
         listed{}",
        Help::none().nearest("a longer search")
    )]
    NoneFound {
        /// Requested ranks.
        ranks: usize,
        /// Memory limit of each rank.
        memory: Bytes,
        /// Samples of a step.
        batch: usize,
        /// Strategies that were looked at.
        looked: usize,
        /// Strategies that were not.
        untried: usize,
    },
}

impl Fault for PlanningError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Model(error) => error.kind(),
            Self::Machine(error) => error.kind(),
            Self::Software(error) => error.kind(),
            Self::Local(error) => error.kind(),
            Self::Plan(PlanError::Ended) => ErrorKind::Interrupted,
            Self::Auto { .. }
            | Self::Device(_)
            | Self::NoConvolution { .. }
            | Self::Strategy(_)
            | Self::Lower(_)
            | Self::Balance(_)
            | Self::Plan(_)
            | Self::Epoch(_)
            | Self::Input(_)
            | Self::Cost(_)
            | Self::MeasuredHere(_)
            | Self::LayersMeasuredHere
            | Self::LayerTimes(_)
            | Self::PrecisionHere(_)
            | Self::TooLarge { .. }
            | Self::NoneFits { .. }
            | Self::NoneFound { .. } => ErrorKind::Request,
            Self::Unsound { .. } | Self::Simulate(_) | Self::ClosedForm(_) => ErrorKind::Failure,
        }
    }
}

impl From<SimulateError> for PlanningError {
    /// A missing entry of the machine file is an error of the request; all else is a bug.
    fn from(error: SimulateError) -> Self {
        match error {
            SimulateError::Cost(_) => Self::Cost(error),
            SimulateError::Peer { .. }
            | SimulateError::Unmatched { .. }
            | SimulateError::Deadlock { .. }
            | SimulateError::NoSteps => Self::Simulate(error),
        }
    }
}
