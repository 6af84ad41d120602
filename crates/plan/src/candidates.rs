//! The candidate strategies.

use crate::repeats::Shortened;
use partita_graph::{Graph, NodeId, Op};
use partita_lower::{LayerChoice, LayerDim, Strategy};
use partita_space::{AXES, Axis, AxisList};

/// Extents of the filter and channel axes that are tried. Groups that gather activations in every layer are
/// worthwhile within a node only, if at all.
const SHARES: [[usize; 2]; 8] = [
    [2, 1],
    [1, 2],
    [4, 1],
    [1, 4],
    [2, 2],
    [8, 1],
    [1, 8],
    [4, 4],
];
/// Extents of the branch axis, and of the filter axis of column- and row-parallel layers, that are tried.
const GROUPS: [usize; 3] = [2, 4, 8];
/// Number of last poolings after which spatial axes may split filters instead.
const LATE_POOLINGS: usize = 2;

/// The candidates for a model: every hybrid of data and spatial parallelism; some with filter and channel
/// parallelism, with column- and row-parallel layers where there is attention, or with branch parallelism; and
/// some in which the spatial axes split filters from the last poolings or the first linear layer on.
///
/// Candidates other than hybrids are left out where they do not fit the model or the mini-batch. Order:
/// [`hybrids`] first.
pub fn candidates(graph: &Graph, ranks: usize, batch: usize) -> Vec<Strategy> {
    candidates_of(graph, None, (ranks, batch))
}

/// As [`candidates`]; whether they fit is seen from the shortened model where it tells.
pub(crate) fn candidates_of(
    graph: &Graph,
    shortened: Option<&Shortened>,
    (ranks, batch): (usize, usize),
) -> Vec<Strategy> {
    let rank = graph.spatial_rank;
    let mut all = hybrids(ranks, rank);
    let mut more = Vec::new();
    for [filters, channels] in SHARES {
        let shares = filters * channels;
        if ranks.is_multiple_of(shares) {
            let rest = descending(ranks / shares, rank);
            more.extend(
                rest.map(|one| with_filters_and_channels(graph, &one, [filters, channels])),
            );
        }
    }
    for groups in GROUPS {
        if ranks.is_multiple_of(groups) {
            let rest = descending(ranks / groups, rank);
            more.extend(rest.map(|one| with(&one, Axis::Branch, groups)));
        }
    }
    let row_parallel_layers = row_parallel_layers(graph);
    for filters in GROUPS {
        if ranks.is_multiple_of(filters) && !row_parallel_layers.is_empty() {
            let rest = descending(ranks / filters, rank);
            more.extend(rest.map(|one| {
                let mut paired = with(&one, Axis::Filter, filters);
                paired.layers.clone_from(&row_parallel_layers);
                paired
            }));
        }
    }
    for one in descending(ranks, rank).filter(is_split) {
        let transitions = transitions(graph).into_iter();
        more.extend(transitions.map(|transition| with_late_filters(graph, &one, transition)));
    }
    let fits = |one: &Strategy| {
        let checked = match Shortened::of_strategy(shortened, one) {
            Some((model, short)) => short.check(&model.graph, batch),
            None => one.check(graph, batch),
        };
        checked.is_ok()
    };
    all.extend(more.into_iter().filter(fits));
    all
}

/// Hybrids that split depth at least as often as height, and that as width.
fn descending(ranks: usize, spatial_rank: usize) -> impl Iterator<Item = Strategy> {
    let is_descending = move |strategy: &Strategy| {
        let parts = SPATIAL[3 - spatial_rank..].iter();
        parts.is_sorted_by(|&&a, &&b| strategy.extent(a) >= strategy.extent(b))
    };
    let all = hybrids(ranks, spatial_rank).into_iter();
    all.filter(move |one| one.overlap && is_descending(one))
}

/// The spatial axes.
pub(crate) const SPATIAL: [Axis; 3] = [Axis::Depth, Axis::Height, Axis::Width];

