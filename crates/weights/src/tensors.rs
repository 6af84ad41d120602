//! Named tensors on disk, as safetensors.
//!
//! Source: the safetensors format description (8-byte little-endian header length, JSON header
//! padded with spaces to a multiple of 8, then the tensors without gaps).

pub(crate) mod checksums;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use partita_files::NewFile;
use partita_formats::DataError;
use safetensors::{Dtype, SafeTensors};

use crate::foreign::foreign;
use crate::tensors::checksums::{Checksums, KEY, TensorSums};

/// A tensor with its values in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Extents; empty for a scalar.
    pub shape: Vec<usize>,
    /// As many values as the product of the extents.
    pub values: Values,
}

/// Values of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Single precision.
    F32(Vec<f32>),
    /// Double precision.
    F64(Vec<f64>),
}

/// Contents of a weight file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    /// Tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Free text by name (epoch, digest, seed and the like).
    pub metadata: BTreeMap<String, String>,
}

impl Values {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::F64(values) => values.len(),
        }
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn element(&self) -> ElementType {
        match self {
            Values::F32(_) => ElementType::F32,
            Values::F64(_) => ElementType::F64,
        }
    }
}

/// Writes a weight file as a whole, replacing what was there.
///
/// The same weights give the same bytes. Errors: `BadValue` for a tensor whose values do not
/// fit its shape or whose name the format reserves, `Unwritable`.
pub fn save(path: impl AsRef<Path>, weights: &Weights) -> Result<(), DataError> {
    let tensors = weights.tensors.iter().map(|(name, tensor)| Entry {
        name: name.clone(),
        element: tensor.values.element(),
        shape: tensor.shape.clone(),
    });
    let mut writer = Writer::create(path, tensors.collect(), &weights.metadata)?;
    while let Some(entry) = writer.next() {
        let values = &weights.tensors[&entry.name].values;
        writer.push(values)?;
    }
    writer.finish()
}

/// Type of the elements of a tensor in a file that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ElementType {
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// Integers of 64 bits.
    I64,
    /// Another type: its word in the format, and bytes of an element.
    Other(&'static str, usize),
}

/// A tensor of a file that is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Of the tensor.
    pub name: String,
    /// Type of its elements.
    pub element: ElementType,
    /// Extents.
    pub shape: Vec<usize>,
}

/// A weight file to which tensors are given one by one, so that no more than one is ever held.
///
/// Its metadata have a checksum of each MiB of each tensor. Removes what it has written where it is dropped before it has
/// finished.
pub struct Writer {
    path: PathBuf,
    out: BufWriter<NewFile>,
    /// In the order of the file.
    tensors: Vec<Entry>,
    /// How many of them were given.
    given: usize,
    /// Elements of the next one that were given, and their checksums.
    part: (usize, TensorSums),
    metadata: BTreeMap<String, String>,
    checksums: Checksums,
}

impl Writer {
    /// Starts a file of these tensors, in any order.
    ///
    /// Errors: `BadValue` for a name that the format reserves, `Unwritable`.
    pub fn create(
        path: impl AsRef<Path>,
        mut tensors: Vec<Entry>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self, DataError> {
        // Wide elements first, so that all are aligned; then by name.
        tensors.sort_by(|a, b| {
            let size = |entry: &Entry| entry.element.bytes();
            (size(b), &a.name).cmp(&(size(a), &b.name))
        });
        let sizes = tensors
            .iter()
            .map(|entry| (entry.name.as_str(), entry.bytes()));
        let checksums = Checksums::blank(sizes);
        let path = path.as_ref().to_path_buf();
        let file = NewFile::create(&path).map_err(|error| unwritable(&path, &error))?;
        let mut writer = Self {
            path,
            out: BufWriter::with_capacity(1 << 20, file),
            tensors,
            given: 0,
            part: (0, TensorSums::default()),
            metadata: metadata.clone(),
            checksums,
        };
        let header = writer.header()?;
        writer.write(|out| {
            out.write_all(&(header.len() as u64).to_le_bytes())?;
            out.write_all(&header)
        })?;
        Ok(writer)
    }

    /// The header with the checksums of the tensors that were given, and zeros for the others.
    fn header(&mut self) -> Result<Vec<u8>, DataError> {
        if !self.tensors.is_empty() {
            self.metadata.insert(KEY.to_owned(), self.checksums.text());
        }
        header(&self.tensors, &self.metadata)
    }

    /// The tensor that is to be given next.
    pub fn next(&self) -> Option<Entry> {
        self.tensors.get(self.given).cloned()
    }

    /// Gives the next tensor.
    ///
    /// Errors: `BadValue` for values that are not those of [`Self::next`], `Unwritable`.
    pub fn push(&mut self, values: &Values) -> Result<(), DataError> {
        match values {
            Values::F32(them) => self.push_words(values.element(), them, f32::to_le_bytes),
            Values::F64(them) => self.push_words(values.element(), them, f64::to_le_bytes),
        }
    }

    /// Gives the next tensor, which is one of integers. Errors: as for [`Self::push`].
    pub(crate) fn push_integers(&mut self, values: &[i64]) -> Result<(), DataError> {
        self.push_words(ElementType::I64, values, i64::to_le_bytes)
    }

    /// Gives the next tensor as the bytes of its elements. Errors: as for [`Self::push`].
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        let entry = self.next().filter(|entry| entry.bytes() == bytes.len());
        let Some(entry) = entry else {
            return Err(DataError::BadValue {
                what: "bytes of a tensor",
                got: bytes.len().to_string(),
                expected: "as many as its shape says".to_string(),
            });
        };
        let mut sums = TensorSums::default();
        sums.update(bytes);
        self.write(|out| out.write_all(bytes))?;
        self.given += 1;
        self.checksums.set(&entry.name, sums);
        Ok(())
    }

