//! The files of a split.

use std::path::{Path, PathBuf};

/// Files of the samples of a split.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    entries: Vec<FileEntry>,
    /// Number of the first sample of each file, and of the sample after the last.
    firsts: Vec<usize>,
}

/// A file of samples.
#[derive(Clone, Debug)]
pub(crate) struct FileEntry {
    pub(crate) volumes: PathBuf,
    /// The file of the targets or labels, where it is another one.
    pub(crate) targets: Option<PathBuf>,
    /// Samples stacked along a dim N; `None` if the file is one sample.
    pub(crate) stacked: Option<usize>,
    /// D, H, W of its samples, where not all samples of the dataset have the same.
    pub(crate) extent: Option<[usize; 3]>,
}

impl FileEntry {
    pub(crate) fn target_path(&self) -> &Path {
        self.targets.as_deref().unwrap_or(&self.volumes)
    }
}

impl Files {
    pub(crate) fn new(entries: Vec<FileEntry>) -> Self {
        let mut firsts = vec![0];
        for entry in &entries {
            firsts.push(firsts[firsts.len() - 1] + entry.stacked.unwrap_or(1));
        }
        Self { entries, firsts }
    }

    pub(crate) fn samples(&self) -> usize {
        self.firsts.last().copied().unwrap_or(0)
    }

    pub(crate) fn entries(&self) -> &[FileEntry] {
        &self.entries
    }

    /// Every file once.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        let mut paths: Vec<&Path> = Vec::new();
        for entry in &self.entries {
            paths.push(&entry.volumes);
            paths.extend(entry.targets.as_deref());
        }
        let mut seen = std::collections::BTreeSet::new();
        paths.retain(|path| seen.insert(*path));
        paths
    }

    /// Number of the file of a sample, the sample's place in it, and how many samples it holds.
    pub(crate) fn position(&self, sample: usize) -> (usize, usize, usize) {
        let file = self.firsts.partition_point(|&first| first <= sample) - 1;
        let count = self.firsts[file + 1] - self.firsts[file];
        (file, sample - self.firsts[file], count)
    }

    /// File of a sample, and its index in it if samples are stacked.
    pub(crate) fn locate(&self, sample: usize) -> (&FileEntry, Option<usize>) {
        // Files without samples come before the file that begins at the same sample.
        let file = self.firsts.partition_point(|&first| first <= sample) - 1;
        let entry = &self.entries[file];
        (entry, entry.stacked.map(|_| sample - self.firsts[file]))
    }
}
