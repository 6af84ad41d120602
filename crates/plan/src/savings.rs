//! Candidates that do not fit in memory, with less of it: sharded training state, micro-batches and recomputed blocks.
//!
//! Candidates are taken in the order of their closed forms, those of least memory last. For each, one rank tells whether
//! it fits with all savings together; if so, the fastest combinations that fit are simulated. Savings that change the
//! training (micro-batches where something sums over samples) are tried only on request.

use crate::layers::{LayersError, middle_rank, of_one_rank};
use crate::plan::{PlanError, Refusal, Rejection};
use crate::prefilter::{memory_reason, slower_than_best, unsuited};
use crate::ranking::{Pending, Ranking};
use crate::recompute::Activations;
use partita_lower::{Request, Shard, Strategy, lower_ranks};
use partita_oracle::precision;
use partita_program::{ProgramKind, Role};
use partita_space::help::Message;
use partita_space::{Axis, Bytes, Seconds};

/// Candidates with savings that are simulated, of those that fit with them.
const BASES: usize = 4;
/// Candidates that are looked at for it: in the order of time, and of those that are left the ones of least memory.
const LOOKED_AT: [usize; 2] = [16, 3];
/// Most micro-batches, if any candidate fits: programs of many take long to lower, and rarely are the fastest.
const MICRO_MAX: usize = 16;
/// Combinations of savings that are simulated for a candidate.
const VARIANTS: usize = 3;
/// Sets of blocks that are lowered until one fits.
const TRIES: usize = 7;
/// Of them, those that follow from how much too large the one before was; then comes the smallest.
const TRIES_BY_EXCESS: usize = 2;
/// No more candidates are looked at once this many tasks were lowered for it, if any candidate fits, and four times as many
/// else. Some ten seconds of a core.
const TASKS: usize = 700_000;
/// The search for blocks ends within this part of all activations.
const NEAR: f64 = 0.02;

/// What ranks of a candidate need, and a lower bound of its step.
struct Need {
    memory: Bytes,
    /// Of it parameters, their gradients and moments of the optimizer, which ranks may share out.
    state: Bytes,
    lower_bound: Seconds,
    /// Why it does not fit, if it does not.
    reason: Option<String>,
}

impl Ranking<'_, '_> {
    /// Evaluates candidates that do not fit with less memory, where they may be faster than the best.
    pub fn evaluate_savings(&mut self) -> Result<(), PlanError> {
        let [by_time, by_memory] = self.short_of_memory()?;
        let (first, total) = (by_time.len(), by_time.len() + by_memory.len());
        let mut fitting = 0;
        for (at, base) in by_time.into_iter().chain(by_memory).enumerate() {
            let is_late = at >= first && self.best.is_some();
            let tasks_max = if self.best.is_some() {
                TASKS
            } else {
                4 * TASKS
            };
            let is_enough = self.lowered.get() > tasks_max;
            if fitting == BASES || is_late || is_enough || self.is_over() {
                break;
            }
            (self.request.progress)(&base, total - at);
            let mut variants = self.variants(&base)?;
            fitting += usize::from(!variants.is_empty());
            variants.sort_by(|a, b| a.lower_bound.0.total_cmp(&b.lower_bound.0));
            for one in variants.into_iter().take(VARIANTS) {
                let best = self.best.as_ref();
                let slower = best.and_then(|best| slower_than_best(one.lower_bound, best));
                match slower {
                    Some(reason) => self.refuse(one.strategy, (Refusal::Slower, reason)),
                    None if self.is_over() => self.leave(one.strategy),
                    None => self.evaluate(one.strategy, None)?,
                }
            }
        }
        Ok(())
    }

    /// Candidates refused for their memory: the fastest by closed forms, and of the others those of least memory.
    fn short_of_memory(&self) -> Result<[Vec<Strategy>; 2], PlanError> {
        let forms = self.closed_forms()?;
        let time = |strategy: &Strategy| {
            let forms = forms.as_ref();
            let seconds = forms.and_then(|forms| forms.approximate_seconds(strategy));
            seconds.map_or(f64::INFINITY, |seconds| seconds.0)
        };
        let refused = self.refused.iter().filter_map(|one| match one.refusal {
            Some(Refusal::Memory(needed)) => Some((time(&one.strategy), needed, &one.strategy)),
            Some(Refusal::Slower | Refusal::Untried | Refusal::Unsuited | Refusal::Unknown)
            | None => None,
        });
        // Without overlap a candidate needs about as much.
        let overlap = self.request.training.strategy.overlap;
        let mut first: Vec<(f64, Bytes, &Strategy)> = refused
            .filter(|(_, _, one)| one.stages.is_empty() && one.overlap == overlap)
            .collect();
        first.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut rest = first.split_off(first.len().min(LOOKED_AT[0]));
        rest.sort_by_key(|one| one.1);
        rest.truncate(LOOKED_AT[1]);
        Ok([first, rest].map(|list| list.into_iter().map(|one| one.2.clone()).collect()))
    }

