//! Forward convolution.

use crate::conv::convolution::{Convolution, Weights};
use crate::conv::direct::{DirectConvolution, JobWeights, Operand, Taps};
use crate::conv::epilogue::{Epilogue, JobEpilogue, Total};
use crate::conv::loose_weights::{LooseWeights, is_loose, loose_scratch};
use crate::conv::tiles::Tiles;
use crate::conv::values::Values;
use crate::conv::walk::Positions;
use crate::grid::{Call, Canceled, Shared, View, ViewMut, Work, product};
use crate::simd::Level;
use crate::team::{ELEMENT, Team, TeamKind};

/// Outputs from which on packing the weights pays.
const PACK_POSITIONS_MIN: usize = 48;

/// Scratch elements that [`conv_forward`] needs for C and F channels and `positions` outputs
/// (of all samples) with plain weights; zero where it reads the weights as they are. With packed
/// weights it needs none. Sums in the epilogue need [`crate::sums_scratch`] on top.
pub fn conv_forward_scratch(
    team: TeamKind,
    conv: &Convolution,
    c: usize,
    f: usize,
    positions: usize,
) -> usize {
    let packed = packs_forward(team.level, conv, c, f, positions);
    if is_loose(packed, positions) {
        loose_scratch(team)
    } else {
        packed
    }
}

/// Elements of the weights that [`conv_forward`] takes best packed, at `positions` outputs (of all samples);
/// zero where it reads them as they are.
pub fn packs_forward(
    level: Level,
    conv: &Convolution,
    c: usize,
    f: usize,
    positions: usize,
) -> usize {
    let packs = !conv.is_depthwise(c, f) && packs(level, conv, f, positions);
    if positions > 0 && packs {
        packed_forward_elements(level, conv, c, f)
    } else {
        0
    }
}

fn packs(level: Level, conv: &Convolution, f: usize, positions: usize) -> bool {
    let fg = f / conv.groups;
    // One tile of rows that are not far apart is as good as packed.
    let close = conv.groups == 1 && Tiles { level, f: fg }.count() == 1;
    !fg.is_multiple_of(level.lanes()) || (positions >= PACK_POSITIONS_MIN && !close)
}

/// Elements of the weights that [`pack_forward`] writes.
pub fn packed_forward_elements(level: Level, conv: &Convolution, c: usize, f: usize) -> usize {
    if conv.is_depthwise(c, f) {
        return conv.weight_elements(c, f);
    }
    let tiles = Tiles {
        level,
        f: f / conv.groups,
    };
    let [kd, kh, kw] = conv.window.kernel;
    product([conv.groups, kd, kh, kw, c / conv.groups, tiles.padded()])
}

/// Packs weights (Kd, Kh, Kw, C / groups, F) for [`conv_forward`], by tiles of output channels
/// padded with zeros: (group, tile, k, c, f); as they are if depthwise. Needs no scratch.
///
/// Errors: [`Canceled`]. Panics if `packed` is shorter than [`packed_forward_elements`].
pub fn pack_forward(
    call: &mut Call,
    w: &[f32],
    packed: &mut [f32],
    conv: &Convolution,
    c: usize,
    f: usize,
) -> Result<Work, Canceled> {
    pack(call.team, call.progress, w, packed, conv, (c, f))?;
    let elements =
        conv.weight_elements(c, f) + packed_forward_elements(call.team.level(), conv, c, f);
    Ok(Work {
        flops: 0,
        bytes: 4 * elements as u64,
    })
}

/// y\[n, o, f\] (+)= sum over k, c of x[n, o * stride + k * dilation, c] * w\[k, c, f\], then the
/// epilogue.
///
/// Shapes: x (N, D, H, W, C) complete, that is with its padding, so that its extent is
/// `window.input_extent(y extent)`; w (Kd, Kh, Kw, C / groups, F); y (N, D, H, W, F).
/// `accumulate` adds to y. Bit-reproducible for any number of threads, but for the sums.
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other.
pub fn conv_forward(
    call: &mut Call,
    x: View,
    w: Weights,
    y: ViewMut,
    conv: &Convolution,
    accumulate: bool,
    epilogue: Epilogue,
) -> Result<Work, Canceled> {
    let (xg, yg) = (x.grid, y.grid);
    let (c, f) = (xg.channels, yg.channels);
    let (kind, level) = (call.team.kind(), call.team.level());
    let packed = packed_forward_elements(level, conv, c, f);
    conv.assert_weights(c, f, w, packed);
    conv.assert_boxes(xg, yg);
    epilogue.assert_valid(yg);
    let weights = conv.weight_elements(c, f);
    let bytes = xg.bytes() + 4 * weights as u64 + yg.bytes() * (1 + u64::from(accumulate));
    let work = Work {
        flops: conv.flops(yg.positions(), c, f),
        bytes: bytes + epilogue.bytes(),
    };
    let need = match w {
        Weights::Plain(_) => conv_forward_scratch(kind, conv, c, f, yg.positions()),
        Weights::Packed(_) => 0,
    };
    let (scratch, rest) = call.scratch.split_at_mut(need);
    let (job_epilogue, total) = epilogue.begin(kind, conv, f, rest);
    if yg.elements() == 0 {
        return Ok(work);
    }
    let channels = (c, f, yg.positions());
    let weights = operand(call.team, call.progress, w, scratch, conv, channels)?;
    let forward = Forward {
        x,
        y,
        weights,
        conv,
        accumulate,
        epilogue: job_epilogue,
    };
    forward.run(call.team, call.progress, total)?;
    Ok(work)
}

