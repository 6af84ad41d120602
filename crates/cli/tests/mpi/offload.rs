//! Processes with loaders: the bits of threads without.

use crate::case::{Case, alone, threads};
use crate::launchers::of_day;
use std::fs;

#[test]
fn processes_take_samples_from_loaders_to_the_same_bits() {
    for launcher in of_day("processes_take_samples_from_loaders_to_the_same_bits") {
        let name = launcher.name;
        let _alone = alone();
        let case = Case::new(2, "20 s");
        let text = fs::read_to_string(case.path("run.toml")).unwrap();
        fs::write(
            case.path("run.toml"),
            text + "[offload]\nloaders = 1\nvalidators = 1\n",
        )
        .unwrap();
        let expected = threads(2, "depth=2");
        let found = case.processes(&launcher, 2, "depth=2", &[]);
        assert_eq!(found.losses, expected.losses, "{name}");
        assert!(found.weights == expected.weights, "{name}");
    }
}
