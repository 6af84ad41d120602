//! Candidates that compute blocks of layers in chunks: where a candidate does not fit, however much is recomputed and
//! sharded, since the tensors of a single block are too large; and in place of recomputing, where the best candidate does
//! that.
//!
//! A block is what lies between two changes of resolution: a level of an encoder with the pooling after it, or a level of
//! a decoder with the upsampling before it. So halos of chunks stay narrow. Blocks whose tensors are small beside those of
//! the largest one stay whole.

use crate::plan::{PlanError, RankedStrategy};
use crate::prefilter::slower_than_best;
use crate::ranking::{Pending, Ranking};
use crate::savings::{VARIANTS, has_chunks};
use partita_graph::{Graph, NodeId};
use partita_lower::{LayerChoice, Strategy, can_be_chunked};

/// Chunks of a block that are tried, one after the other.
const COUNTS: [usize; 5] = [2, 4, 8, 16, 32];
/// Numbers of chunks that are tried in place of recomputing, and sets of blocks.
const COUNTS_IN_PLACE: usize = 3;
const SETS_IN_PLACE: usize = 4;
/// Of how many of the best candidates.
const BASES_IN_PLACE: usize = 3;
/// Blocks stay whole whose largest tensor is smaller than this part of the largest of all.
const SMALL: f64 = 1.0 / 8.0;

impl Ranking<'_, '_> {
    /// For each layer, whether a candidate computes it in chunks.
    pub fn chunked(&self, strategy: &Strategy) -> Vec<bool> {
        let graph = self.request.training.graph;
        let all = strategy.chunks_of_layers(graph);
        all.unwrap_or_else(|_| vec![None; graph.nodes.len()])
            .into_iter()
            .map(|chunks| chunks.is_some())
            .collect()
    }

    /// Of the best candidates those that recompute: the same with other blocks in chunks that recompute less, where they
    /// may be faster.
    pub fn evaluate_chunks(&mut self) -> Result<(), PlanError> {
        let seconds = |one: &RankedStrategy| one.seconds().map_or(f64::INFINITY, |it| it.0);
        let mut best: Vec<&RankedStrategy> = self.evaluated.iter().collect();
        best.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let mut bases: Vec<Strategy> = Vec::new();
        for one in best {
            let base = kept(&one.strategy);
            if base != one.strategy && !bases.contains(&base) && bases.len() < BASES_IN_PLACE {
                bases.push(base);
            }
        }
        self.lowered.set(0);
        for base in &bases {
            for one in self.variants_in_chunks(base)?.into_iter().take(VARIANTS) {
                let best = self.best.as_ref();
                let is_slower = best.and_then(|best| slower_than_best(one.lower_bound, best));
                if is_slower.is_none() && !self.is_over() {
                    self.evaluate(one.strategy, None)?;
                }
            }
        }
        Ok(())
    }

    /// A candidate with blocks in chunks, recomputed as little as fits, the fastest first.
    pub fn variants_in_chunks(&self, base: &Strategy) -> Result<Vec<Pending>, PlanError> {
        let mut found = Vec::new();
        let sets = self.in_chunks(base).into_iter().take(SETS_IN_PLACE);
        for one in sets.flat_map(|set| set.into_iter().take(COUNTS_IN_PLACE)) {
            if self.is_enough() || self.is_over() {
                break;
            }
            (self.request.progress)(&one, 0);
            found.extend(self.combined(&one, None, (&[one.micro], &[one.shard]))?);
        }
        found.sort_by(|a, b| a.lower_bound.0.total_cmp(&b.lower_bound.0));
        Ok(found)
    }

    /// This candidate with more and more blocks in chunks, those of the largest tensors first, and for each such set with
    /// more and more chunks; nothing where it has chunks already, or no block can have any.
    pub fn in_chunks(&self, base: &Strategy) -> Vec<Vec<Strategy>> {
        if has_chunks(base) || !base.stages.is_empty() {
            return Vec::new();
        }
        let blocks = blocks(self.request.training.graph);
        let sets = (1..=blocks.len()).map(|count| {
            let of_set = |chunks| self.chunked_blocks(base, &blocks[..count], chunks);
            let mut all: Vec<Strategy> = COUNTS.into_iter().map(of_set).collect();
            all.dedup();
            all.retain(|one| one != base);
            all
        });
        sets.filter(|all| !all.is_empty()).collect()
    }

    /// A candidate with those of some blocks in chunks that can be.
    fn chunked_blocks(&self, base: &Strategy, blocks: &[[String; 2]], chunks: usize) -> Strategy {
        let training = &self.request.training;
        let mut strategy = base.clone();
        for [from, to] in blocks {
            strategy.layers.push(LayerChoice {
                from: from.clone(),
                to: to.clone(),
                chunks: Some(chunks),
                ..LayerChoice::default()
            });
            if strategy.check(training.graph, training.batch).is_err() {
                strategy.layers.pop();
            }
        }
        strategy
    }
}

/// The same strategy that keeps all activations, whole.
fn kept(strategy: &Strategy) -> Strategy {
    let mut strategy = strategy.clone();
    for one in &mut strategy.layers {
        (one.recompute, one.chunks) = (None, None);
    }
    strategy.layers.retain(LayerChoice::is_any_set);
    strategy
}

/// The names of the first and the last layer of each block that is worth it, those of the largest tensors first.
fn blocks(graph: &Graph) -> Vec<[String; 2]> {
    let positions = |id: NodeId| graph.node(id).shape.extent.iter().product::<usize>();
    let elements = |at: &usize| (positions(NodeId(*at)) * graph.nodes[*at].shape.channels) as f64;
    let mut runs: Vec<Vec<usize>> = vec![Vec::new()];
    for at in 0..graph.nodes.len() {
        let id = NodeId(at);
        let before = graph.node(id).inputs.first().copied();
        let before = before.map_or(0, positions);
        if !can_be_chunked(graph, at) || positions(id) > before {
            runs.push(Vec::new());
        }
        if let Some(run) = runs.last_mut().filter(|_| can_be_chunked(graph, at)) {
            run.push(at);
        }
        if positions(id) < before {
            runs.push(Vec::new());
        }
    }
    let largest = |run: &[usize]| run.iter().map(elements).fold(0.0, f64::max);
    let most = runs.iter().map(|run| largest(run)).fold(0.0, f64::max);
    // What lies between two windows is worth it; an activation alone is recomputed at less cost.
    let slides = |at: &&usize| graph.nodes[**at].op.window().is_some();
    let is_worth_it = |run: &Vec<usize>| run.iter().filter(slides).count() > 1;
    runs.retain(|run| is_worth_it(run) && largest(run) >= SMALL * most);
    runs.sort_by(|a, b| largest(b).total_cmp(&largest(a)));
    let ends = |run: &Vec<usize>| Some([*run.first()?, *run.last()?]);
    let ends = runs.iter().filter_map(ends);
    ends.map(|ends| ends.map(|at| graph.layer_name(at).to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_graph::zoo;

    #[test]
    fn blocks_lie_between_changes_of_resolution() {
        let ends = |name: &str| blocks(&zoo::build(name).unwrap());
        let cosmoflow = ends("cosmoflow@128");
        assert_eq!(cosmoflow[0], ["conv1", "pool1"]);
        assert!(cosmoflow.len() < 7, "{cosmoflow:?}");
        // The statistics of a norm between two convolutions of a level need all positions.
        let unet = ends("unet3d@64");
        assert!(
            unet.iter().all(|[from, _]| from.ends_with("deconv")),
            "{unet:?}"
        );
    }
}
