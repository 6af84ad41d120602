//! The distribution of a step's time: its interval, and which of several steps is the fastest.

use super::{BySource, Skew, TimeSource, Uncertainty, normal};
use partita_space::Seconds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Probability with which the time of a step lies in its interval.
pub const CONFIDENCE: f64 = 0.9;

/// Draws of the factors of sources.
const DRAWS: usize = 256;

/// Draws of the errors of a strategy of its own, for each draw of the factors.
const ROUNDS: usize = 8;

/// Seeds of the orders of draws; those of sources are their numbers.
const MODEL_SEED: u64 = 100;
const SPLIT_SEED: u64 = 101;
const OWN_SEED: u64 = 102;

/// An interval that holds the time of a step with the probability `confidence`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low_seconds: Seconds,
    /// Upper end.
    pub high_seconds: Seconds,
    /// Probability.
    pub confidence: f64,
    /// What it is due to: shares of the variance by source, above a thousandth.
    pub due_to: BTreeMap<TimeSource, f64>,
    /// The share of what the simulation leaves out.
    pub due_to_model: f64,
    /// Sources that rest on assumed facts: their shares of the critical path, above a twentieth.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub assumed: BTreeMap<TimeSource, f64>,
}

/// Seconds of a path by source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathSeconds {
    /// Seconds by source, in the order of [`TimeSource::ALL`].
    pub seconds: BySource<f64>,
    /// Sums over tasks with an error of their own of their squared seconds.
    pub squares: BySource<f64>,
}

/// How sure the time of a step is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepUncertainty {
    /// How sure the costs are.
    pub costs: Uncertainty,
    /// The longest paths, the critical one first.
    pub paths: Vec<PathSeconds>,
    /// Whether ranks exchange activations or their gradients.
    pub exchanges_activations: bool,
}

/// How probable it is that a step is the fastest of several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probability {
    /// It is the fastest of all.
    pub fastest: f64,
    /// The first of them is faster than it; 1 for the first.
    pub slower_than_first: f64,
}

impl PathSeconds {
    /// Adds seconds of a source.
    pub fn add(&mut self, source: TimeSource, seconds: f64) {
        self.seconds[source as usize] += seconds;
    }

    /// Adds tasks, whose seconds are in it already, with errors of their own.
    pub fn add_tasks(&mut self, tasks: impl Iterator<Item = (TimeSource, f64)>) {
        for (source, seconds) in tasks {
            self.squares[source as usize] += seconds * seconds;
        }
    }

    /// With messages and collectives that take `factor` times as long.
    pub fn with_communication(mut self, factor: f64) -> Self {
        for source in TimeSource::ALL {
            if source.is_communication() {
                self.seconds[source as usize] *= factor;
            }
        }
        self
    }

    /// With as much less communication as makes it take `longest` at most; none if it takes longer without any.
    pub fn no_longer_than(self, longest: f64) -> Option<Self> {
        let all = TimeSource::ALL.into_iter().zip(self.seconds);
        let communication = all.filter(|(source, _)| source.is_communication());
        let communication: f64 = communication.map(|(_, seconds)| seconds).sum();
        let excess = self.total() - longest;
        if excess <= 0.0 {
            return Some(self);
        }
        (communication > excess).then(|| self.with_communication(1.0 - excess / communication))
    }

    /// Seconds of all sources.
    pub fn total(&self) -> f64 {
        self.seconds.iter().sum()
    }

    fn with(&self, factors: &BySource<f64>) -> f64 {
        let both = self.seconds.iter().zip(factors);
        both.map(|(seconds, factor)| seconds * factor).sum()
    }
}

