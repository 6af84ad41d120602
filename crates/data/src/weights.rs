//! Named tensors on disk, as safetensors.
//!
//! Source: the safetensors format description (8-byte little-endian header length, JSON header
//! padded with spaces to a multiple of 8, then the tensors without gaps).

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use partita_files::NewFile;
use safetensors::{Dtype, SafeTensors};

use crate::error::DataError;

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

    fn dtype(&self) -> &'static str {
        match self {
            Values::F32(_) => "F32",
            Values::F64(_) => "F64",
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
        is_wide: matches!(tensor.values, Values::F64(_)),
        shape: tensor.shape.clone(),
    });
    let mut writer = Writer::create(path, tensors.collect(), &weights.metadata)?;
    while let Some(entry) = writer.next() {
        let values = &weights.tensors[&entry.name].values;
        writer.push(values)?;
    }
    writer.finish()
}

/// A tensor of a file that is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Of the tensor.
    pub name: String,
    /// Double precision, else single.
    pub is_wide: bool,
    /// Extents.
    pub shape: Vec<usize>,
}

/// A weight file to which tensors are given one by one, so that no more than one is ever held.
///
/// Removes what it has written where it is dropped before it has finished.
pub struct Writer {
    path: PathBuf,
    out: BufWriter<NewFile>,
    /// In the order of the file, the next one last.
    left: Vec<Entry>,
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
        tensors.sort_by(|a, b| (b.is_wide, &a.name).cmp(&(a.is_wide, &b.name)));
        let header = header(&tensors, metadata)?;
        let path = path.as_ref().to_path_buf();
        let file = NewFile::create(&path).map_err(|error| unwritable(&path, &error))?;
        tensors.reverse();
        let mut writer = Self {
            path,
            out: BufWriter::with_capacity(1 << 20, file),
            left: tensors,
        };
        writer.write(|out| {
            out.write_all(&(header.len() as u64).to_le_bytes())?;
            out.write_all(&header)
        })?;
        Ok(writer)
    }

    /// The tensor that is to be given next.
    pub fn next(&self) -> Option<Entry> {
        self.left.last().cloned()
    }

    /// Gives the next tensor.
    ///
    /// Errors: `BadValue` for values that are not those of [`Self::next`], `Unwritable`.
    pub fn push(&mut self, values: &Values) -> Result<(), DataError> {
        let entry = self.left.pop().ok_or_else(|| DataError::BadValue {
            what: "tensors of a weight file",
            got: "one more".to_string(),
            expected: "as many as the file was started with".to_string(),
        })?;
        let elements: usize = entry.shape.iter().product();
        let is_wide = matches!(values, Values::F64(_));
        if elements != values.len() || is_wide != entry.is_wide {
            return Err(DataError::BadValue {
                what: "values of a tensor",
                got: format!("{} {} for `{}`", values.len(), values.dtype(), entry.name),
                expected: format!(
                    "{elements} {}, the product of its shape {:?}",
                    entry.dtype(),
                    entry.shape
                ),
            });
        }
        self.write(|out| match values {
            Values::F32(values) => values
                .iter()
                .try_for_each(|value| out.write_all(&value.to_le_bytes())),
            Values::F64(values) => values
                .iter()
                .try_for_each(|value| out.write_all(&value.to_le_bytes())),
        })
    }

    /// The whole file on the device, yet to be [placed](NewFile::place). Panics where a tensor was not
    /// given.
    ///
    /// Errors: `Unwritable`.
    pub fn complete(self) -> Result<NewFile, DataError> {
        assert!(self.left.is_empty(), "every tensor of the file was given");
        let failed = |error| unwritable(&self.path, &error);
        let file = self
            .out
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
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

impl Entry {
    fn element_bytes(&self) -> usize {
        if self.is_wide { 8 } else { 4 }
    }

    fn dtype(&self) -> &'static str {
        if self.is_wide { "F64" } else { "F32" }
    }
}

/// Reads a weight file. Errors: `Missing`, `BadWeights` (damaged, or other than F32 and F64).
pub fn load(path: impl AsRef<Path>) -> Result<Weights, DataError> {
    let path = path.as_ref();
    let bytes = fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => DataError::Missing {
            path: path.to_path_buf(),
            valid: "a safetensors file is needed there".to_string(),
        },
        _ => bad(path, error.to_string()),
    })?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| bad(path, error.to_string()))?;
    let (_, head) =
        SafeTensors::read_metadata(&bytes).map_err(|error| bad(path, error.to_string()))?;
    let mut weights = Weights::default();
    for (name, view) in file.iter() {
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
    weights.metadata.extend(
        head.metadata()
            .iter()
            .flatten()
            .map(|(k, v)| (k.clone(), v.clone())),
    );
    Ok(weights)
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
        let end = start + tensor.shape.iter().product::<usize>() * tensor.element_bytes();
        let entry = serde_json::json!({
            "dtype": tensor.dtype(),
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
