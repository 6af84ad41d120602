//! Candidates that do not fit in memory, with less of it: sharded training state, micro-batches, selective recomputation and
//! recomputed blocks.
//!
//! Candidates are taken in the order of their closed forms, those of least memory last. For each, one rank tells whether
//! it fits with all savings together; if so, the fastest combinations that fit are simulated. Savings that change the
//! training (micro-batches where something sums over samples) are tried only on request. Pipelines come after the others
//! (`stage_savings`).

#[cfg(test)]
mod tests;

use crate::layers::{LayersError, of_one_rank};
use crate::need::{Need, need};
use crate::plan::{PlanError, Refusal, Rejection};
use crate::prefilter::slower_than_best;
use crate::ranking::{Pending, Ranking};
use crate::recompute::{Activations, Blocks};
use partita_lower::{LayerChoice, Recompute, Request, Shard, StageChoice, Strategy};
use partita_program::ProgramKind;
use partita_space::help::Message;
use partita_space::{Axis, Bytes, Rank};

/// Candidates with savings that are simulated, of those that fit with them, and as many that fit in chunks alone.
const BASES: usize = 4;
/// Candidates that are looked at for it: in the order of time, and of those that are left the ones of least memory.
const LOOKED_AT: [usize; 2] = [16, 3];
/// Candidates with other axes for deep levels that are looked at first, where nothing fits.
const LEVELS: usize = 3;
/// Most micro-batches, if any candidate fits: programs of many take long to lower, and rarely are the fastest.
pub(crate) const MICRO_MAX: usize = 16;
/// Combinations of savings that are simulated for a candidate.
pub(crate) const VARIANTS: usize = 3;
/// Sets of blocks that are lowered until one fits.
pub(crate) const TRIES: usize = 7;
/// Of them, those whose size follows from the excess of the one before. After them the smallest set is tried.
pub(crate) const TRIES_BY_EXCESS: usize = 2;
/// No more candidates are looked at once this many tasks were lowered for it, if any candidate fits, and four times as many
/// else. Some ten seconds of a core.
const TASKS: usize = 700_000;
/// Sets of blocks of a small network that are lowered to improve on one, and those of a size that grow on.
const SETS: usize = 800;
const SETS_GROWN: usize = 10;
/// The search for blocks ends within this part of all activations.
const NEAR: f64 = 0.02;

/// A strategy and what it needs, or why it cannot be lowered.
type Lowered = Result<(Strategy, Need), (Strategy, Rejection)>;

impl Ranking<'_, '_> {
    /// Evaluates candidates that do not fit with less memory, where they may be faster than the best.
    pub fn evaluate_savings(&mut self) -> Result<(), PlanError> {
        let mut whole = self.short_of_memory()?;
        if self.best.is_none() {
            // Split weights need less memory, so that these may fit where others do not.
            let mut levels = std::mem::take(&mut self.levels_short);
            levels.truncate(LEVELS);
            for list in &mut whole {
                list.retain(|one| !levels.contains(one));
            }
            self.evaluate_with_savings([levels, Vec::new()])?;
        }
        self.evaluate_with_savings(whole)?;
        let staged = self.stages_short_of_memory()?;
        self.evaluate_with_savings(staged)
    }

