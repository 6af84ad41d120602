//! The only module that names the HDF5 library: open, list, read and write arrays.
//!
//! Files are read without advisory locks: a dataset appears by a rename when it is whole, and
//! parallel file systems often refuse locks. No object times are written: same input, same bytes.

use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use partita_run::allocation::handling_failure;
use rust_hdf5::{DatatypeMessage, H5Dataset, H5File};

use crate::array::{ArrayFile, Opened, Stored, StoredArray};
use crate::element::{Element, Elements, each};
use crate::error::DataError;
use crate::layout::Layout;
use crate::samples::{DType, Samples};

/// An HDF5 file open for reading.
pub(crate) struct Hdf5File {
    length_bytes: u64,
    file: H5File,
}

/// An array of a file open for reading.
struct Hdf5Array(H5Dataset);

impl Hdf5File {
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let length_bytes = check_signature(path)?;
        let file = guarded(|| H5File::options().no_locking().open(path)).map_err(|reason| {
            DataError::Unreadable {
                path: path.to_path_buf(),
                key: None,
                sample: None,
                reason,
            }
        })?;
        Ok(Self { length_bytes, file })
    }

    /// Refuses an array larger than its file can hold: a truncated file, or damaged extents that
    /// would make readers allocate without bounds.
    fn check_room(&self, array: &H5Dataset, stored: &Stored) -> Result<(), String> {
        let size = |extents: &[usize]| {
            extents
                .iter()
                .try_fold(array.element_size(), |bytes, &extent| {
                    bytes.checked_mul(extent)
                })
        };
        let chunk = match stored {
            Stored::Chunked { chunk, .. } => chunk.as_slice(),
            Stored::Contiguous | Stored::Compact | Stored::Virtual | Stored::Stream { .. } => &[],
        };
        let claimed = size(&array.shape()).and_then(|whole| Some(whole.max(size(chunk)?)));
        let Some(factor) = packing(stored) else {
            return Ok(());
        };
        let room = self.length_bytes.saturating_mul(factor);
        if claimed.is_some_and(|bytes| bytes as u64 <= room) {
            return Ok(());
        }
        Err(format!(
            "values of shape {:?}{} do not fit in its {} bytes (those that were never written are not read as fill values)",
            array.shape(),
            if chunk.is_empty() {
                String::new()
            } else {
                format!(" in chunks of {chunk:?}")
            },
            self.length_bytes
        ))
    }
}

impl ArrayFile for Hdf5File {
    fn keys(&self) -> Vec<String> {
        self.file.dataset_names()
    }

    fn is_nameless(&self) -> bool {
        false
    }

    fn array(&self, key: &str) -> Result<Opened, String> {
        let array = guarded(|| self.file.dataset(key))?;
        let element = element_of(&guarded(|| array.datatype())?);
        let stored = guarded(|| stored_of(&array))?;
        self.check_room(&array, &stored)?;
        Ok(Opened {
            shape: array.shape(),
            stored_size: element.size(),
            element,
            stored,
            array: Box::new(Hdf5Array(array)),
        })
    }
}

impl StoredArray for Hdf5Array {
    fn read(&self, starts: &[usize], counts: &[usize], out: &mut Elements) -> Result<(), String> {
        guarded(|| each!(out, values => self.0.read_slice_into(values, starts, counts)))
    }
}

