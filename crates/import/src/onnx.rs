//! `.onnx` files: one message of nodes and tensors; tensors may lie in files beside it.
//!
//! A file may have been written by PyTorch or by others. Parameters are initializers; constants of the graph are no
//! parameters. Extents are computed node by node, and compared with those that the file says.
//! Source: ONNX, "Open Neural Network Exchange Intermediate Representation Specification".

mod arrange;
mod fold;
mod layers;
mod node;
mod norms;
mod operators;
mod rules;
pub(crate) mod schema;
mod steps;
mod sums;
mod tensors;
#[cfg(test)]
mod tests;
pub(crate) mod write;

use crate::imported::{Imported, Options};
use crate::network::{Call, Network, Operation};
use crate::translate::translate;
use crate::weights::{Element, Weight};
use crate::{ImportError, Reason};
use node::{Stop, View};
use prost::Message as _;
use prost::bytes::Bytes;
use schema::{GraphMessage, Model, NodeMessage, ValueInfo};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::iter;
use std::path::{Path, PathBuf};
use steps::{Source, Step};
use tensors::{Held, element_of};

/// Versions of the operators that are read.
const OPSETS: (i64, i64) = (13, 28);
/// Largest file: messages are not longer.
const BYTES_MAX: u64 = 2 << 30;
/// Elements of the largest tensor that PyTorch's exporter writes once for several parameters.
const SHARED_MAX: usize = 1024;
/// Samples of an input whose samples are open: two, so that what joins samples is seen.
const SAMPLES: usize = 2;

/// Reads a network.
///
/// Errors: a damaged file, an opset that is not read, nodes that cannot be expressed (all of them).
pub(crate) fn read(path: &Path, options: &Options) -> Result<Imported, ImportError> {
    let model = model(path)?;
    let reader = Reader::read(&model, path)?;
    let name = path
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned());
    translate(&reader.network, &name.unwrap_or_default(), options)
}

/// Reads the parameters that the layers of a network have, in their order of dims.
///
/// Errors: as above, and files of tensors that cannot be read.
pub(crate) fn read_weights(path: &Path) -> Result<Vec<Weight>, ImportError> {
    let model = model(path)?;
    let reader = Reader::read(&model, path)?;
    let all = reader.parameters.iter();
    all.map(|(value, (name, held))| {
        Ok(Weight {
            is_in_state_dict: true,
            storage: value.clone(),
            name: name.clone(),
            shape: held.shape.clone(),
            element: held.element,
            values: held.values(&reader.folder).map_err(damaged)?,
        })
    })
    .collect()
}

fn damaged(fault: impl Into<Reason>) -> ImportError {
    let fault = fault.into();
    ImportError::DamagedOnnx { fault }
}

fn model(path: &Path) -> Result<Model, ImportError> {
    let bytes = partita_files::read(path, BYTES_MAX).map_err(ImportError::Unreadable)?;
    let bytes = Bytes::from(bytes);
    Model::decode(bytes).map_err(|error| damaged(format!("it is no ONNX model ({error})")))
}

/// A file while its nodes are read.
struct Reader<'m> {
    /// Of the network, where files of tensors lie.
    folder: PathBuf,
    opset: i64,
    /// Some node says that the network was exported in training mode.
    is_training: bool,
    /// Values that do not depend on the input.
    known: HashMap<String, Held>,
    elements: HashMap<String, Element>,
    /// Values that no node could compute.
    unknown: HashSet<String>,
    /// Extents that the file says.
    said: HashMap<&'m str, Vec<Option<usize>>>,
    /// The call that computes a value.
    producers: HashMap<String, usize>,
    /// Parameters by the names of their values, with their names in the state dict.
    parameters: BTreeMap<String, (String, Held)>,
    /// The first module that reads a tensor whose name has none.
    owners: HashMap<String, String>,
    network: Network,
}

