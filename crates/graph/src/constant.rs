//! Parameters that are always as they start: scales and offsets of norms without them, and the weight of a pixel shuffle.

use crate::{
    Graph, GraphError, Initialization, Node, Op, ParameterRole, ParameterSource, Shape,
    TransposedConvolution,
};
use partita_space::Window;

/// The transposed convolution that shuffles this number of channels into pixels.
pub(crate) fn shuffle(channels: usize, factors: [usize; 3]) -> TransposedConvolution {
    let taps = factors.iter().copied().fold(1, usize::saturating_mul);
    let filters = channels.checked_div(taps).unwrap_or(1).max(1);
    TransposedConvolution {
        filters,
        window: factors.map(Window::tile),
        output_padding: [0; 3],
        groups: filters,
        bias: false,
    }
}

/// The factors of a pixel shuffle; none if the node is another operation.
pub(crate) fn shuffle_factors(graph: &Graph, node: &Node) -> Option<[usize; 3]> {
    let Op::TransposedConvolution(convolution) = &node.op else {
        return None;
    };
    let weight = graph.parameter(*node.parameters.first()?);
    let factors = convolution.window.map(|window| window.kernel);
    weight.is_constant.then_some(factors)
}

/// How a parameter is that is always as it starts.
pub(crate) fn constant_initialization(role: ParameterRole) -> Initialization {
    match role {
        ParameterRole::Weight => Initialization::Shuffle,
        _ => role.default_initialization(),
    }
}

/// A norm lacks its scale and its offset, a layer norm its offset alone, too. A pixel shuffle has a fixed weight.
pub(crate) fn check_constant(
    node: &str,
    op: &Op,
    sources: &[(ParameterRole, ParameterSource)],
    input: Shape,
) -> Result<(), GraphError> {
    use ParameterRole::{Beta, Gamma, Weight};
    let is_constant = |role: ParameterRole| {
        let mut of_role = sources.iter().filter(|(other, _)| *other == role);
        of_role
            .next()
            .is_some_and(|(_, source)| *source == ParameterSource::Constant)
    };
    if is_constant(Weight)
        && let Op::TransposedConvolution(convolution) = op
    {
        return check_shuffle(node, convolution, input.channels);
    }
    let mut asked = sources
        .iter()
        .map(|&(role, _)| role)
        .filter(|&role| is_constant(role));
    let ok = |role: ParameterRole| match role {
        Gamma => is_constant(Beta),
        Beta => is_constant(Gamma) || matches!(op, Op::LayerNorm { .. }),
        _ => false,
    };
    match asked.find(|&role| !ok(role)) {
        None => Ok(()),
        Some(role) => Err(GraphError::NotConstant {
            node: node.to_owned(),
            role: role.name(),
        }),
    }
}

/// Each channel of the input is a position of a block of one channel of the output.
fn check_shuffle(
    node: &str,
    convolution: &TransposedConvolution,
    channels: usize,
) -> Result<(), GraphError> {
    let factors = convolution.window.map(|window| window.kernel);
    if *convolution != shuffle(channels, factors) {
        return Err(GraphError::NotConstant {
            node: node.to_owned(),
            role: ParameterRole::Weight.name(),
        });
    }
    let block = factors.iter().product();
    if channels.is_multiple_of(block) {
        return Ok(());
    }
    Err(GraphError::ShuffleChannels {
        node: node.to_owned(),
        channels,
        block,
        nearest: channels.next_multiple_of(block),
    })
}
