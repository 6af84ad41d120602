//! Files of predictions: which format, and the name of the file of each sample.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use partita_data::names::distinct;
use partita_formats::{DataError, hdf5, nifti};

use super::{NAMES_KEY, PREDICTIONS_KEY, PredictionFormat};

/// Bytes of the name of a sample in the name of a file, at most; file systems take 255 in all.
const NAME_BYTES_MAX: usize = 180;
/// End of the files in a folder.
const END: &str = ".nii.gz";

impl PredictionFormat {
    /// The format that the end of a path names. A folder, or a path without an end, is one of NIfTI files.
    ///
    /// Errors: `BadValue` for another end.
    pub fn of(path: &Path) -> Result<Self, DataError> {
        if is_folder(path) {
            return Ok(Self::Nifti);
        }
        let extension = path
            .extension()
            .map(|end| end.to_string_lossy().to_lowercase());
        let name = path.to_string_lossy().to_lowercase();
        match extension.as_deref() {
            Some("nii") => Ok(Self::Nifti),
            Some("gz") if name.ends_with(END) => Ok(Self::Nifti),
            Some("h5" | "hdf5") => Ok(Self::Hdf5),
            Some("npy") => Ok(Self::Npy),
            Some(_) | None => Err(DataError::BadValue {
                what: "file of predictions",
                got: path.display().to_string(),
                expected: format!(
                    "a name that ends in .h5, .hdf5, .npy, .nii or .nii.gz, or {}/ for a folder with a .nii.gz of \
                     each sample",
                    path.display()
                ),
            }),
        }
    }
}

/// Whether predictions at a path are files in a folder: it ends in a slash, is a folder, or has no end.
pub fn is_folder(out: &Path) -> bool {
    let has_slash = out.as_os_str().as_encoded_bytes().ends_with(b"/");
    has_slash || out.extension().is_none() || out.is_dir() && !is_file_name(out)
}

/// Whether a path ends as a file of predictions does, so that a folder there is in the way.
fn is_file_name(out: &Path) -> bool {
    let name = out.to_string_lossy().to_lowercase();
    let ends = [".h5", ".hdf5", ".npy", ".nii", END];
    ends.iter().any(|end| name.ends_with(end))
}

/// The NIfTI file of each sample: in a folder `NAME.nii.gz`; of a file `p.nii.gz` itself if there is one sample, and else
/// `p-NAME.nii.gz` for each. Characters that a file name cannot have become `_`, and names that are equal then get a
/// number.
pub fn volume_paths(out: &Path, names: &[String]) -> Vec<PathBuf> {
    if is_folder(out) {
        let path = |name: String| out.join(name + END);
        return file_names(names).into_iter().map(path).collect();
    }
    if names.len() == 1 {
        return vec![out.to_path_buf()];
    }
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let end = if name.to_lowercase().ends_with(".gz") {
        END
    } else {
        ".nii"
    };
    let (start, end) = name.split_at(name.len() - end.len());
    let path = |name: String| out.with_file_name(format!("{start}-{name}{end}"));
    file_names(names).into_iter().map(path).collect()
}

/// Whether a file is a prediction of any format, which another one may replace.
pub fn is_prediction(path: &Path) -> bool {
    is_npy_prediction(path).unwrap_or(false)
        || nifti::description(path).is_some_and(|text| text.starts_with(MAKER.as_bytes()))
        || is_hdf5_prediction(path)
}

/// Whether an HDF5 file says so, and holds nothing else: what somebody added to it stays.
fn is_hdf5_prediction(path: &Path) -> bool {
    let is_own = |key: &String| key == NAMES_KEY || key.starts_with(PREDICTIONS_KEY);
    hdf5::attribute(path, MAKER_KEY).is_some_and(|maker| maker == MAKER)
        && hdf5::keys(path).iter().all(is_own)
}

/// NPY has no room for what made a file: its header is longer than that of others for such an array.
fn is_npy_prediction(path: &Path) -> std::io::Result<bool> {
    let mut header = [0; NPY_HEADER_BYTES];
    partita_files::open(path)?.read_exact(&mut header)?;
    let length = u16::from_le_bytes([header[8], header[9]]);
    let starts = ["<f4", "|u1", "<u2", "<i4"].map(|element| format!("{{'descr': '{element}', "));
    Ok(header.starts_with(b"\x93NUMPY\x01\x00")
        && usize::from(length) + 10 == NPY_HEADER_BYTES
        && starts
            .iter()
            .any(|start| header[10..].starts_with(start.as_bytes())))
}