fn is_split(strategy: &Strategy) -> bool {
    SPATIAL.iter().any(|&axis| strategy.extent(axis) > 1)
}

/// With the extent of one axis.
fn with(strategy: &Strategy, axis: Axis, extent: usize) -> Strategy {
    let mut extents = AXES.map(|axis| strategy.extent(axis));
    extents[axis.index()] = extent;
    Strategy::of(extents)
}

/// The row-parallel layers of a transformer, which read the split filters of a column-parallel layer as channels
/// (Shoeybi et al. 2019): after attention, and after a layer and an activation. As one pattern, where only their
/// names have a common ending.
fn row_parallel_layers(graph: &Graph) -> Vec<LayerChoice> {
    let mut nodes = graph.nodes.iter();
    let has_attention = nodes.any(|node| matches!(node.op, Op::Attention { .. }));
    let mut is_row_parallel = vec![false; graph.nodes.len()];
    // Whether the output is split by the filters of a layer.
    let mut is_split = vec![false; graph.nodes.len()];
    for (at, node) in graph.nodes.iter().enumerate().filter(|_| has_attention) {
        let input = node.inputs.first().map_or(0, |input| input.0);
        match node.op {
            Op::Linear { .. } | Op::Convolution(_) => {
                is_row_parallel[at] = is_split[input];
                is_split[at] = !is_row_parallel[at];
            }
            Op::Attention { .. } => is_split[at] = node.inputs.iter().all(|id| is_split[id.0]),
            Op::LeakyRelu { .. } | Op::Prelu(_) | Op::Activation(_) | Op::Dropout { .. } => {
                is_split[at] = is_split[input]
            }
            Op::Input
            | Op::Features
            | Op::TransposedConvolution(_)
            | Op::Pool(_)
            | Op::Resample(_)
            | Op::BatchNorm { .. }
            | Op::Softmax
            | Op::Flatten
            | Op::Reshape { .. }
            | Op::Add
            | Op::Multiply
            | Op::Concat
            | Op::Slice { .. }
            | Op::ChannelShuffle { .. }
            | Op::Embedding { .. }
            | Op::Positions
            | Op::PositionEmbedding { .. }
            | Op::LayerNorm { .. }
            | Op::GroupNorm { .. }
            | Op::Loss(_)
            | Op::AuxiliaryLoss { .. } => {}
        }
    }
    let names = || {
        graph
            .nodes
            .iter()
            .map(|node| node.name.as_str())
            .zip(&is_row_parallel)
    };
    let choice = |name: &str| {
        let mut dims = [None; 6];
        dims[LayerDim::C as usize] = Some(AxisList::of([Axis::Filter]));
        dims[LayerDim::F as usize] = Some(AxisList::NONE);
        LayerChoice {
            from: name.to_owned(),
            to: name.to_owned(),
            dims,
            ..LayerChoice::default()
        }
    };
    let mut all: Vec<&str> = names()
        .filter(|(_, is_row_parallel)| **is_row_parallel)
        .map(|(name, _)| name)
        .collect();
    let end = all
        .first()
        .and_then(|name| name.rfind('.').map(|at| &name[at..]));
    if let Some(end) = end
        && names().all(|(name, is_row_parallel)| name.ends_with(end) == *is_row_parallel)
    {
        return vec![choice(&format!("*{end}"))];
    }
    all.dedup();
    all.into_iter().map(choice).collect()
}

/// With filter and channel axes; layers with too few filters or channels are not split.
fn with_filters_and_channels(
    graph: &Graph,
    strategy: &Strategy,
    [filters, channels]: [usize; 2],
) -> Strategy {
    let extent = |axis| strategy.extent(axis);
    let [depth, height, width] = SPATIAL.map(extent);
    let data = extent(Axis::Data);
    let mut split = Strategy::of([data, depth, height, width, filters, channels, 1]);
    let parts = filters * channels;
    split.layers = unsplit_narrow_layers(graph, |layer| layer.0 < parts || layer.1 < parts);
    split
}

