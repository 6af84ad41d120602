//! Random blocks of layers that are computed in chunks.

use super::{Case, random_case, random_encoder_decoder, random_grouped_case, random_layer_case};
use crate::{Draws, random_branched_case, random_staged_case, random_two_stage_case};
use partita_graph::Graph;
use partita_lower::{LayerChoice, Strategy};

/// Draws a case of another kind, some blocks of which are computed in chunks.
pub fn random_chunked_case(seed: u64) -> Case {
    const DRAWS: [fn(u64) -> Case; 7] = [
        random_grouped_case,
        random_case,
        random_encoder_decoder,
        random_layer_case,
        random_branched_case,
        random_staged_case,
        random_two_stage_case,
    ];
    let mut draws = Draws::new(seed ^ 0x5EED);
    for attempt in 0.. {
        let mut case = DRAWS[(seed % DRAWS.len() as u64) as usize](seed + 1000 * attempt);
        case.seed = seed;
        if chunk(&mut draws, &case.graph, &mut case.strategy, case.batch) {
            return case;
        }
    }
    unreachable!("some case has a layer that can be computed in chunks")
}

/// Computes some blocks in chunks; false if none can be.
fn chunk(draws: &mut Draws, graph: &Graph, strategy: &mut Strategy, batch: usize) -> bool {
    let (mut is_any, mut first) = (false, draws.between(1, 3));
    while first < graph.nodes.len() {
        let last = draws.between(first, (first + 5).min(graph.nodes.len() - 1));
        strategy.layers.push(LayerChoice {
            from: graph.nodes[first].name.clone(),
            to: graph.nodes[last].name.clone(),
            chunks: Some(draws.between(2, 4)),
            ..LayerChoice::default()
        });
        if strategy.check(graph, batch).is_ok() {
            is_any = true;
            first = last;
        } else {
            strategy.layers.pop();
        }
        first += draws.pick(&[1, 1, 2]);
    }
    is_any
}
