//! What was compared, what was refused, and what differs.

use crate::{PARTS, naive};
use partita_graph::GraphError;
use partita_lower::{LowerError, Strategy, StrategyError};
use partita_space::{AXES, Axis};
use partita_testkit::{Case, Level, Share, Trial, Verdict, print, test_levels};
use std::collections::BTreeMap;

/// The refusals that may be met; each must be predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    WindowTooLarge,
    OutputPadding,
    NothingLeft,
    PoolPadding,
    PoolDilation,
    PeriodicPadding,
    TooFine,
}

impl Refusal {
    pub fn of_graph(error: &GraphError) -> Option<Self> {
        Some(match error {
            GraphError::WindowTooLarge { .. } => Refusal::WindowTooLarge,
            GraphError::OutputPadding { .. } => Refusal::OutputPadding,
            GraphError::NothingLeft { .. } => Refusal::NothingLeft,
            GraphError::PoolPadding { .. } => Refusal::PoolPadding,
            GraphError::PoolDilation { .. } => Refusal::PoolDilation,
            GraphError::PeriodicPadding { .. } => Refusal::PeriodicPadding,
            _ => return None,
        })
    }

    pub fn of_lowering(error: &LowerError) -> Option<Self> {
        match error {
            LowerError::Strategy(StrategyError::TooFine { .. }) => Some(Refusal::TooFine),
            LowerError::Strategy(_)
            | LowerError::Menu(_)
            | LowerError::TooLarge { .. }
            | LowerError::Uncountable(_) => None,
        }
    }
}

/// More failures than these are not text in full.
const REPORTED_MAX: usize = 4;

/// Kernels that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Compared {
    /// Reference kernels in f64.
    Reference,
    /// Fast kernels at an instruction level.
    Fast(Level),
}

/// The counts of one test.
#[derive(Default)]
pub struct Ledger {
    strict: bool,
    /// Comparisons that agree.
    agreed: BTreeMap<Compared, usize>,
    cases: u64,
    refused: BTreeMap<Refusal, usize>,
    kinked: Vec<u64>,
    /// The first comparison of each case that is ill-conditioned.
    hard: BTreeMap<u64, String>,
    failures: Vec<String>,
}

impl Ledger {
    /// One in which rounding excuses nothing.
    pub fn strict() -> Self {
        Self {
            strict: true,
            ..Self::default()
        }
    }

    /// Notes a layer that a graph refused, and checks that it was predicted and says which layer.
    pub fn refused(&mut self, layer: &str, predicted: Option<Refusal>, error: &GraphError) {
        let text = error.to_string();
        let is_reported = text.contains(&format!("`{layer}`")) && text.contains("\nhelp: try ");
        match Refusal::of_graph(error) {
            Some(refusal) if Some(refusal) == predicted && is_reported => {
                *self.refused.entry(refusal).or_default() += 1;
            }
            _ => self.fail(format!("{predicted:?} was predicted, but: {text}")),
        }
    }

    /// How many there were so far.
    pub fn cases(&self) -> u64 {
        self.cases
    }

    pub fn fail(&mut self, what: String) {
        self.failures.push(what);
    }

    /// Compares one exact rank with the definitions, and every strategy with one exact rank, by the
    /// reference kernels and by the fast ones, which also compute on one rank. `name` tells how to
    /// repeat the case.
    pub fn compare(&mut self, name: &str, case: &Case, strategies: &[Strategy]) {
        match Trial::new(case) {
            Some(trial) => {
                if let Err(what) = naive::check(case, trial.data()) {
                    let graph = print(&case.graph);
                    self.fail(format!("{name} batch {}: {what}\n{graph}", case.batch));
                }
                self.judge(name, case, &trial, strategies);
            }
            None => self.kinked(case),
        }
    }

    /// Notes a case of which all data come near a kink; few may.
    pub fn kinked(&mut self, case: &Case) {
        self.cases += 1;
        self.kinked.push(case.seed);
    }

    /// Compares every strategy alone, with data given: the fast kernels at the instruction level whose turn it is today, or
    /// at all of them in a long run.
    pub fn judge(&mut self, name: &str, case: &Case, trial: &Trial<'_>, strategies: &[Strategy]) {
        self.cases += 1;
        let levels = test_levels();
        for strategy in strategies {
            let finding = trial.reference(strategy);
            self.note(name, case, strategy, Compared::Reference, finding);
        }
        let single = Strategy::single();
        let all = [&single].into_iter().chain(strategies);
        for (number, strategy) in all.enumerate() {
            let first = (self.cases as usize + number) % levels.len();
            let turns = levels[first..].iter().chain(&levels[..first]);
            for &level in share_of_levels(&levels).of_items(turns) {
                let finding = trial.fast(strategy, level);
                self.note(name, case, strategy, Compared::Fast(level), finding);
            }
        }
    }

