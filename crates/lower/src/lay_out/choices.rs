//! What a strategy says of each layer.

use crate::strategy::{Halo, LayerDim};
use crate::{LayerChoice, Strategy, StrategyError};
use partita_graph::{Graph, Node, Op, nearest};
use partita_space::AxisList;
use std::ops::Range;

/// What the strategy says of each layer.
pub(super) fn choices(
    graph: &Graph,
    strategy: &Strategy,
) -> Result<Vec<[Option<AxisList>; 6]>, StrategyError> {
    let mut all = vec![[None; 6]; graph.nodes.len()];
    for choice in &strategy.layers {
        let range = range(graph, strategy, choice)?;
        let alone = range.len() == 1;
        for id in range {
            let said = &mut all[id];
            for (dim, axes) in LayerDim::ALL.into_iter().zip(choice.dims) {
                // Of a range, what a layer does not have is not meant for it.
                let is_meant = alone || can_carry(&graph.nodes[id], dim);
                said[dim as usize] = axes.filter(|_| is_meant).or(said[dim as usize]);
            }
        }
    }
    Ok(all)
}

/// The layers of which something is said.
pub(crate) fn range(
    graph: &Graph,
    strategy: &Strategy,
    choice: &LayerChoice,
) -> Result<Range<usize>, StrategyError> {
    let find = |name: &str| {
        let known = graph.find(name).map(|id| id.0);
        known.ok_or_else(|| {
            let names = graph.nodes.iter().map(|node| node.name.as_str());
            StrategyError::UnknownLayer {
                strategy: strategy.to_string(),
                model: graph.name.clone(),
                asked: name.to_owned(),
                nearest: nearest(name, names).unwrap_or_default().to_owned(),
            }
        })
    };
    let from = find(&choice.from)?;
    let last = match choice.to.is_empty() {
        true => graph.nodes.len() - 1,
        false => find(&choice.to)?,
    };
    if last < from {
        return Err(StrategyError::Backwards {
            strategy: strategy.to_string(),
            from: choice.from.clone(),
            to: choice.to.clone(),
        });
    }
    Ok(from..last + 1)
}

/// The block with which each layer is computed again. The sample is kept, and the loss comes once.
pub(super) fn blocks(
    graph: &Graph,
    strategy: &Strategy,
) -> Result<Vec<Option<usize>>, StrategyError> {
    let mut blocks = vec![None; graph.nodes.len()];
    for (block, choice) in strategy.layers.iter().enumerate() {
        let Some(is_on) = choice.recompute else {
            continue;
        };
        for id in range(graph, strategy, choice)? {
            if is_on && blocks[id].is_some() {
                return Err(StrategyError::TwoBlocks {
                    strategy: strategy.to_string(),
                    layer: graph.nodes[id].name.clone(),
                });
            }
            let op = &graph.nodes[id].op;
            let again = is_on && op.loss().is_none() && *op != Op::Input;
            blocks[id] = again.then_some(block);
        }
    }
    Ok(blocks)
}

/// The group of each layer, by the number of the choice that makes it.
pub(super) fn groups_of(
    graph: &Graph,
    strategy: &Strategy,
) -> Result<Vec<Option<usize>>, StrategyError> {
    let mut groups: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    for (number, choice) in strategy.layers.iter().enumerate() {
        let Some(halo) = choice.halo else { continue };
        for id in range(graph, strategy, choice)? {
            if let (Halo::Grouped, Some(other)) = (halo, groups[id]) {
                let layers = |number: usize| strategy.layers[number].layers();
                return Err(StrategyError::TwoGroups {
                    strategy: strategy.to_string(),
                    layer: graph.nodes[id].name.clone(),
                    first: layers(other),
                    second: layers(number),
                });
            }
            // Samples are read once.
            let is_meant = halo == Halo::Grouped && !matches!(graph.nodes[id].op, Op::Input);
            groups[id] = is_meant.then_some(number);
        }
    }
    Ok(groups)
}

/// Whether a dim of a layer can be split.
pub(super) fn can_carry(node: &Node, dim: LayerDim) -> bool {
    match (&node.op, dim) {
        // It lies as the loss does.
        (Op::AuxiliaryLoss { .. }, _) => false,
        (_, LayerDim::N) => true,
        (
            Op::Flatten | Op::Linear { .. } | Op::Attention { .. },
            LayerDim::D | LayerDim::H | LayerDim::W,
        ) => false,
        (_, LayerDim::D | LayerDim::H | LayerDim::W) => true,
        (
            Op::Input
            | Op::Flatten
            | Op::Concat
            | Op::Slice { .. }
            | Op::Embedding { .. }
            | Op::Loss(_),
            LayerDim::C,
        ) => false,
        (_, LayerDim::C) => true,
        (_, LayerDim::F) => node.op.has_weights(),
    }
}
