//! Convolutions, in all directions, and their biases.

use super::*;

/// From the views and the window alone, since packed weights have other extents.
fn flops(outputs: &View, inputs: usize, groups: usize, taps: &Taps) -> u128 {
    let channels = inputs / groups.max(1);
    each(outputs, 2)
        .saturating_mul(product(&[channels]))
        .saturating_mul(product(&taps.kernel))
}

pub(super) fn describe(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::PackWeights { .. } => pack(kernel),
        Kernel::ConvolutionForward { .. } => forward(kernel),
        Kernel::ConvolutionBackwardData { .. } => backward_data(kernel),
        Kernel::ConvolutionBackwardWeight { .. } => backward_weight(kernel),
        Kernel::BiasBackward { dy, db, accumulate } => {
            let db = result("db", db, *accumulate).vector(dy.extent[4]);
            let operands = [linear("dy", dy), db.over(Over::Positions(dy))];
            Descriptor::new("bias_backward", each(dy, 1), operands).accumulates(*accumulate)
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn pack(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::PackWeights {
        w,
        packed,
        direction,
        taps,
        groups,
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let [.., inputs, outputs] = w.extent;
    let weights = Extents::Weights {
        taps,
        groups: *groups,
        inputs: inputs.saturating_mul(*groups),
        outputs,
        may_be_packed: false,
    };
    let operands = [read("w", w).extents(weights), write("packed", packed)];
    Descriptor::new("pack_weights", 0, operands)
        .window(Window {
            taps,
            groups: *groups,
            shift: [0; 3],
            outputs: [1; 5],
        })
        .flow(Flow::Packs {
            w,
            packed,
            direction: *direction,
        })
        .constant(Constant::Word("direction", direction.name()))
        .constant(Constant::Taps(taps))
        .constant(Constant::Number("groups", *groups))
}

fn forward(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::ConvolutionForward {
        x,
        w,
        bias,
        y,
        taps,
        groups,
        accumulate,
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let weights = weights(taps, *groups, [x, y], true);
    let operands = [
        linear("x", x).extents(window("y", y, taps)),
        read("w", w).extents(weights),
    ];
    Descriptor::new(
        "convolution_forward",
        flops(y, x.extent[4], *groups, taps),
        operands,
    )
    .and(bias_of(bias.as_ref(), y))
    .and([result("y", y, *accumulate).over(Over::Products)])
    .cost(cost(Pass::Forward, [x, y, y]))
    .window(moved(taps, *groups, &[0; 3], y))
    .layout(Layout::Product {
        from: x,
        to: y,
        w,
        is_forward: true,
        bias: bias.as_ref(),
    })
    .constant(Constant::Taps(taps))
    .constant(Constant::Number("groups", *groups))
    .accumulates(*accumulate)
}

fn backward_data(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::ConvolutionBackwardData {
        dy,
        w,
        bias,
        dx,
        taps,
        shift,
        groups,
        accumulate,
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let weights = weights(taps, *groups, [dx, dy], true);
    let operands = [linear("dy", dy), read("w", w).extents(weights)];
    let dx_operand = result("dx", dx, *accumulate).extents(Extents::Samples(dy));
    Descriptor::new(
        "convolution_backward_data",
        flops(dy, dx.extent[4], *groups, taps),
        operands,
    )
    .and(bias_of(bias.as_ref(), dx))
    .and([dx_operand.over(Over::Products)])
    .cost(cost(Pass::BackwardData, [dx, dy, dx]))
    .window(moved(taps, *groups, shift, dy))
    .layout(Layout::Product {
        from: dy,
        to: dx,
        w,
        is_forward: false,
        bias: bias.as_ref(),
    })
    .constant(Constant::Taps(taps))
    .constant(Constant::Number("groups", *groups))
    .constant(Constant::Offsets("shift", shift))
    .accumulates(*accumulate)
}

fn backward_weight(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::ConvolutionBackwardWeight {
        x,
        dy,
        dw,
        taps,
        groups,
        accumulate,
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let weights = weights(taps, *groups, [x, dy], false);
    let operands = [
        factor("x", x).extents(window("dy", dy, taps)),
        factor("dy", dy),
        result("dw", dw, *accumulate)
            .extents(weights)
            .over(Over::Positions(dy)),
    ];
    Descriptor::new(
        "convolution_backward_weight",
        flops(dy, x.extent[4], *groups, taps),
        operands,
    )
    .cost(cost(Pass::BackwardWeight, [x, dy, dy]))
    .window(moved(taps, *groups, &[0; 3], dy))
    .layout(Layout::ProductGradient { x, dy, dw })
    .constant(Constant::Taps(taps))
    .constant(Constant::Number("groups", *groups))
}

fn weights<'k>(
    taps: &'k Taps,
    groups: usize,
    [input, output]: [&View; 2],
    may_be_packed: bool,
) -> Extents<'k> {
    Extents::Weights {
        taps,
        groups,
        inputs: input.extent[4],
        outputs: output.extent[4],
        may_be_packed,
    }
}

fn window<'k>(name: &'static str, of: &'k View, taps: &'k Taps) -> Extents<'k> {
    Extents::Window { name, of, taps }
}

fn moved<'k>(taps: &'k Taps, groups: usize, shift: &[i64; 3], outputs: &View) -> Window<'k> {
    Window {
        taps,
        groups,
        shift: *shift,
        outputs: outputs.extent,
    }
}

fn cost<'k>(pass: Pass, [input, output, written]: [&'k View; 3]) -> Cost<'k> {
    Cost::Convolution {
        pass,
        input,
        output,
        written,
    }
}

pub(super) fn bias_of<'k>(bias: Option<&'k View>, to: &View) -> Option<Operand<'k>> {
    bias.map(|bias| read("bias", bias).vector(to.extent[4]))
}