/// With spatial axes that split filters from a layer on; layers with too few filters are not split.
fn with_late_filters(graph: &Graph, strategy: &Strategy, transition: NodeId) -> Strategy {
    let wide: Vec<Axis> = SPATIAL
        .into_iter()
        .filter(|&axis| strategy.extent(axis) > 1)
        .collect();
    let parts = wide.iter().map(|&axis| strategy.extent(axis)).product();
    let mut dims = [None; 6];
    let is_linear = matches!(graph.node(transition).op, Op::Linear { .. });
    for dim in [LayerDim::D, LayerDim::H, LayerDim::W] {
        dims[dim as usize] = (!is_linear && wide.contains(&dim.axis())).then_some(AxisList::NONE);
    }
    dims[LayerDim::F as usize] = Some(AxisList::of(wide));
    let mut late = strategy.clone();
    late.layers.push(LayerChoice {
        from: graph.layer_name(transition.0).to_owned(),
        to: String::new(),
        dims,
        ..LayerChoice::default()
    });
    late.layers
        .extend(unsplit_narrow_layers(graph, |layer| layer.0 < parts));
    late
}

/// Settings that leave the filters and channels of narrow layers unsplit.
fn unsplit_narrow_layers(
    graph: &Graph,
    is_narrow: impl Fn((usize, usize)) -> bool,
) -> Vec<LayerChoice> {
    let mut choices = Vec::new();
    for node in &graph.nodes {
        // The channels of the input and of an embedding are never split.
        let is_split = !matches!(node.op, Op::Embedding { .. });
        let reads = match node.inputs.first() {
            Some(input) if input.0 > 0 && is_split => graph.node(*input).shape.channels,
            _ => usize::MAX,
        };
        if node.op.has_weights() && is_narrow((node.shape.channels, reads)) {
            let mut dims = [None; 6];
            for dim in [LayerDim::F, LayerDim::C] {
                dims[dim as usize] = Some(AxisList::NONE);
            }
            choices.push(LayerChoice {
                from: node.name.clone(),
                to: node.name.clone(),
                dims,
                ..LayerChoice::default()
            });
        }
    }
    choices
}

/// Layers from which spatial axes may split filters: convolutions after the last poolings, and the first linear
/// layer; none on branches to auxiliary losses.
fn transitions(graph: &Graph) -> Vec<NodeId> {
    let is_evaluated = graph.is_evaluated();
    let ids = (0..graph.nodes.len()).filter(|&id| is_evaluated[id]);
    let nodes = || ids.clone().map(NodeId);
    let pools: Vec<NodeId> = nodes()
        .filter(|&id| matches!(graph.node(id).op, Op::Pool(_)))
        .collect();
    let readers = pools.iter().rev().filter_map(|pool| {
        let mut readers = nodes().filter(|&id| graph.node(id).inputs.contains(pool));
        readers.find(|&id| matches!(graph.node(id).op, Op::Convolution(_)))
    });
    let mut transitions: Vec<NodeId> = readers.take(LATE_POOLINGS).collect();
    transitions.extend(nodes().find(|&id| matches!(graph.node(id).op, Op::Linear { .. })));
    transitions
}

/// Every hybrid of data and spatial parallelism for a number of ranks: all ordered factorizations over data and
/// the last `spatial_rank` of depth, height and width. With spatial parallelism, each is tried with and without
/// overlap of halo exchanges and convolutions.
///
/// Shapes: `spatial_rank` is 1 to 3. Order: most ranks on the data axis first.
pub fn hybrids(ranks: usize, spatial_rank: usize) -> Vec<Strategy> {
    let mut splits = vec![(ranks, [1; 3])];
    for axis in 3 - spatial_rank.min(3)..3 {
        let extend = |(rest, spatial): (usize, [usize; 3])| {
            divisors(rest).into_iter().map(move |parts| {
                let mut spatial = spatial;
                spatial[axis] = parts;
                (rest / parts, spatial)
            })
        };
        splits = splits.into_iter().flat_map(extend).collect();
    }
    splits.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.cmp(&a.1)));
    let with_overlap = |(data, spatial): (usize, [usize; 3])| {
        let on = Strategy::hybrid(data, spatial);
        let is_split = spatial.iter().any(|&parts| parts > 1);
        let off = is_split.then(|| {
            let mut off = on.clone();
            off.overlap = false;
            off
        });
        [Some(on), off].into_iter().flatten()
    };
    splits.into_iter().flat_map(with_overlap).collect()
}

