//! Suggests folders for results when the requested one is not usable.

use crate::environment::Environment;
use partita_files::NewFile;
use std::fs;
use std::path::{Path, PathBuf};

/// A new folder that can be created: `path` with a number appended, else `out` in the current folder, the home
/// folder or the folder of temporary files.
pub fn beside(path: &Path, environment: &Environment) -> PathBuf {
    // Without the trailing slash, which would put the number into the folder itself.
    let path: PathBuf = path.components().collect();
    let own = match path.file_name() {
        Some(_) => numbered(&path).skip(1).find(is_free),
        // `.`, `..` and `/` have no name to which a number could be added.
        None => numbered(&out_in(&path)).find(is_free),
    };
    first_writable(own, environment)
}

/// As [`beside`], without a path.
pub fn anywhere(environment: &Environment) -> PathBuf {
    first_writable(None, environment)
}

fn first_writable(first: Option<PathBuf>, environment: &Environment) -> PathBuf {
    let homes = [
        Some(PathBuf::from(".")),
        environment.home.clone(),
        Some(environment.temporary.clone()),
    ];
    let others = homes.into_iter().flatten();
    let others = others.filter_map(|folder| numbered(&out_in(&folder)).find(is_free));
    let mut candidates = first.into_iter().chain(others);
    let found = candidates.find(|path| is_writable(path));
    found.unwrap_or_else(|| environment.temporary.join("out"))
}

fn out_in(folder: &Path) -> PathBuf {
    if folder == Path::new(".") {
        PathBuf::from("out")
    } else {
        folder.join("out")
    }
}

/// The path, then with 2, 3, ... appended.
fn numbered(path: &Path) -> impl Iterator<Item = PathBuf> {
    (1..1000).map(move |number: u32| {
        let mut name = path.as_os_str().to_owned();
        if number > 1 {
            name.push(format!("-{number}"));
        }
        PathBuf::from(name)
    })
}

fn is_free(path: &PathBuf) -> bool {
    fs::symlink_metadata(path).is_err()
}

/// Whether a folder can be created. Permissions, quotas and read-only file systems are found only by trying.
fn is_writable(path: &Path) -> bool {
    let folder = existing(path);
    folder.is_dir() && NewFile::create(&folder.join("probe")).is_ok()
}

/// The innermost existing ancestor of a path, or the path itself.
pub fn existing(path: &Path) -> &Path {
    let found = path.ancestors().find(|folder| folder.exists());
    found
        .filter(|found| !found.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_folder_beside_another_one_can_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("out")).unwrap();
        fs::create_dir(at("out-2")).unwrap();
        fs::write(at("file"), "").unwrap();
        for (asked, expected) in [
            (at("out"), Some(at("out-3"))),
            (at("out/"), Some(at("out-3"))),
            (at("./out/."), Some(at("out-3"))),
            (at("new/deep"), Some(at("new/deep-2"))),
            (PathBuf::from("/"), None),
            (PathBuf::from("."), None),
            (at("file/out"), None),
            (PathBuf::from("/proc/self/out"), None),
            (PathBuf::from("/dev/null/out"), None),
        ] {
            let nearest = beside(&asked, &Environment::default());
            assert!(is_free(&nearest), "{asked:?}: {nearest:?}");
            if let Some(expected) = expected {
                assert_eq!(nearest, expected);
            }
            fs::create_dir_all(&nearest).unwrap();
            fs::remove_dir(&nearest).unwrap();
        }
        fs::remove_dir(at("new")).unwrap();
    }
}
