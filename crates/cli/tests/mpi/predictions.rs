//! Predictions of processes.

use crate::case::{Case, PARTITA, alone, run};
use crate::launchers::{Launcher, of_day};
use serde_json::Value;
use std::path::Path;

fn value(launcher: &Launcher, folder: &Path, words: &[&str]) -> Value {
    let mut command = launcher.command(2);
    command.arg(PARTITA).args(words).arg("--json");
    command.current_dir(folder).env("XDG_CACHE_HOME", folder);
    let output = run(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", launcher.name);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{} prints one answer: {error}", launcher.name))
}

/// Processes of one host are predicted from what they measure together, and machine files hold it.
#[test]
fn processes_are_predicted_and_calibrated() {
    for launcher in of_day("processes_are_predicted_and_calibrated") {
        let name = launcher.name;
        let _alone = alone();
        let case = Case::new(4, "20 s");
        let run = ["train", "run.toml", "--strategy", "data=2", "--prediction"];
        let result = value(&launcher, case.folder(), &run);
        let iteration = &result["comparison"]["iteration"];
        let seconds = |key: &str| iteration[key].as_f64().unwrap_or_default();
        assert!(
            seconds("predicted") > 0.0 && seconds("measured") > 0.0,
            "{name}: {result}"
        );

        let calibrate = ["calibrate", "--name", "mine", "--models", "tiny.model:4"];
        let once = ["--passes", "1"];
        let answer = value(&launcher, case.folder(), &[&calibrate[..], &once].concat());
        assert_eq!(answer["ranks"], 2);
        assert_ne!(answer["world"], "threads", "{name}");
        let text = std::fs::read_to_string(case.path("mine.toml")).unwrap();
        assert!(
            text.contains("[calibration.collectives.allreduce]"),
            "{name}"
        );
    }
}
