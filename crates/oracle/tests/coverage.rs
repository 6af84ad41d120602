//! Measured steps of the accuracy record lie in the intervals of their predictions.
//!
//! Records before intervals have no seconds by source; they follow from the breakdown and from what kernels were
//! based on. Errors of single kernels are left out there, so that intervals are rather too narrow.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests lie outside test functions"
)]

use partita_oracle::uncertainty::PathSeconds;
use partita_oracle::{Breakdown, KernelBasis};
use partita_oracle::{CostBasis, Costs, Interval, MeasuredCosts, StepUncertainty, TimeSource};
use partita_space::Seconds;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

#[derive(Deserialize)]
struct Record {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    world: String,
    held_out: bool,
    predictions: Vec<Predicted>,
    turns: Vec<Turn>,
}

#[derive(Deserialize)]
struct Predicted {
    iteration_seconds: Seconds,
    basis: CostBasis,
    known: BTreeMap<KernelBasis, f64>,
    breakdown: Breakdown,
    interval: Option<Interval>,
}

#[derive(Deserialize)]
struct Turn {
    step_seconds: Seconds,
}

impl Predicted {
    fn interval(&self) -> Interval {
        let stored = self.interval.clone();
        stored.unwrap_or_else(|| self.uncertainty().interval(self.iteration_seconds))
    }

    fn uncertainty(&self) -> StepUncertainty {
        // Ranks of these runs share a node, which was measured or calibrated.
        assert!(self.basis != CostBasis::Modeled);
        let breakdown = &self.breakdown;
        let kernels = breakdown.forward_compute + breakdown.backward_compute + breakdown.update;
        let mut path = PathSeconds::default();
        for (basis, share) in &self.known {
            let source = match basis {
                KernelBasis::Measured => TimeSource::MeasuredKernels,
                KernelBasis::Estimated => TimeSource::EstimatedKernels,
                KernelBasis::Extrapolated => TimeSource::ExtrapolatedKernels,
                KernelBasis::Modeled => panic!("a formula on a measured machine"),
            };
            path.add(source, kernels.0 * share);
        }
        let messages = breakdown.forward_exchange + breakdown.backward_exchange;
        path.add(TimeSource::MessageTransferWithin, messages.0);
        let sums = breakdown.gradient_allreduce_exposed + breakdown.redistribution;
        path.add(TimeSource::CollectiveTransferWithin, sums.0);
        path.add(TimeSource::Reads, breakdown.io.0);
        StepUncertainty {
            costs: MeasuredCosts::default().uncertainty(2),
            paths: vec![path],
            exchanges_activations: false,
        }
    }
}

fn records() -> Vec<Record> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../records");
    let mut paths: Vec<PathBuf> = (fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().ends_with("-accuracy.json"))
        .collect();
    paths.sort();
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    paths
        .into_iter()
        .map(|path| serde_json::from_str(&read(path)).unwrap())
        .collect()
}

/// Runs in their interval, all runs, and the median half-width.
fn coverage(name: &str, cases: &[&Case]) -> f64 {
    let (mut inside, mut widths) = (0, Vec::new());
    for case in cases {
        for (prediction, turn) in case.predictions.iter().zip(&case.turns) {
            let interval = prediction.interval();
            let ends = interval.low_seconds..=interval.high_seconds;
            inside += usize::from(ends.contains(&turn.step_seconds));
            widths.push((interval.high_seconds.0 / interval.low_seconds.0).ln() / 2.0);
        }
    }
    widths.sort_by(f64::total_cmp);
    let share = inside as f64 / widths.len() as f64;
    println!(
        "{name}: {inside} of {} runs in their interval, {:.1} %, median half-width {:.1} %",
        widths.len(),
        100.0 * share,
        100.0 * (widths[widths.len() / 2].exp() - 1.0)
    );
    share
}

/// Spreads were fitted to cases with an even number, and are checked by those with an odd one.
#[test]
fn nine_of_ten_runs_lie_in_their_interval() {
    for record in records() {
        let all: Vec<&Case> = record.cases.iter().collect();
        let half = |rest: usize| -> Vec<&Case> {
            let numbered = all.iter().enumerate();
            let half = numbered.filter(|(number, _)| number % 2 == rest);
            half.map(|(_, case)| *case).collect()
        };
        let part = |is_in: &dyn Fn(&Case) -> bool| -> Vec<&Case> {
            all.iter().copied().filter(|case| is_in(case)).collect()
        };
        coverage("fitted to", &half(0));
        let checked = coverage("not fitted to", &half(1));
        coverage("threads", &part(&|case| case.world == "threads"));
        coverage("MPI", &part(&|case| case.world == "mpi"));
        coverage("held out", &part(&|case| case.held_out));
        coverage("menu", &part(&|case| !case.held_out));
        let share = coverage("all", &all);
        // Neither too narrow nor vacuous.
        assert!((0.88..=0.97).contains(&share), "{share}");
        assert!(checked >= 0.85, "{checked}");
    }
}
