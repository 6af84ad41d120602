//! A run as it will be: run file, overrides and launch merged, in one place.

use super::error::TrainError;
use super::run_file::RunFile;
use crate::kernel_set::{KernelSet, Precision};
use crate::launch::{Launch, RankConfig};
use crate::training::StrategyChoice;
use partita_mpi::Collectives;
use partita_program::{Optimizer, Transform};
use partita_session::Schedule;
use partita_space::{Bytes, Seconds};
use std::path::PathBuf;

/// A run to train.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainRequest {
    /// The run file.
    pub run_file: PathBuf,
    /// Replaces its `ranks`.
    pub ranks: Option<usize>,
    /// Replaces its `threads`.
    pub threads: Option<usize>,
    /// Replaces its `strategy`.
    pub strategy: Option<String>,
    /// Use the collectives of the MPI library.
    pub library_collectives: bool,
    /// Replace a run that `output` holds.
    pub overwrite: bool,
    /// Leave out the prediction of seconds.
    pub no_prediction: bool,
}

/// A run as it will be. Paths are relative to the current folder.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Model of the zoo or path of a model file.
    pub model: String,
    /// A dataset folder or a single HDF5 file.
    pub data: PathBuf,
    /// Folder of the results.
    pub output: PathBuf,
    /// Whether a run that the folder holds may be replaced.
    pub overwrite: bool,
    /// Number of ranks: of the launcher, the request, or the run file.
    pub ranks: usize,
    /// Threads of the kernels of each rank.
    pub threads: usize,
    /// How to split.
    pub strategy: StrategyChoice,
    /// Set of kernels.
    pub kernels: KernelSet,
    /// Type of activations and parameters.
    pub precision: Precision,
    /// Samples per step over all ranks.
    pub batch: usize,
    /// Passes over all training samples.
    pub epochs: usize,
    /// Seed of order, initial values and dropout.
    pub seed: u64,
    /// Transform of samples on their way into the network.
    pub transform: Transform,
    /// Longest time without progress.
    pub watchdog: Seconds,
    /// Collectives of ranks that are processes.
    pub collectives: Collectives,
    /// Memory of a rank (default: the memory available divided by the ranks).
    pub memory: Option<Bytes>,
    /// Optimizer with its constants.
    pub optimizer: Optimizer,
    /// Largest norm of all gradients together.
    pub clip: Option<f64>,
    /// Learning rate over the epochs.
    pub schedule: Schedule,
    /// Whether seconds are predicted before the run.
    pub is_predicted: bool,
}

impl Run {
    /// Merges a run file, what the request overrides, and the ranks of the launch.
    ///
    /// Errors: ranks or collectives that the launch does not have; a text that is no strategy.
    pub fn merge(
        file: RunFile,
        request: &TrainRequest,
        launch: &Launch<'_>,
    ) -> Result<Self, TrainError> {
        let ranks = launch.ranks(request.ranks, file.ranks)?;
        let collectives = if request.library_collectives {
            launch.library_collectives()?
        } else {
            Collectives::Ordered
        };
        let strategy = request.strategy.as_ref().unwrap_or(&file.strategy);
        Ok(Self {
            strategy: strategy.parse()?,
            ranks,
            collectives,
            threads: request.threads.unwrap_or(file.threads),
            overwrite: file.overwrite || request.overwrite,
            is_predicted: !request.no_prediction,
            model: file.model,
            data: file.data,
            output: file.output,
            kernels: file.kernels,
            precision: file.precision,
            batch: file.batch,
            epochs: file.epochs,
            seed: file.seed,
            transform: file.transform,
            watchdog: file.watchdog,
            memory: file.memory,
            optimizer: file.optimizer,
            clip: file.clip,
            schedule: file.schedule,
        })
    }

    /// Its ranks with their kernels.
    pub fn rank_config(&self) -> RankConfig {
        RankConfig {
            ranks: self.ranks,
            threads: self.threads,
            kernels: self.kernels,
        }
    }
}
