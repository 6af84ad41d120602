//! From operations between named values to a graph.

mod arrange;
mod attention;
mod branches;
mod noise;
mod operate;
mod sums;
mod tokens;

use crate::imported::{Imported, Layer, LossChoice, Options, Stored};
use crate::layout::Layout;
use crate::network::{Call, Constant, Network, Operation};
use crate::{ImportError, Reason, Unsupported};
use partita_graph::{
    GraphBuilder, GraphError, Loss, NodeId, Op, ParameterId, ParameterRole, ParameterSource, Shape,
};
use std::collections::{BTreeMap, HashMap};

/// What a named value is.
#[derive(Clone, Debug)]
enum Value {
    Tensor(Tensor),
    /// A parameter or buffer, in these extents.
    Stored {
        value: String,
        shape: Vec<usize>,
    },
    /// An image with a border around it, as wide as this, for one kind of layer alone.
    Bordered(Tensor, Border, [(usize, usize); 3]),
    /// Random numbers.
    Noise(noise::Drawn),
    /// Scores of an attention.
    Scores(Box<attention::Scores>),
    /// A parameter, repeated for each sample.
    Token(Read),
    /// Known numbers.
    Constant(Constant),
    /// The output of what cannot be expressed.
    Unknown,
}

/// What a border holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Border {
    /// The opposite border, which a convolution reads.
    Opposite,
    /// Minus infinity, which a maximum pooling reads: it never wins.
    Lowest,
}

/// A tensor of the graph.
#[derive(Clone, Debug)]
struct Tensor {
    node: NodeId,
    layout: Layout,
}

/// What keeps a call from becoming a layer.
enum Fault {
    /// It cannot be expressed, for this reason.
    Reason(Reason),
    /// One of its inputs could not.
    Follows,
    Graph(Box<GraphError>),
}

impl From<GraphError> for Fault {
    fn from(error: GraphError) -> Self {
        Self::Graph(Box::new(error))
    }
}

fn reason<T>(text: impl Into<Reason>) -> Result<T, Fault> {
    Err(Fault::Reason(text.into()))
}

/// The state of a translation.
struct Translation<'a> {
    network: &'a Network,
    builder: GraphBuilder,
    values: HashMap<String, Value>,
    /// Spatial dims.
    rank: usize,
    /// Samples of the example.
    samples: usize,
    /// Parameters of the graph by their value.
    parameters: HashMap<String, ParameterId>,
    /// Calls of each module.
    calls: BTreeMap<&'a str, usize>,
    stored: Vec<Stored>,
    /// What a weight's rows are, where they are the features of an image.
    rows: HashMap<String, Option<Shape>>,
}

/// A network as a graph.
pub(crate) fn translate(
    network: &Network,
    name: &str,
    options: &Options,
) -> Result<Imported, ImportError> {
    let output = output(network, options)?;
    let needed = network.needed(output);
    let mut translation = Translation::new(network, &needed, name)?;
    let mut layers = Vec::new();
    let mut unsupported = Vec::new();
    for &index in &needed {
        let call = &network.calls[index];
        match translation.call(call) {
            Ok(layer) => layers.push(Layer {
                operator: call.operator.clone(),
                module: call.module.clone(),
                layer,
            }),
            Err(fault) => {
                match fault {
                    Fault::Reason(reason) => unsupported.push(Unsupported::of(call, reason)),
                    Fault::Graph(error) => {
                        unsupported.push(Unsupported::of(call, error.to_string().into()))
                    }
                    Fault::Follows => {}
                }
                let unknown = call.outputs.iter().map(|one| (one.clone(), Value::Unknown));
                translation.values.extend(unknown);
            }
        }
    }
    if !unsupported.is_empty() {
        return Err(ImportError::Unsupported {
            operators: unsupported,
        });
    }
    translation.finish(output, options, layers)
}

