//! Gradient of a convolution with respect to its weights.
//!
//! A tile of Q input channels x V vectors of output channels stays in registers and streams over
//! the positions of a block; taps that are neighbors in W are more input channels of one tap.
//! Legend: Q input channels (taps in W included), V vectors, L lanes.

use crate::convolution::Convolution;
use crate::grid::{Call, Canceled, Grid, Shared, View, Work, part};
use crate::simd::{LANES_MAX, Level, Op, Simd};
use crate::team::{Poll, Team, TeamKind};
use std::ops::Range;

/// Tiles per thread from which on the threads share the tiles, not the positions.
const TILES_PER_THREAD: usize = 8;
/// Elements of dy in a block of positions, so that it stays in the L1 cache.
const BLOCK_ELEMENTS: usize = 8 * 1024;
/// Positions of a block, so that loading and storing a tile does not matter.
const BLOCK_POSITIONS_MIN: usize = 512;
/// The tallest tile.
const Q_MAX: usize = 12;

/// Partition of the work among threads.
#[derive(Clone, Copy)]
struct Partition {
    /// Parts of the positions; each but the first sums into scratch.
    position_parts: usize,
    /// Parts of the tiles.
    tile_parts: usize,
}

/// The weights seen as stretches of rows: taps in W and input channels in one where x allows.
#[derive(Clone, Copy)]
struct Shape {
    level: Level,
    c: usize,
    f: usize,
    groups: usize,
    /// Stretches of all taps and rows in each; if depthwise, one stretch of all taps.
    stretches: usize,
    rows: usize,
    depthwise: bool,
}

impl Shape {
    fn new(level: Level, conv: &Convolution, xg: &Grid, f: usize) -> Shape {
        if conv.is_depthwise(xg.channels, f) {
            return Shape {
                level,
                c: 1,
                f,
                groups: 1,
                stretches: 1,
                rows: conv.window.volume(),
                depthwise: true,
            };
        }
        let groups = conv.groups;
        let (c, f) = (xg.channels / groups, f / groups);
        let merges = conv.groups == 1
            && xg.pitch[3] == c
            && (conv.window.dilation[2] == 1 || conv.window.kernel[2] == 1);
        let merged = if merges { conv.window.kernel[2] } else { 1 };
        let stretches = conv.window.volume() / merged;
        Shape {
            level,
            c,
            f,
            groups,
            stretches,
            rows: merged * c,
            depthwise: false,
        }
    }

    fn vectors(&self) -> usize {
        // The last, partial vector is a tile of its own.
        self.f / self.level.lanes()
    }

    fn f_tiles(&self) -> usize {
        self.vectors().div_ceil(2) + usize::from(!self.f.is_multiple_of(self.level.lanes()))
    }

    /// First channel, vectors, and lanes of the last vector.
    fn f_tile(&self, index: usize) -> (usize, usize, usize) {
        let lanes = self.level.lanes();
        let (f0, whole) = (2 * index * lanes, self.vectors());
        match whole.saturating_sub(2 * index) {
            0 => (whole * lanes, 1, self.f % lanes),
            1 => (f0, 1, lanes),
            2.. => (f0, 2, lanes),
        }
    }

    fn q_max(&self) -> usize {
        let v = self.vectors().clamp(1, 2);
        (self.level.accumulators() / v).min(Q_MAX)
    }

    fn q_tiles(&self) -> usize {
        self.rows.div_ceil(self.q_max())
    }

    fn tiles(&self) -> usize {
        self.stretches * self.q_tiles() * self.f_tiles()
    }

    fn partition(&self, threads: usize) -> Partition {
        if self.tiles() >= TILES_PER_THREAD * threads {
            Partition {
                position_parts: 1,
                tile_parts: threads,
            }
        } else {
            Partition {
                position_parts: threads,
                tile_parts: 1,
            }
        }
    }
}