    fn note(
        &mut self,
        name: &str,
        case: &Case,
        strategy: &Strategy,
        kernels: Compared,
        finding: Verdict,
    ) {
        let predicted = too_fine(case, strategy).then_some(Refusal::TooFine);
        let what = match finding {
            Verdict::Refused(error) => {
                let text = error.to_string();
                let is_reported = text.contains(&strategy.to_string()) && text.contains("possible");
                match Refusal::of_lowering(&error) {
                    Some(refusal) if Some(refusal) == predicted && is_reported => {
                        *self.refused.entry(refusal).or_default() += 1;
                        return;
                    }
                    Some(_) | None => format!("refused: {text}"),
                }
            }
            Verdict::Wrong(what) => what,
            Verdict::IllConditioned(excuse) if self.strict => format!("far off: {excuse}"),
            Verdict::IllConditioned(excuse) => {
                let text = format!("{name} {strategy}: {excuse}");
                self.hard.entry(self.cases).or_insert(text);
                return;
            }
            Verdict::Equal if predicted.is_some() => "ran, but is too fine".to_owned(),
            Verdict::Equal => {
                *self.agreed.entry(kernels).or_default() += 1;
                return;
            }
        };
        self.fail(format!(
            "{name} {strategy} batch {}, {kernels:?} kernels: {what}\n{}",
            case.batch,
            print(&case.graph)
        ));
    }

    /// As [`Ledger::close`], where `least` and `expected` are of all shares; one alone may lack a reason.
    pub fn close_share(self, title: &str, least: usize, expected: &[Refusal]) {
        let share = Share::of(PARTS);
        let met = |reason: &&Refusal| share.is_all() || self.refused.contains_key(*reason);
        let expected: Vec<Refusal> = expected.iter().filter(met).copied().collect();
        self.close(title, share.least(least), &expected);
    }

    /// Prints the counts; fails if anything differs, if fewer than `least` comparisons of any kernels agree, if
    /// anything was refused for another reason than `expected`, or if too little could be compared.
    pub fn close(self, title: &str, least: usize, expected: &[Refusal]) {
        println!(
            "{title}: {} cases; comparisons that agree: {:?}; refused: {:?}; near a kink or \
             diverging: {:?}; ill-conditioned: {:?}",
            self.cases,
            self.agreed,
            self.refused,
            self.kinked,
            self.hard.values()
        );
        assert!(
            self.failures.is_empty(),
            "{title}: {} comparisons differ; the first:\n{}",
            self.failures.len(),
            self.failures[..self.failures.len().min(REPORTED_MAX)].join("\n")
        );
        let reasons: Vec<Refusal> = self.refused.into_keys().collect();
        assert_eq!(
            reasons, expected,
            "{title}: not the refusals that were expected"
        );
        let levels = test_levels();
        let of_level = share_of_levels(&levels).least(least);
        let fast = levels
            .into_iter()
            .map(|level| (Compared::Fast(level), of_level));
        for (kernels, least) in fast.chain([(Compared::Reference, least)]) {
            let agreed = self.agreed.get(&kernels).copied().unwrap_or(0);
            assert!(
                agreed >= least,
                "{title}: {agreed} comparisons of {kernels:?} kernels, fewer than {least}"
            );
        }
        let few = self.cases as usize / 20 + 1;
        assert!(
            self.kinked.len() <= few,
            "{title}: too many cases near a kink"
        );
        assert!(self.hard.len() <= few, "{title}: too many ill-conditioned");
    }
}

fn share_of_levels(levels: &[Level]) -> Share {
    Share::of(levels.len() as u64)
}

/// Whether a strategy has more parts along a dim than the input has indices.
pub fn too_fine(case: &Case, strategy: &Strategy) -> bool {
    let extent = case.graph.nodes[0].shape.extent;
    let axes = [Axis::Depth, Axis::Height, Axis::Width];
    (axes.into_iter().zip(extent)).any(|(axis, extent)| strategy.extent(axis) > extent)
}

/// All strategies of this many ranks over the samples and the spatial dims of a model.
pub fn meshes(spatial_rank: usize, ranks: usize) -> Vec<Strategy> {
    let axes = &AXES[..4];
    let mut found = Vec::new();
    let total = ranks.pow(axes.len() as u32);
    for choice in 0..total {
        let extents: [usize; 4] =
            std::array::from_fn(|axis| choice / ranks.pow(axis as u32) % ranks + 1);
        let missing = &extents[1..4 - spatial_rank];
        let fits = extents.iter().product::<usize>() == ranks;
        if fits && missing.iter().all(|&extent| extent == 1) {
            let [data, depth, height, width] = extents;
            found.push(Strategy::hybrid(data, [depth, height, width]));
        }
    }
    found
}