/// An HDF5 file being written.
pub(crate) struct TargetFile {
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
pub(crate) struct TargetArray {
    path: PathBuf,
    array: H5Dataset,
}

impl TargetFile {
    pub(crate) fn create(path: &Path) -> Result<Self, DataError> {
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
    pub(crate) fn volumes(
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
    pub(crate) fn floats(&self, key: &str, shape: &[usize]) -> Result<TargetArray, DataError> {
        self.array::<f32>(key, shape, &Layout::Contiguous)
    }

    /// A contiguous `int32` array.
    pub(crate) fn integers(&self, key: &str, shape: &[usize]) -> Result<TargetArray, DataError> {
        self.array::<i32>(key, shape, &Layout::Contiguous)
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
    pub(crate) fn close(mut self) -> Result<(), DataError> {
        let closed = self.file.take().map_or(Ok(()), H5File::close);
        closed.map_err(|error| unwritable(&self.path, &error))
    }
}

impl TargetArray {
    pub(crate) fn write_box(
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

    pub(crate) fn write_integers(
        &self,
        starts: &[usize],
        counts: &[usize],
        values: &[i32],
    ) -> Result<(), DataError> {
        self.array
            .write_slice(starts, counts, values)
            .map_err(|error| unwritable(&self.path, &error))
    }

    pub(crate) fn write_floats(
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

/// Looks for the signature where the format allows it: at 0, 512, 1024, 2048 and so on.
///
/// Returns the length of the file in bytes.
/// Source: HDF5 File Format Specification 3.0, section II.A.
fn check_signature(path: &Path) -> Result<u64, DataError> {
    const SIGNATURE: [u8; 8] = *b"\x89HDF\r\n\x1a\n";
    let unopenable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => DataError::Missing {
            path: path.to_path_buf(),
            valid: "an HDF5 file (.h5) is needed there".to_string(),
        },
        _ => DataError::Unopenable {
            path: path.to_path_buf(),
            reason: error.to_string(),
        },
    };
    let mut file = std::fs::File::open(path).map_err(unopenable)?;
    let length = file.metadata().map_err(unopenable)?.len();
    let mut head = Vec::new();
    file.by_ref()
        .take(SIGNATURE.len() as u64)
        .read_to_end(&mut head)
        .map_err(unopenable)?;
    let mut at = 512;
    let mut word = head.clone();
    while word != SIGNATURE && at < length {
        word.clear();
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(at)).map_err(unopenable)?;
        file.by_ref()
            .take(SIGNATURE.len() as u64)
            .read_to_end(&mut word)
            .map_err(unopenable)?;
        at *= 2;
    }
    if word == SIGNATURE {
        return Ok(length);
    }
    let found = match head.as_slice() {
        [] => "nothing, it is empty".to_string(),
        bytes => bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<Vec<_>>()
            .join(" "),
    };
    Err(DataError::NotHdf5 {
        path: path.to_path_buf(),
        found,
    })
}

/// Calls the library to read.
///
/// It decodes whole headers before any of their numbers can be looked at from here, and computes with them
/// in 32 bits in places (the width in bits of an element of 2^29 bytes), which panics where overflow is
/// checked. What leads there is avoided as far as it is known; the rest ends here, with the file that is
/// being read, which is then given up. Memory that it asks for and does not get, it reports.
fn guarded<T>(call: impl FnOnce() -> rust_hdf5::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(|| handling_failure(call))) {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("its headers are damaged: they hold sizes that cannot be".to_owned()),
    }
}

fn element_of(datatype: &DatatypeMessage) -> Element {
    match datatype {
        &DatatypeMessage::FixedPoint {
            size: size @ (1 | 2 | 4 | 8),
            signed,
            bit_offset: 0,
            bit_precision,
            ..
        } if u32::from(bit_precision) == 8 * size => integer(size, signed),
        DatatypeMessage::FloatingPoint {
            size: 2,
            exponent_size: 5,
            mantissa_size: 10,
            exponent_bias: 15,
            ..
        } => Element::Float16,
        DatatypeMessage::FloatingPoint {
            size: 4,
            exponent_size: 8,
            mantissa_size: 23,
            exponent_bias: 127,
            ..
        } => Element::Float32,
        DatatypeMessage::FloatingPoint {
            size: 8,
            exponent_size: 11,
            mantissa_size: 52,
            exponent_bias: 1023,
            ..
        } => Element::Float64,
        // Booleans of h5py.
        DatatypeMessage::Enum { base, .. } => match element_of(base) {
            Element::Int8 => Element::Int8,
            Element::UInt8 => Element::UInt8,
            _ => Element::Other(described(datatype)),
        },
        other => Element::Other(described(other)),
    }
}

fn integer(bytes: u32, signed: bool) -> Element {
    match (bytes, signed) {
        (1, false) => Element::UInt8,
        (1, true) => Element::Int8,
        (2, false) => Element::UInt16,
        (2, true) => Element::Int16,
        (4, false) => Element::UInt32,
        (4, true) => Element::Int32,
        (_, false) => Element::UInt64,
        (_, true) => Element::Int64,
    }
}

/// Name of an element type. That of the library multiplies the size that stands in the file in 32 bits.
fn described(datatype: &DatatypeMessage) -> String {
    let bits = |size: &u32| 8 * u64::from(*size);
    match datatype {
        DatatypeMessage::FixedPoint { size, signed, .. } => {
            format!("{}{}", if *signed { "i" } else { "u" }, bits(size))
        }
        DatatypeMessage::FloatingPoint { size, .. } => format!("f{}", bits(size)),
        DatatypeMessage::BitField { size, .. } => format!("bit fields of {} bits", bits(size)),
        DatatypeMessage::Enum { base, .. } => format!("enumeration of {}", described(base)),
        DatatypeMessage::VarLenSequence { base } => format!("sequences of {}", described(base)),
        DatatypeMessage::Array { dims, base } => format!("arrays {dims:?} of {}", described(base)),
        DatatypeMessage::Opaque { .. }
        | DatatypeMessage::FixedString { .. }
        | DatatypeMessage::Compound { .. }
        | DatatypeMessage::VarLenString { .. }
        | DatatypeMessage::Reference { .. } => datatype.to_string(),
    }
}

fn stored_of(array: &H5Dataset) -> rust_hdf5::Result<Stored> {
    Ok(match array.storage_layout()? {
        rust_hdf5::StorageLayout::Contiguous => Stored::Contiguous,
        rust_hdf5::StorageLayout::Compact => Stored::Compact,
        rust_hdf5::StorageLayout::Virtual => Stored::Virtual,
        rust_hdf5::StorageLayout::Chunked => Stored::Chunked {
            chunk: array.chunk_dims().unwrap_or_default(),
            filters: array
                .filters()?
                .iter()
                .map(|filter| filter_name(filter.id))
                .collect(),
        },
    })
}

/// Bytes of values that a byte of file can hold at most; `None` where there is no bound.
///
/// Source: RFC 1951: a deflate block codes at most 258 bytes in two bits, 1032 to 1.
fn packing(stored: &Stored) -> Option<u64> {
    match stored {
        Stored::Contiguous | Stored::Compact => Some(1),
        Stored::Virtual | Stored::Stream { .. } => None,
        Stored::Chunked { filters, .. } => {
            filters
                .iter()
                .try_fold(1, |factor, filter| match filter.as_str() {
                    "shuffle" | "fletcher32" => Some(factor),
                    "gzip" => Some(factor * 1032),
                    _ => None,
                })
        }
    }
}

/// Source: HDF5 File Format Specification 3.0, section IV.A.2.l (filter pipeline message).
fn filter_name(id: u16) -> String {
    match id {
        1 => "gzip".to_string(),
        2 => "shuffle".to_string(),
        3 => "fletcher32".to_string(),
        4 => "szip".to_string(),
        5 => "nbit".to_string(),
        6 => "scaleoffset".to_string(),
        id => format!("filter {id}"),
    }
}

fn unwritable(path: &Path, error: &rust_hdf5::Hdf5Error) -> DataError {
    DataError::Unwritable {
        path: path.to_path_buf(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rust_hdf5::ByteOrder;

    #[test]
    fn element_types_of_any_size_have_a_name() {
        let whole = |size| DatatypeMessage::FixedPoint {
            size,
            byte_order: ByteOrder::LittleEndian,
            signed: true,
            bit_offset: 0,
            bit_precision: 16,
        };
        for (datatype, expected) in [
            (whole(4), "i32"),
            (whole(u32::MAX), "i34359738360"),
            (
                DatatypeMessage::VarLenSequence {
                    base: Box::new(whole(1 << 29)),
                },
                "sequences of i4294967296",
            ),
        ] {
            assert_eq!(element_of(&datatype).name(), expected);
        }
    }
}
