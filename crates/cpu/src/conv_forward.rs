//! Forward convolution.

use crate::grid::{Call, Canceled, Shared, View, ViewMut, Window, Work};
use crate::simd::Level;
use crate::team::TeamKind;
use crate::tile::{Job, Start, Taps, Tiles, Weights};

/// Outputs from which on packing the weights pays.
const PACK_POSITIONS_MIN: usize = 48;

/// A window and the groups of channels it works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Taps, strides, dilations.
    pub window: Window,
    /// Groups; divides C and F.
    pub groups: usize,
}

impl Convolution {
    /// Weights (Kd, Kh, Kw, C / groups, F), in elements.
    pub fn weight_elements(&self, c: usize, f: usize) -> usize {
        self.window.volume() * (c / self.groups) * f
    }

    pub(crate) fn assert_valid(&self, c: usize, f: usize, w: usize) {
        self.window.assert_valid();
        assert!(
            self.groups > 0 && c.is_multiple_of(self.groups) && f.is_multiple_of(self.groups),
            "{} groups of {c} and {f} channels",
            self.groups
        );
        assert!(
            w >= self.weight_elements(c, f),
            "weights of {w} for {self:?}, {c} to {f}"
        );
    }

    /// Flops of any direction: `2 * positions * volume * C / groups * F`.
    pub(crate) fn flops(&self, positions: usize, c: usize, f: usize) -> u64 {
        2 * positions as u64 * self.weight_elements(c, f) as u64
    }
}

/// Scratch elements that [`conv_forward`] needs for C and F channels and `positions` outputs
/// (of all samples); zero where it reads the weights as they are.
pub fn conv_forward_scratch(
    team: TeamKind,
    conv: &Convolution,
    c: usize,
    f: usize,
    positions: usize,
) -> usize {
    let (cg, fg) = (c / conv.groups, f / conv.groups);
    match packs(team.level, fg, positions) {
        true => {
            let padded = Tiles {
                level: team.level,
                f: fg,
            }
            .padded();
            conv.groups * conv.window.volume() * cg * padded
        }
        false => 0,
    }
}

fn packs(level: Level, fg: usize, positions: usize) -> bool {
    let narrow = Tiles { level, f: fg }.count() == 1;
    !fg.is_multiple_of(level.lanes()) || (positions >= PACK_POSITIONS_MIN && !narrow)
}

/// y\[n, o, f\] (+)= bias\[f\] + sum over k, c of x[n, o * stride + k * dilation, c] * w\[k, c, f\].
///
/// Shapes: x (N, D, H, W, C) complete, that is with its padding, so that its extent is
/// `window.input_extent(y extent)`; w (Kd, Kh, Kw, C / groups, F); y (N, D, H, W, F).
/// `accumulate` adds to y. Bit-reproducible for any number of threads.
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other.
pub fn conv_forward(
    call: &mut Call,
    x: View,
    w: &[f32],
    bias: Option<&[f32]>,
    y: ViewMut,
    conv: &Convolution,
    accumulate: bool,
) -> Result<Work, Canceled> {
    let (xg, yg) = (x.grid, y.grid);
    let (c, f) = (xg.channels, yg.channels);
    conv.assert_valid(c, f, w.len());
    assert!(bias.is_none_or(|b| b.len() >= f), "bias shorter than {f}");
    assert!(xg.samples == yg.samples, "samples of {xg:?} and {yg:?}");
    assert!(
        yg.positions() == 0 || conv.window.input_extent(yg.extent) == xg.extent,
        "{xg:?} is not the complete input of {yg:?} under {conv:?}"
    );
    let (cg, fg) = (c / conv.groups, f / conv.groups);
    let weights = conv.weight_elements(c, f);
    let bytes = xg.bytes() + 4 * weights as u64 + yg.bytes() * (1 + u64::from(accumulate));
    let work = Work {
        flops: conv.flops(yg.positions(), c, f),
        bytes,
    };
    if yg.elements() == 0 {
        return Ok(work);
    }
    let need = conv_forward_scratch(call.team.kind(), conv, c, f, yg.positions());
    let tiles = Tiles {
        level: call.team.level(),
        f: fg,
    };
    if need > 0 {
        pack(call, w, conv, (cg, fg), tiles)?;
    }
    let window = &conv.window;
    let y_base = Shared(y.data.as_mut_ptr());
    let taps = |i: usize| Taps {
        count: window.kernel[i],
        row: 0,
        row_step: 1,
        x: 0,
        x_step: window.dilation[i] * xg.pitch[i + 1],
    };
    for g in 0..conv.groups {
        let packed = window.volume() * cg * tiles.padded();
        let s = &window.stride;
        let p = &xg.pitch;
        Job {
            x: x.data,
            x_base: g * cg,
            x_step: [p[0], s[0] * p[1], s[1] * p[2], s[2] * p[3]],
            y: y_base,
            y_base: g * fg,
            y_step: yg.pitch,
            count: yg.counts(),
            taps: [taps(0), taps(1), taps(2)],
            kernel: window.kernel,
            c: cg,
            f: fg,
            weights: match need > 0 {
                true => Weights::Packed(&call.scratch[g * packed..(g + 1) * packed]),
                false => Weights::Rows(&w[g * fg..], f),
            },
            start: Start {
                bias: bias.map(|b| &b[g * fg..(g + 1) * fg]),
                load: accumulate,
            },
        }
        .run(call.team, call.progress)?;
    }
    Ok(work)
}

/// Packs the weights by tiles of output channels, padded with zeros: (group, tile, k, c, f).
fn pack(
    call: &mut Call,
    w: &[f32],
    conv: &Convolution,
    (cg, fg): (usize, usize),
    tiles: Tiles,
) -> Result<(), Canceled> {
    let (rows, f) = (conv.window.volume() * cg, fg * conv.groups);
    let all = conv.groups * rows * tiles.padded();
    let out = Shared(call.scratch[..all].as_mut_ptr());
    let lanes = tiles.level.lanes();
    let flops = (rows * lanes) as u64;
    call.team.units(
        call.progress,
        conv.groups * tiles.count(),
        flops,
        &|unit, _| {
            let (g, tile) = (unit / tiles.count(), unit % tiles.count());
            let (f0, v) = tiles.tile(tile);
            let (width, take) = (v * lanes, (v * lanes).min(fg - f0));
            let start = rows * (g * tiles.padded() + f0);
            // SAFETY: the tiles are disjoint parts of the `all` elements.
            let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(start), rows * width) };
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                let from = row * f + g * fg + f0;
                out[..take].copy_from_slice(&w[from..from + take]);
                out[take..].fill(0.0);
            }
        },
    )
}