/// Scratch elements that [`conv_backward_weight`] needs for input boxes like `xg` and F outputs.
pub fn conv_backward_weight_scratch(
    team: TeamKind,
    conv: &Convolution,
    xg: &Grid,
    f: usize,
) -> usize {
    let shape = Shape::new(team.level, conv, xg, f);
    let parts = shape.partition(team.threads).position_parts;
    // Sums of dy in f64 for each part, and room to align them.
    (parts - 1) * conv.weight_elements(xg.channels, f) + 2 * parts * f + 2
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
    mut db: Option<&mut [f32]>,
    conv: &Convolution,
    accumulate: bool,
) -> Result<Work, Canceled> {
    let (xg, yg) = (x.grid, dy.grid);
    let (c, f) = (xg.channels, yg.channels);
    conv.assert_valid(c, f, dw.len());
    conv.assert_boxes(xg, yg);
    if let Some(db) = &db {
        assert!(db.len() >= f, "db of {} for {yg:?}", db.len());
    }
    let weights = conv.weight_elements(c, f);
    let written = 4 * (weights + db.as_ref().map_or(0, |_| f)) as u64;
    let work = Work {
        flops: conv.flops(yg.positions(), c, f),
        bytes: xg.bytes() + yg.bytes() + written * (1 + u64::from(accumulate)),
    };
    let dw = &mut dw[..weights];
    if weights == 0 || yg.positions() == 0 {
        if !accumulate {
            dw.fill(0.0);
            db.iter_mut().for_each(|db| db[..f].fill(0.0));
        }
        return Ok(work);
    }
    let threads = call.team.threads();
    let shape = Shape::new(call.team.level(), conv, xg, f);
    let partition = shape.partition(threads);
    let (scratch, rest) = call
        .scratch
        .split_at_mut((partition.position_parts - 1) * weights);
    // SAFETY: every bit pattern is an f64.
    let (_, sums, _) = unsafe { rest.align_to_mut::<f64>() };
    let sums = &mut sums[..partition.position_parts * f];
    sums.fill(0.0);
    let gradient = Gradient {
        x,
        dy,
        conv,
        shape,
        sums: db.is_some().then_some(SharedSums(sums.as_mut_ptr())),
    };
    gradient.compute(
        call.team,
        call.progress,
        (&partition, work.flops),
        dw,
        scratch,
        accumulate,
    )?;
    for part in scratch.chunks_exact(weights) {
        for (sum, a) in dw.iter_mut().zip(part) {
            *sum += a;
        }
    }
    if let Some(db) = db {
        for (c, db) in db[..f].iter_mut().enumerate() {
            let sum: f64 = sums[c..].iter().step_by(f).sum();
            *db = sum as f32 + if accumulate { *db } else { 0.0 };
        }
    }
    Ok(work)
}

#[derive(Clone, Copy)]
struct SharedSums(*mut f64);

// SAFETY: a pointer alone touches nothing; a unit writes the sums of its own vectors in its own part.
unsafe impl Send for SharedSums {}
// SAFETY: as above.
unsafe impl Sync for SharedSums {}

/// What one unit computes.
struct Share {
    rows: Range<usize>,
    tiles: Range<usize>,
    /// Which part of the positions the rows are.
    position_part: usize,
    /// Vectors of dy to sum.
    vectors: Range<usize>,
}

struct Gradient<'a> {
    x: View<'a>,
    dy: View<'a>,
    conv: &'a Convolution,
    shape: Shape,
    /// For each part of the positions, the sums of dy.
    sums: Option<SharedSums>,
}

