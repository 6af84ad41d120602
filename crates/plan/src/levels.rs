//! The levels of a model, and strategies that split them over different spatial axes.
//!
//! A level has the layers of one resolution, in a U-Net those on the way down and up, which skip connections join. It may
//! leave a spatial axis, whose ranks then repeat it, or split its filters or channels over the axis. Example:
//! `depth=8,height=8; down5.conv1..up2.deconv: D=-,F=depth`.

use crate::candidates::SPATIAL;
use crate::moves::AxisTarget;
use partita_graph::{Graph, NodeId, Op};
use partita_lower::{LayerChoice, LayerDim, Strategy};
use partita_space::{Axis, AxisList};
use std::cmp::Reverse;
use std::ops::Range;

/// What the data axis, and each spatial axis of extent above 1, split.
pub(crate) type LevelAssignment = Vec<AxisTarget>;

/// What a spatial axis may split below the first level.
const TARGETS: [AxisTarget; 4] = [
    AxisTarget::Default,
    AxisTarget::Repeated,
    AxisTarget::Filters,
    AxisTarget::Channels,
];

/// Most ranks of the axes that split the same dim, or repeat layers: collectives over more ranks cost more than they save.
const RANKS_MAX: usize = 64;

/// Layers from a downsampling on, up to the upsampling back or to the end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeepLayers {
    pub range: Range<usize>,
    /// The tensors that they read of those before.
    pub enters: Vec<NodeId>,
    /// Their tensor that others read; none at the end of the model.
    pub leaves: Option<NodeId>,
    /// The transposed convolution after them, which reads it.
    pub upsampling: Option<NodeId>,
}

impl DeepLayers {
    /// The transposed convolution after them, where it is split as they are: with filters or channels.
    pub fn own_upsampling(&self, assignment: &LevelAssignment) -> Option<NodeId> {
        self.upsampling.filter(|_| splits_weights(assignment))
    }
}

/// The levels of a model on a mesh.
pub(crate) struct Levels<'a> {
    pub graph: &'a Graph,
    pub mesh: Strategy,
    /// The spatial axes of extent above 1.
    pub axes: Vec<Axis>,
    /// The layers below the first level, the second, and so on.
    pub deep: Vec<DeepLayers>,
}

impl<'a> Levels<'a> {
    /// None where there is nothing to choose.
    pub fn new(graph: &'a Graph, mesh: &Strategy) -> Option<Self> {
        let wide = SPATIAL.into_iter();
        let axes: Vec<Axis> = wide.filter(|&axis| mesh.extent(axis) > 1).collect();
        let deep = deep_layers(graph);
        (!axes.is_empty() && !deep.is_empty()).then(|| Self {
            graph,
            mesh: mesh.clone(),
            axes,
            deep,
        })
    }

    /// All assignments of few ranks, the default first.
    pub fn assignments(&self) -> Vec<LevelAssignment> {
        let mut all = vec![vec![AxisTarget::Default]];
        for _ in &self.axes {
            let with = |one: &LevelAssignment| TARGETS.map(|target| [&one[..], &[target]].concat());
            all = all.iter().flat_map(with).collect();
        }
        let is_narrow = |one: &LevelAssignment| {
            let ranks = TARGETS[1..]
                .iter()
                .map(|target| self.ranks(one, &[*target]));
            ranks.max() <= Some(RANKS_MAX)
        };
        all.retain(is_narrow);
        all
    }

    /// Number of ranks along the axes with one of these targets.
    pub fn ranks(&self, assignment: &LevelAssignment, targets: &[AxisTarget]) -> usize {
        let all = self.axes.iter().zip(&assignment[1..]);
        let own = all.filter(|(_, target)| targets.contains(target));
        own.map(|(&axis, _)| self.mesh.extent(axis)).product()
    }

    /// The outermost level below which an assignment fits all layers, if there is one.
    pub fn first_that_fits(&self, assignment: &LevelAssignment, batch: usize) -> Option<usize> {
        (0..self.deep.len()).find(|&first| self.fits(first, assignment, batch))
    }

    fn fits(&self, first: usize, assignment: &LevelAssignment, batch: usize) -> bool {
        let strategy = self.strategy(&self.below(first, assignment));
        strategy.check(self.graph, batch).is_ok()
    }

