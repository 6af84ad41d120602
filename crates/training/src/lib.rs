//! Trains, evaluates and infers: from a run file to weights, losses and predictions.
//!
//! Does: reads run files, prepares samples, chooses and lowers the programs of a run, runs them, and writes checkpoints,
//! weights and results.
//! Knows: run files, datasets, weights and their names, checkpoints, loaders and validators; how ranks are launched, and what a
//! machine predicts.
//! Must not know: arguments, the terminal, the environment. It never prints.

pub mod train;
pub mod weights;

use partita_forecast::{
    input, launched, local_machine, machine, model, planning, search, software, target, trace,
    training,
};
use partita_site::{
    context, cores, environment, error, free_folder, host, kernel_set, launch, local_ranks, losses,
    near_file, progress, size,
};
