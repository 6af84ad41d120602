//! The weight gradient: dg = G^T [(A dy) . (B^T d)], summed over tiles.
//!
//! Blocks of tiles are transformed one after another; for each point, the product of the inputs and
//! gradients of a block is added to the points of dw, which are transformed last. All sums have one
//! order.
//! Legend: T tiles of a block, C input channels, F output channels.

use super::Transform;
use super::gather::Gather;
use super::multiply::{Product, ROWS_BEYOND};
use super::plan::evenly;
use super::tiling::{Ordered, Points, Tiling};
use super::weights::{Source, Taps};
use crate::conv::tiles::Tiles;
use crate::grid::{Canceled, Shared};
use crate::simd::LANES_MAX;
use crate::team::{ELEMENT, Team, TeamKind};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tiles of a block where the points of dw stay in the L3 cache: few, so that their own points do,
/// too.
const BLOCK_TILES_MIN: usize = 48;
/// Tiles of a block where they do not: each block reads and writes them.
const BLOCK_TILES_MANY: usize = 192;
/// Elements of the points of a block, if that takes no fewer tiles, and no matter how few.
const BLOCK_ELEMENTS: [usize; 2] = [512 * 1024, 4 * 1024 * 1024];
/// Elements of the points of dw in the L3 cache.
const WEIGHTS_CACHED: usize = 1280 * 1024;
/// Elements of the points of dw from which on parts are transformed as soon as they are there, if
/// all tiles are one block.
const WEIGHTS_STORED_MAX: usize = 512 * 1024;
/// Elements of such a part.
const PART_ELEMENTS: usize = 256 * 1024;
/// Tiles that one unit transforms.
const TILES_PER_UNIT: usize = 8;
/// Elements of the gradients that one product reads: in the L1 cache.
const GRADIENTS_PER_SWEEP: usize = 8 * 1024;
/// Rows of dw that one unit transforms.
const ROWS_PER_UNIT: usize = 4;

/// The sizes of the blocks.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    points: usize,
    /// Numbers of a point.
    parts: usize,
    threads: usize,
    tiles: usize,
    block: usize,
    c: usize,
    inputs: Points,
    gradients: Points,
    /// Of dw: of all, or of a part of a thread.
    weights: Points,
    /// Input channels of a part of a tile of output channels, if it is transformed at once.
    part: Option<usize>,
}

impl Plan {
    pub(crate) fn new(
        team: TeamKind,
        transform: Transform,
        tiles: usize,
        c: usize,
        out: Tiles,
    ) -> Plan {
        let (lanes, f, points) = (out.level.lanes(), out.padded(), transform.points());
        let z = transform.parts();
        let row = z * (z * c).next_multiple_of(lanes);
        let weights = points * z * c * f;
        let least = if weights <= WEIGHTS_CACHED {
            BLOCK_TILES_MIN
        } else {
            BLOCK_TILES_MANY
        };
        let [few, many] = BLOCK_ELEMENTS.map(|elements| elements / (points * (row + z * f)));
        let least = least.min(many.max(BLOCK_TILES_MIN));
        let block = evenly(tiles, few.max(least));
        let width = (out.vectors_max() * lanes).min(f);
        let is_parted = block >= tiles && weights > WEIGHTS_STORED_MAX;
        let part = is_parted.then(|| {
            let fits = PART_ELEMENTS / (points * z * width);
            let units = (2 * team.threads).div_ceil(out.count());
            fits.min(c.div_ceil(units)).next_multiple_of(ROWS_BEYOND)
        });
        let (rows, width) = part.map_or((c, f), |part| (part, width));
        Plan {
            points,
            parts: z,
            threads: team.threads,
            tiles,
            block,
            c,
            inputs: Points {
                row,
                point: block * row + LANES_MAX,
                part: c,
            },
            gradients: Points {
                row: z * f,
                point: block * z * f + LANES_MAX,
                part: f,
            },
            weights: Points {
                row: width,
                point: z * (rows + ROWS_BEYOND) * width + LANES_MAX,
                part: (rows + ROWS_BEYOND) * width,
            },
            part,
        }
    }

    /// Elements of the points of dw, of all or of a part.
    fn weights_elements(&self) -> usize {
        self.points * self.weights.point
    }

    /// Tiles of all outputs, and blocks of them.
    pub(crate) fn tiles_and_blocks(&self) -> (usize, usize) {
        (self.tiles, self.tiles.div_ceil(self.block))
    }

    pub(crate) fn elements(&self) -> usize {
        let block = self.points * (self.inputs.point + self.gradients.point);
        let parts = self.part.map_or(1, |_| self.threads);
        block + parts * self.weights_elements() + LANES_MAX
    }
}

/// The gradient of one convolution.
pub(crate) struct Gradient<'a> {
    pub x: &'a [f32],
    pub x_grid: Ordered,
    pub dy: &'a [f32],
    pub y_grid: Ordered,
    pub tiles: Tiles,
    /// How the weights lie.
    pub source: Source<'a>,
}

