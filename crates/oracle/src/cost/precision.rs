//! Mixed precision: what of a program is smaller in bf16 or f16 than the program says.
//!
//! `tf32` changes only the arithmetic rates of convolutions and matrix products. In `bf16` and `f16` the
//! activations of a program, their gradients and messages have two bytes already. Software on the devices of machine
//! files also keeps the copies of weights that layers read in two bytes, beside the weights that the optimizer
//! updates; gradients of weights and their sums, batch-norm statistics and the optimizer stay in f32.
//!
//! Assumes that every weight has its copy all the time.
//! Source: Micikevicius et al., Mixed Precision Training (2018), section 3.1, master copies of weights.

use super::CostError;
use partita_cluster::{LayerPrecision, Machine, Software};
use partita_program::{
    Body, Buffer, Dtype, Family, KernelShape, Program, Role, View, live_at_peak,
};
use partita_run::Footprint;
use partita_space::{Bytes, Rank};

/// Refuses a precision that a machine, as software uses it, lacks, naming those that it has.
///
/// Errors: [`CostError::Precision`].
pub fn check(
    machine: &Machine,
    software: &Software,
    asked: LayerPrecision,
) -> Result<(), CostError> {
    let possible = machine.precisions();
    if possible.contains(&asked) {
        return Ok(());
    }
    let names: Vec<&str> = possible.into_iter().map(LayerPrecision::name).collect();
    let (reason, key) = match &machine.calibration {
        Some(_) => ("; its kernels were measured in f32".to_owned(), None),
        None if software.kernels.gpu.is_some() => (
            format!("; software `{}` computes in f32", software.name),
            None,
        ),
        None => (
            String::new(),
            Some(format!("device.rates.{}", asked.name())),
        ),
    };
    Err(CostError::Precision {
        machine: machine.name.clone(),
        asked: asked.name(),
        possible: names.join(", "),
        reason,
        key,
    })
}

/// The precision of the layers of a program, by costs for this one: measured ones are for the types of the program.
pub(crate) fn of_program(program: &Program, costs: LayerPrecision) -> LayerPrecision {
    match (program.dtype, costs) {
        (Dtype::Bf16, LayerPrecision::F32) => LayerPrecision::Bf16,
        (Dtype::F16, LayerPrecision::F32) => LayerPrecision::F16,
        (Dtype::F32 | Dtype::F64 | Dtype::Bf16 | Dtype::F16 | Dtype::I16, _) => costs,
    }
}

/// Whether layers read a buffer in f32 of the program as a copy of two bytes an element.
fn is_half(buffer: &Buffer) -> bool {
    let is_f32 = match buffer.dtype {
        Dtype::F32 => true,
        Dtype::F64 | Dtype::Bf16 | Dtype::F16 | Dtype::I16 => false,
    };
    is_f32
        && match buffer.role {
            Role::PackedWeights | Role::Gathered | Role::Parameter => true,
            Role::Activation
            | Role::ActivationGradient
            | Role::State
            | Role::Constant
            | Role::Optimizer
            | Role::Average
            | Role::Gradient
            | Role::Staging
            | Role::Statistics
            | Role::Workspace => false,
        }
}

/// Bytes of a view in a message or collective. Parameters are sent as they are updated, in f32.
pub fn transferred(view: &View, buffers: &[Buffer], precision: LayerPrecision) -> Bytes {
    let bytes = view.bytes(buffers);
    let buffer = &buffers[view.buffer.0 as usize];
    if precision.is_half() && buffer.role != Role::Parameter && is_half(buffer) {
        return Bytes(bytes.0 / 2);
    }
    bytes
}

/// The fraction of the bytes that the program says which a kernel reads and writes.
pub fn traffic(shape: &KernelShape<'_>, precision: LayerPrecision) -> f64 {
    if !precision.is_half() || shape.kernel.family() == Family::Update {
        return 1.0;
    }
    let (mut all, mut moved) = (0.0, 0.0);
    for (view, access) in shape.kernel.accesses() {
        let times = u8::from(access.reads()) + u8::from(access.writes());
        let bytes = view.bytes(shape.buffers).0 as f64 * f64::from(times);
        all += bytes;
        let buffer = &shape.buffers[view.buffer.0 as usize];
        moved += if is_half(buffer) { bytes / 2.0 } else { bytes };
    }
    if all > 0.0 { moved / all } else { 1.0 }
}