    /// Into how many parts the weights of the deepest layers can be split.
    pub fn parts_max(&self, batch: usize) -> usize {
        let parts =
            |one: &LevelAssignment| self.ranks(one, &[AxisTarget::Filters, AxisTarget::Channels]);
        let mut all = self.assignments();
        all.sort_by_key(|one| Reverse(parts(one)));
        let last = self.deep.len() - 1;
        let best = all.iter().find(|one| self.fits(last, one, batch));
        best.map_or(1, parts)
    }

    /// An assignment for all levels below one, and the default for the others.
    pub fn below(&self, first: usize, assignment: &LevelAssignment) -> Vec<LevelAssignment> {
        let default = vec![AxisTarget::Default; assignment.len()];
        let of = |level: usize| if level > first { assignment } else { &default };
        (0..=self.deep.len()).map(of).cloned().collect()
    }

    /// The strategy with an assignment for each level. Where that of a level differs from the one around it, an entry holds
    /// for it and all below.
    pub fn strategy(&self, path: &[LevelAssignment]) -> Strategy {
        let mut strategy = self.mesh.clone();
        for (pair, deep) in path.windows(2).zip(&self.deep) {
            let (outer, inner) = (&pair[0], &pair[1]);
            if outer == inner {
                continue;
            }
            let end = deep
                .own_upsampling(inner)
                .map_or(deep.range.end, |id| id.0 + 1);
            strategy.layers.push(LayerChoice {
                from: self.graph.layer_name(deep.range.start).to_owned(),
                to: if end == self.graph.nodes.len() {
                    String::new()
                } else {
                    self.graph.nodes[end - 1].name.clone()
                },
                dims: LayerDim::ALL.map(|dim| self.changed(dim, outer, inner)),
                ..LayerChoice::default()
            });
        }
        strategy
    }

    /// The axes that split a dim under the second assignment, if they differ from those under the first.
    fn changed(
        &self,
        dim: LayerDim,
        outer: &LevelAssignment,
        inner: &LevelAssignment,
    ) -> Option<AxisList> {
        let is_own = |axis: Axis, target: AxisTarget| match dim {
            LayerDim::N => false,
            LayerDim::C => target == AxisTarget::Channels,
            LayerDim::F => target == AxisTarget::Filters,
            LayerDim::D | LayerDim::H | LayerDim::W => {
                target == AxisTarget::Default && axis == dim.axis()
            }
        };
        let [outer, inner] = [outer, inner].map(|assignment| {
            let all = self.axes.iter().zip(&assignment[1..]);
            let own = all.filter(|(axis, target)| is_own(**axis, **target));
            AxisList::of(own.map(|(&axis, _)| axis))
        });
        (outer != inner).then_some(inner)
    }
}

/// Whether an axis splits filters or channels.
pub(crate) fn splits_weights(assignment: &LevelAssignment) -> bool {
    let mut targets = assignment.iter();
    targets.any(|target| matches!(target, AxisTarget::Filters | AxisTarget::Channels))
}

/// The deep layers from each downsampling on, the outermost first. Each are within those before.
fn deep_layers(graph: &Graph) -> Vec<DeepLayers> {
    let positions = |at: usize| {
        // The padding of a convolution is of its level.
        let node = &graph.nodes[at + usize::from(graph.is_padding(at))];
        node.shape.extent.iter().product::<usize>()
    };
    let is_layer = |at: &usize| !is_loss(&graph.nodes[*at].op);
    let all: Vec<usize> = (0..graph.nodes.len())
        .filter(is_layer)
        .map(positions)
        .collect();
    let mut sizes = all.clone();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();
    let mut found: Vec<DeepLayers> = Vec::new();
    for &positions_max in sizes.iter().skip(1) {
        let deep = deep_layers_of(graph, &positions, positions_max);
        let is_new = |one: &DeepLayers| found.last().is_none_or(|last| last.range != one.range);
        found.extend(deep.filter(is_new));
    }
    found
}

