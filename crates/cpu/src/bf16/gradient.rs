//! Gradient of a convolution on bf16 with respect to its weights.
//!
//! A thread takes the positions block by block. It packs dy of a block by tiles of output channels, and x by tiles
//! of Q input channels (neighboring taps in W included); a tile of Q x V vectors of dw stays in registers while it
//! streams over both. With pairs of bf16, a word has a channel at two neighboring positions.

use super::products::{PairTile, PairTileArgs};
use crate::conv::convolution::Convolution;
use crate::conv::values::Values;
use crate::conv::walk::{P_MAX, Positions, Walk};
use crate::conv::weight::{self, widen};
use crate::conv::weight_parts::{InParts, Share, in_parts, scratch_of_parts};
use crate::conv::weight_plan::{Partition, Q_MAX, Shape};
use crate::conv::weight_walk::WalkArgs;
use crate::grid::{Call, Canceled, Grid, Shared, View, Work, part};
use crate::simd::{LANES_MAX, Level, Op, PairOp, Pairs, Simd};
use crate::team::{ELEMENT, Poll, TeamKind};
use half::bf16;

/// Positions of a block.
const POSITIONS: usize = 384;
/// Elements between positions, or pairs, of packed x.
const X_PITCH: usize = LANES_MAX;
/// Elements of packed dy: half of an L2 cache.
const DY_ELEMENTS: usize = 128 * 1024;

/// Offsets of the positions of a block.
type Offsets = [usize; POSITIONS];

/// Scratch elements of f32 that [`conv_backward_weight_bf16`] needs for input boxes like `xg` and F outputs.
pub fn conv_backward_weight_scratch_bf16(
    team: TeamKind,
    conv: &Convolution,
    xg: &Grid,
    f: usize,
) -> usize {
    let shape = Shape::new(team.level, conv, xg, f);
    let [d, h, w] = conv.window.outputs(xg.extent);
    let partition = shape.partition(team.threads, [xg.samples, d, h, w]);
    let rooms = team.threads * room(&shape);
    scratch_of_parts(conv, (xg.channels, f), partition, rooms)
}

/// Elements of packed dy of a tile of output channels.
fn dy_elements(level: Level) -> usize {
    POSITIONS.div_ceil(per_row(level)) * 2 * level.lanes()
}

/// Positions of a packed row.
fn per_row(level: Level) -> usize {
    if level.has_pairs() { 2 } else { 1 }
}

/// Tiles of output channels whose dy is packed at a time.
fn packed_tiles(shape: &Shape) -> usize {
    (DY_ELEMENTS / dy_elements(shape.level)).min(shape.f_tiles())
}

/// Scratch elements of a thread.
fn room(shape: &Shape) -> usize {
    X_PITCH * POSITIONS + packed_tiles(shape) * dy_elements(shape.level)
}

/// As [`crate::conv_backward_weight`] on x and dy in bf16; sums, dw and db are in f32.
///
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other.
pub fn conv_backward_weight_bf16(
    call: &mut Call,
    x: View<bf16>,
    dy: View<bf16>,
    dw: &mut [f32],
    db: Option<&mut [f32]>,
    conv: &Convolution,
    accumulate: bool,
) -> Result<Work, Canceled> {
    let threads = call.team.threads();
    in_parts(call, (&x, &dy), dw, db, (conv, accumulate), |shape| {
        Gradient {
            x,
            dy,
            conv,
            partition: shape.partition(threads, dy.grid.counts()),
            shape,
        }
    })
}

/// As [`crate::bias_backward`] on dy in bf16. Bit-reproducible for any number of threads. Needs no scratch.
///
/// Errors: [`Canceled`]. Panics if db is too short.
pub fn bias_backward_bf16(
    call: &mut Call,
    dy: View<bf16>,
    db: &mut [f32],
    accumulate: bool,
) -> Result<Work, Canceled> {
    let (g, level) = (dy.grid, call.team.level());
    let f = g.channels;
    assert!(db.len() >= f, "db of {} for {g:?}", db.len());
    let (lanes, out) = (level.lanes(), Shared(db.as_mut_ptr()));
    let cost = ELEMENT * (g.positions() * lanes) as u64;
    let units = f.div_ceil(lanes);
    call.team.units(call.progress, units, cost, &|vector, _| {
        let (c0, mut sums) = (vector * lanes, [0.0; LANES_MAX]);
        let some = (f - c0).min(lanes);
        let whole = Positions::new(g, 0, [0; 3], [1; 3]);
        let (mut walk, mut offsets) = (Walk::new(g.counts(), [whole], 0), [[0; P_MAX]; 1]);
        for at in (0..g.positions()).step_by(P_MAX) {
            let n = P_MAX.min(g.positions() - at);
            walk.take(n, &mut offsets);
            let sum = ColumnSums {
                from: dy.data[c0..].as_ptr(),
                offsets: &offsets[0][..n],
                lanes: some,
                sums: sums.as_mut_ptr(),
            };
            // SAFETY: channels of the box at its positions; the team has the level.
            unsafe { level.run(sum) };
        }
        for (c, sum) in sums[..some].iter().enumerate() {
            // SAFETY: a unit has channels of db of its own.
            unsafe {
                let db = out.get().add(c0 + c);
                *db = *sum as f32 + if accumulate { *db } else { 0.0 };
            }
        }
    })?;
    Ok(Work {
        flops: g.elements() as u64,
        bytes: dy.bytes() + 4 * f as u64 * (1 + u64::from(accumulate)),
    })
}

