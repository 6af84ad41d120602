//! Pipelines that do not fit in memory, with less of it: smaller micro-batches, sharded training state and recomputed
//! blocks.
//!
//! For each number of micro-batches and each sharding, the layers of the stages are chosen anew, for the shortest step. Stages
//! that do not fit then recompute the blocks that cost them the least: an early stage keeps several micro-batches, a late one
//! a single one, so each has blocks of its own. Where no combination is found this way, the pipeline that saves all it can is
//! balanced by its memory.

use crate::balance::{Balanced, Tables, Wanted, in_flight, stage_ranks};
use crate::need::Need;
use crate::plan::{PlanError, Refusal, Rejection};
use crate::ranking::{Pending, Ranking};
use crate::recompute::{Activations, Blocks};
use crate::savings::{MICRO_MAX, TRIES, TRIES_BY_EXCESS, VARIANTS, selectively, with};
use partita_graph::Graph;
use partita_lower::{Shard, StageChoice, Strategy, fitting_micro, slots};
use partita_space::{Axis, Bytes, Rank, Seconds};
use std::collections::BTreeSet;
use std::ops::Range;

/// Pipelines that are looked at: in the order of time, and of those that are left the ones of least memory.
const LOOKED_AT: [usize; 2] = [5, 2];
/// Most micro-batches times layers of a pipeline that saves all it can.
const LAYERS_MAX: usize = 20_000;
/// Numbers of micro-batches that are tried where a candidate fits.
const MICROS_MAX: usize = 3;
/// Partitions that are lowered until one fits, about.
const PARTITIONS: usize = 8;

/// Devices with the same layers, of which one does not fit.
struct Part {
    /// Their ranks, by their place among all that are looked at.
    ranks: Vec<usize>,
    activations: Activations,
    /// The fewest bytes that activations can take.
    least: f64,
    /// The most that they may take.
    bytes_max: f64,
    blocks: Blocks,
}

impl Ranking<'_, '_> {
    /// Pipelines without layers that were refused for their memory: the fastest by estimates, and of the others those of
    /// least memory.
    pub fn stages_short_of_memory(&mut self) -> Result<[Vec<Strategy>; 2], PlanError> {
        let mut refused: Vec<(Bytes, Strategy)> = Vec::new();
        for one in &self.refused {
            let (Some(needed), false) = (one.memory_needed(), one.strategy.stages.is_empty())
            else {
                continue;
            };
            let mut open = one.strategy.clone();
            open.stages.iter_mut().for_each(|one| one.layers.clear());
            if refused.iter().all(|(_, other)| *other != open) {
                refused.push((needed, open));
            }
        }
        let mut tables = std::mem::take(&mut self.tables);
        let mut first: Vec<(Seconds, Bytes, Strategy)> = Vec::new();
        for (needed, open) in refused {
            let wanted = self.unlimited(Seconds(0.0));
            if let Ok(balanced) = self.balanced(&open, wanted, None, &mut tables)? {
                first.push((balanced.seconds, needed, open));
            }
        }
        self.tables = tables;
        first.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
        let mut rest = first.split_off(first.len().min(LOOKED_AT[0]));
        rest.sort_by_key(|one| one.1);
        rest.truncate(LOOKED_AT[1]);
        Ok([first, rest].map(|list| list.into_iter().map(|one| one.2).collect()))
    }

    /// Partitions as if memory were unlimited; see [`Wanted::most`].
    fn unlimited(&self, most: Seconds) -> Wanted {
        Wanted {
            memory: Bytes(u64::MAX),
            most,
            is_checked_later: true,
        }
    }

    /// Partitions that fit.
    fn fitting(&self) -> Wanted {
        Wanted {
            memory: self.limit,
            ..self.unlimited(Seconds(f64::INFINITY))
        }
    }

