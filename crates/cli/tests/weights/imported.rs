//! Networks that PyTorch exported, from the command line.

use super::{Case, case};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/imported");
    folder.join(name).display().to_string()
}

fn refused(case: &Case, arguments: &str) -> String {
    let output = case.output(&arguments.split(' ').collect::<Vec<_>>());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
    text
}

#[test]
fn an_exported_network_trains_from_its_weights_and_its_weights_go_back() {
    let case = case();
    let net = fixture("unet.pt2");
    let imported = case.answer(&format!(
        "import {net} --out unet.model --weights unet.safetensors --json"
    ));
    let found: Value = serde_json::from_str(&imported).unwrap();
    assert_eq!(found["parameters"], 3811, "{imported}");
    assert_eq!(found["assumed_loss"], true);
    let run = |name: &str, model: &str, loss: &str| {
        let text = format!(
            "model = {model:?}\ndata = \"set\"\noutput = \"{name}\"\nranks = 2\nstrategy = \"depth=2\"\n\
             batch = 2\nepochs = 1\nweights = \"unet.safetensors\"\n\
             transform = {{ scale = 0.01 }}\n{loss}[augmentation]\ncrop = [4, 6, 8]\n[schedule]\nlearning_rate = 0.01\n"
        );
        fs::write(case.path(&format!("{name}.toml")), text).unwrap();
    };
    run("lossless", &net, "");
    let text = refused(case, "train lossless.toml --no-prediction");
    assert!(text.contains("has no loss"), "{text}");
    assert!(
        text.contains("help: try `loss = \"softmax_cross_entropy\"`"),
        "{text}"
    );
    // The same network as it was exported, and as a model file.
    run("exported", &net, "loss = \"softmax_cross_entropy\"\n");
    run("written", "unet.model", "");
    case.answer("train exported.toml --no-prediction");
    case.answer("train written.toml --no-prediction");
    let trained = |name: &str| {
        let file = case.path(&format!("{name}/weights.safetensors"));
        partita_weights::load(file).unwrap().tensors
    };
    assert_eq!(trained("exported"), trained("written"));
    // What goes back has the names and extents of the module, and other values.
    case.answer("weights export exported.toml --out back.safetensors");
    let start = header(&case.path("unet.safetensors"));
    let back = header(&case.path("back.safetensors"));
    let names: Vec<&String> = start
        .keys()
        .filter(|name| *name != "__metadata__")
        .collect();
    assert!(names.iter().any(|name| *name == "enc.0.norm1.weight"));
    for name in names {
        assert_eq!(back[name]["shape"], start[name]["shape"], "{name}");
    }
    let bytes = |name: &str| fs::read(case.path(name)).unwrap();
    assert_ne!(bytes("back.safetensors"), bytes("unet.safetensors"));
}

#[test]
fn an_onnx_model_trains_and_what_was_trained_goes_back_as_one() {
    let case = case();
    let net = fixture("unet.onnx");
    let imported = case.answer(&format!("import {net} --weights onnx.safetensors --json"));
    let found: Value = serde_json::from_str(&imported).unwrap();
    assert_eq!(found["parameters"], 3811, "{imported}");
    let text = format!(
        "model = {net:?}\ndata = \"set\"\noutput = \"of_onnx\"\nranks = 2\nstrategy = \"width=2\"\nbatch = 2\n\
         epochs = 1\nweights = \"onnx.safetensors\"\nloss = \"softmax_cross_entropy\"\n\
         transform = {{ scale = 0.01 }}\n[augmentation]\ncrop = [4, 6, 8]\n[schedule]\nlearning_rate = 0.01\n"
    );
    fs::write(case.path("of_onnx.toml"), text).unwrap();
    case.answer("train of_onnx.toml --no-prediction");
    case.answer("weights export of_onnx.toml --onnx trained.onnx");
    // Read back, it has the trained weights, bit by bit, and the same predictions.
    case.answer("import trained.onnx --weights back_of_onnx.safetensors");
    let tensors = |name: &str| partita_weights::load(case.path(name)).unwrap().tensors;
    case.answer("weights export of_onnx.toml --out direct.safetensors");
    let (back, direct) = (
        tensors("back_of_onnx.safetensors"),
        state_dict(&case.path("direct.safetensors")),
    );
    assert_eq!(back.len(), 37);
    for (name, tensor) in &back {
        let words: Vec<u8> = match &tensor.values {
            partita_weights::Values::F32(all) => {
                all.iter().flat_map(|one| one.to_le_bytes()).collect()
            }
            partita_weights::Values::F64(_) => panic!("{name} is in double precision"),
        };
        assert_eq!(words, direct[name].2, "{name}");
    }
    let losses = |model: &str, weights: &str| {
        let text = fs::read_to_string(case.path("of_onnx.toml")).unwrap();
        let text = text.replace(&format!("model = {net:?}"), &format!("model = {model:?}"));
        let text = text.replace("strategy = \"width=2\"", "strategy = \"data=2\"");
        fs::write(case.path("evaluated.toml"), text).unwrap();
        let answer = case.answer(&format!(
            "evaluate evaluated.toml --weights {weights} --split validation --json"
        ));
        serde_json::from_str::<Value>(&answer).unwrap()["metrics"]["loss"].clone()
    };
    assert_eq!(
        losses("trained.onnx", "back_of_onnx.safetensors"),
        losses(&net, "direct.safetensors")
    );
}

