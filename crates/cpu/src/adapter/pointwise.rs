//! Fills, copies, imports, additions and activations of programs on the kernels of this crate.

use super::native::Native;
use super::operand::{AnyBlock, dense};
use super::{Run, dropout, prelu, product};
use crate::elementwise::activation::{
    Affine, Clamp, Elu, Function, Gelu, GeluTanh, HardSigmoid, HardSwish, Hardtanh, Mish, Sigmoid,
    Silu, Softplus, Tanh, activation_backward, activation_forward,
};
use crate::elementwise::shuffle::channel_shuffle;
use crate::elementwise::{
    Activation, activate, activate_backward, activate_backward_in_place, activate_in_place, add,
};
use crate::grid::{Call, Canceled, View, ViewMut, Work};
use crate::image::import::{Planes, Transform, import};
use half::{bf16, f16};
use partita_program::fused::Tail;
use partita_program::{Activation as Smooth, Buffer, Dtype, Fields, Kernel, View as ProgramView};
use partita_run::{Element, RunError};
use partita_space::{Coord, Mesh};
use std::ops::AddAssign;

pub(super) fn execute(
    kernel: &Kernel,
    (mesh, coord): (&Mesh, &Coord),
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::Fill(of) => fill_box(of.target, *of.value, run),
        Fields::Copy(of) => copy(of.source, of.target, *of.accumulate, run),
        Fields::Import(of) => import_samples(of.source, of.target, *of.transform, run),
        Fields::LeakyReluForward(of) => {
            activate_box(of.x, of.y, activation(*of.negative_slope), run)
        }
        Fields::LeakyReluBackward(of) if of.dx == of.dy && *of.accumulate => {
            add_to_itself([of.y, of.dy], *of.negative_slope, run)
        }
        Fields::LeakyReluBackward(of) => {
            let kind = activation(*of.negative_slope);
            activate_back([of.y, of.dy, of.dx], kind, *of.accumulate, run)
        }
        Fields::ActivationForward(of) => by_element(*of.function, kernel, run),
        Fields::ActivationBackward(of) => by_element(*of.function, kernel, run),
        Fields::ChannelShuffle(of) => {
            let (x, mut y, adds) = (
                run.input(of.x),
                run.result(of.y, *of.accumulate),
                *of.accumulate,
            );
            run.flops(|call| channel_shuffle(call, x.view(), y.view(), *of.groups, adds))
        }
        Fields::Dropout(of) => dropout::execute(of, mesh, coord, run),
        Fields::Multiply(_) | Fields::MultiplySum(_) | Fields::MultiplyChannelSum(_) => {
            product::execute(kernel, run)
        }
        Fields::Add(_) => sum(kernel, &Tail::default(), run),
        Fields::PreluForward(_)
        | Fields::PreluBackwardData(_)
        | Fields::PreluBackwardSlopes(_)
        | Fields::SoftmaxForward(_)
        | Fields::SoftmaxBackward(_) => prelu::execute(kernel, run),
        _ => panic!("{} is not computed element by element", kernel.name()),
    }
}

fn by_element(function: Smooth, kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let flops = function.flops();
    match function {
        Smooth::Gelu => smooth((Gelu, flops), kernel, run),
        Smooth::Silu => smooth((Silu, flops), kernel, run),
        Smooth::Sigmoid => smooth((Sigmoid, flops), kernel, run),
        Smooth::Tanh => smooth((Tanh, flops), kernel, run),
        Smooth::Elu { alpha } => {
            let alpha = alpha as f32;
            smooth((Elu { alpha }, flops), kernel, run)
        }
        Smooth::GeluTanh => smooth((GeluTanh, flops), kernel, run),
        Smooth::Mish => smooth((Mish, flops), kernel, run),
        Smooth::Softplus { beta } => {
            let beta = beta as f32;
            smooth((Softplus { beta }, flops), kernel, run)
        }
        Smooth::Hardtanh { low, high } => {
            let (low, high) = (low as f32, high as f32);
            smooth((Hardtanh { low, high }, flops), kernel, run)
        }
        Smooth::Clamp { low, high } => {
            let (low, high) = (low as f32, high as f32);
            smooth((Clamp { low, high }, flops), kernel, run)
        }
        Smooth::HardSigmoid => smooth((HardSigmoid, flops), kernel, run),
        Smooth::HardSwish => smooth((HardSwish, flops), kernel, run),
        Smooth::Affine { scale, shift } => {
            let (scale, shift) = (scale as f32, shift as f32);
            smooth((Affine { scale, shift }, flops), kernel, run)
        }
    }
}

