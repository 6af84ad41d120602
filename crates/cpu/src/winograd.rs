//! Convolutions by Winograd's minimal filtering: fewer multiplications than a direct convolution.
//!
//! Along a dim with three taps, a tile of m outputs takes m + 2 multiplications instead of 3 m,
//! once inputs and weights are transformed: F(m, 3). Dims are nested; a dim with one tap is not
//! transformed. At each point of a tile, the products over channels are a product of matrices,
//! which is transformed to outputs. The weight gradient is the transposed algorithm.
//! Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016).

mod filter;
mod gather;
mod gradient;
mod maps;
mod multiply;
mod nest;
mod plan;
mod scatter;
mod tiling;
mod weights;

use crate::convolution::{Convolution, Weights};
use crate::epilogue::Epilogue;
use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work};
use crate::norm::{bias_backward, norm_scratch};
use crate::simd::{LANES_MAX, Level};
use crate::team::TeamKind;
use crate::tiles::Tiles;
use filter::Filter;
use gradient::Gradient;
use plan::Plan;
use tiling::{Ordered, Tiling, order};
use weights::Source;

/// Elements that align the scratch to cache lines.
const ALIGN: usize = LANES_MAX;
const LINE_BYTES: usize = 64;

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

    /// Outputs along the dims in the order of the tiles.
    fn sizes(self, conv: &Convolution) -> [usize; 3] {
        let [first, ..] = order(conv).map(|dim| conv.window.kernel[dim]);
        let (depth, rest) = match self {
            WinogradTile::Two => (2, 2),
            WinogradTile::Four => (4, 4),
            WinogradTile::TwoFour => (2, 4),
        };
        [if first == 1 { 1 } else { depth }, rest, rest]
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
    let direction = Direction::Forward;
    let source = direction.source(team.level, tile, (&[], conv), (c, yg.channels));
    filter_scratch(team, tile, conv, &source, yg, is_packed)
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
    let source = direction.source(team.level, tile, (&[], conv), (xg.channels, f));
    filter_scratch(team, tile, conv, &source, xg, is_packed)
}

/// Elements of the weights that [`winograd_pack_forward`] writes.
pub fn winograd_packed_forward_elements(
    level: Level,
    tile: WinogradTile,
    conv: &Convolution,
    c: usize,
    f: usize,
) -> usize {
    let source = Direction::Forward.source(level, tile, (&[], conv), (c, f));
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
    let source = Direction::BackwardData.source(level, tile, (&[], conv), (c, f));
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
    pack(call, tile, (w, conv), packed, (c, f), Direction::Forward)
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
    pack(
        call,
        tile,
        (w, conv),
        packed,
        (c, f),
        Direction::BackwardData,
    )
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
    conv.assert_boxes(x.grid, y.grid);
    let direction = Direction::Forward;
    let outputs = y.grid.positions();
    let boxes = Boxes {
        x,
        y,
        origin: [0; 3],
    };
    filter(
        call, tile, direction, boxes, w, conv, outputs, accumulate, epilogue,
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
    let (yg, xg) = (dy.grid, dx.grid);
    assert!(xg.samples == yg.samples, "samples of {xg:?} and {yg:?}");
    conv.window.assert_near(shift, xg.extent, yg.extent);
    let outputs = yg.positions();
    // The last tap reaches the first output.
    let origin = std::array::from_fn(|i| shift[i] - (conv.window.kernel[i] as i64 - 1));
    let boxes = Boxes {
        x: dy,
        y: dx,
        origin,
    };
    let direction = Direction::BackwardData;
    filter(
        call, tile, direction, boxes, w, conv, outputs, accumulate, epilogue,
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
    let plan = gradient_plan(team, tile, conv, c, yg);
    (plan.elements() + ALIGN).max(norm_scratch(team, yg.channels))
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
    let (xg, yg) = (x.grid, dy.grid);
    let (c, f) = (xg.channels, yg.channels);
    assert_valid(conv);
    conv.assert_valid(c, f, dw.len());
    conv.assert_boxes(xg, yg);
    let weights = conv.weight_elements(c, f);
    let written = 4 * (weights + db.as_ref().map_or(0, |_| f)) as u64;
    let work = Work {
        flops: conv.flops(yg.positions(), c, f),
        bytes: xg.bytes() + yg.bytes() + written * (1 + u64::from(accumulate)),
    };
    if let Some(db) = db {
        bias_backward(call, dy, &mut db[..f], accumulate)?;
    }
    let dw = &mut dw[..weights];
    if weights == 0 || yg.positions() == 0 {
        if !accumulate {
            dw.fill(0.0);
        }
        return Ok(work);
    }
    let (dims, level) = (order(conv), call.team.level());
    let plan = gradient_plan(call.team.kind(), tile, conv, c, yg);
    let gradient = Gradient {
        x: x.data,
        x_grid: Ordered::new(xg, dims),
        dy: dy.data,
        y_grid: Ordered::new(yg, dims),
        m: tile.sizes(conv),
        tiles: Tiles { level, f },
        source: Direction::Forward.source(level, tile, (&[], conv), (c, f)),
    };
    let scratch = aligned(call.scratch);
    // SAFETY: the boxes hold their slices, x is the complete input of dy, and dw has all weights.
    unsafe { gradient.run(call.team, call.progress, &plan, scratch, (dw, accumulate))? };
    Ok(work)
}

fn gradient_plan(
    team: TeamKind,
    tile: WinogradTile,
    conv: &Convolution,
    c: usize,
    yg: &Grid,
) -> gradient::Plan {
    let m = tile.sizes(conv);
    let tiling = Tiling::new(&Ordered::new(yg, order(conv)), m);
    let tiles = Tiles {
        level: team.level,
        f: yg.channels,
    };
    gradient::Plan::new(team, m, tiling.count(), c, tiles)
}

/// The two directions that filter a box.
#[derive(Clone, Copy)]
enum Direction {
    Forward,
    BackwardData,
}

impl Direction {
    /// Weights for C and F channels as the direction sees them.
    fn source<'a>(
        self,
        level: Level,
        tile: WinogradTile,
        weights: (&'a [f32], &Convolution),
        channels: (usize, usize),
    ) -> Source<'a> {
        let transposed = match self {
            Direction::Forward => false,
            Direction::BackwardData => true,
        };
        Source::new(level, weights, channels, tile.sizes(weights.1), transposed)
    }
}

fn pack(
    call: &mut Call,
    tile: WinogradTile,
    (w, conv): (&[f32], &Convolution),
    packed: &mut [f32],
    (c, f): (usize, usize),
    direction: Direction,
) -> Result<Work, Canceled> {
    assert_valid(conv);
    conv.assert_valid(c, f, w.len());
    let source = direction.source(call.team.level(), tile, (w, conv), (c, f));
    source.pack(call.team, call.progress, packed)?;
    let elements = conv.weight_elements(c, f) + source.elements(source.tiles.padded());
    Ok(Work {
        flops: 0,
        bytes: 4 * elements as u64,
    })
}

fn filter_plan(
    team: TeamKind,
    tile: WinogradTile,
    conv: &Convolution,
    source: &Source,
    written: &Grid,
    is_packed: bool,
) -> Plan {
    let m = tile.sizes(conv);
    let tiling = Tiling::new(&Ordered::new(written, order(conv)), m);
    Plan::new(team, m, tiling.count(), source, is_packed)
}

fn filter_scratch(
    team: TeamKind,
    tile: WinogradTile,
    conv: &Convolution,
    source: &Source,
    written: &Grid,
    is_packed: bool,
) -> usize {
    let plan = filter_plan(team, tile, conv, source, written, is_packed);
    let weights = if plan.is_sliced || is_packed {
        0
    } else {
        source.elements(source.tiles.padded())
    };
    weights + plan.elements() + ALIGN
}

/// The box that is read, the one that is written, and where its first element begins to read.
struct Boxes<'a> {
    x: View<'a>,
    y: ViewMut<'a>,
    origin: [i64; 3],
}

