//! Element types of buffers.

use half::{bf16, f16};
use partita_program::Dtype;

/// An element type of buffers.
///
/// # Safety
/// Every bit pattern is a value of the type, and its size and alignment are those of `DTYPE`: buffers
/// of several types share the memory of an arena.
pub unsafe trait Element: Copy + Default + Send + Sync + 'static {
    /// Its tag in programs.
    const DTYPE: Dtype;
}

// SAFETY: a 4-byte float has no invalid bit pattern.
unsafe impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

// SAFETY: an 8-byte float has no invalid bit pattern.
unsafe impl Element for f64 {
    const DTYPE: Dtype = Dtype::F64;
}

// SAFETY: a wrapper of two bytes, of which every bit pattern is a float.
unsafe impl Element for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}

// SAFETY: a wrapper of two bytes, of which every bit pattern is a float.
unsafe impl Element for f16 {
    const DTYPE: Dtype = Dtype::F16;
}

// SAFETY: a 2-byte integer has no invalid bit pattern.
unsafe impl Element for i16 {
    const DTYPE: Dtype = Dtype::I16;
}

/// Evaluates an expression with the element type of a dtype under a name.
macro_rules! with_type {
    ($dtype:expr, $type:ident => $value:expr) => {
        match $dtype {
            partita_program::Dtype::F32 => {
                type $type = f32;
                $value
            }
            partita_program::Dtype::F64 => {
                type $type = f64;
                $value
            }
            partita_program::Dtype::Bf16 => {
                type $type = half::bf16;
                $value
            }
            partita_program::Dtype::F16 => {
                type $type = half::f16;
                $value
            }
            partita_program::Dtype::I16 => {
                type $type = i16;
                $value
            }
        }
    };
}

pub(crate) use with_type;
