//! Votes and decisions of ranks that are processes.

use super::Job;
use crate::launch::LaunchError;
use crate::launch::agreement::{Agreement, Decision, Vote};
use partita_input::LoadTally;
use partita_run::RunError;

/// A rank that is a process.
pub struct ProcessAgreement<'a, 'c> {
    job: &'a Job<'c>,
}

impl<'a, 'c> ProcessAgreement<'a, 'c> {
    /// The rank of a job.
    pub fn new(job: &'a Job<'c>) -> Self {
        Self { job }
    }

    fn failed(&self, after: String, error: &LaunchError) -> RunError {
        RunError::Agreement {
            rank: self.job.rank,
            after,
            reason: error.to_string(),
        }
    }
}

impl Agreement for ProcessAgreement<'_, '_> {
    fn vote(&mut self, step: u64, own: Vote) -> Result<Option<Vec<Vote>>, RunError> {
        let all = self.job.gather(&own);
        let all = all.map_err(|error| self.failed(format!("step {step}"), &error))?;
        Ok((self.job.rank == 0).then_some(all))
    }

    fn decide(&mut self, step: u64, decision: Option<Decision>) -> Result<Decision, RunError> {
        let told = self.job.broadcast_value(&decision.unwrap_or_default());
        told.map_err(|error| self.failed(format!("step {step}"), &error))
    }

    fn share_loads(&mut self, epoch: u64, tally: &LoadTally) -> Result<(), RunError> {
        let shared = self.job.wait_for_all().and_then(|()| {
            let own = tally.of_rank(self.job.rank, epoch.saturating_sub(1));
            self.job.gather(&own)
        });
        let all = shared.map_err(|error| self.failed(format!("epoch {}", epoch + 1), &error))?;
        // The counts of this rank go on.
        for (rank, epochs) in all.into_iter().enumerate().skip(1) {
            tally.set_rank(rank, &epochs);
        }
        Ok(())
    }

    fn while_others_wait(&self, work: Box<dyn FnOnce() + Send + '_>) {
        let done = self.job.while_working(|| {
            work();
            Ok::<_, LaunchError>(())
        });
        // Without a world there is nobody to wait.
        let _ = done;
    }
}