impl Gradient<'_> {
    /// The innermost dim with more than one position (N D H W = 0..4): the tiles stream over it.
    fn inner(&self) -> usize {
        let counts = self.dy.grid.counts();
        (0..4).rev().find(|i| counts[*i] > 1).unwrap_or(3)
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

    /// The first part of the positions into `dw`, to which it adds if it accumulates, and each other
    /// one into elements of its own of `parts`; of so many flops.
    fn compute(
        &self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        (partition, flops): (&Partition, u64),
        dw: &mut [f32],
        parts: &mut [f32],
        accumulate: bool,
    ) -> Result<(), Canceled> {
        let (shape, f, weights) = (&self.shape, self.dy.grid.channels, dw.len());
        let (out, parts) = (Shared(dw.as_mut_ptr()), Shared(parts.as_mut_ptr()));
        let units = partition.position_parts * partition.tile_parts;
        team.units(progress, units, flops / units as u64, &|unit, poll| {
            let (p, t) = (unit / partition.tile_parts, unit % partition.tile_parts);
            let (to, load) = match p {
                0 => (out.get(), accumulate),
                // SAFETY: part p > 0 of the positions has elements (p - 1) * weights.. of the scratch.
                1.. => (unsafe { parts.get().add((p - 1) * weights) }, false),
            };
            let share = Share {
                rows: part(self.rows(), p, partition.position_parts),
                tiles: part(shape.groups * shape.tiles(), t, partition.tile_parts),
                position_part: p,
                vectors: part(f.div_ceil(shape.level.lanes()), t, partition.tile_parts),
            };
            // SAFETY: the boxes hold their slices, x is the complete input of dy, and each unit has
            // tiles of dw or of its part of the scratch, and sums, of its own.
            unsafe { self.share(share, to, load, poll) };
        })
    }

    /// Some tiles over some rows of positions.
    ///
    /// # Safety
    /// x is the complete input of dy, `dw` is valid for all weights, the level is the team's, and nobody
    /// else touches the tiles and sums of the share.
    unsafe fn share(&self, share: Share, dw: *mut f32, load: bool, poll: &mut Poll) {
        let (inner, s) = (self.inner_count(), &self.shape);
        let positions = (BLOCK_ELEMENTS / s.f).max(BLOCK_POSITIONS_MIN);
        let step = positions.div_ceil(inner);
        let mut at = share.rows.start;
        let mut load = load;
        // An empty share must still write its zeros.
        loop {
            let block = at..(at + step).min(share.rows.end);
            let flops = 2 * block.len() * inner * s.f * s.rows;
            let flops = (flops / (s.f_tiles() * s.q_tiles())) as u64;
            for tile in share.tiles.clone() {
                // SAFETY: guaranteed by the caller.
                unsafe { self.tile(block.clone(), tile, dw, load) };
                if !poll.tick(flops) {
                    return;
                }
            }
            if let Some(sums) = self.sums {
                // SAFETY: guaranteed by the caller.
                unsafe { self.add_up(block, &share, sums) };
            }
            load = true;
            at += step;
            if at >= share.rows.end {
                return;
            }
        }
    }

    /// Adds dy over a block of rows, which the tiles have just read, to the sums.
    ///
    /// # Safety
    /// As for `share`; there are sums for each part of the positions.
    unsafe fn add_up(&self, rows: Range<usize>, share: &Share, sums: SharedSums) {
        let (level, f) = (self.shape.level, self.dy.grid.channels);
        for vector in share.vectors.clone() {
            let c0 = vector * level.lanes();
            let args = TileArgs {
                y: self.dy.data[c0..].as_ptr(),
                lanes: (f - c0).min(level.lanes()),
                ..self.walk(rows.clone())
            };
            // SAFETY: channels of dy, in the sums of this part; the rest is guaranteed by the caller.
            unsafe {
                let sums = sums.0.add(share.position_part * f + c0);
                level.run(BiasSums { args, sums });
            }
        }
    }

    /// The walk over a block of rows, without a tile.
    fn walk(&self, rows: Range<usize>) -> TileArgs {
        let (x_step, y_step) = self.steps();
        let (inner, counts) = (self.inner(), self.dy.grid.counts());
        TileArgs {
            x: std::ptr::null(),
            y: std::ptr::null(),
            dw: std::ptr::null_mut(),
            dw_pitch: 0,
            rows: (rows.start, rows.end),
            counts: std::array::from_fn(|i| if i < inner { counts[i] } else { 1 }),
            x_step,
            y_step,
            inner: (self.inner_count(), x_step[inner], y_step[inner]),
            lanes: 0,
            load: false,
            xo: [0; Q_MAX],
        }
    }

    /// One tile over a block of rows.
    ///
    /// # Safety
    /// As for `share`.
    unsafe fn tile(&self, rows: Range<usize>, tile: usize, dw: *mut f32, load: bool) {
        let s = &self.shape;
        let (ft, rest) = (tile % s.f_tiles(), tile / s.f_tiles());
        let (qt, rest) = (rest % s.q_tiles(), rest / s.q_tiles());
        let (stretch, g) = (rest % s.stretches, rest / s.stretches);
        let (f0, v, lanes) = s.f_tile(ft);
        let q = part(s.rows, qt, s.q_tiles());
        let f = s.f * s.groups;
        // Input channels of a tap are neighbors; depthwise, the rows are the taps themselves.
        let mut xo = [0; Q_MAX];
        let x0 = if s.depthwise {
            for (xo, tap) in xo.iter_mut().zip(q.clone()) {
                *xo = self.tap(tap);
            }
            f0
        } else {
            self.tap(stretch * (s.rows / s.c.max(1))) + g * s.c + q.start
        };
        let args = TileArgs {
            x: self.x.data[x0..].as_ptr(),
            y: self.dy.data[g * s.f + f0..].as_ptr(),
            // SAFETY: rows of the weights that exist, as the caller says.
            dw: unsafe { dw.add((stretch * s.rows + q.start) * f + g * s.f + f0) },
            dw_pitch: f,
            lanes,
            load,
            xo,
            ..self.walk(rows)
        };
        let partial = lanes < s.level.lanes();
        // SAFETY: guaranteed by the caller; the tile lies inside the weights.
        unsafe {
            if s.depthwise {
                dispatch::<true>(s.level, v, q.len(), partial, args)
            } else {
                dispatch::<false>(s.level, v, q.len(), partial, args)
            }
        }
    }

    /// Offset of a tap in x.
    fn tap(&self, tap: usize) -> usize {
        let k = self.conv.window.kernel;
        let at = [tap / k[2] / k[1], tap / k[2] % k[1], tap % k[2]];
        let (d, p) = (self.conv.window.dilation, self.x.grid.pitch);
        (0..3).map(|i| at[i] * d[i] * p[i + 1]).sum()
    }
}

