//! Layer norm, with sums over channels.

use super::*;

/// Extents of two sums per sample and position.
fn rows_of(x: &View) -> [usize; 5] {
    let [n, d, h, w, _] = x.extent;
    [n, d, h, w, 2]
}

pub(super) fn describe(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::LayerNormStatistics { x, sums, .. } => {
            let sums = write("sums", sums).sums_of(rows_of(x));
            let operands = [read("x", x), sums.over(Over::Channels(x))];
            Descriptor::new("layer_norm_statistics", each(x, 3), operands)
        }
        Kernel::LayerNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            count,
            ..
        } => {
            let operands = [
                read("x", x),
                read("sums", sums).sums_of(rows_of(x)),
                read("gamma", gamma).vector(x.extent[4]),
                read("beta", beta).vector(x.extent[4]),
                write("y", y).like("x", x),
            ];
            Descriptor::new("layer_norm_forward", each(x, 4), operands).counts(*count)
        }
        Kernel::LayerNormBackwardStatistics { .. }
        | Kernel::LayerNormBackwardData { .. }
        | Kernel::LayerNormBackwardParameters { .. } => describe_backward(kernel),
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn describe_backward(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::LayerNormBackwardStatistics {
            x,
            sums,
            gamma,
            dy,
            gradient_sums,
            count,
            ..
        } => {
            let gradient_sums = write("gradient_sums", gradient_sums).sums_of(rows_of(x));
            let operands = [
                read("x", x),
                read("sums", sums).sums_of(rows_of(x)),
                read("gamma", gamma).vector(x.extent[4]),
                linear("dy", dy).like("x", x),
                gradient_sums.over(Over::Channels(dy)),
            ];
            Descriptor::new("layer_norm_backward_statistics", each(x, 6), operands).counts(*count)
        }
        Kernel::LayerNormBackwardData {
            x,
            sums,
            gamma,
            dy,
            gradient_sums,
            dx,
            count,
            accumulate,
            ..
        } => {
            let operands = [
                read("x", x),
                read("sums", sums).sums_of(rows_of(x)),
                read("gamma", gamma).vector(x.extent[4]),
                read("dy", dy).like("x", x),
                read("gradient_sums", gradient_sums).sums_of(rows_of(x)),
                result("dx", dx, *accumulate).like("x", x),
            ];
            Descriptor::new("layer_norm_backward_data", each(x, 7), operands)
                .counts(*count)
                .accumulates(*accumulate)
        }
        Kernel::LayerNormBackwardParameters { .. } => backward_parameters(kernel),
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn backward_parameters(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::LayerNormBackwardParameters {
        x,
        sums,
        dy,
        dgamma,
        dbeta,
        count,
        accumulate,
        ..
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let parameter = |name, view| {
        let gradient = result(name, view, *accumulate).vector(x.extent[4]);
        gradient.over(Over::Positions(dy))
    };
    let operands = [
        read("x", x),
        read("sums", sums).sums_of(rows_of(x)),
        linear("dy", dy).like("x", x),
        parameter("dgamma", dgamma),
        parameter("dbeta", dbeta),
    ];
    Descriptor::new("layer_norm_backward_parameters", each(x, 5), operands)
        .counts(*count)
        .accumulates(*accumulate)
}
