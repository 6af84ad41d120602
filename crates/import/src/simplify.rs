//! Operations that several calls of a file make together.

use crate::network::{Network, Operation};
use std::collections::BTreeMap;

/// Puts one operation for those that are written as several.
///
/// Example: `view` to blocks of positions, `permute`, `view` to channels is [`Operation::PixelUnshuffle`].
pub(crate) fn simplify(network: &mut Network) {
    for index in 0..network.calls.len() {
        if let Some((last, operation)) = unshuffle(network, index) {
            let input = network.calls[index].inputs.first().cloned();
            let call = &mut network.calls[last];
            call.operation = Ok(operation);
            call.inputs = input.into_iter().collect();
        }
    }
}

/// The last of the calls that begin at `index` and move blocks of positions to channels.
fn unshuffle(network: &Network, index: usize) -> Option<(usize, Operation)> {
    let call = &network.calls[index];
    let Ok(Operation::Reshape) = &call.operation else {
        return None;
    };
    let (from, to) = (
        network.shape(call.inputs.first()?.as_ref()?),
        network.shape(call.outputs.first()?),
    );
    let rank = from.len().checked_sub(2).filter(|&rank| rank > 0)?;
    let &factor = to.get(3)?;
    let mut blocks = vec![from[0], from[1]];
    blocks.extend(
        from[2..]
            .iter()
            .flat_map(|&extent| [extent / factor.max(1), factor]),
    );
    let outer = (0..rank).map(|dim| 2 + 2 * dim);
    let inner = (0..rank).map(|dim| 3 + 2 * dim);
    if factor < 2 || to != blocks {
        return None;
    }
    let permuted = next(network, index)?;
    let Ok(Operation::Permute { order }) = &network.calls[permuted].operation else {
        return None;
    };
    let all = |by_block: bool| -> Vec<usize> {
        let (first, last) = if by_block {
            (None, Some(1))
        } else {
            (Some(1), None)
        };
        let channels = first.into_iter().chain(inner.clone()).chain(last);
        [0].into_iter()
            .chain(channels)
            .chain(outer.clone())
            .collect()
    };
    let by_block = *order == all(true);
    if !by_block && *order != all(false) {
        return None;
    }
    let last = next(network, permuted)?;
    let call = &network.calls[last];
    let mut joined = vec![
        from[0],
        from[1].checked_mul(factor.checked_pow(rank as u32)?)?,
    ];
    joined.extend(from[2..].iter().map(|&extent| extent / factor));
    let is_joined = network.shape(call.outputs.first()?) == joined;
    (call.operation == Ok(Operation::Reshape) && is_joined)
        .then_some((last, Operation::PixelUnshuffle { factor, by_block }))
}

/// The only call that reads the output of another, but for those that change nothing.
fn next(network: &Network, index: usize) -> Option<usize> {
    let output = network.calls[index].outputs.first()?;
    let mut readers: BTreeMap<usize, &Operation> = BTreeMap::new();
    for (at, call) in network.calls.iter().enumerate() {
        if call.inputs.iter().flatten().any(|name| name == output) {
            readers.insert(at, call.operation.as_ref().ok()?);
        }
    }
    match readers.into_iter().collect::<Vec<_>>()[..] {
        [(at, Operation::Identity)] => next(network, at),
        [(at, _)] if !network.outputs.contains(output) => Some(at),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Call;

    fn call(operation: Operation, input: &str, output: &str) -> Call {
        Call {
            operator: String::new(),
            operation: Ok(operation),
            module: String::new(),
            source: None,
            inputs: vec![Some(input.to_owned())],
            outputs: vec![output.to_owned()],
        }
    }

    fn moved(order: &[usize]) -> Network {
        let order = order.to_vec();
        let shapes = [
            ("x", vec![2, 3, 8, 4]),
            ("a", vec![2, 3, 4, 2, 2, 2]),
            ("d", vec![2, 12, 4, 2]),
        ];
        let mut network = Network {
            calls: vec![
                call(Operation::Reshape, "x", "a"),
                call(Operation::Permute { order }, "a", "b"),
                call(Operation::Identity, "b", "c"),
                call(Operation::Reshape, "c", "d"),
            ],
            outputs: vec!["d".to_owned()],
            shapes: shapes.map(|(name, sizes)| (name.to_owned(), sizes)).into(),
            ..Network::default()
        };
        simplify(&mut network);
        network
    }

    #[test]
    fn blocks_that_become_channels_are_one_operation() {
        for (order, by_block) in [([0, 1, 3, 5, 2, 4], false), ([0, 3, 5, 1, 2, 4], true)] {
            let network = moved(&order);
            assert_eq!(network.needed("d"), [3]);
            let factor = 2;
            let operation = Operation::PixelUnshuffle { factor, by_block };
            assert_eq!(network.calls[3].operation, Ok(operation));
            assert_eq!(network.calls[3].inputs, [Some("x".to_owned())]);
        }
        let network = moved(&[0, 5, 3, 1, 2, 4]);
        assert_eq!(network.calls[3].operation, Ok(Operation::Reshape));
    }
}
