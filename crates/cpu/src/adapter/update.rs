//! Optimizer kernels and averages: many parameters in one call.

use super::{Output, Run};
use crate::elementwise::fill;
use crate::grid::Work;
use crate::optimizer::{
    Adam, Parameter, Sgd, adam, along, average, lamb_direction, lars, sgd, sum_of_squares,
};
use partita_program::fields::UpdateNorms;
use partita_program::{Fields, Kernel, Optimizer, View};
use partita_run::{Block, RunError};

/// Tensors that one call goes through; their list lies on the stack.
const BATCH: usize = 32;

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::SumOfSquares(of) => squares(of.sources, of.total, run),
        Fields::UpdateNorms(of) => match scale(of.clip, run) {
            None => skipped_norms(of, kernel, run),
            Some(scale) => update_norms(of, scale, run),
        },
        Fields::Update(_) => all(std::slice::from_ref(kernel), run),
        Fields::Average(_) => averages(std::slice::from_ref(kernel), run),
        _ => panic!("{} does not update parameters", kernel.name()),
    }
}

/// Updates by one rule.
pub(super) fn all(parts: &[Kernel], run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let Some(Kernel::Update { rule, clip, .. }) = parts.first() else {
        panic!("updates by one rule");
    };
    let Some(scale) = scale(clip, run) else {
        return Ok(run.skipped(parts));
    };
    let views = parts.iter().filter_map(|part| {
        let Kernel::Update {
            parameter,
            gradient,
            moments,
            norms,
            ..
        } = part
        else {
            return None;
        };
        Some(((parameter, gradient, moments.as_slice()), norms.as_ref()))
    });
    update(rule, views, scale, run)
}

/// Averages of one decay.
pub(super) fn averages(parts: &[Kernel], run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let Some(Kernel::Average { decay, total, .. }) = parts.first() else {
        panic!("averages of one decay");
    };
    let mut flops = 0;
    if let Some(total) = total
        && !run.inputs.updates(run.sums(total).data()[0])
    {
        return Ok(run.skipped(parts));
    }
    for batch in parts.chunks(BATCH) {
        let mut blocks: [_; BATCH] = std::array::from_fn(|i| match batch.get(i)? {
            Kernel::Average {
                parameter, average, ..
            } => Some(Operands::new((average, parameter, &[]), run)),
            other => panic!("{} is no average", other.name()),
        });
        let mut list = blocks.each_mut().map(of_operands);
        flops += run.flops(|call| average(call, *decay, &mut list))?;
    }
    Ok(flops)
}

/// Factor on gradients that are clipped; none if the update leaves everything as it is.
fn scale(clip: &Option<(View, f64)>, run: &Run<'_, '_>) -> Option<f64> {
    let Some((total, maximum)) = clip else {
        return Some(1.0);
    };
    run.inputs
        .update_factor(run.sums(total).data()[0], *maximum)
}

/// Of an update that leaves everything as it is: without a direction LAMB does not move.
fn skipped_norms(
    of: UpdateNorms<'_>,
    kernel: &Kernel,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    if let Optimizer::Lamb { .. } = of.rule {
        let mut gradient = run.output(of.gradient);
        run.compute(|call| fill(call, 0.0_f32, gradient.view()))?;
    }
    run.totals(of.norms, false).data_mut().fill(0.0);
    Ok(run.skipped(std::slice::from_ref(kernel)))
}

