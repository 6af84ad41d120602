//! Random pipelines.

use crate::cases::{Sketch, or_short, random_block};
use crate::{Case, Draws, random_sequence_case};
use partita_graph::Graph;
use partita_lower::{LayerChoice, Schedule, Shard, StageChoice, Strategy};
use partita_space::{AXES, Axis, AxisList};

/// Most ranks of a case.
const RANKS: usize = 12;

/// Draws a model and a pipeline of it: two to four stages, each on a mesh of its own, with any schedule,
/// stages by hand or by what they cost, layers apart from the rest and layers computed again.
pub fn random_staged_case(seed: u64) -> Case {
    let mut draws = Draws::new(seed);
    loop {
        // One in five is of sequences, of which some share an embedding between stages.
        let graph = if draws.one_in(5) {
            random_sequence_case(draws.bits()).graph
        } else {
            let mut sketch = Sketch::empty(&mut draws, [13, 8, 6]);
            for _ in 0..draws.between(3, 8) {
                sketch.layer(&mut draws);
            }
            sketch.finish(&mut draws)
        };
        for _ in 0..20 {
            let (strategy, batch) = random_stages(&mut draws, &graph, &ALL);
            if strategy.ranks() <= RANKS && strategy.check(&graph, batch).is_ok() {
                return Case {
                    batch: or_short(&mut draws, &graph, &strategy, batch),
                    graph,
                    strategy,
                    seed,
                };
            }
        }
    }
}

/// Choices for a random pipeline; entries may repeat to be drawn more often.
pub(crate) struct Pipelines {
    pub schedules: &'static [Schedule],
    /// Indices of the axes that split a stage.
    pub axes: &'static [usize],
}

const ALL: Pipelines = Pipelines {
    schedules: &[
        Schedule::Sequential,
        Schedule::GPipe,
        Schedule::OneForwardOneBackward,
        Schedule::Interleaved { chunks: 2 },
        Schedule::ZeroBubble,
        Schedule::Gems { repetitions: 1 },
        Schedule::Gems { repetitions: 2 },
        Schedule::Chimera,
    ],
    axes: &[0, 1, 2, 3, 4, 5],
};

pub(crate) fn random_stages(
    draws: &mut Draws,
    graph: &Graph,
    pipelines: &Pipelines,
) -> (Strategy, usize) {
    let mut strategy = Strategy::single();
    let data = draws.pick(&[1, 1, 1, 2]);
    if data > 1 {
        strategy = Strategy::of([data, 1, 1, 1, 1, 1, 1]);
    }
    strategy.schedule = draws.pick(pipelines.schedules);
    let places = draws.between(2, 4);
    let extent = graph.nodes[0].shape.extent;
    let mesh = |draws: &mut Draws| {
        let mut extents = [1; 7];
        for _ in 0..draws.pick(&[0, 0, 1, 1, 2]) {
            let axis = draws.pick(pipelines.axes);
            let most = match axis {
                1..=3 => extent[axis - 1].min(3),
                _ => 2,
            };
            extents[axis] = draws.between(1, most);
        }
        extents
    };
    let alike = draws.one_in(3).then(|| mesh(draws));
    let stage = |draws: &mut Draws| StageChoice {
        layers: Vec::new(),
        extents: alike.unwrap_or_else(|| mesh(draws)),
    };
    strategy.stages = (0..places).map(|_| stage(draws)).collect();
    if draws.one_in(3) {
        cut_by_hand(draws, graph, &mut strategy);
    }
    let multiple = strategy.schedule.micro_multiple(places).unwrap_or(1);
    strategy.micro = multiple * draws.between(1, (6 / multiple).max(1));
    let inner = strategy.stages.iter().map(|stage| stage.extents[0]).max();
    let parts = data * inner.unwrap_or(1);
    let batch = strategy.micro * draws.between(parts, parts + 1);
    strategy.overlap = !draws.one_in(4);
    strategy.fuse = !draws.one_in(4);
    if draws.one_in(4) {
        strategy.shard = draws.pick(&Shard::ALL);
    }
    if draws.one_in(3) {
        strategy.layers.push(random_block(draws, graph));
    }
    if draws.one_in(3) {
        strategy.layers.push(random_choice(draws, graph, &strategy));
    }
    (strategy, batch)
}

/// Chooses the end of each stage.
fn cut_by_hand(draws: &mut Draws, graph: &Graph, strategy: &mut Strategy) {
    let (last, stages) = (graph.nodes.len() - 1, strategy.stages.len());
    let mut from = 0;
    for (at, stage) in strategy.stages.iter_mut().enumerate() {
        let rest = stages - 1 - at;
        if from + rest > last {
            return;
        }
        let to = match rest {
            0 => last,
            _ => draws.between(from, (from + 4).min(last - rest)),
        };
        let name = |at: usize| graph.nodes[at].name.clone();
        stage.layers = vec![(name(from), name(to))];
        from = to + 1;
    }
}

fn random_choice(draws: &mut Draws, graph: &Graph, strategy: &Strategy) -> LayerChoice {
    let split = |axis: &Axis| {
        let mut stages = strategy.stages.iter();
        strategy.extent(*axis) > 1 || stages.any(|stage| stage.extents[axis.index()] > 1)
    };
    let axes: Vec<Axis> = AXES.into_iter().filter(split).collect();
    let first = draws.between(0, graph.nodes.len() - 1);
    let last = draws.between(first, graph.nodes.len() - 1);
    let mut dims = [None; 6];
    let list = if axes.is_empty() || draws.one_in(3) {
        AxisList::NONE
    } else {
        AxisList::of([axes[draws.between(0, axes.len() - 1)]])
    };
    dims[draws.between(0, 5)] = Some(list);
    LayerChoice {
        from: graph.nodes[first].name.clone(),
        to: graph.nodes[last].name.clone(),
        dims,
        ..LayerChoice::default()
    }
}