impl<'m> Reader<'m> {
    fn read(model: &'m Model, path: &Path) -> Result<Self, ImportError> {
        let graph = model.graph.as_ref();
        let graph = graph.ok_or_else(|| damaged("it has no graph".to_owned()))?;
        let mut reader = Self {
            folder: path.parent().map(Path::to_owned).unwrap_or_default(),
            opset: opset(model)?,
            is_training: graph.node.iter().any(in_training_mode),
            known: HashMap::new(),
            elements: HashMap::new(),
            unknown: HashSet::new(),
            said: HashMap::new(),
            producers: HashMap::new(),
            parameters: BTreeMap::new(),
            owners: HashMap::new(),
            network: Network::default(),
        };
        reader.interface(graph)?;
        for node in &graph.node {
            reader.node(node);
        }
        Ok(reader)
    }

    /// Initializers, inputs and outputs.
    fn interface(&mut self, graph: &'m GraphMessage) -> Result<(), ImportError> {
        for tensor in &graph.initializer {
            match Held::read(&tensor.name, tensor, false) {
                Ok(held) => {
                    self.known.insert(tensor.name.clone(), held);
                }
                // It may be one that no layer reads.
                Err(_) if tensor.data_type != 0 && element_of(tensor.data_type).is_none() => {
                    self.unknown.insert(tensor.name.clone());
                }
                Err(fault) => return Err(damaged(fault)),
            }
        }
        for info in graph.value_info.iter().chain(&graph.output) {
            if let Some(extents) = info.extents() {
                self.said.insert(&info.name, extents);
            }
        }
        for input in &graph.input {
            // Older files list initializers as inputs, too.
            if !self.known.contains_key(&input.name) {
                self.input(input)?;
            }
        }
        let outputs = graph.output.iter().map(|info| info.name.clone());
        self.network.outputs = outputs.collect();
        if self.network.outputs.is_empty() {
            return Err(damaged("the network returns no tensor".to_owned()));
        }
        Ok(())
    }

    fn input(&mut self, input: &ValueInfo) -> Result<(), ImportError> {
        let name = &input.name;
        let open = |dim| {
            ImportError::Interface(format!(
                "the extent {dim} of the input `{name}` is open, and only that of samples may be; export the network \
                 with fixed extents"
            ))
        };
        let Some(extents) = input.extents() else {
            return Err(ImportError::Interface(format!(
                "the input `{name}` has no extents; export the network with fixed extents"
            )));
        };
        let mut fixed = Vec::new();
        for (dim, extent) in extents.into_iter().enumerate() {
            fixed.push(match extent {
                Some(extent) => extent,
                None if dim == 0 => SAMPLES,
                None => return Err(open(dim)),
            });
        }
        if let Some(element) = input.element().and_then(element_of) {
            self.elements.insert(name.clone(), element);
        }
        self.network.shapes.insert(name.clone(), fixed);
        self.network.inputs.push(name.clone());
        Ok(())
    }

    /// Reads a node: a constant, or calls.
    fn node(&mut self, node: &'m NodeMessage) {
        let view = View { node, reader: self };
        let folded = fold::fold(&view);
        if let Ok(Some(held)) = folded {
            self.known.insert(view.output().to_owned(), held);
            return;
        }
        let made = folded.and_then(|_| operators::translate(&view));
        let made = made.and_then(|steps| self.checked(steps));
        match made {
            Ok(steps) => {
                for step in steps {
                    self.step(node, step);
                }
            }
            Err(stop) => self.refused(node, stop),
        }
    }

    /// The steps, if their outputs have the extents that the file says.
    fn checked(&self, steps: Vec<Step>) -> Result<Vec<Step>, Stop> {
        for (name, extents) in steps.iter().flat_map(|step| &step.outputs) {
            let Some(said) = self.said.get(name.as_str()) else {
                continue;
            };
            let mut dims = said.iter().zip(extents);
            let is_alike = dims.all(|(said, found)| said.is_none_or(|said| said == *found));
            if said.len() != extents.len() || !is_alike {
                return node::stop(format!(
                    "its output would have the extents {extents:?}, and the file says {said:?}"
                ));
            }
        }
        Ok(steps)
    }

