//! Builds a graph node by node and checks every step.

use crate::constant::{check_constant, constant_initialization, shuffle};
use crate::infer::{check_features, check_initialization, check_input, infer, list};
use crate::parameter_shapes::parameter_shapes;
use crate::sizes::{Totals, check_padded_volume, check_parameter_volume, product};
use crate::unused::unused;
use crate::{
    Activation, Convolution, DropoutMask, Graph, GraphError, Loss, Node, NodeId, Op, Parameter,
    ParameterId, ParameterRole, ParameterSource, Pool, PreluSlopes, Resample, Shape,
    TransposedConvolution,
};
use partita_space::{Window, nearest};
use std::collections::HashMap;

/// Characters of a node's name besides letters and digits.
const NAME_ALSO: &str = "_-./";
/// Characters of a graph's name besides letters and digits.
const GRAPH_NAME_ALSO: &str = "_-./@+";

/// Builds a [`Graph`] node by node, input first and loss last, and checks every step.
///
/// A call that fails leaves the builder as it was.
#[derive(Clone, Debug)]
pub struct GraphBuilder {
    pub(crate) graph: Graph,
    ids: HashMap<String, NodeId>,
    totals: Totals,
    parameter_ids: HashMap<String, ParameterId>,
    /// As [`Graph::needs_gradient`], of the nodes so far.
    needs_gradient: Vec<bool>,
    /// The first loss, auxiliary or not, and the first of each tensor.
    first_loss: Option<NodeId>,
    loss_of: HashMap<NodeId, NodeId>,
}

impl GraphBuilder {
    /// An empty graph. The name may hold letters, digits and `_-./@+`.
    pub fn new(name: &str) -> Result<Self, GraphError> {
        check_characters(name, GRAPH_NAME_ALSO)?;
        let mut new = Self::unnamed();
        name.clone_into(&mut new.graph.name);
        Ok(new)
    }

    /// An empty graph of some name.
    pub(crate) fn unnamed() -> Self {
        let graph = Graph {
            name: "unnamed".to_owned(),
            spatial_rank: 0,
            nodes: Vec::new(),
            parameters: Vec::new(),
        };
        Self {
            graph,
            ids: HashMap::new(),
            totals: Totals::default(),
            parameter_ids: HashMap::new(),
            needs_gradient: Vec::new(),
            first_loss: None,
            loss_of: HashMap::new(),
        }
    }

    /// The input, first node of the graph: `extent` holds W, or H and W, or D, H and W.
    pub fn input(
        &mut self,
        name: &str,
        extent: &[usize],
        channels: usize,
    ) -> Result<NodeId, GraphError> {
        if let Some(first) = self.graph.nodes.first() {
            return Err(GraphError::SecondInput {
                node: name.to_owned(),
                first: first.name.clone(),
            });
        }
        check_characters(name, NAME_ALSO)?;
        if !(1..=3).contains(&extent.len()) {
            return Err(GraphError::SpatialRank {
                node: name.to_owned(),
                asked: extent.len(),
                nearest: extent.len().clamp(1, 3),
            });
        }
        let mut padded = [1; 3];
        padded[3 - extent.len()..].copy_from_slice(extent);
        let shape = Shape {
            extent: padded,
            channels,
        };
        check_input(name, shape)?;
        self.totals = self.totals.with(name, &Op::Input, &[], shape, 0)?;
        self.graph.spatial_rank = extent.len();
        Ok(self.push(name, Op::Input, &[], Vec::new(), shape))
    }

    /// Numbers of the sample beside its volume, anywhere after the input: one position, a channel per number.
    ///
    /// Errors: no input before; other features.
    pub fn features(&mut self, name: &str, count: usize) -> Result<NodeId, GraphError> {
        let shape = Shape {
            extent: [1; 3],
            channels: count,
        };
        check_characters(name, NAME_ALSO)?;
        self.check_name(name)?;
        self.check_place(name, &Op::Features)?;
        check_features(name, count)?;
        self.totals = self.totals.with(name, &Op::Features, &[], shape, 0)?;
        Ok(self.push(name, Op::Features, &[], Vec::new(), shape))
    }

