use super::kernel_set::{KernelSet, Precision};
use partita_data::Waker;
use partita_local::{LaunchError, ThreadTransport, connect, launch};
use partita_program::Buffer;
use partita_run::{
    Arena, NamedValues, Outcome, Progress, RankRunner, RunError, Session, Source, SystemClock,
    together,
};
use partita_space::{Rank, Seconds};
use std::sync::atomic::{AtomicBool, Ordering};

/// Hears what happens, on the thread of rank 0.
pub type Listener = Box<dyn FnMut(Progress) + Send>;

/// Makes the source of a rank; the waker, where there is one, ends the rank's sleep.
pub type MakeSource<'w> =
    dyn Fn(Rank, Option<Waker>) -> Result<Box<dyn Source>, RunError> + Sync + 'w;

/// The world of the ranks of one process.
pub struct World<'w> {
    /// Who computes.
    pub kernels: KernelSet,
    /// In which type.
    pub precision: Precision,
    /// Threads of the kernels of a rank.
    pub threads: usize,
    /// How long nothing may move.
    pub watchdog: Seconds,
    /// Ends all ranks.
    pub cancel: &'w AtomicBool,
    /// Makes the samples of a rank, on its thread.
    pub source: &'w MakeSource<'w>,
    /// Contents of the lasting buffers at the start.
    pub initial: &'w (dyn Fn(&Buffer) -> Option<Vec<f64>> + Sync),
}

struct Part {
    transport: ThreadTransport,
    listener: Option<Listener>,
}

/// Plays a session on as many threads as it has ranks. Gives the outcomes in rank order, and the
/// parameters and states, put together from the ranks' shares.
///
/// Errors: the first rank that failed.
pub fn play(
    session: &Session<'_>,
    world: &World<'_>,
    listener: Listener,
) -> Result<(Vec<Outcome>, Vec<NamedValues>), LaunchError> {
    let mesh = session.main_program().mesh;
    let mut listener = Some(listener);
    let parts = connect(mesh).into_iter().map(|transport| Part {
        transport,
        listener: listener.take(),
    });
    let clock = SystemClock::start();
    let was_asked = AtomicBool::new(false);
    let results = launch(parts.collect(), world.cancel, |rank, part: Part| {
        let mut arena = Arena::new(session.arena_bytes(rank));
        arena.touch();
        // What has been read wakes the rank as a message does.
        let waker = Box::new(part.transport.mail().waker());
        let mut runner = RankRunner {
            rank,
            arena,
            kernels: world
                .kernels
                .kernels(world.precision, mesh, rank, rank, world.threads)?,
            transport: Box::new(part.transport),
            source: (world.source)(rank, Some(waker))?,
            clock: Box::new(clock),
            cancel: world.cancel,
            watchdog: world.watchdog,
        };
        let mut listener = part.listener;
        let mut report = |progress| {
            if let Some(listener) = &mut listener {
                listener(progress);
            }
        };
        let outcome = session
            .play(&mut runner, world.initial, &mut report)
            .inspect_err(|error| {
                was_asked.fetch_or(matches!(error, RunError::Cancelled), Ordering::Relaxed);
            })?;
        let values = session.values(&mut runner);
        Ok((outcome, values))
    });
    let results = results.map_err(|error| match error {
        // A failure of a rank would stand here instead: this peer ended because it was asked to.
        LaunchError::Rank {
            rank,
            error: RunError::Lost { .. },
        } if was_asked.load(Ordering::Relaxed) => LaunchError::Rank {
            rank,
            error: RunError::Cancelled,
        },
        error => error,
    })?;
    let mut outcomes = Vec::new();
    let mut values = Vec::new();
    for (outcome, held) in results {
        outcomes.push(outcome);
        values.extend(held);
    }
    Ok((outcomes, together(&mesh, values)))
}