struct Gradient<'a> {
    x: View<'a, bf16>,
    dy: View<'a, bf16>,
    conv: &'a Convolution,
    shape: Shape,
    partition: Partition,
}

/// A block of positions.
struct Block<'a> {
    x: &'a [usize],
    y: &'a [usize],
    /// Add to dw.
    load: bool,
}

impl InParts for Gradient<'_> {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn partition(&self) -> Partition {
        self.partition
    }

    fn room(&self) -> usize {
        room(&self.shape)
    }

    unsafe fn share(&self, share: Share, (dw, mut load): (*mut f32, bool), poll: &mut Poll) {
        let own = part(self.dy.grid.positions(), share.part.0, share.part.1);
        let grids = (self.x.grid, self.dy.grid);
        let positions = [
            Positions::new(grids.0, 0, [0; 3], self.conv.window.stride),
            Positions::new(grids.1, 0, [0; 3], [1; 3]),
        ];
        let mut walk = Walk::new(grids.1.counts(), positions, own.start);
        let (mut x, mut y): (Offsets, Offsets) = ([0; POSITIONS], [0; POSITIONS]);
        let mut at = own.start;
        // An empty share must still write its zeros.
        loop {
            let n = POSITIONS.min(own.end - at);
            for first in (0..n).step_by(P_MAX) {
                let count = P_MAX.min(n - first);
                let mut some = [[0; P_MAX]; 2];
                walk.take(count, &mut some);
                x[first..first + count].copy_from_slice(&some[0][..count]);
                y[first..first + count].copy_from_slice(&some[1][..count]);
            }
            let block = Block {
                x: &x[..n],
                y: &y[..n],
                load,
            };
            // SAFETY: guaranteed by the caller; the offsets are those of positions.
            unsafe {
                let goes_on = if self.shape.depthwise {
                    self.depthwise(&block, &share, dw, poll)
                } else {
                    self.tiles(&block, &share, dw, poll)
                };
                if !goes_on {
                    return;
                }
                self.add_up(&block, &share);
            }
            load = true;
            at += n;
            if at >= own.end {
                return;
            }
        }
    }
}