/// The layers within a number of positions that follow one another up to the last such, if a single tensor leaves them and
/// they do not read the sample. They begin with a layer with weights that reads what is as small.
fn deep_layers_of(
    graph: &Graph,
    positions: &dyn Fn(usize) -> usize,
    positions_max: usize,
) -> Option<DeepLayers> {
    let nodes = graph.nodes.len();
    let is_loss = |at: usize| is_loss(&graph.nodes[at].op);
    let is_deep = |at: usize| !is_loss(at) && positions(at) <= positions_max;
    let first = (0..nodes).find(|&at| is_deep(at))?;
    let last = (0..nodes).rfind(|&at| is_deep(at))?;
    let begins = |at: &usize| {
        let weighted = &graph.nodes[at + usize::from(graph.is_padding(*at))].op;
        let mut inputs = graph.nodes[*at].inputs.iter();
        weighted.has_weights() && graph.layer_start(*at) == *at && inputs.all(|id| is_deep(id.0))
    };
    // Branches of a reduction, as of AmoebaNet, alternate between large and small tensors.
    let is_large = |at: &usize| !is_deep(*at) && !is_loss(*at);
    let first = (first..=last).rfind(is_large).map_or(first, |at| at + 1);
    let start = (first..=last).find(begins)?;
    let end = if (last + 1..nodes).all(is_loss) {
        nodes
    } else {
        last + 1
    };
    let reads = |range: Range<usize>, of: Range<usize>| {
        let inputs = graph.nodes[range].iter().flat_map(|node| &node.inputs);
        let mut read: Vec<NodeId> = inputs.filter(|id| of.contains(&id.0)).copied().collect();
        read.sort_unstable();
        read.dedup();
        read
    };
    let (enters, leaves) = (reads(start..end, 0..start), reads(end..nodes, start..end));
    let reads_sample = |id: &NodeId| graph.node(*id).inputs.is_empty();
    if leaves.len() > 1 || enters.iter().any(reads_sample) {
        return None;
    }
    let leaves = leaves.first().copied();
    let is_upsampling = |id: &NodeId| {
        let node = graph.nodes.get(id.0);
        node.is_some_and(|node| {
            matches!(node.op, Op::TransposedConvolution(_)) && leaves.as_slice() == node.inputs
        })
    };
    Some(DeepLayers {
        range: start..end,
        enters,
        leaves,
        upsampling: Some(NodeId(end)).filter(is_upsampling),
    })
}

fn is_loss(op: &Op) -> bool {
    matches!(op, Op::Loss(_) | Op::AuxiliaryLoss { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_graph::zoo;

    fn names(model: &str) -> Vec<String> {
        let graph = zoo::build(model).unwrap();
        let name = |at: usize| graph.nodes[at].name.as_str();
        let all = deep_layers(&graph);
        let text = |one: &DeepLayers| {
            let up = one.upsampling.map_or("", |id| name(id.0));
            format!(
                "{}..{} {up}",
                name(one.range.start),
                name(one.range.end - 1)
            )
        };
        all.iter().map(text).collect()
    }

    #[test]
    fn levels_of_a_unet_are_within_each_other() {
        let expected = [
            "down2.conv1..up2.relu2 up3.deconv",
            "down3.conv1..up1.relu2 up2.deconv",
            "bottom.conv1..bottom.relu2 up1.deconv",
        ];
        assert_eq!(names("unet3d@64"), expected);
    }

    #[test]
    fn levels_of_other_networks_go_to_the_end() {
        let all = names("cosmoflow@64");
        assert!(all.len() > 3, "{all:?}");
        assert!(all.iter().all(|one| one.ends_with("..loss ")), "{all:?}");
    }

    /// Shortcuts read larger tensors than the layers beside them, and cells of AmoebaNet those of two cells before.
    #[test]
    fn several_tensors_may_enter_a_level() {
        let last = |model: &str| names(model).pop().unwrap();
        assert_eq!(last("resnet50@512"), "fc..loss ");
        let all = names("resnet50@512");
        assert!(all.contains(&"layer4.0.conv3..loss ".to_owned()), "{all:?}");
        let all = names("amoebanetd-18-416@512");
        let cell = "cell5_normal1.operations.0.module.1..loss ".to_owned();
        assert!(all.contains(&cell), "{all:?}");
    }
}
