//! How much of the arithmetic of the devices a training uses, and which rank computes longest.

use partita_forecast::{InputSource, LocalMachine, MeasuringBudget, machine};
use partita_graph::{Graph, count};
use partita_program::{Lane, Program};
use partita_session::Outcome;
use partita_site::RankConfig;
use partita_site::launch::Launch;
use partita_space::{Flops, FlopsPerSecond, Rank, Seconds};
use serde::Serialize;
use std::sync::Arc;

/// The peak of the device of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Peak {
    /// Its rate in single precision.
    pub flops_per_second: FlopsPerSecond,
    /// Where it comes from.
    pub source: String,
}

/// What turns samples a second into flops a second and their share of the peak.
#[derive(Clone, Debug)]
pub struct UtilizationScale {
    /// Of forward and backward pass, in convolutions, linear layers and attention. What is computed twice, on halos or
    /// by recomputation, counts once.
    pub flops_per_sample: Flops,
    ranks: usize,
    peak: Option<Peak>,
}

impl UtilizationScale {
    /// That of a run. The peak is that of the machine file that the run names; else the rate of the fastest kernel
    /// measured for the prediction of the run, if it has one.
    pub fn of(
        launch: &Launch<'_>,
        graph: &Graph,
        config: RankConfig,
        machine: Option<&str>,
        is_predicted: bool,
    ) -> Self {
        let peak = match machine.filter(|name| !machine::is_local(name)) {
            Some(name) => peak_of(launch, name),
            None if is_predicted => peak_here(launch, config),
            None => None,
        };
        Self {
            flops_per_sample: count(graph).executed_flops,
            ranks: config.ranks,
            peak,
        }
    }

    /// Flops a second and their share of the peak of all ranks.
    pub fn at(&self, samples_per_second: f64) -> Utilization {
        let rate = self.flops_per_sample.0 as f64 * samples_per_second;
        let of_peak = |peak: &Peak| rate / (peak.flops_per_second.0 * self.ranks as f64);
        Utilization {
            flops_per_sample: self.flops_per_sample,
            flops_per_second: FlopsPerSecond(rate),
            peak: self.peak.clone(),
            mfu: self.peak.as_ref().map(of_peak),
        }
    }
}

/// Model flops and their share of the peak.
///
/// Source: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B (MFU).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Utilization {
    /// Flops of a training step for each sample.
    pub flops_per_sample: Flops,
    /// Of all ranks together.
    pub flops_per_second: FlopsPerSecond,
    /// Of each rank; null where it is not known.
    pub peak: Option<Peak>,
    /// Model flops utilization: fraction of the peak of all ranks.
    pub mfu: Option<f64>,
}

fn peak_of(launch: &Launch<'_>, machine: &str) -> Option<Peak> {
    let machine = machine::resolve(machine, launch.context().environment()).ok()?;
    Some(Peak {
        flops_per_second: machine.device.peak_flops_f32.value,
        source: format!("peak_flops_f32 of machine `{}`", machine.name),
    })
}

fn peak_here(launch: &Launch<'_>, config: RankConfig) -> Option<Peak> {
    if !config.kernels.is_on_processor() || !launch.is_first() {
        return None;
    }
    let ranks = launch.on_this_host(config).ok()?;
    let (context, input) = (launch.context(), InputSource::Ignored);
    let here = LocalMachine::of(context, config.kernels, ranks, input).ok()?;
    let here = here.within(Arc::new(MeasuringBudget::default()));
    Some(Peak {
        flops_per_second: here.fastest_kernel()?,
        source: "the fastest kernel measured here, with all ranks at work".to_owned(),
    })
}

/// Seconds in kernels of a step, by rank: the sums of the medians of its tasks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComputeTimes {
    /// The rank that computes longest.
    pub slowest_rank: Rank,
    /// Its time.
    pub seconds_max: Seconds,
    /// Mean over the ranks.
    pub seconds_mean: Seconds,
    /// All, in the order of ranks.
    pub seconds: Vec<Seconds>,
}

impl ComputeTimes {
    /// Of what the ranks measured; `None` if no step was measured.
    pub fn of(program: &Program, outcomes: &[Outcome]) -> Option<Self> {
        if outcomes.iter().any(|one| one.measured_steps == 0) {
            return None;
        }
        let of_rank = |outcome: &Outcome| -> Seconds {
            let tasks = &program.body(outcome.rank).tasks;
            let timed = tasks.iter().zip(&outcome.task_seconds);
            let kernels = timed.filter(|(task, _)| task.work.lane() == Lane::Compute);
            kernels.map(|(_, &seconds)| seconds).sum()
        };
        let seconds: Vec<Seconds> = outcomes.iter().map(of_rank).collect();
        let all: Seconds = seconds.iter().copied().sum();
        let slowest = outcomes.iter().zip(&seconds);
        // The first of equals.
        let slowest = slowest.rev().max_by(|a, b| a.1.0.total_cmp(&b.1.0))?;
        Some(Self {
            slowest_rank: slowest.0.rank,
            seconds_max: *slowest.1,
            seconds_mean: Seconds(all.0 / seconds.len() as f64),
            seconds,
        })
    }
}
