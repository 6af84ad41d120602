//! What is imported and what is refused, from programs that PyTorch exported and texts that differ from them.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{Loss, text};
use partita_import::{ImportError, LossChoice, Options, read, read_weights};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{ZipArchive, ZipWriter};

fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/imported");
    folder.join(format!("{name}.pt2"))
}

/// A fixture with other texts in its program.
fn changed(name: &str, changes: &[(&str, &str)]) -> (TempDir, PathBuf) {
    let mut archive = ZipArchive::new(File::open(fixture(name)).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.pt2");
    let mut writer = ZipWriter::new(File::create(&path).unwrap());
    for index in 0..archive.len() {
        let mut file = archive.by_index(index).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        if file.name().ends_with("models/model.json") {
            let mut program = String::from_utf8(bytes).unwrap();
            for (old, new) in changes {
                assert!(program.contains(old), "{old}");
                program = program.replace(old, new);
            }
            bytes = program.into_bytes();
        }
        let options = SimpleFileOptions::default();
        writer.start_file(file.name(), options).unwrap();
        writer.write_all(&bytes).unwrap();
    }
    writer.finish().unwrap();
    (folder, path)
}

fn refusal(path: &Path) -> ImportError {
    read(path, &Options::default()).unwrap_err()
}

#[test]
fn layers_have_the_names_of_their_modules() {
    let found = read(&fixture("unet"), &Options::default()).unwrap();
    let printed = text::print(&found.graph);
    for line in [
        "input input channels=1 extent=4x6x8",
        "enc.0.conv1 = conv input filters=4 kernel=3 stride=1 pad=1 bias=false",
        "enc.0.act = leaky_relu enc.0.norm1 slope=0.01",
        "up = conv_transpose enc.1.relu_1 filters=4 kernel=2 stride=2 pad=0 bias=true",
        "loss = softmax_cross_entropy head",
    ] {
        assert!(printed.lines().any(|one| one == line), "{line}\n{printed}");
    }
    assert_eq!(found.loss, LossChoice::Assumed);
    let asked = Options {
        loss: Some(Loss::MeanSquaredError),
        output: Some(0),
    };
    let asked = read(&fixture("unet"), &asked).unwrap();
    assert_eq!(asked.loss, LossChoice::Asked);
    assert!(text::print(&asked.graph).ends_with("loss = mse head\n"));
}

#[test]
fn parameters_have_their_names_in_the_state_dict() {
    let found = read(&fixture("sequence"), &Options::default()).unwrap();
    // A functional call, whose weight is a parameter of the network itself.
    let named = |name: &str| found.stored.iter().find(|one| one.name == name).unwrap();
    assert_eq!(named("conv1d_3.weight").original, "kernel");
    assert_eq!(named("norm.running_var").original, "norm.running_var");
    // A module that is called twice has one weight.
    let printed = text::print(&found.graph);
    let again = "shared_2 = conv relu filters=4 kernel=3 stride=1 pad=1 weight=shared.weight bias=shared.bias";
    assert!(printed.lines().any(|line| line == again), "{printed}");
    let weights = read_weights(&fixture("sequence")).unwrap();
    let kernel = weights.iter().find(|one| one.name == "kernel").unwrap();
    assert_eq!(
        (&kernel.shape[..], kernel.values.len()),
        (&[5, 4, 1][..], 20)
    );
}

#[test]
fn all_operators_that_cannot_be_expressed_are_named() {
    let (_folder, path) = changed(
        "unet",
        &[
            ("aten.relu.default", "aten.frobnicate.default"),
            ("aten.conv3d.padding", "aten.conv3d.strange"),
        ],
    );
    let error = refusal(&path);
    let ImportError::Unsupported { operators } = &error else {
        panic!("{error}");
    };
    assert_eq!(operators.len(), 3 + 3, "{error}");
    let text = error.to_string();
    for part in [
        "6 of the network's operators cannot be expressed",
        "aten.frobnicate in `enc.0` (make.py:",
        "and 2 more",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn values_that_were_overwritten_are_not_read() {
    // `shared` is read by the ReLU and again by the last convolution.
    let (_folder, path) = changed("unet", &[("aten.max_pool3d.default", "aten.relu_.default")]);
    let text = refusal(&path).to_string();
    assert!(text.contains("has overwritten"), "{text}");
}

#[test]
fn outputs_and_inputs_that_a_training_cannot_have_are_refused() {
    let asked = Options {
        loss: None,
        output: Some(3),
    };
    let error = read(&fixture("unet"), &asked).unwrap_err().to_string();
    assert!(
        error.contains("returns 1 tensors") && error.contains("output 3"),
        "{error}"
    );
    let (_folder, path) = changed(
        "sequence",
        &[(
            r#"{"parameter": {"arg": {"name": "p_kernel"}, "parameter_name": "kernel"}}"#,
            r#"{"user_input": {"arg": {"as_tensor": {"name": "p_kernel"}}}}"#,
        )],
    );
    let error = refusal(&path).to_string();
    assert!(error.contains("reads 2 inputs ("), "{error}");
}

#[test]
fn what_no_graph_computes_is_refused() {
    for (name, reason) in [
        (
            "refused/overwritten_view",
            "has overwritten; return a new tensor",
        ),
        ("refused/two_orders", "features are ordered otherwise"),
        ("refused/fraction", "a factor that is not whole"),
        (
            "refused/evaluated_norm",
            "a batch norm in evaluation mode within",
        ),
        ("refused/masked", "a mask of attention scores is not read"),
    ] {
        let text = refusal(&fixture(name)).to_string();
        assert!(text.contains(reason), "{name}: {text}");
    }
}

#[test]
fn products_of_tokens_become_attention() {
    let printed =
        |name: &str| text::print(&read(&fixture(name), &Options::default()).unwrap().graph);
    for (name, lines) in [
        (
            "tokens",
            &[
                "token.sequence = reshape patches extent=1x6",
                "token.pad = pad token.sequence pad=0x1:0 padding=zero",
                "token = position_embedding token.pad rows=1",
                "rows = position_embedding token rows=7",
            ][..],
        ),
        ("volume", &["rows = position_embedding patches rows=12"]),
    ] {
        let printed = printed(name);
        for line in lines {
            assert!(printed.lines().any(|one| one == *line), "{line}\n{printed}");
        }
        let attention = printed
            .lines()
            .filter(|line| line.contains(" = attention "));
        assert_eq!(attention.count(), 1 + usize::from(name == "volume"));
    }
    let (_folder, path) = changed("volume", &[("aten.softmax.int", "aten.relu.default")]);
    let text = refusal(&path).to_string();
    assert!(text.contains("attention scores in a way"), "{text}");
}

#[test]
fn windows_and_terms_of_scores_become_attention() {
    for (name, attentions, others) in [
        (
            "biased",
            &[
                "heads=2 causal=false bias=pairs",
                "heads=4 causal=false bias=pairs",
                "heads=4 causal=true",
                "heads=2 causal=true",
                "heads=2 causal=false bias=relative table=1x8",
            ][..],
            &[][..],
        ),
        (
            "windows",
            &[
                "heads=2 causal=false window=2x3 bias=relative table=2x3",
                "heads=1 causal=false window=2x3 shift=1 bias=relative table=2x3",
                "heads=3 causal=false window=3x2 shift=1x0 bias=relative table=3",
            ],
            &[],
        ),
        (
            "windows_volume",
            &[
                "heads=2 causal=false window=2x2x3 shift=1 bias=relative table=2x2x3",
                "heads=2 causal=false window=2x3x2 bias=relative table=3",
            ],
            &[" = pad blocks.0.norm pad=0x0:1x0 padding=zero"],
        ),
    ] {
        let found = read(&fixture(name), &Options::default()).unwrap();
        let printed = text::print(&found.graph);
        let keys = printed.lines().filter_map(|line| {
            let (_, inputs) = line.split_once(" = attention ")?;
            Some(&inputs[inputs.find("heads=")?..])
        });
        assert_eq!(keys.collect::<Vec<_>>(), attentions, "{printed}");
        for other in others {
            assert!(printed.contains(other), "{other}\n{printed}");
        }
        assert_eq!(text::parse(&printed).unwrap(), found.graph);
        // Tables have their names; indices are buffers that no layer needs.
        let weights = read_weights(&fixture(name)).unwrap();
        let is_used = |name: &str| found.stored.iter().any(|one| one.original == name);
        for weight in &weights {
            assert_ne!(
                is_used(&weight.name),
                weight.name.ends_with("index"),
                "{}",
                weight.name
            );
        }
    }
    // Without a shift its mask is none of windows.
    let (_folder, path) = changed(
        "windows",
        &[("-100.0", "-101.0"), ("aten.ne.Scalar", "aten.gt.Scalar")],
    );
    let text = refusal(&path).to_string();
    assert!(
        text.contains("a mask of attention scores is not read"),
        "{text}"
    );
}

#[test]
fn channels_become_positions_and_borders_never_win() {
    for (name, lines) in [
        (
            "shuffled",
            &[
                "reshape = channel_shuffle stem groups=4",
                "reshape_2 = pixel_shuffle reshape factor=2",
                "up = pixel_shuffle stem factor=2",
                "reshape_2_2 = pixel_shuffle wide factor=2x1",
                "clamp = clamp reshape_2 low=-0.5 high=1.0",
                "clamp_1 = clamp up low=0.1\n",
                "max_pool2d = max_pool add kernel=3 stride=2 pad=1x0:1",
            ][..],
        ),
        ("shuffled_volume", &[" = pixel_shuffle "]),
    ] {
        let found = read(&fixture(name), &Options::default()).unwrap();
        let printed = text::print(&found.graph);
        for line in lines {
            assert!(printed.contains(line), "{line}\n{printed}");
        }
        // Fixed weights are none of the state dict's.
        let weights = read_weights(&fixture(name)).unwrap();
        assert_eq!(found.stored.len(), weights.len());
        assert_eq!(text::parse(&printed).unwrap(), found.graph);
    }
    let (_folder, path) = changed(
        "shuffled",
        &[("aten.max_pool2d.default", "aten.relu.default")],
    );
    let text = refusal(&path).to_string();
    assert!(
        text.contains("minus infinity, which only a maximum pooling"),
        "{text}"
    );
}

#[test]
fn what_has_no_gradient_is_frozen() {
    let found = read(&fixture("frozen"), &Options::default()).unwrap();
    assert_eq!(found.frozen.len(), 2, "{:?}", found.frozen);
    assert!(found.frozen.contains(&"stem.weight".to_owned()));
    let frozen = found.graph.parameters.iter().filter(|one| one.is_frozen);
    assert_eq!(frozen.count(), 2);
    assert!(!text::print(&found.graph).contains("dropout"));
}

#[test]
fn random_numbers_become_dropout() {
    let found = read(&fixture("read/dropped"), &Options::default()).unwrap();
    let printed = text::print(&found.graph);
    for line in [
        "drop = dropout stem rate=0.25 mask=channel",
        "mul = dropout drop rate=0.25 mask=sample",
        "mul_1 = dropout div rate=0.5 mask=sample",
        "mul_1_2 = affine mul_1 scale=0.5 shift=0.0",
    ] {
        assert!(printed.lines().any(|one| one == line), "{line}\n{printed}");
    }
}

#[test]
fn files_of_other_kinds_and_versions_are_refused() {
    let (folder, path) = changed("sequence", &[(r#""major": 8"#, r#""major": 9"#)]);
    let error = refusal(&path).to_string();
    assert!(
        error.contains("version 9") && error.contains("and 8 is read"),
        "{error}"
    );
    let text = folder.path().join("text.pt2");
    std::fs::write(&text, "no archive").unwrap();
    assert!(refusal(&text).to_string().contains("no zip archive"));
    let (_folder, cut) = changed("sequence", &[("\"nodes\"", "\"edges\"")]);
    assert!(refusal(&cut).to_string().contains("models/model.json"));
    let missing = folder.path().join("missing.pt2");
    assert!(matches!(refusal(&missing), ImportError::Unreadable(_)));
    // A file that is cut anywhere is refused, and costs no more memory than it has bytes.
    let whole = std::fs::read(fixture("excited")).unwrap();
    for part in 1..20 {
        std::fs::write(&text, &whole[..whole.len() * part / 20]).unwrap();
        refusal(&text);
    }
}
