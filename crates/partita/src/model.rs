//! Models by name or file.

use crate::error::{ErrorKind, Fault};
use partita_graph::{Graph, text, zoo};
use std::fs;
use std::io;
use std::path::Path;

/// A model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The zoo has no model of this name and size.
    #[error(transparent)]
    Zoo(#[from] zoo::ModelError),
    /// The file cannot be read.
    #[error(
        "the model file {path} cannot be read: {source}; possible is a file in the form that `partita inspect \
         MODEL --text` prints, or a name that `partita models` lists"
    )]
    Unreadable {
        /// The file.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not a model.
    #[error("{path}, {source}")]
    Text {
        /// The file.
        path: String,
        /// The first error in its text.
        source: Box<text::TextError>,
    },
}

impl Fault for ModelError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}

/// The graph of a model: of a file if `asked` exists or looks like a path, else of the zoo.
///
/// Errors: a file that cannot be read, a text that is no model, a name that the zoo does not have.
pub fn resolve(asked: &str) -> Result<Graph, ModelError> {
    let path = Path::new(asked);
    let is_path = path.is_file()
        || asked.contains(std::path::is_separator)
        || path
            .extension()
            .is_some_and(|extension| extension == "model");
    if !is_path {
        return Ok(zoo::build(asked)?);
    }
    let path = || asked.to_owned();
    let unreadable = |source| ModelError::Unreadable {
        path: path(),
        source,
    };
    let text = fs::read_to_string(asked).map_err(unreadable)?;
    let not_a_model = |source| ModelError::Text {
        path: path(),
        source: Box::new(source),
    };
    text::parse(&text).map_err(not_a_model)
}
