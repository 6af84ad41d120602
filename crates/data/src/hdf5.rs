//! The only module that names the HDF5 library: open, list, read and write arrays.
//!
//! Files are read without advisory locks: a dataset appears by a rename when it is whole, and
//! parallel file systems often refuse locks. No object times are written: same input, same bytes.

use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use partita_run::allocation::handling_failure;
use partita_space::near;
use rust_hdf5::{DatatypeMessage, H5Dataset, H5File};

use crate::error::DataError;
use crate::layout::Layout;
use crate::samples::{DType, Samples};

/// Element types told apart by this module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Int16,
    Float32,
    Float64,
    Other(String),
}

impl Element {
    pub(crate) fn name(&self) -> &str {
        match self {
            Element::Int16 => "int16",
            Element::Float32 => "float32",
            Element::Float64 => "float64",
            Element::Other(name) => name,
        }
    }
}

/// How an array lies in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Contiguous,
    Chunked {
        chunk: Vec<usize>,
        filters: Vec<String>,
    },
    Compact,
    Virtual,
}

/// An HDF5 file open for reading.
pub(crate) struct SourceFile {
    path: PathBuf,
    length_bytes: u64,
    file: H5File,
}

/// An array of a file open for reading.
pub(crate) struct SourceArray {
    path: PathBuf,
    key: String,
    array: H5Dataset,
    pub(crate) shape: Vec<usize>,
    pub(crate) element: Element,
    pub(crate) stored: Stored,
}

impl SourceFile {
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
        Ok(Self {
            path: path.to_path_buf(),
            length_bytes,
            file,
        })
    }

    /// All arrays of the file, sorted by name.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys = self.file.dataset_names();
        keys.sort();
        keys
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys().iter().any(|name| name == key)
    }

    pub(crate) fn array(&self, key: &str) -> Result<SourceArray, DataError> {
        let found = self.keys();
        if !found.iter().any(|name| name == key) {
            let nearest = near(key, found.iter().map(String::as_str)).map(str::to_owned);
            return Err(DataError::MissingKey {
                path: self.path.clone(),
                key: key.to_string(),
                found,
                nearest,
            });
        }
        let unreadable = |reason: String| DataError::Unreadable {
            path: self.path.clone(),
            key: Some(key.to_string()),
            sample: None,
            reason,
        };
        let array = guarded(|| self.file.dataset(key)).map_err(unreadable)?;
        let element = element_of(&guarded(|| array.datatype()).map_err(unreadable)?);
        let stored = guarded(|| stored_of(&array)).map_err(unreadable)?;
        self.check_room(key, &array, &stored)?;
        Ok(SourceArray {
            path: self.path.clone(),
            key: key.to_string(),
            shape: array.shape(),
            array,
            element,
            stored,
        })
    }
}

impl SourceFile {
    /// Refuses an array larger than its file can hold: a truncated file, or damaged extents that
    /// would make readers allocate without bounds.
    fn check_room(&self, key: &str, array: &H5Dataset, stored: &Stored) -> Result<(), DataError> {
        let size = |extents: &[usize]| {
            extents
                .iter()
                .try_fold(array.element_size(), |bytes, &extent| {
                    bytes.checked_mul(extent)
                })
        };
        let chunk = match stored {
            Stored::Chunked { chunk, .. } => chunk.as_slice(),
            Stored::Contiguous | Stored::Compact | Stored::Virtual => &[],
        };
        let claimed = size(&array.shape()).and_then(|whole| Some(whole.max(size(chunk)?)));
        let Some(factor) = packing(stored) else {
            return Ok(());
        };
        let room = self.length_bytes.saturating_mul(factor);
        if claimed.is_some_and(|bytes| bytes as u64 <= room) {
            return Ok(());
        }
        Err(DataError::Unreadable {
            path: self.path.clone(),
            key: Some(key.to_string()),
            sample: None,
            reason: format!(
                "values of shape {:?}{} do not fit in its {} bytes",
                array.shape(),
                if chunk.is_empty() {
                    String::new()
                } else {
                    format!(" in chunks of {chunk:?}")
                },
                self.length_bytes
            ),
        })
    }
}

