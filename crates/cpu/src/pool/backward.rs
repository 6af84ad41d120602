//! Gradients of pooling: maxima of windows that tile the input in one pass with the mask, averages row by row.

use crate::grid::{Call, Canceled, Shared, View, ViewMut, Work};
use crate::pool::slabs::slabs;
use crate::pool::{
    Backward, PoolMask, Pooling, WindowTaps, each, load, maximum, offset, split, store,
};
use crate::rows::leaky;
use crate::simd::{Op, Simd};
use crate::team::ELEMENT;
use partita_program::PoolKind;
use std::ops::Range;

/// Outputs in W that are summed together.
const CHUNK: usize = 256;

/// dx (+)= gradient of [`crate::pool_forward`]; the first maximal tap in (d, h, w) order takes it all,
/// and a norm of zero has none. Then, with a `mask`, dx is multiplied by it.
///
/// Shapes: dx as the input x, dy as the output. x is needed for maxima and norms only. Without
/// `accumulate` dx is overwritten. Counts one flop a tap and output, four of a norm, and one an
/// element of the mask. Bit-reproducible for any number of threads. Errors: [`Canceled`]. Panics if boxes differ,
/// or if x is missing.
pub fn pool_backward(
    call: &mut Call,
    x: Option<View>,
    dy: View,
    dx: ViewMut,
    pooling: &Pooling,
    accumulate: bool,
    mask: Option<PoolMask>,
) -> Result<Work, Canceled> {
    let (yg, xg) = (dy.grid, dx.grid);
    pooling.assert_valid(xg, yg);
    let masked = mask.map_or(0, |mask| {
        mask.assert_inside(xg);
        mask.y.grid.elements() as u64
    });
    let read = match (pooling.kind, x) {
        (PoolKind::Max | PoolKind::L2, Some(x)) => {
            x.grid.assert_like(xg);
            x.grid.bytes()
        }
        (PoolKind::Max | PoolKind::L2, None) => {
            panic!("the gradient of {:?} needs its input", pooling.kind)
        }
        (PoolKind::AverageAll | PoolKind::AverageInside, _) => 0,
    };
    let passes = if pooling.kind == PoolKind::L2 { 2 } else { 1 };
    let work = Work {
        flops: passes * pooling.flops(yg) + masked,
        bytes: read + yg.bytes() + xg.bytes() * (1 + u64::from(accumulate)) + 4 * masked,
    };
    if xg.elements() == 0 {
        return Ok(work);
    }
    let back = Backward {
        dy,
        dx: Shared(dx.data.as_mut_ptr()),
        xg,
        pooling,
        accumulate,
        mask,
    };
    // SAFETY: the boxes hold their slices and fit each other, and dx is borrowed alone.
    unsafe {
        match (pooling.kind, x) {
            (PoolKind::Max, Some(x)) if back.is_tiled() => back.tiles(call, x),
            (PoolKind::Max | PoolKind::L2, Some(x)) => slabs(&back, call, x),
            (PoolKind::Max | PoolKind::L2, None) => Ok(()),
            (PoolKind::AverageAll | PoolKind::AverageInside, _) => back.gather(call),
        }?;
    }
    Ok(work)
}

