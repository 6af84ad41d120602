//! `evaluate` and `infer` as processes, and the layer in which a training diverged.

use crate::case::{Case, PARTITA, alone, run};
use crate::launchers::{Launcher, of_day};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Strategies with their ranks; predictions of the second come from both stages.
const STRATEGIES: [(usize, &str); 4] = [
    (2, "data=2"),
    (4, "depth=2,width=2"),
    (2, "micro=2,stages=[..a1: 1|p1..: 1]"),
    (2, "filter=2"),
];

fn answer(case: &Case, mut command: Command, arguments: &[&str]) -> Value {
    command.arg(PARTITA).args(arguments).arg("--json");
    command
        .current_dir(case.folder())
        .env("XDG_CACHE_HOME", case.folder());
    let output = run(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{command:?} prints one answer: {error}"))
}

/// One process, started without a launcher.
fn one(case: &Case, arguments: &[&str]) -> Value {
    let mut command = Command::new("env");
    command.env_remove("PARTITA_MPI");
    answer(case, command, arguments)
}

fn close(a: f64, b: f64, what: &str) {
    assert!(
        (a - b).abs() <= 1e-4 * a.abs().max(1e-3),
        "{what}: {a} and {b}"
    );
}

/// Weights of two trainings, and samples that are mirrored.
const MEANS: [&str; 4] = ["--weights", "out,second", "--mirror", "depth,width"];

/// Floats of an NPY file.
fn floats(case: &Case, name: &str) -> Vec<f32> {
    let bytes = fs::read(case.path(name)).unwrap();
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let words = bytes[10 + header..].as_chunks::<4>().0.iter();
    words.map(|&word| f32::from_le_bytes(word)).collect()
}

fn compare(case: &Case, launcher: &Launcher) {
    let name = launcher.name;
    let expected = one(case, &["evaluate", "run.toml"]);
    one(case, &["infer", "run.toml", "--out", "one.npy"]);
    let whole = floats(case, "one.npy");
    let means = [&["infer", "run.toml", "--out", "means.npy"], &MEANS[..]].concat();
    one(case, &means);
    let means = floats(case, "means.npy");
    assert_ne!(means, whole);
    for (ranks, strategy) in STRATEGIES {
        let what = format!("{name}, {strategy}");
        let more = ["run.toml", "--strategy", strategy];
        let evaluate = [&["evaluate"], &more[..]].concat();
        let found = answer(case, launcher.command(ranks), &evaluate);
        assert_eq!(found["ranks"], ranks, "{what}");
        assert_eq!(
            found["metrics"]["samples"], expected["metrics"]["samples"],
            "{what}"
        );
        let loss = |value: &Value| value["metrics"]["loss"].as_f64().unwrap();
        close(loss(&expected), loss(&found), &what);

        let infer = [&["infer"], &more[..], &["--out", "many.npy"]].concat();
        answer(case, launcher.command(ranks), &infer);
        let parts = floats(case, "many.npy");
        assert_eq!(parts.len(), whole.len(), "{what}");
        for (a, b) in whole.iter().zip(&parts) {
            close(f64::from(*a), f64::from(*b), &what);
        }
        answer(
            case,
            launcher.command(ranks),
            &[&infer[..], &MEANS[..]].concat(),
        );
        let parts = floats(case, "many.npy");
        assert_eq!(parts.len(), means.len(), "{what}");
        for (a, b) in means.iter().zip(&parts) {
            close(f64::from(*a), f64::from(*b), &what);
        }
        fs::remove_file(case.path("many.npy")).unwrap();
        assert!(!case.path("many.npy.scores.partial").exists(), "{what}");
    }
}

#[test]
fn evaluations_and_predictions_of_processes_are_those_of_one() {
    for launcher in of_day("evaluations_and_predictions_of_processes_are_those_of_one") {
        let _alone = alone();
        let case = Case::new(1, "20 s");
        let text = fs::read_to_string(case.path("run.toml")).unwrap();
        let text = text
            .replace("\"out\"", "\"second\"")
            .replace("seed = 1", "seed = 2");
        fs::write(case.path("second.toml"), text).unwrap();
        for run in ["run.toml", "second.toml"] {
            one(&case, &["train", run, "--no-prediction"]);
        }
        compare(&case, &launcher);
    }
}

const SEGMENTATION: &str = "model near
input x channels=1 extent=8x8x8
c1 = conv x filters=4 kernel=3 pad=1 bias=true init=he_normal
a1 = relu c1
c2 = conv a1 filters=3 kernel=3 pad=1 bias=true
loss = softmax_cross_entropy c2
";

#[test]
fn evaluations_of_joined_tiles_are_those_of_one_process() {
    for launcher in of_day("evaluations_of_joined_tiles_are_those_of_one_process") {
        let _alone = alone();
        let case = Case::new(1, "20 s");
        let made = "data segmentation --out volumes --volumes 10 --grid 12 --seed 1";
        let mut data = Command::new(PARTITA);
        data.args(made.split(' ')).current_dir(case.folder());
        assert!(run(&mut data).status.success());
        fs::write(case.path("near.model"), SEGMENTATION).unwrap();
        let run_file = "model = \"near.model\"\ndata = \"volumes\"\noutput = \"out\"\nbatch = 2\nepochs = 1\n\
                   strategy = \"data=1\"\nwatchdog = \"20 s\"\ntransform = { scale = 0.01 }\n\
                   [augmentation]\ncrop = [8, 8, 8]\n[schedule]\nlearning_rate = 0.01\n";
        fs::write(case.path("run.toml"), run_file).unwrap();
        let train = ["train", "run.toml", "--no-prediction"];
        let trained = one(&case, &train);
        let validated = |value: &Value| {
            let last = &value["epochs"][0]["validation"];
            (last["loss"].as_f64().unwrap(), last["samples"].clone())
        };
        let tiles = ["evaluate", "run.toml", "--split", "train", "--volumes"];
        let middle = ["tiles", "--tile-weights", "middle"];
        let expected = one(&case, &[&tiles[..], &middle].concat());
        let gaussian = one(&case, &[&tiles[..], &["tiles"]].concat());
        let whole = one(&case, &[&tiles[..], &["whole"]].concat());
        let loss = |value: &Value| value["metrics"]["loss"].as_f64().unwrap();
        for (ranks, strategy) in [(2, "data=2"), (4, "depth=2,width=2"), (2, "filter=2")] {
            let more = [&middle[..], &["--strategy", strategy]].concat();
            let found = answer(
                &case,
                launcher.command(ranks),
                &[&tiles[..], &more].concat(),
            );
            let more = ["tiles", "--strategy", strategy];
            let weighted = answer(
                &case,
                launcher.command(ranks),
                &[&tiles[..], &more].concat(),
            );
            assert_eq!(weighted["tiles"]["weights"], "gaussian");
            close(loss(&gaussian), loss(&weighted), strategy);
            assert_eq!(found["volumes"], "tiles");
            let metrics = &found["metrics"];
            assert_eq!(metrics["samples"], expected["metrics"]["samples"]);
            close(loss(&expected), loss(&found), strategy);
            // The network sees no further than tiles share.
            close(loss(&whole), loss(&found), strategy);
        }
        // Trainings validate in the same way.
        for (ranks, strategy) in [(2, "data=2"), (4, "depth=2,width=2")] {
            let more = ["--overwrite", "--strategy", strategy];
            let found = answer(
                &case,
                launcher.command(ranks),
                &[&train[..], &more].concat(),
            );
            assert_eq!(found["validation_tiles"]["weights"], "gaussian");
            let (expected, found) = (validated(&trained), validated(&found));
            assert_eq!(expected.1, found.1);
            close(expected.0, found.0, strategy);
        }
    }
}

#[test]
fn the_layer_in_which_a_training_diverges_is_that_of_threads() {
    let part = |errors: &str| {
        let (_, rest) = errors
            .split_once("it began in ")
            .unwrap_or_else(|| panic!("{errors}"));
        rest.split_once(": ").unwrap().0.to_owned()
    };
    for launcher in of_day("the_layer_in_which_a_training_diverges_is_that_of_threads") {
        let name = launcher.name;
        let _alone = alone();
        let case = Case::new(3, "20 s");
        let text = fs::read_to_string(case.path("run.toml")).unwrap();
        let text = text.replace("learning_rate = 1e-3", "learning_rate = 1e25");
        fs::write(case.path("run.toml"), text).unwrap();
        let train = ["train", "run.toml", "--no-prediction"];
        let train = [&train[..], &["--overwrite", "--strategy"]].concat();
        let errors = |mut command: Command, more: &[&str]| {
            command.args(more).current_dir(case.folder());
            let output = run(&mut command);
            assert!(!output.status.success());
            String::from_utf8(output.stderr).unwrap()
        };
        let mut threads = Command::new(PARTITA);
        threads.args(&train);
        let expected = part(&errors(threads, &["data=2", "--ranks", "2"]));
        for strategy in ["data=2", "depth=2", "micro=2,stages=[..a1: 1|p1..: 1]"] {
            let mut command = launcher.command(2);
            command.arg(PARTITA).args(&train);
            let found = errors(command, &[strategy]);
            assert_eq!(found.matches("it began in ").count(), 1, "{found}");
            assert_eq!(part(&found), expected, "{name}, {strategy}");
        }
    }
}
