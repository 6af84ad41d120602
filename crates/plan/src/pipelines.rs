//! The candidate pipelines.

use crate::candidates::divisors;
use partita_graph::Graph;
use partita_lower::{Schedule, StageChoice, Strategy, fitting_micro};
use partita_space::{AXES, Axis};
use std::collections::HashMap;

/// Numbers of ranks of a stage.
const WIDTHS: [usize; 3] = [1, 2, 4];
/// Largest number of ranks of all stages, for one part of the mini-batch.
const RANKS_MAX: usize = 16;

/// The candidate pipelines for a model, with data parallelism: two to sixteen stages of one rank, or of two or four
/// with spatial parallelism, or a first spatial stage followed by as many stages of one rank; 1F1B and zero-bubble
/// with two and four micro-batches per stage, GPipe and Chimera with one, GEMS with as few as possible. Layers of
/// stages are not specified.
///
/// Pipelines that do not fit the model or the mini-batch are left out.
pub fn pipelines(graph: &Graph, ranks: usize, batch: usize) -> Vec<Strategy> {
    let mut all = Vec::new();
    for stages in shapes(graph, ranks) {
        let own: usize = stages
            .iter()
            .map(|stage| stage.extents.iter().product::<usize>())
            .sum();
        let data = ranks / own;
        for schedule in [
            Schedule::OneForwardOneBackward,
            Schedule::ZeroBubble,
            Schedule::GPipe,
            Schedule::Chimera,
            Schedule::Gems { repetitions: 1 },
        ] {
            let wanted = match schedule {
                Schedule::OneForwardOneBackward | Schedule::ZeroBubble => [2, 4].to_vec(),
                Schedule::GPipe | Schedule::Chimera => [1].to_vec(),
                Schedule::Gems { .. } | Schedule::Sequential | Schedule::Interleaved { .. } => {
                    [0].to_vec()
                }
            };
            let fit = |times: &usize| {
                fitting_micro(schedule, stages.len(), times * stages.len(), batch / data)
            };
            let mut micros: Vec<usize> = wanted.iter().filter_map(fit).collect();
            micros.dedup();
            for micro in micros {
                let mut strategy = Strategy::hybrid(data, [1; 3]);
                strategy.stages.clone_from(&stages);
                strategy.schedule = schedule;
                strategy.micro = micro;
                all.push(strategy);
            }
        }
    }
    // Whether layers can be split so does not depend on the order of micro-batches.
    let mut laid_out: HashMap<(Vec<StageChoice>, usize, usize), bool> = HashMap::new();
    all.retain(|strategy| {
        let key = (
            strategy.stages.clone(),
            strategy.extent(Axis::Data),
            strategy.micro,
        );
        strategy.check_splits(graph, batch).is_ok()
            && *laid_out
                .entry(key)
                .or_insert_with(|| strategy.check(graph, batch).is_ok())
    });
    all
}

/// Stages whose number of ranks divides that of all ranks.
fn shapes(graph: &Graph, ranks: usize) -> Vec<Vec<StageChoice>> {
    let fits = |own: usize| own <= RANKS_MAX && ranks.is_multiple_of(own);
    let mut shapes = Vec::new();
    for width in WIDTHS {
        for stages in divisors(ranks).into_iter().filter(|&stages| stages > 1) {
            if fits(stages * width) {
                shapes.push(vec![stage(graph, width); stages]);
            }
        }
        if width > 1 && fits(2 * width) {
            let mut shape = vec![stage(graph, 1); width];
            shape.insert(0, stage(graph, width));
            shapes.push(shape);
        }
    }
    shapes
}

/// A stage whose ranks split the outermost spatial dims in two.
fn stage(graph: &Graph, width: usize) -> StageChoice {
    let spatial = [Axis::Depth, Axis::Height, Axis::Width];
    let mut extents = [1; AXES.len()];
    let mut rest = width;
    for axis in &spatial[3 - graph.spatial_rank.min(3)..] {
        if rest > 1 {
            extents[axis.index()] = 2;
            rest /= 2;
        }
    }
    if let Some(last) = spatial.last().filter(|_| rest > 1) {
        extents[last.index()] *= rest;
    }
    StageChoice {
        layers: Vec::new(),
        extents,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn pipelines_are_few_and_different() {
        let graph = partita_graph::zoo::build("cosmoflow@64").unwrap();
        let all = pipelines(&graph, 8, 16);
        let texts: HashSet<String> = all.iter().map(Strategy::to_string).collect();
        assert_eq!(texts.len(), all.len());
        assert!((20..80).contains(&all.len()), "{texts:#?}");
        assert!(all.iter().all(|strategy| strategy.ranks() == 8));
        for expected in [
            "micro=16,stages=[1|1|1|1|1|1|1|1],schedule=1f1b",
            "data=4,micro=2,stages=[1|1],schedule=chimera",
            "micro=8,stages=[depth=2|depth=2|depth=2|depth=2],schedule=zero-bubble",
            "micro=2,stages=[depth=2,height=2|depth=2,height=2],schedule=gems",
            "data=2,micro=8,stages=[depth=2|1|1],schedule=1f1b",
        ] {
            assert!(texts.contains(expected), "{texts:#?}");
        }
        // One sample is no pipeline.
        assert!(pipelines(&graph, 8, 1).iter().all(|one| one.micro == 1));
        assert!(pipelines(&graph, 1, 8).is_empty());
        assert!(pipelines(&graph, 1024, 64).len() < 150);
    }
}
