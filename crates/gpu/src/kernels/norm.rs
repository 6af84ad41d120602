//! Batch norm and group norm.

use super::pointwise::map_from;
use super::sums::channel_sums;
use crate::arg::Arg;
use crate::device::KernelError;
use crate::epilogue::Epilogue;
use crate::launch::Run;
use crate::tensor::{Tensor, collapse};
use partita_program::fields::{
    BatchNormInference, BatchNormInferenceBackward, BatchNormRunning, GroupNormBackwardStatistics,
};
use partita_program::fused::Tail;
use partita_program::{Dtype, Fields, Kernel, View};

/// Whose moments normalize an element.
#[derive(Clone, Copy, Debug)]
enum NormKind {
    /// Those of its channel in the batch.
    Batch,
    /// Those of its group of channels in its sample.
    Groups(usize),
}

impl NormKind {
    /// The first dim whose indices matter.
    fn first(self) -> usize {
        match self {
            Self::Batch => 0,
            Self::Groups(_) => 1,
        }
    }

    fn of_samples(self) -> Arg {
        Arg::Uint(self.first() as u32)
    }

    /// Sets of numbers per channel.
    fn sets(self, x: &Tensor) -> usize {
        match self {
            Self::Batch => 1,
            Self::Groups(_) => x.extent[0],
        }
    }
}

/// NormKind what moments are taken, over how many elements, and epsilon.
type Constants = (NormKind, u64, f64);

/// Kernels of batch norms; an epilogue follows what normalizes.
pub(super) fn execute_batch(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let batch = |count: &u64, epsilon: &f64| (NormKind::Batch, *count, *epsilon);
    match kernel.fields() {
        Fields::BatchNormStatistics(of) => {
            statistics([of.x, of.sums], NormKind::Batch, *of.accumulate, run)
        }
        Fields::BatchNormForward(of) => {
            let views = [of.x, of.sums, of.gamma, of.beta, of.y];
            forward(views, batch(of.count, of.epsilon), tail, run)
        }
        Fields::BatchNormRunning(of) => running(of, run),
        Fields::BatchNormInference(of) => inference(of, tail, run),
        Fields::BatchNormInferenceBackward(of) => inference_backward(of, run),
        Fields::BatchNormBackwardStatistics(of) => {
            let (views, adds) = ([of.x, of.sums, of.dy, of.gradient_sums], *of.accumulate);
            backward_statistics(views, batch(of.count, of.epsilon), adds, run)
        }
        Fields::BatchNormBackwardData(of) => {
            let views = [of.x, of.sums, of.gamma, of.dy, of.gradient_sums, of.dx];
            backward_data(views, batch(of.count, of.epsilon), *of.accumulate, run)
        }
        Fields::BatchNormBackwardParameters(of) => {
            backward_parameters(of.gradient_sums, [of.dbeta, of.dgamma], *of.accumulate, run)
        }
        _ => panic!("{} is no batch norm kernel", kernel.name()),
    }
}

/// Kernels of group norms.
pub(super) fn execute_groups(kernel: &Kernel, run: &mut Run<'_>) -> Result<(), KernelError> {
    match kernel.fields() {
        Fields::GroupNormStatistics(of) => {
            statistics([of.x, of.sums], NormKind::Groups(1), false, run)
        }
        Fields::GroupNormForward(of) => {
            let views = [of.x, of.sums, of.gamma, of.beta, of.y];
            let constants = (NormKind::Groups(*of.groups), *of.count, *of.epsilon);
            forward(views, constants, &Tail::default(), run)
        }
        Fields::GroupNormBackwardStatistics(of) => group_backward_statistics(of, run),
        Fields::GroupNormBackwardData(of) => {
            let views = [of.x, of.sums, of.gamma, of.dy, of.gradient_sums, of.dx];
            let constants = (NormKind::Groups(*of.groups), *of.count, *of.epsilon);
            backward_data(views, constants, *of.accumulate, run)
        }
        _ => panic!("{} is no group norm kernel", kernel.name()),
    }
}

