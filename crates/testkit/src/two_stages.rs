//! Random pipelines of two stages on unequal meshes.

use crate::cases::Sketch;
use crate::{Case, Draws};
use partita_graph::{Graph, NodeId, Op};
use partita_lower::{Halo, LayerChoice, Schedule, StageChoice, Strategy};
use partita_space::{AXES, Axis, AxisList};

/// Most ranks of a case.
const RANKS: usize = 8;

/// Draws a model and two stages of it on meshes that differ, with layers of the second that lie in another
/// way than its mesh says, and halos that groups of layers share, as in
/// `stages=[depth=2|width=3,height=2],schedule=1f1b,micro=2; c6..: D=depth+width,N=height; ..: halo=grouped`.
pub fn random_two_stage_case(seed: u64) -> Case {
    let mut draws = Draws::new(seed);
    loop {
        let mut sketch = Sketch::empty(&mut draws, [16, 10, 7]);
        for _ in 0..draws.between(4, 9) {
            sketch.layer(&mut draws);
        }
        let graph = sketch.finish(&mut draws);
        // A norm of a normalized tensor amplifies rounding in its gradient, however it is split; in a
        // sequence there is but one axis.
        let is_norm = |id: &NodeId| matches!(graph.node(*id).op, Op::BatchNorm { .. });
        let mut norms = (0..graph.nodes.len()).map(NodeId).filter(is_norm);
        let twice = norms.any(|id| graph.node(id).inputs.iter().any(is_norm));
        if twice || graph.spatial_rank == 1 {
            continue;
        }
        for _ in 0..30 {
            let strategy = random_strategy(&mut draws, &graph);
            let batch = strategy.micro * draws.between(1, 4);
            if strategy.ranks() <= RANKS && strategy.check(&graph, batch).is_ok() {
                return Case {
                    graph,
                    strategy,
                    batch,
                    seed,
                };
            }
        }
    }
}

fn random_strategy(draws: &mut Draws, graph: &Graph) -> Strategy {
    let mut strategy = Strategy::single();
    strategy.schedule = draws.pick(&[
        Schedule::OneForwardOneBackward,
        Schedule::OneForwardOneBackward,
        Schedule::GPipe,
        Schedule::ZeroBubble,
        Schedule::Chimera,
    ]);
    strategy.micro = 2 * draws.between(1, 2);
    let [first, second] = [0; 2].map(|_| random_mesh(draws, graph));
    let stage = |extents| StageChoice {
        layers: Vec::new(),
        extents,
    };
    strategy.stages = vec![stage(first), stage(second)];
    strategy.overlap = !draws.one_in(4);
    strategy.fuse = !draws.one_in(4);
    let last = graph.nodes.len() - 1;
    let name = |at: usize| graph.nodes[at].name.clone();
    let choice = |from: String, to: String| LayerChoice {
        from,
        to,
        ..LayerChoice::default()
    };
    let is_split = |axis: &Axis| [first, second].iter().any(|mesh| mesh[axis.index()] > 1);
    let axes: Vec<Axis> = AXES.into_iter().filter(is_split).collect();
    for _ in 0..draws.between(1, 2) {
        let mut apart = choice(name(draws.between(last / 2, last)), String::new());
        let mut free = axes.clone();
        for _ in 0..draws.between(1, 2) {
            let mut list = AxisList::NONE;
            for _ in 0..draws.between(1, 2).min(free.len()) {
                list = list.inside(free.swap_remove(draws.between(0, free.len() - 1)));
            }
            apart.dims[draws.between(0, 5)] = Some(list);
        }
        strategy.layers.push(apart);
    }
    let mut grouped = match draws.between(0, 2) {
        0 => {
            let from = draws.between(0, last - 1);
            choice(name(from), name(draws.between(from + 1, last)))
        }
        _ => choice(String::new(), String::new()),
    };
    grouped.halo = Some(Halo::Grouped);
    strategy.layers.push(grouped);
    strategy
}

/// Of up to six ranks, mostly over the positions.
fn random_mesh(draws: &mut Draws, graph: &Graph) -> [usize; 7] {
    let mut extents = [1; 7];
    for _ in 0..draws.between(1, 2) {
        let axis = draws.pick(&[1, 1, 2, 2, 3, 3, 0, 5]);
        let most = match axis {
            1..=3 => graph.nodes[0].shape.extent[axis - 1].min(3),
            _ => 2,
        };
        extents[axis] = draws.between(1, most);
    }
    extents
}
