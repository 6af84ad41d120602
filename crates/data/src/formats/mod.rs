//! The file formats of arrays, each behind the traits of `array`, and which one a file has.

mod blosc;
pub(crate) mod checksum;
mod codec;
mod flat;
pub(crate) mod hdf5;
pub(crate) mod image;
pub(crate) mod nifti;
mod npy;
mod tfrecord;
mod zarr;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::array::ArrayFile;
use crate::error::DataError;

/// Opens a file, or a folder that is one array store, by its contents.
pub(crate) fn open(path: &Path) -> Result<Box<dyn ArrayFile>, DataError> {
    let mut head = Vec::new();
    // What cannot be opened is told by the HDF5 reader.
    if let Ok(file) = File::open(path) {
        let _ = file.take(8).read_to_end(&mut head);
    }
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    let unreadable = |reason: String| DataError::Unreadable {
        path: path.to_path_buf(),
        key: None,
        sample: None,
        reason,
    };
    if path.is_dir() && is_store(path) {
        return Ok(Box::new(zarr::ZarrStore::open(path).map_err(unreadable)?));
    }
    if head.starts_with(npy::MAGIC) {
        return Ok(Box::new(npy::NpyFile::new(path)));
    }
    if head.starts_with(b"PK\x03\x04") {
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
    if [".tfrecord", ".tfrecords", ".tfrecord.gz"]
        .iter()
        .any(|end| name.ends_with(end))
    {
        let file = tfrecord::TfRecordFile::open(path, head.starts_with(GZIP));
        return Ok(Box::new(file.map_err(unreadable)?));
    }
    Ok(Box::new(hdf5::Hdf5File::open(path)?))
}

const GZIP: &[u8] = b"\x1f\x8b";

/// Whether a file is an image, whose dims are H, W, C.
pub(crate) fn is_image(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(8).read_to_end(&mut head));
    read.is_ok() && (head.starts_with(image::PNG_MAGIC) || head.starts_with(image::JPEG_MAGIC))
}

/// Whether a folder is one array store, and no folder of files.
pub(crate) fn is_store(path: &Path) -> bool {
    ["zarr.json", ".zarray", ".zgroup"]
        .iter()
        .any(|name| path.join(name).is_file())
}
