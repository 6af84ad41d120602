//! Runs the work of a verb beside the calling thread, which meanwhile handles events and Ctrl-C.

use crate::errors::VerbError;
use partita::{Context, Environment, Event, Progress};
use partita_session::Progress as TrainingProgress;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often the calling thread looks for Ctrl-C.
const POLL: Duration = Duration::from_millis(50);
/// How often a call of a rank looks whether the one before it has ended.
const POLLS_MAX: usize = 20;
/// Time between reports of steps, so that Python does not slow the training.
const BETWEEN_STEPS: Duration = Duration::from_millis(100);

/// A message to the calling thread.
pub enum Message {
    /// An event for the listener.
    Told(Told),
    /// An epoch as JSON; the answer is whether to go on.
    Epoch(String, Sender<bool>),
}

/// An event for the listener: its kind, its text, and how far the work is.
pub struct Told {
    kind: &'static str,
    text: String,
    done: u64,
    total: u64,
}

/// Hands events to the calling thread.
struct Reporter {
    to: Mutex<Sender<Message>>,
    last_step: Mutex<Option<Instant>>,
}

impl Reporter {
    fn tell(&self, kind: &'static str, text: &str, (done, total): (u64, u64)) {
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        // The calling thread listens until the work ends.
        let _ = to.send(Message::Told(Told {
            kind,
            text: text.to_owned(),
            done,
            total,
        }));
    }

    fn is_due(&self) -> bool {
        let mut last = self
            .last_step
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= BETWEEN_STEPS);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }

    fn training(&self, epochs: u64, steps: u64, progress: &TrainingProgress) {
        match progress {
            TrainingProgress::Step {
                epoch, step, loss, ..
            } if self.is_due() => {
                let text = format!("epoch {}/{epochs} loss {loss:.5}", epoch + 1);
                self.tell("step", &text, (*step, steps));
            }
            TrainingProgress::Step { .. } | TrainingProgress::Evaluated { .. } => {}
            TrainingProgress::Epoch(report) => {
                let loss = report.training_loss;
                let validation = report.validation.as_ref();
                let validation = validation.map_or_else(String::new, |validation| {
                    format!(", validation loss {:.5}", validation.loss)
                });
                let rate = report.samples as f64 / report.training_seconds.0;
                let epoch = report.epoch + 1;
                let text = format!(
                    "epoch {epoch}/{epochs}: loss {loss:.5}{validation}, {rate:.1} samples/s"
                );
                self.tell("epoch", &text, (epoch, epochs));
            }
            TrainingProgress::Done { steps, .. } => self.tell("done", "", (*steps, *steps)),
        }
    }
}

impl Progress for Reporter {
    fn report(&self, event: Event<'_>) {
        match event {
            Event::Warning(text) => self.tell("warning", text, (0, 0)),
            Event::Note(text) => self.tell("note", text, (0, 0)),
            Event::Failure(text) => self.tell("failure", text, (0, 0)),
            Event::Status { text, is_last } => {
                let kind = if is_last { "done" } else { "status" };
                self.tell(kind, text, (0, 0));
            }
            Event::Samples { noun, made, total } => {
                let kind = if made == total { "done" } else { "samples" };
                self.tell(kind, noun, (made as u64, total as u64));
            }
            Event::Training {
                epochs,
                steps,
                progress,
            } => self.training(epochs, steps, progress),
            // Python handles signals, and draws curves.
            Event::Writing
            | Event::Checkpoints { .. }
            | Event::SamplesStopped
            | Event::EndedEarly(_) => {}
        }
    }
}

/// What the work of a verb has.
pub struct Desk {
    /// Its context.
    pub context: Context,
    /// Sends messages to the calling thread.
    pub messages: Sender<Message>,
}

/// Python objects that are called on the calling thread.
pub struct Callbacks<'py> {
    /// Called with the kind and text of each event, and how far the work is.
    pub progress: Option<Bound<'py, PyAny>>,
    /// Called with each epoch, as JSON; `False` ends the training.
    pub on_epoch: Option<Bound<'py, PyAny>>,
}

/// Runs work without the lock of the interpreter and gives what it returns. Ctrl-C ends it in an orderly way, and is raised
/// when it has ended.
///
/// Errors: those of the work, as exceptions; an exception of a callback, after the work has ended.
pub fn run<T: Send + 'static>(
    python: Python<'_>,
    callbacks: &Callbacks<'_>,
    work: impl FnOnce(&Desk) -> Result<T, VerbError> + Send + 'static,
) -> PyResult<T> {
    let environment = environment(python)?;
    let is_rank = environment.launcher.is_some();
    let cancel: Arc<AtomicBool> = Arc::default();
    let (messages, inbox) = mpsc::channel();
    let (result_to, result) = mpsc::channel();
    let flag = Arc::clone(&cancel);
    let job = move || {
        let reporter = Arc::new(Reporter {
            to: Mutex::new(messages.clone()),
            last_step: Mutex::new(None),
        });
        let context = Context::watched(environment, reporter, flag);
        let desk = Desk { context, messages };
        // The calling thread waits for it.
        let _ = result_to.send(work(&desk));
    };
    start(is_rank, Box::new(job)).map_err(|error| error.raised(None))?;
    let mut listener = Listener {
        callbacks,
        cancel: &cancel,
        told: None,
        raised: None,
    };
    listener.listen(python, &Mutex::new(inbox));
    let Listener { told, raised, .. } = listener;
    let result = result.recv();
    let failed = || VerbError::failure("a thread of the work has panicked; this is a bug");
    match (result.unwrap_or_else(|_| Err(failed())), raised) {
        // What the checkpoint is stands in the error of the work.
        (Err(error), Some(raised)) if is_interrupt(python, &raised) => {
            Err(error.raised(told.or(Some("interrupted".to_owned()))))
        }
        (_, Some(raised)) => Err(raised),
        (Err(error), None) => Err(error.raised(told)),
        (Ok(value), None) => Ok(value),
    }
}

