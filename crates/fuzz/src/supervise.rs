//! The supervisor: starts workers until the time is over, and collects their faults and crashes.

use crate::corpus::Corpus;
use crate::limits::{CPU_SECONDS_MAX, WALL_SECONDS_MAX};
use crate::targets::Target;
use crate::worker::{CURRENT, Event, Figures};
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Most worker crashes in one run; each needs a restart.
const CRASHES_MAX: usize = 20;
/// Bytes of standard error that are kept of a crashed worker.
const STDERR_KEPT: usize = 1 << 16;

/// Settings of the supervisor.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program that runs `work`.
    pub program: PathBuf,
    /// Folder of all corpora, in which crashes are saved.
    pub corpus: PathBuf,
    /// Working folder; each target gets a subfolder.
    pub scratch: PathBuf,
    /// Seed of the mutations.
    pub seed: u64,
    /// Duration.
    pub seconds: f64,
    /// Folder for inputs that reach new code.
    pub keep: Option<PathBuf>,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A panic, or a violated invariant.
    Panic,
    /// A time limit is exceeded.
    Hang,
    /// The memory limit is exceeded.
    Memory,
    /// Another crash, like a stack overflow.
    Death,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Panic => "panic",
            Self::Hang => "hang",
            Self::Memory => "memory",
            Self::Death => "death",
        })
    }
}

/// A fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// Location of a panic, else the exit status.
    pub place: String,
    /// The message.
    pub message: String,
    /// The saved input.
    pub input: PathBuf,
}

/// Results of fuzzing a target.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The target.
    pub target: &'static str,
    /// Seed of the first worker.
    pub seed: u64,
    /// Number of inputs.
    pub inputs: u64,
    /// Number of accepted inputs.
    pub accepted: u64,
    /// Wall time.
    pub seconds: f64,
    /// Longest time of one input.
    pub slowest_seconds: f64,
    /// Coverage: edges with classes of counts, or error texts.
    pub features: usize,
    /// Whether edges are instrumented.
    pub is_instrumented: bool,
    /// Distinct faults.
    pub faults: Vec<Fault>,
}

impl Report {
    /// Faults of a kind.
    pub fn count(&self, kind: FaultKind) -> usize {
        self.faults
            .iter()
            .filter(|fault| fault.kind == kind)
            .count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            target,
            seed,
            inputs,
            seconds,
            ..
        } = self;
        write!(
            f,
            "target {target}, seed {seed}: {inputs} inputs in {seconds:.1} s"
        )?;
        for fault in &self.faults {
            write!(f, "\n{} at {}: {}", fault.kind, fault.place, fault.message)?;
            let input = fault.input.display();
            write!(
                f,
                "\n  reproduce: cargo run --profile checked -p partita-fuzz -- reproduce {target} {input}"
            )?;
        }
        Ok(())
    }
}

/// A table of reports, for records.
pub fn table(reports: &[Report]) -> String {
    let mut text = "| target | inputs | accepted | seconds | slowest input | panics | hangs | memory | deaths |\n\
                    |---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for report in reports {
        let kinds = [
            FaultKind::Panic,
            FaultKind::Hang,
            FaultKind::Memory,
            FaultKind::Death,
        ];
        let [panics, hangs, memory, deaths] = kinds.map(|kind| report.count(kind));
        text.push_str(&format!(
            "| `{}` | {} | {} | {:.0} | {:.2} s | {panics} | {hangs} | {memory} | {deaths} |\n",
            report.target, report.inputs, report.accepted, report.seconds, report.slowest_seconds,
        ));
    }
    text
}

/// Fuzzes a target for the time of the settings.
///
/// Errors: a worker that cannot be started, or ends for a reason that is not its input.
pub fn supervise(target: &Target, settings: &Settings) -> io::Result<Report> {
    let began = Instant::now();
    let mut report = Report {
        target: target.name,
        seed: settings.seed,
        ..Report::default()
    };
    let mut skip = BTreeSet::new();
    for death in 0..=CRASHES_MAX {
        let left = settings.seconds - began.elapsed().as_secs_f64();
        if death > 0 && left <= 0.0 {
            break;
        }
        let mut shift = WorkerRun::start(target, settings, death as u64, left, &skip)?;
        let ended = shift.follow(&mut report, settings)?;
        if ended {
            break;
        }
        skip.extend(shift.kept.take());
        // Saved among the corpus, it would end the next worker, too.
        skip.extend(shift.saved.take());
    }
    report.seconds = began.elapsed().as_secs_f64();
    Ok(report)
}

/// The run of one worker.
struct WorkerRun {
    child: Child,
    folder: PathBuf,
    /// The current corpus file.
    kept: Option<String>,
    /// The saved crash, named as a corpus file.
    saved: Option<String>,
    figures: Figures,
    hang: Option<f64>,
}