    /// A convolution with parameters of its own.
    pub fn convolution(
        &mut self,
        name: &str,
        input: NodeId,
        convolution: Convolution,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::Convolution(convolution), &[input], &[])
    }

    /// A transposed convolution with parameters of its own.
    pub fn transposed_convolution(
        &mut self,
        name: &str,
        input: NodeId,
        convolution: TransposedConvolution,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::TransposedConvolution(convolution), &[input], &[])
    }

    /// A maximum or average pooling.
    pub fn pool(&mut self, name: &str, input: NodeId, pool: Pool) -> Result<NodeId, GraphError> {
        self.node(name, Op::Pool(pool), &[input], &[])
    }

    /// Upsampling, resizing, cropping, padding, or a mean over windows that cover the input; where these are equal tiles, the node is a
    /// pooling.
    pub fn resample(
        &mut self,
        name: &str,
        input: NodeId,
        resample: Resample,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::Resample(resample), &[input], &[])
    }

    /// A batch norm with parameters of its own; `momentum` is the weight of the new value.
    pub fn batch_norm(
        &mut self,
        name: &str,
        input: NodeId,
        epsilon: f64,
        momentum: f64,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::BatchNorm { epsilon, momentum }, &[input], &[])
    }

    /// A ReLU.
    pub fn relu(&mut self, name: &str, input: NodeId) -> Result<NodeId, GraphError> {
        self.leaky_relu(name, input, 0.0)
    }

    /// A leaky ReLU with this factor for negative inputs.
    pub fn leaky_relu(
        &mut self,
        name: &str,
        input: NodeId,
        negative_slope: f64,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::LeakyRelu { negative_slope }, &[input], &[])
    }

    /// A linear layer with parameters of its own; its input has extent 1x1x1.
    pub fn linear(
        &mut self,
        name: &str,
        input: NodeId,
        features: usize,
        bias: bool,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::Linear { features, bias }, &[input], &[])
    }

    /// A PReLU with slopes of its own.
    pub fn prelu(
        &mut self,
        name: &str,
        input: NodeId,
        slopes: PreluSlopes,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::Prelu(slopes), &[input], &[])
    }

    /// The softmax over the channels.
    pub fn softmax(&mut self, name: &str, input: NodeId) -> Result<NodeId, GraphError> {
        self.node(name, Op::Softmax, &[input], &[])
    }

    /// A dropout that zeroes elements with probability `rate`.
    pub fn dropout(&mut self, name: &str, input: NodeId, rate: f64) -> Result<NodeId, GraphError> {
        let mask = DropoutMask::Element;
        self.node(name, Op::Dropout { rate, mask }, &[input], &[])
    }

    /// All positions and channels as features.
    pub fn flatten(&mut self, name: &str, input: NodeId) -> Result<NodeId, GraphError> {
        self.node(name, Op::Flatten, &[input], &[])
    }

    /// The sum of two tensors of one shape.
    pub fn add(&mut self, name: &str, left: NodeId, right: NodeId) -> Result<NodeId, GraphError> {
        self.node(name, Op::Add, &[left, right], &[])
    }

    /// Product of two tensors of one shape, or of a tensor and factors of one position or of one channel.
    pub fn multiply(
        &mut self,
        name: &str,
        left: NodeId,
        right: NodeId,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::Multiply, &[left, right], &[])
    }

    /// The channels of two or more tensors of equal extents, one after the other.
    pub fn concat(&mut self, name: &str, inputs: &[NodeId]) -> Result<NodeId, GraphError> {
        self.node(name, Op::Concat, inputs, &[])
    }

    /// A range of the channels.
    pub fn slice(
        &mut self,
        name: &str,
        input: NodeId,
        start: usize,
        channels: usize,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::Slice { start, channels }, &[input], &[])
    }

    /// Channels of these groups, taken in turn.
    pub fn channel_shuffle(
        &mut self,
        name: &str,
        input: NodeId,
        groups: usize,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::ChannelShuffle { groups }, &[input], &[])
    }

    /// Positions of blocks that channels hold: channel `c n + b` of `n` positions in a block is channel `c` at position
    /// `b` of the block, in (D, H, W) order. It is a transposed convolution with a fixed weight.
    /// Source: Shi et al., "Real-time single image and video super-resolution", CVPR 2016; PyTorch, `PixelShuffle`.
    pub fn pixel_shuffle(
        &mut self,
        name: &str,
        input: NodeId,
        factors: [usize; 3],
    ) -> Result<NodeId, GraphError> {
        let op = Op::TransposedConvolution(shuffle(self.shape(input).channels, factors));
        let weight = (ParameterRole::Weight, ParameterSource::Constant);
        self.node(name, op, &[input], &[weight])
    }

    /// An embedding with weights of its own, by class indices below `rows`.
    pub fn embedding(
        &mut self,
        name: &str,
        input: NodeId,
        rows: usize,
        channels: usize,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::Embedding { rows, channels }, &[input], &[])
    }

    /// A sequence with the sinusoids of its positions added.
    pub fn positions(&mut self, name: &str, input: NodeId) -> Result<NodeId, GraphError> {
        self.node(name, Op::Positions, &[input], &[])
    }

    /// A trained row of its own added to each of the first `rows` positions.
    pub fn position_embedding(
        &mut self,
        name: &str,
        input: NodeId,
        rows: usize,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::PositionEmbedding { rows }, &[input], &[])
    }

    /// The positions in the same order with other extents.
    pub fn reshape(
        &mut self,
        name: &str,
        input: NodeId,
        extent: [usize; 3],
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::Reshape { extent }, &[input], &[])
    }

    /// A layer norm with parameters of its own.
    pub fn layer_norm(
        &mut self,
        name: &str,
        input: NodeId,
        epsilon: f64,
    ) -> Result<NodeId, GraphError> {
        let centers = true;
        self.node(name, Op::LayerNorm { epsilon, centers }, &[input], &[])
    }

    /// An RMS norm with a scale of its own.
    pub fn rms_norm(
        &mut self,
        name: &str,
        input: NodeId,
        epsilon: f64,
    ) -> Result<NodeId, GraphError> {
        let (centers, none) = (false, (ParameterRole::Beta, ParameterSource::Constant));
        self.node(name, Op::LayerNorm { epsilon, centers }, &[input], &[none])
    }

    /// A group norm of this many groups, or of a group per channel, with parameters of its own.
    pub fn group_norm(
        &mut self,
        name: &str,
        input: NodeId,
        groups: Option<usize>,
        epsilon: f64,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::GroupNorm { groups, epsilon }, &[input], &[])
    }

    /// A smooth function of each element.
    pub fn activation(
        &mut self,
        name: &str,
        activation: Activation,
        input: NodeId,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::Activation(activation), &[input], &[])
    }

    /// Attention of q to k and v, in that order, without windows and bias.
    pub fn attention(
        &mut self,
        name: &str,
        inputs: [NodeId; 3],
        heads: usize,
        causal: bool,
    ) -> Result<NodeId, GraphError> {
        let op = Op::Attention {
            heads,
            causal,
            window: None,
            bias: None,
        };
        self.node(name, op, &inputs, &[])
    }

    /// The loss, last node of the graph.
    pub fn loss(&mut self, name: &str, input: NodeId, loss: Loss) -> Result<NodeId, GraphError> {
        self.node(name, Op::Loss(loss), &[input], &[])
    }

    /// A loss of the same target, which training adds to the loss, times `weight`.
    pub fn auxiliary_loss(
        &mut self,
        name: &str,
        input: NodeId,
        loss: Loss,
        weight: f64,
    ) -> Result<NodeId, GraphError> {
        self.node(name, Op::AuxiliaryLoss { loss, weight }, &[input], &[])
    }

    /// Any operation but the input; roles that `sources` leaves out have a parameter of their own
    /// with the default initialization. The first source of a role counts.
    pub fn node(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[NodeId],
        sources: &[(ParameterRole, ParameterSource)],
    ) -> Result<NodeId, GraphError> {
        self.check_place(name, &op)?;
        self.check_name(name)?;
        let count = self.graph.nodes.len();
        for &NodeId(asked) in inputs {
            check_id(name, "node", asked, count)?;
        }
        self.check_reads(name, inputs)?;
        let shapes: Vec<Shape> = inputs.iter().map(|&id| self.shape(id)).collect();
        let op = as_pool(op, &shapes);
        let shape = infer(name, &op, &shapes, self.graph.spatial_rank)?;
        self.check_losses(name, &op, inputs)?;
        self.check_class_numbers(name, &op, inputs)?;
        let wanted = parameter_shapes(&op, &shapes);
        check_roles(name, &op, &wanted, sources)?;
        check_constant(name, &op, sources, shapes[0])?;
        let mut resolved = Vec::with_capacity(wanted.len());
        for (role, shape) in wanted {
            let source = sources.iter().find(|(other, _)| *other == role);
            let default = ParameterSource::Own(op.default_initialization(role));
            let source = source.map_or(default, |&(_, source)| source);
            resolved.push(self.resolve(name, role, shape, source)?);
        }
        let own = resolved.iter().map(|found| match found {
            Resolved::New(parameter) => product(&parameter.shape),
            Resolved::Existing(_) => 0,
        });
        self.totals = self.totals.with(name, &op, &shapes, shape, own.sum())?;
        let parameters = resolved
            .into_iter()
            .map(|found| self.settle(found))
            .collect();
        Ok(self.push(name, op, inputs, parameters, shape))
    }

    /// The graph, when it ends with a loss and every other node is read or an auxiliary loss.
    pub fn build(self) -> Result<Graph, GraphError> {
        let unused = unused(&self.graph).into_iter().next();
        let graph = self.graph;
        let Some(last) = graph.nodes.last() else {
            return Err(GraphError::NoInput { node: graph.name });
        };
        if !matches!(last.op, Op::Loss(_)) {
            return Err(GraphError::NoLoss {
                last: last.name.clone(),
                graph: graph.name,
            });
        }
        if let Some((_, error)) = unused {
            return Err(error);
        }
        for (node, volume) in graph.nodes.iter().zip(graph.padded_volumes()) {
            check_padded_volume(&node.name, volume)?;
        }
        Ok(graph)
    }

    /// The node of this name.
    pub fn find(&self, name: &str) -> Result<NodeId, GraphError> {
        let found = self.ids.get(name).copied();
        found.ok_or_else(|| {
            unknown_name(
                "node",
                name,
                self.graph.nodes.iter().map(|node| node.name.as_str()),
            )
        })
    }

    /// The parameter of this name, `layer.role`.
    pub fn find_parameter(&self, name: &str) -> Result<ParameterId, GraphError> {
        let found = self.parameter_ids.get(name).copied();
        let found = found.filter(|&id| !self.graph.parameter(id).is_constant);
        found.ok_or_else(|| {
            let parameters = self.graph.stored_parameters();
            unknown_name("parameter", name, parameters.map(|p| p.name.as_str()))
        })
    }

    /// Shape of what a node computes. The id must be of this builder.
    pub fn shape(&self, id: NodeId) -> Shape {
        self.graph.node(id).shape
    }

    /// Name of a node. The id must be of this builder.
    pub fn name(&self, id: NodeId) -> &str {
        &self.graph.node(id).name
    }

    /// The parameters so far, by id.
    pub fn parameters(&self) -> &[Parameter] {
        &self.graph.parameters
    }

    /// Spatial dims of the input, 0 before it.
    pub fn spatial_rank(&self) -> usize {
        self.graph.spatial_rank
    }

    /// One window for all spatial dims of the model, [`Window::ONE`] for those that it lacks.
    pub fn windows(&self, window: Window) -> [Window; 3] {
        let missing = 3 - self.graph.spatial_rank;
        std::array::from_fn(|i| if i < missing { Window::ONE } else { window })
    }

    fn check_place(&self, name: &str, op: &Op) -> Result<(), GraphError> {
        let node = name.to_owned();
        let (Some(first), Some(last)) = (self.graph.nodes.first(), self.graph.nodes.last()) else {
            return Err(GraphError::NoInput { node });
        };
        let mut nodes = self.graph.nodes.iter();
        let other = match op {
            Op::Input => Some(first),
            Op::Features => nodes.find(|other| other.op == Op::Features),
            _ => None,
        };
        if let Some(first) = other {
            let first = first.name.clone();
            return Err(GraphError::SecondInput { node, first });
        }
        if matches!(last.op, Op::Loss(_)) {
            let loss = last.name.clone();
            return Err(GraphError::AfterLoss { node, loss });
        }
        Ok(())
    }

    /// No node reads a loss.
    fn check_reads(&self, name: &str, inputs: &[NodeId]) -> Result<(), GraphError> {
        let mut nodes = inputs.iter().map(|&id| self.graph.node(id));
        let Some(loss) = nodes.find(|node| node.op.loss().is_some()) else {
            return Ok(());
        };
        Err(GraphError::ReadsLoss {
            node: name.to_owned(),
            loss: loss.name.clone(),
            nearest: self.graph.node(loss.inputs[0]).name.clone(),
        })
    }

    /// All losses are of one kind and shape, each of a tensor of its own.
    fn check_losses(&self, name: &str, op: &Op, inputs: &[NodeId]) -> Result<(), GraphError> {
        let (Some(_), Some(first)) = (op.loss(), self.first_loss) else {
            return Ok(());
        };
        let (shape, other) = (self.shape(inputs[0]), self.graph.node(first));
        if (op.keyword(), shape) != (other.op.keyword(), other.shape) {
            return Err(GraphError::LossesDiffer {
                node: name.to_owned(),
                asked: format!("{} of {shape}", op.keyword()),
                first: other.name.clone(),
                expected: format!("{} of {}", other.op.keyword(), other.shape),
            });
        }
        match self.loss_of.get(&inputs[0]) {
            None => Ok(()),
            Some(&first) => Err(GraphError::LossTwice {
                node: name.to_owned(),
                input: self.graph.node(inputs[0]).name.clone(),
                first: self.graph.node(first).name.clone(),
            }),
        }
    }

    /// An embedding reads what no parameter changes.
    fn check_class_numbers(
        &self,
        name: &str,
        op: &Op,
        inputs: &[NodeId],
    ) -> Result<(), GraphError> {
        match (op, inputs) {
            (Op::Embedding { .. }, &[input]) if self.needs_gradient[input.0] => {
                Err(GraphError::EmbeddingOfTrained {
                    node: name.to_owned(),
                    input: self.graph.node(input).name.clone(),
                    nearest: self.graph.nodes[0].name.clone(),
                })
            }
            _ => Ok(()),
        }
    }

    fn check_name(&self, name: &str) -> Result<(), GraphError> {
        check_characters(name, NAME_ALSO)?;
        if !self.ids.contains_key(name) {
            return Ok(());
        }
        let mut suffix = 2;
        while self.ids.contains_key(&format!("{name}_{suffix}")) {
            suffix += 1;
        }
        Err(GraphError::DuplicateName {
            node: name.to_owned(),
            nearest: format!("{name}_{suffix}"),
        })
    }

    fn resolve(
        &self,
        node: &str,
        role: ParameterRole,
        shape: [usize; 5],
        source: ParameterSource,
    ) -> Result<Resolved, GraphError> {
        match source {
            ParameterSource::Own(_) | ParameterSource::Constant => {
                let (initialization, is_constant) = match source {
                    ParameterSource::Own(initialization) => (initialization, false),
                    _ => (constant_initialization(role), true),
                };
                check_parameter_volume(node, shape)?;
                if !is_constant {
                    check_initialization(node, role, initialization)?;
                }
                Ok(Resolved::New(Parameter {
                    name: format!("{node}.{}", role.name()),
                    role,
                    shape,
                    initialization,
                    is_frozen: is_constant,
                    is_constant,
                }))
            }
            ParameterSource::Shared(id) => {
                check_id(node, "parameter", id.0, self.graph.parameters.len())?;
                self.check_shared(node, role, shape, id)?;
                Ok(Resolved::Existing(id))
            }
        }
    }

    fn check_shared(
        &self,
        node: &str,
        role: ParameterRole,
        shape: [usize; 5],
        id: ParameterId,
    ) -> Result<(), GraphError> {
        let asked = self.graph.parameter(id);
        let node = node.to_owned();
        if !role.is_trained() {
            let role = role.name();
            return Err(GraphError::SharedState { node, role });
        }
        let fits = |parameter: &&Parameter| {
            (parameter.role, parameter.shape, parameter.is_constant) == (role, shape, false)
        };
        if fits(&asked) {
            return Ok(());
        }
        let possible: Vec<&str> = self
            .graph
            .parameters
            .iter()
            .filter(fits)
            .map(|parameter| parameter.name.as_str())
            .collect();
        let own = "one of its own";
        let nearest = nearest(&asked.name, possible.iter().copied());
        Err(GraphError::SharedShape {
            node,
            wanted: describe(role, shape),
            asked: format!("`{}`, a {}", asked.name, describe(asked.role, asked.shape)),
            nearest: nearest.unwrap_or(own).to_owned(),
            possible: list(possible.into_iter().chain([own])),
        })
    }

    fn settle(&mut self, found: Resolved) -> ParameterId {
        match found {
            Resolved::Existing(id) => id,
            Resolved::New(parameter) => {
                let id = ParameterId(self.graph.parameters.len());
                self.parameter_ids.insert(parameter.name.clone(), id);
                self.graph.parameters.push(parameter);
                id
            }
        }
    }

    fn push(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[NodeId],
        parameters: Vec<ParameterId>,
        shape: Shape,
    ) -> NodeId {
        self.graph.nodes.push(Node {
            name: name.to_owned(),
            op,
            inputs: inputs.to_vec(),
            parameters,
            shape,
        });
        let id = NodeId(self.graph.nodes.len() - 1);
        self.ids.insert(name.to_owned(), id);
        let needs_gradient = self.graph.needs_gradient_after(id, &self.needs_gradient);
        self.needs_gradient.push(needs_gradient);
        let node = self.graph.node(id);
        if node.op.loss().is_some() {
            self.first_loss.get_or_insert(id);
            self.loss_of.entry(node.inputs[0]).or_insert(id);
        }
        id
    }
}

