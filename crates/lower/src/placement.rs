//! Placement: the stage and the ranks of each layer of the model.

use crate::strategy::StageChoice;
use crate::{Strategy, StrategyError};
use partita_graph::{Graph, LayerCount, count};
use partita_space::{Axis, Mesh, Submesh, nearest};
use std::ops::Range;

/// Ranks that run some layers, for each replica of the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankSet {
    /// The stage that they belong to.
    pub stage: usize,
    /// The mesh over which the layers are split.
    pub mesh: Mesh,
    /// The submesh of each replica; none for the mesh of all ranks.
    pub submeshes: [Option<Submesh>; 2],
}

/// The rank sets of all layers.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub rank_sets: Vec<RankSet>,
    /// Index of the rank set of each node of the model.
    pub rank_set_of: Vec<usize>,
}

impl Placement {
    /// Whether all layers run on all ranks.
    pub fn is_whole(&self) -> bool {
        self.rank_sets.len() == 1 && self.rank_sets[0].submeshes[0].is_none()
    }

    /// The rank sets of stages, without branches.
    ///
    /// Errors: stages that the model cannot give.
    pub fn of_stages(graph: &Graph, strategy: &Strategy) -> Result<Self, StrategyError> {
        let nodes = graph.nodes.len();
        if strategy.stages.is_empty() {
            let rank_set = RankSet {
                stage: 0,
                mesh: strategy.mesh(),
                submeshes: [None; 2],
            };
            return Ok(Self {
                rank_sets: vec![rank_set],
                rank_set_of: vec![0; nodes],
            });
        }
        let devices = strategy.stages.len();
        let stages = devices * strategy.schedule.chunks();
        let ranges = ranges(graph, strategy, stages)?;
        let mut rank_set_of = vec![0; nodes];
        for (stage, range) in ranges.into_iter().enumerate() {
            rank_set_of[range].fill(stage);
        }
        Ok(Self {
            rank_sets: (0..stages).map(|stage| rank_set(strategy, stage)).collect(),
            rank_set_of,
        })
    }
}

/// The ranks of a stage: stages have consecutive ranks, those of the second replica in reverse order, and
/// all are repeated for every part of the mini-batch.
fn rank_set(strategy: &Strategy, stage: usize) -> RankSet {
    let ranks = |device: usize| Mesh::new(strategy.stages[device].extents).ranks();
    let devices = strategy.stages.len();
    let (all, copies) = (strategy.ranks_of_stages(), strategy.extent(Axis::Data));
    let device = stage % devices;
    let mesh = Mesh::new(strategy.stages[device].extents);
    let first: usize = (0..device).map(ranks).sum();
    let submesh = |first| Some(Submesh::repeated(&mesh, first, copies, all));
    let mut extents = strategy.stages[device].extents;
    extents[Axis::Data.index()] *= copies;
    RankSet {
        stage,
        mesh: Mesh::new(extents),
        submeshes: [submesh(first), submesh(all - first - mesh.ranks())],
    }
}

/// Checks that the model has a layer for each stage.
pub(crate) fn check_stage_count(graph: &Graph, strategy: &Strategy) -> Result<(), StrategyError> {
    let most = if strategy.has_layers() {
        graph.nodes.len() - 1
    } else {
        layer_count(graph)
    };
    if strategy.stage_count() <= most {
        Ok(())
    } else {
        Err(too_many_stages(graph, strategy))
    }
}

/// Layers besides the input that a stage can begin with.
pub(crate) fn layer_count(graph: &Graph) -> usize {
    graph.layer_names().count() - 1
}

fn too_many_stages(graph: &Graph, strategy: &Strategy) -> StrategyError {
    StrategyError::TooManyStages {
        strategy: strategy.to_string(),
        model: graph.name.clone(),
        layers: layer_count(graph),
        stages: strategy.stage_count(),
    }
}

/// The nodes of each stage: as specified, or balanced.
pub(crate) fn ranges(
    graph: &Graph,
    strategy: &Strategy,
    stages: usize,
) -> Result<Vec<Range<usize>>, StrategyError> {
    check_stage_count(graph, strategy)?;
    if strategy.has_layers() {
        return specified_ranges(graph, strategy);
    }
    let ends: Vec<f64> = [0.0]
        .into_iter()
        .chain(weights(graph))
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let of_stage = |stage: &StageChoice| Mesh::new(stage.extents).ranks() as f64;
    let ranks: Vec<f64> = strategy.stages.iter().map(of_stage).collect();
    let least = |stage: usize, range: Range<usize>| {
        (ends[range.end] - ends[range.start]) / ranks[stage % ranks.len()]
    };
    let begins = strategy.stage_begins(graph);
    let cost = |stage: usize, range: Range<usize>| {
        if begins[range.start] {
            least(stage, range)
        } else {
            f64::INFINITY
        }
    };
    balanced(graph.nodes.len(), stages, &least, &cost)
        .ok_or_else(|| too_many_stages(graph, strategy))
}

