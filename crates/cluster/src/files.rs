//! Named files: those that are compiled in, and those of the user's folders.

use partita_space::near;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Names and texts of the files that are compiled in.
pub(crate) type BuiltIn = [(&'static str, &'static str)];

/// The text of a name that is compiled in.
pub(crate) fn built_in(name: &str, all: &BuiltIn) -> Option<&'static str> {
    all.iter()
        .find(|(own, _)| *own == name)
        .map(|(_, text)| *text)
}

/// Where the file of a name is.
pub(crate) enum FileSource {
    /// A file to read.
    File(PathBuf),
    /// A file that is compiled in.
    BuiltIn(&'static str),
}

/// The file of a name, or of a path, which has a separator or ends in `.toml`; none if the name is unknown.
///
/// A name is `NAME.toml` in the first of the folders that has it, else one of those that are compiled in.
pub(crate) fn find(
    name_or_path: &str,
    search_dirs: &[PathBuf],
    built_in: &BuiltIn,
) -> Option<FileSource> {
    let path = Path::new(name_or_path);
    if name_or_path.ends_with(".toml") || path.components().count() > 1 {
        return Some(FileSource::File(path.to_owned()));
    }
    let file_name = format!("{name_or_path}.toml");
    let mut files = search_dirs.iter().map(|dir| dir.join(&file_name));
    if let Some(file) = files.find(|file| file.is_file()) {
        return Some(FileSource::File(file));
    }
    let own = self::built_in(name_or_path, built_in);
    // A folder of that name is no file, which the error of reading it says.
    let folder = || path.is_dir().then(|| FileSource::File(path.to_owned()));
    own.map(FileSource::BuiltIn).or_else(folder)
}

/// All names, sorted: those of the folders and those that are compiled in. A folder that cannot be listed has none.
pub(crate) fn available(search_dirs: &[PathBuf], built_in: &BuiltIn) -> Vec<String> {
    let own = built_in.iter().map(|&(name, _)| name.to_owned());
    let mut names: BTreeSet<String> = own.collect();
    names.extend(search_dirs.iter().flat_map(|dir| names_in(dir)));
    names.into_iter().collect()
}

/// What was probably meant by an unknown name: a file in this folder, or a similar name.
pub(crate) fn nearest(asked: &str, available: &[String]) -> Option<String> {
    let file = format!("{asked}.toml");
    if Path::new(&file).is_file() {
        return Some(file);
    }
    near(asked, available.iter().map(String::as_str)).map(str::to_owned)
}

/// The nearest to a file that cannot be read: what is compiled in under its name.
pub(crate) fn nearest_of_path(path: &Path, built_in: &BuiltIn) -> Option<String> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let mut names = built_in.iter().map(|&(name, _)| name);
    names.find(|name| stem == Some(name)).map(str::to_owned)
}

/// The names of the `.toml` files of a folder; none if it cannot be listed.
fn names_in(dir: &Path) -> Vec<String> {
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
