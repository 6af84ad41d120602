//! Comparisons of a case: with one rank, with other kernels, in other precision.

use crate::{
    Case, DrawnMenu, Draws, KernelFactory, Outcome, Samples, Setup, Stored, kink_watch, mismatch,
    reference_kernels, run_programs,
};
use partita_cpu::{CpuKernels, CpuMenu, Level, Team};
use partita_lower::{LowerError, Strategy, WorkspaceLimit};
use partita_program::{Dtype, Menu, Optimizer, ProgramKind};
use partita_reference::{ReferenceKernels, ReferenceMenu};
use partita_run::Kernels;
use partita_space::{Bytes, Mesh, Rank};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// Tolerance for the order of sums in f64.
const EXACT: f64 = 1e-10;
/// Tolerance for rounding to f32.
const ROUNDED: f64 = 1e-4;
/// Data that come nearer to a kink are redrawn.
const MARGIN: f64 = 1e-4;
const REDRAWS: u64 = 20;
/// Allowed ratio of the error in another order of sums to the error of rounding.
const ALLOWANCE: f64 = 10.0;
/// A sum of thousands of products, taken in order in f32, is off by as many times the rounding of one
/// number; the reference kernels, which sum in f64, do not tell.
const SUMMED: f64 = 4.0;
/// Runs with perturbed data that measure the sensitivity to rounding.
const PERTURBATIONS: u64 = 3;

/// Samples and parameters of a case.
pub type Data = (Arc<Samples>, Vec<Vec<f64>>);

/// A case with its outcome by the f64 reference kernels on one rank, with which others are compared. It
/// takes as many micro-batches as the case's strategy.
///
/// Near a kink no two roundings need agree, and where training diverges they drift apart: the data
/// keep away from both.
pub struct Trial<'a> {
    case: &'a Case,
    data: Data,
    expected: Outcome,
}

/// Result of comparing a strategy with one exact rank.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Equal within the tolerance.
    Equal,
    /// Beyond the tolerance, but within the sensitivity to rounding; as text.
    IllConditioned(String),
    /// It cannot be lowered.
    Refused(LowerError),
    /// It differs or fails; as text.
    Wrong(String),
}

/// A run without results.
enum Trouble {
    Refused(LowerError),
    Broken(String),
}

impl<'a> Trial<'a> {
    /// With random data; `None` if all draws come near a kink or diverge.
    ///
    /// Panics if one rank cannot run the case.
    pub fn new(case: &'a Case) -> Option<Self> {
        Self::with_data(case, |redraw| draw(case, redraw))
    }

    /// As [`Trial::new`], with data from a number of the draw; f32 must hold them exactly.
    pub fn with_data(case: &'a Case, draw: impl Fn(u64) -> Data) -> Option<Self> {
        (0..REDRAWS).find_map(|redraw| {
            let data = draw(redraw);
            let (expected, margin) = exact(case, &data);
            let keeps_away = margin > MARGIN && converges(&expected);
            keeps_away.then_some(Self {
                case,
                data,
                expected,
            })
        })
    }

    /// Its data.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The f64 reference kernels under a strategy: only the order of sums may differ.
    pub fn reference(&self, strategy: &Strategy) -> Verdict {
        let outcome = attempt(&self.exact_setup(strategy, &self.data));
        self.judge(outcome, EXACT, || self.rounding(f64::EPSILON, &[]))
    }

    /// The fast kernels in f32 under a strategy at an instruction level; the case's seed decides between
    /// teams of one and two threads, and between usual and random configurations of convolutions.
    pub fn fast(&self, strategy: &Strategy, level: Level) -> Verdict {
        let threads = 1 + usize::from(self.case.seed.is_multiple_of(4));
        let menu = CpuMenu { threads, level };
        let kernels = |mesh: Mesh, rank: Rank| -> Box<dyn Kernels> {
            let team = Team::new(menu.threads, menu.level).expect("the level is available");
            Box::new(CpuKernels::new(mesh, rank, team))
        };
        self.drawn(strategy, &menu, &kernels)
    }

    /// Kernels in f32 under a strategy; the case's seed decides between usual and random configurations of convolutions.
    pub fn drawn(
        &self,
        strategy: &Strategy,
        menu: &dyn Menu,
        kernels: KernelFactory<'_>,
    ) -> Verdict {
        let mut strategy = strategy.clone();
        strategy.workspace = match self.case.seed % 5 {
            0 | 1 => WorkspaceLimit::Off,
            2 => WorkspaceLimit::Kernel(Bytes(1 << 20)),
            3 => WorkspaceLimit::Total(Bytes(1 << 24)),
            4.. => WorkspaceLimit::Live,
        };
        let drawn = DrawnMenu {
            menu,
            seed: self.case.seed,
        };
        self.rounded(&strategy, &drawn, kernels)
    }

