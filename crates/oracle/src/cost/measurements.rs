//! Makes costs from measured times.

use super::{
    Contention, KernelBasis, KernelCost, LinkTimes, MeasuredCosts, StoreFit, host_seconds_per_byte,
};
use crate::fit::{FitError, fit_line};
use crate::kernel_model::{Features, KernelSample};
use partita_cluster::{LinkFit, TransferTime};
use partita_program::Count;
use partita_space::{Bytes, Seconds};
use std::collections::{BTreeMap, BTreeSet};

/// Seconds of kernels by signature, then by algorithm.
pub type KernelTimes = BTreeMap<String, BTreeMap<String, Seconds>>;

/// Typical flops and bytes per second of a core.
const CORE_FLOPS: f64 = 1e11;
const CORE_BYTES: f64 = 1e10;

/// A guess of a task's time on one core from its counts, within a factor of ten. It serves to estimate what
/// caches lose meanwhile, and nothing else.
pub fn rough_seconds(count: &Count) -> Seconds {
    let bytes = count.read + count.written;
    Seconds(count.flops.0 as f64 / CORE_FLOPS + bytes.0 as f64 / CORE_BYTES)
}

/// Threads per core, at least 1.
fn threads_per_core(threads: usize, cores: usize) -> f64 {
    (threads as f64 / cores.max(1) as f64).max(1.0)
}

impl MeasuredCosts {
    /// Costs of kernels that were measured both with all ranks computing (`together`) and with the others
    /// idle (`alone`); `threads` of all ranks share `cores`.
    ///
    /// While it is timed, a kernel may have a core to itself even if there are fewer cores than threads. In a
    /// step it does not: `together` is at least `alone` times the threads per core.
    pub fn of_kernels(
        together: &KernelTimes,
        alone: &KernelTimes,
        threads: usize,
        cores: usize,
    ) -> Self {
        let threads_per_core = threads_per_core(threads, cores);
        let mut costs = Self::default();
        if threads_per_core > 1.0 {
            costs.contention = Contention::Units;
        }
        for (signature, algorithms) in together {
            for (algorithm, &together) in algorithms {
                let alone = alone.get(signature).and_then(|times| times.get(algorithm));
                let Some(&alone) = alone else {
                    continue;
                };
                let cost = KernelCost {
                    // Noise may make a kernel slower alone.
                    alone: alone.min(together),
                    together: together.max(alone * threads_per_core),
                    basis: KernelBasis::Measured,
                };
                let key = (signature.clone(), algorithm.clone());
                costs.kernels.insert(key, cost);
            }
        }
        costs
    }

    /// Fits messages and collectives.
    ///
    /// Errors: those of [`fit_line`].
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

    /// Fits reads; without points, reads take no time.
    ///
    /// Errors: those of [`fit_line`].
    pub fn add_reads(&mut self, points: Option<&[TransferTime]>) -> Result<(), FitError> {
        self.load = Some(match points {
            Some(points) => link_fit(points, 1.0)?,
            None => LinkFit::default(),
        });
        Ok(())
    }

    /// Fits copies of samples in memory, from which they come in place of files; with `has_messages`, those of other ranks
    /// are sent.
    ///
    /// Errors: those of [`fit_line`].
    pub fn add_store(
        &mut self,
        copies: &[TransferTime],
        has_messages: bool,
    ) -> Result<(), FitError> {
        let copy = link_fit(copies, 1.0)?;
        self.store = Some(StoreFit { copy, has_messages });
        Ok(())
    }

    /// The kernels with these signatures, if their features are known.
    pub fn samples(
        &self,
        features: &BTreeMap<String, Features>,
        measured: &BTreeSet<String>,
    ) -> Vec<KernelSample> {
        let sample = |((signature, _), cost): (&(String, String), &KernelCost)| {
            measured.get(signature)?;
            let features = features.get(signature)?.clone();
            Some(KernelSample {
                features,
                cost: *cost,
            })
        };
        self.kernels.iter().filter_map(sample).collect()
    }
}

/// `bytes_per_byte` as in [`host_seconds_per_byte`].
fn link_fit(points: &[TransferTime], bytes_per_byte: f64) -> Result<LinkFit, FitError> {
    let pairs: Vec<(Bytes, Seconds)> = points
        .iter()
        .map(|point| (point.bytes, point.seconds))
        .collect();
    let line = fit_line(&pairs)?;
    let host = host_seconds_per_byte(points, bytes_per_byte);
    let mut sorted = points.to_vec();
    sorted.sort_by_key(|point| point.bytes);
    sorted.dedup_by_key(|point| point.bytes);
    // Noise may make more bytes faster.
    let mut most = [Seconds(0.0); 2];
    let points = sorted.iter().map(|point| {
        most = [
            most[0].max(point.seconds),
            most[1].max(point.host * (1.0 / bytes_per_byte)),
        ];
        TransferTime {
            bytes: point.bytes,
            seconds: most[0],
            host: most[1],
        }
    });
    Ok(LinkFit {
        points: points.collect(),
        ..LinkFit::line(line.latency, line.seconds_per_byte, host)
    })
}
