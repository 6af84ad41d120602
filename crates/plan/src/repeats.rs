//! Models with runs of equal blocks, shortened: with each further block, what a rank takes grows by as much.
//!
//! Example: ResNet-1001 has three runs of 110 equal blocks. The time of its last rank follows from those of the models
//! with two and with three blocks in each run, which have 15 times fewer layers together.

use partita_graph::{Graph, NodeId, ParameterId};
use partita_lower::{LayerChoice, Strategy};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

/// Blocks of a run that stay.
const KEPT: usize = 2;
/// Blocks that a run has at least.
const COUNT_MIN: usize = 4;
/// Largest number of layers of a block.
const BLOCK_MAX: usize = 128;
/// Largest share of the layers of a model that all shortened ones may have together.
const SHARE_MAX: f64 = 0.5;

/// Equal blocks, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The first layer.
    start: usize,
    /// Layers of a block.
    block: usize,
    /// Number of blocks.
    count: usize,
}

impl Run {
    /// The layers after this many blocks.
    fn after(&self, blocks: usize) -> Range<usize> {
        self.start + blocks * self.block..self.start + self.count * self.block
    }
}

/// A model with fewer blocks in its runs.
pub(crate) struct Shortened {
    /// With [`KEPT`] blocks in each run.
    pub graph: Graph,
    /// For each layer of the whole model the layer of [`Self::graph`] that is like it.
    pub like: Vec<usize>,
    /// With one block more in all runs of equally many, and the number of blocks that these runs lack in
    /// [`Self::graph`].
    longer: Vec<(Graph, f64)>,
}

impl Shortened {
    /// None where shortened models do not have far fewer layers.
    pub fn of(graph: &Graph) -> Option<Self> {
        let runs = runs(graph);
        let mut counts: Vec<usize> = runs.iter().map(|run| run.count).collect();
        counts.sort_unstable();
        counts.dedup();
        let short = with_blocks(graph, &runs, |_| KEPT)?;
        let longer = counts.into_iter().map(|count| {
            let kept = |run: &Run| KEPT + usize::from(run.count == count);
            Some((with_blocks(graph, &runs, kept)?, (count - KEPT) as f64))
        });
        let longer = longer.collect::<Option<Vec<(Graph, f64)>>>()?;
        let layers = longer.iter().map(|(graph, _)| graph.nodes.len());
        let layers = short.nodes.len() + layers.sum::<usize>();
        let is_shorter = layers as f64 <= SHARE_MAX * graph.nodes.len() as f64;
        is_shorter.then(|| Self {
            like: like(graph.nodes.len(), &runs),
            graph: short,
            longer,
        })
    }

    /// All shortened models.
    pub fn graphs(&self) -> impl Iterator<Item = &Graph> {
        [&self.graph]
            .into_iter()
            .chain(self.longer.iter().map(|(graph, _)| graph))
    }

    /// What some quantities of the whole model come to, if each further block of a run adds as much to them. They are given
    /// for each shortened model.
    ///
    /// Errors: those of a shortened model.
    pub fn extrapolated<T: Clone + AsRef<[f64]> + AsMut<[f64]>, E>(
        &self,
        of: impl Fn(&Graph) -> Result<T, E>,
    ) -> Result<T, E> {
        let short = of(&self.graph)?;
        let mut whole = short.clone();
        for (graph, blocks) in &self.longer {
            let longer = of(graph)?;
            let pairs = longer.as_ref().iter().zip(short.as_ref());
            for (sum, (longer, short)) in whole.as_mut().iter_mut().zip(pairs) {
                *sum += blocks * (longer - short);
            }
        }
        Ok(whole)
    }

    /// The shortened models and the strategy for them, if there are such models and it has one.
    pub fn of_strategy<'s>(
        models: Option<&'s Self>,
        strategy: &Strategy,
    ) -> Option<(&'s Self, Strategy)> {
        models.and_then(|models| Some((models, models.strategy(strategy)?)))
    }

    /// The strategy for shortened models. None where it names a range of layers that begins or ends with one which they
    /// lack; settings of single layers that they lack are left out, since those of the layers that stay are alike.
    fn strategy(&self, strategy: &Strategy) -> Option<Strategy> {
        let has =
            |name: &str| name.is_empty() || name.contains('*') || self.graph.find(name).is_some();
        let is_single = |choice: &LayerChoice| choice.from == choice.to;
        let has_ends = |choice: &LayerChoice| has(&choice.from) && has(&choice.to);
        let (kept, missing): (Vec<LayerChoice>, Vec<LayerChoice>) =
            strategy.layers.iter().cloned().partition(has_ends);
        let is_told = missing.iter().all(is_single) && !strategy.has_layers();
        let mut short = strategy.clone();
        short.layers = kept;
        is_told.then_some(short)
    }
}

