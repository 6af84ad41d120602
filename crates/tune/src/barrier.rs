//! A spinning barrier for threads, and threads that run a measurement together.

use crate::TuneError;
use partita_run::allocation::handling_failure;
use partita_space::{Bytes, Rank, upper_median};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A barrier whose waiting threads spin and yield, between measurements only: waking a sleeping thread takes
/// tens of microseconds, longer than a small kernel.
pub(crate) struct Barrier {
    ranks: usize,
    arrived: AtomicUsize,
    rounds: AtomicUsize,
    is_aborted: AtomicBool,
}

/// Another rank has failed.
pub(crate) struct Aborted;

impl Barrier {
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks,
            arrived: AtomicUsize::new(0),
            rounds: AtomicUsize::new(0),
            is_aborted: AtomicBool::new(false),
        }
    }

    /// Returns once all ranks have called it.
    pub fn wait(&self) -> Result<(), Aborted> {
        let round = self.rounds.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks {
            self.arrived.store(0, Ordering::Relaxed);
            self.rounds.fetch_add(1, Ordering::Release);
            return Ok(());
        }
        while self.rounds.load(Ordering::Acquire) == round {
            if self.is_aborted.load(Ordering::Relaxed) {
                return Err(Aborted);
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Why a rank ends a measurement early.
pub(crate) enum EarlyEnd {
    /// It failed.
    Failed(TuneError),
    /// Another rank failed.
    Aborted,
}

impl From<Aborted> for EarlyEnd {
    fn from(_: Aborted) -> Self {
        EarlyEnd::Aborted
    }
}

impl From<TuneError> for EarlyEnd {
    fn from(error: TuneError) -> Self {
        EarlyEnd::Failed(error)
    }
}

/// Aborts the barrier if a rank ends early, by panic too.
struct Guard<'g>(&'g Barrier);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.is_aborted.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` on one thread per part; results in rank order. The failure of one rank ends all.
pub(crate) fn run_ranks<P: Send, R: Send>(
    what: &'static str,
    parts: Vec<P>,
    work: impl Fn(&Barrier, Rank, P) -> Result<R, EarlyEnd> + Sync,
) -> Result<Vec<R>, TuneError> {
    let barrier = Barrier::new(parts.len());
    let stopped = |reason: String| TuneError::Stopped { what, reason };
    let run_rank = |rank: Rank, part: P| {
        let guard = Guard(&barrier);
        let result = work(&barrier, rank, part);
        if result.is_ok() {
            std::mem::forget(guard);
        }
        result
    };
    let mut ends = Vec::with_capacity(parts.len());
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (rank, part) in parts.into_iter().enumerate() {
            let run_rank = &run_rank;
            let named = std::thread::Builder::new().name(format!("measure {rank}"));
            match named.spawn_scoped(scope, move || run_rank(rank, part)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    drop(Guard(&barrier));
                    let reason = format!("no thread could be started for rank {rank}: {error}");
                    ends.push(Err(EarlyEnd::Failed(stopped(reason))));
                    break;
                }
            }
        }
        for (rank, thread) in threads.into_iter().enumerate() {
            let end = thread.join();
            let panicked = |_| Err(EarlyEnd::Failed(stopped(format!("rank {rank} panicked"))));
            ends.push(end.unwrap_or_else(panicked));
        }
    });
    let mut results = Vec::with_capacity(ends.len());
    let mut is_aborted = false;
    for end in ends {
        match end {
            Ok(result) => results.push(result),
            Err(EarlyEnd::Failed(error)) => return Err(error),
            Err(EarlyEnd::Aborted) => is_aborted = true,
        }
    }
    if is_aborted {
        return Err(stopped("another rank left early".to_owned()));
    }
    Ok(results)
}

/// Errors: the system has no memory.
pub(crate) fn zeros(what: &'static str, rank: Rank, words: usize) -> Result<Vec<u64>, TuneError> {
    let mut zeros = Vec::new();
    let reserved = handling_failure(|| zeros.try_reserve_exact(words));
    let bytes = Bytes(8 * words as u64);
    reserved.map_err(|_| TuneError::Memory { rank, what, bytes })?;
    zeros.resize(words, 0);
    Ok(zeros)
}

/// The slowest rank's time by repeat. Shapes: `times[rank][repeat]`.
fn slowest(times: &[&[f64]]) -> Vec<f64> {
    let repeats = times.iter().map(|times| times.len()).min().unwrap_or(0);
    let slowest = |repeat: usize| times.iter().map(|times| times[repeat]).fold(0.0, f64::max);
    (0..repeats).map(slowest).collect()
}

/// The median over repeats of the slowest rank's time.
pub(crate) fn median_of_slowest(times: &[&[f64]]) -> f64 {
    upper_median(&slowest(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_each_repeat_counts() {
        let times: [&[f64]; 2] = [&[1.0, 9.0, 3.0], &[5.0, 2.0, 4.0]];
        assert_eq!(median_of_slowest(&times), 5.0);
    }

    #[test]
    fn the_failure_of_a_rank_ends_all() {
        let end = run_ranks("a test", vec![(); 3], |barrier, rank, ()| {
            barrier.wait()?;
            if rank == 1 {
                let source = std::io::Error::other("the disk is gone");
                return Err(EarlyEnd::Failed(TuneError::Read { rank, source }));
            }
            barrier.wait()?;
            Ok(rank)
        });
        assert!(matches!(end, Err(TuneError::Read { rank: 1, .. })));
    }

    #[test]
    fn a_panic_ends_all() {
        let end = run_ranks("a test", vec![(); 2], |barrier, rank, ()| {
            assert!(rank == 0, "this rank fails on purpose");
            barrier.wait()?;
            Ok(rank)
        });
        assert!(matches!(end, Err(TuneError::Stopped { .. })));
    }

    #[test]
    fn all_ranks_pass_in_every_round() {
        let passed = AtomicUsize::new(0);
        let seen = run_ranks("a test", vec![(); 3], |barrier, _, ()| {
            let mut seen = Vec::new();
            for _ in 0..50 {
                barrier.wait()?;
                passed.fetch_add(1, Ordering::SeqCst);
                barrier.wait()?;
                seen.push(passed.load(Ordering::SeqCst));
                barrier.wait()?;
            }
            Ok(seen)
        });
        let expected: Vec<usize> = (1..=50).map(|round| 3 * round).collect();
        assert!(seen.unwrap().iter().all(|seen| *seen == expected));
    }
}
