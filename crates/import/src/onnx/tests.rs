//! Models that differ from those of PyTorch's exporter, files of tensors beside them, and what is written.

use super::schema::{Entry, Model, NodeMessage};
use super::write::{OnnxTensor, write_onnx};
use super::{module, read_weights};
use crate::{Element, ImportError, Imported, Options, read};
use partita_graph::{Op, ParameterRole, text};
use prost::Message as _;
use prost::bytes::Bytes;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/imported");
    folder.join(format!("{name}.onnx"))
}

fn model(name: &str) -> Model {
    Model::decode(Bytes::from(fs::read(fixture(name)).unwrap())).unwrap()
}

fn written(model: &Model) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.onnx");
    fs::write(&path, model.encode_to_vec()).unwrap();
    (folder, path)
}

fn import(path: &Path) -> Result<Imported, ImportError> {
    read(path, &Options::default())
}

fn refusal(path: &Path) -> String {
    import(path).unwrap_err().to_string()
}

#[test]
fn modules_are_those_that_exporters_note() {
    let named = |name: &str| NodeMessage {
        name: name.to_owned(),
        ..NodeMessage::default()
    };
    assert_eq!(module(&named("/enc/0/conv1/Conv")), "enc.0.conv1");
    let listed = "/layer1/layer1.0/conv1/Conv";
    assert_eq!(module(&named(listed)), "layer1.0.conv1");
    assert_eq!(module(&named("/Relu")), "");
    assert_eq!(module(&named("conv1")), "conv1");
    let noted = NodeMessage {
        metadata_props: vec![Entry {
            key: "pkg.torch.onnx.name_scopes".to_owned(),
            value: "['', 'enc.0', 'enc.0.conv1', 'conv3d']".to_owned(),
        }],
        ..named("node_conv3d")
    };
    assert_eq!(module(&noted), "enc.0.conv1");
}

#[test]
fn layers_have_the_names_of_their_modules() {
    let found = import(&fixture("unet")).unwrap();
    let printed = text::print(&found.graph);
    for line in [
        "input input channels=1 extent=4x6x8",
        "enc.0.conv1 = conv input filters=4 kernel=3 stride=1 pad=1 bias=false",
        "enc.0.norm1 = instance_norm enc.0.conv1 epsilon=1e-5",
        "enc.0.norm2 = batch_norm enc.0.conv2 epsilon=1e-5 momentum=0.1",
        "enc.0.act = leaky_relu enc.0.norm1 slope=0.01",
        "up = conv_transpose enc.1.relu_1 filters=4 kernel=2 stride=2 pad=0 bias=true",
    ] {
        assert!(printed.lines().any(|one| one == line), "{line}\n{printed}");
    }
    // Equal tensors that the exporter wrote once are no shared parameter.
    let optimized = text::print(&import(&fixture("unet_optimized")).unwrap().graph);
    let line = "dec.norm1 = instance_norm dec.conv1 epsilon=1e-5";
    assert!(optimized.lines().any(|one| one == line), "{optimized}");
    // A module that is called twice has one weight.
    let sequence = text::print(&import(&fixture("sequence")).unwrap().graph);
    assert!(sequence.contains("weight=shared.weight"), "{sequence}");
}

#[test]
fn functions_of_several_nodes_become_one_layer() {
    let printed = text::print(&import(&fixture("excited")).unwrap().graph);
    for line in [
        "norm = group_norm depthwise groups=2 epsilon=1e-5",
        "silu = silu norm",
    ] {
        assert!(printed.lines().any(|one| one == line), "{line}\n{printed}");
    }
    let printed = text::print(&import(&fixture("channels_last")).unwrap().graph);
    let line = "wide = conv norm filters=12 kernel=1 stride=1 pad=0 bias=true";
    assert!(printed.lines().any(|one| one == line), "{printed}");
}

