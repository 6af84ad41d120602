//! What kind of failure an error is, and its whole text. Each room has an enum of its own.

use serde::{Deserialize, Serialize};
use std::error::Error;

/// Who can do something about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The request cannot be met; another one can.
    Request,
    /// A valid request failed while it was carried out.
    Failure,
    /// The caller asked to stop.
    Interrupted,
}

/// An error of this library.
pub trait Fault: Error {
    /// Who can do something about it.
    fn kind(&self) -> ErrorKind;

    /// Whether another process, or this one in an [`Event`](crate::Event), has reported it already.
    fn is_reported(&self) -> bool {
        false
    }
}

/// The texts of an error and its sources, without those that the text before repeats.
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
