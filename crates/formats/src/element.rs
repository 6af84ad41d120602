//! Element types of stored arrays, and their conversion to those that a network reads.

use std::collections::TryReserveError;

use partita_run::allocation::handling_failure;

use crate::samples::{DType, Samples};

/// Element types of arrays in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Element {
    /// Unsigned, of 8 bits.
    UInt8,
    /// Signed, of 8 bits.
    Int8,
    /// Unsigned, of 16 bits.
    UInt16,
    /// Signed, of 16 bits.
    Int16,
    /// Unsigned, of 32 bits.
    UInt32,
    /// Signed, of 32 bits.
    Int32,
    /// Unsigned, of 64 bits.
    UInt64,
    /// Signed, of 64 bits.
    Int64,
    /// IEEE 754 binary16.
    Float16,
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary64.
    Float64,
    /// None that is read, with its name.
    Other(String),
}

impl Element {
    /// The name that NumPy has for it.
    pub fn name(&self) -> &str {
        match self {
            Element::UInt8 => "uint8",
            Element::Int8 => "int8",
            Element::UInt16 => "uint16",
            Element::Int16 => "int16",
            Element::UInt32 => "uint32",
            Element::Int32 => "int32",
            Element::UInt64 => "uint64",
            Element::Int64 => "int64",
            Element::Float16 => "float16",
            Element::Float32 => "float32",
            Element::Float64 => "float64",
            Element::Other(name) => name,
        }
    }

    /// Bytes of an element; 0 where it is not read.
    pub fn size(&self) -> usize {
        match self {
            Element::UInt8 | Element::Int8 => 1,
            Element::UInt16 | Element::Int16 | Element::Float16 => 2,
            Element::UInt32 | Element::Int32 | Element::Float32 => 4,
            Element::UInt64 | Element::Int64 | Element::Float64 => 8,
            Element::Other(_) => 0,
        }
    }

    /// Whether elements are whole numbers.
    pub fn is_whole(&self) -> bool {
        match self {
            Element::UInt8
            | Element::Int8
            | Element::UInt16
            | Element::Int16
            | Element::UInt32
            | Element::Int32
            | Element::UInt64
            | Element::Int64 => true,
            Element::Float16 | Element::Float32 | Element::Float64 | Element::Other(_) => false,
        }
    }

    /// The smallest type of samples that holds every value, or the next best; `None` where elements are not
    /// read.
    pub fn delivered(&self) -> Option<DType> {
        match self {
            Element::UInt8 | Element::Int8 | Element::Int16 => Some(DType::Int16),
            Element::UInt16
            | Element::UInt32
            | Element::Int32
            | Element::UInt64
            | Element::Int64
            | Element::Float16
            | Element::Float32
            | Element::Float64 => Some(DType::Float32),
            Element::Other(_) => None,
        }
    }

    /// Whether elements can be read as samples of this type: as `int16` whole numbers in its range, as `float32`
    /// all numbers.
    pub fn can_be(&self, dtype: DType) -> bool {
        match dtype {
            DType::Int16 => self.is_whole(),
            DType::Float32 => self.delivered().is_some(),
        }
    }
}

/// Elements as they are stored, in the byte order of this machine.
#[derive(Clone, Debug)]
pub enum Elements {
    /// Of `UInt8`.
    U8(Vec<u8>),
    /// Of `Int8`.
    I8(Vec<i8>),
    /// Of `UInt16`.
    U16(Vec<u16>),
    /// Of `Int16`.
    I16(Vec<i16>),
    /// Of `UInt32`.
    U32(Vec<u32>),
    /// Of `Int32`.
    I32(Vec<i32>),
    /// Of `UInt64`.
    U64(Vec<u64>),
    /// Of `Int64`.
    I64(Vec<i64>),
    /// Bits of IEEE 754 binary16.
    F16(Vec<u16>),
    /// Of `Float32`.
    F32(Vec<f32>),
    /// Of `Float64`.
    F64(Vec<f64>),
}

/// The same expression for elements of every type.
macro_rules! each {
    ($elements:expr, $values:ident => $body:expr) => {
        match $elements {
            $crate::element::Elements::U8($values) => $body,
            $crate::element::Elements::I8($values) => $body,
            $crate::element::Elements::U16($values) | $crate::element::Elements::F16($values) => {
                $body
            }
            $crate::element::Elements::I16($values) => $body,
            $crate::element::Elements::U32($values) => $body,
            $crate::element::Elements::I32($values) => $body,
            $crate::element::Elements::U64($values) => $body,
            $crate::element::Elements::I64($values) => $body,
            $crate::element::Elements::F32($values) => $body,
            $crate::element::Elements::F64($values) => $body,
        }
    };
}
pub(crate) use each;

