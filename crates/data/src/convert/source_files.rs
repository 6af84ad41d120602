//! The files in the sources of a conversion.

use std::path::{Path, PathBuf};

use partita_formats::{DataError, ReadError};

use crate::convert::ConvertSpec;

/// Ends of file names that are looked at in folders.
pub(super) const ENDS: [&str; 14] = [
    ".h5",
    ".hdf5",
    ".he5",
    ".hdf",
    ".npy",
    ".npz",
    ".nii",
    ".nii.gz",
    ".png",
    ".jpg",
    ".jpeg",
    ".tfrecord",
    ".tfrecords",
    ".tfrecord.gz",
];
/// Ends of names of images that are not read.
const ENDS_UNREAD: [&str; 18] = [
    ".nrrd", ".nhdr", ".mha", ".mhd", ".mgz", ".mgh", ".img", ".img.gz", ".dcm", ".tif", ".tiff",
    ".bmp", ".gif", ".webp", ".jp2", ".pt", ".mat", ".npy.gz",
];
/// Folders inside folders that are looked into.
const DEPTH_MAX: usize = 16;
/// Folders that are looked into; links of the file system may lead to one again and again.
const FOLDERS_MAX: usize = 1 << 20;
/// Files and folders of a source that are listed.
const ENTRIES_MAX: usize = 1 << 25;

/// A file, and its path below the source it was found in.
pub(super) struct FoundFile {
    pub(super) path: PathBuf,
    pub(super) below: PathBuf,
}

/// Number of files by the end of their names.
pub(super) type Unread = std::collections::BTreeMap<&'static str, usize>;

/// All files of the sources, and those that are not read.
pub(super) fn files_of(asked: &ConvertSpec) -> Result<(Vec<FoundFile>, Unread), DataError> {
    let mut walk = Walk::default();
    for source in &asked.sources {
        if !source.exists() {
            return Err(DataError::Missing {
                path: source.clone(),
                valid: "a file or folder with samples is needed".to_owned(),
            });
        }
        if source.is_dir() && !partita_formats::is_store(source) {
            walk.folder(source, Path::new(""), &mut Vec::new())?;
        } else {
            let below = source.file_name().map(PathBuf::from).unwrap_or_default();
            walk.files.push(FoundFile {
                path: source.clone(),
                below,
            });
        }
    }
    Ok((walk.files, walk.unread))
}

/// Looks for files in folders.
#[derive(Default)]
struct Walk {
    files: Vec<FoundFile>,
    unread: Unread,
    folders: usize,
    entries: usize,
}

impl Walk {
    /// Files of known names, in the order of their names. `above` are the folders that led here; a link to one of them
    /// leads to nothing new.
    fn folder(
        &mut self,
        folder: &Path,
        below: &Path,
        above: &mut Vec<PathBuf>,
    ) -> Result<(), DataError> {
        let unopenable = |error: std::io::Error| DataError::Unopenable {
            path: folder.to_path_buf(),
            reason: error.to_string(),
        };
        let real = folder.canonicalize().map_err(unopenable)?;
        if above.contains(&real) {
            return Ok(());
        }
        self.folders += 1;
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(unopenable)? {
            paths.push(entry.map_err(unopenable)?.path());
            self.entries += 1;
            if self.folders > FOLDERS_MAX || self.entries > ENTRIES_MAX {
                let reason = format!(
                    "more than {FOLDERS_MAX} folders or {ENTRIES_MAX} files were found up to here; name folders in it as \
                     sources"
                );
                return Err(ReadError::Unsupported(reason).of(folder, None, None));
            }
        }
        paths.sort();
        above.push(real);
        for path in paths {
            self.entry(path, below, above)?;
        }
        above.pop();
        Ok(())
    }

    fn entry(
        &mut self,
        path: PathBuf,
        below: &Path,
        above: &mut Vec<PathBuf>,
    ) -> Result<(), DataError> {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        // Hidden files are of systems and tools, such as `._scan.nii.gz`.
        if name.starts_with('.') {
            return Ok(());
        }
        let under = below.join(&name);
        if path.is_dir() && !partita_formats::is_store(&path) {
            if above.len() <= DEPTH_MAX {
                self.folder(&path, &under, above)?;
            }
            return Ok(());
        }
        let name = name.to_lowercase();
        if path.is_dir() || ENDS.iter().any(|end| name.ends_with(end)) {
            self.files.push(FoundFile { path, below: under });
        } else if let Some(&end) = ENDS_UNREAD.iter().find(|end| name.ends_with(**end)) {
            *self.unread.entry(end).or_default() += 1;
        }
        Ok(())
    }
}
