//! Gradient of a convolution with respect to its weights.
//!
//! A tile of Q input channels x V vectors of output channels stays in registers and streams over
//! the positions of a block; taps that are neighbors in W are more input channels of one tap.
//! Legend: Q input channels (taps in W included), V vectors, L lanes.

use crate::conv::convolution::Convolution;
use crate::conv::weight_panels::{Copies, CopyPanels, F_TILES_MAX};
use crate::conv::weight_parts::{InParts, Share, in_parts, scratch_of_parts};
use crate::conv::weight_plan::{Partition, Plan, Q_MAX, Shape, inner_dim};
use crate::conv::weight_walk::{Rows, WalkArgs};
use crate::grid::{Call, Canceled, Grid, View, Work, part};
use crate::simd::{LANES_MAX, Level, Op, Simd};
use crate::team::{Poll, TeamKind};
use std::ops::Range;

/// Scratch elements that [`conv_backward_weight`] needs for input boxes like `xg` and F outputs.
pub fn conv_backward_weight_scratch(
    team: TeamKind,
    conv: &Convolution,
    xg: &Grid,
    f: usize,
) -> usize {
    let shape = Shape::new(team.level, conv, xg, f);
    let [d, h, w] = conv.window.outputs(xg.extent);
    let plan = Plan::new(&shape, team.threads, conv, [xg.samples, d, h, w]);
    scratch_of_parts(
        conv,
        (xg.channels, f),
        plan.partition,
        plan.copies(team.threads),
    )
}

/// dw[k, c, f] (+)= sum over n, o of x[n, o * stride + k * dilation, c] * dy[n, o, f], and, where
/// there is a db, db\[f\] (+)= sum over n, o of dy[n, o, f].
///
/// Shapes: x (N, D, H, W, C) complete as in the forward convolution, dy (N, D, H, W, F),
/// dw (Kd, Kh, Kw, C / groups, F), db (F). `accumulate` adds to dw and db. Bit-reproducible for a
/// given number of threads: their shares are fixed and summed in order.
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other.
pub fn conv_backward_weight(
    call: &mut Call,
    x: View,
    dy: View,
    dw: &mut [f32],
    db: Option<&mut [f32]>,
    conv: &Convolution,
    accumulate: bool,
) -> Result<Work, Canceled> {
    let threads = call.team.threads();
    in_parts(call, (&x, &dy), dw, db, (conv, accumulate), |shape| {
        let plan = Plan::new(&shape, threads, conv, dy.grid.counts());
        Gradient {
            x,
            dy,
            conv,
            shape,
            plan,
        }
    })
}

struct Gradient<'a> {
    x: View<'a>,
    dy: View<'a>,
    conv: &'a Convolution,
    shape: Shape,
    plan: Plan,
}

impl InParts for Gradient<'_> {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn partition(&self) -> Partition {
        self.plan.partition
    }

    fn room(&self) -> usize {
        self.plan.copies(1)
    }

    unsafe fn share(&self, share: Share, (dw, mut load): (*mut f32, bool), poll: &mut Poll) {
        let rows = part(self.rows(), share.part.0, share.part.1);
        let copies = self.plan.panels.map(|panels| Copies {
            panels,
            room: share.room,
            q_tile: 0,
            f_tile: 0,
        });
        let step = self.plan.rows;
        let mut at = rows.start;
        // An empty share must still write its zeros.
        loop {
            let block = at..(at + step).min(rows.end);
            // SAFETY: guaranteed by the caller.
            let goes_on = unsafe {
                match copies {
                    Some(copies) => {
                        self.copied(&block, share.tiles.clone(), copies, (dw, load), poll)
                    }
                    None => self.tiles(&block, share.tiles.clone(), (dw, load), poll),
                }
            };
            if !goes_on {
                return;
            }
            if let Some(sums) = share.sums {
                // SAFETY: guaranteed by the caller.
                unsafe { self.add_up(block, &share, sums) };
            }
            load = true;
            at += step;
            if at >= rows.end {
                return;
            }
        }
    }
}