/// For each layer of a model the layer of the one with [`KEPT`] blocks a run that is like it.
fn like(layers: usize, runs: &[Run]) -> Vec<usize> {
    let mut like: Vec<usize> = Vec::with_capacity(layers);
    let mut next = 0;
    for at in 0..layers {
        match runs.iter().find(|run| run.after(KEPT).contains(&at)) {
            // The same layer of the last block that stays.
            Some(run) => {
                let in_block = (at - run.start) % run.block;
                like.push(like[run.start + (KEPT - 1) * run.block + in_block]);
            }
            None => {
                like.push(next);
                next += 1;
            }
        }
    }
    like
}

/// The runs of equal blocks, in the order of the model; of those that overlap the ones with the most layers.
fn runs(graph: &Graph) -> Vec<Run> {
    let kinds = kinds(graph);
    let mut is_taken = vec![false; kinds.len()];
    let mut runs: Vec<Run> = Vec::new();
    loop {
        let all = (1..=BLOCK_MAX).filter_map(|block| longest(&kinds, &is_taken, block));
        // Of equally many layers those of the smallest block.
        let Some(run) = all.max_by_key(|run| (run.after(KEPT).len(), Reverse(run.block))) else {
            runs.sort_by_key(|run| run.start);
            return runs;
        };
        is_taken[run.after(0)].fill(true);
        runs.push(run);
    }
}

/// The longest run of blocks of this many layers, of layers that no other run has.
fn longest(kinds: &[usize], is_taken: &[bool], block: usize) -> Option<Run> {
    let last = kinds.len().checked_sub(block)?;
    let repeats = |at: usize| kinds[at] == kinds[at + block] && !is_taken[at + block];
    let (mut best, mut start) = (None::<Run>, 0);
    for at in 0..=last {
        if at < last && !is_taken[at] && repeats(at) {
            continue;
        }
        let run = Run {
            start,
            block,
            count: (at - start) / block + 1,
        };
        let is_longer = best.is_none_or(|best| run.count > best.count);
        if run.count >= COUNT_MIN && is_longer {
            best = Some(run);
        }
        start = at + 1;
    }
    best
}

/// A number for each layer, equal for layers that do the same with their parameters and with the layers as far before
/// them; no other layer equals one that shares its parameters.
fn kinds(graph: &Graph) -> Vec<usize> {
    let mut uses = vec![0; graph.parameters.len()];
    for id in graph.nodes.iter().flat_map(|node| &node.parameters) {
        uses[id.0] += 1;
    }
    let mut known: HashMap<String, usize> = HashMap::new();
    let kind = |(at, node): (usize, &partita_graph::Node)| {
        let reads: Vec<usize> = node.inputs.iter().map(|id| at - id.0).collect();
        let of_parameter = |id: &ParameterId| {
            let parameter = graph.parameter(*id);
            (parameter.role, &parameter.shape, parameter.is_frozen)
        };
        let parameters: Vec<_> = node.parameters.iter().map(of_parameter).collect();
        let is_shared = node.parameters.iter().any(|id| uses[id.0] > 1);
        let own = is_shared.then_some(at);
        let text = format!(
            "{:?} {:?} {reads:?} {parameters:?} {own:?}",
            node.op, node.shape
        );
        let next = known.len();
        *known.entry(text).or_insert(next)
    };
    graph.nodes.iter().enumerate().map(kind).collect()
}

/// The model with fewer blocks in its runs, which are in its order. None where a later layer reads one of a block
/// other than the last.
fn with_blocks(graph: &Graph, runs: &[Run], kept: impl Fn(&Run) -> usize) -> Option<Graph> {
    let mut short = graph.clone();
    // The last one first, so that the starts of the others stay.
    for run in runs.iter().rev() {
        let removed = run.after(kept(run));
        let fewer = removed.len();
        let moved = |id: &NodeId| match id.0 {
            at if at < run.start => Some(*id),
            // The last block that stays takes the place of the last one.
            at if at >= removed.start => {
                let moved = at.checked_sub(fewer).filter(|&moved| moved >= run.start);
                moved.map(NodeId)
            }
            _ => None,
        };
        for node in &mut short.nodes[removed.end..] {
            let inputs: Option<Vec<NodeId>> = node.inputs.iter().map(moved).collect();
            node.inputs = inputs?;
        }
        short.nodes.drain(removed);
    }
    retain_used_parameters(&mut short);
    Some(short)
}

