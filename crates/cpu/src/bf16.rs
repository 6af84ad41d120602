//! Convolutions on activations in bf16: half the memory and traffic of f32, and the same sums.
//!
//! Weights are rounded to bf16, to the nearest, of two the even one. Products of bf16 are exact in f32, sums are
//! in f32, and an output is rounded once, after its epilogue. Parameters and their gradients stay in f32.
//! Where the processor multiplies pairs of bf16, these are pairs of neighboring channels, and subnormal
//! elements count as zero; elsewhere a tile copies what it reads to f32.

mod depthwise;
mod gradient;
mod job;
mod moves;
mod products;
mod stage;
mod tile;
mod weights;

use crate::conv::convolution::{Convolution, Weights};
use crate::conv::data::{Gradient, positions_of_tap};
use crate::conv::epilogue::Epilogue;
use crate::conv::forward::Forward;
use crate::conv::loose_weights::is_loose;
use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work};
use crate::simd::Level;
use crate::team::{Team, TeamKind};
pub use gradient::{
    bias_backward_bf16, conv_backward_weight_bf16, conv_backward_weight_scratch_bf16,
};
use half::bf16;
use job::{HalfWeights, Source, room};
pub(crate) use moves::convert;
pub use moves::{accumulate_bf16, copy_bf16, fill_bf16};
use weights::{Plain, elements, packed_elements, round};

/// Scratch elements of f32 that [`conv_forward_bf16`] needs for C and F channels and `positions` outputs
/// (of all samples), with packed weights or plain ones. Sums in the epilogue need [`crate::sums_scratch`]
/// on top.
pub fn conv_forward_scratch_bf16(
    team: TeamKind,
    conv: &Convolution,
    c: usize,
    f: usize,
    positions: usize,
    is_packed: bool,
) -> usize {
    let packed = packed_forward_elements_bf16(team.level, conv, c, f);
    let is_loose = !conv.is_depthwise(c, f) && is_loose(packed, positions);
    scratch(team, packed, is_packed, is_loose)
}

/// Scratch elements of f32 that [`conv_backward_data_bf16`] needs for C and F channels and `positions`
/// elements of dx per channel (of all samples), with packed weights or plain ones. Sums in the epilogue need
/// [`crate::sums_scratch`] on top.
pub fn conv_backward_data_scratch_bf16(
    team: TeamKind,
    conv: &Convolution,
    c: usize,
    f: usize,
    positions: usize,
    is_packed: bool,
) -> usize {
    let packed = packed_backward_data_elements_bf16(team.level, conv, c, f);
    let is_loose = !conv.is_depthwise(c, f) && is_loose(packed, positions_of_tap(conv, positions));
    scratch(team, packed, is_packed, is_loose)
}

fn scratch(team: TeamKind, packed: usize, is_packed: bool, is_loose: bool) -> usize {
    match (is_packed, is_loose) {
        (true, _) => team.threads * room(false),
        (false, true) => team.threads * room(true),
        (false, false) => team.threads * room(false) + packed,
    }
}

/// Elements of the weights that [`pack_forward_bf16`] writes.
pub fn packed_forward_elements_bf16(level: Level, conv: &Convolution, c: usize, f: usize) -> usize {
    if conv.is_depthwise(c, f) {
        return conv.weight_elements(c, f);
    }
    packed_elements(level, conv, c / conv.groups, f / conv.groups)
}

/// Elements of the weights that [`pack_backward_data_bf16`] writes.
pub fn packed_backward_data_elements_bf16(
    level: Level,
    conv: &Convolution,
    c: usize,
    f: usize,
) -> usize {
    packed_forward_elements_bf16(level, conv, f, c)
}

/// Rounds and packs weights (Kd, Kh, Kw, C / groups, F) for [`conv_forward_bf16`] on a team of the same
/// level, by tiles of output channels padded with zeros. Needs no scratch.
///
/// Errors: [`Canceled`]. Panics if `packed` is shorter than [`packed_forward_elements_bf16`].
pub fn pack_forward_bf16(
    call: &mut Call,
    w: &[f32],
    packed: &mut [f32],
    conv: &Convolution,
    c: usize,
    f: usize,
) -> Result<Work, Canceled> {
    pack(call, Plain::forward(w, conv, c, f), packed, conv, (c, f))
}

