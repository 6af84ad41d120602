//! The direct convolution on bf16: its blocking.
//!
//! As in [`crate::conv::direct`], but sums stay in f32 until all stretches are added: where one
//! sweep does not cover them, the sums of some positions wait in the scratch of the thread.

use super::stage::{Widen, complete};
use super::tile::{Outputs, TileArgs, dispatch};
use super::weights::{Plain, row_channels};
use crate::conv::direct::{
    Cursor, DirectConvolution, JobWeights, POSITIONS_PER_WEIGHTS, RUNS_MAX, UNITS_PER_THREAD,
};
use crate::conv::epilogue::{BOXES, Moments, TileOutputs};
use crate::conv::loose_weights::WEIGHTS_PER_SWEEP;
use crate::conv::tile::{self, RunArgs, Stretch};
use crate::conv::tiles::Tiles;
use crate::conv::values::UnroundedRows;
use crate::conv::walk::{Offsets, P_MAX, Positions, Walk};
use crate::grid::{Canceled, Shared, part};
use crate::simd::{LANES_MAX, Level};
use crate::team::{Poll, Team};
use half::bf16;
use std::ops::Range;

/// Channels of a tile, at most.
const WIDTH_MAX: usize = 4 * LANES_MAX;
/// Positions whose sums wait for further sweeps.
const POSITIONS_WAITING: usize = POSITIONS_PER_WEIGHTS;
/// Elements of their sums.
const SUMS: usize = POSITIONS_WAITING * WIDTH_MAX;
/// Rows of the weights in a sweep for which x is copied: with the copies, they stay in the L1 cache.
const STAGED_ROWS: usize = 512;
/// Elements of the copies of a tile, with room for a vector that is stored whole.
const STAGE: usize = P_MAX * STAGED_ROWS + LANES_MAX;
/// Elements of weights that a thread packs for a sweep.
const LOOSE: usize = WEIGHTS_PER_SWEEP + 512;

/// Scratch elements of a thread.
pub(super) fn room(is_loose: bool) -> usize {
    SUMS + STAGE + if is_loose { LOOSE } else { 0 }
}

/// Weights of jobs on bf16, and scratch of each thread.
#[derive(Clone, Copy)]
pub(crate) struct HalfWeights<'a> {
    pub(super) source: Source<'a>,
    /// [`room`] for each thread, which nobody else has.
    pub(super) rooms: Shared,
}

#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// By groups, tiles and taps.
    Packed(&'a [f32]),
    /// Packed as they are needed.
    Loose(Plain<'a>),
    /// Rounded ones of a depthwise convolution, (tap, F); whether the taps are flipped.
    Depthwise(&'a [f32], bool),
}

/// Scratch of one thread.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub sums: *mut f32,
    stage: *mut f32,
    loose: *mut f32,
}

impl HalfWeights<'_> {
    /// The scratch of a thread.
    pub(super) fn room(&self, thread: usize) -> Room {
        let is_loose = matches!(self.source, Source::Loose(_));
        let sums = self.rooms.get().wrapping_add(thread * room(is_loose));
        Room {
            sums,
            stage: sums.wrapping_add(SUMS),
            loose: sums.wrapping_add(SUMS + STAGE),
        }
    }
}

impl JobWeights<bf16> for HalfWeights<'_> {
    fn of_group(self, g: usize, groups: usize, width: usize) -> Self {
        let source = match self.source {
            Source::Packed(w) => {
                let part = w.len() / groups;
                Source::Packed(&w[g * part..(g + 1) * part])
            }
            Source::Loose(w) => Source::Loose(w.at_channel(g * width)),
            Source::Depthwise(..) => self.source,
        };
        HalfWeights { source, ..self }
    }

    unsafe fn run(
        job: &DirectConvolution<'_, bf16, Self>,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<usize, Canceled> {
        let positions: usize = job.count.iter().product();
        if positions == 0 || job.f == 0 {
            return Ok(0);
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            match job.weights.source {
                Source::Depthwise(w, is_flipped) => {
                    job.run_depthwise_half((w, is_flipped), team, progress)
                }
                Source::Packed(_) | Source::Loose(_) => job.run_half(team, progress),
            }
        }
    }
}

/// How a tile is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Products {
    /// From pairs where they lie.
    Pairs,
    /// From pairs in copies.
    CopiedPairs,
    /// From copies in f32.
    Widened,
}

/// A sweep over some positions.
struct Sweep<'a> {
    stretches: &'a [Stretch],
    w: *const f32,
    /// Add to the sums.
    load: bool,
    /// No sweep follows.
    is_last: bool,
}

