//! Processes of one node, on cores of their own.

use crate::command::{partita, refusal};
use crate::trainee::{Case, Trainee};
use partita_testkit::not_run;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Two cores that this process may use, as their numbers; none if there is one alone.
fn two_cores() -> Option<[String; 2]> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cores = partita::parse_cores(allowed.unwrap().trim()).unwrap();
    match cores[..] {
        [first, second, ..] => Some([first, second].map(|core| core.to_string())),
        _ => None,
    }
}

/// The single cores that threads of a process are pinned to.
fn pinned(process: u32) -> BTreeSet<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let tasks = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let allowed = tasks.filter_map(|status| {
        let mut lines = status.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(list.trim().to_owned())
    });
    allowed
        .filter(|list| list.parse::<usize>().is_ok())
        .collect()
}

/// Starts a training of one rank, on two cores.
fn start(case: &Case, cores: &[String; 2], more: &str, locks: &Path) -> Trainee {
    case.run_file("run.toml", 1_000_000, more);
    let mut command = case.command("run.toml");
    command.args(["--cores", &cores.join(",")]);
    command.env("PARTITA_CORE_LOCKS", locks);
    Trainee::start(&mut command)
}

fn holders(locks: &Path) -> Vec<(u64, usize)> {
    let mut command = partita(&["doctor", "--json"]);
    let output = command.env("PARTITA_CORE_LOCKS", locks).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pinned = report["pinned"].as_array().unwrap();
    let holder = |one: &Value| {
        let command = one["command"].as_str().unwrap();
        assert!(command.contains("train run.toml"), "{command}");
        let cores = one["cores"].as_array().unwrap().len();
        (one["process"].as_u64().unwrap(), cores)
    };
    pinned.iter().map(holder).collect()
}

#[test]
fn trainings_of_one_node_take_cores_of_their_own() {
    let Some(cores) = two_cores() else {
        return not_run("trainings_of_one_node_take_cores_of_their_own", "one core");
    };
    let cases = [(); 3].map(|()| Case::new());
    let locks = &cases[0].path("locks");
    let [first, second] = [0, 1].map(|at| start(&cases[at], &cores, "", locks));
    let both = [&first, &second].map(|one| pinned(one.id()));
    assert_eq!(both.each_ref().map(BTreeSet::len), [1, 1], "{both:?}");
    let all: BTreeSet<String> = both.iter().flatten().cloned().collect();
    assert_eq!(all, cores.iter().cloned().collect());
    let mut expected = [&first, &second].map(|one| (u64::from(one.id()), 1));
    expected.sort_unstable();
    assert_eq!(holders(locks), expected);
    let third = start(&cases[2], &cores, "", locks);
    assert!(pinned(third.id()).is_empty());
    third.signal("KILL");
    let (_, said) = third.end();
    assert!(said.contains("1 are needed, 0 are free"), "{said}");
    assert!(
        said.contains(&format!("process {} (`", first.id())),
        "{said}"
    );
    // A process that is killed frees its core, and one that does not pin holds none.
    first.signal("KILL");
    first.end();
    let unpinned = start(&cases[0], &cores, "pin = false", locks);
    assert!(pinned(unpinned.id()).is_empty());
    let next = start(&cases[2], &cores, "", locks);
    assert_eq!(pinned(next.id()), both[0]);
    assert_eq!(holders(locks).len(), 2);
    for one in [second, unpinned, next] {
        one.signal("KILL");
        one.end();
    }
}

#[test]
fn cores_that_are_not_there_are_refused() {
    let step = ["predict", "cosmoflow@16", "--ranks", "1", "--batch", "1"];
    let more = ["--strategy", "data=1", "--cores", "1023"];
    let text = refusal(&[&step[..], &more].concat());
    assert!(
        text.contains("core(s) 1023 are requested by number, from 0")
            && text.contains("\nhelp: try "),
        "{text}"
    );
    let case = Case::new();
    case.run_file("run.toml", 1, "cores = \"1022-1023\"");
    let output = case.command("run.toml").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("core(s) 1022-1023 are requested"), "{text}");
}
