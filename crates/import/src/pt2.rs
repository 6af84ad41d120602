//! `.pt2` files, which `torch.export.save` writes: a zip archive of JSON and raw tensors.
//!
//! Source: PyTorch, "PT2 Archive Spec" and `torch/_export/serde/schema.py`.

mod attention;
mod constants;
mod operators;
mod schema;

use crate::archive::{Archive, damaged};
use crate::imported::{Imported, Options};
use crate::network::{Call, Network};
use crate::simplify::simplify;
use crate::strided::{positions, volume};
use crate::translate::translate;
use crate::weights::{Element, Weight};
use crate::{ImportError, Reason, Unsupported};
use constants::Constants;
use operators::{Arguments, tensors_of};
use schema::{
    Argument, InputSpec, NodeJson, OutputSpec, Payload, Payloads, Program, Size, Versioned,
};
use std::collections::BTreeMap;
use std::path::Path;

const PROGRAM: &str = "models/model.json";
const WEIGHTS: &str = "data/weights/model_weights_config.json";
/// Tensors that are no part of the state dict.
const CONSTANTS: &str = "data/constants/model_constants_config.json";

/// Reads a network.
///
/// Errors: a file of another kind or version, a damaged one, operators that cannot be expressed (all of them),
/// several inputs, several outputs of which none is chosen.
pub(crate) fn read(path: &Path, options: &Options) -> Result<Imported, ImportError> {
    let mut archive = Archive::open(path, PROGRAM)?;
    let network = network(&mut archive)?;
    let name = path
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned());
    translate(&network, &name.unwrap_or_default(), options)
}

/// Reads the parameters, buffers and constants of a network, by their names in the state dict or the module.
///
/// Errors: a file of another kind or a damaged one, tensors that are pickled or of a type that is not read.
pub(crate) fn read_weights(path: &Path) -> Result<Vec<Weight>, ImportError> {
    let mut archive = Archive::open(path, PROGRAM)?;
    let mut all = Vec::new();
    for config in [WEIGHTS, CONSTANTS] {
        if config == CONSTANTS && !archive.has(config) {
            continue;
        }
        let text = archive.text(config)?;
        let payloads: Payloads = parse(config, &text)?;
        for (name, payload) in payloads.config {
            if config == WEIGHTS || payload.tensor_meta.is_some() {
                all.push(weight(&mut archive, name, (config, &payload))?);
            }
        }
    }
    Ok(all)
}

fn parse<'a, T: serde::Deserialize<'a>>(file: &str, text: &'a str) -> Result<T, ImportError> {
    serde_json::from_str(text).map_err(|error| damaged(format!("{file}: {error}")))
}

fn network(archive: &mut Archive) -> Result<Network, ImportError> {
    let text = archive.text(PROGRAM)?;
    let Versioned { schema_version } = parse(PROGRAM, &text)?;
    if schema_version.major != schema::VERSION {
        return Err(ImportError::Version {
            found: schema_version.major,
            possible: schema::VERSION,
        });
    }
    let program: Program = parse(PROGRAM, &text)?;
    let graph = program.graph_module.graph;
    let mut network = Network::default();
    for (name, about) in &graph.tensor_values {
        let sizes = about.sizes.iter().map(Size::value);
        let sizes = sizes.collect::<Option<Vec<_>>>();
        let missing = || damaged(format!("the extents of `{name}` have no values"));
        network
            .shapes
            .insert(name.clone(), sizes.ok_or_else(missing)?);
    }
    let is_fixed = |name: &str| {
        let about = graph.tensor_values.get(name);
        about.is_some_and(|about| !about.requires_grad)
    };
    interface(program.graph_module.signature, &mut network)?;
    network.fixed = network
        .stored
        .keys()
        .filter(|name| is_fixed(name))
        .cloned()
        .collect();
    let is_training = graph.nodes.iter().any(in_training_mode);
    let mut memory = Memory::default();
    let shapes = std::mem::take(&mut network.shapes);
    let shape = |name: &str| shapes.get(name).map_or(&[][..], Vec::as_slice);
    let dtype = |name: &str| graph.tensor_values.get(name).map(|about| about.dtype);
    let mut constants = Constants::default();
    buffers(archive, &network, &dtype, &mut constants)?;
    calls(
        &graph.nodes,
        (&shape, &dtype, is_training),
        (constants, &mut memory),
        &mut network,
    );
    network.shapes = shapes;
    simplify(&mut network);
    for output in &network.outputs {
        if let Some(by) = memory.overwritten.get(output) {
            let text = format!(
                "the network returns `{output}`, which {by} has overwritten; return a new tensor"
            );
            return Err(ImportError::Interface(text));
        }
    }
    Ok(network)
}

