//! Tensors packed in memory of their own.

use crate::Memory;
use crate::element::{Element, with_type};
use half::{bf16, f16};
use partita_program::{Dtype, View};
use std::ops::AddAssign;

/// Elements of a tensor, or of a shard of it, in memory order.
#[derive(Clone, Debug, PartialEq)]
pub enum PackedTensor {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit floats.
    F64(Vec<f64>),
    /// Upper halves of 32-bit floats.
    Bf16(Vec<bf16>),
    /// 16-bit floats.
    F16(Vec<f16>),
    /// 16-bit integers.
    I16(Vec<i16>),
}

/// Evaluates an expression on the elements of a tensor, whatever their type.
macro_rules! on_elements {
    ($tensor:expr, $elements:ident => $value:expr) => {
        match $tensor {
            PackedTensor::F32($elements) => $value,
            PackedTensor::F64($elements) => $value,
            PackedTensor::Bf16($elements) => $value,
            PackedTensor::F16($elements) => $value,
            PackedTensor::I16($elements) => $value,
        }
    };
}

/// Element types of tensors and packets.
pub(crate) trait Number: Element + AddAssign {
    /// A tensor of these elements.
    fn tensor(elements: Vec<Self>) -> PackedTensor;
}

macro_rules! number {
    ($type:ty, $kind:ident) => {
        impl Number for $type {
            fn tensor(elements: Vec<Self>) -> PackedTensor {
                PackedTensor::$kind(elements)
            }
        }
    };
}

number!(f32, F32);
number!(f64, F64);
number!(bf16, Bf16);
number!(f16, F16);
number!(i16, I16);

impl PackedTensor {
    /// An empty tensor with this capacity.
    pub fn with_capacity(dtype: Dtype, elements: usize) -> Self {
        match dtype {
            Dtype::F32 => PackedTensor::F32(Vec::with_capacity(elements)),
            Dtype::F64 => PackedTensor::F64(Vec::with_capacity(elements)),
            Dtype::Bf16 => PackedTensor::Bf16(Vec::with_capacity(elements)),
            Dtype::F16 => PackedTensor::F16(Vec::with_capacity(elements)),
            Dtype::I16 => PackedTensor::I16(Vec::with_capacity(elements)),
        }
    }

    /// The bytes of all elements.
    pub fn to_le_bytes(&self) -> Vec<u8> {
        on_elements!(self, elements => elements.iter().flat_map(|it| it.to_le_bytes()).collect())
    }

    /// From the bytes of all its elements.
    pub fn from_le_bytes(dtype: Dtype, bytes: &[u8]) -> Self {
        with_type!(dtype, T => {
            let (words, rest) = bytes.as_chunks();
            assert!(rest.is_empty(), "whole elements of {dtype:?}");
            T::tensor(words.iter().map(|&word| T::from_le_bytes(word)).collect())
        })
    }

    /// The dtype of its elements.
    pub fn dtype(&self) -> Dtype {
        match self {
            PackedTensor::F32(_) => Dtype::F32,
            PackedTensor::F64(_) => Dtype::F64,
            PackedTensor::Bf16(_) => Dtype::Bf16,
            PackedTensor::F16(_) => Dtype::F16,
            PackedTensor::I16(_) => Dtype::I16,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        on_elements!(self, elements => elements.len())
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the length; the contents are unspecified.
    pub fn resize(&mut self, elements: usize) {
        on_elements!(self, own => own.resize(elements, Default::default()));
    }

    /// Replaces the elements by the contents of a view.
    pub fn pack(&mut self, memory: &Memory<'_>, view: &View) {
        on_elements!(self, elements => memory.pack(view, elements));
    }
}
