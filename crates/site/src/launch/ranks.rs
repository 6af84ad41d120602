//! Runs a session: one rank on this thread, or all ranks as threads.

use super::agreement::{Agreement, Decision, ThreadAgreement, ThreadBallot, Vote};
use crate::kernel_set::{CoreSlot, KernelSet, Precision, Processing};
use partita_input::{LoadTally, Loading, Waker};
use partita_program::Buffer;
use partita_run::{Arena, RankRunner, RunError, Sink, Source, SystemClock, Transport};
use partita_session::{
    Boundary, EpochReport, Failed, JoinOutputs, Next, Outcome, Position, Progress, Repeat, Session,
    StepHook, Validators, ValuesError,
};
use partita_space::{Rank, Seconds};
use partita_threads::{LaunchError, ThreadTransport, connect, launch};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Receives progress, on the thread of rank 0.
pub type Listener<'l> = Box<dyn FnMut(Progress) + Send + 'l>;

/// Makes the source of a rank; the waker, if any, wakes the rank from `wait`.
pub type MakeSource<'w> =
    dyn Fn(Rank, Option<Waker>) -> Result<Box<dyn Source>, RunError> + Sync + 'w;

/// Makes the sink of a rank.
pub type MakeSink<'w> = dyn Fn(Rank) -> Result<Box<dyn Sink>, RunError> + Sync + 'w;

/// [`partita_session::InitialValues`], shared by all ranks.
pub type InitialValues<'w> =
    dyn Fn(&Buffer, Range<usize>) -> Result<Option<Vec<f64>>, ValuesError> + Sync + 'w;

/// Whether a training ends after an epoch.
pub type OnEpoch<'w> = dyn Fn(&EpochReport) -> bool + Sync + 'w;

/// Makes the hooks of the ranks of this process.
pub trait MakeStepHook: Sync {
    /// The hook of a rank, which decides with the others through its agreement.
    ///
    /// Errors: no memory for what it keeps.
    fn hook<'a>(
        &'a self,
        rank: Rank,
        agreement: Box<dyn Agreement + 'a>,
    ) -> Result<Box<dyn StepHook + 'a>, RunError>;
}

/// Makes the validators of the ranks of this process.
pub trait MakeValidators: Sync {
    /// The validators of a rank, which decides with the others through its agreement. `cancel` ends its waits.
    ///
    /// Errors: no thread to send snapshots.
    fn validators<'a>(
        &'a self,
        rank: Rank,
        agreement: Box<dyn Agreement + 'a>,
        cancel: &'a AtomicBool,
    ) -> Result<Box<dyn Validators + 'a>, RunError>;
}

/// Makes what joins the outputs of the ranks of this process.
pub trait MakeJoins: Sync {
    /// That of one of several ranks, which meets the others through its agreement.
    ///
    /// Errors: files that cannot be opened.
    fn joins<'a>(
        &'a self,
        of: (Rank, usize),
        agreement: Box<dyn Agreement + 'a>,
        inner: Box<dyn InnerRun + 'a>,
    ) -> Result<Box<dyn JoinOutputs + 'a>, RunError>;
}

/// Runs other sessions on the ranks of a run, between two of its steps.
pub trait InnerRun {
    /// Runs a session as this rank, with an arena, kernels and messages of its own; all ranks call it.
    ///
    /// Errors: that of the rank.
    fn run(&mut self, session: &Session<'_>, setup: &RunSetup<'_>) -> Result<Outcome, RunError>;
}

/// Setup that all ranks of a run share.
pub struct RunSetup<'w> {
    /// Kernel set.
    pub kernels: KernelSet,
    /// Element type.
    pub precision: Precision,
    /// What kernels compute with.
    pub processing: Processing,
    /// Longest time without progress.
    pub watchdog: Seconds,
    /// Ends all ranks.
    pub cancel: &'w AtomicBool,
    /// Makes the source of a rank, on its thread.
    pub source: &'w MakeSource<'w>,
    /// Samples in memory, and the counts of what sources load.
    pub loading: &'w Loading,
    /// Makes the sink of a rank, on its thread.
    pub sink: &'w MakeSink<'w>,
    /// Clock of all ranks of this process.
    pub clock: SystemClock,
    /// Initial values of the persistent buffers.
    pub initial: &'w InitialValues<'w>,
    /// Where the training starts.
    pub position: &'w Position,
    /// Hook of the steps of a rank.
    pub hook: &'w dyn MakeStepHook,
    /// Validates epochs elsewhere.
    pub validators: Option<&'w dyn MakeValidators>,
    /// Joins outputs, where the plan has groups of them.
    pub joins: Option<&'w dyn MakeJoins>,
    /// Whether another run follows, for which ranks that are processes stay joined.
    pub is_followed: bool,
    /// Called on rank 0 with the report of each epoch; whether the training ends there.
    pub on_epoch: Option<&'w OnEpoch<'w>>,
    /// Whether ranks meet at the end of each epoch, so that its report says what was loaded for it.
    pub shares_loads: bool,
}

