//! What ranks decide together between two steps of a session.
//!
//! All ranks meet after the same steps. Each sends a vote to rank 0, which decides and tells all of them.

use partita_input::LoadTally;
use partita_run::RunError;
use partita_session::EvaluatedBatch;
use partita_space::Rank;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a waiting thread looks whether the run was cancelled.
const POLL: Duration = Duration::from_millis(20);

/// What a rank tells rank 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// This process was asked to end the training.
    pub stop: bool,
    /// This rank still writes its part of a checkpoint.
    pub is_busy: bool,
    /// Why the rank's part of the last checkpoint could not be written.
    pub failure: Option<String>,
}

/// What rank 0 decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Write a checkpoint of this moment, with this serial number.
    pub checkpoint: Option<u64>,
    /// Write a checkpoint at the end of the epoch.
    pub at_epoch_end: bool,
    /// End the training here.
    pub stop: bool,
    /// Steps until ranks meet again, if there is no other reason to.
    pub next: u64,
    /// Validators are lost, so the ranks validate from now on.
    pub is_lost: bool,
    /// The results of validators.
    pub evaluated: Option<Vec<EvaluatedBatch>>,
    /// Time that they took. Units: nanoseconds.
    pub evaluated_ns: u64,
    /// Where steps are repeated from, after a loss that is not finite.
    pub repeat: RepeatFrom,
}

/// Where the repetition starts that looks for the layer in which values began that are not finite.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RepeatFrom {
    /// Nothing is repeated: it would take too long.
    #[default]
    Nothing,
    /// Where the run started.
    Start,
    /// A whole checkpoint of this run.
    Checkpoint(PathBuf),
}

/// The meeting of all ranks.
pub trait Agreement {
    /// Sends the vote of this rank. Rank 0 gets those of all, in rank order; the others get nothing.
    ///
    /// Errors: another rank failed, or the run was cancelled.
    fn vote(&mut self, step: u64, own: Vote) -> Result<Option<Vec<Vote>>, RunError>;

    /// Tells all ranks what rank 0 decided, which alone gives a decision.
    ///
    /// Errors: another rank failed, or the run was cancelled.
    fn decide(&mut self, step: u64, decision: Option<Decision>) -> Result<Decision, RunError>;

    /// Waits until all ranks have done an epoch, so that nothing more is loaded for it, and tells rank 0 what was loaded for
    /// that one and the one before.
    ///
    /// Errors: another rank failed, or the run was cancelled.
    fn share_loads(&mut self, epoch: u64, tally: &LoadTally) -> Result<(), RunError>;

    /// Waits until all ranks are here.
    ///
    /// Errors: another rank failed, or the run was cancelled.
    fn meet(&mut self, step: u64) -> Result<(), RunError> {
        let votes = self.vote(step, Vote::default())?;
        let decision = votes.map(|_| Decision::default());
        self.decide(step, decision)?;
        Ok(())
    }

    /// Does work for which the others wait.
    fn while_others_wait(&self, work: Box<dyn FnOnce() + Send + '_>);
}

/// Votes and decision of ranks that are threads.
pub struct ThreadBallot {
    state: Mutex<Ballot>,
    changed: Condvar,
    ranks: usize,
}

#[derive(Default)]
struct Ballot {
    votes: Vec<Option<Vote>>,
    /// The last decision, and how many there were.
    decision: (u64, Decision),
}

impl ThreadBallot {
    /// The ballot of that many ranks.
    pub fn new(ranks: usize) -> Self {
        let ballot = Ballot {
            votes: vec![None; ranks],
            ..Ballot::default()
        };
        Self {
            state: Mutex::new(ballot),
            changed: Condvar::new(),
            ranks,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ballot> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank that is a thread.
pub struct ThreadAgreement<'a> {
    ballot: &'a ThreadBallot,
    cancel: &'a AtomicBool,
    rank: Rank,
    /// Decisions that this rank knows.
    round: u64,
}

impl<'a> ThreadAgreement<'a> {
    /// A rank; `cancel` ends its waits.
    pub fn new(ballot: &'a ThreadBallot, rank: Rank, cancel: &'a AtomicBool) -> Self {
        Self {
            ballot,
            cancel,
            rank,
            round: 0,
        }
    }

    fn wait(
        &self,
        mut is_over: impl FnMut(&mut Ballot) -> bool,
    ) -> Result<MutexGuard<'a, Ballot>, RunError> {
        let mut ballot = self.ballot.lock();
        loop {
            if is_over(&mut ballot) {
                return Ok(ballot);
            }
            if self.cancel.load(Ordering::Relaxed) {
                return Err(RunError::Cancelled);
            }
            let waited = self.ballot.changed.wait_timeout(ballot, POLL);
            ballot = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Agreement for ThreadAgreement<'_> {
    fn vote(&mut self, _: u64, own: Vote) -> Result<Option<Vec<Vote>>, RunError> {
        self.ballot.lock().votes[self.rank] = Some(own);
        self.ballot.changed.notify_all();
        if self.rank > 0 {
            return Ok(None);
        }
        let mut ballot = self.wait(|ballot| ballot.votes.iter().all(Option::is_some))?;
        let empty = vec![None; self.ballot.ranks];
        let votes = std::mem::replace(&mut ballot.votes, empty);
        Ok(Some(votes.into_iter().flatten().collect()))
    }

    fn decide(&mut self, _: u64, decision: Option<Decision>) -> Result<Decision, RunError> {
        self.round += 1;
        let round = self.round;
        if let Some(decision) = decision {
            self.ballot.lock().decision = (round, decision);
            self.ballot.changed.notify_all();
        }
        // The next decision needs this rank's vote, so it cannot come before this one is seen.
        let ballot = self.wait(|ballot| ballot.decision.0 == round)?;
        Ok(ballot.decision.1.clone())
    }

    /// Threads count in one tally.
    fn share_loads(&mut self, epoch: u64, _: &LoadTally) -> Result<(), RunError> {
        self.meet(epoch)
    }

    fn while_others_wait(&self, work: Box<dyn FnOnce() + Send + '_>) {
        work();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn threads_meet_again_and_again_and_all_learn_what_rank_0_decided() {
        let (ballot, cancel) = (ThreadBallot::new(4), AtomicBool::new(false));
        let run = |rank: Rank| {
            let mut agreement = ThreadAgreement::new(&ballot, rank, &cancel);
            let mut seen = Vec::new();
            for round in 0..200u64 {
                let own = Vote {
                    stop: round % 4 == rank as u64,
                    ..Vote::default()
                };
                let votes = agreement.vote(round, own).unwrap();
                let decision = votes.map(|votes| Decision {
                    next: votes.iter().position(|vote| vote.stop).unwrap() as u64,
                    checkpoint: Some(round),
                    ..Decision::default()
                });
                let told = agreement.decide(round, decision).unwrap();
                seen.push((told.checkpoint, told.next));
            }
            seen
        };
        let all: Vec<_> = thread::scope(|scope| {
            let ranks: Vec<_> = (0..4).map(|rank| scope.spawn(move || run(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let expected: Vec<_> = (0..200).map(|round| (Some(round), round % 4)).collect();
        assert!(all.iter().all(|seen| *seen == expected));
    }

    #[test]
    fn a_wait_for_a_rank_that_never_comes_ends_with_a_cancellation() {
        let (ballot, cancel) = (ThreadBallot::new(2), AtomicBool::new(true));
        let mut first = ThreadAgreement::new(&ballot, 0, &cancel);
        assert_eq!(first.vote(1, Vote::default()), Err(RunError::Cancelled));
    }
}