#[test]
fn all_nodes_that_cannot_be_expressed_are_named() {
    let mut net = model("unet");
    let nodes = &mut net.graph.as_mut().unwrap().node;
    for node in nodes.iter_mut().filter(|node| node.op_type == "Relu") {
        node.op_type = "Frobnicate".to_owned();
    }
    let (_folder, path) = written(&net);
    let text = refusal(&path);
    for part in [
        "3 of the network's operators cannot be expressed",
        "Frobnicate in `enc.0` (node `node_relu`, opset 20): no layer",
        "and 2 more",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn other_versions_and_damaged_files_are_refused() {
    let mut net = model("sequence");
    net.opset_import[0].version = 12;
    let (folder, path) = written(&net);
    let text = refusal(&path);
    assert!(
        text.contains("opset 12") && text.contains("13 to 28"),
        "{text}"
    );
    let whole = fs::read(fixture("excited")).unwrap();
    let cut = folder.path().join("cut.onnx");
    for part in 0..20 {
        fs::write(&cut, &whole[..whole.len() * part / 20]).unwrap();
        refusal(&cut);
    }
    // A tensor that is said to be large is no memory.
    let mut net = model("sequence");
    net.graph.as_mut().unwrap().initializer[0].dims = vec![1 << 40, 1 << 20, 4];
    let (_folder, path) = written(&net);
    assert!(
        refusal(&path).contains("another length"),
        "{}",
        refusal(&path)
    );
    let mut net = model("sequence");
    net.graph.as_mut().unwrap().input[0].kind = None;
    let (_folder, path) = written(&net);
    assert!(refusal(&path).contains("has no extents"));
}

/// The first tensor of a model in another file.
fn outside(location: &str, offset: &str) -> (TempDir, PathBuf, Vec<u8>) {
    let mut net = model("sequence");
    let tensor = &mut net.graph.as_mut().unwrap().initializer[0];
    let bytes = tensor.raw_data.take().unwrap().to_vec();
    tensor.data_location = 1;
    for (key, value) in [("location", location), ("offset", offset)] {
        tensor.external_data.push(Entry {
            key: key.to_owned(),
            value: value.to_owned(),
        });
    }
    let (folder, path) = written(&net);
    (folder, path, bytes)
}

#[test]
fn tensors_in_files_beside_the_model_are_read() {
    let (folder, path, bytes) = outside("parts/net.data", "8");
    fs::create_dir(folder.path().join("parts")).unwrap();
    let data = folder.path().join("parts/net.data");
    fs::write(&data, [&[0; 8], &bytes[..]].concat()).unwrap();
    let found = read_weights(&path).unwrap();
    let expected = read_weights(&fixture("sequence")).unwrap();
    assert_eq!(found, expected);
    fs::write(&data, &bytes).unwrap();
    let error = read_weights(&path).unwrap_err().to_string();
    assert!(error.contains("ends beyond"), "{error}");
    // A link within the folder is followed, one out of it is not.
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("net.data"), [0; 4096]).unwrap();
    fs::remove_file(&data).unwrap();
    symlink(other.path().join("net.data"), &data).unwrap();
    let error = read_weights(&path).unwrap_err().to_string();
    assert!(error.contains("a link out of the folder"), "{error}");
    fs::remove_file(&data).unwrap();
    fs::create_dir(&data).unwrap();
    let error = read_weights(&path).unwrap_err().to_string();
    assert!(error.contains("is no file"), "{error}");
    for location in ["/etc/passwd", "../net.data", "parts/../../net.data", ""] {
        let (_folder, path, _) = outside(location, "0");
        let error = read_weights(&path).unwrap_err().to_string();
        assert!(error.contains("only files beside the network"), "{error}");
    }
}

#[test]
fn what_is_written_reads_as_the_same_network() {
    for name in [
        "unet",
        "excited",
        "channels_last",
        "sequence",
        "shuffled",
        "shuffled_volume",
        "excited_optimized",
        "tabular",
    ] {
        let found = import(&fixture(name)).unwrap();
        let weights = read_weights(&fixture(name)).unwrap();
        let graph = &found.graph;
        let tensors = graph.stored_parameters().map(|parameter| {
            let layer = parameter.name.rsplit_once('.').unwrap().0;
            let word = crate::state_dict_role(parameter.role);
            let name = format!("{layer}.{word}");
            let stored = found.stored.iter().find(|one| one.name == name).unwrap();
            let weight = weights
                .iter()
                .find(|one| one.name == stored.original)
                .unwrap();
            let mut shape = weight.shape.clone();
            // A linear layer over channels at each position is a convolution here.
            let node = graph.node(graph.find(layer).unwrap());
            if parameter.role == ParameterRole::Weight && matches!(node.op, Op::Convolution(_)) {
                shape.resize(2 + graph.spatial_rank, 1);
            }
            let tensor = OnnxTensor {
                name,
                shape,
                element: Element::F64,
                values: weight.values.clone(),
            };
            (parameter.name.clone(), tensor)
        });
        let tensors: BTreeMap<_, _> = tensors.collect();
        let (_folder, path) = written(&Model::default());
        fs::write(&path, write_onnx(graph, &tensors).unwrap()).unwrap();
        let again = read(&path, &Options::default()).unwrap();
        // Nodes that nothing computes have gone, such as dropout.
        let lines = |one: &Imported| {
            let printed = text::print(&one.graph);
            let lines: Vec<String> = printed.lines().skip(1).map(str::to_owned).collect();
            lines
        };
        let (before, after) = (lines(&found), lines(&again));
        assert_eq!(before.len(), after.len(), "{before:#?}\n{after:#?}");
        let read = read_weights(&path).unwrap();
        for parameter in graph.stored_parameters() {
            if parameter.role == ParameterRole::Weight {
                let tensor = &tensors[&parameter.name];
                let found = read.iter().find(|one| one.name == tensor.name).unwrap();
                assert_eq!(found.values, tensor.values, "{name}: {}", tensor.name);
            }
        }
    }
}

#[test]
fn a_weight_of_images_and_of_features_is_written_with_the_dims_of_both() {
    let model = "model shared\ninput x channels=2 extent=4x4\nc = conv x filters=2 kernel=1 bias=false\n\
                 p = global_average_pool c\nf = flatten p\nl = linear f features=2 bias=false weight=c.weight\nloss = mse l\n";
    let graph = text::parse(model).unwrap();
    let tensor = OnnxTensor {
        name: "c.weight".to_owned(),
        shape: vec![2, 2, 1, 1],
        element: Element::F64,
        values: vec![1.0, 2.0, 3.0, 4.0],
    };
    let tensors = BTreeMap::from([("c.weight".to_owned(), tensor)]);
    let written = write_onnx(&graph, &tensors).unwrap();
    let graph = Model::decode(&written[..]).unwrap().graph.unwrap();
    let dims = |operator: &str| {
        let node = graph
            .node
            .iter()
            .find(|one| one.op_type == operator)
            .unwrap();
        let mut all = graph.initializer.iter();
        all.find(|one| one.name == node.input[1])
            .unwrap()
            .dims
            .clone()
    };
    assert_eq!(dims("Conv"), [2, 2, 1, 1]);
    assert_eq!(dims("Gemm"), [2, 2]);
}