    /// Evaluates these candidates with savings, in this order; the second ones only where nothing fits.
    fn evaluate_with_savings(
        &mut self,
        [by_time, by_memory]: [Vec<Strategy>; 2],
    ) -> Result<(), PlanError> {
        let (first, total) = (by_time.len(), by_time.len() + by_memory.len());
        // Without and with chunks.
        let mut fitting = [0; 2];
        self.lowered.set(0);
        for (at, base) in by_time.into_iter().chain(by_memory).enumerate() {
            let is_late = at >= first && self.best.is_some();
            let is_done = fitting[0] == BASES || fitting.iter().sum::<usize>() == 2 * BASES;
            if is_done || is_late || self.is_enough() || self.is_over() {
                break;
            }
            (self.request.progress)(&base, total - at);
            let mut variants = self.variants(&base)?;
            let in_chunks = variants.iter().all(|one| has_chunks(&one.strategy));
            fitting[usize::from(in_chunks)] += usize::from(!variants.is_empty());
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

    /// Whether enough was lowered for savings.
    pub fn is_enough(&self) -> bool {
        let tasks_max = if self.best.is_some() {
            TASKS
        } else {
            4 * TASKS
        };
        self.lowered.get() > tasks_max
    }

    /// The fastest combinations of savings with which a candidate fits.
    pub fn variants(&mut self, base: &Strategy) -> Result<Vec<Pending>, PlanError> {
        if base.stages.is_empty() {
            self.variants_of_whole(base)
        } else {
            self.variants_of_stages(base)
        }
    }

    /// Candidates refused for their memory: the fastest by closed forms, and of the others those of least memory.
    fn short_of_memory(&self) -> Result<[Vec<Strategy>; 2], PlanError> {
        let forms = self.closed_forms()?;
        let time = |strategy: &Strategy| {
            let forms = forms.as_ref();
            let seconds = forms.and_then(|forms| forms.approximate_seconds(strategy));
            seconds.map_or(f64::INFINITY, |seconds| seconds.0)
        };
        let refused = self
            .refused
            .iter()
            .filter_map(|one| Some((time(&one.strategy), one.memory_needed()?, &one.strategy)));
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

    /// The fastest combinations of savings with which a candidate without stages fits, as seen from two ranks. If none is
    /// found, the candidate with all savings is refused, with the memory that it needs.
    fn variants_of_whole(&mut self, base: &Strategy) -> Result<Vec<Pending>, PlanError> {
        let (micros, shards) = (self.micros(base), self.shards(base));
        let Ok(of_base) = self.need(base)? else {
            return Ok(Vec::new());
        };
        // Savings cost time.
        if let Some(reason) = self.cannot_be_best(base, of_base.lower_bound) {
            self.refuse(base.clone(), (Refusal::Slower, reason));
            return Ok(Vec::new());
        }
        let (bases, with_all) = self.with_all(base, &micros, &shards)?;
        if let Some((least, no)) = refusal(with_all) {
            self.refuse(least, no);
            return Ok(Vec::new());
        }
        let mut of_base = Some(of_base).filter(|_| bases[0] == *base);
        for one in &bases {
            let found = self.combined(one, of_base.take(), (&micros, &shards))?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    /// The fastest combinations of micro-batches, sharding and recomputed blocks with which a candidate fits.
    pub fn combined(
        &self,
        base: &Strategy,
        mut of_base: Option<Need>,
        (micros, shards): (&[usize], &[Shard]),
    ) -> Result<Vec<Pending>, PlanError> {
        let mut found = Vec::new();
        for &micro in micros {
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
            found.extend(self.sharded(&plain, &whole, shards)?);
            found.extend(self.selective_and_sharded(&plain, shards)?);
            found.extend(self.recomputed_and_sharded(&plain, &whole, shards)?);
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
        if whole.memory.0.saturating_sub(whole.state.0) > self.limit.0 {
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

    /// The candidate that recomputes selectively, with the least sharding with which it fits.
    fn selective_and_sharded(
        &self,
        plain: &Strategy,
        shards: &[Shard],
    ) -> Result<Option<Pending>, PlanError> {
        let selective = selectively(plain, [Default::default()]);
        let Ok(whole) = self.need(&selective)? else {
            return Ok(None);
        };
        if whole.reason.is_some() {
            return self.sharded(&selective, &whole, shards);
        }
        Ok(Some(Pending {
            lower_bound: whole.lower_bound,
            strategy: selective,
        }))
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
        // Of small networks programs tell, whatever the lifetimes of layers promise.
        let saved = if activations.is_small() {
            u64::MAX
        } else {
            (activations.bytes() - least) as u64
        };
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
            if memory.0.saturating_sub(saved) <= self.limit.0
                && let Some(found) = self.recomputed(&strategy, memory, (&activations, least))?
            {
                return Ok(Some(found));
            }
            if whole
                .memory
                .0
                .saturating_sub(saved.saturating_add(whole.state.0))
                > self.limit.0
            {
                // Not even without any training state.
                break;
            }
        }
        Ok(None)
    }

    /// What a candidate needs with all savings: without chunks, if it fits so, or with the fewest blocks in chunks with which it
    /// fits; else the least. With it, what savings are to be combined with, the fewest chunks first.
    pub fn with_all(
        &self,
        base: &Strategy,
        micros: &[usize],
        shards: &[Shard],
    ) -> Result<(Vec<Strategy>, Lowered), PlanError> {
        let mut least = (
            vec![base.clone()],
            self.with_all_recomputed(base, micros, shards)?,
        );
        for set in self.in_chunks(base) {
            let is_open = memory_short(&least.1).is_some();
            let Some(most) = set.last().filter(|_| is_open) else {
                break;
            };
            if self.is_enough() || self.is_over() {
                break;
            }
            let with_chunks = self.with_all_recomputed(most, micros, shards)?;
            let is_less = match (memory_short(&with_chunks), memory_short(&least.1)) {
                (Some(more), Some(known)) => more < known,
                (None, _) => with_chunks.is_ok(),
                (Some(_), None) => false,
            };
            if is_less {
                least = (set, with_chunks);
            }
        }
        Ok(least)
    }

    /// A candidate with all savings but chunks, and what it needs, or why it cannot be lowered.
    fn with_all_recomputed(
        &self,
        base: &Strategy,
        micros: &[usize],
        shards: &[Shard],
    ) -> Result<Lowered, PlanError> {
        let (micro, shard) = (micros[micros.len() - 1], shards[shards.len() - 1]);
        let plain = with(base, micro, shard);
        let activations = self.activations(&plain)?;
        let blocks = activations.as_ref().map(|one| one.least().1);
        let blocks = blocks.unwrap_or_default();
        let graph = self.request.training.graph;
        let least = blocks.of(&plain, graph);
        let need = match self.need(&least)? {
            Ok(need) => need,
            Err(no) => return Ok(Err((least, no))),
        };
        let Some(activations) = activations.filter(|_| need.reason.is_some()) else {
            return Ok(Ok((least, need)));
        };
        let (blocks, need) = self.improved(&plain, &activations, (blocks, need))?;
        let in_blocks = (blocks.of(&plain, graph), need);
        let selective = selectively(&plain, [Default::default()]);
        Ok(Ok(match self.need(&selective)? {
            Ok(need) if need.memory < in_blocks.1.memory => (selective, need),
            Ok(_) | Err(_) => in_blocks,
        }))
    }

    /// Numbers of micro-batches to try, ascending.
    pub fn micros(&self, base: &Strategy) -> Vec<usize> {
        let training = &self.request.training;
        let keeps = self.keeps_training();
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

    /// Whether micro-batches may be taken: they do not change the training, or are allowed to.
    pub fn keeps_training(&self) -> bool {
        self.request.micro_statistics || !self.request.training.graph.sums_samples()
    }

    /// What training state to shard, ascending.
    pub fn shards(&self, base: &Strategy) -> Vec<Shard> {
        let splits = |one: &StageChoice| one.extents.iter().product::<usize>() > 1;
        let has_stages = !base.stages.is_empty();
        let is_alone = base.extent(Axis::Data) == 1 && !base.stages.iter().any(splits);
        let may_shard = base.ranks() > 1 && !(has_stages && is_alone);
        let is_more = |shard: &Shard| *shard > base.shard && may_shard;
        let more = Shard::ALL.into_iter().filter(is_more);
        [base.shard].into_iter().chain(more).collect()
    }

    /// Activations of the last rank in one micro-batch. None where costs are unknown.
    pub fn activations(&self, strategy: &Strategy) -> Result<Option<Activations>, PlanError> {
        let base = &with(strategy, 1, Shard::Off);
        let batch = self.request.training.batch / strategy.micro;
        let rank = base.mesh().ranks() - 1;
        // A block in chunks is computed again already.
        let chunked = self.chunked(base);
        self.activations_of((base, batch, rank), &|layer| !chunked[layer], 1.0)
    }

    /// Activations of a rank in a step of this batch, with these layers and micro-batches in flight. None where costs
    /// are unknown.
    pub fn activations_of(
        &self,
        (strategy, batch, rank): (&Strategy, usize, Rank),
        is_own: &dyn Fn(usize) -> bool,
        in_flight: f64,
    ) -> Result<Option<Activations>, PlanError> {
        let training = &self.request.training;
        let request = Request {
            strategy,
            batch,
            kind: ProgramKind::Train,
            ..*training
        };
        let program = match of_one_rank(&request, rank) {
            Ok(program) => program,
            Err(LayersError::Lower(error)) if !error.is_of_strategy() => return Err(error.into()),
            Err(LayersError::Lower(_) | LayersError::Cost(_)) => return Ok(None),
        };
        let Ok(seconds) = self.request.stages.seconds(&program, rank) else {
            return Ok(None);
        };
        let of = (&program.bodies[0], &seconds[..]);
        Ok(Some(Activations::new(
            training.graph,
            of,
            is_own,
            in_flight,
        )))
    }

    /// The candidate with the cheapest blocks with which it fits; without them it needs `whole`. `least` is of the
    /// activations, see [`Activations::least`].
    fn recomputed(
        &self,
        plain: &Strategy,
        whole: Bytes,
        (activations, least): (&Activations, f64),
    ) -> Result<Option<Pending>, PlanError> {
        let memory = self.limit.0 as f64;
        let mut bytes_max = activations.bytes() - (whole.0 as f64 - memory);
        // The most bytes of activations that fit, and the fewest that do not.
        let mut fitting: Option<(f64, (Blocks, Need))> = None;
        let (mut excessive, mut nearest) = (f64::INFINITY, None);
        for tries in 0..TRIES {
            bytes_max = bytes_max.max(least);
            let Some(blocks) = activations.cheapest(bytes_max) else {
                break;
            };
            let strategy = blocks.of(plain, self.request.training.graph);
            let Ok(need) = self.need(&strategy)? else {
                break;
            };
            let needed = need.memory.0 as f64;
            if need.reason.is_none() {
                fitting = Some((bytes_max, (blocks, need)));
                if excessive.is_infinite() || excessive - bytes_max < NEAR * activations.bytes() {
                    break;
                }
            } else {
                nearest = Some((blocks, need));
                if bytes_max <= least {
                    break;
                }
                excessive = bytes_max;
            }
            bytes_max = match &fitting {
                Some((fits, _)) => 0.5 * (fits + excessive),
                None if tries < TRIES_BY_EXCESS => bytes_max - (needed - memory),
                None => least,
            };
        }
        let Some(found) = fitting.map(|(_, found)| found).or(nearest) else {
            return Ok(None);
        };
        let (blocks, need) = self.improved(plain, activations, found)?;
        Ok(need.reason.is_none().then(|| Pending {
            lower_bound: need.lower_bound,
            strategy: blocks.of(plain, self.request.training.graph),
        }))
    }

    /// Blocks of a small network that fit better, or take less time, by sets that grow by one block at a time. Programs decide,
    /// as lifetimes of layers do not know gradients and workspaces.
    fn improved(
        &self,
        plain: &Strategy,
        activations: &Activations,
        mut best: (Blocks, Need),
    ) -> Result<(Blocks, Need), PlanError> {
        let mut grown = vec![(Blocks::default(), Need::default())];
        let mut left = if activations.is_small() { SETS } else { 0 };
        while !grown.is_empty() {
            let mut next: Vec<(Blocks, Need)> = Vec::new();
            for (set, _) in grown {
                for blocks in activations.extended(&set) {
                    let is_known = next.iter().any(|(known, _)| *known == blocks);
                    if is_known || left == 0 || self.is_enough() || self.is_over() {
                        continue;
                    }
                    left -= 1;
                    let strategy = blocks.of(plain, self.request.training.graph);
                    if let Ok(need) = self.need(&strategy)? {
                        next.push((blocks, need));
                    }
                }
            }
            next.sort_by(|a, b| {
                let (a, b) = (self.score(&a.1), self.score(&b.1));
                a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
            });
            next.truncate(SETS_GROWN);
            if let Some(first) = next.first()
                && self.score(&first.1) < self.score(&best.1)
            {
                best = first.clone();
            }
            grown = next;
        }
        Ok(best)
    }

    /// By how much it does not fit, and then its time.
    fn score(&self, need: &Need) -> (u64, f64) {
        let excess = need.memory.0.saturating_sub(self.limit.0);
        (excess, need.lower_bound.0)
    }

    /// What the last rank and the middle one need.
    pub fn need(&self, strategy: &Strategy) -> Result<Result<Need, Rejection>, PlanError> {
        let mesh = strategy.mesh();
        let mut ranks = vec![mesh.ranks() - 1, mesh.middle()];
        ranks.dedup();
        self.need_of(strategy, &ranks)
    }

    /// What these ranks need.
    pub fn need_of(
        &self,
        strategy: &Strategy,
        ranks: &[Rank],
    ) -> Result<Result<Need, Rejection>, PlanError> {
        let training = &self.request.training;
        if let Err(error) = strategy.check_splits(training.graph, training.batch) {
            return Ok(Err((Refusal::Unsuited, Message::of(&error).inline())));
        }
        let found = need(self.request, strategy, (ranks, self.limit), &|_| false)?;
        if let Ok(need) = &found {
            self.lowered.set(self.lowered.get() + need.tasks);
        }
        Ok(found)
    }
}

/// The memory of a candidate that does not fit.
fn memory_short(lowered: &Lowered) -> Option<Bytes> {
    let (_, need) = lowered.as_ref().ok()?;
    need.reason.as_ref().map(|_| need.memory)
}

/// The refusal of a candidate that does not fit, or cannot be lowered.
fn refusal(lowered: Lowered) -> Option<(Strategy, Rejection)> {
    match lowered {
        Ok((least, need)) => {
            let reason = need.reason?;
            Some((least, (Refusal::Memory(need.memory), reason)))
        }
        Err(refused) => Some(refused),
    }
}

/// With these layers recomputed selectively, given by the names of the first and the last; empty names are all.
pub(crate) fn selectively(
    base: &Strategy,
    layers: impl IntoIterator<Item = (String, String)>,
) -> Strategy {
    let mut strategy = base.clone();
    let choices = layers.into_iter().map(|(from, to)| LayerChoice {
        from,
        to,
        recompute: Some(Recompute::Selective),
        ..LayerChoice::default()
    });
    strategy.layers.extend(choices);
    strategy
}

/// Whether a strategy computes some layers in chunks.
pub(crate) fn has_chunks(strategy: &Strategy) -> bool {
    strategy.layers.iter().any(LayerChoice::is_chunked)
}

/// With other micro-batches and sharded training state.
pub(crate) fn with(base: &Strategy, micro: usize, shard: Shard) -> Strategy {
    let mut strategy = base.clone();
    strategy.micro = micro;
    strategy.shard = shard;
    strategy
}