fn smooth<F: Function>(
    (function, flops): (F, [u64; 2]),
    kernel: &Kernel,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::ActivationForward(of) => {
            let (x, mut y) = (run.input(of.x), run.output(of.y));
            run.flops(|call| activation_forward(call, (function, flops[0]), x.view(), y.view()))
        }
        Fields::ActivationBackward(of) => {
            let (x, dy, adds) = (run.input(of.x), run.input(of.dy), *of.accumulate);
            let mut dx = run.result(of.dx, adds);
            run.flops(|call| {
                let function = (function, flops[1]);
                activation_backward(call, function, x.view(), dy.view(), dx.view(), adds)
            })
        }
        _ => panic!("{} is no activation", kernel.name()),
    }
}

/// The sum of two boxes, and what follows on it.
pub(super) fn sum(
    kernel: &Kernel,
    tail: &Tail<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let Kernel::Add { a, b, y } = kernel else {
        panic!("{} is no sum", kernel.name());
    };
    let slope = tail.slope.map(|slope| slope as f32);
    let mut sums = tail
        .sums
        .map(|sums| (run.totals(sums.into, sums.accumulate), sums.accumulate));
    let (a, b, mut y) = (run.input(a), run.input(b), run.output(y));
    run.flops(|call| {
        let sums = sums.as_mut().map(|(sums, adds)| (sums.data_mut(), *adds));
        add(call, a.view(), b.view(), y.view(), slope, sums)
    })
}

fn activation(negative_slope: f64) -> Activation {
    if negative_slope == 0.0 {
        Activation::Relu
    } else {
        Activation::LeakyRelu {
            slope: negative_slope as f32,
        }
    }
}

fn fill_box(target: &ProgramView, value: f64, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match run.memory.body().buffer(target.buffer).dtype {
        Dtype::F32 => fill_view::<f32>(target, value, run)?,
        Dtype::F64 => fill_plainly(target, value, run),
        Dtype::Bf16 => fill_view::<bf16>(target, value, run)?,
        Dtype::F16 => fill_plainly(target, f16::from_f64(value), run),
        Dtype::I16 => fill_plainly(target, value as i16, run),
    }
    Ok(0)
}

fn fill_view<E: Native>(
    target: &ProgramView,
    value: f64,
    run: &mut Run<'_, '_>,
) -> Result<(), RunError> {
    let mut target = run.output_of::<E>(target, false);
    run.compute(|call| E::fill(call, value, target.view()))?;
    Ok(())
}

fn fill_plainly<T: Element>(target: &ProgramView, value: T, run: &Run<'_, '_>) {
    let target = run.memory.cells::<T>(target);
    let mut index = Odometer::new(target.extent());
    let count: usize = target.extent().iter().product();
    for _ in 0..count {
        target.set(index.next(), value);
    }
    run.count((count * size_of::<T>()) as u64);
}

/// The indices of a box in memory order.
struct Odometer {
    extent: [usize; 5],
    index: [usize; 5],
}

impl Odometer {
    fn new(extent: [usize; 5]) -> Self {
        Self {
            extent,
            index: [0; 5],
        }
    }

    fn next(&mut self) -> [usize; 5] {
        let here = self.index;
        for dim in (0..5).rev() {
            self.index[dim] += 1;
            if self.index[dim] < self.extent[dim] {
                break;
            }
            self.index[dim] = 0;
        }
        here
    }
}

fn copy(
    source: &ProgramView,
    target: &ProgramView,
    accumulate: bool,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(
        source.volume(),
        target.volume(),
        "{source} and {target} have one volume"
    );
    match run.memory.body().buffer(target.buffer).dtype {
        Dtype::F32 => copy_boxes::<f32>(source, target, accumulate, run)?,
        Dtype::F64 => copy_plainly::<f64>(source, target, accumulate, run),
        Dtype::Bf16 => copy_boxes::<bf16>(source, target, accumulate, run)?,
        Dtype::F16 => copy_plainly::<f16>(source, target, accumulate, run),
        Dtype::I16 => copy_plainly::<i16>(source, target, accumulate, run),
    }
    Ok(if accumulate {
        source.volume() as u64
    } else {
        0
    })
}