/// By how much LARS and LAMB scale an update, from the sums of squares of the parameter and of the gradient or the
/// direction.
fn trust_ratio(rule: &Optimizer, sums: &[f64]) -> f64 {
    let [parameter, other] = [sums[0].sqrt(), sums[1].sqrt()];
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

fn update_norms(
    of: UpdateNorms<'_>,
    mut factor: f64,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let mut flops = 0;
    if let Optimizer::Lamb {
        beta1,
        beta2,
        epsilon,
        weight_decay,
    } = *of.rule
    {
        let options = Adam {
            is_decoupled: false,
            rate: 0.0,
            beta1,
            beta2,
            epsilon,
            weight_decay,
            scale: factor,
            step: run.inputs.update(),
        };
        // The direction replaces the gradient.
        let mut blocks = Operands::new((of.gradient, of.parameter, of.moments), run);
        let mut list = [blocks.parameter()];
        flops += run.flops(|call| lamb_direction(call, &options, &mut list))?;
        factor = 1.0;
    }
    // What LAMB reads again counts once.
    let counted = run.bytes.get();
    let [w, g] = [of.parameter, of.gradient].map(|view| run.dense(view));
    if let Optimizer::Lamb { .. } = of.rule {
        run.bytes.set(counted);
    }
    let mut sums = [0.0; 2];
    for (sum, block) in sums.iter_mut().zip([&w, &g]) {
        let (part, work) = run.compute(|call| sum_of_squares(call, &[block.data()]))?;
        *sum = part;
        flops += work.flops;
    }
    let mut target = run.totals(of.norms, false);
    target
        .data_mut()
        .copy_from_slice(&[sums[0], sums[1] * factor * factor]);
    Ok(flops)
}

fn squares(sources: &[View], total: &View, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let mut total = run.totals(total, false);
    let (mut sum, mut flops) = (0.0, 0);
    for batch in sources.chunks(BATCH) {
        let blocks: [_; BATCH] = std::array::from_fn(|i| batch.get(i).map(|view| run.dense(view)));
        let slices = blocks
            .each_ref()
            .map(|block| block.as_ref().map_or(&[][..], Block::data));
        let (part, work) = run.compute(|call| sum_of_squares(call, &slices))?;
        sum += part;
        flops += work.flops;
    }
    total.data_mut()[0] = sum;
    Ok(flops)
}

/// A parameter's blocks while they are in use.
struct Operands<'m> {
    w: Output<'m>,
    g: Block<'m, f32>,
    moments: [Option<Output<'m>>; 2],
    ratio: f64,
}

impl<'m> Operands<'m> {
    fn new(
        (parameter, gradient, moments): (&View, &View, &[View]),
        run: &Run<'m, '_>,
    ) -> Operands<'m> {
        Operands {
            w: run.result(parameter, true),
            g: run.dense(gradient),
            moments: [0, 1].map(|i| moments.get(i).map(|view| run.result(view, true))),
            ratio: 1.0,
        }
    }

    fn with_norms(self, rule: &Optimizer, norms: Option<&View>, run: &Run<'m, '_>) -> Operands<'m> {
        let ratio = norms.map_or(1.0, |norms| trust_ratio(rule, run.sums(norms).data()));
        Operands { ratio, ..self }
    }

    fn parameter(&mut self) -> Parameter<'_> {
        let moments = self.moments.each_mut().map(|moment| match moment {
            Some(moment) => moment.slice(),
            None => &mut [],
        });
        Parameter::new(self.w.slice(), self.g.data(), moments).with_ratio(self.ratio)
    }
}

/// A parameter; one without elements where there is none.
fn of_operands<'b>(operands: &'b mut Option<Operands<'_>>) -> Parameter<'b> {
    match operands {
        Some(operands) => operands.parameter(),
        None => Parameter::new(&mut [], &[], [&mut [], &mut []]),
    }
}

/// A parameter with its gradient and moments, and its norms.
type Updated<'v> = ((&'v View, &'v View, &'v [View]), Option<&'v View>);

/// Updates parameters.
fn update<'v>(
    rule: &Optimizer,
    parameters: impl Iterator<Item = Updated<'v>>,
    scale: f64,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let wanted = match *rule {
        Optimizer::Lamb { .. } => 0,
        Optimizer::Sgd { .. }
        | Optimizer::Nesterov { .. }
        | Optimizer::Adam { .. }
        | Optimizer::AdamW { .. }
        | Optimizer::Lars { .. } => rule.moments().len(),
    };
    let mut parameters = parameters.inspect(|((parameter, _, moments), _)| {
        let count = moments.len();
        assert_eq!(count, wanted, "moments of {parameter} under {rule:?}");
    });
    let mut flops = 0;
    loop {
        let mut blocks: [_; BATCH] = std::array::from_fn(|_| {
            let (views, norms) = parameters.next()?;
            Some(Operands::new(views, run).with_norms(rule, norms, run))
        });
        if blocks[0].is_none() {
            return Ok(flops);
        }
        let mut list = blocks.each_mut().map(of_operands);
        flops += step(rule, &mut list, scale, run)?.flops;
    }
}

fn step(
    rule: &Optimizer,
    parameters: &mut [Parameter<'_>],
    scale: f64,
    run: &mut Run<'_, '_>,
) -> Result<Work, RunError> {
    let (rate, step) = (run.inputs.learning_rate, run.inputs.update());
    let is_nesterov = matches!(rule, Optimizer::Nesterov { .. });
    let is_decoupled = matches!(rule, Optimizer::AdamW { .. });
    match *rule {
        Optimizer::Sgd {
            momentum,
            weight_decay,
        }
        | Optimizer::Nesterov {
            momentum,
            weight_decay,
        }
        | Optimizer::Lars {
            momentum,
            weight_decay,
            ..
        } => {
            let options = Sgd {
                is_nesterov,
                rate,
                momentum,
                weight_decay,
                scale,
            };
            if let Optimizer::Lars { .. } = rule {
                return run.compute(|call| lars(call, &options, parameters));
            }
            run.compute(|call| sgd(call, &options, parameters))
        }
        Optimizer::Adam {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        }
        | Optimizer::AdamW {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => {
            let options = Adam {
                is_decoupled,
                rate,
                beta1,
                beta2,
                epsilon,
                weight_decay,
                scale,
                step,
            };
            run.compute(|call| adam(call, &options, parameters))
        }
        Optimizer::Lamb { .. } => run.compute(|call| along(call, rate, parameters)),
    }
}
