//! Balancing: assigns layers to the stages of a pipeline, where the strategy does not specify them.

use crate::layers::{LayerCost, Layers, LayersError, StageCosts, UnknownCost, single_crossings};
use crate::repeats::Shortened;
use partita_graph::Graph;
use partita_lower::{LowerError, Pass, Request, Slot, Strategy, balanced, lower_ranks, slots};
use partita_oracle::LayerPrecision;
use partita_oracle::precision;
use partita_program::ProgramKind;
use partita_space::{Axis, Bytes, Mesh, Rank, Seconds};
use std::cmp::Ordering;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Partitions tried where the best one does not fit in memory.
const ATTEMPTS_MAX: usize = 8;
/// How often each boundary between stages is moved.
const REFINEMENTS: usize = 3;
/// How far a boundary is moved layer by layer, and to how many positions farther away.
const NEAR_STEPS: usize = 3;
const POSITIONS: usize = 16;

/// In a model with more layers, stages begin where a single tensor connects the layers before and after, and near
/// there.
const LAYERS_MANY: usize = 1024;
/// The part of the memory up to which the estimate of the largest stage shows that all stages fit.
const SURE_PART: f64 = 0.5;

/// Why layers cannot be assigned to stages.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BalanceError {
    /// The strategy does not fit the model or the mini-batch, or the menu lacks a kernel.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// An unknown cost.
    #[error(transparent)]
    Cost(UnknownCost),
    /// No partition fits in memory.
    #[error(
        "strategy `{strategy}`: no partition of the layers of {model} into these stages fits: the largest rank \
         needs at least {needed}, and it may fill {memory}; the nearest choices are more \
         stages, more ranks for the first of them, as in `stages=[height=2|1]`, {}or \
         {needed} of memory for the program alone, without what the software takes",
        if strategy.micro < *batch { "a larger `micro`, " } else { "" }
    )]
    Memory {
        /// The strategy.
        strategy: Box<Strategy>,
        /// Samples of the mini-batch.
        batch: usize,
        /// The model.
        model: String,
        /// Memory of the best partition found.
        needed: Bytes,
        /// The limit.
        memory: Bytes,
    },
}

impl From<LayersError> for BalanceError {
    fn from(error: LayersError) -> Self {
        match error {
            LayersError::Lower(error) => Self::Lower(error),
            LayersError::Cost(error) => Self::Cost(error),
        }
    }
}

/// A strategy with layers for all stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Balanced {
    /// The strategy with the layers of each stage specified.
    pub strategy: Strategy,
    /// Estimated time of a step, without contention of links.
    pub seconds: Seconds,
    /// A rank that works longest.
    pub busiest: Rank,
    /// Estimated time in which it works.
    pub busy: Seconds,
}

/// What several strategies for a model share.
#[derive(Default)]
pub(crate) struct Tables<'s> {
    /// The model with fewer layers, if it has many that are alike.
    shortened: Option<&'s Shortened>,
    /// Costs of layers, by the stages that have them.
    layers: HashMap<(Strategy, [usize; 7], usize), Layers>,
    /// Strategies that fit the model and the mini-batch.
    valid: HashSet<Strategy>,
    /// Elements that a range of layers reads of earlier layers, as by [`elements_crossing`].
    crossing: Option<Vec<Vec<f64>>>,
}

impl<'s> Tables<'s> {
    /// Empty ones.
    pub fn new(shortened: Option<&'s Shortened>) -> Self {
        Self {
            shortened,
            ..Self::default()
        }
    }

    /// Checks a strategy unless it was.
    pub(crate) fn check(&mut self, training: &Request<'_>) -> Result<(), BalanceError> {
        let strategy = training.strategy;
        if !self.valid.contains(strategy) {
            let short = self.shortened.filter(|_| strategy.layers.is_empty());
            let graph = short.map_or(training.graph, |short| &short.graph);
            let checked = strategy.check(graph, training.batch);
            checked.map_err(LowerError::Strategy)?;
            self.valid.insert(strategy.clone());
        }
        Ok(())
    }
}

/// What partitions are looked for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Memory of a rank.
    pub memory: Bytes,
    /// A step that would take longer even with unlimited memory gets the layers that it would have then.
    pub most: Seconds,
    /// Whether the program is lowered later, and its memory checked: then a partition is taken whose estimate is far
    /// below the limit.
    pub is_checked_later: bool,
}

