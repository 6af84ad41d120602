//! Element types in which kernels compute where the tensors lie, and which kernels do so in bf16.
//!
//! Other kernels on bf16 are executed on copies in f32; see [`partita_run::execute_widened`].

use super::method::Method;
use crate::bf16::{
    accumulate_bf16, bias_backward_bf16, conv_backward_data_bf16, conv_backward_weight_bf16,
    conv_forward_bf16, copy_bf16, fill_bf16,
};
use crate::conv::convolution::{Convolution, Weights};
use crate::conv::data::conv_backward_data;
use crate::conv::epilogue::Epilogue;
use crate::conv::forward::conv_forward;
use crate::conv::fourier::{fourier_backward_data, fourier_backward_weight, fourier_forward};
use crate::conv::values::Values;
use crate::conv::weight::conv_backward_weight;
use crate::conv::winograd::{winograd_backward_data, winograd_backward_weight, winograd_forward};
use crate::elementwise::{accumulate, copy, fill};
use crate::grid::{Call, Canceled, View, ViewMut, Work};
use crate::norm::bias_backward;
use half::bf16;
use partita_program::fused::is_usual;
use partita_program::{Buffer, Dtype, Family, Kernel, KernelShape, View as ProgramView};
use partita_run::Element;

/// Whether a kernel on bf16 computes without copies, by this method: convolutions do, with what follows them in a fused
/// kernel, where all activations are in bf16.
pub(super) fn is_native(method: Method, kernel: &Kernel, buffers: &[Buffer]) -> bool {
    let parts = kernel.parts();
    let is_bf16 = |(view, _): (ProgramView, _)| {
        let buffer = &buffers[view.buffer.0 as usize];
        !buffer.role.is_activation() || buffer.dtype == Dtype::Bf16
    };
    let is_whole = parts.len() == 1 || is_usual(parts, buffers);
    parts[0].family() == Family::Convolution
        && method == Method::Direct
        && is_whole
        && KernelShape { kernel, buffers }.computes_in_half()
        && parts.iter().flat_map(Kernel::accesses).all(is_bf16)
}

/// A type of activations that copies and convolutions take. Arguments are those of the kernels of this crate.
pub(super) trait Native: Element + Values {
    /// Of [`fill`].
    fn fill(call: &mut Call, value: f64, y: ViewMut<Self>) -> Result<Work, Canceled>;

    /// Of [`copy`], or of [`accumulate`] if it adds.
    fn move_to(
        call: &mut Call,
        x: View<Self>,
        y: ViewMut<Self>,
        adds: bool,
    ) -> Result<Work, Canceled>;

    /// By this method, of [`conv_forward`].
    fn forward(
        method: Method,
        call: &mut Call,
        x: View<Self>,
        w: Weights,
        y: ViewMut<Self>,
        conv: &Convolution,
        accumulate: bool,
        epilogue: Epilogue<Self>,
    ) -> Result<Work, Canceled>;

    /// By this method, of [`conv_backward_data`].
    fn backward_data(
        method: Method,
        call: &mut Call,
        dy: View<Self>,
        w: Weights,
        dx: ViewMut<Self>,
        conv: &Convolution,
        shift: [i64; 3],
        accumulate: bool,
        epilogue: Epilogue<Self>,
    ) -> Result<Work, Canceled>;

    /// By this method, of [`conv_backward_weight`].
    fn backward_weight(
        method: Method,
        call: &mut Call,
        x: View<Self>,
        dy: View<Self>,
        dw: &mut [f32],
        db: Option<&mut [f32]>,
        conv: &Convolution,
        accumulate: bool,
    ) -> Result<Work, Canceled>;

    /// Of [`bias_backward`].
    fn bias_backward(
        call: &mut Call,
        dy: View<Self>,
        db: &mut [f32],
        accumulate: bool,
    ) -> Result<Work, Canceled>;
}

impl Native for f32 {
    fn fill(call: &mut Call, value: f64, y: ViewMut) -> Result<Work, Canceled> {
        fill(call, value as f32, y)
    }

    fn move_to(call: &mut Call, x: View, y: ViewMut, adds: bool) -> Result<Work, Canceled> {
        if adds {
            accumulate(call, x, y)
        } else {
            copy(call, x, y)
        }
    }

