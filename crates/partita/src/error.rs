use std::error::Error;
use std::fmt::Display;
use std::io;

/// Why a verb ended early; decides the exit code.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// What was asked for cannot be done; another request can.
    #[error("{0}")]
    User(String),
    /// A valid request failed while it was carried out.
    #[error("{0}")]
    Run(String),
    /// The user asked to stop.
    #[error("stopped on request; {0}")]
    Interrupted(String),
    /// A failure that has been told already, with the exit code that it asks for.
    #[error("the job has ended")]
    Told(u8),
    /// The reader of the output went away, which is its right.
    #[error("the output was closed")]
    ClosedPipe,
}

impl CliError {
    /// A request that cannot be met, with all that caused it.
    pub fn user(error: &dyn Error) -> Self {
        Self::User(chain(error))
    }

    /// A failure on the way, with all that caused it.
    pub fn run(error: &dyn Error) -> Self {
        Self::Run(chain(error))
    }

    /// A file that cannot be read or written.
    pub fn file(verb: &str, path: impl Display, error: &dyn Display) -> Self {
        Self::User(format!("{path} cannot be {verb}: {error}"))
    }

    /// 2 for the user's errors, 1 for failures, 130 after Ctrl-C, as shells count them, or what was told.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::User(_) => 2,
            Self::Run(_) => 1,
            Self::Interrupted(_) => 130,
            Self::Told(code) => *code,
            Self::ClosedPipe => 0,
        }
    }
}

/// Only writes to the output give a bare `io::Error`.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Run(format!("the output cannot be written: {error}")),
        }
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        match error.io_error_kind() {
            Some(io::ErrorKind::BrokenPipe) => Self::ClosedPipe,
            Some(_) | None => Self::Run(format!("the output cannot be written: {error}")),
        }
    }
}

/// The texts of an error and its sources, without those that the text before repeats.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer{}", if *.repeats { ": inner" } else { "" })]
    struct Outer {
        repeats: bool,
        source: io::Error,
    }

    #[test]
    fn causes_are_told_once() {
        for repeats in [false, true] {
            let source = io::Error::other("inner");
            let error = CliError::run(&Outer { repeats, source });
            assert_eq!(error.to_string(), "outer: inner");
        }
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let closed = CliError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(closed.exit_code(), 0);
        let full = CliError::from(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.exit_code(), 1);
    }
}