/// A tile of channels in a unit.
#[derive(Clone, Copy)]
struct Channels {
    level: Level,
    f0: usize,
    v: usize,
    slot: usize,
    room: Room,
}

impl Channels {
    fn width(&self) -> usize {
        self.v * self.level.lanes()
    }
}

impl DirectConvolution<'_, bf16, HalfWeights<'_>> {
    /// # Safety
    /// As for [`JobWeights::run`]; the rooms are those of the team.
    unsafe fn run_half(
        &self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<usize, Canceled> {
        let positions: usize = self.count.iter().product();
        let (level, threads) = (team.level(), team.threads());
        let tiles = Tiles { level, f: self.f };
        let block = self.positions_of_unit(team, POSITIONS_PER_WEIGHTS.min(positions));
        let blocks = positions.div_ceil(block);
        let split = if blocks < UNITS_PER_THREAD * threads {
            tiles.count()
        } else {
            1
        };
        let shares = self.epilogue.shares(blocks);
        let flops = 2 * self.taps_all() * self.c * self.f * positions / (split * shares);
        team.units(progress, shares * split, flops as u64, &|unit, poll| {
            let (share, s) = (unit / split, unit % split);
            let own = part(tiles.count(), s, split);
            // SAFETY: guaranteed by the caller; a unit has tiles or positions of its own, and a slot.
            unsafe { self.clear(share, tiles, own.clone()) };
            for b in part(blocks, share, shares) {
                for (f0, v) in own.clone().map(|tile| tiles.tile(tile)) {
                    let range = b * block..((b + 1) * block).min(positions);
                    let room = self.weights.room(poll.thread);
                    let slot = share;
                    let channels = Channels {
                        level,
                        f0,
                        v,
                        slot,
                        room,
                    };
                    // SAFETY: as above.
                    unsafe { self.unit_half(range, channels, poll) };
                }
            }
        })?;
        Ok(shares)
    }

    fn products(&self, level: Level) -> Products {
        match (level.has_pairs(), self.c % 2) {
            (true, 0) => Products::Pairs,
            (true, _) => Products::CopiedPairs,
            (false, _) => Products::Widened,
        }
    }

    /// A tile of channels for a range of positions.
    ///
    /// # Safety
    /// As for [`JobWeights::run`], of this tile, the positions and the slot.
    unsafe fn unit_half(&self, range: Range<usize>, channels: Channels, poll: &mut Poll) {
        let level = channels.level;
        let products = self.products(level);
        let per_row = row_channels(level);
        let rows_max = WEIGHTS_PER_SWEEP * per_row / channels.width();
        let rows_max = match products {
            Products::Pairs => rows_max,
            Products::CopiedPairs | Products::Widened => rows_max.min(STAGED_ROWS),
        };
        let rows = self.taps_all() * self.c.next_multiple_of(per_row);
        let sweeps = rows.div_ceil(rows_max).max(1);
        let rows_max = rows.div_ceil(sweeps).next_multiple_of(4);
        let mut stretches = [Stretch::default(); RUNS_MAX];
        let mut cursor = Cursor::default();
        let n = self.stretches(&mut cursor, &mut stretches, rows_max, per_row);
        let is_single = cursor.tap >= self.taps_all();
        let step = if is_single {
            range.len()
        } else {
            POSITIONS_WAITING
        };
        let mut walks = self.walks(range.start);
        for at in range.clone().step_by(step) {
            let count = step.min(range.end - at);
            let (mut cursor, mut stretches, mut n) = (cursor, stretches, n);
            let mut load = false;
            loop {
                let is_last = cursor.tap >= self.taps_all();
                // SAFETY: guaranteed by the caller; a thread works on one tile at a time.
                let w = unsafe { self.sweep_weights(&channels, &mut stretches[..n]) };
                let sweep = Sweep {
                    stretches: &stretches[..n],
                    w,
                    load,
                    is_last,
                };
                let depth: usize = sweep.stretches.iter().map(|s| s.len).sum();
                let mut own = walks.clone();
                // SAFETY: guaranteed by the caller.
                unsafe { self.sweep_half(&mut own, (count, is_single), &channels, &sweep) };
                if !poll.tick((2 * depth * channels.width() * count) as u64) {
                    return;
                }
                if is_last {
                    walks = own;
                    break;
                }
                load = true;
                n = self.stretches(&mut cursor, &mut stretches, rows_max, per_row);
            }
        }
    }

    /// Over x and y, and over the boxes of the epilogue.
    fn walks(&self, position: usize) -> (Walk<2>, Option<Walk<BOXES>>) {
        let positions = [self.x_positions, self.y_positions];
        let boxes = self.epilogue.has_boxes();
        (
            Walk::new(self.count, positions, position),
            boxes.then(|| Walk::new(self.count, self.epilogue.positions, position)),
        )
    }

    /// Weights of a tile for some stretches, whose rows become numbers of packed rows.
    ///
    /// # Safety
    /// The level is the team's, and the thread is done with what it packed before.
    unsafe fn sweep_weights(&self, channels: &Channels, stretches: &mut [Stretch]) -> *const f32 {
        let (level, f0, width) = (channels.level, channels.f0, channels.width());
        let per_row = row_channels(level);
        let tap_rows = self.c.div_ceil(per_row);
        match self.weights.source {
            Source::Packed(w) => {
                let rows = self.kernel.iter().product::<usize>() * tap_rows;
                for s in stretches {
                    s.row /= per_row;
                }
                assert!(rows * (f0 + width) <= w.len(), "weights too short");
                w[rows * f0..].as_ptr()
            }
            Source::Loose(plain) => {
                let padded = tap_rows * per_row;
                let mut done = 0;
                for s in stretches {
                    let (mut row, mut left) = (s.row, s.len);
                    s.row = done;
                    while left > 0 {
                        // Rows of one tap.
                        let (tap, within) = (row / padded, row % padded);
                        let n = left.min(self.c - within);
                        let rows = n.div_ceil(per_row);
                        assert!((done + rows) * width <= LOOSE, "{rows} rows of {width}");
                        // SAFETY: inside of the room of the thread, by the assertion.
                        unsafe {
                            let out = channels.room.loose.add(done * width);
                            plain.pack(level, (tap, within, n), (f0, width), out);
                        }
                        (row, left, done) = (row + n, left - n, done + rows);
                    }
                }
                channels.room.loose
            }
            Source::Depthwise(..) => unreachable!("depthwise weights have tiles of their own"),
        }
    }

    /// Adds some stretches to one tile of channels, for the next `count` positions; ends with the epilogue.
    ///
    /// # Safety
    /// As for [`JobWeights::run`], of this tile, the positions and the slot.
    unsafe fn sweep_half(
        &self,
        (walk, boxes): &mut (Walk<2>, Option<Walk<BOXES>>),
        (count, is_single): (usize, bool),
        channels: &Channels,
        sweep: &Sweep,
    ) {
        let (level, f0, v) = (channels.level, channels.f0, channels.v);
        let rest = self.epilogue.tile(f0, channels.slot);
        let slope = rest.slope_alone();
        let is_direct = !rest.is_some() || slope.is_some();
        let products = self.products(level);
        let stores = sweep.is_last && is_direct && products != Products::Widened;
        let p_max = (level.accumulators() / v).min(P_MAX);
        let p = count.div_ceil(count.div_ceil(p_max));
        let (mut offsets, mut box_offsets) = ([[0; P_MAX]; 2], [[0; P_MAX]; BOXES]);
        let mut done = 0;
        while done < count {
            let n = p.min(count - done);
            walk.take(n, &mut offsets);
            let waiting = if is_single { 0 } else { done };
            // SAFETY: guaranteed by the caller; there is room for the sums of these positions.
            unsafe {
                let sums = channels.room.sums.add(waiting * channels.width());
                let at = (&offsets, n, p);
                match products {
                    Products::Pairs => self.pairs(at, channels, sweep, sums),
                    Products::CopiedPairs => self.copied(at, channels, sweep, sums),
                    Products::Widened => self.widened(at, channels, sweep, sums),
                }
                if stores {
                    level.run_pairs(Outputs {
                        sums,
                        pitch: channels.width(),
                        y: self.y.get().add(f0),
                        yo: &offsets[1][..n],
                        accumulate: self.accumulate,
                        bias: self.epilogue.bias_of_tile(f0),
                        slope,
                        width: (self.f - f0).min(channels.width()),
                    });
                } else if sweep.is_last {
                    if let Some(boxes) = boxes {
                        boxes.take(n, &mut box_offsets);
                    }
                    let at = TileAt {
                        yo: &offsets[1][..n],
                        boxes: &box_offsets,
                        width: (self.f - f0).min(channels.width()),
                    };
                    self.finish((level, f0), channels.slot, (sums, channels.width()), at);
                }
            }
            done += n;
        }
    }

    /// The epilogue of some positions, whose sums are rows of this many elements.
    ///
    /// # Safety
    /// As for [`JobWeights::run`], of these positions and the slot.
    pub(super) unsafe fn finish(
        &self,
        (level, f0): (Level, usize),
        slot: usize,
        (rows, pitch): (*const f32, usize),
        at: TileAt,
    ) {
        let unrounded = UnroundedRows {
            rows,
            pitch,
            bias: self.epilogue.bias_of_tile(f0),
            accumulate: self.accumulate,
        };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let outputs = TileOutputs {
                y: self.y.get().add(f0),
                yo: at.yo,
                unrounded,
                boxes: at.boxes,
                width: at.width,
                is_last: true,
            };
            let mut moments = Moments::default();
            self.epilogue
                .tile(f0, slot)
                .apply(level, outputs, &mut moments);
        }
    }