/// Key of the table of a stage.
fn key(strategy: &Strategy, extents: [usize; 7]) -> (Strategy, [usize; 7], usize) {
    let mut alike = strategy.clone();
    alike.stages.clear();
    (alike, extents, strategy.micro)
}

pub(crate) struct Balancer<'a> {
    pub training: &'a Request<'a>,
    pub wanted: Wanted,
    pub precision: LayerPrecision,
    /// Of each place.
    layers: Vec<&'a Layers>,
    /// Where stages may begin and end.
    positions: Vec<usize>,
    /// For each layer, whether a stage may begin there.
    begins: Vec<bool>,
    stage_inputs: StageInputs<'a>,
    slots: Vec<Slot>,
    /// Largest number of micro-batches in flight, by stage.
    in_flight: Vec<f64>,
}

impl<'a> Balancer<'a> {
    pub(crate) fn new(
        training: &'a Request<'a>,
        wanted: Wanted,
        costs: &dyn StageCosts,
        tables: &'a mut Tables<'_>,
    ) -> Result<Self, BalanceError> {
        let strategy = training.strategy;
        for stage in &strategy.stages {
            let key = key(strategy, stage.extents);
            if let Entry::Vacant(vacant) = tables.layers.entry(key) {
                let layers = Layers::new(training, stage.extents, tables.shortened, costs)?;
                vacant.insert(layers);
            }
        }
        let crossing = &mut tables.crossing;
        let crossing = &*crossing.get_or_insert_with(|| elements_crossing(training.graph));
        let layers = strategy
            .stages
            .iter()
            .map(|stage| &tables.layers[&key(strategy, stage.extents)]);
        let slots = slots(strategy.schedule, strategy.stages.len(), strategy.micro);
        let begins = strategy.stage_begins(training.graph);
        Ok(Self {
            training,
            wanted,
            precision: costs.precision(),
            layers: layers.collect(),
            positions: positions(training.graph, &begins, strategy.stage_count()),
            begins,
            stage_inputs: stage_inputs(training, crossing, costs),
            in_flight: in_flight(strategy, &slots),
            slots,
        })
    }
}

