//! A graph with its weights as an ONNX model.
//!
//! Tensors have PyTorch's order, samples are open, and the output is what the loss reads. Batch norms and dropout are
//! those of evaluation. Layers whose operation ONNX lacks are refused by name, all at once.

mod attributes;
mod layers;
mod positions;

use super::schema::{
    Attribute, Dimension, GraphMessage, Kind, Model, NodeMessage, OperatorSet, ShapeMessage,
    TensorKind, TensorMessage, ValueInfo,
};
use crate::Reason;
use crate::weights::Element;
use attributes::{int, number_of, real};
use partita_graph::{Graph, Node, NodeId, Op, Parameter, ParameterRole, Shape};
use prost::Message as _;
use prost::bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

/// Version of the operators that are written.
const OPSET: i64 = 20;
const IR_VERSION: i64 = 9;
const PRODUCER: &str = "partita";
/// Largest model: messages are not longer.
const BYTES_MAX: usize = 2 << 30;

/// A parameter in PyTorch's order.
#[derive(Clone, Debug, PartialEq)]
pub struct OnnxTensor {
    /// Its name in PyTorch's words.
    pub name: String,
    /// Extents in PyTorch's order.
    pub shape: Vec<usize>,
    /// The type that is written.
    pub element: Element,
    /// In row-major order.
    pub values: Vec<f64>,
}

/// Whether a file is an ONNX model that Partita wrote.
pub fn is_own_onnx(path: &Path) -> bool {
    let start = [8, IR_VERSION as u8, 18, PRODUCER.len() as u8];
    let whole = [&start[..], PRODUCER.as_bytes()].concat();
    let mut found = vec![0; whole.len()];
    let read = partita_files::open(path).and_then(|mut file| file.read_exact(&mut found));
    read.is_ok() && found == whole
}

/// The bytes of an ONNX model. `tensors` has the parameters of the graph by their names.
///
/// Errors: the layers that ONNX lacks, each with the reason.
pub fn write_onnx(
    graph: &Graph,
    tensors: &BTreeMap<String, OnnxTensor>,
) -> Result<Vec<u8>, Vec<Reason>> {
    let last = graph
        .nodes
        .iter()
        .rfind(|node| matches!(node.op, Op::Loss(_)));
    let Some(&output) = last.and_then(|loss| loss.inputs.first()) else {
        return Err(vec!["the model has no loss".into()]);
    };
    let is_double = |one: &OnnxTensor| one.element == Element::F64;
    let element = if tensors.values().any(is_double) {
        Element::F64
    } else {
        Element::F32
    };
    let mut writer = Writer {
        graph,
        tensors,
        element,
        message: GraphMessage::default(),
        values: Vec::new(),
        written: BTreeSet::new(),
    };
    let needed = needed(graph, output);
    let mut faults = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let value = if needed.contains(&index) {
            writer.node(node).unwrap_or_else(|reason| {
                let layer = format!("{} ({})", node.name, node.op.keyword());
                faults.push(format!("{layer}: {reason}").into());
                Value::of(node)
            })
        } else {
            Value::of(node)
        };
        writer.values.push(value);
    }
    let value = writer.values[output.0].clone();
    if value.flattened.is_some() {
        faults.push("the output is a flatten, whose order of features is another one there".into());
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    writer.finish(&value, graph.node(output))
}

/// Nodes that an output reads.
fn needed(graph: &Graph, output: NodeId) -> BTreeSet<usize> {
    let mut needed = BTreeSet::from([output.0]);
    for index in (0..graph.nodes.len()).rev() {
        if needed.contains(&index) {
            needed.extend(graph.nodes[index].inputs.iter().map(|input| input.0));
        }
    }
    needed
}

/// A tensor of the model that is written.
#[derive(Clone, Debug)]
struct Value {
    name: String,
    shape: Shape,
    /// Whether its dims are samples and features alone.
    is_features: bool,
    /// The shape whose features a flatten numbers in another order there.
    flattened: Option<Shape>,
}

