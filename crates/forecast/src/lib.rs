//! A machine, described by a file or measured, and what it predicts of a training.
//!
//! Does: resolves models, machines and software by name; lowers, predicts and plans a training on a machine; measures and
//! calibrates this machine; explains what bounds a program.
//! Knows: the model and its strategies, the cost model, the search, and how ranks of this machine are launched.
//! Must not know: run files, samples and weights; arguments, the terminal, the environment. It never prints.

pub mod model;
pub mod pareto;
pub mod trace;

pub mod input;
pub mod layer_times;
pub mod machine;
pub mod planning;
pub mod software;
pub mod training;

pub mod compute_scale;
pub mod explain;
pub mod launched;
pub mod local_machine;
pub mod search;
pub mod target;

pub mod calibrate;
pub mod lower;
pub mod plan;
pub mod predict;
pub mod tune;

use partita_site::{
    context, environment, error, host, kernel_set, launch, local_ranks, near_file, progress, size,
    times,
};
use training::StrategyChoice;
