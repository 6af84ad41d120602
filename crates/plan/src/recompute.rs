//! Which blocks of layers to recompute: those that cost the least seconds among those that fit in memory.
//!
//! Lifetimes follow from the program of one rank. A block frees the activations that only its own layers access, and costs
//! the forward pass of the layers that write them. So the layers between two convolutions (a norm, an activation) with
//! the second one are a block that runs no convolution again.
//!
//! While the backward pass is at a layer, what was kept of the layers before it is in memory, and all activations of its
//! own block; those of later layers are free again. So a block costs memory where it stands, and what is kept costs memory
//! from there on. A dynamic program over the layers has, for each layer, the pairs of bytes kept so far and seconds spent
//! that no other pair beats.
//!
//! A stage of a pipeline also holds what it keeps of the other micro-batches in flight. So the blocks of a stage are the
//! cheapest of those for several shares of its memory that one micro-batch takes.
//! Source of the idea: Chen et al., Training Deep Nets with Sublinear Memory Cost (2016).

use crate::layers::nodes_of_tasks;
use partita_graph::Graph;
use partita_lower::{LayerChoice, Recompute, Strategy};
use partita_program::{Body, Phase, Role};
use partita_space::Seconds;

/// Most layers of a block.
const LAYERS_MAX: usize = 256;
/// Most pairs of bytes and seconds for a layer.
const PAIRS_MAX: usize = 64;
/// Steps of the search for the least memory.
const HALVINGS: usize = 12;
/// Most layers of a network of which programs of many sets are lowered.
const FEW_LAYERS: usize = 24;
/// Parts of the memory of a stage that are tried for the micro-batch in its backward pass.
const SHARES: usize = 8;

/// Activations of a rank, from the forward to the backward pass.
pub(crate) struct Activations {
    /// Seconds of the forward pass of each layer.
    forward: Vec<f64>,
    /// Bytes of kept activations that each layer writes.
    written: Vec<f64>,
    /// By first layer, the blocks that free anything, or all of a small network, the shortest first.
    blocks: Vec<Vec<Block>>,
    /// Micro-batches whose activations are kept at the same time.
    in_flight: f64,
}

/// A run of layers that is recomputed as one block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Block {
    first: usize,
    last: usize,
    /// Seconds of forward passes that run again.
    seconds: f64,
    /// Bytes that are free between the forward and the backward pass.
    freed: f64,
}

/// Disjoint blocks, in the order of the layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Blocks(Vec<Block>);

/// What was kept and spent up to a layer, and how.
#[derive(Clone, Copy, Debug)]
struct Pair {
    kept: f64,
    seconds: f64,
    /// The pair before: its layer, and its place among the pairs of that layer.
    from: (usize, usize),
    block: Option<Block>,
}

impl Activations {
    /// Of a rank with this body, whose tasks take these times. The body has a single micro-batch, and recomputes nothing. Blocks
    /// are of its own layers.
    pub fn new(
        graph: &Graph,
        (body, seconds): (&Body, &[Seconds]),
        is_own: &dyn Fn(usize) -> bool,
        in_flight: f64,
    ) -> Self {
        let layers = graph.nodes.len();
        let nodes = nodes_of_tasks(graph, body);
        let mut forward = vec![0.0; layers];
        // For each buffer the first and the last layer that access it, and whether the backward pass does.
        let mut uses: Vec<Option<(usize, usize, bool)>> = vec![None; body.buffers.len()];
        for ((task, seconds), &node) in body.tasks.iter().zip(seconds).zip(&nodes) {
            let is_backward = match task.origin.phase {
                Phase::Forward => {
                    forward[node] += seconds.0;
                    false
                }
                Phase::Backward => true,
                Phase::Load | Phase::Report | Phase::Reduce | Phase::Update => continue,
            };
            for (view, _) in task.accesses() {
                let found = &mut uses[view.buffer.0 as usize];
                let (first, last, both) = found.get_or_insert((node, node, false));
                *first = node.min(*first);
                *last = node.max(*last);
                *both |= is_backward;
            }
        }
        let mut kept = vec![Vec::new(); layers];
        let mut written = vec![0.0; layers];
        for (buffer, found) in body.buffers.iter().zip(uses) {
            if let (Role::Activation, Some((first, last, true))) = (buffer.role, found) {
                let bytes = buffer.bytes().0 as f64;
                written[first] += bytes;
                if (first..=last).all(is_own) {
                    kept[last].push((first, bytes));
                }
            }
        }
        let blocks = (0..layers).map(|first| {
            let name = graph.layer_name(first);
            let starts = graph
                .find(name)
                .is_some_and(|id| graph.layer_start(id.0) == first);
            let all = if starts {
                blocks_from(first, &forward, &written, &kept)
            } else {
                Vec::new()
            };
            let ends = |block: &Block| {
                let is_end = graph.layer_name(block.last) == graph.nodes[block.last].name;
                is_end && (block.first..=block.last).all(is_own)
            };
            all.into_iter().filter(ends).collect()
        });
        Self {
            blocks: blocks.collect(),
            forward,
            written,
            in_flight,
        }
    }

