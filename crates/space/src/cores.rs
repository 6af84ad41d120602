//! Work of all cores.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Most threads: beyond, memory is what limits such work.
const THREADS_MAX: usize = 32;

/// Tasks of a program that are not worth another thread.
const TASKS_FEW: usize = 2000;

/// How many threads [`on_cores`] takes at most.
pub fn threads() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    cores.min(THREADS_MAX)
}

/// What `work` returns for each of `0..count`, in this order, whichever core computed it.
///
/// `tasks` is about how many tasks of a program the work goes through: few take this thread alone.
///
/// ```
/// assert_eq!(partita_space::on_cores(4, 100_000, |at| at * at), [0, 1, 4, 9]);
/// ```
pub fn on_cores<T: Send>(count: usize, tasks: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = if tasks <= TASKS_FEW { 1 } else { threads() };
    on_threads(threads, count, work)
}

/// The same by at most this many threads.
pub fn on_threads<T: Send>(
    threads: usize,
    count: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let threads = threads.min(count);
    if threads <= 1 {
        return (0..count).map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let share = || {
        let mut found = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return found;
            }
            found.push((at, work(at)));
        }
    };
    let mut all = thread::scope(|scope| {
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, share).ok();
        // Without further threads this one does all.
        let others: Vec<_> = (1..threads).filter_map(spawn).collect();
        let mut all = share();
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        all
    });
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, found)| found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_each_once() {
        for count in [0, 1, 2, 1000] {
            let expected: Vec<usize> = (0..count).map(|at| at * 3).collect();
            assert_eq!(on_cores(count, usize::MAX, |at| at * 3), expected);
        }
    }

    #[test]
    fn a_panic_of_one_is_that_of_all() {
        let panics = std::panic::catch_unwind(|| on_cores(50, usize::MAX, |at| assert!(at != 37)));
        assert!(panics.is_err());
    }
}
