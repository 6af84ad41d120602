//! Processes are bitwise equal to threads.

use crate::case::{Case, PARTITA, alone, threads};
use crate::launchers::{installed, launcher};
use partita_testkit::Share;
use std::process::Command;

/// Strategies of 2, 4 and 8 ranks. Layers of stages are said, as those that are left open follow what
/// messages take.
const STRATEGIES: [(usize, &str); 17] = [
    (2, "data=2"),
    (2, "data=2,bucket=1KiB"),
    (4, "data=2,depth=2,bucket=1GiB"),
    (2, "depth=2"),
    (2, "width=2"),
    (4, "depth=4"),
    (4, "data=2,height=2"),
    (4, "height=2,width=2"),
    (8, "data=2,depth=2,width=2"),
    (2, "filter=2"),
    (4, "filter=2,channel=2,micro=2"),
    (4, "data=2,filter=2,shard=parameters; c1..a1: recompute=on"),
    (4, "height=2,width=2,shard=optimizer; c1..c2: halo=grouped"),
    (2, "depth=2; c2..a2: D=-,C=depth"),
    (
        8,
        "data=2,micro=4,stages=[..a1: depth=2|p1..a2: 1|p2..: 1],schedule=gems*2",
    ),
    (
        4,
        "micro=4,stages=[..a1: depth=2|p1..a2: 1|p2..: 1],schedule=1f1b",
    ),
    (
        4,
        "data=2,micro=2,stages=[..p1: 1|c2..: 1],schedule=chimera",
    ),
];

/// Digest, losses, and every byte of the weights.
fn is_the_same_as_threads(name: &'static str, test: &str) {
    let Some(launcher) = launcher(name, test) else {
        return;
    };
    let _alone = alone();
    let case = Case::new(2, "20 s");
    for (ranks, strategy) in Share::of(3).of_items(STRATEGIES) {
        let expected = threads(ranks, strategy);
        let processes = case.processes(&launcher, ranks, strategy, &[]);
        assert_eq!(processes.digest, expected.digest, "{name}, {strategy}");
        assert_eq!(processes.losses, expected.losses, "{name}, {strategy}");
        assert!(
            processes.weights == expected.weights,
            "weights of {name}, {strategy}"
        );
        assert_eq!(processes.ranks_traced, ranks, "{name}, {strategy}");
    }
}

#[test]
fn open_mpi_is_bitwise_equal_to_threads() {
    is_the_same_as_threads("Open MPI", "open_mpi_is_bitwise_equal_to_threads");
}

#[test]
fn mpich_is_bitwise_equal_to_threads() {
    is_the_same_as_threads("MPICH", "mpich_is_bitwise_equal_to_threads");
}

#[test]
fn the_standard_abi_is_bitwise_equal_to_threads() {
    is_the_same_as_threads(
        "standard ABI",
        "the_standard_abi_is_bitwise_equal_to_threads",
    );
}

#[test]
fn sums_of_the_library_are_equal_up_to_rounding() {
    for launcher in installed("sums_of_the_library_are_equal_up_to_rounding") {
        let name = launcher.name;
        let _alone = alone();
        let case = Case::new(2, "20 s");
        for strategy in Share::of(4).of_items([
            "data=2,depth=2",
            "data=4,bucket=2KiB",
            "data=2,channel=2,shard=gradients",
            "micro=2,stages=[depth=2|data=2],schedule=1f1b",
        ]) {
            let ordered = case.processes(&launcher, 4, strategy, &[]);
            let library = case.processes(&launcher, 4, strategy, &["--library-collectives"]);
            assert_eq!(library.digest, ordered.digest);
            for (a, b) in library.losses.iter().zip(&ordered.losses) {
                assert!(
                    (a - b).abs() < 1e-3 * b.abs(),
                    "{name}, {strategy}: {a} is not near {b}"
                );
            }
        }
    }
}

/// Halos, redistributions and partial sums of two bytes an element.
#[test]
fn messages_in_bf16_are_those_of_threads() {
    for launcher in installed("messages_in_bf16_are_those_of_threads") {
        let name = launcher.name;
        let _alone = alone();
        let case = Case::new(2, "20 s");
        case.set("precision = \"bf16\"");
        for strategy in Share::of(2).of_items(["data=2,depth=2", "filter=2,channel=2"]) {
            let ordered = case.processes(&launcher, 4, strategy, &[]);
            let mut command = Command::new(PARTITA);
            command.args(["train", "run.toml", "--strategy", strategy, "--json"]);
            command.args(["--ranks", "4", "--no-prediction"]);
            let expected = case.trained(command);
            assert_eq!(ordered.losses, expected.losses, "{name}, {strategy}");
            assert!(ordered.weights == expected.weights, "{name}, {strategy}");
            let library = case.processes(&launcher, 4, strategy, &["--library-collectives"]);
            for (a, b) in library.losses.iter().zip(&ordered.losses) {
                let far = (a - b).abs() / b.abs();
                assert!(far < 3e-2, "{name}, {strategy}: {a} is not near {b}");
            }
        }
    }
}

#[test]
fn all_ranks_take_the_strategy_that_rank_0_chose() {
    let test = "all_ranks_take_the_strategy_that_rank_0_chose";
    let Some(launcher) = launcher("MPICH", test) else {
        return;
    };
    let _alone = alone();
    let case = Case::new(2, "20 s");
    let processes = case.processes(&launcher, 2, "auto", &[]);
    assert_eq!(processes.ranks_traced, 2);
}