    /// Bytes of all activations that are kept if nothing is recomputed.
    pub fn bytes(&self) -> f64 {
        self.in_flight * self.written.iter().sum::<f64>()
    }

    /// The blocks of least seconds with which activations take at most this many bytes; none if there are no such blocks.
    pub fn cheapest(&self, bytes_max: f64) -> Option<Blocks> {
        let others = self.in_flight - 1.0;
        if others <= 0.0 {
            return self.within(bytes_max, f64::INFINITY);
        }
        // From an equal part for each micro-batch to all for the one in its backward pass.
        let least = bytes_max / self.in_flight;
        let shares = (0..SHARES).map(|at| {
            let fraction = at as f64 / (SHARES - 1) as f64;
            least + fraction * (bytes_max - least)
        });
        let found = shares.filter_map(|peak| self.within(peak, (bytes_max - peak) / others));
        found.min_by(|a, b| a.seconds().total_cmp(&b.seconds()))
    }

    /// The blocks of least seconds with which a micro-batch takes at most this many bytes at a time, and keeps at most these.
    fn within(&self, bytes_max: f64, kept_max: f64) -> Option<Blocks> {
        let layers = self.written.len();
        // A little for each block, so that of equals the fewest are taken.
        let each = 1e-6 * self.forward.iter().sum::<f64>() / layers.max(1) as f64;
        let mut pairs: Vec<Vec<Pair>> = vec![Vec::new(); layers + 1];
        pairs[0].push(Pair {
            kept: 0.0,
            seconds: 0.0,
            from: (0, 0),
            block: None,
        });
        for at in 0..layers {
            let own = thinned(std::mem::take(&mut pairs[at]));
            for (index, pair) in own.iter().enumerate() {
                let mut add = |block: Option<Block>, last: usize, whole: f64| {
                    let (freed, seconds) =
                        block.map_or((0.0, 0.0), |one| (one.freed, one.seconds + each));
                    if pair.kept + whole <= bytes_max {
                        pairs[last + 1].push(Pair {
                            kept: pair.kept + whole - freed,
                            seconds: pair.seconds + seconds,
                            from: (at, index),
                            block,
                        });
                    }
                };
                add(None, at, self.written[at]);
                let (mut whole, mut next) = (0.0, at);
                for block in &self.blocks[at] {
                    whole += self.written[next..=block.last].iter().sum::<f64>();
                    next = block.last + 1;
                    add(Some(*block), block.last, whole);
                }
            }
            pairs[at] = own;
        }
        let mut last = std::mem::take(&mut pairs[layers]);
        // Up to rounding.
        last.retain(|pair| pair.kept <= kept_max * (1.0 + 1e-9));
        let mut pair = *last.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
        let mut chosen = Vec::new();
        loop {
            chosen.extend(pair.block);
            let (at, index) = pair.from;
            if at == 0 {
                break;
            }
            pair = pairs[at][index];
        }
        chosen.reverse();
        Some(Blocks(chosen))
    }

    /// Whether there are so few layers that programs of many sets may be lowered.
    pub fn is_small(&self) -> bool {
        self.written.len() <= FEW_LAYERS
    }

    /// This set with one more block, those first that free the most.
    pub fn extended(&self, of: &Blocks) -> Vec<Blocks> {
        let is_free = |one: &&Block| {
            let mut others = of.0.iter();
            others.all(|other| one.last < other.first || other.last < one.first)
        };
        let mut free: Vec<&Block> = self.blocks.iter().flatten().filter(is_free).collect();
        free.sort_by(|a, b| b.freed.total_cmp(&a.freed));
        let extended = free.into_iter().map(|one| {
            let mut blocks = of.0.clone();
            blocks.push(*one);
            blocks.sort_by_key(|one| one.first);
            Blocks(blocks)
        });
        extended.collect()
    }

    /// The blocks with which activations take the fewest bytes, and how many these are.
    pub fn least(&self) -> (f64, Blocks) {
        let (mut low, mut high) = (0.0, self.bytes());
        let mut least = Blocks(Vec::new());
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            match self.cheapest(middle) {
                Some(blocks) => (high, least) = (middle, blocks),
                None => low = middle,
            }
        }
        (high, least)
    }
}

/// The blocks that begin with a layer and free anything, or all of a small network, the shortest first. `kept` has, by the last layer that accesses a
/// kept activation, the layer that writes it and its bytes.
fn blocks_from(
    first: usize,
    forward: &[f64],
    written: &[f64],
    kept: &[Vec<(usize, f64)>],
) -> Vec<Block> {
    let end = forward.len().min(first + LAYERS_MAX);
    let mut found: Vec<Block> = Vec::new();
    let mut is_again = vec![false; end - first];
    let (mut seconds, mut freed, mut next) = (0.0, 0.0, first);
    for last in first..end {
        let before = freed;
        for &(writer, bytes) in kept[last].iter().filter(|one| one.0 >= first) {
            freed += bytes;
            if !is_again[writer - first] {
                is_again[writer - first] = true;
                seconds += forward[writer];
            }
            // What is computed on the way to it, and is not kept itself.
            while next < writer {
                seconds += if written[next] > 0.0 {
                    0.0
                } else {
                    forward[next]
                };
                next += 1;
            }
        }
        // Fused tasks belong to one of their layers, so lifetimes may be shorter than they seem.
        if freed > before || forward.len() <= FEW_LAYERS {
            found.push(Block {
                first,
                last,
                seconds,
                freed,
            });
        }
    }
    found
}

