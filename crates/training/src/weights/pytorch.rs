//! Names and axis order of PyTorch's state dicts.
//!
//! | parameter | Partita | PyTorch |
//! |---|---|---|
//! | convolution | (Kd, Kh, Kw, C / groups, F) | (F, C / groups, kernel) |
//! | transposed convolution | (Kd, Kh, Kw, F / groups, C) | (C, F / groups, kernel) |
//! | linear | (1, 1, 1, C, F) | (F, C) |
//! | embedding | (1, 1, 1, rows, channels) | (rows, channels) |
//! | bias of attention scores | (1, 1, 1, rows, heads) | (rows, heads) by distances, (heads, rows) by pairs |
//! | vectors | (1, 1, 1, 1, F) | (F) |
//!
//! A flatten numbers features (D, H, W, C) here and (C, D, H, W) in PyTorch, which permutes the columns of the linear
//! layer that reads them, alone or joined with others by a concatenation.
//! Source: PyTorch's documentation of `torch.nn.Conv3d`, `ConvTranspose3d`, `Linear`, `Embedding`, `BatchNorm3d`
//! and `flatten`, section "Variables" each.

use partita_graph::{Graph, Node, NodeId, Op, Parameter, ParameterRole, ScoreBias, Shape};
use partita_import::state_dict_role;
use std::collections::BTreeMap;

/// Names and axis order of a weight file.
#[derive(Clone, Debug)]
pub enum Layout {
    /// Those of the model.
    Partita,
    /// Those of PyTorch.
    PyTorch(Names),
}

/// What the conversion of a parameter depends on besides its role.
#[derive(Clone, Debug)]
pub struct Names {
    spatial_rank: usize,
    /// The dim (D is 0, H 1, W 2) of each spatial dim in the file; those that the model lacks come first.
    axes: [usize; 3],
    uses: BTreeMap<String, Use>,
    /// Names of shared parameters in the layers after their first.
    aliases: BTreeMap<String, Vec<String>>,
}

/// How a parameter is used.
#[derive(Clone, Debug, Default, PartialEq)]
struct Use {
    kind: UseKind,
    /// What it is indexed by; empty where its order is PyTorch's.
    order: Vec<Part>,
}

/// Features beside each other, and the flattened shape that numbers them otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    features: usize,
    flattened: Option<Shape>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum UseKind {
    Kernel,
    Matrix,
    Rows,
    #[default]
    Vector,
}

impl Layout {
    /// PyTorch's layout for a model.
    pub fn pytorch(graph: &Graph) -> Self {
        let orders = feature_orders(graph);
        let mut uses = BTreeMap::new();
        let mut aliases: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in &graph.nodes {
            let order = node.inputs.first().map(|input| &orders[input.0]);
            let order = order.map_or(&[][..], Vec::as_slice);
            for &id in &node.parameters {
                let parameter = graph.parameter(id);
                let own = use_of(node, parameter, order);
                let first = uses.entry(parameter.name.clone()).or_insert(own.clone());
                // A layer that reads the tensor in another order has no copy of it in PyTorch.
                if parameter.name != format!("{}.{}", node.name, parameter.role.name())
                    && *first == own
                {
                    let name = format!("{}.{}", node.name, state_dict_role(parameter.role));
                    aliases
                        .entry(parameter.name.clone())
                        .or_default()
                        .push(name);
                }
            }
        }
        Self::PyTorch(Names {
            spatial_rank: graph.spatial_rank,
            axes: [0, 1, 2],
            uses,
            aliases,
        })
    }

    /// The same with kernels along other dims.
    pub fn along(mut self, axes: [usize; 3]) -> Self {
        if let Self::PyTorch(names) = &mut self {
            names.axes = axes;
        }
        self
    }

