//! Processes that keep samples in memory send them to each other, and give the bits of threads that read files.

use crate::case::{Case, PARTITA, alone, run, threads};
use crate::launchers::{installed, of_day};

const STRATEGIES: [(usize, &str, &[&str]); 5] = [
    (2, "data=2", &[]),
    (
        2,
        "data=2",
        &["--spill", ".", "--store-memory", "150kB", "--preload"],
    ),
    (4, "data=2,depth=2", &["--preload"]),
    (2, "depth=2", &[]),
    (
        4,
        "data=2,micro=2,stages=[..p1: 1|c2..: 1],schedule=chimera",
        &[],
    ),
];

#[test]
fn samples_come_from_other_processes() {
    for launcher in of_day("samples_come_from_other_processes") {
        let name = launcher.name;
        let _alone = alone();
        let case = Case::new(2, "20 s");
        let text = std::fs::read_to_string(case.path("run.toml")).unwrap();
        let text = text.replace("[schedule]", "metrics = [\"jsonl\"]\n[schedule]");
        std::fs::write(case.path("run.toml"), text).unwrap();
        for (ranks, strategy, more) in STRATEGIES {
            let expected = threads(ranks, strategy);
            let options = [&["--store", "memory"], more].concat();
            let stored = case.processes(&launcher, ranks, strategy, &options);
            assert_eq!(stored.losses, expected.losses, "{name}, {strategy}");
            assert!(stored.weights == expected.weights, "{name}, {strategy}");
            let [first, second] = stored.loads[..] else {
                panic!("{name}, {strategy}: {:?}", stored.loads);
            };
            assert!(first[0] > 0, "{name}, {strategy}: {first:?}");
            assert_eq!(second[0], 0, "{name}, {strategy}");
            let moves = strategy.starts_with("data=2");
            assert!(!moves || second[1] > 0, "{name}, {strategy}: {second:?}");
        }
    }
}

#[test]
fn an_unreadable_sample_ends_all_processes() {
    for launcher in installed("an_unreadable_sample_ends_all_processes") {
        let name = launcher.name;
        let _alone = alone();
        let case = Case::new(2, "20 s");
        let file = case.path("universes/train.h5");
        let length = std::fs::metadata(&file).unwrap().len();
        let damaged = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
        damaged.set_len(length / 2).unwrap();
        let mut command = launcher.command(2);
        command.args([PARTITA, "train", "run.toml", "--strategy", "data=2"]);
        command.args(["--no-prediction", "--store", "memory", "--preload"]);
        let output = run(command.current_dir(case.folder()));
        assert!(!output.status.success(), "{name}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("train.h5"), "{name}: {text}");
        assert!(!case.path("out").exists(), "{name}");
    }
}
