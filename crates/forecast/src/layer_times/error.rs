//! A table of layers' times cannot be used.

use partita_site::{ErrorKind, Fault};
use partita_space::help::{Expected, Help};
use std::io;
use std::path::PathBuf;

/// A table of layers' times cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LayerTimesError {
    /// It cannot be read.
    #[error("{}: {source}", file.display())]
    Unreadable {
        /// The table.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// It is no such table.
    #[error("{}, line {line}: {fault}", file.display())]
    Form {
        /// The table.
        file: PathBuf,
        /// The line.
        line: usize,
        /// The fault, and what is possible.
        fault: String,
    },
    /// A value is invalid.
    #[error("{}, line {line}: `{key}` is {given}, {expected}", file.display())]
    Value {
        /// The table.
        file: PathBuf,
        /// The line.
        line: usize,
        /// Its key.
        key: String,
        /// What was given.
        given: String,
        /// What is possible.
        expected: Box<Expected>,
    },
    /// The model has no such layer.
    #[error(
        "{}, line {line}: `{model}` has no layer `{layer}`{}",
        file.display(),
        Help::advice(format_args!("`partita inspect {model}` lists its layers"))
            .maybe_code(nearest.as_ref())
    )]
    NoLayer {
        /// The table.
        file: PathBuf,
        /// The line.
        line: usize,
        /// The model.
        model: String,
        /// The unknown layer.
        layer: String,
        /// The most similar layer.
        nearest: Option<String>,
    },
    /// No kernel belongs to the layer or to one before it.
    #[error(
        "{}, line {line}: `{layer}` computes nothing in its {pass} pass, nor does a layer before it that its time could be \
         added to",
        file.display()
    )]
    NoKernel {
        /// The table.
        file: PathBuf,
        /// The line.
        line: usize,
        /// The layer.
        layer: String,
        /// `forward` or `backward`.
        pass: &'static str,
    },
}

impl Fault for LayerTimesError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreadable { .. }
            | Self::Form { .. }
            | Self::Value { .. }
            | Self::NoLayer { .. }
            | Self::NoKernel { .. } => ErrorKind::Request,
        }
    }
}