/// A parameter that has passed all checks but is not in the graph yet.
enum Resolved {
    Existing(ParameterId),
    New(Parameter),
}

/// `weight 3x3x3x4x16`.
fn describe(role: ParameterRole, shape: [usize; 5]) -> String {
    let [d, h, w, channels, features] = shape;
    format!("{} {d}x{h}x{w}x{channels}x{features}", role.name())
}

/// An adaptive mean over equal tiles as the pooling that it is; a pooling that is adaptive in its input.
fn as_pool(op: Op, inputs: &[Shape]) -> Op {
    match (op, inputs) {
        (Op::Resample(Resample::AdaptiveAverage { outputs }), [input]) => {
            Pool::adaptive_average(input.extent, outputs).map_or(
                Op::Resample(Resample::AdaptiveAverage { outputs }),
                Op::Pool,
            )
        }
        (Op::Pool(pool), [input]) => Op::Pool(Pool {
            is_adaptive: pool.is_adaptive && pool.is_tiling(input.extent),
            ..pool
        }),
        (op, _) => op,
    }
}

fn check_characters(name: &str, also: &'static str) -> Result<(), GraphError> {
    let valid = |c: &char| c.is_ascii_alphanumeric() || also.contains(*c);
    if !name.is_empty() && name.chars().all(|c| valid(&c)) {
        return Ok(());
    }
    let kept: String = name
        .chars()
        .map(|c| if valid(&c) { c } else { '_' })
        .collect();
    Err(GraphError::InvalidName {
        asked: name.to_owned(),
        also,
        nearest: if kept.is_empty() {
            "_".to_owned()
        } else {
            kept
        },
    })
}

