//! State dicts of PyTorch as safetensors: reading other float types, and writing with counters of batches.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::error::DataError;
use crate::weights::{Tensor, Values, Weights};

/// A file of tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateDict {
    /// Tensors of floats; F16 and BF16 are widened to F32.
    pub floats: Weights,
    /// Names of the tensors of integers.
    pub integers: BTreeSet<String>,
}

/// Reads a file of tensors. Errors: `Missing`, `BadWeights` (damaged, or of a type that is no number).
pub fn load(path: impl AsRef<Path>) -> Result<StateDict, DataError> {
    let path = path.as_ref();
    let bad = |reason: String| DataError::BadWeights {
        path: path.to_path_buf(),
        reason,
    };
    let bytes = fs::read(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => DataError::Missing {
            path: path.to_path_buf(),
            valid: "a safetensors file is needed there".to_string(),
        },
        _ => bad(error.to_string()),
    })?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| bad(error.to_string()))?;
    let (_, head) = SafeTensors::read_metadata(&bytes).map_err(|error| bad(error.to_string()))?;
    let mut found = StateDict::default();
    for (name, view) in file.iter() {
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F32 => Values::F32(decode(data, f32::from_le_bytes)),
            Dtype::F64 => Values::F64(decode(data, f64::from_le_bytes)),
            Dtype::BF16 => Values::F32(decode(data, bf16)),
            Dtype::F16 => Values::F32(decode(data, f16)),
            Dtype::I64 | Dtype::I32 | Dtype::U8 | Dtype::I8 | Dtype::I16 => {
                found.integers.insert(name.to_string());
                continue;
            }
            other => {
                return Err(bad(format!(
                    "tensor `{name}` holds {other:?}; possible are F32, F64, F16 and BF16"
                )));
            }
        };
        let tensor = Tensor {
            shape: view.shape().to_vec(),
            values,
        };
        found.floats.tensors.insert(name.to_string(), tensor);
    }
    let metadata = head.metadata().iter().flatten();
    let metadata = metadata.map(|(key, value)| (key.clone(), value.clone()));
    found.floats.metadata.extend(metadata);
    Ok(found)
}

/// Writes a state dict as a whole, with a zero for each of the counters. The same tensors give the same bytes.
///
/// Errors: `BadValue` for a tensor whose values do not fit its shape, `Unwritable`.
pub fn save(
    path: impl AsRef<Path>,
    tensors: &[(String, Tensor)],
    counters: &[String],
) -> Result<(), DataError> {
    let path = path.as_ref();
    let bytes: Vec<(Dtype, Vec<u8>)> = tensors.iter().map(|(_, one)| encode(&one.values)).collect();
    let invalid = |error: safetensors::SafeTensorError| DataError::BadValue {
        what: "tensors of a state dict",
        got: error.to_string(),
        expected: "as many values as the product of the extents of each".to_string(),
    };
    let zero = 0_i64.to_le_bytes();
    let mut views = Vec::with_capacity(tensors.len() + counters.len());
    for ((name, tensor), (dtype, bytes)) in tensors.iter().zip(&bytes) {
        let view = TensorView::new(*dtype, tensor.shape.clone(), bytes).map_err(invalid)?;
        views.push((name.as_str(), view));
    }
    for name in counters {
        let view = TensorView::new(Dtype::I64, Vec::new(), &zero).map_err(invalid)?;
        views.push((name.as_str(), view));
    }
    // One entry, as the library orders them by a random hash.
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let file = safetensors::serialize(views, Some(metadata)).map_err(invalid)?;
    partita_files::write_whole(path, &file).map_err(|error| DataError::Unwritable {
        path: path.to_path_buf(),
        reason: error.to_string(),
    })
}

fn encode(values: &Values) -> (Dtype, Vec<u8>) {
    match values {
        Values::F32(values) => {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes());
            (Dtype::F32, bytes.collect())
        }
        Values::F64(values) => {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes());
            (Dtype::F64, bytes.collect())
        }
    }
}

fn decode<T, const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    let words = bytes.as_chunks::<N>().0.iter();
    words.map(|&word| from(word)).collect()
}

/// The upper half of a single-precision number.
fn bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// Source: IEEE 754-2008, section 3.4, binary16.
fn f16(bytes: [u8; 2]) -> f32 {
    let bits = u16::from_le_bytes(bytes);
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2_f32.powi(-24),
        0x1f if fraction == 0.0 => f32::INFINITY,
        0x1f => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2_f32.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_widened() {
        let half = |bits: u16| f16(bits.to_le_bytes());
        assert_eq!(
            [half(0x3c00), half(0xc500), half(0x0001)],
            [1.0, -5.0, 2_f32.powi(-24)]
        );
        assert_eq!([half(0x7bff), half(0x7c00)], [65504.0, f32::INFINITY]);
        assert!(half(0x7e00).is_nan());
        assert_eq!(bf16(0xc0a0_u16.to_le_bytes()), -5.0);
    }
}
