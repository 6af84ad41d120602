//! `import`: a network that PyTorch exported as a model file, and its weights.

use crate::weights::Layout;
use partita_forecast::model::{self, ModelError};
use partita_graph::text;
use partita_import::{Imported, LossChoice, Options, Weight, read_weights};
use partita_site::{ErrorKind, Fault};
use partita_space::Help;
use partita_weights::{Tensor, Values, Weights, save};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A network to import.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportRequest {
    /// The `.pt2` file.
    pub source: PathBuf,
    /// The model file to write.
    pub out: Option<PathBuf>,
    /// The weight file to write, in PyTorch's names and axis order.
    pub weights: Option<PathBuf>,
    /// The loss, as a model file has it; none for one that follows from the output.
    pub loss: Option<String>,
    /// The output that is trained, from 0; none if there is only one.
    pub output: Option<usize>,
}

/// An imported network.
#[derive(Clone, Debug, Serialize)]
pub struct ImportResult {
    /// The file that was read.
    pub source: String,
    /// What its operators became, in order.
    pub layers: Vec<ImportedLayer>,
    /// The loss, as a line of a model file.
    pub loss: String,
    /// Whether the loss follows from the output alone, and a training has to name one.
    pub assumed_loss: bool,
    /// Parameters.
    pub parameters: u64,
    /// Parameters that training leaves as they are. A model file does not keep this: `freeze` of a run file names them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// The model file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The weight file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

/// An operator of the file.
#[derive(Clone, Debug, Serialize)]
pub struct ImportedLayer {
    /// Its name in the file.
    pub operator: String,
    /// The module that calls it; empty for the network itself.
    pub module: String,
    /// The line of the model; none where nothing is computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
}

/// Why a network cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportModelError {
    /// The network cannot be read or expressed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The loss is none of a model file.
    #[error("the loss: {0}")]
    Loss(#[from] text::TextError),
    /// A file to write is there already.
    #[error("{} exists, and is not replaced{}", file.display(), Help::advice("name another file, or remove this one"))]
    Taken {
        /// The file.
        file: PathBuf,
    },
    /// The model and the weights are to be one file.
    #[error("{} cannot hold both the model and the weights{}", file.display(), Help::advice("name two files"))]
    Same {
        /// The file.
        file: PathBuf,
    },
    /// A file cannot be written.
    #[error("{} cannot be written: {reason}", file.display())]
    Unwritable {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: String,
    },
    /// The weights of the network cannot be read.
    #[error("{}: {reason}", file.display())]
    Weights {
        /// The file that was read.
        file: PathBuf,
        /// Why.
        reason: String,
    },
}

impl Fault for ImportModelError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Model(_)
            | Self::Loss(_)
            | Self::Taken { .. }
            | Self::Same { .. }
            | Self::Weights { .. } => ErrorKind::Request,
            Self::Unwritable { .. } => ErrorKind::Failure,
        }
    }
}

/// Reads a network, and writes it as a model file and its weights where this is asked for.
///
/// Errors: operators that cannot be expressed, all of them; files that exist or cannot be written.
pub fn import(request: &ImportRequest) -> Result<ImportResult, ImportModelError> {
    for file in request.out.iter().chain(&request.weights) {
        if file.exists() {
            return Err(ImportModelError::Taken { file: file.clone() });
        }
    }
    if let (Some(out), Some(weights)) = (&request.out, &request.weights)
        && out == weights
    {
        return Err(ImportModelError::Same { file: out.clone() });
    }
    let options = Options {
        loss: request.loss.as_deref().map(text::parse_loss).transpose()?,
        output: request.output,
    };
    let imported = model::import(&request.source.to_string_lossy(), &options)?;
    if let Some(file) = &request.weights {
        let tensors = tensors(&request.source, &imported)?;
        let weights = Weights {
            tensors,
            metadata: BTreeMap::new(),
        };
        save(file, &weights).map_err(|error| unwritable(file, &error))?;
    }
    let printed = text::print(&imported.graph);
    if let Some(file) = &request.out {
        fs::write(file, &printed).map_err(|error: io::Error| unwritable(file, &error))?;
    }
    Ok(result(request, &imported, &printed))
}

fn unwritable(file: &Path, reason: &dyn std::fmt::Display) -> ImportModelError {
    ImportModelError::Unwritable {
        file: file.to_owned(),
        reason: reason.to_string(),
    }
}

/// The parameters of the graph in PyTorch's names and axis order.
fn tensors(
    source: &Path,
    imported: &Imported,
) -> Result<BTreeMap<String, Tensor>, ImportModelError> {
    let failed = |reason: String| ImportModelError::Weights {
        file: source.to_owned(),
        reason,
    };
    let all = read_weights(source).map_err(|error| failed(error.to_string()))?;
    let all: BTreeMap<&str, &Weight> = all.iter().map(|one| (one.name.as_str(), one)).collect();
    let layout = Layout::pytorch(&imported.graph);
    let mut tensors = BTreeMap::new();
    for parameter in imported.graph.stored_parameters() {
        let name = layout.name(parameter);
        let stored = imported.stored.iter().find(|one| one.name == name);
        let weight = stored.and_then(|one| all.get(one.original.as_str()));
        let weight = weight.ok_or_else(|| failed(format!("it has no tensor for `{name}`")))?;
        let shape = layout.shape(parameter);
        if shape.iter().product::<usize>() != weight.values.len() {
            let found = &weight.shape;
            return Err(failed(format!(
                "`{}` has the extents {found:?}, and `{name}` {shape:?}",
                weight.name
            )));
        }
        let values = match weight.element {
            partita_import::Element::F64 => Values::F64(weight.values.clone()),
            _ => Values::F32(weight.values.iter().map(|&one| one as f32).collect()),
        };
        let tensor = Tensor { shape, values };
        let names = layout.names(parameter).into_iter();
        tensors.extend(names.map(|name| (name, tensor.clone())));
    }
    Ok(tensors)
}

fn result(request: &ImportRequest, imported: &Imported, printed: &str) -> ImportResult {
    let line_of = |layer: &str| {
        let mut lines = printed.lines();
        let start = format!("{layer} = ");
        lines
            .find(|line| line.starts_with(&start))
            .map(str::to_owned)
    };
    let layers = imported.layers.iter().map(|layer| ImportedLayer {
        operator: layer.operator.clone(),
        module: layer.module.clone(),
        line: layer.layer.as_deref().and_then(line_of),
    });
    let name = |file: &PathBuf| file.display().to_string();
    ImportResult {
        source: request.source.display().to_string(),
        layers: layers.collect(),
        loss: printed.lines().last().unwrap_or_default().to_owned(),
        assumed_loss: imported.loss == LossChoice::Assumed,
        parameters: partita_graph::count(&imported.graph).parameters,
        frozen: imported.frozen.clone(),
        model: request.out.as_ref().map(name),
        weights: request.weights.as_ref().map(name),
    }
}
