//! `infer`: predictions of a trained network, written to a file.

use super::check;
use super::ensemble;
use super::error::{Mismatch, TrainError};
use super::forward::{Ends, Forward, ForwardRequest, Prepared, VolumeMode};
use super::run;
use super::tiles::{self, TileFiles};
use super::tiling::TilesResult;
use super::trainer::TrainData;
use partita_data::{Placement, Split};
use partita_formats::DataError;
use partita_input::{
    PredictionFormat, PredictionKind, PredictionScratch, PredictionShape, PredictionSink, Stored,
    is_folder, is_prediction, volume_paths,
};
use partita_program::ProgramKind;
use partita_run::Sink;
use partita_session::Outcome;
use partita_site::launch::{Launch, MakeJoins};
use partita_site::{Context, Event};
use partita_space::{Bytes, Seconds};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to predict.
#[derive(Clone, Debug, PartialEq)]
pub struct InferRequest {
    /// Run file, weights, data and overrides.
    pub forward: ForwardRequest,
    /// File of the predictions: HDF5, NPY, or NIfTI with a file for each sample; a folder for NIfTI files named after the
    /// samples.
    pub out: PathBuf,
    /// What is written of the outputs.
    pub kind: PredictionKind,
    /// What numbers are written in.
    pub units: PredictionUnits,
}

/// What predictions of numbers are written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PredictionUnits {
    /// Physical values where the weights keep the ranges of all targets, else as the network outputs them.
    #[default]
    Physical,
    /// As the network outputs them.
    Network,
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
    /// Digest of the program of full batch size.
    pub digest: String,
    /// Samples.
    pub samples: usize,
    /// What a sample is: a `whole` volume, one joined of `tiles`, or one of its `crops`.
    pub volumes: &'static str,
    /// How volumes were joined, if they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiles: Option<TilesResult>,
    /// What was written: `scores`, `probabilities` or `classes`.
    pub output: &'static str,
    /// Targets with their units, where physical values were written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub physical: Vec<String>,
    /// Extents of the array that was written; where those of samples differ, the largest of the dataset.
    pub shape: Vec<usize>,
    /// D, H, W of each sample, where they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extents: Option<Vec<[usize; 3]>>,
    /// Names of the samples, in order.
    pub names: Vec<String>,
    /// Its file, or the first one.
    pub file: String,
    /// All files, where each sample has one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
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
pub fn infer(context: &Context, request: &InferRequest) -> Result<Option<InferResult>, TrainError> {
    let launch = run::join(
        context,
        &request.forward.run_file,
        request.forward.cores.as_deref(),
    )?;
    infer_with(&launch, request, None).map_err(|error| launch.shut_down(error))
}

/// As [`infer`], of these samples.
pub fn infer_on(
    context: &Context,
    request: &InferRequest,
    data: &TrainData,
) -> Result<Option<InferResult>, TrainError> {
    let launch = run::join(
        context,
        &request.forward.run_file,
        request.forward.cores.as_deref(),
    )?;
    infer_with(&launch, request, Some(data)).map_err(|error| launch.shut_down(error))
}

fn infer_with(
    launch: &Launch<'_>,
    request: &InferRequest,
    data: Option<&TrainData>,
) -> Result<Option<InferResult>, TrainError> {
    let format = PredictionFormat::of(&request.out)?;
    let mut forward = Forward::without_targets(launch, &request.forward, data)?;
    // The class of a position needs the scores of all channels, which ranks may share.
    forward.is_joined |= request.kind == PredictionKind::Classes;
    check_request(&forward, request, format)?;
    let split = forward.split(request.forward.split)?;
    let extents = forward.output_extents(split);
    let prepared = forward.prepare(launch, ProgramKind::Infer, split)?;
    let shape = forward.output_shape(split);
    let names = forward.names(split);
    check_files(&forward, request, (format, &names))?;
    let placements = placements(launch, &forward, format, (split, shape))?;
    let stored = stored(request, &placements);
    let of_scratch = ((shape, stored), &*names);
    let scratch = create_scratch(launch, &request.out, of_scratch, extents.clone())?;
    let of_request = (request, split);
    let of_volumes = (scratch.as_ref(), stored);
    let outcome = write(launch, &forward, &prepared, of_request, of_volumes)?;
    let (Some(outcome), Some(scratch)) = (outcome, scratch) else {
        return Ok(None);
    };
    let scale = physical(&forward, request);
    if !scale.is_empty() {
        scratch.scale(&scale)?;
    }
    let files = publish(&scratch, (request, format, &names), &placements)?;
    let name = |path: &PathBuf| path.display().to_string();
    let program = prepared.session.main_program();
    Ok(Some(InferResult {
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
        samples: shape.samples,
        volumes: forward.volumes.name(),
        tiles: forward.tiles_result(),
        output: request.kind.name(),
        physical: targets_with_units(&forward, request),
        shape: shape.of_file(request.kind),
        names,
        extents: extents.map(|extents| extents.to_vec()),
        file: name(files.first().unwrap_or(&request.out)),
        files: files.iter().map(name).collect(),
        seconds: outcome.seconds,
        samples_per_second: shape.samples as f64 / outcome.seconds.0,
        memory_bytes_max: (0..program.mesh.ranks())
            .map(|rank| prepared.session.memory_bytes(rank))
            .max()
            .unwrap_or_default(),
        program: program.title.clone(),
    }))
}

