//! The state of a search, and its steps.

use crate::balance::{BalanceError, Balanced, Tables, Wanted};
use crate::candidates::candidates_of;
use crate::closed::ClosedForms;
use crate::expectation::{Expectations, first_of_each_kind};
use crate::layers::LayersError;
use crate::need::{memory_reason, unsuited};
use crate::partition::balance_with;
use crate::per_layer::DistributionCosts;
use crate::pipelines::pipelines;
use crate::plan::{PlanError, RankedStrategy, Refusal, Rejection, SearchRequest};
use crate::prefilter::{Prefilter, slower_than_best};
use crate::repeats::Shortened;
use crate::simulated_cuts::Steps;
use crate::size::{TASKS_MAX, check_size};
use partita_lower::{Request, Strategy, lower};
use partita_oracle::{Prediction, precision};
use partita_space::help::Message;
use partita_space::{AXES, Axis, Bytes, Seconds};
use std::cell::Cell;

/// Meshes, besides that of data parallelism alone, on which a distribution is chosen for each layer.
const MESHES: usize = 3;
/// Pipelines whose layers are chosen by simulated steps are at most this many times slower than the best candidate.
const CUT_FACTOR: f64 = 1.15;
/// Tasks of the programs that are simulated for it. A few seconds of a core.
const CUT_TASKS: usize = 150_000;
/// Part of a limited time that is left for buckets.
pub(crate) const BUCKETS_SHARE: f64 = 0.2;

/// Most tasks of a program that is simulated again with buckets. Three seconds of a core.
pub(crate) const BUCKETED_TASKS_MAX: usize = 400_000;

/// No more pipelines, or candidates that were estimated, are evaluated after at least this many programs with more than this
/// many tasks together, of which none was the fastest. A few seconds of a core.
const PROGRAMS_IN_VAIN: usize = 2;
const TASKS_IN_VAIN: usize = 250_000;
/// Estimates by shortened models of candidates that may be the fastest are at most this many times the best step.
const ESTIMATE_FACTOR: f64 = 1.02;

/// A candidate that passed the prefilter, with the lower bound of its step.
pub(crate) struct Pending {
    pub lower_bound: Seconds,
    pub strategy: Strategy,
}

/// Programs that were evaluated, and their tasks.
#[derive(Clone, Copy, Default)]
struct InVain {
    programs: usize,
    tasks: usize,
}

/// State of the search.
pub(crate) struct Ranking<'r, 'a> {
    pub request: &'r SearchRequest<'a>,
    /// The model with fewer layers, if it has many that are alike.
    pub shortened: Option<&'r Shortened>,
    pub evaluated: Vec<RankedStrategy>,
    /// The least time, and its candidate; while candidates are estimated, the least estimate.
    pub best: Option<(Seconds, Strategy)>,
    pub refused: Vec<RankedStrategy>,
    /// Candidates with their steps by shortened models.
    estimated: Vec<(Seconds, Strategy)>,
    /// What was evaluated since a candidate was the fastest.
    in_vain: InVain,
    /// Candidates rejected only by their groups of branches.
    near_misses: Vec<Strategy>,
    /// From the candidates that were evaluated.
    expectations: Expectations,
    /// Candidates rejected by their expected times.
    passed_over: Vec<(Seconds, Strategy)>,
    /// Candidates with other axes for deep levels that do not fit in memory.
    pub levels_short: Vec<Strategy>,
    /// Candidates whose programs are too large to try buckets, too.
    pub large: Vec<Strategy>,
    /// How many large programs were evaluated since one of them was the fastest.
    pub large_in_vain: usize,
    /// Share of a limited time after which the current step of the search ends.
    pub share: f64,
    /// Tasks that were lowered for savings.
    pub lowered: Cell<usize>,
    /// Memory of a rank for which savings are looked for.
    pub limit: Bytes,
    /// What pipelines share.
    pub tables: Tables<'r>,
}

