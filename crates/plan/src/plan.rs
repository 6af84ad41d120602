//! The search: prunes, evaluates and ranks candidates.

use crate::balance::{BalanceError, Tables, balance_with};
use crate::candidates::candidates;
use crate::closed::ClosedForms;
use crate::expectation::{Expectations, first_of_each_kind};
use crate::layers::{LayersError, StageCosts};
use crate::per_layer::DistributionCosts;
use crate::pipelines::pipelines;
use crate::prefilter::{Prefilter, Rejection, memory_reason, slower_than_best};
use partita_lower::{LowerError, Request, Strategy, lower};
use partita_oracle::{Prediction, precision};
use partita_program::{Body, Program};
use partita_space::{AXES, Axis, Bytes, Mesh, Rank, Seconds};

/// Why the cost of a program is unknown.
type Unknown = String;

/// Predicts the time of a program.
pub type Cost<'a> = dyn Fn(&Program) -> Result<Prediction, Unknown> + 'a;

/// Lower bound of the time of a step from the body of one rank, as [`partita_oracle::rank_seconds`].
pub type LowerBound<'a> = dyn Fn(&Body, Rank, &Mesh) -> Seconds + 'a;

/// Meshes, besides that of data parallelism alone, on which a distribution is chosen for each layer.
const MESHES: usize = 3;

/// What to plan.
pub struct PlanRequest<'a> {
    /// The training; its strategy is replaced by each candidate in turn, which takes the statistics of batch norms
    /// as it does.
    pub training: Request<'a>,
    /// Number of ranks.
    pub ranks: usize,
    /// Memory limit of a rank.
    pub memory: Bytes,
    /// Lower bound of the time of a step; 0 where nothing is known.
    pub lower_bound: &'a LowerBound<'a>,
    /// Candidates that take more than this many times as long as the best, by closed forms, are pruned; where it is
    /// infinite, only those are pruned that cannot be the fastest by their lower bound.
    pub prune_factor: f64,
    /// Whether pipelines may cut the mini-batch in micro-batches where the model has batch norms, whose statistics
    /// are then those of a micro-batch: this changes the training.
    pub micro_batch_norm: bool,
    /// Whether lower bounds know all costs, so that those of similar candidates tell what to expect of others.
    pub knows_costs: bool,
    /// Predicts the time of a program.
    pub cost: &'a Cost<'a>,
    /// Costs of the stages of pipelines.
    pub stages: &'a dyn StageCosts,
    /// Called with the current candidate and the number of candidates left.
    pub progress: &'a dyn Fn(&Strategy, usize),
    /// Whether the search ends now, given whether it has evaluated a candidate, or found one that does not fit in
    /// memory, and the share of the time of a search after which the current step of it ends: the last step has a
    /// share of its own.
    pub is_over: &'a dyn Fn(bool, f64) -> bool,
}

/// A strategy with its prediction, or the reason of its rejection.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The strategy.
    pub strategy: Strategy,
    /// The prediction; none where it was rejected.
    pub prediction: Option<Prediction>,
    /// Why it was rejected, and a remedy; none where it was not.
    pub reason: Option<String>,
    /// Kind of the rejection.
    pub refusal: Option<Refusal>,
}

/// Kind of a rejection, the nearest to a valid candidate first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// A rank needs this much memory, more than the limit.
    Memory(Bytes),
    /// It cannot be the fastest.
    Slower,
    /// The search ended before.
    Untried,
    /// It does not fit the model, the mini-batch or the number of ranks.
    Unsuited,
    /// A cost is unknown.
    Unknown,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// All candidates were rejected.
    #[error(
        "no strategy fits {ranks} rank(s) with {memory} each for batch {batch}; the nearest is \
         `{nearest}`: {reason}"
    )]
    NoneFits {
        /// The requested value.
        ranks: usize,
        /// The requested value.
        memory: Bytes,
        /// The requested value.
        batch: usize,
        /// The rejected strategy nearest to a valid one.
        nearest: Box<Strategy>,
        /// Why it was rejected.
        reason: String,
        /// All rejected candidates.
        refused: Vec<Candidate>,
    },
    /// The search was ended before it looked at a candidate.
    #[error("the search was ended before a strategy was looked at")]
    Ended,
    /// A kernel is missing, whatever the strategy.
    #[error(transparent)]
    Lower(#[from] LowerError),
}