/// The output that is trained.
fn output<'a>(network: &'a Network, options: &Options) -> Result<&'a str, ImportError> {
    let all = &network.outputs;
    match (options.output, &all[..]) {
        (None, [only]) => Ok(only),
        (Some(asked), _) if asked < all.len() => Ok(&all[asked]),
        (asked, _) => {
            let asked = asked.map_or_else(
                || "one is trained".to_owned(),
                |asked| format!("output {asked} is asked for"),
            );
            Err(ImportError::Interface(format!(
                "the network returns {} tensors, and {asked}; possible is output 0 to {}",
                all.len(),
                all.len() - 1
            )))
        }
    }
}

impl<'a> Translation<'a> {
    fn new(network: &'a Network, needed: &[usize], name: &str) -> Result<Self, ImportError> {
        let calls = || needed.iter().map(|&index| &network.calls[index]);
        let read: Vec<&String> = calls()
            .flat_map(|call| call.inputs.iter().flatten())
            .collect();
        let inputs = network.inputs.iter().filter(|input| read.contains(input));
        let (input, features) = interface(network, &inputs.collect::<Vec<_>>())?;
        let sizes = network.shape(input);
        let &[samples, channels, ref extent @ ..] = sizes else {
            return Err(ImportError::Interface(few_dims(input, sizes)));
        };
        if !(1..=3).contains(&extent.len()) {
            return Err(ImportError::Interface(few_dims(input, sizes)));
        }
        let mut builder = GraphBuilder::new(&graph_name(name))?;
        let node = builder.input("input", extent, channels)?;
        let layout = Layout::image(builder.shape(node), extent.len());
        let mut values: HashMap<String, Value> = network
            .stored
            .keys()
            .map(|name| {
                let shape = network.shape(name).to_vec();
                let value = name.clone();
                (name.clone(), Value::Stored { value, shape })
            })
            .collect();
        let constants = network.constants.iter();
        let constants = constants.map(|(name, one)| (name.clone(), Value::Constant(one.clone())));
        values.extend(constants.filter(|(name, _)| !network.stored.contains_key(name)));
        values.insert(input.clone(), Value::Tensor(Tensor { node, layout }));
        if let Some(features) = features {
            let node = builder.features("features", network.shape(features)[1])?;
            let layout = Layout::features(builder.shape(node));
            values.insert(features.clone(), Value::Tensor(Tensor { node, layout }));
        }
        let mut count = BTreeMap::new();
        for call in calls() {
            *count.entry(call.module.as_str()).or_insert(0) += 1;
        }
        Ok(Self {
            network,
            builder,
            values,
            rank: extent.len(),
            samples,
            parameters: HashMap::new(),
            calls: count,
            stored: Vec::new(),
            rows: HashMap::new(),
        })
    }

    /// Translates a call, and gives the layer that it became.
    fn call(&mut self, call: &Call) -> Result<Option<String>, Fault> {
        let operation = match &call.operation {
            Ok(operation) => operation,
            Err(text) => return reason(text.clone()),
        };
        if let Some(value) = self.beside(call, operation)? {
            let outputs = call.outputs.iter();
            let values = outputs.map(|name| (name.clone(), value.clone()));
            self.values.extend(values);
            return Ok(None);
        }
        let values = self.operate(call, operation)?;
        let last = values.last().map(|tensor| tensor.node);
        let is_new = last.is_some_and(|node| {
            let known = self.values.values();
            !known
                .into_iter()
                .any(|value| matches!(value, Value::Tensor(one) if one.node == node))
        });
        if values.len() != call.outputs.len() {
            return reason("it has other outputs than are read");
        }
        for (name, tensor) in call.outputs.iter().zip(values) {
            self.check(name, &tensor)?;
            self.values.insert(name.clone(), Value::Tensor(tensor));
        }
        Ok(last
            .filter(|_| is_new)
            .map(|node| self.builder.name(node).to_owned()))
    }

