//! Weights that were trained before, those from which a training starts and those of an evaluation, and the dataset as
//! they read it.

use super::checkpoint::Resume;
use super::error::TrainError;
use super::run::Run;
use super::run_file::StartWeights;
use crate::weights::{LoadedWeights, Selection, WeightFile, load_all};
use partita_data::Dataset;
use partita_graph::{Graph, Op, initial_part};
use partita_input::DataRecord;
use partita_program::Buffer;
use partita_session::{ValuesError, model_name};
use partita_site::Event;
use partita_site::launch::Launch;
use std::fs;
use std::ops::Range;
use std::path::Path;

/// The weights that the run file names, and the dataset with its channels in the order of the checkpoint or of these.
///
/// Errors: weights that do not fit the model, names of channels that do not match.
pub fn of_run(
    launch: &Launch<'_>,
    run: &Run,
    (graph, dataset): (&Graph, Dataset),
    resume: Option<&Resume>,
) -> Result<(Option<LoadedWeights>, Dataset), TrainError> {
    let start = weights(launch, run, graph)?;
    let dataset = match (resume, &start) {
        (Some(resume), _) => in_order(launch, dataset, &resume.state.data_record)?,
        (None, Some(start)) => {
            note_axes(launch, &dataset, start);
            note_classes(launch, graph, (&dataset, start));
            let takes_statistics = run.weights.as_ref().is_some_and(|it| it.takes_statistics);
            if takes_statistics || reads_channels(graph, start) {
                in_order(launch, dataset, start.record())?
            } else {
                dataset
            }
        }
        (None, None) => dataset,
    };
    Ok((start, dataset))
}

/// The weights that the run file names; says what is taken of them, unless the run resumes.
fn weights(
    launch: &Launch<'_>,
    run: &Run,
    graph: &Graph,
) -> Result<Option<LoadedWeights>, TrainError> {
    let Some(start) = &run.weights else {
        return Ok(None);
    };
    let weights = WeightFile::read(&start.file)?.load(graph, &start.selection)?;
    if !run.is_resumed {
        report(launch, &weights);
    }
    Ok(Some(weights))
}

/// Says what was taken of a file, and left.
fn report(launch: &Launch<'_>, weights: &LoadedWeights) {
    let text = format!("{}: {}", weights.path().display(), weights.summary().text());
    note(launch, &text);
}

/// Loads the weights of an evaluation. Names are read as the request says, or as the run file does where it starts from the
/// same file. Reports tensors that are left over. Each file may come with the path by which it was asked for.
pub fn of_forward(
    launch: &Launch<'_>,
    files: Vec<(WeightFile, Option<&Path>)>,
    asked: &Selection,
    (run, graph): (&Run, &Graph),
) -> Result<Vec<LoadedWeights>, TrainError> {
    let files = files.into_iter();
    let files: Vec<_> = files
        .map(|(file, read)| (file, selection(asked, read, run)))
        .collect();
    let all = load_all(&files, graph)?;
    let parts = all.iter().filter(|one| !one.summary().is_whole());
    parts.for_each(|weights| report(launch, weights));
    Ok(all)
}

/// What is asked for of a file.
fn selection(asked: &Selection, read: Option<&Path>, run: &Run) -> Selection {
    let mut selection = Selection {
        is_whole: true,
        ..asked.clone()
    };
    let canonical = |path: &Path| fs::canonicalize(path).ok();
    let read = read.and_then(canonical);
    let is_same = |start: &&StartWeights| read.is_some() && canonical(&start.file) == read;
    if let Some(start) = run.weights.as_ref().filter(is_same) {
        if selection.rename.is_empty() && selection.skip.is_empty() {
            selection.rename.clone_from(&start.selection.rename);
        }
        selection.order = selection.order.or(start.selection.order);
        selection.axes = selection.axes.or_else(|| start.selection.axes.clone());
    }
    selection
}

/// The dataset with its channels in the order of weights that are used. Tells of axes that may be others.
///
/// Errors: names of channels that do not match.
pub fn of_weights(
    launch: &Launch<'_>,
    dataset: Dataset,
    weights: &LoadedWeights,
) -> Result<Dataset, TrainError> {
    note_axes(launch, &dataset, weights);
    in_order(launch, dataset, weights.record())
}

