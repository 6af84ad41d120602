//! Tensors of numbers.

use half::{bf16, f16};

/// A parameter or buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Its name in the state dict.
    pub name: String,
    /// Extents in PyTorch's order.
    pub shape: Vec<usize>,
    /// The type that the file has.
    pub element: Element,
    /// In row-major order.
    pub values: Vec<f64>,
    /// Whether the state dict has it, as it has parameters and buffers but those that are not persistent.
    pub is_in_state_dict: bool,
    /// What it shares with other names of the same numbers.
    pub storage: String,
}

/// Types of stored numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 8-bit unsigned integer.
    U8,
    /// 8-bit integer.
    I8,
    /// 16-bit integer.
    I16,
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// A byte that is 0 or 1.
    Bool,
}

impl Element {
    /// Of a number of the schema's `ScalarType`.
    pub(crate) fn of_schema(number: u64) -> Option<Self> {
        Some(match number {
            1 => Self::U8,
            2 => Self::I8,
            3 => Self::I16,
            4 => Self::I32,
            5 => Self::I64,
            6 => Self::F16,
            7 => Self::F32,
            8 => Self::F64,
            12 => Self::Bool,
            13 => Self::Bf16,
            _ => return None,
        })
    }

    /// Its word in files of safetensors.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "U8",
            Self::I8 => "I8",
            Self::I16 => "I16",
            Self::I32 => "I32",
            Self::I64 => "I64",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::F32 => "F32",
            Self::F64 => "F64",
            Self::Bool => "BOOL",
        }
    }

    /// Numbers as little-endian bytes; those without a value of this type are rounded to the nearest.
    pub fn encode(self, values: &[f64]) -> Vec<u8> {
        fn all<const N: usize>(values: &[f64], encode: impl Fn(f64) -> [u8; N]) -> Vec<u8> {
            values.iter().flat_map(|&value| encode(value)).collect()
        }
        match self {
            Self::U8 => all(values, |one| [one as u8]),
            Self::Bool => all(values, |one| [u8::from(one != 0.0)]),
            Self::I8 => all(values, |one| (one as i8).to_le_bytes()),
            Self::I16 => all(values, |one| (one as i16).to_le_bytes()),
            Self::I32 => all(values, |one| (one as i32).to_le_bytes()),
            Self::I64 => all(values, |one| (one as i64).to_le_bytes()),
            Self::F16 => all(values, |one| f16::from_f64(one).to_le_bytes()),
            Self::Bf16 => all(values, |one| bf16::from_f64(one).to_le_bytes()),
            Self::F32 => all(values, |one| (one as f32).to_le_bytes()),
            Self::F64 => all(values, f64::to_le_bytes),
        }
    }

    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// The number in little-endian `bytes` at an index; none beyond their end.
    pub(crate) fn at(self, bytes: &[u8], index: usize) -> Option<f64> {
        let start = index.checked_mul(self.bytes())?;
        let one = bytes.get(start..start.checked_add(self.bytes())?)?;
        Some(match (self, one) {
            (Self::U8 | Self::Bool, &[a]) => f64::from(a),
            (Self::I8, &[a]) => f64::from(a.cast_signed()),
            (Self::I16, &[a, b]) => f64::from(i16::from_le_bytes([a, b])),
            (Self::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f64(),
            (Self::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f64(),
            (Self::I32, &[a, b, c, d]) => f64::from(i32::from_le_bytes([a, b, c, d])),
            (Self::F32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
            (Self::I64, all) => i64::from_le_bytes(all.try_into().ok()?) as f64,
            (Self::F64, all) => f64::from_le_bytes(all.try_into().ok()?),
            _ => return None,
        })
    }
}
