//! Kinds of errors, and the full text of an error with its sources.

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
}

/// The texts of an error and its sources, without repetitions.
pub fn full_text(error: &dyn Error) -> String {
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
