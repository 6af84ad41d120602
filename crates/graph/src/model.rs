use crate::sizes::{padding, product, work_per_sample};
use crate::{Op, needed_by_last};
use std::fmt;

/// Index of a node; the tensor it computes has the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// Index of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterId(pub usize);

/// Shape of one sample of an activation; missing spatial dims have extent 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// D, H, W.
    pub extent: [usize; 3],
    /// C.
    pub channels: usize,
}

impl Shape {
    /// Elements of one sample.
    pub fn volume(&self) -> usize {
        self.extent.iter().product::<usize>() * self.channels
    }

    /// Shape with `samples` of them, (N, D, H, W, C).
    pub fn batched(&self, samples: usize) -> [usize; 5] {
        let [d, h, w] = self.extent;
        [samples, d, h, w, self.channels]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [d, h, w] = self.extent;
        write!(f, "{d}x{h}x{w} with {} channels", self.channels)
    }
}

/// What a parameter is to the operation that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParameterRole {
    /// (Kd, Kh, Kw, C / groups, F) of a convolution, (Kd, Kh, Kw, F / groups, C) of a transposed one,
    /// (1, 1, 1, C, F) of a linear layer, or (1, 1, 1, rows, channels) of an embedding.
    Weight,
    /// (F).
    Bias,
    /// Scale of a batch or layer norm, (C).
    Gamma,
    /// Shift of a batch or layer norm, (C).
    Beta,
    /// Running mean of a batch norm, (C); state, not trained.
    RunningMean,
    /// Running unbiased variance of a batch norm, (C); state, not trained.
    RunningVariance,
}

impl ParameterRole {
    /// The part of a parameter's name after the layer's, and its key in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Bias => "bias",
            Self::Gamma => "gamma",
            Self::Beta => "beta",
            Self::RunningMean => "running_mean",
            Self::RunningVariance => "running_variance",
        }
    }

    /// How a parameter of this role starts unless the model says otherwise.
    pub fn default_initialization(self) -> Initialization {
        match self {
            Self::Weight => Initialization::GlorotUniform,
            Self::Bias | Self::Beta | Self::RunningMean => Initialization::Constant(0.0),
            Self::Gamma | Self::RunningVariance => Initialization::Constant(1.0),
        }
    }

    /// Whether the optimizer updates it.
    pub fn is_trained(self) -> bool {
        match self {
            Self::Weight | Self::Bias | Self::Gamma | Self::Beta => true,
            Self::RunningMean | Self::RunningVariance => false,
        }
    }
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initialization {
    /// Uniform in `+-sqrt(6 / (fan_in + fan_out))`, fans counted with the kernel's volume.
    GlorotUniform,
    /// Normal with variance `2 / fan_in`.
    HeNormal,
    /// Normal with variance `2 / fan_out`.
    HeNormalFanOut,
    /// Normal with this standard deviation.
    Normal(f64),
    /// Uniform in plus or minus this limit.
    Uniform(f64),
    /// One value everywhere.
    Constant(f64),
}

impl fmt::Display for Initialization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GlorotUniform => f.write_str("glorot_uniform"),
            Self::HeNormal => f.write_str("he_normal"),
            Self::HeNormalFanOut => f.write_str("he_normal_fan_out"),
            Self::Normal(deviation) => write!(f, "normal:{deviation:?}"),
            Self::Uniform(limit) => write!(f, "uniform:{limit:?}"),
            Self::Constant(value) => write!(f, "constant:{value:?}"),
        }
    }
}

/// A parameter, a node of its own: several operations may share it.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Unique, `layer.role`.
    pub name: String,
    /// What it is.
    pub role: ParameterRole,
    /// (Kd, Kh, Kw, C, F); vectors are (1, 1, 1, 1, F).
    pub shape: [usize; 5],
    /// How it starts.
    pub initialization: Initialization,
}

