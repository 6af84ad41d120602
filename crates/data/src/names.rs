//! Names of samples: those that the index gives, or else made of the names of files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use partita_formats::DataError;

use crate::split::Split;

/// Names of the samples of a dataset.
#[derive(Clone, Debug, Default)]
pub(crate) struct SampleNames {
    /// Those of the index, for each split that has some.
    given: [Option<Vec<String>>; 3],
    /// For the other splits, a name for each file.
    files: [Vec<String>; 3],
}

impl SampleNames {
    /// `given` has a name for each sample of a split; `files`, by their paths below the dataset, name the samples of the
    /// other splits.
    pub(crate) fn new(given: [Option<Vec<String>>; 3], files: [Vec<&Path>; 3]) -> Self {
        let unnamed = |split: Split| match given[split as usize] {
            Some(_) => &[],
            None => files[split as usize].as_slice(),
        };
        let below = Split::ALL.into_iter().flat_map(unnamed);
        let mut all = distinct(choose(below.map(|path| stems(path)).collect())).into_iter();
        let files = Split::ALL.map(|split| all.by_ref().take(unnamed(split).len()).collect());
        Self { given, files }
    }

    /// All names of a split in the index; none where it gives none.
    pub(crate) fn all_given(&self, split: Split) -> &[String] {
        self.given[split as usize].as_deref().unwrap_or_default()
    }

    /// The name of a sample in the index.
    pub(crate) fn given(&self, split: Split, sample: usize) -> Option<&str> {
        self.all_given(split).get(sample).map(String::as_str)
    }

    /// The name of a sample, which has this place among `count` of a file.
    pub(crate) fn name(
        &self,
        (split, sample): (Split, usize),
        (file, place, count): (usize, usize, usize),
    ) -> String {
        match self.given(split, sample) {
            Some(name) => name.to_owned(),
            None => in_file(&self.files[split as usize][file], place, count),
        }
    }
}

/// The name of a sample of a file that holds `count`.
pub(crate) fn in_file(name: &str, place: usize, count: usize) -> String {
    if count > 1 {
        format!("{name}/{place}")
    } else {
        name.to_owned()
    }
}

/// The name of a file without its ends, such as `case20` of `case20.nii.gz`, alone and below its folders.
pub(crate) fn stems(below: &Path) -> [String; 2] {
    let name = below.file_name().unwrap_or_default().to_string_lossy();
    let unpacked = name.strip_suffix(".gz").unwrap_or(&name);
    let stem = Path::new(unpacked).file_stem().unwrap_or_default();
    let stem = stem.to_string_lossy().into_owned();
    let long = below.with_file_name(&stem).to_string_lossy().into_owned();
    // An index has none of these.
    [stem, long].map(|name| name.replace(char::is_control, "_"))
}

/// Of each pair the first name where no other pair has it, else the second.
pub(crate) fn choose(pairs: Vec<[String; 2]>) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for [short, _] in &pairs {
        *counts.entry(short.clone()).or_default() += 1;
    }
    let chosen = |[short, long]: [String; 2]| if counts[&short] > 1 { long } else { short };
    pairs.into_iter().map(chosen).collect()
}

/// Names that all differ: those that occur once stay, and of equal ones the first; the others get a number behind.
pub fn distinct(names: Vec<String>) -> Vec<String> {
    let mut taken: BTreeSet<String> = names.iter().cloned().collect();
    let mut seen = BTreeSet::new();
    let mut next: BTreeMap<String, usize> = BTreeMap::new();
    let each = names.into_iter().map(|name| {
        if seen.insert(name.clone()) {
            return name;
        }
        let number = next.entry(name.clone()).or_insert(2);
        loop {
            let numbered = format!("{name}-{number}");
            *number += 1;
            if taken.insert(numbered.clone()) {
                return numbered;
            }
        }
    });
    each.collect()
}

/// What is wrong with names that an index gives, and what would be right.
pub(crate) fn fault<'n>(
    named: impl Iterator<Item = (Split, &'n [String], usize)>,
) -> Option<(String, String)> {
    let mut seen = BTreeSet::new();
    for (split, names, samples) in named {
        if names.len() != samples {
            return Some((
                format!(
                    "[{split}] with {} entries of `names` for {samples} samples",
                    names.len()
                ),
                "a name for each sample, or no `names`".to_owned(),
            ));
        }
        for name in names {
            if name.is_empty() || name.contains(char::is_control) {
                return Some((
                    format!("[{split}] with {name:?} among `names`"),
                    "names of visible characters".to_owned(),
                ));
            }
            if !seen.insert(name) {
                return Some((
                    format!("[{split}] with {name:?} among `names` for a second time"),
                    "names that differ from those of all other samples of the dataset".to_owned(),
                ));
            }
        }
    }
    None
}

/// An error in reading a sample, with the name of the sample where the index gives it.
pub(crate) fn named(mut error: DataError, name: Option<&str>) -> DataError {
    let Some(name) = name else {
        return error;
    };
    match &mut error {
        DataError::Unreadable { reason, .. } => reason.push_str(&format!(", in sample `{name}`")),
        DataError::OutOfRange { found, .. } => *found = format!("sample `{name}`, {found}"),
        _ => {}
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn stems_leave_all_ends_of_a_format_away() {
        for (path, stem, long) in [
            ("case20.nii.gz", "case20", "case20"),
            ("cats/scan.v2.npy", "scan.v2", "cats/scan.v2"),
            ("a/b/univ_3.tfrecord.gz", "univ_3", "a/b/univ_3"),
            ("store.zarr", "store", "store"),
            ("a\n1.npy", "a_1", "a_1"),
        ] {
            assert_eq!(stems(Path::new(path)), [stem, long], "{path}");
        }
    }

    #[test]
    fn equal_names_become_different_and_no_name_is_taken_twice() {
        let pairs = ["cats/1.png", "dogs/1.png", "dogs/2.png"].map(|path| stems(Path::new(path)));
        assert_eq!(choose(pairs.to_vec()), words("cats/1 dogs/1 2"));
        assert_eq!(
            distinct(words("a a a-2 a b a-2")),
            words("a a-3 a-2 a-4 b a-2-2")
        );
    }
}
