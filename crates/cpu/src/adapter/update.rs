use super::{Output, Run};
use crate::optimizer::{Adam, Sgd, adam, sgd, sum_of_squares};
use partita_program::{Kernel, Optimizer, View};
use partita_run::{RunError, Worked};

/// Added to the norm of the gradient before it divides.
const CLIP_EPSILON: f64 = 1e-6;

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<Worked, RunError> {
    match kernel {
        Kernel::SumOfSquares { sources, total } => squares(sources, total, run),
        Kernel::Update {
            rule,
            parameter,
            gradient,
            moments,
            clip,
        } => {
            let total = clip.map(|(total, maximum)| (run.sums(&total), maximum));
            let scale = total.as_ref().map_or(1.0, |(total, maximum)| {
                (maximum / (total.data[0].sqrt() + CLIP_EPSILON)).min(1.0)
            });
            let mut worked = update(rule, [parameter, gradient], moments, scale, run)?;
            worked.bytes += total.map_or(0, |(total, _)| total.box_bytes());
            Ok(worked)
        }
        other => panic!("{} does not update parameters", other.name()),
    }
}

fn squares(sources: &[View], total: &View, run: &mut Run<'_, '_>) -> Result<Worked, RunError> {
    let total = run.memory.write::<f64>(total);
    let (mut sum, mut flops, mut bytes) = (0.0, 0, total.box_bytes());
    for source in sources {
        let source = run.dense(source);
        let (part, work) = run.compute(|call| sum_of_squares(call, source.data))?;
        sum += part;
        flops += work.flops;
        bytes += source.box_bytes();
    }
    total.data[0] = sum;
    Ok(Worked { flops, bytes })
}

fn update(
    rule: &Optimizer,
    [parameter, gradient]: [&View; 2],
    moments: &[View],
    scale: f64,
    run: &mut Run<'_, '_>,
) -> Result<Worked, RunError> {
    let mut w = run.output(parameter);
    let gradient = run.dense(gradient);
    let mut moments: Vec<Output<'_>> = moments.iter().map(|view| run.output(view)).collect();
    let moment_bytes: u64 = moments.iter().map(Output::bytes).sum();
    let bytes = gradient.box_bytes() + 2 * w.bytes() + 2 * moment_bytes;
    let (rate, step, g) = (run.inputs.learning_rate, run.inputs.step, gradient.data);
    let count = moments.len();
    let work = match (*rule, moments.as_mut_slice()) {
        (
            Optimizer::Sgd {
                momentum,
                weight_decay,
            },
            velocity,
        ) => {
            assert_eq!(
                velocity.len(),
                usize::from(momentum != 0.0),
                "velocities under a momentum of {momentum}"
            );
            let rule = Sgd {
                rate,
                momentum,
                weight_decay,
                scale,
            };
            let velocity = velocity.first_mut().map_or(&mut [][..], Output::slice);
            run.compute(|call| sgd(call, &rule, w.slice(), g, velocity))?
        }
        (
            Optimizer::Adam {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            },
            [first, second],
        ) => {
            let rule = Adam {
                rate,
                beta1,
                beta2,
                epsilon,
                weight_decay,
                scale,
                step,
            };
            let (m, v) = (first.slice(), second.slice());
            run.compute(|call| adam(call, &rule, w.slice(), g, m, v))?
        }
        (Optimizer::Adam { .. }, _) => panic!("Adam needs two moments, not {count}"),
    };
    Ok(Worked {
        flops: work.flops,
        bytes,
    })
}