#[allow(
    clippy::too_many_arguments,
    reason = "operands of one mathematical operation"
)]
fn filter(
    call: &mut Call,
    tile: WinogradTile,
    direction: Direction,
    boxes: Boxes,
    w: Weights,
    conv: &Convolution,
    outputs: usize,
    accumulate: bool,
    epilogue: Epilogue,
) -> Result<Work, Canceled> {
    let (xg, yg) = (boxes.x.grid, boxes.y.grid);
    let (kind, dims) = (call.team.kind(), order(conv));
    let (c, f) = match direction {
        Direction::Forward => (xg.channels, yg.channels),
        Direction::BackwardData => (yg.channels, xg.channels),
    };
    let (Weights::Plain(plain) | Weights::Packed(plain)) = w;
    let is_packed = matches!(w, Weights::Packed(_));
    let source = direction.source(kind.level, tile, (plain, conv), (c, f));
    let elements = source.elements(source.tiles.padded());
    conv.assert_weights(c, f, w, elements);
    epilogue.assert_valid(yg);
    let weights_bytes = 4 * conv.weight_elements(c, f) as u64;
    let bytes = xg.bytes() + weights_bytes + yg.bytes() * (1 + u64::from(accumulate));
    let work = Work {
        flops: conv.flops(outputs, c, f),
        bytes: bytes + epilogue.bytes(),
    };
    let plan = filter_plan(kind, tile, conv, &source, yg, is_packed);
    let (own, scratch) = aligned(call.scratch).split_at_mut(plan.elements());
    let (weights, rest) = match w {
        Weights::Packed(w) => (Some(&w[..elements]), scratch),
        Weights::Plain(_) if plan.is_sliced || yg.elements() == 0 => (None, scratch),
        Weights::Plain(_) => {
            let (room, rest) = scratch.split_at_mut(elements);
            source.pack(call.team, call.progress, room)?;
            (Some(&*room), rest)
        }
    };
    let (job_epilogue, mut total) = epilogue.begin(kind, conv, yg.channels, rest);
    if yg.elements() == 0 {
        return Ok(work);
    }
    let mut job_epilogue = job_epilogue.of_job(0, [0; 3], [1; 3]);
    for positions in &mut job_epilogue.positions {
        let [d, h, w] = dims.map(|dim| positions.step[dim + 1]);
        positions.step = [positions.step[0], d, h, w];
    }
    let filter = Filter {
        x: boxes.x.data,
        x_grid: Ordered::new(xg, dims),
        origin: dims.map(|dim| boxes.origin[dim]),
        y: Shared(boxes.y.data.as_mut_ptr()),
        y_grid: Ordered::new(yg, dims),
        m: tile.sizes(conv),
        source,
        weights,
        accumulate,
        epilogue: job_epilogue,
    };
    // SAFETY: the boxes hold their slices, those of the epilogue are like y, and y is borrowed
    // alone.
    let used = unsafe { filter.run(call.team, call.progress, &plan, own)? };
    total.add(used, 0, yg.channels);
    Ok(work)
}

/// The scratch from the first cache line on.
fn aligned(scratch: &mut [f32]) -> &mut [f32] {
    let skip = scratch.as_ptr().align_offset(LINE_BYTES);
    let skip = if skip < ALIGN { skip } else { 0 };
    &mut scratch[skip..]
}