impl Gradient<'_> {
    /// Into all weights `dw`, or added to them.
    ///
    /// # Safety
    /// x is the complete input of dy; the boxes hold their slices.
    pub(crate) unsafe fn run(
        &self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        plan: &Plan,
        scratch: &mut [f32],
        (dw, load): (&mut [f32], bool),
    ) -> Result<(), Canceled> {
        assert!(
            scratch.len() >= plan.elements(),
            "scratch of {}",
            scratch.len()
        );
        let inputs = Shared(scratch.as_mut_ptr());
        // SAFETY: inside of the scratch, as just asserted.
        let (gradients, weights) = unsafe {
            let gradients = scratch
                .as_mut_ptr()
                .add(plan.points * plan.inputs.point + LANES_MAX);
            let weights = gradients.add(plan.points * plan.gradients.point);
            (Shared(gradients), Shared(weights))
        };
        let points = [inputs, gradients, weights];
        let dw = (Shared(dw.as_mut_ptr()), load);
        // SAFETY: guaranteed by the caller; there is room for the points.
        unsafe {
            if let Some(part) = plan.part {
                self.transform(plan, (0, plan.tiles), points, team, progress)?;
                return self.run_parts(plan, part, points, team, progress, dw);
            }
            for first in (0..plan.tiles).step_by(plan.block) {
                let block = plan.block.min(plan.tiles - first);
                self.transform(plan, (first, block), points, team, progress)?;
                self.add_block(plan, (first, block), points, team, progress)?;
            }
            self.run_taps(plan, weights, team, progress, dw)
        }
    }

    /// Parts of dw, each summed over all tiles and transformed.
    ///
    /// # Safety
    /// As for [`Gradient::run`]; the inputs and gradients are transformed.
    unsafe fn run_parts(
        &self,
        plan: &Plan,
        rows: usize,
        [x, dy, weights]: [Shared; 3],
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        (dw, load): (Shared, bool),
    ) -> Result<(), Canceled> {
        let (parts, next) = (plan.c.div_ceil(rows), AtomicUsize::new(0));
        let units = parts * self.tiles.count();
        let all = 2 * plan.points * plan.tiles * plan.c * self.tiles.padded();
        let all = plan.parts * plan.parts * all;
        team.units(
            progress,
            plan.threads,
            (all / plan.threads) as u64,
            &|thread, poll| {
                loop {
                    let unit = next.fetch_add(1, Ordering::Relaxed);
                    if unit >= units {
                        return;
                    }
                    let (tile, row) = (unit / parts, unit % parts * rows);
                    let (f, _) = self.tiles.tile(tile);
                    // SAFETY: guaranteed by the caller; a thread has points, and a unit weights, of
                    // its own.
                    unsafe {
                        let own = weights.get().add(thread * plan.weights_elements());
                        let product = Part {
                            x: x.get().add(row),
                            dy: dy.get(),
                            dw: own.wrapping_sub(f),
                            tiles: (tile, tile + 1),
                            rows: rows.min(plan.c - row),
                        };
                        for point in 0..plan.points {
                            self.product(plan, point, product, plan.tiles, false);
                        }
                        self.taps(plan, own, (row, product.rows), (tile, tile + 1), (dw, load));
                    }
                    if !poll.tick((all / units) as u64) {
                        return;
                    }
                }
            },
        )
    }

    /// Adds the products of a block to the points of dw.
    ///
    /// # Safety
    /// As for [`Gradient::run_parts`].
    unsafe fn add_block(
        &self,
        plan: &Plan,
        (first, block): (usize, usize),
        [x, dy, dw]: [Shared; 3],
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<(), Canceled> {
        let flops = (2 * plan.parts * plan.parts * block * plan.c * plan.weights.row) as u64;
        team.units(progress, plan.points, flops, &|point, _| {
            let product = Part {
                x: x.get(),
                dy: dy.get(),
                dw: dw.get(),
                tiles: (0, self.tiles.count()),
                rows: plan.c,
            };
            // SAFETY: guaranteed by the caller; a unit has a point of its own.
            unsafe { self.product(plan, point, product, block, first > 0) };
        })
    }

    /// All points of dw to dw.
    ///
    /// # Safety
    /// As for [`Gradient::run`].
    unsafe fn run_taps(
        &self,
        plan: &Plan,
        weights: Shared,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        dw: (Shared, bool),
    ) -> Result<(), Canceled> {
        let flops = ELEMENT * (plan.points * ROWS_PER_UNIT * plan.weights.row) as u64;
        team.units(
            progress,
            plan.c.div_ceil(ROWS_PER_UNIT),
            flops,
            &|unit, _| {
                let row = unit * ROWS_PER_UNIT;
                let rows = (row, ROWS_PER_UNIT.min(plan.c - row));
                // SAFETY: rows of the points, and of dw, of this unit alone.
                unsafe {
                    let from = weights.get().add(row * plan.weights.row);
                    self.taps(plan, from, rows, (0, self.tiles.count()), dw);
                }
            },
        )
    }

    /// Points of some rows and tiles of channels to dw.
    ///
    /// # Safety
    /// As for [`Gradient::run`], of these weights; their points can be read.
    unsafe fn taps(
        &self,
        plan: &Plan,
        from: *const f32,
        (row, rows): (usize, usize),
        (first, end): (usize, usize),
        (dw, load): (Shared, bool),
    ) {
        let ((f, _), (last, v)) = (self.tiles.tile(first), self.tiles.tile(end - 1));
        let taps = Taps {
            from,
            layout: plan.weights,
            rows: 0..rows,
            first: (row, f),
            columns: (last + v * self.tiles.level.lanes()).min(self.tiles.f) - f,
            dw: dw.get(),
            source: &self.source,
            load,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { taps.run() };
    }

    /// The points of a block, first tile and tiles.
    ///
    /// # Safety
    /// As for [`Gradient::run`]; there is room for the points.
    unsafe fn transform(
        &self,
        plan: &Plan,
        (first, block): (usize, usize),
        [inputs, gradients, _]: [Shared; 3],
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<(), Canceled> {
        let flops = ELEMENT * (plan.points * TILES_PER_UNIT * 2) as u64;
        let flops = flops * (plan.inputs.row + plan.gradients.row) as u64;
        team.units(
            progress,
            block.div_ceil(TILES_PER_UNIT),
            flops,
            &|unit, _| {
                let tile = unit * TILES_PER_UNIT;
                let range = tile..(tile + TILES_PER_UNIT).min(block);
                // SAFETY: guaranteed by the caller; a unit has rows of its own.
                unsafe { self.transform_tiles(plan, first, range, inputs.get(), gradients.get()) };
            },
        )
    }

    /// Points of some tiles of a block that begins at tile `first`.
    ///
    /// # Safety
    /// As for [`Gradient::run`]; there is room for the points, whose rows no other thread accesses.
    unsafe fn transform_tiles(
        &self,
        plan: &Plan,
        first: usize,
        range: std::ops::Range<usize>,
        inputs: *mut f32,
        gradients: *mut f32,
    ) {
        let level = self.tiles.level;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let x = Gather {
                from: self.x.as_ptr(),
                grid: self.x_grid,
                origin: [0; 3],
                tiling: Tiling::new(&self.y_grid, self.source.transform.outputs()),
                range: first + range.start..first + range.end,
                channels: plan.c,
                to: inputs.add(range.start * plan.inputs.row),
                layout: plan.inputs,
            };
            x.inputs(level, self.source.transform);
            let dy = Gather {
                from: self.dy.as_ptr(),
                grid: self.y_grid,
                channels: self.tiles.f,
                to: gradients.add(range.start * plan.gradients.row),
                layout: plan.gradients,
                ..x
            };
            dy.gradients(level, self.source.transform);
        }
    }

    /// The product of the inputs and gradients of one point over a block, or adds it.
    ///
    /// # Safety
    /// `block` rows of inputs and gradients can be read, and the points of the part written.
    unsafe fn product(&self, plan: &Plan, point: usize, part: Part, block: usize, load: bool) {
        let all = plan.parts * block;
        let (x_pitch, w_pitch) = (
            plan.inputs.row / plan.parts,
            plan.gradients.row / plan.parts,
        );
        for tile in part.tiles.0..part.tiles.1 {
            let (f, v) = self.tiles.tile(tile);
            let sweeps = (all * v * self.tiles.level.lanes()).div_ceil(GRADIENTS_PER_SWEEP);
            let depth = all.div_ceil(sweeps).next_multiple_of(4);
            for (t, q) in (0..all)
                .step_by(depth)
                .flat_map(|t| (0..plan.parts).map(move |q| (t, q)))
            {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let x = part.x.add(point * plan.inputs.point + q * plan.inputs.part);
                    let dy = part.dy.add(point * plan.gradients.point + f);
                    let dw = part.dw.wrapping_add(point * plan.weights.point);
                    let product = Product {
                        x: x.add(t * x_pitch),
                        x_pitch,
                        w: dy.add(t * w_pitch),
                        w_pitch,
                        depth: depth.min(all - t),
                        y: dw.wrapping_add(q * plan.weights.part + f),
                        y_pitch: plan.weights.row,
                        rows: part.rows,
                        load: load || t > 0,
                    };
                    product.run::<true>(self.tiles.level, v);
                }
            }
        }
    }
}

/// Some rows and tiles of channels of the points of dw.
#[derive(Clone, Copy)]
struct Part {
    /// Of the first row.
    x: *const f32,
    dy: *const f32,
    /// Of channel 0 of the first row, whether it is in the part or not.
    dw: *mut f32,
    tiles: (usize, usize),
    rows: usize,
}