impl<'r, 'a> Ranking<'r, 'a> {
    /// Before the first step.
    pub fn new(request: &'r SearchRequest<'a>, shortened: Option<&'r Shortened>) -> Self {
        Self {
            request,
            shortened,
            evaluated: Vec::new(),
            best: None,
            refused: Vec::new(),
            estimated: Vec::new(),
            in_vain: InVain::default(),
            near_misses: Vec::new(),
            expectations: Expectations::default(),
            passed_over: Vec::new(),
            levels_short: Vec::new(),
            large: Vec::new(),
            large_in_vain: 0,
            share: 1.0 - BUCKETS_SHARE,
            lowered: Cell::new(0),
            limit: request.memory,
            tables: Tables::new(shortened),
        }
    }
}

impl Ranking<'_, '_> {
    pub fn refuse(&mut self, strategy: Strategy, no: Rejection) {
        self.refused.push(RankedStrategy::refused(strategy, no));
    }

    /// A candidate with the settings that are asked for.
    pub fn asked(&self, strategy: Strategy) -> Strategy {
        strategy.with_settings_of(self.request.training.strategy, &[])
    }

    pub fn is_over(&self) -> bool {
        let is_memory = |one: &RankedStrategy| one.memory_needed().is_some();
        let has_looked = !self.evaluated.is_empty() || self.refused.iter().any(is_memory);
        (self.request.is_over)(has_looked, self.share)
    }

    /// Refuses a candidate for which there is no time.
    pub fn leave(&mut self, strategy: Strategy) {
        let reason = "the search ended before".to_owned();
        self.refuse(strategy, (Refusal::Untried, reason));
    }

    fn prefilter(&self) -> Prefilter<'_, '_> {
        Prefilter {
            request: self.request,
            shortened: self.shortened,
            best: self.best.as_ref(),
        }
    }

    /// The candidates that pass closed forms and prefilter.
    pub fn prune(&mut self) -> Result<Vec<Pending>, PlanError> {
        let training = &self.request.training;
        let size = (self.request.ranks, training.batch);
        let all = candidates_of(training.graph, self.shortened, size);
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
        let plain = all.iter().filter(|(_, one)| is_plain(one));
        let plain = plain.filter_map(|(form, one)| Some(((*form)?, one.clone())));
        let plain: Vec<(Seconds, Strategy)> = plain.collect();
        let mut nearest: Option<(Seconds, Strategy)> = None;
        let mut pending = Vec::new();
        let data = self.asked(Strategy::hybrid(self.request.ranks, [1; 3]));
        for (form, strategy) in all {
            if self.is_over() {
                // Unless the search was cancelled, one candidate that may fit is evaluated.
                let is_cancelled = (self.request.is_over)(false, self.share);
                if strategy == data && self.evaluated.is_empty() && !is_cancelled {
                    self.evaluate(strategy, None)?;
                } else {
                    self.leave(strategy);
                }
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
            let is_first = nearest.is_none() && is_plain(&strategy);
            match form.filter(|_| is_first) {
                Some(form) => {
                    if self.evaluate_plain((form, &strategy), &plain)? {
                        nearest = Some((form, strategy));
                    }
                }
                None => match self.prefilter().at_last_rank(&strategy)? {
                    Ok(lower_bound) => pending.push(Pending {
                        lower_bound,
                        strategy,
                    }),
                    Err(no) => self.refuse(strategy, no),
                },
            }
        }
        Ok(pending)
    }

    /// Evaluates a candidate with data and spatial parallelism alone, if it is valid, and with other axes for the levels of
    /// the model: whether the search has one near the best then. Of those that do not fit in memory only the first one's levels are
    /// tried.
    fn evaluate_plain(
        &mut self,
        (form, strategy): (Seconds, &Strategy),
        plain: &[(Seconds, Strategy)],
    ) -> Result<bool, PlanError> {
        let no = match self.prefilter().at_last_rank(strategy)? {
            Ok(lower_bound) => {
                self.evaluate(strategy.clone(), Some(lower_bound))?;
                self.evaluate_levels((form, strategy), plain)?;
                return Ok(true);
            }
            Err(no) => no,
        };
        let mut refused = self.refused.iter().filter(|one| is_plain(&one.strategy));
        let is_known = refused.any(|one| one.memory_needed().is_some());
        let is_first = matches!(no.0, Refusal::Memory(_)) && !is_known;
        self.refuse(strategy.clone(), no);
        if is_first {
            self.evaluate_levels((form, strategy), plain)?;
            if self.evaluated.is_empty() {
                self.evaluate_levels_by_memory(strategy, plain)?;
            }
        }
        Ok(!self.evaluated.is_empty())
    }

    /// The closed forms, unless pruning is off.
    pub fn closed_forms(&self) -> Result<Option<ClosedForms<'_>>, PlanError> {
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

    /// Evaluates candidates that can be the fastest; where the model has shortened ones, estimates them.
    pub fn evaluate_all(&mut self, mut pending: Vec<Pending>) -> Result<(), PlanError> {
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
            if let Err(no) = self.check_large(&strategy)? {
                self.refuse(strategy, no);
                continue;
            }
            match self.prefilter().at_groups(&strategy)? {
                Ok(groups) => self.estimate(strategy, lower_bound.max(groups))?,
                Err(no) => {
                    self.near_misses.push(strategy.clone());
                    self.refuse(strategy, no);
                }
            }
        }
        Ok(())
    }