    fn step(&mut self, node: &NodeMessage, step: Step) {
        let module = module(node);
        let element = step.inputs.iter().find_map(|source| match source {
            Source::Value(name) => self.elements.get(name).copied(),
            Source::Parameter(_) | Source::Nothing => None,
        });
        let inputs = step.inputs.into_iter().map(|source| match source {
            Source::Nothing => None,
            Source::Value(name) => Some(name),
            Source::Parameter(held) => Some(self.parameter(*held, &module)),
        });
        let inputs = inputs.collect();
        let mut outputs = Vec::new();
        for (name, extents) in step.outputs {
            self.producers
                .insert(name.clone(), self.network.calls.len());
            self.elements.extend(element.map(|one| (name.clone(), one)));
            self.network.shapes.insert(name.clone(), extents);
            outputs.push(name);
        }
        let call = call(node, Ok(step.operation), inputs, outputs, self.opset);
        self.network.calls.push(call);
    }

    /// A call without an operation.
    fn refused(&mut self, node: &NodeMessage, stop: Stop) {
        let outputs = node.output.iter().filter(|name| !name.is_empty());
        for name in outputs {
            self.producers
                .insert(name.clone(), self.network.calls.len());
            // Later nodes are judged by what the file says.
            let said = self.said.get(name.as_str());
            let fixed = said.and_then(|said| said.iter().copied().collect::<Option<Vec<usize>>>());
            self.network
                .shapes
                .extend(fixed.map(|one| (name.clone(), one)));
        }
        // The translation finds that the first input is unknown.
        let mut inputs: Vec<&String> = node.input.iter().collect();
        inputs.sort_by_key(|name| !self.unknown.contains(*name));
        let inputs = inputs.into_iter().cloned().map(Some).collect();
        let operation = match stop {
            Stop::Reason(reason) => Err(reason),
            Stop::Follows => Ok(Operation::Identity),
        };
        let element = node
            .input
            .iter()
            .find_map(|name| self.elements.get(name).copied());
        let outputs = node.output.iter().cloned();
        self.elements.extend(
            outputs
                .clone()
                .zip(iter::repeat(element))
                .filter_map(|(name, one)| Some((name, one?))),
        );
        self.unknown.extend(outputs);
        let outputs = node.output.clone();
        let call = call(node, operation, inputs, outputs, self.opset);
        self.network.calls.push(call);
    }

    /// The name of the value of a parameter that a module reads.
    fn parameter(&mut self, mut held: Held, module: &str) -> String {
        if let Some(own) = self.own_name(&held, module) {
            held.name = own;
        }
        let value = format!("{}{}", held.name, held.moved());
        if self.parameters.contains_key(&value) {
            return value;
        }
        let mut names = self.parameters.values().map(|(name, _)| name);
        let name = if names.any(|name| *name == held.name) {
            value.clone()
        } else {
            held.name.clone()
        };
        if held.is_constant {
            self.network.fixed.insert(value.clone());
        }
        self.network
            .shapes
            .insert(value.clone(), held.shape.clone());
        self.network.stored.insert(value.clone(), name.clone());
        self.parameters.insert(value.clone(), (name, held));
        value
    }

    /// The name of a small parameter of another module whose numbers are all equal: PyTorch's exporter writes equal
    /// tensors once, which are no shared parameter. None for one that is shared.
    fn own_name(&mut self, held: &Held, module: &str) -> Option<String> {
        if module.is_empty() || held.is_constant || held.volume() > SHARED_MAX {
            return None;
        }
        // Names of older exporters do not tell the module: then it is the first that reads the tensor.
        let (owner, role) = match held.name.rsplit_once('.') {
            Some(parts) => parts,
            None => {
                let first = self.owners.entry(held.name.clone());
                (&**first.or_insert_with(|| module.to_owned()), &*held.name)
            }
        };
        // The second call of a module has a number there.
        let called = module.trim_end_matches(|c: char| c.is_ascii_digit());
        if owner == module || called.strip_suffix('_') == Some(owner) {
            return None;
        }
        let values = held.values(&self.folder).ok()?;
        let is_filled = values.windows(2).all(|pair| pair[0] == pair[1]);
        let own = format!("{module}.{role}");
        (is_filled && !self.known.contains_key(&own)).then_some(own)
    }

