//! Runs the tests and sums their results.

mod jobs;

use crate::deny;
use crate::long;
use crate::step::{LONG, Step};
use crate::times::{Times, today};
use jobs::Job;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The profile in which all of `make test` is built.
pub(crate) const PROFILE: [&str; 2] = ["--profile", "suite"];
/// The day, from 1970, that decides which share of the random cases runs.
const DAY: &str = "PARTITA_DAY";
/// Seconds of each fuzz target.
const FUZZ_SECONDS: &str = "PARTITA_FUZZ_SECONDS";
/// File to which tests that lack something write that they did not run.
const NOT_RUN: &str = "PARTITA_NOT_RUN";
/// Exit code of `.ci/bare` where the system allows no mount namespace.
const NO_NAMESPACE: i32 = 75;
/// Tests of what MPI, OpenCL and oneDNN do that also hold where they are missing.
const WITHOUT_PARTS: [&str; 4] = ["devices::", "doctor::", "tuning::", "without"];

/// Runs all tests of the workspace and shows their output; with `long` also the steps of [`long::steps`].
///
/// The last lines say which tests did not run and why, what was spent by each step, among them those of `times`, and
/// whether that is within the budget; the closing line is `N passed, M failed`, alone. True if something passed,
/// nothing failed, nothing was left out, and the budget was kept.
pub(crate) fn run(root: &Path, long: bool, times: &mut Times) -> Result<bool, String> {
    let (told, told_bare) = (not_run_file(root, "all")?, not_run_file(root, "bare")?);
    let mut steps = vec![bare(root)];
    steps[0].command.env(NOT_RUN, &told_bare);
    let mut left_out = Vec::new();
    if has_no_namespace(root) {
        steps.clear();
        left_out.push(
            "tests without MPI, OpenCL and oneDNN; the system allows no mount namespace".to_owned(),
        );
    }
    let mut more = vec![deny::steps(root)];
    if long {
        more.push(long::steps(root)?);
    }
    for more in more {
        steps.extend(more.steps);
        left_out.extend(more.left_out);
    }
    let day = env::var(DAY).unwrap_or_else(|_| today().to_string());
    let mut tally = Tally::default();
    println!("xtask: the tests of the workspace");
    let jobs = times.measure("build of the tests", || jobs::all(root))?;
    let each = |job: &mut Job| {
        job.command.env(NOT_RUN, &told).env(DAY, &day);
        set_length(&mut job.command, long);
    };
    times.measure("tests of the workspace", || {
        workspace(jobs, each, &mut tally)
    });
    for step in &mut steps {
        println!("xtask: {}", step.name);
        step.command.env(DAY, &day);
        times.measure(step.name, || take(step, &mut tally))?;
    }
    let mut verdict = tally.verdict();
    if !long {
        verdict.good &= times.keeps_budget();
    }
    for remark in &verdict.remarks {
        eprintln!("xtask: {remark}");
    }
    for name in left_out {
        println!("did not run: {name}");
    }
    for line in not_run_lines(&fs::read_to_string(told).unwrap_or_default()) {
        println!("did not run: {line}");
    }
    if !long {
        println!(
            "random cases: the share of day {day}; {DAY}={day} repeats it, `make test-long` runs all"
        );
    }
    for line in times.lines(long) {
        println!("{line}");
    }
    let closing = format!("{} passed, {} failed", verdict.passed, verdict.failed);
    println!("{closing}");
    std::io::stdout()
        .flush()
        .map_err(|error| format!("the sum cannot be printed: {error}"))?;
    Ok(verdict.good)
}

/// Runs the jobs and adds their results, each with its output in one piece.
fn workspace(mut jobs: Vec<Job>, each: impl Fn(&mut Job), tally: &mut Tally) {
    jobs.iter_mut().for_each(each);
    jobs::run(jobs, |done| {
        let mut own = Tally::default();
        let (text, seconds) = (&done.output, done.seconds);
        println!("xtask: {} ({seconds:.1} s)\n{text}", done.name);
        text.lines().for_each(|line| own.add(line));
        tally.take(own, &done.name, done.succeeded);
    });
}

fn set_length(command: &mut Command, long: bool) {
    if long {
        command.env(LONG, "1");
        // A separate step runs ten minutes of each target, with all checks.
        if env::var_os(FUZZ_SECONDS).is_none() {
            command.env(FUZZ_SECONDS, "20");
        }
    }
}

/// An empty file for what did not run.
fn not_run_file(root: &Path, name: &str) -> Result<PathBuf, String> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let path = target.join(format!("not-run-{name}.txt"));
    fs::write(&path, "").map_err(|error| format!("{}: {error}", path.display()))?;
    path.canonicalize().map_err(|error| error.to_string())
}

/// A short second pass where no optional part is to be seen.
fn bare(root: &Path) -> Step {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(root.join(".ci/bare"));
    command.arg(cargo).arg("test").args(PROFILE);
    command.args(["--workspace", "--locked", "--no-fail-fast"]);
    command.args(["--test", "verbs", "--test", "mpi", "--"]);
    command.args(WITHOUT_PARTS).current_dir(root);
    Step {
        name: "tests without MPI, OpenCL and oneDNN",
        command,
    }
}

fn has_no_namespace(root: &Path) -> bool {
    let tried = Command::new(root.join(".ci/bare")).arg("true").status();
    tried.map_or(true, |status| status.code() == Some(NO_NAMESPACE))
}