    /// Kernels in f32 under a strategy.
    pub fn rounded(
        &self,
        strategy: &Strategy,
        menu: &dyn Menu,
        kernels: KernelFactory<'_>,
    ) -> Verdict {
        let setup = Setup {
            strategy: strategy.clone(),
            dtype: Dtype::F32,
            menu,
            ..setup(self.case, &self.data, kernels)
        };
        self.judge(attempt(&setup), ROUNDED, || {
            self.rounding(
                SUMMED * f64::from(f32::EPSILON),
                &[strategy.clone(), alone(self.case)],
            )
        })
    }

    /// `rounding` says how far rounding alone moves the outcome of this case; an outcome that is
    /// further off than the tolerance may be a few times as far off as that.
    fn judge(
        &self,
        outcome: Result<Outcome, Trouble>,
        tolerance: f64,
        rounding: impl Fn() -> f64,
    ) -> Verdict {
        let got = match outcome {
            Ok(got) => got,
            Err(Trouble::Refused(error)) => return Verdict::Refused(error),
            Err(Trouble::Broken(what)) => return Verdict::Wrong(what),
        };
        let Some(what) = mismatch(&got, &self.expected, tolerance) else {
            return Verdict::Equal;
        };
        let (ours, theirs) = (self.error(&got), rounding());
        if ours <= ALLOWANCE * theirs {
            Verdict::IllConditioned(format!("{ours:.1e}, by rounding alone {theirs:.1e}"))
        } else {
            Verdict::Wrong(format!("{what}; by rounding alone {theirs:.1e}"))
        }
    }

    /// The largest error of exact runs on data that are off by `epsilon`, and of the reference
    /// kernels in f32 under some strategies.
    fn rounding(&self, epsilon: f64, strategies: &[Strategy]) -> f64 {
        let shaken = (0..PERTURBATIONS).map(|seed| {
            let data = perturb(&self.data, epsilon, seed);
            attempt(&self.exact_setup(&alone(self.case), &data))
        });
        let plain = strategies.iter().map(|strategy| {
            let kernels = reference_kernels(Dtype::F32);
            let setup = Setup {
                strategy: strategy.clone(),
                dtype: Dtype::F32,
                ..setup(self.case, &self.data, &kernels)
            };
            attempt(&setup)
        });
        let outcomes = shaken.chain(plain).filter_map(Result::ok);
        outcomes.fold(0.0, |most, outcome| most.max(self.error(&outcome)))
    }

    fn exact_setup(&self, strategy: &Strategy, data: &Data) -> Setup<'a> {
        Setup {
            strategy: strategy.clone(),
            ..setup(self.case, data, &exact_kernels)
        }
    }

    /// The least tolerance, to a factor of 1.1, under which there is no mismatch.
    fn error(&self, got: &Outcome) -> f64 {
        let mut tolerance = 1e-14;
        while tolerance < 10.0 && mismatch(got, &self.expected, tolerance).is_some() {
            tolerance *= 1.1;
        }
        tolerance
    }
}

/// One rank with the same micro-batches.
fn alone(case: &Case) -> Strategy {
    let mut alone = Strategy::single();
    alone.micro = case.strategy.micro;
    alone
}

fn exact_kernels(mesh: Mesh, rank: Rank) -> Box<dyn Kernels> {
    Box::new(ReferenceKernels::<f64>::new(mesh, rank))
}

/// Perturbs each number by a random relative error up to `epsilon`, except integers, which may be classes.
fn perturb((samples, parameters): &Data, epsilon: f64, seed: u64) -> Data {
    let mut draws = Draws::new(seed);
    let mut shift = |value: f64| {
        if value.fract() == 0.0 {
            value
        } else {
            value * (1.0 + epsilon * draws.unit())
        }
    };
    let values = samples.values.iter().map(|values| {
        Stored::F64(match values {
            Stored::F32(values) => values.iter().map(|&value| shift(value.into())).collect(),
            Stored::F64(values) => values.iter().map(|&value| shift(value)).collect(),
            Stored::I16(_) => panic!("samples are drawn in floating point"),
        })
    });
    let values = values.collect();
    let parameters = parameters
        .iter()
        .map(|values| values.iter().map(|&value| shift(value)).collect())
        .collect();
    let samples = Samples {
        shape: samples.shape,
        values,
        targets: samples.targets.clone(),
        features: samples.features.clone(),
    };
    (Arc::new(samples), parameters)
}

