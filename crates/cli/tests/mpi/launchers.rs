//! Installed launchers.

use partita_testkit::{Share, not_run};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An MPI launcher.
#[derive(Clone, Debug)]
pub struct Launcher {
    pub name: &'static str,
    program: PathBuf,
    arguments: &'static [&'static str],
    /// Option that keeps it from killing the other ranks when one dies.
    pub keep_survivors: &'static [&'static str],
}

/// Debian's Open MPI, Debian's MPICH, and the PyPI package of MPICH, which has the standard ABI.
const NAMES: [&str; 3] = ["Open MPI", "MPICH", "standard ABI"];

/// The installed launchers, each reported that is not.
pub fn installed(test: &str) -> Vec<Launcher> {
    let found = NAMES.map(|name| launcher(name, test));
    found.into_iter().flatten().collect()
}

/// The installed launcher whose turn it is today, or all of them in a long run.
pub fn of_day(test: &str) -> impl Iterator<Item = Launcher> {
    let all = installed(test);
    Share::of(all.len().max(1) as u64).of_items(all)
}

/// The launcher of this name; reports if it is not installed.
pub fn launcher(name: &'static str, test: &str) -> Option<Launcher> {
    // The wheel lies beside the build.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let (program, arguments, keep_survivors): (_, &[&str], &[&str]) = match name {
        "Open MPI" => (
            PathBuf::from("mpirun.openmpi"),
            &["--oversubscribe", "--allow-run-as-root"],
            &["-enable-recovery"],
        ),
        "MPICH" => (
            PathBuf::from("mpirun.mpich"),
            &[],
            &["-disable-auto-cleanup"],
        ),
        "standard ABI" => (
            target.join("mpi-wheel/bin/mpiexec"),
            &[],
            &["-disable-auto-cleanup"],
        ),
        other => panic!("no launcher {other}"),
    };
    let found = Command::new(&program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if found.is_ok() {
        return Some(Launcher {
            name,
            program,
            arguments,
            keep_survivors,
        });
    }
    not_run(
        test,
        format!(
            "{} is missing; crates/mpi/install-test-mpi.sh installs it",
            program.display()
        ),
    );
    None
}

impl Launcher {
    /// A command that starts this number of processes; append the program.
    pub fn command(&self, processes: usize) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.arguments);
        command.args(["-n", &processes.to_string()]);
        command.stdin(Stdio::null());
        command
    }

    /// Its path and its arguments, for commands in which it is not the first.
    pub fn words(&self) -> Vec<String> {
        let arguments = self.arguments.iter().map(|&argument| argument.to_owned());
        [self.program.display().to_string()]
            .into_iter()
            .chain(arguments)
            .collect()
    }
}
