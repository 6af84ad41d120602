use crate::error::CliError;
use partita_graph::{Graph, text, zoo};
use std::fs;
use std::path::Path;

/// Resolves MODEL: a file if it exists or looks like one, else a name of the zoo.
///
/// Errors: a file that cannot be read, a text that is no model, a name that the zoo does not have.
pub fn resolve(asked: &str) -> Result<Graph, CliError> {
    let path = Path::new(asked);
    let is_path = path.is_file()
        || asked.contains(std::path::is_separator)
        || path
            .extension()
            .is_some_and(|extension| extension == "model");
    if !is_path {
        return zoo::build(asked).map_err(|error| CliError::user(&error));
    }
    let source = fs::read_to_string(path).map_err(|error| {
        CliError::User(format!(
            "the model file {asked} cannot be read: {error}; possible is a file in the form that \
             `partita inspect MODEL --text` prints, or a name that `partita models` lists"
        ))
    })?;
    text::parse(&source).map_err(|error| CliError::User(format!("{asked}, {error}")))
}