fn retain_used_parameters(graph: &mut Graph) {
    let mut is_used = vec![false; graph.parameters.len()];
    for id in graph.nodes.iter().flat_map(|node| &node.parameters) {
        is_used[id.0] = true;
    }
    let ids = is_used.iter().scan(0, |next, &is_used| {
        let id = ParameterId(*next);
        *next += usize::from(is_used);
        Some(id)
    });
    let ids: Vec<ParameterId> = ids.collect();
    for id in graph.nodes.iter_mut().flat_map(|node| &mut node.parameters) {
        *id = ids[id.0];
    }
    let mut all = is_used.into_iter();
    graph.parameters.retain(|_| all.next() == Some(true));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::training;
    use partita_graph::zoo;
    use partita_lower::{LowerError, lower};
    use partita_oracle::{MachineCosts, Mode, predict, rank_seconds};
    use partita_testkit::{Machine, Software};
    use std::convert::Infallible;

    fn counts(graph: &Graph) -> [f64; 3] {
        let elements = |id: usize| graph.parameters[id].volume() as f64;
        [
            graph.nodes.len() as f64,
            (0..graph.parameters.len()).map(elements).sum(),
            graph.work().into_iter().map(|flops| flops as f64).sum(),
        ]
    }

    #[test]
    fn the_whole_follows_from_the_shortened_models() {
        for model in ["resnet1001v2@32", "resnet164v2@64"] {
            let graph = zoo::build(model).unwrap();
            let short = Shortened::of(&graph).unwrap();
            let Ok(found) = short.extrapolated(|short| Ok::<_, Infallible>(counts(short)));
            assert_eq!(found, counts(&graph), "{model}");
            for (node, &like) in graph.nodes.iter().zip(&short.like) {
                let like = &short.graph.nodes[like];
                assert_eq!((&node.op, node.shape), (&like.op, like.shape), "{model}");
            }
            // It is a model: its text reads as itself.
            let text = partita_graph::text::print(&short.graph);
            assert_eq!(
                partita_graph::text::parse(&text).unwrap().nodes,
                short.graph.nodes
            );
        }
    }

    #[test]
    fn what_a_rank_takes_follows_from_the_shortened_models() {
        let graph = zoo::build("resnet164v2@32").unwrap();
        let short = Shortened::of(&graph).unwrap();
        let costs = MachineCosts::new(
            Machine::load("summit", &[]).unwrap(),
            Software::load("partita-cudnn", &[]).unwrap(),
        );
        for text in [
            "data=4",
            "data=2,height=2",
            "height=2,width=2",
            "data=2,filter=2",
            "channel=4",
        ] {
            let strategy: Strategy = text.parse().unwrap();
            let of = |graph: &Graph| -> Result<[f64; 3], LowerError> {
                let program = lower(&training(graph, &strategy, 8))?;
                let rank = program.mesh.ranks() - 1;
                let bound = rank_seconds(program.body(rank), rank, &program.mesh, &costs);
                let step = predict(&program, &costs, Mode::Classes, 1, false).unwrap();
                let memory = program.memory_max().0 as f64;
                Ok([bound.0, memory, step.iteration_seconds.0])
            };
            let [found, whole] = [short.extrapolated(of).unwrap(), of(&graph).unwrap()];
            println!("{text}: {found:?}, {whole:?}");
            for ((found, whole), within) in found.into_iter().zip(whole).zip([1e-4, 0.03, 1e-4]) {
                assert!(
                    (found / whole - 1.0).abs() < within,
                    "{text}: {found} {whole}"
                );
            }
        }
    }

    #[test]
    fn only_models_with_long_runs_are_shortened() {
        for model in [
            "cosmoflow@128",
            "unet3d@64",
            "resnet50@224",
            "densenet121@224",
            "vgg16@224",
        ] {
            assert!(
                Shortened::of(&zoo::build(model).unwrap()).is_none(),
                "{model}"
            );
        }
    }

    #[test]
    fn settings_of_layers_that_are_left_out_are_left_out() {
        let graph = zoo::build("resnet164v2@32").unwrap();
        let short = Shortened::of(&graph).unwrap();
        let read = |text: &str| short.strategy(&text.parse().unwrap());
        let texts = |text: &str| read(text).map(|strategy| strategy.to_string());
        let same = "data=4,filter=2; fc: F=-";
        assert_eq!(texts(same).as_deref(), Some(same));
        let single = "data=4,filter=2; stage1.block9.conv2: F=-; fc: F=-";
        assert_eq!(texts(single).as_deref(), Some(same));
        assert_eq!(texts("data=4,filter=2; stage1.block9.conv2..fc: F=-"), None);
    }
}
