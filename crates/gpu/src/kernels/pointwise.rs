//! Functions of single elements.

use super::{rows, sums};
use crate::arg::Arg;
use crate::device::KernelError;
use crate::epilogue::Epilogue;
use crate::launch::Run;
use crate::tensor::{Tensor, collapse};
use partita_program::fields::Dropout;
use partita_program::fused::Tail;
use partita_program::random::Draws;
use partita_program::{Activation, DropoutMask, Fields, Kernel, View};

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
    match kernel.fields() {
        Fields::LeakyReluForward(of) => {
            let slope = Arg::Float(*of.negative_slope as f32);
            map_views("leaky_relu_forward", [of.x, of.y], &[slope], run)
        }
        Fields::LeakyReluBackward(of) => {
            let slope = Arg::Float(*of.negative_slope as f32);
            let rest = [slope, Arg::flag(*of.accumulate)];
            map_views("leaky_relu_backward", [of.y, of.dy, of.dx], &rest, run)
        }
        Fields::ActivationForward(of) => map_views(
            "activation_forward",
            [of.x, of.y],
            &function_of(*of.function),
            run,
        ),
        Fields::ActivationBackward(of) => {
            let [function, first, second] = function_of(*of.function);
            let rest = [function, first, second, Arg::flag(*of.accumulate)];
            map_views("activation_backward", [of.x, of.dy, of.dx], &rest, run)
        }
        Fields::Add(of) => {
            let last = Epilogue::new(tail, run)?;
            map_views("add", [of.a, of.b, of.y], &[last.into()], run)
        }
        Fields::Multiply(of) => multiply(
            [of.a, of.b, of.y].map(|view| run.tensor(view)),
            *of.accumulate,
            run,
        ),
        Fields::PreluForward(of) => {
            let rest = slopes_of(&run.tensor(of.slopes));
            map_views("prelu_forward", [of.x, of.y], &rest, run)
        }
        Fields::PreluBackwardData(of) => {
            let [first, count] = slopes_of(&run.tensor(of.slopes));
            let rest = [first, count, Arg::flag(*of.accumulate)];
            map_views("prelu_backward_data", [of.x, of.dy, of.dx], &rest, run)
        }
        Fields::ChannelShuffle(of) => {
            let rest = [Arg::Uint(*of.groups as u32), Arg::flag(*of.accumulate)];
            let views = [of.x, of.y].map(|view| run.tensor(view));
            map_from(4, "channel_shuffle", views, &rest, run)
        }
        // It needs no workspace, and measuring one knows no place of a rank.
        Fields::Dropout(_) if run.target.is_none() => Ok(()),
        Fields::Dropout(of) => dropout(of, run),
        _ => panic!("{} is not computed element by element", kernel.name()),
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

fn dropout(of: Dropout<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let (distribution, rate) = (of.distribution, *of.rate);
    let corner = distribution.corner(of.halo_low, &run.position.mesh, &run.position.coord);
    let (x, y) = (run.tensor(of.x), run.tensor(of.y));
    let extent = |all: [usize; 5]| Arg::Extent(Tensor::dense(y.dtype, 0, all).raw_extent());
    // An element is kept if its number in units of 2^-53 is not below this.
    let threshold = (rate * (1u64 << 53) as f64).ceil() as u64;
    for n in 0..y.extent[0] {
        let number = corner[0] + n;
        let sample = run.inputs.samples.get(number);
        let sample = *sample.unwrap_or_else(|| panic!("the step lists no sample {number}"));
        let (x, y) = (x.sample(n), y.sample(n));
        let draws = Draws::new(
            run.inputs.seed,
            run.inputs.epoch,
            sample as u64,
            *of.operation,
        );
        let args = [
            Arg::from(&x),
            Arg::from(&y),
            Arg::Extent(y.raw_extent()),
            extent(distribution.shape),
            extent(corner),
            Arg::Ulong(draws.key()),
            Arg::Int(number_of(*of.mask)),
            Arg::Ulong(threshold),
            Arg::Float((1.0 / (1.0 - rate)) as f32),
            Arg::flag(*of.accumulate),
        ];
        run.elements("dropout", &args, &y)?;
    }
    Ok(())
}