impl SourceArray {
    /// Reads a box, given as (start, count) per dim, into `out`, which takes the array's element
    /// type. Errors: `WrongDtype` for elements other than `int16` and `float32`; `Unreadable`.
    pub(crate) fn read_box(
        &self,
        starts_counts: &[(usize, usize)],
        out: &mut Samples,
    ) -> Result<(), DataError> {
        let (starts, counts): (Vec<usize>, Vec<usize>) = starts_counts.iter().copied().unzip();
        self.make_room(counts.iter().product(), out)?;
        if out.is_empty() {
            return Ok(());
        }
        let result = guarded(|| match out {
            Samples::I16(values) => self.array.read_slice_into(values, &starts, &counts),
            Samples::F32(values) => self.array.read_slice_into(values, &starts, &counts),
        });
        result.map_err(|reason| self.unreadable(&starts, reason))
    }

    /// Gives `out` the array's element type and `elements` elements.
    pub(crate) fn make_room(&self, elements: usize, out: &mut Samples) -> Result<(), DataError> {
        out.make(self.dtype()?, elements).map_err(|error| {
            self.unreadable(
                &[],
                format!("{elements} values do not fit in memory: {error}"),
            )
        })
    }

    /// Reads a box of a `float32` or `float64` array as `f32` (rounding to nearest).
    pub(crate) fn read_floats(
        &self,
        starts: &[usize],
        counts: &[usize],
    ) -> Result<Vec<f32>, DataError> {
        let values = match &self.element {
            Element::Float32 => guarded(|| self.array.read_slice::<f32>(starts, counts)),
            Element::Float64 => guarded(|| self.array.read_slice::<f64>(starts, counts))
                .map(|values| values.into_iter().map(|value| value as f32).collect()),
            Element::Int16 | Element::Other(_) => {
                return Err(self.wrong_dtype("float32 or float64"));
            }
        };
        values.map_err(|reason| self.unreadable(starts, reason))
    }

    /// Element type of a volume array.
    pub(crate) fn dtype(&self) -> Result<DType, DataError> {
        match &self.element {
            Element::Int16 => Ok(DType::Int16),
            Element::Float32 => Ok(DType::Float32),
            Element::Float64 | Element::Other(_) => Err(self.wrong_dtype("int16 or float32")),
        }
    }

    pub(crate) fn wrong_dtype(&self, expected: &str) -> DataError {
        DataError::WrongDtype {
            path: self.path.clone(),
            key: self.key.clone(),
            expected: expected.to_string(),
            got: self.element.name().to_string(),
        }
    }

    pub(crate) fn wrong_rank(&self, expected: &str) -> DataError {
        DataError::WrongRank {
            path: self.path.clone(),
            key: self.key.clone(),
            expected: expected.to_string(),
            got: self.shape.clone(),
        }
    }

    pub(crate) fn wrong_shape(&self, expected: String) -> DataError {
        DataError::WrongShape {
            path: self.path.clone(),
            key: self.key.clone(),
            expected,
            got: self.shape.clone(),
        }
    }

    /// The first dim of a stacked array (rank 5 or 2) numbers the samples of the file.
    fn unreadable(&self, starts: &[usize], reason: String) -> DataError {
        let stacked = matches!(starts.len(), 2 | 5);
        DataError::Unreadable {
            path: self.path.clone(),
            key: Some(self.key.clone()),
            sample: stacked.then(|| starts[0]),
            reason,
        }
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

    /// A volume array of shape (N, C, D, H, W).
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
                let mut chunk_nc = vec![1];
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
        DatatypeMessage::FixedPoint {
            size: 2,
            signed: true,
            bit_offset: 0,
            bit_precision: 16,
            ..
        } => Element::Int16,
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
        other => Element::Other(described(other)),
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
        Stored::Virtual => None,
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