/// The calls of a network but for those that are computed here, whose outputs are constants.
fn calls<'a>(
    nodes: &'a [NodeJson],
    (shape, dtype, is_training): (
        &impl Fn(&str) -> &'a [usize],
        &impl Fn(&str) -> Option<u64>,
        bool,
    ),
    (mut constants, memory): (Constants, &mut Memory),
    network: &mut Network,
) {
    let last_uses = last_uses(nodes);
    for (index, node) in nodes.iter().enumerate() {
        let parameter = |name: &str| {
            let is_stored = network.stored.contains_key(name);
            is_stored.then(|| shape(name))
        };
        let outputs = tensors_of(node.outputs.iter());
        let arguments = Arguments::new(node, shape, dtype);
        if !constants.fold(&arguments, &outputs, &parameter) {
            for name in arguments.all_tensors() {
                if let Some(constant) = constants.get(&name) {
                    network.constants.insert(name, constant);
                }
            }
            network
                .calls
                .push(call(node, is_training, (shape, dtype), memory));
        }
        let read = arguments.all_tensors().into_iter();
        for name in read.chain(outputs) {
            if last_uses.get(&name).is_none_or(|&last| last <= index) {
                constants.forget(&name);
            }
        }
    }
}

/// Buffers of whole numbers or flags, such as indices: what is computed of them is known.
fn buffers(
    archive: &mut Archive,
    network: &Network,
    dtype: &impl Fn(&str) -> Option<u64>,
    constants: &mut Constants,
) -> Result<(), ImportError> {
    let is_whole = |one: Element| {
        use Element::{Bool, I8, I16, I32, I64, U8};
        matches!(one, Bool | I8 | I16 | I32 | I64 | U8)
    };
    for config in [WEIGHTS, CONSTANTS] {
        if !archive.has(config) {
            continue;
        }
        let text = archive.text(config)?;
        let payloads: Payloads = parse(config, &text)?;
        for (value, original) in &network.stored {
            let element = dtype(value).and_then(Element::of_schema);
            let (Some(element), Some(payload)) = (element, payloads.config.get(original)) else {
                continue;
            };
            if is_whole(element) && payload.tensor_meta.is_some() && !payload.use_pickle {
                let found = weight(archive, original.clone(), (config, payload))?;
                let numbers = (&found.values[..], element == Element::Bool);
                constants.insert(value, &found.shape, numbers);
            }
        }
    }
    Ok(())
}

/// The last node that reads each tensor.
fn last_uses(nodes: &[NodeJson]) -> BTreeMap<String, usize> {
    let mut last = BTreeMap::new();
    for (index, node) in nodes.iter().enumerate() {
        let read = tensors_of(node.inputs.iter().map(|input| &input.arg));
        last.extend(read.into_iter().map(|name| (name, index)));
    }
    last
}

/// Whether an argument says that a module was exported in training mode. Then another that says the opposite is meant
/// so; in a module that was exported in evaluation mode all of them do.
fn in_training_mode(node: &NodeJson) -> bool {
    let mut inputs = node.inputs.iter();
    inputs.any(|input| {
        ["train", "training"].contains(&input.name.as_str())
            && matches!(input.arg, Argument::AsBool(true))
    })
}

/// Inputs, parameters and outputs.
fn interface(signature: schema::Signature, network: &mut Network) -> Result<(), ImportError> {
    for spec in signature.input_specs {
        match spec {
            InputSpec::Parameter {
                arg,
                parameter_name: name,
            }
            | InputSpec::Buffer {
                arg,
                buffer_name: name,
            }
            | InputSpec::TensorConstant {
                arg,
                tensor_constant_name: name,
            } => {
                network.stored.insert(arg.name, name);
            }
            InputSpec::UserInput {
                arg: Argument::AsTensor(tensor),
            } => network.inputs.push(tensor.name),
            InputSpec::UserInput { .. } | InputSpec::Other(_) => {
                let text = "a network with inputs that are no tensors is not read";
                return Err(ImportError::Interface(text.to_owned()));
            }
        }
    }
    for spec in &signature.output_specs {
        match spec {
            OutputSpec::UserOutput {
                arg: Argument::AsTensor(tensor),
            } => {
                network.outputs.push(tensor.name.clone());
            }
            // Buffers that the network changes, such as running statistics, are no outputs.
            OutputSpec::UserOutput { .. } | OutputSpec::Other(_) => {}
        }
    }
    if network.outputs.is_empty() {
        return Err(damaged("the network returns no tensor"));
    }
    Ok(())
}

