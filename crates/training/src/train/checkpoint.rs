//! Checkpoints of a training: when they are written, what they hold, and how a training resumes from one.
//!
//! After each step of a session every rank calls a hook (`session::StepHook`). Between two steps, all that persists
//! are the buffers of parameters, statistics and moments. Steps and ends of epochs are known to all ranks. Time,
//! the best metric and requests to stop are not, so ranks agree on them (`launch/agreement`) where a checkpoint is
//! due, and otherwise about every quarter of a second, after a number of steps that rank 0 chooses. So all ranks
//! stop after the same step.
//!
//! Each rank copies the shards of which it is the first holder, and a thread writes them (`data::checkpoint`). Rank
//! 0 waits for the parts of the others, writes the manifest and renames the folder. Its writing thread copies the
//! weights of the best checkpoint to `best.safetensors` before older ones are removed. A resumed session starts at
//! a `session::Position` with initial values from the checkpoint. Early stopping is a function of the reports of
//! epochs (`train/early_stopping`), which are equal on all ranks, so it needs no vote.

mod best;
mod config;
mod error;
mod hook;
mod last;
mod repeat;
mod resume;
mod snapshot;
mod state;
mod stored;
mod write;

pub use best::BestFile;
pub use config::{BestMetric, CheckpointConfig, ResumeFrom, section};
pub use error::ResumeError;
pub use hook::{Checkpoints, start};
pub use last::LastCheckpoint;
pub use repeat::Off;
pub use resume::{Resume, find, fitting};
pub use snapshot::{folder, snapshot_bytes, snapshots};
pub use state::{TrainingState, identity};

pub use crate::weights::CHECKPOINTS;
