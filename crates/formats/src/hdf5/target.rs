//! Files of HDF5 that are written.

use std::path::{Path, PathBuf};

use rust_hdf5::{H5Dataset, H5File};

use crate::error::DataError;
use crate::layout::Layout;
use crate::samples::{DType, Samples};

/// An HDF5 file being written.
pub struct TargetFile {
    path: PathBuf,
    /// None once it is closed.
    file: Option<H5File>,
}

impl Drop for TargetFile {
    fn drop(&mut self) {
        // Left to itself the library would print what it cannot write. What is not closed is removed.
        if let Some(file) = self.file.take() {
            let _ = file.close_no_sync();
        }
    }
}

/// An array of a file being written.
pub struct TargetArray {
    path: PathBuf,
    array: H5Dataset,
}

/// Integers that arrays are written of.
pub trait Integer: rust_hdf5::H5Type {}

impl Integer for u8 {}
impl Integer for u16 {}
impl Integer for i32 {}

impl TargetFile {
    /// Creates a file at a path, or replaces the one there.
    ///
    /// Errors: `Unwritable`.
    pub fn create(path: &Path) -> Result<Self, DataError> {
        let file = H5File::options()
            .no_locking()
            .track_times(false)
            .create(path)
            .map_err(|error| unwritable(path, &error))?;
        Ok(Self {
            path: path.to_path_buf(),
            file: Some(file),
        })
    }

    /// A volume array of shape (N, C, D, H, W), or (C, D, H, W).
    pub fn volumes(
        &self,
        key: &str,
        shape: &[usize],
        dtype: DType,
        layout: &Layout,
    ) -> Result<TargetArray, DataError> {
        match dtype {
            DType::Int16 => self.array::<i16>(key, shape, layout),
            DType::Float32 => self.array::<f32>(key, shape, layout),
        }
    }

    /// A contiguous `float32` array.
    pub fn floats(&self, key: &str, shape: &[usize]) -> Result<TargetArray, DataError> {
        self.array::<f32>(key, shape, &Layout::Contiguous)
    }

    /// A contiguous array of integers.
    pub fn integers<T: Integer>(
        &self,
        key: &str,
        shape: &[usize],
    ) -> Result<TargetArray, DataError> {
        self.array::<T>(key, shape, &Layout::Contiguous)
    }

    /// An attribute of the file.
    pub fn attribute(&self, name: &str, text: &str) -> Result<(), DataError> {
        let file = self.file.as_ref().expect("only closing takes the file");
        let written = file.set_attr_string(name, text);
        written.map_err(|error| unwritable(&self.path, &error))
    }

    /// An array of texts in UTF-8.
    pub fn texts(&self, key: &str, texts: &[String]) -> Result<(), DataError> {
        let file = self.file.as_ref().expect("only closing takes the file");
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let written = file.write_vlen_strings(key, &texts);
        written.map_err(|error| unwritable(&self.path, &error))?;
        Ok(())
    }

    fn array<T: rust_hdf5::H5Type>(
        &self,
        key: &str,
        shape: &[usize],
        layout: &Layout,
    ) -> Result<TargetArray, DataError> {
        let file = self.file.as_ref().expect("only closing takes the file");
        let builder = file.new_dataset::<T>().shape(shape);
        let builder = match layout {
            Layout::Contiguous => builder,
            Layout::Chunked {
                chunk,
                deflate,
                shuffle,
            } => {
                let mut chunk_nc = vec![1; shape.len() - chunk.len()];
                chunk_nc.extend_from_slice(chunk);
                let builder = builder.chunk(&chunk_nc);
                let builder = if *shuffle { builder.shuffle() } else { builder };
                match deflate {
                    Some(level) => builder.deflate(*level),
                    None => builder,
                }
            }
        };
        let array = builder
            .create(key)
            .map_err(|error| unwritable(&self.path, &error))?;
        Ok(TargetArray {
            path: self.path.clone(),
            array,
        })
    }

    /// Writes what is pending and waits until the device has it.
    pub fn close(mut self) -> Result<(), DataError> {
        let closed = self.file.take().map_or(Ok(()), H5File::close);
        closed.map_err(|error| unwritable(&self.path, &error))
    }
}

impl TargetArray {
    /// Writes a box of samples, of the type of the array.
    pub fn write_box(
        &self,
        starts: &[usize],
        counts: &[usize],
        values: &Samples,
    ) -> Result<(), DataError> {
        match values {
            Samples::I16(values) => self.array.write_slice(starts, counts, values),
            Samples::F32(values) => self.array.write_slice(starts, counts, values),
        }
        .map_err(|error| unwritable(&self.path, &error))
    }

    /// Writes a box of an array of integers.
    pub fn write_integers<T: Integer>(
        &self,
        starts: &[usize],
        counts: &[usize],
        values: &[T],
    ) -> Result<(), DataError> {
        self.array
            .write_slice(starts, counts, values)
            .map_err(|error| unwritable(&self.path, &error))
    }

    /// Writes a box of a `float32` array.
    pub fn write_floats(
        &self,
        starts: &[usize],
        counts: &[usize],
        values: &[f32],
    ) -> Result<(), DataError> {
        self.array
            .write_slice(starts, counts, values)
            .map_err(|error| unwritable(&self.path, &error))
    }
}

fn unwritable(path: &Path, error: &rust_hdf5::Hdf5Error) -> DataError {
    DataError::Unwritable {
        path: path.to_path_buf(),
        reason: error.to_string(),
    }
}