/// Runs the programs, whose outputs come into the scratch file.
fn write(
    launch: &Launch<'_>,
    forward: &Forward,
    prepared: &Prepared<'_>,
    (request, split): (&InferRequest, Split),
    of_volumes: (Option<&PredictionScratch>, Stored),
) -> Result<Option<Outcome>, TrainError> {
    let shape = forward.output_shape(split);
    let plan = forward.tiles(split);
    let beside = scratch_beside(&request.out);
    let create = |plan| TileFiles::create(launch, plan, &beside, of_volumes);
    let tiles = plan.as_ref().map(create).transpose()?;
    forward.check_agreement(launch, prepared)?;
    let first = forward.preprocessing.sampling.first_sample(split);
    let mesh = prepared.session.main_program().mesh;
    let sink = |rank| {
        if let Some(tiles) = &tiles {
            return tiles.sink(first, mesh, rank);
        }
        let opened = PredictionScratch::open(&beside, shape);
        let opened = opened.map_err(|error| tiles::failed(rank, &error))?;
        let sink = PredictionSink::new(opened, first, mesh, rank);
        Ok(Box::new(sink) as Box<dyn Sink>)
    };
    let source = forward.source(prepared);
    let ends = Ends {
        source: &source,
        sink: &sink,
        joins: tiles.as_ref().map(|tiles| tiles as &dyn MakeJoins),
        is_followed: false,
    };
    forward.execute_between(launch, prepared, &ends)
}

/// What is kept of each position: the class where that is asked for, unless it is found by scores between the voxels of
/// the dataset.
fn stored(request: &InferRequest, placements: &[Option<Placement>]) -> Stored {
    let format = PredictionFormat::of(&request.out);
    let is_between = format.is_ok_and(|format| format == PredictionFormat::Nifti)
        && placements.iter().flatten().any(Placement::is_interpolated);
    match request.kind {
        PredictionKind::Classes if !is_between => Stored::Classes,
        PredictionKind::Classes | PredictionKind::Scores | PredictionKind::Probabilities => {
            Stored::Scores
        }
    }
}

/// Checks that the model gives what is asked for.
fn check_request(
    forward: &Forward,
    request: &InferRequest,
    format: PredictionFormat,
) -> Result<(), TrainError> {
    check_out(&request.out)?;
    let sampling = &forward.preprocessing.sampling;
    check::samples_fit(&forward.run, &forward.graph, (&forward.dataset, sampling))?;
    if request.kind != PredictionKind::Scores && check::classes(&forward.graph).is_none() {
        return Err(Mismatch::NoClasses {
            model: forward.graph.name.clone(),
            asked: request.kind.name(),
        }
        .into());
    }
    let differ = (forward.volumes == VolumeMode::Tiles)
        .then(|| forward.dataset.smallest_extent())
        .flatten();
    if let (PredictionFormat::Npy, Some(smallest)) = (format, differ) {
        let [_, largest @ ..] = forward.dataset.shape();
        let path = request.out.clone();
        return Err(DataError::OneArray {
            path,
            smallest,
            largest,
        }
        .into());
    }
    let is_volume = check::answer(&forward.graph).0.extent != [1; 3];
    if format == PredictionFormat::Nifti && !is_volume {
        return Err(Mismatch::NoVolume {
            model: forward.graph.name.clone(),
            file: request.out.clone(),
        }
        .into());
    }
    Ok(())
}

/// Factor and summand that give the physical value of each output; none where they stay as they are.
fn physical(forward: &Forward, request: &InferRequest) -> Vec<(f64, f64)> {
    let (answer, is_classifier) = check::answer(&forward.graph);
    let targets = forward.targets().filter(|_| !is_classifier);
    let Some(targets) = targets.filter(|_| request.units == PredictionUnits::Physical) else {
        return Vec::new();
    };
    let all = (0..answer.channels).map(|target| targets.physical(target));
    all.collect::<Option<_>>().unwrap_or_default()
}

/// The targets with their units, where physical values are written.
fn targets_with_units(forward: &Forward, request: &InferRequest) -> Vec<String> {
    let text = |at: usize| {
        let targets = forward.targets();
        let name = targets.and_then(|targets| targets.names.get(at));
        let name = name.map_or_else(|| format!("target{at}"), Clone::clone);
        let unit = targets.and_then(|targets| targets.unit(at));
        name + &unit.map_or_else(String::new, |unit| format!(" ({unit})"))
    };
    (0..physical(forward, request).len()).map(text).collect()
}

