//! Weights on data whose channels have the same names in another order, other names, or none.

use super::names::{AFFINE, label, volume};
use super::{Case, case};
use partita_weights::{Weights, load, save};
use serde_json::Value;
use std::fs;

const MODEL: &str = "model pair
input x channels=2 extent=8x8x8
c1 = conv x filters=4 kernel=3 pad=1 bias=true
a1 = relu c1
c2 = conv a1 filters=3 kernel=1 bias=true
loss = softmax_cross_entropy c2
";

/// A dataset of four cases with an image of each of these channels.
fn convert(case: &Case, name: &str, channels: [&str; 2]) {
    for number in 0..4 {
        let file =
            |folder: &str, end: &str| case.path(&format!("{name}/{folder}/c{number}{end}.nii"));
        for (at, channel) in channels.iter().enumerate() {
            let path = file("imagesTr", &format!("_000{at}"));
            match *channel {
                "T2" => volume(&path, &AFFINE, |at| (60 * number + at % 5) as i16),
                _ => volume(&path, &AFFINE, |at| (900 - at % 7 * (20 + number)) as i16),
            }
        }
        volume(&file("labelsTr", ""), &AFFINE, |at| {
            label(number, at) as i16
        });
    }
    let [first, second] = channels;
    let text = format!(
        "{{\"channel_names\": {{\"0\": \"{first}\", \"1\": \"{second}\"}},
           \"labels\": {{\"background\": 0, \"organ\": 1, \"lesion\": 2}}}}"
    );
    fs::write(case.path(name).join("dataset.json"), text).unwrap();
    case.answer(&format!(
        "data convert {name} --out {name}-set --split 0.5,0.5,0"
    ));
}

fn run_file(case: &Case, name: &str, data: &str, epochs: usize, more: &str) {
    let text = format!(
        "model = \"pair.model\"\ndata = \"{data}\"\noutput = \"{name}\"\nbatch = 2\nepochs = {epochs}\n\
         transform = \"standardize\"\nstrategy = \"data=1\"\n{more}\n[schedule]\nlearning_rate = 0.01\n"
    );
    fs::write(case.path(&format!("{name}.toml")), text).unwrap();
}

/// What a command says besides its answer, which it must give.
pub(super) fn said(case: &Case, arguments: &str) -> (String, String) {
    let output = case.output(&arguments.split(' ').collect::<Vec<_>>());
    let [text, answer] =
        [output.stderr, output.stdout].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{arguments}: {text}");
    (text, answer)
}

fn weights(case: &Case, folder: &str) -> Weights {
    load(case.path(folder).join("weights.safetensors")).unwrap()
}

/// What is told of channels in another order.
const BY_NAME: &str =
    "channels of swapped-set are read in the order of the weights, by name: T2, ADC";

fn channels(weights: &Weights) -> &str {
    &weights.metadata["partita.channels"]
}

#[test]
fn channels_are_read_by_name_wherever_weights_are_used() {
    let case = case();
    fs::write(case.path("pair.model"), MODEL).unwrap();
    convert(case, "pair", ["T2", "ADC"]);
    convert(case, "swapped", ["adc", "T2"]);
    run_file(case, "two", "pair-set", 2, "");
    case.answer("train two.toml --no-prediction");
    assert_eq!(channels(&weights(case, "two")), "[\"T2\",\"ADC\"]");
    case.answer("weights export two.toml --out two.safetensors");
    for more in [
        "",
        " --ranks 2 --strategy depth=2",
        " --weights two.safetensors",
    ] {
        let loss = |data: &str| {
            let (text, answer) = said(
                case,
                &format!("evaluate two.toml --data {data} --json{more}"),
            );
            let found: Value = serde_json::from_str(&answer).unwrap();
            (found["metrics"]["loss"].clone(), text.contains(BY_NAME))
        };
        let (expected, is_said) = loss("pair-set");
        assert!(!is_said);
        assert_eq!(loss("swapped-set"), (expected, true), "{more}");
    }
    for data in ["pair-set", "swapped-set"] {
        case.answer(&format!(
            "infer two.toml --data {data} --split train --out {data}.npy"
        ));
    }
    assert_eq!(case.array("pair-set.npy"), case.array("swapped-set.npy"));
    averages_read_channels_in_one_order(case);
    trainings_begin_with_channels_by_name(case);
    others_are_refused_or_told(case);
}

