//! The forward convolution and the data gradient: both filter a box.
//!
//! y[p] (+)= sum over taps k of x[p + k + origin] * w[k], x zero outside of its box.
//!
//! Few weights: they are transformed first, then blocks of tiles are distributed over the threads;
//! a block is small enough that its points stay in the caches of a core. Many weights: all tiles
//! are transformed first, then slices of channels are distributed, each of which transforms its own
//! weights: their points, up to eight times the weights, never reach the memory.
//! Legend: T tiles of a block, C channels that are summed over, F channels that are written.

use super::gather::Gather;
use super::multiply::Product;
use super::plan::Plan;
use super::scatter::Scatter;
use super::tiling::{Ordered, Tiling};
use super::weights::Source;
use crate::conv::epilogue::JobEpilogue;
use crate::grid::{Canceled, Shared, part};
use crate::team::{ELEMENT, Poll, Team};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements of the weights that one product reads: in the L1 cache.
const WEIGHTS_PER_SWEEP: usize = 8 * 1024;
/// Tiles that one unit transforms.
const TILES_PER_UNIT: usize = 8;

/// Points of weights: from `w` on those of the tiles of channels from channel `first` on.
#[derive(Clone, Copy)]
struct Slice<'a> {
    w: &'a [f32],
    /// Elements between neighboring points.
    point: usize,
    first: usize,
}

/// Points of a block of tiles. Pointers: as many rows of points as the block has tiles.
#[derive(Clone, Copy)]
struct Block {
    /// First tile and their number.
    tiles: (usize, usize),
    inputs: *const f32,
    products: *mut f32,
}

/// One convolution at stride 1.
pub(crate) struct Filter<'a> {
    pub x: &'a [f32],
    pub x_grid: Ordered,
    pub origin: [i64; 3],
    pub y: Shared,
    pub y_grid: Ordered,
    pub source: Source<'a>,
    /// The points of all weights, if they have been transformed.
    pub weights: Option<&'a [f32]>,
    pub accumulate: bool,
    pub epilogue: JobEpilogue<'a>,
}

