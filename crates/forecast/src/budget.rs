//! How long kernels of this machine are measured.
//!
//! Messages, collectives and reads are not counted: some seconds, once for a number of ranks.

use partita_space::Seconds;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The part of a training that measurements before it may take.
const SHARE_OF_TRAINING: f64 = 0.1;

/// Most time for the measurements of a request that names none.
const MOST: Seconds = Seconds(120.0);

/// Time for measurements until it is known how long the training will take, and the least for any training.
const LEAST: Seconds = Seconds(5.0);

/// Share of a search that measures what it compares.
const SHARE_OF_SEARCH: f64 = 0.5;

/// Least time for the kernels of a program.
pub const LEAST_OF_PROGRAM: Seconds = Seconds(0.05);

/// Share of the whole that is spent on candidates; the rest is for those that are found to be the best.
const SHARE_OF_CANDIDATES: f64 = 0.6;

/// Share of what is left for the kernels of one program.
const SHARE_OF_PROGRAM: f64 = 0.5;

/// Time for measurements of kernels. What is not measured within it is estimated from what is.
#[derive(Debug)]
pub struct MeasuringBudget {
    limit: Option<Limit>,
    spent: Mutex<f64>,
    is_settling: AtomicBool,
}

#[derive(Debug)]
enum Limit {
    Fixed(Seconds),
    /// A share of the shortest training that was predicted so far.
    OfTraining {
        steps: u64,
        shortest: Mutex<Option<Seconds>>,
    },
}

impl MeasuringBudget {
    /// All kernels are measured.
    pub fn unlimited() -> Self {
        Self::with(None)
    }

    /// This time.
    pub fn of(time: Seconds) -> Self {
        Self::with(Some(Limit::Fixed(time)))
    }

    /// Half of the time of a search, or two minutes.
    pub fn of_search(time: Option<Seconds>) -> Self {
        time.map_or_else(Self::default, |time| Self::of(time * SHARE_OF_SEARCH))
    }

    /// A tenth of a training of this many steps, by the shortest step that is predicted; between 5 seconds and two
    /// minutes.
    pub fn of_training(steps: u64) -> Self {
        Self::with(Some(Limit::OfTraining {
            steps,
            shortest: Mutex::new(None),
        }))
    }

    fn with(limit: Option<Limit>) -> Self {
        Self {
            limit,
            spent: Mutex::new(0.0),
            is_settling: AtomicBool::new(false),
        }
    }

    /// Notes that a step was predicted.
    pub fn predicted(&self, step: Seconds) {
        if let Some(Limit::OfTraining { shortest, .. }) = &self.limit {
            let mut shortest = shortest.lock().unwrap_or_else(PoisonError::into_inner);
            *shortest = Some(shortest.map_or(step, |known| known.min(step)));
        }
    }

    /// The whole time; none, if it is not limited.
    pub fn whole(&self) -> Option<Seconds> {
        match self.limit.as_ref()? {
            Limit::Fixed(time) => Some(*time),
            Limit::OfTraining { steps, shortest } => {
                let shortest = *shortest.lock().unwrap_or_else(PoisonError::into_inner);
                let share = |step: Seconds| {
                    let share = SHARE_OF_TRAINING * step.0 * *steps as f64;
                    Seconds(share.clamp(LEAST.0, MOST.0))
                };
                Some(shortest.map_or(LEAST, share))
            }
        }
    }

    /// Time that was spent.
    pub fn spent(&self) -> Seconds {
        Seconds(*self.spent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Time for the kernels of the next program; none, if it is not limited. The first may take half, so that something is left
    /// for its rivals.
    pub fn of_program(&self) -> Option<Seconds> {
        let share = if self.is_settling.load(Ordering::Relaxed) {
            1.0
        } else {
            SHARE_OF_CANDIDATES
        };
        let left = share * self.whole()?.0 - self.spent().0;
        Some(Seconds((SHARE_OF_PROGRAM * left).max(0.0)))
    }

    /// Frees what was kept for the best candidates. Returns whether something is left.
    pub fn settle(&self) -> bool {
        self.is_settling.store(true, Ordering::Relaxed);
        self.of_program()
            .is_some_and(|time| time >= LEAST_OF_PROGRAM)
    }

    /// Counts the time of a measurement.
    pub fn measuring<T>(&self, measure: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let measured = measure();
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        *spent += begin.elapsed().as_secs_f64();
        measured
    }
}

impl Default for MeasuringBudget {
    /// Two minutes.
    fn default() -> Self {
        Self::of(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_training_gives_a_tenth_of_its_shortest_prediction() {
        let budget = MeasuringBudget::of_training(1000);
        assert_eq!(budget.whole(), Some(LEAST));
        budget.predicted(Seconds(0.5));
        assert_eq!(budget.whole(), Some(Seconds(50.0)));
        budget.predicted(Seconds(0.25));
        budget.predicted(Seconds(9.0));
        assert_eq!(budget.whole(), Some(Seconds(25.0)));
        budget.predicted(Seconds(1e-4));
        assert_eq!(budget.whole(), Some(LEAST));
        let long = MeasuringBudget::of_training(1 << 40);
        long.predicted(Seconds(1.0));
        assert_eq!(long.whole(), Some(MOST));
    }

    #[test]
    fn what_is_spent_leaves_less_for_the_next_program() {
        let budget = MeasuringBudget::of(Seconds(1.0));
        assert_eq!(budget.of_program(), Some(Seconds(0.3)));
        budget.measuring(|| std::thread::sleep(std::time::Duration::from_millis(10)));
        assert!(budget.spent() >= Seconds(0.01));
        assert!(budget.of_program() < Some(Seconds(0.296)));
        assert!(budget.settle() && budget.of_program() > Some(Seconds(0.4)));
        assert!(!MeasuringBudget::of(Seconds(0.0)).settle());
        assert_eq!(MeasuringBudget::unlimited().of_program(), None);
    }
}
