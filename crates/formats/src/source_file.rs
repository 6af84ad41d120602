//! Files of arrays, whatever their format: open, list, read hyperslabs.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use partita_space::near;

use crate::array::{Access, ArrayFile, StorageLayout, StoredArray};
use crate::decode_memory::{self, Claim};
use crate::detect;
use crate::element::{Element, Elements};
use crate::error::DataError;
use crate::read_error::ReadError;
use crate::samples::{DType, Samples};
use crate::slab;

/// A file open for reading.
pub struct SourceFile {
    path: PathBuf,
    file: Box<dyn ArrayFile>,
    access: Access,
    /// The names of its arrays in order, once they were asked for.
    keys: OnceCell<Vec<String>>,
}

/// An array of a file open for reading.
pub struct SourceArray {
    path: PathBuf,
    /// Its name in the file.
    pub key: String,
    /// Its extents.
    pub shape: Vec<usize>,
    /// Type of its elements.
    pub element: Element,
    /// How it lies in the file.
    pub stored: StorageLayout,
    /// Bytes of an element in the file, uncompressed.
    pub stored_size: usize,
    /// Other files that its values lie in, outside of the folder of the file, or without a format.
    pub external: Vec<PathBuf>,
    array: Box<dyn StoredArray>,
}

impl SourceFile {
    /// Opens a file, or a folder that is one array store, by its contents.
    ///
    /// Errors: those of its format; `NotHdf5` for one of no known format.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        Ok(Self {
            path: path.to_path_buf(),
            file: detect::open(path)?,
            access: Access::default(),
            keys: OnceCell::new(),
        })
    }

    /// The same, with values read that the file does not hold itself, as far as that is allowed.
    pub fn reading(self, access: Access) -> Self {
        Self { access, ..self }
    }

    /// All arrays of the file, sorted by name.
    pub fn keys(&self) -> &[String] {
        self.keys.get_or_init(|| {
            let mut keys = self.file.keys(self.access);
            keys.sort();
            keys
        })
    }

    fn is_key(&self, key: &str) -> bool {
        let keys = self.keys();
        keys.binary_search_by(|name| name.as_str().cmp(key)).is_ok()
    }

    /// Whether the file has one array, which has no name.
    pub fn is_nameless(&self) -> bool {
        self.file.is_nameless()
    }

    /// Whether the file has an array, or a link, of this name.
    pub fn has(&self, key: &str) -> bool {
        !self.file.is_nameless() && (self.is_key(key) || self.file.is_link(key))
    }

    /// An array by its name; the only one of a file without names.
    ///
    /// Errors: `MissingKey`; what the format finds wrong.
    pub fn array(&self, key: &str) -> Result<SourceArray, DataError> {
        let found = self.keys();
        let nameless = self.file.is_nameless();
        let key = match found.first() {
            Some(only) if nameless => only.as_str(),
            Some(_) | None => key.trim_start_matches('/'),
        };
        if !self.is_key(key) && !self.file.is_link(key) {
            let nearest = near(key, found.iter().map(String::as_str)).map(str::to_owned);
            return Err(DataError::MissingKey {
                path: self.path.clone(),
                key: key.to_string(),
                found: found.to_vec(),
                nearest,
            });
        }
        let opened = self
            .file
            .array(key, self.access)
            .map_err(|error| error.of(&self.path, Some(key), None))?;
        Ok(SourceArray {
            path: self.path.clone(),
            key: key.to_string(),
            shape: opened.shape,
            element: opened.element,
            stored: opened.stored,
            stored_size: opened.stored_size,
            external: opened.external,
            array: opened.array,
        })
    }
}

impl SourceArray {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a box, given as (start, count) per dim, as it is stored.
    pub fn read_box(
        &self,
        starts_counts: &[(usize, usize)],
        out: &mut Elements,
    ) -> Result<(), DataError> {
        let (starts, counts): (Vec<usize>, Vec<usize>) = starts_counts.iter().copied().unzip();
        let elements = counts.iter().product();
        let _claim = self.claim(&starts, elements, self.element.size())?;
        self.make_room(elements, out)?;
        if out.is_empty() {
            return Ok(());
        }
        self.array
            .read(&starts, &counts, out)
            .map_err(|error| self.unreadable(&starts, error))
    }

    /// Claims memory for elements of this size, which `starts` lead to.
    fn claim(&self, starts: &[usize], elements: usize, size: usize) -> Result<Claim, DataError> {
        let bytes = (elements as u64).saturating_mul(size as u64);
        decode_memory::claim(bytes).map_err(|error| self.unreadable(starts, error))
    }

    /// Claims memory for copies of elements that are read, of this many bytes each.
    ///
    /// Errors: `DecodeMemory`.
    pub fn claim_copies(&self, elements: usize, each_bytes: usize) -> Result<Claim, DataError> {
        self.claim(&[], elements, each_bytes)
    }