impl Filter<'_> {
    /// Runs it on the team; returns how many slots of sums it used.
    ///
    /// # Safety
    /// `y` is valid for the channels of each position of its box, positions do not overlap, and no
    /// other thread accesses them or the slots before this returns; so are the boxes of the
    /// epilogue.
    pub(crate) unsafe fn run(
        &self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        plan: &Plan,
        scratch: &mut [f32],
    ) -> Result<usize, Canceled> {
        assert!(
            scratch.len() >= plan.elements(),
            "scratch of {}",
            scratch.len()
        );
        let scratch = Shared(scratch.as_mut_ptr());
        // SAFETY: guaranteed by the caller; the scratch is as long as the plan says.
        unsafe {
            match self.weights {
                Some(w) if !plan.is_sliced => self.run_blocks(team, progress, plan, w, scratch),
                Some(_) | None => self.run_slices(team, progress, plan, scratch),
            }
        }
    }

    /// Blocks of tiles with their own points, and weights that have been transformed.
    ///
    /// # Safety
    /// As for [`Filter::run`]; the scratch has the elements of the plan.
    unsafe fn run_blocks(
        &self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        plan: &Plan,
        w: &[f32],
        scratch: Shared,
    ) -> Result<usize, Canceled> {
        let slice = Slice {
            w,
            point: self.source.point(self.source.tiles.padded()),
            first: 0,
        };
        let blocks = plan.tiles.div_ceil(plan.block);
        let shares = self.epilogue.shares(blocks);
        let (units, next) = (shares * plan.parts, AtomicUsize::new(0));
        let flops = self.flops(plan, plan.tiles, self.source.tiles.padded()) / plan.threads as u64;
        team.units(progress, plan.threads, flops, &|thread, poll| {
            // SAFETY: a thread has a part of the scratch of its own.
            let inputs = unsafe { scratch.get().add(thread * plan.share()) };
            loop {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= units || poll.canceled() {
                    return;
                }
                let (share, p) = (unit / plan.parts, unit % plan.parts);
                let own = part(self.source.tiles.count(), p, plan.parts);
                // SAFETY: guaranteed by the caller; a unit has tiles or blocks of its own, and a
                // slot.
                unsafe {
                    self.clear(share, own.clone());
                    for b in part(blocks, share, shares) {
                        let first = b * plan.block;
                        let tiles = (first, plan.block.min(plan.tiles - first));
                        self.transform(plan, tiles, inputs);
                        let products = inputs.add(plan.inputs_elements());
                        let block = Block {
                            tiles,
                            inputs,
                            products,
                        };
                        for own in plan.slices(own.clone()) {
                            if !self.block(plan, block, slice, own, share, poll) {
                                return;
                            }
                        }
                    }
                }
            }
        })?;
        Ok(shares)
    }

    /// All tiles of a part that fits, then slices of channels that share them.
    ///
    /// # Safety
    /// As for [`Filter::run_blocks`].
    unsafe fn run_slices(
        &self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        plan: &Plan,
        scratch: Shared,
    ) -> Result<usize, Canceled> {
        let slices = plan.slices(0..self.source.tiles.count()).count();
        for first in (0..plan.tiles).step_by(plan.shared) {
            let shared = plan.shared.min(plan.tiles - first);
            let elements = plan.points * plan.inputs.row * TILES_PER_UNIT;
            let units = shared.div_ceil(TILES_PER_UNIT);
            team.units(progress, units, ELEMENT * elements as u64, &|unit, _| {
                let tile = unit * TILES_PER_UNIT;
                let tiles = (first + tile, TILES_PER_UNIT.min(shared - tile));
                // SAFETY: guaranteed by the caller; a unit has rows of its own.
                unsafe { self.transform(plan, tiles, scratch.get().add(tile * plan.inputs.row)) };
            })?;
            let next = AtomicUsize::new(0);
            let flops = self.flops(plan, shared, self.source.tiles.padded()) / plan.threads as u64;
            team.units(progress, plan.threads, flops, &|thread, poll| {
                // SAFETY: a thread has a part of the scratch of its own, after the shared inputs.
                let own = unsafe {
                    scratch
                        .get()
                        .add(plan.inputs_elements() + thread * plan.share())
                };
                loop {
                    let unit = next.fetch_add(1, Ordering::Relaxed);
                    if unit >= slices || poll.canceled() {
                        return;
                    }
                    // SAFETY: guaranteed by the caller; a unit has channels of its own.
                    unsafe { self.slice(plan, (first, shared), unit, (scratch.get(), own), poll) };
                }
            })?;
        }
        Ok(1)
    }

    /// Some channels of all tiles that are shared; the points of these, and the scratch of the
    /// thread.
    ///
    /// # Safety
    /// As for [`Filter::run_blocks`], of these channels.
    unsafe fn slice(
        &self,
        plan: &Plan,
        (first, shared): (usize, usize),
        unit: usize,
        (inputs, scratch): (*const f32, *mut f32),
        poll: &mut Poll,
    ) {
        let Some(own) = plan.slices(0..self.source.tiles.count()).nth(unit) else {
            return;
        };
        let (f0, f1) = self.channels(&own);
        // SAFETY: guaranteed by the caller; weights lie after the products.
        unsafe {
            if first == 0 {
                self.clear(0, own.clone());
            }
            let room = scratch.add(plan.products_elements());
            let slice = match self.weights {
                Some(w) => Slice {
                    w,
                    point: self.source.point(self.source.tiles.padded()),
                    first: 0,
                },
                None => {
                    let point = self.source.point(f1 - f0);
                    for tile in own.clone() {
                        let to =
                            room.add(self.source.depth() * (self.source.tiles.tile(tile).0 - f0));
                        self.source.tile(tile, 0..self.source.rows, to, point);
                    }
                    let elements = self.source.elements(f1 - f0);
                    Slice {
                        w: std::slice::from_raw_parts(room, elements),
                        point,
                        first: f0,
                    }
                }
            };
            for tile in (0..shared).step_by(plan.block) {
                let block = Block {
                    tiles: (first + tile, plan.block.min(shared - tile)),
                    inputs: inputs.add(tile * plan.inputs.row),
                    products: scratch,
                };
                if !self.block(plan, block, slice, own.clone(), 0, poll) {
                    return;
                }
            }
        }
    }

    /// First channel of some tiles, and the one after their vectors.
    fn channels(&self, own: &Range<usize>) -> (usize, usize) {
        let (last, v) = self.source.tiles.tile(own.end - 1);
        let end = last + v * self.source.tiles.level.lanes();
        (self.source.tiles.tile(own.start).0, end)
    }

    fn flops(&self, plan: &Plan, tiles: usize, channels: usize) -> u64 {
        (2 * plan.points * self.source.transform.parts() * tiles * self.source.depth() * channels)
            as u64
    }

    /// Zeros the sums of some tiles of channels.
    ///
    /// # Safety
    /// No other thread uses these sums.
    unsafe fn clear(&self, slot: usize, own: Range<usize>) {
        if let (Some(slots), false) = (self.epilogue.slots, own.is_empty()) {
            let (first, end) = self.channels(&own);
            // SAFETY: guaranteed by the caller.
            unsafe { slots.clear(slot, first..end) };
        }
    }

    /// The points of some tiles, first and number, of inputs.
    ///
    /// # Safety
    /// There is room for the points, which no other thread accesses.
    unsafe fn transform(&self, plan: &Plan, (first, count): (usize, usize), to: *mut f32) {
        let gather = Gather {
            from: self.x.as_ptr(),
            grid: self.x_grid,
            origin: self.origin,
            tiling: Tiling::new(&self.y_grid, self.source.transform.outputs()),
            range: first..first + count,
            channels: self.source.rows,
            to,
            layout: plan.inputs,
        };
        // SAFETY: guaranteed by the caller; the box holds its slice.
        unsafe { gather.inputs(self.source.tiles.level, self.source.transform) };
    }

    /// Some channels of a block whose inputs are transformed; whether to go on.
    ///
    /// # Safety
    /// As for [`Filter::run`], of these outputs and this slot.
    unsafe fn block(
        &self,
        plan: &Plan,
        block: Block,
        slice: Slice,
        own: Range<usize>,
        slot: usize,
        poll: &mut Poll,
    ) -> bool {
        let (f0, f1) = self.channels(&own);
        for point in 0..plan.points {
            // SAFETY: guaranteed by the caller.
            unsafe { self.product(plan, point, block, slice, own.clone()) };
        }
        let width = f1.min(self.source.tiles.f) - f0;
        // SAFETY: guaranteed by the caller.
        unsafe { self.outputs(plan, block, (f0, width), slot) };
        poll.tick(self.flops(plan, block.tiles.1, width))
    }

    /// The products of one point and some tiles of channels.
    ///
    /// # Safety
    /// As for [`Filter::block`].
    unsafe fn product(
        &self,
        plan: &Plan,
        point: usize,
        block: Block,
        slice: Slice,
        own: Range<usize>,
    ) {
        let level = self.source.tiles.level;
        let (f0, _) = self.source.tiles.tile(own.start);
        for tile in own {
            let (f, v) = self.source.tiles.tile(tile);
            let width = v * level.lanes();
            let (rows, parts) = (self.source.depth(), self.source.transform.parts());
            let sweeps = (rows * width).div_ceil(WEIGHTS_PER_SWEEP).max(1);
            let depth = rows.div_ceil(sweeps).next_multiple_of(4).max(4);
            let start = point * slice.point + rows * (f - slice.first);
            assert!(start + rows * width <= slice.w.len(), "weights");
            // Without channels the products are zero.
            for c in (0..rows.max(1)).step_by(depth) {
                // SAFETY: as just asserted, and as the caller says.
                unsafe {
                    let product = Product {
                        x: block.inputs.add(point * plan.inputs.point + c),
                        x_pitch: plan.inputs.row / parts,
                        w: slice.w.as_ptr().add(start + c * width),
                        w_pitch: width,
                        depth: depth.min(rows - c),
                        y: block.products.add(point * plan.products.point + f - f0),
                        y_pitch: plan.products.row / parts,
                        rows: parts * block.tiles.1,
                        load: c > 0,
                    };
                    product.run::<false>(level, v);
                }
            }
        }
    }

    /// Outputs of some channels from their products.
    ///
    /// # Safety
    /// As for [`Filter::block`].
    unsafe fn outputs(&self, plan: &Plan, block: Block, (f0, width): (usize, usize), slot: usize) {
        let rest = self.epilogue.of_tile(f0, slot);
        let slope = rest.and_then(|rest| rest.slope_alone());
        let (first, count) = block.tiles;
        let scatter = Scatter {
            from: block.products,
            layout: plan.products,
            tiling: Tiling::new(&self.y_grid, self.source.transform.outputs()),
            range: first..first + count,
            // SAFETY: a channel of the first position, as the caller says.
            to: unsafe { self.y.get().add(f0) },
            grid: self.y_grid,
            width,
            load: self.accumulate,
            bias: self.epilogue.bias_of_tile(f0),
            slope,
            rest: rest
                .filter(|_| slope.is_none())
                .map(|rest| (rest, self.epilogue.positions)),
            level: self.source.tiles.level,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { scatter.outputs(self.source.transform) };
    }
}
