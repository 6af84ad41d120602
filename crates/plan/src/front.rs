//! The front of time against memory, down to the least that is possible.
//!
//! A search for the fastest strategy leaves out what is slower, however small it is. For the front, savings are looked for under
//! ever lower limits: from what the smallest candidate needs that was evaluated, to what is left with all savings. Under each
//! limit the fastest combinations of some candidates are simulated.

use crate::plan::{PlanError, Refusal};
use crate::ranking::{Pending, Ranking};
use crate::savings::with;
use partita_lower::{LayerChoice, Strategy};
use partita_space::{Bytes, Seconds};

/// Limits between the smallest candidate that was evaluated and the least.
const LIMITS: usize = 4;
/// Candidates whose memory is looked at, in the order of time.
const LOOKED_AT: usize = 12;
/// Of them the fastest, and those of least memory, whose savings are looked for.
const BASES: [usize; 2] = [2, 2];
/// Combinations that are simulated under a limit.
const VARIANTS: usize = 2;

impl Ranking<'_, '_> {
    /// Evaluates slower candidates of less memory, if they are asked for.
    pub fn evaluate_front(&mut self) -> Result<(), PlanError> {
        let evaluated = self.evaluated.iter();
        let needs = evaluated.filter_map(|one| Some(one.prediction.as_ref()?.memory_bytes_max));
        let Some(start) = needs.min().filter(|_| self.request.front) else {
            return Ok(());
        };
        // Nothing is too slow for the front.
        let best = self.best.take();
        let found = self.evaluate_below(start);
        self.best = best;
        self.limit = self.request.memory;
        found
    }

    fn evaluate_below(&mut self, start: Bytes) -> Result<(), PlanError> {
        let bases = self.bases_of_front()?;
        let mut least: Option<(Bytes, Strategy)> = None;
        self.limit = Bytes(0);
        for base in &bases {
            let (micros, shards) = (self.micros(base), self.shards(base));
            self.lowered.set(0);
            let (_, with_all) = self.with_all(base, &micros, &shards)?;
            if let Ok((strategy, need)) = with_all
                && least
                    .as_ref()
                    .is_none_or(|(memory, _)| need.memory < *memory)
            {
                least = Some((need.memory, strategy));
            }
        }
        let Some((memory, strategy)) = least.filter(|(memory, _)| *memory < start) else {
            return Ok(());
        };
        for at in 1..=LIMITS {
            let part = at as f64 / (LIMITS + 1) as f64;
            let (high, low) = ((start.0 as f64).ln(), (memory.0 as f64).ln());
            self.limit = Bytes((high + part * (low - high)).exp() as u64);
            let mut found: Vec<Pending> = Vec::new();
            for base in &bases {
                self.lowered.set(0);
                found.extend(self.variants(base)?);
                found.extend(self.variants_in_chunks(base)?);
            }
            found.sort_by(|a, b| a.lower_bound.0.total_cmp(&b.lower_bound.0));
            for one in found.into_iter().take(VARIANTS) {
                self.evaluate_of_front(one.strategy)?;
            }
        }
        self.evaluate_of_front(strategy)
    }

    fn evaluate_of_front(&mut self, strategy: Strategy) -> Result<(), PlanError> {
        let is_known = self.evaluated.iter().any(|one| one.strategy == strategy);
        if self.is_over() || is_known {
            return Ok(());
        }
        (self.request.progress)(&strategy, 1);
        self.evaluate(strategy, None)
    }

    /// Candidates without stages and savings: the fastest by closed forms, and of these the ones of least memory.
    fn bases_of_front(&self) -> Result<Vec<Strategy>, PlanError> {
        let asked = self.request.training.strategy;
        let forms = self.closed_forms()?;
        let is_plain = |one: &Strategy| {
            let is_again =
                |choice: &LayerChoice| choice.recompute.is_some() || choice.chunks.is_some();
            let recomputes = one.layers.iter().any(is_again);
            let is_asked = one.overlap == asked.overlap && one.bucket == asked.bucket;
            one.stages.is_empty() && !recomputes && is_asked && *one == with(one, 1, asked.shard)
        };
        let refused = self.refused.iter().filter(|one| match one.refusal {
            Some(Refusal::Memory(_) | Refusal::Slower) | None => true,
            Some(Refusal::Large | Refusal::Untried | Refusal::Unsuited | Refusal::Unknown) => false,
        });
        let all = self.evaluated.iter().chain(refused);
        let mut timed: Vec<(f64, &Strategy)> = all
            .map(|one| &one.strategy)
            .filter(|one| is_plain(one))
            .map(|one| {
                let forms = forms.as_ref();
                let seconds = forms.and_then(|forms| forms.approximate_seconds(one));
                (seconds.unwrap_or(Seconds(f64::INFINITY)).0, one)
            })
            .collect();
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut bases: Vec<Strategy> = Vec::new();
        let fastest = timed.iter().take(BASES[0]).map(|one| one.1.clone());
        bases.extend(fastest);
        let mut needs = Vec::new();
        for (_, one) in timed.into_iter().skip(BASES[0]).take(LOOKED_AT) {
            if let Ok(need) = self.need(one)? {
                needs.push((need.memory, one));
            }
        }
        needs.sort_by_key(|one| one.0);
        bases.extend(needs.into_iter().take(BASES[1]).map(|one| one.1.clone()));
        Ok(bases)
    }
}