/// Approximate cost of each node in flops. Memory traffic of one element counts as 100 flops.
pub(crate) fn weights(graph: &Graph) -> Vec<f64> {
    let rows = count(graph).layers;
    let weight = |row: &LayerCount| {
        let elements = row.shape.volume() as f64;
        row.executed_flops.0 as f64 + 100.0 * elements
    };
    rows.iter().map(weight).collect()
}

/// Partitions nodes into stages of at least one node besides the input, minimizing the largest cost of a
/// stage, and then the sum of squares.
///
/// Dynamic programming over the last node of each stage.
///
/// Shapes: ranges cover 0 to `nodes` without gap; `cost` is of a stage and its range, infinite where that is
/// infeasible. `least` is at most that, and of no range less than of a part of it, which saves most of the work; where
/// the cost has this property, it is the cost.
/// None where no partition is feasible. Panics where `stages` is not between 1 and `nodes - 1`.
pub fn balanced(
    nodes: usize,
    stages: usize,
    least: &dyn Fn(usize, Range<usize>) -> f64,
    cost: &dyn Fn(usize, Range<usize>) -> f64,
) -> Option<Vec<Range<usize>>> {
    assert!(
        (1..nodes).contains(&stages),
        "{stages} stages of {nodes} nodes"
    );
    // By number of stages and end node: largest cost, sum of squares, start of the last stage.
    let mut best: Vec<Vec<(f64, f64, usize)>> = Vec::with_capacity(stages);
    for stage in 0..stages {
        let mut row = vec![(f64::INFINITY, f64::INFINITY, 0); nodes + 1];
        // The input belongs to the first stage, at no cost.
        for end in stage + 2..=nodes - (stages - 1 - stage) {
            let starts = match stage {
                0 => 0..1,
                _ => stage + 1..end,
            };
            let before = |start: usize| match best.last() {
                None => (0.0, 0.0),
                Some(row) => (row[start].0, row[start].1),
            };
            let limit = reached(
                starts.clone(),
                &|start| before(start).0,
                &|start| least(stage, start..end),
                &|start| cost(stage, start..end),
            );
            for start in starts.rev() {
                let before = before(start);
                let most = row[end].0.min(limit);
                if before.0.is_infinite() || before.0 > most {
                    continue;
                }
                // No earlier start costs less.
                if least(stage, start..end) > most {
                    break;
                }
                let own = cost(stage, start..end);
                let whole = (before.0.max(own), before.1 + own * own, start);
                // Of equal ones the first start.
                let is_better = (whole.0, whole.1) <= (row[end].0, row[end].1);
                if whole.0.is_finite() && is_better {
                    row[end] = whole;
                }
            }
        }
        best.push(row);
    }
    let mut end = nodes;
    let mut ranges: Vec<Range<usize>> = best
        .iter()
        .rev()
        .map(|row| {
            let start = row[end].2;
            let range = start..end;
            end = start;
            range
        })
        .collect();
    ranges.reverse();
    ranges
        .iter()
        .all(|range| !range.is_empty())
        .then_some(ranges)
}