impl Parameter {
    /// Number of elements.
    pub fn volume(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Inputs per output and outputs per input of a parameter, (fan_in, fan_out), for initialization.
///
/// A weight (Kd, Kh, Kw, C / groups, F) has `K * C / groups` and `K * F`, K being the kernel's volume;
/// a vector of F elements has 1 and F. A transposed convolution counts as the convolution whose adjoint
/// it is, as in PyTorch.
/// Source: Glorot and Bengio, AISTATS 2010, section 4.2.1, with a kernel's taps counted as units.
pub fn fans(parameter: &Parameter) -> (usize, usize) {
    let [d, h, w, channels, features] = parameter.shape;
    (d * h * w * channels, d * h * w * features)
}

/// An operation with its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Unique in the graph.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// Tensors it reads, all of smaller id.
    pub inputs: Vec<NodeId>,
    /// Parameters it uses, in the order weight, bias; gamma, beta, running mean, running variance.
    pub parameters: Vec<ParameterId>,
    /// Shape of what it computes, per sample; of a loss its input's shape.
    pub shape: Shape,
}

/// A checked model: nodes in topological order, the first is the input, the last is the loss; nothing
/// reads that and the auxiliary losses before it, all else is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// As asked for, `cosmoflow@32+bn`, or as the text form says.
    pub name: String,
    /// Spatial dims the model has, 1 (W), 2 (H, W) or 3.
    pub spatial_rank: usize,
    /// Operations.
    pub nodes: Vec<Node>,
    /// Parameters.
    pub parameters: Vec<Parameter>,
}

impl Graph {
    /// The node of this name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.nodes
            .iter()
            .position(|node| node.name == name)
            .map(NodeId)
    }

    /// Per node, whether training needs the gradient of the tensor it computes.
    ///
    /// True from the first trained parameter on: a convolution on a node without needs no
    /// backward-data pass.
    pub fn needs_gradient(&self) -> Vec<bool> {
        let mut needs: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for id in 0..self.nodes.len() {
            needs.push(self.needs_gradient_after(NodeId(id), &needs));
        }
        needs
    }

    /// The same of one node, where it is known of those before.
    pub(crate) fn needs_gradient_after(&self, id: NodeId, before: &[bool]) -> bool {
        let node = self.node(id);
        let trained = |&id: &ParameterId| self.parameter(id).role.is_trained();
        let trains = node.parameters.iter().any(trained);
        trains || node.inputs.iter().any(|input| before[input.0])
    }

    /// Per node, whether the loss depends on it; not so the auxiliary losses and what only they read.
    pub fn is_evaluated(&self) -> Vec<bool> {
        needed_by_last(self.nodes.iter().map(|node| &node.inputs[..]))
    }

    /// The node of this id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// The parameter of this id.
    pub fn parameter(&self, id: ParameterId) -> &Parameter {
        &self.parameters[id.0]
    }

    /// Elements of a sample of every node's output, with the padding that its readers or, of a transposed
    /// convolution, it itself asks for around it. The builder bounds them by
    /// [`partita_space::limits::ELEMENTS_MAX`].
    pub fn padded_volumes(&self) -> Vec<u128> {
        let mut around = vec![[(0, 0); 3]; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            let is_its_own = matches!(node.op, Op::TransposedConvolution(_));
            let read = node.inputs.first().map(|input| input.0);
            let Some(padded) = is_its_own.then_some(i).or(read) else {
                continue;
            };
            for (most, pads) in around[padded].iter_mut().zip(padding(&node.op)) {
                *most = (most.0.max(pads.0), most.1.max(pads.1));
            }
        }
        let volume = |(node, around): (&Node, [(usize, usize); 3])| {
            let extent = node.shape.extent;
            let padded = |dim: usize| extent[dim] + around[dim].0 + around[dim].1;
            product(&[padded(0), padded(1), padded(2), node.shape.channels])
        };
        self.nodes.iter().zip(around).map(volume).collect()
    }

    /// Multiplications and additions with weights or of attention, and elements that poolings look at, in
    /// the forward pass of every node on a sample.
    pub fn work(&self) -> Vec<u128> {
        let work = |node: &Node| {
            let inputs: Vec<Shape> = node.inputs.iter().map(|&id| self.node(id).shape).collect();
            work_per_sample(&node.op, &inputs, node.shape)
        };
        self.nodes.iter().map(work).collect()
    }

    /// Ids of the nodes that read `id`, each as often as it does.
    pub fn consumers(&self, id: NodeId) -> Vec<NodeId> {
        let reads = |node: &Node| node.inputs.iter().filter(|&&input| input == id).count();
        self.nodes
            .iter()
            .enumerate()
            .flat_map(|(i, node)| std::iter::repeat_n(NodeId(i), reads(node)))
            .collect()
    }
}
