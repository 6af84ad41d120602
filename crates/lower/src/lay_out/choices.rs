//! What a strategy specifies for each layer.

use crate::strategy::{Halo, LayerDim, Recompute};
use crate::{LayerChoice, Strategy, StrategyError};
use partita_graph::{Graph, Node, Op};
use partita_space::{AxisList, nearest};

/// What the strategy specifies for each layer.
pub(super) fn choices(
    graph: &Graph,
    strategy: &Strategy,
) -> Result<Vec<[Option<AxisList>; 6]>, StrategyError> {
    let mut all = vec![[None; 6]; graph.nodes.len()];
    for choice in &strategy.layers {
        let layers = layers(graph, strategy, choice)?;
        let is_one = layers
            .iter()
            .all(|&id| graph.layer_start(layers[layers.len() - 1]) <= id);
        let is_single = layers.len() == 1;
        for id in layers {
            let is_alone = is_single || is_one && !graph.is_padding(id);
            let specified = &mut all[id];
            for (dim, axes) in LayerDim::ALL.into_iter().zip(choice.dims) {
                // Dims that a layer of a range does not have are ignored.
                let is_meant = is_alone || can_carry(&graph.nodes[id], dim);
                specified[dim as usize] = axes.filter(|_| is_meant).or(specified[dim as usize]);
            }
        }
    }
    Ok(all)
}

/// The layers of a choice, in the order of the model.
pub(crate) fn layers(
    graph: &Graph,
    strategy: &Strategy,
    choice: &LayerChoice,
) -> Result<Vec<usize>, StrategyError> {
    let unknown = |name: &str| StrategyError::UnknownLayer {
        strategy: strategy.to_string(),
        model: graph.name.clone(),
        asked: name.to_owned(),
        nearest: nearest(name, graph.layer_names())
            .unwrap_or_default()
            .to_owned(),
    };
    if choice.from.contains('*') && choice.from == choice.to {
        let is_meant = |id: &usize| matches(&choice.from, &graph.nodes[*id].name);
        let all: Vec<usize> = (0..graph.nodes.len()).filter(is_meant).collect();
        return if all.is_empty() {
            Err(unknown(&choice.from))
        } else {
            Ok(all)
        };
    }
    if choice.from.contains('*') || choice.to.contains('*') {
        return Err(StrategyError::StarInRange {
            strategy: strategy.to_string(),
            layers: choice.layers(),
        });
    }
    let find = |name: &str| graph.find(name).map(|id| id.0).ok_or_else(|| unknown(name));
    let from = if choice.from.is_empty() {
        0
    } else {
        graph.layer_start(find(&choice.from)?)
    };
    let last = if choice.to.is_empty() {
        graph.nodes.len() - 1
    } else {
        find(&choice.to)?
    };
    if last < from {
        return Err(StrategyError::Backwards {
            strategy: strategy.to_string(),
            from: choice.from.clone(),
            to: choice.to.clone(),
        });
    }
    Ok((from..=last).collect())
}

/// Whether a name matches a pattern, in which `*` stands for any letters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(tail) = name.strip_prefix(head) else {
        return false;
    };
    let starts = tail.char_indices().map(|(at, _)| at).chain([tail.len()]);
    starts.into_iter().any(|at| matches(rest, &tail[at..]))
}

/// The recomputation block of each layer. Input and loss are not recomputed.
pub(super) fn blocks(
    graph: &Graph,
    strategy: &Strategy,
) -> Result<Vec<Option<usize>>, StrategyError> {
    let mut blocks = vec![None; graph.nodes.len()];
    for (block, choice) in strategy.layers.iter().enumerate() {
        let Some(recompute) = choice.recompute else {
            continue;
        };
        let is_on = recompute == Recompute::On;
        for id in layers(graph, strategy, choice)? {
            if is_on && blocks[id].is_some() {
                return Err(StrategyError::TwoBlocks {
                    strategy: strategy.to_string(),
                    layer: graph.layer_name(id).to_owned(),
                });
            }
            let op = &graph.nodes[id].op;
            let again = is_on && op.loss().is_none() && !matches!(op, Op::Input | Op::Features);
            blocks[id] = again.then_some(block);
        }
    }
    Ok(blocks)
}

/// Whether each layer is recomputed selectively.
pub(super) fn selective(graph: &Graph, strategy: &Strategy) -> Result<Vec<bool>, StrategyError> {
    let mut all = vec![false; graph.nodes.len()];
    for choice in &strategy.layers {
        if let Some(recompute) = choice.recompute {
            for id in layers(graph, strategy, choice)? {
                all[id] = recompute == Recompute::Selective;
            }
        }
    }
    Ok(all)
}

/// The halo group of each layer, by the index of its choice.
pub(super) fn groups_of(
    graph: &Graph,
    strategy: &Strategy,
) -> Result<Vec<Option<usize>>, StrategyError> {
    let mut groups: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    for (number, choice) in strategy.layers.iter().enumerate() {
        let Some(halo) = choice.halo else { continue };
        for id in layers(graph, strategy, choice)? {
            if let (Halo::Grouped, Some(other)) = (halo, groups[id]) {
                let layers = |number: usize| strategy.layers[number].layers();
                return Err(StrategyError::TwoGroups {
                    strategy: strategy.to_string(),
                    layer: graph.layer_name(id).to_owned(),
                    first: layers(other),
                    second: layers(number),
                });
            }
            // The input is in no group.
            let is_meant =
                halo == Halo::Grouped && !matches!(graph.nodes[id].op, Op::Input | Op::Features);
            groups[id] = is_meant.then_some(number);
        }
    }
    Ok(groups)
}

/// Whether a dim of a layer can be split.
pub(super) fn can_carry(node: &Node, dim: LayerDim) -> bool {
    match (&node.op, dim) {
        // It has the distribution of the loss.
        (Op::AuxiliaryLoss { .. }, _) => false,
        (_, LayerDim::N) => true,
        (
            Op::Features
            | Op::Flatten
            | Op::Reshape { .. }
            | Op::Linear { .. }
            | Op::Attention { .. },
            LayerDim::D | LayerDim::H | LayerDim::W,
        ) => false,
        (_, LayerDim::D | LayerDim::H | LayerDim::W) => true,
        (
            Op::Input
            | Op::Features
            | Op::Flatten
            | Op::Softmax
            | Op::Concat
            | Op::Slice { .. }
            | Op::ChannelShuffle { .. }
            | Op::Embedding { .. }
            | Op::Loss(_),
            LayerDim::C,
        ) => false,
        (_, LayerDim::C) => true,
        (_, LayerDim::F) => node.op.has_weights(),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, name, is_meant) in [
            ("*.out", "encoder.1.self.out", true),
            ("*.out", "encoder.1.outer", false),
            ("encoder.*.self.*", "encoder.12.self.q", true),
            ("encoder.*.self.*", "encoder.12.forward.wide", false),
            ("*", "x", true),
            ("conv", "conv1", false),
        ] {
            assert_eq!(matches(pattern, name), is_meant, "{pattern} {name}");
        }
    }
}
