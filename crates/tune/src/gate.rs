//! A barrier that ranks leave at the same moment.

use crate::TuneError;
use partita_run::Arena;
use partita_run::allocation::handling_failure;
use partita_space::{Bytes, Rank, upper_median};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Lets ranks start at the same moment.
///
/// A sleeping thread wakes tens of microseconds late, longer than a small kernel runs, so those that
/// wait keep asking and yield; they do so between measurements only.
pub(crate) struct Gate {
    ranks: usize,
    arrived: AtomicUsize,
    openings: AtomicUsize,
    is_broken: AtomicBool,
}

/// Another rank failed.
pub(crate) struct Broken;

impl Gate {
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks,
            arrived: AtomicUsize::new(0),
            openings: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
        }
    }

    /// Returns when all ranks have come.
    pub fn wait(&self) -> Result<(), Broken> {
        let opening = self.openings.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks {
            self.arrived.store(0, Ordering::Relaxed);
            self.openings.fetch_add(1, Ordering::Release);
            return Ok(());
        }
        while self.openings.load(Ordering::Acquire) == opening {
            if self.is_broken.load(Ordering::Relaxed) {
                return Err(Broken);
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// How a rank's part of a measurement ends early.
pub(crate) enum Stop {
    /// By its own failure.
    Failed(TuneError),
    /// By that of another.
    Broken,
}

impl From<Broken> for Stop {
    fn from(_: Broken) -> Self {
        Stop::Broken
    }
}

impl From<TuneError> for Stop {
    fn from(error: TuneError) -> Self {
        Stop::Failed(error)
    }
}

/// Breaks the gate when a rank leaves early, by panic too.
struct Guard<'g>(&'g Gate);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.is_broken.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` on one thread per part; results in rank order. Whoever fails ends all.
pub(crate) fn together<P: Send, R: Send>(
    what: &'static str,
    parts: Vec<P>,
    work: impl Fn(&Gate, Rank, P) -> Result<R, Stop> + Sync,
) -> Result<Vec<R>, TuneError> {
    let gate = Gate::new(parts.len());
    let stopped = |reason: String| TuneError::Stopped { what, reason };
    let play = |rank: Rank, part: P| {
        let guard = Guard(&gate);
        let result = work(&gate, rank, part);
        if result.is_ok() {
            std::mem::forget(guard);
        }
        result
    };
    let mut ends = Vec::with_capacity(parts.len());
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (rank, part) in parts.into_iter().enumerate() {
            let play = &play;
            let named = std::thread::Builder::new().name(format!("measure {rank}"));
            match named.spawn_scoped(scope, move || play(rank, part)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    drop(Guard(&gate));
                    let reason = format!("no thread could be started for rank {rank}: {error}");
                    ends.push(Err(Stop::Failed(stopped(reason))));
                    break;
                }
            }
        }
        for (rank, thread) in threads.into_iter().enumerate() {
            let end = thread.join();
            let panicked = |_| Err(Stop::Failed(stopped(format!("rank {rank} panicked"))));
            ends.push(end.unwrap_or_else(panicked));
        }
    });
    let mut results = Vec::with_capacity(ends.len());
    let mut is_broken = false;
    for end in ends {
        match end {
            Ok(result) => results.push(result),
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Broken) => is_broken = true,
        }
    }
    if is_broken {
        return Err(stopped("another rank left early".to_owned()));
    }
    Ok(results)
}

/// Memory with which a rank measures.
///
/// Errors: the system gives none.
pub(crate) fn memory_of(what: &'static str, rank: Rank, bytes: Bytes) -> Result<Arena, TuneError> {
    Arena::of_rank(rank, bytes).map_err(|_| TuneError::Memory { rank, what, bytes })
}

/// Zeros to be written to and read.
///
/// Errors: the system gives no memory for them.
pub(crate) fn zeros(what: &'static str, rank: Rank, words: usize) -> Result<Vec<u64>, TuneError> {
    let mut zeros = Vec::new();
    let reserved = handling_failure(|| zeros.try_reserve_exact(words));
    let bytes = Bytes(8 * words as u64);
    reserved.map_err(|_| TuneError::Memory { rank, what, bytes })?;
    zeros.resize(words, 0);
    Ok(zeros)
}

/// Of the slowest rank, for each repeat. Shapes: `times[rank][repeat]`.
fn slowest(times: &[&[f64]]) -> Vec<f64> {
    let repeats = times.iter().map(|times| times.len()).min().unwrap_or(0);
    let slowest = |repeat: usize| times.iter().map(|times| times[repeat]).fold(0.0, f64::max);
    (0..repeats).map(slowest).collect()
}

/// The middle of the slowest rank's times.
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
    fn a_failure_ends_all_and_is_told() {
        let end = together("a test", vec![(); 3], |gate, rank, ()| {
            gate.wait()?;
            if rank == 1 {
                let reason = "the disk is gone".to_owned();
                return Err(Stop::Failed(TuneError::Read { rank, reason }));
            }
            gate.wait()?;
            Ok(rank)
        });
        let text = end.unwrap_err().to_string();
        assert!(
            text.contains("rank 1") && text.contains("disk is gone"),
            "{text}"
        );
    }

    #[test]
    fn a_panic_ends_all() {
        let end = together("a test", vec![(); 2], |gate, rank, ()| {
            assert!(rank == 0, "this rank fails on purpose");
            gate.wait()?;
            Ok(rank)
        });
        assert!(matches!(end, Err(TuneError::Stopped { .. })));
    }

    #[test]
    fn all_pass_together_again_and_again() {
        let passed = AtomicUsize::new(0);
        let seen = together("a test", vec![(); 3], |gate, _, ()| {
            let mut seen = Vec::new();
            for _ in 0..50 {
                gate.wait()?;
                passed.fetch_add(1, Ordering::SeqCst);
                gate.wait()?;
                seen.push(passed.load(Ordering::SeqCst));
                gate.wait()?;
            }
            Ok(seen)
        });
        let expected: Vec<usize> = (1..=50).map(|round| 3 * round).collect();
        assert!(seen.unwrap().iter().all(|seen| *seen == expected));
    }
}