/// A largest cost that some start of the last stage reaches: where the stages before it, which cost more and more, and
/// the last one, which costs less and less, meet. Starts with more need not be looked at.
///
/// By start: `before` is the largest cost of the stages before it, `least` and `cost` are those of the last stage.
fn reached(
    starts: Range<usize>,
    before: &dyn Fn(usize) -> f64,
    least: &dyn Fn(usize) -> f64,
    cost: &dyn Fn(usize) -> f64,
) -> f64 {
    let (mut low, mut high) = (starts.start, starts.end - 1);
    while low < high {
        let middle = low.midpoint(high);
        if before(middle) < least(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let around = [low.max(starts.start + 1) - 1, low];
    let largest = around.map(|start| before(start).max(cost(start)));
    largest[0].min(largest[1])
}

impl Strategy {
    /// Stages of a replica.
    pub fn stage_count(&self) -> usize {
        self.stages.len() * self.schedule.chunks()
    }

    /// With the layers of each stage specified.
    ///
    /// Shapes: as many ranges as [`Strategy::stage_count`], without gap from 0 to all nodes.
    pub fn with_layers(&self, graph: &Graph, ranges: &[Range<usize>]) -> Self {
        let mut strategy = self.clone();
        let (devices, all) = (self.stages.len(), graph.nodes.len());
        strategy
            .stages
            .iter_mut()
            .for_each(|stage| stage.layers.clear());
        for (stage, range) in ranges.iter().enumerate() {
            let first = graph.layer_name(range.start).to_owned();
            let last = graph.nodes[range.end - 1].name.clone();
            let layers = match (range.start, range.end) {
                (0, _) => (String::new(), last),
                (_, end) if end == all && first != last => (first, String::new()),
                _ => (first, last),
            };
            strategy.stages[stage % devices].layers.push(layers);
        }
        strategy
    }

    /// With the layers of each stage specified; where they are not, stages are balanced by flops.
    ///
    /// Errors: more stages than layers.
    pub fn resolved(&self, graph: &Graph) -> Result<Self, StrategyError> {
        if self.stages.is_empty() || self.has_layers() {
            return Ok(self.clone());
        }
        let ranges = ranges(graph, self, self.stage_count())?;
        Ok(self.with_layers(graph, &ranges))
    }

    /// For each layer, whether a stage may begin there: a convolution stays with its padding, and a block in chunks whole,
    /// where that leaves enough layers to begin at.
    pub fn stage_begins(&self, graph: &Graph) -> Vec<bool> {
        let layers = 0..graph.nodes.len();
        let begins: Vec<bool> = layers.map(|at| graph.layer_start(at) == at).collect();
        let chunks = self.chunks_of_layers(graph).unwrap_or_default();
        let is_within = |at: usize| match (chunks.get(at.wrapping_sub(1)), chunks.get(at)) {
            (Some(before), Some(own)) => own.is_some() && before == own,
            _ => false,
        };
        let all = begins.iter().enumerate();
        let whole: Vec<bool> = all.map(|(at, begins)| *begins && !is_within(at)).collect();
        // The input alone is no stage.
        let is_enough = whole.iter().filter(|begins| **begins).count() > self.stage_count();
        if is_enough { whole } else { begins }
    }

    /// Whether the layers of any stage are specified.
    pub fn has_layers(&self) -> bool {
        self.stages.iter().any(|stage| !stage.layers.is_empty())
    }
}

/// The nodes of each stage as the strategy specifies them.
fn specified_ranges(
    graph: &Graph,
    strategy: &Strategy,
) -> Result<Vec<Range<usize>>, StrategyError> {
    let last = graph.nodes.len() - 1;
    let (devices, chunks) = (strategy.stages.len(), strategy.schedule.chunks());
    let more = strategy
        .stages
        .iter()
        .position(|choice| choice.layers.len() > chunks);
    if let Some(device) = more {
        let reason = format!(
            "has more than {chunks} range(s) of layers, one for each stage on its ranks (several, with `+` between them, are for schedule=interleaved*2)"
        );
        return Err(stage_layers(graph, strategy, device, reason));
    }
    let mut ranges: Vec<Range<usize>> = Vec::with_capacity(devices * chunks);
    for stage in 0..devices * chunks {
        let expected = ranges.last().map_or(0, |range| range.end);
        ranges.push(specified_range(graph, strategy, stage, expected)?);
    }
    if let Some(range) = ranges.last().filter(|range| range.end <= last) {
        let [to, last] = [range.end - 1, last].map(|id| &graph.nodes[id].name);
        let reason = format!("ends at `{to}`, before the last layer `{last}`");
        return Err(stage_layers(graph, strategy, ranges.len() - 1, reason));
    }
    Ok(ranges)
}

/// The nodes that the strategy specifies for a stage, which must begin with node `expected`.
fn specified_range(
    graph: &Graph,
    strategy: &Strategy,
    stage: usize,
    expected: usize,
) -> Result<Range<usize>, StrategyError> {
    let find = |name: &str| {
        graph
            .find(name)
            .map(|id| id.0)
            .ok_or_else(|| StrategyError::UnknownLayer {
                strategy: strategy.to_string(),
                model: graph.name.clone(),
                asked: name.to_owned(),
                nearest: nearest(name, graph.layer_names())
                    .unwrap_or_default()
                    .to_owned(),
            })
    };
    let fail = |reason: String| Err(stage_layers(graph, strategy, stage, reason));
    let last = graph.nodes.len() - 1;
    let (devices, chunks) = (strategy.stages.len(), strategy.schedule.chunks());
    let Some((from, to)) = strategy.stages[stage % devices].layers.get(stage / devices) else {
        let hint = match chunks {
            1 => String::new(),
            _ => format!(
                ", of which schedule={} has {chunks} on the same ranks, with `+` between their layers",
                strategy.schedule
            ),
        };
        return fail(format!("has no layers{hint}"));
    };
    let start = if from.is_empty() {
        expected
    } else {
        find(from)?
    };
    let end = if to.is_empty() {
        last + 1
    } else {
        find(to)? + 1
    };
    // The input goes with the first layer, and padding with its convolution.
    let first = graph.layer_start(start);
    let joins = start == expected || first == expected || (stage == 0 && first <= 1);
    if !joins || expected > last {
        return fail(if expected <= last {
            format!(
                "begins at `{}`, not at `{from}`",
                graph.layer_name(expected)
            )
        } else {
            "comes after the last layer".to_owned()
        });
    }
    if end <= start {
        let from = &graph.nodes[start].name;
        return fail(format!(
            "goes from `{from}` to `{to}`, which comes before it"
        ));
    }
    Ok(expected..end)
}

/// The error for a stage whose layers leave a gap, overlap or are missing.
fn stage_layers(graph: &Graph, strategy: &Strategy, stage: usize, reason: String) -> StrategyError {
    let [first, last] = [0, graph.nodes.len() - 1].map(|id| &graph.nodes[id].name);
    StrategyError::StageLayers {
        strategy: strategy.to_string(),
        model: graph.name.clone(),
        stage: stage + 1,
        reason,
        whole: format!("`{first}` to `{last}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::random::SplitMix;
    use std::cell::Cell;

    #[test]
    fn stages_are_as_equal_as_they_can_be() {
        let weights = [0.0, 4.0, 1.0, 1.0, 1.0, 1.0, 8.0, 2.0, 2.0];
        let cost = |_: usize, range: Range<usize>| weights[range].iter().sum::<f64>();
        assert_eq!(balanced(9, 3, &cost, &cost).unwrap(), [0..6, 6..7, 7..9]);
        assert_eq!(balanced(9, 1, &cost, &cost).unwrap()[0], 0..9);
        let each: Vec<Range<usize>> = balanced(9, 8, &cost, &cost).unwrap();
        assert_eq!(each[0], 0..2);
        assert!(each[1..].iter().all(|range| range.len() == 1));
        // A stage of two ranks has half the cost.
        let wide = |stage: usize, range: Range<usize>| {
            range.len() as f64 / if stage == 0 { 2.0 } else { 1.0 }
        };
        assert_eq!(balanced(9, 2, &wide, &wide).unwrap(), [0..6, 6..9]);
        // Infeasible ranges are not used, though they would be best.
        let narrow = |stage: usize, range: Range<usize>| {
            if range.len() > 4 {
                f64::INFINITY
            } else {
                wide(stage, range)
            }
        };
        assert_eq!(
            balanced(9, 3, &narrow, &narrow).unwrap(),
            [0..4, 4..6, 6..9]
        );
        assert_eq!(balanced(9, 2, &narrow, &narrow), None);
    }

    #[test]
    fn no_cut_is_better() {
        let mut draw = SplitMix(7);
        for case in 0..200 {
            let nodes = draw.between(3, 9);
            let stages = draw.between(1, nodes - 1);
            let weights: Vec<f64> = (0..nodes).map(|_| draw.between(0, 8) as f64).collect();
            let cost = |_: usize, range: Range<usize>| weights[range].iter().sum::<f64>();
            let largest = |ranges: &[Range<usize>]| {
                ranges
                    .iter()
                    .map(|range| cost(0, range.clone()))
                    .fold(0.0, f64::max)
            };
            let found = balanced(nodes, stages, &cost, &cost).unwrap();
            assert_eq!(found.len(), stages);
            assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start));
            // All ways to choose where the later stages begin.
            let mut best = f64::INFINITY;
            for bits in 0u32..1 << nodes {
                let starts: Vec<usize> = (2..nodes).filter(|&at| bits >> at & 1 == 1).collect();
                if starts.len() + 1 != stages || bits & 3 != 0 {
                    continue;
                }
                let mut edges = vec![0];
                edges.extend(starts);
                edges.push(nodes);
                let ranges: Vec<_> = edges.windows(2).map(|pair| pair[0]..pair[1]).collect();
                best = best.min(largest(&ranges));
            }
            assert_eq!(largest(&found), best, "case {case}");
        }
    }

    #[test]
    fn costs_that_grow_give_the_same_stages_in_fewer_steps() {
        let mut draw = SplitMix(1);
        for case in 0..200 {
            let nodes = draw.between(3, 40);
            let stages = draw.between(1, nodes - 1);
            // Many are equal, and many are 0.
            let weights: Vec<f64> = (0..nodes).map(|_| draw.between(0, 3) as f64).collect();
            let ranks: Vec<f64> = (0..stages).map(|_| draw.between(1, 2) as f64).collect();
            let asked = Cell::new(0);
            let least = |stage: usize, range: Range<usize>| {
                weights[range].iter().sum::<f64>() / ranks[stage]
            };
            let cost = |stage: usize, range: Range<usize>| {
                asked.set(asked.get() + 1);
                least(stage, range)
            };
            let slow = balanced(nodes, stages, &|_, _| 0.0, &cost);
            let of_slow = asked.replace(0);
            assert_eq!(balanced(nodes, stages, &least, &cost), slow, "case {case}");
            assert!(asked.get() <= of_slow, "case {case}");
        }
    }
}