/// Which values share their memory, and which a call has overwritten: in the graph their names still mean the old
/// elements, in PyTorch the new ones.
#[derive(Default)]
struct Memory {
    /// The value whose memory a view shows.
    owners: BTreeMap<String, String>,
    /// All values by owner.
    shown: BTreeMap<String, Vec<String>>,
    /// Operators that have overwritten a value.
    overwritten: BTreeMap<String, String>,
}

impl Memory {
    /// Notes that `view` shows the memory of `value`.
    fn view(&mut self, view: &str, value: &str) {
        let owner = self.owner(value);
        self.owners.insert(view.to_owned(), owner.clone());
        self.shown.entry(owner).or_default().push(view.to_owned());
    }

    /// Notes that `operator` has overwritten `value`; what it returns has the new elements.
    fn overwrite(&mut self, value: &str, operator: &str) {
        let owner = self.owner(value);
        let views = self.shown.get(&owner).into_iter().flatten();
        let all: Vec<String> = views.chain([&owner]).cloned().collect();
        let by = all.into_iter().map(|name| (name, operator.to_owned()));
        self.overwritten.extend(by);
    }

    fn owner(&self, value: &str) -> String {
        self.owners
            .get(value)
            .map_or(value, String::as_str)
            .to_owned()
    }
}

/// Returns maxima along a dim, and their indices, which no operation makes.
const MAXIMUM: &str = "torch.ops.aten.max.dim";

/// A node as a call.
fn call<'a>(
    node: &'a NodeJson,
    is_training: bool,
    (shape, dtype): (&impl Fn(&str) -> &'a [usize], &impl Fn(&str) -> Option<u64>),
    memory: &mut Memory,
) -> Call {
    let about = |key: &str| node.metadata.get(key).map_or("", String::as_str);
    let read = tensors_of(node.inputs.iter().map(|input| &input.arg));
    let mut outputs = tensors_of(node.outputs.iter());
    if node.target == MAXIMUM {
        outputs.truncate(1);
    }
    let operator = short(&node.target).to_owned();
    let overwritten = read.iter().find_map(|name| memory.overwritten.get(name));
    let translated = match overwritten {
        Some(by) => Err(format!(
            "it reads what {by} has overwritten, which is not followed; write to a new tensor"
        )
        .into()),
        None => {
            let call = Arguments::new(node, shape, dtype);
            attention::products(&call).unwrap_or_else(|| operators::translate(&call, is_training))
        }
    };
    let is_view = translated
        .as_ref()
        .is_ok_and(|(operation, _)| operation.is_view());
    let is_in_place = is_in_place(&node.target);
    if let Some(first) = read.first() {
        if is_in_place {
            memory.overwrite(first, &operator);
        }
        if is_in_place || is_view {
            outputs.iter().for_each(|output| memory.view(output, first));
        }
    }
    let (operation, inputs) = match translated {
        Ok((operation, inputs)) => (Ok(operation), inputs),
        Err(reason) => (Err(reason), read.into_iter().map(Some).collect()),
    };
    Call {
        operator,
        operation,
        module: module(about("nn_module_stack")).to_owned(),
        source: source(about("stack_trace")),
        inputs,
        outputs,
    }
}

/// `aten.conv2d` of `torch.ops.aten.conv2d.default`.
fn short(target: &str) -> &str {
    let name = target.strip_prefix("torch.ops.").unwrap_or(target);
    name.strip_suffix(".default").unwrap_or(name)
}

/// ATen's name of an operator that overwrites its first argument ends in an underscore.
fn is_in_place(target: &str) -> bool {
    let mut parts = target
        .strip_prefix("torch.ops.aten.")
        .unwrap_or_default()
        .split('.');
    parts
        .next()
        .is_some_and(|base| base.len() > 1 && base.ends_with('_'))
}

/// The path of the innermost module of `key,path,class;key,path,class`.
fn module(stack: &str) -> &str {
    let innermost = stack.rsplit(';').next().unwrap_or_default();
    innermost.split(',').nth(1).unwrap_or_default()
}

/// File and line of the innermost frame that is not PyTorch's own.
fn source(trace: &str) -> Option<String> {
    let frames = trace.lines().filter_map(|line| {
        let (file, rest) = line.trim().strip_prefix("File \"")?.split_once('"')?;
        let line = rest.strip_prefix(", line ")?.split(',').next()?;
        Some((file, line))
    });
    let mut own = frames.filter(|(file, _)| !file.contains("/torch/"));
    let (file, line) = own.next_back()?;
    let file = file.rsplit('/').next().unwrap_or(file);
    Some(format!("{file}:{line}"))
}

