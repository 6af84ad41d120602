//! NormKind the channels of a position: softmax, layer norm, sums of products.

use super::sums::channel_sums;
use crate::arg::Arg;
use crate::device::KernelError;
use crate::launch::Run;
use crate::tensor::Tensor;
use partita_program::fields::LayerNormBackwardParameters;
use partita_program::{Fields, Kernel, View};

/// Softmax, and sums of products over channels; none for other kernels.
pub(super) fn over_channels(kernel: &Kernel, run: &mut Run<'_>) -> Option<Result<(), KernelError>> {
    let (name, of, rest) = match kernel.fields() {
        Fields::SoftmaxForward(of) => ("softmax_forward", vec![of.x, of.y], None),
        Fields::SoftmaxBackward(of) => {
            let views = vec![of.y, of.dy, of.dx];
            ("softmax_backward", views, Some(of.accumulate))
        }
        Fields::MultiplyChannelSum(of) => {
            let views = vec![of.a, of.b, of.y];
            ("multiply_channel_sum", views, Some(of.accumulate))
        }
        _ => return None,
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
    match kernel.fields() {
        Fields::LayerNormStatistics(of) => {
            let (views, rms) = ([of.x, of.sums].map(|view| run.tensor(view)), of.rms);
            let rest = [Arg::flag(*rms)];
            rows("layer_norm_statistics", &views, &views[0], &rest, run)
        }
        Fields::LayerNormForward(of) => {
            let constants = constants(*of.count, *of.epsilon);
            forward([of.x, of.sums, of.y], [of.gamma, of.beta], constants, run)
        }
        Fields::LayerNormBackwardStatistics(of) => {
            let views = [of.x, of.sums, of.dy, of.gradient_sums];
            let constants = (of.gamma, *of.count, *of.epsilon);
            let name = "layer_norm_backward_statistics";
            backward(name, &views, constants, *of.rms, run)
        }
        Fields::LayerNormBackwardData(of) => {
            let views = [of.x, of.sums, of.dy, of.gradient_sums, of.dx];
            let constants = (of.gamma, *of.count, *of.epsilon);
            let name = "layer_norm_backward_data";
            backward(name, &views, constants, *of.accumulate, run)
        }
        Fields::LayerNormBackwardParameters(of) => backward_parameters(of, run),
        _ => panic!("{} is no layer norm kernel", kernel.name()),
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
    of: LayerNormBackwardParameters<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let boxes = [of.x, of.sums, of.dy].map(|view| run.tensor(view));
    let constants = constants(*of.count, *of.epsilon);
    let sums = channel_sums("row_gradient_moments", &boxes, &constants, false, 2, run)?;
    for (row, view) in [of.dbeta, of.dgamma].into_iter().enumerate() {
        let y = run.tensor(view);
        sums.put(row, &y, *of.accumulate, run)?;
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
