//! Weight files whose metadata do not say their axis order, and kernels of PyTorch along other axes.

use super::names::volume;
use super::{Case, MODEL, case, without_metadata};
use partita_weights::state_dict;
use partita_weights::{Tensor, Values, Weights, load, save};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

#[test]
fn a_file_of_partita_without_its_metadata_is_known_by_its_tensors() {
    let case = case();
    let whole = fs::read(case.path("out/weights.safetensors")).unwrap();
    fs::write(case.path("bare.safetensors"), without_metadata(&whole)).unwrap();
    let one = case.json("evaluate run.toml --json");
    for more in ["", " --order partita"] {
        let two = format!("evaluate run.toml --weights bare.safetensors --json{more}");
        assert_eq!(
            one["metrics"]["loss"],
            case.json(&two)["metrics"]["loss"],
            "{more}"
        );
    }
    let table = "[weights]\nfile = \"bare.safetensors\"\norder = \"pytorch\"\n[schedule]\nlearning_rate = 0.1\n";
    case.run_file(
        "bare.toml",
        "bare",
        &format!("batch = 2\nepochs = 1\n{table}"),
    );
    for arguments in [
        "train bare.toml --no-prediction",
        "evaluate run.toml --weights bare.safetensors --order pytorch",
        "weights import bare.safetensors --model small.model --out x.safetensors --order pytorch",
    ] {
        let text = case.refusal(arguments);
        let told = "bare.safetensors is in Partita's axis order without its metadata, as names and shapes of its tensors \
                    say: `order = \"partita\"`";
        assert!(
            text.contains(told) && !text.contains("skip"),
            "{arguments}: {text}"
        );
    }
    // A fault is told in the names of the file.
    fs::write(
        case.path("wide4.model"),
        MODEL.replace("filters=4", "filters=5"),
    )
    .unwrap();
    let text =
        case.refusal("weights import bare.safetensors --model wide4.model --out x.safetensors");
    assert!(text.contains("shape [3, 3, 3, 1, 4]"), "{text}");
    let names = [("c1", "k1"), ("n1", "m1"), ("a1", "r1"), ("c2", "k2")];
    let renamed = names
        .iter()
        .fold(MODEL.to_owned(), |text, (old, new)| text.replace(old, new));
    fs::write(case.path("renamed.model"), renamed).unwrap();
    let text =
        case.refusal("weights import bare.safetensors --model renamed.model --out x.safetensors");
    assert!(text.contains("of the same shape [3, 3, 3, 1, 4]"), "{text}");
    let text = case.refusal("evaluate run.toml --order pytorch");
    assert!(
        text.contains("Partita's axis order, as its metadata say"),
        "{text}"
    );
}

const EVEN: &str = "model even
input x channels=3 extent=4x4x4
c1 = conv x filters=3 kernel=3 pad=1 bias=false
loss = softmax_cross_entropy c1
";

#[test]
fn a_file_that_fits_both_orders_is_refused_unless_one_is_named() {
    let case = case();
    fs::write(case.path("even.model"), EVEN).unwrap();
    let values = Values::F32((0..243_u16).map(f32::from).collect());
    let tensor = Tensor {
        shape: vec![3; 5],
        values,
    };
    let weights = Weights {
        tensors: BTreeMap::from([("c1.weight".to_owned(), tensor)]),
        metadata: BTreeMap::new(),
    };
    save(case.path("even.safetensors"), &weights).unwrap();
    let bytes = without_metadata(&fs::read(case.path("even.safetensors")).unwrap());
    fs::write(case.path("even.safetensors"), bytes).unwrap();
    let import = "weights import even.safetensors --model even.model --out even-own.safetensors";
    let text = case.refusal(import);
    for part in [
        "fit both",
        "`order = \"pytorch\"`",
        "`order = \"partita\"`",
        "`--order` of",
    ] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    let imported = |order: &str| {
        case.answer(&format!("{import} --order {order}"));
        load(case.path("even-own.safetensors")).unwrap().tensors
    };
    assert_eq!(imported("partita"), weights.tensors);
    assert_ne!(imported("pytorch"), weights.tensors);
    // The entry of the order is enough.
    let mut kept = load(case.path("even-own.safetensors")).unwrap();
    kept.metadata.retain(|key, _| key == "partita.order");
    save(case.path("kept.safetensors"), &kept).unwrap();
    case.answer("weights export kept.safetensors --model even.model --out even-torch.safetensors");
    case.answer("weights import even-torch.safetensors --model even.model --out back.safetensors");
    let back = load(case.path("back.safetensors")).unwrap();
    assert_eq!(back.tensors, kept.tensors);
    let text = case.refusal(&format!("{import} --order torch"));
    assert!(text.contains("pytorch"), "{text}");
}