    /// A parameter in other extents, or an image with its opposite borders; none if the call makes neither.
    fn rearranged(&self, call: &Call, operation: &Operation) -> Option<Value> {
        let input = self.values.get(call.inputs.first()?.as_ref()?)?;
        match (input, operation) {
            (Value::Stored { value, shape }, Operation::Reshape | Operation::Identity) => {
                let value = value.clone();
                let sizes = self.output_extents(call).to_vec();
                let is_same = sizes.iter().product::<usize>() == shape.iter().product::<usize>();
                is_same.then_some(Value::Stored {
                    value,
                    shape: sizes,
                })
            }
            (Value::Tensor(tensor), Operation::Pad { sides, mode: None }) => {
                self.check_image(tensor).ok()?;
                let sides = self.sides(tensor, sides).ok()?;
                Some(Value::Bordered(tensor.clone(), Border::Opposite, sides))
            }
            (Value::Tensor(tensor), Operation::PadLowest { sides }) => {
                self.check_image(tensor).ok()?;
                let sides = self.sides(tensor, sides).ok()?;
                Some(Value::Bordered(tensor.clone(), Border::Lowest, sides))
            }
            _ => None,
        }
    }

    /// A value that is no tensor of the graph; none if the call makes a tensor.
    fn beside(&self, call: &Call, operation: &Operation) -> Result<Option<Value>, Fault> {
        if let Some(drawn) = self.noise(call, operation)? {
            return Ok(Some(Value::Noise(drawn)));
        }
        if let Some(scores) = self.scores(call, operation)? {
            return Ok(Some(Value::Scores(Box::new(scores))));
        }
        if *operation == Operation::Repeat {
            return Ok(self.token(call)?.map(Value::Token));
        }
        Ok(self.rearranged(call, operation))
    }

    /// The extents that the file says are those that the graph finds.
    fn check(&self, name: &str, tensor: &Tensor) -> Result<(), Fault> {
        let found = self.extents(tensor);
        let expected = self.network.shape(name);
        if found == expected {
            return Ok(());
        }
        reason(format!(
            "its output would have the extents {found:?}, and the file says {expected:?}"
        ))
    }

    /// The extents of a tensor in PyTorch's order.
    fn extents(&self, tensor: &Tensor) -> Vec<usize> {
        let shape = self.builder.shape(tensor.node);
        tensor.layout.extents(shape, self.samples)
    }

