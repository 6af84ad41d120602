//! What follows from who reads whom, for nodes in topological order.

use crate::NodeId;

/// Who reads each node, each once, from what each node reads.
pub fn readers<'n>(inputs: impl ExactSizeIterator<Item = &'n [NodeId]>) -> Vec<Vec<NodeId>> {
    let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); inputs.len()];
    for (reader, inputs) in inputs.enumerate() {
        for input in inputs {
            if readers[input.0].last() != Some(&NodeId(reader)) {
                readers[input.0].push(NodeId(reader));
            }
        }
    }
    readers
}

/// Whether the last node depends on each node, itself included, from what each node reads.
pub fn needed_by_last<'n>(
    inputs: impl DoubleEndedIterator<Item = &'n [NodeId]> + ExactSizeIterator,
) -> Vec<bool> {
    let mut is_needed = vec![false; inputs.len()];
    if let Some(last) = is_needed.last_mut() {
        *last = true;
    }
    for (id, inputs) in inputs.enumerate().rev() {
        if is_needed[id] {
            inputs.iter().for_each(|input| is_needed[input.0] = true);
        }
    }
    is_needed
}