impl Elements {
    /// An empty buffer for elements of a type. Panics for types that are not read.
    pub fn new(element: &Element) -> Self {
        match element {
            Element::UInt8 => Elements::U8(Vec::new()),
            Element::Int8 => Elements::I8(Vec::new()),
            Element::UInt16 => Elements::U16(Vec::new()),
            Element::Int16 => Elements::I16(Vec::new()),
            Element::UInt32 => Elements::U32(Vec::new()),
            Element::Int32 => Elements::I32(Vec::new()),
            Element::UInt64 => Elements::U64(Vec::new()),
            Element::Int64 => Elements::I64(Vec::new()),
            Element::Float16 => Elements::F16(Vec::new()),
            Element::Float32 => Elements::F32(Vec::new()),
            Element::Float64 => Elements::F64(Vec::new()),
            Element::Other(name) => {
                panic!("elements of {name} were refused when the array was opened")
            }
        }
    }

    /// An empty buffer of the same type.
    pub(crate) fn same_type(&self) -> Self {
        match self {
            Elements::U8(_) => Elements::U8(Vec::new()),
            Elements::I8(_) => Elements::I8(Vec::new()),
            Elements::U16(_) => Elements::U16(Vec::new()),
            Elements::I16(_) => Elements::I16(Vec::new()),
            Elements::U32(_) => Elements::U32(Vec::new()),
            Elements::I32(_) => Elements::I32(Vec::new()),
            Elements::U64(_) => Elements::U64(Vec::new()),
            Elements::I64(_) => Elements::I64(Vec::new()),
            Elements::F16(_) => Elements::F16(Vec::new()),
            Elements::F32(_) => Elements::F32(Vec::new()),
            Elements::F64(_) => Elements::F64(Vec::new()),
        }
    }

