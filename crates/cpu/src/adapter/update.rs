//! Optimizer kernels: many parameters in one call.

use super::{Output, Run};
use crate::grid::Work;
use crate::optimizer::{Adam, Parameter, Sgd, adam, sgd, sum_of_squares};
use partita_program::{Kernel, Optimizer, View};
use partita_run::{Block, KernelTally, RunError};

/// Added to the norm of the gradient before it divides.
const CLIP_EPSILON: f64 = 1e-6;
/// Tensors that one call goes through; their list lies on the stack.
const BATCH: usize = 32;

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<KernelTally, RunError> {
    match kernel {
        Kernel::SumOfSquares { sources, total } => squares(sources, total, run),
        Kernel::Update { .. } => all(std::slice::from_ref(kernel), run),
        other => panic!("{} does not update parameters", other.name()),
    }
}

/// Whether all are updates by one rule.
pub(super) fn is_one_rule(parts: &[Kernel]) -> bool {
    let Some(Kernel::Update { rule, clip, .. }) = parts.first() else {
        return false;
    };
    parts.iter().all(|part| {
        matches!(part, Kernel::Update { rule: own, clip: own_clip, .. }
            if own == rule && own_clip == clip)
    })
}

/// Updates by one rule.
pub(super) fn all(parts: &[Kernel], run: &mut Run<'_, '_>) -> Result<KernelTally, RunError> {
    let Some(Kernel::Update { rule, clip, .. }) = parts.first() else {
        panic!("updates by one rule");
    };
    let total = clip.map(|(total, maximum)| (run.sums(&total), maximum));
    let scale = total.as_ref().map_or(1.0, |(total, maximum)| {
        (maximum / (total.data()[0].sqrt() + CLIP_EPSILON)).min(1.0)
    });
    let views = parts.iter().filter_map(|part| {
        let Kernel::Update {
            parameter,
            gradient,
            moments,
            ..
        } = part
        else {
            return None;
        };
        Some((parameter, gradient, moments.as_slice()))
    });
    let mut tally = update(rule, views, scale, run)?;
    tally.bytes += total.map_or(0, |(total, _)| total.box_bytes());
    Ok(tally)
}

fn squares(sources: &[View], total: &View, run: &mut Run<'_, '_>) -> Result<KernelTally, RunError> {
    let mut total = run.memory.write::<f64>(total);
    let (mut sum, mut flops, mut bytes) = (0.0, 0, total.box_bytes());
    for batch in sources.chunks(BATCH) {
        let blocks: [_; BATCH] = std::array::from_fn(|i| batch.get(i).map(|view| run.dense(view)));
        let slices = blocks
            .each_ref()
            .map(|block| block.as_ref().map_or(&[][..], Block::data));
        let (part, work) = run.compute(|call| sum_of_squares(call, &slices))?;
        sum += part;
        flops += work.flops;
        bytes += blocks.iter().flatten().map(Block::box_bytes).sum::<u64>();
    }
    total.data_mut()[0] = sum;
    Ok(KernelTally { flops, bytes })
}

/// A parameter's blocks while they are in use.
struct Operands<'m> {
    w: Output<'m>,
    g: Block<'m, f32>,
    moments: [Option<Output<'m>>; 2],
}

impl<'m> Operands<'m> {
    fn new(
        (parameter, gradient, moments): (&View, &View, &[View]),
        run: &Run<'m, '_>,
    ) -> Operands<'m> {
        Operands {
            w: run.output(parameter),
            g: run.dense(gradient),
            moments: [0, 1].map(|i| moments.get(i).map(|view| run.output(view))),
        }
    }

    fn parameter(&mut self) -> Parameter<'_> {
        let moments = self.moments.each_mut().map(|moment| match moment {
            Some(moment) => moment.slice(),
            None => &mut [],
        });
        Parameter::new(self.w.slice(), self.g.data(), moments)
    }

    fn bytes(&self) -> u64 {
        let moments = self.moments.iter().flatten().map(Output::bytes);
        self.g.box_bytes() + 2 * self.w.bytes() + 2 * moments.sum::<u64>()
    }
}

/// Updates parameters, given with their gradients and moments.
fn update<'v>(
    rule: &Optimizer,
    parameters: impl Iterator<Item = (&'v View, &'v View, &'v [View])>,
    scale: f64,
    run: &mut Run<'_, '_>,
) -> Result<KernelTally, RunError> {
    let wanted = match *rule {
        Optimizer::Sgd { momentum, .. } => usize::from(momentum != 0.0),
        Optimizer::Adam { .. } => 2,
    };
    let mut parameters = parameters.inspect(|(parameter, _, moments)| {
        let count = moments.len();
        assert_eq!(count, wanted, "moments of {parameter} under {rule:?}");
    });
    let mut tally = KernelTally { flops: 0, bytes: 0 };
    loop {
        let mut blocks: [_; BATCH] =
            std::array::from_fn(|_| parameters.next().map(|views| Operands::new(views, run)));
        if blocks[0].is_none() {
            return Ok(tally);
        }
        let mut list = blocks.each_mut().map(|blocks| match blocks {
            Some(blocks) => blocks.parameter(),
            None => Parameter::new(&mut [], &[], [&mut [], &mut []]),
        });
        tally.flops += step(rule, &mut list, scale, run)?.flops;
        tally.bytes += blocks.iter().flatten().map(Operands::bytes).sum::<u64>();
    }
}

fn step(
    rule: &Optimizer,
    parameters: &mut [Parameter<'_>],
    scale: f64,
    run: &mut Run<'_, '_>,
) -> Result<Work, RunError> {
    let (rate, step) = (run.inputs.learning_rate, run.inputs.step);
    match *rule {
        Optimizer::Sgd {
            momentum,
            weight_decay,
        } => {
            let rule = Sgd {
                rate,
                momentum,
                weight_decay,
                scale,
            };
            run.compute(|call| sgd(call, &rule, parameters))
        }
        Optimizer::Adam {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } => {
            let rule = Adam {
                rate,
                beta1,
                beta2,
                epsilon,
                weight_decay,
                scale,
                step,
            };
            run.compute(|call| adam(call, &rule, parameters))
        }
    }
}