fn is_interrupt(python: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<pyo3::exceptions::PyKeyboardInterrupt>(python)
}

/// The calling thread while the work runs.
struct Listener<'l, 'py> {
    callbacks: &'l Callbacks<'py>,
    cancel: &'l AtomicBool,
    /// The last failure that was told in an event.
    told: Option<String>,
    /// The first exception of a callback, or Ctrl-C.
    raised: Option<PyErr>,
}

impl Listener<'_, '_> {
    /// Until the work ends and drops its ends of the channel.
    fn listen(&mut self, python: Python<'_>, inbox: &Mutex<Receiver<Message>>) {
        loop {
            let next = python.detach(|| {
                let inbox = inbox.lock().unwrap_or_else(PoisonError::into_inner);
                inbox.recv_timeout(POLL)
            });
            if let Err(error) = python.check_signals() {
                self.cancel.store(true, Ordering::Relaxed);
                self.raised.get_or_insert(error);
            }
            match next {
                Ok(Message::Told(told)) => self.tell(told),
                Ok(Message::Epoch(json, answer)) => {
                    // The work waits for it.
                    let _ = answer.send(self.goes_on(&json));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn tell(&mut self, told: Told) {
        if let Some(progress) = &self.callbacks.progress {
            let called = progress.call1((told.kind, &told.text, told.done, told.total));
            if let Err(error) = called {
                self.cancel.store(true, Ordering::Relaxed);
                self.raised.get_or_insert(error);
            }
        }
        if told.kind == "failure" {
            self.told = Some(told.text);
        }
    }

    fn goes_on(&mut self, json: &str) -> bool {
        let Some(on_epoch) = &self.callbacks.on_epoch else {
            return true;
        };
        match on_epoch.call1((json,)) {
            Ok(answer) => !answer.extract::<bool>().is_ok_and(|goes_on| !goes_on),
            Err(error) => {
                self.raised.get_or_insert(error);
                false
            }
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Starts work on a thread. All work of a rank of MPI is of one thread, as MPI may allow no other.
///
/// Errors: a rank works already; the system has no thread.
fn start(is_rank: bool, job: Job) -> Result<(), VerbError> {
    let no_thread = |error| VerbError::failure(format!("no thread can be started: {error}"));
    if !is_rank {
        let spawned = thread::Builder::new().name("partita".to_owned()).spawn(job);
        return spawned.map(drop).map_err(no_thread);
    }
    static WORKER: Mutex<Option<Sender<Job>>> = Mutex::new(None);
    static BUSY: AtomicBool = AtomicBool::new(false);
    let mut worker = WORKER.lock().unwrap_or_else(PoisonError::into_inner);
    // The thread is free a moment after the result of its last work has come.
    let is_free = || !BUSY.swap(true, Ordering::AcqRel);
    if !(0..POLLS_MAX).any(|_| {
        is_free() || {
            thread::sleep(POLL);
            false
        }
    }) {
        return Err(VerbError::request(
            "another call of Partita runs in this process, and a rank of MPI does one after the other\n\
             help: call it after the other has returned",
        ));
    }
    let to = match worker.take() {
        Some(to) => to,
        None => {
            let (to, jobs) = mpsc::channel::<Job>();
            let work = move || {
                for job in jobs {
                    job();
                }
            };
            let name = "partita".to_owned();
            let spawned = thread::Builder::new().name(name).spawn(work);
            spawned.map_err(no_thread)?;
            to
        }
    };
    let job: Job = Box::new(move || {
        let _free = Free(&BUSY);
        job();
    });
    let sent = to.send(job);
    *worker = Some(to);
    sent.map_err(|_| VerbError::failure("the thread of the ranks has ended"))
}

/// Says at its end that the worker is free.
struct Free(&'static AtomicBool);

impl Drop for Free {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The command that starts a loader or validator: this Python with the module `partita`.
pub fn serve_command(python: Python<'_>) -> PyResult<Vec<OsString>> {
    let executable: Option<OsString> = python.import("sys")?.getattr("executable")?.extract()?;
    let words = ["-m", "partita", "serve"].map(OsString::from);
    let command = executable.map(|python| [python].into_iter().chain(words).collect());
    Ok(command.unwrap_or_default())
}

/// The environment of the process.
fn environment(python: Python<'_>) -> PyResult<Environment> {
    let environment = partita_cli::environment(&serve_command(python)?);
    let environment =
        environment.map_err(|error| VerbError::request(partita::full_text(&error)).raised(None))?;
    Ok(Environment {
        keeps_mpi: true,
        ..environment
    })
}

/// The values of a dictionary of texts.
pub fn text_of(options: &Bound<'_, PyDict>, key: &str) -> PyResult<Option<String>> {
    options.get_item(key)?.map(|it| it.extract()).transpose()
}
