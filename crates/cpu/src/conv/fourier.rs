//! Convolutions by discrete Fourier transforms of tiles: for kernels with many taps.
//!
//! A window of N inputs along a dim gives N - K + 1 outputs of K taps, those of a cyclic convolution
//! that do not reach around the window (overlap-save). At each frequency, the products over channels
//! are a product of complex matrices. The weight gradient is the correlation of windows of the inputs
//! with tiles of output gradients.
//! Source: Mathieu, Henaff and LeCun, Fast Training of Convolutional Networks through FFTs (2014).

mod extents;
mod line;
pub(crate) mod tile;

use crate::conv::convolution::{Convolution, Weights};
use crate::conv::epilogue::Epilogue;
use crate::conv::transformed::{
    Boxes, Direction, Transform, filter, filter_scratch, gradient, gradient_scratch,
};
use crate::grid::{Call, Canceled, Grid, View, ViewMut, Work};
use crate::team::TeamKind;
use tile::TAPS_MAX;

/// Taps from which on they can be faster than the direct kernels.
const TAPS_MIN: usize = 25;
/// Fewer channels are faster without transforms.
const CHANNELS_MIN: usize = 4;
/// Taps along a dim.
const LENGTH_MAX: usize = 16;

/// Whether there are kernels by Fourier transforms for a convolution of C to F channels: stride,
/// dilation and groups are 1, at least two dims have several taps, one more than 3 and none more than
/// 16, and there are at least as many taps and channels as from which on they can be faster than
/// the direct kernels. For fewer taps along all dims those of Winograd are faster.
pub fn fourier_offers(conv: &Convolution, c: usize, f: usize) -> bool {
    let is_long = conv.window.kernel.iter().any(|k| *k > 3);
    let is_large = conv.window.volume() >= TAPS_MIN && c >= CHANNELS_MIN && f >= CHANNELS_MIN;
    is_long && is_large && is_valid(conv)
}

fn is_valid(conv: &Convolution) -> bool {
    let w = &conv.window;
    let near = w.stride == [1; 3] && w.dilation == [1; 3] && conv.groups == 1;
    let long = w.kernel.iter().filter(|k| **k > 1).count();
    let fits = w.kernel.iter().all(|k| (1..=LENGTH_MAX).contains(k));
    near && long >= 2 && fits && w.volume() <= TAPS_MAX
}

/// For channels that are read and written.
fn transform(conv: &Convolution, channels: (usize, usize), written: &Grid) -> Transform {
    assert!(is_valid(conv), "no Fourier kernel of {conv:?}");
    Transform::Fourier(extents::tile(conv, channels, written))
}

/// Multiply-adds of one element in which a convolution of channels that are read to those that are written, or whose
/// gradients are read, is expected to be done.
pub(crate) fn fourier_multiply_adds(
    conv: &Convolution,
    channels: (usize, usize),
    written: &Grid,
) -> f64 {
    extents::fastest(conv, channels, written).0 as f64
}

/// Bound of the error of all three directions, for random inputs and weights of mean zero: the root
/// mean square error of the outputs over the root mean square of the exact ones.
///
/// Measured for up to 192 channels and 13 taps along a dim, times 3; see [`crate::winograd_error_bound`].
pub fn fourier_error_bound() -> f64 {
    1e-6
}

/// Scratch elements that [`fourier_forward`] needs for C input channels and outputs like `yg`. Sums
/// in the epilogue need [`crate::sums_scratch`] on top.
pub fn fourier_forward_scratch(team: TeamKind, conv: &Convolution, c: usize, yg: &Grid) -> usize {
    let (channels, direction) = ((c, yg.channels), Direction::Forward);
    let transform = transform(conv, channels, yg);
    let source = direction.source(team.level, transform, (&[], conv), channels);
    filter_scratch(team, conv, &source, yg, false)
}

/// Scratch elements that [`fourier_backward_data`] needs for F output channels and a gradient like
/// `xg`. Sums in the epilogue need [`crate::sums_scratch`] on top.
pub fn fourier_backward_data_scratch(
    team: TeamKind,
    conv: &Convolution,
    f: usize,
    xg: &Grid,
) -> usize {
    let (channels, direction) = ((xg.channels, f), Direction::BackwardData);
    let transform = transform(conv, (f, xg.channels), xg);
    let source = direction.source(team.level, transform, (&[], conv), channels);
    filter_scratch(team, conv, &source, xg, false)
}

/// Scratch elements that [`fourier_backward_weight`] needs for C input channels and output gradients
/// like `yg`.
pub fn fourier_backward_weight_scratch(
    team: TeamKind,
    conv: &Convolution,
    c: usize,
    yg: &Grid,
) -> usize {
    gradient_scratch(team, transform(conv, (c, yg.channels), yg), conv, c, yg)
}

/// As [`crate::conv_forward`] with plain weights, up to rounding, see [`fourier_error_bound`].
/// Bit-reproducible for any number of threads, but for the sums. Counts the flops of the direct
/// kernel.
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other, or of another convolution than
/// [`fourier_offers`] describes; it may have fewer taps and channels.
#[allow(
    clippy::too_many_arguments,
    reason = "operands of one mathematical operation"
)]
pub fn fourier_forward(
    call: &mut Call,
    x: View,
    w: &[f32],
    y: ViewMut,
    conv: &Convolution,
    accumulate: bool,
    epilogue: Epilogue,
) -> Result<Work, Canceled> {
    let transform = transform(conv, (x.grid.channels, y.grid.channels), y.grid);
    let (boxes, w) = (Boxes::forward(x, y, conv), Weights::Plain(w));
    let direction = Direction::Forward;
    filter(
        call, transform, direction, boxes, w, conv, accumulate, epilogue,
    )
}

/// As [`crate::conv_backward_data`] with plain weights, up to rounding, see [`fourier_error_bound`];
/// so an element of dx that no output reaches may be a rounding error instead of zero.
/// Bit-reproducible for any number of threads, but for the sums.
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other, or of another convolution than
/// [`fourier_offers`] describes; it may have fewer taps and channels.
#[allow(
    clippy::too_many_arguments,
    reason = "operands of one mathematical operation"
)]
pub fn fourier_backward_data(
    call: &mut Call,
    dy: View,
    w: &[f32],
    dx: ViewMut,
    conv: &Convolution,
    shift: [i64; 3],
    accumulate: bool,
    epilogue: Epilogue,
) -> Result<Work, Canceled> {
    let transform = transform(conv, (dy.grid.channels, dx.grid.channels), dx.grid);
    let (boxes, w) = (Boxes::backward_data(dy, dx, conv, shift), Weights::Plain(w));
    let direction = Direction::BackwardData;
    filter(
        call, transform, direction, boxes, w, conv, accumulate, epilogue,
    )
}

/// As [`crate::conv_backward_weight`], up to rounding, see [`fourier_error_bound`].
/// Bit-reproducible for any number of threads, but db for a given number. Counts the flops of the
/// direct kernel.
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other, or of another convolution than
/// [`fourier_offers`] describes; it may have fewer taps and channels.
#[allow(
    clippy::too_many_arguments,
    reason = "operands of one mathematical operation"
)]
pub fn fourier_backward_weight(
    call: &mut Call,
    x: View,
    dy: View,
    dw: &mut [f32],
    db: Option<&mut [f32]>,
    conv: &Convolution,
    accumulate: bool,
) -> Result<Work, Canceled> {
    let transform = transform(conv, (x.grid.channels, dy.grid.channels), dy.grid);
    gradient(call, transform, x, dy, dw, db, conv, accumulate)
}