impl Balancer<'_> {
    /// The partition with the shortest estimated step that fits.
    pub(crate) fn cut(&self) -> Result<Vec<Range<usize>>, BalanceError> {
        let time = |stage: usize, range: &Range<usize>| self.seconds(stage, range);
        let least = |stage: usize, range: &Range<usize>| self.computation(stage, range);
        let Some(ranges) = self.balanced(&least, &time) else {
            return Err(BalanceError::Cost(UnknownCost(
                "the stages take forever".into(),
            )));
        };
        let seconds = self.step_seconds(&ranges);
        if seconds > self.wanted.most {
            return Ok(ranges);
        }
        let most = self.memory_of_equal_work();
        let shared =
            |stage: usize, range: &Range<usize>| self.memory_estimate(stage, range) <= most;
        let fastest = self.refined(ranges, &shared);
        if self.wanted.is_checked_later && self.fits_surely(&fastest)? {
            return Ok(fastest);
        }
        let memory = self.wanted.memory;
        let mut tried = Tried::default();
        if let Some(fitting) = tried.fits(self, fastest)? {
            return Ok(fitting);
        }
        for minimizes_memory in [false, true] {
            for _ in 0..ATTEMPTS_MAX {
                let offsets = tried.offsets.clone();
                let needs = |stage: usize, range: &Range<usize>| {
                    self.memory_estimate(stage, range) + offsets[stage]
                };
                let fits =
                    |stage: usize, range: &Range<usize>| needs(stage, range) <= memory.0 as f64;
                let cost = |stage: usize, range: &Range<usize>| {
                    if minimizes_memory {
                        needs(stage, range)
                    } else if fits(stage, range) {
                        time(stage, range)
                    } else {
                        f64::INFINITY
                    }
                };
                let least = |stage: usize, range: &Range<usize>| {
                    if minimizes_memory {
                        needs(stage, range)
                    } else {
                        least(stage, range)
                    }
                };
                let Some(mut ranges) = self.balanced(&least, &cost) else {
                    break;
                };
                if !minimizes_memory {
                    ranges = self.refined(ranges, &fits);
                }
                if let Some(fitting) = tried.fits(self, ranges)? {
                    return Ok(fitting);
                }
            }
        }
        Err(BalanceError::Memory {
            strategy: Box::new(self.training.strategy.clone()),
            batch: self.training.batch,
            model: self.training.graph.name.clone(),
            needed: tried.needed.unwrap_or_default(),
            memory,
        })
    }

    /// Somewhat more than the estimated memory of the largest of stages with equal work. If stages take turns, one stage
    /// with all layers communicates least; but stages are meant to distribute the memory. The same on all machines.
    pub(crate) fn memory_of_equal_work(&self) -> f64 {
        let stages = self.equal_work().unwrap_or_default();
        1.1 * self.largest(&stages)
    }

    /// The partition whose largest stage computes least on any machine.
    pub(crate) fn equal_work(&self) -> Option<Vec<Range<usize>>> {
        let flops = |stage: usize, range: &Range<usize>| self.cost(stage, range).flops;
        self.balanced(&flops, &flops)
    }

    /// Estimated memory of the largest stage.
    pub(crate) fn largest(&self, ranges: &[Range<usize>]) -> f64 {
        let stages = ranges.iter().enumerate();
        let memory = stages.map(|(stage, range)| self.memory_estimate(stage, range));
        memory.fold(0.0, f64::max)
    }

    /// As [`balanced`], with stages between the positions.
    pub(crate) fn balanced(
        &self,
        least: &dyn Fn(usize, &Range<usize>) -> f64,
        cost: &dyn Fn(usize, &Range<usize>) -> f64,
    ) -> Option<Vec<Range<usize>>> {
        let layers = |range: Range<usize>| self.positions[range.start]..self.positions[range.end];
        let ranges = balanced(
            self.positions.len() - 1,
            self.training.strategy.stage_count(),
            &|stage, range| least(stage, &layers(range)),
            &|stage, range| cost(stage, &layers(range)),
        )?;
        Some(ranges.into_iter().map(layers).collect())
    }

    /// Local search from a partition for the fastest step, moving one boundary at a time.
    fn refined(
        &self,
        mut ranges: Vec<Range<usize>>,
        fits: &dyn Fn(usize, &Range<usize>) -> bool,
    ) -> Vec<Range<usize>> {
        let mut least = self.step_seconds(&ranges);
        for _ in 0..REFINEMENTS {
            let before = least;
            for stage in 1..ranges.len() {
                for moved in self.moves(&ranges, stage) {
                    let seconds = self.step_seconds(&moved);
                    let is_fit =
                        || fits(stage - 1, &moved[stage - 1]) && fits(stage, &moved[stage]);
                    if seconds < least && is_fit() {
                        (least, ranges) = (seconds, moved);
                    }
                }
            }
            if least >= before {
                break;
            }
        }
        ranges
    }

    /// About as many tasks as a program has: those of a rank with all layers, for each micro-batch.
    pub fn tasks(&self) -> usize {
        let layers = self.layers.iter().map(|layers| layers.tasks);
        layers.max().unwrap_or_default() * self.training.strategy.micro
    }

    /// Partitions with the first layer of this stage elsewhere, the nearest ones first.
    pub fn moves(&self, ranges: &[Range<usize>], stage: usize) -> Vec<Vec<Range<usize>>> {
        let (first, last) = (ranges[stage - 1].start.max(1) + 1, ranges[stage].end - 1);
        let step = (last.saturating_sub(first) / POSITIONS).max(1);
        let here = ranges[stage].start;
        let near = here.saturating_sub(NEAR_STEPS).max(first)..=(here + NEAR_STEPS).min(last);
        let all = near.chain((first..=last).step_by(step));
        let moved = all.filter(|at| self.begins[*at]).map(|at| {
            let mut moved = ranges.to_vec();
            moved[stage - 1].end = at;
            moved[stage].start = at;
            moved
        });
        moved.collect()
    }

    /// Partitions with the stage before this one moved by a few layers.
    pub fn shifts(&self, ranges: &[Range<usize>], stage: usize) -> Vec<Vec<Range<usize>>> {
        let first = &ranges[stage - 2];
        let steps = 1..=NEAR_STEPS;
        let earlier = steps.clone().map(|by| {
            (
                ranges[stage - 1].start.saturating_sub(by),
                ranges[stage].start.saturating_sub(by),
            )
        });
        let later = steps.map(|by| (ranges[stage - 1].start + by, ranges[stage].start + by));
        let valid = |(a, b): &(usize, usize)| {
            let is_between = *a > first.start.max(1) && b < &ranges[stage].end;
            is_between && self.begins[*a] && self.begins[*b]
        };
        let moved = earlier.chain(later).filter(valid).map(|(a, b)| {
            let mut moved = ranges.to_vec();
            (moved[stage - 2].end, moved[stage - 1].start) = (a, a);
            (moved[stage - 1].end, moved[stage].start) = (b, b);
            moved
        });
        moved.collect()
    }

    fn device(&self, stage: usize) -> usize {
        stage % self.layers.len()
    }

    fn cost(&self, stage: usize, range: &Range<usize>) -> LayerCost {
        self.layers[self.device(stage)].cost(range)
    }

    /// Seconds of a micro-batch on a stage.
    fn seconds(&self, stage: usize, range: &Range<usize>) -> f64 {
        // Forward and backward.
        self.computation(stage, range) + 2.0 * self.seconds_of_inputs(stage, range)
    }

    /// Seconds of a micro-batch on a stage, without messages; those of a range are never less than those of a part.
    pub(crate) fn computation(&self, stage: usize, range: &Range<usize>) -> f64 {
        let cost = self.cost(stage, range);
        let per_step = cost.per_step / self.training.strategy.micro as f64;
        cost.forward + cost.backward + per_step
    }

    /// Seconds of the messages to a stage from those before.
    fn seconds_of_inputs(&self, stage: usize, range: &Range<usize>) -> f64 {
        let device = self.device(stage);
        let ranks = Mesh::new(self.training.strategy.stages[device].extents).ranks();
        self.stage_inputs.seconds(device, ranks, range)
    }

    /// Estimated memory of a stage.
    pub(crate) fn memory_estimate(&self, stage: usize, range: &Range<usize>) -> f64 {
        let cost = self.cost(stage, range);
        let persistent = match self.training.strategy.schedule.replicas() {
            1 => cost.persistent,
            // A device has two mirrored stages, so their sum hardly depends on the partition, except for the
            // optimizer state, which only the first replica has.
            _ => cost.state,
        };
        persistent + cost.activations * self.in_flight[stage]
    }

    /// The difference between measured and estimated memory, by stage. Of two replicas the first counts, which
    /// has the optimizer state.
    fn offsets(&self, ranges: &[Range<usize>], peaks: &[Bytes]) -> Vec<f64> {
        let offset = |(stage, range): (usize, &Range<usize>)| {
            peaks[self.device(stage)].0 as f64 - self.memory_estimate(stage, range)
        };
        ranges.iter().enumerate().map(offset).collect()
    }

    /// Whether the rank that needs most by the estimate needs far less than it may fill.
    fn fits_surely(&self, ranges: &[Range<usize>]) -> Result<bool, BalanceError> {
        let estimates = ranges.iter().enumerate();
        let estimates = estimates.map(|(at, range)| (at, self.memory_estimate(at, range)));
        let largest = estimates.max_by(|a, b| a.1.total_cmp(&b.1));
        let device = self.device(largest.map_or(0, |(stage, _)| stage));
        let peaks = self.peaks(ranges, device..device + 1)?;
        let is_small = |peak: &Bytes| peak.0 as f64 <= SURE_PART * self.wanted.memory.0 as f64;
        Ok(peaks.iter().all(is_small))
    }

    /// The memory of the ranks of these devices.
    fn peaks(
        &self,
        ranges: &[Range<usize>],
        devices: Range<usize>,
    ) -> Result<Vec<Bytes>, BalanceError> {
        let strategy = self
            .training
            .strategy
            .with_layers(self.training.graph, ranges);
        let request = Request {
            strategy: &strategy,
            kind: ProgramKind::Train,
            ..*self.training
        };
        let ranks = &stage_ranks(&strategy)[devices];
        let asked: Vec<Rank> = ranks.iter().flatten().copied().collect();
        let counts = ranks.iter().map(Vec::len);
        let arenas: Vec<Bytes> = lower_ranks(&request, &asked)?
            .map(|body| body.map(|body| precision::memory(&body, self.precision)))
            .collect::<Result<_, LowerError>>()?;
        let mut arenas = arenas.into_iter();
        let peaks = counts.map(|count| arenas.by_ref().take(count).max());
        Ok(peaks.map(Option::unwrap_or_default).collect())
    }

    pub(crate) fn balanced_by(&self, ranges: &[Range<usize>]) -> Balanced {
        let strategy = self.training.strategy;
        let (device, busy) = self.busiest(ranges);
        let before = &strategy.stages[..device];
        let before = before.iter().map(|stage| Mesh::new(stage.extents).ranks());
        let mesh = Mesh::new(strategy.stages[device].extents);
        Balanced {
            strategy: strategy.with_layers(self.training.graph, ranges),
            seconds: self.step_seconds(ranges),
            busiest: before.sum::<usize>() + mesh.middle(),
            busy,
        }
    }

    /// The device that works longest, and how long.
    fn busiest(&self, ranges: &[Range<usize>]) -> (usize, Seconds) {
        let strategy = self.training.strategy;
        let micro = strategy.micro as f64 / strategy.schedule.replicas() as f64;
        let mut seconds = vec![0.0; strategy.stages.len()];
        for (stage, range) in ranges.iter().enumerate() {
            // A device has the stages of its replicas.
            for replica in 0..strategy.schedule.replicas() {
                let device = strategy.schedule.device(seconds.len(), replica, stage);
                seconds[device] += micro * self.computation(stage, range);
            }
        }
        let all = seconds.into_iter().enumerate();
        let (device, busy) = all.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
        (device, Seconds(busy))
    }

    /// Simulated time of a step, without contention of links.
    pub fn step_seconds(&self, ranges: &[Range<usize>]) -> Seconds {
        let strategy = self.training.strategy;
        let (schedule, devices) = (strategy.schedule, strategy.stages.len());
        let stages = ranges.iter().enumerate();
        let each: Vec<(LayerCost, f64)> = stages
            .map(|(stage, range)| {
                (
                    self.cost(stage, range),
                    self.seconds_of_inputs(stage, range),
                )
            })
            .collect();
        let index = |slot: &Slot| {
            let stage = slot.replica * ranges.len() + slot.stage;
            (stage * strategy.micro + slot.micro) * 3 + slot.pass as usize
        };
        let mut ends = vec![0.0_f64; 2 * ranges.len() * strategy.micro * 3];
        let mut free: Vec<f64> = vec![0.0; devices];
        for slot in &self.slots {
            let device = schedule.device(devices, slot.replica, slot.stage);
            let (cost, stage_inputs) = each[slot.stage];
            let needs = slot.needs(ranges.len()).into_iter().flatten();
            let ready = needs.map(|need| {
                // Activations from the stage before, or gradients from the one after.
                let message = match need.stage.cmp(&slot.stage) {
                    Ordering::Less => stage_inputs,
                    Ordering::Equal => 0.0,
                    Ordering::Greater => each[need.stage].1,
                };
                ends[index(&need)] + message
            });
            // Gradients of inputs and of weights take about the same.
            let seconds = match (slot.pass, schedule.splits_weights()) {
                (Pass::Forward, _) => cost.forward,
                (Pass::Backward, false) => cost.backward,
                (Pass::Backward | Pass::Weights, _) => 0.5 * cost.backward,
            };
            let end = ready.fold(free[device], f64::max) + seconds;
            free[device] = end;
            ends[index(slot)] = end;
        }
        for (stage, (cost, _)) in each.iter().enumerate() {
            free[stage % devices] += cost.per_step;
        }
        Seconds(free.into_iter().fold(0.0, f64::max))
    }
}

