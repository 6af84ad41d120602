//! Depthwise convolutions on bf16.

use super::job::{HalfWeights, TileAt};
use crate::conv::depthwise::{Weights, whole};
use crate::conv::direct::{DirectConvolution, POSITIONS_PER_WEIGHTS};
use crate::conv::epilogue::BOXES;
use crate::conv::tiles::Tiles;
use crate::conv::walk::{P_MAX, Positions, Walk};
use crate::grid::{Canceled, part};
use crate::simd::Level;
use crate::team::{Poll, Team};
use half::bf16;
use std::ops::Range;

impl DirectConvolution<'_, bf16, HalfWeights<'_>> {
    /// The job on the weights of a depthwise convolution.
    ///
    /// # Safety
    /// As for [`crate::conv::direct::JobWeights::run`]; x has the channels of y.
    pub(super) unsafe fn run_depthwise_half(
        &self,
        weights: Weights,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<usize, Canceled> {
        let positions: usize = self.count.iter().product();
        let level = team.level();
        let tiles = Tiles { level, f: self.f };
        let block = self.positions_of_unit(team, 1);
        let blocks = positions.div_ceil(block);
        let shares = self.epilogue.shares(blocks);
        let flops = 2 * self.taps_all() * self.f * positions / shares;
        team.units(progress, shares, flops as u64, &|share, poll| {
            // SAFETY: guaranteed by the caller; a share has positions and a slot of its own.
            unsafe { self.clear(share, tiles, 0..tiles.count()) };
            for b in part(blocks, share, shares) {
                let range = b * block..((b + 1) * block).min(positions);
                for at in range.clone().step_by(POSITIONS_PER_WEIGHTS) {
                    let range = at..(at + POSITIONS_PER_WEIGHTS).min(range.end);
                    for (f0, v) in (0..tiles.count()).flat_map(|tile| whole(tiles, tile)) {
                        if v > 0 {
                            let channels = (level, f0, v);
                            // SAFETY: as above.
                            unsafe { self.some(weights, range.clone(), channels, share, poll) };
                        }
                    }
                }
            }
        })?;
        Ok(shares)
    }

    /// V vectors of channels from `f0` on, for so few positions that their sums have room.
    ///
    /// # Safety
    /// As for `run_depthwise_half`, of these channels and positions and the slot.
    unsafe fn some(
        &self,
        weights: Weights,
        range: Range<usize>,
        (level, f0, v): (Level, usize, usize),
        slot: usize,
        poll: &mut Poll,
    ) {
        let pitch = v * level.lanes();
        let sums = self.weights.room(poll.thread).sums;
        let [_, d, h, w] = self.count;
        let rows = Positions {
            base: 0,
            step: [d * h * w * pitch, h * w * pitch, w * pitch, pitch],
        };
        // The room is of these positions alone.
        let first = sums.wrapping_sub(range.start * pitch);
        let boxes = self.epilogue.has_boxes();
        let mut offsets = [[0; P_MAX]; 1];
        let mut box_offsets = [[0; P_MAX]; BOXES];
        let mut walk = Walk::new(self.count, [self.y_positions], range.start);
        let mut box_walk =
            boxes.then(|| Walk::new(self.count, self.epilogue.positions, range.start));
        // SAFETY: guaranteed by the caller; there is room for the sums of these positions.
        unsafe {
            self.depthwise_sums(
                level,
                weights,
                range.clone(),
                (f0, v),
                (first, rows, false),
                poll,
            );
            let mut done = 0;
            while done < range.len() && !poll.canceled() {
                let n = P_MAX.min(range.len() - done);
                walk.take(n, &mut offsets);
                if let Some(boxes) = &mut box_walk {
                    boxes.take(n, &mut box_offsets);
                }
                let at = TileAt {
                    yo: &offsets[0][..n],
                    boxes: &box_offsets,
                    width: (self.f - f0).min(pitch),
                };
                self.finish((level, f0), slot, (sums.add(done * pitch), pitch), at);
                done += n;
            }
        }
    }
}
