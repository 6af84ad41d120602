//! From a box to the points of its tiles.

use super::tile::{AnyRoom, Tile};
use super::tiling::{Ordered, Points, Tiling};
use super::{Transform, with_tile};
use crate::simd::{Level, Op, Simd};
use std::ops::Range;

/// Tiles of a box to their points.
///
/// Pointers: from `from` on the channels of the box, and to `to` rows of whole vectors for each
/// point of the tiles of the range, which no other thread accesses.
#[derive(Clone)]
pub(crate) struct Gather {
    pub from: *const f32,
    pub grid: Ordered,
    /// Where the first tile begins in the box; outside of the box is zero.
    pub origin: [i64; 3],
    pub tiling: Tiling,
    pub range: Range<usize>,
    pub channels: usize,
    pub to: *mut f32,
    pub layout: Points,
}

impl Gather {
    /// Points of tiles of inputs.
    ///
    /// # Safety
    /// The processor has the level, and the pointer requirements of [`Gather`] hold.
    pub(crate) unsafe fn inputs(&self, level: Level, transform: Transform) {
        // SAFETY: guaranteed by the caller.
        with_tile!(transform, tile => unsafe { level.run(Run::<_, true>(self, tile)) })
    }

    /// Points of tiles of output gradients.
    ///
    /// # Safety
    /// As for [`Gather::inputs`].
    pub(crate) unsafe fn gradients(&self, level: Level, transform: Transform) {
        // SAFETY: guaranteed by the caller.
        with_tile!(transform, tile => unsafe { level.run(Run::<_, false>(self, tile)) })
    }
}

/// Inputs, or else gradients.
struct Run<'a, T, const INPUTS: bool>(&'a Gather, T);

impl<T: Tile, const INPUTS: bool> Op for Run<'_, T, INPUTS> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run(g, tile) = self;
        let size = if INPUTS {
            tile.window()
        } else {
            tile.outputs()
        };
        let mut patch = T::Patch::new();
        let patch = patch.start();
        for (row, index) in g.range.clone().enumerate() {
            let (n, at) = g.tiling.at(index);
            let at: [i64; 3] = std::array::from_fn(|i| at[i] as i64 + g.origin[i]);
            let inside = (0..3).all(|i| {
                let extent = g.grid.extent[i] as i64;
                at[i] >= 0 && at[i] + size[i] as i64 <= extent
            });
            let sample = g.from.wrapping_add(n * g.grid.pitch[0]);
            let offset: i64 = (0..3).map(|i| at[i] * g.grid.pitch[i + 1] as i64).sum();
            let first = sample.wrapping_offset(offset as isize);
            prefetch::<S>(first, g.grid.steps(), size, g.tiling.step(), g.channels);
            for c in (0..g.channels).step_by(S::LANES) {
                let lanes = (g.channels - c).min(S::LANES);
                // SAFETY: inside of the box, or of the patch; the rest is guaranteed by the caller.
                unsafe {
                    let (from, pitch) = if inside && lanes == S::LANES {
                        (first.add(c), g.grid.steps())
                    } else {
                        fill::<S>(g, first.wrapping_add(c), lanes, at, size, patch);
                        let row = size[2] * S::LANES;
                        (patch.cast_const(), [size[1] * row, row, S::LANES])
                    };
                    let to = g.to.add(row * g.layout.row + c);
                    if INPUTS {
                        tile.inputs::<S>(from, pitch, to, g.layout, lanes);
                    } else {
                        tile.gradients::<S>(from, pitch, to, g.layout);
                    }
                }
            }
        }
    }
}

/// Asks for what the next tile along the last dim reads and the tile from `first` on does not.
#[inline(always)]
pub(crate) fn prefetch<S: Simd>(
    first: *const f32,
    [pd, ph, pw]: [usize; 3],
    size: [usize; 3],
    step: usize,
    channels: usize,
) {
    for d in 0..size[0] {
        for h in 0..size[1] {
            for w in size[2]..size[2] + step {
                let from = first.wrapping_add(d * pd + h * ph + w * pw);
                for c in (0..channels).step_by(LINE) {
                    S::prefetch(from.wrapping_add(c));
                }
            }
        }
    }
}

/// Elements of a cache line.
const LINE: usize = 16;

/// Some channels of a tile to a patch, zero where the tile leaves the box.
///
/// # Safety
/// As for [`Gather::inputs`]; `first` is where the tile begins, and the patch has room for it.
#[inline(always)]
unsafe fn fill<S: Simd>(
    g: &Gather,
    first: *const f32,
    lanes: usize,
    at: [i64; 3],
    size: [usize; 3],
    patch: *mut f32,
) {
    let inside = |i: usize, k: usize| {
        let at = at[i] + k as i64;
        at >= 0 && at < g.grid.extent[i] as i64
    };
    let [pd, ph, pw] = g.grid.steps();
    let mut to = patch;
    for d in 0..size[0] {
        for h in 0..size[1] {
            let row = inside(0, d) && inside(1, h);
            for w in 0..size[2] {
                // SAFETY: an element of the box, as just compared, and of the patch.
                unsafe {
                    let a = if row && inside(2, w) {
                        S::load_part(first.wrapping_add(d * pd + h * ph + w * pw), lanes)
                    } else {
                        S::splat(0.0)
                    };
                    S::store(to, a);
                    to = to.add(S::LANES);
                }
            }
        }
    }
}
