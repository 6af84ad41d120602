//! The command line: reads what the user typed, calls one verb, prints its answer.
//!
//! Does: parses arguments, resolves models and machines, prints reports and errors, ends the process.
//! Knows: every room, the environment, the terminal.
//! Must not know: how a program is lowered, costed or run; each verb asks the room that does.

mod args;

mod calibrate;
mod compare;
mod data;
mod demo;
mod doctor;
mod inspect;
mod lower;
mod models;
mod plan;
mod predict;
mod train;

mod explain;
mod foreign;
mod host;
mod interrupt;
mod kernel_set;
mod launch;
mod launcher;
mod local_machine;
mod machine;
mod menu;
mod model;
mod pareto;
mod planner;
mod report;
mod search;
mod trace;
mod training;
mod vectors;

mod error;
mod free_folder;
mod number;
mod table;
mod times;

use args::{Arguments, DataVerb, Verb};
use clap::Parser;
use error::CliError;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

/// The whole of the binary: reads the arguments of this process, calls a verb, prints its answer.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version come this way too, with code 0; a closed pipe has no reader to tell.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let answer = vectors::choose()
        .and_then(|()| run(&arguments.verb, &mut out))
        .and_then(|()| Ok(out.flush()?));
    match answer {
        Ok(()) | Err(CliError::ClosedPipe) => ExitCode::SUCCESS,
        Err(CliError::Told(code)) => ExitCode::from(code),
        Err(error) => {
            // What was printed before the error belongs before it.
            let _ = out.flush();
            let _ = writeln!(io::stderr(), "partita: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Why a verb gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The exit code of the binary: 2 for an error of the user, 1 for a failure of a valid request.
    pub code: u8,
    /// What the binary prints.
    pub text: String,
}

impl From<CliError> for Refusal {
    fn from(error: CliError) -> Self {
        Self {
            code: error.exit_code(),
            text: error.to_string(),
        }
    }
}

/// Runs one verb in this process: tests reach what a user's files reach without starting a process for each.
///
/// `arguments` are those behind `partita` on a command line.
pub fn answer(arguments: &[&str], out: &mut dyn Write) -> Result<(), Refusal> {
    let program = std::iter::once("partita");
    let arguments = Arguments::try_parse_from(program.chain(arguments.iter().copied()));
    let arguments = arguments.map_err(|error| Refusal {
        code: u8::try_from(error.exit_code()).unwrap_or(2),
        text: error.to_string(),
    })?;
    Ok(run(&arguments.verb, out)?)
}

/// Reads the text of a run file as `partita train` does, and trains nothing.
pub fn check_run_file(text: &str) -> Result<(), Refusal> {
    train::RunFile::parse(text, "run.toml")?;
    Ok(())
}

/// Ends the process when a call of a foreign library does not come back, from another thread.
#[expect(
    clippy::exit,
    reason = "the thread that hangs cannot return an exit code"
)]
pub(crate) fn end_stuck(text: &str) -> ! {
    let _ = writeln!(io::stderr(), "partita: {text}");
    // What the library does at exit may hang as well.
    std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_secs(1));
        std::process::abort();
    });
    std::process::exit(1)
}

fn run(verb: &Verb, out: &mut dyn Write) -> Result<(), CliError> {
    match verb {
        Verb::Models(args) => models::run(args, out),
        Verb::Inspect(args) => inspect::run(args, out),
        Verb::Lower(args) => lower::run(args, out),
        Verb::Predict(args) => predict::run(args, out),
        Verb::Plan(args) => plan::run(args, out),
        Verb::Calibrate(args) => calibrate::run(args, out),
        Verb::Train(args) => train::run(&args.request(), out),
        Verb::Compare(args) => compare::run(args, out),
        Verb::Data { verb } => match verb {
            DataVerb::Cosmology(args) => data::make_cosmology(args, out),
            DataVerb::Segmentation(args) => data::make_segmentation(args, out),
            DataVerb::Shapes(args) => data::make_shapes(args, out),
            DataVerb::Digits(args) => data::make_digits(args, out),
            DataVerb::Inspect(args) => data::inspect(args, out),
        },
        Verb::Doctor(args) => doctor::run(args, out),
        Verb::Demo(args) => demo::run(args, out),
    }
}
