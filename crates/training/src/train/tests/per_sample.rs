//! Loss and metrics of each sample, however volumes are read.

use super::preparation::{CROPS, NEAR, folder, forward, run};
use crate::train::{EvaluateResult, ForwardRequest, VolumeMode, evaluate};
use partita_site::{Context, Environment};
use std::fs;

fn measure(request: ForwardRequest) -> EvaluateResult {
    let context = Context::new(Environment::default());
    evaluate(&context, &request).unwrap().unwrap()
}

/// Samples of tiles have the results that they have as whole volumes, on any number of ranks, and their mean is that of
/// all.
#[test]
fn each_sample_has_the_results_of_an_evaluation_of_it_alone() {
    let folder = folder();
    fs::write(folder.path().join("net.model"), NEAR).unwrap();
    super::classes::train(&folder, &run("data=1", 1, CROPS)).unwrap();
    let mut first: Option<EvaluateResult> = None;
    for (mode, ranks, strategy) in [
        (VolumeMode::Whole, 1, "data=1"),
        (VolumeMode::Whole, 3, "data=3"),
        (VolumeMode::Tiles, 1, "data=1"),
        (VolumeMode::Tiles, 2, "depth=2"),
    ] {
        let request = ForwardRequest {
            per_sample: true,
            strategy: Some(strategy.to_owned()),
            ..forward(&folder, Some(mode), ranks)
        };
        let found = measure(request);
        let names: Vec<&str> = found.samples.iter().map(|one| &*one.name).collect();
        let expected = ["0", "1", "2", "3", "4"].map(|number| format!("validation/{number}"));
        assert_eq!(names, expected, "{mode:?}");
        let mean = found.samples.iter().map(|one| one.loss).sum::<f64>() / 5.0;
        assert!((mean / found.metrics.loss - 1.0).abs() < 1e-9);
        let first = first.get_or_insert_with(|| found.clone());
        for (one, other) in found.samples.iter().zip(&first.samples) {
            assert!(
                (one.loss / other.loss - 1.0).abs() < 1e-5,
                "{mode:?}: {}",
                one.name
            );
            let dice = |it: &crate::train::SampleResult| {
                let classes = it.classification.as_ref().unwrap().classes.iter();
                classes.map(|class| class.dice).collect::<Vec<_>>()
            };
            for (a, b) in dice(one).into_iter().zip(dice(other)) {
                let [a, b] = [a, b].map(Option::unwrap_or_default);
                assert!((a - b).abs() < 1e-2, "{mode:?}: {a} and {b}");
            }
        }
        let losses: std::collections::BTreeSet<u64> =
            found.samples.iter().map(|one| one.loss.to_bits()).collect();
        assert_eq!(losses.len(), 5, "volumes differ");
    }
    let request = ForwardRequest {
        per_sample: true,
        ..forward(&folder, Some(VolumeMode::Crops), 1)
    };
    let found = measure(request);
    assert_eq!(found.samples.len(), 40);
    assert_eq!(found.samples[39].name, "validation/4-crop7");
}
