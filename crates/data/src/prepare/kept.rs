//! Statistics of earlier runs, kept beside the data.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use partita_space::random::absorb;

use super::{FittedStep, Step};
use crate::dataset::Dataset;
use crate::split::Split;

/// Name of the file of statistics in a dataset folder.
pub const STATISTICS_FILE: &str = "statistics.toml";
const FORMAT: u32 = 1;
/// Largest file that is read: far more than all chains of a dataset need.
const FILE_BYTES_MAX: u64 = 1 << 24;

/// A file of statistics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StatisticsFile {
    format: u32,
    #[serde(default)]
    statistics: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    /// Names, sizes and times of the files of the training split.
    data: String,
    /// The steps before, and the one that has these statistics.
    chain: String,
    result: FittedStep,
}

/// Statistics of a dataset. A file that cannot be read or written costs time, but is no error.
pub(super) struct Kept {
    data: String,
    channels: usize,
    /// Where they are kept, the preferred file first.
    files: Vec<PathBuf>,
}

impl Kept {
    pub(super) fn open(dataset: &Dataset, cache: Option<&Path>) -> Self {
        let data = identity(dataset);
        let folder = dataset.path().is_dir();
        let beside = folder.then(|| dataset.path().join(STATISTICS_FILE));
        let cached = cache.map(|cache| cache.join(format!("statistics-{data}.toml")));
        Self {
            channels: dataset.shape()[0],
            files: beside.into_iter().chain(cached).collect(),
            data,
        }
    }

    pub(super) fn find(&self, chain: &str, step: Step) -> Option<FittedStep> {
        let entries = self.files.iter().flat_map(|file| read(file).statistics);
        let found = entries
            .map(|entry| (entry.data == self.data && entry.chain == chain).then_some(entry.result));
        found
            .flatten()
            .find(|result| result.asked() == step && result.is_sound(self.channels))
    }

    pub(super) fn add(&self, chain: &str, result: &FittedStep) {
        let written = |file: &PathBuf| {
            let mut all = read(file);
            // Statistics of files that have changed since are of no use.
            all.statistics
                .retain(|entry| entry.data == self.data && entry.chain != chain);
            all.statistics.push(Entry {
                data: self.data.clone(),
                chain: chain.to_owned(),
                result: result.clone(),
            });
            let Ok(text) = toml::to_string(&all) else {
                return false;
            };
            let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
            folder.is_ok() && partita_files::write_whole(file, text.as_bytes()).is_ok()
        };
        let _ = self.files.iter().any(written);
    }
}

fn read(path: &Path) -> StatisticsFile {
    let small = fs::metadata(path).is_ok_and(|found| found.len() <= FILE_BYTES_MAX);
    let text = small.then(|| fs::read_to_string(path).ok()).flatten();
    let file: Option<StatisticsFile> = text.and_then(|text| toml::from_str(&text).ok());
    let empty = StatisticsFile {
        format: FORMAT,
        statistics: Vec::new(),
    };
    file.filter(|file| file.format == FORMAT).unwrap_or(empty)
}

/// A word that changes when files of the training split do.
fn identity(dataset: &Dataset) -> String {
    let mut key = 0;
    let mut add = |bytes: &[u8]| {
        key = absorb(key, bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            key = absorb(key, u64::from_le_bytes(word));
        }
    };
    add(format!("{:?} {}", dataset.shape(), dataset.dtype().name()).as_bytes());
    add(&dataset.samples(Split::Train).to_le_bytes());
    for path in dataset.files(Split::Train).paths() {
        // Relative, so that a moved folder keeps its statistics.
        let name = path.strip_prefix(dataset.path()).unwrap_or(path);
        add(name.as_os_str().as_encoded_bytes());
        if let Ok(found) = fs::metadata(path) {
            add(&found.len().to_le_bytes());
            let changed = found.modified().ok();
            let since = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            add(&since.map_or(0, |time| time.as_nanos()).to_le_bytes());
        }
    }
    format!("{key:016x}")
}
