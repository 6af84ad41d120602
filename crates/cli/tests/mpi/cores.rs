//! Processes of one job, on cores of their own.

use crate::case::{Case, PARTITA, alone, run};
use crate::launchers::launcher;
use partita_testkit::not_run;
use std::fs::{self, File};
use std::path::Path;

/// What two processes say that train on two cores.
fn said(case: &Case, program: &[String], cores: [usize; 2], locks: &Path) -> String {
    let mut command = std::process::Command::new(&program[0]);
    command
        .args(&program[1..])
        .args(["-n", "2", "--bind-to", "none"]);
    command.args([PARTITA, "train", "run.toml", "--strategy", "data=2"]);
    let [first, second] = cores;
    command.args(["--no-prediction", "--overwrite", "--cores"]);
    command.arg(format!("{first},{second}"));
    command.current_dir(case.folder());
    let output = run(command.env("PARTITA_CORE_LOCKS", locks));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn ranks_divide_the_free_cores_and_tell_which_are_not() {
    let test = "ranks_divide_the_free_cores_and_tell_which_are_not";
    let Some(launcher) = launcher("Open MPI", test) else {
        return;
    };
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed = partita::parse_cores(allowed.unwrap().trim()).unwrap();
    let [first, second, ..] = allowed[..] else {
        return not_run(test, "one core");
    };
    let _alone = alone();
    let case = Case::new(1, "20 s");
    let (cores, locks) = ([first, second], case.path("locks"));
    let text = said(&case, &launcher.words(), cores, &locks);
    assert!(!text.contains("pinned"), "both have a core: {text}");
    let other = File::open(locks.join(second.to_string())).unwrap();
    other.lock().unwrap();
    let text = said(&case, &launcher.words(), cores, &locks);
    let told = "ranks are not pinned and share cores: 1 are needed, 0 are free, process ";
    assert_eq!(text.matches(told).count(), 1, "{text}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
}