    /// Gives `out` this many elements.
    pub(crate) fn make_room(&self, elements: usize, out: &mut Elements) -> Result<(), DataError> {
        out.resize(elements).map_err(|error| {
            self.unreadable(
                &[],
                ReadError::System(format!("{elements} values do not fit in memory: {error}")),
            )
        })
    }

    /// An empty buffer of the array's element type, or the one that `out` holds, if it is of this type.
    ///
    /// Errors: `WrongDtype` where elements are not read.
    pub fn buffer(&self, out: &mut Samples) -> Result<Elements, DataError> {
        self.check_element()?;
        let taken = std::mem::replace(out, Samples::I16(Vec::new()));
        Ok(match (taken, &self.element) {
            (Samples::I16(values), Element::Int16) => Elements::I16(values),
            (Samples::F32(values), Element::Float32) => Elements::F32(values),
            (_, element) => Elements::new(element),
        })
    }

    /// Reads a whole array of numbers, or a part, as `f32` (rounding to nearest).
    pub fn read_floats(&self, starts_counts: &[(usize, usize)]) -> Result<Vec<f32>, DataError> {
        self.check_element()?;
        let mut elements = Elements::new(&self.element);
        let count = starts_counts.iter().map(|&(_, count)| count).product();
        let _copy = self.claim_copies(count, size_of::<f32>())?;
        self.read_box(starts_counts, &mut elements)?;
        let mut out = Samples::new(DType::Float32);
        match elements.convert(DType::Float32, &mut out) {
            Ok(()) => {}
            Err(misfit) => return Err(self.misfit(misfit.at, &misfit.value, misfit.dtype)),
        }
        match out {
            Samples::F32(values) => Ok(values),
            Samples::I16(_) => panic!("a conversion gives what it is asked for"),
        }
    }

    /// Errors: `WrongDtype` where elements are not read at all.
    pub fn check_element(&self) -> Result<(), DataError> {
        match self.element.delivered() {
            Some(_) => Ok(()),
            None => Err(self.wrong_dtype("integers of 8 to 64 bits, float16, float32 or float64")),
        }
    }

    /// The type in which samples of the array are read.
    pub fn delivered(&self) -> Result<DType, DataError> {
        self.check_element()?;
        Ok(self.element.delivered().unwrap_or(DType::Float32))
    }

    /// A stored value that cannot be converted.
    pub(crate) fn misfit(&self, at: usize, value: &str, dtype: DType) -> DataError {
        DataError::OutOfRange {
            path: self.path.clone(),
            key: self.key.clone(),
            found: format!("value {at} of what was read is {value}"),
            expected: dtype.name(),
        }
    }

    /// The error that its element type is not one of those expected.
    pub fn wrong_dtype(&self, expected: &str) -> DataError {
        DataError::WrongDtype {
            path: self.path.clone(),
            key: self.key.clone(),
            expected: expected.to_string(),
            got: self.element.name().to_string(),
        }
    }

    /// The error that it has another number of dims.
    pub fn wrong_rank(&self, expected: &str) -> DataError {
        DataError::WrongRank {
            path: self.path.clone(),
            key: self.key.clone(),
            expected: expected.to_string(),
            got: self.shape.clone(),
        }
    }

    /// The error that it has other extents.
    pub fn wrong_shape(&self, expected: String) -> DataError {
        DataError::WrongShape {
            path: self.path.clone(),
            key: self.key.clone(),
            expected,
            got: self.shape.clone(),
        }
    }

    /// The first dim of a stacked array (rank 5 or 2) numbers the samples of the file.
    fn unreadable(&self, starts: &[usize], error: ReadError) -> DataError {
        let stacked = matches!(starts.len(), 2 | 5);
        error.of(&self.path, Some(&self.key), stacked.then(|| starts[0]))
    }

    /// Pieces and elements that reading a box takes from the file.
    pub(crate) fn asked(&self, starts_counts: &[(usize, usize)]) -> (u64, u64) {
        let elements: u64 = starts_counts
            .iter()
            .map(|&(_, count)| count as u64)
            .product();
        if elements == 0 {
            return (0, 0);
        }
        match &self.stored {
            StorageLayout::Contiguous | StorageLayout::Compact => {
                (slab::runs(&self.shape, starts_counts), elements)
            }
            StorageLayout::Chunked { chunk, .. } => {
                let pieces = slab::chunks(chunk, starts_counts);
                (pieces, pieces * chunk.iter().product::<usize>() as u64)
            }
            StorageLayout::Virtual => (1, elements),
            StorageLayout::Stream { .. } => {
                let last = |(&(start, count), &extent): (&(usize, usize), &usize)| {
                    ((start + count - 1) as u64, extent as u64)
                };
                let ends = starts_counts.iter().zip(&self.shape).map(last);
                (1, ends.fold(0, |at, (last, extent)| at * extent + last) + 1)
            }
        }
    }
}
