//! The kernel catalog of the CPU backend, with the workspace of each kernel.

use super::expected::expected;
use super::layer::Layer;
use super::method::Method;
use super::native::is_native;
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
use crate::conv::weight::conv_backward_weight_scratch;
use crate::conv::winograd::{
    winograd_backward_data_scratch, winograd_backward_weight_scratch, winograd_forward_scratch,
};
use crate::norm::norm_scratch;
use crate::simd::Level;
use crate::team::TeamKind;
use partita_program::descriptor::Pass;
use partita_program::fused::{is_usual, tail};
use partita_program::{
    Algorithm, Buffer, Choice, Dtype, Family, Kernel, KernelShape, Menu, MenuError, Widened,
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
            packed_weights: packed_weights(self.team(), shape),
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
        let layer = first_layer(shape);
        let is_offered = |method| {
            layer
                .as_ref()
                .is_some_and(|layer| is_offered(method, layer))
        };
        let others = Method::ALL.into_iter();
        let others = others.filter(|&method| method != Method::Direct && is_offered(method));
        let others = others.map(|method| self.choice(shape, method));
        Ok(std::iter::once(usual).chain(others).collect())
    }

    fn expected(&self, shape: &KernelShape<'_>, method: &str) -> Option<Seconds> {
        let method = Method::named(method)?;
        let layer = first_layer(shape).filter(|layer| !layer.is_linear)?;
        let is_there = method == Method::Direct || is_offered(method, &layer);
        is_there.then(|| expected(self.team(), shape, &layer, method))?
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
fn is_offered(method: Method, layer: &Layer) -> bool {
    let (c, f) = layer.channels();
    !layer.is_packed && method.offers(&layer.conv, c, f)
}

fn first_layer(shape: &KernelShape<'_>) -> Option<Layer> {
    Layer::of(&shape.kernel.parts()[0], shape.buffers)
}

impl CpuMenu {
    fn team(&self) -> TeamKind {
        TeamKind {
            threads: self.threads,
            level: self.level,
        }
    }

    fn choice(&self, shape: &KernelShape<'_>, method: Method) -> Choice {
        let elements = self.workspace(shape, method);
        Choice {
            algorithm: Algorithm(method.name().to_owned()),
            workspace: Bytes((elements * size_of::<f32>()) as u64),
            packed_weights: 0,
        }
    }

    /// Scratch in elements of f32: what the first part needs, and sums and scales of later ones.
    fn workspace(&self, shape: &KernelShape<'_>, method: Method) -> usize {
        let (team, parts) = (self.team(), shape.kernel.parts());
        let layer = first_layer(shape);
        let own = match &layer {
            Some(layer) if is_native(method, &parts[0], shape.buffers) => native(team, layer),
            Some(layer) => product(team, layer, method),
            None => other(team, &parts[0], shape.buffers),
        };
        let Some((out, tail)) = tail(parts) else {
            return own;
        };
        let channels = out.extent[4];
        let sums = match (&tail.sums, &layer) {
            (None, _) => 0,
            (Some(_), Some(layer)) => sums_scratch(team, &layer.conv, layer.written().channels),
            (Some(_), None) => norm_scratch(team, channels),
        };
        own + scale_elements(&tail, channels) + sums
    }
}

/// Of a convolution in bf16.
fn native(team: TeamKind, layer: &Layer) -> usize {
    let (conv, (c, f)) = (&layer.conv, layer.channels());
    let positions = layer.written().positions();
    match layer.pass {
        Pass::Forward => conv_forward_scratch_bf16(team, conv, c, f, positions, false),
        Pass::BackwardData => conv_backward_data_scratch_bf16(team, conv, c, f, positions, false),
        Pass::BackwardWeight => conv_backward_weight_scratch_bf16(team, conv, &layer.input, f),
    }
}

/// Of a convolution or linear layer.
fn product(team: TeamKind, layer: &Layer, method: Method) -> usize {
    let (conv, (c, f), written) = (&layer.conv, layer.channels(), layer.written());
    let positions = written.positions();
    let own = match (method, layer.pass) {
        (Method::Direct, _) if layer.is_packed => 0,
        (Method::Direct, Pass::Forward) => conv_forward_scratch(team, conv, c, f, positions),
        (Method::Direct, Pass::BackwardData) => {
            conv_backward_data_scratch(team, conv, c, f, positions)
        }
        (Method::Direct, Pass::BackwardWeight) => {
            conv_backward_weight_scratch(team, conv, &layer.input, f)
        }
        (Method::Winograd(tile), Pass::Forward) => {
            winograd_forward_scratch(team, tile, conv, c, written, false)
        }
        (Method::Winograd(tile), Pass::BackwardData) => {
            winograd_backward_data_scratch(team, tile, conv, f, written, false)
        }
        (Method::Winograd(tile), Pass::BackwardWeight) => {
            winograd_backward_weight_scratch(team, tile, conv, c, written)
        }
        (Method::Fourier, Pass::Forward) => fourier_forward_scratch(team, conv, c, written),
        (Method::Fourier, Pass::BackwardData) => {
            fourier_backward_data_scratch(team, conv, f, written)
        }
        (Method::Fourier, Pass::BackwardWeight) => {
            fourier_backward_weight_scratch(team, conv, c, written)
        }
    };
    own + layer.row_elements
}

/// Of a kernel that is no such product.
fn other(team: TeamKind, kernel: &Kernel, buffers: &[Buffer]) -> usize {
    if let Kernel::Copy { source, target, .. } = kernel {
        let dtype = buffers[source.buffer.0 as usize].dtype;
        match (dtype, Route::of(source, target, buffers)) {
            (Dtype::F32, Route::Packed) => source.volume(),
            (Dtype::Bf16, Route::Packed) => source.volume().div_ceil(2),
            (Dtype::F32 | Dtype::Bf16, Route::Boxes | Route::Flat)
            | (Dtype::F64 | Dtype::F16 | Dtype::I16, _) => 0,
        }
    } else if let Kernel::BatchNormRunning { .. } | Kernel::BatchNormBackwardParameters { .. } =
        kernel
    {
        // Numbers for each channel alone.
        0
    } else if let Family::BatchNorm | Family::GroupNorm = kernel.family() {
        norm_scratch(team, kernel.descriptor().operands[0].view.extent[4])
    } else if let Kernel::BiasBackward { dy: x, .. }
    | Kernel::MultiplySum { a: x, .. }
    | Kernel::PreluBackwardSlopes { x, .. } = kernel
    {
        norm_scratch(team, x.extent[4])
    } else if let Kernel::PreluForward { x, .. } | Kernel::PreluBackwardData { x, .. } = kernel {
        x.extent[4]
    } else {
        sequence::scratch(team, kernel)
    }
}

/// Elements of the weights that a kernel takes best packed; packed ones it does not pack again.
fn packed_weights(team: TeamKind, shape: &KernelShape<'_>) -> usize {
    let plain = first_layer(shape).filter(|layer| !layer.is_packed && !layer.is_linear);
    let Some(layer) = plain else {
        return 0;
    };
    let (conv, (c, f)) = (&layer.conv, layer.channels());
    let positions = layer.written().positions();
    match layer.pass {
        Pass::Forward => packs_forward(team.level, conv, c, f, positions),
        Pass::BackwardData => packs_backward_data(team.level, conv, c, f, positions),
        Pass::BackwardWeight => 0,
    }
}