fn count_copy<T>(source: &ProgramView, accumulate: bool, run: &Run<'_, '_>) {
    let bytes = (source.volume() * size_of::<T>()) as u64;
    run.count(bytes * (2 + u64::from(accumulate)));
}

/// Statistics and staged samples, which are small or rarely copied, and f16, for which the processor has no kernels of
/// its own.
fn copy_plainly<T: Element + AddAssign>(
    source: &ProgramView,
    target: &ProgramView,
    accumulate: bool,
    run: &Run<'_, '_>,
) {
    count_copy::<T>(source, accumulate, run);
    if overlap(source, target) {
        // No program has it: only then is there need of a copy in between.
        let mut packed = Vec::<T>::new();
        run.memory.pack(source, &mut packed);
        run.memory.unpack(target, &packed, accumulate);
        return;
    }
    let (from, to) = (run.memory.cells::<T>(source), run.memory.cells::<T>(target));
    let (mut there, mut here) = (Odometer::new(from.extent()), Odometer::new(to.extent()));
    for _ in 0..source.volume() {
        let (value, at) = (from.get(there.next()), here.next());
        let mut sum = if accumulate { to.get(at) } else { value };
        if accumulate {
            sum += value;
        }
        to.set(at, sum);
    }
}

fn overlap(a: &ProgramView, b: &ProgramView) -> bool {
    let meet = |dim: usize| {
        a.start[dim] < b.start[dim] + b.extent[dim] && b.start[dim] < a.start[dim] + a.extent[dim]
    };
    a.buffer == b.buffer && (0..5).all(meet)
}

/// Methods to copy activations.
pub(super) enum Route {
    /// Box to box.
    Boxes,
    /// Both are contiguous, so that their shapes do not matter.
    Flat,
    /// Through the workspace: from a box of another shape, or of the same buffer, where one cannot be
    /// read while the other is written.
    Packed,
}

impl Route {
    pub(super) fn of(source: &ProgramView, target: &ProgramView, buffers: &[Buffer]) -> Self {
        let flat = |view: &ProgramView| {
            let pitch = buffers[view.buffer.0 as usize].pitches();
            let mut size = 1;
            (0..5).rev().all(|dim| {
                let joined = view.extent[dim] <= 1 || pitch[dim] == size;
                size *= view.extent[dim];
                joined
            })
        };
        if source.buffer == target.buffer {
            Self::Packed
        } else if source.extent == target.extent {
            Self::Boxes
        } else if flat(source) && flat(target) {
            Self::Flat
        } else {
            Self::Packed
        }
    }
}

fn copy_boxes<E: Native>(
    source: &ProgramView,
    target: &ProgramView,
    adds: bool,
    run: &mut Run<'_, '_>,
) -> Result<(), RunError> {
    let memory = run.memory;
    match Route::of(source, target, &memory.body().buffers) {
        Route::Boxes => {
            let (from, mut to) = (run.input_of::<E>(source), run.output_of(target, adds));
            run.compute(|call| E::move_to(call, from.view(), to.view(), adds))?;
        }
        Route::Flat => {
            let (from, mut to) = (run.input_of::<E>(source), run.output_of(target, adds));
            let grid = dense(source.extent);
            run.compute(|call| {
                let to = ViewMut::new(to.block().data_mut(), &grid);
                E::move_to(call, View::new(from.block().data(), &grid), to, adds)
            })?;
        }
        Route::Packed => {
            count_copy::<E>(source, adds, run);
            let (from, to) = (dense(source.extent), dense(target.extent));
            run.compute(|call| {
                // SAFETY: every bit pattern is an element.
                let (_, packed, _) = unsafe { call.scratch.align_to_mut::<E>() };
                let packed = &mut packed[..from.elements()];
                let mut call = Call {
                    team: &mut *call.team,
                    scratch: &mut [],
                    progress: &mut *call.progress,
                };
                let source = super::Input::new(memory.read::<E>(source));
                let to_packed = ViewMut::new(packed, &from);
                E::move_to(&mut call, source.view(), to_packed, false)?;
                drop(source);
                let mut target = super::Output::new(memory.write::<E>(target));
                E::move_to(&mut call, View::new(packed, &to), target.view(), adds)
            })?;
        }
    }
    Ok(())
}

