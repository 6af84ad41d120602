//! What a convolution of a program is for the library.

use partita_program::descriptor::{self as program, Cost, Descriptor, Layout};
use partita_program::{Buffer, Dtype, Kernel, Role, Taps, View};

/// Name of the kernel that sums the gradient of the output over its positions.
const BIAS_GRADIENT: &str = "bias_backward";

/// A box of f32 (N, D, H, W, C) in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tensor {
    pub(crate) extent: [usize; 5],
    /// Elements between neighbors along each dim.
    pub(crate) pitch: [usize; 5],
}

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pass {
    /// The output from input and weights.
    Forward {
        has_bias: bool,
        /// Bits of the slope of a leaky ReLU that follows.
        slope: Option<u32>,
    },
    /// The gradient of the input from that of the output and the weights.
    BackwardData,
    /// The gradient of the weights from the input and the gradient of the output.
    BackwardWeight {
        /// That of the bias, too.
        has_bias: bool,
    },
}

/// A convolution: all that its primitives depend on, threads apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Problem {
    pub(crate) pass: Pass,
    /// The input or its gradient.
    pub(crate) input: Tensor,
    /// The output or its gradient.
    pub(crate) output: Tensor,
    pub(crate) taps: Taps,
    pub(crate) groups: usize,
    /// Positions before and after the input that windows read as zeros, along D, H and W; a negative number after it
    /// is positions that no window reads.
    pub(crate) padding: [[i64; 2]; 3],
    /// Whether the result is added to what is there.
    pub(crate) accumulate: bool,
}

/// The views that a problem is about.
pub(crate) struct Operands<'k> {
    pub(crate) input: &'k View,
    pub(crate) output: &'k View,
    pub(crate) weights: &'k View,
    /// Of the pass forward, or its gradient.
    pub(crate) bias: Option<&'k View>,
}

impl Tensor {
    fn of(view: &View, buffers: &[Buffer]) -> Self {
        Self {
            extent: view.extent,
            pitch: buffers[view.buffer.0 as usize].pitches(),
        }
    }

    /// Whether its elements are contiguous.
    pub(crate) fn is_dense(&self) -> bool {
        let mut next = 1;
        (0..5).rev().all(|dim| {
            let fits = self.extent[dim] == 1 || self.pitch[dim] == next;
            next *= self.extent[dim];
            fits
        })
    }
}

impl Problem {
    /// The problem that the first parts of a kernel are, with its views and the number of these parts; none if the
    /// library has nothing for them.
    pub(crate) fn of<'k>(
        parts: &'k [Kernel],
        buffers: &[Buffer],
    ) -> Option<(Self, Operands<'k>, usize)> {
        let (first, rest) = parts.split_first()?;
        let descriptor = first.descriptor();
        let Cost::Convolution {
            pass,
            input,
            output,
            ..
        } = descriptor.cost
        else {
            return None;
        };
        let window = descriptor.window?;
        let (weights, bias) = weights_and_bias(&descriptor.layout)?;
        let accumulate = accumulates(&descriptor)?;
        let [x, y] = [input, output].map(|view| Tensor::of(view, buffers));
        // A strided result is added where it is copied to its place, after the primitive.
        let may_go_on = y.is_dense() || !accumulate;
        let (pass, bias, count) = match pass {
            program::Pass::Forward => {
                let slope = slope_after(rest, output).filter(|_| may_go_on);
                let pass = Pass::Forward {
                    has_bias: bias.is_some(),
                    slope: slope.map(f32::to_bits),
                };
                (pass, bias, 1 + usize::from(slope.is_some()))
            }
            // A transposed convolution with a bias is not offered.
            program::Pass::BackwardData if bias.is_some() => return None,
            program::Pass::BackwardData => (Pass::BackwardData, None, 1),
            program::Pass::BackwardWeight => {
                let bias = bias_gradient_after(rest, output, accumulate);
                let has_bias = bias.is_some();
                let pass = Pass::BackwardWeight { has_bias };
                (pass, bias, 1 + usize::from(has_bias))
            }
        };
        let problem = Self {
            pass,
            input: x,
            output: y,
            taps: *window.taps,
            groups: window.groups,
            padding: padding(input, output, window.taps, window.shift),
            accumulate,
        };
        let is_plain = |view: &View| {
            let buffer = &buffers[view.buffer.0 as usize];
            buffer.dtype == Dtype::F32 && buffer.role != Role::PackedWeights && !view.is_empty()
        };
        let views = [input, output, weights];
        let is_offered = views.into_iter().all(is_plain) && problem.has_common_padding();
        let operands = Operands {
            input,
            output,
            weights,
            bias,
        };
        is_offered.then_some((problem, operands, count))
    }

    /// Whether every window reads some input, and the last one ends less than a stride before its end.
    fn has_common_padding(&self) -> bool {
        (0..3).all(|dim| {
            let reach = (self.taps.kernel[dim] as i64 - 1) * self.taps.dilation[dim] as i64;
            let [before, after] = self.padding[dim];
            let stride = self.taps.stride[dim] as i64;
            (0..=reach).contains(&before) && after > -stride && after <= reach
        })
    }
}

/// What windows read beyond the input, if the first one begins `before` it.
fn padding(input: &View, output: &View, taps: &Taps, before: [i64; 3]) -> [[i64; 2]; 3] {
    std::array::from_fn(|dim| {
        let [from, to] = [input, output].map(|view| view.extent[dim + 1] as i64);
        let reach = (taps.kernel[dim] as i64 - 1) * taps.dilation[dim] as i64 + 1;
        let read = (to - 1) * taps.stride[dim] as i64 + reach;
        [before[dim], read - from - before[dim]]
    })
}

/// Views of the weights, and of the bias of a product.
fn weights_and_bias<'k>(layout: &Layout<'k>) -> Option<(&'k View, Option<&'k View>)> {
    match *layout {
        Layout::Product { w, bias, .. } => Some((w, bias)),
        Layout::ProductGradient { dw, .. } => Some((dw, None)),
        Layout::Any | Layout::Table { .. } | Layout::Sequences { .. } | Layout::OwnShare { .. } => {
            None
        }
    }
}

/// Whether a kernel with one result adds it to what is there.
fn accumulates(descriptor: &Descriptor<'_>) -> Option<bool> {
    let mut accesses = descriptor.operands.iter().map(|operand| operand.access);
    let result = accesses.find(|access| access.writes())?;
    Some(result.reads())
}

/// The slope of a leaky ReLU that comes next, in place.
fn slope_after(rest: &[Kernel], output: &View) -> Option<f32> {
    if let Some(Kernel::LeakyReluForward {
        x,
        y,
        negative_slope,
    }) = rest.first()
        && [x, y] == [output; 2]
    {
        Some(*negative_slope as f32)
    } else {
        None
    }
}

/// The gradient of the bias, if it comes next and is added up as that of the weights.
fn bias_gradient_after<'k>(
    rest: &'k [Kernel],
    gradient: &View,
    accumulate: bool,
) -> Option<&'k View> {
    let descriptor = rest.first()?.descriptor();
    let [from, to] = &descriptor.operands[..] else {
        return None;
    };
    let is_it = descriptor.name == BIAS_GRADIENT
        && from.view == gradient
        && accumulates(&descriptor) == Some(accumulate);
    is_it.then_some(to.view)
}
