//! Exact counts of a model per sample: parameters, flops and memory.

use crate::sizes::flops_per_sample;
use crate::{Graph, Node, Op, Parameter, ParameterId, Shape};
use partita_space::{Bytes, Flops};

/// A value and its gradient in single precision.
const BYTES_PER_ELEMENT: u64 = 8;

/// What one layer holds and computes, per sample.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerCount {
    /// Name of the node.
    pub name: String,
    /// Word of the text form for its operation.
    pub operation: &'static str,
    /// Shape of its output.
    pub shape: Shape,
    /// Trained parameters; a shared one counts at the first layer that uses it.
    pub parameters: u64,
    /// Multiplications and additions with weights, or of attention, in the forward pass; 0 but for
    /// convolutions, linear layers and attention.
    pub forward_flops: Flops,
    /// The same for forward and backward together, as a training step computes them.
    pub executed_flops: Flops,
    /// Its part of [`Counts::memory_bytes_per_sample`].
    pub memory_bytes: Bytes,
}

/// Totals of a model, per sample.
///
/// Source: Oyama et al., "The Case for Strong Scaling in Deep Learning: Training Large 3D CNNs with
/// Hybrid Parallelism", table 1, whose flops are those of the convolutions alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    /// One row per node, in order.
    pub layers: Vec<LayerCount>,
    /// Trained parameters, each once; running statistics are not among them.
    pub parameters: u64,
    /// Forward pass of the convolutions, `2 * K * C / groups * F * outputs` each, of transposed ones
    /// with the inputs in place of the outputs: the published convention, which leaves out linear
    /// layers.
    pub forward_flops: Flops,
    /// Forward pass of the linear layers, `2 * C * F` each.
    pub linear_flops: Flops,
    /// Forward pass of attention, `4 * C` per pair of positions, masked or not.
    pub attention_flops: Flops,
    /// The published convention, `3 * forward_flops`.
    pub training_flops: Flops,
    /// What a training step computes in convolutions and linear layers: forward, backward-filter,
    /// and backward-data wherever a parameter lies before the layer. In attention: forward, and
    /// backward five products of matrices where that has two, and two more for the gradient of a bias.
    pub executed_flops: Flops,
    /// Value and gradient in single precision of the input, counted twice, and of every layer
    /// output before the flatten and the linear layers.
    pub memory_bytes_per_sample: Bytes,
}

/// Counts parameters, flops and bytes of a model.
///
/// Units: per sample. Errors: none; a [`Graph`] is checked.
pub fn count(graph: &Graph) -> Counts {
    let needs_gradient = graph.needs_gradient();
    let in_head = head(graph);
    let mut is_counted = vec![false; graph.parameters.len()];
    let trains = |node: &Node| {
        let weight = node.parameters.first().map(|&id| graph.parameter(id));
        weight.is_some_and(Parameter::is_trained)
    };
    let layer = |(i, node): (usize, &Node)| {
        let forward = forward_flops(graph, node);
        let has_backward_data = node
            .inputs
            .first()
            .is_some_and(|input| needs_gradient[input.0]);
        LayerCount {
            name: node.name.clone(),
            operation: node.op.keyword(),
            shape: node.shape,
            parameters: own_parameters(graph, node, &mut is_counted),
            forward_flops: forward,
            executed_flops: executed_flops(&node.op, forward, trains(node), has_backward_data),
            memory_bytes: memory_bytes(node, in_head[i]),
        }
    };
    let layers: Vec<LayerCount> = graph.nodes.iter().enumerate().map(layer).collect();
    let sum_of = |wanted: fn(&Op) -> bool| -> Flops {
        let rows = graph
            .nodes
            .iter()
            .zip(&layers)
            .filter(|(node, _)| wanted(&node.op));
        rows.map(|(_, layer)| layer.forward_flops).sum()
    };
    let forward_flops =
        sum_of(|op| matches!(op, Op::Convolution(_) | Op::TransposedConvolution(_)));
    Counts {
        parameters: layers.iter().map(|layer| layer.parameters).sum(),
        forward_flops,
        linear_flops: sum_of(|op| matches!(op, Op::Linear { .. })),
        attention_flops: sum_of(|op| matches!(op, Op::Attention { .. })),
        training_flops: Flops(3 * forward_flops.0),
        executed_flops: layers.iter().map(|layer| layer.executed_flops).sum(),
        memory_bytes_per_sample: layers.iter().map(|layer| layer.memory_bytes).sum(),
        layers,
    }
}

fn forward_flops(graph: &Graph, node: &Node) -> Flops {
    let inputs: Vec<Shape> = node.inputs.iter().map(|&id| graph.node(id).shape).collect();
    let flops = flops_per_sample(&node.op, &inputs, node.shape);
    // The builder bounds the flops of a layer far below 2^64.
    Flops(flops as u64)
}

fn executed_flops(op: &Op, forward: Flops, trains: bool, has_backward_data: bool) -> Flops {
    let (times, of) = match (op, has_backward_data) {
        // Scores are computed again, and once more for the gradient of a bias.
        (Op::Attention { .. }, has_data) => {
            (2 + 5 * u64::from(has_data) + 2 * u64::from(trains), 2)
        }
        (_, has_data) => (1 + u64::from(trains) + u64::from(has_data), 1),
    };
    Flops(forward.0 / of * times)
}

fn own_parameters(graph: &Graph, node: &Node, is_counted: &mut [bool]) -> u64 {
    let mut count = |&id: &ParameterId| {
        let parameter = graph.parameter(id);
        let is_first = !std::mem::replace(&mut is_counted[id.0], true);
        if is_first && parameter.role.is_trained() && !parameter.is_constant {
            parameter.volume() as u64
        } else {
            0
        }
    };
    node.parameters.iter().map(&mut count).sum()
}

/// Per node, whether it is a flatten or linear layer or comes after one.
fn head(graph: &Graph) -> Vec<bool> {
    let mut head: Vec<bool> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let begins = matches!(node.op, Op::Flatten | Op::Linear { .. });
        head.push(begins || node.inputs.iter().any(|input| head[input.0]));
    }
    head
}

fn memory_bytes(node: &Node, in_head: bool) -> Bytes {
    let times = match node.op {
        Op::Input | Op::Features => 2,
        Op::Loss(_) | Op::AuxiliaryLoss { .. } => 0,
        Op::Flatten | Op::Linear { .. } => 0,
        Op::Convolution(_)
        | Op::TransposedConvolution(_)
        | Op::Pool(_)
        | Op::Resample(_)
        | Op::BatchNorm { .. }
        | Op::LeakyRelu { .. }
        | Op::Prelu(_)
        | Op::Softmax
        | Op::Dropout { .. }
        | Op::Add
        | Op::Multiply
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Embedding { .. }
        | Op::Positions
        | Op::PositionEmbedding { .. }
        | Op::Reshape { .. }
        | Op::LayerNorm { .. }
        | Op::GroupNorm { .. }
        | Op::Activation(_)
        | Op::Attention { .. } => u64::from(!in_head),
    };
    Bytes(BYTES_PER_ELEMENT * times * node.shape.volume() as u64)
}