impl Value {
    fn of(node: &Node) -> Self {
        Self {
            name: node.name.clone(),
            shape: node.shape,
            is_features: false,
            flattened: None,
        }
    }
}

struct Writer<'a> {
    graph: &'a Graph,
    tensors: &'a BTreeMap<String, OnnxTensor>,
    element: Element,
    message: GraphMessage,
    /// Of each node so far.
    values: Vec<Value>,
    /// Names of tensors that are in the model.
    written: BTreeSet<String>,
}

type Written = Result<Value, Reason>;

impl Writer<'_> {
    /// Spatial dims.
    fn rank(&self) -> usize {
        self.graph.spatial_rank
    }

    fn node(&mut self, node: &Node) -> Written {
        let inputs = node.inputs.iter().map(|input| self.values[input.0].clone());
        let inputs: Vec<Value> = inputs.collect();
        let Some(first) = inputs.first() else {
            return Ok(Value {
                is_features: node.op == Op::Features,
                ..Value::of(node)
            });
        };
        if first.flattened.is_some() && !keeps_order(&node.op) {
            return Err(
                "it reads the features of a flatten, which PyTorch orders otherwise".into(),
            );
        }
        match &node.op {
            Op::Input | Op::Features | Op::Loss(_) | Op::AuxiliaryLoss { .. } => {
                Ok(Value::of(node))
            }
            Op::Convolution(convolution) => self.convolution(node, first, convolution),
            Op::TransposedConvolution(convolution) if self.has_fixed_weight(node) => {
                let factors = convolution.window.map(|window| window.kernel);
                self.pixel_shuffle(node, first, factors)
            }
            Op::TransposedConvolution(convolution) => self.transposed(node, first, convolution),
            Op::Pool(pool) => self.pool(node, first, pool),
            Op::Resample(resample) => self.resample(node, first, resample),
            &Op::BatchNorm { epsilon, momentum } => {
                self.batch_norm(node, first, [epsilon, momentum])
            }
            Op::LeakyRelu { negative_slope } if *negative_slope == 0.0 => {
                Ok(self.same(node, "Relu", first, Vec::new()))
            }
            &Op::LeakyRelu { negative_slope } => Ok(self.same(
                node,
                "LeakyRelu",
                first,
                vec![real("alpha", negative_slope)],
            )),
            Op::Prelu(_) => self.prelu(node, first),
            Op::Softmax => Ok(self.same(node, "Softmax", first, vec![int("axis", 1)])),
            Op::Linear { .. } => self.linear(node, first),
            // Nothing is dropped in evaluation.
            Op::Dropout { .. } => Ok(first.clone()),
            Op::Flatten => Ok(self.flatten(node, first)),
            Op::Add => Ok(self.binary(node, "Add", &inputs)),
            Op::Multiply => Ok(self.binary(node, "Mul", &inputs)),
            Op::Concat => Ok(self.concat(node, &inputs)),
            &Op::Slice { start, channels } => Ok(self.slice(node, first, (start, channels))),
            &Op::LayerNorm {
                epsilon,
                centers: true,
            } => self.layer_norm(node, first, epsilon),
            &Op::GroupNorm { groups, epsilon } => self.group_norm(node, first, (groups, epsilon)),
            Op::Activation(activation) => self.activation(node, first, *activation),
            &Op::LayerNorm {
                epsilon,
                centers: false,
            } => self.rms_norm(node, first, epsilon),
            Op::Embedding { .. } => self.embedding(node, first),
            Op::Positions => self.sinusoids(node, first),
            &Op::PositionEmbedding { rows } => self.position_embedding(node, first, rows),
            Op::Reshape { .. } => self.reshape(node, first),
            Op::Attention { .. } => self.attention(node, &inputs),
            &Op::ChannelShuffle { groups } => self.channel_shuffle(node, first, groups),
        }
    }

    /// Whether the weight of a transposed convolution is fixed, which makes it a pixel shuffle.
    fn has_fixed_weight(&self, node: &Node) -> bool {
        let first = node.parameters.first();
        first.is_some_and(|&id| self.graph.parameter(id).is_constant)
    }

    fn push(&mut self, operator: &str, name: &str, inputs: &[&str], attributes: Vec<Attribute>) {
        self.message.node.push(NodeMessage {
            input: inputs.iter().map(|&one| one.to_owned()).collect(),
            output: vec![name.to_owned()],
            name: name.to_owned(),
            op_type: operator.to_owned(),
            attribute: attributes,
            ..NodeMessage::default()
        });
    }

    /// A node that keeps the dims of its input.
    fn same(
        &mut self,
        node: &Node,
        operator: &str,
        input: &Value,
        attributes: Vec<Attribute>,
    ) -> Value {
        self.push(operator, &node.name, &[&input.name], attributes);
        Value {
            name: node.name.clone(),
            ..input.clone()
        }
    }

    /// The name of a parameter, which is added to the model; none where the node has none.
    fn parameter(&mut self, node: &Node, role: ParameterRole) -> Option<String> {
        let graph = self.graph;
        let mut all = node.parameters.iter().map(|&id| graph.parameter(id));
        let parameter = all.find(|one| one.role == role)?;
        Some(self.parameter_as(parameter, None))
    }

    /// The same of the weight with this many dims, of which the last ones may be 1.
    fn weight(&mut self, node: &Node, dims: usize) -> Option<String> {
        let graph = self.graph;
        let mut all = node.parameters.iter().map(|&id| graph.parameter(id));
        let weight = all.find(|one| one.role == ParameterRole::Weight)?;
        let shape = self.tensors.get(&*weight.name).map(|tensor| {
            let mut shape = tensor.shape.clone();
            shape.resize(dims, 1);
            shape
        });
        Some(self.parameter_as(weight, shape))
    }

    fn parameter_as(&mut self, parameter: &Parameter, shape: Option<Vec<usize>>) -> String {
        let Some(tensor) = self.tensors.get(&*parameter.name) else {
            // A constant: the scale of a norm without one.
            let value = f64::from(u8::from(matches!(
                parameter.role,
                ParameterRole::Gamma | ParameterRole::RunningVariance
            )));
            let count = parameter.volume();
            let shape = shape.unwrap_or_else(|| vec![count]);
            return self.constant(&parameter.name, self.element, shape, &vec![value; count]);
        };
        let shape = shape.unwrap_or_else(|| tensor.shape.clone());
        let is_written = |name: &str| {
            let mut all = self.message.initializer.iter();
            let found = all.find(|one| one.name == name);
            found.map(|one| one.dims.len() == shape.len())
        };
        // A vector may be read with other dims elsewhere.
        let name = match is_written(&tensor.name) {
            Some(false) => format!("{}.{}", tensor.name, shape.len()),
            Some(true) | None => tensor.name.clone(),
        };
        self.initializer(&name, self.element, &shape, &tensor.values);
        name
    }

    fn initializer(&mut self, name: &str, element: Element, shape: &[usize], values: &[f64]) {
        if !self.written.insert(name.to_owned()) {
            return;
        }
        self.message.initializer.push(TensorMessage {
            dims: shape.iter().map(|&one| one as i64).collect(),
            data_type: number_of(element),
            name: name.to_owned(),
            raw_data: Some(Bytes::from(element.encode(values))),
            ..TensorMessage::default()
        });
    }

    /// A constant of the graph, which no importer takes for a parameter.
    fn constant(
        &mut self,
        name: &str,
        element: Element,
        shape: Vec<usize>,
        values: &[f64],
    ) -> String {
        if self.written.insert(name.to_owned()) {
            let tensor = TensorMessage {
                dims: shape.iter().map(|&one| one as i64).collect(),
                data_type: number_of(element),
                raw_data: Some(Bytes::from(element.encode(values))),
                ..TensorMessage::default()
            };
            let attribute = Attribute {
                name: "value".to_owned(),
                t: Some(tensor),
                kind: Attribute::TENSOR,
                ..Attribute::default()
            };
            self.push("Constant", name, &[], vec![attribute]);
        }
        name.to_owned()
    }

    fn whole(&mut self, name: &str, values: &[i64]) -> String {
        let numbers: Vec<f64> = values.iter().map(|&one| one as f64).collect();
        self.constant(name, Element::I64, vec![values.len()], &numbers)
    }

    /// The value with all dims of an image.
    fn image(&mut self, value: &Value) -> Value {
        if !value.is_features {
            return value.clone();
        }
        let axes: Vec<i64> = (2..2 + self.rank() as i64).collect();
        let axes = self.whole("image.axes", &axes);
        let name = format!("{}.image", value.name);
        if self.written.insert(name.clone()) {
            self.push("Unsqueeze", &name, &[&value.name, &axes], Vec::new());
        }
        Value {
            name,
            is_features: false,
            ..value.clone()
        }
    }

    /// The value as samples and features; it has one position, or is flattened.
    fn features(&mut self, value: &Value) -> Value {
        if value.is_features {
            return value.clone();
        }
        let name = format!("{}.features", value.name);
        if self.written.insert(name.clone()) {
            self.push("Flatten", &name, &[&value.name], vec![int("axis", 1)]);
        }
        Value {
            name,
            is_features: true,
            ..value.clone()
        }
    }

    fn flatten(&mut self, node: &Node, input: &Value) -> Value {
        let is_other = input.shape.extent != [1; 3] && input.shape.channels > 1;
        let flat = self.features(input);
        Value {
            shape: node.shape,
            flattened: input.flattened.or(is_other.then_some(input.shape)),
            ..flat
        }
    }

    fn finish(mut self, output: &Value, node: &Node) -> Result<Vec<u8>, Vec<Reason>> {
        let rank = self.rank();
        let info = |name: &str, shape: Shape, is_features: bool, element| {
            let mut dims = vec![Dimension {
                value: None,
                parameter: Some("batch".to_owned()),
            }];
            let space = &shape.extent[3 - rank..];
            let space = if is_features { &[][..] } else { space };
            let fixed = [shape.channels].into_iter().chain(space.iter().copied());
            dims.extend(fixed.map(|extent| Dimension {
                value: Some(extent as i64),
                parameter: None,
            }));
            let tensor = TensorKind {
                element,
                shape: Some(ShapeMessage { dim: dims }),
            };
            ValueInfo {
                name: name.to_owned(),
                kind: Some(Kind {
                    tensor: Some(tensor),
                }),
            }
        };
        let element = number_of(self.element);
        let is_input = |node: &&Node| matches!(node.op, Op::Input | Op::Features);
        let inputs = self.graph.nodes.iter().filter(is_input);
        self.message.input = inputs
            .map(|node| info(&node.name, node.shape, node.op == Op::Features, element))
            .collect();
        self.message.output = vec![info(&output.name, node.shape, output.is_features, element)];
        self.message.name.clone_from(&self.graph.name);
        let model = Model {
            ir_version: IR_VERSION,
            producer_name: PRODUCER.to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            graph: Some(self.message),
            opset_import: vec![OperatorSet {
                domain: String::new(),
                version: OPSET,
            }],
        };
        let length = model.encoded_len();
        if length > BYTES_MAX {
            let most = format!("and a file of ONNX has at most {BYTES_MAX}");
            return Err(vec![
                format!("the model would have {length} bytes, {most}").into(),
            ]);
        }
        Ok(model.encode_to_vec())
    }
}

/// Whether each feature of the output is made of the same one of the input, or all of them are read by a weight in their
/// order there.
fn keeps_order(op: &Op) -> bool {
    matches!(
        op,
        Op::Linear { .. }
            | Op::Flatten
            | Op::Reshape { .. }
            | Op::BatchNorm { .. }
            | Op::LeakyRelu { .. }
            | Op::Prelu(_)
            | Op::Softmax
            | Op::Dropout { .. }
            | Op::LayerNorm { .. }
            | Op::Activation(_)
            | Op::Loss(_)
            | Op::AuxiliaryLoss { .. }
    )
}