impl Candidate {
    fn refused(strategy: Strategy, (refusal, reason): Rejection) -> Self {
        Self {
            strategy,
            prediction: None,
            reason: Some(reason),
            refusal: Some(refusal),
        }
    }

    /// Seconds of a step; none where it was rejected.
    pub fn seconds(&self) -> Option<Seconds> {
        let prediction = self.prediction.as_ref();
        prediction.map(|prediction| prediction.iteration_seconds)
    }

    /// The bottleneck, or why it was rejected.
    pub fn explanation(&self) -> &str {
        match (&self.reason, &self.prediction) {
            (Some(reason), _) => reason,
            (None, Some(prediction)) => &prediction.bottleneck,
            (None, None) => "",
        }
    }
}

/// A candidate that passed the prefilter, with the lower bound of its step.
struct Pending {
    lower_bound: Seconds,
    strategy: Strategy,
}

/// Ranks all candidate strategies: those that fit, fastest first, then those rejected.
///
/// A candidate is rejected if it does not fit the model, the mini-batch or the memory, if a cost is unknown, or if it
/// cannot be the fastest: one rank alone, with peers that are always ready ([`PlanRequest::lower_bound`]), takes
/// longer than a whole step of the best candidate so far.
///
/// The search has five steps:
/// 1. Prune. Candidates are sorted by closed forms. The first valid one with data and spatial parallelism alone is
///    evaluated at once, and those that take [`PlanRequest::prune_factor`] times as long are not lowered. Of the
///    others the last rank is lowered, which has the largest part of a balanced split.
/// 2. Evaluate, in the order of lower bounds: first the middle rank, which has most neighbors, and one rank of each
///    group of branches, then the whole program. Candidates whose expected time is longer than the best step are
///    pruned (`expectation`).
/// 3. Choose a distribution for each layer on the meshes of the best candidates.
/// 4. Pipelines, in the order of their estimated time with balanced stages ([`crate::balance`]), pruned as in 2.
/// 5. Sum gradients in buckets in the best candidates and under data parallelism alone; what is no faster is rejected.
///    Where the time is limited, a part of it is left for this.
///
/// Errors: no candidate fits, or the menu lacks a kernel.
pub fn plan(request: &PlanRequest<'_>) -> Result<Vec<Candidate>, PlanError> {
    let mut ranking = Ranking {
        request,
        evaluated: Vec::new(),
        best: None,
        refused: Vec::new(),
        near_misses: Vec::new(),
        expectations: Expectations::default(),
        passed_over: Vec::new(),
        share: 1.0 - BUCKETS_SHARE,
    };
    let pending = ranking.prune()?;
    ranking.evaluate_all(pending)?;
    ranking.evaluate_per_layer()?;
    ranking.evaluate_pipelines()?;
    ranking.share = 1.0;
    ranking.evaluate_buckets()?;
    let Ranking {
        mut evaluated,
        mut refused,
        ..
    } = ranking;
    refused.sort_by_key(|candidate| candidate.refusal);
    if evaluated.is_empty() {
        let is_untried = |one: &Candidate| one.refusal == Some(Refusal::Untried);
        return Err(if refused.iter().all(is_untried) {
            PlanError::Ended
        } else {
            none_fits(request, refused)
        });
    }
    // Ties are broken by memory.
    let key = |candidate: &Candidate| {
        let of = |one: &Prediction| (one.iteration_seconds.0, one.memory_bytes_max);
        let prediction = candidate.prediction.as_ref();
        prediction.map_or((f64::INFINITY, Bytes(u64::MAX)), of)
    };
    evaluated.sort_by(|a, b| {
        let (a, b) = (key(a), key(b));
        a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
    });
    evaluated.extend(refused);
    Ok(evaluated)
}

/// Sizes of buckets that are tried.
const BUCKETS: [Bytes; 2] = [Bytes(4 << 20), Bytes(25 << 20)];
/// Number of the best candidates for which they are.
const BUCKETED: usize = 2;
/// Part of a limited time that is left for them.
const BUCKETS_SHARE: f64 = 0.2;

