//! Errors for splits that a layer cannot have.

use super::Layout;
use super::choices::can_carry;
use crate::StrategyError;
use crate::network::LayerId;
use crate::strategy::LayerDim;
use partita_graph::{Node, NodeId, Op, Resample};
use partita_space::AxisList;

impl Layout<'_> {
    pub(super) fn check_dims(&self, id: NodeId) -> Result<(), StrategyError> {
        let node = self.graph.node(id);
        for dim in LayerDim::ALL {
            let axes = self.specified(id, dim).unwrap_or_default();
            if !axes.is_empty() && !can_carry(node, dim) {
                return Err(StrategyError::Dim {
                    strategy: self.strategy.to_string(),
                    kind: kind(&node.op),
                    layer: self.name(id),
                    dim: dim.name(),
                    axes: axes.to_string(),
                    possible: possible(node),
                });
            }
        }
        Ok(())
    }

    pub(super) fn check_twice(&self, id: NodeId, lists: &[AxisList]) -> Result<(), StrategyError> {
        const NAMES: [&str; 7] = ["N", "D", "H", "W", "C", "F", "C"];
        for (at, list) in lists.iter().enumerate() {
            for (before, other) in lists[..at].iter().enumerate() {
                if let Some(axis) = list.iter().find(|&axis| other.has(axis)) {
                    return Err(StrategyError::AxisTwice {
                        strategy: self.strategy.to_string(),
                        layer: self.name(id),
                        axis: axis.name(),
                        first: NAMES[before],
                        second: NAMES[at],
                    });
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_extent(
        &self,
        id: NodeId,
        what: &str,
        extent: usize,
        axes: AxisList,
    ) -> Result<(), StrategyError> {
        let parts = self.mesh.parts(axes);
        if parts <= extent {
            return Ok(());
        }
        let name = self.name(id);
        Err(StrategyError::TooFine {
            strategy: self.strategy.to_string(),
            what: format!("the {what} of `{name}`"),
            extent,
            parts,
            layer: Some(Box::new(name)),
        })
    }

    pub(super) fn check_groups(
        &self,
        id: NodeId,
        groups: usize,
        shares: AxisList,
    ) -> Result<(), StrategyError> {
        let parts = self.mesh.parts(shares);
        if groups.is_multiple_of(parts) {
            return Ok(());
        }
        Err(StrategyError::Groups {
            strategy: self.strategy.to_string(),
            layer: self.name(id),
            groups,
            parts,
        })
    }

    /// Checks that channels are split by whole groups, whose statistics are those of one rank.
    fn check_norm_groups(
        &self,
        id: NodeId,
        groups: usize,
        parts: usize,
    ) -> Result<(), StrategyError> {
        if groups.is_multiple_of(parts) {
            return Ok(());
        }
        Err(StrategyError::NormGroups {
            strategy: self.strategy.to_string(),
            layer: self.name(id),
            groups,
            parts,
        })
    }

    /// Checks that channels of attention are split by whole heads, and those of a group norm by whole groups.
    pub(super) fn check_heads(&self, id: NodeId, axes: AxisList) -> Result<(), StrategyError> {
        let node = self.graph.node(id);
        let parts = self.mesh.parts(axes);
        if let Op::GroupNorm { groups, .. } = node.op {
            return groups.map_or(Ok(()), |groups| self.check_norm_groups(id, groups, parts));
        }
        let Op::Attention { heads, .. } = node.op else {
            return Ok(());
        };
        if heads.is_multiple_of(parts) {
            return Ok(());
        }
        let kind = node.name.rsplit('.').next().unwrap_or(&node.name);
        Err(StrategyError::Heads {
            strategy: self.strategy.to_string(),
            layer: self.name(id),
            all: if kind == node.name {
                kind.to_owned()
            } else {
                format!("*.{kind}")
            },
            heads,
            parts,
        })
    }

    /// Checks that no layer reads a tensor of its own halo group with periodic padding.
    pub(super) fn check_periodic(&self, id: NodeId, x: LayerId) -> Result<(), StrategyError> {
        let node = self.graph.node(id);
        let is_periodic = matches!(&node.op, Op::Convolution(convolution) if convolution.periodic);
        let (group, input) = (self.groups[id.0], &self.layers[x.0]);
        let (true, Some(number)) = (is_periodic && input.group == group, group) else {
            return Ok(());
        };
        Err(StrategyError::PeriodicInGroup {
            strategy: self.strategy.to_string(),
            layer: self.name(id),
            input: input.name.clone(),
            group: number,
        })
    }

    /// The name of the layer of a node.
    fn name(&self, id: NodeId) -> String {
        self.graph.layer_name(id.0).to_owned()
    }
}

pub(super) fn kind(op: &Op) -> &'static str {
    match op {
        Op::Input => "the input",
        Op::Features => "the features",
        Op::Convolution(_) => "the convolution",
        Op::TransposedConvolution(_) => "the transposed convolution",
        Op::Pool(_) => "the pooling",
        Op::Resample(Resample::Upsample { .. }) => "the upsampling",
        Op::Resample(Resample::AdaptiveAverage { .. }) => "the pooling",
        Op::Resample(Resample::Pad { .. }) => "the padding",
        Op::Resample(Resample::Resize { .. }) => "the resize",
        Op::Resample(Resample::Crop { .. }) => "the crop",
        Op::BatchNorm { .. } => "the batch norm",
        Op::LeakyRelu { .. } | Op::Prelu(_) | Op::Activation(_) => "the activation",
        Op::Softmax => "the softmax",
        Op::Linear { .. } => "the linear layer",
        Op::Dropout { .. } => "the dropout",
        Op::Flatten => "the flatten",
        Op::Reshape { .. } => "the reshape",
        Op::Add => "the sum",
        Op::Multiply => "the product",
        Op::Concat => "the concatenation",
        Op::Slice { .. } => "the slice",
        Op::ChannelShuffle { .. } => "the channel shuffle",
        Op::Embedding { .. } => "the embedding",
        Op::Positions => "the sum with positions",
        Op::PositionEmbedding { .. } => "the position embedding",
        Op::LayerNorm { .. } => "the layer norm",
        Op::GroupNorm { .. } => "the group norm",
        Op::Attention { .. } => "the attention",
        Op::Loss(_) => "the loss",
        Op::AuxiliaryLoss { .. } => "the auxiliary loss",
    }
}

fn possible(node: &Node) -> &'static str {
    match &node.op {
        Op::Convolution(_) | Op::TransposedConvolution(_) => "N, D, H, W, C and F",
        Op::Linear { .. } => "N, C and F",
        Op::Features | Op::Flatten => "N",
        Op::AuxiliaryLoss { .. } => "none, as it has the distribution of the loss",
        Op::Input
        | Op::Softmax
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Loss(_) => "N, D, H and W",
        Op::Embedding { .. } => "N, D, H, W and F",
        Op::Reshape { .. } | Op::Attention { .. } => "N and C",
        Op::Pool(_)
        | Op::Resample(_)
        | Op::BatchNorm { .. }
        | Op::LeakyRelu { .. }
        | Op::Prelu(_)
        | Op::Dropout { .. }
        | Op::Positions
        | Op::PositionEmbedding { .. }
        | Op::LayerNorm { .. }
        | Op::GroupNorm { .. }
        | Op::Activation(_)
        | Op::Add
        | Op::Multiply => "N, D, H, W and C",
    }
}
