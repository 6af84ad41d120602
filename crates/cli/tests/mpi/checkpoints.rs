//! Processes write checkpoints together, and resume from them to the same bits.

use crate::case::{Case, PARTITA, alone, run, threads};
use crate::launchers::of_day;
use std::fs;

#[test]
fn processes_resume_to_the_bits_of_an_undisturbed_run() {
    for launcher in of_day("processes_resume_to_the_bits_of_an_undisturbed_run") {
        let name = launcher.name;
        let _alone = alone();
        let expected = threads(2, "filter=2");
        let case = Case::new(2, "20 s");
        let text = fs::read_to_string(case.path("run.toml")).unwrap();
        let text = text + "[checkpoint]\nevery_steps = 1\nevery_epochs = 1\nkeep = 10\n";
        fs::write(case.path("run.toml"), text).unwrap();
        let mut command = launcher.command(2);
        command.args([PARTITA, "train", "run.toml", "--strategy", "filter=2"]);
        let output = run(command.arg("--no-prediction").current_dir(case.folder()));
        assert!(output.status.success(), "{name}: {output:?}");
        fs::rename(case.path("out"), case.path("first")).unwrap();
        for checkpoint in ["step-000000001", "step-000000003"] {
            let from = format!("first/checkpoints/{checkpoint}");
            let file = case.path(&from).join("rank-00001.safetensors");
            assert!(file.is_file(), "{name}: {}", file.display());
            let resumed = case.processes(&launcher, 2, "filter=2", &["--resume", &from]);
            assert!(resumed.weights == expected.weights, "{name} from {from}");
            assert_eq!(resumed.losses, expected.losses, "{name} from {from}");
            // On another number of ranks.
            let other = case.processes(&launcher, 4, "data=2,depth=2", &["--resume", &from]);
            for (found, expected) in other.losses.iter().zip(&expected.losses) {
                let error = (found - expected).abs() / expected.abs();
                assert!(error < 1e-2, "{name}: {found} instead of {expected}");
            }
        }
    }
}
