//! Named tensors on disk, as safetensors.
//!
//! Source: the safetensors format description (8-byte little-endian header length, JSON header
//! padded with spaces to a multiple of 8, then the tensors without gaps).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

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

    fn element_bytes(&self) -> usize {
        match self {
            Values::F32(_) => 4,
            Values::F64(_) => 8,
        }
    }

    fn dtype(&self) -> &'static str {
        match self {
            Values::F32(_) => "F32",
            Values::F64(_) => "F64",
        }
    }
}

/// Writes a weight file: to `PATH.partial` first, then renamed, replacing what was there.
///
/// The same weights give the same bytes. Errors: `BadValue` for a tensor whose values do not
/// fit its shape or whose name the format reserves, `Unwritable`.
pub fn save(path: impl AsRef<Path>, weights: &Weights) -> Result<(), DataError> {
    let path = path.as_ref();
    let header = header(weights)?;
    let mut name = path.as_os_str().to_os_string();
    name.push(".partial");
    let partial = PathBuf::from(name);
    let written = write(&partial, &header, weights).and_then(|()| fs::rename(&partial, path));
    written.map_err(|error| {
        // The cause is reported; a partial file that cannot be removed either adds nothing.
        let _ = fs::remove_file(&partial);
        DataError::Unwritable {
            path: path.to_path_buf(),
            reason: error.to_string(),
        }
    })
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

/// Order of the tensors in the file: wide elements first, so that all are aligned; then by name.
fn ordered(weights: &Weights) -> Vec<(&String, &Tensor)> {
    let mut tensors: Vec<_> = weights.tensors.iter().collect();
    tensors.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.values.element_bytes()));
    tensors
}

/// Written here and not by the safetensors crate, which orders metadata by a random hash.
fn header(weights: &Weights) -> Result<Vec<u8>, DataError> {
    let mut fields = serde_json::Map::new();
    if !weights.metadata.is_empty() {
        fields.insert(
            "__metadata__".to_string(),
            serde_json::json!(weights.metadata),
        );
    }
    let mut start = 0;
    for (name, tensor) in ordered(weights) {
        check(name, tensor)?;
        let end = start + tensor.values.len() * tensor.values.element_bytes();
        let entry = serde_json::json!({
            "dtype": tensor.values.dtype(),
            "shape": tensor.shape,
            "data_offsets": [start, end],
        });
        fields.insert(name.clone(), entry);
        start = end;
    }
    let mut header = serde_json::Value::Object(fields).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

fn check(name: &str, tensor: &Tensor) -> Result<(), DataError> {
    let elements: usize = tensor.shape.iter().product();
    if name == "__metadata__" {
        return Err(DataError::BadValue {
            what: "name of a tensor",
            got: "`__metadata__`".to_string(),
            expected: "any other name; the format reserves this one".to_string(),
        });
    }
    if elements != tensor.values.len() {
        return Err(DataError::BadValue {
            what: "values of a tensor",
            got: format!("{} for `{name}`", tensor.values.len()),
            expected: format!("{elements}, the product of its shape {:?}", tensor.shape),
        });
    }
    Ok(())
}

fn write(path: &Path, header: &[u8], weights: &Weights) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header)?;
    for (_, tensor) in ordered(weights) {
        match &tensor.values {
            Values::F32(values) => {
                values
                    .iter()
                    .try_for_each(|value| out.write_all(&value.to_le_bytes()))?;
            }
            Values::F64(values) => {
                values
                    .iter()
                    .try_for_each(|value| out.write_all(&value.to_le_bytes()))?;
            }
        }
    }
    out.into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()
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