    /// The extents that the file says of the first output of a call.
    fn output_extents(&self, call: &Call) -> &'a [usize] {
        let network = self.network;
        let first = call.outputs.first();
        first.map_or(&[], |name| network.shape(name))
    }

    fn shape(&self, tensor: &Tensor) -> Shape {
        self.builder.shape(tensor.node)
    }

    /// The tensor that a call reads.
    fn tensor(&self, call: &Call, index: usize) -> Result<Tensor, Fault> {
        let Some(name) = call.inputs.get(index).and_then(Option::as_ref) else {
            return reason("it reads a number or nothing where a tensor is read");
        };
        match self.values.get(name) {
            Some(Value::Tensor(tensor)) => Ok(tensor.clone()),
            Some(Value::Unknown) => Err(Fault::Follows),
            Some(Value::Noise(_)) => reason("it reads random numbers"),
            Some(Value::Constant(_)) => {
                reason("it reads numbers that do not depend on the input as a tensor")
            }
            Some(Value::Scores(_)) => {
                reason("it works on attention scores in a way that is not read")
            }
            Some(Value::Token(read)) => reason(format!(
                "it reads the parameter `{}`, repeated for each sample, as a tensor",
                read.name
            )),
            Some(Value::Bordered(_, Border::Opposite, _)) => reason(
                "it reads what is padded by its opposite border, which only a convolution does",
            ),
            Some(Value::Bordered(_, Border::Lowest, _)) => reason(
                "it reads what is padded by minus infinity, which only a maximum pooling does",
            ),
            Some(Value::Stored { value, .. }) => reason(format!(
                "it reads the parameter `{}` as a tensor",
                self.network.stored[value]
            )),
            None => reason(format!("it reads `{name}`, which nothing computes")),
        }
    }

    /// The parameter that a call reads; none where it reads none.
    fn parameter(&self, call: &Call, index: usize) -> Result<Option<Read>, Fault> {
        let Some(name) = call.inputs.get(index).and_then(Option::as_ref) else {
            return Ok(None);
        };
        match self.values.get(name) {
            Some(Value::Stored { value, shape }) => Ok(Some(Read {
                value: value.clone(),
                name: self.network.stored[value].clone(),
                shape: shape.clone(),
            })),
            Some(Value::Unknown) => Err(Fault::Follows),
            Some(
                Value::Tensor(_)
                | Value::Bordered(..)
                | Value::Noise(_)
                | Value::Scores(_)
                | Value::Constant(_)
                | Value::Token(_),
            )
            | None => reason("its parameters are computed, not stored"),
        }
    }

    /// Adds a node with parameters, named after the first of them.
    fn node(
        &mut self,
        call: &Call,
        op: Op,
        inputs: &[NodeId],
        parameters: &[(ParameterRole, Option<Read>)],
    ) -> Result<NodeId, Fault> {
        let name = self.name(call, parameters);
        self.named(&name, op, inputs, parameters)
    }

    /// Adds a node with parameters and a name, if that is free.
    fn named(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[NodeId],
        parameters: &[(ParameterRole, Option<Read>)],
    ) -> Result<NodeId, Fault> {
        let name = self.free(&valid(name));
        let sources: Vec<(ParameterRole, ParameterSource)> = parameters
            .iter()
            .filter_map(|(role, read)| {
                let source = match read {
                    None => ParameterSource::Constant,
                    Some(read) => ParameterSource::Shared(*self.parameters.get(&read.value)?),
                };
                Some((*role, source))
            })
            .collect();
        let node = self.builder.node(&name, op, inputs, &sources)?;
        for (role, read) in parameters {
            let Some(read) = read else { continue };
            if self.parameters.contains_key(&read.value) {
                continue;
            }
            let id = self
                .builder
                .find_parameter(&format!("{name}.{}", role.name()))?;
            self.parameters.insert(read.value.clone(), id);
            self.stored.push(Stored {
                name: format!("{name}.{}", state_dict_role(*role)),
                original: read.name.clone(),
                shape: read.shape.clone(),
            });
        }
        Ok(node)
    }

    /// Adds a node without parameters.
    fn plain(&mut self, call: &Call, op: Op, inputs: &[NodeId]) -> Result<NodeId, Fault> {
        self.node(call, op, inputs, &[])
    }

    /// The name of a layer: that of its parameters, of its module if that has no other call, or of the value.
    fn name(&self, call: &Call, parameters: &[(ParameterRole, Option<Read>)]) -> String {
        let read = parameters
            .iter()
            .find_map(|(role, read)| Some((role, read.as_ref()?)));
        let of_parameter = read.and_then(|(role, read)| {
            read.name
                .strip_suffix(&format!(".{}", state_dict_role(*role)))
        });
        let is_only = self.calls.get(call.module.as_str()) == Some(&1);
        let own = call.outputs.first().map_or("layer", String::as_str);
        let name = match of_parameter {
            Some(name) => name.to_owned(),
            None if is_only && !call.module.is_empty() => call.module.clone(),
            None if call.module.is_empty() => own.to_owned(),
            None => format!("{}.{own}", call.module),
        };
        self.free(&valid(&name))
    }

    /// The name, with a number where it is taken.
    fn free(&self, name: &str) -> String {
        let mut free = name.to_owned();
        let mut number = 1;
        while self.builder.find(&free).is_ok() {
            number += 1;
            free = format!("{name}_{number}");
        }
        free
    }

    /// The graph, with its loss.
    fn finish(
        mut self,
        output: &str,
        options: &Options,
        layers: Vec<Layer>,
    ) -> Result<Imported, ImportError> {
        let Some(Value::Tensor(tensor)) = self.values.get(output).cloned() else {
            return Err(ImportError::Interface(
                "the network returns its input or a parameter".to_owned(),
            ));
        };
        let shape = self.shape(&tensor);
        let layout = &tensor.layout;
        if !layout.is_image(shape, self.rank) && *layout != Layout::features(shape) {
            return Err(ImportError::Interface(format!(
                "the output {:?} is no image and no list of features: samples, channels, then space",
                self.extents(&tensor)
            )));
        }
        let (loss, choice) = match &options.loss {
            Some(loss) => (loss.clone(), LossChoice::Asked),
            None if shape.channels > 1 => (Loss::CROSS_ENTROPY, LossChoice::Assumed),
            None => (Loss::MeanSquaredError, LossChoice::Assumed),
        };
        let name = self.free("loss");
        self.builder.loss(&name, tensor.node, loss)?;
        let fixed = self.network.fixed.iter();
        let fixed: Vec<ParameterId> = fixed
            .filter_map(|value| self.parameters.get(value).copied())
            .collect();
        let mut graph = self.builder.build()?;
        let mut frozen = Vec::new();
        for id in fixed {
            let parameter = &mut graph.parameters[id.0];
            if parameter.role.is_trained() {
                parameter.is_frozen = true;
                frozen.push(parameter.name.clone());
            }
        }
        Ok(Imported {
            graph,
            frozen,
            layers,
            loss: choice,
            stored: self.stored,
        })
    }
}