    /// The fastest combinations of savings with which a pipeline fits. If none is found, the pipeline with all savings is
    /// refused, with the memory that it needs.
    pub fn variants_of_stages(&mut self, open: &Strategy) -> Result<Vec<Pending>, PlanError> {
        let mut tables = std::mem::take(&mut self.tables);
        let found = self.staged_variants(open, &mut tables);
        self.tables = tables;
        found
    }

    fn staged_variants(
        &mut self,
        open: &Strategy,
        tables: &mut Tables<'_>,
    ) -> Result<Vec<Pending>, PlanError> {
        let (micros, shards) = (self.micros_of_stages(open), self.shards(open));
        let mut found = Vec::new();
        'micros: for &micro in micros.iter().take(MICROS_MAX) {
            let mut recomputes = false;
            for &shard in &shards {
                let strategy = with(open, micro, shard);
                if self.is_over() || self.is_enough() || found.len() >= VARIANTS {
                    break 'micros;
                }
                let all = self.unlimited(Seconds(f64::INFINITY));
                let Ok(fastest) = self.balanced(&strategy, all, None, tables)? else {
                    continue;
                };
                if let Some(reason) = self.stages_are_slower(fastest.seconds) {
                    if strategy == *open {
                        self.refuse(strategy, (Refusal::Slower, reason));
                        return Ok(Vec::new());
                    }
                    // More micro-batches, or more sharding, take longer.
                    break;
                }
                let (plain, blocks) = self.fitting_stages(&fastest, tables, !recomputes)?;
                recomputes |= blocks.is_some();
                let fits = plain.is_some();
                found.extend(plain.into_iter().chain(blocks));
                if fits && shard == open.shard {
                    break 'micros;
                } else if fits {
                    break;
                }
            }
        }
        if found.is_empty() && !self.is_over() {
            found.extend(self.with_all_savings(open, (&micros, &shards), tables)?);
        }
        Ok(found)
    }

    /// Numbers of micro-batches to try, ascending.
    fn micros_of_stages(&self, open: &Strategy) -> Vec<usize> {
        let training = &self.request.training;
        let samples = training.batch / open.extent(Axis::Data);
        let most = LAYERS_MAX / training.graph.nodes.len().max(1);
        let most = match self.best {
            Some(_) => most.min(MICRO_MAX * open.stages.len()),
            None => most,
        };
        let doubled = std::iter::successors(Some(open.micro), |micro| Some(2 * micro));
        let fits = |&micro: &usize| {
            let fitting = fitting_micro(open.schedule, open.stages.len(), micro, samples);
            let is_more = self.keeps_training() && micro <= most && fitting == Some(micro);
            micro == open.micro || is_more
        };
        doubled.take_while(fits).collect()
    }

    /// A pipeline that fits without recomputation, if there is one, and if asked for one that recomputes selectively, or else the
    /// cheapest blocks, with the layers that are the fastest.
    fn fitting_stages(
        &self,
        fastest: &Balanced,
        tables: &mut Tables<'_>,
        may_recompute: bool,
    ) -> Result<(Option<Pending>, Option<Pending>), PlanError> {
        let ranks = stage_ranks(&fastest.strategy);
        let all: Vec<Rank> = ranks.iter().flatten().copied().collect();
        let Ok(whole) = self.need_of(&fastest.strategy, &all)? else {
            return Ok((None, None));
        };
        if whole.reason.is_none() {
            let fits = pending(fastest.strategy.clone(), fastest, &whole);
            return Ok((Some(fits), None));
        }
        // Where the mean rank does not fit, hardly any partition does.
        let sum: Bytes = whole.each.iter().copied().sum();
        let plain = if sum.0 > self.limit.0.saturating_mul(whole.each.len() as u64) {
            None
        } else {
            self.lowered
                .set(self.lowered.get() + PARTITIONS * whole.tasks);
            let mut open = fastest.strategy.clone();
            open.stages.iter_mut().for_each(|one| one.layers.clear());
            self.balanced(&open, self.fitting(), None, tables)?.ok()
        };
        let plain = plain.map(|balanced| Pending {
            lower_bound: balanced.seconds,
            strategy: balanced.strategy,
        });
        if !may_recompute {
            return Ok((plain, None));
        }
        let again = match self.selective_stages(fastest, &ranks, &whole)? {
            Some(selective) => Some(selective),
            None => self.with_blocks(fastest, &ranks, whole)?,
        };
        Ok((plain, again))
    }

    /// These stages, where those that do not fit are recomputed selectively, if they fit then.
    fn selective_stages(
        &self,
        fastest: &Balanced,
        ranks: &[Vec<Rank>],
        whole: &Need,
    ) -> Result<Option<Pending>, PlanError> {
        let stages = &fastest.strategy.stages;
        let short = of_devices(ranks)
            .into_iter()
            .enumerate()
            .filter(|(_, own)| {
                let mut needed = whole.each[own.clone()].iter();
                needed.any(|&one| one > self.limit)
            });
        let replicas = fastest.strategy.schedule.replicas();
        let short: BTreeSet<usize> = short
            .flat_map(|(device, _)| alike(device, stages.len(), replicas))
            .collect();
        let layers = short
            .iter()
            .flat_map(|&device| stages[device].layers.clone());
        let strategy = selectively(&fastest.strategy, layers);
        let all: Vec<Rank> = ranks.iter().flatten().copied().collect();
        let need = match self.need_of(&strategy, &all)? {
            Ok(need) if need.reason.is_none() => need,
            Ok(_) | Err(_) => return Ok(None),
        };
        Ok(Some(pending(strategy, fastest, &need)))
    }

    /// These stages, each with the cheapest blocks with which it fits. `whole` is what they need without.
    fn with_blocks(
        &self,
        fastest: &Balanced,
        ranks: &[Vec<Rank>],
        whole: Need,
    ) -> Result<Option<Pending>, PlanError> {
        let all: Vec<Rank> = ranks.iter().flatten().copied().collect();
        let Some(mut parts) = self.parts(&fastest.strategy, ranks, &whole)? else {
            return Ok(None);
        };
        let mut need = whole;
        for tries in 0..TRIES {
            let mut strategy = fastest.strategy.clone();
            for part in &mut parts {
                let needed = part.ranks.iter().map(|&at| need.each[at]).max();
                let excess = needed.unwrap_or_default().0 as f64 - self.limit.0 as f64;
                if excess > 0.0 && part.bytes_max <= part.least {
                    return Ok(None);
                } else if excess > 0.0 {
                    let fewer = part.bytes_max - excess;
                    part.bytes_max = if tries <= TRIES_BY_EXCESS {
                        fewer.max(part.least)
                    } else {
                        part.least
                    };
                    match part.activations.cheapest(part.bytes_max) {
                        Some(blocks) => part.blocks = blocks,
                        None => return Ok(None),
                    }
                }
                strategy = part.blocks.of(&strategy, self.request.training.graph);
            }
            need = match self.need_of(&strategy, &all)? {
                Ok(need) => need,
                Err(_) => return Ok(None),
            };
            if need.reason.is_none() {
                return Ok(Some(pending(strategy, fastest, &need)));
            }
        }
        Ok(None)
    }

    /// The devices that do not fit. Under two replicas a device has the layers of the one that mirrors it. None where costs
    /// are unknown, or several micro-batches cannot be told apart.
    fn parts(
        &self,
        strategy: &Strategy,
        ranks: &[Vec<Rank>],
        whole: &Need,
    ) -> Result<Option<Vec<Part>>, PlanError> {
        let training = &self.request.training;
        let (graph, devices) = (training.graph, strategy.stages.len());
        let replicas = strategy.schedule.replicas();
        let multiple = strategy.schedule.micro_multiple(devices).unwrap_or(1);
        if multiple > replicas {
            return Ok(None);
        }
        let in_flight = in_flight(strategy, &slots(strategy.schedule, devices, strategy.micro));
        let one = with(strategy, multiple, Shard::Off);
        let batch = training.batch / strategy.micro * multiple;
        let places = of_devices(ranks);
        let mut parts = Vec::new();
        for device in 0..devices.div_ceil(replicas) {
            let alike = alike(device, devices, replicas);
            let of_ranks = alike.iter().flat_map(|&device| places[device].clone());
            let of_ranks: Vec<usize> = of_ranks.collect();
            if of_ranks.iter().all(|&at| whole.each[at] <= self.limit) {
                continue;
            }
            let own = own_layers(graph, alike.iter().map(|&device| &strategy.stages[device]));
            let flights = alike.iter().map(|&device| in_flight[device]);
            let last = *ranks[device].last().unwrap_or(&0);
            let of = (&one, batch, last);
            let flights = flights.fold(1.0, f64::max);
            let Some(activations) = self.activations_of(of, &|at| own[at], flights)? else {
                return Ok(None);
            };
            let (least, _) = activations.least();
            parts.push(Part {
                ranks: of_ranks,
                least,
                bytes_max: activations.bytes(),
                activations,
                blocks: Blocks::default(),
            });
        }
        Ok(Some(parts))
    }

    /// The pipeline with all savings, balanced by its memory. If it does not fit, it is refused with what it needs.
    fn with_all_savings(
        &mut self,
        open: &Strategy,
        (micros, shards): (&[usize], &[Shard]),
        tables: &mut Tables<'_>,
    ) -> Result<Option<Pending>, PlanError> {
        let (micro, shard) = (micros[micros.len() - 1], shards[shards.len() - 1]);
        let mut least = with(open, micro, shard);
        let mut whole = open.clone();
        whole.stages.clear();
        let mut extents = open.stages[0].extents;
        extents[Axis::Data.index()] *= open.extent(Axis::Data);
        let settings = Strategy::of(extents);
        let whole = settings.with_settings_of(&whole, &[]);
        if let Some(activations) = self.activations(&with(&whole, micro, Shard::Off))? {
            let (_, blocks) = activations.least();
            least = blocks.of(&least, self.request.training.graph);
        }
        let found: Result<Balanced, Rejection> =
            self.balanced(&least, self.fitting(), None, tables)?;
        Ok(match found {
            Ok(balanced) => Some(Pending {
                lower_bound: balanced.seconds,
                strategy: balanced.strategy,
            }),
            Err(no) => {
                self.refuse(least, no);
                None
            }
        })
    }
}