fn statistics(
    [x, sums]: [&View; 2],
    over: NormKind,
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, y) = (run.tensor(x), run.tensor(sums));
    let of_samples = match over {
        NormKind::Batch => false,
        NormKind::Groups(_) => true,
    };
    let sums = channel_sums("moments", &[x], &[], of_samples, 2, run)?;
    sums.put(0, &y, accumulate, run)
}

/// Mean and inverse deviation of each channel, in the workspace.
fn scales(
    x: &Tensor,
    sums: &Tensor,
    constants: Constants,
    run: &mut Run<'_>,
) -> Result<Arg, KernelError> {
    let ((over, count, epsilon), channels) = (constants, x.extent[4]);
    let first = Arg::Ulong(run.scratch(Dtype::F32, 2 * over.sets(x) * channels));
    let constants = [Arg::Double(count as f64), Arg::Double(epsilon), first];
    match over {
        NormKind::Batch => {
            let mut args = vec![Arg::from(sums), Arg::Uint(channels as u32)];
            args.extend(constants);
            run.items("batch_scales", &args, channels)?;
        }
        NormKind::Groups(groups) => {
            let mut args = group_args(x, sums, groups);
            args.extend(constants);
            run.items("group_scales", &args, x.extent[0] * channels)?;
        }
    }
    Ok(first)
}

/// Sums, samples, channels, and channels of a group.
fn group_args(x: &Tensor, sums: &Tensor, groups: usize) -> Vec<Arg> {
    let channels = x.extent[4];
    let numbers = [x.extent[0], channels, channels / groups.max(1)];
    let numbers = numbers.map(|value| Arg::Uint(value as u32));
    std::iter::once(Arg::from(sums)).chain(numbers).collect()
}

fn forward(
    [x, sums, gamma, beta, y]: [&View; 5],
    constants: Constants,
    tail: &Tail<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let [x, sums, gamma, beta, y] = [x, sums, gamma, beta, y].map(|view| run.tensor(view));
    let scales = scales(&x, &sums, constants, run)?;
    normalize([x, gamma, beta, y], (scales, constants.0), tail, run)
}

fn normalize(
    [x, gamma, beta, y]: [Tensor; 4],
    (scales, over): (Arg, NormKind),
    tail: &Tail<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let channels = x.extent[4];
    let mut last = Epilogue::new(tail, run)?;
    let [x, y, added] = collapse([x, y, last.added.unwrap_or(y)], over.first());
    last.added = last.added.map(|_| added);
    let args = [
        Arg::from(&x),
        Arg::from(&y),
        Arg::Extent(x.raw_extent()),
        scales,
        over.of_samples(),
        Arg::Uint(channels as u32),
        Arg::Ulong(gamma.offset),
        Arg::Ulong(beta.offset),
        last.into(),
    ];
    run.elements("normalize_forward", &args, &x)
}

fn inference(
    of: BatchNormInference<'_>,
    tail: &Tail<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let [x, gamma, beta, y] = [of.x, of.gamma, of.beta, of.y].map(|view| run.tensor(view));
    let (mean, variance) = (run.tensor(of.mean), run.tensor(of.variance));
    let channels = x.extent[4];
    let scales = Arg::Ulong(run.scratch(Dtype::F32, 2 * channels));
    let args = [
        Arg::Ulong(mean.offset),
        Arg::Ulong(variance.offset),
        Arg::Uint(channels as u32),
        Arg::Double(*of.epsilon),
        scales,
    ];
    run.items("running_scales", &args, channels)?;
    normalize([x, gamma, beta, y], (scales, NormKind::Batch), tail, run)
}

fn inference_backward(
    of: BatchNormInferenceBackward<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let [dy, variance, gamma, dx] =
        [of.dy, of.variance, of.gamma, of.dx].map(|view| run.tensor(view));
    let channels = dy.extent[4];
    let factors = Arg::Ulong(run.scratch(Dtype::F32, channels));
    let args = [
        Arg::Ulong(variance.offset),
        Arg::Ulong(gamma.offset),
        Arg::Uint(channels as u32),
        Arg::Double(*of.epsilon),
        factors,
    ];
    run.items("gradient_factors", &args, channels)?;
    let rest = [
        factors,
        Arg::Uint(channels as u32),
        Arg::flag(*of.accumulate),
    ];
    map_from(
        NormKind::Batch.first(),
        "scale_channels",
        [dy, dx],
        &rest,
        run,
    )
}

