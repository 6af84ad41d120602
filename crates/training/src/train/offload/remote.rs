//! The side of the training: snapshots to validators, results from them.

use partita_offload::{
    Address, Report, ShardHead, SnapshotHead, Stream, lost_reason, receive_report, send_snapshot,
};
use partita_run::{PackedTensor, RunError};
use partita_session::{Evaluated, OwnedShard, Session, Snapshot, Validators};
use partita_site::launch::{Agreement, Decision, MakeValidators, Vote};
use partita_space::{Rank, Seconds};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Joined validators, in order.
pub type Joined = Vec<(Address, Stream)>;

/// The validators of a training, as the ranks of this process see them.
pub struct RemoteValidation<'r> {
    session: &'r Session<'r>,
    joined: Mutex<BTreeMap<Rank, Joined>>,
    is_awaited: bool,
    /// How long a validator may take for an answer.
    timeout: Duration,
    /// Set when the user wants the training to end.
    is_asked_to_end: &'r AtomicBool,
    warnings: Sender<String>,
}

/// What a validator answered rank 0, or why it is lost.
type Told = (usize, io::Result<Report<Evaluated>>);

/// How long a validator may stand, asked for again while it is awaited.
type Limit<'l> = &'l (dyn Fn() -> Duration + Sync);

/// A validator that does not go on may take this many times as long as one that does not answer.
const STALLED: u32 = 10;

impl<'r> RemoteValidation<'r> {
    /// The joined validators of each rank of this process. `is_awaited` is whether the training needs the results of an
    /// epoch at once.
    pub fn new(
        session: &'r Session<'r>,
        joined: BTreeMap<Rank, Joined>,
        (is_awaited, timeout): (bool, Duration),
        is_asked_to_end: &'r AtomicBool,
        warnings: Sender<String>,
    ) -> Self {
        Self {
            session,
            joined: Mutex::new(joined),
            is_awaited,
            timeout,
            is_asked_to_end,
            warnings,
        }
    }
}

impl RemoteValidation<'_> {
    /// How long a validator may stand; shorter when the user waits for the end.
    fn patience(&self) -> Duration {
        if self.is_asked_to_end.load(Ordering::Relaxed) {
            self.timeout
        } else {
            self.timeout.saturating_mul(STALLED)
        }
    }
}

impl MakeValidators for RemoteValidation<'_> {
    fn validators<'a>(
        &'a self,
        rank: Rank,
        agreement: Box<dyn Agreement + 'a>,
        cancel: &'a AtomicBool,
    ) -> Result<Box<dyn Validators + 'a>, RunError> {
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = joined.remove(&rank).unwrap_or_default();
        let failed = |error: io::Error| RunError::Source {
            rank,
            reason: format!("its validators: {error}"),
        };
        let addresses: Vec<Address> = joined.iter().map(|(address, _)| address.clone()).collect();
        let told = (rank == 0)
            .then(|| listen(&joined, self.timeout))
            .transpose();
        let heard = told.map_err(failed)?.map(|(told, progress)| Heard {
            told,
            progress: progress.into_iter().map(Watched::new).collect(),
            parts: vec![None; addresses.len()],
            addresses,
            lost: None,
        });
        let failure = Arc::new(Mutex::new(None));
        let (snapshots, taken) = sync_channel(1);
        let sending = Sending {
            shards: self.session.evaluated_shards(rank),
            joined,
            failure: Arc::clone(&failure),
        };
        // Detached: it ends when there are no more snapshots.
        let started = thread::Builder::new()
            .name(format!("snapshots {rank}"))
            .spawn(move || sending.run(&taken));
        started.map_err(failed)?;
        Ok(Box::new(RemoteValidators {
            all: self,
            agreement,
            cancel,
            snapshots,
            failure,
            heard,
            is_lost: false,
        }))
    }
}

/// A snapshot that did not reach its validator.
#[derive(Debug, thiserror::Error)]
#[error("{address}: {}", lost_reason(error))]
struct Unsent {
    address: Address,
    error: io::Error,
}

/// The thread that sends snapshots of a rank.
struct Sending {
    shards: Vec<OwnedShard>,
    joined: Joined,
    /// Why a validator cannot be reached.
    failure: Arc<Mutex<Option<String>>>,
}

impl Sending {
    fn run(mut self, snapshots: &Receiver<(u64, Arc<Snapshot>)>) {
        while let Ok((epoch, snapshot)) = snapshots.recv() {
            if let Err(unsent) = self.send(epoch, &snapshot) {
                let reason = unsent.to_string();
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
                break;
            }
        }
        // Where this came too early, the validators tell rank 0 that a rank is missing.
        self.joined.iter().for_each(|(_, stream)| stream.close());
    }