impl Backward<'_> {
    /// Whether each element of dx has a window and a mask of its own.
    fn is_tiled(&self) -> bool {
        let covered = self.mask.is_some_and(|mask| mask.covers(self.xg));
        covered && self.pooling.tiles(self.xg, self.dy.grid)
    }

    /// Each window belongs to one output, so that dx is gone through once, the mask included.
    ///
    /// # Safety
    /// The pointer requirements of [`Backward`] hold, the windows tile dx, and x is like it.
    unsafe fn tiles(&self, call: &mut Call, x: View) -> Result<(), Canceled> {
        let (level, yg) = (call.team.level(), self.dy.grid);
        let cost = 2 * ELEMENT * (self.pooling.window.volume() * yg.extent[2] * yg.channels) as u64;
        call.team.ranges(call.progress, yg.rows(), cost, &|rows| {
            let tiles = Tiles {
                back: self,
                x,
                rows,
            };
            // SAFETY: guaranteed by the caller; each row is in one range, and the team has the level.
            unsafe { level.run(tiles) };
        })
    }

    /// Each row of dx collects from the outputs above it.
    ///
    /// # Safety
    /// The pointer requirements of [`Backward`] hold.
    unsafe fn gather(&self, call: &mut Call) -> Result<(), Canceled> {
        let (level, xg) = (call.team.level(), self.xg);
        let cost = 2 * ELEMENT * (xg.extent[2] * xg.channels) as u64;
        call.team.ranges(call.progress, xg.rows(), cost, &|rows| {
            let gather = Gather { back: self, rows };
            // SAFETY: guaranteed by the caller; each row is in one range, and the team has the level.
            unsafe { level.run(gather) };
        })
    }

    /// Multiplies a row of dx by the mask.
    ///
    /// # Safety
    /// The row is the caller's alone, and the features of `S` are there.
    #[inline(always)]
    pub(crate) unsafe fn mask_row<S: Simd>(&self, n: usize, [d, h]: [usize; 2]) {
        let Some(mask) = &self.mask else {
            return;
        };
        let (g, at) = (mask.y.grid, mask.at);
        let inside = |dim: usize, i: usize| (at[dim]..at[dim] + g.extent[dim]).contains(&i);
        if !inside(0, d) || !inside(1, h) {
            return;
        }
        let y = mask.y.data[offset(g, n, [d - at[0], h - at[1], 0])..].as_ptr();
        let joined = [g.pitch[3], self.xg.pitch[3]] == [g.channels; 2];
        let (count, length) = if joined {
            (1, g.extent[2] * g.channels)
        } else {
            (g.extent[2], g.channels)
        };
        let to = offset(self.xg, n, [d, h, at[2]]);
        for w in 0..count {
            // SAFETY: a row of y, and the part of dx on which it lies.
            unsafe {
                let slope = S::splat(mask.slope);
                let (y, to) = (
                    y.add(w * g.pitch[3]),
                    self.dx.get().add(to + w * self.xg.pitch[3]),
                );
                let mut c = 0;
                while c + S::LANES <= length {
                    let r = leaky::<S>(S::load(y.add(c)), S::load(to.add(c)), slope);
                    S::store(to.add(c), r);
                    c += S::LANES;
                }
                if c < length {
                    let (y, to, lanes) = (y.add(c), to.add(c), length - c);
                    let (sign, r) = (S::load_part(y, lanes), S::load_part(to, lanes));
                    S::store_part(to, lanes, leaky::<S>(sign, r, slope));
                }
            }
        }
    }
}

/// Pointers: the windows of these rows of dy in dx, which no other thread accesses.
struct Tiles<'a, 'b> {
    back: &'a Backward<'b>,
    x: View<'a>,
    /// Rows of dy.
    rows: Range<usize>,
}

impl Op for Tiles<'_, '_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Backward { dy, xg, mask, .. } = *self.back;
        let (p, yg) = (self.back.pooling, dy.grid);
        let taps = p.window.kernel.map(|k| 0..k);
        // Without a mask, one that changes nothing.
        let (sign, slope) = mask.map_or((self.x, 1.0), |mask| (mask.y, mask.slope));
        for row in self.rows {
            let (n, [od, oh]) = split(row, yg);
            for ow in 0..yg.extent[2] {
                let at = (n, [od, oh, ow]);
                let from = WindowTaps::new(p, [self.x.grid], at, &taps);
                let to = WindowTaps::new(p, [xg, sign.grid], at, &taps);
                for c in (0..yg.channels).step_by(S::LANES) {
                    let lanes = (yg.channels - c).min(S::LANES);
                    // SAFETY: taps inside the boxes, which the output of this thread owns.
                    unsafe {
                        let dy = dy
                            .data
                            .as_ptr()
                            .add(yg.row_offset(row) + ow * yg.pitch[3] + c);
                        let dy = load::<S>(dy, lanes);
                        let winner = maximum::<S>(&from, self.x.data.as_ptr().add(c), lanes).1;
                        let dx = self.back.dx.get().add(c);
                        let sign = sign.data.as_ptr().add(c);
                        each!(to, |tap, both| {
                            let [at, sign_at] = both;
                            let mut r = S::where_eq(winner, S::splat(tap as f32), dy);
                            if self.back.accumulate {
                                r = S::add(load::<S>(dx.add(at), lanes), r);
                            }
                            let sign = load::<S>(sign.add(sign_at), lanes);
                            let r = S::where_positive(sign, r, S::mul(r, S::splat(slope)));
                            store::<S>(dx.add(at), lanes, r);
                        });
                    }
                }
            }
        }
    }
}

/// Pointers: these rows of dx, which no other thread accesses.
struct Gather<'a, 'b> {
    back: &'a Backward<'b>,
    /// Rows of dx.
    rows: Range<usize>,
}