/// The weights of the training as a network on arrays of NiBabel has them: kernels along x, y and z.
fn write_turned(case: &Case) {
    case.answer("weights export run.toml --out plain.safetensors");
    let mut floats = state_dict::load(case.path("plain.safetensors"))
        .unwrap()
        .floats;
    let kernel = floats.tensors.get_mut("c1.weight").unwrap();
    let Values::F32(values) = &mut kernel.values else {
        panic!("it is in single precision");
    };
    let turned = |at: usize| at / 27 * 27 + at % 3 * 9 + at / 3 % 3 * 3 + at / 9 % 3;
    *values = (0..values.len()).map(|at| values[turned(at)]).collect();
    save(case.path("nib.safetensors"), &floats).unwrap();
    let bytes = without_metadata(&fs::read(case.path("nib.safetensors")).unwrap());
    fs::write(case.path("nib.safetensors"), bytes).unwrap();
}

/// Datasets of a NIfTI file with other axes of it as D, H and W.
fn write_scans(case: &Case) {
    // Axes of the file: y, z, x, which the conversion brings to x, y, z.
    let affine = [0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0];
    for (folder, value) in [("imagesTr", 1), ("labelsTr", 0)] {
        let path = case.path(&format!("scan/{folder}/one.nii"));
        volume(&path, &affine, |at| (at * value % 300 + at % 3) as i16);
    }
    for (name, more) in [
        ("zyx", ""),
        ("image", " --orientation image"),
        ("xyz", " --layout WHD"),
        ("yzx", " --layout HDW"),
    ] {
        case.answer(&format!(
            "data convert scan --out {name} --split 1,0,0{more}"
        ));
    }
}

#[test]
fn kernels_along_other_axes_are_told_and_read() {
    let case = case();
    write_turned(case);
    write_scans(case);
    let evaluate = |more: &str| {
        let arguments = format!("evaluate run.toml --split train --json --weights {more}");
        let output = case.output(&arguments.split(' ').collect::<Vec<_>>());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{more}: {text}");
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        (found["metrics"]["loss"].as_f64().unwrap(), text)
    };
    let (expected, text) = evaluate("plain.safetensors --data zyx");
    assert!(!text.contains("NiBabel"), "{text}");
    let (other, text) = evaluate("nib.safetensors --data zyx");
    assert!(
        text.contains("are z, y, x of the NIfTI files of zyx") && text.contains("`--axes WHD`"),
        "{text}"
    );
    assert!((other - expected).abs() > 1e-6, "{other} {expected}");
    let (same, text) = evaluate("nib.safetensors --data zyx --axes WHD");
    assert!(!text.contains("NiBabel"), "{text}");
    assert_eq!(same, expected);
    let (same, text) = evaluate("nib.safetensors --data zyx --axes DHW");
    assert!(!text.contains("NiBabel"), "{text}");
    assert_eq!(same, other);
    for (data, axes) in [
        ("image", Some("WHD")),
        ("xyz", None),
        ("yzx", Some("WDH")),
        ("set", None),
    ] {
        let (_, text) = evaluate(&format!("nib.safetensors --data {data}"));
        let told = axes.map(|axes| format!("`--axes {axes}`"));
        match told {
            Some(told) => assert!(text.contains(&told), "{data}: {text}"),
            None => assert!(!text.contains("--axes"), "{data}: {text}"),
        }
    }
    axes_are_those_of_pytorch(case);
}

/// Imports and trainings, and axes that are refused.
fn axes_are_those_of_pytorch(case: &Case) {
    let import = "weights import nib.safetensors --model small.model --out nib-own.safetensors";
    assert!(case.answer(import).contains("`--axes WHD`"));
    assert!(
        !case
            .answer(&format!("{import} --axes WHD"))
            .contains("axes")
    );
    let [own, trained] = ["nib-own.safetensors", "out/weights.safetensors"]
        .map(|name| load(case.path(name)).unwrap());
    assert_eq!(own.tensors, trained.tensors);
    let table =
        "[weights]\nfile = \"nib.safetensors\"\naxes = \"WHD\"\n[schedule]\nlearning_rate = 0\n";
    case.run_file(
        "nib.toml",
        "nib",
        &format!("batch = 2\nepochs = 1\n{table}"),
    );
    case.answer("train nib.toml --no-prediction");
    let found = load(case.path("nib/weights.safetensors")).unwrap();
    assert_eq!(found.tensors["c1.weight"], trained.tensors["c1.weight"]);
    for (more, part) in [
        ("--axes WHX", "`WHX` is no order of dims"),
        (
            "--axes WH",
            "the axes WH are of no use, as the model has 3 spatial dims",
        ),
        ("--axes WHD", "it has Partita's axis order"),
    ] {
        let file = if more == "--axes WHD" {
            "out"
        } else {
            "nib.safetensors"
        };
        let text = case.refusal(&format!("evaluate run.toml --weights {file} {more}"));
        assert!(text.contains(part), "{more}: {text}");
    }
}
