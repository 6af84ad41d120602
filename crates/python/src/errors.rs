//! The exceptions of the package.

use partita::{ErrorKind, Fault, full_text};
use partita_cli::Refusal;
use pyo3::exceptions::{PyException, PyKeyboardInterrupt};
use pyo3::{PyErr, create_exception};

create_exception!(
    partita,
    Error,
    PyException,
    "An error of Partita, with the text of the command line."
);
create_exception!(
    partita,
    RequestError,
    Error,
    "The request is invalid; change it."
);
create_exception!(partita, FailureError, Error, "A valid request failed.");

/// The error of a verb, before it is raised.
pub struct VerbError {
    kind: ErrorKind,
    /// None where it was told already, in an event.
    text: Option<String>,
}

impl VerbError {
    /// An invalid request.
    pub fn request(text: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Request,
            text: Some(text.into()),
        }
    }

    /// A failure.
    pub fn failure(text: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Failure,
            text: Some(text.into()),
        }
    }

    /// An error of the library.
    pub fn of(error: &(impl Fault + 'static)) -> Self {
        Self {
            kind: error.kind(),
            text: (!error.is_reported()).then(|| full_text(error)),
        }
    }

    /// The exception. `told` is the text of the event that told it.
    pub fn raised(self, told: Option<String>) -> PyErr {
        let text = self.text.or(told);
        let text = text.unwrap_or_else(|| "the job has ended".to_owned());
        match self.kind {
            ErrorKind::Request => RequestError::new_err(text),
            ErrorKind::Failure => FailureError::new_err(text),
            ErrorKind::Interrupted => PyKeyboardInterrupt::new_err(text),
        }
    }
}

impl From<Refusal> for VerbError {
    fn from(refusal: Refusal) -> Self {
        Self {
            kind: refusal.kind(),
            text: (!refusal.is_reported).then_some(refusal.text),
        }
    }
}