/// A forward convolution of boxes that fit each other, with weights as its jobs read them.
pub(crate) struct Forward<'a, E, W> {
    pub x: View<'a, E>,
    pub y: ViewMut<'a, E>,
    pub weights: W,
    pub conv: &'a Convolution,
    pub accumulate: bool,
    pub epilogue: JobEpilogue<'a, E>,
}

impl<E: Values, W: JobWeights<E>> Forward<'_, E, W> {
    /// All groups.
    pub(crate) fn run(
        self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        mut total: Total<'_, E>,
    ) -> Result<(), Canceled> {
        let (xg, yg, conv) = (self.x.grid, self.y.grid, self.conv);
        let window = &conv.window;
        let (jobs, cg, fg) = conv.jobs(xg.channels, yg.channels);
        let y_base = Shared(self.y.data.as_mut_ptr());
        let taps = |i: usize| Taps {
            count: window.kernel[i],
            row: 0,
            row_step: 1,
            x: 0,
            x_step: window.dilation[i] * xg.pitch[i + 1],
        };
        for g in 0..jobs {
            let job = DirectConvolution {
                x: self.x.data,
                x_positions: Positions::new(xg, g * cg, [0; 3], window.stride),
                y: y_base,
                y_positions: Positions::new(yg, g * fg, [0; 3], [1; 3]),
                count: yg.counts(),
                taps: [taps(0), taps(1), taps(2)],
                kernel: window.kernel,
                c: cg,
                f: fg,
                weights: self.weights.of_group(g, conv.groups, fg),
                accumulate: self.accumulate,
                epilogue: self.epilogue.of_job(g * fg, [0; 3], [1; 3]),
            };
            // SAFETY: the boxes hold their slices, x is the complete input of y, the epilogue's boxes are
            // like y, and y is borrowed alone. A job has channels of its own.
            let used = unsafe { W::run(&job, team, progress)? };
            total.add(used, g * fg, fg);
        }
        Ok(())
    }
}

/// The weights as jobs read them: plain ones are packed where there is scratch for it.
fn operand<'w>(
    team: &mut Team,
    progress: &mut dyn FnMut() -> bool,
    w: Weights<'w>,
    scratch: &'w mut [f32],
    conv: &Convolution,
    (c, f, positions): (usize, usize, usize),
) -> Result<Operand<'w>, Canceled> {
    let packed = packs_forward(team.level(), conv, c, f, positions);
    Ok(match w {
        Weights::Plain(w) | Weights::Packed(w) if conv.is_depthwise(c, f) => {
            Operand::Depthwise(w, false)
        }
        Weights::Plain(w) if is_loose(packed, positions) => {
            Operand::Loose(LooseWeights::new(w, f, None, scratch))
        }
        Weights::Plain(w) if !scratch.is_empty() => {
            pack(team, progress, w, scratch, conv, (c, f))?;
            Operand::Packed(scratch)
        }
        Weights::Plain(w) => Operand::Rows(w, f),
        Weights::Packed(w) => {
            Operand::Packed(&w[..packed_forward_elements(team.level(), conv, c, f)])
        }
    })
}

fn pack(
    team: &mut Team,
    progress: &mut dyn FnMut() -> bool,
    w: &[f32],
    out: &mut [f32],
    conv: &Convolution,
    (c, f): (usize, usize),
) -> Result<(), Canceled> {
    conv.assert_valid(c, f, w.len());
    let (rows, fg) = (conv.window.volume() * c / conv.groups, f / conv.groups);
    let level = team.level();
    if conv.is_depthwise(c, f) {
        let all = conv.weight_elements(c, f);
        out[..all].copy_from_slice(&w[..all]);
        return Ok(());
    }
    let tiles = Tiles { level, f: fg };
    let out = Shared(out[..packed_forward_elements(level, conv, c, f)].as_mut_ptr());
    let lanes = level.lanes();
    let flops = ELEMENT * (rows * tiles.padded() / tiles.count().max(1)) as u64;
    team.units(progress, conv.groups * tiles.count(), flops, &|unit, _| {
        let (g, tile) = (unit / tiles.count(), unit % tiles.count());
        let (f0, v) = tiles.tile(tile);
        let (width, take) = (v * lanes, (v * lanes).min(fg - f0));
        let start = rows * (g * tiles.padded() + f0);
        // SAFETY: the tiles are disjoint parts of the packed elements.
        let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(start), rows * width) };
        for (row, out) in out.chunks_exact_mut(width).enumerate() {
            let from = row * f + g * fg + f0;
            out[..take].copy_from_slice(&w[from..from + take]);
            out[take..].fill(0.0);
        }
    })
}
