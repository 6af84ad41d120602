//! Convolutions by Winograd's minimal filtering: fewer multiplications than a direct convolution.
//!
//! Along a dim with three taps, a tile of m outputs takes m + 2 multiplications instead of 3 m,
//! once inputs and weights are transformed: F(m, 3). Dims are nested; a dim with one tap is not
//! transformed. At each point of a tile, the products over channels are a product of matrices,
//! which is transformed to outputs. The weight gradient is the transposed algorithm.
//! Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016).

pub(crate) mod maps;
pub(crate) mod nest;
pub(crate) mod tile;
pub(crate) mod work;

use crate::conv::convolution::{Convolution, Weights};
use crate::conv::epilogue::Epilogue;
use crate::conv::transformed::tiling::order;
use crate::conv::transformed::weights::Source;
use crate::conv::transformed::{
    Boxes, Direction, Transform, filter, filter_scratch, gradient, gradient_scratch, pack,
};
use crate::grid::{Call, Canceled, Grid, View, ViewMut, Work};
use crate::simd::Level;
use crate::team::TeamKind;

/// Outputs of a tile along each dim with three taps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WinogradTile {
    /// F(2, 3): 2.25 times fewer multiplications in two dims, 3.4 times in three.
    Two,
    /// F(4, 3): 4 times fewer multiplications in two dims, 8 times in three.
    Four,
    /// F(2, 3) along the first of three dims and F(4, 3) along the others: 6 times fewer
    /// multiplications. In two dims the same as `Four`.
    TwoFour,
}

impl WinogradTile {
    /// All tiles.
    pub const ALL: [WinogradTile; 3] =
        [WinogradTile::Two, WinogradTile::Four, WinogradTile::TwoFour];

    /// With its outputs along the dims in the order of the tiles.
    fn transform(self, conv: &Convolution) -> Transform {
        let [first, ..] = order(conv).map(|dim| conv.window.kernel[dim]);
        let (depth, rest) = match self {
            WinogradTile::Two => (2, 2),
            WinogradTile::Four => (4, 4),
            WinogradTile::TwoFour => (2, 4),
        };
        Transform::Winograd([if first == 1 { 1 } else { depth }, rest, rest])
    }
}

/// Whether there are Winograd kernels for a convolution of C to F channels: stride, dilation and
/// groups are 1, at least two dims have 3 taps and the other has 3 or 1, and there are at least as
/// many channels as from which on they can be faster than the direct kernels.
pub fn winograd_offers(conv: &Convolution, c: usize, f: usize) -> bool {
    is_valid(conv) && c >= CHANNELS_MIN && f >= CHANNELS_MIN
}

/// Fewer channels are faster without transforms.
const CHANNELS_MIN: usize = 4;

fn is_valid(conv: &Convolution) -> bool {
    let w = &conv.window;
    let taps = w.kernel.iter().filter(|k| **k == 3).count();
    let near = w.stride == [1; 3] && w.dilation == [1; 3] && conv.groups == 1;
    near && taps >= 2 && w.kernel.iter().all(|k| matches!(k, 1 | 3))
}

fn assert_valid(conv: &Convolution) {
    assert!(is_valid(conv), "no Winograd kernel of {conv:?}");
}

/// Bound of the error of all three directions with this tile, for random inputs and weights of mean
/// zero: the root mean square error of the outputs over the root mean square of the exact ones.
///
/// Measured for up to 256 channels and 13000 positions, times 3. The error of one element can be
/// larger, and so it is where inputs or weights have a mean far from zero, or outputs cancel.
pub fn winograd_error_bound(tile: WinogradTile, conv: &Convolution) -> f64 {
    let is_deep = conv.window.kernel == [3; 3];
    match (tile, is_deep) {
        (WinogradTile::Two, false | true) => 2e-6,
        (WinogradTile::Four, true) => 2.5e-5,
        (WinogradTile::Four, false) | (WinogradTile::TwoFour, false | true) => 1e-5,
    }
}

/// Scratch elements that [`winograd_forward`] needs for C input channels and outputs like `yg`,
/// with packed weights or plain ones. Sums in the epilogue need [`crate::sums_scratch`] on top.
pub fn winograd_forward_scratch(
    team: TeamKind,
    tile: WinogradTile,
    conv: &Convolution,
    c: usize,
    yg: &Grid,
    is_packed: bool,
) -> usize {
    let source = source(Direction::Forward, team.level, tile, conv, (c, yg.channels));
    filter_scratch(team, conv, &source, yg, is_packed)
}

/// Scratch elements that [`winograd_backward_data`] needs for F output channels and a gradient like
/// `xg`, with packed weights or plain ones. Sums in the epilogue need [`crate::sums_scratch`] on
/// top.
pub fn winograd_backward_data_scratch(
    team: TeamKind,
    tile: WinogradTile,
    conv: &Convolution,
    f: usize,
    xg: &Grid,
    is_packed: bool,
) -> usize {
    let direction = Direction::BackwardData;
    let source = source(direction, team.level, tile, conv, (xg.channels, f));
    filter_scratch(team, conv, &source, xg, is_packed)
}

/// Elements of the weights that [`winograd_pack_forward`] writes.
pub fn winograd_packed_forward_elements(
    level: Level,
    tile: WinogradTile,
    conv: &Convolution,
    c: usize,
    f: usize,
) -> usize {
    let source = source(Direction::Forward, level, tile, conv, (c, f));
    source.elements(source.tiles.padded())
}