/// Rounds and packs weights (Kd, Kh, Kw, C / groups, F) for [`conv_backward_data_bf16`] on a team of the
/// same level, flipped and transposed. Needs no scratch.
///
/// Errors: [`Canceled`]. Panics if `packed` is shorter than [`packed_backward_data_elements_bf16`].
pub fn pack_backward_data_bf16(
    call: &mut Call,
    w: &[f32],
    packed: &mut [f32],
    conv: &Convolution,
    c: usize,
    f: usize,
) -> Result<Work, Canceled> {
    pack(call, Plain::backward(w, conv, c, f), packed, conv, (c, f))
}

fn pack(
    call: &mut Call,
    plain: Plain,
    packed: &mut [f32],
    conv: &Convolution,
    (c, f): (usize, usize),
) -> Result<Work, Canceled> {
    conv.assert_valid(c, f, plain.w.len());
    let elements = pack_all(call.team, call.progress, plain, packed, conv, (c, f))?;
    Ok(Work {
        flops: 0,
        bytes: 4 * (conv.weight_elements(c, f) + elements) as u64,
    })
}

/// Packs all weights and returns how many packed elements there are.
fn pack_all(
    team: &mut Team,
    progress: &mut dyn FnMut() -> bool,
    plain: Plain,
    packed: &mut [f32],
    conv: &Convolution,
    (c, f): (usize, usize),
) -> Result<usize, Canceled> {
    if conv.is_depthwise(c, f) {
        let all = conv.weight_elements(c, f);
        round(&plain.w[..all], &mut packed[..all]);
        return Ok(all);
    }
    let groups = (conv.groups, conv.window.volume());
    plain.pack_all(team, progress, groups, packed)?;
    Ok(packed_elements(team.level(), conv, plain.c, plain.f))
}

/// As [`crate::conv_forward`] on bf16: y is rounded once, from sums in f32 of products with rounded weights.
/// The epilogue works in f32 before that; its sums are of what y holds. Packed weights are those of
/// [`pack_forward_bf16`].
///
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other.
pub fn conv_forward_bf16(
    call: &mut Call,
    x: View<bf16>,
    w: Weights,
    y: ViewMut<bf16>,
    conv: &Convolution,
    accumulate: bool,
    epilogue: Epilogue<bf16>,
) -> Result<Work, Canceled> {
    let (xg, yg) = (x.grid, y.grid);
    let (c, f) = (xg.channels, yg.channels);
    let (kind, level, positions) = (call.team.kind(), call.team.level(), yg.positions());
    let packed = packed_forward_elements_bf16(level, conv, c, f);
    conv.assert_weights(c, f, w, packed);
    conv.assert_boxes(xg, yg);
    epilogue.assert_valid(yg);
    let weights = conv.weight_elements(c, f);
    let bytes = x.bytes() + 4 * weights as u64 + y.bytes() * (1 + u64::from(accumulate));
    let work = Work {
        flops: conv.flops(positions, c, f),
        bytes: bytes + epilogue.bytes(),
    };
    let is_packed = matches!(w, Weights::Packed(_));
    let need = conv_forward_scratch_bf16(kind, conv, c, f, positions, is_packed);
    let (scratch, rest) = call.scratch.split_at_mut(need);
    let (job_epilogue, total) = epilogue.begin(kind, conv, f, rest);
    if yg.elements() == 0 {
        return Ok(work);
    }
    let merged = match w {
        Weights::Plain(_) => merged_taps(level, conv, xg),
        Weights::Packed(_) => None,
    };
    let (conv, grid) = merged.unwrap_or((*conv, *xg));
    let plain = Plain::forward(elements(&w), &conv, grid.channels, f);
    let loose = is_loose(packed, positions);
    let channels = (grid.channels, f, packed);
    let of_call = (is_packed, loose, false);
    let weights = prepare(
        call.team,
        call.progress,
        plain,
        scratch,
        &conv,
        channels,
        of_call,
    )?;
    let forward = Forward {
        x: View { grid: &grid, ..x },
        y,
        weights,
        conv: &conv,
        accumulate,
        epilogue: job_epilogue,
    };
    forward.run(call.team, call.progress, total)?;
    Ok(work)
}

