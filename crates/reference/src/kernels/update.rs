//! Optimizers.

use super::Call;
use crate::values::{Values, each_element, entry};
use partita_program::{Kernel, Optimizer, View};
use partita_run::{KernelTally, RunError};

/// Added to the norm of the gradient before it divides.
const CLIP_EPSILON: f64 = 1e-6;

pub(super) fn execute(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<KernelTally, RunError> {
    match kernel {
        Kernel::SumOfSquares { sources, total } => sum_of_squares(sources, total, call),
        Kernel::Update {
            rule,
            parameter,
            gradient,
            moments,
            clip,
        } => {
            let scale = clip.map_or(1.0, |(total, maximum)| {
                let norm = call.values(&total).get(entry(0)).sqrt();
                (maximum / (norm + CLIP_EPSILON)).min(1.0)
            });
            let state = State {
                parameter: call.values(parameter),
                gradient: call.values(gradient),
                moments: moments.iter().map(|view| call.values(view)).collect(),
                scale,
            };
            let mut worked = match rule {
                Optimizer::Sgd {
                    momentum,
                    weight_decay,
                } => sgd(&state, *momentum, *weight_decay, call)?,
                Optimizer::Adam {
                    beta1,
                    beta2,
                    epsilon,
                    weight_decay,
                } => adam(&state, [*beta1, *beta2], *epsilon, *weight_decay, call)?,
            };
            worked.bytes += clip.map_or(0, |(total, _)| call.values(&total).bytes());
            Ok(worked)
        }
        other => panic!("{} does not update parameters", other.name()),
    }
}

fn sum_of_squares(
    sources: &[View],
    total: &View,
    call: &mut Call<'_, '_>,
) -> Result<KernelTally, RunError> {
    let total = call.values(total);
    let mut worked = KernelTally {
        flops: 0,
        bytes: total.bytes(),
    };
    let mut sum = 0.0;
    for source in sources {
        let source = call.values(source);
        let visits = each_element(source.extent(), call.progress, |i| {
            sum += source.get(i) * source.get(i);
        })?;
        worked.flops += 2 * visits;
        worked.bytes += source.bytes();
    }
    total.set(entry(0), sum);
    Ok(worked)
}

/// A parameter with gradient, moments and scale.
struct State<'m> {
    parameter: Values<'m>,
    gradient: Values<'m>,
    moments: Vec<Values<'m>>,
    /// Scale of the gradient.
    scale: f64,
}

impl State<'_> {
    fn gradient(&self, i: [usize; 5], weight_decay: f64) -> f64 {
        self.scale * self.gradient.get(i) + weight_decay * self.parameter.get(i)
    }

    fn bytes(&self) -> u64 {
        let moments: u64 = self.moments.iter().map(Values::bytes).sum();
        self.gradient.bytes() + 2 * self.parameter.bytes() + 2 * moments
    }
}

/// As `torch.optim.SGD` without dampening or Nesterov; a velocity of zero makes the first step the
/// plain gradient.
fn sgd(
    state: &State<'_>,
    momentum: f64,
    weight_decay: f64,
    call: &mut Call<'_, '_>,
) -> Result<KernelTally, RunError> {
    assert!(
        momentum == 0.0 || state.moments.len() == 1,
        "momentum needs one velocity, not {}",
        state.moments.len()
    );
    let rate = call.inputs.learning_rate;
    let visits = each_element(state.parameter.extent(), call.progress, |i| {
        let mut step = state.gradient(i, weight_decay);
        if let Some(velocity) = state.moments.first() {
            step += momentum * velocity.get(i);
            velocity.set(i, step);
        }
        state.parameter.set(i, state.parameter.get(i) - rate * step);
    })?;
    Ok(KernelTally {
        flops: 6 * visits,
        bytes: state.bytes(),
    })
}

fn adam(
    state: &State<'_>,
    [beta1, beta2]: [f64; 2],
    epsilon: f64,
    weight_decay: f64,
    call: &mut Call<'_, '_>,
) -> Result<KernelTally, RunError> {
    let [first, second] = state.moments.as_slice() else {
        panic!("Adam needs two moments, not {}", state.moments.len());
    };
    let step = call.inputs.step as f64;
    let rate = call.inputs.learning_rate / (1.0 - beta1.powf(step));
    let root = (1.0 - beta2.powf(step)).sqrt();
    let visits = each_element(state.parameter.extent(), call.progress, |i| {
        let gradient = state.gradient(i, weight_decay);
        let m = beta1 * first.get(i) + (1.0 - beta1) * gradient;
        let v = beta2 * second.get(i) + (1.0 - beta2) * gradient * gradient;
        first.set(i, m);
        second.set(i, v);
        let moved = rate * m / (v.sqrt() / root + epsilon);
        state.parameter.set(i, state.parameter.get(i) - moved);
    })?;
    Ok(KernelTally {
        flops: 14 * visits,
        bytes: state.bytes(),
    })
}
