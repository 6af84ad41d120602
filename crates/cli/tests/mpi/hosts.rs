//! Ranks on two hosts, which are network namespaces.

use crate::case::{Case, PARTITA, alone, run, threads};
use crate::launchers::{Launcher, launcher};
use partita_testkit::not_run;
use serde_json::Value;
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

/// Four ranks on both hosts, with options of the launcher and words of the command line.
fn across_hosts(launcher: &Launcher, more: &[&str], words: &[&str]) -> Command {
    let mut command = Command::new(SCRIPT);
    command.arg("run").args(launcher.words()).args(more);
    command.args(["-n", "4", PARTITA]).args(words);
    command.arg("--json").stdin(Stdio::null());
    // Over the network alone, though both hosts are one machine.
    command.envs([("MPIR_CVAR_CH4_NETMOD", "ofi"), ("FI_PROVIDER", "tcp")]);
    command.env("FI_TCP_IFACE", DEVICE);
    command.env("MPIR_CVAR_NOLOCAL", "1");
    command
}

fn answer(command: &mut Command) -> Value {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

/// A calibration taken across hosts has their network, and predicts ranks on both.
fn is_calibrated_across_hosts(launcher: &Launcher, more: &[&str]) {
    let case = Case::new(2, "20 s");
    let words = ["calibrate", "--name", "both", "--models", "tiny.model:4"];
    let mut command = across_hosts(launcher, more, &[&words[..], &["--passes", "1"]].concat());
    command
        .current_dir(case.folder())
        .env("XDG_CACHE_HOME", case.folder());
    let found = answer(&mut command);
    assert_eq!((&found["hosts"], &found["ranks"]), (&2.into(), &2.into()));
    let text = std::fs::read_to_string(case.path("both.toml")).unwrap();
    for group in ["2x1 = {", "2x2 = {"] {
        let of_network = text
            .split("[calibration.network")
            .filter(|part| part.contains(group));
        assert_eq!(of_network.count(), 4, "{}: {group} {text}", launcher.name);
    }
    let mut predict = Command::new(PARTITA);
    predict.args([
        "predict",
        "tiny.model",
        "--machine",
        "both.toml",
        "--ranks",
        "4",
    ]);
    predict.args(["--batch", "4", "--strategy", "data=2,depth=2", "--json"]);
    let predicted = answer(predict.current_dir(case.folder()));
    assert_eq!(predicted["basis"], "calibrated");
    assert!(predicted["iteration_seconds"].as_f64().unwrap() > 0.0);
    let words = [
        "train",
        "run.toml",
        "--strategy",
        "auto",
        "--machine",
        "both.toml",
    ];
    let mut train = across_hosts(launcher, more, &words);
    let result = answer(train.current_dir(case.folder()));
    let iteration = &result["comparison"]["iteration"];
    assert!(iteration["predicted"].as_f64().unwrap() > 0.0, "{result}");
    assert!(iteration["measured"].as_f64().unwrap() > 0.0, "{result}");
}

fn is_the_same_across_hosts(launcher: &Launcher, network: &Network, more: &[&str]) {
    let case = Case::new(2, "20 s");
    let strategy = "data=2,depth=2";
    let expected = threads(4, strategy);
    let words = ["train", "run.toml", "--strategy", strategy];
    let command = across_hosts(launcher, more, &words);
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
    let mut is_calibrated = false;
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
        is_calibrated_across_hosts(&launcher, &hosts);
        is_calibrated = true;
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
        // A calibration takes over a minute, and the messages of a library were seen to be right above.
        if !is_calibrated {
            is_calibrated_across_hosts(&launcher, &hosts);
        }
    }
}
