//! Convolutions of transformed tiles: what those of Winograd and of Fourier have in common.
//!
//! A tile of the box that is written and its window of the one that is read are transformed to
//! points, and so are the weights. At each point, the products over channels are a product of
//! matrices, which is transformed back. Rows of channels are whole vectors, so a transform is one of
//! vectors. At complex points a tile has two rows, see [`tile::Tile::inputs`], so that their products are
//! those of real matrices, too.

pub(crate) mod filter;
pub(crate) mod gather;
pub(crate) mod gradient;
mod multiply;
pub(crate) mod plan;
pub(crate) mod scatter;
pub(crate) mod tile;
pub(crate) mod tiling;
pub(crate) mod weights;

use crate::conv::convolution::{Convolution, Weights};
use crate::conv::epilogue::Epilogue;
use crate::conv::fourier::tile::FourierTile;
use crate::conv::tiles::Tiles;
use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work};
use crate::norm::{bias_backward, norm_scratch};
use crate::simd::{LANES_MAX, Level};
use crate::team::TeamKind;
use filter::Filter;
use gradient::Gradient;
use plan::Plan;
use tiling::{Ordered, Tiling, order};
use weights::Source;

/// Elements that align the scratch to cache lines.
const ALIGN: usize = LANES_MAX;
const LINE_BYTES: usize = 64;

/// How tiles are transformed.
#[derive(Clone, Copy)]
pub(crate) enum Transform {
    /// Outputs of a tile along the dims.
    Winograd([usize; 3]),
    Fourier(FourierTile),
}

impl Transform {
    /// Outputs of a tile along the dims.
    pub(crate) fn outputs(self) -> [usize; 3] {
        match self {
            Transform::Winograd(m) => m,
            Transform::Fourier(tile) => tile.outputs(),
        }
    }

    /// Points of a tile.
    pub(crate) fn points(self) -> usize {
        match self {
            Transform::Winograd(m) => crate::conv::winograd::tile::points(m),
            Transform::Fourier(tile) => tile.points(),
        }
    }

    /// Numbers of a point: 2 if it is complex.
    pub(crate) fn parts(self) -> usize {
        match self {
            Transform::Winograd(_) => 1,
            Transform::Fourier(_) => 2,
        }
    }
}

/// Runs an operation with the tile of a transform.
macro_rules! with_tile {
    ($transform:expr, $tile:ident => $body:expr) => {{
        use crate::conv::transformed::Transform;
        use crate::conv::winograd::nest::with_sizes;
        use crate::conv::winograd::tile::Nested;
        match $transform {
            Transform::Winograd(m) => with_sizes!(m, Z => {
                let $tile = Nested::<Z>::default();
                $body
            }),
            Transform::Fourier($tile) => $body,
        }
    }};
}
pub(crate) use with_tile;

/// The two directions that filter a box.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    Forward,
    BackwardData,
}

impl Direction {
    /// Weights for C and F channels as the direction sees them.
    pub(crate) fn source<'a>(
        self,
        level: Level,
        transform: Transform,
        weights: (&'a [f32], &Convolution),
        channels: (usize, usize),
    ) -> Source<'a> {
        let transposed = match self {
            Direction::Forward => false,
            Direction::BackwardData => true,
        };
        Source::new(level, weights, channels, transform, transposed)
    }
}

/// Writes the points of all weights.
pub(crate) fn pack(
    call: &mut Call,
    transform: Transform,
    (w, conv): (&[f32], &Convolution),
    packed: &mut [f32],
    (c, f): (usize, usize),
    direction: Direction,
) -> Result<Work, Canceled> {
    conv.assert_valid(c, f, w.len());
    let source = direction.source(call.team.level(), transform, (w, conv), (c, f));
    source.pack(call.team, call.progress, packed)?;
    let elements = conv.weight_elements(c, f) + source.elements(source.tiles.padded());
    Ok(Work {
        flops: 0,
        bytes: 4 * elements as u64,
    })
}

pub(crate) fn filter_plan(
    team: TeamKind,
    conv: &Convolution,
    source: &Source,
    written: &Grid,
    is_packed: bool,
) -> Plan {
    let outputs = source.transform.outputs();
    let tiling = Tiling::new(&Ordered::new(written, order(conv)), outputs);
    Plan::new(team, tiling.count(), source, is_packed)
}

/// Scratch elements that [`filter`] needs, but for the sums of an epilogue.
pub(crate) fn filter_scratch(
    team: TeamKind,
    conv: &Convolution,
    source: &Source,
    written: &Grid,
    is_packed: bool,
) -> usize {
    let plan = filter_plan(team, conv, source, written, is_packed);
    let weights = if plan.is_sliced || is_packed {
        0
    } else {
        source.elements(source.tiles.padded())
    };
    weights + plan.elements() + ALIGN
}

/// The box that is read, the one that is written, and where its first element begins to read.
pub(crate) struct Boxes<'a> {
    pub x: View<'a>,
    pub y: ViewMut<'a>,
    pub origin: [i64; 3],
}

