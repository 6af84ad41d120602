//! The points of a tile along each dim.

use super::tile::{FourierTile, TILE_MAX};
use crate::conv::convolution::Convolution;
use crate::conv::transformed::plan::shared_max;
use crate::conv::transformed::tiling::{Ordered, Tiling, order};
use crate::grid::Grid;

/// Points along a dim.
const LENGTHS: [usize; 3] = [8, 16, 32];
/// Times to transform a complex number of one channel of a tile, and of a weight, in multiply-adds of
/// a product; where there are [`POINTS_FAR`], they are twice as long, as each goes to another page.
/// Fitted to times of 5x5, 7x7 and 5x5x5 taps with AVX-512.
const TILE_TIME: u128 = 40;
const WEIGHT_TIME: u128 = 90;
const POINTS_FAR: u128 = 600;

/// The tile that is expected to be the fastest for a box that is written, from channels that are read
/// to those that are written; the smallest of equals.
pub(super) fn tile(conv: &Convolution, channels: (usize, usize), written: &Grid) -> FourierTile {
    fastest(conv, channels, written).1
}

/// That tile after its expected time, in multiply-adds of a product.
pub(super) fn fastest(
    conv: &Convolution,
    channels: (usize, usize),
    written: &Grid,
) -> (u128, FourierTile) {
    let dims = order(conv);
    let k = dims.map(|dim| conv.window.kernel[dim]);
    let written = Ordered::new(written, dims);
    let mut fastest: Option<(u128, FourierTile)> = None;
    for d in LENGTHS {
        for h in LENGTHS {
            for w in LENGTHS {
                let n = [if k[0] == 1 { 1 } else { d }, h, w];
                let tile = FourierTile { n, k };
                if (0..3).any(|i| n[i] < k[i]) || tile.room() > TILE_MAX {
                    continue;
                }
                let cost = cost(tile, channels, &written);
                if fastest.is_none_or(|(least, _)| cost < least) {
                    fastest = Some((cost, tile));
                }
            }
        }
    }
    fastest.unwrap_or_else(|| panic!("no tile of {conv:?}"))
}

/// Expected time, in multiply-adds of a product.
fn cost(tile: FourierTile, (c, f): (usize, usize), written: &Ordered) -> u128 {
    let (tiles, points) = (Tiling::new(written, tile.outputs()).count(), tile.points());
    // A tile has the parts of two rows.
    let passes = tiles.div_ceil(shared_max(4 * points * c));
    let [tiles, points, passes, c, f] = [tiles, points, passes, c, f].map(|n| n as u128);
    let products = 4 * tiles * c * f;
    let transforms = TILE_TIME * tiles * (c + f) + WEIGHT_TIME * passes * c * f;
    points * products + points * transforms / POINTS_FAR * (POINTS_FAR + points)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv::fourier::{LENGTH_MAX, is_valid};
    use crate::grid::Window;

    #[test]
    fn every_valid_kernel_has_a_tile() {
        let (mut valid, all) = (0, LENGTH_MAX * LENGTH_MAX * LENGTH_MAX);
        for i in 0..all {
            let [d, h, w] = [i / (LENGTH_MAX * LENGTH_MAX), i / LENGTH_MAX, i];
            let window = Window {
                kernel: [d, h, w].map(|k| 1 + k % LENGTH_MAX),
                stride: [1; 3],
                dilation: [1; 3],
            };
            let conv = Convolution { window, groups: 1 };
            if is_valid(&conv) {
                valid += 1;
                let tile = tile(&conv, (16, 16), &Grid::dense(1, [9, 20, 40], 16));
                assert!(tile.room() <= TILE_MAX, "{conv:?}: {tile:?}");
            }
        }
        assert!(valid > 1000, "{valid} kernels");
    }

    #[test]
    fn larger_boxes_take_larger_tiles() {
        let window = Window {
            kernel: [1, 7, 7],
            stride: [1; 3],
            dilation: [1; 3],
        };
        let conv = Convolution { window, groups: 1 };
        let of = |extent: usize| tile(&conv, (16, 16), &Grid::dense(1, [1, extent, extent], 16));
        assert_eq!(of(1).n, [1, 8, 8]);
        assert_eq!(of(1000).n[0], 1);
        assert!(of(1000).points() > of(1).points());
    }
}
