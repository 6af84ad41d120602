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
pub fn report(launch: &Launch<'_>, weights: &LoadedWeights) {
    if launch.is_first() {
        let text = format!("{}: {}", weights.path().display(), weights.summary().text());
        launch.context().report(Event::Note(&text));
    }
}

/// Names of the weights of an evaluation: as asked for, or of the run file where it starts from the same file.
pub fn of_forward(request: &ForwardRequest, start: Option<&StartWeights>) -> Selection {
    let asked = &request.selection;
    let canonical = |path: &PathBuf| fs::canonicalize(path).ok();
    let read = request.weights.as_ref().and_then(canonical);
    let is_same = |start: &&StartWeights| read.is_some() && canonical(&start.file) == read;
    let is_asked = !asked.rename.is_empty() || !asked.skip.is_empty();
    let rename = match start.filter(is_same) {
        Some(start) if !is_asked => start.selection.rename.clone(),
        _ => asked.rename.clone(),
    };
    Selection {
        rename,
        is_whole: true,
        ..asked.clone()
    }
}