    /// Name of a parameter in the file.
    pub fn name(&self, parameter: &Parameter) -> String {
        match self {
            Self::Partita => parameter.name.clone(),
            Self::PyTorch(_) => {
                let suffix = format!(".{}", parameter.role.name());
                let layer = parameter.name.strip_suffix(&suffix);
                let layer = layer.unwrap_or(&parameter.name);
                format!("{layer}.{}", state_dict_role(parameter.role))
            }
        }
    }

    /// All names of a parameter in the file: its own, and those of other layers that share it.
    pub fn names(&self, parameter: &Parameter) -> Vec<String> {
        let others = match self {
            Self::Partita => None,
            Self::PyTorch(names) => names.aliases.get(&parameter.name),
        };
        let own = [self.name(parameter)].into_iter();
        own.chain(others.into_iter().flatten().cloned()).collect()
    }

    /// Shape of a parameter in the file.
    pub fn shape(&self, parameter: &Parameter) -> Vec<usize> {
        let Self::PyTorch(names) = self else {
            return parameter.shape.to_vec();
        };
        let [_, _, _, c, f] = parameter.shape;
        match names.use_of(parameter).kind {
            UseKind::Kernel => {
                let taps = names.axes.map(|dim| parameter.shape[dim]);
                [&[f, c], &taps[3 - names.spatial_rank..]].concat()
            }
            UseKind::Matrix => vec![f, c],
            UseKind::Rows => vec![c, f],
            UseKind::Vector => vec![f],
        }
    }

    /// Whether a tensor counts batches, which no layer here needs.
    pub fn is_counter(&self, name: &str) -> bool {
        match self {
            Self::Partita => false,
            Self::PyTorch(_) => name.ends_with(COUNTER),
        }
    }

    /// The counter of batches beside a running mean of this name.
    pub fn counter(&self, running_mean: &str) -> Option<String> {
        match self {
            Self::Partita => None,
            Self::PyTorch(_) => {
                let layer = running_mean.strip_suffix(".running_mean")?;
                Some(format!("{layer}{COUNTER}"))
            }
        }
    }

    /// Values of a parameter in Partita's order, from those of the file.
    pub fn to_partita<T: Copy>(&self, parameter: &Parameter, values: &[T]) -> Vec<T> {
        match self {
            Self::Partita => values.to_vec(),
            Self::PyTorch(names) => {
                let places = names.places(parameter);
                places.into_iter().map(|place| values[place]).collect()
            }
        }
    }

    /// Values of a parameter in the order of the file, from Partita's.
    pub fn to_file<T: Copy>(&self, parameter: &Parameter, values: &[T]) -> Vec<T> {
        match self {
            Self::Partita => values.to_vec(),
            Self::PyTorch(names) => {
                let mut there = values.to_vec();
                let places = names.places(parameter).into_iter();
                places
                    .zip(values)
                    .for_each(|(place, &value)| there[place] = value);
                there
            }
        }
    }
}

/// End of the name of a tensor that counts the batches of a batch norm.
const COUNTER: &str = ".num_batches_tracked";

impl Names {
    fn use_of(&self, parameter: &Parameter) -> Use {
        self.uses.get(&*parameter.name).cloned().unwrap_or_default()
    }

    /// Position in PyTorch's tensor of each element, in Partita's order.
    fn places(&self, parameter: &Parameter) -> Vec<usize> {
        let found = self.use_of(parameter);
        let [kd, kh, kw, channels, filters] = parameter.shape;
        let taps = kd * kh * kw;
        let mut places = Vec::with_capacity(parameter.volume());
        for tap in 0..taps {
            let there = self.position(tap, [kd, kh, kw]);
            for c in 0..channels {
                for f in 0..filters {
                    places.push(match found.kind {
                        UseKind::Kernel => (f * channels + c) * taps + there,
                        UseKind::Matrix => f * channels + self.feature(&found.order, c),
                        UseKind::Rows => c * filters + f,
                        UseKind::Vector => self.feature(&found.order, f),
                    });
                }
            }
        }
        places
    }

