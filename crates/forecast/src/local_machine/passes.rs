//! Passes over the kernels of programs.

use partita_tune::{Conditions, KernelKey, KernelTime, Measurements};
use std::collections::BTreeSet;
use std::time::Instant;

/// Passes over the kernels of a setting.
pub(super) struct Series {
    pub setting: Conditions,
    /// Earlier measurements.
    pub known: Measurements,
    pub passes: Vec<Vec<KernelTime>>,
}

/// What a pass measures.
pub(super) struct PassBounds {
    /// In how many passes all are measured again; none: only what is missing.
    pub anew: Option<usize>,
    /// From 1.
    pub pass: usize,
    /// When no other kernel is begun.
    pub deadline: Option<Instant>,
    pub wanted: Wanted,
}

/// The kernels of a pass.
pub(super) enum Wanted {
    All,
    These(BTreeSet<KernelKey>),
    /// Those of earlier measurements and of a first pass.
    KnownOr(Measurements, BTreeSet<KernelKey>),
}

impl Wanted {
    pub fn contains(&self, key: &KernelKey) -> bool {
        match self {
            Wanted::All => true,
            Wanted::These(keys) => keys.contains(key),
            Wanted::KnownOr(known, keys) => known.has(key) || keys.contains(key),
        }
    }
}

/// What the next pass of a series measures under a budget: in the first series whatever there is time for, in others what is
/// known of the first, so that a kernel has all its times; later what was measured before.
pub(super) fn wanted(all: &[Series], index: usize) -> Wanted {
    let keys = |pass: &Vec<KernelTime>| pass.iter().map(|one| one.key.clone()).collect();
    match (all[index].passes.first(), index) {
        (Some(first), _) => Wanted::These(keys(first)),
        (None, 0) => Wanted::All,
        (None, _) => {
            let first = all[0].passes.first().map_or_else(BTreeSet::new, keys);
            Wanted::KnownOr(all[0].known.clone(), first)
        }
    }
}
