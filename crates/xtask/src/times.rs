//! What each step of the checks spends, and whether all keep the budget.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Processor seconds of all checks. The aim is 30 minutes of two cores, but processors that share a core, or are slow, have spent
/// twice the seconds of others for the same checks (`records/2026-11-28-tests.md`).
const BUDGET: f64 = 5400.0;
/// Longer than this on the clock is worth a warning: the machine was busy, or tests wait.
const CLOCK_MAX: f64 = 1800.0;
/// Parts of a second in which Linux tells processor time to programs, on every machine.
const TICKS: f64 = 100.0;

/// The steps so far.
#[derive(Default)]
pub(crate) struct Times {
    steps: Vec<Spent>,
}

struct Spent {
    name: String,
    seconds: f64,
    /// Of processors, in user and kernel; unknown where there is no `/proc`.
    processor: Option<f64>,
}

impl Times {
    /// Does a step and notes what it took.
    pub(crate) fn measure<T>(&mut self, name: &str, work: impl FnOnce() -> T) -> T {
        let (start, before) = (Instant::now(), children());
        let result = work();
        let processor = children().zip(before).map(|(after, before)| after - before);
        self.steps.push(Spent {
            name: name.to_owned(),
            seconds: start.elapsed().as_secs_f64(),
            processor,
        });
        result
    }

    /// Whether all steps together keep the budget of processor time.
    pub(crate) fn keeps_budget(&self) -> bool {
        self.processor().is_none_or(|seconds| seconds <= BUDGET)
    }

    /// A line per step, and one that compares the sum with the budget, which a long run has not.
    pub(crate) fn lines(&self, long: bool) -> Vec<String> {
        let mut lines: Vec<String> = self.steps.iter().map(Spent::line).collect();
        let clock: f64 = self.steps.iter().map(|step| step.seconds).sum();
        let Some(processor) = self.processor() else {
            lines.push(format!(
                "time: {clock:.0} s in all; no /proc tells processor time"
            ));
            return lines;
        };
        let sum = format!("time: {clock:.0} s in all, {processor:.0} s of processors");
        lines.push(match (long, self.keeps_budget()) {
            (true, _) => sum,
            (false, true) => format!("{sum}, within the budget of {BUDGET:.0} s"),
            (false, false) => format!("{sum}: FAILED, the budget is {BUDGET:.0} s"),
        });
        if !long && clock > CLOCK_MAX {
            let limit = CLOCK_MAX / 60.0;
            lines.push(format!(
                "time: warning: more than {limit:.0} minutes; the machine was busy, or tests wait"
            ));
        }
        lines
    }

    fn processor(&self) -> Option<f64> {
        self.steps.iter().map(|step| step.processor).sum()
    }
}

impl Spent {
    fn line(&self) -> String {
        let processor = self
            .processor
            .map(|seconds| format!(", {seconds:.0} s of processors"));
        let processor = processor.unwrap_or_default();
        format!("time: {:.0} s for {}{processor}", self.seconds, self.name)
    }
}

/// The number of the day, from 1970.
pub(crate) fn today() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_secs() / 86_400
}

/// Processor seconds of all processes that this one started and has awaited, and of theirs.
fn children() -> Option<f64> {
    seconds_of_children(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// Fields 16 and 17 of proc_pid_stat(5); the second field, a name in parentheses, may have spaces.
fn seconds_of_children(stat: &str) -> Option<f64> {
    let (_, from_third) = stat.rsplit_once(") ")?;
    let mut fields = from_third.split(' ').skip(13);
    let mut next = || fields.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / TICKS)
}

/// Runs a command whose output is for the reader; an error if it fails.
pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    println!("xtask: {}", shown(command));
    let status = command.status();
    let status =
        status.map_err(|error| format!("{} cannot be started: {error}", shown(command)))?;
    if !status.success() {
        return Err(format!("{} failed", shown(command)));
    }
    Ok(())
}

fn shown(command: &Command) -> String {
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(processor: Option<f64>) -> Times {
        let step = |name: &str, seconds| Spent {
            name: name.to_owned(),
            seconds,
            processor,
        };
        Times {
            steps: vec![step("a", 2.0), step("b", 1900.0)],
        }
    }

    #[test]
    fn processor_time_of_children_is_read_past_a_name_with_parentheses() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4 100 200 0 0 11 12 250 50 20 0 1 0";
        assert_eq!(seconds_of_children(stat), Some(3.0));
        assert_eq!(seconds_of_children("7 (a) S 1"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_command_spends_is_noted() {
        let mut times = Times::default();
        let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let mut command = Command::new("sh");
        command.args(["-c", busy]);
        times.measure("a loop", || succeed(&mut command)).unwrap();
        let spent = times.processor().unwrap();
        assert!(spent >= 0.01, "{spent}");
        assert!(times.lines(false)[0].contains("a loop"));
    }

    #[test]
    fn the_sum_of_all_steps_is_held_to_the_budget() {
        let within = times(Some(BUDGET / 2.0));
        assert!(within.keeps_budget());
        assert!(within.lines(false)[2].contains("within the budget"));
        assert!(within.lines(false)[3].contains("warning"));
        let beyond = times(Some(BUDGET / 2.0 + 1.0));
        assert!(!beyond.keeps_budget());
        assert!(beyond.lines(false)[2].contains("FAILED"));
        assert_eq!(beyond.lines(true).len(), 3);
        let unknown = times(None);
        assert!(unknown.keeps_budget() && unknown.lines(false)[2].contains("no /proc"));
    }
}