fn import_samples(
    source: &ProgramView,
    target: &ProgramView,
    transform: partita_program::Transform,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let [n, c, d, h, w] = source.extent;
    assert_eq!([n, d, h, w, c], target.extent, "{source} fills {target}");
    let mut y = run.output(target);
    let stored = run.any(source);
    let narrow = match transform {
        partita_program::Transform::Identity => Transform::Identity,
        partita_program::Transform::Scale { factor } => Transform::Scale(factor as f32),
        partita_program::Transform::LogOnePlus => Transform::Log1p,
    };
    let planes = |pitch: [usize; 5]| [pitch[0], pitch[1], pitch[2], pitch[3]];
    let mut from_planes = |data: Planes, pitch: [usize; 5]| -> Result<Work, Canceled> {
        let mut call = Call {
            team: &mut *run.team,
            scratch: &mut [],
            progress: &mut *run.progress,
        };
        import(&mut call, data, planes(pitch), narrow, y.view())
    };
    match &stored {
        AnyBlock::F32(x) => from_planes(Planes::F32(x.data()), x.pitch).map(|work| work.flops),
        AnyBlock::I16(x) => from_planes(Planes::I16(x.data()), x.pitch).map(|work| work.flops),
        AnyBlock::F64(_) | AnyBlock::Bf16(_) | AnyBlock::F16(_) => {
            Ok(import_plainly(&stored, &mut y, transform, run)?)
        }
    }
    .map_err(|Canceled| RunError::Cancelled)
}

/// Samples in f64 come from tests alone.
fn import_plainly(
    stored: &AnyBlock<'_>,
    y: &mut super::Output<'_>,
    transform: partita_program::Transform,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let block = y.block();
    let [samples, depth, height, width, channels] = block.extent;
    let mut flops = 0;
    for row in 0..samples * depth * height {
        run.go_on()?;
        let (h, rest) = (row % height, row / height);
        let (d, n) = (rest % depth, rest / depth);
        for w in 0..width {
            let at = block.at([n, d, h, w, 0]);
            for (c, y) in block.data_mut()[at..at + channels].iter_mut().enumerate() {
                let x = stored.get([n, c, d, h, w]);
                *y = match transform {
                    partita_program::Transform::Identity => x,
                    partita_program::Transform::Scale { factor } => factor * x,
                    partita_program::Transform::LogOnePlus => x.ln_1p(),
                } as f32;
                flops += 1;
            }
        }
    }
    Ok(flops)
}

fn activate_box(
    x: &ProgramView,
    y: &ProgramView,
    kind: Activation,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let mut target = run.result(y, x == y);
    if x == y {
        return run.flops(|call| activate_in_place(call, kind, target.view()));
    }
    let x = run.input(x);
    run.flops(|call| activate(call, kind, x.view(), target.view()))
}

fn activate_back(
    [y, dy, dx]: [&ProgramView; 3],
    kind: Activation,
    accumulate: bool,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (y, mut target) = (run.input(y), run.result(dx, accumulate || dx == dy));
    if dx == dy {
        let (y, dx) = (y.view(), target.view());
        return run.flops(|call| activate_backward_in_place(call, kind, y, dx));
    }
    let dy = run.input(dy);
    run.flops(|call| activate_backward(call, kind, y.view(), dy.view(), target.view(), accumulate))
}

/// dx += dx * f'(y), which no training step needs.
fn add_to_itself(
    [y, dx]: [&ProgramView; 2],
    slope: f64,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(y.extent, dx.extent, "{y} and {dx} have one shape");
    let (y, dx) = (run.memory.cells::<f32>(y), run.memory.cells::<f32>(dx));
    let [samples, depth, height, width, channels] = dx.extent();
    let mut elements = 0;
    for row in 0..samples * depth * height {
        run.go_on()?;
        let (h, rest) = (row % height, row / height);
        for at in 0..width * channels {
            let i = [rest / depth, rest % depth, h, at / channels, at % channels];
            let factor = if y.get(i) > 0.0 { 1.0 } else { slope as f32 };
            dx.set(i, dx.get(i) + factor * dx.get(i));
            elements += 1;
        }
    }
    run.count(4 * size_of::<f32>() as u64 * elements);
    Ok(elements)
}
