//! Samples in memory: what ranks keep, and whether that fits.

pub mod config;
pub mod error;

pub use config::StoreKind;
pub use error::StoreError;

use super::error::TrainError;
use super::offload::Samples;
use super::run::Run;
use super::{buffers, check};
use crate::launch::{Launch, LaunchError};
use crate::progress::Event;
use partita_data::{Dataset, EpochLoads, Loading, Preprocessing, SampleStore, Split};
use partita_program::Program;
use partita_session::Session;
use partita_space::{Bytes, Rank};
use std::ops::Range;
use std::sync::Arc;

/// What a limit leaves beside samples in memory. About the same under every strategy: each rank keeps an equal part of
/// the splits that are read.
pub fn room(run: &Run, dataset: &Dataset, limit: Bytes) -> Bytes {
    match run.store {
        StoreKind::None => limit,
        StoreKind::Memory => {
            let read = [Split::Train, Split::Validation].map(|split| dataset.samples(split));
            let samples: usize = read.into_iter().sum();
            let volume: usize = dataset.shape().into_iter().product();
            let bytes = samples * volume * dataset.dtype().size_bytes();
            Bytes(limit.0.saturating_sub(bytes.div_ceil(run.ranks) as u64))
        }
    }
}

/// The store of a run, if it has one, and the counts of what is loaded. `epoch` is the first one that is run.
///
/// Errors: samples that do not fit into `limit` beside what else a rank needs; `origin` describes the limit.
pub fn prepare(
    launch: &Launch<'_>,
    run: &Run,
    samples: Samples<'_>,
    session: &Session<'_>,
    epoch: u64,
    (limit, origin): (Bytes, &str),
) -> Result<Loading, TrainError> {
    let local_ranks = launch.local_ranks(run.ranks);
    launch.prepare(|| {
        let loading = loading(local_ranks, run, samples, session, epoch);
        fits(&loading, run, samples, session, (limit, origin))?;
        Ok(loading)
    })
}

fn loading(
    local_ranks: Range<Rank>,
    run: &Run,
    (_, dataset, preprocessing): Samples<'_>,
    session: &Session<'_>,
    epoch: u64,
) -> Loading {
    let mut loading = Loading::default();
    // Epochs that load nothing are counted, too.
    for epoch in epoch..run.epochs as u64 {
        loading.tally.add(epoch, EpochLoads::default());
    }
    match run.store {
        StoreKind::None => {}
        StoreKind::Memory => {
            let programs: Vec<&Program> = session.step_programs().collect();
            let epoch = epoch.min((run.epochs as u64).saturating_sub(1));
            loading.store = Some(Arc::new(SampleStore::new(
                dataset,
                &preprocessing.sampling,
                &programs,
                session.samples_of_epoch(epoch),
                local_ranks,
                Arc::clone(&loading.tally),
            )));
        }
    }
    loading
}

fn fits(
    loading: &Loading,
    run: &Run,
    (_, dataset, preprocessing): Samples<'_>,
    session: &Session<'_>,
    (limit, origin): (Bytes, &str),
) -> Result<(), StoreError> {
    let Some(store) = &loading.store else {
        return Ok(());
    };
    let program = session.main_program();
    let buffers = |rank| buffers(run, (dataset, preprocessing), program, rank);
    let others = |rank| check::rank_bytes(run, session, &buffers, rank);
    let kept = store.bytes().iter().copied().zip(0..);
    let Some((samples, rank)) = kept.max_by_key(|&(bytes, rank)| bytes + others(rank)) else {
        return Ok(());
    };
    let others = others(rank);
    if samples + others <= limit {
        return Ok(());
    }
    let room = limit.0.saturating_sub(others.0);
    Err(StoreError::Memory {
        rank,
        samples,
        others,
        limit,
        origin: origin.to_owned(),
        ranks: match total(loading).0.checked_div(room) {
            Some(ranks) => format!("about {} ranks of this limit, or ", ranks + 1),
            None => String::new(),
        },
    })
}

/// Memory of what all ranks keep.
pub fn total(loading: &Loading) -> Bytes {
    let store = loading.store.iter();
    store.flat_map(|store| store.bytes()).copied().sum()
}

/// Says what the ranks keep, and reads it where that comes before the first step.
///
/// Errors: those of the files, no memory, on any rank.
pub fn fill(
    launch: &Launch<'_>,
    run: &Run,
    (preprocessing, loading): (&Preprocessing, &Loading),
    epoch: u64,
) -> Result<(), LaunchError> {
    let Some(store) = &loading.store else {
        return Ok(());
    };
    let total = total(loading);
    let most = store.bytes().iter().copied().max().unwrap_or_default();
    let when = if run.preload {
        "they are read before the first step"
    } else {
        "the first epoch reads them"
    };
    let unit = if preprocessing.sampling.reads_other_regions() {
        "whole samples"
    } else {
        "samples"
    };
    let text = format!(
        "store: {unit} in memory, {total} in all and {most} on the largest of {} rank(s); {when}",
        run.ranks
    );
    if launch.is_first() {
        launch.context().report(Event::Note(&text));
    }
    if run.preload {
        launch.preload(store, run.ranks, epoch)?;
    }
    Ok(())
}