impl<'a> Boxes<'a> {
    /// Of the forward convolution. Panics if the boxes do not fit each other.
    pub(crate) fn forward(x: View<'a>, y: ViewMut<'a>, conv: &Convolution) -> Boxes<'a> {
        conv.assert_boxes(x.grid, y.grid);
        let origin = [0; 3];
        Boxes { x, y, origin }
    }

    /// Of the data gradient. Panics if the boxes do not fit each other.
    pub(crate) fn backward_data(
        dy: View<'a>,
        dx: ViewMut<'a>,
        conv: &Convolution,
        shift: [i64; 3],
    ) -> Boxes<'a> {
        let (yg, xg) = (dy.grid, dx.grid);
        assert!(xg.samples == yg.samples, "samples of {xg:?} and {yg:?}");
        conv.window.assert_near(shift, xg.extent, yg.extent);
        // The last tap reaches the first output.
        let origin = std::array::from_fn(|i| shift[i] - (conv.window.kernel[i] as i64 - 1));
        Boxes {
            x: dy,
            y: dx,
            origin,
        }
    }
}

/// Filters a box.
#[allow(
    clippy::too_many_arguments,
    reason = "operands of one mathematical operation"
)]
pub(crate) fn filter(
    call: &mut Call,
    transform: Transform,
    direction: Direction,
    boxes: Boxes,
    w: Weights,
    conv: &Convolution,
    accumulate: bool,
    epilogue: Epilogue,
) -> Result<Work, Canceled> {
    let (xg, yg) = (boxes.x.grid, boxes.y.grid);
    let (kind, dims) = (call.team.kind(), order(conv));
    let (c, f, outputs) = match direction {
        Direction::Forward => (xg.channels, yg.channels, yg.positions()),
        Direction::BackwardData => (yg.channels, xg.channels, xg.positions()),
    };
    let (Weights::Plain(plain) | Weights::Packed(plain)) = w;
    let is_packed = matches!(w, Weights::Packed(_));
    let source = direction.source(kind.level, transform, (plain, conv), (c, f));
    let elements = source.elements(source.tiles.padded());
    conv.assert_weights(c, f, w, elements);
    epilogue.assert_valid(yg);
    let weights_bytes = 4 * conv.weight_elements(c, f) as u64;
    let bytes = xg.bytes() + weights_bytes + yg.bytes() * (1 + u64::from(accumulate));
    let work = Work {
        flops: conv.flops(outputs, c, f),
        bytes: bytes + epilogue.bytes(),
    };
    let plan = filter_plan(kind, conv, &source, yg, is_packed);
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

/// Scratch elements that [`gradient`] needs for C input channels.
pub(crate) fn gradient_scratch(
    team: TeamKind,
    transform: Transform,
    conv: &Convolution,
    c: usize,
    yg: &Grid,
) -> usize {
    let plan = gradient_plan(team, transform, conv, c, yg);
    (plan.elements() + ALIGN).max(norm_scratch(team, yg.channels))
}

/// The weight gradient, and that of the bias.
#[allow(
    clippy::too_many_arguments,
    reason = "operands of one mathematical operation"
)]
pub(crate) fn gradient(
    call: &mut Call,
    transform: Transform,
    x: View,
    dy: View,
    dw: &mut [f32],
    db: Option<&mut [f32]>,
    conv: &Convolution,
    accumulate: bool,
) -> Result<Work, Canceled> {
    let (xg, yg) = (x.grid, dy.grid);
    let (c, f) = (xg.channels, yg.channels);
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
    let plan = gradient_plan(call.team.kind(), transform, conv, c, yg);
    let gradient = Gradient {
        x: x.data,
        x_grid: Ordered::new(xg, dims),
        dy: dy.data,
        y_grid: Ordered::new(yg, dims),
        tiles: Tiles { level, f },
        source: Direction::Forward.source(level, transform, (&[], conv), (c, f)),
    };
    let scratch = aligned(call.scratch);
    // SAFETY: the boxes hold their slices, x is the complete input of dy, and dw has all weights.
    unsafe { gradient.run(call.team, call.progress, &plan, scratch, (dw, accumulate))? };
    Ok(work)
}

pub(crate) fn gradient_plan(
    team: TeamKind,
    transform: Transform,
    conv: &Convolution,
    c: usize,
    yg: &Grid,
) -> gradient::Plan {
    let tiling = Tiling::new(&Ordered::new(yg, order(conv)), transform.outputs());
    let tiles = Tiles {
        level: team.level,
        f: yg.channels,
    };
    gradient::Plan::new(team, transform, tiling.count(), c, tiles)
}

/// The scratch from the first cache line on.
fn aligned(scratch: &mut [f32]) -> &mut [f32] {
    let skip = scratch.as_ptr().align_offset(LINE_BYTES);
    let skip = if skip < ALIGN { skip } else { 0 };
    &mut scratch[skip..]
}