/// Tells along which axes of NIfTI files kernels of PyTorch are taken to lie, where they may lie along others.
fn note_axes(launch: &Launch<'_>, dataset: &Dataset, weights: &LoadedWeights) {
    let axes = dataset.nifti_axes().filter(|axes| axes != "DHW");
    let Some(axes) = axes.filter(|_| weights.assumes_axes()) else {
        return;
    };
    let along = ["D", "H", "W"].map(|dim| match axes.find(dim) {
        Some(0) => "x",
        Some(1) => "y",
        _ => "z",
    });
    let text = format!(
        "{} is of PyTorch, and its kernels are taken to lie along D, H and W, which are {} of the NIfTI files of {}; for a \
         network that was trained on arrays of NiBabel, which are x, y, z, add `--axes {axes}`, or `axes = \"{axes}\"` \
         under [weights] (DHW: as they are taken)",
        weights.path().display(),
        along.join(", "),
        dataset.path().display()
    );
    note(launch, &text);
}

/// Tells where outputs of weights stand for other classes than those of the dataset: a training gives them new meanings.
fn note_classes(
    launch: &Launch<'_>,
    graph: &Graph,
    (dataset, weights): (&Dataset, &LoadedWeights),
) {
    let Some(trained) = weights.record().targets.as_ref() else {
        return;
    };
    let mut last = graph.nodes.iter().rev();
    let last = last.find(|node| !node.parameters.is_empty());
    let mut parameters = last.into_iter().flat_map(|node| &node.parameters);
    let takes_last = parameters.any(|&id| weights.has(&graph.parameter(id).name));
    if !takes_last || !trained.are_classes || dataset.labels().is_none() {
        return;
    }
    let own = dataset.target_record();
    if trained.names.is_empty() || own.names.is_empty() || trained.has_names_of(&own) {
        return;
    }
    let text = format!(
        "the outputs of {} were the classes {}, and are trained as the classes of {}, by number: {}; give its index this \
         order to keep them, or `skip` the last layer",
        weights.path().display(),
        trained.names.join(", "),
        dataset.path().display(),
        own.names.join(", ")
    );
    note(launch, &text);
}

fn in_order(
    launch: &Launch<'_>,
    dataset: Dataset,
    record: &DataRecord,
) -> Result<Dataset, TrainError> {
    let (dataset, of_channels) = dataset.in_channel_order(&record.channels)?;
    let (dataset, of_features) = dataset.in_feature_order(&record.features)?;
    for text in [of_channels, of_features].iter().flatten() {
        note(launch, text);
    }
    Ok(dataset)
}

fn note(launch: &Launch<'_>, text: &str) {
    if launch.is_first() {
        launch.context().report(Event::Note(text));
    }
}

/// Whether weights are those of a layer that reads the channels or features of samples.
fn reads_channels(graph: &Graph, weights: &LoadedWeights) -> bool {
    let mut has_channels = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let reads = matches!(node.op, Op::Input | Op::Features)
            || node.inputs.iter().any(|it| has_channels[it.0]);
        let mut parameters = node.parameters.iter().map(|&id| graph.parameter(id));
        if reads && parameters.any(|parameter| weights.has(&parameter.name)) {
            return true;
        }
        has_channels.push(reads && !node.op.has_weights());
    }
    false
}

/// Initial values of a persistent buffer: of the loaded weights where these have its tensor. An average begins as its
/// parameter.
pub fn initial_values(
    graph: &Graph,
    seed: u64,
    loaded: Option<&LoadedWeights>,
    buffer: &Buffer,
    elements: Range<usize>,
) -> Result<Option<Vec<f64>>, ValuesError> {
    if !buffer.role.is_of_model() {
        return Ok(None);
    }
    let name = model_name(&buffer.name, buffer.role);
    let values = loaded.map(|loaded| loaded.part(name, elements.clone()));
    if let Some(values) = values.transpose()?.flatten() {
        return Ok(Some(values));
    }
    let named = graph.parameters.iter().find(|one| one.name == name);
    Ok(named.map(|parameter| initial_part(parameter, seed, elements)))
}
