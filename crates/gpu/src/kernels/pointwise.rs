//! Functions of single elements.

use super::{rows, sums};
use crate::arg::Arg;
use crate::device::KernelError;
use crate::epilogue::Epilogue;
use crate::launch::Run;
use crate::tensor::{Tensor, collapse};
use partita_program::fused::Tail;
use partita_program::random::Draws;
use partita_program::{Activation, DropoutMask, Kernel, View};

pub(super) fn execute(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    if let Some(done) = rows::over_channels(kernel, run) {
        return done;
    }
    if let Some(done) = sums::over_positions(kernel, run) {
        return done;
    }
    match kernel {
        Kernel::LeakyReluForward {
            x,
            y,
            negative_slope,
        } => {
            let slope = Arg::Float(*negative_slope as f32);
            map_views("leaky_relu_forward", [x, y], &[slope], run)
        }
        Kernel::LeakyReluBackward {
            y,
            dy,
            dx,
            negative_slope,
            accumulate,
        } => {
            let rest = [Arg::Float(*negative_slope as f32), Arg::flag(*accumulate)];
            map_views("leaky_relu_backward", [y, dy, dx], &rest, run)
        }
        Kernel::ActivationForward { function, x, y } => {
            map_views("activation_forward", [x, y], &function_of(*function), run)
        }
        Kernel::ActivationBackward {
            function,
            x,
            dy,
            dx,
            accumulate,
        } => {
            let [function, first, second] = function_of(*function);
            let rest = [function, first, second, Arg::flag(*accumulate)];
            map_views("activation_backward", [x, dy, dx], &rest, run)
        }
        Kernel::Add { a, b, y } => {
            let last = Epilogue::new(tail, run)?;
            map_views("add", [a, b, y], &[last.into()], run)
        }
        Kernel::Multiply {
            a,
            b,
            y,
            accumulate,
        } => multiply([a, b, y].map(|view| run.tensor(view)), *accumulate, run),
        Kernel::PreluForward { .. } | Kernel::PreluBackwardData { .. } => prelu(kernel, run),
        Kernel::ChannelShuffle {
            x,
            y,
            groups,
            accumulate,
        } => {
            let rest = [Arg::Uint(*groups as u32), Arg::flag(*accumulate)];
            map_from(
                4,
                "channel_shuffle",
                [x, y].map(|view| run.tensor(view)),
                &rest,
                run,
            )
        }
        Kernel::Dropout { .. } => dropout(kernel, run),
        other => panic!("{} is not computed element by element", other.name()),
    }
}

/// As [`map`], of views.
fn map_views<const N: usize>(
    name: &'static str,
    of: [&View; N],
    rest: &[Arg],
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    map(name, of.map(|view| run.tensor(view)), rest, run)
}

/// A kernel on elements at one place of these boxes.
pub(super) fn map<const N: usize>(
    name: &'static str,
    of: [Tensor; N],
    rest: &[Arg],
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    map_from(0, name, of, rest, run)
}

/// As [`map`]; dims before `first` keep their indices.
pub(super) fn map_from<const N: usize>(
    first: usize,
    name: &'static str,
    of: [Tensor; N],
    rest: &[Arg],
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let of = collapse(of, first);
    let mut args: Vec<Arg> = of.iter().map(Arg::from).collect();
    args.push(Arg::Extent(of[0].raw_extent()));
    args.extend_from_slice(rest);
    run.elements(name, &args, &of[0])
}

/// The number of a function in the kernels, and its constants.
fn function_of(function: Activation) -> [Arg; 3] {
    let (number, first, second) = match function {
        Activation::Gelu => (0, 0.0, 0.0),
        Activation::Silu => (1, 0.0, 0.0),
        Activation::Sigmoid => (2, 0.0, 0.0),
        Activation::Tanh => (3, 0.0, 0.0),
        Activation::Elu { alpha } => (4, alpha, 0.0),
        Activation::GeluTanh => (5, 0.0, 0.0),
        Activation::Mish => (6, 0.0, 0.0),
        Activation::Softplus { beta } => (7, beta, 0.0),
        Activation::Hardtanh { low, high } => (8, low, high),
        Activation::HardSigmoid => (9, 0.0, 0.0),
        Activation::HardSwish => (10, 0.0, 0.0),
        Activation::Affine { scale, shift } => (11, scale, shift),
        Activation::Clamp { low, high } => (12, low, high),
    };
    let constant = |value: f64| Arg::Float(value as f32);
    [Arg::Int(number), constant(first), constant(second)]
}

