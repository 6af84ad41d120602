//! Kinds of errors.

pub use partita_space::help::full_text;
use serde::{Deserialize, Serialize};
use std::error::Error;

/// Kind of an error; determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The request is invalid; change it.
    Request,
    /// A valid request failed.
    Failure,
    /// The caller cancelled the work.
    Interrupted,
}

/// An error of this library.
pub trait Fault: Error {
    /// Its kind.
    fn kind(&self) -> ErrorKind;

    /// Whether it was reported already, by another process or in an [`Event`](crate::progress::Event).
    fn is_reported(&self) -> bool {
        false
    }

    /// Whether it says only that another rank failed.
    fn follows_failure(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

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
            let outer = Outer { repeats, source };
            assert_eq!(full_text(&outer), "outer: inner");
        }
    }
}