struct Part<'l> {
    transport: ThreadTransport,
    listener: Option<Listener<'l>>,
}

/// A hook of a rank that also shares what ranks have loaded, so that reports of epochs have it.
struct Counted<'a> {
    inner: Box<dyn StepHook + 'a>,
    agreement: Box<dyn Agreement + 'a>,
    /// Whether somebody wants to know before the end of the run.
    shares: bool,
    tally: &'a LoadTally,
    on_epoch: Option<&'a OnEpoch<'a>>,
    /// Epochs that it was called with, or that were done before the run.
    told: u64,
}

impl StepHook for Counted<'_> {
    fn after_step(&mut self, boundary: &mut Boundary<'_, '_>) -> Result<Next, RunError> {
        self.inner.after_step(boundary)
    }

    fn before_report(&mut self, epoch: u64) -> Result<(), RunError> {
        if self.shares {
            self.agreement.share_loads(epoch, self.tally)?;
        }
        self.inner.before_report(epoch)
    }

    fn ends(&mut self, epochs: &[EpochReport]) -> Result<bool, RunError> {
        let mut ends = self.inner.ends(epochs)?;
        let Some(on_epoch) = self.on_epoch else {
            return Ok(ends);
        };
        for report in epochs.iter().filter(|report| report.epoch >= self.told) {
            // What rank 0 is told counts for all.
            let votes = self.agreement.vote(report.epoch, Vote::default())?;
            let decision = votes.map(|_| {
                let mut stop = false;
                self.agreement
                    .while_others_wait(Box::new(|| stop = on_epoch(report)));
                Decision {
                    stop,
                    ..Decision::default()
                }
            });
            ends |= self.agreement.decide(report.epoch, decision)?.stop;
        }
        self.told = epochs.last().map_or(self.told, |last| last.epoch + 1);
        Ok(ends)
    }

    fn repeat_from(&mut self, failed: &Failed) -> Result<Repeat<'_>, RunError> {
        self.inner.repeat_from(failed)
    }
}

/// Results of all ranks.
pub struct RankResults {
    /// In rank order.
    pub outcomes: Vec<Outcome>,
    /// In rank order, after the last step.
    pub arenas: Vec<Arena>,
}

/// Runs a session as one of its ranks, on this thread. Returns the arena after the last step.
///
/// Errors: that of the rank.
#[allow(
    clippy::too_many_arguments,
    reason = "each is a different part of the world"
)]
pub fn run_rank<'w>(
    session: &Session<'_>,
    setup: &RunSetup<'w>,
    rank: Rank,
    slot: &CoreSlot,
    transport: Box<dyn Transport + 'w>,
    waker: Waker,
    mut listener: Option<Listener<'_>>,
    [agreement, of_validators, of_loads, of_joins]: [Box<dyn Agreement + '_>; 4],
    inner: Option<Box<dyn InnerRun + '_>>,
) -> Result<(Outcome, Arena), RunError> {
    let mesh = session.main_program().mesh;
    let kernels = setup
        .kernels
        .kernels(setup.precision, mesh, rank, slot, &setup.processing)?;
    let mut arena = kernels.arena(rank, session.arena_bytes(rank))?;
    arena.touch();
    let mut runner = RankRunner {
        rank,
        arena,
        kernels,
        transport,
        // Samples that have been read wake the rank, as messages do.
        source: (setup.source)(rank, Some(waker))?,
        sink: (setup.sink)(rank)?,
        clock: Box::new(setup.clock),
        cancel: setup.cancel,
        watchdog: setup.watchdog,
    };
    let mut report = |progress| {
        if let Some(listener) = &mut listener {
            listener(progress);
        }
    };
    let mut hook = Counted {
        inner: setup.hook.hook(rank, agreement)?,
        agreement: of_loads,
        shares: setup.shares_loads,
        on_epoch: setup.on_epoch,
        told: setup.position.epochs.len() as u64,
        tally: &setup.loading.tally,
    };
    let validators = setup
        .validators
        .map(|all| all.validators(rank, of_validators, setup.cancel));
    let mut validators = validators.transpose()?;
    let joins = setup.joins.zip(inner);
    let joins = joins.map(|(all, inner)| all.joins((rank, mesh.ranks()), of_joins, inner));
    let mut joins = joins.transpose()?;
    let position = setup.position.clone();
    let outcome = session.run_from(
        &mut runner,
        setup.initial,
        position,
        &mut hook,
        (
            validators
                .as_mut()
                .map(|all| &mut **all as &mut dyn Validators),
            joins.as_mut().map(|all| &mut **all as &mut dyn JoinOutputs),
        ),
        &mut report,
    )?;
    Ok((outcome, runner.arena))
}