    /// Estimates a candidate by shortened models; evaluates it where they do not tell.
    fn estimate(&mut self, strategy: Strategy, lower_bound: Seconds) -> Result<(), PlanError> {
        let Some(seconds) = self.estimated_seconds(&strategy)? else {
            return self.evaluate(strategy, Some(lower_bound));
        };
        let seconds = seconds.max(lower_bound);
        self.expectations.add(&strategy, lower_bound, seconds);
        self.note_best(seconds, &strategy);
        self.estimated.push((seconds, strategy));
        Ok(())
    }

    /// A step by the steps of the shortened models. None where there are none, or they have no prediction.
    fn estimated_seconds(&self, strategy: &Strategy) -> Result<Option<Seconds>, PlanError> {
        let short = Shortened::of_strategy(self.shortened, strategy);
        let Some((shortened, short)) = short else {
            return Ok(None);
        };
        let found = shortened.extrapolated(|graph| -> Result<[f64; 1], LayersError> {
            let program = lower(&Request {
                graph,
                strategy: &short,
                ..self.request.training
            })?;
            let prediction = (self.request.cost)(&program)?;
            Ok([prediction.iteration_seconds.0])
        });
        match found {
            Ok([seconds]) => Ok(Some(Seconds(seconds))),
            Err(LayersError::Cost(_)) => Ok(None),
            Err(LayersError::Lower(error)) if error.is_of_strategy() => Ok(None),
            Err(LayersError::Lower(error)) => Err(error.into()),
        }
    }

    /// Evaluates the candidates that are the fastest by their estimates.
    pub fn evaluate_estimated(&mut self) -> Result<(), PlanError> {
        if self.estimated.is_empty() {
            return Ok(());
        }
        self.best = None;
        let evaluated = self.evaluated.iter();
        let known = evaluated.filter_map(|one| Some((one.seconds()?, one.strategy.clone())));
        for (seconds, strategy) in known.collect::<Vec<_>>() {
            self.note_best(seconds, &strategy);
        }
        self.in_vain = InVain::default();
        let mut estimated = std::mem::take(&mut self.estimated);
        estimated.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
        let total = estimated.len();
        for (index, (seconds, strategy)) in estimated.into_iter().enumerate() {
            if self.is_over() {
                self.leave(strategy);
                continue;
            }
            let is_slower = |best: &&(Seconds, Strategy)| seconds.0 > ESTIMATE_FACTOR * best.0.0;
            let slower = self.best.as_ref().filter(is_slower).map(|(least, best)| {
                format!(
                    "by models with fewer of its equal blocks a step takes about {seconds}, longer than that of \
                     `{best}` ({least}); not evaluated"
                )
            });
            if let Some(reason) = slower.or_else(|| self.is_in_vain()) {
                self.refuse(strategy, (Refusal::Slower, reason));
                continue;
            }
            (self.request.progress)(&strategy, total - index);
            self.evaluate(strategy, None)?;
        }
        Ok(())
    }

    /// Why no more candidates are evaluated that promise less than those before.
    fn is_in_vain(&self) -> Option<String> {
        let (least, best) = self.best.as_ref()?;
        let is_limited = self.request.prune_factor.is_finite();
        let InVain { programs, tasks } = self.in_vain;
        let is_enough = programs >= PROGRAMS_IN_VAIN && tasks > TASKS_IN_VAIN;
        (is_limited && is_enough).then(|| {
            format!(
                "{programs} that promised more were not faster than `{best}` ({least}); not evaluated"
            )
        })
    }