fn weight(
    archive: &mut Archive,
    name: String,
    (config, payload): (&str, &Payload),
) -> Result<Weight, ImportError> {
    let fault = |what: &str| damaged(format!("the tensor `{name}` {what}"));
    let Some(about) = &payload.tensor_meta else {
        return Err(fault("is described wrongly"));
    };
    if payload.use_pickle {
        return Err(fault("is pickled, which is not read"));
    }
    let Some(element) = Element::of_schema(about.dtype) else {
        return Err(fault(&format!(
            "has the type {}, which is not read",
            about.dtype
        )));
    };
    let numbers = |sizes: &[Size]| {
        sizes
            .iter()
            .map(Size::value)
            .collect::<Option<Vec<usize>>>()
    };
    let offset = about.storage_offset.as_ref().map_or(Some(0), Size::value);
    let (Some(shape), Some(strides), Some(offset)) =
        (numbers(&about.sizes), numbers(&about.strides), offset)
    else {
        return Err(fault("has extents without values"));
    };
    if payload.path_name.contains(['/', '\\']) || strides.len() != shape.len() {
        return Err(fault("is described wrongly"));
    }
    let folder = config.rsplit_once('/').map_or("", |(folder, _)| folder);
    let bytes = archive.bytes(&format!("{folder}/{}", payload.path_name), u64::MAX - 1)?;
    let values = gather(element, &bytes, &shape, (&strides, offset));
    let values = values.ok_or_else(|| fault("is longer than its file"))?;
    Ok(Weight {
        name,
        is_in_state_dict: config == WEIGHTS,
        storage: format!("{} {offset} {shape:?} {strides:?}", payload.path_name),
        shape,
        element,
        values,
    })
}

/// Elements of a tensor that repeats those of its file.
const REPEATED_MAX: usize = 1 << 24;

/// The elements of a strided tensor in row-major order; none if one lies beyond the bytes.
fn gather(
    element: Element,
    bytes: &[u8],
    shape: &[usize],
    (strides, offset): (&[usize], usize),
) -> Option<Vec<f64>> {
    let count = volume(shape)?;
    // Strides of 0 could ask for any number of elements: as many as a large weight has.
    if count > (bytes.len() / element.bytes()).max(REPEATED_MAX) {
        return None;
    }
    // That of the last element is the largest position.
    let steps = shape.iter().zip(strides);
    let mut steps = steps.map(|(&extent, &stride)| extent.saturating_sub(1).checked_mul(stride));
    steps.try_fold(offset, |sum, step| sum.checked_add(step?))?;
    let all = positions(shape, strides, offset);
    all.map(|at| element.at(bytes, at)).collect()
}

impl Unsupported {
    /// Of a call that has no operation.
    pub(crate) fn of(call: &Call, reason: Reason) -> Self {
        Self {
            operator: call.operator.clone(),
            module: call.module.clone(),
            source: call.source.clone(),
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_and_lines_are_those_of_the_user() {
        let stack = "L__self__,,__main__.Net;L__self__enc,enc,X;L__self__enc.0.conv1,enc.0.conv1,torch.nn.Conv3d";
        assert_eq!(module(stack), "enc.0.conv1");
        assert_eq!(module("L__self__,,__main__.Net"), "");
        assert_eq!(module(""), "");
        let trace = "File \"/home/a/net.py\", line 26, in forward\n    x\n  File \"/usr/torch/nn/conv.py\", line 5, in f\n y";
        assert_eq!(source(trace).as_deref(), Some("net.py:26"));
        assert_eq!(source(""), None);
    }

    #[test]
    fn operators_in_place_end_in_an_underscore() {
        assert!(is_in_place("torch.ops.aten.relu_.default"));
        assert!(!is_in_place("torch.ops.aten.relu.default"));
        assert!(!is_in_place("_operator.getitem"));
        assert_eq!(short("torch.ops.aten.relu_.default"), "aten.relu_");
        assert_eq!(short("torch.ops.aten.add.Tensor"), "aten.add.Tensor");
    }

    #[test]
    fn strided_tensors_are_gathered() {
        let bytes: Vec<u8> = (0..8u8).collect();
        let turned = gather(Element::U8, &bytes, &[3, 2], (&[1, 3], 1));
        assert_eq!(turned, Some(vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
        assert_eq!(gather(Element::U8, &bytes, &[3, 3], (&[3, 1], 0)), None);
        assert_eq!(gather(Element::U8, &bytes, &[2, 2], (&[5, 1], 3)), None);
        assert_eq!(
            gather(Element::U8, &bytes, &[usize::MAX, 3], (&[0, 0], 0)),
            None
        );
        let repeated = gather(Element::U8, &bytes, &[5, 2], (&[0, 1], 1));
        assert_eq!(repeated, Some([1.0, 2.0].repeat(5)));
        let many = REPEATED_MAX + 1;
        assert_eq!(gather(Element::U8, &bytes, &[many], (&[0], 0)), None);
    }
}
