//! The transforms of a tile, which those of Winograd and of Fourier implement.

use super::tiling::Points;
use crate::simd::Simd;
use std::mem::MaybeUninit;

/// Room on the stack, aligned to cache lines.
#[repr(align(64))]
pub(crate) struct Room<const N: usize>([MaybeUninit<f32>; N]);

/// A [`Room`] of any size.
pub(crate) trait AnyRoom {
    fn new() -> Self;
    fn start(&mut self) -> *mut f32;
}

impl<const N: usize> AnyRoom for Room<N> {
    #[inline(always)]
    fn new() -> Self {
        Room([MaybeUninit::uninit(); N])
    }

    #[inline(always)]
    fn start(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// The transforms of the tiles of one size, of a vector of channels at a time.
///
/// Vectors are read from `from` on at a pitch for each dim.
pub(crate) trait Tile: Copy {
    /// Room for a window, for outputs and for taps.
    type Patch: AnyRoom;
    /// Room for the taps of as many rows and columns as there are lanes.
    type Block: AnyRoom;

    /// Inputs that a tile reads along the dims.
    fn window(self) -> [usize; 3];
    /// Outputs of a tile along the dims.
    fn outputs(self) -> [usize; 3];
    /// Taps along the dims.
    fn taps(self) -> [usize; 3];

    /// Transforms a window to its points. A complex point takes two rows, (re, im) and (im, -re); the second
    /// starts half a row after the first. The first `lanes` elements of a vector are channels.
    ///
    /// # Safety
    /// The processor has the features of `S`; the window can be read and the points written, which
    /// no other thread accesses.
    unsafe fn inputs<S: Simd>(
        self,
        from: *const f32,
        pitch: [usize; 3],
        to: *mut f32,
        layout: Points,
        lanes: usize,
    );
    /// Points of the gradients of outputs.
    ///
    /// # Safety
    /// As for [`Tile::inputs`].
    unsafe fn gradients<S: Simd>(
        self,
        from: *const f32,
        pitch: [usize; 3],
        to: *mut f32,
        layout: Points,
    );
    /// Points of taps.
    ///
    /// # Safety
    /// As for [`Tile::inputs`].
    unsafe fn weights<S: Simd>(
        self,
        from: *const f32,
        pitch: [usize; 3],
        to: *mut f32,
        layout: Points,
    );
    /// Outputs from their points, to a patch; returns their pitch there.
    ///
    /// # Safety
    /// The processor has the features of `S`; the points can be read, and the patch is one.
    unsafe fn scatter<S: Simd>(
        self,
        from: *const f32,
        layout: Points,
        patch: *mut f32,
    ) -> [usize; 3];
    /// Gradients of taps from their points, to a patch; returns their pitch there.
    ///
    /// # Safety
    /// As for [`Tile::scatter`].
    unsafe fn fold<S: Simd>(self, from: *const f32, layout: Points, patch: *mut f32) -> [usize; 3];
}