fn running(of: BatchNormRunning<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let [sums, mean, variance] = [of.sums, of.mean, of.variance].map(|view| run.tensor(view));
    let count = *of.count;
    let channels = mean.extent[4];
    // One element has no unbiased variance; its biased one, 0, stands in.
    let unbiased = count as f64 / (count.max(2) - 1) as f64;
    let args = [
        Arg::from(&sums),
        Arg::Ulong(mean.offset),
        Arg::Ulong(variance.offset),
        Arg::Uint(channels as u32),
        Arg::Double(count as f64),
        Arg::Double(unbiased),
        Arg::Double(*of.momentum),
    ];
    run.items("running_statistics", &args, channels)
}

fn backward_statistics(
    views: [&View; 4],
    constants: Constants,
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let [x, sums, dy, y] = views.map(|view| run.tensor(view));
    let rest = [scales(&x, &sums, constants, run)?, Arg::Uint(0)];
    let sums = channel_sums("gradient_moments", &[x, dy], &rest, false, 2, run)?;
    sums.put(0, &y, accumulate, run)
}

/// Vectors become the rows of sums, or have them added.
fn backward_parameters(
    sums: &View,
    rows: [&View; 2],
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let sums = run.tensor(sums);
    for (row, view) in rows.into_iter().enumerate() {
        let y = run.tensor(view);
        let channels = y.extent[4];
        let args = [
            Arg::from(&sums),
            Arg::Uint(row as u32),
            Arg::Uint(channels as u32),
            Arg::Ulong(y.offset),
            Arg::flag(accumulate),
        ];
        run.items("sums_row", &args, channels)?;
    }
    Ok(())
}

fn backward_data(
    [x, sums, gamma, dy, gradient_sums, dx]: [&View; 6],
    constants: Constants,
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let [x, sums, gamma] = [x, sums, gamma].map(|view| run.tensor(view));
    let [dy, gradient_sums, dx] = [dy, gradient_sums, dx].map(|view| run.tensor(view));
    let scales = scales(&x, &sums, constants, run)?;
    let ((over, count, _), channels) = (constants, x.extent[4]);
    let means = Arg::Ulong(run.scratch(Dtype::F32, 2 * over.sets(&x) * channels));
    let last = [Arg::Double(count as f64), Arg::Ulong(gamma.offset), means];
    match over {
        NormKind::Batch => {
            let mut args = vec![Arg::from(&gradient_sums), Arg::Uint(channels as u32)];
            args.extend(last);
            run.items("batch_gradient_means", &args, channels)?;
        }
        NormKind::Groups(groups) => {
            let mut args = group_args(&x, &gradient_sums, groups);
            args.extend(last);
            run.items("group_gradient_means", &args, x.extent[0] * channels)?;
        }
    }
    let rest = [
        scales,
        means,
        over.of_samples(),
        Arg::Uint(channels as u32),
        Arg::Ulong(gamma.offset),
        Arg::flag(accumulate),
    ];
    map_from(over.first(), "normalize_backward", [x, dy, dx], &rest, run)
}

fn group_backward_statistics(
    of: GroupNormBackwardStatistics<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let [x, sums, dy] = [of.x, of.sums, of.dy].map(|view| run.tensor(view));
    let [dgamma, dbeta] = [of.dgamma, of.dbeta].map(|view| run.tensor(view));
    let constants = (NormKind::Groups(*of.groups), *of.count, *of.epsilon);
    let scales = scales(&x, &sums, constants, run)?;
    let rest = [scales, Arg::Uint(1)];
    let sums = channel_sums("gradient_moments", &[x, dy], &rest, true, 2, run)?;
    if let Some(y) = run.optional(of.gradient_sums.as_ref()) {
        sums.put(0, &y, false, run)?;
    }
    let sums = sums.of_batch();
    sums.put(0, &dbeta, *of.accumulate, run)?;
    sums.put(1, &dgamma, *of.accumulate, run)
}
