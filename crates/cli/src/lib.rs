//! The command line: reads what the user typed, calls one verb of the library, prints its answer.
//!
//! Does: parses arguments, prints answers and errors, handles signals, ends the process.
//! Knows: the library `partita`, how `partita-report` writes its answers, the environment, the terminal.
//! Must not know: how a verb finds its answer.

mod args;

mod demo;
mod draft;
mod error;
mod interrupt;
mod number;
mod requests;
mod screen;
mod verbs;
mod work;

use args::Arguments;
use clap::Parser;
use error::CliError;
use partita::{Context, Environment, RunFile};
use screen::{Screen, warn};
use std::env;
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
    let answer = run(&arguments, &mut out).and_then(|()| Ok(out.flush()?));
    match answer {
        Ok(()) | Err(CliError::ClosedPipe) => ExitCode::SUCCESS,
        Err(error @ CliError::AlreadyReported(_)) => ExitCode::from(error.exit_code()),
        Err(error) => {
            // What was printed before the error belongs before it.
            let _ = out.flush();
            warn(&error.to_string());
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
    Ok(run(&arguments, out)?)
}

/// Reads the text of a run file as `partita train` does, and trains nothing.
pub fn check_run_file(text: &str) -> Result<(), Refusal> {
    match RunFile::parse(text, "run.toml") {
        Ok(_) => Ok(()),
        Err(error) => Err(CliError::from(error).into()),
    }
}

/// Runs one verb in the environment of this process.
fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<(), CliError> {
    let environment = Environment {
        home: env::home_dir(),
        temporary: env::temp_dir(),
        end_stuck,
        ..Environment::from_variables(&|name| env::var_os(name))?
    };
    let screen = Screen::default();
    let context = Context::watched(environment, &screen, interrupt::flag());
    verbs::run(&context, &arguments.verb, out)
}

/// Ends the process when a call of a foreign library does not come back, from another thread.
#[expect(
    clippy::exit,
    reason = "the thread that hangs cannot return an exit code"
)]
fn end_stuck(text: &str) -> ! {
    warn(text);
    // What the library does at exit may hang as well.
    std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_secs(1));
        std::process::abort();
    });
    std::process::exit(1)
}
