//! Samples cannot come from where they are to come from.

use super::Dataset;
use partita_cluster::Machine;
use partita_space::{Bytes, Help};
use std::fmt;

/// Samples cannot come from where they are to come from: the host memory does not hold the dataset, or the machine file
/// does not say how fast files are read.
#[derive(Clone, Debug, PartialEq)]
pub struct InputError {
    machine: String,
    /// Whether the machine file says how fast files are read.
    reads_files: bool,
    batch: usize,
    /// Devices of the machine.
    devices: usize,
    dataset: Box<Dataset>,
}

impl InputError {
    pub(super) fn new(batch: usize, machine: &Machine, dataset: Dataset) -> Self {
        Self {
            machine: machine.name.clone(),
            reads_files: machine.io.is_some(),
            batch,
            devices: machine.devices(),
            dataset: Box::new(dataset),
        }
    }

    /// Ways out, each of which can be taken alone.
    fn possible(&self) -> Vec<String> {
        let mut possible = Vec::new();
        if self.reads_files {
            possible.push("`--io files`".to_owned());
        }
        let store = "`--io store`, for which samples stay in host memory";
        if self.dataset.fits() {
            possible.push(store.to_owned());
        } else {
            let ranks = self.dataset.ranks_min;
            let ranks = ranks.filter(|ranks| *ranks <= self.devices);
            possible.extend(ranks.map(|ranks| format!("{store}, on {ranks} ranks or more")));
            let held = self.dataset.bytes_held_max.unwrap_or(Bytes(0));
            let samples = held.0 / self.dataset.bytes_per_sample.0.max(1);
            if samples >= self.batch as u64 {
                possible.push(format!(
                    "`--io store --dataset-samples {samples}` or fewer samples"
                ));
            }
        }
        possible.push("`--no-io`, which ignores the time of input".to_owned());
        possible
    }
}

impl std::error::Error for InputError {}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons = Vec::new();
        if !self.reads_files {
            reasons.push(format!(
                "machine `{}` does not say `io`, which is needed to read samples from files",
                self.machine
            ));
        }
        if !self.dataset.fits() {
            reasons.push(format!(
                "host memory does not hold the dataset ({})",
                self.dataset
            ));
        }
        let (reasons, possible) = (reasons.join("; "), self.possible().join("; "));
        write!(f, "{reasons}{}", Help::none().nearest(possible))
    }
}
