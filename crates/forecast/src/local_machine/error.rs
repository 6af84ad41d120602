//! A measurement of this machine failed.

use partita_oracle::{FitError, SimulateError};
use partita_run::RunError;
use partita_site::{ErrorKind, Fault, NoScratch};
use partita_space::Help;
use partita_tune::TuneError;
use std::io;

/// A measurement of this machine failed.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// More ranks than can share its cores.
    #[error(
        "{ranks} ranks of {threads} thread(s) cannot be measured on this machine; up to {most} rank(s) of {threads} thread(s) can, \
         sharing its cores{}",
        Help::none()
            .nearest(most)
            .advise("for more ranks name another machine, like `--machine lassen`")
    )]
    TooManyRanks {
        /// Requested ranks.
        ranks: usize,
        /// Threads per rank.
        threads: usize,
        /// Most ranks that can be measured.
        most: usize,
    },
    /// Ctrl-C.
    #[error("interrupted; what was measured before is kept")]
    Interrupted,
    /// A calibration has no programs.
    #[error("there is no program to measure")]
    NoProgram,
    /// The kernels cannot be made.
    #[error(transparent)]
    Kernels(RunError),
    /// A thread cannot be started.
    #[error("no thread could be started for kernels: {source}")]
    NoThread {
        /// The error of the system.
        source: io::Error,
    },
    /// A measurement failed.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// Measured points have no fit.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// A program cannot be simulated.
    #[error(transparent)]
    Simulate(SimulateError),
    /// No file can be written to measure reads.
    #[error(transparent)]
    NoScratch(#[from] NoScratch),
}

impl Fault for LocalError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::TooManyRanks { .. } | Self::NoProgram | Self::Kernels(_) | Self::NoScratch(_) => {
                ErrorKind::Request
            }
            Self::NoThread { .. } | Self::Fit(_) | Self::Simulate(_) => ErrorKind::Failure,
            Self::Interrupted => ErrorKind::Interrupted,
            Self::Tune(error) => match error {
                TuneError::Unpinned { .. }
                | TuneError::Unreadable { .. }
                | TuneError::NotKept { .. }
                | TuneError::Corrupt { .. }
                | TuneError::Newer { .. }
                | TuneError::Busy { .. }
                | TuneError::Unlocked { .. } => ErrorKind::Request,
                TuneError::Kernel { .. }
                | TuneError::Transport { .. }
                | TuneError::Memory { .. }
                | TuneError::Read { .. }
                | TuneError::Stopped { .. } => ErrorKind::Failure,
            },
        }
    }
}
