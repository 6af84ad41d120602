//! Reads samples into memory before the first step, and makes files for those that do not fit.

use super::error::LaunchError;
use crate::context::Context;
use partita_formats::DataError;
use partita_input::SampleStore;
use partita_run::RunError;
use partita_space::Rank;
use std::path::Path;
use std::thread;

/// Makes the files of ranks of this process in a folder.
///
/// Errors: the first rank whose file cannot be made.
pub fn open_spill(
    store: &SampleStore,
    folder: &Path,
    mut ranks: impl Iterator<Item = Rank>,
) -> Result<(), LaunchError> {
    let open = |rank| {
        let opened = store.open_spill(rank, folder);
        opened.map_err(|error| failed(rank, &error))
    };
    Ok(ranks.try_for_each(open)?)
}

fn failed(rank: Rank, error: &DataError) -> RunError {
    RunError::Source {
        rank,
        reason: error.to_string(),
    }
}

/// Reads what ranks of this process keep, each on a thread of its own, counted for an epoch.
///
/// Errors: the first rank that cannot read its samples or has no memory for them; a stop.
pub fn preload(
    context: &Context,
    store: &SampleStore,
    ranks: impl Iterator<Item = Rank>,
    epoch: u64,
) -> Result<(), LaunchError> {
    let read = |rank| {
        let read = store.preload(rank, epoch, &|| context.is_cancelled());
        read.map_err(|error| failed(rank, &error))
    };
    let all: Result<Vec<()>, RunError> = thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .map(|rank| {
                let name = format!("preload {rank}");
                let builder = thread::Builder::new().name(name);
                (rank, builder.spawn_scoped(scope, move || read(rank)))
            })
            .collect();
        let joined = threads.into_iter().map(|(rank, thread)| match thread {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // Without a thread, the samples are read here.
            Err(_) => read(rank),
        });
        joined.collect()
    });
    all?;
    if context.is_cancelled() {
        return Err(LaunchError::Interrupted);
    }
    Ok(())
}