    /// Copies elements to a buffer of the same type.
    pub(crate) fn copy_to(&self, from: usize, length: usize, out: &mut Elements, to: usize) {
        macro_rules! of_type {
            ($($kind:ident),*) => {
                match (self, out) {
                    $((Elements::$kind(values), Elements::$kind(out)) => {
                        out[to..to + length].copy_from_slice(&values[from..from + length]);
                    })*
                    (values, out) => panic!("both are of one array: {values:?}, {out:?}"),
                }
            };
        }
        of_type!(U8, I8, U16, I16, U32, I32, U64, I64, F16, F32, F64);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        each!(self, values => values.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a length; refuses what cannot be allocated.
    pub fn resize(&mut self, len: usize) -> Result<(), TryReserveError> {
        each!(self, values => {
            let more = len.saturating_sub(values.len());
            handling_failure(|| values.try_reserve_exact(more))?;
            values.resize(len, Default::default());
        });
        Ok(())
    }

    /// Element by element the value, in the order stored. `f64` holds all but integers beyond 2^53.
    pub fn get(&self, at: usize) -> f64 {
        match self {
            Elements::U8(values) => values[at].into(),
            Elements::I8(values) => values[at].into(),
            Elements::U16(values) => values[at].into(),
            Elements::I16(values) => values[at].into(),
            Elements::U32(values) => values[at].into(),
            Elements::I32(values) => values[at].into(),
            Elements::U64(values) => values[at] as f64,
            Elements::I64(values) => values[at] as f64,
            Elements::F16(values) => half(values[at]).into(),
            Elements::F32(values) => values[at].into(),
            Elements::F64(values) => values[at],
        }
    }

    /// Whether these are elements of a type of samples.
    pub fn is(&self, dtype: DType) -> bool {
        match self {
            Elements::I16(_) => dtype == DType::Int16,
            Elements::F32(_) => dtype == DType::Float32,
            Elements::U8(_)
            | Elements::I8(_)
            | Elements::U16(_)
            | Elements::U32(_)
            | Elements::I32(_)
            | Elements::U64(_)
            | Elements::I64(_)
            | Elements::F16(_)
            | Elements::F64(_) => false,
        }
    }

    /// Moves elements of a type of samples, without a copy.
    pub fn take_samples(self, out: &mut Samples) {
        match self {
            Elements::I16(values) => *out = Samples::I16(values),
            Elements::F32(values) => *out = Samples::F32(values),
            other => panic!("samples have another type than {other:?}"),
        }
    }

    /// Converts to samples. To `float32`, integers and `float64` are rounded to the nearest, and halves are exact; to
    /// `int16` only integers in its range are converted.
    ///
    /// Errors: the first element that has no such value: its position, and what it is.
    pub fn convert(&self, dtype: DType, out: &mut Samples) -> Result<(), Misfit> {
        let converted = match dtype {
            DType::Float32 => Samples::F32(self.floats(take_floats(out))?),
            DType::Int16 => Samples::I16(self.shorts(take_shorts(out))?),
        };
        *out = converted;
        Ok(())
    }

    fn floats(&self, mut out: Vec<f32>) -> Result<Vec<f32>, Misfit> {
        match self {
            Elements::U8(values) => out.extend(values.iter().map(|&value| f32::from(value))),
            Elements::I8(values) => out.extend(values.iter().map(|&value| f32::from(value))),
            Elements::U16(values) => out.extend(values.iter().map(|&value| f32::from(value))),
            Elements::I16(values) => out.extend(values.iter().map(|&value| f32::from(value))),
            Elements::U32(values) => out.extend(values.iter().map(|&value| value as f32)),
            Elements::I32(values) => out.extend(values.iter().map(|&value| value as f32)),
            Elements::U64(values) => out.extend(values.iter().map(|&value| value as f32)),
            Elements::I64(values) => out.extend(values.iter().map(|&value| value as f32)),
            Elements::F16(values) => out.extend(values.iter().map(|&value| half(value))),
            Elements::F32(values) => out.extend_from_slice(values),
            Elements::F64(values) => {
                out.extend(values.iter().map(|&value| value as f32));
                let overflows =
                    |(&value, &float): (&f64, &f32)| value.is_finite() && !float.is_finite();
                if let Some(at) = values.iter().zip(&out).position(overflows) {
                    return Err(Misfit {
                        at,
                        value: format!("{:e}", values[at]),
                        dtype: DType::Float32,
                    });
                }
            }
        }
        Ok(out)
    }

    fn shorts(&self, mut out: Vec<i16>) -> Result<Vec<i16>, Misfit> {
        fn each<T: Copy + TryInto<i16> + ToString>(
            values: &[T],
            out: &mut Vec<i16>,
        ) -> Result<(), Misfit> {
            for (at, &value) in values.iter().enumerate() {
                out.push(value.try_into().map_err(|_| Misfit {
                    at,
                    value: value.to_string(),
                    dtype: DType::Int16,
                })?);
            }
            Ok(())
        }
        match self {
            Elements::U8(values) => each(values, &mut out)?,
            Elements::I8(values) => each(values, &mut out)?,
            Elements::U16(values) => each(values, &mut out)?,
            Elements::I16(values) => out.extend_from_slice(values),
            Elements::U32(values) => each(values, &mut out)?,
            Elements::I32(values) => each(values, &mut out)?,
            Elements::U64(values) => each(values, &mut out)?,
            Elements::I64(values) => each(values, &mut out)?,
            Elements::F16(_) | Elements::F32(_) | Elements::F64(_) => {
                for at in 0..self.len() {
                    let value = self.get(at);
                    let short = value as i16;
                    if f64::from(short) != value {
                        return Err(Misfit {
                            at,
                            value: value.to_string(),
                            dtype: DType::Int16,
                        });
                    }
                    out.push(short);
                }
            }
        }
        Ok(out)
    }
}

/// A stored value that the type of the samples does not have.
#[derive(Clone, Debug, PartialEq)]
pub struct Misfit {
    /// Position in the elements.
    pub at: usize,
    /// The value as text.
    pub value: String,
    /// The type that does not have it.
    pub dtype: DType,
}

fn take_floats(out: &mut Samples) -> Vec<f32> {
    match std::mem::replace(out, Samples::I16(Vec::new())) {
        Samples::F32(mut values) => {
            values.clear();
            values
        }
        Samples::I16(_) => Vec::new(),
    }
}

fn take_shorts(out: &mut Samples) -> Vec<i16> {
    match std::mem::replace(out, Samples::I16(Vec::new())) {
        Samples::I16(mut values) => {
            values.clear();
            values
        }
        Samples::F32(_) => Vec::new(),
    }
}

/// The value of a binary16, exactly.
///
/// Source: IEEE 754-2019, section 3.4.
pub(crate) fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        exponent => sign * (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(elements: &Elements, dtype: DType) -> Result<Samples, Misfit> {
        let mut out = Samples::new(dtype);
        elements.convert(dtype, &mut out).map(|()| out)
    }

    #[test]
    fn values_are_converted_as_they_are_or_refused() {
        let halves = Elements::F16(vec![0x3c00, 0xc000, 0x0001, 0x7bff, 0xfc00, 0x3555]);
        let expected = [
            1.0,
            -2.0,
            5.960_464_5e-8,
            65504.0,
            f32::NEG_INFINITY,
            0.333_251_95,
        ];
        assert_eq!(
            converted(&halves, DType::Float32),
            Ok(Samples::F32(expected.to_vec()))
        );
        let wide = Elements::I64(vec![-3, 1 << 24, (1 << 24) + 1]);
        let floats = Samples::F32(vec![-3.0, 16_777_216.0, 16_777_216.0]);
        assert_eq!(converted(&wide, DType::Float32), Ok(floats));
        let misfit = converted(&wide, DType::Int16).unwrap_err();
        assert_eq!((misfit.at, misfit.value.as_str()), (1, "16777216"));
        let bytes = Elements::U8(vec![0, 255]);
        assert_eq!(
            converted(&bytes, DType::Int16),
            Ok(Samples::I16(vec![0, 255]))
        );
        let doubles = Elements::F64(vec![0.1, f64::INFINITY, -1e300]);
        let misfit = converted(&doubles, DType::Float32).unwrap_err();
        assert_eq!((misfit.at, misfit.value.as_str()), (2, "-1e300"));
        let fraction = converted(&Elements::F32(vec![1.0, 1.5]), DType::Int16).unwrap_err();
        assert_eq!(fraction.at, 1);
    }
}
