//! `partita demo`: from nothing to a trained network, with what it is worth beside simple baselines.

use crate::args::{CosmologyArgs, DemoArgs, MakingArgs};
use crate::data;
use crate::error::CliError;
use crate::table::{Side, Table};
use crate::train::{self, TrainRequest};
use partita_data::{Dataset, Samples, Split};
use partita_graph::{Op, text, zoo};
use partita_synth::ridge::fit;
use partita_synth::spectrum::SpectrumSpec;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;

/// Universes of the demo; one in sixteen is for validation.
const UNIVERSES: usize = 1344;
const GRID: usize = 32;
const SEED: u64 = 2026;
const BINS: usize = 8;
/// Running statistics and dropout of the zoo are meant for a hundred epochs; these are for a few.
const MOMENTUM: f64 = 0.05;
const DROPOUT: f64 = 0.05;

/// Makes data, plans, trains and compares.
pub fn run(args: &DemoArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let data = args.out.join("universes");
    if Dataset::open(&data).is_ok() {
        writeln!(
            out,
            "the universes of an earlier demo stand in {}",
            data.display()
        )?;
    } else {
        writeln!(
            out,
            "making {UNIVERSES} universes of {GRID}^3 voxels at four redshifts"
        )?;
        out.flush()?;
        data::make_cosmology(&universes(&data), out)?;
    }
    let run_file = args.out.join("run.toml");
    let model = args.out.join("cosmoflow.model");
    train::write_whole(&model, &model_text()?)?;
    let text = run_text(&model, &data, &args.out.join("training"), args.ranks);
    train::write_whole(&run_file, &text)?;
    writeln!(
        out,
        "\nplanning and training as {} says:\n\n{text}",
        run_file.display()
    )?;
    out.flush()?;
    let request = TrainRequest {
        run_file,
        ..TrainRequest::default()
    };
    train::run(&request, out)?;
    writeln!(out)?;
    write_baselines(&data, &args.out.join("training/result.json"), out)
}

fn universes(out: &Path) -> CosmologyArgs {
    CosmologyArgs {
        making: MakingArgs {
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

/// CosmoFlow with batch norm, as a model file.
fn model_text() -> Result<String, CliError> {
    let mut graph = zoo::build("cosmoflow@32+bn").map_err(|error| CliError::run(&error))?;
    for node in &mut graph.nodes {
        if let Op::BatchNorm { momentum, .. } = &mut node.op {
            *momentum = MOMENTUM;
        }
        if let Op::Dropout { rate } = &mut node.op {
            *rate = DROPOUT;
        }
    }
    Ok(text::print(&graph))
}

fn run_text(model: &Path, data: &Path, output: &Path, ranks: usize) -> String {
    let quoted = |path: &Path| toml::Value::from(path.display().to_string()).to_string();
    format!(
        "model = {}\n\
         data = {}\n\
         output = {}\n\
         overwrite = true\n\
         ranks = {ranks}\n\
         strategy = \"auto\"\n\
         batch = 16\n\
         epochs = 24\n\
         seed = 1\n\
         transform = \"log1p\"\n\
         \n\
         [optimizer]\n\
         kind = \"adam\"\n\
         \n\
         [schedule]\n\
         kind = \"cosine\"\n\
         learning_rate = 1e-3\n",
        quoted(model),
        quoted(data),
        quoted(output)
    )
}

/// Errors on the validation universes of the network, of a ridge regression on the binned logarithm
/// of the power spectrum, and of predicting the mean of the training universes.
fn write_baselines(data: &Path, result: &Path, out: &mut dyn Write) -> Result<(), CliError> {
    let network = network_errors(result)?;
    let dataset = Dataset::open(data).map_err(|error| CliError::user(&error))?;
    let (features, targets) = spectra(&dataset, Split::Train)?;
    let (unseen, truth) = spectra(&dataset, Split::Validation)?;
    let ridge = fit(&features, &targets).map_err(|error| CliError::run(&error))?;
    let predicted: Result<Vec<Vec<f64>>, _> = unseen
        .iter()
        .map(|features| ridge.predict(features))
        .collect();
    let predicted = predicted.map_err(|error| CliError::run(&error))?;
    let mut table = Table::new(&[
        ("mean absolute error", Side::Left),
        ("mean", Side::Right),
        ("ridge", Side::Right),
        ("network", Side::Right),
        ("network / mean", Side::Right),
    ]);
    for (index, name) in dataset.targets().iter().enumerate() {
        let mean = targets.iter().map(|one| one[index]).sum::<f64>() / targets.len() as f64;
        let error = |guess: &dyn Fn(usize) -> f64| -> f64 {
            let far = truth
                .iter()
                .enumerate()
                .map(|(i, truth)| (truth[index] - guess(i)).abs());
            far.sum::<f64>() / truth.len() as f64
        };
        let by_mean = error(&|_| mean);
        let by_ridge = error(&|sample| predicted[sample][index]);
        table.row(vec![
            name.clone(),
            format!("{by_mean:.4}"),
            format!("{by_ridge:.4}"),
            format!("{:.4}", network[index]),
            format!("{:.3}", network[index] / by_mean),
        ]);
    }
    table.write(out)
}

/// Mean absolute error per target after the last epoch, from the result of the training.
fn network_errors(result: &Path) -> Result<Vec<f64>, CliError> {
    let text = fs::read_to_string(result)?;
    let result: Value = serde_json::from_str(&text)?;
    let last = result["epochs"].as_array().and_then(|epochs| epochs.last());
    let errors = last.and_then(|epoch| epoch["validation"]["errors"].as_array());
    let errors = errors.map(|errors| {
        errors
            .iter()
            .filter_map(|error| error["mean_absolute"].as_f64())
            .collect()
    });
    errors.ok_or_else(|| CliError::Run("the training has validated nothing".to_owned()))
}

/// Features and targets of each sample.
type Spectra = (Vec<Vec<f64>>, Vec<Vec<f64>>);

/// Binned logarithms of the power spectra of the samples of a split, with their targets.
fn spectra(dataset: &Dataset, split: Split) -> Result<Spectra, CliError> {
    let box_mpc_h = dataset
        .spec()
        .get("box_mpc_h")
        .and_then(toml::Value::as_float);
    let box_mpc_h = box_mpc_h
        .ok_or_else(|| CliError::Run("the dataset does not say how large its box is".to_owned()))?;
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
            .map_err(|error| CliError::run(&error))?;
        let Samples::I16(counts) = volume else {
            return Err(CliError::Run(
                "the demo counts particles in 16-bit integers".to_owned(),
            ));
        };
        features.push(
            spectrum
                .log_power(&counts)
                .map_err(|error| CliError::run(&error))?,
        );
        let target = reader
            .read_target(sample)
            .map_err(|error| CliError::run(&error))?;
        targets.push(target.into_iter().map(f64::from).collect());
    }
    Ok((features, targets))
}
