//! `weights`: weights in other names and another axis order.

use super::run_file::RunFile;
use crate::export;
use crate::weights::{Selection, WeightFile, WeightForm, WeightsError, write};
use partita_forecast::model;
use partita_import::Options;
use partita_weights::state_dict::StateDictFile;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Weights to convert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertRequest {
    /// A run file, whose model and output are taken, a weight file, an output folder or a checkpoint.
    pub source: PathBuf,
    /// The model (default: that of the run file, or the one that the weight file names).
    pub model: Option<String>,
    /// The file to write.
    pub out: PathBuf,
    /// What it is to be.
    pub form: WeightForm,
    /// How the source is read: names in the model, what is left, and axis order.
    pub selection: Selection,
}

/// Converted weights.
#[derive(Clone, Debug, Serialize)]
pub struct ConvertResult {
    /// The model.
    pub model: String,
    /// The file that was read.
    pub source: String,
    /// The file that was written.
    pub file: String,
    /// Tensors in it.
    pub tensors: usize,
    /// What was taken of the file that was read, where that is not all of it under its names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken: Option<String>,
    /// Along which dims of samples kernels are taken to lie, where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assumed_axes: Option<&'static str>,
}

/// Writes the weights of a model in Partita's or in PyTorch's names and axis order, or with its layers; those that are read may be in either.
///
/// Errors: weights that do not fit the model; files that cannot be read or written.
pub fn convert_weights(request: &ConvertRequest) -> Result<ConvertResult, WeightsError> {
    let out = &request.out;
    let is_own = |path| match request.form {
        WeightForm::Onnx => partita_import::is_own_onnx(path),
        WeightForm::Names(_) | WeightForm::Like(_) => {
            StateDictFile::open(path).is_ok_and(|file| file.has_checksums())
        }
    };
    if out.exists() && !is_own(out) {
        return Err(WeightsError::Taken { file: out.clone() });
    }
    let is_run = request.source.extension().is_some_and(|end| end == "toml");
    let run = is_run.then(|| RunFile::read(&request.source)).transpose();
    let run = run.map_err(|error| WeightsError::RunFile(error.to_string()))?;
    let source = run.as_ref().map_or(&request.source, |run| &run.output);
    let file = WeightFile::read(source)?;
    let canonical = |path: &Path| fs::canonicalize(path).ok();
    if out.exists() && canonical(out) == canonical(file.path()) {
        return Err(WeightsError::Source { file: out.clone() });
    }
    let named = run.as_ref().map(|run| run.model.as_str()).or(file.model());
    let no_model = || WeightsError::NoModel {
        file: file.path().to_owned(),
    };
    let like = match &request.form {
        WeightForm::Like(like) => Some(like.display().to_string()),
        WeightForm::Names(_) | WeightForm::Onnx => None,
    };
    // The layers of what PyTorch exported have the names of its modules.
    let named = like.as_deref().or(named);
    let name = request.model.as_deref().or(named).ok_or_else(no_model)?;
    let module = like
        .as_deref()
        .map(|like| model::import(like, &Options::default()));
    let like = module.transpose()?;
    let graph = match (&like, &request.model) {
        (Some(like), None) => like.graph.clone(),
        (Some(_), Some(_)) | (None, _) => model::resolve(name)?,
    };
    let selection = Selection {
        is_whole: true,
        ..request.selection.clone()
    };
    let weights = file.load(&graph, &selection)?;
    let tensors = match (&request.form, &like) {
        (WeightForm::Names(names), _) => write(out, (name, &graph), &weights, *names)?,
        (WeightForm::Like(path), Some(like)) => export::like(out, (path, like), &graph, &weights)?,
        (WeightForm::Onnx | WeightForm::Like(_), _) => export::onnx(out, &graph, &weights)?,
    };
    Ok(ConvertResult {
        model: name.to_owned(),
        source: file.path().display().to_string(),
        file: request.out.display().to_string(),
        tensors,
        taken: (!weights.summary().is_whole()).then(|| weights.summary().text()),
        assumed_axes: weights.assumes_axes().then_some("DHW"),
    })
}
