//! Balancing: assigns layers to the stages of a pipeline, where the strategy does not specify them.

use crate::layers::{LayerCost, Layers, LayersError, StageCosts, middle_rank};
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

/// Why layers cannot be assigned to stages.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BalanceError {
    /// The strategy does not fit the model or the mini-batch, or the menu lacks a kernel.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// An unknown cost.
    #[error("{0}")]
    Cost(String),
    /// No partition fits in memory.
    #[error(
        "strategy `{strategy}`: no partition of the layers of {model} into these stages fits: the largest rank \
         needs at least {needed}, and it may fill {memory}; the nearest choices are more \
         stages, more ranks for the first of them, as in `stages=[height=2|1]`, a larger `micro`, or \
         {needed} of memory"
    )]
    Memory {
        /// The strategy.
        strategy: Box<Strategy>,
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
}

/// What several strategies share.
#[derive(Default)]
pub(crate) struct Tables {
    /// Costs of layers, by the stages that have them.
    layers: HashMap<(Strategy, [usize; 7], usize), Layers>,
    /// Strategies that fit the model and the mini-batch.
    valid: HashSet<Strategy>,
}

/// Assigns layers to stages, minimizing the time of the slowest stage for a micro-batch with its communication,
/// among the partitions that fit `memory`. A strategy without stages, or with specified layers, is unchanged.
///
/// Costs of layers are those of a program of the whole model on the ranks of a stage, lowered once for each mesh.
/// The memory of a partition is that of its program; where it is too much, other partitions are tried by an
/// estimate that each attempt corrects.
/// Errors: a strategy that does not fit, an unknown cost, no partition that fits in `memory`.
pub fn balance(
    training: &Request<'_>,
    memory: Bytes,
    costs: &dyn StageCosts,
) -> Result<Balanced, BalanceError> {
    let most = Seconds(f64::INFINITY);
    balance_with(training, memory, most, costs, &mut Tables::default())
}

/// As [`balance`], with cached tables. A step that would take longer than `most` even with unlimited memory gets
/// the layers that it would have then.
pub(crate) fn balance_with(
    training: &Request<'_>,
    memory: Bytes,
    most: Seconds,
    costs: &dyn StageCosts,
    tables: &mut Tables,
) -> Result<Balanced, BalanceError> {
    let strategy = training.strategy;
    if !tables.valid.contains(strategy) {
        let checked = strategy.check(training.graph, training.batch);
        checked.map_err(LowerError::Strategy)?;
        tables.valid.insert(strategy.clone());
    }
    if strategy.stages.is_empty() || strategy.has_layers() {
        return Ok(Balanced {
            strategy: strategy.clone(),
            seconds: Seconds(0.0),
        });
    }
    for stage in &strategy.stages {
        let key = key(strategy, stage.extents);
        if let Entry::Vacant(vacant) = tables.layers.entry(key) {
            vacant.insert(Layers::new(training, stage.extents, costs)?);
        }
    }
    let layers = strategy
        .stages
        .iter()
        .map(|stage| &tables.layers[&key(strategy, stage.extents)]);
    let slots = slots(strategy.schedule, strategy.stages.len(), strategy.micro);
    let balancer = Balancer {
        training,
        memory,
        precision: costs.precision(),
        layers: layers.collect(),
        stage_inputs: stage_inputs(training, costs),
        in_flight: in_flight(strategy, &slots),
        slots,
    };
    balancer.cut(most)
}

/// Key of the table of a stage.
fn key(strategy: &Strategy, extents: [usize; 7]) -> (Strategy, [usize; 7], usize) {
    let mut alike = strategy.clone();
    alike.stages.clear();
    (alike, extents, strategy.micro)
}

struct Balancer<'a> {
    training: &'a Request<'a>,
    memory: Bytes,
    precision: LayerPrecision,
    /// Of each place.
    layers: Vec<&'a Layers>,
    stage_inputs: StageInputs,
    slots: Vec<Slot>,
    /// Largest number of micro-batches in flight, by stage.
    in_flight: Vec<f64>,
}

