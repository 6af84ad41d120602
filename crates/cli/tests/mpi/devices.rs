//! Processes whose ranks compute on a device of OpenCL are bitwise equal to threads that do.

use crate::case::{Case, PARTITA, alone};
use crate::launchers::launcher;
use partita_testkit::not_run;
use serde_json::Value;
use std::process::Command;

fn has_device(test: &str) -> bool {
    let said = Command::new(PARTITA)
        .args(["doctor", "--json"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&said.stdout).unwrap();
    let devices = report["devices"].as_array().unwrap();
    let found = devices.iter().any(|device| device["device"] == "software");
    if !found {
        not_run(test, "OpenCL finds no device for `--device software`");
    }
    found
}

#[test]
fn processes_on_a_device_are_bitwise_equal_to_threads() {
    let test = "processes_on_a_device_are_bitwise_equal_to_threads";
    for name in ["Open MPI", "MPICH"] {
        let Some(launcher) = launcher(name, test).filter(|_| has_device(test)) else {
            continue;
        };
        let _alone = alone();
        let case = Case::new(1, "60 s");
        case.set("device = \"software\"\noverwrite = true");
        for (ranks, strategy) in [(2, "depth=2"), (4, "data=2,filter=2")] {
            let mut threads = Command::new(PARTITA);
            threads.args(["train", "run.toml", "--strategy", strategy, "--json"]);
            threads.args(["--no-prediction", "--ranks", &ranks.to_string()]);
            let expected = case.trained(threads);
            let processes = case.processes(&launcher, ranks, strategy, &[]);
            assert_eq!(processes.digest, expected.digest, "{name}, {strategy}");
            assert_eq!(processes.losses, expected.losses, "{name}, {strategy}");
            assert!(
                processes.weights == expected.weights,
                "weights of {name}, {strategy}"
            );
        }
    }
}