    /// PyTorch's number of a feature, from Partita's.
    fn feature(&self, order: &[Part], at: usize) -> usize {
        let mut first = 0;
        for part in order {
            if at < first + part.features {
                return first + self.flattened(part.flattened, at - first);
            }
            first += part.features;
        }
        at
    }

    /// The same within a part.
    fn flattened(&self, shape: Option<Shape>, at: usize) -> usize {
        match shape {
            None => at,
            Some(shape) => {
                let positions: usize = shape.extent.iter().product();
                let position = self.position(at / shape.channels, shape.extent);
                (at % shape.channels) * positions + position
            }
        }
    }

    /// PyTorch's number of a position of these extents D, H, W, from Partita's.
    fn position(&self, at: usize, extent: [usize; 3]) -> usize {
        let [_, h, w] = extent;
        let index = [at / (h * w), at / w % h, at % w];
        let step = |offset, &dim: &usize| offset * extent[dim] + index[dim];
        self.axes.iter().fold(0, step)
    }
}

fn use_of(node: &Node, parameter: &Parameter, order: &[Part]) -> Use {
    let kind = match (parameter.role, &node.op) {
        (
            ParameterRole::Weight,
            Op::Linear { .. }
            | Op::Attention {
                bias: Some(ScoreBias::Pairs),
                ..
            },
        ) => UseKind::Matrix,
        (
            ParameterRole::Weight,
            Op::Embedding { .. } | Op::PositionEmbedding { .. } | Op::Attention { .. },
        ) => UseKind::Rows,
        (ParameterRole::Weight, _) => UseKind::Kernel,
        _ => UseKind::Vector,
    };
    // The bias of a layer belongs to its outputs, all others to its inputs.
    let order = match parameter.role {
        ParameterRole::Bias => Vec::new(),
        _ => order.to_vec(),
    };
    Use { kind, order }
}

/// For each node the order of its channels, where they are features of a flatten, or some of them are.
fn feature_orders(graph: &Graph) -> Vec<Vec<Part>> {
    let mut orders: Vec<Vec<Part>> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let input = node.inputs.first().map(|&NodeId(input)| input);
        let whole = |id: usize, flattened: Option<Shape>| Part {
            features: graph.nodes[id].shape.volume(),
            flattened,
        };
        let order = match (&node.op, input) {
            (Op::Flatten, Some(input)) if orders[input].is_empty() => {
                vec![whole(input, Some(graph.nodes[input].shape))]
            }
            (Op::Concat, _) if node.inputs.iter().any(|id| !orders[id.0].is_empty()) => {
                let parts = node
                    .inputs
                    .iter()
                    .map(|&NodeId(id)| match orders[id].as_slice() {
                        [] => vec![whole(id, None)],
                        parts => parts.to_vec(),
                    });
                parts.flatten().collect()
            }
            (op, Some(input)) if keeps_channels(op) || *op == Op::Flatten => orders[input].clone(),
            _ => Vec::new(),
        };
        orders.push(order);
    }
    orders
}

/// Whether each channel of the output is made of the same channel of the inputs.
fn keeps_channels(op: &Op) -> bool {
    match op {
        Op::Input
        | Op::Features
        | Op::Convolution(_)
        | Op::TransposedConvolution(_)
        | Op::Linear { .. }
        | Op::Flatten
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Embedding { .. }
        | Op::Attention { .. } => false,
        Op::Pool(_)
        | Op::Resample(_)
        | Op::BatchNorm { .. }
        | Op::LeakyRelu { .. }
        | Op::Prelu(_)
        | Op::Softmax
        | Op::Dropout { .. }
        | Op::Add
        | Op::Positions
        | Op::PositionEmbedding { .. }
        | Op::Reshape { .. }
        | Op::LayerNorm { .. }
        | Op::GroupNorm { .. }
        | Op::Multiply
        | Op::Activation(_)
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => true,
    }
}
