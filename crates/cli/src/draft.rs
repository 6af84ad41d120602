//! The report of a plan, written atomically.

use crate::error::CliError;
use partita::ErrorKind;
use partita_files::{NewFile, is_replaceable};
use partita_report::DOCTYPE;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;

/// A temporary file beside the report's path; it is removed unless it is published.
pub struct Draft(NewFile);

impl Draft {
    /// Errors: a path that cannot be written.
    pub fn new(path: &Path) -> Result<Self, CliError> {
        let unwritable =
            |error: &dyn Display| CliError::unwritable(path, error, ErrorKind::Request);
        if path.is_dir() {
            return Err(unwritable(&"it is a folder"));
        }
        if !is_replaceable(path, DOCTYPE.as_bytes()) {
            return Err(unwritable(
                &"it exists and is not a report; choose another file, or one that is a report",
            ));
        }
        let file = NewFile::create(path).map_err(|error| unwritable(&error))?;
        Ok(Self(file))
    }

    /// Writes the text and renames the file to its path.
    pub fn publish(mut self, text: &str) -> Result<(), CliError> {
        let path = self.0.path().to_owned();
        let written = self.0.write_all(text.as_bytes());
        let placed = written.and_then(|()| self.0.place());
        placed.map_err(|error| CliError::unwritable(&path, &error, ErrorKind::Request))
    }
}