    fn send(&mut self, epoch: u64, snapshot: &Snapshot) -> Result<(), Unsent> {
        let head = SnapshotHead {
            epoch,
            shards: self.shards.iter().map(head).collect(),
        };
        for (address, stream) in &mut self.joined {
            let values = self.shards.iter().filter_map(|shard| snapshot.shard(shard));
            send_snapshot(stream, &head, values.map(PackedTensor::to_le_bytes)).map_err(
                |error| Unsent {
                    address: address.clone(),
                    error,
                },
            )?;
        }
        Ok(())
    }
}

fn head(shard: &OwnedShard) -> ShardHead {
    ShardHead {
        name: shard.name_in_model().to_owned(),
        shape: shard.shape,
        region: shard
            .region
            .0
            .map(|interval| [interval.start as usize, interval.end as usize]),
        element_bytes: shard.dtype.size(),
    }
}

/// Listens to all validators, in a thread for each. Gives what they tell, and how far each says that it is.
fn listen(joined: &Joined, timeout: Duration) -> io::Result<(Receiver<Told>, Vec<Arc<AtomicU64>>)> {
    let (tell, told) = channel();
    let mut progress = Vec::new();
    for (index, (_, stream)) in joined.iter().enumerate() {
        let (tell, mut stream) = (tell.clone(), stream.try_clone()?);
        let own = Arc::new(AtomicU64::new(0));
        progress.push(Arc::clone(&own));
        // Detached: it ends with the connection.
        thread::spawn(move || {
            loop {
                stream.set_deadline(timeout);
                let report = match receive_report(&mut stream) {
                    Ok(Report::Working { done }) => {
                        own.store(done, Ordering::Relaxed);
                        continue;
                    }
                    report => report,
                };
                let is_last = report.is_err();
                if tell.send((index, report)).is_err() || is_last {
                    return;
                }
            }
        });
    }
    Ok((told, progress))
}

/// How far a validator is, and since when.
struct Watched {
    progress: Arc<AtomicU64>,
    done: u64,
    since: Instant,
}

impl Watched {
    fn new(progress: Arc<AtomicU64>) -> Self {
        Self {
            progress,
            done: 0,
            since: Instant::now(),
        }
    }

    /// How long it has stood where it is.
    fn stands(&mut self) -> Duration {
        let done = self.progress.load(Ordering::Relaxed);
        if done != self.done {
            (self.done, self.since) = (done, Instant::now());
        }
        self.since.elapsed()
    }
}

/// The validators of one rank.
struct RemoteValidators<'a, 'r> {
    all: &'a RemoteValidation<'r>,
    agreement: Box<dyn Agreement + 'a>,
    cancel: &'a AtomicBool,
    snapshots: SyncSender<(u64, Arc<Snapshot>)>,
    failure: Arc<Mutex<Option<String>>>,
    /// On rank 0.
    heard: Option<Heard>,
    is_lost: bool,
}

/// What rank 0 heard of the validators.
struct Heard {
    told: Receiver<Told>,
    progress: Vec<Watched>,
    addresses: Vec<Address>,
    /// Results of each for the snapshot under way.
    parts: Vec<Option<Evaluated>>,
    /// Why one is lost.
    lost: Option<String>,
}

impl Heard {
    /// Takes the answers: with a limit until all results are there, one is lost or stands longer than the limit, or the
    /// run is cancelled.
    fn hear(&mut self, limit: Option<Limit<'_>>, cancel: &AtomicBool) {
        let pause = Duration::from_millis(if limit.is_some() { 20 } else { 0 });
        while self.lost.is_none()
            && self.parts.iter().any(Option::is_none)
            && !cancel.load(Ordering::Relaxed)
        {
            match self.told.recv_timeout(pause) {
                Ok((index, report)) => self.take(index, report),
                Err(RecvTimeoutError::Timeout) => match limit {
                    Some(limit) => self.find_stalled(limit()),
                    None => return,
                },
                Err(RecvTimeoutError::Disconnected) => self.lost = Some("all ended".to_owned()),
            }
        }
    }

    /// Begins to wait for results of all.
    fn begin(&mut self) {
        self.parts.fill(None);
        for watched in &mut self.progress {
            watched.since = Instant::now();
        }
    }

    /// One that has no results and says that it works, but does not go on, is lost.
    fn find_stalled(&mut self, limit: Duration) {
        let mut waiting = self
            .progress
            .iter_mut()
            .zip(&self.parts)
            .zip(&self.addresses);
        let stalled = waiting.find_map(|((watched, part), address)| {
            (part.is_none() && watched.stands() > limit).then_some(address)
        });
        if let Some(address) = stalled {
            let seconds = limit.as_secs_f64();
            self.lost = Some(format!(
                "{address}: it answers, but evaluated nothing for {seconds:.0} s"
            ));
        }
    }

