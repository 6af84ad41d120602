//! Finds the task of a step with which values that are not finite begin.

use crate::{Inputs, Memory};
use half::{bf16, f16};
use partita_program::{Access, Dtype, Kernel, Phase, Role, Task, View};
use partita_space::Rank;
use serde::{Deserialize, Serialize};

/// Where a value that is infinite or NaN comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotFiniteOrigin {
    /// The rank.
    pub rank: Rank,
    /// Training step, from 1.
    pub step: u64,
    /// The layer, or the parameter of an update.
    pub layer: String,
    /// Part of the step.
    pub phase: Phase,
    /// The kernel.
    pub kernel: String,
    /// The buffer that holds the value.
    pub buffer: String,
    /// The first such value, as text: JSON has no infinities.
    pub value: String,
    /// Whether all that the kernel read was finite. If not, it is the first kernel that met such a value, which came
    /// with the samples or with a message.
    pub is_first: bool,
}

/// Checks what the kernels of a rank read and write. Costs about as much time as reading all of it from memory twice.
#[derive(Debug, Default)]
pub struct FiniteCheck {
    /// The first kernel with finite inputs and an output that is not.
    origin: Option<NotFiniteOrigin>,
    /// The first kernel with an input that is not.
    met: Option<NotFiniteOrigin>,
}

impl FiniteCheck {
    /// Where the values began on this rank, as far as it is known.
    pub fn origin(self) -> Option<NotFiniteOrigin> {
        self.origin.or(self.met)
    }

    /// Whether the rest need not be checked.
    pub(crate) fn is_done(&self) -> bool {
        self.origin.is_some()
    }

    /// The first view that a kernel reads, or writes, with a value that is not finite. Gradients that are scaled may be
    /// so, and are not looked at.
    pub(crate) fn find(
        &self,
        (kernel, inputs): (&Kernel, &Inputs),
        memory: &Memory<'_>,
        is_touched: fn(Access) -> bool,
    ) -> Option<(View, f64)> {
        let touched = kernel.accesses().into_iter();
        let is_of_interest = |view: &View| {
            let role = memory.body().buffer(view.buffer).role;
            inputs.loss_scale.is_none() || is_of_forward_pass(role)
        };
        let mut views =
            touched.filter(|(view, access)| is_touched(*access) && is_of_interest(view));
        views.find_map(|(view, _)| Some((view, not_finite(&view, memory)?)))
    }

    /// Notes what a kernel read and wrote.
    pub(crate) fn note(
        &mut self,
        (rank, step): (Rank, u64),
        task: &Task,
        memory: &Memory<'_>,
        read: Option<(View, f64)>,
        written: Option<(View, f64)>,
    ) {
        let is_first = read.is_none();
        let Some((view, value)) = read.or(written) else {
            return;
        };
        let known = if is_first {
            &mut self.origin
        } else {
            &mut self.met
        };
        let buffer = &memory.body().buffer(view.buffer).name;
        // One update may take all parameters.
        let layer = match task.origin.phase {
            Phase::Update => buffer,
            Phase::Load | Phase::Forward | Phase::Backward | Phase::Reduce | Phase::Report => {
                &task.origin.layer
            }
        };
        known.get_or_insert_with(|| NotFiniteOrigin {
            rank,
            step,
            layer: layer.clone(),
            phase: task.origin.phase,
            kernel: task.work.name().to_owned(),
            buffer: buffer.clone(),
            value: value.to_string(),
            is_first,
        });
    }
}

/// Whether the forward pass and updates make the values, but the backward pass does not.
fn is_of_forward_pass(role: Role) -> bool {
    match role {
        Role::Parameter
        | Role::State
        | Role::Constant
        | Role::Optimizer
        | Role::Average
        | Role::Activation
        | Role::PackedWeights
        | Role::Gathered
        | Role::Staging => true,
        Role::ActivationGradient | Role::Gradient | Role::Statistics | Role::Workspace => false,
    }
}

/// The first value of a view that is not finite.
fn not_finite(view: &View, memory: &Memory<'_>) -> Option<f64> {
    match memory.body().buffer(view.buffer).dtype {
        Dtype::F32 => {
            let found = memory.find::<f32>(view, |value| !value.is_finite());
            found.map(f64::from)
        }
        Dtype::F64 => memory.find::<f64>(view, |value| !value.is_finite()),
        Dtype::Bf16 => {
            let found = memory.find::<bf16>(view, |value| !value.is_finite());
            found.map(f64::from)
        }
        Dtype::F16 => {
            let found = memory.find::<f16>(view, |value| !value.is_finite());
            found.map(f64::from)
        }
        Dtype::I16 => None,
    }
}
