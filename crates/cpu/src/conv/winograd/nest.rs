//! A map along each of three dims, one dim after another.

use super::maps::{Map, Maps, POINTS_MAX};
use crate::conv::transformed::tile::{AnyRoom, Room};
use crate::simd::{LANES_MAX, Simd};
use std::marker::PhantomData;

/// Vectors of a plane of points, at most.
const PLANE_MAX: usize = POINTS_MAX * POINTS_MAX;
/// Vectors of a tile of points, at most.
pub(crate) const TILE_MAX: usize = PLANE_MAX * POINTS_MAX;

/// Room for a vector at each point of a tile.
pub(crate) type Patch = Room<{ TILE_MAX * LANES_MAX }>;

/// The sizes of a tile along three dims.
pub(crate) trait Sizes {
    type D: Maps;
    type H: Maps;
    type W: Maps;
}

/// Sizes of three dims.
#[derive(Clone, Copy)]
pub(crate) struct Tile3<D, H, W>(PhantomData<(D, H, W)>);

impl<D: Maps, H: Maps, W: Maps> Sizes for Tile3<D, H, W> {
    type D = D;
    type H = H;
    type W = W;
}

/// Vectors from `from` on at pitches, through the maps, to `to` on at pitches.
///
/// # Safety
/// The processor has the features of `S`. Vectors can be read at all inputs of the maps and written
/// at all outputs, which no other thread accesses.
#[inline(always)]
pub(crate) unsafe fn nest<S: Simd, D: Map, H: Map, W: Map>(
    from: *const f32,
    [fd, fh, fw]: [usize; 3],
    to: *mut f32,
    [td, th, tw]: [usize; 3],
) {
    // SAFETY: guaranteed by the caller; the middle has room for all planes.
    unsafe {
        if const { D::I == 1 && D::O == 1 } {
            return plane::<S, H, W>(from, [fh, fw], to, [th, tw]);
        }
        let mut middle = Patch::new();
        let middle = middle.start();
        let pitch = const { [H::O * W::O, W::O] }.map(|p| p * S::LANES);
        for d in 0..D::I {
            let to = middle.add(d * pitch[0]);
            plane::<S, H, W>(from.add(d * fd), [fh, fw], to, [pitch[1], S::LANES]);
        }
        for h in 0..H::O {
            for w in 0..W::O {
                let from = middle.add(h * pitch[1] + w * S::LANES);
                let to = to.add(h * th + w * tw);
                let mut line = [S::splat(0.0); POINTS_MAX];
                for (d, a) in line.iter_mut().enumerate().take(D::I) {
                    *a = S::load(from.add(d * pitch[0]));
                }
                let line = D::apply::<S>(line);
                for (d, a) in line.iter().enumerate().take(D::O) {
                    S::store(to.add(d * td), *a);
                }
            }
        }
    }
}

/// # Safety
/// As for [`nest`], of one plane.
#[inline(always)]
unsafe fn plane<S: Simd, H: Map, W: Map>(
    from: *const f32,
    [fh, fw]: [usize; 2],
    to: *mut f32,
    [th, tw]: [usize; 2],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut all = [[S::splat(0.0); POINTS_MAX]; POINTS_MAX];
        for w in 0..W::I {
            let mut line = [S::splat(0.0); POINTS_MAX];
            for (h, a) in line.iter_mut().enumerate().take(H::I) {
                *a = S::load(from.add(h * fh + w * fw));
            }
            let line = H::apply::<S>(line);
            for h in 0..H::O {
                all[h][w] = line[h];
            }
        }
        for (h, line) in all.into_iter().enumerate().take(H::O) {
            let line = W::apply::<S>(line);
            for (w, a) in line.iter().enumerate().take(W::O) {
                S::store(to.add(h * th + w * tw), *a);
            }
        }
    }
}

/// Runs an operation with the sizes of its tiles.
macro_rules! with_sizes {
    ($m:expr, $sizes:ident => $body:expr) => {{
        use crate::conv::winograd::maps::{Four, One, Two};
        use crate::conv::winograd::nest::Tile3;
        match $m {
            [1, 2, 2] => {
                type $sizes = Tile3<One, Two, Two>;
                $body
            }
            [1, 4, 4] => {
                type $sizes = Tile3<One, Four, Four>;
                $body
            }
            [2, 2, 2] => {
                type $sizes = Tile3<Two, Two, Two>;
                $body
            }
            [2, 4, 4] => {
                type $sizes = Tile3<Two, Four, Four>;
                $body
            }
            [4, 4, 4] => {
                type $sizes = Tile3<Four, Four, Four>;
                $body
            }
            sizes => unreachable!("no tile of {sizes:?}"),
        }
    }};
}
pub(crate) use with_sizes;
