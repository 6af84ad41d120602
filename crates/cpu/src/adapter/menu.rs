//! The kernel catalog of the CPU backend, with the workspace of each kernel.

use super::convolution::convolution;
use super::expected::expected;
use super::method::Method;
use super::native::is_native;
use super::operand::{grid, rows};
use super::pointwise::Route;
use super::sequence;
use super::tail::scale_elements;
use crate::bf16::{
    conv_backward_data_scratch_bf16, conv_backward_weight_scratch_bf16, conv_forward_scratch_bf16,
};
use crate::conv::data::{conv_backward_data_scratch, packs_backward_data};
use crate::conv::epilogue::sums_scratch;
use crate::conv::forward::{conv_forward_scratch, packs_forward};
use crate::conv::fourier::{
    fourier_backward_data_scratch, fourier_backward_weight_scratch, fourier_forward_scratch,
};
use crate::conv::linear::LINEAR;
use crate::conv::weight::conv_backward_weight_scratch;
use crate::conv::winograd::{
    WinogradTile, winograd_backward_data_scratch, winograd_backward_weight_scratch,
    winograd_forward_scratch,
};
use crate::grid::Grid;
use crate::norm::norm_scratch;
use crate::simd::Level;
use crate::team::TeamKind;
use partita_program::descriptor::{Cost, Layout};
use partita_program::fused::{is_usual, tail};
use partita_program::{
    Algorithm, Buffer, Choice, Dtype, Family, Kernel, KernelShape, Menu, MenuError, Role, View,
    Widened,
};
use partita_space::{Bytes, Seconds};

/// The catalog of [`super::CpuKernels`] on teams with these threads and level.
///
/// Offers the algorithm `cpu` for every kernel of a program in f32, bf16 or f16, and others for convolutions. Workspaces
/// hold packed weights, copies of bf16 and f16 in f32, sums of the threads, and temporaries of copies within one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuMenu {
    /// Threads of a rank.
    pub threads: usize,
    /// Instruction level.
    pub level: Level,
}

impl Menu for CpuMenu {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        if shape.computes_in_half() {
            if is_native(Method::Direct, shape.kernel, shape.buffers) {
                return Ok(self.choice(shape, Method::Direct));
            }
            let wide = shape.largest_widened();
            return Ok(with_copies(self.choose(&wide.shape())?, &wide));
        }
        let mut accesses = shape.kernel.accesses().into_iter();
        let parts = shape.kernel.parts();
        let is_apart = parts.len() > 1 && !is_usual(parts, shape.buffers);
        if is_apart
            || !accesses.all(|(view, _)| shape.buffers[view.buffer.0 as usize].is_f32_or_half())
        {
            return Err(MenuError {
                backend: "the CPU kernel set (f32, bf16 and f16)".to_owned(),
                kernel: shape.to_string(),
            });
        }
        Ok(Choice {
            packed_weights: packed_weights(self.team(), shape.kernel, shape.buffers),
            ..self.choice(shape, Method::Direct)
        })
    }

    fn implementations(&self, shape: &KernelShape<'_>) -> Result<Vec<Choice>, MenuError> {
        if shape.computes_in_half() {
            let wide = shape.largest_widened();
            let all = self.implementations(&wide.shape())?.into_iter();
            let of_shape = |choice: Choice| match Method::named(&choice.algorithm.0) {
                Some(method) if is_native(method, shape.kernel, shape.buffers) => {
                    self.choice(shape, method)
                }
                Some(_) | None => with_copies(choice, &wide),
            };
            return Ok(all.map(of_shape).collect());
        }
        let usual = self.choose(shape)?;
        let others = Method::ALL.into_iter().filter(|&method| {
            method != Method::Direct && is_method_offered(method, shape.kernel, shape.buffers)
        });
        let others = others.map(|method| self.choice(shape, method));
        Ok(std::iter::once(usual).chain(others).collect())
    }

    fn expected(&self, shape: &KernelShape<'_>, method: &str) -> Option<Seconds> {
        let method = Method::named(method)?;
        let is_offered =
            method == Method::Direct || is_method_offered(method, shape.kernel, shape.buffers);
        is_offered.then(|| expected(self.team(), shape, method))?
    }
}

/// What a kernel on f32 needs to stand for one on floats of two bytes.
fn with_copies(choice: Choice, wide: &Widened) -> Choice {
    Choice {
        workspace: Bytes(wide.bytes.0 + choice.workspace.0),
        packed_weights: 0,
        ..choice
    }
}