/// State of the search.
struct Ranking<'r, 'a> {
    request: &'r PlanRequest<'a>,
    evaluated: Vec<Candidate>,
    best: Option<(Seconds, Strategy)>,
    refused: Vec<Candidate>,
    /// Candidates rejected only by their groups of branches.
    near_misses: Vec<Strategy>,
    /// From the candidates that were evaluated.
    expectations: Expectations,
    /// Candidates rejected by their expected times.
    passed_over: Vec<(Seconds, Strategy)>,
    /// Share of a limited time after which the current step of the search ends.
    share: f64,
}

impl Ranking<'_, '_> {
    fn refuse(&mut self, strategy: Strategy, no: Rejection) {
        self.refused.push(Candidate::refused(strategy, no));
    }

    /// A candidate with the settings that are asked for.
    fn asked(&self, strategy: Strategy) -> Strategy {
        strategy.with_settings_of(self.request.training.strategy, &[])
    }

    fn is_over(&self) -> bool {
        let is_memory = |one: &Candidate| matches!(one.refusal, Some(Refusal::Memory(_)));
        let has_looked = !self.evaluated.is_empty() || self.refused.iter().any(is_memory);
        (self.request.is_over)(has_looked, self.share)
    }

    /// Refuses a candidate for which there is no time.
    fn leave(&mut self, strategy: Strategy) {
        let reason = "the search ended before".to_owned();
        self.refuse(strategy, (Refusal::Untried, reason));
    }

    fn prefilter(&self) -> Prefilter<'_, '_> {
        Prefilter {
            request: self.request,
            best: self.best.as_ref(),
        }
    }

    /// The candidates that pass closed forms and prefilter.
    fn prune(&mut self) -> Result<Vec<Pending>, PlanError> {
        let training = &self.request.training;
        let all = candidates(training.graph, self.request.ranks, training.batch);
        let all = all.into_iter().map(|one| self.asked(one));
        let mut all: Vec<(Option<Seconds>, Strategy)> = match self.closed_forms()? {
            Some(closed_forms) => all
                .map(|one| (closed_forms.approximate_seconds(&one), one))
                .collect(),
            None => all.map(|one| (None, one)).collect(),
        };
        // Candidates without closed form come last; the sort is stable.
        let key = |seconds: &Option<Seconds>| seconds.map_or(f64::INFINITY, |one| one.0);
        all.sort_by(|a, b| key(&a.0).total_cmp(&key(&b.0)));
        let mut nearest: Option<(Seconds, Strategy)> = None;
        let mut pending = Vec::new();
        for (form, strategy) in all {
            if self.is_over() {
                self.leave(strategy);
                continue;
            }
            let pruned = form.zip(nearest.as_ref());
            let pruned =
                pruned.filter(|(form, (least, _))| form.0 > self.request.prune_factor * least.0);
            if let Some((form, (least, near))) = pruned {
                let reason = format!(
                    "by the closed forms a step takes about {form}, of `{near}` {least}; not \
                     evaluated"
                );
                self.refuse(strategy, (Refusal::Slower, reason));
                continue;
            }
            match self.prefilter().at_last_rank(&strategy)? {
                Ok(lower_bound) if form.is_some() && nearest.is_none() && is_plain(&strategy) => {
                    nearest = form.map(|form| (form, strategy.clone()));
                    self.evaluate(strategy, Some(lower_bound))?;
                }
                Ok(lower_bound) => pending.push(Pending {
                    lower_bound,
                    strategy,
                }),
                Err(no) => self.refuse(strategy, no),
            }
        }
        Ok(pending)
    }

