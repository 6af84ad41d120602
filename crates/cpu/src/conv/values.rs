//! Elements of activations, f32 or bf16, and how kernels load, round and store them.

use crate::simd::Simd;
use half::bf16;

/// Elements of a tensor that kernels compute with in f32.
pub(crate) trait Values: Copy + Send + Sync + 'static {
    /// Where the outputs of a tile wait in f32 for the epilogue, if that is not where they are stored.
    type Unrounded: Copy;
    /// Whether storing rounds.
    const IS_ROUNDED: bool;

    /// # Safety
    /// The processor has the features of `S`, `lanes <= LANES`, and `lanes` elements can be read.
    unsafe fn load<S: Simd>(from: *const Self, lanes: usize) -> S::V;
    /// # Safety
    /// `lanes <= LANES`, and `lanes` elements can be written.
    unsafe fn store<S: Simd>(to: *mut Self, lanes: usize, a: S::V);
    /// What loading gives back of what is stored.
    fn round<S: Simd>(a: S::V) -> S::V;
    /// Values before the epilogue, of the position and from the channel `at` of a tile on, which belong to `y`.
    ///
    /// # Safety
    /// The processor has the features of `S`, `lanes <= LANES`, and `lanes` values can be read.
    unsafe fn value<S: Simd>(
        y: *const Self,
        unrounded: Self::Unrounded,
        at: (usize, usize),
        lanes: usize,
    ) -> S::V;
}

impl Values for f32 {
    type Unrounded = ();
    const IS_ROUNDED: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const f32, lanes: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if lanes == S::LANES {
                S::load(from)
            } else {
                S::load_part(from, lanes)
            }
        }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(to: *mut f32, lanes: usize, a: S::V) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if lanes == S::LANES {
                S::store(to, a)
            } else {
                S::store_part(to, lanes, a)
            }
        }
    }

    #[inline(always)]
    fn round<S: Simd>(a: S::V) -> S::V {
        a
    }

    #[inline(always)]
    unsafe fn value<S: Simd>(y: *const f32, (): (), _: (usize, usize), lanes: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::load::<S>(y, lanes) }
    }
}

/// Sums in f32, a row for each position of a tile: whole vectors, `pitch` elements apart; and what is added to
/// them first.
#[derive(Clone, Copy)]
pub(crate) struct UnroundedRows {
    pub rows: *const f32,
    pub pitch: usize,
    /// Of the channels of the tile.
    pub bias: Option<*const f32>,
    /// Add what the outputs held before.
    pub accumulate: bool,
}

impl Values for bf16 {
    type Unrounded = UnroundedRows;
    const IS_ROUNDED: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const bf16, lanes: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if lanes == S::LANES {
                S::load_bf16(from)
            } else {
                S::load_bf16_part(from, lanes)
            }
        }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(to: *mut bf16, lanes: usize, a: S::V) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if lanes == S::LANES {
                S::store_bf16(to, a)
            } else {
                S::store_bf16_part(to, lanes, a)
            }
        }
    }

    #[inline(always)]
    fn round<S: Simd>(a: S::V) -> S::V {
        S::round_to_bf16(a)
    }

    #[inline(always)]
    unsafe fn value<S: Simd>(
        y: *const bf16,
        unrounded: UnroundedRows,
        (position, channel): (usize, usize),
        lanes: usize,
    ) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let row = unrounded.rows.add(position * unrounded.pitch);
            let mut a = S::load(row.add(channel));
            if let Some(bias) = unrounded.bias {
                a = S::add(a, S::load_part(bias.add(channel), lanes));
            }
            if unrounded.accumulate {
                a = S::add(a, Self::load::<S>(y, lanes));
            }
            a
        }
    }
}