/// Memory of a rank, as [`Body::memory`].
pub fn memory(body: &Body, precision: LayerPrecision) -> Bytes {
    let whole = body.memory();
    if !precision.is_half() {
        return whole;
    }
    let (mut saved, mut added) = (0, 0);
    for id in live_at_peak(body) {
        let buffer = body.buffer(id);
        match (is_half(buffer), buffer.role) {
            (true, Role::Parameter) => added += buffer.bytes().0 / 2,
            (true, _) => saved += buffer.bytes().0 / 2,
            (false, _) => {}
        }
    }
    Bytes((whole.0 + added).saturating_sub(saved))
}

/// The largest [`memory`] of a rank, and the rank.
pub fn largest(program: &Program, precision: LayerPrecision) -> Option<(Bytes, Rank)> {
    let bodies = program.bodies.iter().zip(program.representatives());
    let all = bodies.map(|(body, rank)| (memory(body, precision), rank));
    all.max_by_key(|&(bytes, _)| bytes)
}

/// Memory of the rank with the largest, by purpose.
pub fn footprint(program: &Program, precision: LayerPrecision) -> Footprint {
    if !precision.is_half() {
        return Footprint::largest(program);
    }
    let Some((_, rank)) = largest(program, precision) else {
        return Footprint::default();
    };
    let full = Footprint::of(program, rank);
    let body = program.body(rank);
    let (mut masters, mut copies) = (0, 0);
    for id in live_at_peak(body) {
        let buffer = body.buffer(id);
        match (is_half(buffer), buffer.role) {
            (true, Role::Parameter) => masters += buffer.bytes().0,
            (true, Role::PackedWeights | Role::Gathered) => copies += buffer.bytes().0,
            (true | false, _) => {}
        }
    }
    Footprint {
        weights: Bytes(full.weights.0 + masters / 2 - copies / 2),
        ..full
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_program::Kernel;

    #[test]
    fn parameters_are_sent_in_f32_and_gathered_ones_halved() {
        let buffer = |role, dtype| Buffer {
            name: "one".to_owned(),
            role,
            dtype,
            dims: [1, 1, 1, 1, 8],
            tensor: None,
            offset: Bytes(0),
        };
        let bytes = |role, dtype, precision| {
            let buffers = [buffer(role, dtype)];
            let view = buffers[0].view(partita_program::BufferId(0));
            transferred(&view, &buffers, precision).0
        };
        for precision in LayerPrecision::ALL {
            let half = if precision.is_half() { 16 } else { 32 };
            assert_eq!(bytes(Role::Activation, Dtype::Bf16, precision), 16);
            assert_eq!(bytes(Role::ActivationGradient, Dtype::F32, precision), 32);
            assert_eq!(bytes(Role::Gathered, Dtype::F32, precision), half);
            assert_eq!(bytes(Role::Gradient, Dtype::F32, precision), 32);
            assert_eq!(bytes(Role::Parameter, Dtype::F32, precision), 32);
            assert_eq!(bytes(Role::Statistics, Dtype::F64, precision), 64);
            assert_eq!(bytes(Role::Staging, Dtype::I16, precision), 16);
        }
    }

    #[test]
    fn kernels_move_half_the_bytes_of_weights() {
        let names = [Role::Gathered, Role::Gradient];
        let buffers = names.map(|role| Buffer {
            name: format!("{role:?}"),
            role,
            dtype: Dtype::F32,
            dims: [1, 1, 1, 1, 8],
            tensor: None,
            offset: Bytes(0),
        });
        let fraction = |buffer, precision| {
            let target = buffers[buffer as usize].view(partita_program::BufferId(buffer));
            let kernel = Kernel::Fill { target, value: 0.0 };
            let shape = KernelShape {
                kernel: &kernel,
                buffers: &buffers,
            };
            traffic(&shape, precision)
        };
        assert_eq!(fraction(0, LayerPrecision::Bf16), 0.5);
        assert_eq!(fraction(0, LayerPrecision::Tf32), 1.0);
        assert_eq!(fraction(1, LayerPrecision::F16), 1.0);
    }
}