/// Whether a kernel begins with a convolution that has this implementation. Packed weights are those of another.
fn is_method_offered(method: Method, kernel: &Kernel, buffers: &[Buffer]) -> bool {
    let descriptor = kernel.parts()[0].descriptor();
    let Cost::Convolution { input, output, .. } = descriptor.cost else {
        return false;
    };
    let is_packed = match descriptor.layout {
        Layout::Product { w, .. } => buffers[w.buffer.0 as usize].role == Role::PackedWeights,
        Layout::Any
        | Layout::ProductGradient { .. }
        | Layout::Table { .. }
        | Layout::Sequences { .. }
        | Layout::OwnShare { .. } => false,
    };
    let Some(window) = descriptor.window else {
        return false;
    };
    let conv = convolution(window.taps, window.groups);
    !is_packed && method.offers(&conv, input.extent[4], output.extent[4])
}

fn grid_of(view: &View, buffers: &[Buffer]) -> Grid {
    grid(view.extent, buffers[view.buffer.0 as usize].pitches())
}

/// Elements to pack the samples of a linear layer into rows.
fn packed_rows(view: &View, buffers: &[Buffer]) -> usize {
    match rows(view.extent, buffers[view.buffer.0 as usize].pitches()) {
        Some(_) => 0,
        None => view.volume(),
    }
}

impl CpuMenu {
    fn team(&self) -> TeamKind {
        TeamKind {
            threads: self.threads,
            level: self.level,
        }
    }

    fn choice(&self, shape: &KernelShape<'_>, method: Method) -> Choice {
        let elements = self.workspace(shape.kernel, shape.buffers, method);
        Choice {
            algorithm: Algorithm(method.name().to_owned()),
            workspace: Bytes((elements * size_of::<f32>()) as u64),
            packed_weights: 0,
        }
    }

    /// Scratch of a kernel in elements of f32.
    fn workspace(&self, kernel: &Kernel, buffers: &[Buffer], method: Method) -> usize {
        let team = self.team();
        match kernel.family() {
            Family::Fused => self.fused(kernel.parts(), buffers, method),
            Family::Contents => copy_scratch(kernel, buffers),
            Family::Convolution => convolution_scratch(team, kernel, buffers, method),
            Family::BatchNorm => batch_norm_scratch(team, kernel),
            Family::Linear => linear(team, kernel, buffers),
            Family::LayerNorm | Family::Sequence => sequence::scratch(team, kernel),
            Family::GroupNorm => group_norm_scratch(team, kernel),
            Family::Pointwise => pointwise_scratch(team, kernel),
            Family::Pool | Family::Resample | Family::Loss | Family::Update => 0,
        }
    }

    /// What the first part needs, and sums and scales of the later ones.
    fn fused(&self, parts: &[Kernel], buffers: &[Buffer], method: Method) -> usize {
        let team = self.team();
        let own = self.workspace(&parts[0], buffers, method);
        let Some((out, tail)) = tail(parts) else {
            return own;
        };
        let (channels, is_summed) = (out.extent[4], tail.sums.is_some());
        let sums = if let Kernel::ConvolutionForward { taps, groups, .. }
        | Kernel::ConvolutionBackwardData { taps, groups, .. } = &parts[0]
        {
            sums_scratch(team, &convolution(taps, *groups), channels)
        } else if let Kernel::LinearForward { w, .. } = &parts[0] {
            sums_scratch(team, &LINEAR, w.extent[4])
        } else if let Kernel::LinearBackwardData { w, .. } = &parts[0] {
            sums_scratch(team, &LINEAR, w.extent[3])
        } else {
            norm_scratch(team, channels)
        };
        own + scale_elements(&tail, channels) + if is_summed { sums } else { 0 }
    }
}

fn copy_scratch(kernel: &Kernel, buffers: &[Buffer]) -> usize {
    let Kernel::Copy { source, target, .. } = kernel else {
        return 0;
    };
    let dtype = buffers[source.buffer.0 as usize].dtype;
    match (dtype, Route::of(source, target, buffers)) {
        (Dtype::F32, Route::Packed) => source.volume(),
        (Dtype::Bf16, Route::Packed) => source.volume().div_ceil(2),
        (Dtype::F32 | Dtype::Bf16, Route::Boxes | Route::Flat)
        | (Dtype::F64 | Dtype::F16 | Dtype::I16, _) => 0,
    }
}

