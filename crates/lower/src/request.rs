//! What is asked for, and why it may not be had.

use crate::{Strategy, StrategyError};
use partita_graph::Graph;
use partita_program::{Dtype, Menu, MenuError, Optimizer, ProgramKind, SizeFaults, Transform};

/// How samples are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleFormat {
    /// Type in the dataset.
    pub dtype: Dtype,
    /// What is done to a value on its way into the network.
    pub transform: Transform,
}

/// What to lower.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// How to split it.
    pub strategy: &'a Strategy,
    /// Samples per step over all ranks.
    pub batch: usize,
    /// What for.
    pub kind: ProgramKind,
    /// Type of activations and parameters.
    pub dtype: Dtype,
    /// Update rule; decides which state lives beside each parameter, in every kind of program.
    pub optimizer: Optimizer,
    /// Largest norm of all gradients together.
    pub clip: Option<f64>,
    /// How samples are stored.
    pub samples: SampleFormat,
    /// What kernels there are.
    pub menu: &'a dyn Menu,
}

/// Why there is no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// The strategy does not fit.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// A kernel is missing.
    #[error(transparent)]
    Menu(#[from] MenuError),
    /// Memory that cannot be counted.
    #[error(
        "there are {asked} {what}; at most {limit} are possible; choose a smaller mini-batch, or a \
         strategy that splits more"
    )]
    TooLarge {
        /// What is counted, and where.
        what: String,
        /// How many, in digits: 64 bits may not hold it.
        asked: String,
        /// The bound.
        limit: u64,
    },
    /// Counts of a step over all ranks that 64 bits do not hold.
    #[error("{0}; choose a smaller mini-batch, or fewer ranks")]
    Uncountable(SizeFaults),
}

impl LowerError {
    /// Whether another strategy may do.
    pub fn is_of_strategy(&self) -> bool {
        match self {
            Self::Strategy(_) | Self::TooLarge { .. } | Self::Uncountable(_) => true,
            Self::Menu(_) => false,
        }
    }
}