/// Checks that the path is that of a file, or of a folder, as its end says.
fn check_out(out: &Path) -> Result<(), Mismatch> {
    let found = if is_folder(out) {
        if !out.is_file() {
            return Ok(());
        }
        "is a file, and a path without an end is a folder of NIfTI files"
    } else if out.is_dir() {
        "is a folder"
    } else {
        return Ok(());
    };
    Err(Mismatch::PredictionsTaken {
        file: out.to_owned(),
        found,
    })
}

/// Checks that the files replace nothing but earlier predictions.
fn check_files(
    forward: &Forward,
    request: &InferRequest,
    (format, names): (PredictionFormat, &[String]),
) -> Result<(), Mismatch> {
    let taken = |file: &PathBuf| {
        if forward.dataset.has_file(file) {
            Some("is a file of the dataset")
        } else if file.exists() && !is_prediction(file) {
            Some("is there already, and no prediction of `partita infer`")
        } else {
            None
        }
    };
    let files = match format {
        PredictionFormat::Nifti => volume_paths(&request.out, names),
        PredictionFormat::Hdf5 | PredictionFormat::Npy => vec![request.out.clone()],
    };
    let found = files
        .into_iter()
        .find_map(|file| Some((taken(&file)?, file)));
    found.map_or(Ok(()), |(found, file)| {
        Err(Mismatch::PredictionsTaken { file, found })
    })
}

/// The scratch file on the first rank; the other ranks open it after the check that all agree.
fn create_scratch(
    launch: &Launch<'_>,
    out: &Path,
    (of, names): ((PredictionShape, Stored), &[String]),
    extents: Option<Arc<[[usize; 3]]>>,
) -> Result<Option<PredictionScratch>, TrainError> {
    let created = launch.is_first();
    let create = || {
        make_folder(out)?;
        let beside = scratch_beside(out);
        let scratch = PredictionScratch::create_of_extents(&beside, of, extents)?;
        Ok::<_, DataError>(scratch.named(names.to_vec()))
    };
    launch.prepare(|| created.then(create).transpose().map_err(TrainError::from))
}

/// Beside which path the scratch file lies: in the folder, where each sample has a file in one.
fn scratch_beside(out: &Path) -> PathBuf {
    if is_folder(out) {
        out.join("infer")
    } else {
        out.to_owned()
    }
}

/// Makes the folder of the files, if they have one of their own.
fn make_folder(out: &Path) -> Result<(), DataError> {
    if !is_folder(out) {
        return Ok(());
    }
    std::fs::create_dir_all(out).map_err(|error| DataError::Unwritable {
        path: out.to_owned(),
        reason: error.to_string(),
    })
}

/// Writes the file, or a file for each sample, which are then named.
fn publish(
    scratch: &PredictionScratch,
    (request, format, names): (&InferRequest, PredictionFormat, &[String]),
    placements: &[Option<Placement>],
) -> Result<Vec<PathBuf>, TrainError> {
    Ok(match format {
        PredictionFormat::Hdf5 | PredictionFormat::Npy => {
            scratch.publish(&request.out, format, request.kind)?;
            Vec::new()
        }
        PredictionFormat::Nifti => {
            let placement = |sample: usize| placements[sample].clone();
            scratch.publish_volumes(&request.out, request.kind, &placement)?;
            volume_paths(&request.out, names)
        }
    })
}

/// Where the voxels of each prediction lie, if the network's output has those of a stored volume or crop. A note says
/// where a file of all predictions cannot have those of the images.
fn placements(
    launch: &Launch<'_>,
    forward: &Forward,
    format: PredictionFormat,
    (split, shape): (Split, PredictionShape),
) -> Result<Vec<Option<Placement>>, TrainError> {
    let dataset = &forward.dataset;
    let sampling = &forward.preprocessing.sampling;
    let [_, seen @ ..] = sampling.shape();
    let place = |sample| match forward.volumes {
        VolumeMode::Tiles => dataset.placement(split, sample),
        // Outputs of other extents than the samples are no voxels of them.
        VolumeMode::Whole | VolumeMode::Crops if shape.extent != seen => Ok(None),
        VolumeMode::Whole | VolumeMode::Crops => sampling.placement_of(dataset, split, sample),
    };
    let placements: Result<Vec<_>, _> = (0..shape.samples).map(place).collect();
    let placements: Vec<Option<Placement>> = placements?;
    let others = placements
        .iter()
        .flatten()
        .filter(|placement| placement.is_restored())
        .count();
    if others > 0 && launch.is_first() && format != PredictionFormat::Nifti {
        launch.context().report(Event::Note(&format!(
            "predictions have the voxels of the dataset, for which `data convert` reoriented or resampled {others} of {} \
             images; `--out NAME.nii.gz` writes each on the voxels of its image",
            placements.len()
        )));
    }
    Ok(placements)
}