fn convolution_scratch(
    team: TeamKind,
    kernel: &Kernel,
    buffers: &[Buffer],
    method: Method,
) -> usize {
    if let Kernel::BiasBackward { dy, .. } = kernel {
        norm_scratch(team, dy.extent[4])
    } else if let Kernel::PackWeights { .. } = kernel {
        0
    } else {
        match method {
            Method::Direct => convolutions(team, kernel, buffers),
            Method::Winograd(tile) => transformed(team, Some(tile), kernel, buffers),
            Method::Fourier => transformed(team, None, kernel, buffers),
        }
    }
}

/// Of plain weights, by Winograd's algorithm with these tiles or else by Fourier transforms.
fn transformed(
    team: TeamKind,
    tile: Option<WinogradTile>,
    kernel: &Kernel,
    buffers: &[Buffer],
) -> usize {
    match kernel {
        Kernel::ConvolutionForward {
            x, y, taps, groups, ..
        } => {
            let (conv, outputs) = (convolution(taps, *groups), grid_of(y, buffers));
            let c = x.extent[4];
            match tile {
                Some(tile) => winograd_forward_scratch(team, tile, &conv, c, &outputs, false),
                None => fourier_forward_scratch(team, &conv, c, &outputs),
            }
        }
        Kernel::ConvolutionBackwardData {
            dy,
            dx,
            taps,
            groups,
            ..
        } => {
            let (conv, inputs) = (convolution(taps, *groups), grid_of(dx, buffers));
            let f = dy.extent[4];
            match tile {
                Some(tile) => winograd_backward_data_scratch(team, tile, &conv, f, &inputs, false),
                None => fourier_backward_data_scratch(team, &conv, f, &inputs),
            }
        }
        Kernel::ConvolutionBackwardWeight {
            x,
            dy,
            taps,
            groups,
            ..
        } => {
            let (conv, outputs) = (convolution(taps, *groups), grid_of(dy, buffers));
            let c = x.extent[4];
            match tile {
                Some(tile) => winograd_backward_weight_scratch(team, tile, &conv, c, &outputs),
                None => fourier_backward_weight_scratch(team, &conv, c, &outputs),
            }
        }
        other => panic!("{} is no convolution", other.name()),
    }
}

fn batch_norm_scratch(team: TeamKind, kernel: &Kernel) -> usize {
    if let Kernel::BatchNormStatistics { x, .. }
    | Kernel::BatchNormForward { x, .. }
    | Kernel::BatchNormInference { x, .. }
    | Kernel::BatchNormInferenceBackward { dy: x, .. }
    | Kernel::BatchNormBackwardStatistics { x, .. }
    | Kernel::BatchNormBackwardData { x, .. } = kernel
    {
        norm_scratch(team, x.extent[4])
    } else {
        // Numbers for each channel alone.
        0
    }
}

fn group_norm_scratch(team: TeamKind, kernel: &Kernel) -> usize {
    match kernel {
        Kernel::GroupNormStatistics { x, .. }
        | Kernel::GroupNormForward { x, .. }
        | Kernel::GroupNormBackwardStatistics { x, .. }
        | Kernel::GroupNormBackwardData { x, .. } => norm_scratch(team, x.extent[4]),
        other => panic!("{} is no group norm kernel", other.name()),
    }
}

/// Sums over positions and columns of slopes need some.
fn pointwise_scratch(team: TeamKind, kernel: &Kernel) -> usize {
    if let Kernel::MultiplySum { a: x, .. } | Kernel::PreluBackwardSlopes { x, .. } = kernel {
        norm_scratch(team, x.extent[4])
    } else if let Kernel::PreluForward { x, .. } | Kernel::PreluBackwardData { x, .. } = kernel {
        x.extent[4]
    } else {
        0
    }
}

