//! Weights that were trained before: those from which a training starts, and those of an evaluation.

use super::error::TrainError;
use super::forward::ForwardRequest;
use super::run::Run;
use super::run_file::StartWeights;
use crate::launch::Launch;
use crate::progress::Event;
use crate::weights::{LoadedWeights, Selection, WeightFile};
use partita_graph::Graph;
use std::fs;
use std::path::PathBuf;

/// The weights that the run file names; says what is taken of them, unless the run resumes.
pub fn weights(
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

/// Says on the first rank what was taken of a file, and left.
fn report(launch: &Launch<'_>, weights: &LoadedWeights) {
    if launch.is_first() {
        let text = format!("{}: {}", weights.path().display(), weights.summary().text());
        launch.context().report(Event::Note(&text));
    }
}

/// The weights of an evaluation, by names as asked for, or as those of the run file where it starts from the same file;
/// says what is left of them, if not all is taken.
pub fn of_forward(
    launch: &Launch<'_>,
    (request, run): (&ForwardRequest, &Run),
    (file, graph): (&WeightFile, &Graph),
) -> Result<LoadedWeights, TrainError> {
    let mut selection = Selection {
        is_whole: true,
        ..request.selection.clone()
    };
    let canonical = |path: &PathBuf| fs::canonicalize(path).ok();
    let read = request.weights.as_ref().and_then(canonical);
    let is_same = |start: &&StartWeights| read.is_some() && canonical(&start.file) == read;
    if let Some(start) = run.weights.as_ref().filter(is_same) {
        if selection.rename.is_empty() && selection.skip.is_empty() {
            selection.rename.clone_from(&start.selection.rename);
        }
        selection.order = selection.order.or(start.selection.order);
        selection.axes = selection.axes.or_else(|| start.selection.axes.clone());
    }
    let weights = file.load(graph, &selection)?;
    if !weights.summary().is_whole() {
        report(launch, &weights);
    }
    Ok(weights)
}
