//! Ranks that die, stop or hang.

use crate::case::{Case, PARTITA, alone, signal, wait};
use crate::launchers::{Launcher, installed};
use partita_testkit::Share;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const RANKS: usize = 4;
const WATCHDOG: Duration = Duration::from_secs(3);
/// Time beyond the watchdog's limit for everything to end.
const MARGIN: Duration = Duration::from_secs(15);

/// Records process id and standard error of each rank, because launchers may drop the last output.
const RANK: &str = "#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
echo $$ > \"$0.pid.$rank\"
exec \"$@\" 2> \"$0.error.$rank\"
";

/// The same, with a shell between launcher and rank. Hydra ends all ranks of a host when a process that
/// it started dies of a signal, whatever its switch says; it does not when that process ends with a
/// code. Its notice to survivors is SIGUSR1, which MPICH handles and a shell must not die of.
const SHIELDED_RANK: &str = "#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
trap : USR1
sh -c 'echo $$ > \"$0\"; exec \"$@\"' \"$0.pid.$rank\" \"$@\" 2> \"$0.error.$rank\"
exit 1
";

/// A job that trains until it is disturbed.
struct Job {
    name: &'static str,
    case: Case,
    child: Child,
    /// When it was disturbed.
    struck: Instant,
}

impl Job {
    fn start(launcher: &Launcher, strategy: &str) -> Self {
        Self::run(launcher.command(RANKS), launcher.name, RANK, strategy)
    }

    /// A job whose launcher does not kill the others when a rank dies.
    fn start_shielded(launcher: &Launcher, strategy: &str) -> Self {
        let mut command = launcher.command(RANKS);
        command.args(launcher.keep_survivors);
        // Where UCX reads the memory of a process that is gone, it aborts its own (`uct_cma_ep_tx`),
        // and no error handler of MPI is asked.
        command.env("UCX_TLS", "^cma");
        // So does an assertion of its TCP transport, where a peer goes amid a put (`UCT_TCP_EP_FLAG_PUT_TX_WAITING_ACK`).
        command.env("UCX_TCP_PUT_ENABLE", "n");
        Self::run(command, launcher.name, SHIELDED_RANK, strategy)
    }

    fn run(command: Command, name: &'static str, script: &str, strategy: &str) -> Self {
        let case = Case::new(1_000_000, "3 s");
        let job = Self::spawn(command, name, script, strategy, case);
        job.reach(2);
        job
    }

    /// A job that has not started training.
    fn spawn(
        mut command: Command,
        name: &'static str,
        script: &str,
        strategy: &str,
        case: Case,
    ) -> Self {
        let path = case.path("rank");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        command.arg(&path).args([PARTITA, "train", "run.toml"]);
        // Measuring messages among many processes on few cores takes longer than to come to the fault.
        command.args(["--strategy", strategy, "--no-prediction"]);
        command.current_dir(case.folder());
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let struck = Instant::now();
        Self {
            name,
            case,
            child,
            struck,
        }
    }

