//! `infer`: predictions of a trained network, written to a file.

use super::check;
use super::error::{Mismatch, TrainError};
use super::forward::{Forward, ForwardRequest, VolumeMode};
use crate::context::Context;
use crate::launch::Launch;
use partita_data::{
    PredictionFormat, PredictionKind, PredictionScratch, PredictionShape, PredictionSink, Split,
    Tile,
};
use partita_program::ProgramKind;
use partita_run::{RunError, Sink};
use partita_space::{Bytes, Seconds};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// What to predict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InferRequest {
    /// Run file, weights, data and overrides.
    pub forward: ForwardRequest,
    /// File of the predictions: HDF5 or NPY.
    pub out: PathBuf,
    /// What is written of the outputs.
    pub kind: PredictionKind,
    /// What is taken of volumes that are larger than the crops of the training (default: whole volumes, or else
    /// tiles, or else crops).
    pub volumes: Option<VolumeMode>,
}

/// The result of an inference.
#[derive(Clone, Debug, Serialize)]
pub struct InferResult {
    /// The model.
    pub model: String,
    /// The dataset.
    pub data: String,
    /// The split.
    pub split: &'static str,
    /// File of the weights.
    pub weights: String,
    /// The strategy.
    pub strategy: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Threads per rank.
    pub threads: usize,
    /// Global batch size.
    pub batch: usize,
    /// Digest of the program of full batch size.
    pub digest: String,
    /// Samples.
    pub samples: usize,
    /// What a sample is: a `whole` volume, one joined of `tiles`, or one of its `crops`.
    pub volumes: &'static str,
    /// What was written: `scores`, `probabilities` or `classes`.
    pub output: &'static str,
    /// Extents of the array that was written.
    pub shape: Vec<usize>,
    /// Its file.
    pub file: String,
    /// Time of the steps.
    pub seconds: Seconds,
    /// Throughput.
    pub samples_per_second: f64,
    /// Largest predicted memory of a rank: arena and buffers.
    pub memory_bytes_max: Bytes,
    /// Title of the program.
    #[serde(skip)]
    pub program: String,
}

/// Computes the outputs of a trained network before its loss, and writes them to a file. The data need no targets.
///
/// Under a launcher this process is one rank of many, and all but that of rank 0 get no result; all processes then need
/// the folder of the file. Else all ranks are threads of this process.
///
/// Errors: a run that cannot be, found before any rank starts; weights of another model; a failure of a rank.
pub fn infer(
    context: &Context<'_>,
    request: &InferRequest,
) -> Result<Option<InferResult>, TrainError> {
    let launch = Launch::join(context)?;
    infer_with(&launch, request).map_err(|error| launch.shut_down(error))
}

fn infer_with(
    launch: &Launch<'_>,
    request: &InferRequest,
) -> Result<Option<InferResult>, TrainError> {
    let format = PredictionFormat::of(&request.out)?;
    let forward = Forward::without_targets(launch, &request.forward, request.volumes)?;
    let sampling = &forward.preprocessing.sampling;
    check::samples_fit(&forward.run, &forward.graph, (&forward.dataset, sampling))?;
    if request.kind != PredictionKind::Scores && check::classes(&forward.graph).is_none() {
        return Err(Mismatch::NoClasses {
            model: forward.graph.name.clone(),
            asked: request.kind.name(),
        }
        .into());
    }
    let split = forward.split(request.forward.split)?;
    let prepared = forward.prepare(launch, ProgramKind::Infer, split)?;
    let shape = shape(&forward, split);
    let tiles = tiles(&forward, split);
    // The other ranks open it after the check that all agree.
    let created = launch.is_first();
    let scratch = launch.prepare(|| {
        let create = || PredictionScratch::create(&request.out, shape);
        created.then(create).transpose().map_err(TrainError::from)
    })?;
    forward.check_agreement(launch, &prepared)?;
    let (first, mesh) = (
        sampling.first_sample(split),
        prepared.session.main_program().mesh,
    );
    let sink = |rank| {
        let opened = PredictionScratch::open(&request.out, shape);
        let opened = opened.map_err(|error| RunError::Source {
            rank,
            reason: error.to_string(),
        })?;
        let sink = PredictionSink::new(opened, first, mesh, rank).joining(tiles.clone());
        Ok(Box::new(sink) as Box<dyn Sink>)
    };
    let outcome = forward.execute(launch, &prepared, &sink)?;
    let (Some(outcome), Some(scratch)) = (outcome, scratch) else {
        return Ok(None);
    };
    scratch.publish(&request.out, format, request.kind)?;
    let program = prepared.session.main_program();
    let ranks = 0..mesh.ranks();
    Ok(Some(InferResult {
        model: forward.run.model.clone(),
        data: forward.run.data.display().to_string(),
        split: split.name(),
        weights: forward.weights_file.display().to_string(),
        strategy: prepared.strategy.to_string(),
        ranks: forward.run.ranks,
        threads: forward.run.threads,
        batch: program.batch,
        digest: program.digest(),
        samples: shape.samples,
        volumes: forward.volumes.name(),
        output: request.kind.name(),
        shape: shape.of_file(request.kind),
        file: request.out.display().to_string(),
        seconds: outcome.seconds,
        samples_per_second: shape.samples as f64 / outcome.seconds.0,
        memory_bytes_max: ranks
            .map(|rank| prepared.session.memory_bytes(rank))
            .max()
            .unwrap_or_default(),
        program: program.title.clone(),
    }))
}

/// The part of its volume that each sample stands for, where volumes are joined of tiles.
fn tiles(forward: &Forward, split: Split) -> Option<Arc<[Tile]>> {
    match forward.volumes {
        VolumeMode::Tiles => Some(forward.preprocessing.sampling.tiles(split).into()),
        VolumeMode::Whole | VolumeMode::Crops => None,
    }
}

fn shape(forward: &Forward, split: Split) -> PredictionShape {
    let (answer, _) = check::answer(&forward.graph);
    let sampling = &forward.preprocessing.sampling;
    let (samples, extent) = match forward.volumes {
        VolumeMode::Tiles => {
            let [_, volume @ ..] = sampling.volume();
            (sampling.volumes(split), volume)
        }
        VolumeMode::Whole | VolumeMode::Crops => (sampling.samples(split), answer.extent),
    };
    PredictionShape {
        samples,
        channels: answer.channels,
        extent,
        spatial_rank: forward.graph.spatial_rank,
    }
}