/// Elements of the weights that a kernel takes best packed; packed ones it does not pack again.
fn packed_weights(team: TeamKind, kernel: &Kernel, buffers: &[Buffer]) -> usize {
    let is_packed = |w: &View| buffers[w.buffer.0 as usize].role == Role::PackedWeights;
    let first = &kernel.parts()[0];
    if let Kernel::ConvolutionForward {
        x,
        w,
        y,
        taps,
        groups,
        ..
    } = first
        && !is_packed(w)
    {
        let (conv, positions) = (convolution(taps, *groups), grid_of(y, buffers).positions());
        packs_forward(team.level, &conv, x.extent[4], y.extent[4], positions)
    } else if let Kernel::ConvolutionBackwardData {
        dy,
        w,
        dx,
        taps,
        groups,
        ..
    } = first
        && !is_packed(w)
    {
        let (conv, positions) = (convolution(taps, *groups), grid_of(dx, buffers).positions());
        packs_backward_data(team.level, &conv, dx.extent[4], dy.extent[4], positions)
    } else {
        0
    }
}

fn convolutions(team: TeamKind, kernel: &Kernel, buffers: &[Buffer]) -> usize {
    if is_native(Method::Direct, kernel, buffers) {
        return native_convolutions(team, kernel, buffers);
    }
    let is_packed = |w: &View| buffers[w.buffer.0 as usize].role == Role::PackedWeights;
    match kernel {
        Kernel::ConvolutionForward { w, .. } | Kernel::ConvolutionBackwardData { w, .. }
            if is_packed(w) =>
        {
            0
        }
        Kernel::ConvolutionForward {
            x, y, taps, groups, ..
        } => {
            let positions = grid_of(y, buffers).positions();
            let conv = convolution(taps, *groups);
            conv_forward_scratch(team, &conv, x.extent[4], y.extent[4], positions)
        }
        Kernel::ConvolutionBackwardData {
            dy,
            dx,
            taps,
            groups,
            ..
        } => {
            let positions = grid_of(dx, buffers).positions();
            let conv = convolution(taps, *groups);
            conv_backward_data_scratch(team, &conv, dx.extent[4], dy.extent[4], positions)
        }
        Kernel::ConvolutionBackwardWeight {
            x,
            dy,
            taps,
            groups,
            ..
        } => {
            let conv = convolution(taps, *groups);
            conv_backward_weight_scratch(team, &conv, &grid_of(x, buffers), dy.extent[4])
        }
        other => panic!("{} is no convolution", other.name()),
    }
}

/// Of convolutions in bf16.
fn native_convolutions(team: TeamKind, kernel: &Kernel, buffers: &[Buffer]) -> usize {
    match kernel {
        Kernel::ConvolutionForward {
            x, y, taps, groups, ..
        } => {
            let (conv, positions) = (convolution(taps, *groups), grid_of(y, buffers).positions());
            let (c, f) = (x.extent[4], y.extent[4]);
            conv_forward_scratch_bf16(team, &conv, c, f, positions, false)
        }
        Kernel::ConvolutionBackwardData {
            dy,
            dx,
            taps,
            groups,
            ..
        } => {
            let (conv, positions) = (convolution(taps, *groups), grid_of(dx, buffers).positions());
            let (c, f) = (dx.extent[4], dy.extent[4]);
            conv_backward_data_scratch_bf16(team, &conv, c, f, positions, false)
        }
        Kernel::ConvolutionBackwardWeight {
            x,
            dy,
            taps,
            groups,
            ..
        } => {
            let conv = convolution(taps, *groups);
            conv_backward_weight_scratch_bf16(team, &conv, &grid_of(x, buffers), dy.extent[4])
        }
        other => panic!("{} is no convolution", other.name()),
    }
}

fn linear(team: TeamKind, kernel: &Kernel, buffers: &[Buffer]) -> usize {
    match kernel {
        Kernel::LinearForward { x, w, .. } => {
            let [n, c, f] = [x.extent[0], w.extent[3], w.extent[4]];
            packed_rows(x, buffers) + conv_forward_scratch(team, &LINEAR, c, f, n)
        }
        Kernel::LinearBackwardData { dx, w, .. } => {
            let [n, c, f] = [dx.extent[0], w.extent[3], w.extent[4]];
            packed_rows(dx, buffers) + conv_backward_data_scratch(team, &LINEAR, c, f, n)
        }
        Kernel::LinearBackwardWeight { x, dw, .. } => {
            let [n, c, f] = [x.extent[0], dw.extent[3], dw.extent[4]];
            let grid = Grid::dense(n, [1; 3], c);
            packed_rows(x, buffers) + conv_backward_weight_scratch(team, &LINEAR, &grid, f)
        }
        other => panic!("{} is no linear layer", other.name()),
    }
}