/// Results of the partitions tried so far.
#[derive(Default)]
struct Tried {
    offsets: Vec<f64>,
    /// Least memory of the largest rank.
    needed: Option<Bytes>,
}

impl Tried {
    /// The partition, if it fits.
    fn fits(
        &mut self,
        balancer: &Balancer<'_>,
        ranges: Vec<Range<usize>>,
    ) -> Result<Option<Vec<Range<usize>>>, BalanceError> {
        let peaks = balancer.peaks(&ranges, 0..balancer.layers.len())?;
        let largest = peaks.iter().copied().max().unwrap_or_default();
        if largest <= balancer.wanted.memory {
            return Ok(Some(ranges));
        }
        self.needed = Some(self.needed.map_or(largest, |needed| needed.min(largest)));
        self.offsets = balancer.offsets(&ranges, &peaks);
        Ok(None)
    }
}

/// The ranks of each device that are looked at for their memory: the middle one and the last.
pub(crate) fn stage_ranks(strategy: &Strategy) -> Vec<Vec<Rank>> {
    let mut first = 0;
    let devices = strategy.stages.iter().map(|stage| {
        let mesh = Mesh::new(stage.extents);
        let mut ranks = vec![first + mesh.middle(), first + mesh.ranks() - 1];
        ranks.dedup();
        first += mesh.ranks();
        ranks
    });
    devices.collect()
}

