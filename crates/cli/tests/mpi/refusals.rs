//! Errors are reported once.

use crate::case::{Case, PARTITA, alone, run};
use crate::launchers::{installed, launcher};
use std::fs;
use std::process::{Command, Output};

/// The output of Partita, without that of the launcher.
fn said(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let own = text.lines().filter(|line| line.starts_with("partita: "));
    own.map(str::to_owned).collect()
}

#[test]
fn a_wrong_number_of_ranks_is_refused_once_naming_both() {
    for launcher in installed("a_wrong_number_of_ranks_is_refused_once_naming_both") {
        let name = launcher.name;
        let _alone = alone();
        let case = Case::new(1, "20 s");
        let mut command = launcher.command(2);
        command.args([PARTITA, "train", "run.toml", "--ranks", "3"]);
        let output = run(command.current_dir(case.folder()));
        let said = said(&output);
        assert!(!output.status.success());
        assert_eq!(said.len(), 1, "{name}: {said:?}");
        assert!(
            said[0].contains("--ranks 3") && said[0].contains("2 processes"),
            "{said:?}"
        );
        assert!(!case.path("out").exists());
    }
}

#[test]
fn ranks_with_different_programs_are_refused() {
    let Some(launcher) = launcher("MPICH", "ranks_with_different_programs_are_refused") else {
        return;
    };
    let _alone = alone();
    let case = Case::new(1, "20 s");
    let text = fs::read_to_string(case.path("run.toml")).unwrap();
    fs::write(case.path("run0.toml"), &text).unwrap();
    fs::write(
        case.path("run1.toml"),
        text.replace("batch = 8", "batch = 4"),
    )
    .unwrap();
    let line = format!("exec {PARTITA} train run$PMI_RANK.toml --strategy depth=2");
    let mut command = launcher.command(2);
    command.args(["sh", "-c", &line]);
    let output = run(command.current_dir(case.folder()));
    let said = said(&output);
    let refuses = |line: &&String| line.contains("rank 1 has another program than rank 0");
    let refusals = said.iter().filter(refuses).count();
    assert!(!output.status.success() && refusals == 1, "{said:?}");
}

#[test]
fn a_launcher_without_its_library_is_reported() {
    let case = Case::new(1, "20 s");
    let train = |library: &str| {
        let mut command = Command::new(PARTITA);
        command
            .args(["train", "run.toml"])
            .current_dir(case.folder());
        command.envs([("OMPI_COMM_WORLD_SIZE", "2"), ("PARTITA_MPI", library)]);
        let output = run(&mut command);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        said(&output).join("\n")
    };
    let missing = train("/nowhere/libmpi.so");
    assert!(
        missing.contains("OMPI_COMM_WORLD_SIZE") && missing.contains("/nowhere"),
        "{missing}"
    );
    let file = case.path("run.toml");
    let strange = train(file.to_str().unwrap());
    assert!(strange.contains("cannot be loaded"), "{strange}");
}
