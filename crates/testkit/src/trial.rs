use crate::{
    Case, KernelFactory, KinkWatch, Outcome, Setup, mismatch, reference_kernels, run_programs,
};
use partita_cpu::{CpuKernels, CpuMenu, Level, Team};
use partita_local::{ReferenceKernels, ReferenceMenu, Samples, Stored};
use partita_lower::{LowerError, Strategy};
use partita_program::{Dtype, Optimizer, ProgramKind};
use partita_run::Kernels;
use partita_space::{Mesh, Rank};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// What the order of sums may change in f64.
const EXACT: f64 = 1e-10;
/// What rounding to f32 may change.
const ROUNDED: f64 = 1e-4;
/// Data that come nearer to a kink are drawn anew.
const MARGIN: f64 = 1e-4;
const REDRAWS: u64 = 20;
/// What rounding in another order may cost, next to the reference kernels in f32.
const ALLOWANCE: f64 = 10.0;

/// Samples and parameters of a case.
pub type Data = (Arc<Samples>, Vec<Vec<f64>>);

/// A case with its outcome by the f64 reference kernels on one rank, with which others are compared.
///
/// Near a kink no two roundings need agree, and where training diverges they drift apart: the data
/// keep away from both.
pub struct Trial<'a> {
    case: &'a Case,
    data: Data,
    expected: Outcome,
}

/// How a strategy compares with one exact rank.
#[derive(Clone, Debug)]
pub enum Finding {
    /// The same within the tolerance.
    Equal,
    /// Further off than the tolerance, but so are the reference kernels in f32; in words.
    IllConditioned(String),
    /// It cannot be lowered.
    Refused(LowerError),
    /// It differs, or it breaks; in words.
    Wrong(String),
}

/// A run that gave nothing.
enum Trouble {
    Refused(LowerError),
    Broken(String),
}

impl<'a> Trial<'a> {
    /// With random data; `None` if all draws come near a kink or diverge.
    ///
    /// Panics where one rank cannot run the case at all.
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

    /// The f64 reference kernels under a strategy: only the order of sums may differ.
    pub fn reference(&self, strategy: Strategy) -> Finding {
        let kernels = reference_kernels(Dtype::F64);
        let setup = Setup {
            strategy,
            ..setup(self.case, &self.data, &kernels)
        };
        self.judge(attempt(&setup), EXACT, |_| None)
    }

    /// The fast kernels in f32 under a strategy, on teams and levels that go by the case's seed.
    ///
    /// Where rounding alone moves the reference kernels in f32 further than the tolerance, these
    /// may be a few times as far from f64 as those.
    pub fn fast(&self, strategy: Strategy) -> Finding {
        let seed = self.case.seed;
        let menu = CpuMenu {
            threads: if seed.is_multiple_of(4) { 2 } else { 1 },
            level: match seed % 5 {
                0 => Level::Portable,
                1 if Level::Avx2.available() => Level::Avx2,
                _ => Level::detect(),
            },
        };
        let kernels = |mesh: Mesh, rank: Rank| -> Box<dyn Kernels> {
            let team = Team::new(menu.threads, menu.level).expect("the level is available");
            Box::new(CpuKernels::new(mesh, rank, team))
        };
        let setup = Setup {
            strategy,
            dtype: Dtype::F32,
            menu: &menu,
            ..setup(self.case, &self.data, &kernels)
        };
        self.judge(attempt(&setup), ROUNDED, |got| {
            let (ours, theirs) = (self.error(got), self.error(&self.plain(strategy)?));
            (ours <= ALLOWANCE * theirs)
                .then(|| format!("{ours:.1e}, reference kernels in f32 {theirs:.1e}"))
        })
    }

    /// `excuse` says why an outcome may be further off than the tolerance.
    fn judge(
        &self,
        outcome: Result<Outcome, Trouble>,
        tolerance: f64,
        excuse: impl Fn(&Outcome) -> Option<String>,
    ) -> Finding {
        let got = match outcome {
            Ok(got) => got,
            Err(Trouble::Refused(error)) => return Finding::Refused(error),
            Err(Trouble::Broken(what)) => return Finding::Wrong(what),
        };
        match mismatch(&got, &self.expected, tolerance) {
            None => Finding::Equal,
            Some(what) => match excuse(&got) {
                Some(excuse) => Finding::IllConditioned(excuse),
                None => Finding::Wrong(what),
            },
        }
    }

    /// The same ranks with the reference kernels in f32.
    fn plain(&self, strategy: Strategy) -> Option<Outcome> {
        let kernels = reference_kernels(Dtype::F32);
        let setup = Setup {
            strategy,
            dtype: Dtype::F32,
            ..setup(self.case, &self.data, &kernels)
        };
        attempt(&setup).ok()
    }

    /// The least tolerance, to a factor of 1.1, under which there is no mismatch.
    fn error(&self, got: &Outcome) -> f64 {
        let mut tolerance = 1e-8;
        while tolerance < 10.0 && mismatch(got, &self.expected, tolerance).is_some() {
            tolerance *= 1.1;
        }
        tolerance
    }
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
        strategy: Strategy::single(),
        dtype: Dtype::F64,
        menu: &ReferenceMenu,
        kernels,
        optimizer: Optimizer::Sgd {
            momentum: 0.5,
            weight_decay: 0.01,
        },
        clip: case.seed.is_multiple_of(3).then_some(0.5),
        learning_rate: 0.1,
        samples: Arc::clone(samples),
        parameters: parameters.clone(),
        steps: 3,
        seed: case.seed,
    }
}

/// Lowers, verifies and runs; whatever panics on the way is a fault like any other.
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

/// The exact outcome on one rank, and how near it came to a kink.
fn exact(case: &Case, data: &Data) -> (Outcome, f64) {
    let nearest = Mutex::new(None);
    let kernels = |mesh: Mesh, rank: Rank| -> Box<dyn Kernels> {
        let (watch, margin) = KinkWatch::new(ReferenceKernels::<f64>::new(mesh, rank));
        *nearest.lock().expect("one rank") = Some(margin);
        Box::new(watch)
    };
    let outcome = match attempt(&setup(case, data, &kernels)) {
        Ok(outcome) => outcome,
        Err(Trouble::Refused(error)) => panic!("seed {} on one rank: {error}", case.seed),
        Err(Trouble::Broken(what)) => panic!("seed {} on one rank: {what}", case.seed),
    };
    let margin = nearest.into_inner().expect("one rank");
    let margin = margin.expect("a rank has run");
    let margin = *margin.lock().expect("nobody panics while noting");
    (outcome, margin)
}

/// Whether the losses stay of the same order; where they explode, so does any rounding.
fn converges(outcome: &Outcome) -> bool {
    let most = outcome.losses.iter().copied().fold(0.0, f64::max);
    most <= 10.0 * outcome.losses[0]
}
