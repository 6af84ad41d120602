//! The transforms of Winograd's tiles.

use super::maps::{Map, Maps};
use super::nest::{Patch, Sizes, TILE_MAX, nest};
use crate::conv::transformed::tile::{Room, Tile};
use crate::conv::transformed::tiling::Points;
use crate::simd::{LANES_MAX, Simd};
use std::marker::PhantomData;

/// Points of a tile of this many outputs along the dims.
pub(crate) fn points(m: [usize; 3]) -> usize {
    let along = |m: usize| if m == 1 { 1 } else { m + 2 };
    m.map(along).iter().product()
}

/// Maps of three dims, one dim after another.
pub(crate) struct Nested<Z>(PhantomData<Z>);

impl<Z> Clone for Nested<Z> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Z> Copy for Nested<Z> {}

impl<Z> Default for Nested<Z> {
    fn default() -> Self {
        Nested(PhantomData)
    }
}

/// The distances of neighboring points along the dims.
#[inline(always)]
fn steps<Z: Sizes>(layout: Points) -> [usize; 3] {
    let h = <<Z::H as Maps>::Input as Map>::I;
    let w = <<Z::W as Maps>::Input as Map>::I;
    [h * w * layout.point, w * layout.point, layout.point]
}

/// The distances of neighbors of a box of vectors.
#[inline(always)]
fn pitch<S: Simd>(size: [usize; 3]) -> [usize; 3] {
    let row = size[2] * S::LANES;
    [size[1] * row, row, S::LANES]
}

impl<Z: Sizes> Tile for Nested<Z> {
    type Patch = Patch;
    type Block = Room<{ 27 * LANES_MAX * LANES_MAX }>;

    #[inline(always)]
    fn window(self) -> [usize; 3] {
        type Of<M> = <M as Maps>::Input;
        [Of::<Z::D>::I, Of::<Z::H>::I, Of::<Z::W>::I]
    }

    #[inline(always)]
    fn outputs(self) -> [usize; 3] {
        type Of<M> = <M as Maps>::Output;
        [Of::<Z::D>::O, Of::<Z::H>::O, Of::<Z::W>::O]
    }

    #[inline(always)]
    fn taps(self) -> [usize; 3] {
        type Of<M> = <M as Maps>::Kernel;
        [Of::<Z::D>::I, Of::<Z::H>::I, Of::<Z::W>::I]
    }

    #[inline(always)]
    unsafe fn inputs<S: Simd>(
        self,
        from: *const f32,
        pitch: [usize; 3],
        to: *mut f32,
        layout: Points,
        _: usize,
    ) {
        type Of<M> = <M as Maps>::Input;
        // SAFETY: guaranteed by the caller.
        unsafe { nest::<S, Of<Z::D>, Of<Z::H>, Of<Z::W>>(from, pitch, to, steps::<Z>(layout)) }
    }

    #[inline(always)]
    unsafe fn gradients<S: Simd>(
        self,
        from: *const f32,
        pitch: [usize; 3],
        to: *mut f32,
        layout: Points,
    ) {
        type Of<M> = <M as Maps>::Spread;
        // SAFETY: guaranteed by the caller.
        unsafe { nest::<S, Of<Z::D>, Of<Z::H>, Of<Z::W>>(from, pitch, to, steps::<Z>(layout)) }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(
        self,
        from: *const f32,
        pitch: [usize; 3],
        to: *mut f32,
        layout: Points,
    ) {
        type Of<M> = <M as Maps>::Kernel;
        // SAFETY: guaranteed by the caller.
        unsafe { nest::<S, Of<Z::D>, Of<Z::H>, Of<Z::W>>(from, pitch, to, steps::<Z>(layout)) }
    }

    #[inline(always)]
    unsafe fn scatter<S: Simd>(
        self,
        from: *const f32,
        layout: Points,
        patch: *mut f32,
    ) -> [usize; 3] {
        type Of<M> = <M as Maps>::Output;
        let pitch = pitch::<S>(self.outputs());
        // SAFETY: guaranteed by the caller.
        unsafe { nest::<S, Of<Z::D>, Of<Z::H>, Of<Z::W>>(from, steps::<Z>(layout), patch, pitch) };
        pitch
    }

    #[inline(always)]
    unsafe fn fold<S: Simd>(self, from: *const f32, layout: Points, patch: *mut f32) -> [usize; 3] {
        type Of<M> = <M as Maps>::Taps;
        let pitch = pitch::<S>(self.taps());
        // SAFETY: guaranteed by the caller.
        unsafe { nest::<S, Of<Z::D>, Of<Z::H>, Of<Z::W>>(from, steps::<Z>(layout), patch, pitch) };
        pitch
    }
}

const _: () = assert!(TILE_MAX >= 27, "a patch has room for all taps");