    /// Keeps the best time.
    fn note_best(&mut self, seconds: Seconds, strategy: &Strategy) -> bool {
        let is_best = self.best.as_ref().is_none_or(|(least, _)| seconds < *least);
        if is_best {
            self.best = Some((seconds, strategy.clone()));
            self.in_vain = InVain::default();
        }
        is_best
    }

    /// Why a candidate cannot be the fastest, or is not expected to be.
    pub fn cannot_be_best(&mut self, strategy: &Strategy, lower_bound: Seconds) -> Option<String> {
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
    pub fn evaluate(
        &mut self,
        strategy: Strategy,
        lower_bound: Option<Seconds>,
    ) -> Result<(), PlanError> {
        match evaluate(self.request, &strategy)? {
            Ok((prediction, tasks)) => {
                let seconds = prediction.iteration_seconds;
                if let Some(lower_bound) = lower_bound {
                    self.expectations.add(&strategy, lower_bound, seconds);
                }
                self.in_vain.programs += 1;
                self.in_vain.tasks += tasks;
                let is_best = self.note_best(seconds, &strategy);
                if tasks > BUCKETED_TASKS_MAX {
                    self.large.push(strategy.clone());
                    self.large_in_vain = if is_best { 0 } else { self.large_in_vain + 1 };
                }
                self.evaluated.push(RankedStrategy {
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

    /// A candidate with its lower bound by the last and the middle rank, if it fits and may be the fastest.
    pub fn bounded(&mut self, strategy: Strategy) -> Result<Option<Pending>, PlanError> {
        let last = match self.prefilter().at_last_rank(&strategy)? {
            Ok(last) => last,
            Err(no) => {
                self.refuse(strategy, no);
                return Ok(None);
            }
        };
        match self.prefilter().at_middle_rank(&strategy)? {
            Ok(middle) => Ok(Some(Pending {
                lower_bound: last.max(middle),
                strategy,
            })),
            Err(no) => {
                self.refuse(strategy, no);
                Ok(None)
            }
        }
    }

    /// Estimates a candidate by shortened models, if it can be the fastest; evaluates it where there are none.
    pub fn estimate_bounded(&mut self, one: Pending) -> Result<(), PlanError> {
        if self.is_over() {
            self.leave(one.strategy);
            return Ok(());
        }
        match self.cannot_be_best(&one.strategy, one.lower_bound) {
            Some(reason) => self.refuse(one.strategy, (Refusal::Slower, reason)),
            None => self.estimate(one.strategy, one.lower_bound)?,
        }
        Ok(())
    }

    /// Chooses a distribution for each layer on the meshes of the best candidates, and evaluates the results.
    pub fn evaluate_per_layer(&mut self) -> Result<(), PlanError> {
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
            let stages = self.request.stages;
            let found_costs = match DistributionCosts::new(&request, self.shortened, stages) {
                Ok(found_costs) => found_costs,
                Err(LayersError::Cost(_)) => None,
                Err(LayersError::Lower(error)) if error.is_of_strategy() => None,
                Err(LayersError::Lower(error)) => return Err(error.into()),
            };
            let best = found_costs.iter().flat_map(DistributionCosts::best);
            for strategy in best.map(|one| self.asked(one)) {
                let is_known = |one: &RankedStrategy| one.strategy == strategy;
                let is_costed = self.evaluated.iter().any(is_known);
                let is_refused = self.refused.iter().any(is_known);
                let is_costed = is_costed || self.estimated.iter().any(|one| one.1 == strategy);
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
        let passed_over = self.passed_over.iter().chain(&self.estimated);
        let passed_over = passed_over.map(|(seconds, one)| (*seconds, one));
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
    pub fn evaluate_pipelines(&mut self) -> Result<(), PlanError> {
        let mut tables = std::mem::take(&mut self.tables);
        let found = self.evaluate_pipelines_with(&mut tables);
        self.tables = tables;
        found
    }

    fn evaluate_pipelines_with(&mut self, tables: &mut Tables<'_>) -> Result<(), PlanError> {
        let training = &self.request.training;
        let mut pending = Vec::new();
        let keeps = self.keeps_training();
        // What fits the shortened model fits the whole one.
        let graph = self.shortened.map_or(training.graph, |short| &short.graph);
        let all = pipelines(graph, self.request.ranks, training.batch);
        for strategy in all.into_iter().filter(|one| keeps || one.micro == 1) {
            let strategy = self.asked(strategy);
            if self.is_over() {
                self.leave(strategy);
                continue;
            }
            // With a limit of 0 seconds nothing is lowered for its memory.
            match self.balanced(&strategy, self.wanted(Seconds(0.0)), None, tables)? {
                Ok(found) => pending.push(Pending {
                    lower_bound: found.seconds,
                    strategy,
                }),
                Err(no) => self.refuse(strategy, no),
            }
        }
        pending.sort_by(|a, b| a.lower_bound.0.total_cmp(&b.lower_bound.0));
        self.in_vain = InVain::default();
        let mut pending = pending.into_iter().peekable();
        let mut expected: Vec<Pending> = Vec::new();
        loop {
            let by_time = |a: &&Pending, b: &&Pending| a.lower_bound.0.total_cmp(&b.lower_bound.0);
            let next = expected.iter().min_by(by_time).map(|one| one.lower_bound);
            let left = pending.len() + expected.len();
            // Those that are estimated to be no slower than the first of the expected ones may come before it.
            let may_be_before = |one: &Pending| next.is_none_or(|next| one.lower_bound <= next);
            if let Some(one) = pending.next_if(may_be_before) {
                expected.extend(self.expected_pipeline(one, left, tables)?);
            } else if let Some(next) = next {
                let is_next = |one: &Pending| one.lower_bound == next;
                let at = expected.iter().position(is_next).unwrap_or_default();
                self.evaluate_pipeline(expected.swap_remove(at))?;
            } else {
                return Ok(());
            }
        }
    }

    /// A pipeline with balanced stages and the time that it is expected to take at least: the estimated one, and what the
    /// rank that works longest takes beyond the estimate of its work, such as sums of gradients and messages between
    /// nodes. None if it cannot be the fastest.
    fn expected_pipeline(
        &mut self,
        one: Pending,
        left: usize,
        tables: &mut Tables<'_>,
    ) -> Result<Option<Pending>, PlanError> {
        let Some(Pending { strategy, .. }) = self.possible_pipeline(one) else {
            return Ok(None);
        };
        (self.request.progress)(&strategy, left);
        let wanted = self.wanted(Seconds(f64::INFINITY));
        let balanced = match self.balanced(&strategy, wanted, None, tables)? {
            Ok(balanced) => balanced,
            Err(no) => {
                self.refuse(strategy, no);
                return Ok(None);
            }
        };
        let busiest = [balanced.busiest];
        match self.prefilter().at_ranks(&balanced.strategy, &busiest)? {
            Ok(bound) => Ok(Some(Pending {
                lower_bound: balanced.seconds + (bound - balanced.busy).max(Seconds(0.0)),
                strategy: balanced.strategy,
            })),
            Err(no) => {
                self.refuse(strategy, no);
                Ok(None)
            }
        }
    }

    /// Evaluates a pipeline with balanced stages, if it can be the fastest.
    fn evaluate_pipeline(&mut self, one: Pending) -> Result<(), PlanError> {
        match self.possible_pipeline(one) {
            None => Ok(()),
            Some(one) => self.evaluate(one.strategy, Some(one.lower_bound)),
        }
    }

    /// A pipeline, if it can be the fastest and there is time for it.
    fn possible_pipeline(&mut self, one: Pending) -> Option<Pending> {
        if self.is_over() {
            self.leave(one.strategy);
            return None;
        }
        let reason = self.stages_are_slower(one.lower_bound);
        let reason =
            reason.or_else(|| self.not_expected_to_be_best(&one.strategy, one.lower_bound));
        if let Some(reason) = reason.or_else(|| self.is_in_vain()) {
            self.refuse(one.strategy, (Refusal::Slower, reason));
            return None;
        }
        Some(one)
    }

    /// Why a pipeline that takes about so long is not the fastest.
    pub fn stages_are_slower(&self, about: Seconds) -> Option<String> {
        let (least, best) = self.best.as_ref()?;
        (about > *least).then(|| {
            format!(
                "its stages take about {about}, longer than a whole step of `{best}` ({least}); not evaluated"
            )
        })
    }

    /// Evaluates the best pipeline, if it is nearly the best candidate, with the layers of its stages by simulated steps.
    pub fn evaluate_simulated_cuts(&mut self) -> Result<(), PlanError> {
        let is_pipeline = |one: &&RankedStrategy| !one.strategy.stages.is_empty();
        let key = |one: &RankedStrategy| one.seconds().map_or(f64::INFINITY, |seconds| seconds.0);
        let pipelines = self.evaluated.iter().filter(is_pipeline);
        let best = pipelines.min_by(|a, b| key(a).total_cmp(&key(b)));
        let least = self.best.as_ref().map_or(f64::INFINITY, |best| best.0.0);
        let Some(best) = best.filter(|one| key(one) <= CUT_FACTOR * least) else {
            return Ok(());
        };
        if !self.request.knows_costs || self.is_over() {
            return Ok(());
        }
        let mut open = best.strategy.clone();
        open.stages
            .iter_mut()
            .for_each(|stage| stage.layers.clear());
        (self.request.progress)(&open, 1);
        let steps = Steps {
            cost: self.request.cost,
            tasks_max: CUT_TASKS,
            is_over: &|| self.is_over(),
        };
        let mut tables = Tables::new(self.shortened);
        let all = self.wanted(Seconds(f64::INFINITY));
        let found = match self.balanced(&open, all, Some(steps), &mut tables)? {
            Ok(found) => found.strategy,
            Err(no) => {
                self.refuse(open, no);
                return Ok(());
            }
        };
        if self.evaluated.iter().any(|one| one.strategy == found) {
            return Ok(());
        }
        self.evaluate(found, None)
    }

    /// Partitions that fit, where a step takes at most so long.
    fn wanted(&self, most: Seconds) -> Wanted {
        Wanted {
            memory: self.request.memory,
            most,
            is_checked_later: true,
        }
    }

    /// Estimated time of a pipeline, and the strategy with balanced stages.
    pub fn balanced(
        &self,
        strategy: &Strategy,
        wanted: Wanted,
        steps: Option<Steps<'_>>,
        tables: &mut Tables<'_>,
    ) -> Result<Result<Balanced, Rejection>, PlanError> {
        let training = Request {
            strategy,
            ..self.request.training
        };
        let costs = self.request.stages;
        Ok(
            match balance_with(&training, wanted, costs, steps, tables) {
                Ok(balanced) => Ok(balanced),
                Err(BalanceError::Lower(error)) if error.is_of_strategy() => {
                    Err((Refusal::Unsuited, Message::of(&error).inline()))
                }
                Err(BalanceError::Lower(error)) => return Err(error.into()),
                Err(BalanceError::Cost(unknown)) => Err((Refusal::Unknown, unknown.0)),
                Err(error @ BalanceError::Memory { needed, .. }) => {
                    Err((Refusal::Memory(needed), Message::of(&error).inline()))
                }
            },
        )
    }
}

/// Whether only data and spatial axes are used; such programs have few classes and are simulated fast.
fn is_plain(strategy: &Strategy) -> bool {
    let others = [Axis::Filter, Axis::Channel, Axis::Branch];
    others.iter().all(|&axis| strategy.extent(axis) == 1) && strategy.layers.is_empty()
}

/// The prediction of a strategy and the number of tasks of its program, or why it is rejected.
fn evaluate(
    request: &SearchRequest<'_>,
    strategy: &Strategy,
) -> Result<Result<(Prediction, usize), Rejection>, PlanError> {
    if let Err(no) = check_size(request, strategy, TASKS_MAX)? {
        return Ok(Err(no));
    }
    let program = match lower(&Request {
        strategy,
        ..request.training
    }) {
        Ok(program) => program,
        Err(error) => return unsuited(error),
    };
    let precision = request.stages.precision();
    if let Some((needed, rank)) = precision::largest(&program, precision)
        && needed > request.memory
    {
        let reason = memory_reason(
            program.body(rank),
            needed,
            request.memory,
            request.training.batch,
        );
        return Ok(Err((Refusal::Memory(needed), reason)));
    }
    let prediction = (request.cost)(&program).map_err(|unknown| (Refusal::Unknown, unknown.0));
    Ok(prediction.map(|prediction| (prediction, program.tasks())))
}
