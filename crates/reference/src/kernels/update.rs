//! Optimizers, and averages of parameters.

use super::Call;
use crate::values::{Values, each_element, entry};
use partita_program::{Fields, Kernel, Optimizer, View};
use partita_run::RunError;

pub(super) fn execute(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::SumOfSquares(of) => sum_of_squares(of.sources, of.total, call),
        Fields::UpdateNorms(of) => {
            // The direction of LAMB replaces the gradient.
            let is_lamb = matches!(of.rule, Optimizer::Lamb { .. });
            let views = (
                (of.parameter, false),
                (of.gradient, is_lamb),
                of.moments.as_slice(),
            );
            let Some(state) = State::new(views, of.clip.as_ref(), call) else {
                return skipped_norms((of.rule, of.gradient, of.norms), kernel, call);
            };
            let norms = call.values(of.norms);
            update_norms(of.rule, &state, &norms, call)
        }
        Fields::Update(of) => {
            let views = (
                (of.parameter, true),
                (of.gradient, false),
                of.moments.as_slice(),
            );
            let Some(state) = State::new(views, of.clip.as_ref(), call) else {
                return Ok(call.skipped(kernel));
            };
            let norms = of.norms.map(|norms| call.values(&norms));
            let ratio = norms.as_ref().map_or(1.0, |norms| {
                let [parameter, other] = [0, 1].map(|at| norms.get([0, 0, 0, 0, at]).sqrt());
                trust_ratio(of.rule, parameter, other)
            });
            update(of.rule, &state, ratio, call)
        }
        Fields::Average(of) => {
            let total = of.total.map(|total| call.values(&total));
            if let Some(total) = &total
                && !call.inputs.updates(total.get(entry(0)))
            {
                return Ok(call.skipped(kernel));
            }
            let (parameter, average) = (call.values(of.parameter), call.result(of.average, true));
            let visits = each_element(average.extent(), call.progress, |i| {
                let before = average.get(i);
                let moved = (1.0 - of.decay) * (parameter.get(i) - before);
                average.set(i, before + moved);
            })?;
            Ok(3 * visits)
        }
        _ => panic!("{} does not update parameters", kernel.name()),
    }
}

fn update(
    rule: &Optimizer,
    state: &State<'_>,
    ratio: f64,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    match *rule {
        Optimizer::Sgd {
            momentum,
            weight_decay,
        } => sgd(state, (momentum, false), weight_decay, call),
        Optimizer::Nesterov {
            momentum,
            weight_decay,
        } => sgd(state, (momentum, true), weight_decay, call),
        Optimizer::Adam {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => adam(state, [beta1, beta2], epsilon, (weight_decay, false), call),
        Optimizer::AdamW {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => adam(state, [beta1, beta2], epsilon, (weight_decay, true), call),
        Optimizer::Lars {
            momentum,
            weight_decay,
            ..
        } => lars(state, momentum, weight_decay, ratio, call),
        Optimizer::Lamb { .. } => along(state, ratio, call),
    }
}

/// By how much LARS and LAMB scale an update. `other` is the norm of the gradient or of the direction.
fn trust_ratio(rule: &Optimizer, parameter: f64, other: f64) -> f64 {
    if parameter <= 0.0 || other <= 0.0 {
        return 1.0;
    }
    match *rule {
        Optimizer::Lars {
            weight_decay,
            trust,
            epsilon,
            ..
        } => trust * parameter / (other + weight_decay * parameter + epsilon),
        Optimizer::Lamb { .. } => parameter / other,
        Optimizer::Sgd { .. }
        | Optimizer::Nesterov { .. }
        | Optimizer::Adam { .. }
        | Optimizer::AdamW { .. } => 1.0,
    }
}

/// Sums of squares; for LAMB the gradient becomes the direction first.
fn update_norms(
    rule: &Optimizer,
    state: &State<'_>,
    norms: &Values<'_>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (mut flops, mut scale) = (0, state.scale);
    if let Optimizer::Lamb {
        beta1,
        beta2,
        epsilon,
        weight_decay,
    } = *rule
    {
        flops = direction(state, [beta1, beta2], epsilon, weight_decay, call)?;
        scale = 1.0;
    }
    let mut sums = [0.0; 2];
    let visits = each_element(state.parameter.extent(), call.progress, |i| {
        sums[0] += state.parameter.get(i).powi(2);
        sums[1] += (scale * state.gradient.get(i)).powi(2);
    })?;
    for (at, sum) in sums.into_iter().enumerate() {
        norms.set([0, 0, 0, 0, at], sum);
    }
    flops += 4 * visits;
    Ok(flops)
}

/// Of an update that leaves everything as it is: without a direction LAMB does not move.
fn skipped_norms(
    (rule, gradient, norms): (&Optimizer, &View, &View),
    kernel: &Kernel,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (gradient, norms) = (call.values(gradient), call.values(norms));
    if let Optimizer::Lamb { .. } = rule {
        each_element(gradient.extent(), call.progress, |i| gradient.set(i, 0.0))?;
    }
    for at in 0..2 {
        norms.set([0, 0, 0, 0, at], 0.0);
    }
    Ok(call.skipped(kernel))
}

fn sum_of_squares(
    sources: &[View],
    total: &View,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let total = call.values(total);
    let (mut flops, mut sum) = (0, 0.0);
    for source in sources {
        let source = call.values(source);
        let visits = each_element(source.extent(), call.progress, |i| {
            sum += source.get(i) * source.get(i);
        })?;
        flops += 2 * visits;
    }
    total.set(entry(0), sum);
    Ok(flops)
}

/// A parameter with gradient, moments and scale.
struct State<'m> {
    parameter: Values<'m>,
    gradient: Values<'m>,
    moments: Vec<Values<'m>>,
    /// Scale of the gradient.
    scale: f64,
}

impl<'m> State<'m> {
    /// Of a parameter and a gradient, each of which may be written. None if the update leaves everything as it is.
    fn new(
        (parameter, gradient, moments): ((&View, bool), (&View, bool), &[View]),
        clip: Option<&(View, f64)>,
        call: &Call<'m, '_>,
    ) -> Option<Self> {
        let total = clip.map(|(total, maximum)| (call.values(total), *maximum));
        let scale = match &total {
            Some((total, maximum)) => call.inputs.update_factor(total.get(entry(0)), *maximum)?,
            None => 1.0,
        };
        Some(Self {
            parameter: call.result(parameter.0, parameter.1),
            gradient: call.result(gradient.0, gradient.1),
            moments: moments.iter().map(|view| call.result(view, true)).collect(),
            scale,
        })
    }

    fn gradient(&self, i: [usize; 5], weight_decay: f64) -> f64 {
        self.scale * self.gradient.get(i) + weight_decay * self.parameter.get(i)
    }

    fn velocity(&self) -> &Values<'m> {
        let [velocity] = self.moments.as_slice() else {
            panic!("momentum needs one velocity, not {}", self.moments.len());
        };
        velocity
    }

    /// New first and second moment, stored; without bias correction.
    fn step_moments(&self, i: [usize; 5], [beta1, beta2]: [f64; 2], gradient: f64) -> [f64; 2] {
        let [first, second] = self.moments.as_slice() else {
            panic!("Adam needs two moments, not {}", self.moments.len());
        };
        let m = beta1 * first.get(i) + (1.0 - beta1) * gradient;
        let v = beta2 * second.get(i) + (1.0 - beta2) * gradient * gradient;
        first.set(i, m);
        second.set(i, v);
        [m, v]
    }
}

