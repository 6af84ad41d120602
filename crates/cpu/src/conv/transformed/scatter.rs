//! From the points of tiles to a box of outputs, with the epilogue.

use super::gather::prefetch;
use super::tile::{AnyRoom, Tile};
use super::tiling::{Ordered, Points, Tiling};
use super::{Transform, with_tile};
use crate::conv::epilogue::{BOXES, Moments, TileEpilogue, TileOutputs};
use crate::conv::walk::{P_MAX, Positions};
use crate::simd::{Level, Op, Simd};
use std::ops::Range;

/// Tiles of outputs from their points.
///
/// Pointers: from `from` on rows of whole vectors for each point of the tiles of the range; from
/// `to` on `width` channels of the box, which no other thread accesses, and of the bias.
pub(crate) struct Scatter {
    pub from: *const f32,
    pub layout: Points,
    pub tiling: Tiling,
    pub range: Range<usize>,
    pub to: *mut f32,
    pub grid: Ordered,
    pub width: usize,
    /// Add to the old contents.
    pub load: bool,
    pub bias: Option<*const f32>,
    /// Factor of the negative outputs.
    pub slope: Option<f32>,
    /// What follows, and the positions of the boxes that it reads in the order of the dims.
    pub rest: Option<(TileEpilogue, [Positions; BOXES])>,
    pub level: Level,
}

impl Scatter {
    /// Outputs of the points of tiles.
    ///
    /// # Safety
    /// The processor has the level, and the pointer requirements of [`Scatter`] and its epilogue
    /// hold.
    pub(crate) unsafe fn outputs(&self, transform: Transform) {
        // SAFETY: guaranteed by the caller.
        with_tile!(transform, tile => unsafe { self.level.run(Run(self, tile)) })
    }
}

struct Run<'a, T>(&'a Scatter, T);

impl<T: Tile> Op for Run<'_, T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Run(s, tile) = self;
        let size = tile.outputs();
        let mut patch = T::Patch::new();
        let patch = patch.start();
        let mut finished = Finished::default();
        for (row, index) in s.range.clone().enumerate() {
            let (n, at) = s.tiling.at(index);
            let valid = std::array::from_fn(|i| size[i].min(s.grid.extent[i] - at[i]));
            let at = [n, at[0], at[1], at[2]];
            let offset: usize = (0..4).map(|i| at[i] * s.grid.pitch[i]).sum();
            let first = s.to.wrapping_add(offset);
            prefetch::<S>(first, s.grid.steps(), size, size[2], s.width);
            for c in (0..s.width).step_by(S::LANES) {
                // SAFETY: guaranteed by the caller; the patch has room for a tile.
                unsafe {
                    let from = s.from.add(row * s.layout.row + c);
                    let pitch = tile.scatter::<S>(from, s.layout, patch);
                    put::<S>(s, patch, pitch, c, offset, valid);
                }
            }
            if let Some((rest, positions)) = &s.rest {
                // SAFETY: the outputs of the tile are inside of the box, so in those of the
                // epilogue.
                unsafe { finished.add(s, rest, positions, at, valid) };
            }
        }
        if let Some((rest, _)) = &s.rest {
            // SAFETY: guaranteed by the caller.
            unsafe { finished.apply(s, rest) };
        }
    }
}

/// Some channels of a tile of outputs to the box.
///
/// # Safety
/// As for [`Scatter::outputs`]; `valid` outputs along each dim are inside of the box.
#[inline(always)]
unsafe fn put<S: Simd>(
    s: &Scatter,
    patch: *const f32,
    pitch: [usize; 3],
    c: usize,
    offset: usize,
    valid: [usize; 3],
) {
    let lanes = (s.width - c).min(S::LANES);
    let [pd, ph, pw] = s.grid.steps();
    // SAFETY: guaranteed by the caller.
    unsafe {
        let bias = match s.bias {
            Some(bias) => S::load_part(bias.add(c), lanes),
            None => S::splat(0.0),
        };
        let slope = S::splat(s.slope.unwrap_or(1.0));
        for d in 0..valid[0] {
            for h in 0..valid[1] {
                let from = patch.add(d * pitch[0] + h * pitch[1]);
                let to = s.to.add(offset + c + d * pd + h * ph);
                for w in 0..valid[2] {
                    let to = to.add(w * pw);
                    let mut a = S::add(S::load(from.add(w * pitch[2])), bias);
                    if s.load {
                        a = S::add(a, S::load_part(to, lanes));
                    }
                    if s.slope.is_some() {
                        a = S::where_positive(a, a, S::mul(a, slope));
                    }
                    if lanes == S::LANES {
                        S::store(to, a);
                    } else {
                        S::store_part(to, lanes, a);
                    }
                }
            }
        }
    }
}

/// Outputs that wait for the rest of the epilogue.
#[derive(Default)]
struct Finished {
    count: usize,
    outputs: [usize; P_MAX],
    boxes: [[usize; P_MAX]; BOXES],
    moments: Moments,
}

impl Finished {
    /// Adds the outputs of a tile.
    ///
    /// # Safety
    /// As for [`Scatter::outputs`].
    unsafe fn add(
        &mut self,
        s: &Scatter,
        rest: &TileEpilogue,
        positions: &[Positions; BOXES],
        at: [usize; 4],
        valid: [usize; 3],
    ) {
        for d in 0..valid[0] {
            for h in 0..valid[1] {
                for w in 0..valid[2] {
                    let at = [at[0], at[1] + d, at[2] + h, at[3] + w];
                    let dot = |step: &[usize; 4]| (0..4).map(|i| at[i] * step[i]).sum::<usize>();
                    self.outputs[self.count] = dot(&s.grid.pitch);
                    for (offsets, positions) in self.boxes.iter_mut().zip(positions) {
                        offsets[self.count] = positions.base + dot(&positions.step);
                    }
                    self.count += 1;
                    if self.count == P_MAX {
                        // SAFETY: guaranteed by the caller.
                        unsafe { self.apply(s, rest) };
                    }
                }
            }
        }
    }

    /// Applies the rest of the epilogue to what waits.
    ///
    /// # Safety
    /// As for [`Scatter::outputs`].
    unsafe fn apply(&mut self, s: &Scatter, rest: &TileEpilogue) {
        if self.count == 0 {
            return;
        }
        let outputs = TileOutputs {
            y: s.to,
            yo: &self.outputs[..self.count],
            unrounded: (),
            boxes: &self.boxes,
            width: s.width,
            is_last: true,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { rest.apply(s.level, outputs, &mut self.moments) };
        self.count = 0;
    }
}
