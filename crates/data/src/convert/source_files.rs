//! The files in the sources of a conversion.

use std::path::{Path, PathBuf};

use partita_formats::DataError;

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

/// A file, and its path below the source it was found in.
pub(super) struct FoundFile {
    pub(super) path: PathBuf,
    pub(super) below: PathBuf,
}

/// Number of files by the end of their names.
pub(super) type Unread = std::collections::BTreeMap<&'static str, usize>;

/// All files of the sources, and those that are not read.
pub(super) fn files_of(asked: &ConvertSpec) -> Result<(Vec<FoundFile>, Unread), DataError> {
    let mut files = Vec::new();
    let mut unread = Unread::new();
    for source in &asked.sources {
        if !source.exists() {
            return Err(DataError::Missing {
                path: source.clone(),
                valid: "a file or folder with samples is needed".to_owned(),
            });
        }
        if source.is_dir() && !partita_formats::is_store(source) {
            walk(source, Path::new(""), 0, (&mut files, &mut unread))?;
        } else {
            let below = source.file_name().map(PathBuf::from).unwrap_or_default();
            files.push(FoundFile {
                path: source.clone(),
                below,
            });
        }
    }
    Ok((files, unread))
}

/// Files of known names, in the order of their names.
fn walk(
    folder: &Path,
    below: &Path,
    depth: usize,
    (files, unread): (&mut Vec<FoundFile>, &mut Unread),
) -> Result<(), DataError> {
    let unopenable = |error: std::io::Error| DataError::Unopenable {
        path: folder.to_path_buf(),
        reason: error.to_string(),
    };
    let entries = std::fs::read_dir(folder).map_err(unopenable)?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(unopenable)?.path());
    }
    paths.sort();
    for path in paths {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        // Hidden files are of systems and tools, such as `._scan.nii.gz`.
        if name.starts_with('.') {
            continue;
        }
        let under = below.join(&name);
        if path.is_dir() && !partita_formats::is_store(&path) {
            if depth < DEPTH_MAX {
                walk(&path, &under, depth + 1, (files, unread))?;
            }
            continue;
        }
        let name = name.to_lowercase();
        if path.is_dir() || ENDS.iter().any(|end| name.ends_with(end)) {
            files.push(FoundFile { path, below: under });
        } else if let Some(&end) = ENDS_UNREAD.iter().find(|end| name.ends_with(**end)) {
            *unread.entry(end).or_default() += 1;
        }
    }
    Ok(())
}