impl Balancer<'_> {
    fn cut(&self, most: Seconds) -> Result<Balanced, BalanceError> {
        let stages = self.training.strategy.stage_count();
        let nodes = self.training.graph.nodes.len();
        let time = |stage: usize, range: Range<usize>| self.seconds(stage, &range);
        let least = |stage: usize, range: Range<usize>| self.computation(stage, &range);
        let Some(ranges) = balanced(nodes, stages, &least, &time) else {
            return Err(BalanceError::Cost("the stages take forever".to_owned()));
        };
        let seconds = self.step_seconds(&ranges);
        if seconds > most {
            return Ok(self.balanced_by(&ranges));
        }
        // If stages take turns, one stage with all layers communicates least; but stages are meant to distribute
        // the memory.
        let estimates = ranges.iter().enumerate();
        let largest = estimates
            .map(|(stage, range)| self.memory_estimate(stage, range))
            .fold(0.0, f64::max);
        let shared = |stage: usize, range: &Range<usize>| {
            self.memory_estimate(stage, range) <= 1.1 * largest
        };
        let fastest = self.refined(ranges, &shared);
        let mut tried = Tried::default();
        if let Some(fitting) = tried.fits(self, fastest)? {
            return Ok(self.balanced_by(&fitting));
        }
        for minimizes_memory in [false, true] {
            for _ in 0..ATTEMPTS_MAX {
                let offsets = tried.offsets.clone();
                let needs = |stage: usize, range: &Range<usize>| {
                    self.memory_estimate(stage, range) + offsets[stage]
                };
                let fits = |stage: usize, range: &Range<usize>| {
                    needs(stage, range) <= self.memory.0 as f64
                };
                let cost = |stage: usize, range: Range<usize>| {
                    if minimizes_memory {
                        needs(stage, &range)
                    } else if fits(stage, &range) {
                        time(stage, range)
                    } else {
                        f64::INFINITY
                    }
                };
                let least = |stage: usize, range: Range<usize>| {
                    if minimizes_memory {
                        needs(stage, &range)
                    } else {
                        least(stage, range)
                    }
                };
                let Some(mut ranges) = balanced(nodes, stages, &least, &cost) else {
                    break;
                };
                if !minimizes_memory {
                    ranges = self.refined(ranges, &fits);
                }
                if let Some(fitting) = tried.fits(self, ranges)? {
                    return Ok(self.balanced_by(&fitting));
                }
            }
        }
        Err(BalanceError::Memory {
            strategy: Box::new(self.training.strategy.clone()),
            model: self.training.graph.name.clone(),
            needed: tried.needed.unwrap_or_default(),
            memory: self.memory,
        })
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
                let (first, last) = (ranges[stage - 1].start.max(1) + 1, ranges[stage].end - 1);
                let step = (last.saturating_sub(first) / POSITIONS).max(1);
                let here = ranges[stage].start;
                let near =
                    here.saturating_sub(NEAR_STEPS).max(first)..=(here + NEAR_STEPS).min(last);
                for at in near.chain((first..=last).step_by(step)) {
                    let mut moved = ranges.clone();
                    moved[stage - 1].end = at;
                    moved[stage].start = at;
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
    fn computation(&self, stage: usize, range: &Range<usize>) -> f64 {
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
    fn memory_estimate(&self, stage: usize, range: &Range<usize>) -> f64 {
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

    /// The memory of the ranks of each device.
    fn peaks(&self, ranges: &[Range<usize>]) -> Result<Vec<Bytes>, BalanceError> {
        let strategy = self
            .training
            .strategy
            .with_layers(self.training.graph, ranges);
        let request = Request {
            strategy: &strategy,
            kind: ProgramKind::Train,
            ..*self.training
        };
        let (mut asked, mut counts, mut first) = (Vec::<Rank>::new(), Vec::new(), 0);
        for stage in &strategy.stages {
            let mesh = Mesh::new(stage.extents);
            let mut ranks = vec![first + middle_rank(&mesh), first + mesh.ranks() - 1];
            ranks.dedup();
            counts.push(ranks.len());
            asked.extend(ranks);
            first += mesh.ranks();
        }
        let arenas: Vec<Bytes> = lower_ranks(&request, &asked)?
            .map(|body| body.map(|body| precision::memory(&body, self.precision)))
            .collect::<Result<_, LowerError>>()?;
        let mut arenas = arenas.into_iter();
        let peaks = counts
            .into_iter()
            .map(|count| arenas.by_ref().take(count).max());
        Ok(peaks.map(Option::unwrap_or_default).collect())
    }

    fn balanced_by(&self, ranges: &[Range<usize>]) -> Balanced {
        let strategy = self.training.strategy;
        Balanced {
            strategy: strategy.with_layers(self.training.graph, ranges),
            seconds: self.step_seconds(ranges),
        }
    }

    /// Simulated time of a step, without contention of links.
    fn step_seconds(&self, ranges: &[Range<usize>]) -> Seconds {
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
        let peaks = balancer.peaks(&ranges)?;
        let largest = peaks.iter().copied().max().unwrap_or_default();
        if largest <= balancer.memory {
            return Ok(Some(ranges));
        }
        self.needed = Some(self.needed.map_or(largest, |needed| needed.min(largest)));
        self.offsets = balancer.offsets(&ranges, &peaks);
        Ok(None)
    }
}

/// Largest number of micro-batches in flight, by stage.
fn in_flight(strategy: &Strategy, slots: &[Slot]) -> Vec<f64> {
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
struct StageInputs {
    /// Bytes by the first layer and the last, over all samples of a micro-batch.
    bytes: Vec<Vec<f64>>,
    /// Latency of a message, and seconds per byte, to each device.
    links: Vec<(f64, f64)>,
}

fn stage_inputs(training: &Request<'_>, costs: &dyn StageCosts) -> StageInputs {
    let strategy = training.strategy;
    let samples = training.batch / strategy.micro / strategy.extent(Axis::Data);
    let bytes = (samples.max(1) * training.dtype.size()) as f64;
    let (mut links, mut first, mut before) = (Vec::new(), 0, None);
    for stage in &strategy.stages {
        let from = before.unwrap_or(first);
        let link = costs.pair(from, first);
        links.push((link.latency.0, link.byte.0));
        before = Some(first);
        first += Mesh::new(stage.extents).ranks();
    }
    StageInputs {
        bytes: bytes_crossing(training.graph, bytes),
        links,
    }
}

/// For each first and last layer of a range, bytes that the range reads of earlier layers.
fn bytes_crossing(graph: &Graph, bytes_per_element: f64) -> Vec<Vec<f64>> {
    let nodes = graph.nodes.len();
    let mut seen = vec![usize::MAX; nodes];
    let from = |start: usize| {
        let mut sum = 0.0;
        let rest = graph.nodes[start..].iter().map(|node| {
            for id in &node.inputs {
                // Each tensor is received once.
                if id.0 < start && seen[id.0] != start {
                    seen[id.0] = start;
                    sum += graph.nodes[id.0].shape.volume() as f64 * bytes_per_element;
                }
            }
            sum
        });
        rest.collect()
    };
    (0..nodes).map(from).collect()
}

impl StageInputs {
    fn seconds(&self, device: usize, ranks: usize, range: &Range<usize>) -> f64 {
        if range.start == 0 {
            return 0.0;
        }
        let bytes = self.bytes[range.start][range.end - 1 - range.start];
        let (empty, each) = self.links[device];
        empty + each * bytes / ranks as f64
    }
}