/// A convolution that has taps in W as input channels, where these are neighbors and pairs would otherwise
/// have a zero in each tap; and the box that it reads.
fn merged_taps(level: Level, conv: &Convolution, xg: &Grid) -> Option<(Convolution, Grid)> {
    let (mut conv, mut grid) = (*conv, *xg);
    let taps = conv.window.kernel[2];
    let is_dense = conv.groups == 1 && conv.window.dilation[2] == 1 && xg.pitch[3] == xg.channels;
    let pays = level.has_pairs() && !xg.channels.is_multiple_of(2) && taps > 1;
    conv.window.kernel[2] = 1;
    grid.channels *= taps;
    (is_dense && pays).then_some((conv, grid))
}

/// The weights as jobs read them: packed, where they are not loose.
fn prepare<'w>(
    team: &mut Team,
    progress: &mut dyn FnMut() -> bool,
    plain: Plain<'w>,
    scratch: &'w mut [f32],
    conv: &Convolution,
    (c, f, packed): (usize, usize, usize),
    (is_packed, is_loose, is_flipped): (bool, bool, bool),
) -> Result<HalfWeights<'w>, Canceled> {
    let (threads, is_depthwise) = (team.threads(), conv.is_depthwise(c, f));
    let is_loose = is_loose && !is_packed && !is_depthwise;
    let (rooms, own) = scratch.split_at_mut(threads * room(is_loose));
    let source = if is_loose {
        Source::Loose(plain)
    } else {
        let w = if is_packed {
            &plain.w[..packed]
        } else {
            let all = pack_all(team, progress, plain, own, conv, (c, f))?;
            &own[..all]
        };
        if is_depthwise {
            Source::Depthwise(w, is_flipped)
        } else {
            Source::Packed(w)
        }
    };
    Ok(HalfWeights {
        source,
        rooms: Shared(rooms.as_mut_ptr()),
    })
}

/// As [`crate::conv_backward_data`] on bf16: dx is rounded once, from sums in f32 of products with rounded
/// weights. The epilogue works in f32 before that; its sums are of what dx holds. Packed weights are those of
/// [`pack_backward_data_bf16`].
///
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other.
#[allow(
    clippy::too_many_arguments,
    reason = "operands of one mathematical operation"
)]
pub fn conv_backward_data_bf16(
    call: &mut Call,
    dy: View<bf16>,
    w: Weights,
    dx: ViewMut<bf16>,
    conv: &Convolution,
    shift: [i64; 3],
    accumulate: bool,
    epilogue: Epilogue<bf16>,
) -> Result<Work, Canceled> {
    let (yg, xg) = (dy.grid, dx.grid);
    let (c, f) = (xg.channels, yg.channels);
    let (kind, level, positions) = (call.team.kind(), call.team.level(), xg.positions());
    let packed = packed_backward_data_elements_bf16(level, conv, c, f);
    conv.assert_weights(c, f, w, packed);
    assert!(xg.samples == yg.samples, "samples of {xg:?} and {yg:?}");
    conv.window.assert_near(shift, xg.extent, yg.extent);
    epilogue.assert_valid(xg);
    let weights = conv.weight_elements(c, f);
    let bytes = dy.bytes() + 4 * weights as u64 + dx.bytes() * (1 + u64::from(accumulate));
    let work = Work {
        flops: conv.flops(yg.positions(), c, f),
        bytes: bytes + epilogue.bytes(),
    };
    let is_packed = matches!(w, Weights::Packed(_));
    let need = conv_backward_data_scratch_bf16(kind, conv, c, f, positions, is_packed);
    let (scratch, rest) = call.scratch.split_at_mut(need);
    let (job_epilogue, total) = epilogue.begin(kind, conv, c, rest);
    if xg.elements() == 0 {
        return Ok(work);
    }
    let plain = Plain::backward(elements(&w), conv, c, f);
    let loose = is_loose(packed, positions_of_tap(conv, positions));
    let of_call = (is_packed, loose, true);
    let channels = (c, f, packed);
    let weights = prepare(
        call.team,
        call.progress,
        plain,
        scratch,
        conv,
        channels,
        of_call,
    )?;
    let mut gradient = Gradient {
        dy,
        dx: Shared(dx.data.as_mut_ptr()),
        xg,
        weights,
        conv,
        accumulate,
        epilogue: job_epilogue,
        total,
    };
    gradient.run(call.team, call.progress, shift)?;
    Ok(work)
}
