//! Gradient of a convolution with respect to its input.
//!
//! dx is cut into boxes on which the set of contributing taps is constant: one box where the
//! stride is 1 and dy is complete, else one per output phase and border. Each box is the forward
//! kernel on dy with flipped, transposed weights.

use crate::conv::convolution::{Convolution, Weights};
use crate::conv::direct::{DirectConvolution, JobWeights, Operand, Taps};
use crate::conv::dot;
use crate::conv::epilogue::{Epilogue, JobEpilogue, Total};
use crate::conv::loose_weights::{LooseWeights, is_loose, loose_scratch};
use crate::conv::tiles::Tiles;
use crate::conv::transpose::Transpose;
use crate::conv::values::Values;
use crate::conv::walk::Positions;
use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work, product};
use crate::simd::Level;
use crate::team::{ELEMENT, Team, TeamKind};

/// Scratch elements that [`conv_backward_data`] needs for C and F channels and `positions`
/// elements of dx per channel (of all samples) with plain weights; zero where it reads the weights
/// as they are. With packed weights it needs none. Sums in the epilogue need
/// [`crate::sums_scratch`] on top.
pub fn conv_backward_data_scratch(
    team: TeamKind,
    conv: &Convolution,
    c: usize,
    f: usize,
    positions: usize,
) -> usize {
    let packed = packs_backward_data(team.level, conv, c, f, positions);
    if is_loose(packed, positions_of_tap(conv, positions)) {
        loose_scratch(team)
    } else {
        packed
    }
}

/// Elements of the weights that [`conv_backward_data`] takes best packed, at `positions` positions of dx (of all
/// samples); zero where it reads them as they are.
pub fn packs_backward_data(
    level: Level,
    conv: &Convolution,
    c: usize,
    f: usize,
    positions: usize,
) -> usize {
    if positions == 0 || dots(level, conv, (c, f), positions) {
        return 0;
    }
    packed_backward_data_elements(level, conv, c, f)
}

/// Positions of dx to which a tap contributes, of `positions`.
pub(crate) fn positions_of_tap(conv: &Convolution, positions: usize) -> usize {
    positions / product(conv.window.stride).max(1)
}

/// Whether plain weights are used directly, without packing.
fn dots(level: Level, conv: &Convolution, (c, f): (usize, usize), positions: usize) -> bool {
    let few = positions <= dot::POSITIONS_MAX && f / conv.groups >= level.lanes();
    few || stays(level, conv, c, f)
}

/// Whether packed weights are the plain ones.
fn stays(level: Level, conv: &Convolution, c: usize, f: usize) -> bool {
    conv.is_depthwise(c, f) || dot::is_narrow(level, c / conv.groups, f / conv.groups)
}

/// Elements of the weights that [`pack_backward_data`] writes.
pub fn packed_backward_data_elements(
    level: Level,
    conv: &Convolution,
    c: usize,
    f: usize,
) -> usize {
    if stays(level, conv, c, f) {
        return conv.weight_elements(c, f);
    }
    let f_of_job = c / conv.groups;
    let [kd, kh, kw] = conv.window.kernel;
    product([kd, kh, kw, f, Tiles { level, f: f_of_job }.padded()])
}

/// Packs weights (Kd, Kh, Kw, C / groups, F) for [`conv_backward_data`], flipped and transposed:
/// (group, tile of c, flipped k, f, c in the tile); as they are if depthwise or for few
/// channels C. Needs no scratch.
///
/// Errors: [`Canceled`]. Panics if `packed` is shorter than [`packed_backward_data_elements`].
pub fn pack_backward_data(
    call: &mut Call,
    w: &[f32],
    packed: &mut [f32],
    conv: &Convolution,
    c: usize,
    f: usize,
) -> Result<Work, Canceled> {
    pack(call.team, call.progress, w, packed, conv, (c, f))?;
    let packed = packed_backward_data_elements(call.team.level(), conv, c, f);
    Ok(Work {
        flops: 0,
        bytes: 4 * (conv.weight_elements(c, f) + packed) as u64,
    })
}

