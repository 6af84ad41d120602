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
