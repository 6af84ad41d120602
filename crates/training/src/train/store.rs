//! Samples in memory: what ranks keep, and whether that fits.

pub mod config;
pub mod error;

pub use config::{StoreConfig, StoreKind};
pub use error::StoreError;

use super::buffers;
use super::error::TrainError;
use super::memory::{MemoryLimit, rank_bytes};
use super::offload::Samples;
use super::run::Run;
use partita_data::{Dataset, Split};
use partita_files::{file_bytes_max, free_bytes, scratch};
use partita_input::{LoadTally, Loading, Preprocessing, SampleStore};
use partita_program::Program;
use partita_session::Session;
use partita_site::Event;
use partita_site::launch::{Launch, LaunchError};
use partita_space::{Bytes, Mesh, Rank};
use std::fs;
use std::ops::Range;
use std::sync::Arc;

/// Of what a memory limit leaves beside a program, the share that samples fill where others go to a disk: the rest is
/// for what no prediction counts.
const SHARE_BESIDE_SPILL: f64 = 0.9;

/// What a limit leaves beside samples in memory. About the same under every strategy: each rank keeps an equal part of
/// the splits that are read. Where the rest may go to a disk, programs may have half of the limit at least.
pub fn room(run: &Run, dataset: &Dataset, limit: Bytes) -> Bytes {
    match run.store.kind {
        StoreKind::None | StoreKind::Synthetic => limit,
        StoreKind::Memory => {
            let read = [Split::Train, Split::Validation].map(|split| dataset.elements(split));
            let bytes = read.into_iter().sum::<usize>() * dataset.dtype().size_bytes();
            let of_rank = Bytes(bytes.div_ceil(run.ranks) as u64);
            let kept = run.store.memory.map_or(of_rank, |most| most.min(of_rank));
            let beside = Bytes(limit.0.saturating_sub(kept.0));
            match (&run.store.spill, run.store.memory) {
                (Some(_), None) => beside.max(Bytes(limit.0 / 2)),
                (Some(_) | None, _) => beside,
            }
        }
    }
}

/// The store of a run, if it has one, and the counts of what is loaded. `epoch` is the first one that is run.
///
/// Errors: samples that do not fit into `limit` beside what else a rank needs; no space
/// for their rest.
pub fn prepare(
    launch: &Launch<'_>,
    run: &Run,
    samples: Samples<'_>,
    session: &Session<'_>,
    epoch: u64,
    limit: &MemoryLimit,
) -> Result<Loading, TrainError> {
    let local_ranks = launch.local_ranks(run.ranks);
    let of_host = launch.ranks_of_host(run.ranks);
    launch.prepare(|| {
        let tally = Arc::new(LoadTally::from_epoch(epoch));
        let mut store = store(local_ranks, run, samples, session, (epoch, &tally));
        if let Some(store) = &mut store {
            fits(store, run, samples, session, limit)?;
            let spilled = of_host.iter().map(|&rank| store.spilled()[rank]);
            has_space(&run.store, &spilled.collect::<Vec<Bytes>>())?;
        }
        Ok(Loading {
            store: store.map(Arc::new),
            tally,
            is_synthetic: run.store.kind == StoreKind::Synthetic,
        })
    })
}

fn store(
    local_ranks: Range<Rank>,
    run: &Run,
    (_, dataset, preprocessing): Samples<'_>,
    session: &Session<'_>,
    (epoch, tally): (u64, &Arc<LoadTally>),
) -> Option<SampleStore> {
    match run.store.kind {
        StoreKind::None | StoreKind::Synthetic => None,
        StoreKind::Memory => {
            let programs: Vec<&Program> = session.step_programs().collect();
            let epoch = epoch.min((run.epochs as u64).saturating_sub(1));
            Some(SampleStore::new(
                dataset,
                &preprocessing.sampling,
                &programs,
                session.samples_of_epoch(epoch),
                local_ranks,
                Arc::clone(tally),
            ))
        }
    }
}

/// Checks that the samples of each rank fit beside what else it needs, or moves to its file what does not.
///
/// Errors: no file, or too many samples even for one.
fn fits(
    store: &mut SampleStore,
    run: &Run,
    (_, dataset, preprocessing): Samples<'_>,
    session: &Session<'_>,
    limit: &MemoryLimit,
) -> Result<(), StoreError> {
    let buffers = |rank| buffers(run, (dataset, preprocessing), session, rank);
    let others: Vec<Bytes> = (0..session.main_program().mesh.ranks())
        .map(|rank| rank_bytes(run, session, &buffers, rank))
        .collect();
    let most = run.store.memory.unwrap_or(Bytes(u64::MAX));
    if run.store.spill.is_none() {
        return all_fit(store.bytes(), &others, limit, most);
    }
    let kept_max = |(&others, &whole): (&Bytes, &Bytes)| {
        let room = Bytes(limit.bytes.0.saturating_sub(others.0));
        let share = (room.0 as f64 * SHARE_BESIDE_SPILL) as u64;
        most.min(if whole <= room { room } else { Bytes(share) })
    };
    let limits: Vec<Bytes> = others.iter().zip(store.bytes()).map(kept_max).collect();
    store.limit_memory(&limits);
    let is_above = |rank: &Rank| store.bytes()[*rank] > limits[*rank];
    let above = (0..limits.len()).filter(is_above);
    match above.max_by_key(|&rank| store.bytes()[rank]) {
        None => Ok(()),
        Some(rank) => Err(StoreError::Entries {
            rank,
            spilled: store.spilled()[rank],
            entries: store.bytes()[rank],
            others: others[rank],
            limit: limits[rank],
            origin: match run.store.memory {
                Some(most) if most == limits[rank] => "`store_memory`".to_owned(),
                Some(_) | None => limit.origin.clone(),
            },
            memory: match run.store.memory {
                Some(most) if most == limits[rank] => {
                    let least = store.bytes()[rank].0;
                    format!("`store_memory = \"{least}B\"` or more, ")
                }
                Some(_) | None => String::new(),
            },
        }),
    }
}