/// dx[n, i, c] (+)= sum over k, o, f with i + shift = o * stride + k * dilation of
/// dy[n, o, f] * w[k, c, f], then the epilogue.
///
/// Shapes: dy (N, D, H, W, F), dx (N, D, H, W, C), w (Kd, Kh, Kw, C / groups, F); outputs outside
/// the box of dy contribute nothing. `shift` is the position of the first element of dx, relative to
/// the first input that output 0 of the dy box reads. `accumulate` adds to dx. Fast where the
/// stride is 1 and dy is complete. Bit-reproducible for any number of threads, but for the sums.
/// The forward direction of a transposed convolution is this one, of dy.
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other.
#[allow(
    clippy::too_many_arguments,
    reason = "operands of one mathematical operation"
)]
pub fn conv_backward_data(
    call: &mut Call,
    dy: View,
    w: Weights,
    dx: ViewMut,
    conv: &Convolution,
    shift: [i64; 3],
    accumulate: bool,
    epilogue: Epilogue,
) -> Result<Work, Canceled> {
    let (yg, xg) = (dy.grid, dx.grid);
    let (c, f) = (xg.channels, yg.channels);
    let (kind, level) = (call.team.kind(), call.team.level());
    let packed = packed_backward_data_elements(level, conv, c, f);
    conv.assert_weights(c, f, w, packed);
    assert!(xg.samples == yg.samples, "samples of {xg:?} and {yg:?}");
    conv.window.assert_near(shift, xg.extent, yg.extent);
    epilogue.assert_valid(xg);
    let weights = conv.weight_elements(c, f);
    let bytes = yg.bytes() + 4 * weights as u64 + xg.bytes() * (1 + u64::from(accumulate));
    let work = Work {
        flops: conv.flops(yg.positions(), c, f),
        bytes: bytes + epilogue.bytes(),
    };
    let need = match w {
        Weights::Plain(_) => conv_backward_data_scratch(kind, conv, c, f, xg.positions()),
        Weights::Packed(_) => 0,
    };
    let (scratch, rest) = call.scratch.split_at_mut(need);
    let (job_epilogue, total) = epilogue.begin(kind, conv, c, rest);
    if xg.elements() == 0 {
        return Ok(work);
    }
    let weights = match w {
        Weights::Plain(w) | Weights::Packed(w) if conv.is_depthwise(c, f) => {
            Operand::Depthwise(w, true)
        }
        Weights::Plain(w) if dots(level, conv, (c, f), xg.positions()) => Operand::Transposed(w, f),
        Weights::Plain(w) if is_loose(packed, positions_of_tap(conv, xg.positions())) => {
            let taps = conv.window.volume();
            Operand::Loose(LooseWeights::new(w, f, Some(taps), scratch))
        }
        Weights::Plain(w) => {
            pack(call.team, call.progress, w, scratch, conv, (c, f))?;
            Operand::Packed(scratch)
        }
        Weights::Packed(w) if stays(level, conv, c, f) => Operand::Transposed(w, f),
        Weights::Packed(w) => Operand::Packed(&w[..packed]),
    };
    Gradient {
        dy,
        dx: Shared(dx.data.as_mut_ptr()),
        xg,
        weights,
        conv,
        accumulate,
        epilogue: job_epilogue,
        total,
    }
    .run(call.team, call.progress, shift)?;
    Ok(work)
}

/// A data gradient of boxes that fit each other, with weights as its jobs read them.
pub(crate) struct Gradient<'a, E, W> {
    pub dy: View<'a, E>,
    pub dx: Shared<E>,
    pub xg: &'a Grid,
    /// Of all groups.
    pub weights: W,
    pub conv: &'a Convolution,
    pub accumulate: bool,
    pub epilogue: JobEpilogue<'a, E>,
    pub total: Total<'a, E>,
}

impl<E: Values, W: JobWeights<E>> Gradient<'_, E, W> {
    /// All segments; dx is valid for its box, and nobody else has it.
    pub(crate) fn run(
        &mut self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        shift: [i64; 3],
    ) -> Result<(), Canceled> {
        let segments = |dim| Segments::new(self.xg, self.dy.grid, self.conv, shift, dim);
        let [d, h, w] = [segments(0), segments(1), segments(2)];
        for sd in d {
            for sh in h {
                for sw in w {
                    self.segment(team, progress, [sd, sh, sw])?;
                }
            }
        }
        Ok(())
    }

    /// One box of constant taps, all groups.
    fn segment(
        &mut self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
        at: [Segment; 3],
    ) -> Result<(), Canceled> {
        let (xg, yg) = (self.xg, self.dy.grid);
        let (jobs, fg, cg) = self.conv.jobs(yg.channels, xg.channels);
        let (first, step) = (at.map(|s| s.first), at.map(|s| s.step));
        for g in 0..jobs {
            let job = DirectConvolution {
                x: self.dy.data,
                x_positions: Positions::new(yg, g * fg, [0; 3], [1; 3]),
                y: self.dx,
                y_positions: Positions::new(xg, g * cg, first, step),
                count: [xg.samples, at[0].count, at[1].count, at[2].count],
                taps: at.map(|s| s.taps),
                kernel: self.conv.window.kernel,
                c: fg,
                f: cg,
                weights: self.weights.of_group(g, jobs, fg),
                accumulate: self.accumulate,
                epilogue: self.epilogue.of_job(g * cg, first, step),
            };
            // SAFETY: the boxes hold their slices, the taps of a segment hit outputs in dy, the
            // epilogue's boxes are like dx, and dx is borrowed alone. A job has channels of its own.
            let used = unsafe { W::run(&job, team, progress)? };
            self.total.add(used, g * cg, cg);
        }
        Ok(())
    }
}

