//! `evaluate`: loss and metrics of trained weights on a split of a dataset.

use super::check;
use super::ensemble;
use super::error::TrainError;
use super::forward::{Forward, ForwardRequest, Prepared};
use super::joined::JoinedPrograms;
use super::per_sample::SampleResult;
use super::record::ValidationResult;
use super::results::Metrics;
use super::run;
use super::tiling::TilesResult;
use super::trainer::TrainData;
use partita_data::Split;
use partita_program::ProgramKind;
use partita_run::{NoSink, Sink};
use partita_session::Validation;
use partita_site::Context;
use partita_site::launch::Launch;
use partita_space::Seconds;
use serde::Serialize;

/// The result of an evaluation.
#[derive(Clone, Debug, Serialize)]
pub struct EvaluateResult {
    /// The model.
    pub model: String,
    /// The dataset.
    pub data: String,
    /// The split.
    pub split: &'static str,
    /// File of the weights, or the files whose outputs are averaged, with commas.
    pub weights: String,
    /// Dims that samples are mirrored along.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mirrored: Vec<&'static str>,
    /// The strategy.
    pub strategy: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Threads per rank.
    pub threads: usize,
    /// Kernel set, or the device.
    pub kernels: &'static str,
    /// Type of activations and parameters.
    pub precision: &'static str,
    /// Global batch size.
    pub batch: usize,
    /// Digest of the evaluation program of full batch size, or of that of the outputs of tiles.
    pub digest: String,
    /// What a sample is: a `whole` volume, one joined of `tiles`, or one of its `crops`.
    pub volumes: &'static str,
    /// How volumes were joined, if they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiles: Option<TilesResult>,
    /// Loss and metrics, as those of a validation.
    pub metrics: ValidationResult,
    /// Loss and metrics of each sample, where they are asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<SampleResult>,
    /// Throughput.
    pub samples_per_second: f64,
    /// Title of the program.
    #[serde(skip)]
    pub program: String,
}

/// Evaluates trained weights: loss, errors of each target or accuracy and overlap of each class.
///
/// Under a launcher this process is one rank of many, and all but that of rank 0 get no result; else all ranks are
/// threads of this process. Without crops the result is that of the validation of a training at its end.
///
/// Errors: a run that cannot be, found before any rank starts; weights of another model; a failure of a rank.
pub fn evaluate(
    context: &Context,
    request: &ForwardRequest,
) -> Result<Option<EvaluateResult>, TrainError> {
    let launch = run::join(context, &request.run_file, request.cores.as_deref())?;
    evaluate_with(&launch, request, None).map_err(|error| launch.shut_down(error))
}

/// As [`evaluate`], on these samples.
pub fn evaluate_on(
    context: &Context,
    request: &ForwardRequest,
    data: &TrainData,
) -> Result<Option<EvaluateResult>, TrainError> {
    let launch = run::join(context, &request.run_file, request.cores.as_deref())?;
    evaluate_with(&launch, request, Some(data)).map_err(|error| launch.shut_down(error))
}

fn evaluate_with(
    launch: &Launch<'_>,
    request: &ForwardRequest,
    data: Option<&TrainData>,
) -> Result<Option<EvaluateResult>, TrainError> {
    let forward = Forward::new(launch, request, data)?;
    check_targets(&forward)?;
    let split = forward.split(request.split)?;
    match forward.tiles(split) {
        Some(plan) => {
            let programs = JoinedPrograms::prepare(launch, &forward, (split, plan))?;
            let joined = programs.execute(launch, &forward, split)?;
            let found = joined.map(|joined| (joined.validation, joined.seconds));
            Ok(found.map(|found| result(&forward, split, &programs.outputs, found)))
        }
        None => {
            let prepared = forward.prepare(launch, ProgramKind::Evaluate, split)?;
            forward.check_agreement(launch, &prepared)?;
            let no_sink = |_| Ok(Box::new(NoSink) as Box<dyn Sink>);
            let Some(mut outcome) = forward.execute(launch, &prepared, &no_sink)? else {
                return Ok(None);
            };
            let found = outcome.epochs.pop().and_then(|one| one.validation);
            let found = found.unwrap_or_default();
            let seconds = found.seconds;
            Ok(Some(result(&forward, split, &prepared, (found, seconds))))
        }
    }
}

/// Checks that the dataset has samples and targets for the model, as volumes are read.
fn check_targets(forward: &Forward) -> Result<(), TrainError> {
    let Forward {
        run,
        graph,
        dataset,
        ..
    } = forward;
    let sampling = &forward.preprocessing.sampling;
    check::dataset_fits(run, graph, dataset, sampling)
}

fn result(
    forward: &Forward,
    split: Split,
    prepared: &Prepared<'_>,
    (found, seconds): (Validation, Seconds),
) -> EvaluateResult {
    let program = prepared.session.main_program();
    let metrics = Metrics {
        targets: forward.dataset.targets(),
        record: forward.targets(),
    };
    EvaluateResult {
        model: forward.run.model.name().to_owned(),
        data: forward.run.data.display().to_string(),
        split: split.name(),
        weights: ensemble::paths_text(&forward.weights_files),
        mirrored: ensemble::mirrored(forward.mirror()),
        strategy: prepared.strategy.to_string(),
        ranks: forward.run.ranks,
        threads: forward.run.threads,
        kernels: forward.run.kernels.name(),
        precision: forward.run.precision.name(),
        batch: program.batch,
        digest: program.digest(),
        volumes: forward.volumes.name(),
        tiles: forward.tiles_result(),
        samples_per_second: found.samples as f64 / seconds.0,
        metrics: metrics.validation(&found),
        samples: forward.per_sample.as_ref().map_or_else(Vec::new, |found| {
            let first = forward.first_output(split);
            found.results(first, forward.names(split), &metrics)
        }),
        program: program.title.clone(),
    }
}