    /// The fastest combinations of savings with which a candidate fits, as seen from two ranks. If none is found, the
    /// candidate with all savings is refused, with the memory that it needs.
    fn variants(&mut self, base: &Strategy) -> Result<Vec<Pending>, PlanError> {
        let (micros, shards) = (self.micros(base), self.shards(base));
        let Ok(of_base) = self.need(base)? else {
            return Ok(Vec::new());
        };
        // Savings cost time.
        if let Some(reason) = self.cannot_be_best(base, of_base.lower_bound) {
            self.refuse(base.clone(), (Refusal::Slower, reason));
            return Ok(Vec::new());
        }
        if !self.fits_with_all(base, &micros, &shards)? {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        let mut of_base = Some(of_base);
        for &micro in &micros {
            if self.is_over() {
                break;
            }
            let plain = with(base, micro, base.shard);
            // The first number of micro-batches is that of the base.
            let need = of_base
                .take()
                .map_or_else(|| self.need(&plain), |need| Ok(Ok(need)));
            let Ok(whole) = need? else {
                continue;
            };
            if whole.reason.is_none() {
                found.push(Pending {
                    lower_bound: whole.lower_bound,
                    strategy: plain,
                });
                // More micro-batches take longer.
                break;
            }
            found.extend(self.sharded(&plain, &whole, &shards)?);
            found.extend(self.recomputed_and_sharded(&plain, &whole, &shards)?);
        }
        Ok(found)
    }

    /// The candidate with the least sharding with which it fits.
    fn sharded(
        &self,
        plain: &Strategy,
        whole: &Need,
        shards: &[Shard],
    ) -> Result<Option<Pending>, PlanError> {
        if whole.memory.0.saturating_sub(whole.state.0) > self.request.memory.0 {
            return Ok(None);
        }
        for &shard in &shards[1..] {
            let strategy = with(plain, plain.micro, shard);
            if let Ok(Need {
                reason: None,
                lower_bound,
                ..
            }) = self.need(&strategy)?
            {
                return Ok(Some(Pending {
                    lower_bound,
                    strategy,
                }));
            }
        }
        Ok(None)
    }

    /// The candidate with the least sharding, and then the cheapest blocks, with which it fits.
    fn recomputed_and_sharded(
        &self,
        plain: &Strategy,
        whole: &Need,
        shards: &[Shard],
    ) -> Result<Option<Pending>, PlanError> {
        let Some(activations) = self.activations(plain)? else {
            return Ok(None);
        };
        let (least, _) = activations.least();
        let saved = (activations.bytes() - least) as u64;
        for &shard in shards {
            let strategy = with(plain, plain.micro, shard);
            let memory = if shard == plain.shard {
                whole.memory
            } else {
                match self.need(&strategy)? {
                    Ok(need) => need.memory,
                    Err(_) => continue,
                }
            };
            if memory.0.saturating_sub(saved) <= self.request.memory.0
                && let Some(found) = self.recomputed(&strategy, memory, (&activations, least))?
            {
                return Ok(Some(found));
            }
            if whole.memory.0.saturating_sub(saved + whole.state.0) > self.request.memory.0 {
                // Not even without any training state.
                break;
            }
        }
        Ok(None)
    }

    /// Whether a candidate fits with all savings. If not, that is refused, with the memory that it needs.
    fn fits_with_all(
        &mut self,
        base: &Strategy,
        micros: &[usize],
        shards: &[Shard],
    ) -> Result<bool, PlanError> {
        let (micro, shard) = (micros[micros.len() - 1], shards[shards.len() - 1]);
        let mut least = with(base, micro, shard);
        if let Some(activations) = self.activations(&least)? {
            let (_, blocks) = activations.least();
            least = blocks.of(&least, self.request.training.graph);
        }
        match self.need(&least)? {
            Ok(Need { reason: None, .. }) => Ok(true),
            Ok(Need {
                memory,
                reason: Some(reason),
                ..
            }) => {
                self.refuse(least, (Refusal::Memory(memory), reason));
                Ok(false)
            }
            Err(no) => {
                self.refuse(least, no);
                Ok(false)
            }
        }
    }

    /// Numbers of micro-batches to try, ascending.
    fn micros(&self, base: &Strategy) -> Vec<usize> {
        let training = &self.request.training;
        let keeps = self.request.micro_statistics || !training.graph.sums_samples();
        let samples = training.batch / base.extent(Axis::Data);
        let doubled = std::iter::successors(Some(base.micro), |micro| Some(2 * micro));
        let micro_max = if self.best.is_some() {
            MICRO_MAX
        } else {
            samples
        };
        let fits = |micro: &usize| {
            *micro == base.micro || keeps && *micro <= micro_max && samples.is_multiple_of(*micro)
        };
        doubled.take_while(fits).collect()
    }

    /// What training state to shard, ascending.
    fn shards(&self, base: &Strategy) -> Vec<Shard> {
        let is_more = |shard: &Shard| *shard > base.shard && base.ranks() > 1;
        let more = Shard::ALL.into_iter().filter(is_more);
        [base.shard].into_iter().chain(more).collect()
    }

    /// Activations of the last rank in one micro-batch. None where costs are unknown.
    fn activations(&self, strategy: &Strategy) -> Result<Option<Activations>, PlanError> {
        let training = &self.request.training;
        let base = &with(strategy, 1, Shard::Off);
        let request = Request {
            strategy: base,
            batch: training.batch / strategy.micro,
            kind: ProgramKind::Train,
            ..*training
        };
        let rank = base.mesh().ranks() - 1;
        let program = match of_one_rank(&request, rank) {
            Ok(program) => program,
            Err(LayersError::Lower(error)) if !error.is_of_strategy() => return Err(error.into()),
            Err(LayersError::Lower(_) | LayersError::Cost(_)) => return Ok(None),
        };
        let Ok(seconds) = self.request.stages.seconds(&program, rank) else {
            return Ok(None);
        };
        let (graph, body) = (training.graph, &program.bodies[0]);
        Ok(Some(Activations::new(graph, body, &seconds)))
    }

    /// The candidate with the cheapest blocks with which it fits; without them it needs `whole`. `least` is of the
    /// activations, see [`Activations::least`].
    fn recomputed(
        &self,
        plain: &Strategy,
        whole: Bytes,
        (activations, least): (&Activations, f64),
    ) -> Result<Option<Pending>, PlanError> {
        let memory = self.request.memory.0 as f64;
        let mut bytes_max = activations.bytes() - (whole.0 as f64 - memory);
        // The most bytes of activations that fit, and the fewest that do not.
        let mut fitting: Option<(f64, Pending)> = None;
        let mut excessive = f64::INFINITY;
        for tries in 0..TRIES {
            bytes_max = bytes_max.max(least);
            let Some(blocks) = activations.cheapest(bytes_max) else {
                break;
            };
            let strategy = blocks.of(plain, self.request.training.graph);
            let Ok(need) = self.need(&strategy)? else {
                break;
            };
            if need.reason.is_none() {
                let lower_bound = need.lower_bound;
                fitting = Some((
                    bytes_max,
                    Pending {
                        lower_bound,
                        strategy,
                    },
                ));
                if excessive.is_infinite() || excessive - bytes_max < NEAR * activations.bytes() {
                    break;
                }
            } else if bytes_max <= least {
                break;
            } else {
                excessive = bytes_max;
            }
            bytes_max = match &fitting {
                Some((fits, _)) => 0.5 * (fits + excessive),
                None if tries < TRIES_BY_EXCESS => bytes_max - (need.memory.0 as f64 - memory),
                None => least,
            };
        }
        Ok(fitting.map(|(_, pending)| pending))
    }

    /// What the last rank and the middle one need.
    fn need(&self, strategy: &Strategy) -> Result<Result<Need, Rejection>, PlanError> {
        let request = self.request;
        let training = Request {
            strategy,
            ..request.training
        };
        if let Err(error) = strategy.check_splits(training.graph, training.batch) {
            return Ok(Err((Refusal::Unsuited, Message::of(&error).inline())));
        }
        let mesh = strategy.mesh();
        let mut ranks = vec![mesh.ranks() - 1, middle_rank(&mesh)];
        ranks.dedup();
        let mut need = Need {
            memory: Bytes(0),
            state: Bytes(0),
            lower_bound: Seconds(0.0),
            reason: None,
        };
        let bodies = match lower_ranks(&training, &ranks) {
            Ok(bodies) => bodies,
            Err(error) => return unsuited(error),
        };
        for (&rank, body) in ranks.iter().zip(bodies) {
            let body = match body {
                Ok(body) => body,
                Err(error) => return unsuited(error),
            };
            self.lowered.set(self.lowered.get() + body.tasks.len());
            let memory = precision::memory(&body, request.stages.precision());
            if memory > need.memory.max(request.memory) {
                need.reason = Some(memory_reason(&body, memory, request.memory));
            }
            need.memory = need.memory.max(memory);
            let state = [Role::Parameter, Role::Gradient, Role::Optimizer];
            need.state = need
                .state
                .max(state.map(|role| body.bytes_of(role)).into_iter().sum());
            need.lower_bound = need
                .lower_bound
                .max((request.lower_bound)(&body, rank, &mesh));
        }
        Ok(Ok(need))
    }
}

/// With other micro-batches and sharded training state.
fn with(base: &Strategy, micro: usize, shard: Shard) -> Strategy {
    let mut strategy = base.clone();
    strategy.micro = micro;
    strategy.shard = shard;
    strategy
}