/// What files of predictions say of themselves: NIfTI as `descrip`, HDF5 as an attribute.
pub(super) const MAKER: &str = "partita infer";
/// Name of the attribute, that of the key in an index.
pub(super) const MAKER_KEY: &str = "maker";
/// Bytes of the header of an NPY file of predictions; NumPy pads that of an array of up to five dims to 128.
pub(super) const NPY_HEADER_BYTES: usize = 256;

/// Names for files, all different. Names that need no change keep theirs.
fn file_names(names: &[String]) -> Vec<String> {
    let safe: Vec<String> = names.iter().map(|name| file_name(name)).collect();
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by_key(|&sample| safe[sample] != names[sample]);
    let ordered = order.iter().map(|&sample| safe[sample].clone()).collect();
    let mut files = vec![String::new(); names.len()];
    for (sample, name) in order.into_iter().zip(distinct(ordered)) {
        files[sample] = name;
    }
    files
}

/// A name without slashes and what else a file name should not have.
fn file_name(name: &str) -> String {
    let visible = name.trim_start_matches('.');
    let hidden = name.len() - visible.len();
    let mut safe: String = std::iter::repeat_n('_', hidden)
        .chain(visible.chars().map(|letter| match letter {
            '/' | '\\' => '_',
            letter if letter.is_control() => '_',
            letter => letter,
        }))
        .collect();
    while safe.len() > NAME_BYTES_MAX {
        safe.pop();
    }
    if safe.is_empty() {
        "_".to_owned()
    } else {
        safe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(out: &str, names: &[&str]) -> Vec<String> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let paths = volume_paths(Path::new(out), &names).into_iter();
        paths.map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn a_folder_has_a_file_of_each_name_and_a_file_is_a_stem() {
        let two = ["case20", "case7"];
        assert_eq!(paths("p/", &two), ["p/case20.nii.gz", "p/case7.nii.gz"]);
        assert_eq!(paths("a/p", &two[..1]), ["a/p/case20.nii.gz"]);
        assert_eq!(paths("a/p.nii", &two), ["a/p-case20.nii", "a/p-case7.nii"]);
        assert_eq!(paths("P.NII.GZ", &two)[1], "P-case7.NII.GZ");
        assert_eq!(paths("p.nii.gz", &two[..1]), ["p.nii.gz"]);
    }

    #[test]
    fn a_file_to_which_something_was_added_is_no_prediction() {
        let folder = tempfile::tempdir().unwrap();
        for (key, more, expected) in [
            (PREDICTIONS_KEY, None, true),
            ("predictions-07", None, true),
            (PREDICTIONS_KEY, Some("notes"), false),
        ] {
            let path = folder.path().join("p.h5");
            let file = hdf5::TargetFile::create(&path).unwrap();
            file.attribute(MAKER_KEY, MAKER).unwrap();
            for key in [key].into_iter().chain(more) {
                file.floats(key, &[2]).unwrap();
            }
            file.close().unwrap();
            assert_eq!(is_prediction(&path), expected, "{key} {more:?}");
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn no_name_leaves_the_folder_and_no_file_is_of_two_samples() {
        let long = "x".repeat(300);
        let names = [
            "a/b", "..", "a_b", "../c", "a\\b", "a_b-2", ".h", &long, "µ\n",
        ];
        let expected = [
            "p/a_b-3.nii.gz",
            "p/__.nii.gz",
            "p/a_b.nii.gz",
            "p/___c.nii.gz",
            "p/a_b-4.nii.gz",
            "p/a_b-2.nii.gz",
            "p/_h.nii.gz",
            &format!("p/{}.nii.gz", "x".repeat(180)),
            "p/µ_.nii.gz",
        ];
        assert_eq!(paths("p/", &names), expected);
    }

    #[test]
    fn ends_name_the_format_and_what_has_none_is_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| PredictionFormat::of(&folder.path().join(name));
        assert_eq!(of("p.h5").unwrap(), PredictionFormat::Hdf5);
        assert_eq!(of("p.NII").unwrap(), PredictionFormat::Nifti);
        assert_eq!(of("p").unwrap(), PredictionFormat::Nifti);
        assert!(
            of("p.v2")
                .unwrap_err()
                .to_string()
                .contains("p.v2/ for a folder")
        );
        std::fs::create_dir(folder.path().join("p.v2")).unwrap();
        assert_eq!(of("p.v2").unwrap(), PredictionFormat::Nifti);
        assert!(!is_folder(&folder.path().join("p.v2/x.npy")));
    }
}