impl StepUncertainty {
    /// The interval of a step that is predicted to take so long.
    pub fn interval(&self, predicted: Seconds) -> Interval {
        let own_spread = self.own();
        let [model, own] = [MODEL_SEED, OWN_SEED].map(|seed| normal::stratified(DRAWS, seed));
        let whole = model.into_iter().zip(own);
        let whole = whole.map(|(model, own)| self.costs.model.error(model) + own_spread * own);
        let logarithms = self.logarithms().into_iter().zip(whole);
        let mut logarithms: Vec<f64> = logarithms.map(|(sum, error)| sum + error).collect();
        logarithms.sort_by(f64::total_cmp);
        let outside = (1.0 - CONFIDENCE) / 2.0;
        let low = quantile(&logarithms, outside).min(0.0);
        let high = quantile(&logarithms, 1.0 - outside).max(0.0);
        Interval {
            low_seconds: predicted * low.exp(),
            high_seconds: predicted * high.exp(),
            confidence: CONFIDENCE,
            due_to_model: 1.0 - self.shares().iter().sum::<f64>(),
            due_to: (TimeSource::ALL.into_iter().zip(self.shares()))
                .filter(|(_, share)| *share > 0.001)
                .collect(),
            assumed: self.assumed(),
        }
    }

    /// Sources on assumed facts, with their shares of the critical path where these are above a twentieth.
    fn assumed(&self) -> BTreeMap<TimeSource, f64> {
        let Some(path) = self.paths.first().filter(|path| path.total() > 0.0) else {
            return BTreeMap::new();
        };
        let shares = TimeSource::ALL.map(|source| {
            let share = path.seconds[source as usize] / path.total();
            (source, share)
        });
        let assumed = shares
            .into_iter()
            .filter(|(source, share)| self.costs.assumed[*source as usize] && *share > 0.05);
        assumed.collect()
    }

    /// The time by the predicted one, if sources take these factors as long.
    pub fn relative_time(&self, factors: &BySource<f64>) -> f64 {
        let total = self.paths.first().map_or(0.0, PathSeconds::total);
        let longest = self.paths.iter().map(|path| path.with(factors));
        if total > 0.0 {
            longest.fold(0.0, f64::max) / total
        } else {
            1.0
        }
    }

    /// Spread of the errors that the step does not share with steps under other strategies.
    fn own(&self) -> f64 {
        let Some(path) = self.paths.first().filter(|path| path.total() > 0.0) else {
            return self.costs.own;
        };
        let spreads = self.costs.sources.iter().zip(&path.squares);
        let single: f64 = spreads
            .map(|(spread, squares)| spread.single.powi(2) * squares)
            .sum();
        self.costs.own.hypot(single.sqrt() / path.total())
    }

    /// Logarithms of the time by the predicted one, for each draw of the factors of sources and of what splits have
    /// in common.
    fn logarithms(&self) -> Vec<f64> {
        let split = normal::stratified(DRAWS, SPLIT_SEED).into_iter();
        let split: Vec<f64> = split.map(|z| self.split().error(z)).collect();
        let draws = TimeSource::ALL.map(|source| normal::stratified(DRAWS, source as u64));
        let one = |at: usize| {
            let factors = TimeSource::ALL.map(|source| {
                let z = draws[source as usize][at];
                (self.costs.of(source).shared * z).exp()
            });
            split[at] + self.relative_time(&factors).ln()
        };
        (0..DRAWS).map(one).collect()
    }

    /// Shares of the variance by source, to first order; the model has the rest.
    fn shares(&self) -> BySource<f64> {
        let Some(path) = self.paths.first().filter(|path| path.total() > 0.0) else {
            return [0.0; TimeSource::ALL.len()];
        };
        let variances = TimeSource::ALL.map(|source| {
            let (spread, at) = (self.costs.of(source), source as usize);
            let shared = (spread.shared * path.seconds[at]).powi(2);
            (shared + spread.single.powi(2) * path.squares[at]) / path.total().powi(2)
        });
        let model = self.costs.model.variance() + self.split().variance() + self.costs.own.powi(2);
        let all = model + variances.iter().sum::<f64>();
        variances.map(|variance| if all > 0.0 { variance / all } else { 0.0 })
    }