pub(crate) fn divisors(number: usize) -> Vec<usize> {
    let small: Vec<usize> = (1..)
        .take_while(|part| part * part <= number)
        .filter(|&part| number.is_multiple_of(part))
        .collect();
    let large = small.iter().rev().map(|part| number / part);
    let mut all: Vec<usize> = small.iter().copied().chain(large).collect();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::Axis;
    use std::collections::HashSet;

    #[test]
    fn every_factorization_comes_once() {
        for ranks in [1, 2, 6, 8, 12, 1024] {
            for spatial_rank in 1..=3 {
                let all = hybrids(ranks, spatial_rank);
                assert!(all.iter().all(|strategy| strategy.ranks() == ranks));
                let different: HashSet<_> = all.iter().collect();
                assert_eq!(different.len(), all.len());
                let first = [Axis::Depth, Axis::Height, Axis::Width];
                let unused = &first[..3 - spatial_rank];
                let is_flat = |axis: &Axis| all.iter().all(|s| s.extent(*axis) == 1);
                assert!(unused.iter().all(is_flat));
                // The pure data split has nothing to overlap, every other one comes twice.
                assert_eq!(all.iter().filter(|s| !s.overlap).count() * 2 + 1, all.len());
            }
        }
        // 2^10 over four axes: 13 over 3.
        assert_eq!(hybrids(1024, 3).len(), 2 * 286 - 1);
        let flat: Vec<String> = hybrids(4, 1).iter().map(Strategy::to_string).collect();
        let expected = [
            "data=4",
            "data=2,width=2",
            "data=2,width=2,overlap=off",
            "width=4",
            "width=4,overlap=off",
        ];
        assert_eq!(flat, expected);
    }

    #[test]
    fn shares_and_late_filters_are_tried_where_they_suit_the_model() {
        let graph = partita_graph::zoo::build("cosmoflow@128").unwrap();
        let texts: Vec<String> = candidates(&graph, 8, 4)
            .iter()
            .map(Strategy::to_string)
            .collect();
        for expected in [
            "data=4,filter=2",
            "data=4,channel=2",
            // Four outputs are too few for eight.
            "filter=8; fc3: C=-,F=-",
            "data=2,filter=2,channel=2",
            "data=4,depth=2; fc1..: F=depth",
            "data=2,depth=2,height=2; fc1..: F=depth+height",
            "depth=4,height=2; conv5..: D=-,H=-,F=depth+height; fc3: C=-,F=-",
        ] {
            assert!(texts.iter().any(|text| text == expected), "{texts:#?}");
        }
        let different: HashSet<_> = texts.iter().collect();
        assert_eq!(different.len(), texts.len());
        // A mini-batch of 4 is no reason to say more than once that 8 ranks cannot share it.
        assert!(texts.iter().filter(|text| text.contains("data=8")).count() == 1);
    }

    #[test]
    fn a_thousand_ranks_have_about_a_thousand_candidates() {
        let graph = partita_graph::zoo::build("cosmoflow@512").unwrap();
        let all = candidates(&graph, 1024, 64);
        assert!((600..1100).contains(&all.len()), "{}", all.len());
        assert!(all.iter().all(|strategy| strategy.ranks() == 1024));
    }

    #[test]
    fn divisors_are_all_and_ascending() {
        assert_eq!(divisors(12), [1, 2, 3, 4, 6, 12]);
        assert_eq!(divisors(16), [1, 2, 4, 8, 16]);
        assert_eq!(divisors(7), [1, 7]);
    }
}