    /// The closed forms, unless pruning is off.
    fn closed_forms(&self) -> Result<Option<ClosedForms<'_>>, PlanError> {
        if self.request.prune_factor.is_infinite() {
            return Ok(None);
        }
        let training = &self.request.training;
        match ClosedForms::new(training, self.request.ranks, self.request.stages) {
            Ok(closed_forms) => Ok(Some(closed_forms)),
            Err(LayersError::Lower(error)) => Err(error.into()),
            // Reported for each candidate.
            Err(LayersError::Cost(_)) => Ok(None),
        }
    }

    /// Evaluates candidates that can be the fastest.
    fn evaluate_all(&mut self, mut pending: Vec<Pending>) -> Result<(), PlanError> {
        // Fast candidates first, so that more of the rest is pruned.
        pending.sort_by(|a, b| a.lower_bound.0.total_cmp(&b.lower_bound.0));
        first_of_each_kind(&mut pending, |one| &one.strategy);
        let total = pending.len();
        for (index, one) in pending.into_iter().enumerate() {
            let Pending {
                lower_bound,
                strategy,
            } = one;
            if self.is_over() {
                self.leave(strategy);
                continue;
            }
            if let Some(reason) = self.cannot_be_best(&strategy, lower_bound) {
                self.refuse(strategy, (Refusal::Slower, reason));
                continue;
            }
            (self.request.progress)(&strategy, total - index);
            let lower_bound = match self.prefilter().at_middle_rank(&strategy)? {
                Ok(middle) => lower_bound.max(middle),
                Err(no) => {
                    self.refuse(strategy, no);
                    continue;
                }
            };
            if let Some(reason) = self.not_expected_to_be_best(&strategy, lower_bound) {
                self.refuse(strategy, (Refusal::Slower, reason));
                continue;
            }
            match self.prefilter().at_groups(&strategy)? {
                Ok(groups) => self.evaluate(strategy, Some(lower_bound.max(groups)))?,
                Err(no) => {
                    self.near_misses.push(strategy.clone());
                    self.refuse(strategy, no);
                }
            }
        }
        Ok(())
    }

    /// Why a candidate cannot be the fastest, or is not expected to be.
    fn cannot_be_best(&mut self, strategy: &Strategy, lower_bound: Seconds) -> Option<String> {
        let best = self.best.as_ref()?;
        slower_than_best(lower_bound, best)
            .or_else(|| self.not_expected_to_be_best(strategy, lower_bound))
    }

    /// Why a candidate is not expected to be the fastest, by those like it that were evaluated.
    fn not_expected_to_be_best(
        &mut self,
        strategy: &Strategy,
        lower_bound: Seconds,
    ) -> Option<String> {
        if self.request.prune_factor.is_infinite() || !self.request.knows_costs {
            return None;
        }
        let (least, best) = self.best.as_ref()?;
        let expected = self.expectations.expected(strategy, lower_bound)?;
        if expected <= *least {
            return None;
        }
        self.passed_over.push((expected, strategy.clone()));
        Some(format!(
            "by candidates like it a step takes at least about {expected}, longer than that of `{best}` \
                 ({least}); not evaluated"
        ))
    }

    /// Evaluates a candidate, with its lower bound if others are like it.
    fn evaluate(
        &mut self,
        strategy: Strategy,
        lower_bound: Option<Seconds>,
    ) -> Result<(), PlanError> {
        match evaluate(self.request, &strategy)? {
            Ok(prediction) => {
                let seconds = prediction.iteration_seconds;
                if let Some(lower_bound) = lower_bound {
                    self.expectations.add(&strategy, lower_bound, seconds);
                }
                if self.best.as_ref().is_none_or(|(least, _)| seconds < *least) {
                    self.best = Some((seconds, strategy.clone()));
                }
                self.evaluated.push(Candidate {
                    strategy,
                    prediction: Some(prediction),
                    reason: None,
                    refusal: None,
                });
            }
            Err(no) => self.refuse(strategy, no),
        }
        Ok(())
    }

    /// Chooses a distribution for each layer on the meshes of the best candidates, and evaluates the results.
    fn evaluate_per_layer(&mut self) -> Result<(), PlanError> {
        let training = &self.request.training;
        let mut found: Vec<Strategy> = Vec::new();
        for mesh in self.meshes() {
            if self.is_over() {
                break;
            }
            let request = Request {
                strategy: &mesh,
                ..*training
            };
            let found_costs = match DistributionCosts::new(&request, self.request.stages) {
                Ok(found_costs) => found_costs,
                Err(LayersError::Cost(_)) => None,
                Err(LayersError::Lower(error)) if error.is_of_strategy() => None,
                Err(LayersError::Lower(error)) => return Err(error.into()),
            };
            let best = found_costs.iter().flat_map(DistributionCosts::best);
            for strategy in best.map(|one| self.asked(one)) {
                let is_known = |one: &Candidate| one.strategy == strategy;
                let is_costed = self.evaluated.iter().any(is_known);
                let is_refused = self.refused.iter().any(is_known);
                if !is_costed && !is_refused && !found.contains(&strategy) {
                    found.push(strategy);
                }
            }
        }
        let mut pending = Vec::new();
        for strategy in found {
            if self.is_over() {
                self.leave(strategy);
                continue;
            }
            match self.prefilter().at_last_rank(&strategy)? {
                Ok(lower_bound) => pending.push(Pending {
                    lower_bound,
                    strategy,
                }),
                Err(no) => self.refuse(strategy, no),
            }
        }
        self.evaluate_all(pending)
    }

    /// Meshes of data and spatial axes: data alone, and those of the best candidates, by their expected times where they
    /// were passed over, and near misses.
    fn meshes(&self) -> Vec<Strategy> {
        let evaluated = self.evaluated.iter();
        let evaluated = evaluated.filter_map(|one| Some((one.seconds()?, &one.strategy)));
        let passed_over = self
            .passed_over
            .iter()
            .map(|(seconds, one)| (*seconds, one));
        let mut best: Vec<(Seconds, &Strategy)> = evaluated.chain(passed_over).collect();
        best.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
        let mut meshes = vec![self.asked(Strategy::hybrid(self.request.ranks, [1; 3]))];
        let best = best.into_iter().map(|(_, strategy)| strategy);
        for one in best.chain(&self.near_misses) {
            let [data, depth, height, width, filter, channel, branch] =
                AXES.map(|axis| one.extent(axis));
            // Other axes become data axes, which may split samples or filters.
            let samples = data * filter * channel * branch;
            let mesh = self.asked(Strategy::hybrid(samples, [depth, height, width]));
            if !meshes.contains(&mesh) && meshes.len() <= MESHES {
                meshes.push(mesh);
            }
        }
        meshes
    }

    /// Balances pipelines, and evaluates those that can be the fastest.
    fn evaluate_pipelines(&mut self) -> Result<(), PlanError> {
        let training = &self.request.training;
        let mut tables = Tables::default();
        let mut pending = Vec::new();
        let keeps = self.request.micro_batch_norm || !training.graph.has_batch_norm();
        let all = pipelines(training.graph, self.request.ranks, training.batch);
        for strategy in all.into_iter().filter(|one| keeps || one.micro == 1) {
            let strategy = self.asked(strategy);
            if self.is_over() {
                self.leave(strategy);
                continue;
            }
            // With a limit of 0 seconds nothing is lowered for its memory.
            match self.balanced(&strategy, Seconds(0.0), &mut tables)? {
                Ok(found) => pending.push(Pending {
                    lower_bound: found.0,
                    strategy,
                }),
                Err(no) => self.refuse(strategy, no),
            }
        }
        pending.sort_by(|a, b| a.lower_bound.0.total_cmp(&b.lower_bound.0));
        let total = pending.len();
        for (index, one) in pending.into_iter().enumerate() {
            let Pending {
                lower_bound,
                strategy,
            } = one;
            if self.is_over() {
                self.leave(strategy);
                continue;
            }
            if let Some((least, best)) = self.best.as_ref().filter(|best| lower_bound > best.0) {
                let reason = format!(
                    "its stages take about {lower_bound}, longer than a whole step of \
                     `{best}` ({least}); not evaluated"
                );
                self.refuse(strategy, (Refusal::Slower, reason));
                continue;
            }
            if let Some(reason) = self.not_expected_to_be_best(&strategy, lower_bound) {
                self.refuse(strategy, (Refusal::Slower, reason));
                continue;
            }
            (self.request.progress)(&strategy, total - index);
            match self.balanced(&strategy, Seconds(f64::INFINITY), &mut tables)? {
                Ok((_, found)) => self.evaluate(found, Some(lower_bound))?,
                Err(no) => self.refuse(strategy, no),
            }
        }
        Ok(())
    }

    /// Evaluates the best candidates and data parallelism alone with gradients in buckets.
    fn evaluate_buckets(&mut self) -> Result<(), PlanError> {
        if self.request.training.strategy.bucket > Bytes(0) {
            // All candidates have the buckets that are asked for.
            return Ok(());
        }
        let mut best: Vec<&Candidate> = self.evaluated.iter().collect();
        let seconds = |one: &Candidate| one.seconds().map_or(f64::INFINITY, |seconds| seconds.0);
        best.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let data = self.asked(Strategy::hybrid(self.request.ranks, [1; 3]));
        let is_tried = |(at, one): &(usize, &Candidate)| *at < BUCKETED || one.strategy == data;
        let tried = best.into_iter().enumerate().filter(is_tried);
        let tried: Vec<(f64, Strategy)> = tried
            .map(|(_, one)| (seconds(one), one.strategy.clone()))
            .filter(|(_, strategy)| strategy.ranks() > 1)
            .collect();
        let total = tried.len() * BUCKETS.len();
        let all = tried
            .iter()
            .flat_map(|one| BUCKETS.map(|bucket| (one, bucket)));
        for (at, ((least, apart), bucket)) in all.enumerate() {
            let mut strategy = apart.clone();
            strategy.bucket = bucket;
            if self.is_over() {
                self.leave(strategy);
                continue;
            }
            (self.request.progress)(&strategy, total - at);
            self.evaluate(strategy.clone(), None)?;
            let is_slower =
                |one: &mut Candidate| one.strategy == strategy && seconds(one) >= *least;
            if let Some(slower) = self.evaluated.pop_if(is_slower) {
                let reason = format!(
                    "not faster: a step takes {}, of `{apart}` {}",
                    Seconds(seconds(&slower)),
                    Seconds(*least)
                );
                self.refuse(slower.strategy, (Refusal::Slower, reason));
            }
        }
        Ok(())
    }

    /// Estimated time of a pipeline, and the strategy with balanced stages.
    fn balanced(
        &self,
        strategy: &Strategy,
        most: Seconds,
        tables: &mut Tables,
    ) -> Result<Result<(Seconds, Strategy), Rejection>, PlanError> {
        let training = Request {
            strategy,
            ..self.request.training
        };
        let (memory, costs) = (self.request.memory, self.request.stages);
        Ok(match balance_with(&training, memory, most, costs, tables) {
            Ok(balanced) => Ok((balanced.seconds, balanced.strategy)),
            Err(BalanceError::Lower(error)) if error.is_of_strategy() => {
                Err((Refusal::Unsuited, error.to_string()))
            }
            Err(BalanceError::Lower(error)) => return Err(error.into()),
            Err(BalanceError::Cost(unknown)) => Err((Refusal::Unknown, unknown)),
            Err(error @ BalanceError::Memory { needed, .. }) => {
                Err((Refusal::Memory(needed), error.to_string()))
            }
        })
    }
}

