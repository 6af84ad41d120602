//! Licenses, sources and advisories of foreign crates, by cargo-deny where it is installed.

use crate::long::ExtraSteps;
use crate::step::Step;
use std::env;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time for the database of advisories to come; without a network it may never.
const FETCH: Duration = Duration::from_secs(60);

/// Checks of all foreign crates, also those that others need.
pub(crate) fn steps(root: &Path) -> ExtraSteps {
    let (mut steps, mut left_out) = (Vec::new(), Vec::new());
    if !succeeds(cargo(root).args(["deny", "--version"])) {
        let install = "`cargo install cargo-deny --locked`";
        left_out.push(format!(
            "licenses and advisories of foreign crates; {install}"
        ));
        return ExtraSteps { steps, left_out };
    }
    steps.push(Step {
        name: "licenses, bans and sources of foreign crates",
        command: deny(root, &["licenses", "bans", "sources"]),
    });
    if succeeds(cargo(root).args(["deny", "fetch", "db"])) {
        steps.push(Step {
            name: "advisories against foreign crates",
            command: deny(root, &["advisories"]),
        });
    } else {
        let reason = "the database of RustSec cannot be fetched";
        left_out.push(format!("advisories against foreign crates; {reason}"));
    }
    ExtraSteps { steps, left_out }
}

fn deny(root: &Path, checks: &[&str]) -> Command {
    let mut command = cargo(root);
    command.args(["deny", "check"]).args(checks);
    command
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Whether a command ends well, and in time.
fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.spawn().is_ok_and(|child| ends_well(child, FETCH))
}

fn ends_well(mut child: Child, within: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < within {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => thread::sleep(Duration::from_millis(50)),
            Err(_) => break,
        }
    }
    // What it began is of no use to anybody.
    let _ = child.kill();
    let _ = child.wait();
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_ended() {
        let start = |name: &str, argument: &str| Command::new(name).arg(argument).spawn().unwrap();
        let short = Duration::from_millis(100);
        assert!(ends_well(start("sleep", "0"), FETCH));
        assert!(!ends_well(start("sleep", "60"), short));
        assert!(!ends_well(start("ls", "/no such folder"), FETCH));
    }
}
