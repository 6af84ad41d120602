//! The settings in which a training and its loaders and validators must agree.

use super::super::check;
use super::super::run::Run;
use partita_data::{Dataset, Split};
use partita_graph::{Graph, text};
use partita_offload::SharedSetting;
use sha2::{Digest, Sha256};

/// The settings that determine the pieces of samples, in the order in which they are compared.
pub fn of_samples(run: &Run, graph: &Graph, dataset: &Dataset) -> Vec<SharedSetting> {
    let counts = Split::ALL.map(|split| dataset.samples(split));
    let shapes = |split: Split| -> Vec<_> {
        let samples = 0..dataset.samples(split);
        samples
            .map(|sample| dataset.shape_of(split, sample))
            .collect()
    };
    let shapes = dataset.smallest_extent().map(|_| Split::ALL.map(shapes));
    let contents = format!(
        "{:?} {} {shapes:?}",
        Split::ALL.map(|split| dataset.universes(split)),
        dataset.spec()
    );
    let mut features = dataset.features().to_vec();
    // Weights may read them in another order.
    features.sort();
    vec![
        SharedSetting::new("the version", env!("CARGO_PKG_VERSION")),
        SharedSetting::new(
            "`data` (shape of samples)",
            format_args!("{:?}", dataset.shape()),
        ),
        SharedSetting::new("`data` (element type)", dataset.dtype().name()),
        SharedSetting::new("`data` (samples of each split)", format_args!("{counts:?}")),
        SharedSetting::new("`data` (targets)", format_args!("{:?}", dataset.targets())),
        SharedSetting::new("`data` (labels)", format_args!("{:?}", dataset.labels())),
        SharedSetting::new(
            "`data` (features)",
            format_args!("{features:?}, {}", digest(&dataset.stored_features())),
        ),
        SharedSetting::new("`data` (digest of its index)", digest(&contents)),
        SharedSetting::new("`transform` or `augmentation`", run.samples.text()),
        SharedSetting::new(
            "`model` (how it reads samples)",
            format_args!("{:?}", check::accepted(run, graph)),
        ),
        SharedSetting::new("`model` (digest of its text)", digest(&text::print(graph))),
    ]
}

/// The settings that determine a validation, in the order in which they are compared.
pub fn of_validation(run: &Run, graph: &Graph, dataset: &Dataset) -> Vec<SharedSetting> {
    let mut all = of_samples(run, graph, dataset);
    all.push(SharedSetting::new("`batch` times `accumulate`", run.batch));
    all.push(SharedSetting::new("`precision`", run.precision.name()));
    all.push(SharedSetting::new(
        "`kernels`",
        format_args!("{:?}", run.kernels),
    ));
    all
}

/// First bytes of a digest, which tell two texts apart.
fn digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