/// What lines like `NOT RUN: test: reason` say, by reason and in all.
fn not_run_lines(text: &str) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in text
        .lines()
        .filter_map(|line| line.strip_prefix("NOT RUN: "))
    {
        let (test, reason) = line.split_once(": ").unwrap_or((line, "no reason given"));
        by_reason.entry(reason).or_default().insert(test);
    }
    let all: BTreeSet<&str> = by_reason.values().flatten().copied().collect();
    let lines = by_reason.iter();
    let mut lines: Vec<String> = lines
        .map(|(reason, tests)| format!("{} test(s): {reason}", tests.len()))
        .collect();
    lines.push(format!(
        "{} test(s) in all, in whole or in part, which count as passed",
        all.len()
    ));
    lines
}

/// Runs a step, shows its output, and adds its results.
fn take(step: &mut Step, tally: &mut Tally) -> Result<(), String> {
    let name = step.name;
    let mut child = step
        .command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{name}: the command cannot be started: {error}"))?;
    let output = child.stdout.take().ok_or("the output of cargo is lost")?;
    let mut own = Tally::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(|error| format!("{name}: the output broke off: {error}"))?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        own.add(&line);
    }
    let status = child
        .wait()
        .map_err(|error| format!("{name}: the command cannot be awaited: {error}"))?;
    tally.take(own, name, status.success());
    Ok(())
}

/// The sums of all `test result:` lines.
#[derive(Default)]
struct Tally {
    /// Whether there is any line of results.
    has_results: bool,
    passed: u64,
    failed: u64,
    ignored: u64,
    remarks: Vec<String>,
}

/// The closing line, and whether the suite passed.
struct Verdict {
    passed: u64,
    failed: u64,
    good: bool,
    remarks: Vec<String>,
}

impl Tally {
    fn add(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else {
            return;
        };
        self.has_results = true;
        // "ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s"
        let counts = counts.split_once(". ").map_or(counts, |(_, counts)| counts);
        for part in counts.split(';') {
            match part.trim().split_once(' ') {
                Some((count, "passed")) => self.passed += count.parse().unwrap_or(0),
                Some((count, "failed")) => self.failed += count.parse().unwrap_or(0),
                Some((count, "ignored")) => self.ignored += count.parse().unwrap_or(0),
                Some(_) | None => {}
            }
        }
    }

    /// Adds the results of a step. A step without results, like a check of licenses, counts as one test.
    fn take(&mut self, mut step: Tally, name: &str, succeeded: bool) {
        if !step.has_results && succeeded {
            step.passed = 1;
        }
        if !succeeded && step.failed == 0 {
            let remark = "a build or a program broke off; counted as one failure";
            self.remarks.push(format!("{name}: {remark}"));
            step.failed = 1;
        }
        self.passed += step.passed;
        self.failed += step.failed;
        self.ignored += step.ignored;
    }

    fn verdict(self) -> Verdict {
        let mut remarks = self.remarks;
        if self.ignored > 0 {
            remarks.push(format!("{} tests are ignored; none may be", self.ignored));
        }
        if self.passed == 0 {
            remarks.push("no test passed".to_owned());
        }
        Verdict {
            passed: self.passed,
            failed: self.failed,
            good: self.failed == 0 && remarks.is_empty(),
            remarks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(lines: &[&str], cargo_succeeded: bool) -> Verdict {
        let mut own = Tally::default();
        for line in lines {
            own.add(line);
        }
        let mut tally = Tally::default();
        tally.take(own, "tests", cargo_succeeded);
        tally.verdict()
    }

    const GOOD: &str = "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; \
                        3 filtered out; finished in 0.01s";
    const BAD: &str = "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; \
                       0 filtered out; finished in 0.01s";
    const IGNORED: &str = "test result: ok. 1 passed; 0 failed; 4 ignored; 0 measured; \
                           0 filtered out; finished in 0.01s";

    #[test]
    fn results_are_summed() {
        let sum = verdict(&[GOOD, "test a ... ok", GOOD], true);
        assert_eq!((sum.passed, sum.failed, sum.good), (24, 0, true));
        let sum = verdict(&[GOOD, BAD], false);
        assert_eq!((sum.passed, sum.failed, sum.good), (14, 1, false));
    }

    #[test]
    fn what_is_left_out_is_not_good() {
        assert!(!verdict(&[GOOD, IGNORED], true).good);
        let broken = verdict(&[GOOD], false);
        assert_eq!((broken.failed, broken.good), (1, false));
    }

    #[test]
    fn what_did_not_run_is_counted_by_reason() {
        let text = "NOT RUN: a: no mpirun\nNOT RUN: b: no mpirun\nNOT RUN: a: no Slurm: x\n";
        let lines = not_run_lines(text);
        assert_eq!(
            lines[..2],
            ["1 test(s): no Slurm: x", "2 test(s): no mpirun"]
        );
        assert!(lines[2].starts_with("2 test(s) in all"), "{lines:?}");
        assert!(not_run_lines("")[0].starts_with("0 test(s) in all"));
    }

    #[test]
    fn a_binary_without_tests_adds_none() {
        let none = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; \
                    finished in 0.00s";
        assert_eq!(verdict(&[none, GOOD], true).passed, 12);
        assert!(!verdict(&[none], true).good);
    }

    #[test]
    fn steps_without_results_count_as_one() {
        let silent = |succeeded| verdict(&["licenses ok"], succeeded);
        assert_eq!((silent(true).passed, silent(true).good), (1, true));
        assert_eq!((silent(false).failed, silent(false).good), (1, false));
    }
}
