//! NormKind the channels of a position: softmax, layer norm, sums of products.

use super::sums::channel_sums;
use crate::arg::Arg;
use crate::device::KernelError;
use crate::launch::Run;
use crate::tensor::Tensor;
use partita_program::{Kernel, View};

/// Softmax, and sums of products over channels; none for other kernels.
pub(super) fn over_channels(kernel: &Kernel, run: &mut Run<'_>) -> Option<Result<(), KernelError>> {
    let (name, of, rest) = if let Kernel::SoftmaxForward { x, y } = kernel {
        ("softmax_forward", vec![x, y], None)
    } else if let Kernel::SoftmaxBackward {
        y,
        dy,
        dx,
        accumulate,
    } = kernel
    {
        ("softmax_backward", vec![y, dy, dx], Some(accumulate))
    } else if let Kernel::MultiplyChannelSum {
        a,
        b,
        y,
        accumulate,
    } = kernel
    {
        ("multiply_channel_sum", vec![a, b, y], Some(accumulate))
    } else {
        return None;
    };
    let of: Vec<Tensor> = of.into_iter().map(|view| run.tensor(view)).collect();
    let rest: Vec<Arg> = rest
        .into_iter()
        .map(|&accumulate| Arg::flag(accumulate))
        .collect();
    Some(rows(name, &of, &of[0], &rest, run))
}

/// Kernels of layer norms.
pub(super) fn execute_layer_norm(kernel: &Kernel, run: &mut Run<'_>) -> Result<(), KernelError> {
    match kernel {
        Kernel::LayerNormStatistics { x, sums, rms } => {
            let of = [x, sums].map(|view| run.tensor(view));
            rows(
                "layer_norm_statistics",
                &of,
                &of[0],
                &[Arg::flag(*rms)],
                run,
            )
        }
        Kernel::LayerNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            count,
            epsilon,
        } => forward(
            [x, sums, y],
            [gamma, beta],
            constants(*count, *epsilon),
            run,
        ),
        Kernel::LayerNormBackwardStatistics {
            x,
            sums,
            gamma,
            dy,
            gradient_sums,
            count,
            epsilon,
            rms,
        } => {
            let constants = (gamma, *count, *epsilon);
            let name = "layer_norm_backward_statistics";
            backward(name, &[x, sums, dy, gradient_sums], constants, *rms, run)
        }
        Kernel::LayerNormBackwardData {
            x,
            sums,
            gamma,
            dy,
            gradient_sums,
            dx,
            count,
            epsilon,
            accumulate,
        } => {
            let (of, constants) = ([x, sums, dy, gradient_sums, dx], (gamma, *count, *epsilon));
            backward("layer_norm_backward_data", &of, constants, *accumulate, run)
        }
        Kernel::LayerNormBackwardParameters {
            x,
            sums,
            dy,
            dgamma,
            dbeta,
            count,
            epsilon,
            accumulate,
        } => {
            let constants = constants(*count, *epsilon);
            backward_parameters([x, sums, dy], [dbeta, dgamma], constants, *accumulate, run)
        }
        other => panic!("{} is no layer norm kernel", other.name()),
    }
}

fn forward(
    of: [&View; 3],
    vectors: [&View; 2],
    constants: [Arg; 2],
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let of = of.map(|view| run.tensor(view));
    let mut rest = vectors
        .map(|view| Arg::Ulong(run.tensor(view).offset))
        .to_vec();
    rest.extend(constants);
    rows("layer_norm_forward", &of, &of[0], &rest, run)
}

fn backward(
    name: &'static str,
    of: &[&View],
    (gamma, count, epsilon): (&View, u64, f64),
    flag: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let of: Vec<Tensor> = of.iter().map(|view| run.tensor(view)).collect();
    let mut rest = vec![Arg::Ulong(run.tensor(gamma).offset)];
    rest.extend(constants(count, epsilon));
    rest.push(Arg::flag(flag));
    rows(name, &of, &of[0], &rest, run)
}

/// Gradients of beta and gamma.
fn backward_parameters(
    of: [&View; 3],
    rows: [&View; 2],
    constants: [Arg; 2],
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let of = of.map(|view| run.tensor(view));
    let sums = channel_sums("row_gradient_moments", &of, &constants, false, 2, run)?;
    for (row, view) in rows.into_iter().enumerate() {
        let y = run.tensor(view);
        sums.put(row, &y, accumulate, run)?;
    }
    Ok(())
}

fn constants(count: u64, epsilon: f64) -> [Arg; 2] {
    [Arg::Double(count as f64), Arg::Double(epsilon)]
}

/// A kernel on each position of these boxes, whose channels are those of `extent`.
pub(super) fn rows(
    name: &'static str,
    of: &[Tensor],
    extent: &Tensor,
    rest: &[Arg],
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let mut args: Vec<Arg> = of.iter().map(Arg::from).collect();
    args.push(Arg::Extent(extent.raw_extent()));
    args.extend_from_slice(rest);
    let count = if extent.extent[4] == 0 {
        0
    } else {
        extent.positions()
    };
    run.items(name, &args, count)
}
