//! Errors of loading and converting weights.

use super::WeightNames;
use partita_forecast::model::ModelError;
use partita_formats::DataError;
use partita_import::Reason;
use partita_site::{ErrorKind, Fault};
use partita_space::Help;
use partita_weights::checkpoint::{CheckpointError, CheckpointFolder};
use std::path::{Path, PathBuf};

/// Weights that cannot be loaded or converted.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Data(#[from] DataError),
    /// There is no such model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A checkpoint cannot be read.
    #[error("{error}{}", instead(error, whole.as_deref()))]
    Checkpoint {
        /// Why.
        error: CheckpointError,
        /// Another one, if it is damaged and there is one.
        whole: Option<PathBuf>,
    },
    /// A training that was stopped or failed has checkpoints and no weights.
    #[error(
        "{} has no weights, as its training did not come to its end{}",
        folder.display(),
        Help::none().nearest(format_args!("its last checkpoint, {}", checkpoint.display()))
    )]
    NotAtEnd {
        /// The output folder.
        folder: PathBuf,
        /// The checkpoint, which can be named in its place.
        checkpoint: PathBuf,
    },
    /// A training has no weights of a best epoch.
    #[error(
        "--best: there is no {}: a training writes it with `best = \"validation_loss\"` or another metric in \
         `[checkpoint]` of its run file{}",
        file.display(),
        if *last { "; without --best the weights of its last epoch are taken" } else { "" }
    )]
    NoBest {
        /// The file.
        file: PathBuf,
        /// Whether there are weights of the last epoch.
        last: bool,
    },
    /// A run that was not trained yet.
    #[error(
        "{} has no weights; train first, with `partita train {}`, or name weights with `--weights FILE`",
        folder.display(), run_file.display()
    )]
    NotTrained {
        /// The output folder.
        folder: PathBuf,
        /// The run file.
        run_file: PathBuf,
    },
    /// A value that is not finite.
    #[error(
        "{}: the tensor `{tensor}` holds {value}, with which nothing can be computed; take the weights of another training, \
         or of an earlier checkpoint",
        file.display()
    )]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// Its name in the file.
        tensor: String,
        /// The value.
        value: String,
    },
    /// A pattern fits no tensor.
    #[error(
        "{}: `{key}` names `{pattern}`, which fits no tensor{}{}",
        file.display(), of_others(*others),
        Help::none().maybe_nearest(nearest.as_ref())
    )]
    Pattern {
        /// The file.
        file: PathBuf,
        /// Key of the pattern.
        key: &'static str,
        /// The pattern.
        pattern: String,
        /// The nearest tensor, if there is one.
        nearest: Option<String>,
        /// How many other files it was asked for, none of which it fits either.
        others: usize,
    },
    /// A weight file does not name its model.
    #[error(
        "{} does not say of which model its weights are; name it with `--model MODEL`, or give the run file of the \
         training instead",
        file.display()
    )]
    NoModel {
        /// The file.
        file: PathBuf,
    },
    /// Weights whose statistics cannot be taken.
    #[error(
        "`statistics = \"weights\"` under [weights]: {} {reason}{}",
        file.display(),
        Help::none().nearest("`statistics = \"data\"`, which takes those of the training split")
    )]
    NoStatistics {
        /// The weights.
        file: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Weights do not fit the state dict of a module.
    #[error("--like {}: {reason}", file.display())]
    Like {
        /// The exported module.
        file: PathBuf,
        /// Why.
        reason: String,
    },
    /// A model has layers that ONNX lacks.
    #[error(
        "these layers cannot be written as ONNX:{}{}",
        listed(layers),
        Help::advice("write the weights alone, by `--out FILE.safetensors`")
    )]
    Onnx {
        /// The layers, each with the reason.
        layers: Vec<Reason>,
    },
    /// The file to write is that which is read.
    #[error("{} is the file that is read, which is not replaced; choose another file", file.display())]
    Source {
        /// The file.
        file: PathBuf,
    },
    /// The file to write is no file of weights, or one of another program.
    #[error(
        "{} exists and is not a weight file that Partita wrote; choose another file, or remove this one",
        file.display()
    )]
    Taken {
        /// The file.
        file: PathBuf,
    },
    /// The run file has a fault.
    #[error("{0}")]
    RunFile(String),
    /// Parameters of the model are not in the file.
    #[error(
        "{} has no tensor `{tensor}`, which the model needs for `{parameter}`{others}{}",
        file.display(),
        Help::advice(advice).maybe_nearest(nearest.as_ref())
    )]
    Missing {
        /// The file.
        file: PathBuf,
        /// Name of the first in the file.
        tensor: String,
        /// Name of the parameter.
        parameter: String,
        /// What else is missing, and whether tensors of its shape are left.
        others: Box<str>,
        /// The nearest tensors of the file, of its shape if there are some.
        nearest: Option<Box<str>>,
        /// How to go on.
        advice: Box<str>,
    },
    /// Tensors of the file are none of the model.
    #[error(
        "{} has a tensor `{tensor}`, which the model does not have{more}{}",
        file.display(),
        Help::advice(advice).maybe_nearest(nearest.as_ref())
    )]
    Unexpected {
        /// The file.
        file: PathBuf,
        /// Name of the first in the file.
        tensor: String,
        /// The nearest tensor of the model, if there is one.
        nearest: Option<Box<str>>,
        /// Names of the others.
        more: Box<str>,
        /// How to go on.
        advice: Box<str>,
    },
    /// A tensor has another shape.
    #[error(
        "{}: tensor `{tensor}` has the shape {found:?}, the model needs {expected:?}{advice}",
        file.display()
    )]
    Shape {
        /// The file.
        file: PathBuf,
        /// Name in the file.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that the model needs.
        expected: Vec<usize>,
        /// How to go on.
        advice: String,
    },
    /// Two tensors are named as one.
    #[error(
        "{}: both `{first}` and `{second}` would be `{target}`; rename one of them to another name, which `skip` may name",
        file.display()
    )]
    Twice {
        /// The file.
        file: PathBuf,
        /// Their names in the file.
        first: String,
        /// The other.
        second: String,
        /// Their name after `rename`.
        target: String,
    },
    /// The tensors of a shared parameter differ.
    #[error(
        "{}: `{}` and `{}` differ, and the model has one parameter for both, `{parameter}`; {advice}",
        file.display(), tensors[0], tensors[1]
    )]
    TiedDiffer {
        /// The file.
        file: PathBuf,
        /// Their names.
        tensors: [String; 2],
        /// Name of the parameter.
        parameter: String,
        /// How to go on.
        advice: String,
    },
    /// A shared parameter is skipped under one of its names, and the file has it under another.
    #[error(
        "{}: `{skipped}` is skipped, but the model shares this tensor under the names {}, and the file has it as `{left}`; \
         take `skip` of `{skipped}` back to use it, or skip all of its names: {advice}",
        file.display(), names.join(", ")
    )]
    TiedSkipped {
        /// The file.
        file: PathBuf,
        /// The skipped name.
        skipped: String,
        /// A name that is not skipped.
        left: String,
        /// All names of the parameter.
        names: Vec<String>,
        /// How the other name is left out, too.
        advice: String,
    },
    /// A parameter is skipped where all are needed.
    #[error(
        "`--skip {tensor}`: the model needs it for `{parameter}`, and no parameter has an initial value here{}",
        Help::possible("tensors that the model does not have")
            .advise("a training may skip it, with `skip` in `[weights]` of its run file")
    )]
    Needed {
        /// Name in the file.
        tensor: String,
        /// Name of the parameter.
        parameter: String,
    },
    /// No parameter is taken.
    #[error(
        "{}: no tensor is loaded, {left} are left, so all parameters would have initial values; take some out of `skip` and \
         `new`, leave out `weights`, or set `initial = true` in `[weights]`",
        file.display()
    )]
    NothingLoaded {
        /// The file.
        file: PathBuf,
        /// Tensors of the file that are left.
        left: usize,
    },
    /// A file in another axis order than is asked for.
    #[error(
        "{} is in {}'s axis order{} say: `order = \"{}\"` in `[weights]` of a run file, or `--order {}`",
        file.display(),
        if *order == WeightNames::Partita { "Partita" } else { "PyTorch" },
        if *is_stated { ", as its metadata" } else { " without its metadata, as names and shapes of its tensors" },
        order.name(),
        order.name()
    )]
    OtherOrder {
        /// The file.
        file: PathBuf,
        /// Its order.
        order: WeightNames,
        /// Whether its metadata say it.
        is_stated: bool,
    },
    /// A file whose tensors fit both axis orders.
    #[error(
        "{}: names and shapes of its tensors fit both PyTorch's and Partita's axis order, and its metadata do not say which \
         one it has; say it: `order = \"pytorch\"` or `order = \"partita\"` in `[weights]` of a run file, or `--order` of \
         `evaluate`, `infer` and `weights import`",
        file.display()
    )]
    EitherOrder {
        /// The file.
        file: PathBuf,
    },
    /// Kernels that do not lie along the axes that are asked for.
    #[error("{}: the axes {axes} are of no use, as {reason}; leave them out", file.display())]
    NoAxes {
        /// The file.
        file: PathBuf,
        /// The axes.
        axes: String,
        /// Why not.
        reason: String,
    },
}

impl WeightsError {
    /// The same of a pattern that fits no file of several.
    pub(super) fn of_files(mut self, count: usize) -> Self {
        if let Self::Pattern { others, .. } = &mut self {
            *others = count - 1;
        }
        self
    }
}

fn of_others(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => ", and none of the other file".to_owned(),
        _ => format!(", and none of the {others} other files"),
    }
}

impl From<CheckpointError> for WeightsError {
    fn from(error: CheckpointError) -> Self {
        let whole = error.damaged().and_then(CheckpointFolder::instead_of);
        Self::Checkpoint { error, whole }
    }
}

fn instead(error: &CheckpointError, whole: Option<&Path>) -> String {
    match whole {
        Some(path) => format!("; the nearest whole checkpoint is {}", path.display()),
        None if error.damaged().is_some() => "; no other checkpoint beside it is whole".to_owned(),
        None => String::new(),
    }
}

/// A line for each.
fn listed(layers: &[Reason]) -> String {
    layers.iter().map(|layer| format!("\n  {layer}")).collect()
}

impl Fault for WeightsError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}
