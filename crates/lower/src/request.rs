//! Requests and errors of lowering.

use crate::{Strategy, StrategyError};
use partita_graph::{Graph, ParameterRole};
use partita_program::{Dtype, Menu, MenuError, Optimizer, ProgramKind, SizeFaults, Transform};
use partita_space::Help;
use partita_space::help::extend;

/// How samples are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleFormat {
    /// Type in the dataset.
    pub dtype: Dtype,
    /// Transformation of values when they are imported.
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
    /// Kind of program.
    pub kind: ProgramKind,
    /// Type of activations and parameters.
    pub dtype: Dtype,
    /// Optimizer; determines the state of each parameter, in every kind of program.
    pub optimizer: Optimizer,
    /// Whether biases, scales, shifts and slopes have the weight decay and the trust ratio of the optimizer.
    pub decay_norms: bool,
    /// Decay of the exponential moving averages of the parameters, where they are kept: evaluations then read them.
    pub ema: Option<f64>,
    /// Bound of the global norm of the gradients, for clipping.
    pub clip: Option<f64>,
    /// How samples are stored.
    pub samples: SampleFormat,
    /// The menu of kernels.
    pub menu: &'a dyn Menu,
}

impl Request<'_> {
    /// Whether gradients are scaled from the loss on, and an update whose gradients are not finite leaves everything as
    /// it is: those of f16 lose their small numbers.
    pub(crate) fn scales_gradients(&self) -> bool {
        self.dtype == Dtype::F16
    }

    /// The bound of the global norm of the gradients. Where they are scaled there always is one, so that every rank
    /// knows whether they are finite.
    pub(crate) fn norm_bound(&self) -> Option<f64> {
        let unbounded = self.scales_gradients().then_some(f64::MAX);
        self.clip.or(unbounded)
    }

    /// The optimizer of a parameter.
    pub(crate) fn rule(&self, role: ParameterRole) -> Optimizer {
        if self.decay_norms || role.is_weight() {
            self.optimizer
        } else {
            self.optimizer.without_decay()
        }
    }
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
    /// Sizes of buffers beyond the limits.
    #[error(
        "there are {asked} {what}; at most {limit} are possible{}",
        Help::advice("choose a smaller mini-batch, or a strategy that splits more")
    )]
    TooLarge {
        /// The quantity and the buffer.
        what: String,
        /// Its value, in digits: it may not fit in 64 bits.
        asked: String,
        /// The bound.
        limit: u64,
    },
    /// Counts over all ranks that do not fit in 64 bits.
    #[error(
        "{}",
        extend(.0, Help::advice("choose a smaller mini-batch, or fewer ranks")).with_one_help()
    )]
    Uncountable(SizeFaults),
}

impl LowerError {
    /// Whether another strategy may avoid it.
    pub fn is_of_strategy(&self) -> bool {
        match self {
            Self::Strategy(_) | Self::TooLarge { .. } | Self::Uncountable(_) => true,
            Self::Menu(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_program::SizeFault;

    #[test]
    fn uncountable_programs_get_one_line_of_help() {
        let fault = SizeFault {
            location: "class 0".to_owned(),
            what: "bytes",
            got: "9".to_owned(),
            possible: "up to 5".to_owned(),
        };
        let error = LowerError::Uncountable(SizeFaults(vec![fault]));
        let told = "class 0: bytes 9\nhelp: possible values: up to 5; choose a smaller mini-batch, or fewer ranks";
        assert_eq!(error.to_string(), told);
    }
}