    fn split(&self) -> Skew {
        if self.exchanges_activations {
            self.costs.split
        } else {
            Skew::even(0.0)
        }
    }
}

/// The quantile of sorted numbers, linear between their centers.
fn quantile(sorted: &[f64], p: f64) -> f64 {
    let at = (p * sorted.len() as f64 - 0.5).clamp(0.0, sorted.len() as f64 - 1.0);
    let (below, part) = (at.floor() as usize, at.fract());
    let above = sorted[(below + 1).min(sorted.len() - 1)];
    sorted[below] * (1.0 - part) + above * part
}

/// How probable it is that each of these steps, of strategies on one machine, is the fastest.
///
/// They share the errors of sources, so that only what differs between them counts.
pub fn probabilities_fastest(steps: &[(Seconds, &StepUncertainty)]) -> Vec<Probability> {
    let times: Vec<Vec<f64>> = (steps.iter().enumerate())
        .map(|(number, (predicted, step))| {
            let (shared, own) = (step.logarithms(), step.own());
            let z = normal::independent(DRAWS * ROUNDS, 1 + number as u64);
            let z = z.into_iter().enumerate();
            z.map(|(at, z)| predicted.0.ln() + shared[at % DRAWS] + own * z)
                .collect()
        })
        .collect();
    let draws = (DRAWS * ROUNDS) as f64;
    let mut wins = vec![0.0; steps.len()];
    for draw in 0..DRAWS * ROUNDS {
        let fastest = (0..steps.len()).min_by(|&a, &b| times[a][draw].total_cmp(&times[b][draw]));
        if let Some(fastest) = fastest {
            wins[fastest] += 1.0 / draws;
        }
    }
    let slower = |number: usize| {
        let slower = (times[0].iter().zip(&times[number])).filter(|(first, own)| first <= own);
        slower.count() as f64 / draws
    };
    let probability = |(number, fastest)| Probability {
        fastest,
        slower_than_first: slower(number),
    };
    wins.into_iter().enumerate().map(probability).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Spread;
    use super::*;

    fn costs(spreads: &[(TimeSource, f64)], own: f64) -> Uncertainty {
        let mut costs = Uncertainty {
            own,
            ..Uncertainty::NONE
        };
        for &(source, shared) in spreads {
            costs.sources[source as usize] = Spread {
                shared,
                single: 0.0,
            };
        }
        costs
    }

    fn path(seconds: &[(TimeSource, f64)]) -> PathSeconds {
        let mut path = PathSeconds::default();
        for &(source, seconds) in seconds {
            path.add(source, seconds);
        }
        path
    }

    const KERNELS: TimeSource = TimeSource::Convolutions3d;
    const SUMS: TimeSource = TimeSource::CollectiveTransferBetween;

    #[test]
    fn one_source_has_the_interval_of_a_lognormal() {
        let step = StepUncertainty {
            costs: costs(&[(KERNELS, 0.2)], 0.0),
            paths: vec![path(&[(KERNELS, 3.0)])],
            exchanges_activations: false,
        };
        let interval = step.interval(Seconds(3.0));
        let end = (0.2 * 1.644_853_6_f64).exp();
        assert!(
            (interval.high_seconds.0 / (3.0 * end) - 1.0).abs() < 0.01,
            "{interval:?}"
        );
        assert!(
            (interval.low_seconds.0 / (3.0 / end) - 1.0).abs() < 0.01,
            "{interval:?}"
        );
        assert_eq!(interval.due_to, BTreeMap::from([(KERNELS, 1.0)]));
    }

    #[test]
    fn independent_sources_and_tasks_average_out() {
        let half = |spread| StepUncertainty {
            costs: costs(spread, 0.0),
            paths: vec![path(&[(KERNELS, 0.5), (SUMS, 0.5)])],
            exchanges_activations: false,
        };
        let width = |step: &StepUncertainty| {
            let interval = step.interval(Seconds(1.0));
            (interval.high_seconds.0 / interval.low_seconds.0).ln()
        };
        let both = width(&half(&[(KERNELS, 0.1), (SUMS, 0.1)]));
        assert!(
            (both / (0.2 * 1.644_85 / 2.0_f64.sqrt()) - 1.0).abs() < 0.08,
            "{both}"
        );
        let mut tasks = half(&[]);
        tasks.costs.sources[KERNELS as usize].single = 0.1;
        tasks.paths[0].add_tasks((0..50).map(|_| (KERNELS, 0.01)));
        let own = 0.1 * (50.0 * 0.01_f64.powi(2)).sqrt();
        assert!((tasks.own() - own).abs() < 1e-12);
    }

    #[test]
    fn hidden_communication_lengthens_the_upper_end_alone() {
        let costs = costs(&[(KERNELS, 0.02), (SUMS, 0.5)], 0.0);
        let kernels = path(&[(KERNELS, 1.0)]);
        let sums = path(&[(KERNELS, 0.2), (SUMS, 0.7)]);
        let interval = |paths| {
            let step = StepUncertainty {
                costs,
                paths,
                exchanges_activations: false,
            };
            step.interval(Seconds(1.0))
        };
        let (alone, hidden) = (
            interval(vec![kernels.clone()]),
            interval(vec![kernels, sums]),
        );
        assert!(hidden.high_seconds.0 > 1.5 && alone.high_seconds.0 < 1.05);
        assert!((hidden.low_seconds.0 - alone.low_seconds.0).abs() < 0.03);
    }

    #[test]
    fn what_is_left_out_of_exchanges_takes_time() {
        let mut step = StepUncertainty {
            costs: costs(&[], 0.0),
            paths: vec![path(&[(KERNELS, 1.0)])],
            exchanges_activations: false,
        };
        step.costs.split = Skew { down: 0.1, up: 0.5 };
        let whole = step.interval(Seconds(1.0));
        assert_eq!(
            (whole.low_seconds, whole.high_seconds),
            (Seconds(1.0), Seconds(1.0))
        );
        step.exchanges_activations = true;
        let split = step.interval(Seconds(1.0));
        assert!(
            (split.low_seconds.0.ln() / -0.1 - 1.644).abs() < 0.02,
            "{split:?}"
        );
        assert!(
            (split.high_seconds.0.ln() / 0.5 - 1.644).abs() < 0.02,
            "{split:?}"
        );
        assert_eq!(split.due_to_model, 1.0);
    }

    /// Both have the error of kernels; only the rest decides.
    #[test]
    fn shared_errors_do_not_change_which_is_the_fastest() {
        let step = |seconds, own| {
            let costs = costs(&[(KERNELS, 0.5)], own);
            let paths = vec![path(&[(KERNELS, seconds)])];
            StepUncertainty {
                costs,
                paths,
                exchanges_activations: false,
            }
        };
        let probabilities = |own: f64, times: &[f64]| {
            let steps: Vec<StepUncertainty> = times.iter().map(|&time| step(time, own)).collect();
            let timed = times.iter().map(|&time| Seconds(time)).zip(&steps);
            probabilities_fastest(&timed.collect::<Vec<_>>())
        };
        let sure = probabilities(0.0, &[1.0, 1.01]);
        assert_eq!((sure[0].fastest, sure[1].fastest), (1.0, 0.0));
        let even = probabilities(0.05, &[1.0, 1.0, 1.0, 1.0]);
        assert!(
            even.iter().all(|one| (one.fastest - 0.25).abs() < 0.04),
            "{even:?}"
        );
        let sum: f64 = even.iter().map(|one| one.fastest).sum();
        assert!((sum - 1.0).abs() < 1e-9);
        // The difference of two errors of 5 %, beside 10 %: 1.35 standard deviations.
        let apart = probabilities(0.05, &[1.0, 1.1]);
        assert!(
            (apart[1].slower_than_first - 0.911).abs() < 0.02,
            "{apart:?}"
        );
    }
}
