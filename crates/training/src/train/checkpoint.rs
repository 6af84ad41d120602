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
mod repeat;
mod resume;
mod state;
mod stored;
mod write;

pub use best::BestFile;
pub use config::{BestMetric, CheckpointConfig, section};
pub use error::ResumeError;
pub use hook::{Checkpoints, LastCheckpoint, start};
pub use repeat::Off;
pub use resume::{Resume, ResumeFrom, find};
pub use state::{TrainingState, identity};

pub use crate::weights::CHECKPOINTS;

use super::run::Run;
use partita_session::Session;
use partita_space::{Bytes, Rank};
use partita_weights::checkpoint::CheckpointFolder;

/// The folder of the checkpoints of a run.
pub fn folder(run: &Run) -> CheckpointFolder {
    CheckpointFolder::new(run.output_folder().join(CHECKPOINTS))
}

/// Bytes of the shards that a rank writes: the size of its snapshot.
pub fn snapshot_bytes(session: &Session<'_>, rank: Rank) -> Bytes {
    let shards = session.owned_shards(rank);
    let bytes = shards
        .iter()
        .map(|shard| shard.region.volume() * shard.dtype.size());
    Bytes(bytes.sum::<usize>() as u64)
}

/// Bytes of the snapshots of all ranks, for checkpoints and for validators.
pub fn snapshots(run: &Run, session: &Session<'_>) -> Bytes {
    let program = session.main_program();
    let of_rank = |rank| {
        let copies = run.offload.copies(program.body(rank));
        if run.checkpoint.is_on() {
            copies + snapshot_bytes(session, rank)
        } else {
            copies
        }
    };
    (0..program.mesh.ranks()).map(of_rank).sum()
}
