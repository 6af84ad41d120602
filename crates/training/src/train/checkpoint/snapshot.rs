//! Where the checkpoints of a run are, and the memory that their snapshots take.

use super::super::run::Run;
use super::CHECKPOINTS;
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
