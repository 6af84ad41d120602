//! Which format a file of arrays has, by its contents.

use std::io::Read;
use std::path::Path;

use crate::array::ArrayFile;
use crate::error::DataError;
use crate::lfs::{LFS, LFS_REMEDY};
use crate::read_error::ReadError;
use crate::{hdf5, image, nifti, npy, tfrecord, zarr};

/// Opens a file, or a folder that is one array store, by its contents.
pub(crate) fn open(path: &Path) -> Result<Box<dyn ArrayFile>, DataError> {
    let mut head = Vec::new();
    // The HDF5 reader reports what cannot be opened.
    if let Ok(file) = partita_files::open(path) {
        let _ = file.take(HEAD_BYTES).read_to_end(&mut head);
    }
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    let unreadable = |error: ReadError| error.of(path, None, None);
    if path.is_dir() && is_store(path) {
        return Ok(Box::new(zarr::ZarrStore::open(path).map_err(unreadable)?));
    }
    if head.starts_with(npy::MAGIC) {
        return Ok(Box::new(npy::NpyFile::new(path)));
    }
    if head.starts_with(ZIP) {
        return Ok(Box::new(npy::NpzFile::open(path).map_err(unreadable)?));
    }
    if nifti::is_header(&head) {
        return Ok(Box::new(nifti::NiftiFile::new(path, false)));
    }
    if head.starts_with(GZIP) && name.ends_with(".nii.gz") {
        return Ok(Box::new(nifti::NiftiFile::new(path, true)));
    }
    if head.starts_with(image::PNG_MAGIC) || head.starts_with(image::JPEG_MAGIC) {
        return Ok(Box::new(image::ImageFile(path.to_path_buf())));
    }
    if head.starts_with(LFS) {
        return Err(unreadable(ReadError::unsupported(LFS_REMEDY)));
    }
    if [".tfrecord", ".tfrecords", ".tfrecord.gz"]
        .iter()
        .any(|end| name.ends_with(end))
    {
        if head.is_empty() {
            return Err(unreadable("it is empty".into()));
        }
        let file = tfrecord::TfRecordFile::open(path, head.starts_with(GZIP));
        return Ok(Box::new(file.map_err(unreadable)?));
    }
    if let Some(kind) = foreign(&head) {
        return Err(unreadable(ReadError::unsupported(kind)));
    }
    let lower = name.to_lowercase();
    if let Some(end) = ENDS_KNOWN.iter().find(|end| lower.ends_with(**end)) {
        return Err(unreadable(ReadError::Damaged(if head.is_empty() {
            "it is empty".to_owned()
        } else {
            format!("it does not begin as a file of {end} does")
        })));
    }
    Ok(Box::new(hdf5::Hdf5File::open(path)?))
}

/// Ends of the names of files that are recognized by their first bytes, HDF5 left aside.
const ENDS_KNOWN: [&str; 7] = [".npy", ".npz", ".nii", ".nii.gz", ".png", ".jpg", ".jpeg"];

const GZIP: &[u8] = b"\x1f\x8b";
const ZIP: &[u8] = b"PK\x03\x04";
/// Bytes by which formats are recognized.
const HEAD_BYTES: u64 = 132;
/// What a file of a known format that is not read is, and what to do with it.
///
/// Sources: DICOM part 10, section 7.1; the manuals of TIFF 6.0, NRRD, MetaImage and Python's pickle.
fn foreign(head: &[u8]) -> Option<&'static str> {
    Some(match head {
        _ if head.get(128..132) == Some(b"DICM") => {
            "it is a DICOM file, which is not read; `dcm2niix` makes NIfTI files of them"
        }
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => {
            "it is a TIFF image, which is not read; write it as PNG or NPY"
        }
        [b'N', b'R', b'R', b'D', ..] => "it is an NRRD file, which is not read; write it as NIfTI",
        _ if head.starts_with(b"ObjectType") => {
            "it is a MetaImage file, which is not read; write it as NIfTI"
        }
        [0x80, 2..=5, ..] => {
            "it is a pickle file of Python, which is not read; load it there and write NPY, NPZ or HDF5"
        }
        _ => return None,
    })
}

/// Whether a file is an image, whose dims are H, W, C.
pub fn is_image(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = partita_files::open(path).and_then(|file| file.take(8).read_to_end(&mut head));
    read.is_ok() && (head.starts_with(image::PNG_MAGIC) || head.starts_with(image::JPEG_MAGIC))
}

/// Whether a folder is one array store, and no folder of files.
pub fn is_store(path: &Path) -> bool {
    ["zarr.json", ".zarray", ".zgroup"]
        .iter()
        .any(|name| path.join(name).is_file())
}