    /// Waits for a number of epochs.
    fn reach(&self, epochs: usize) {
        let start = Instant::now();
        while self.epochs() < epochs {
            let texts: Vec<String> = (0..RANKS).map(|rank| self.error(rank)).collect();
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{} does not come to epoch {epochs}: {texts:#?}",
                self.name
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn epochs(&self) -> usize {
        self.error(0).matches(": loss ").count()
    }

    fn signal_ranks(&self, name: &str, ranks: &[usize]) {
        for &rank in ranks {
            signal(name, self.pid(rank));
        }
    }

    fn strike(&mut self, name: &str, pid: u32) {
        self.struck = Instant::now();
        signal(name, pid);
    }

    fn error(&self, rank: usize) -> String {
        let path = self.case.path(&format!("rank.error.{rank}"));
        String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
    }

    /// The standard error of a rank.
    fn said(&self, rank: usize) -> String {
        let text = self.error(rank);
        let lines = text.lines().filter(|line| line.contains("partita: "));
        lines
            .filter(|line| !line.contains("core(s)"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn pid(&self, rank: usize) -> u32 {
        let text = fs::read_to_string(self.case.path(&format!("rank.pid.{rank}"))).unwrap();
        text.trim().parse().unwrap()
    }

    fn is_running(&self, rank: usize) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid(rank)));
        let status = status.unwrap_or_default();
        status.contains("partita") && !status.contains("State:\tZ")
    }

    /// Waits until the launcher and all ranks but one have ended.
    fn end(&mut self, but: Option<usize>) -> (Duration, ExitStatus) {
        let limit = WATCHDOG + MARGIN;
        let left = |job: &Self| limit.saturating_sub(job.struck.elapsed());
        let left_now = left(self);
        let status = wait(&mut self.child, left_now);
        let alive = |job: &Self| {
            let others = (0..RANKS).filter(|&rank| Some(rank) != but);
            others
                .filter(|&rank| job.is_running(rank))
                .collect::<Vec<_>>()
        };
        while !alive(self).is_empty() && !left(self).is_zero() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let texts: Vec<String> = (0..RANKS).map(|rank| self.said(rank)).collect();
        assert!(
            alive(self).is_empty(),
            "{}: ranks {:?} live on: {texts:#?}",
            self.name,
            alive(self)
        );
        (
            self.struck.elapsed(),
            status.unwrap_or_else(|| panic!("{} lives on: {texts:#?}", self.name)),
        )
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in (0..RANKS).filter(|&rank| self.is_running(rank)) {
            signal("KILL", self.pid(rank));
        }
        signal("KILL", self.child.id());
        let _ = self.child.wait();
    }
}

/// Whether a line lists a rank as missing. On a busy machine live ranks may answer too late, and are listed
/// too.
fn lists_as_missing(line: &str, missing: usize) -> bool {
    let lists = line.split("rank(s) [").skip(1);
    let mut lists = lists.filter_map(|rest| rest.split(']').next());
    lists.any(|list| {
        let mut ranks = list.split(", ");
        ranks.any(|rank| rank == missing.to_string())
    })
}

/// Asserts that every live rank names the missing one, with task, layer and sequence number, on a line; a rank that
/// stood at a meeting between steps when the other stopped names the step instead.
fn assert_named(job: &Job, missing: usize, work: &[&str]) {
    for rank in (0..RANKS).filter(|&rank| rank != missing) {
        let said = job.said(rank);
        let names = |line: &str| {
            let where_it_was = ["layer `", "(task ", "sequence "];
            let in_task = where_it_was.iter().all(|word| line.contains(word))
                && work.iter().any(|work| line.contains(work));
            let at_meeting = line.contains("could not agree with the other ranks after step");
            lists_as_missing(line, missing) && (in_task || at_meeting)
        };
        assert!(
            said.lines().any(names),
            "{}: rank {rank} wrote: {}",
            job.name,
            job.error(rank)
        );
    }
}

/// Tasks in which a hung or dead rank may leave the others.
const ANY_WORK: [&str; 4] = ["exchange", "allreduce", "allgather", "alltoall"];
/// Slabs of all samples are redistributed to whole samples, forward and back.
const HAND_OVER: &str = "depth=4; c2..: N=depth,D=-";

/// Starts and disturbs all jobs, so that their watchdogs run concurrently.
fn hangs(test: &str, strategy: &str, missing: usize, work: &[&str]) {
    let launchers = installed(test);
    let _alone = alone();
    let jobs = launchers.iter().map(|launcher| {
        let mut job = Job::start(launcher, strategy);
        job.strike("STOP", job.pid(missing));
        job
    });
    for mut job in jobs.collect::<Vec<_>>() {
        let (_, status) = job.end(Some(missing));
        assert!(!status.success(), "{}: {status}", job.name);
        assert_named(&job, missing, work);
        assert!(
            !job.case.path("out").exists(),
            "a failed run leaves nothing"
        );
    }
}

#[test]
fn a_hung_rank_is_named_in_an_exchange_or_a_sum() {
    let test = "a_hung_rank_is_named_in_an_exchange_or_a_sum";
    hangs(test, "depth=4", 2, &ANY_WORK);
}

#[test]
fn a_hung_rank_is_named_in_a_redistribution() {
    let test = "a_hung_rank_is_named_in_a_redistribution";
    hangs(test, HAND_OVER, 1, &ANY_WORK);
}

#[test]
fn a_hung_rank_is_named_in_a_collective() {
    let test = "a_hung_rank_is_named_in_a_collective";
    hangs(test, "data=4", 3, &["allreduce"]);
}

/// Longer than the watchdog's limit.
const STOP: Duration = Duration::from_secs(5);

/// Stops the launchers and all ranks, and lets them go on: those first that were stopped last and so wait
/// for the others.
fn stop_all(jobs: &[Job]) {
    let mut all: Vec<usize> = (0..RANKS).collect();
    for job in jobs {
        signal("STOP", job.child.id());
        job.signal_ranks("STOP", &all);
    }
    std::thread::sleep(STOP);
    all.reverse();
    for job in jobs {
        job.signal_ranks("CONT", &all);
        signal("CONT", job.child.id());
    }
}

/// With a metrics file, for which ranks also meet at the end of each epoch.
#[test]
fn a_job_that_is_stopped_and_resumed_goes_on() {
    let launchers = installed("a_job_that_is_stopped_and_resumed_goes_on");
    let _alone = alone();
    let start = |launcher: &Launcher| {
        let case = Case::new(1_000_000, "3 s");
        let run = fs::read_to_string(case.path("run.toml")).unwrap();
        let run = format!("metrics = [\"jsonl\"]\n{run}");
        fs::write(case.path("run.toml"), run).unwrap();
        let command = launcher.command(RANKS);
        let job = Job::spawn(command, launcher.name, RANK, "data=2,depth=2", case);
        job.reach(2);
        job
    };
    let jobs: Vec<Job> = launchers.iter().map(start).collect();
    stop_all(&jobs);
    for job in &jobs {
        job.reach(job.epochs() + 2);
    }
}

/// All ranks wait for the last one, which reads its model from a pipe, so that the stop falls between the
/// reading of the run file, with its limit, and the first step.
#[test]
fn a_job_that_is_stopped_while_it_starts_goes_on() {
    let launchers = installed("a_job_that_is_stopped_while_it_starts_goes_on");
    let _alone = alone();
    let script = RANK.replace("exec", "[ $rank = 3 ] && cd slow && exec < pipe\nexec");
    let start = |launcher: &Launcher| {
        let case = Case::new(1_000_000, "3 s");
        fs::create_dir(case.path("slow")).unwrap();
        let run = fs::read_to_string(case.path("run.toml")).unwrap();
        let piped = run.replace("\"tiny.model\"", "\"/dev/stdin\"");
        assert_ne!(piped, run);
        fs::write(case.path("slow/run.toml"), piped).unwrap();
        std::os::unix::fs::symlink("../universes", case.path("slow/universes")).unwrap();
        let made = Command::new("mkfifo").arg(case.path("slow/pipe")).status();
        assert!(made.unwrap().success());
        let command = launcher.command(RANKS);
        Job::spawn(command, launcher.name, &script, "depth=4", case)
    };
    let jobs: Vec<Job> = launchers.iter().map(start).collect();
    // It opens once the shell of the rank has opened its end.
    let open = |job: &Job| {
        let mut options = fs::File::options();
        options
            .write(true)
            .open(job.case.path("slow/pipe"))
            .unwrap()
    };
    let pipes: Vec<fs::File> = jobs.iter().map(open).collect();
    // The rank has read the run file once it opens its standard input again, as its model.
    for job in &jobs {
        let begun = Instant::now();
        let pipe = job.case.path("slow/pipe").canonicalize().unwrap();
        let opened = || {
            let held = fs::read_dir(format!("/proc/{}/fd", job.pid(3)))
                .into_iter()
                .flatten();
            let held = held.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
            held.filter(|path| *path == pipe).count()
        };
        while opened() < 2 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", job.name);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    stop_all(&jobs);
    for (job, mut pipe) in jobs.iter().zip(pipes) {
        let model = fs::read(job.case.path("tiny.model")).unwrap();
        pipe.write_all(&model).unwrap();
    }
    for job in &jobs {
        job.reach(2);
    }
}

/// Those that wait meanwhile wait for less than the watchdog's limit.
#[test]
fn some_ranks_that_are_stopped_for_a_short_time_go_on() {
    let launchers = installed("some_ranks_that_are_stopped_for_a_short_time_go_on");
    let _alone = alone();
    let jobs = launchers
        .iter()
        .map(|launcher| Job::start(launcher, "depth=4"));
    let jobs: Vec<Job> = jobs.collect();
    for job in &jobs {
        job.signal_ranks("STOP", &[0, 2]);
    }
    std::thread::sleep(WATCHDOG / 3);
    for job in &jobs {
        job.signal_ranks("CONT", &[2, 0]);
    }
    for job in &jobs {
        job.reach(job.epochs() + 2);
    }
}

#[test]
fn threads_that_are_stopped_and_resumed_go_on() {
    let _alone = alone();
    let case = Case::new(1_000_000, "1 s");
    let errors = case.path("errors");
    let mut child = Command::new(PARTITA)
        .args(["train", "run.toml", "--strategy", "depth=4", "--ranks", "4"])
        .arg("--no-prediction")
        .current_dir(case.folder())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&errors).unwrap())
        .spawn()
        .unwrap();
    let text = || fs::read_to_string(&errors).unwrap();
    let pid = child.id();
    let mut reach = |epochs: usize| {
        let start = Instant::now();
        while text().matches(": loss ").count() < epochs {
            let ended = child.try_wait().unwrap();
            let is_late = start.elapsed() > Duration::from_secs(60);
            assert!(ended.is_none() && !is_late, "{ended:?}: {}", text());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    reach(2);
    signal("STOP", pid);
    std::thread::sleep(Duration::from_secs(2));
    signal("CONT", pid);
    reach(text().matches(": loss ").count() + 2);
    signal("KILL", pid);
    child.wait().unwrap();
}

#[test]
fn a_dead_rank_is_named_where_its_launcher_lets_the_others_live() {
    let launchers = installed("a_dead_rank_is_named_where_its_launcher_lets_the_others_live");
    let _alone = alone();
    for (strategy, work) in Share::of(2).of_items([
        ("depth=4", &ANY_WORK[..]),
        ("data=4", &["allreduce"]),
        ("data=2,depth=2", &ANY_WORK),
        (HAND_OVER, &ANY_WORK),
    ]) {
        let jobs = launchers.iter().map(|launcher| {
            let mut job = Job::start_shielded(launcher, strategy);
            job.strike("KILL", job.pid(2));
            job
        });
        for mut job in jobs.collect::<Vec<_>>() {
            // With recovery on, Open MPI's launcher ends with 0 whatever its ranks say.
            job.end(None);
            assert_named(&job, 2, work);
        }
    }
}

#[test]
fn a_dead_rank_ends_the_job() {
    for launcher in installed("a_dead_rank_ends_the_job") {
        let _alone = alone();
        let mut job = Job::start(&launcher, "depth=4");
        job.strike("KILL", job.pid(1));
        let (_, status) = job.end(None);
        assert!(!status.success(), "{}: {status}", job.name);
        // The launcher may end the others before they speak; what they say is right.
        for rank in [0, 2, 3] {
            let said = job.said(rank);
            let is_right = |line: &str| {
                let is_asked_to_stop = line.contains("ending after this step with a checkpoint");
                lists_as_missing(line, 1) || line.contains("with rank 1") || is_asked_to_stop
            };
            assert!(
                said.lines().all(is_right),
                "{}: rank {rank} said: {said}",
                job.name
            );
        }
    }
}

/// What a run that is stopped leaves: its checkpoints with the curve so far, and a lock file that ranks had no time to
/// remove.
const KEPT: [&str; 4] = ["checkpoints", "loss.svg", "loss.png", "train.lock"];

#[test]
fn a_request_to_stop_ends_all_ranks_and_leaves_checkpoints_alone() {
    for launcher in installed("a_request_to_stop_ends_all_ranks_and_leaves_checkpoints_alone") {
        let _alone = alone();
        for request in ["INT", "TERM"] {
            let mut job = Job::start(&launcher, "data=2,depth=2");
            job.strike(request, job.child.id());
            let (_, status) = job.end(None);
            let name = job.name;
            // After an interrupt Hydra may end with 0 where all of its ranks ended with another code.
            assert!(!status.success() || name != "Open MPI", "{name}: {status}");
            let left = fs::read_dir(job.case.path("out")).into_iter().flatten();
            let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
            assert!(
                left.iter()
                    .all(|name| KEPT.iter().any(|kept| name == *kept)),
                "{name}, {request}: {left:?}"
            );
            // The launcher may end the ranks before they have a checkpoint or remove the lock file, whose lock ends with
            // them.
            let said = job.said(0);
            let words = ["stopped on request", "ending after this step", "checkpoint"];
            let waited_in_vain = said
                .lines()
                .any(|line| (0..RANKS).any(|rank| lists_as_missing(line, rank)));
            assert!(
                said.is_empty() || words.iter().any(|word| said.contains(word)) && !waited_in_vain,
                "{name}: {said}"
            );
        }
    }
}
