use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Asks the property tests for many more cases.
const LONG: &str = "PARTITA_TEST_LONG";

/// Runs all tests of the workspace and shows their output as it comes.
///
/// The closing line is `N passed, M failed`, alone. True if something passed, nothing failed and
/// nothing was left out.
pub(crate) fn run(root: &Path, long: bool) -> Result<bool, String> {
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
        .current_dir(root)
        .stdout(Stdio::piped());
    if long {
        command.env(LONG, "1");
    }
    let mut child = command
        .spawn()
        .map_err(|error| format!("cargo cannot be started: {error}"))?;
    let output = child.stdout.take().ok_or("the output of cargo is lost")?;
    let mut tally = Tally::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(|error| format!("the output of cargo broke off: {error}"))?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        tally.add(&line);
    }
    let status = child
        .wait()
        .map_err(|error| format!("cargo cannot be awaited: {error}"))?;
    let verdict = tally.verdict(status.success());
    for remark in &verdict.remarks {
        eprintln!("xtask: {remark}");
    }
    let closing = format!("{} passed, {} failed", verdict.passed, verdict.failed);
    println!("{closing}");
    std::io::stdout()
        .flush()
        .map_err(|error| format!("the sum cannot be printed: {error}"))?;
    Ok(verdict.good)
}

/// The sums of all `test result:` lines.
#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// What the closing line says, and whether all is well.
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

    fn verdict(&self, cargo_succeeded: bool) -> Verdict {
        let mut remarks = Vec::new();
        let mut failed = self.failed;
        if !cargo_succeeded && failed == 0 {
            remarks.push("a build or a test program broke off; counted as one failure".to_owned());
            failed = 1;
        }
        if self.ignored > 0 {
            remarks.push(format!("{} tests are ignored; none may be", self.ignored));
        }
        if self.passed == 0 {
            remarks.push("no test passed".to_owned());
        }
        Verdict {
            passed: self.passed,
            failed,
            good: failed == 0 && remarks.is_empty(),
            remarks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(lines: &[&str], cargo_succeeded: bool) -> Verdict {
        let mut tally = Tally::default();
        for line in lines {
            tally.add(line);
        }
        tally.verdict(cargo_succeeded)
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
        assert!(!verdict(&[], true).good);
        let broken = verdict(&[GOOD], false);
        assert_eq!((broken.failed, broken.good), (1, false));
    }
}
