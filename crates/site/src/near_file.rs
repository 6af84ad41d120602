//! Files whose names are like that of one that does not exist.

use partita_space::near;
use std::fs;
use std::path::Path;

/// A file of this end beside a path: one of the same name with another end, or one whose name is similar. None for a
/// folder.
pub fn near_file(path: &Path, end: &str) -> Option<String> {
    if path.is_dir() {
        return None;
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let files = files_in(folder.unwrap_or(Path::new(".")), end);
    let stems = || {
        files
            .iter()
            .filter_map(|name| Path::new(name).file_stem()?.to_str())
    };
    let stem = path.file_stem()?.to_str()?;
    let same = stems().find(|other| *other == stem);
    let found = same.or_else(|| near(stem, stems()))?;
    let found = format!("{found}.{end}");
    Some(match folder {
        Some(folder) => folder.join(found).display().to_string(),
        None => found,
    })
}

/// The names of the files of this end in a folder, in alphabetic order.
pub fn files_in(folder: &Path, end: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.path().is_file());
    let has_end = |name: &String| {
        Path::new(name)
            .extension()
            .is_some_and(|other| other == end)
    };
    let names = files.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(has_end).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_were_meant_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["run.toml", "net.model", "notes.txt"] {
            fs::write(at(name), "").unwrap();
        }
        let near = |name: &str, end: &str| near_file(&at(name), end);
        let run = Some(at("run.toml").display().to_string());
        for asked in ["run", "runn.toml", "RUN.toml", "run.tml"] {
            assert_eq!(near(asked, "toml"), run, "{asked}");
        }
        assert_eq!(near("training.toml", "toml"), None);
        assert_eq!(near("none/run.toml", "toml"), None);
        assert_eq!(near("", "toml"), None);
        fs::write(at("a.toml"), "").unwrap();
        assert_eq!(files_in(folder.path(), "toml"), ["a.toml", "run.toml"]);
    }
}