/// Pointers: from x the rows of the tile, from y its vectors (of PART `lanes`), both at each position;
/// from dw the tile, which no other thread accesses.
#[derive(Clone, Copy)]
struct TileArgs {
    x: *const f32,
    y: *const f32,
    dw: *mut f32,
    dw_pitch: usize,
    rows: (usize, usize),
    /// Extents of the dims outside the inner one; the others 1.
    counts: [usize; 4],
    x_step: [usize; 4],
    y_step: [usize; 4],
    /// Positions of a row, steps of x and dy.
    inner: (usize, usize, usize),
    lanes: usize,
    load: bool,
    /// Depthwise: offsets of the taps in x.
    xo: [usize; Q_MAX],
}

/// A walk over rows of positions; divides once, not for every row.
struct Rows<'a> {
    tile: &'a TileArgs,
    index: [usize; 4],
    x: usize,
    y: usize,
}

impl Rows<'_> {
    #[inline(always)]
    fn new(tile: &TileArgs) -> Rows<'_> {
        let (mut index, mut rest) = ([0; 4], tile.rows.0);
        for dim in [2, 1, 0] {
            index[dim] = rest % tile.counts[dim];
            rest /= tile.counts[dim];
        }
        let dot = |step: &[usize; 4]| (0..3).map(|i| index[i] * step[i]).sum();
        let (x, y) = (dot(&tile.x_step), dot(&tile.y_step));
        Rows { tile, index, x, y }
    }

    #[inline(always)]
    fn step(&mut self) {
        let t = self.tile;
        for dim in [2, 1, 0] {
            self.index[dim] += 1;
            self.x += t.x_step[dim];
            self.y += t.y_step[dim];
            if self.index[dim] < t.counts[dim] {
                return;
            }
            self.index[dim] = 0;
            self.x -= t.counts[dim] * t.x_step[dim];
            self.y -= t.counts[dim] * t.y_step[dim];
        }
    }
}

/// `PART`: only some lanes of the one vector exist. `DEEP`: depthwise, the rows are taps. Pointers as
/// those of [`TileArgs`].
struct Tile<const V: usize, const Q: usize, const PART: bool, const DEEP: bool>(TileArgs);

impl<const V: usize, const Q: usize, const PART: bool, const DEEP: bool> Op
    for Tile<V, Q, PART, DEEP>
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
            let (count, x_step, y_step) = t.inner;
            let mut rows = Rows::new(&t);
            for _ in t.rows.0..t.rows.1 {
                let (mut x, mut y) = (t.x.add(rows.x), t.y.add(rows.y));
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
/// Pointers: from the `y` of `args` so many lanes at each position, and as many sums, which nobody else
/// touches.
struct BiasSums {
    args: TileArgs,
    sums: *mut f64,
}

impl Op for BiasSums {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let t = self.args;
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
                        acc[i % 4] = S::add(acc[i % 4], S::load_part(y, t.lanes));
                        // The last step may leave the slice.
                        y = y.wrapping_add(y_step);
                    }
                    left -= n;
                    summed += n;
                    if summed >= NARROW {
                        widen::<S>(&mut acc, self.sums, t.lanes);
                        summed = 0;
                    }
                }
            }
            widen::<S>(&mut acc, self.sums, t.lanes);
        }
    }
}

/// Adds the lanes of four vectors to sums in f64, and zeros them.
///
/// # Safety
/// There are as many sums as lanes, and no other thread accesses them.
#[inline(always)]
unsafe fn widen<S: Simd>(acc: &mut [S::V; 4], sums: *mut f64, lanes: usize) {
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
unsafe fn dispatch<const DEEP: bool>(level: Level, v: usize, q: usize, partial: bool, t: TileArgs) {
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
