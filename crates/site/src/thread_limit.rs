//! How many threads this process can start.

use crate::host::{group_files, text};
use crate::local_ranks::RankConfig;
use partita_space::Help;
use std::path::Path;

/// Memory mappings of a thread: its stack and the stack of its signal handlers, each with a guard page.
///
/// The system refuses mappings beyond `vm.max_map_count`, and Rust aborts the process if a thread that runs already
/// gets no stack for signal handlers. So the number of threads is checked before.
const MAPPINGS_OF_THREAD: u64 = 4;

/// Share of the mappings that threads may have: buffers, libraries and arenas of the allocator need others.
const MAPPINGS_SHARE: f64 = 7.0 / 8.0;

/// Threads of a rank beside those of its kernels: they read samples, answer other ranks, write checkpoints, send snapshots.
const HELPERS: usize = 4;

/// Ranks of this process have more threads than it can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{ranks} rank(s) of {threads} thread(s) need more threads than the {possible} that the system lets this process \
     start{}", self.nearest()
)]
pub struct TooManyThreads {
    /// Ranks of this process.
    pub ranks: usize,
    /// Threads per rank.
    pub threads: usize,
    /// Threads that the process can start.
    pub possible: usize,
    /// Cores that it may use.
    pub cores: usize,
}

impl TooManyThreads {
    /// Most threads of each of as many ranks; 0 if there are too many ranks.
    fn threads_max(&self) -> usize {
        (self.possible / self.ranks).saturating_sub(HELPERS)
    }

    fn nearest(&self) -> Help {
        let Self { ranks, cores, .. } = self;
        match self.threads_max() {
            0 => {
                let most = (self.possible / (1 + HELPERS)).max(1);
                Help::possible(format_args!(
                    "up to {most} ranks of 1 thread on this machine, which has {cores} core(s) for them"
                ))
                .code(format_args!("ranks = {most}"))
            }
            most => {
                let busy = (cores / ranks).max(1);
                Help::possible(format_args!(
                    "up to {most} threads for each rank, and {busy} keep(s) the {cores} core(s) of this machine busy"
                ))
                .code(format_args!("threads = {most}"))
            }
        }
    }
}

/// Whether as many ranks of this process can start their threads.
///
/// Errors: the most that are possible.
pub fn check(ranks: usize, of: RankConfig, cores: usize) -> Result<(), TooManyThreads> {
    let threads = if of.kernels.is_on_processor() {
        of.threads
    } else {
        1
    };
    let too_many = TooManyThreads {
        ranks: ranks.max(1),
        threads,
        possible: limit(Path::new("/")).unwrap_or(usize::MAX),
        cores,
    };
    // One thread of one rank is this thread.
    if too_many.ranks * threads > 1 && threads > too_many.threads_max() {
        return Err(too_many);
    }
    Ok(())
}

/// Threads that the system lets this process start; `None` if it does not say.
///
/// Sources: `proc(5)`, `vm.max_map_count` and `kernel.threads-max`; `getrlimit(2)`, `RLIMIT_NPROC`; `pids.max` of
/// cgroups.
fn limit(root: &Path) -> Option<usize> {
    let number = |path: &str| text(root, path)?.trim().parse::<u64>().ok();
    let mappings = number("proc/sys/vm/max_map_count");
    let of_mappings =
        mappings.map(|most| (most as f64 * MAPPINGS_SHARE) as u64 / MAPPINGS_OF_THREAD);
    let of_user = text(root, "proc/self/limits").and_then(|limits| {
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max processes"))?;
        line.split_whitespace().next()?.parse().ok()
    });
    let groups = text(root, "proc/self/cgroup").unwrap_or_default();
    let of_groups = [None, Some("pids")]
        .into_iter()
        .flat_map(|controller| group_files(root, &groups, controller, "pids.max"))
        .filter_map(|text| text.parse().ok())
        .min();
    let known = [
        of_mappings,
        number("proc/sys/kernel/threads-max"),
        of_user,
        of_groups,
    ];
    let least = known.into_iter().flatten().min()?;
    usize::try_from(least).ok()
}

#[cfg(test)]
mod tests;
