//! The worker: runs inputs of one target in a separate process, which may crash.
//!
//! It writes each input to a file before it runs it, so that the supervisor has it whatever happens, and
//! emits events on standard output, one line of JSON each.

use crate::corpus::{self, Corpus};
use crate::coverage::{self, Seen};
use crate::limits;
use crate::mutate::{Dictionary, mutate};
use crate::targets::Target;
use partita_testkit::Draws;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The input that is running, in the folder of the worker.
pub(crate) const CURRENT: &str = "current";

/// Interval of progress events.
const PROGRESS: Duration = Duration::from_millis(500);

/// Settings of a worker.
#[derive(Clone, Debug)]
pub struct WorkOrder {
    /// Folder of all corpora.
    pub corpus: PathBuf,
    /// Its working folder.
    pub folder: PathBuf,
    /// Seed of the mutations.
    pub seed: u64,
    /// Duration.
    pub seconds: f64,
    /// Folder for inputs that reach new code.
    pub keep: Option<PathBuf>,
    /// Names of corpus files that have crashed a worker and are skipped.
    pub skip: BTreeSet<String>,
}

/// Events of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event {
    /// The next corpus file.
    Kept { name: String },
    /// Progress.
    Progress(Figures),
    /// An input panicked, or violated an invariant of the target.
    Panic {
        place: String,
        message: String,
        input: PathBuf,
    },
    /// The input exceeded a time limit; the process ends.
    Hang { seconds: f64 },
    /// The time is over.
    End(Figures),
}

/// Figures of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) inputs: u64,
    pub(crate) accepted: u64,
    pub(crate) features: usize,
    pub(crate) slowest_seconds: f64,
    pub(crate) is_instrumented: bool,
}

/// Location and message of the last panic.
static PANIC: Mutex<Option<(String, String)>> = Mutex::new(None);

/// Runs the corpus of a target and then mutations of it, until the time is over.
///
/// Errors: files that cannot be read or written. Faults of the target are no errors but events.
pub fn work(target: &Target, order: &WorkOrder) -> io::Result<()> {
    let began = Instant::now();
    capture_panics();
    limits::watch(|seconds| {
        // If this fails, the supervisor sees that the worker ended.
        let _ = emit(&Event::Hang { seconds });
        std::process::abort();
    });
    let corpus = Corpus::read(&order.corpus, target)?;
    let mut worker = Worker {
        target,
        order,
        seen: Seen::new(),
        known: BTreeSet::new(),
        inputs: 0,
        accepted: 0,
        slowest: Duration::ZERO,
        reported: began,
    };
    (target.prepare)(&order.folder)?;
    let mut pool: Vec<Vec<u8>> = Vec::new();
    for (name, input) in corpus.inputs {
        if order.skip.contains(&name) {
            continue;
        }
        emit(&Event::Kept { name })?;
        worker.run(&input)?;
        pool.push(input);
    }
    emit(&Event::Kept {
        name: String::new(),
    })?;
    let kept = pool.len();
    let dictionary = Dictionary::of(target.form, pool.iter().map(Vec::as_slice));
    let mut draws = Draws::new(order.seed);
    while began.elapsed().as_secs_f64() < order.seconds && !pool.is_empty() {
        // Half of the time the latest find, which is most likely to lead to new coverage.
        let recent = pool.len() > kept && draws.one_in(2);
        let from = if recent {
            kept.max(pool.len() * 3 / 4)
        } else {
            0
        };
        let parent = &pool[draws.between(from.min(pool.len() - 1), pool.len() - 1)];
        let other = &pool[draws.between(0, pool.len() - 1)];
        let input = mutate(parent, other, target.form, &dictionary, &mut draws);
        if worker.run(&input)? {
            if let Some(folder) = &order.keep {
                fs::create_dir_all(folder)?;
                fs::write(folder.join(corpus::name("input", &input)), &input)?;
            }
            pool.push(input);
        }
    }
    emit(&Event::End(worker.figures()))
}

/// Runs one input without catching panics, and returns the result of the target.
pub fn reproduce(target: &Target, input: &[u8], folder: &Path) -> io::Result<Result<(), String>> {
    (target.prepare)(folder)?;
    Ok((target.run)(input, folder))
}

struct Worker<'t> {
    target: &'t Target,
    order: &'t WorkOrder,
    seen: Seen,
    /// Locations of reported panics.
    known: BTreeSet<String>,
    inputs: u64,
    accepted: u64,
    slowest: Duration,
    reported: Instant,
}

impl Worker<'_> {
    /// Runs an input; true if its coverage is new.
    fn run(&mut self, input: &[u8]) -> io::Result<bool> {
        fs::write(self.order.folder.join(CURRENT), input)?;
        // A reader may have turned a panic of a library into an error.
        if let Ok(mut heard) = PANIC.lock() {
            *heard = None;
        }
        limits::start_input();
        coverage::reset();
        let start = Instant::now();
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
            (self.target.run)(input, &self.order.folder)
        }));
        self.slowest = self.slowest.max(start.elapsed());
        self.inputs += 1;
        let is_new = match &outcome {
            Ok(Ok(())) => {
                self.accepted += 1;
                self.seen.take(None)
            }
            Ok(Err(refusal)) => self.seen.take(Some(refusal)),
            Err(_) => {
                self.seen.take(None);
                self.fault(input)?;
                false
            }
        };
        if self.reported.elapsed() > PROGRESS {
            self.reported = Instant::now();
            emit(&Event::Progress(self.figures()))?;
        }
        Ok(is_new)
    }

    fn figures(&self) -> Figures {
        Figures {
            inputs: self.inputs,
            accepted: self.accepted,
            features: self.seen.features,
            slowest_seconds: self.slowest.as_secs_f64(),
            is_instrumented: self.seen.is_instrumented(),
        }
    }

    /// Reports a panic, once for each location.
    fn fault(&mut self, input: &[u8]) -> io::Result<()> {
        let heard = PANIC.lock().map_or(None, |mut heard| heard.take());
        let (place, message) = heard.unwrap_or_default();
        if !self.known.insert(place.clone()) {
            return Ok(());
        }
        let path = self.order.folder.join(corpus::name("panic", input));
        fs::write(&path, input)?;
        emit(&Event::Panic {
            place,
            message,
            input: path,
        })
    }
}

/// Records panic messages instead of printing them.
fn capture_panics() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(String::new, |location| {
            // Without the registry folder, which differs between machines.
            let file = location.file();
            let short = file
                .rsplit_once("/registry/src/")
                .map_or(file, |(_, file)| {
                    file.split_once('/').map_or(file, |(_, file)| file)
                });
            format!("{short}:{}", location.line())
        });
        let payload = info.payload();
        let message = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("a panic without a text");
        if let Ok(mut heard) = PANIC.lock() {
            // The first panic is the cause.
            heard.get_or_insert((place, message.chars().take(500).collect()));
        }
    }));
}

fn emit(event: &Event) -> io::Result<()> {
    let line = serde_json::to_string(event)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
