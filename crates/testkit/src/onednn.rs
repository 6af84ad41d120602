//! The oneDNN library of a test.

use crate::not_run;
use partita_onednn::{Instructions, Library, LibrarySearch};
use std::env;

/// Where `PARTITA_ONEDNN` or the loader finds the library, if it can be loaded; else the test is said to have not run.
pub fn onednn_search(test: &str) -> Option<LibrarySearch> {
    let search = match env::var_os("PARTITA_ONEDNN") {
        Some(off) if off == "off" => LibrarySearch::Off,
        Some(file) if !file.is_empty() => LibrarySearch::File(file.into()),
        Some(_) | None => LibrarySearch::Loader,
    };
    match Library::load(&search, Instructions::All) {
        Ok(_) => Some(search),
        Err(error) => {
            not_run(test, format!("{error}; PARTITA_ONEDNN names the library"));
            None
        }
    }
}
