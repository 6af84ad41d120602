//! Optimizers, and averages of parameters.

use super::contents::fill;
use super::loss::ItemSums;
use super::pointwise::map;
use crate::arg::{Arg, RawClip};
use crate::device::KernelError;
use crate::launch::Run;
use crate::tensor::Tensor;
use partita_program::{Fields, Kernel, Optimizer, View};

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_>) -> Result<(), KernelError> {
    match kernel.fields() {
        Fields::SumOfSquares(of) => {
            let total = run.tensor(of.total);
            let sources: Vec<Tensor> = of.sources.iter().map(|view| run.tensor(view)).collect();
            let most = sources.iter().map(Tensor::volume).max().unwrap_or_default();
            let sums = ItemSums::new(most, run);
            fill(sums.tensor(), 0.0, run)?;
            for source in &sources {
                squares(source, &sums, run)?;
            }
            sums.put(total.offset, 1.0, run)
        }
        Fields::UpdateNorms(of) => {
            let state = State::new([of.parameter, of.gradient], of.moments, of.clip, run);
            norms_of(of.rule, &state, &run.tensor(of.norms), run)
        }
        Fields::Update(of) => {
            let state = State::new([of.parameter, of.gradient], of.moments, of.clip, run);
            update(of.rule, &state, run.optional(of.norms.as_ref()), run)
        }
        Fields::Average(of) => {
            let boxes = [of.parameter, of.average].map(|view| run.tensor(view));
            let rest = [Arg::Double(1.0 - of.decay), skips(of.total.as_ref(), run)];
            map("average", boxes, &rest, run)
        }
        _ => panic!("{} does not update parameters", kernel.name()),
    }
}

/// Whether an update is skipped, by the sum of squares of the gradients.
fn skips(total: Option<&View>, run: &Run<'_>) -> Arg {
    clip_of(total.map(|total| (*total, f64::MAX)).as_ref(), run)
}

fn clip_of(clip: Option<&(View, f64)>, run: &Run<'_>) -> Arg {
    let (total, maximum) = match clip {
        Some((total, maximum)) => (run.tensor(total).offset, *maximum),
        None => (0, 0.0),
    };
    Arg::Clip(RawClip {
        total,
        maximum,
        scale: run.inputs.loss_scale.unwrap_or_default(),
        clips: i32::from(clip.is_some()),
    })
}

/// A parameter with gradient and moments.
struct State {
    parameter: Tensor,
    gradient: Tensor,
    moments: Vec<Tensor>,
    clip: Arg,
}

impl State {
    fn new(
        [parameter, gradient]: [&View; 2],
        moments: &[View],
        clip: &Option<(View, f64)>,
        run: &Run<'_>,
    ) -> Self {
        Self {
            parameter: run.tensor(parameter),
            gradient: run.tensor(gradient),
            moments: moments.iter().map(|view| run.tensor(view)).collect(),
            clip: clip_of(clip.as_ref(), run),
        }
    }

    /// A moment; the parameter where the rule has none.
    fn moment(&self, number: usize) -> Tensor {
        self.moments.get(number).copied().unwrap_or(self.parameter)
    }

    /// The parameter, its gradient, and both moments.
    fn with_moments(&self) -> [Tensor; 4] {
        [
            self.parameter,
            self.gradient,
            self.moment(0),
            self.moment(1),
        ]
    }
}

/// Constants of a rule, as the kernels name them.
#[derive(Clone, Copy, Debug)]
struct Constants {
    rate: f64,
    momentum: f64,
    decay: f64,
    betas: [f64; 2],
    root: f64,
    epsilon: f64,
    kept: f64,
}

impl Constants {
    fn of_rate(rate: f64) -> Self {
        Self {
            rate,
            momentum: 0.0,
            decay: 0.0,
            betas: [0.0; 2],
            root: 1.0,
            epsilon: 0.0,
            kept: 1.0,
        }
    }

    fn arg(&self) -> Arg {
        let [beta1, beta2] = self.betas;
        Arg::Rule([
            self.rate,
            self.momentum,
            self.decay,
            beta1,
            beta2,
            self.root,
            self.epsilon,
            self.kept,
        ])
    }
}

