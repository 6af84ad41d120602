//! Ranks on two hosts, which are network namespaces.

use crate::case::{Case, PARTITA, alone, threads};
use crate::launchers::{Launcher, launcher, not_run};
use std::process::{Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mpi/two-hosts.sh");
const HOSTS: &str = "10.213.77.1,10.213.77.2";
const DEVICE: &str = "partita-v";
/// Two ranks on each.
const SLOTS: &str = "10.213.77.1:2,10.213.77.2:2";
/// More than a launcher and its ranks say to each other; a training sends ten times as much.
const BYTES_MIN: u64 = 100_000;

/// The network of both hosts, while it lives.
struct Network;

impl Network {
    fn up(test: &str) -> Option<Self> {
        let made = Command::new(SCRIPT)
            .arg("up")
            .stderr(Stdio::null())
            .status();
        if made.is_ok_and(|status| status.success()) {
            return Some(Self);
        }
        not_run(
            test,
            "two hosts on one machine need root, bash and iproute2 (ip netns)",
        );
        None
    }

    /// Sent from the first host to the second.
    fn bytes(&self) -> u64 {
        let output = Command::new(SCRIPT).arg("bytes").output().unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new(SCRIPT).arg("down").status();
    }
}

fn is_the_same_across_hosts(launcher: &Launcher, network: &Network, more: &[&str]) {
    let case = Case::new(2, "20 s");
    let strategy = "data=2,depth=2";
    let expected = threads(4, strategy);
    let mut command = Command::new(SCRIPT);
    command.arg("run").args(launcher.words()).args(more);
    command.args(["-n", "4", PARTITA, "train", "run.toml", "--json"]);
    command.args(["--strategy", strategy]).stdin(Stdio::null());
    // Over the network alone, though both hosts are one machine.
    command.envs([("MPIR_CVAR_CH4_NETMOD", "ofi"), ("FI_PROVIDER", "tcp")]);
    command.env("FI_TCP_IFACE", DEVICE);
    command.env("MPIR_CVAR_NOLOCAL", "1");
    let before = network.bytes();
    let processes = case.trained(command);
    let sent = network.bytes() - before;
    assert!(
        sent > BYTES_MIN,
        "{}: {sent} bytes went over the network",
        launcher.name
    );
    assert!(
        processes == expected,
        "{}: another result than that of threads",
        launcher.name
    );
}

#[test]
fn two_hosts_train_as_one_machine_does() {
    let test = "two_hosts_train_as_one_machine_does";
    let _alone = alone();
    let Some(network) = Network::up(test) else {
        return;
    };
    if let Some(launcher) = launcher("standard ABI", test) {
        let hosts = [
            "-launcher",
            "ssh",
            "-launcher-exec",
            SCRIPT,
            "-hosts",
            HOSTS,
            "-ppn",
            "2",
        ];
        is_the_same_across_hosts(&launcher, &network, &hosts);
    }
    if let Some(launcher) = launcher("Open MPI", test) {
        let own = "10.213.77.0/24";
        let mut hosts = vec!["--host", SLOTS, "--mca", "plm_rsh_agent", SCRIPT];
        hosts.extend([
            "--mca",
            "btl",
            "tcp,self",
            "--mca",
            "btl_tcp_if_include",
            own,
        ]);
        hosts.extend(["--mca", "oob_tcp_if_include", own]);
        is_the_same_across_hosts(&launcher, &network, &hosts);
    }
}