/// Runs a session on one thread per rank, on these cores if they are pinned; a rank that waits spins so long.
///
/// Errors: the first rank that failed.
pub fn run_ranks(
    session: &Session<'_>,
    setup: &RunSetup<'_>,
    listener: Listener<'_>,
    (pinned, spin): (&[usize], Seconds),
) -> Result<RankResults, LaunchError> {
    let mesh = session.main_program().mesh;
    let mut listener = Some(listener);
    let parts = connect(mesh, spin).into_iter().map(|transport| Part {
        transport,
        listener: listener.take(),
    });
    let was_asked = AtomicBool::new(false);
    let ballots = [(); 5].map(|()| ThreadBallot::new(mesh.ranks()));
    let exchange = Mutex::default();
    let results = launch(parts.collect(), setup.cancel, |rank, mut part: Part<'_>| {
        part.transport.reserve(session.programs())?;
        let waker = Box::new(part.transport.messages().waker());
        let slot = &CoreSlot::among(rank, mesh.ranks(), pinned);
        let transport = Box::new(part.transport);
        let [agreements @ .., _] = &ballots;
        let agreements = agreements.each_ref().map(|ballot| {
            let agreement = ThreadAgreement::new(ballot, rank, setup.cancel);
            Box::new(agreement) as Box<dyn Agreement>
        });
        let inner = InnerThreads {
            exchange: &exchange,
            ballots: &ballots,
            agreement: ThreadAgreement::new(&ballots[4], rank, setup.cancel),
            cancel: setup.cancel,
            slot,
            spin,
        };
        let results = run_rank(
            session,
            setup,
            rank,
            slot,
            transport,
            waker,
            part.listener,
            agreements,
            Some(Box::new(inner)),
        );
        results.inspect_err(|error| {
            was_asked.fetch_or(matches!(error, RunError::Cancelled), Ordering::Relaxed);
        })
    });
    let results = results.map_err(|error| match error {
        // There was no failure, or that would be the error: the peer ended because of the cancellation.
        LaunchError::Rank {
            rank,
            error: RunError::Lost { .. },
        } if was_asked.load(Ordering::Relaxed) => LaunchError::Rank {
            rank,
            error: RunError::Cancelled,
        },
        error => error,
    })?;
    let (outcomes, arenas) = results.into_iter().unzip();
    Ok(RankResults { outcomes, arenas })
}

/// Inner runs of a rank that is a thread.
struct InnerThreads<'a> {
    /// Where rank 0 leaves the transports of all ranks.
    exchange: &'a Mutex<BTreeMap<Rank, ThreadTransport>>,
    ballots: &'a [ThreadBallot; 5],
    agreement: ThreadAgreement<'a>,
    cancel: &'a AtomicBool,
    slot: &'a CoreSlot,
    spin: Seconds,
}

impl InnerRun for InnerThreads<'_> {
    fn run(&mut self, session: &Session<'_>, setup: &RunSetup<'_>) -> Result<Outcome, RunError> {
        let rank = self.slot.slot;
        let exchange = || self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        if rank == 0 {
            let mesh = session.main_program().mesh;
            *exchange() = connect(mesh, self.spin).into_iter().enumerate().collect();
        }
        self.agreement.meet(0)?;
        let own = exchange().remove(&rank);
        let Some(mut transport) = own else {
            return Err(RunError::Cancelled);
        };
        transport.reserve(session.programs())?;
        let waker = Box::new(transport.messages().waker());
        let [agreements @ .., _] = self.ballots;
        let agreements = agreements.each_ref().map(|ballot| {
            let agreement = ThreadAgreement::new(ballot, rank, self.cancel);
            Box::new(agreement) as Box<dyn Agreement>
        });
        let transport = Box::new(transport);
        let (outcome, _) = run_rank(
            session, setup, rank, self.slot, transport, waker, None, agreements, None,
        )?;
        Ok(outcome)
    }
}