    /// Gives elements of the next tensor, after those that were given of it, so that none is ever held as a whole.
    ///
    /// Errors: `BadValue` for values beyond its end or of another type, `Unwritable`.
    pub fn push_part(&mut self, values: &Values) -> Result<(), DataError> {
        let left = self.next().map_or(0, |entry| entry.elements()) - self.part.0;
        if values.len() > left {
            return Err(DataError::BadValue {
                what: "values of a part of a tensor",
                got: values.len().to_string(),
                expected: format!("{left} at most, as many as are left"),
            });
        }
        match values {
            Values::F32(them) => self.append(values.element(), them, f32::to_le_bytes),
            Values::F64(them) => self.append(values.element(), them, f64::to_le_bytes),
        }
    }

    fn push_words<T: Copy, const N: usize>(
        &mut self,
        element: ElementType,
        values: &[T],
        encode: fn(T) -> [u8; N],
    ) -> Result<(), DataError> {
        let is_whole = |entry: &Entry| self.part.0 == 0 && entry.elements() == values.len();
        match self.next().filter(|entry| !is_whole(entry)) {
            Some(entry) => Err(bad_values(&entry, element, values.len())),
            None => self.append(element, values, encode),
        }
    }

    fn append<T: Copy, const N: usize>(
        &mut self,
        element: ElementType,
        values: &[T],
        encode: fn(T) -> [u8; N],
    ) -> Result<(), DataError> {
        let entry = self.next().ok_or_else(|| DataError::BadValue {
            what: "tensors of a weight file",
            got: "one more".to_string(),
            expected: "as many as the file was started with".to_string(),
        })?;
        if element != entry.element {
            return Err(bad_values(&entry, element, values.len()));
        }
        let (given, mut sums) = std::mem::take(&mut self.part);
        let mut bytes = Vec::new();
        for piece in values.chunks(PIECE) {
            bytes.clear();
            bytes.extend(piece.iter().flat_map(|&value| encode(value)));
            sums.update(&bytes);
            self.write(|out| out.write_all(&bytes))?;
        }
        let given = given + values.len();
        if given < entry.elements() {
            self.part = (given, sums);
        } else {
            self.given += 1;
            self.checksums.set(&entry.name, sums);
        }
        Ok(())
    }

    /// The whole file on the device, yet to be [placed](NewFile::place). Panics where a tensor was not
    /// given.
    ///
    /// Errors: `Unwritable`.
    pub fn complete(mut self) -> Result<NewFile, DataError> {
        assert!(self.next().is_none(), "every tensor of the file was given");
        let header = self.header()?;
        let failed = |error| unwritable(&self.path, &error);
        let file = self
            .out
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        // As long as the first one, whose checksums were zeros.
        file.rewrite(&header, 8).map_err(failed)?;
        file.sync().map_err(failed)?;
        Ok(file)
    }

    /// Puts the file in its place. Panics where a tensor was not given.
    ///
    /// Errors: `Unwritable`.
    pub fn finish(self) -> Result<(), DataError> {
        let path = self.path.clone();
        let placed = self.complete()?.place();
        placed.map_err(|error| unwritable(&path, &error))
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut BufWriter<NewFile>) -> io::Result<()>,
    ) -> Result<(), DataError> {
        write(&mut self.out).map_err(|error| unwritable(&self.path, &error))
    }
}

fn bad_values(entry: &Entry, element: ElementType, got: usize) -> DataError {
    DataError::BadValue {
        what: "values of a tensor",
        got: format!("{got} {element:?} for `{}`", entry.name),
        expected: format!(
            "{} {:?}, the product of its shape {:?}",
            entry.elements(),
            entry.element,
            entry.shape
        ),
    }
}