/// The pairs that no other beats, by bytes; of many those that are evenly spread.
fn thinned(mut pairs: Vec<Pair>) -> Vec<Pair> {
    pairs.sort_by(|a, b| {
        a.kept
            .total_cmp(&b.kept)
            .then(a.seconds.total_cmp(&b.seconds))
    });
    let mut least = f64::INFINITY;
    pairs.retain(|pair| {
        let is_better = pair.seconds < least;
        least = least.min(pair.seconds);
        is_better
    });
    let count = pairs.len();
    if count <= PAIRS_MAX {
        return pairs;
    }
    let spread = (0..PAIRS_MAX).map(|at| pairs[at * (count - 1) / (PAIRS_MAX - 1)]);
    spread.collect()
}

impl Blocks {
    /// Seconds of forward passes that run again in a micro-batch.
    fn seconds(&self) -> f64 {
        self.0.iter().map(|block| block.seconds).sum()
    }

    /// A strategy that recomputes these blocks.
    pub fn of(&self, strategy: &Strategy, graph: &Graph) -> Strategy {
        let mut strategy = strategy.clone();
        let name = |at: usize| graph.layer_name(at).to_owned();
        strategy
            .layers
            .extend(self.0.iter().map(|block| LayerChoice {
                from: if block.first == 0 {
                    String::new()
                } else {
                    name(block.first)
                },
                to: name(block.last),
                recompute: Some(Recompute::On),
                ..LayerChoice::default()
            }));
        strategy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::random::{SplitMix, unit};

    fn uniform(random: &mut SplitMix) -> f64 {
        unit(random.bits())
    }

    /// Random layers, in whose blocks some activations are freed.
    fn random(random: &mut SplitMix, layers: usize) -> Activations {
        let forward: Vec<f64> = (0..layers).map(|_| uniform(random)).collect();
        let written: Vec<f64> = (0..layers).map(|_| uniform(random)).collect();
        let mut kept = vec![Vec::new(); layers];
        for (first, &bytes) in written.iter().enumerate() {
            kept[random.between(first, layers - 1)].push((first, bytes));
        }
        let blocks = (0..layers).map(|first| blocks_from(first, &forward, &written, &kept));
        Activations {
            blocks: blocks.collect(),
            forward,
            written,
            in_flight: 1.0,
        }
    }

    /// The least seconds from a layer on, of all sets of disjoint blocks, where `kept` is kept of the layers before.
    fn exhaustive(of: &Activations, bytes_max: f64, at: usize, kept: f64) -> f64 {
        if at == of.written.len() {
            return 0.0;
        }
        let fits = |whole: f64| kept + whole <= bytes_max;
        let mut least = f64::INFINITY;
        if fits(of.written[at]) {
            least = exhaustive(of, bytes_max, at + 1, kept + of.written[at]);
        }
        for block in &of.blocks[at] {
            let whole: f64 = of.written[at..=block.last].iter().sum();
            if fits(whole) {
                let rest = exhaustive(of, bytes_max, block.last + 1, kept + whole - block.freed);
                least = least.min(block.seconds + rest);
            }
        }
        least
    }

    #[test]
    fn the_cheapest_blocks_are_those_of_an_exhaustive_search() {
        let mut numbers = SplitMix(7);
        let (mut found, mut saved) = (0, 0);
        for case in 0..300 {
            let activations = random(&mut numbers, 1 + case % 8);
            let all = activations.bytes();
            let bytes_max = (0.3 + 0.7 * uniform(&mut numbers)) * all;
            let least = exhaustive(&activations, bytes_max, 0, 0.0);
            match activations.cheapest(bytes_max) {
                None => assert!(least.is_infinite()),
                Some(blocks) => {
                    let seconds: f64 = blocks.0.iter().map(|block| block.seconds).sum();
                    assert!((seconds - least).abs() < 1e-4, "{seconds} {least}");
                    assert!(blocks.0.is_sorted_by(|a, b| a.last < b.first));
                    found += 1;
                }
            }
            let (bytes, _) = activations.least();
            assert!(bytes >= all * 0.99 || exhaustive(&activations, bytes, 0, 0.0).is_finite());
            assert!(exhaustive(&activations, bytes - 1e-3 * all, 0, 0.0).is_infinite());
            saved += usize::from(bytes < 0.9 * all);
        }
        assert!(found > 100 && saved > 100, "{found} {saved}");
    }
}
