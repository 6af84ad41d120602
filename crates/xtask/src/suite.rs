//! Runs the tests and sums their results.

use crate::long;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes the property tests run many more cases.
pub(crate) const LONG: &str = "PARTITA_TEST_LONG";
/// Seconds of each fuzz target.
const FUZZ_SECONDS: &str = "PARTITA_FUZZ_SECONDS";

/// One command of the suite.
pub(crate) struct Step {
    /// Its title.
    pub(crate) name: &'static str,
    /// The command; its output is parsed.
    pub(crate) command: Command,
}

/// Runs all tests of the workspace and streams their output; with `long` also the steps of [`long::steps`].
///
/// The closing line is `N passed, M failed`, alone. True if something passed, nothing failed and
/// nothing was left out.
pub(crate) fn run(root: &Path, long: bool) -> Result<bool, String> {
    let mut steps = vec![workspace(root, long)];
    let mut left_out = Vec::new();
    if long {
        let more = long::steps(root)?;
        steps.extend(more.steps);
        left_out = more.left_out;
    }
    let mut tally = Tally::default();
    for step in &mut steps {
        if long {
            println!("xtask: {}", step.name);
        }
        take(step, &mut tally)?;
    }
    let verdict = tally.verdict();
    for remark in &verdict.remarks {
        eprintln!("xtask: {remark}");
    }
    for name in left_out {
        eprintln!("xtask: NOT RUN: {name}");
    }
    let closing = format!("{} passed, {} failed", verdict.passed, verdict.failed);
    println!("{closing}");
    std::io::stdout()
        .flush()
        .map_err(|error| format!("the sum cannot be printed: {error}"))?;
    Ok(verdict.good)
}

fn workspace(root: &Path, long: bool) -> Step {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args([
            "test",
            "--release",
            "--workspace",
            "--locked",
            "--no-fail-fast",
        ])
        .current_dir(root);
    if long {
        command.env(LONG, "1");
        // A separate step runs ten minutes of each target, with all checks.
        if env::var_os(FUZZ_SECONDS).is_none() {
            command.env(FUZZ_SECONDS, "20");
        }
    }
    Step {
        name: "the tests of the workspace",
        command,
    }
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
        let is_silent = step.passed + step.failed + step.ignored == 0;
        if is_silent && succeeded {
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
    fn steps_without_results_count_as_one() {
        let silent = |succeeded| verdict(&["licenses ok"], succeeded);
        assert_eq!((silent(true).passed, silent(true).good), (1, true));
        assert_eq!((silent(false).failed, silent(false).good), (1, false));
    }
}