impl Op for Gather<'_, '_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (xg, outs) = (self.back.xg, self.back.dy.grid.extent[2]);
        // SAFETY: the features are those of the caller; the rows are those of this thread.
        unsafe {
            let mut sums = [S::splat(0.0); CHUNK];
            for row in self.rows.clone() {
                let (n, [d, h]) = split(row, xg);
                for c in (0..xg.channels).step_by(S::LANES) {
                    let lanes = (xg.channels - c).min(S::LANES);
                    let mut add_to = self.back.accumulate;
                    for start in (0..outs.max(1)).step_by(CHUNK) {
                        let chunk = start..(start + CHUNK).min(outs);
                        self.above::<S>((n, [d, h]), (c, lanes), &chunk, &mut sums);
                        let to = self.back.dx.get().add(offset(xg, n, [d, h, 0]) + c);
                        self.spread::<S>(to, lanes, &chunk, &sums, add_to);
                        add_to = true;
                    }
                }
                self.back.mask_row::<S>(n, [d, h]);
            }
        }
    }
}

impl Gather<'_, '_> {
    /// Sums of dy, by its w in the chunk, over the outputs whose window holds a row of dx.
    ///
    /// # Safety
    /// The processor has the features of `S`; the boxes have these channels, and dy the chunk.
    #[inline(always)]
    unsafe fn above<S: Simd>(
        &self,
        (n, [d, h]): (usize, [usize; 2]),
        (c, lanes): (usize, usize),
        chunk: &Range<usize>,
        sums: &mut [S::V; CHUNK],
    ) {
        let (p, dy, xg) = (self.back.pooling, self.back.dy, self.back.xg);
        let yg = dy.grid;
        let sums = &mut sums[..chunk.len()];
        let count = |dim: usize, o: usize| p.taps(dim, o, &(0..xg.extent[dim])).len();
        let inner = p.interior(2, yg.extent[2], xg.extent[2]);
        let mut first = true;
        // SAFETY: outputs in the box of dy.
        unsafe {
            for od in p.outputs(0, yg.extent[0], &(d..d + 1)) {
                for oh in p.outputs(1, yg.extent[1], &(h..h + 1)) {
                    if !p.holds(0, od, d) || !p.holds(1, oh, h) {
                        continue;
                    }
                    let rows = count(0, od) * count(1, oh);
                    let inside = S::splat(p.weight(rows * p.window.kernel[2]));
                    let from = dy.data.as_ptr().add(offset(yg, n, [od, oh, 0]) + c);
                    for (sum, ow) in sums.iter_mut().zip(chunk.clone()) {
                        let weight = if p.counts_padding() || inner.contains(&ow) {
                            inside
                        } else {
                            S::splat(p.weight(rows * count(2, ow)))
                        };
                        let old = if first { S::splat(0.0) } else { *sum };
                        *sum = S::fma(load::<S>(from.add(ow * yg.pitch[3]), lanes), weight, old);
                    }
                    first = false;
                }
            }
            if first {
                sums.fill(S::splat(0.0));
            }
        }
    }

    /// Gives each element of a row of dx the sums of the outputs in the chunk that hold it.
    ///
    /// # Safety
    /// The processor has the features of `S`; `to` is valid for `lanes` lanes at each position of the
    /// row, which no other thread accesses.
    #[inline(always)]
    unsafe fn spread<S: Simd>(
        &self,
        to: *mut f32,
        lanes: usize,
        chunk: &Range<usize>,
        sums: &[S::V; CHUNK],
        add_to: bool,
    ) {
        let (p, xg) = (self.back.pooling, self.back.xg);
        let (stride, dilation) = (p.window.stride[2] as i64, p.window.dilation[2]);
        let reach = ((p.window.kernel[2] - 1) * dilation) as i64;
        // Outputs whose window begins at or before w, and those whose window ends before it.
        let (mut begun, mut ended) = (0, 0);
        let mut begins = chunk.start as i64 * stride + p.shift[2];
        let mut ends = begins + reach;
        for w in 0..xg.extent[2] {
            while begun < chunk.len() && begins <= w as i64 {
                begun += 1;
                begins += stride;
            }
            while ended < begun && ends < w as i64 {
                ended += 1;
                ends += stride;
            }
            // SAFETY: an element of the row.
            unsafe {
                let to = to.add(w * xg.pitch[3]);
                let mut r = if add_to {
                    load::<S>(to, lanes)
                } else {
                    S::splat(0.0)
                };
                for (i, sum) in sums[ended..begun].iter().enumerate() {
                    if dilation == 1 || p.holds(2, chunk.start + ended + i, w) {
                        r = S::add(r, *sum);
                    }
                }
                store::<S>(to, lanes, r);
            }
        }
    }
}
