//! Nodes that nothing reads.

use crate::{Graph, GraphError, Node, NodeId};

/// The nodes that nothing reads, without the last one and losses, and what a builder says of each.
pub(crate) fn unused(graph: &Graph) -> Vec<(NodeId, GraphError)> {
    let nodes = &graph.nodes;
    let mut is_read = vec![false; nodes.len()];
    for node in nodes {
        node.inputs.iter().for_each(|input| is_read[input.0] = true);
    }
    let reads = |node: &&Node| !node.inputs.is_empty();
    let reader = |i: usize| nodes[i + 1..].iter().find(reads).unwrap_or(&nodes[i]);
    let pairs = nodes.windows(2).enumerate();
    let unused = pairs.filter(|(i, pair)| !is_read[*i] && pair[0].op.loss().is_none());
    let refused = |(i, pair): (usize, &[Node])| {
        let error = GraphError::Unused {
            node: pair[0].name.clone(),
            nearest: reader(i).name.clone(),
        };
        (NodeId(i), error)
    };
    unused.map(refused).collect()
}
