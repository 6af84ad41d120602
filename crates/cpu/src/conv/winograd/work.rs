//! What a convolution by Winograd's algorithm has to do, counted in operations on vectors.

use super::{WinogradTile, source};
use crate::conv::convolution::Convolution;
use crate::conv::transformed::{Direction, filter_plan, gradient_plan};
use crate::grid::Grid;
use crate::team::TeamKind;

/// Elements of the points of weights, or of inputs, beyond which they are expected to have left the L2 cache.
const CACHED_ELEMENTS: usize = 256 * 1024;

/// Vectors that the parts of a convolution compute, read or write, on all threads together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WinogradWork {
    /// Multiply-adds of the products.
    pub products: f64,
    /// Points of what is read, once for each dim that is transformed.
    pub inputs: f64,
    /// Points of what is written, or of output gradients, once for each dim that is transformed.
    pub outputs: f64,
    /// Points of weights, once for each dim that is transformed, as often as they are.
    pub weights: f64,
    /// Points beyond the L2 cache: of weights that each block of tiles reads, or of inputs that each slice of channels
    /// does.
    pub far: f64,
}

/// Of a filter of a box with these channels (C, F), which writes a box like `written`.
pub(crate) fn filter_work(
    team: TeamKind,
    tile: WinogradTile,
    direction: Direction,
    conv: &Convolution,
    channels: (usize, usize),
    written: &Grid,
) -> WinogradWork {
    let source = source(direction, team.level, tile, conv, channels);
    let plan = filter_plan(team, conv, &source, written, false);
    let (points, lanes, dims) = (plan.points, team.level.lanes(), transformed_dims(conv));
    let (rows, columns) = (source.rows.div_ceil(lanes), source.tiles.vectors());
    let (inputs, weights) = (points * rows * plan.tiles, points * source.rows * columns);
    let is_far = |vectors: usize| vectors * lanes > CACHED_ELEMENTS;
    let (mut passes, mut far) = (1, 0.0);
    if plan.is_sliced {
        passes = plan.tiles.div_ceil(plan.shared).max(1);
        if is_far(inputs) {
            let slices = plan.slices(0..source.tiles.count()).count();
            far = count([inputs, slices]);
        }
    } else if is_far(weights) {
        let blocks = plan.tiles.div_ceil(plan.block);
        far = count([weights, blocks.next_multiple_of(team.threads)]);
    }
    WinogradWork {
        products: count([points, source.rows, columns, plan.tiles]),
        inputs: count([inputs, dims]),
        outputs: count([points, columns, plan.tiles, dims]),
        weights: count([weights, dims, passes]),
        far,
    }
}

/// Of a gradient of weights for C input channels and output gradients like `yg`.
pub(crate) fn gradient_work(
    team: TeamKind,
    tile: WinogradTile,
    conv: &Convolution,
    c: usize,
    yg: &Grid,
) -> WinogradWork {
    let source = source(Direction::Forward, team.level, tile, conv, (c, yg.channels));
    let transform = tile.transform(conv);
    let (tiles, blocks) = gradient_plan(team, transform, conv, c, yg).tiles_and_blocks();
    let (points, lanes, dims) = (
        transform.points(),
        team.level.lanes(),
        transformed_dims(conv),
    );
    let (rows, columns) = (c.div_ceil(lanes), source.tiles.vectors());
    let weights = points * c * columns;
    let is_far = weights * lanes > 2 * CACHED_ELEMENTS;
    WinogradWork {
        products: count([points, c, columns, tiles]),
        inputs: count([points, rows, tiles, dims]),
        outputs: count([points, columns, tiles, dims]),
        weights: count([weights, dims]),
        far: if is_far {
            count([weights, blocks])
        } else {
            0.0
        },
    }
}

/// Dims with several taps.
fn transformed_dims(conv: &Convolution) -> usize {
    conv.window.kernel.iter().filter(|taps| **taps > 1).count()
}

fn count<const N: usize>(factors: [usize; N]) -> f64 {
    factors.iter().map(|&factor| factor as f64).product()
}
