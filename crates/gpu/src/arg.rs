//! Arguments of kernels, as they lie in memory.

use crate::handle::BufferHandle;
use crate::tensor::{RawExtent, RawView, Tensor};
use partita_program::{Dtype, Taps};
use std::ffi::c_void;
use std::ptr;

/// A value that a kernel takes, as it lies in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    View(RawView),
    Extent(RawExtent),
    Taps(RawTaps),
    /// Three numbers: channels of a group, or parts of a sum.
    Three([u32; 3]),
    Rule([f64; 8]),
    Heads(RawHeads),
    Epilogue(RawEpilogue),
    Clip(RawClip),
    Uint(u32),
    Int(i32),
    Ulong(u64),
    Float(f32),
    Double(f64),
    /// Memory of the device.
    Memory(BufferHandle),
    /// This many bytes that a work-group shares.
    Shared(usize),
}

/// As kernels take it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawTaps {
    count: [i32; 3],
    stride: [i32; 3],
    dilation: [i32; 3],
    shift: [i32; 3],
}

/// As kernels take it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawHeads {
    /// Heads, times windows.
    pub groups: u32,
    pub channels: u32,
    pub outer: u32,
    pub inner: u32,
    /// H and W of the positions of q.
    pub outer_extent: [u32; 2],
    /// H and W of the positions of k.
    pub inner_extent: [u32; 2],
    pub causal: i32,
    pub sample: u32,
    pub scale: f32,
    /// Windows of a head, 0 if all positions attend to each other.
    pub windows: u32,
    pub window: [u32; 3],
    /// Positions of q and k along D, H, W where there are windows.
    pub tensor: [u32; 3],
    pub shift: [u32; 3],
    pub mask: f32,
}

/// How an update scales gradients, as kernels take it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawClip {
    /// Where the sum of the squares of all gradients is.
    pub total: u64,
    /// The largest norm.
    pub maximum: f64,
    /// Factor of the gradients, 0 if they are as they are.
    pub scale: f64,
    /// Whether there is a largest norm.
    pub clips: i32,
}

impl Arg {
    /// Size and address; no address where memory is only reserved.
    pub(crate) fn bytes(&self) -> (usize, *const c_void) {
        fn of<T>(value: &T) -> (usize, *const c_void) {
            (size_of::<T>(), ptr::from_ref(value).cast())
        }
        match self {
            Self::View(value) => of(value),
            Self::Extent(value) => of(value),
            Self::Taps(value) => of(value),
            Self::Three(value) => of(value),
            Self::Rule(value) => of(value),
            Self::Heads(value) => of(value),
            Self::Epilogue(value) => of(value),
            Self::Clip(value) => of(value),
            Self::Uint(value) => of(value),
            Self::Int(value) => of(value),
            Self::Ulong(value) => of(value),
            Self::Float(value) => of(value),
            Self::Double(value) => of(value),
            Self::Memory(value) => of(value),
            Self::Shared(bytes) => (*bytes, ptr::null()),
        }
    }

    pub(crate) fn flag(value: bool) -> Self {
        Self::Int(i32::from(value))
    }

    pub(crate) fn dtype(of: &Tensor) -> Self {
        Self::Int(number_of(of.dtype))
    }

    pub(crate) fn taps(taps: &Taps, shift: [i64; 3]) -> Self {
        Self::Taps(RawTaps {
            count: taps.kernel.map(|value| value as i32),
            stride: taps.stride.map(|value| value as i32),
            dilation: taps.dilation.map(|value| value as i32),
            shift: shift.map(|value| value as i32),
        })
    }
}

impl From<&Tensor> for Arg {
    fn from(tensor: &Tensor) -> Self {
        Self::View(tensor.raw())
    }
}

/// As the kernels number them.
fn number_of(dtype: Dtype) -> i32 {
    match dtype {
        Dtype::F32 => 0,
        Dtype::F64 => 1,
        Dtype::Bf16 => 2,
        Dtype::I16 => 3,
        Dtype::F16 => 4,
    }
}

/// As kernels take it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawEpilogue {
    pub added: RawView,
    pub mask: RawView,
    pub bias: u64,
    pub scales: u64,
    pub channels: u32,
    pub slope: f32,
    pub mask_slope: f32,
    pub steps: i32,
}