impl WorkerRun {
    fn start(
        target: &Target,
        settings: &Settings,
        number: u64,
        seconds: f64,
        skip: &BTreeSet<String>,
    ) -> io::Result<Self> {
        let folder = settings.scratch.join(target.name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let mut command = Command::new(&settings.program);
        command.arg("work").arg(target.name);
        command.arg("--corpus").arg(&settings.corpus);
        command.arg("--folder").arg(&folder);
        command
            .arg("--seed")
            .arg((settings.seed + number).to_string());
        command.arg("--seconds").arg(seconds.to_string());
        if let Some(keep) = &settings.keep {
            command.arg("--keep").arg(keep.join(target.name));
        }
        for name in skip {
            command.arg("--skip").arg(name);
        }
        let child = command
            // The location of a failed allocation is only in the backtrace.
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Self {
            child,
            folder,
            kept: None,
            saved: None,
            figures: Figures::default(),
            hang: None,
        })
    }

    /// Reads events until the worker ends; true if it ended normally.
    fn follow(&mut self, report: &mut Report, settings: &Settings) -> io::Result<bool> {
        let lost = || io::Error::other("the output of the worker is lost");
        let out = self.child.stdout.take().ok_or_else(lost)?;
        let err = self.child.stderr.take().ok_or_else(lost)?;
        let errors = std::thread::spawn(move || beginning_of(err));
        let mut is_done = false;
        for line in BufReader::new(out).lines() {
            let event: Event = serde_json::from_str(&line?)?;
            is_done |= self.hear(event, report, settings)?;
        }
        let status = self.child.wait()?;
        let errors = errors.join().unwrap_or_default();
        self.add_figures(report);
        if is_done {
            return Ok(true);
        }
        let current = self.folder.join(CURRENT);
        let Ok(input) = fs::read(&current) else {
            return Err(io::Error::other(format!(
                "the worker of {} ended: {errors}",
                report.target
            )));
        };
        let place = frame(&errors).unwrap_or_else(|| status.to_string());
        let (kind, place) = match self.hang {
            Some(seconds) => (FaultKind::Hang, hang_text(seconds)),
            None if errors.contains("memory allocation of") => (FaultKind::Memory, place),
            None => (FaultKind::Death, place),
        };
        let message = errors.lines().take(2).collect::<Vec<_>>().join(" ");
        self.add(report, settings, kind, (place, message), &input)?;
        Ok(false)
    }

    fn hear(&mut self, event: Event, report: &mut Report, settings: &Settings) -> io::Result<bool> {
        match event {
            Event::Kept { name } => self.kept = Some(name).filter(|name| !name.is_empty()),
            Event::Progress(figures) => self.figures = figures,
            Event::Panic {
                place,
                message,
                input,
            } => {
                let bytes = fs::read(input)?;
                let what = (place, message);
                self.add(report, settings, FaultKind::Panic, what, &bytes)?;
            }
            Event::Hang { seconds } => self.hang = Some(seconds),
            Event::End(figures) => {
                self.figures = figures;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn add_figures(&self, report: &mut Report) {
        report.inputs += self.figures.inputs;
        report.accepted += self.figures.accepted;
        report.features = report.features.max(self.figures.features);
        report.slowest_seconds = report.slowest_seconds.max(self.figures.slowest_seconds);
        report.is_instrumented |= self.figures.is_instrumented;
    }

    /// Records a distinct fault, and saves its input unless it is in the corpus.
    fn add(
        &mut self,
        report: &mut Report,
        settings: &Settings,
        kind: FaultKind,
        (place, message): (String, String),
        input: &[u8],
    ) -> io::Result<()> {
        let is_known = |fault: &Fault| fault.kind == kind && fault.place == place;
        if kind != FaultKind::Hang && report.faults.iter().any(is_known) {
            return Ok(());
        }
        let path = match &self.kept {
            Some(name) => settings.corpus.join(report.target).join(name),
            None => {
                let word = kind.to_string();
                let saved = Corpus::save_crash(&settings.corpus, report.target, &word, input)?;
                self.saved = Some(saved.1);
                saved.0
            }
        };
        report.faults.push(Fault {
            kind,
            place,
            message,
            input: path,
        });
        Ok(())
    }
}

fn hang_text(seconds: f64) -> String {
    format!(
        "{seconds:.0} s (an input may take {CPU_SECONDS_MAX} s of processor time and {WALL_SECONDS_MAX} s \
         of wall time)"
    )
}

/// The beginning of a worker's standard error.
fn beginning_of(mut stream: impl Read) -> String {
    let mut kept = Vec::new();
    let mut part = [0; 4096];
    while let Ok(length) = stream.read(&mut part) {
        if length == 0 {
            break;
        }
        kept.extend_from_slice(&part[..length]);
        kept.truncate(STDERR_KEPT);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// The innermost function of this workspace in a backtrace, `3: partita_program::text::read_runs`.
fn frame(errors: &str) -> Option<String> {
    let functions = errors
        .lines()
        .filter_map(|line| line.trim().split_once(": "));
    let mut functions = functions.map(|(_, function)| function);
    functions
        .find(|function| function.contains("partita") && !function.contains("partita_fuzz"))
        .map(str::to_owned)
}
