use crate::case::{Case, PARTITA, alone, signal, wait};
use crate::launchers::{Launcher, NAMES, launcher};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const RANKS: usize = 4;
const WATCHDOG: Duration = Duration::from_secs(3);
/// Beyond the watchdog's limit, for everything to end.
const MARGIN: Duration = Duration::from_secs(10);

/// Keeps the number and the error output of each rank, as launchers may drop what ranks say last.
const RANK: &str = "#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
echo $$ > \"$0.pid.$rank\"
exec \"$@\" 2> \"$0.error.$rank\"
";

/// A job that trains until something happens to it.
struct Job {
    case: Case,
    child: Child,
}

impl Job {
    fn start(launcher: &Launcher, strategy: &str, more: &[&str]) -> Self {
        let case = Case::new(1_000_000, "3 s");
        let script = case.path("rank");
        fs::write(&script, RANK).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = launcher.command(RANKS);
        command.args(more).arg(&script).args([PARTITA, "train"]);
        command.args(["run.toml", "--strategy", strategy]);
        command.current_dir(case.folder());
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let job = Self { case, child };
        let start = Instant::now();
        while !job.error(0).contains("epoch 2/") {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "it starts: {}",
                job.error(0)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        job
    }

    fn error(&self, rank: usize) -> String {
        let path = self.case.path(&format!("rank.error.{rank}"));
        String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
    }

    /// What a rank said in the end.
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
        let start = Instant::now();
        let limit = WATCHDOG + MARGIN;
        let status = wait(&mut self.child, limit);
        let alive = |job: &Self| {
            let others = (0..RANKS).filter(|&rank| Some(rank) != but);
            others
                .filter(|&rank| job.is_running(rank))
                .collect::<Vec<_>>()
        };
        while !alive(self).is_empty() && start.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(20));
        }
        let texts: Vec<String> = (0..RANKS).map(|rank| self.said(rank)).collect();
        assert!(
            alive(self).is_empty(),
            "ranks {:?} live on: {texts:#?}",
            alive(self)
        );
        (
            start.elapsed(),
            status.unwrap_or_else(|| panic!("the launcher lives on: {texts:#?}")),
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

/// Every rank that lives names the one that does not, with task, layer and sequence number.
fn assert_named(job: &Job, victim: usize, work: &[&str]) {
    for rank in (0..RANKS).filter(|&rank| rank != victim) {
        let said = job.said(rank);
        let names = said.contains(&format!("rank(s) [{victim}]"));
        let where_it_was = said.contains("layer `") && said.contains("sequence ");
        assert!(names && where_it_was, "rank {rank} said: {said}");
        assert!(
            work.iter().any(|work| said.contains(work)),
            "rank {rank} said: {said}"
        );
    }
}

fn hangs(launcher: &Launcher, strategy: &str, more: &[&str], victim: usize, work: &[&str]) {
    let mut job = Job::start(launcher, strategy, more);
    signal("STOP", job.pid(victim));
    let (_, status) = job.end(Some(victim));
    assert!(!status.success(), "{}: {status}", launcher.name);
    assert_named(&job, victim, work);
    assert!(
        !job.case.path("out").exists(),
        "a failed run leaves nothing"
    );
}

#[test]
fn a_hung_rank_is_named_in_an_exchange_or_a_sum() {
    for name in NAMES {
        let test = "a_hung_rank_is_named_in_an_exchange_or_a_sum";
        let Some(launcher) = launcher(name, test) else {
            continue;
        };
        let _alone = alone();
        hangs(
            &launcher,
            "depth=4",
            &[],
            2,
            &["exchange", "allreduce", "allgather"],
        );
    }
}

#[test]
fn a_hung_rank_is_named_in_a_collective() {
    for name in NAMES {
        let Some(launcher) = launcher(name, "a_hung_rank_is_named_in_a_collective") else {
            continue;
        };
        let _alone = alone();
        hangs(&launcher, "data=4", &[], 3, &["allreduce"]);
    }
}

#[test]
fn a_dead_rank_is_named_where_its_launcher_lets_the_others_live() {
    let test = "a_dead_rank_is_named_where_its_launcher_lets_the_others_live";
    let Some(launcher) = launcher("Open MPI", test) else {
        return;
    };
    let _alone = alone();
    let mut job = Job::start(&launcher, "data=2,depth=2", launcher.keep_survivors);
    signal("KILL", job.pid(2));
    // With recovery on, this launcher ends with 0 whatever its ranks say.
    job.end(None);
    assert_named(&job, 2, &["exchange", "allreduce", "allgather"]);
}

#[test]
fn a_dead_rank_ends_the_job() {
    for name in NAMES {
        let Some(launcher) = launcher(name, "a_dead_rank_ends_the_job") else {
            continue;
        };
        let _alone = alone();
        for more in [&[], launcher.keep_survivors] {
            let mut job = Job::start(&launcher, "depth=4", more);
            signal("KILL", job.pid(1));
            job.end(None);
            // Launchers differ in whether survivors get to say something; what they say is right.
            for rank in [0, 2, 3] {
                let said = job.said(rank);
                assert!(
                    said.is_empty() || said.contains("[1]"),
                    "rank {rank} said: {said}"
                );
            }
        }
    }
}

#[test]
fn a_request_to_stop_ends_all_ranks_and_leaves_nothing() {
    for name in NAMES {
        let test = "a_request_to_stop_ends_all_ranks_and_leaves_nothing";
        let Some(launcher) = launcher(name, test) else {
            continue;
        };
        let _alone = alone();
        for request in ["INT", "TERM"] {
            let mut job = Job::start(&launcher, "data=2,depth=2", &[]);
            signal(request, job.child.id());
            let (seconds, status) = job.end(None);
            assert!(!status.success(), "{name}: {status}");
            assert!(
                seconds < Duration::from_secs(3),
                "{name}, {request}: {seconds:?}"
            );
            assert!(!job.case.path("out").exists(), "{name}, {request}");
            let said = job.said(0);
            assert!(
                said.is_empty() || said.contains("stopped on request"),
                "{name}: {said}"
            );
        }
    }
}