/// Checks that ranks have memory for all that they keep beside others of their bytes: up to a limit, of both, and to `most`
/// of samples.
fn all_fit(
    whole: &[Bytes],
    others: &[Bytes],
    limit: &MemoryLimit,
    most: Bytes,
) -> Result<(), StoreError> {
    let all: Bytes = whole.iter().copied().sum();
    let enough = |room: Bytes, end: &str| match all.0.checked_div(room.0) {
        Some(ranks) if ranks < Mesh::RANKS_MAX as u64 => {
            format!("about {} ranks{end}, or ", ranks + 1)
        }
        Some(_) | None => String::new(),
    };
    let ranks = || (0..whole.len()).zip(whole.iter().copied().zip(others.iter().copied()));
    let of_both = ranks().max_by_key(|&(_, (samples, others))| samples + others);
    if let Some((rank, (samples, others))) = of_both
        && samples + others > limit.bytes
    {
        return Err(StoreError::Memory {
            rank,
            samples,
            others,
            limit: limit.bytes,
            origin: limit.origin.clone(),
            ranks: enough(
                Bytes(limit.bytes.0.saturating_sub(others.0)),
                " of this limit",
            ),
        });
    }
    match ranks().max_by_key(|&(_, (samples, _))| samples) {
        Some((rank, (samples, _))) if samples > most => Err(StoreError::Limit {
            rank,
            samples,
            limit: most,
            ranks: enough(most, ""),
        }),
        Some(_) | None => Ok(()),
    }
}

/// Checks that the folder for samples beyond the memory has room for those of the ranks of this host.
///
/// Errors: a folder that cannot be used, too little space, a limit of the size of a file.
pub fn has_space(config: &StoreConfig, spilled: &[Bytes]) -> Result<(), StoreError> {
    let Some(folder) = &config.spill else {
        return Ok(());
    };
    let unsuited = |reason: String| StoreError::Folder {
        folder: folder.clone(),
        reason,
    };
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(unsuited("it is a file".to_owned())),
        Err(error) => return Err(unsuited(error.to_string())),
    }
    // Permissions, quotas and read-only file systems are found only by trying.
    let tried = scratch(&folder.join("partita-samples"));
    tried.map_err(|error| unsuited(format!("it cannot be written to: {error}")))?;
    let largest = spilled.iter().copied().max().unwrap_or_default();
    if let Some(limit) = file_bytes_max().filter(|&limit| limit < largest.0) {
        return Err(StoreError::FileLimit {
            folder: folder.clone(),
            needed: largest,
            limit: Bytes(limit),
        });
    }
    let needed: Bytes = spilled.iter().copied().sum();
    let free = free_bytes(folder).ok().flatten().map(Bytes);
    match free.filter(|&free| free < needed) {
        None => Ok(()),
        Some(free) => Err(StoreError::Space {
            folder: folder.clone(),
            ranks: spilled.len(),
            needed,
            free,
            memory: match config.memory {
                Some(_) => "a larger `store_memory`, ".to_owned(),
                None => String::new(),
            },
        }),
    }
}

/// Memory of what all ranks keep.
pub fn total(loading: &Loading) -> Bytes {
    let store = loading.store.iter();
    store.flat_map(|store| store.bytes()).copied().sum()
}

/// Bytes of what all ranks keep in files.
pub fn spilled(loading: &Loading) -> Bytes {
    let store = loading.store.iter();
    store.flat_map(|store| store.spilled()).copied().sum()
}

/// Says what the ranks keep, makes the files for what does not fit the memory, and reads all samples where that comes
/// before the first step.
///
/// Errors: those of the files, no memory, a full disk, on any rank.
pub fn fill(
    launch: &Launch<'_>,
    run: &Run,
    (preprocessing, loading): (&Preprocessing, &Loading),
    epoch: u64,
) -> Result<(), LaunchError> {
    if loading.is_synthetic && launch.is_first() {
        let text = "store: samples are made up and all alike, for benchmarks; the network learns nothing of the dataset";
        launch.context().report(Event::Note(text));
    }
    let Some(store) = &loading.store else {
        return Ok(());
    };
    let total = total(loading);
    let most = store.bytes().iter().copied().max().unwrap_or_default();
    let when = if run.store.preload {
        "they are read before the first step"
    } else {
        "the first epoch reads them"
    };
    let unit = if preprocessing.sampling.reads_other_regions() {
        "whole samples"
    } else {
        "samples"
    };
    let rest = match (spilled(loading), &run.store.spill) {
        (Bytes(0), _) | (_, None) => String::new(),
        (bytes, Some(folder)) => format!("; {bytes} more in files in {}", folder.display()),
    };
    let text = format!(
        "store: {unit} in memory, {total} in all and {most} on the largest of {} rank(s){rest}; {when}",
        run.ranks
    );
    if launch.is_first() {
        launch.context().report(Event::Note(&text));
    }
    if let Some(folder) = &run.store.spill {
        launch.open_spill(store, folder, run.ranks)?;
    }
    if run.store.preload {
        launch.preload(store, run.ranks, epoch)?;
    }
    Ok(())
}