fn check_id(node: &str, what: &'static str, asked: usize, count: usize) -> Result<(), GraphError> {
    if asked < count {
        return Ok(());
    }
    Err(GraphError::UnknownId {
        node: node.to_owned(),
        what,
        asked,
        count,
        nearest: count.checked_sub(1),
    })
}

fn check_roles(
    node: &str,
    op: &Op,
    wanted: &[(ParameterRole, [usize; 5])],
    sources: &[(ParameterRole, ParameterSource)],
) -> Result<(), GraphError> {
    let unknown = |asked: ParameterRole| wanted.iter().all(|&(role, _)| role != asked);
    let Some((asked, _)) = sources.iter().find(|&&(role, _)| unknown(role)) else {
        return Ok(());
    };
    let possible: Vec<&str> = wanted.iter().map(|(role, _)| role.name()).collect();
    let nearest = nearest(asked.name(), possible.iter().copied());
    Err(GraphError::NoSuchParameter {
        node: node.to_owned(),
        operation: op.keyword(),
        asked: asked.name(),
        nearest: nearest.unwrap_or("to leave it out").to_owned(),
        possible: if possible.is_empty() {
            "none".to_owned()
        } else {
            list(possible)
        },
    })
}

fn unknown_name<'a>(
    what: &'static str,
    asked: &str,
    names: impl Iterator<Item = &'a str>,
) -> GraphError {
    let names: Vec<&str> = names.collect();
    GraphError::UnknownName {
        what,
        asked: asked.to_owned(),
        nearest: nearest(asked, names.iter().copied()).map(str::to_owned),
        possible: if names.is_empty() {
            "none".to_owned()
        } else {
            list(names)
        },
    }
}