/// Data that f32 holds exactly, samples in f64 or f32.
fn draw(case: &Case, redraw: u64) -> Data {
    let (samples, parameters) =
        Setup::draw(&case.graph, case.batch, case.seed + 1_000_000 * redraw);
    let round = |values: &[f64]| -> Vec<f32> { values.iter().map(|&v| v as f32).collect() };
    let widen = |values: Vec<f32>| -> Vec<f64> { values.into_iter().map(f64::from).collect() };
    let stored = samples.values.iter().map(|values| match values {
        Stored::F64(values) if case.seed.is_multiple_of(2) => Stored::F32(round(values)),
        Stored::F64(values) => Stored::F64(widen(round(values))),
        Stored::F32(_) | Stored::I16(_) => panic!("samples are drawn in f64"),
    });
    let samples = Samples {
        shape: samples.shape,
        values: stored.collect(),
        targets: samples.targets.iter().map(|t| widen(round(t))).collect(),
        features: samples.features.iter().map(|t| widen(round(t))).collect(),
    };
    let parameters = parameters.iter().map(|p| widen(round(p))).collect();
    (Arc::new(samples), parameters)
}

fn setup<'a>(
    case: &'a Case,
    (samples, parameters): &Data,
    kernels: KernelFactory<'a>,
) -> Setup<'a> {
    Setup {
        graph: &case.graph,
        strategy: alone(case),
        dtype: Dtype::F64,
        menu: &ReferenceMenu,
        kernels,
        optimizer: Optimizer::Sgd {
            momentum: 0.5,
            weight_decay: 0.01,
        },
        decay_norms: true,
        ema: None,
        clip: case.seed.is_multiple_of(3).then_some(0.5),
        learning_rate: 0.1,
        loss_scale: None,
        samples: Arc::clone(samples),
        parameters: parameters.clone(),
        steps: 3,
        seed: case.seed,
    }
}

/// Lowers, verifies and runs; a panic is a failure.
fn attempt(setup: &Setup<'_>) -> Result<Outcome, Trouble> {
    let whole = || {
        let program = |kind| setup.program(kind).map_err(Trouble::Refused);
        let programs = [
            program(ProgramKind::Fetch)?,
            program(ProgramKind::Train)?,
            program(ProgramKind::Evaluate)?,
        ];
        run_programs(setup, &programs).map_err(|error| Trouble::Broken(error.to_string()))
    };
    catch_unwind(AssertUnwindSafe(whole)).unwrap_or_else(|panic| {
        let message = match panic.downcast_ref::<String>() {
            Some(message) => message.as_str(),
            None => panic.downcast_ref::<&str>().unwrap_or(&"a panic"),
        };
        Err(Trouble::Broken(message.to_owned()))
    })
}

/// The exact outcome on one rank, and its least distance from a kink.
fn exact(case: &Case, data: &Data) -> (Outcome, f64) {
    let nearest = Mutex::new(None);
    let kernels = |mesh: Mesh, rank: Rank| -> Box<dyn Kernels> {
        let (kernels, margin) = kink_watch(Box::new(ReferenceKernels::<f64>::new(mesh, rank)));
        *nearest.lock().expect("one rank") = Some(margin);
        kernels
    };
    let outcome = match attempt(&setup(case, data, &kernels)) {
        Ok(outcome) => outcome,
        Err(Trouble::Refused(error)) => panic!("seed {} on one rank: {error}", case.seed),
        Err(Trouble::Broken(what)) => panic!("seed {} on one rank: {what}", case.seed),
    };
    let margin = nearest
        .into_inner()
        .expect("one rank")
        .expect("a rank has run");
    let margin = *margin.lock().expect("nobody panics while noting");
    (outcome, margin)
}

/// Whether the losses stay of the same order; where they explode, so does any rounding.
///
/// A batch norm hides exploding weights from the loss of training, not from an evaluation.
fn converges(outcome: &Outcome) -> bool {
    let most = outcome.losses.iter().copied().fold(0.0, f64::max);
    most <= 10.0 * outcome.losses[0] && outcome.evaluation[0] <= 100.0 * outcome.losses[0]
}
