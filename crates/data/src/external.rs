//! Other files in which values of a dataset lie, outside of the folders of its own files or without a format.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use partita_formats::{DataError, SourceFile};

use crate::keys::Keys;

/// Files that are named.
const NAMED_MAX: usize = 16;

/// Finds them for the arrays of these files, in order; none where that is not allowed. Opens every file.
///
/// Errors: those of the files.
pub(crate) fn external_files<'p>(
    paths: impl Iterator<Item = &'p Path>,
    keys: &Keys,
) -> Result<Vec<PathBuf>, DataError> {
    let mut found = BTreeSet::new();
    for path in paths.filter(|_| keys.external) {
        let file = SourceFile::open(path)?.reading(keys.access());
        let only = file.keys().first().filter(|_| file.is_nameless());
        let named = [&keys.volume, &keys.target, &keys.label];
        for key in named.into_iter().filter(|key| file.has(key)).chain(only) {
            found.extend(file.array(key)?.external);
        }
    }
    Ok(found.into_iter().collect())
}

/// What is told of other files that are read; `None` where there are none.
pub fn external_note(files: &[PathBuf]) -> Option<String> {
    if files.is_empty() {
        return None;
    }
    let names = files.iter().take(NAMED_MAX);
    let mut names: Vec<String> = names.map(|file| file.display().to_string()).collect();
    if files.len() > NAMED_MAX {
        names.push(format!("{} more", files.len() - NAMED_MAX));
    }
    Some(format!(
        "values are read from other files, as it is allowed: {}",
        names.join(", ")
    ))
}

/// Whether a path below a folder leaves it by what it says.
pub(crate) fn leaves_folder(path: &str) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    !Path::new(path).components().all(is_plain)
}