    /// The call that computes a value.
    fn producer(&self, name: &str) -> Option<&Call> {
        let index = *self.producers.get(name)?;
        self.network.calls.get(index)
    }

    /// What a call reads.
    fn sources(&self, call: &Call) -> Vec<Source> {
        let source = |name: &Option<String>| match name {
            None => Source::Nothing,
            Some(name) => match self.parameters.get(name) {
                Some((_, held)) => Source::Parameter(Box::new(held.clone())),
                None => Source::Value(name.clone()),
            },
        };
        call.inputs.iter().map(source).collect()
    }

    /// The input and the number of a call of this operator with a value and a single number.
    fn with_number(&self, value: &str, operator: &str) -> Result<Option<(String, f64)>, Stop> {
        let Some(call) = self
            .producer(value)
            .filter(|call| call.operator == operator)
        else {
            return Ok(None);
        };
        let [Some(first), Some(second)] = &call.inputs[..] else {
            return Ok(None);
        };
        let number = |name: &String| self.known.get(name).filter(|held| held.volume() == 1);
        let (value, held) = match (number(first), number(second)) {
            (None, Some(held)) => (first, held),
            (Some(held), None) if operator != "Div" => (second, held),
            _ => return Ok(None),
        };
        let values = held.values(&self.folder)?;
        Ok(Some((value.clone(), values[0])))
    }

    /// The name of a part of a sequence.
    fn part(sequence: &str, index: usize) -> String {
        format!("{sequence}[{index}]")
    }
}

fn opset(model: &Model) -> Result<i64, ImportError> {
    let mut sets = model.opset_import.iter();
    let own = sets.find(|set| set.domain.is_empty() || set.domain == "ai.onnx");
    let found = own.map_or(0, |set| set.version);
    let (least, most) = OPSETS;
    if (least..=most).contains(&found) {
        return Ok(found);
    }
    Err(ImportError::Opset { found, least, most })
}

/// Whether an attribute says that the network was exported in training mode.
fn in_training_mode(node: &NodeMessage) -> bool {
    let mut attributes = node.attribute.iter();
    attributes.any(|one| one.name == "training_mode" && one.i == Some(1))
}

fn call(
    node: &NodeMessage,
    operation: Result<Operation, Reason>,
    inputs: Vec<Option<String>>,
    outputs: Vec<String>,
    opset: i64,
) -> Call {
    let about = match node.name.as_str() {
        "" => format!("opset {opset}"),
        name => format!("node `{name}`, opset {opset}"),
    };
    Call {
        operator: node.op_type.clone(),
        operation,
        module: module(node),
        source: Some(about),
        inputs,
        outputs,
    }
}

/// The path of the module that calls: in what PyTorch's exporter notes, or in the name `/layer1/conv1/Conv` of the one
/// before it. Else the name of the node.
fn module(node: &NodeMessage) -> String {
    let scopes = node
        .metadata_props
        .iter()
        .find(|one| one.key == "pkg.torch.onnx.name_scopes");
    if let Some(scopes) = scopes {
        let mut names: Vec<&str> = scopes.value.split('\'').skip(1).step_by(2).collect();
        // The last is the call itself.
        names.pop();
        return names.pop().unwrap_or_default().to_owned();
    }
    match node.name.strip_prefix('/') {
        Some(path) => {
            let mut parts: Vec<&str> = path.split('/').collect();
            parts.pop();
            // A module in a list has the path of the list in its own name: `/layer1/layer1.0`.
            let is_in = |part: &str, next: &str| {
                let rest = next.strip_prefix(part);
                rest.is_some_and(|rest| rest.starts_with('.'))
            };
            let kept = (0..parts.len())
                .filter(|&at| parts.get(at + 1).is_none_or(|next| !is_in(parts[at], next)));
            kept.map(|at| parts[at]).collect::<Vec<_>>().join(".")
        }
        None => node.name.clone(),
    }
}