/// A parameter that a call reads.
#[derive(Clone, Debug)]
struct Read {
    value: String,
    /// In the state dict.
    name: String,
    shape: Vec<usize>,
}

/// PyTorch's word for a role, the last part of a name in a state dict.
pub fn state_dict_role(role: ParameterRole) -> &'static str {
    match role {
        ParameterRole::Weight | ParameterRole::Gamma | ParameterRole::Slope => "weight",
        ParameterRole::Bias | ParameterRole::Beta => "bias",
        ParameterRole::RunningMean => "running_mean",
        ParameterRole::RunningVariance => "running_var",
    }
}

/// The input of samples, and that of features: the only one of two dims beside another one of more.
fn interface<'n>(
    network: &Network,
    inputs: &[&'n String],
) -> Result<(&'n String, Option<&'n String>), ImportError> {
    let dims = |input: &String| network.shape(input).len();
    match *inputs {
        [input] => Ok((input, None)),
        [input, features] if dims(input) > 2 && dims(features) == 2 => Ok((input, Some(features))),
        [features, input] if dims(input) > 2 && dims(features) == 2 => Ok((input, Some(features))),
        _ => {
            let all = inputs
                .iter()
                .map(|input| format!("{:?}", network.shape(input)));
            let all: Vec<String> = all.collect();
            Err(ImportError::Interface(format!(
                "the network reads {} inputs ({}), and possible are one, samples x channels x extents, and with it one of \
                 samples x features",
                inputs.len(),
                all.join(", ")
            )))
        }
    }
}

fn few_dims(name: &str, sizes: &[usize]) -> String {
    format!(
        "the input `{name}` has {} dims ({sizes:?}), and possible are 3 to 5: samples, channels, and 1 to 3 of space",
        sizes.len()
    )
}

fn valid(name: &str) -> String {
    let letter = |c: char| {
        if c.is_ascii_alphanumeric() || "_-./".contains(c) {
            c
        } else {
            '_'
        }
    };
    name.chars().map(letter).collect()
}

fn graph_name(name: &str) -> String {
    match valid(name) {
        empty if empty.is_empty() => "imported".to_owned(),
        name => name,
    }
}
