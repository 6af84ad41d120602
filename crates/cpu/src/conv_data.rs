//! Gradient of a convolution with respect to its input.
//!
//! dx is cut into boxes on which the set of contributing taps is constant: one box where the
//! stride is 1 and dy is complete, else one per output phase and border. Each box is the forward
//! kernel on dy with flipped, transposed weights.

use crate::conv_forward::Convolution;
use crate::dot;
use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work};
use crate::team::TeamKind;
use crate::tile::{Job, Start, Taps, Tiles, Weights};

/// Side of the square in which the weights are transposed; a few cache lines each way.
const TRANSPOSE: usize = 16;

/// Scratch elements that [`conv_backward_data`] needs for C and F channels and `positions`
/// elements of dx per channel (of all samples); zero where it reads the weights as they are.
pub fn conv_backward_data_scratch(
    team: TeamKind,
    conv: &Convolution,
    c: usize,
    f: usize,
    positions: usize,
) -> usize {
    if dots(team, f / conv.groups, positions) {
        return 0;
    }
    packed(team, conv, c, f)
}

fn dots(team: TeamKind, fg: usize, positions: usize) -> bool {
    positions <= dot::POSITIONS_MAX && fg >= team.level.lanes()
}

fn packed(team: TeamKind, conv: &Convolution, c: usize, f: usize) -> usize {
    let padded = Tiles {
        level: team.level,
        f: c / conv.groups,
    }
    .padded();
    conv.window.volume() * f * padded
}

/// dx[n, i, c] (+)= sum over k, o, f with i + shift = o * stride + k * dilation of
/// dy[n, o, f] * w[k, c, f].
///
/// Shapes: dy (N, D, H, W, F), dx (N, D, H, W, C), w (Kd, Kh, Kw, C / groups, F); outputs outside
/// the box of dy contribute nothing. `shift` is the place of the first element of dx, relative to
/// the first input that output 0 of the dy box reads. `accumulate` adds to dx. Fast where the
/// stride is 1 and dy is complete. Bit-reproducible for any number of threads.
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other.
pub fn conv_backward_data(
    call: &mut Call,
    dy: View,
    w: &[f32],
    dx: ViewMut,
    conv: &Convolution,
    shift: [i64; 3],
    accumulate: bool,
) -> Result<Work, Canceled> {
    let (yg, xg) = (dy.grid, dx.grid);
    let (c, f) = (xg.channels, yg.channels);
    conv.assert_valid(c, f, w.len());
    assert!(xg.samples == yg.samples, "samples of {xg:?} and {yg:?}");
    let weights = conv.weight_elements(c, f);
    let bytes = yg.bytes() + 4 * weights as u64 + xg.bytes() * (1 + u64::from(accumulate));
    let work = Work {
        flops: conv.flops(yg.positions(), c, f),
        bytes,
    };
    if xg.elements() == 0 {
        return Ok(work);
    }
    let dots = dots(call.team.kind(), f / conv.groups, xg.positions());
    if !dots {
        pack(call, w, conv, c, f)?;
    }
    let plain = dots.then_some(w);
    let mut d = Segments::new(xg, yg, conv, shift, 0);
    let out = Shared(dx.data.as_mut_ptr());
    while let Some(sd) = d.next() {
        let mut h = Segments::new(xg, yg, conv, shift, 1);
        while let Some(sh) = h.next() {
            let mut w = Segments::new(xg, yg, conv, shift, 2);
            while let Some(sw) = w.next() {
                segment(call, dy, (xg, out), plain, conv, [sd, sh, sw], accumulate)?;
            }
        }
    }
    Ok(work)
}

/// One box of constant taps, all groups.
fn segment(
    call: &mut Call,
    dy: View,
    (xg, dx): (&Grid, Shared),
    plain: Option<&[f32]>,
    conv: &Convolution,
    at: [Segment; 3],
    accumulate: bool,
) -> Result<(), Canceled> {
    let (cg, fg) = (xg.channels / conv.groups, dy.grid.channels / conv.groups);
    let padded = Tiles {
        level: call.team.level(),
        f: cg,
    }
    .padded();
    let packed = conv.window.volume() * fg * padded;
    let p = xg.pitch;
    for g in 0..conv.groups {
        let job = Job {
            x: dy.data,
            x_base: g * fg,
            x_step: dy.grid.pitch,
            y: dx,
            y_base: g * cg + (0..3).map(|i| at[i].first * p[i + 1]).sum::<usize>(),
            y_step: [
                p[0],
                at[0].step * p[1],
                at[1].step * p[2],
                at[2].step * p[3],
            ],
            count: [xg.samples, at[0].count, at[1].count, at[2].count],
            taps: at.map(|s| s.taps),
            kernel: conv.window.kernel,
            c: fg,
            f: cg,
            weights: match plain {
                Some(w) => Weights::Transposed(&w[g * fg..], dy.grid.channels),
                None => Weights::Packed(&call.scratch[g * packed..(g + 1) * packed]),
            },
            start: Start {
                bias: None,
                load: accumulate,
            },
        };
        job.run(call.team, call.progress)?;
    }
    Ok(())
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

/// Packs the weights flipped and transposed: (group, tile of c, flipped k, f, c in the tile).
fn pack(
    call: &mut Call,
    w: &[f32],
    conv: &Convolution,
    c: usize,
    f: usize,
) -> Result<(), Canceled> {
    let (cg, fg, volume) = (c / conv.groups, f / conv.groups, conv.window.volume());
    let tiles = Tiles {
        level: call.team.level(),
        f: cg,
    };
    let need = packed(call.team.kind(), conv, c, f);
    let out = Shared(call.scratch[..need].as_mut_ptr());
    let lanes = tiles.level.lanes();
    let flops = (fg * tiles.padded() / tiles.count()) as u64;
    let units = conv.groups * tiles.count() * volume;
    call.team.units(call.progress, units, flops, &|unit, _| {
        let (row, rest) = (unit % volume, unit / volume);
        let (tile, g) = (rest % tiles.count(), rest / tiles.count());
        let (c0, v) = tiles.tile(tile);
        let (width, take) = (v * lanes, (v * lanes).min(cg - c0));
        let start = volume * fg * (g * tiles.padded() + c0) + row * fg * width;
        // SAFETY: the units are disjoint parts of the `need` elements.
        let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(start), fg * width) };
        let from = &w[((volume - 1 - row) * cg + c0) * f + g * fg..];
        transpose(from, f, (take, fg), out, width);
    })
}

/// out[j, i] = from[i, j] for i < rows, j < columns; the rest of the rows of `out` is zero.
fn transpose(
    from: &[f32],
    pitch: usize,
    (rows, columns): (usize, usize),
    out: &mut [f32],
    width: usize,
) {
    for j0 in (0..columns).step_by(TRANSPOSE) {
        for i0 in (0..rows).step_by(TRANSPOSE) {
            for j in j0..(j0 + TRANSPOSE).min(columns) {
                let i1 = (i0 + TRANSPOSE).min(rows);
                let out = &mut out[j * width + i0..j * width + i1];
                for (i, out) in out.iter_mut().enumerate() {
                    *out = from[(i0 + i) * pitch + j];
                }
            }
        }
    }
    if rows < width {
        for row in out.chunks_exact_mut(width) {
            row[rows..].fill(0.0);
        }
    }
}