/// Most bytes of a file of weights that is read as a whole.
const FILE_BYTES_MAX: u64 = 1 << 36;
/// Elements that are encoded at a time.
const PIECE: usize = 1 << 14;

impl ElementType {
    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 | Self::I64 => 8,
            Self::Other(_, bytes) => bytes,
        }
    }

    /// Its word in the format.
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F64 => "F64",
            Self::I64 => "I64",
            Self::Other(name, _) => name,
        }
    }
}

impl Entry {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    fn bytes(&self) -> usize {
        self.elements() * self.element.bytes()
    }
}

/// Reads a weight file. Errors: `Missing`, `BadWeights` (damaged, or other than F32 and F64), `DamagedTensor`.
pub fn load(path: impl AsRef<Path>) -> Result<Weights, DataError> {
    let path = path.as_ref();
    let bytes = partita_files::read(path, FILE_BYTES_MAX).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => DataError::Missing {
            path: path.to_path_buf(),
            valid: "a safetensors file is needed there".to_string(),
        },
        _ => bad(path, error.to_string()),
    })?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| {
        let known = foreign(&bytes).map(|kind| format!("it is {kind}"));
        bad(path, known.unwrap_or_else(|| error.to_string()))
    })?;
    let (_, head) =
        SafeTensors::read_metadata(&bytes).map_err(|error| bad(path, error.to_string()))?;
    let mut weights = Weights::default();
    let metadata = head.metadata().iter().flatten();
    weights
        .metadata
        .extend(metadata.map(|(key, value)| (key.clone(), value.clone())));
    let checksums = take_checksums(path, &mut weights.metadata)?;
    for (name, view) in file.iter() {
        if let Some(bytes) = checksums.damaged(name, 0, view.data()) {
            return Err(damaged(path, name, bytes));
        }
        let values = match view.dtype() {
            Dtype::F32 => Values::F32(decode(view.data(), f32::from_le_bytes)),
            Dtype::F64 => Values::F64(decode(view.data(), f64::from_le_bytes)),
            other => return Err(bad(path, format!("tensor `{name}` holds {other:?}"))),
        };
        let tensor = Tensor {
            shape: view.shape().to_vec(),
            values,
        };
        weights.tensors.insert(name.to_string(), tensor);
    }
    Ok(weights)
}

/// Takes the checksums out of the metadata of a file; none where it has none.
pub(crate) fn take_checksums(
    path: &Path,
    metadata: &mut BTreeMap<String, String>,
) -> Result<Checksums, DataError> {
    let Some(text) = metadata.remove(KEY) else {
        return Ok(Checksums::default());
    };
    let reason = |error| format!("the checksums in its metadata (`{KEY}`) are damaged: {error}");
    Checksums::parse(&text).map_err(|error| bad(path, reason(error)))
}

pub(crate) fn damaged(path: &Path, tensor: &str, bytes: Range<usize>) -> DataError {
    DataError::DamagedTensor {
        path: path.to_path_buf(),
        tensor: tensor.to_owned(),
        bytes,
    }
}

/// Written here and not by the safetensors crate, which orders metadata by a random hash.
pub(crate) fn header(
    tensors: &[Entry],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, DataError> {
    let mut fields = serde_json::Map::new();
    if !metadata.is_empty() {
        fields.insert("__metadata__".to_string(), serde_json::json!(metadata));
    }
    let mut start = 0;
    for tensor in tensors {
        if tensor.name == "__metadata__" {
            return Err(DataError::BadValue {
                what: "name of a tensor",
                got: "`__metadata__`".to_string(),
                expected: "any other name; the format reserves this one".to_string(),
            });
        }
        let end = start + tensor.bytes();
        let entry = serde_json::json!({
            "dtype": tensor.element.name(),
            "shape": tensor.shape,
            "data_offsets": [start, end],
        });
        fields.insert(tensor.name.clone(), entry);
        start = end;
    }
    let mut header = serde_json::Value::Object(fields).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

fn unwritable(path: &Path, error: &io::Error) -> DataError {
    DataError::Unwritable {
        path: path.to_path_buf(),
        reason: error.to_string(),
    }
}

fn decode<T, const N: usize>(bytes: &[u8], from: fn([u8; N]) -> T) -> Vec<T> {
    bytes
        .as_chunks::<N>()
        .0
        .iter()
        .map(|&word| from(word))
        .collect()
}

fn bad(path: &Path, reason: String) -> DataError {
    DataError::BadWeights {
        path: path.to_path_buf(),
        reason,
    }
}