    /// # Safety
    /// As for `sweep_half`, of these positions.
    unsafe fn pairs(
        &self,
        ([xo, yo], n, p): (&[Offsets; 2], usize, usize),
        channels: &Channels,
        sweep: &Sweep,
        sums: *mut f32,
    ) {
        let mut stretches = [Stretch::default(); RUNS_MAX];
        for (to, s) in stretches.iter_mut().zip(sweep.stretches) {
            *to = Stretch {
                len: s.len / 2,
                ..*s
            };
        }
        let tile = TileArgs {
            x: self.x.as_ptr(),
            xo,
            w: sweep.w,
            w_pitch: channels.width(),
            stretches: &stretches[..sweep.stretches.len()],
            load: sweep.load,
            sums,
            sums_pitch: channels.width(),
            n,
            next: (self.y.get().wrapping_add(channels.f0), yo),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { dispatch(channels.level, channels.v, p, tile) };
    }

    /// # Safety
    /// As for `sweep_half`, of these positions.
    unsafe fn copied(
        &self,
        ([xo, yo], n, p): (&[Offsets; 2], usize, usize),
        channels: &Channels,
        sweep: &Sweep,
        sums: *mut f32,
    ) {
        let mut stretches = [Stretch::default(); RUNS_MAX];
        let mut depth = 0;
        for (to, s) in stretches.iter_mut().zip(sweep.stretches) {
            let (x, len) = (depth, s.len.div_ceil(2));
            *to = Stretch { x, len, ..*s };
            depth += 2 * len;
        }
        let stage = channels.room.stage.cast::<bf16>();
        let rows: Offsets = std::array::from_fn(|i| i.min(n - 1) * depth);
        let tile = TileArgs {
            x: stage,
            xo: &rows,
            w: sweep.w,
            w_pitch: channels.width(),
            stretches: &stretches[..sweep.stretches.len()],
            load: sweep.load,
            sums,
            sums_pitch: channels.width(),
            n,
            next: (self.y.get().wrapping_add(channels.f0), yo),
        };
        // SAFETY: guaranteed by the caller; the stage has room for the copies.
        unsafe {
            complete(self.x.as_ptr(), &xo[..n], sweep.stretches, stage, depth);
            dispatch(channels.level, channels.v, p, tile);
        }
    }

    /// # Safety
    /// As for `sweep_half`, of these positions.
    unsafe fn widened(
        &self,
        ([xo, _], n, p): (&[Offsets; 2], usize, usize),
        channels: &Channels,
        sweep: &Sweep,
        sums: *mut f32,
    ) {
        let mut stretches = [Stretch::default(); RUNS_MAX];
        let mut depth = 0;
        for (to, s) in stretches.iter_mut().zip(sweep.stretches) {
            *to = Stretch { x: depth, ..*s };
            depth += s.len;
        }
        let (level, stage, width) = (channels.level, channels.room.stage, channels.width());
        let row = |pitch: usize| Positions {
            base: 0,
            step: [0, 0, 0, pitch],
        };
        let run = RunArgs {
            tile: tile::TileArgs {
                x: stage,
                y: sums,
                w: sweep.w,
                w_pitch: width,
                stretches: &stretches[..sweep.stretches.len()],
                load: sweep.load,
                bias: None,
                slope: None,
                width,
            },
            p,
            walk: Walk::new([1, 1, 1, n], [row(depth), row(width)], 0),
            epilogue_walk: None,
            positions: n,
            tile_epilogue: None,
            level,
        };
        // SAFETY: guaranteed by the caller; the stage has room for the copies.
        unsafe {
            level.run(Widen {
                x: self.x.as_ptr(),
                xo: &xo[..n],
                stretches: sweep.stretches,
                to: stage,
                pitch: depth,
            });
            tile::dispatch(level, channels.v, p, run);
        }
    }
}

/// Where the outputs of some positions are, and the boxes that the epilogue reads.
pub(super) struct TileAt<'a> {
    pub yo: &'a [usize],
    pub boxes: &'a [Offsets; BOXES],
    pub width: usize,
}