impl Gradient<'_> {
    /// The tiles of a share over a block; returns whether to go on.
    ///
    /// # Safety
    /// As for `share`.
    unsafe fn tiles(&self, block: &Block, share: &Share, dw: *mut f32, poll: &mut Poll) -> bool {
        let s = &self.shape;
        let (f_tiles, of_group, step) = (s.f_tiles(), s.tiles(), packed_tiles(s));
        for g in share.tiles.start / of_group..share.tiles.end.div_ceil(of_group) {
            let own = |tile: usize| share.tiles.contains(&(g * of_group + tile));
            for first in (0..f_tiles).step_by(step) {
                let some = first..(first + step).min(f_tiles);
                for ft in some.clone() {
                    // SAFETY: guaranteed by the caller; there is room for these tiles.
                    unsafe { self.pack_dy(block, (g, ft), self.dy_room(share, ft - first)) };
                }
                for rows in 0..s.stretches * s.q_tiles() {
                    if !some.clone().any(|ft| own(rows * f_tiles + ft)) {
                        continue;
                    }
                    // SAFETY: as above.
                    unsafe { self.pack_x(block, (g, rows), share.room) };
                    for ft in some.clone().filter(|ft| own(rows * f_tiles + ft)) {
                        let dy = self.dy_room(share, ft - first);
                        // SAFETY: as above; x and dy of the tile are packed.
                        unsafe { self.tile(block, (g, rows, ft), (share.room, dy), dw) };
                        let flops = 2 * block.y.len() * Q_MAX * 2 * s.level.lanes();
                        if !poll.tick(flops as u64) {
                            return false;
                        }
                    }
                }
            }
        }
        true
    }

    fn dy_room(&self, share: &Share, tile: usize) -> *mut f32 {
        let tiles = tile * dy_elements(self.shape.level);
        share.room.wrapping_add(X_PITCH * POSITIONS + tiles)
    }

    /// # Safety
    /// As for `share`; there is room for a tile.
    unsafe fn pack_dy(&self, block: &Block, (g, ft): (usize, usize), to: *mut f32) {
        let s = &self.shape;
        let (f0, v, lanes) = s.f_tile(ft);
        let columns = Columns {
            from: self.dy.data[g * s.f + f0..].as_ptr(),
            offsets: block.y,
            vectors: v,
            lanes,
            to,
            pitch: v * s.level.lanes(),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { columns.pack(s.level) };
    }

    /// Tile of rows `rows` of a group.
    ///
    /// # Safety
    /// As for `share`; there is room for a tile.
    unsafe fn pack_x(&self, block: &Block, (g, rows): (usize, usize), to: *mut f32) {
        let s = &self.shape;
        let (stretch, q) = (rows / s.q_tiles(), s.q_tile(rows % s.q_tiles()));
        let x0 = self
            .conv
            .offset_of(self.x.grid, stretch * (s.rows / s.c.max(1)))
            + g * s.c
            + q.start;
        let (lanes, count) = (s.level.lanes(), q.len());
        let columns = Columns {
            from: self.x.data[x0..].as_ptr(),
            offsets: block.x,
            vectors: count.div_ceil(lanes),
            lanes: (count - 1) % lanes + 1,
            to,
            pitch: X_PITCH,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { columns.pack(s.level) };
    }

    /// # Safety
    /// As for `share`; x and dy are packed.
    unsafe fn tile(
        &self,
        block: &Block,
        (g, rows, ft): (usize, usize, usize),
        (x, dy): (*const f32, *const f32),
        dw: *mut f32,
    ) {
        let s = &self.shape;
        let (stretch, q) = (rows / s.q_tiles(), s.q_tile(rows % s.q_tiles()));
        let (f0, v, lanes) = s.f_tile(ft);
        let (f, load) = (s.f * s.groups, block.load);
        // SAFETY: guaranteed by the caller; rows of the weights that exist.
        unsafe {
            let dw = dw.add((stretch * s.rows + q.start) * f + g * s.f + f0);
            if s.level.has_pairs() {
                let tile = PairTileArgs {
                    x,
                    x_pitch: X_PITCH,
                    dy,
                    pairs: block.y.len().div_ceil(2),
                    dw,
                    dw_pitch: f,
                    rows: q.len(),
                    lanes,
                    load,
                };
                return PairTile::dispatch(s.level, v, tile);
            }
            let walk = WalkArgs {
                x,
                y: dy,
                rows: (0, 1),
                counts: [1; 4],
                x_step: [0; 4],
                y_step: [0; 4],
                inner: (block.y.len(), X_PITCH, v * s.level.lanes()),
            };
            weight::run_tile(s.level, (v, q.len(), lanes), walk, (dw, f, load));
        }
    }

    /// A depthwise convolution; returns whether to go on.
    ///
    /// # Safety
    /// As for `share`.
    unsafe fn depthwise(
        &self,
        block: &Block,
        share: &Share,
        dw: *mut f32,
        poll: &mut Poll,
    ) -> bool {
        let s = &self.shape;
        for tile in share.tiles.clone() {
            let (f0, v, lanes) = s.f_tile(tile % s.f_tiles());
            let q = s.q_tile(tile / s.f_tiles());
            for vector in 0..v {
                let c0 = f0 + vector * s.level.lanes();
                for first in q.clone().step_by(TAPS) {
                    let count = TAPS.min(q.end - first);
                    let taps: [usize; TAPS] = std::array::from_fn(|i| {
                        self.conv.offset_of(self.x.grid, first + i.min(count - 1))
                    });
                    let some = DeepTile {
                        x: self.x.data[c0..].as_ptr(),
                        y: self.dy.data[c0..].as_ptr(),
                        offsets: (block.x, block.y),
                        taps: &taps,
                        count,
                        lanes,
                        // SAFETY: rows of the weights that exist, as the caller says.
                        dw: unsafe { dw.add(first * s.f + c0) },
                        dw_pitch: s.f,
                        load: block.load,
                    };
                    // SAFETY: guaranteed by the caller.
                    unsafe { s.level.run(some) };
                }
            }
            if !poll.tick((2 * block.y.len() * q.len() * v * s.level.lanes()) as u64) {
                return false;
            }
        }
        true
    }

    /// Adds dy of a block, which the tiles have just read, to the sums.
    ///
    /// # Safety
    /// As for `share`.
    unsafe fn add_up(&self, block: &Block, share: &Share) {
        let (level, f) = (self.shape.level, self.dy.grid.channels);
        let Some(sums) = share.sums else {
            return;
        };
        for vector in share.vectors.clone() {
            let c0 = vector * level.lanes();
            let sum = ColumnSums {
                from: self.dy.data[c0..].as_ptr(),
                offsets: block.y,
                lanes: (f - c0).min(level.lanes()),
                sums: sums.wrapping_add(c0),
            };
            // SAFETY: channels of dy, in the sums of this part; the rest is guaranteed by the caller.
            unsafe { level.run(sum) };
        }
    }
}

/// Vectors at some offsets to rows, one for each offset in f32, or for two of them in pairs.
///
/// Pointers: the vectors at each offset, of the last one only `lanes` lanes; room for the rows.
struct Columns<'a> {
    from: *const bf16,
    offsets: &'a [usize],
    vectors: usize,
    lanes: usize,
    to: *mut f32,
    pitch: usize,
}

