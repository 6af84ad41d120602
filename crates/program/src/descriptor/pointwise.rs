//! Elementwise kernels.

use super::*;
use crate::Activation;

pub(super) fn describe(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::LeakyReluForward { x, y, .. } => {
            let operands = [read("x", x), write("y", y).like("x", x)];
            Descriptor::new("leaky_relu_forward", each(x, 1), operands)
                .fusion(FusionRole::Changes(x, y))
                .elementwise()
        }
        Kernel::LeakyReluBackward { .. } => leaky_relu_backward(kernel),
        Kernel::ActivationForward { .. } | Kernel::ActivationBackward { .. } => activation(kernel),
        Kernel::PreluForward { .. }
        | Kernel::PreluBackwardData { .. }
        | Kernel::PreluBackwardSlopes { .. } => prelu(kernel),
        Kernel::SoftmaxForward { .. } | Kernel::SoftmaxBackward { .. } => softmax(kernel),
        Kernel::ChannelShuffle {
            x,
            y,
            groups,
            accumulate,
        } => {
            let operands = [linear("x", x), result("y", y, *accumulate).like("x", x)];
            Descriptor::new("channel_shuffle", each(x, 1), operands)
                .require(*groups > 0 && x.extent[4].is_multiple_of(*groups), || {
                    misfit(x, y)
                })
                .accumulates(*accumulate)
        }
        Kernel::Dropout {
            x,
            y,
            distribution,
            halo_low,
            accumulate,
            ..
        } => {
            let operands = [linear("x", x), result("y", y, *accumulate).like("x", x)];
            Descriptor::new("dropout", each(x, 1), operands)
                .placed(distribution, halo_low)
                .elementwise()
                .accumulates(*accumulate)
        }
        Kernel::Add { a, b, y } => {
            let operands = [
                linear("a", a),
                linear("b", b).like("a", a),
                write("y", y).like("a", a),
            ];
            Descriptor::new("add", each(y, 1), operands)
                .fusion(FusionRole::ChangesEither([a, b], y))
                .elementwise()
        }
        Kernel::Multiply { .. }
        | Kernel::MultiplySum { .. }
        | Kernel::MultiplyChannelSum { .. } => product(kernel),
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn activation(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::ActivationForward { function, x, y } => {
            let operands = [read("x", x), write("y", y).like("x", x)];
            let name = match function {
                Activation::Gelu => "gelu_forward",
                Activation::Silu => "silu_forward",
                Activation::Sigmoid => "sigmoid_forward",
                Activation::Tanh => "tanh_forward",
                Activation::Elu { .. } => "elu_forward",
                Activation::GeluTanh => "gelu_tanh_forward",
                Activation::Mish => "mish_forward",
                Activation::Softplus { .. } => "softplus_forward",
                Activation::Hardtanh { .. } => "hardtanh_forward",
                Activation::Clamp { .. } => "clamp_forward",
                Activation::HardSigmoid => "hard_sigmoid_forward",
                Activation::HardSwish => "hard_swish_forward",
                Activation::Affine { .. } => "affine_forward",
            };
            let flops = function.flops()[0] as usize;
            Descriptor::new(name, each(x, flops), operands)
        }
        Kernel::ActivationBackward {
            function,
            x,
            dy,
            dx,
            accumulate,
        } => {
            let operands = [
                read("x", x),
                linear("dy", dy).like("x", x),
                result("dx", dx, *accumulate).like("x", x),
            ];
            let name = match function {
                Activation::Gelu => "gelu_backward",
                Activation::Silu => "silu_backward",
                Activation::Sigmoid => "sigmoid_backward",
                Activation::Tanh => "tanh_backward",
                Activation::Elu { .. } => "elu_backward",
                Activation::GeluTanh => "gelu_tanh_backward",
                Activation::Mish => "mish_backward",
                Activation::Softplus { .. } => "softplus_backward",
                Activation::Hardtanh { .. } => "hardtanh_backward",
                Activation::Clamp { .. } => "clamp_backward",
                Activation::HardSigmoid => "hard_sigmoid_backward",
                Activation::HardSwish => "hard_swish_backward",
                Activation::Affine { .. } => "affine_backward",
            };
            let flops = function.flops()[1] as usize;
            Descriptor::new(name, each(x, flops), operands).accumulates(*accumulate)
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}

/// Extents of one position.
fn gate_of(x: &View) -> [usize; 5] {
    let [n, .., c] = x.extent;
    [n, 1, 1, 1, c]
}

/// Extents of one channel.
fn map_of(x: &View) -> [usize; 5] {
    let [n, d, h, w, _] = x.extent;
    [n, d, h, w, 1]
}

fn product(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::Multiply {
            a,
            b,
            y,
            accumulate,
        } => {
            let possible = [gate_of(a), map_of(a)];
            let of_b = possible.into_iter().find(|extent| *extent == b.extent);
            let of_b = of_b.unwrap_or(a.extent);
            let operands = [
                factor("a", a),
                factor("b", b).of(of_b),
                result("y", y, *accumulate).like("a", a),
            ];
            Descriptor::new("multiply", each(a, 1), operands).accumulates(*accumulate)
        }
        Kernel::MultiplySum {
            a,
            b,
            y,
            accumulate,
        } => {
            let sum = result("y", y, *accumulate).of(gate_of(a));
            product_sum(
                "multiply_sum",
                [a, b],
                sum.over(Over::Space(a)),
                *accumulate,
            )
        }
        Kernel::MultiplyChannelSum {
            a,
            b,
            y,
            accumulate,
        } => {
            let sum = result("y", y, *accumulate).of(map_of(a));
            product_sum(
                "multiply_channel_sum",
                [a, b],
                sum.over(Over::Channels(a)),
                *accumulate,
            )
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}

/// A sum of the products of two boxes of one shape.
fn product_sum<'k>(
    name: &'static str,
    [a, b]: [&'k View; 2],
    sum: Operand<'k>,
    accumulate: bool,
) -> Descriptor<'k> {
    let operands = [factor("a", a), factor("b", b).like("a", a), sum];
    Descriptor::new(name, each(a, 2), operands).accumulates(accumulate)
}

fn softmax(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::SoftmaxForward { x, y } => {
            let operands = [read("x", x), write("y", y).like("x", x)];
            Descriptor::new("softmax_forward", each(x, 20), operands)
        }
        Kernel::SoftmaxBackward {
            y,
            dy,
            dx,
            accumulate,
        } => {
            let operands = [
                read("y", y),
                linear("dy", dy).like("y", y),
                result("dx", dx, *accumulate).like("y", y),
            ];
            Descriptor::new("softmax_backward", each(y, 4), operands).accumulates(*accumulate)
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn prelu(kernel: &Kernel) -> Descriptor<'_> {
    // A slope per channel, or one.
    let count = |slopes: &View, x: &View| slopes.extent[4].clamp(1, x.extent[4].max(1));
    let fits = |slopes: &View, x: &View| [1, x.extent[4]].contains(&slopes.extent[4]);
    match kernel {
        Kernel::PreluForward { x, slopes, y } => {
            let operands = [
                read("x", x),
                read("slopes", slopes).vector(count(slopes, x)),
                write("y", y).like("x", x),
            ];
            Descriptor::new("prelu_forward", each(x, 1), operands)
                .require(fits(slopes, x), || misfit(slopes, x))
        }
        Kernel::PreluBackwardData {
            x,
            slopes,
            dy,
            dx,
            accumulate,
        } => {
            let operands = [
                read("x", x),
                read("slopes", slopes).vector(count(slopes, x)),
                linear("dy", dy).like("x", x),
                result("dx", dx, *accumulate).like("x", x),
            ];
            Descriptor::new("prelu_backward_data", each(x, 1), operands)
                .accumulates(*accumulate)
                .require(fits(slopes, x), || misfit(slopes, x))
        }
        Kernel::PreluBackwardSlopes {
            x,
            dy,
            dslopes,
            one,
            accumulate,
        } => {
            let (channels, over) = if *one {
                (1, Over::All(std::slice::from_ref(x)))
            } else {
                (x.extent[4], Over::Positions(x))
            };
            let gradient = result("dslopes", dslopes, *accumulate).vector(channels);
            let operands = [
                read("x", x),
                linear("dy", dy).like("x", x),
                gradient.over(over),
            ];
            Descriptor::new("prelu_backward_slopes", each(x, 2), operands)
                .constant(Constant::Flag("one", *one))
                .accumulates(*accumulate)
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn misfit(slopes: &View, x: &View) -> String {
    let [slopes, channels] = [slopes, x].map(|view| view.extent[4]);
    format!("slopes are {slopes}, 1 or {channels} are expected")
}

fn leaky_relu_backward(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::LeakyReluBackward {
        y,
        dy,
        dx,
        accumulate,
        ..
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let fusion = if *accumulate {
        FusionRole::No
    } else {
        FusionRole::Changes(dy, dx)
    };
    let operands = [
        read("y", y),
        linear("dy", dy).like("y", y),
        result("dx", dx, *accumulate).like("y", y),
    ];
    Descriptor::new("leaky_relu_backward", each(dy, 1), operands)
        .fusion(fusion)
        .elementwise()
        .accumulates(*accumulate)
}
