//! Linear layers: convolutions of one tap over positions of extent 1.
//!
//! For few samples the forward kernel and both gradients read the unpacked weights once; they are then
//! limited by memory bandwidth, and no matrix product is faster.

use crate::conv::convolution::{Convolution, Weights};
use crate::conv::data::{conv_backward_data, conv_backward_data_scratch};
use crate::conv::epilogue::Epilogue;
use crate::conv::forward::{conv_forward, conv_forward_scratch};
use crate::conv::weight::{conv_backward_weight, conv_backward_weight_scratch};
use crate::grid::{Call, Canceled, Grid, View, ViewMut, Window, Work};
use crate::team::TeamKind;

/// The convolution that a linear layer is: the size and packing functions of convolutions take it.
pub const LINEAR: Convolution = Convolution {
    window: Window {
        kernel: [1; 3],
        stride: [1; 3],
        dilation: [1; 3],
    },
    groups: 1,
};

/// Scratch elements that any of the linear kernels needs for N samples, C inputs, F outputs;
/// sums in an epilogue need [`crate::sums_scratch`] on top.
pub fn linear_scratch(team: TeamKind, n: usize, c: usize, f: usize) -> usize {
    let weight = conv_backward_weight_scratch(team, &LINEAR, &Grid::dense(n, [1; 3], c), f);
    conv_forward_scratch(team, &LINEAR, c, f, n)
        .max(conv_backward_data_scratch(team, &LINEAR, c, f, n))
        .max(weight)
}

/// y\[n, f\] (+)= sum over c of x\[n, c\] * w\[c, f\], then the epilogue.
///
/// Shapes: x (N, 1, 1, 1, C), w (C, F), y (N, 1, 1, 1, F). Counts 2 N C F flops.
/// Errors: [`Canceled`]. Panics if the boxes do not fit each other.
pub fn linear_forward(
    call: &mut Call,
    x: View,
    w: Weights,
    y: ViewMut,
    accumulate: bool,
    epilogue: Epilogue,
) -> Result<Work, Canceled> {
    conv_forward(call, x, w, y, &LINEAR, accumulate, epilogue)
}

/// dx[n, c] (+)= sum over f of dy[n, f] * w[c, f], then the epilogue. Shapes and counts as [`linear_forward`].
pub fn linear_backward_data(
    call: &mut Call,
    dy: View,
    w: Weights,
    dx: ViewMut,
    accumulate: bool,
    epilogue: Epilogue,
) -> Result<Work, Canceled> {
    assert!(
        dy.grid.extent == dx.grid.extent,
        "{:?} and {:?}",
        dy.grid,
        dx.grid
    );
    conv_backward_data(call, dy, w, dx, &LINEAR, [0; 3], accumulate, epilogue)
}

/// dw[c, f] (+)= sum over n of x[n, c] * dy[n, f]. Shapes and counts as [`linear_forward`].
pub fn linear_backward_weight(
    call: &mut Call,
    x: View,
    dy: View,
    dw: &mut [f32],
    db: Option<&mut [f32]>,
    accumulate: bool,
) -> Result<Work, Canceled> {
    conv_backward_weight(call, x, dy, dw, db, &LINEAR, accumulate)
}