    fn take(&mut self, index: usize, report: io::Result<Report<Evaluated>>) {
        let address = &self.addresses[index];
        match report {
            Ok(Report::Done { results, .. }) => self.parts[index] = Some(results),
            Ok(Report::Failed(reason)) => self.lost = Some(format!("{address}: {reason}")),
            Err(error) => self.lost = Some(format!("{address}: {}", lost_reason(&error))),
            Ok(Report::Working { .. }) => {}
        }
    }

    /// All results in the order of the samples, once they are there.
    fn evaluated(&self) -> Option<Evaluated> {
        let parts = self
            .parts
            .iter()
            .cloned()
            .collect::<Option<Vec<Evaluated>>>()?;
        let mut all = Evaluated::default();
        for part in parts {
            all.batches.extend(part.batches);
            all.seconds = Seconds(all.seconds.0.max(part.seconds.0));
        }
        Some(all)
    }
}

impl RemoteValidators<'_, '_> {
    fn vote(&mut self, epoch: u64) -> Result<Option<Vec<Vote>>, RunError> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let own = Vote {
            failure: failure.clone(),
            ..Vote::default()
        };
        drop(failure);
        self.agreement.vote(epoch, own)
    }

    fn decide(&mut self, epoch: u64, decision: Option<Decision>) -> Result<Decision, RunError> {
        let decision = self.agreement.decide(epoch, decision)?;
        self.is_lost |= decision.is_lost;
        Ok(decision)
    }

    /// Says once that validators are lost.
    fn warn(&self, epoch: u64, reason: &str) {
        let text = format!(
            "a validator was lost at the validation of epoch {}: {reason}; the ranks validate this epoch and the next \
             ones themselves",
            epoch + 1
        );
        // Nobody listens after the run.
        let _ = self.all.warnings.send(text);
    }

    fn failed(votes: &[Vote]) -> Option<String> {
        votes.iter().find_map(|vote| vote.failure.clone())
    }

    /// What rank 0 decides of the results, for which the others wait.
    fn conclude(&mut self, epoch: u64, votes: &[Vote]) -> Result<Decision, RunError> {
        let mut lost = Self::failed(votes);
        let mut evaluated = None;
        if let Some(heard) = &mut self.heard {
            let (waits, all, cancel) = (lost.is_none(), self.all, self.cancel);
            let limit = || all.patience();
            let limit = waits.then_some(&limit as Limit<'_>);
            self.agreement
                .while_others_wait(Box::new(|| heard.hear(limit, cancel)));
            evaluated = heard.evaluated();
            lost = lost.or(heard.lost.clone());
        }
        // What was lost after the results is found at the next epoch.
        lost = lost.filter(|_| evaluated.is_none());
        if lost.is_none() && evaluated.is_none() {
            return Err(RunError::Cancelled);
        }
        lost.iter().for_each(|reason| self.warn(epoch, reason));
        let seconds = evaluated.as_ref().map_or(0.0, |it| it.seconds.0);
        Ok(Decision {
            is_lost: lost.is_some(),
            evaluated_ns: (seconds * 1e9) as u64,
            evaluated: evaluated.map(|it| it.batches),
            ..Decision::default()
        })
    }
}

impl Validators for RemoteValidators<'_, '_> {
    fn is_awaited(&self) -> bool {
        self.all.is_awaited
    }

    fn begin(&mut self, epoch: u64, snapshot: &Arc<Snapshot>) -> Result<bool, RunError> {
        if self.is_lost {
            return Ok(false);
        }
        let votes = self.vote(epoch)?;
        let decision = votes.map(|votes| {
            let mut lost = Self::failed(&votes);
            if let Some(heard) = &mut self.heard {
                heard.begin();
                heard.hear(None, self.cancel);
                lost = lost.or(heard.lost.clone());
            }
            lost.iter().for_each(|reason| self.warn(epoch, reason));
            Decision {
                is_lost: lost.is_some(),
                ..Decision::default()
            }
        });
        self.decide(epoch, decision)?;
        if self.is_lost {
            return Ok(false);
        }
        // A thread that ended has left the reason for the next vote.
        let _ = self.snapshots.send((epoch, Arc::clone(snapshot)));
        Ok(true)
    }

    fn poll(&mut self) -> Option<Evaluated> {
        let heard = self.heard.as_mut()?;
        heard.hear(None, self.cancel);
        heard.evaluated()
    }

    fn finish(&mut self, epoch: u64) -> Result<Option<Evaluated>, RunError> {
        let votes = self.vote(epoch)?;
        let decision = match votes {
            None => None,
            Some(votes) => Some(self.conclude(epoch, &votes)?),
        };
        let decision = self.decide(epoch, decision)?;
        Ok(decision.evaluated.map(|batches| Evaluated {
            batches,
            seconds: Seconds(decision.evaluated_ns as f64 * 1e-9),
        }))
    }
}
