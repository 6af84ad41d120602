//! Traversals of nodes in topological order, with an index type such as [`crate::NodeId`].

/// The readers of each node, each once, from the inputs of all nodes.
pub fn readers<'n, Id>(inputs: impl ExactSizeIterator<Item = &'n [Id]>) -> Vec<Vec<Id>>
where
    Id: Copy + PartialEq + From<usize> + Into<usize> + 'n,
{
    let mut readers: Vec<Vec<Id>> = vec![Vec::new(); inputs.len()];
    for (reader, inputs) in inputs.enumerate() {
        let reader = Id::from(reader);
        for &input in inputs {
            let known: &mut Vec<Id> = &mut readers[Into::<usize>::into(input)];
            if known.last() != Some(&reader) {
                known.push(reader);
            }
        }
    }
    readers
}

/// Whether the last node depends on each node, itself included, from the inputs of all nodes.
pub fn needed_by_last<'n, Id>(
    inputs: impl DoubleEndedIterator<Item = &'n [Id]> + ExactSizeIterator,
) -> Vec<bool>
where
    Id: Copy + Into<usize> + 'n,
{
    let mut is_needed = vec![false; inputs.len()];
    if let Some(last) = is_needed.last_mut() {
        *last = true;
    }
    for (id, inputs) in inputs.enumerate().rev() {
        if is_needed[id] {
            for &input in inputs {
                is_needed[Into::<usize>::into(input)] = true;
            }
        }
    }
    is_needed
}