/// Largest number of micro-batches in flight, by stage.
pub(crate) fn in_flight(strategy: &Strategy, slots: &[Slot]) -> Vec<f64> {
    let mut now = vec![[0i64; 2]; strategy.stage_count()];
    let mut most = vec![0i64; strategy.stage_count()];
    let last = if strategy.schedule.splits_weights() {
        Pass::Weights
    } else {
        Pass::Backward
    };
    for slot in slots {
        let now = &mut now[slot.stage][slot.replica];
        if slot.pass == Pass::Forward {
            *now += 1;
            most[slot.stage] = most[slot.stage].max(*now);
        } else if slot.pass == last {
            *now -= 1;
        }
    }
    most.into_iter().map(|most| most as f64).collect()
}

/// Activations that a range of layers receives from those before.
struct StageInputs<'a> {
    /// Elements by the first layer and the last, of a sample.
    crossing: &'a [Vec<f64>],
    /// Bytes of an element, over all samples of a micro-batch.
    element: f64,
    /// Latency of a message, and seconds per byte, to each device.
    links: Vec<(f64, f64)>,
}

fn stage_inputs<'a>(
    training: &Request<'_>,
    crossing: &'a [Vec<f64>],
    costs: &dyn StageCosts,
) -> StageInputs<'a> {
    let strategy = training.strategy;
    let samples = training.batch / strategy.micro / strategy.extent(Axis::Data);
    let (mut links, mut first, mut before) = (Vec::new(), 0, None);
    for stage in &strategy.stages {
        let from = before.unwrap_or(first);
        let link = costs.pair(from, first);
        links.push((link.latency.0, link.byte.0));
        before = Some(first);
        first += Mesh::new(stage.extents).ranks();
    }
    StageInputs {
        crossing,
        element: (samples.max(1) * training.dtype.size()) as f64,
        links,
    }
}

