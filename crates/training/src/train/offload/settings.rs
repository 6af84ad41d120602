//! The settings in which a training and its loaders and validators must agree.

use super::super::check;
use super::super::run::Run;
use partita_data::{Dataset, Split};
use partita_graph::{Graph, text};
use partita_offload::Setting;
use sha2::{Digest, Sha256};

/// The settings that determine the pieces of samples, in the order in which they are compared.
pub fn of_samples(run: &Run, graph: &Graph, dataset: &Dataset) -> Vec<Setting> {
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
    vec![
        Setting::new("the version", env!("CARGO_PKG_VERSION")),
        Setting::new(
            "`data` (shape of samples)",
            format_args!("{:?}", dataset.shape()),
        ),
        Setting::new("`data` (element type)", dataset.dtype().name()),
        Setting::new("`data` (samples of each split)", format_args!("{counts:?}")),
        Setting::new("`data` (targets)", format_args!("{:?}", dataset.targets())),
        Setting::new("`data` (labels)", format_args!("{:?}", dataset.labels())),
        Setting::new("`data` (digest of its index)", digest(&contents)),
        Setting::new("`transform` or `augmentation`", run.samples.text()),
        Setting::new(
            "`model` (how it reads samples)",
            format_args!("{:?}", check::accepted(run, graph)),
        ),
        Setting::new("`model` (digest of its text)", digest(&text::print(graph))),
    ]
}

/// The settings that determine a validation, in the order in which they are compared.
pub fn of_validation(run: &Run, graph: &Graph, dataset: &Dataset) -> Vec<Setting> {
    let mut all = of_samples(run, graph, dataset);
    all.push(Setting::new("`batch` times `accumulate`", run.batch));
    all.push(Setting::new("`precision`", run.precision.name()));
    all.push(Setting::new("`kernels`", format_args!("{:?}", run.kernels)));
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
