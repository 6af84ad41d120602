//! `fuzz`: fuzzes targets and prints the table of a record, or runs one saved input.

#![allow(
    clippy::disallowed_methods,
    reason = "a tool of developers reads their own files"
)]

use clap::{Args, Parser, Subcommand};
use partita_fuzz::{
    LimitedMemory, Report, Settings, TARGETS, Target, WorkOrder, corpus_folder, reproduce,
    supervise, table, work,
};
use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

#[global_allocator]
static MEMORY: LimitedMemory = LimitedMemory;

/// Fuzzes the readers of Partita.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Fuzz targets and print a table of inputs and faults
    Run(RunArgs),
    /// Run one saved input of a target
    Reproduce { target: String, input: PathBuf },
    /// Run inputs of a target in this process; started by `run`
    Work(WorkArgs),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Targets (default: all)
    targets: Vec<String>,
    /// Seconds per target
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Seed of the mutations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Targets that are fuzzed concurrently
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Folder of all corpora
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// Folder for inputs that reach new code
    #[arg(long)]
    keep: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct WorkArgs {
    target: String,
    #[arg(long)]
    corpus: PathBuf,
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    keep: Option<PathBuf>,
    #[arg(long)]
    skip: Vec<String>,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::Run(args) => run(&args),
        Verb::Reproduce { target, input } => reproduce_file(&target, &input),
        Verb::Work(args) => work_as(args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

fn find(name: &str) -> Result<&'static Target, Box<dyn Error>> {
    TARGETS
        .iter()
        .find(|target| target.name == name)
        .ok_or_else(|| {
            let names = TARGETS.map(|target| target.name).join(", ");
            format!("there is no target `{name}`: possible are {names}").into()
        })
}

fn run(args: &RunArgs) -> Result<bool, Box<dyn Error>> {
    let targets: Vec<&Target> = if args.targets.is_empty() {
        TARGETS.iter().collect()
    } else {
        let named = args.targets.iter().map(|name| find(name));
        named.collect::<Result<_, _>>()?
    };
    let scratch = env::temp_dir().join(format!("partita-fuzz-{}", std::process::id()));
    let settings = Settings {
        program: env::current_exe()?,
        corpus: args.corpus.clone().unwrap_or_else(corpus_folder),
        scratch: scratch.clone(),
        seed: args.seed,
        seconds: args.seconds,
        keep: args.keep.clone(),
    };
    let next = Mutex::new(targets.iter());
    let reports: Mutex<Vec<Report>> = Mutex::new(Vec::new());
    let one_after_the_other = || -> Result<(), String> {
        loop {
            let target = next.lock().map_err(|error| error.to_string())?.next();
            let Some(target) = target else { return Ok(()) };
            let report = supervise(target, &settings).map_err(|error| error.to_string())?;
            eprintln!("{report}");
            reports
                .lock()
                .map_err(|error| error.to_string())?
                .push(report);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.jobs.max(1))
            .map(|_| scope.spawn(one_after_the_other))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(done) => done,
                Err(_) => Err("a supervisor panicked".to_owned()),
            })
    })?;
    // Files that cannot be removed are temporary files.
    let _ = fs::remove_dir_all(&scratch);
    let mut reports = reports.into_inner()?;
    reports.sort_by_key(|report| {
        targets
            .iter()
            .position(|target| target.name == report.target)
    });
    print!("{}", table(&reports));
    let is_instrumented = reports.iter().all(|report| report.is_instrumented);
    let feedback = if is_instrumented {
        "edges of the control flow"
    } else {
        "wordings of refusals"
    };
    println!(
        "\nFeedback: {feedback}. Overflow checks: {}.",
        if cfg!(debug_assertions) { "on" } else { "off" }
    );
    Ok(reports.iter().all(|report| report.faults.is_empty()))
}

fn reproduce_file(target: &str, input: &Path) -> Result<bool, Box<dyn Error>> {
    let target = find(target)?;
    let folder = env::temp_dir().join(format!("partita-fuzz-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let outcome = reproduce(target, &fs::read(input)?, &folder);
    // As above.
    let _ = fs::remove_dir_all(&folder);
    match outcome? {
        Ok(()) => println!("accepted"),
        Err(refusal) => println!("refused: {refusal}"),
    }
    Ok(true)
}

fn work_as(args: WorkArgs) -> Result<bool, Box<dyn Error>> {
    let order = WorkOrder {
        corpus: args.corpus,
        folder: args.folder,
        seed: args.seed,
        seconds: args.seconds,
        keep: args.keep,
        skip: args.skip.into_iter().collect(),
    };
    work(find(&args.target)?, &order)?;
    Ok(true)
}
