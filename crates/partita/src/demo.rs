//! `demo`: a small training on a new dataset, and baselines to compare it with.

use crate::data::{CosmologyRequest, DatasetError, MakeRequest};
use partita_data::{Dataset, Split};
use partita_formats::{DataError, Samples};
use partita_site::{ErrorKind, Fault};
use partita_synth::SynthError;
use partita_synth::ridge::fit;
use partita_synth::spectrum::SpectrumSpec;
use partita_training::RunResult;
use std::path::Path;

/// Universes of the demo; one in sixteen is for validation.
pub const UNIVERSES: usize = 2688;
/// Voxels per side of each.
pub const GRID: usize = 32;
const SEED: u64 = 2026;
const BINS: usize = 8;
/// The network: statistics of the density at four scales, and two linear layers on them.
pub const MODEL: &str = include_str!("demo/pyramid.model");

/// An error of the demo.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// Its dataset cannot be made or opened.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// Its dataset cannot be read.
    #[error(transparent)]
    Read(DataError),
    /// Its baselines cannot be computed.
    #[error(transparent)]
    Baseline(#[from] SynthError),
    /// The dataset was not made by the demo.
    #[error("{0}")]
    OtherDataset(&'static str),
    /// The training has no validation.
    #[error("the training has no validation results")]
    NoValidation,
}

impl Fault for DemoError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Dataset(error) => error.kind(),
            Self::Read(_) | Self::Baseline(_) | Self::OtherDataset(_) | Self::NoValidation => {
                ErrorKind::Failure
            }
        }
    }
}

/// Mean absolute errors of a target on the validation universes.
#[derive(Clone, Debug, PartialEq)]
pub struct BaselineErrors {
    /// Name of the target.
    pub target: String,
    /// Error of the mean of the training universes.
    pub mean: f64,
    /// Error of a ridge regression on the binned logarithm of the power spectrum.
    pub ridge: f64,
    /// Error of the network after the last epoch.
    pub network: f64,
}

/// Whether a folder holds a dataset.
pub fn has_universes(folder: &Path) -> bool {
    Dataset::open(folder).is_ok()
}

/// The dataset of the demo.
pub fn universes(out: &Path) -> CosmologyRequest {
    CosmologyRequest {
        make: MakeRequest {
            out: out.to_owned(),
            seed: SEED,
            validation: 0.0625,
            test: 0.0,
            threads: None,
        },
        universes: UNIVERSES,
        grid: GRID,
        n_s_spread: 0.1,
        h_0_spread: 0.1,
    }
}

/// The run file of the demo.
pub fn run_text(model: &Path, data: &Path, output: &Path, ranks: usize) -> String {
    let quoted = |path: &Path| toml::Value::from(path.display().to_string()).to_string();
    format!(
        "model = {}\n\
         data = {}\n\
         output = {}\n\
         overwrite = true\n\
         ranks = {ranks}\n\
         strategy = \"auto\"\n\
         batch = 60\n\
         epochs = 40\n\
         seed = 1\n\
         transform = \"standardize\"\n\
         freeze = [\"smooth*\", \"coarse*\", \"power_shape*\", \"excess_shape*\"]\n\
         \n\
         [optimizer]\n\
         kind = \"adam\"\n\
         \n\
         [schedule]\n\
         kind = \"cosine\"\n\
         learning_rate = 2e-2\n",
        quoted(model),
        quoted(data),
        quoted(output)
    )
}

/// Errors on the validation universes of a network that was trained on a dataset of the demo, and of two
/// baselines.
///
/// Errors: another dataset, or a training without validation.
pub fn baselines(data: &Path, result: &RunResult) -> Result<Vec<BaselineErrors>, DemoError> {
    let last = result.epochs.last();
    let validation = last.and_then(|epoch| epoch.validation.as_ref());
    let network = &validation.ok_or(DemoError::NoValidation)?.errors;
    let dataset = Dataset::open(data).map_err(DatasetError::Data)?;
    let (features, targets) = spectra(&dataset, Split::Train)?;
    let (unseen, truth) = spectra(&dataset, Split::Validation)?;
    let ridge = fit(&features, &targets)?;
    let predicted: Result<Vec<Vec<f64>>, _> = unseen
        .iter()
        .map(|features| ridge.predict(features))
        .collect();
    let predicted = predicted?;
    let names = dataset.targets().iter().zip(network).enumerate();
    let errors = names.map(|(index, (name, network))| {
        let mean = targets.iter().map(|one| one[index]).sum::<f64>() / targets.len() as f64;
        let error = |guess: &dyn Fn(usize) -> f64| -> f64 {
            let errors = truth
                .iter()
                .enumerate()
                .map(|(i, truth)| (truth[index] - guess(i)).abs());
            errors.sum::<f64>() / truth.len() as f64
        };
        BaselineErrors {
            target: name.clone(),
            mean: error(&|_| mean),
            ridge: error(&|sample| predicted[sample][index]),
            network: network.mean_absolute,
        }
    });
    Ok(errors.collect())
}

/// Features and targets of each sample.
type Spectra = (Vec<Vec<f64>>, Vec<Vec<f64>>);

/// Binned logarithms of the power spectra of the samples of a split, with their targets.
fn spectra(dataset: &Dataset, split: Split) -> Result<Spectra, DemoError> {
    let box_mpc_h = dataset
        .spec()
        .get("box_mpc_h")
        .and_then(toml::Value::as_float);
    let box_mpc_h = box_mpc_h.ok_or(DemoError::OtherDataset(
        "the dataset does not say how large its box is",
    ))?;
    let [channels, d, h, w] = dataset.shape();
    let spectrum = SpectrumSpec {
        grid: d,
        box_mpc_h,
        bins: BINS,
    };
    let mut reader = dataset.reader(split);
    let (mut features, mut targets) = (Vec::new(), Vec::new());
    for sample in 0..reader.samples() {
        let mut volume = Samples::new(dataset.dtype());
        reader
            .read_volume(sample, [0..channels, 0..d, 0..h, 0..w], &mut volume)
            .map_err(DemoError::Read)?;
        let Samples::I16(counts) = volume else {
            return Err(DemoError::OtherDataset(
                "the demo counts particles in 16-bit integers",
            ));
        };
        features.push(spectrum.log_power(&counts)?);
        let target = reader.read_target(sample).map_err(DemoError::Read)?;
        targets.push(target.into_iter().map(f64::from).collect());
    }
    Ok((features, targets))
}
