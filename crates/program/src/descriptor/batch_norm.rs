//! Batch norm, with sums over samples and positions.

use super::*;

/// Extents of two sums per channel.
fn sums_of(channels: usize) -> [usize; 5] {
    [1, 1, 1, 2, channels]
}

pub(super) fn describe(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::BatchNormStatistics {
            x,
            sums,
            accumulate,
        } => {
            let sums = result("sums", sums, *accumulate).sums_of(sums_of(x.extent[4]));
            let operands = [read("x", x), sums.over(Over::Positions(x))];
            Descriptor::new("batch_norm_statistics", each(x, 3), operands)
                .fusion(FusionRole::Reads(x))
                .accumulates(*accumulate)
        }
        Kernel::BatchNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            count,
            ..
        } => {
            let channels = x.extent[4];
            let operands = [
                read("x", x),
                read("sums", sums).statistics_of(sums_of(channels)),
                read("gamma", gamma).vector(channels),
                read("beta", beta).vector(channels),
                write("y", y).like("x", x),
            ];
            Descriptor::new("batch_norm_forward", each(x, 2), operands)
                .counts(*count)
                .elementwise()
        }
        Kernel::BatchNormRunning {
            sums,
            mean,
            variance,
            count,
            ..
        } => {
            let channels = sums.extent[4];
            let operands = [
                read("sums", sums).sums_of(sums_of(channels)),
                state("mean", mean).vector(channels),
                state("variance", variance).vector(channels),
            ];
            Descriptor::new("batch_norm_running", each(mean, 8), operands)
                .counts(*count)
                .flow(Flow::Tracks)
        }
        Kernel::BatchNormInference { .. } => inference(kernel),
        Kernel::BatchNormInferenceBackward { .. } => inference_backward(kernel),
        Kernel::BatchNormBackwardStatistics { .. }
        | Kernel::BatchNormBackwardData { .. }
        | Kernel::BatchNormBackwardParameters { .. } => describe_backward(kernel),
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn inference_backward(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::BatchNormInferenceBackward {
        dy,
        variance,
        gamma,
        dx,
        accumulate,
        ..
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let channels = dy.extent[4];
    let operands = [
        linear("dy", dy),
        read("variance", variance).vector(channels),
        read("gamma", gamma).vector(channels),
        result("dx", dx, *accumulate).like("dy", dy),
    ];
    Descriptor::new("batch_norm_inference_backward", each(dy, 1), operands)
        .elementwise()
        .accumulates(*accumulate)
}

fn inference(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::BatchNormInference {
        x,
        mean,
        variance,
        gamma,
        beta,
        y,
        ..
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let channels = x.extent[4];
    let operands = [
        read("x", x),
        read("mean", mean).vector(channels),
        read("variance", variance).vector(channels),
        read("gamma", gamma).vector(channels),
        read("beta", beta).vector(channels),
        write("y", y).like("x", x),
    ];
    Descriptor::new("batch_norm_inference", each(x, 2), operands)
        .fusion(FusionRole::Changes(x, y))
        .elementwise()
}

fn describe_backward(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::BatchNormBackwardStatistics {
            x,
            sums,
            dy,
            gradient_sums,
            count,
            accumulate,
            ..
        } => {
            let extents = sums_of(x.extent[4]);
            let gradient_sums = result("gradient_sums", gradient_sums, *accumulate);
            let operands = [
                read("x", x),
                read("sums", sums).statistics_of(extents),
                linear("dy", dy).like("x", x),
                gradient_sums.sums_of(extents).over(Over::Positions(dy)),
            ];
            Descriptor::new("batch_norm_backward_statistics", each(x, 5), operands)
                .counts(*count)
                .fusion(FusionRole::Reads(dy))
                .accumulates(*accumulate)
        }
        Kernel::BatchNormBackwardData {
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
            let extents = sums_of(x.extent[4]);
            let operands = [
                read("x", x),
                read("sums", sums).statistics_of(extents),
                read("gamma", gamma).vector(x.extent[4]),
                read("dy", dy).like("x", x),
                read("gradient_sums", gradient_sums).statistics_of(extents),
                result("dx", dx, *accumulate).like("x", x),
            ];
            Descriptor::new("batch_norm_backward_data", each(x, 6), operands)
                .counts(*count)
                .elementwise()
                .accumulates(*accumulate)
        }
        Kernel::BatchNormBackwardParameters {
            gradient_sums,
            dgamma,
            dbeta,
            accumulate,
        } => {
            let channels = gradient_sums.extent[4];
            let operands = [
                linear("gradient_sums", gradient_sums).sums_of(sums_of(channels)),
                result("dgamma", dgamma, *accumulate).vector(channels),
                result("dbeta", dbeta, *accumulate).vector(channels),
            ];
            let flops = each(dgamma, 2);
            Descriptor::new("batch_norm_backward_parameters", flops, operands)
                .accumulates(*accumulate)
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}
