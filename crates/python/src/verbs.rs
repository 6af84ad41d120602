//! The functions of the module: a verb by its arguments, a training, an evaluation or inference of samples in memory.

use crate::errors::VerbError;
use crate::source::PythonSource;
use crate::work::{Callbacks, Desk, Message, run, serve_command, text_of};
use partita::{
    EpochResult, ResumeFrom, RunFile, SampleSource, TrainConfig, TrainData, TrainModel, Trainer,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

/// Runs a verb by the arguments of the command line, and returns what it prints.
#[pyfunction]
#[pyo3(signature = (arguments, progress=None))]
pub fn call(
    python: Python<'_>,
    arguments: Vec<String>,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<String> {
    let callbacks = Callbacks {
        progress,
        on_epoch: None,
    };
    run(python, &callbacks, move |desk| {
        let mut out = Vec::new();
        partita_cli::run_in(&desk.context, &arguments, &mut out)?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    })
}

/// A training, as Python says it.
struct TrainingRequest {
    /// The run file as text, and its name in errors; none for the file of this name.
    text: Option<String>,
    name: String,
    /// The model as text, in place of that of the run file.
    model: Option<String>,
    source: Option<Arc<dyn SampleSource>>,
    resume: ResumeFrom,
    is_predicted: bool,
}

/// Trains, and returns the result as JSON; nothing on ranks other than 0.
///
/// `options`: `text` of the run file or its path `run`, `model` as text, `resume` (`newest`, `auto` or a path),
/// `predict`.
#[pyfunction]
#[pyo3(signature = (options, source=None, progress=None, on_epoch=None))]
pub fn train(
    python: Python<'_>,
    options: &Bound<'_, PyDict>,
    source: Option<Bound<'_, PyAny>>,
    progress: Option<Bound<'_, PyAny>>,
    on_epoch: Option<Bound<'_, PyAny>>,
) -> PyResult<Option<String>> {
    let request = TrainingRequest {
        text: text_of(options, "text")?,
        name: text_of(options, "run")?.unwrap_or_else(|| "the arguments".to_owned()),
        model: text_of(options, "model")?,
        source: shared(source.as_ref())?,
        resume: match text_of(options, "resume")?.as_deref() {
            None => ResumeFrom::Start,
            Some("newest") => ResumeFrom::Newest,
            Some("auto") => ResumeFrom::Auto,
            Some(path) => ResumeFrom::Path(path.into()),
        },
        is_predicted: text_of(options, "predict")?.is_some(),
    };
    let calls_back = on_epoch.is_some();
    let callbacks = Callbacks { progress, on_epoch };
    run(python, &callbacks, move |desk| {
        trained(desk, request, calls_back)
    })
}

fn shared(source: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Arc<dyn SampleSource>>> {
    let source = source.map(PythonSource::new).transpose()?;
    Ok(source.map(|source| Arc::new(source) as Arc<dyn SampleSource>))
}

fn trained(
    desk: &Desk,
    request: TrainingRequest,
    calls_back: bool,
) -> Result<Option<String>, VerbError> {
    let file = match &request.text {
        Some(text) => RunFile::parse(text, &request.name),
        None => RunFile::read(request.name.as_ref()),
    };
    let file = file.map_err(|error| VerbError::of(&error))?;
    let trainer = trainer(file, &request)?;
    let trainer = if calls_back {
        let messages = desk.messages.clone();
        trainer.on_epoch(move |epoch| asked(&messages, epoch))
    } else {
        trainer
    };
    let trained = trainer.train(&desk.context);
    let Some(trained) = trained.map_err(|error| VerbError::of(&error))? else {
        return Ok(None);
    };
    if let Some(error) = trained.misplaced {
        return Err(VerbError::of(&error));
    }
    json(&trained.result).map(Some)
}

fn trainer(file: RunFile, request: &TrainingRequest) -> Result<Trainer, VerbError> {
    let RunFile {
        model,
        data,
        output,
        config,
    } = file;
    let model = match &request.model {
        Some(text) => TrainModel::of_text(text).map_err(|error| VerbError::of(&error))?,
        None => model.into(),
    };
    let data = match &request.source {
        Some(source) => TrainData::Source(Arc::clone(source)),
        None => TrainData::Path(data),
    };
    let config: TrainConfig = config;
    let trainer = Trainer::new(model, data, config)
        .output(output)
        .resuming(request.resume.clone());
    Ok(if request.is_predicted {
        trainer.predicting()
    } else {
        trainer
    })
}

/// Asks the calling thread whether a training goes on.
fn asked(messages: &Sender<Message>, epoch: &EpochResult) -> ControlFlow<()> {
    let (answer, answered) = mpsc::channel();
    let Ok(json) = serde_json::to_string(epoch) else {
        return ControlFlow::Continue(());
    };
    // A calling thread that no longer listens has nothing against it.
    let _ = messages.send(Message::Epoch(json, answer));
    match answered.recv() {
        Ok(false) => ControlFlow::Break(()),
        Ok(true) | Err(_) => ControlFlow::Continue(()),
    }
}

fn json(value: &impl serde::Serialize) -> Result<String, VerbError> {
    serde_json::to_string(value).map_err(|error| VerbError::failure(error.to_string()))
}

/// Evaluates or infers samples of a Python object, by the arguments of the command line; nothing on ranks other than 0.
#[pyfunction]
#[pyo3(signature = (arguments, source, progress=None))]
pub fn forward(
    python: Python<'_>,
    arguments: Vec<String>,
    source: Bound<'_, PyAny>,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<Option<String>> {
    let source = PythonSource::new(&source)?;
    let data = TrainData::Source(Arc::new(source));
    let callbacks = Callbacks {
        progress,
        on_epoch: None,
    };
    run(python, &callbacks, move |desk| {
        let mut out = Vec::new();
        partita_cli::forward_in(&desk.context, &arguments, &data, &mut out)?;
        let out = String::from_utf8_lossy(&out).into_owned();
        Ok((!out.is_empty()).then_some(out))
    })
}

/// Finalizes MPI, if a verb started it. Nothing may follow.
#[pyfunction]
pub fn finalize(python: Python<'_>) -> PyResult<()> {
    if !partita::is_mpi_left_running() {
        return Ok(());
    }
    let callbacks = Callbacks {
        progress: None,
        on_epoch: None,
    };
    run(python, &callbacks, |_| {
        partita::finalize_mpi().map_err(|error| VerbError::failure(error.to_string()))
    })
}

/// The command line, as the program `partita`: the exit code.
#[pyfunction]
pub fn main(python: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    let serve = serve_command(python)?;
    Ok(python.detach(|| partita_cli::run_arguments(arguments, &serve)))
}