/// Type, extents and bytes of each tensor of a file.
fn state_dict(path: &Path) -> std::collections::BTreeMap<String, (String, Value, Vec<u8>)> {
    let bytes = fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let data = &rest[u64::from_le_bytes(*length) as usize..];
    let entries = header(path).into_iter();
    let tensors = entries.filter(|(name, _)| name != "__metadata__");
    tensors
        .map(|(name, entry)| {
            let at = |index: usize| entry["data_offsets"][index].as_u64().unwrap() as usize;
            let bytes = data[at(0)..at(1)].to_vec();
            let element = entry["dtype"].as_str().unwrap().to_owned();
            (name, (element, entry["shape"].clone(), bytes))
        })
        .collect()
}

#[test]
fn a_state_dict_goes_back_as_it_was() {
    let case = case();
    for name in ["sequence", "excited", "frozen", "unet"] {
        let net = fixture(&format!("{name}.pt2"));
        let weights = format!("{name}_there.safetensors");
        let back = format!("{name}_back.safetensors");
        case.answer(&format!("import {net} --weights {weights}"));
        case.answer(&format!(
            "weights export {weights} --like {net} --out {back}"
        ));
        // What torch.export.save keeps is the state dict of the module.
        let expected = partita_testkit::read_weights(Path::new(&net)).unwrap();
        let found = state_dict(&case.path(&back));
        assert_eq!(found.len(), expected.len(), "{name}");
        for one in expected {
            let (element, shape, bytes) = &found[&one.name];
            assert_eq!(element, one.element.name(), "{name}: {}", one.name);
            assert_eq!(
                *shape,
                Value::from(one.shape.clone()),
                "{name}: {}",
                one.name
            );
            assert_eq!(
                *bytes,
                one.element.encode(&one.values),
                "{name}: {}",
                one.name
            );
        }
    }
    // The module's kernel has the name of a parameter there, and that of a layer here.
    let found = state_dict(&case.path("sequence_back.safetensors"));
    assert!(found.contains_key("kernel") && found.contains_key("norm.num_batches_tracked"));
    assert!(state_dict(&case.path("excited_back.safetensors")).contains_key("unused"));
    let other = fixture("excited.pt2");
    let text = refused(
        case,
        &format!("weights export sequence_there.safetensors --like {other} --out none.safetensors"),
    );
    assert!(text.contains("sequence_there.safetensors"), "{text}");
    assert!(!case.path("none.safetensors").exists());
}

/// The names, types and extents of a file of tensors.
fn header(path: &Path) -> serde_json::Map<String, Value> {
    let bytes = fs::read(path).unwrap();
    let (length, _) = bytes.split_first_chunk::<8>().unwrap();
    let end = 8 + u64::from_le_bytes(*length) as usize;
    serde_json::from_slice(&bytes[8..end]).unwrap()
}

#[test]
fn what_is_there_is_not_replaced_and_other_files_are_named() {
    let case = case();
    let net = fixture("excited.pt2");
    fs::write(case.path("kept.model"), "mine").unwrap();
    let text = refused(case, &format!("import {net} --out kept.model"));
    assert!(text.contains("exists, and is not replaced"), "{text}");
    assert_eq!(fs::read_to_string(case.path("kept.model")).unwrap(), "mine");
    let text = refused(case, &format!("import {net} --loss cross"));
    assert!(text.contains("softmax_cross_entropy"), "{text}");
    let text = refused(case, "import kept.model");
    assert!(text.contains("torch.export.save"), "{text}");
}