    fn forward(
        method: Method,
        call: &mut Call,
        x: View,
        w: Weights,
        y: ViewMut,
        conv: &Convolution,
        accumulate: bool,
        epilogue: Epilogue,
    ) -> Result<Work, Canceled> {
        match method {
            Method::Direct => conv_forward(call, x, w, y, conv, accumulate, epilogue),
            Method::Winograd(tile) => {
                winograd_forward(call, tile, x, w, y, conv, accumulate, epilogue)
            }
            Method::Fourier => fourier_forward(call, x, w.plain(), y, conv, accumulate, epilogue),
        }
    }

    fn backward_data(
        method: Method,
        call: &mut Call,
        dy: View,
        w: Weights,
        dx: ViewMut,
        conv: &Convolution,
        shift: [i64; 3],
        accumulate: bool,
        epilogue: Epilogue,
    ) -> Result<Work, Canceled> {
        match method {
            Method::Direct => {
                conv_backward_data(call, dy, w, dx, conv, shift, accumulate, epilogue)
            }
            Method::Winograd(tile) => {
                winograd_backward_data(call, tile, dy, w, dx, conv, shift, accumulate, epilogue)
            }
            Method::Fourier => {
                fourier_backward_data(call, dy, w.plain(), dx, conv, shift, accumulate, epilogue)
            }
        }
    }

    fn backward_weight(
        method: Method,
        call: &mut Call,
        x: View,
        dy: View,
        dw: &mut [f32],
        db: Option<&mut [f32]>,
        conv: &Convolution,
        accumulate: bool,
    ) -> Result<Work, Canceled> {
        match method {
            Method::Direct => conv_backward_weight(call, x, dy, dw, db, conv, accumulate),
            Method::Winograd(tile) => {
                winograd_backward_weight(call, tile, x, dy, dw, db, conv, accumulate)
            }
            Method::Fourier => fourier_backward_weight(call, x, dy, dw, db, conv, accumulate),
        }
    }

    fn bias_backward(
        call: &mut Call,
        dy: View,
        db: &mut [f32],
        accumulate: bool,
    ) -> Result<Work, Canceled> {
        bias_backward(call, dy, db, accumulate)
    }
}

impl Native for bf16 {
    fn fill(call: &mut Call, value: f64, y: ViewMut<bf16>) -> Result<Work, Canceled> {
        fill_bf16(call, bf16::from_f64(value), y)
    }

    fn move_to(
        call: &mut Call,
        x: View<bf16>,
        y: ViewMut<bf16>,
        adds: bool,
    ) -> Result<Work, Canceled> {
        if adds {
            accumulate_bf16(call, x, y)
        } else {
            copy_bf16(call, x, y)
        }
    }

    fn forward(
        method: Method,
        call: &mut Call,
        x: View<bf16>,
        w: Weights,
        y: ViewMut<bf16>,
        conv: &Convolution,
        accumulate: bool,
        epilogue: Epilogue<bf16>,
    ) -> Result<Work, Canceled> {
        match method {
            Method::Direct => conv_forward_bf16(call, x, w, y, conv, accumulate, epilogue),
            Method::Winograd(_) | Method::Fourier => unreachable!("they take copies in f32"),
        }
    }

    fn backward_data(
        method: Method,
        call: &mut Call,
        dy: View<bf16>,
        w: Weights,
        dx: ViewMut<bf16>,
        conv: &Convolution,
        shift: [i64; 3],
        accumulate: bool,
        epilogue: Epilogue<bf16>,
    ) -> Result<Work, Canceled> {
        match method {
            Method::Direct => {
                conv_backward_data_bf16(call, dy, w, dx, conv, shift, accumulate, epilogue)
            }
            Method::Winograd(_) | Method::Fourier => unreachable!("they take copies in f32"),
        }
    }

    fn backward_weight(
        method: Method,
        call: &mut Call,
        x: View<bf16>,
        dy: View<bf16>,
        dw: &mut [f32],
        db: Option<&mut [f32]>,
        conv: &Convolution,
        accumulate: bool,
    ) -> Result<Work, Canceled> {
        match method {
            Method::Direct => conv_backward_weight_bf16(call, x, dy, dw, db, conv, accumulate),
            Method::Winograd(_) | Method::Fourier => unreachable!("they take copies in f32"),
        }
    }

    fn bias_backward(
        call: &mut Call,
        dy: View<bf16>,
        db: &mut [f32],
        accumulate: bool,
    ) -> Result<Work, Canceled> {
        bias_backward_bf16(call, dy, db, accumulate)
    }
}
