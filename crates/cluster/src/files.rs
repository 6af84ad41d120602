//! Folders of named files.

use std::path::Path;
use std::{fs, io};

/// The names of the `.toml` files of a folder; none if it cannot be listed.
pub(crate) fn names_in(dir: &Path) -> Vec<String> {
    let paths = fs::read_dir(dir).into_iter().flatten().flatten();
    paths.filter_map(|entry| name(&entry.path())).collect()
}

fn name(path: &Path) -> Option<String> {
    let is_toml = path
        .extension()
        .is_some_and(|extension| extension == "toml");
    let stem = path.file_stem()?.to_str()?;
    is_toml.then(|| stem.to_owned())
}

/// The text of a regular file. Reads from devices and pipes may never end.
pub(crate) fn read_regular(path: &Path) -> io::Result<String> {
    if fs::metadata(path)?.is_file() {
        return fs::read_to_string(path);
    }
    Err(io::Error::other(
        "it is a folder, a device or a pipe, not a regular file",
    ))
}
