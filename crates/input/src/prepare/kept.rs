//! Statistics of earlier runs, kept beside the data.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use partita_data::{Dataset, INDEX_FILE, Split};
use partita_files::RECORD_BYTES_MAX;
use serde::{Deserialize, Serialize};

use partita_space::random::absorb;

use super::{FittedStep, Step};

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
    /// All that they depend on besides the steps, as [`identity`] has it.
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
        // Nothing tells whether the samples of a source have changed since.
        let is_kept = !dataset.has_source();
        Self {
            channels: dataset.shape()[0],
            files: beside
                .into_iter()
                .chain(cached)
                .filter(|_| is_kept)
                .collect(),
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
            let folder = file.parent();
            let folder = folder.map_or(Ok(()), partita_files::create_private_all);
            folder.is_ok() && partita_files::write_whole(file, text.as_bytes()).is_ok()
        };
        let _ = self.files.iter().any(written);
    }
}

fn read(path: &Path) -> StatisticsFile {
    let small = fs::metadata(path).is_ok_and(|found| found.len() <= FILE_BYTES_MAX);
    let text = small.then(|| partita_files::read_text(path).ok()).flatten();
    let file: Option<StatisticsFile> = text.and_then(|text| toml::from_str(&text).ok());
    let empty = StatisticsFile {
        format: FORMAT,
        statistics: Vec::new(),
    };
    file.filter(|file| file.format == FORMAT).unwrap_or(empty)
}

/// A word that changes with all that statistics depend on besides the steps: the index, how the arrays are read, and
/// files, sizes and times of the training split.
fn identity(dataset: &Dataset) -> String {
    let mut identity = Identity(0);
    let reader = dataset.reader(Split::Train);
    let read = (dataset.shape(), dataset.dtype().name(), reader.keys());
    identity.add(format!("{read:?}").as_bytes());
    if let Some(order) = dataset.channel_order() {
        identity.add(format!("channels {order:?}").as_bytes());
    }
    // Any of its keys may say how files are read, and which samples they hold.
    let index = partita_files::read(dataset.path().join(INDEX_FILE), RECORD_BYTES_MAX);
    identity.add(&index.unwrap_or_default());
    for path in dataset.paths(Split::Train) {
        // Relative, so that a moved folder keeps its statistics.
        let name = path.strip_prefix(dataset.path()).unwrap_or(path);
        identity.add(name.as_os_str().as_encoded_bytes());
        identity.add_file(path);
    }
    format!("{:016x}", identity.0)
}

struct Identity(u64);

impl Identity {
    fn add(&mut self, bytes: &[u8]) {
        self.0 = absorb(self.0, bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = absorb(self.0, u64::from_le_bytes(word));
        }
    }

    /// Size and time of a file, or of all files of a folder, such as the chunks of a Zarr array.
    fn add_file(&mut self, path: &Path) {
        let Ok(found) = fs::metadata(path) else {
            return;
        };
        if !found.is_dir() {
            self.add(&found.len().to_le_bytes());
            let changed = found.modified().ok();
            let since = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            self.add(&since.map_or(0, |time| time.as_nanos()).to_le_bytes());
            return;
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        // A store of arrays that is the whole dataset holds the statistics, too.
        names.retain(|name| {
            !name
                .as_encoded_bytes()
                .starts_with(STATISTICS_FILE.as_bytes())
        });
        names.sort();
        for name in names {
            self.add(name.as_encoded_bytes());
            self.add_file(&path.join(name));
        }
    }
}
