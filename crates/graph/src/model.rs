//! The graph as data: nodes and parameters.

use crate::infer::infer;
use crate::sizes::{padding, product, work_per_sample};
use crate::{
    GraphError, Loss, NodeId, Op, Parameter, ParameterId, Resample, Shape, needed_by_last,
};
use partita_space::{fits, nearest};
use std::collections::BTreeSet;

/// An operation with its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Unique in the graph.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// Tensors it reads, all with smaller ids.
    pub inputs: Vec<NodeId>,
    /// Parameters it uses, in the order weight, bias; gamma, beta, running mean, running variance.
    pub parameters: Vec<ParameterId>,
    /// Shape of its output per sample; for a loss, that of its input.
    pub shape: Shape,
}

/// A checked model: nodes in topological order, first the input, last the loss. Nothing reads the losses; every
/// other node is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// Name in the zoo, `cosmoflow@32+bn`, or in the text form.
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

    /// Whether a node is the padding of the convolution after it, to which the text form gives no name of its own.
    pub fn is_padding(&self, id: usize) -> bool {
        let Some([pad, next]) = self.nodes.get(id..id + 2) else {
            return false;
        };
        let name = || pad.name.strip_prefix(next.name.as_str());
        matches!(pad.op, Op::Resample(Resample::Pad { .. }))
            && matches!(next.op, Op::Convolution(_))
            && next.inputs == [NodeId(id)]
            && name().is_some_and(|rest| rest == ".pad" || rest.starts_with(".pad_"))
    }

    /// The layer to which a node belongs, by the name that a user knows: the padding of a convolution has its name.
    pub fn layer_name(&self, id: usize) -> &str {
        &self.nodes[id + usize::from(self.is_padding(id))].name
    }

    /// The first node of the layer that ends with a node: the padding of a convolution, or the node itself.
    pub fn layer_start(&self, id: usize) -> usize {
        match id.checked_sub(1) {
            Some(before) if self.is_padding(before) => before,
            Some(_) | None => id,
        }
    }

    /// The layers, by the names that a user knows.
    pub fn layer_names(&self) -> impl Iterator<Item = &str> {
        let ids = 0..self.nodes.len();
        ids.filter(|&id| !self.is_padding(id))
            .map(|id| self.nodes[id].name.as_str())
    }

    /// The parameters that files of weights have: all that are not constant.
    pub fn stored_parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter().filter(|one| !one.is_constant)
    }

    /// Whether a layer normalizes with statistics of the samples of a micro-batch in training.
    pub fn has_batch_norm(&self) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| {
            matches!(node.op, Op::BatchNorm { .. }) && !self.keeps_statistics(&node.parameters)
        })
    }

    /// Whether training keeps the running statistics among the parameters of a batch norm, and normalizes with them.
    pub fn keeps_statistics(&self, parameters: &[ParameterId]) -> bool {
        let mut parameters = parameters.iter().map(|&id| self.parameter(id));
        parameters.any(|parameter| parameter.is_frozen && !parameter.role.is_trained())
    }

    /// Whether a loss is a Dice of sums over the samples of a micro-batch.
    pub fn has_batch_dice(&self) -> bool {
        let is_of_batch = |loss: &Loss| match loss {
            Loss::Classes(loss) => loss.sums_samples(),
            Loss::MeanSquaredError | Loss::SoftmaxCrossEntropy { .. } | Loss::Elements(_) => false,
        };
        let mut losses = self.nodes.iter().filter_map(|node| node.op.loss());
        losses.any(is_of_batch)
    }

    /// Whether micro-batches change what is computed, since something is no mean over samples.
    pub fn sums_samples(&self) -> bool {
        self.has_batch_norm() || self.has_batch_dice()
    }

    /// The same model with another loss; auxiliary losses become of its kind, too.
    ///
    /// Errors: the loss does not fit its input.
    pub fn with_loss(&self, loss: &Loss) -> Result<Self, GraphError> {
        let mut graph = self.clone();
        for node in &mut graph.nodes {
            let (Op::Loss(kind) | Op::AuxiliaryLoss { loss: kind, .. }) = &mut node.op else {
                continue;
            };
            *kind = loss.clone();
            let input = self.node(node.inputs[0]).shape;
            infer(&node.name, &node.op, &[input], self.spatial_rank)?;
        }
        Ok(graph)
    }

    /// Whether a loss has weights that follow from the labels of a training.
    pub fn follows_labels(&self) -> bool {
        let follows = |loss: &Loss| match loss {
            Loss::Classes(loss) => loss.inverse_frequency().is_some(),
            Loss::MeanSquaredError | Loss::SoftmaxCrossEntropy { .. } | Loss::Elements(_) => false,
        };
        let mut losses = self.nodes.iter().filter_map(|node| node.op.loss());
        losses.any(follows)
    }

    /// The weights of classes that follow from the labels of a training; `None` where none do, or they are not counted yet.
    pub fn inverse_frequency(&self) -> Option<&[f64]> {
        let losses = self.nodes.iter().filter_map(|node| node.op.loss());
        let mut of_classes = losses.filter_map(|loss| match loss {
            Loss::Classes(loss) => loss.inverse_frequency(),
            Loss::MeanSquaredError | Loss::SoftmaxCrossEntropy { .. } | Loss::Elements(_) => None,
        });
        of_classes.find(|weights| !weights.is_empty())
    }

    /// The same model with these weights of classes, one each, wherever they follow from the labels.
    ///
    /// Errors: not one finite weight per class, none negative and not all 0.
    pub fn with_inverse_frequency(&self, weights: &[f64]) -> Result<Self, GraphError> {
        let mut graph = self.clone();
        for node in &mut graph.nodes {
            if let Op::Loss(Loss::Classes(loss))
            | Op::AuxiliaryLoss {
                loss: Loss::Classes(loss),
                ..
            } = &mut node.op
            {
                loss.set_inverse_frequency(weights);
                let input = self.node(node.inputs[0]).shape;
                infer(&node.name, &node.op, &[input], self.spatial_rank)?;
            }
        }
        Ok(graph)
    }

    /// The same model with frozen parameters, which training leaves as they are. With `keeps_statistics` a batch norm
    /// without trained parameters keeps its running statistics, too, and training normalizes with them.
    ///
    /// A pattern is the name of a layer, for all of its parameters, or of a parameter, such as `bn1.gamma`; `*` stands for
    /// any characters. A shared parameter is frozen for all layers that use it.
    ///
    /// Errors: a pattern that fits no trained parameter; no trained parameter is left.
    pub fn with_frozen(
        &self,
        patterns: &[String],
        keeps_statistics: bool,
    ) -> Result<Self, GraphError> {
        let mut graph = self.clone();
        let mut named = BTreeSet::new();
        for pattern in patterns {
            let mut is_used = false;
            for (index, node) in self.nodes.iter().enumerate() {
                let is_norm = matches!(node.op, Op::BatchNorm { .. });
                if is_norm && keeps_statistics && fits(pattern, &node.name) {
                    named.insert(NodeId(index));
                    is_used = true;
                }
                for &id in &node.parameters {
                    let parameter = &mut graph.parameters[id.0];
                    let is_meant = fits(pattern, &node.name) || fits(pattern, &parameter.name);
                    if is_meant && parameter.role.is_trained() && !parameter.is_constant {
                        parameter.is_frozen = true;
                        is_used = true;
                    }
                }
            }
            if !is_used {
                let has_own = |node: &&Node| {
                    let mut own = node.parameters.iter().map(|&id| self.parameter(id));
                    own.any(|parameter| !parameter.is_constant)
                };
                let names = self
                    .nodes
                    .iter()
                    .filter(has_own)
                    .map(|node| node.name.as_str());
                let all = self
                    .stored_parameters()
                    .map(|parameter| parameter.name.as_str());
                let start = pattern.trim_end_matches('*');
                let near = nearest(start, names.chain(all));
                return Err(GraphError::NothingToFreeze {
                    pattern: pattern.clone(),
                    nearest: near.map(str::to_owned),
                });
            }
        }
        if keeps_statistics {
            graph.freeze_statistics(&named);
        }
        if graph.parameters.iter().any(Parameter::is_trained) || patterns.is_empty() {
            return Ok(graph);
        }
        let is_trained = |&id: &ParameterId| self.parameter(id).is_trained();
        let mut nodes = self.nodes.iter();
        let last = nodes.rfind(|node| node.parameters.iter().any(is_trained));
        Err(GraphError::AllFrozen {
            nearest: last.map_or_else(String::new, |node| node.name.clone()),
        })
    }

    /// Freezes the running statistics of batch norms whose scales and shifts are frozen, and of those that are named.
    fn freeze_statistics(&mut self, named: &BTreeSet<NodeId>) {
        let norms = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| matches!(node.op, Op::BatchNorm { .. }));
        let is_frozen = |(index, node): &(usize, &Node)| {
            let parameters = || node.parameters.iter().map(|&id| self.parameter(id));
            let mut stored = parameters().filter(|one| !one.is_constant);
            let is_meant = named.contains(&NodeId(*index)) || stored.any(|one| one.is_frozen);
            is_meant && !parameters().any(Parameter::is_trained)
        };
        let (frozen, others): (Vec<_>, Vec<_>) = norms.partition(is_frozen);
        let ids = |nodes: Vec<(usize, &Node)>| -> BTreeSet<ParameterId> {
            nodes
                .iter()
                .flat_map(|(_, node)| node.parameters.iter().copied())
                .collect()
        };
        let (frozen, others) = (ids(frozen), ids(others));
        for id in frozen.difference(&others) {
            self.parameters[id.0].is_frozen = true;
        }
    }

    /// Per node, whether training needs the gradient of the tensor it computes.
    ///
    /// True from the first trained parameter on: a convolution before that needs no backward-data pass.
    pub fn needs_gradient(&self) -> Vec<bool> {
        let mut needs: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for id in 0..self.nodes.len() {
            needs.push(self.needs_gradient_after(NodeId(id), &needs));
        }
        needs
    }

    /// The same for one node, given the nodes before it.
    pub(crate) fn needs_gradient_after(&self, id: NodeId, before: &[bool]) -> bool {
        let node = self.node(id);
        let trained = |&id: &ParameterId| self.parameter(id).is_trained();
        let trains = node.parameters.iter().any(trained);
        trains || node.inputs.iter().any(|input| before[input.0])
    }

    /// Per node, whether the loss depends on it: false for auxiliary losses and what only they read.
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

    /// Elements of every node's output per sample, including the padding that its readers need, or that a
    /// transposed convolution itself needs. The builder bounds them by
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

    /// Flops of convolutions, linear layers and attention, and elements that poolings read, in the forward pass
    /// of every node per sample.
    pub fn work(&self) -> Vec<u128> {
        let work = |node: &Node| {
            let inputs: Vec<Shape> = node.inputs.iter().map(|&id| self.node(id).shape).collect();
            work_per_sample(&node.op, &inputs, node.shape)
        };
        self.nodes.iter().map(work).collect()
    }

    /// The nodes that read `id`, each as often as it reads it.
    pub fn consumers(&self, id: NodeId) -> Vec<NodeId> {
        let reads = |node: &Node| node.inputs.iter().filter(|&&input| input == id).count();
        self.nodes
            .iter()
            .enumerate()
            .flat_map(|(i, node)| std::iter::repeat_n(NodeId(i), reads(node)))
            .collect()
    }
}