/// Files that keep no names are read in the order of the dataset, which may be another one than that of names.
fn averages_read_channels_in_one_order(case: &Case) {
    let mut bare = weights(case, "two");
    bare.metadata.retain(|key, _| key != "partita.channels");
    save(case.path("bare.safetensors"), &bare).unwrap();
    for weights in ["two,bare.safetensors", "bare.safetensors,two"] {
        let infer = format!("infer two.toml --split train --weights {weights} --out mean.npy");
        let told = case.refusal(&format!("{infer} --data swapped-set"));
        for part in [
            "channels",
            "bare.safetensors",
            "adc, T2",
            "order of the dataset",
        ] {
            assert!(told.contains(part), "{weights}: `{part}` is not in: {told}");
        }
        case.answer(&format!("{infer} --data pair-set"));
        assert_eq!(
            case.array("mean.npy"),
            case.array("pair-set.npy"),
            "{weights}"
        );
    }
    bare.metadata.insert("model".to_owned(), "other".to_owned());
    save(case.path("bare.safetensors"), &bare).unwrap();
    let list = "--weights two,bare.safetensors --data pair-set --json";
    let (told, _) = said(case, &format!("evaluate two.toml {list}"));
    assert!(told.contains("was trained as model `other`"), "{told}");
}

/// From the weights and from a checkpoint of a training.
fn trainings_begin_with_channels_by_name(case: &Case) {
    // Also with readers and validators in processes of their own.
    let start = "weights = \"two\"";
    run_file(case, "same", "pair-set", 1, start);
    run_file(case, "other", "swapped-set", 1, start);
    let offload = format!("{start}\noffload = {{ loaders = 1, validators = 1 }}");
    run_file(case, "served", "swapped-set", 1, &offload);
    let expected = {
        case.answer("train same.toml --no-prediction");
        weights(case, "same")
    };
    for name in ["other", "served"] {
        let (text, _) = said(case, &format!("train {name}.toml --no-prediction"));
        assert!(text.contains(BY_NAME), "{text}");
        let found = weights(case, name);
        assert_eq!(found.tensors, expected.tensors, "{name}");
        assert_eq!(channels(&found), "[\"T2\",\"adc\"]");
    }
    let result = |name: &str| -> Value {
        let text = fs::read_to_string(case.path(name).join("result.json")).unwrap();
        let found: Value = serde_json::from_str(&text).unwrap();
        found["epochs"][0]["validation"]["loss"].clone()
    };
    assert_eq!(result("served"), result("same"));
    // A layer that is not taken asks for no order of channels.
    let anew = "weights = { file = \"two\", skip = [\"c1*\"] }";
    run_file(case, "anew", "swapped-set", 1, anew);
    let (text, _) = said(case, "train anew.toml --no-prediction");
    assert!(!text.contains("channels"), "{text}");
    assert_eq!(channels(&weights(case, "anew")), "[\"adc\",\"T2\"]");
    // A training that goes on.
    run_file(case, "whole", "pair-set", 3, "");
    case.answer("train whole.toml --no-prediction");
    run_file(case, "two", "swapped-set", 3, "");
    let (text, _) = said(case, "train two.toml --no-prediction --resume");
    assert!(text.contains(BY_NAME), "{text}");
    let [whole, resumed] = ["whole", "two"].map(|name| weights(case, name));
    assert_eq!(whole.tensors, resumed.tensors);
}

/// Of the same folder, so that one training does.
fn others_are_refused_or_told(case: &Case) {
    let index = case.path("swapped-set/dataset.toml");
    let text = fs::read_to_string(&index).unwrap();
    let names = "[\"adc\", \"T2\"]";
    assert!(text.contains(names), "{text}");
    fs::write(&index, text.replace(names, "[\"DWI\", \"T2\"]")).unwrap();
    run_file(case, "refused", "swapped-set", 1, "weights = \"two\"");
    for arguments in [
        "evaluate two.toml --data swapped-set",
        "infer two.toml --data swapped-set --out x.npy",
        "train two.toml --no-prediction --resume",
        "train refused.toml --no-prediction",
    ] {
        let text = case.refusal(arguments);
        for part in [
            "its channels are DWI, T2",
            "the weights are T2, adc",
            "under [spec]",
        ] {
            assert!(
                text.contains(part),
                "{arguments}: `{part}` is not in: {text}"
            );
        }
    }
    fs::write(&index, text.replace(names, "[\"channel0\", \"channel1\"]")).unwrap();
    let (text, answer) = said(case, "evaluate two.toml --data swapped-set --json");
    let other: Value = serde_json::from_str(&answer).unwrap();
    let by_name = case.json("evaluate two.toml --data pair-set --json");
    assert_ne!(other["metrics"]["loss"], by_name["metrics"]["loss"]);
    let told = "swapped-set does not give each channel a name of its own; they are taken for T2, adc of the weights";
    assert_eq!(text.matches(told).count(), 1, "{text}");
}