/// Whether only data and spatial axes are used; such programs have few classes and are simulated fast.
fn is_plain(strategy: &Strategy) -> bool {
    let others = [Axis::Filter, Axis::Channel, Axis::Branch];
    others.iter().all(|&axis| strategy.extent(axis) == 1) && strategy.layers.is_empty()
}

/// The prediction of a strategy, or why it is rejected.
fn evaluate(
    request: &PlanRequest<'_>,
    strategy: &Strategy,
) -> Result<Result<Prediction, Rejection>, PlanError> {
    let program = match lower(&Request {
        strategy,
        ..request.training
    }) {
        Ok(program) => program,
        Err(error) if error.is_of_strategy() => {
            return Ok(Err((Refusal::Unsuited, error.to_string())));
        }
        Err(error) => return Err(error.into()),
    };
    let precision = request.stages.precision();
    if let Some((needed, rank)) = precision::largest(&program, precision)
        && needed > request.memory
    {
        let reason = memory_reason(program.body(rank), needed, request.memory);
        return Ok(Err((Refusal::Memory(needed), reason)));
    }
    Ok((request.cost)(&program).map_err(|unknown| (Refusal::Unknown, unknown)))
}

fn none_fits(request: &PlanRequest<'_>, refused: Vec<Candidate>) -> PlanError {
    let nearest = refused.first();
    PlanError::NoneFits {
        ranks: request.ranks,
        memory: request.memory,
        batch: request.training.batch,
        nearest: Box::new(nearest.map_or_else(Strategy::single, |one| one.strategy.clone())),
        reason: nearest
            .and_then(|one| one.reason.clone())
            .unwrap_or_default(),
        refused,
    }
}
