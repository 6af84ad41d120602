//! The sizes of blocks and slices of a filter.

use super::multiply::ROWS_BEYOND;
use super::tiling::Points;
use super::weights::Source;
use crate::conv::tiles::Tiles;
use crate::simd::LANES_MAX;
use crate::team::TeamKind;
use std::ops::Range;

/// Elements of the points of a block, inputs and products: in the L2 cache.
const BLOCK_ELEMENTS: usize = 128 * 1024;
/// Tiles of a block, whatever that takes: each reads all weights.
const BLOCK_TILES_MIN: usize = 24;
const BLOCK_TILES_MAX: usize = 96;
/// Channels of products that are made for all points before they are transformed.
const SLICE_CHANNELS: usize = 64;
/// Elements of the points of the weights from which on each slice of channels transforms its own:
/// where all inputs can be shared, and anyway.
const STORED_ELEMENTS_MAX: [usize; 2] = [512 * 1024, 4 * 1024 * 1024];
/// Elements of the points of the inputs that all slices read: in the L3 cache.
const SHARED_ELEMENTS: usize = 4 * 1024 * 1024;
/// Tiles that share the points of a slice, whatever that takes.
const SHARED_TILES_MIN: usize = 48;

/// The sizes of blocks and slices.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub points: usize,
    pub threads: usize,
    /// Tiles of all outputs.
    pub tiles: usize,
    /// Tiles of a block.
    pub block: usize,
    /// Whether slices of channels share all inputs, and transform their own weights.
    pub is_sliced: bool,
    /// Tiles whose inputs slices share.
    pub shared: usize,
    /// Blocks: parts of the written channels, of whole tiles of registers.
    pub parts: usize,
    pub inputs: Points,
    pub products: Points,
    /// Tiles of registers of a slice.
    step: usize,
    /// Elements of the weights of a slice, if it transforms them.
    weights: usize,
}

impl Plan {
    /// For `tiles` tiles of outputs.
    pub(crate) fn new(team: TeamKind, tiles: usize, source: &Source, is_packed: bool) -> Plan {
        let (c, out) = (source.rows, source.tiles);
        let z = source.transform.parts();
        let row = z * (z * c).next_multiple_of(team.level.lanes());
        let step = step(out);
        let slice = (step * out.vectors_max() * team.level.lanes()).min(out.padded());
        let points = source.transform.points();
        let slices = out.count().div_ceil(step);
        let stored = points * source.depth() * out.padded();
        let [few, many] = STORED_ELEMENTS_MAX;
        let pays = stored >= many || (stored > few && points * row * tiles <= SHARED_ELEMENTS);
        let is_sliced = pays && slices >= team.threads;
        let all = z * slice + if is_sliced { 0 } else { row };
        let fits = BLOCK_ELEMENTS / (points * all).max(1);
        let block = fits.clamp(BLOCK_TILES_MIN, BLOCK_TILES_MAX);
        let shared = evenly(tiles, shared_max(points * row));
        let block = evenly(if is_sliced { shared } else { tiles }, block);
        let blocks = tiles.div_ceil(block);
        // Enough units that all threads have work.
        let parts = (2 * team.threads).div_ceil(blocks.max(1)).min(out.count());
        let beyond = ROWS_BEYOND.div_ceil(z);
        let rows = if is_sliced { shared } else { block } + beyond;
        Plan {
            points,
            threads: team.threads,
            tiles,
            block,
            is_sliced,
            shared,
            parts: if team.threads == 1 { 1 } else { parts },
            inputs: Points {
                row,
                point: rows * row + LANES_MAX,
                part: c,
            },
            products: Points {
                row: z * slice,
                point: (block + beyond) * z * slice + LANES_MAX,
                part: slice,
            },
            step,
            weights: if is_sliced && !is_packed {
                source.elements(slice)
            } else {
                0
            },
        }
    }

    /// Tiles of registers, a slice at a time.
    pub(crate) fn slices(&self, own: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let step = self.step;
        own.clone()
            .step_by(step)
            .map(move |first| first..(first + step).min(own.end))
    }

    /// Elements of the points of inputs, of a block or of all that is shared.
    pub(crate) fn inputs_elements(&self) -> usize {
        (self.points * self.inputs.point).next_multiple_of(LANES_MAX)
    }

    /// Elements of the products of a block.
    pub(crate) fn products_elements(&self) -> usize {
        (self.points * self.products.point).next_multiple_of(LANES_MAX)
    }

    /// Elements that a thread needs for itself.
    pub(crate) fn share(&self) -> usize {
        let weights = self.weights.next_multiple_of(LANES_MAX);
        let inputs = if self.is_sliced {
            0
        } else {
            self.inputs_elements()
        };
        self.products_elements() + weights + inputs
    }

    /// Elements that all threads need.
    pub(crate) fn elements(&self) -> usize {
        let inputs = if self.is_sliced {
            self.inputs_elements()
        } else {
            0
        };
        self.threads * self.share() + inputs
    }
}

/// Tiles of registers whose products are made for all points before they are transformed.
fn step(tiles: Tiles) -> usize {
    (SLICE_CHANNELS / (tiles.vectors_max() * tiles.level.lanes())).max(1)
}

/// Most tiles that share the points of a slice, of `elements` each: beyond them, each slice
/// transforms its weights again.
pub(crate) fn shared_max(elements: usize) -> usize {
    (SHARED_ELEMENTS / elements.max(1)).max(SHARED_TILES_MIN)
}

/// The size, at most `most`, of parts of about the same size; at least 1.
pub(crate) fn evenly(all: usize, most: usize) -> usize {
    all.div_ceil(all.div_ceil(most).max(1)).max(1)
}