fn update(
    rule: &Optimizer,
    state: &State,
    norms: Option<Tensor>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let rate = run.inputs.learning_rate;
    let of_norms = [
        Arg::flag(norms.is_some()),
        Arg::Ulong(norms.map_or(0, |norms| norms.offset)),
    ];
    match *rule {
        Optimizer::Sgd {
            momentum,
            weight_decay,
        } => sgd(state, (momentum, false), weight_decay, run),
        Optimizer::Nesterov {
            momentum,
            weight_decay,
        } => sgd(state, (momentum, true), weight_decay, run),
        Optimizer::Adam {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => adam(state, [beta1, beta2], epsilon, (weight_decay, false), run),
        Optimizer::AdamW {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => adam(state, [beta1, beta2], epsilon, (weight_decay, true), run),
        Optimizer::Lars {
            momentum,
            weight_decay,
            trust,
            epsilon,
        } => {
            let constants = Constants {
                momentum,
                decay: weight_decay,
                epsilon,
                ..Constants::of_rate(rate)
            };
            let of = [state.parameter, state.gradient, state.moment(0)];
            let mut rest = vec![constants.arg()];
            rest.extend(of_norms);
            rest.push(Arg::Double(trust));
            rest.push(state.clip);
            map("lars", of, &rest, run)
        }
        Optimizer::Lamb { .. } => {
            let of = [state.parameter, state.gradient];
            let rest = [Arg::Double(rate), of_norms[0], of_norms[1]];
            map("lamb", of, &rest, run)
        }
    }
}

fn sgd(
    state: &State,
    (momentum, is_nesterov): (f64, bool),
    weight_decay: f64,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let constants = Constants {
        momentum,
        decay: weight_decay,
        ..Constants::of_rate(run.inputs.learning_rate)
    };
    let has_velocity = momentum != 0.0 || is_nesterov;
    let mut rest = vec![
        constants.arg(),
        Arg::flag(has_velocity),
        Arg::flag(is_nesterov),
    ];
    rest.push(state.clip);
    let of = [state.parameter, state.gradient, state.moment(0)];
    map("sgd", of, &rest, run)
}

fn adam(
    state: &State,
    betas: [f64; 2],
    epsilon: f64,
    (weight_decay, is_decoupled): (f64, bool),
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (step, rate) = (run.inputs.update() as f64, run.inputs.learning_rate);
    let mut constants = Constants {
        betas,
        epsilon,
        root: (1.0 - betas[1].powf(step)).sqrt(),
        ..Constants::of_rate(rate / (1.0 - betas[0].powf(step)))
    };
    if is_decoupled {
        constants.kept = 1.0 - rate * weight_decay;
    } else {
        constants.decay = weight_decay;
    }
    map(
        "adam",
        state.with_moments(),
        &[constants.arg(), state.clip],
        run,
    )
}

/// Adds the squares of a tensor to the sums of the work-items.
fn squares(of: &Tensor, sums: &ItemSums, run: &mut Run<'_>) -> Result<(), KernelError> {
    let args = [
        Arg::from(of),
        Arg::Extent(of.raw_extent()),
        Arg::Uint(of.volume() as u32),
        Arg::Uint(sums.items as u32),
        sums.first(),
    ];
    run.items("squares", &args, sums.items)
}

/// Sums of squares of the parameter and of what it is compared with; for LAMB the gradient becomes the direction first.
fn norms_of(
    rule: &Optimizer,
    state: &State,
    norms: &Tensor,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let is_clipped = match *rule {
        Optimizer::Lamb {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => {
            let step = run.inputs.update() as f64;
            let [first, second] = [beta1, beta2].map(|beta| 1.0 - beta.powf(step));
            let constants = Constants {
                betas: [beta1, beta2],
                epsilon,
                decay: weight_decay,
                root: second,
                kept: first,
                ..Constants::of_rate(0.0)
            };
            let rest = [constants.arg(), state.clip];
            map("lamb_direction", state.with_moments(), &rest, run)?;
            false
        }
        Optimizer::Sgd { .. }
        | Optimizer::Nesterov { .. }
        | Optimizer::Adam { .. }
        | Optimizer::AdamW { .. }
        | Optimizer::Lars { .. } => true,
    };
    for (number, of) in [state.parameter, state.gradient].iter().enumerate() {
        let sums = ItemSums::new(of.volume(), run);
        fill(sums.tensor(), 0.0, run)?;
        squares(of, &sums, run)?;
        let at = norms.offset + number as u64;
        sums.put(at, 1.0, run)?;
        if number == 1 && is_clipped {
            // Clipping scales all elements alike.
            run.items("clip_norm", &[Arg::Ulong(at), state.clip], 1)?;
        }
    }
    Ok(())
}
