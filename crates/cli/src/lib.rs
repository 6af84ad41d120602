//! The command line: parses arguments, calls one verb of the library, prints the result.
//!
//! Does: parses arguments, prints results and errors, handles signals, ends the process.
//! Knows: the library `partita`, how `partita-report` writes its results, the environment, the terminal.
//! Must not know: how a verb computes its result.

mod args;
mod demo;
mod draft;
mod error;
mod interrupt;
mod number;
mod printable;
mod requests;
mod screen;
mod serve;
mod verbs;
mod work;

use args::Arguments;
use clap::Parser;
use error::{CliError, exit_code};
use partita::{Context, Environment, EnvironmentError, ErrorKind, RunFile, TrainData};
use partita_space::printable::{lines, message, name};
use printable::Printable;
use screen::{Screen, warn};
use std::borrow::Cow;
use std::env;
use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// The main function of the binary: parses the arguments of this process, calls a verb, prints the result.
pub fn main() -> ExitCode {
    ExitCode::from(run_arguments(env::args_os().skip(1), &serve_command()))
}

/// Parses arguments, those after `partita` on a command line, calls a verb, prints the result, and returns the exit code.
/// `serve` is the command that starts the verb `serve` in another process.
pub fn run_arguments(
    arguments: impl IntoIterator<Item = impl Into<OsString>>,
    serve: &[OsString],
) -> u8 {
    let words = arguments.into_iter().map(Into::into);
    let words = std::iter::once(OsString::from("partita")).chain(words);
    let words: Vec<OsString> = words.collect();
    let arguments = match Arguments::try_parse_from(&words) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are such errors too, with code 0.
            print_usage(&error, &words);
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    let mut out = BufWriter::new(Printable::new(io::stdout().lock()));
    let answer = run(&arguments, serve, &mut out).and_then(|()| Ok(out.flush()?));
    match answer {
        Ok(()) | Err(CliError::ClosedPipe) => 0,
        Err(error @ CliError::AlreadyReported(_)) => error.exit_code(),
        Err(error) => {
            // Output printed before the error goes first.
            let _ = out.flush();
            warn(&error.to_string());
            error.exit_code()
        }
    }
}

/// Prints help, or what is wrong with arguments. These may be names of files, with anything in them.
fn print_usage(error: &clap::Error, words: &[OsString]) {
    let is_plain = |word: &OsString| matches!(name(&word.to_string_lossy()), Cow::Borrowed(_));
    // Errors of a closed pipe are ignored.
    let _ = if words.iter().all(is_plain) {
        error.print()
    } else {
        let text = error.render().to_string();
        io::stderr().write_all(lines(&text).as_bytes())
    };
}

/// The error of a verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The exit code of the binary: 2 for an invalid request, 1 for a failure of a valid one.
    pub code: u8,
    /// The message that the binary prints.
    pub text: String,
    /// Whether the message was told before, in an event.
    pub is_reported: bool,
}

impl Refusal {
    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        let all = [ErrorKind::Request, ErrorKind::Interrupted];
        let found = all.into_iter().find(|&kind| exit_code(kind) == self.code);
        found.unwrap_or(ErrorKind::Failure)
    }
}

impl From<CliError> for Refusal {
    fn from(error: CliError) -> Self {
        Self {
            code: error.exit_code(),
            text: message(&error.to_string()),
            is_reported: matches!(error, CliError::AlreadyReported(_)),
        }
    }
}

/// Parses arguments, those after `partita` on a command line.
fn parse<A: Into<OsString> + Clone>(
    arguments: impl IntoIterator<Item = A>,
) -> Result<Arguments, Refusal> {
    let words = arguments.into_iter().map(Into::into);
    let words = std::iter::once(OsString::from("partita")).chain(words);
    Arguments::try_parse_from(words).map_err(|error| Refusal {
        code: u8::try_from(error.exit_code()).unwrap_or(2),
        text: lines(&error.to_string()).into_owned(),
        is_reported: false,
    })
}

/// Runs one verb in a context of the caller, which also handles signals.
pub fn run_in(context: &Context, arguments: &[String], out: &mut dyn Write) -> Result<(), Refusal> {
    interrupt::leave_to_caller();
    Ok(verbs::run(context, &parse(arguments)?.verb, out)?)
}

/// As [`run_in`], of the verbs `evaluate` and `infer`, on these samples.
pub fn forward_in(
    context: &Context,
    arguments: &[String],
    data: &TrainData,
    out: &mut dyn Write,
) -> Result<(), Refusal> {
    interrupt::leave_to_caller();
    Ok(verbs::forward(context, &parse(arguments)?.verb, data, out)?)
}

/// Runs one verb in this process, for tests and fuzzers, which would otherwise start a process for each.
///
/// `arguments` are those after `partita` on a command line.
pub fn run_verb(arguments: &[&str], out: &mut dyn Write) -> Result<(), Refusal> {
    Ok(run(&parse(arguments)?, &serve_command(), out)?)
}

/// Parses the text of a run file as `partita train` does, without training.
pub fn check_run_file(text: &str) -> Result<(), Refusal> {
    match RunFile::parse(text, "run.toml") {
        Ok(_) => Ok(()),
        Err(error) => Err(CliError::from(error).into()),
    }
}

/// The environment of this process, without a way to end it. `serve` is as of [`run_arguments`].
///
/// Errors: variables with invalid values.
pub fn environment(serve: &[OsString]) -> Result<Environment, EnvironmentError> {
    Ok(Environment {
        home: env::home_dir(),
        temporary: env::temp_dir(),
        serve_command: serve.to_vec(),
        ..Environment::from_variables(&|name| env::var_os(name))?
    })
}

/// Runs one verb in the environment of this process.
fn run(arguments: &Arguments, serve: &[OsString], out: &mut dyn Write) -> Result<(), CliError> {
    let environment = Environment {
        on_timeout: Some(|text| exit_on_timeout(text)),
        ..environment(serve)?
    };
    let screen = Arc::new(Screen::default());
    let context = Context::watched(environment, screen, interrupt::flag());
    verbs::run(&context, &arguments.verb, out)
}

/// This binary with its verb `serve`.
fn serve_command() -> Vec<OsString> {
    let binary = env::current_exe().ok();
    let verb = |binary: PathBuf| vec![binary.into(), "serve".into()];
    binary.map(verb).unwrap_or_default()
}

/// Ends the process, from another thread, when a call of a foreign library does not return.
#[expect(
    clippy::exit,
    reason = "the thread that hangs cannot return an exit code"
)]
fn exit_on_timeout(text: &str) -> ! {
    warn(text);
    // Exit handlers of the library may hang as well.
    std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_secs(1));
        std::process::abort();
    });
    std::process::exit(1)
}
