//! Random models on more ranks than their deeper layers have positions.

use super::{Case, Sketch, layers_apart, or_short};
use crate::Draws;

/// Draws a model with more channels and a strategy over all axes of 9 to 72 ranks, some layers apart from the rest. Most have
/// ranks without a part of some tensor, in space or of its channels.
pub fn random_wide_case(seed: u64) -> Case {
    let mut draws = Draws::new(seed);
    loop {
        let mut sketch = Sketch::empty(&mut draws, [24, 13, 8]);
        sketch.most_filters = 6;
        for _ in 0..draws.between(3, 7) {
            sketch.layer(&mut draws);
        }
        let graph = sketch.finish(&mut draws);
        let batch = draws.between(1, 3);
        for _ in 0..20 {
            let extents = extents(&mut draws, graph.nodes[0].shape.extent, batch);
            let strategy = layers_apart(&mut draws, &graph, batch, extents);
            if strategy.check(&graph, batch).is_ok() {
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

fn extents(draws: &mut Draws, input: [usize; 3], batch: usize) -> [usize; 7] {
    for _ in 0..100 {
        let mut extents = [1; 7];
        extents[0] = draws.between(1, batch.min(3));
        for dim in 0..3 {
            extents[dim + 1] = draws.between(1, input[dim].min(12));
        }
        extents[4] = draws.pick(&[1, 1, 1, 2, 3]);
        extents[5] = draws.pick(&[1, 1, 1, 2]);
        if (9..=72).contains(&extents.iter().product::<usize>()) {
            return extents;
        }
    }
    // The model is too small for these ranks.
    [batch, input[0], input[1], 1, 2, 1, 1]
}