impl Gradient<'_> {
    fn inner(&self) -> usize {
        inner_dim(self.dy.grid.counts())
    }

    /// Steps of x and dy per position of each dim.
    fn steps(&self) -> ([usize; 4], [usize; 4]) {
        let (s, p) = (self.conv.window.stride, self.x.grid.pitch);
        (
            [p[0], s[0] * p[1], s[1] * p[2], s[2] * p[3]],
            self.dy.grid.pitch,
        )
    }

    fn inner_count(&self) -> usize {
        self.dy.grid.counts()[self.inner()]
    }

    fn rows(&self) -> usize {
        self.dy.grid.positions() / self.inner_count()
    }

    /// Some tiles over a block of rows; returns whether to go on.
    ///
    /// # Safety
    /// As for `share`.
    unsafe fn tiles(
        &self,
        block: &Range<usize>,
        tiles: Range<usize>,
        to: (*mut f32, bool),
        poll: &mut Poll,
    ) -> bool {
        for tile in tiles {
            // SAFETY: guaranteed by the caller.
            unsafe { self.tile(block.clone(), tile, to) };
            if !poll.tick(self.flops_of_tile(block)) {
                return false;
            }
        }
        true
    }

    /// The tiles of a share over a block of rows with copies of x and dy; returns whether to go on.
    ///
    /// # Safety
    /// As for `share`.
    unsafe fn copied(
        &self,
        block: &Range<usize>,
        own: Range<usize>,
        mut copies: Copies,
        to: (*mut f32, bool),
        poll: &mut Poll,
    ) -> bool {
        let s = &self.shape;
        let (of_group, f_tiles, panels) = (s.tiles(), s.f_tiles(), copies.panels);
        for g in own.start / of_group..own.end.div_ceil(of_group) {
            let own = (g * of_group).max(own.start)..((g + 1) * of_group).min(own.end);
            for ft in (0..f_tiles).step_by(panels.f_tiles) {
                let f_range = ft..(ft + panels.f_tiles).min(f_tiles);
                copies.f_tile = ft;
                // SAFETY: guaranteed by the caller.
                unsafe { self.copy_dy(block.clone(), g, f_range.clone(), &copies) };
                let (mut q, q_end) = (own.start / f_tiles, own.end.div_ceil(f_tiles));
                while q < q_end {
                    let stretch_end = (q / s.q_tiles() + 1) * s.q_tiles();
                    let q_range = q..q_end.min(stretch_end).min(q + panels.q_tiles);
                    (copies.q_tile, q) = (q, q_range.end);
                    // SAFETY: guaranteed by the caller; the panels are copied.
                    let goes_on = unsafe {
                        self.copy_x(block.clone(), q_range.clone(), &copies);
                        let ranges = (q_range, f_range.clone(), own.clone());
                        self.panel_tiles(block, ranges, &copies, to, poll)
                    };
                    if !goes_on {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Tiles that are copied: of these rows, counted over all stretches and groups, and output channels, those of
    /// the share. Returns whether to go on.
    ///
    /// # Safety
    /// As for `share`; the copies are of this block.
    unsafe fn panel_tiles(
        &self,
        block: &Range<usize>,
        (q_tiles, f_tiles, own): (Range<usize>, Range<usize>, Range<usize>),
        copies: &Copies,
        (dw, load): (*mut f32, bool),
        poll: &mut Poll,
    ) -> bool {
        let s = &self.shape;
        let (positions, flops) = (block.len() * self.inner_count(), self.flops_of_tile(block));
        let (f, stretch) = (s.f * s.groups, q_tiles.start / s.q_tiles());
        let mut f_tile = [(0, 0, 0); F_TILES_MAX];
        for (f_tile, ft) in f_tile.iter_mut().zip(f_tiles.clone()) {
            *f_tile = s.f_tile(ft);
        }
        for qt in q_tiles {
            let q = s.q_tile(qt % s.q_tiles());
            let row = stretch % s.stretches * s.rows + q.start;
            let at = row * f + stretch / s.stretches * s.f;
            let first = qt * s.f_tiles();
            let tiles = (first + f_tiles.start).max(own.start)..(first + f_tiles.end).min(own.end);
            for ft in tiles.map(|tile| tile - first) {
                let (f0, v, lanes) = f_tile[ft - f_tiles.start];
                let walk = copies.walk(qt, ft, positions);
                // SAFETY: guaranteed by the caller; the tile lies inside the weights.
                unsafe {
                    run_tile(
                        s.level,
                        (v, q.len(), lanes),
                        walk,
                        (dw.add(at + f0), f, load),
                    )
                };
                if !poll.tick(flops) {
                    return false;
                }
            }
        }
        true
    }

    /// Copies dy of some tiles of output channels of a group.
    ///
    /// # Safety
    /// As for `share`; these are the first tile of the copies and as many after it as there are panels.
    unsafe fn copy_dy(&self, rows: Range<usize>, g: usize, tiles: Range<usize>, copies: &Copies) {
        let s = &self.shape;
        let walk = WalkArgs {
            y: self.dy.data[g * s.f..].as_ptr(),
            ..self.walk(rows)
        };
        let pieces = copies.of_dy(s.level.lanes(), tiles.map(|tile| s.f_tile(tile).0), s.f);
        // SAFETY: guaranteed by the caller.
        unsafe { s.level.run(CopyPanels::<false>(pieces, &walk)) };
    }

    /// Copies x of some tiles of rows of a stretch, counted over all groups.
    ///
    /// # Safety
    /// As for `copy_dy`.
    unsafe fn copy_x(&self, rows: Range<usize>, tiles: Range<usize>, copies: &Copies) {
        let s = &self.shape;
        let (stretch, q) = (tiles.start / s.q_tiles(), tiles.start % s.q_tiles());
        let x0 = self.x_start(stretch % s.stretches, stretch / s.stretches, 0);
        let walk = WalkArgs {
            x: self.x.data[x0..].as_ptr(),
            ..self.walk(rows)
        };
        let firsts = (q..q + tiles.len()).map(|tile| s.q_tile(tile).start);
        let pieces = copies.of_x(s.level.lanes(), firsts, s.rows);
        // SAFETY: guaranteed by the caller.
        unsafe { s.level.run(CopyPanels::<true>(pieces, &walk)) };
    }

    fn flops_of_tile(&self, block: &Range<usize>) -> u64 {
        let s = &self.shape;
        let flops = 2 * block.len() * self.inner_count() * s.f * s.rows;
        (flops / (s.f_tiles() * s.q_tiles())) as u64
    }

    /// Adds dy over a block of rows, which the tiles have just read, to the sums.
    ///
    /// # Safety
    /// As for `share`; these are its sums.
    unsafe fn add_up(&self, rows: Range<usize>, share: &Share, sums: *mut f64) {
        let (level, f) = (self.shape.level, self.dy.grid.channels);
        for vector in share.vectors.clone() {
            let c0 = vector * level.lanes();
            let walk = WalkArgs {
                y: self.dy.data[c0..].as_ptr(),
                ..self.walk(rows.clone())
            };
            let lanes = (f - c0).min(level.lanes());
            // SAFETY: channels of dy, in the sums of this part; the rest is guaranteed by the caller.
            unsafe {
                let sums = sums.add(c0);
                level.run(BiasSums { walk, lanes, sums });
            }
        }
    }

    /// The walk over a block of rows, without channels.
    fn walk(&self, rows: Range<usize>) -> WalkArgs {
        let (x_step, y_step) = self.steps();
        let (inner, counts) = (self.inner(), self.dy.grid.counts());
        WalkArgs {
            x: std::ptr::null(),
            y: std::ptr::null(),
            rows: (rows.start, rows.end),
            counts: std::array::from_fn(|i| if i < inner { counts[i] } else { 1 }),
            x_step,
            y_step,
            inner: (self.inner_count(), x_step[inner], y_step[inner]),
        }
    }

    /// One tile over a block of rows.
    ///
    /// # Safety
    /// As for `share`.
    unsafe fn tile(&self, rows: Range<usize>, tile: usize, (dw, load): (*mut f32, bool)) {
        let s = &self.shape;
        let (ft, rest) = (tile % s.f_tiles(), tile / s.f_tiles());
        let (qt, rest) = (rest % s.q_tiles(), rest / s.q_tiles());
        let (stretch, g) = (rest % s.stretches, rest / s.stretches);
        let (f0, v, lanes) = s.f_tile(ft);
        let q = s.q_tile(qt);
        let f = s.f * s.groups;
        // Input channels of a tap are neighbors; depthwise, the rows are the taps themselves.
        let mut xo = [0; Q_MAX];
        let x0 = if s.depthwise {
            for (xo, tap) in xo.iter_mut().zip(q.clone()) {
                *xo = self.conv.offset_of(self.x.grid, tap);
            }
            f0
        } else {
            self.x_start(stretch, g, q.start)
        };
        let walk = WalkArgs {
            x: self.x.data[x0..].as_ptr(),
            y: self.dy.data[g * s.f + f0..].as_ptr(),
            ..self.walk(rows)
        };
        let args = TileArgs {
            walk,
            // SAFETY: rows of the weights that exist, as the caller says.
            dw: unsafe { dw.add((stretch * s.rows + q.start) * f + g * s.f + f0) },
            dw_pitch: f,
            lanes,
            load,
            xo,
        };
        let partial = lanes < s.level.lanes();
        // SAFETY: guaranteed by the caller; the tile lies inside the weights.
        unsafe {
            if s.depthwise {
                dispatch::<true>(s.level, (v, q.len(), partial), &args)
            } else {
                dispatch::<false>(s.level, (v, q.len(), partial), &args)
            }
        }
    }

    /// Where the channels of a row of a stretch begin in x.
    fn x_start(&self, stretch: usize, g: usize, row: usize) -> usize {
        let s = &self.shape;
        self.conv
            .offset_of(self.x.grid, stretch * (s.rows / s.c.max(1)))
            + g * s.c
            + row
    }
}

/// A tile of V vectors, of the last `lanes` lanes, and Q rows over a walk, into rows of dw or added to them.
///
/// # Safety
/// The processor has the level. From the x of the walk on Q elements and from its y on the vectors can be read at each
/// position, and the tile of dw at its pitch is nobody else's.
pub(crate) unsafe fn run_tile(
    level: Level,
    (v, q, lanes): (usize, usize, usize),
    walk: WalkArgs,
    (dw, dw_pitch, load): (*mut f32, usize, bool),
) {
    let args = TileArgs {
        walk,
        dw,
        dw_pitch,
        lanes,
        load,
        xo: [0; Q_MAX],
    };
    let partial = lanes < level.lanes();
    // SAFETY: guaranteed by the caller.
    unsafe { dispatch::<false>(level, (v, q, partial), &args) };
}

/// Pointers: from the x of the walk the rows of the tile, from its y the vectors (of PART `lanes`), both at
/// each position; from dw the tile, which no other thread accesses.
#[derive(Clone, Copy)]
struct TileArgs {
    walk: WalkArgs,
    dw: *mut f32,
    dw_pitch: usize,
    lanes: usize,
    load: bool,
    /// Depthwise: offsets of the taps in x.
    xo: [usize; Q_MAX],
}

/// `PART`: only some lanes of the one vector exist. `DEEP`: depthwise, the rows are taps. Pointers as those of
/// [`TileArgs`].
struct Tile<'a, const V: usize, const Q: usize, const PART: bool, const DEEP: bool>(&'a TileArgs);

impl<const V: usize, const Q: usize, const PART: bool, const DEEP: bool> Op
    for Tile<'_, V, Q, PART, DEEP>
{
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if const { V * Q > S::ACCUMULATORS } {
            unreachable!("tile larger than the registers of its level");
        }
        let t = self.0;
        // SAFETY: positions and channels are inside of what the caller answers for.
        unsafe {
            let load = |p: *const f32| {
                if PART {
                    S::load_part(p, t.lanes)
                } else {
                    S::load(p)
                }
            };
            let mut acc = [[S::splat(0.0); V]; Q];
            if t.load {
                for (q, row) in acc.iter_mut().enumerate() {
                    for (v, a) in row.iter_mut().enumerate() {
                        *a = load(t.dw.add(q * t.dw_pitch + v * S::LANES));
                    }
                }
            }
            let walk = &t.walk;
            // The next tile is most often the one beside this.
            for q in 0..Q {
                S::prefetch(t.dw.wrapping_add(q * t.dw_pitch + V * S::LANES));
            }
            let (count, x_step, y_step) = walk.inner;
            let mut rows = Rows::new(walk);
            for _ in walk.rows.0..walk.rows.1 {
                let (mut x, mut y) = (walk.x.add(rows.x), walk.y.add(rows.y));
                rows.step();
                for _ in 0..count {
                    let g: [S::V; V] = std::array::from_fn(|v| load(y.add(v * S::LANES)));
                    for q in 0..Q {
                        if DEEP {
                            for v in 0..V {
                                let b = load(x.add(t.xo[q] + v * S::LANES));
                                acc[q][v] = S::fma(b, g[v], acc[q][v]);
                            }
                        } else {
                            let b = S::splat(*x.add(q));
                            for v in 0..V {
                                acc[q][v] = S::fma(b, g[v], acc[q][v]);
                            }
                        }
                    }
                    // The last step may leave the slice.
                    x = x.wrapping_add(x_step);
                    y = y.wrapping_add(y_step);
                }
            }
            for (q, row) in acc.iter().enumerate() {
                for (v, a) in row.iter().enumerate() {
                    let to = t.dw.add(q * t.dw_pitch + v * S::LANES);
                    if PART {
                        S::store_part(to, t.lanes, *a)
                    } else {
                        S::store(to, *a)
                    }
                }
            }
        }
    }
}

/// Positions whose sum is taken in f32.
const NARROW: usize = 16;

/// Sums of one vector of dy over rows of positions.
///
/// Pointers: from the y of the walk `lanes` lanes at each position, and as many sums, which nobody else
/// touches.
struct BiasSums {
    walk: WalkArgs,
    lanes: usize,
    sums: *mut f64,
}

impl Op for BiasSums {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (t, lanes) = (self.walk, self.lanes);
        let (count, _, y_step) = t.inner;
        // SAFETY: positions and channels are inside of what the caller answers for.
        unsafe {
            let mut acc = [S::splat(0.0); 4];
            let (mut rows, mut summed) = (Rows::new(&t), 0);
            for _ in t.rows.0..t.rows.1 {
                let mut y = t.y.add(rows.y);
                rows.step();
                let mut left = count;
                while left > 0 {
                    let n = left.min(NARROW);
                    for i in 0..n {
                        acc[i % 4] = S::add(acc[i % 4], S::load_part(y, lanes));
                        // The last step may leave the slice.
                        y = y.wrapping_add(y_step);
                    }
                    left -= n;
                    summed += n;
                    if summed >= NARROW {
                        widen::<S>(&mut acc, self.sums, lanes);
                        summed = 0;
                    }
                }
            }
            widen::<S>(&mut acc, self.sums, lanes);
        }
    }
}

/// Adds the lanes of four vectors to sums in f64, and zeros them.
///
/// # Safety
/// There are as many sums as lanes, and no other thread accesses them.
#[inline(always)]
pub(crate) unsafe fn widen<S: Simd>(acc: &mut [S::V; 4], sums: *mut f64, lanes: usize) {
    let mut values = [0f32; LANES_MAX];
    // SAFETY: no level has more lanes; the rest is guaranteed by the caller.
    unsafe {
        let sum = S::add(S::add(acc[0], acc[1]), S::add(acc[2], acc[3]));
        S::store(values.as_mut_ptr(), sum);
        *acc = [S::splat(0.0); 4];
        for (i, value) in values[..lanes].iter().enumerate() {
            *sums.add(i) += f64::from(*value);
        }
    }
}

/// # Safety
/// The processor has the level, and the pointer requirements of [`TileArgs`] hold.
unsafe fn dispatch<const DEEP: bool>(
    level: Level,
    (v, q, partial): (usize, usize, bool),
    t: &TileArgs,
) {
    macro_rules! pick {
        ($v:literal, $part:literal: $($q:literal)*) => {
            match q {
                $($q => {
                    // SAFETY: guaranteed by the caller.
                    return unsafe { level.run(Tile::<$v, $q, $part, DEEP>(t)) };
                })*
                _ => {}
            }
        };
    }
    match (v, partial) {
        (1, true) => pick!(1, true: 1 2 3 4 5 6 7 8 9 10 11 12),
        (1, false) => pick!(1, false: 1 2 3 4 5 6 7 8 9 10 11 12),
        (2, false) => pick!(2, false: 1 2 3 4 5 6 7 8 9 10 11 12),
        _ => {}
    }
    unreachable!("no tile of {v} vectors and {q} rows");
}