fn prelu(kernel: &Kernel, run: &mut Run<'_>) -> Result<(), KernelError> {
    match kernel {
        Kernel::PreluForward { x, slopes, y } => {
            let rest = slopes_of(&run.tensor(slopes));
            map_views("prelu_forward", [x, y], &rest, run)
        }
        Kernel::PreluBackwardData {
            x,
            slopes,
            dy,
            dx,
            accumulate,
        } => {
            let [first, count] = slopes_of(&run.tensor(slopes));
            let rest = [first, count, Arg::flag(*accumulate)];
            map_views("prelu_backward_data", [x, dy, dx], &rest, run)
        }
        other => panic!("{} has no slopes", other.name()),
    }
}

fn slopes_of(slopes: &Tensor) -> [Arg; 2] {
    [
        Arg::Ulong(slopes.offset),
        Arg::Uint(slopes.extent[4] as u32),
    ]
}

fn multiply(
    [a, b, y]: [Tensor; 3],
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    if b.extent == y.extent {
        return map(
            "multiply",
            [a, b, y],
            &[Arg::Uint(1), Arg::flag(accumulate)],
            run,
        );
    }
    // One position, or one channel, is read for all.
    let mut b = b;
    for dim in 0..4 {
        if b.extent[dim] == 1 {
            b.pitch[dim] = 0;
        }
    }
    let pitch = u32::from(b.extent[4] > 1);
    let args = [
        Arg::from(&a),
        Arg::from(&b),
        Arg::from(&y),
        Arg::Extent(y.raw_extent()),
        Arg::Uint(pitch),
        Arg::flag(accumulate),
    ];
    run.elements("multiply", &args, &y)
}

/// The number of a mask in the kernel.
fn number_of(mask: DropoutMask) -> i32 {
    match mask {
        DropoutMask::Element => 0,
        DropoutMask::Channel => 1,
        DropoutMask::Sample => 2,
    }
}

fn dropout(kernel: &Kernel, run: &mut Run<'_>) -> Result<(), KernelError> {
    let Kernel::Dropout {
        x,
        y,
        rate,
        mask,
        operation,
        distribution,
        halo_low,
        accumulate,
    } = kernel
    else {
        panic!("{} is no dropout", kernel.name());
    };
    if run.target.is_none() {
        return Ok(());
    }
    let corner = distribution.corner(halo_low, &run.position.mesh, &run.position.coord);
    let (x, y) = (run.tensor(x), run.tensor(y));
    let extent = |of: [usize; 5]| Arg::Extent(Tensor::dense(y.dtype, 0, of).raw_extent());
    // An element is kept if its number in units of 2^-53 is not below this.
    let threshold = (rate * (1u64 << 53) as f64).ceil() as u64;
    for n in 0..y.extent[0] {
        let number = corner[0] + n;
        let sample = run.inputs.samples.get(number);
        let sample = *sample.unwrap_or_else(|| panic!("the step lists no sample {number}"));
        let (x, y) = (x.sample(n), y.sample(n));
        let draws = Draws::new(run.inputs.seed, run.inputs.epoch, sample as u64, *operation);
        let args = [
            Arg::from(&x),
            Arg::from(&y),
            Arg::Extent(y.raw_extent()),
            extent(distribution.shape),
            extent(corner),
            Arg::Ulong(draws.key()),
            Arg::Int(number_of(*mask)),
            Arg::Ulong(threshold),
            Arg::Float((1.0 / (1.0 - rate)) as f32),
            Arg::flag(*accumulate),
        ];
        run.elements("dropout", &args, &y)?;
    }
    Ok(())
}