/// For each first and last layer of a range, elements of a sample that the range reads of earlier layers.
fn elements_crossing(graph: &Graph) -> Vec<Vec<f64>> {
    let nodes = graph.nodes.len();
    let mut seen = vec![usize::MAX; nodes];
    let from = |start: usize| {
        let mut sum = 0.0;
        let rest = graph.nodes[start..].iter().map(|node| {
            for id in &node.inputs {
                // Each tensor is received once.
                if id.0 < start && seen[id.0] != start {
                    seen[id.0] = start;
                    sum += graph.nodes[id.0].shape.volume() as f64;
                }
            }
            sum
        });
        rest.collect()
    };
    (0..nodes).map(from).collect()
}

impl StageInputs<'_> {
    fn seconds(&self, device: usize, ranks: usize, range: &Range<usize>) -> f64 {
        if range.start == 0 {
            return 0.0;
        }
        let elements = self.crossing[range.start][range.end - 1 - range.start];
        let (empty, each) = self.links[device];
        empty + each * elements * self.element / ranks as f64
    }
}

/// Where stages may begin and end: at each layer, or in a model with many layers where a single tensor connects those
/// before and after, if these positions are many times the stages.
fn positions(graph: &Graph, begins: &[bool], stages: usize) -> Vec<usize> {
    let layers = graph.nodes.len();
    if layers > LAYERS_MANY {
        let is_single = single_crossings(graph).into_iter().map(|one| one.is_some());
        let single = is_single
            .enumerate()
            .skip(2)
            .filter(|&(at, is_single)| is_single && begins[at]);
        // The input belongs to the first stage.
        let all = [0, 1]
            .into_iter()
            .chain(single.map(|(at, _)| at))
            .chain([layers]);
        let all: Vec<usize> = all.collect();
        if all.len() > POSITIONS * stages {
            return all;
        }
    }
    (0..=layers)
        .filter(|&at| at == layers || begins[at])
        .collect()
}