/// A pipeline with what it is expected to take at least: the estimate for its layers, and what the rank that works longest
/// takes beyond the estimate of its work.
/// The places of the ranks of each device among all of them.
fn of_devices(ranks: &[Vec<Rank>]) -> Vec<Range<usize>> {
    let places = ranks.iter().scan(0, |next, own| {
        let first = *next;
        *next += own.len();
        Some(first..*next)
    });
    places.collect()
}

/// The devices with the same layers as one: under two replicas it has those of the one that mirrors it, too.
fn alike(device: usize, devices: usize, replicas: usize) -> Vec<usize> {
    let mirrored = devices - 1 - device;
    if replicas > 1 && mirrored != device {
        vec![device, mirrored]
    } else {
        vec![device]
    }
}

fn pending(strategy: Strategy, fastest: &Balanced, need: &Need) -> Pending {
    let more = (need.lower_bound - fastest.busy).max(Seconds(0.0));
    Pending {
        lower_bound: fastest.seconds + more,
        strategy,
    }
}

/// Whether each layer is one of these stages, which are specified.
fn own_layers<'s>(graph: &Graph, stages: impl Iterator<Item = &'s StageChoice>) -> Vec<bool> {
    let mut own = vec![false; graph.nodes.len()];
    for (from, to) in stages.flat_map(|stage| &stage.layers) {
        let find = |name: &str| graph.find(name).map(|id| id.0);
        let first = find(from).map_or(0, |at| graph.layer_start(at));
        let last = find(to).unwrap_or(graph.nodes.len() - 1);
        own[first..=last].fill(true);
    }
    own
}