/// Elements of the weights that [`winograd_pack_backward_data`] writes.
pub fn winograd_packed_backward_data_elements(
    level: Level,
    tile: WinogradTile,
    conv: &Convolution,
    c: usize,
    f: usize,
) -> usize {
    let source = source(Direction::BackwardData, level, tile, conv, (c, f));
    source.elements(source.tiles.padded())
}

/// Transforms weights (Kd, Kh, Kw, C, F) for [`winograd_forward`] with the same tile: (point, tile
/// of f, c, f in the tile). Needs no scratch. Many weights are faster plain, as they are then
/// transformed part by part and in the caches, unless packed ones serve many calls.
///
/// Errors: [`Canceled`]. Panics if `packed` is shorter than [`winograd_packed_forward_elements`].
pub fn winograd_pack_forward(
    call: &mut Call,
    tile: WinogradTile,
    w: &[f32],
    packed: &mut [f32],
    conv: &Convolution,
    c: usize,
    f: usize,
) -> Result<Work, Canceled> {
    assert_valid(conv);
    let (transform, direction) = (tile.transform(conv), Direction::Forward);
    pack(call, transform, (w, conv), packed, (c, f), direction)
}

/// Transforms weights (Kd, Kh, Kw, C, F), flipped and transposed, for [`winograd_backward_data`]
/// with the same tile: (point, tile of c, f, c in the tile). Needs no scratch; see
/// [`winograd_pack_forward`].
///
/// Errors: [`Canceled`]. Panics if `packed` is shorter than
/// [`winograd_packed_backward_data_elements`].
pub fn winograd_pack_backward_data(
    call: &mut Call,
    tile: WinogradTile,
    w: &[f32],
    packed: &mut [f32],
    conv: &Convolution,
    c: usize,
    f: usize,
) -> Result<Work, Canceled> {
    assert_valid(conv);
    let (transform, direction) = (tile.transform(conv), Direction::BackwardData);
    pack(call, transform, (w, conv), packed, (c, f), direction)
}

/// As [`crate::conv_forward`], up to rounding, see [`winograd_error_bound`]. Packed weights are
/// those of [`winograd_pack_forward`]. Bit-reproducible for any number of threads, but for the
/// sums. Counts the flops of the direct kernel.
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other, or of another convolution than
/// [`winograd_offers`] describes; it may have fewer channels.
#[allow(
    clippy::too_many_arguments,
    reason = "operands of one mathematical operation"
)]
pub fn winograd_forward(
    call: &mut Call,
    tile: WinogradTile,
    x: View,
    w: Weights,
    y: ViewMut,
    conv: &Convolution,
    accumulate: bool,
    epilogue: Epilogue,
) -> Result<Work, Canceled> {
    assert_valid(conv);
    let (transform, boxes) = (tile.transform(conv), Boxes::forward(x, y, conv));
    let direction = Direction::Forward;
    filter(
        call, transform, direction, boxes, w, conv, accumulate, epilogue,
    )
}

/// As [`crate::conv_backward_data`], up to rounding, see [`winograd_error_bound`]; so an element of
/// dx that no output reaches may be a rounding error instead of zero. Packed weights are those of
/// [`winograd_pack_backward_data`]. Bit-reproducible for any number of threads, but for the sums.
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other, or of another convolution than
/// [`winograd_offers`] describes; it may have fewer channels.
#[allow(
    clippy::too_many_arguments,
    reason = "operands of one mathematical operation"
)]
pub fn winograd_backward_data(
    call: &mut Call,
    tile: WinogradTile,
    dy: View,
    w: Weights,
    dx: ViewMut,
    conv: &Convolution,
    shift: [i64; 3],
    accumulate: bool,
    epilogue: Epilogue,
) -> Result<Work, Canceled> {
    assert_valid(conv);
    let boxes = Boxes::backward_data(dy, dx, conv, shift);
    let (transform, direction) = (tile.transform(conv), Direction::BackwardData);
    filter(
        call, transform, direction, boxes, w, conv, accumulate, epilogue,
    )
}

/// Scratch elements that [`winograd_backward_weight`] needs for C input channels and output
/// gradients like `yg`.
pub fn winograd_backward_weight_scratch(
    team: TeamKind,
    tile: WinogradTile,
    conv: &Convolution,
    c: usize,
    yg: &Grid,
) -> usize {
    gradient_scratch(team, tile.transform(conv), conv, c, yg)
}

/// As [`crate::conv_backward_weight`], up to rounding, see [`winograd_error_bound`].
/// Bit-reproducible for any number of threads, but db for a given number. Counts the flops of the
/// direct kernel.
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other, or of another convolution than
/// [`winograd_offers`] describes; it may have fewer channels.
#[allow(
    clippy::too_many_arguments,
    reason = "operands of one mathematical operation"
)]
pub fn winograd_backward_weight(
    call: &mut Call,
    tile: WinogradTile,
    x: View,
    dy: View,
    dw: &mut [f32],
    db: Option<&mut [f32]>,
    conv: &Convolution,
    accumulate: bool,
) -> Result<Work, Canceled> {
    assert_valid(conv);
    let transform = tile.transform(conv);
    gradient(call, transform, x, dy, dw, db, conv, accumulate)
}

/// Weights for C and F channels as a direction sees them, without their values.
fn source(
    direction: Direction,
    level: Level,
    tile: WinogradTile,
    conv: &Convolution,
    channels: (usize, usize),
) -> Source<'static> {
    direction.source(level, tile.transform(conv), (&[], conv), channels)
}