/// As `torch.optim.SGD` without dampening, with or without Nesterov; a velocity of zero makes the first step the
/// plain gradient.
fn sgd(
    state: &State<'_>,
    (momentum, is_nesterov): (f64, bool),
    weight_decay: f64,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let velocity = (momentum != 0.0 || is_nesterov).then(|| state.velocity());
    let rate = call.inputs.learning_rate;
    let visits = each_element(state.parameter.extent(), call.progress, |i| {
        let mut step = state.gradient(i, weight_decay);
        if let Some(velocity) = velocity {
            let new = step + momentum * velocity.get(i);
            velocity.set(i, new);
            step = if is_nesterov {
                step + momentum * new
            } else {
                new
            };
        }
        state.parameter.set(i, state.parameter.get(i) - rate * step);
    })?;
    Ok(if is_nesterov { 8 } else { 6 } * visits)
}

fn adam(
    state: &State<'_>,
    betas: [f64; 2],
    epsilon: f64,
    (weight_decay, is_decoupled): (f64, bool),
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (step, learning_rate) = (call.inputs.update() as f64, call.inputs.learning_rate);
    let rate = learning_rate / (1.0 - betas[0].powf(step));
    let root = (1.0 - betas[1].powf(step)).sqrt();
    let added = if is_decoupled { 0.0 } else { weight_decay };
    let kept = if is_decoupled {
        1.0 - learning_rate * weight_decay
    } else {
        1.0
    };
    let visits = each_element(state.parameter.extent(), call.progress, |i| {
        let [m, v] = state.step_moments(i, betas, state.gradient(i, added));
        let moved = rate * m / (v.sqrt() / root + epsilon);
        state
            .parameter
            .set(i, kept * state.parameter.get(i) - moved);
    })?;
    Ok(if is_decoupled { 15 } else { 14 } * visits)
}

fn lars(
    state: &State<'_>,
    momentum: f64,
    weight_decay: f64,
    ratio: f64,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (velocity, rate) = (state.velocity(), ratio * call.inputs.learning_rate);
    let visits = each_element(state.parameter.extent(), call.progress, |i| {
        let step = momentum * velocity.get(i) + rate * state.gradient(i, weight_decay);
        velocity.set(i, step);
        state.parameter.set(i, state.parameter.get(i) - step);
    })?;
    Ok(8 * visits)
}

/// Replaces the gradient by the direction of LAMB, and moves the moments.
fn direction(
    state: &State<'_>,
    betas: [f64; 2],
    epsilon: f64,
    weight_decay: f64,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let step = call.inputs.update() as f64;
    let [first, second] = betas.map(|beta| 1.0 - beta.powf(step));
    let visits = each_element(state.parameter.extent(), call.progress, |i| {
        let [m, v] = state.step_moments(i, betas, state.scale * state.gradient.get(i));
        let adam = m / first / ((v / second).sqrt() + epsilon);
        let decay = weight_decay * state.parameter.get(i);
        state.gradient.set(i, adam + decay);
    })?;
    Ok(14 * visits)
}

/// Moves the parameter along the direction of LAMB.
fn along(state: &State<'_>, ratio: f64, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let rate = ratio * call.inputs.learning_rate;
    let visits = each_element(state.parameter.extent(), call.progress, |i| {
        let moved = rate * state.gradient.get(i);
        state.parameter.set(i, state.parameter.get(i) - moved);
    })?;
    Ok(2 * visits)
}
