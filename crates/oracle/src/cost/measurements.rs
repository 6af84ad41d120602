//! From what was measured on a machine to what a program costs on it.

use super::{KernelCost, Known, LinkFit, LinkTimes, MeasuredCosts, Point, host_seconds_per_byte};
use crate::efficiency::{Features, Sample};
use crate::fit::{FitError, fit_line};
use partita_program::Count;
use partita_space::{Bytes, Seconds};
use std::collections::{BTreeMap, BTreeSet};

/// Seconds of kernels by signature, then by algorithm.
pub type KernelTimes = BTreeMap<String, BTreeMap<String, Seconds>>;

/// Flops in a second, and bytes that are moved, of about any core of today.
const CORE_FLOPS: f64 = 1e11;
const CORE_BYTES: f64 = 1e10;

/// About how long a core takes for a task of which only the counts are known, within a factor of ten:
/// enough to tell what caches have lost meanwhile, and for nothing else.
pub fn rough_seconds(count: &Count) -> Seconds {
    let bytes = count.read + count.written;
    Seconds(count.flops.0 as f64 / CORE_FLOPS + bytes.0 as f64 / CORE_BYTES)
}

/// How many threads share a core on the mean; at least 1.
fn turns(threads: usize, cores: usize) -> f64 {
    (threads as f64 / cores.max(1) as f64).max(1.0)
}

impl MeasuredCosts {
    /// Kernels that were measured both with all ranks at work (`together`) and with the others at rest
    /// (`alone`), of so many threads of all ranks on so many cores.
    ///
    /// A kernel may have a core to itself for as long as it is timed, but not all of them have one for a
    /// whole step: together they take at least as many turns as threads share a core.
    pub fn of_kernels(
        together: &KernelTimes,
        alone: &KernelTimes,
        threads: usize,
        cores: usize,
    ) -> Self {
        let (mut costs, turns) = (Self::default(), turns(threads, cores));
        for (signature, algorithms) in together {
            for (algorithm, &together) in algorithms {
                let alone = alone.get(signature).and_then(|times| times.get(algorithm));
                let Some(&alone) = alone else {
                    continue;
                };
                let cost = KernelCost {
                    // Measured slower alone, something else disturbed it.
                    alone: alone.min(together),
                    together: together.max(alone * turns),
                    known: Known::Measured,
                };
                let key = (signature.clone(), algorithm.clone());
                costs.kernels.insert(key, cost);
            }
        }
        costs
    }

    /// Takes in the fits of messages and collectives.
    ///
    /// Errors: points that no line fits.
    pub fn add_links(&mut self, links: &LinkTimes) -> Result<(), FitError> {
        if !links.message.is_empty() {
            // A message is packed at one end and unpacked at the other.
            self.message = Some(link_fit(&links.message, 2.0)?);
        }
        let kinds = [
            (&mut self.allreduce, &links.allreduce),
            (&mut self.allgather, &links.allgather),
            (&mut self.reduce_scatter, &links.reduce_scatter),
            (&mut self.alltoall, &links.alltoall),
        ];
        for (fits, times) in kinds {
            for (&members, points) in times {
                fits.insert(members, link_fit(points, 1.0)?);
            }
        }
        Ok(())
    }

    /// Takes in the fit of reads; without points, reading takes no time.
    ///
    /// Errors: points that no line fits.
    pub fn add_reads(&mut self, points: Option<&[Point]>) -> Result<(), FitError> {
        self.load = Some(match points {
            Some(points) => link_fit(points, 1.0)?,
            None => LinkFit::default(),
        });
        Ok(())
    }

    /// The kernels of these signatures as samples of a fit, where their features are known.
    pub fn samples(
        &self,
        features: &BTreeMap<String, Features>,
        measured: &BTreeSet<String>,
    ) -> Vec<Sample> {
        let sample = |((signature, _), cost): (&(String, String), &KernelCost)| {
            measured.get(signature)?;
            let features = features.get(signature)?.clone();
            Some(Sample {
                features,
                cost: *cost,
            })
        };
        self.kernels.iter().filter_map(sample).collect()
    }
}

/// A line through the points. `bytes_per_byte` as in [`host_seconds_per_byte`].
fn link_fit(points: &[Point], bytes_per_byte: f64) -> Result<LinkFit, FitError> {
    let pairs: Vec<(Bytes, Seconds)> = points
        .iter()
        .map(|point| (point.bytes, point.seconds))
        .collect();
    Ok(fit_line(&pairs)?.link(host_seconds_per_byte(points, bytes_per_byte)))
}
