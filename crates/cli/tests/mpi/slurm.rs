//! Ranks that srun starts.

use crate::case::{Case, PARTITA, alone, run, signal, threads, wait};
use crate::launchers::launcher;
use partita_testkit::not_run;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// From the start of the daemons until a job can run.
const START: Duration = Duration::from_secs(20);

/// A cluster of Slurm that is this machine, while it lives. It trusts everybody here.
struct Cluster {
    folder: TempDir,
    daemons: Vec<Child>,
}

impl Cluster {
    fn up(test: &str) -> Option<Self> {
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            not_run(test, "a cluster of this machine alone needs root");
            return None;
        }
        let mut cluster = Self {
            folder: tempfile::tempdir().unwrap(),
            daemons: Vec::new(),
        };
        cluster.configure();
        for daemon in ["slurmctld", "slurmd"] {
            let Some(child) = cluster.start(daemon) else {
                not_run(test, format!("{daemon} is missing (Debian: slurm-wlm)"));
                return None;
            };
            cluster.daemons.push(child);
        }
        let start = Instant::now();
        while !cluster.told(&["sinfo", "-h", "-o", "%T"]).contains("idle") {
            if start.elapsed() > START {
                not_run(test, "a cluster of this machine alone does not start");
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(cluster)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self) {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = name.trim().split('.').next().unwrap();
        let (state, spool) = (self.path("state"), self.path("spool"));
        fs::create_dir(&state).unwrap();
        fs::create_dir(&spool).unwrap();
        let [controller, node] = [(), ()].map(|()| {
            let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            free.local_addr().unwrap().port()
        });
        let text = format!(
            "ClusterName=partita\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\n\
             AuthType=auth/none\nCredType=cred/none\n\
             SlurmctldPort={controller}\nSlurmdPort={node}\n\
             StateSaveLocation={}\nSlurmdSpoolDir={}\nSlurmctldPidFile={}\nSlurmdPidFile={}\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nReturnToService=2\n\
             SlurmdParameters=config_overrides\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN\n\
             PartitionName=main Nodes=ALL Default=YES State=UP\n",
            state.display(),
            spool.display(),
            self.path("slurmctld.pid").display(),
            self.path("slurmd.pid").display(),
        );
        fs::write(self.path("slurm.conf"), text).unwrap();
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.path("slurm.conf"));
        command.stdin(Stdio::null());
        command
    }

    fn start(&self, daemon: &str) -> Option<Child> {
        let log = File::create(self.path(&format!("{daemon}.log"))).unwrap();
        let mut command = self.command(daemon);
        command.arg("-D").stdout(log.try_clone().unwrap());
        command.stderr(log).spawn().ok()
    }

    /// What a command writes, wherever to.
    fn told(&self, words: &[&str]) -> String {
        let output = run(self.command(words[0]).args(&words[1..]));
        let told = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&told).into_owned()
    }

    fn srun(&self, interface: &str, ranks: usize, folder: &Path) -> Command {
        let mut command = self.command("srun");
        command.arg(format!("--mpi={interface}"));
        command.args(["-n", &ranks.to_string(), PARTITA, "train", "run.toml"]);
        command.current_dir(folder);
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for mut daemon in self.daemons.drain(..).rev() {
            signal("TERM", daemon.id());
            if wait(&mut daemon, Duration::from_secs(5)).is_none() {
                signal("KILL", daemon.id());
                let _ = daemon.wait();
            }
        }
    }
}

#[test]
fn srun_is_bitwise_equal_to_threads() {
    let test = "srun_is_bitwise_equal_to_threads";
    let _alone = alone();
    let Some(cluster) = Cluster::up(test) else {
        return;
    };
    let case = Case::new(2, "20 s");
    let known = cluster.told(&["srun", "--mpi=list"]);
    for (interface, mpi) in [("pmi2", "MPICH"), ("pmix", "Open MPI")] {
        if !known.contains(interface) {
            not_run(test, format!("this Slurm has no {interface}"));
            continue;
        }
        if launcher(mpi, test).is_none() {
            continue;
        }
        for (ranks, strategy) in [(2, "depth=2"), (4, "data=2,depth=2")] {
            let mut command = cluster.srun(interface, ranks, case.folder());
            command.args(["--strategy", strategy, "--json"]);
            let processes = case.trained(command);
            let is_same = processes == threads(ranks, strategy);
            assert!(is_same, "{interface}, {strategy}");
        }
    }
    // Without an interface each process would be alone.
    let output = run(&mut cluster.srun("none", 2, case.folder()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        said.contains("started 2 processes") && said.contains("srun --mpi="),
        "{said}"
    );
}
