//! What a rank needs of memory, and what it may have.

use super::checkpoint::snapshot_bytes;
use super::error::TrainError;
use super::run::Run;
use partita_graph::Graph;
use partita_lower::Strategy;
use partita_program::ProgramKind;
use partita_session::Session;
use partita_site::Host;
use partita_space::{Axis, Bytes, Rank};

/// Memory that a rank may have.
pub struct MemoryLimit {
    pub bytes: Bytes,
    /// Where it comes from.
    pub origin: String,
    /// How it can be higher.
    larger: &'static str,
}

impl MemoryLimit {
    /// The least of what the run file allows and the device has, for one of `local` ranks of this process; with
    /// neither, its share of what this host has free.
    pub fn of_rank(run: &Run, host: &Host, local: usize) -> Self {
        let of_device = run.kernels.device_memory(local);
        if let Some(limit) = of_device.filter(|&limit| run.memory.is_none_or(|asked| asked > limit))
        {
            return Self {
                bytes: limit,
                origin: format!("{limit} of the device for each of {local} rank(s)"),
                larger: "take devices with more memory",
            };
        }
        let (bytes, origin) = match (run.memory, host.memory_free()) {
            (Some(asked), _) => (asked, "`memory` of the run file".to_owned()),
            (None, Some(free)) => (
                Bytes(free.0 / local as u64),
                format!("{free} available to {local} rank(s)"),
            ),
            (None, None) => (Bytes(u64::MAX), "the system names none".to_owned()),
        };
        Self {
            bytes,
            origin,
            larger: "raise `memory`",
        }
    }

    /// What is left beside the programs of the loss of joined tiles.
    #[must_use]
    pub fn beside(self, loss: Bytes) -> Self {
        if loss == Bytes(0) {
            return self;
        }
        Self {
            bytes: Bytes(self.bytes.0.saturating_sub(loss.0)),
            origin: format!("{}, but for {loss} of the validation by tiles", self.origin),
            ..self
        }
    }

    /// Checks that the memory of every rank fits; `buffers` are those of reading threads. What is advised is what the same
    /// command accepts for this model and strategy.
    pub fn check(
        &self,
        (run, graph, strategy): (&Run, &Graph, &Strategy),
        session: &Session<'_>,
        buffers: &dyn Fn(Rank) -> Bytes,
    ) -> Result<(), TrainError> {
        let program = session.main_program();
        let ranks = program.mesh.ranks();
        let all = (0..ranks).map(|rank: Rank| (rank_bytes(run, session, buffers, rank), rank));
        let Some((bytes, rank)) = all.max_by_key(|&(bytes, rank)| (bytes, ranks - rank)) else {
            return Ok(());
        };
        if bytes <= self.bytes {
            return Ok(());
        }
        let share = self.bytes.0 as f64 / bytes.0 as f64;
        let smaller = smaller(run, (graph, strategy), share, program.kind);
        Err(TrainError::Memory {
            rank,
            needed: bytes,
            program: program.title.clone(),
            limit: self.bytes,
            origin: self.origin.clone(),
            smaller,
            depth: 2 * program.mesh.extent(Axis::Depth),
            larger: self.larger,
        })
    }
}

/// Advice on a smaller batch, and in a training on more micro-batches, for a share of the memory; empty where neither helps.
fn smaller(
    run: &Run,
    (graph, strategy): (&Graph, &Strategy),
    share: f64,
    kind: ProgramKind,
) -> String {
    let parts = match kind {
        ProgramKind::Train => run.accumulate,
        ProgramKind::Evaluate
        | ProgramKind::Infer
        | ProgramKind::Fetch
        | ProgramKind::FetchSamples => 1,
    };
    let (batch, micro) = (run.batch / parts, strategy.micro / parts);
    let by_proportion = (batch as f64 * share) as usize;
    let is_valid = |size: &usize| strategy.check(graph, size * parts).is_ok();
    let mut sizes = (1..=by_proportion.min(batch.saturating_sub(1))).rev();
    let size = sizes.find(is_valid);
    let mut text = size.map_or_else(String::new, |size| {
        format!("lower the batch, nearest by proportion is batch = {size}, or ")
    });
    // Where something is summed over a micro-batch, more of them are another training.
    if kind == ProgramKind::Train && !graph.sums_samples() {
        let is_valid = |more: &usize| {
            let mut other = strategy.clone();
            other.micro = more * parts;
            other.check(graph, run.batch).is_ok()
        };
        let wanted = (micro as f64 / share).ceil() as usize;
        let mut enough = (wanted.max(micro + 1)..=batch).filter(is_valid);
        let most = || (micro + 1..=batch).rev().find(is_valid);
        if let Some(more) = enough.next().or_else(most) {
            text += &format!("take `micro={more}` in the strategy, or ");
        }
    }
    text
}

/// Memory of a rank: arena, staging, `buffers` of its reading thread, and the snapshot for checkpoints.
pub fn rank_bytes(
    run: &Run,
    session: &Session<'_>,
    buffers: &dyn Fn(Rank) -> Bytes,
    rank: Rank,
) -> Bytes {
    let snapshot = if run.checkpoint.is_on() {
        snapshot_bytes(session, rank)
    } else {
        Bytes(0)
    };
    session.memory_bytes(rank) + buffers(rank) + snapshot
}