impl Columns<'_> {
    /// # Safety
    /// The processor has the level, and the pointer requirements of [`Columns`] hold.
    unsafe fn pack(self, level: Level) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if level.has_pairs() {
                level.run_pairs(Pack(self));
            } else {
                level.run(Pack(self));
            }
        }
    }

    /// Lanes of a vector, if all vectors were whole but the last.
    fn lanes_of<S: Simd>(&self, vector: usize) -> usize {
        if vector + 1 == self.vectors {
            self.lanes
        } else {
            S::LANES
        }
    }
}

struct Pack<'a>(Columns<'a>);

impl Op for Pack<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let c = self.0;
        for v in 0..c.vectors {
            let (at, lanes) = (v * S::LANES, c.lanes_of::<S>(v));
            for (row, offset) in c.offsets.iter().enumerate() {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let a = bf16::load::<S>(c.from.add(offset + at), lanes);
                    S::store(c.to.add(row * c.pitch + at), a);
                }
            }
        }
    }
}

impl PairOp for Pack<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Pairs>(self) {
        let c = self.0;
        for v in 0..c.vectors {
            let (at, lanes) = (v * S::LANES, c.lanes_of::<S>(v));
            let (pairs, last) = c.offsets.as_chunks::<2>();
            // SAFETY: guaranteed by the caller.
            unsafe {
                let (from, mut to) = (c.from.add(at), c.to.add(at));
                for [first, second] in pairs {
                    let first = bf16::load::<S>(from.add(*first), lanes);
                    let second = bf16::load::<S>(from.add(*second), lanes);
                    S::store(to, S::join(first, second));
                    to = to.wrapping_add(c.pitch);
                }
                if let [first] = last {
                    let first = bf16::load::<S>(from.add(*first), lanes);
                    S::store(to, S::join(first, S::splat(0.0)));
                }
            }
        }
    }
}

/// Taps of a depthwise tile.
const TAPS: usize = 4;

/// Taps x one vector of dw of a depthwise convolution; taps beyond `count` are not stored.
///
/// Pointers: `lanes` lanes of x at each offset and tap, of dy at each offset, and of dw.
struct DeepTile<'a> {
    x: *const bf16,
    y: *const bf16,
    offsets: (&'a [usize], &'a [usize]),
    taps: &'a [usize; TAPS],
    count: usize,
    lanes: usize,
    dw: *mut f32,
    dw_pitch: usize,
    load: bool,
}

impl Op for DeepTile<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let t = self;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut acc = [S::splat(0.0); TAPS];
            for (x, y) in t.offsets.0.iter().zip(t.offsets.1) {
                let dy = bf16::load::<S>(t.y.add(*y), t.lanes);
                for i in 0..TAPS {
                    let x = bf16::load::<S>(t.x.add(x + t.taps[i]), t.lanes);
                    acc[i] = S::fma(x, dy, acc[i]);
                }
            }
            for i in 0..TAPS {
                if i < t.count {
                    let to = t.dw.add(i * t.dw_pitch);
                    let before = if t.load {
                        S::load_part(to, t.lanes)
                    } else {
                        S::splat(0.0)
                    };
                    S::store_part(to, t.lanes, S::add(acc[i], before));
                }
            }
        }
    }
}

/// Positions whose sum is taken in f32.
const NARROW: usize = 16;

/// Sums of one vector over some offsets.
///
/// Pointers: `lanes` lanes at each offset, and as many sums, which nobody else touches.
struct ColumnSums<'a> {
    from: *const bf16,
    offsets: &'a [usize],
    lanes: usize,
    sums: *mut f64,
}

impl Op for ColumnSums<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            for some in self.offsets.chunks(NARROW) {
                let mut acc = [S::splat(0.0); 4];
                for (i, offset) in some.iter().enumerate() {
                    let a = S::load_bf16_part(self.from.add(*offset), self.lanes);
                    acc[i % 4] = S::add(acc[i % 4], a);
                }
                widen::<S>(&mut acc, self.sums, self.lanes);
            }
        }
    }
}