/// Inputs `first, first + step, ...` of one dim to which the same taps contribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    first: usize,
    step: usize,
    count: usize,
    taps: Taps,
}

/// The segments of one dim, phase by phase.
#[derive(Clone, Copy)]
struct Segments {
    extent: usize,
    outputs: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    shift: i64,
    pitch: usize,
    phase: usize,
    next: usize,
}

impl Segments {
    fn new(xg: &Grid, yg: &Grid, conv: &Convolution, shift: [i64; 3], dim: usize) -> Segments {
        Segments {
            extent: xg.extent[dim],
            outputs: yg.extent[dim],
            kernel: conv.window.kernel[dim],
            stride: conv.window.stride[dim],
            dilation: conv.window.dilation[dim],
            shift: shift[dim],
            pitch: yg.pitch[dim + 1],
            phase: 0,
            next: 0,
        }
    }

    /// Contributing taps of one input, last tap first, so that outputs ascend; with the output
    /// of the first of them.
    fn taps(&self, input: usize) -> (Taps, usize) {
        let (mut taps, mut first) = (
            Taps {
                count: 0,
                row: 0,
                row_step: 1,
                x: 0,
                x_step: 0,
            },
            0,
        );
        for row in 0..self.kernel {
            let k = self.kernel - 1 - row;
            let at = input as i64 + self.shift - (k * self.dilation) as i64;
            let stride = self.stride as i64;
            if at < 0 || at % stride != 0 || at / stride >= self.outputs as i64 {
                continue;
            }
            let output = (at / stride) as usize;
            match taps.count {
                0 => {
                    (taps.row, taps.x, first) = (row, output * self.pitch, output);
                }
                1 => {
                    taps.row_step = row - taps.row;
                    taps.x_step = (output - first) * self.pitch;
                }
                2.. => {}
            }
            taps.count += 1;
        }
        (taps, first)
    }
}

impl Iterator for Segments {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        while self.next >= self.extent {
            self.phase += 1;
            self.next = self.phase;
            if self.phase >= self.stride {
                return None;
            }
        }
        let first = self.next;
        let (taps, _) = self.taps(first);
        let mut count = 1;
        while first + count * self.stride < self.extent {
            let (next, _) = self.taps(first + count * self.stride);
            let same = (next.count, next.row) == (taps.count, taps.row);
            if !same {
                break;
            }
            count += 1;
        }
        self.next = first + count * self.stride;
        Some(Segment {
            first,
            step: self.stride,
            count,
            taps,
        })
    }
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
    let (cg, fg, volume) = (c / conv.groups, f / conv.groups, conv.window.volume());
    let level = team.level();
    if stays(level, conv, c, f) {
        let all = conv.weight_elements(c, f);
        out[..all].copy_from_slice(&w[..all]);
        return Ok(());
    }
    let tiles = Tiles { level, f: cg };
    let out = Shared(out[..packed_backward_data_elements(level, conv, c, f)].as_mut_ptr());
    let lanes = level.lanes();
    let flops = ELEMENT * (fg * tiles.padded() / tiles.count().max(1)) as u64;
    let units = conv.groups * tiles.count() * volume;
    team.units(progress, units, flops, &|unit, _| {
        let (row, rest) = (unit % volume, unit / volume);
        let (tile, g) = (rest % tiles.count(), rest / tiles.count());
        let (c0, v) = tiles.tile(tile);
        let (width, take) = (v * lanes, (v * lanes).min(cg - c0));
        let start = volume * fg * (g * tiles.padded() + c0) + row * fg * width;
        // SAFETY: the units are disjoint parts of the packed elements.
        let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(start), fg * width) };
        let from = &w[((volume - 1 - row) * cg + c0) * f + g * fg..];
        let transpose = Transpose {
            from,
            pitch: f,
            rows: take,
            columns: fg,
            out,
            width,
        };
        // SAFETY: the team has the level.
        unsafe { level.run(transpose) };
    })
}
