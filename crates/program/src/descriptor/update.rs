//! The optimizer, averages of parameters, and the norm of all gradients.

use super::*;

/// Sums of squares over a parameter, and over its gradient or direction.
const NORMS: [usize; 5] = [1, 1, 1, 1, 2];

pub(super) fn describe<'k>(kernel: &'k Kernel) -> Descriptor<'k> {
    match kernel {
        Kernel::SumOfSquares { sources, total } => {
            let flops = sources
                .iter()
                .map(|view| each(view, 2))
                .fold(0, u128::saturating_add);
            let operands = sources.iter().map(|view| read("source", view));
            let total = write("total", total).sums_of(SCALAR);
            Descriptor::new("sum_of_squares", flops, operands).and([total.over(Over::All(sources))])
        }
        Kernel::UpdateNorms { .. } => norms_of(kernel),
        Kernel::Update { .. } => update(kernel),
        Kernel::Average { .. } => average(kernel),
        other => panic!("{other:?} is described elsewhere"),
    }
}

/// Of sums of squares for a trust ratio.
fn norms_of<'k>(kernel: &'k Kernel) -> Descriptor<'k> {
    match kernel {
        Kernel::UpdateNorms {
            rule,
            parameter,
            gradient,
            moments,
            clip,
            norms,
        } => {
            let like = |operand: Operand<'k>| operand.like("parameter", parameter);
            let (flops, expected, gradient_operand) = match rule {
                Optimizer::Lamb { .. } => (18, 2, state("gradient", gradient)),
                Optimizer::Lars { .. } => (4, 0, read("gradient", gradient)),
                Optimizer::Sgd { .. }
                | Optimizer::Nesterov { .. }
                | Optimizer::Adam { .. }
                | Optimizer::AdamW { .. } => (4, 0, read("gradient", gradient)),
            };
            let total = clip.as_ref();
            let total = total.map(|(total, _)| read("total", total).sums_of(SCALAR));
            let over = Over::All(std::slice::from_ref(parameter));
            let norms = write("norms", norms).sums_of(NORMS).over(over);
            let operands = [like(gradient_operand), read("parameter", parameter)];
            Descriptor::new("update_norms", each(parameter, flops), operands)
                .and(moments.iter().map(|view| like(state("moment", view))))
                .and(total)
                .and([norms])
                .equal("moments", moments.len(), expected)
                .require(rule.has_trust_ratio(), || {
                    format!("{} has no trust ratio", rule.name())
                })
                .layout(Layout::OwnShare {
                    parameter,
                    gradient,
                })
                .flow(Flow::Measures { gradient })
                .constant(Constant::Rule(rule))
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}

/// Of a step of the optimizer.
fn update<'k>(kernel: &'k Kernel) -> Descriptor<'k> {
    match kernel {
        Kernel::Update {
            rule,
            parameter,
            gradient,
            moments,
            norms,
            clip,
        } => {
            let (flops, expected) = match rule {
                Optimizer::Sgd { .. } => (6, rule.moments().len()),
                Optimizer::Nesterov { .. } | Optimizer::Lars { .. } => (8, 1),
                Optimizer::Adam { .. } => (14, 2),
                Optimizer::AdamW { .. } => (15, 2),
                Optimizer::Lamb { .. } => (2, 0),
            };
            let like = |operand: Operand<'k>| operand.like("parameter", parameter);
            let operands = [
                like(read("gradient", gradient)),
                state("parameter", parameter),
            ];
            let total = clip.as_ref();
            let total = total.map(|(total, _)| read("total", total).sums_of(SCALAR));
            let ratio = norms.as_ref();
            let ratio = ratio.map(|norms| read("norms", norms).sums_of(NORMS));
            let is_lamb = matches!(rule, Optimizer::Lamb { .. });
            Descriptor::new("update", each(parameter, flops), operands)
                .and(moments.iter().map(|view| like(state("moment", view))))
                .and(total)
                .and(ratio)
                .equal("moments", moments.len(), expected)
                .require(norms.is_none() || rule.has_trust_ratio(), || {
                    format!("{} has no trust ratio", rule.name())
                })
                .require(!is_lamb || norms.is_some() && clip.is_none(), || {
                    "LAMB needs norms, and clips before them".to_owned()
                })
                .layout(Layout::OwnShare {
                    parameter,
                    gradient,
                })
                .flow(Flow::Updates {
                    parameter,
                    gradient,
                })
                .constant(Constant::Rule(rule))
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}

/// Of a step of an average.
fn average<'k>(kernel: &'k Kernel) -> Descriptor<'k> {
    match kernel {
        Kernel::Average {
            parameter,
            average,
            decay,
            total,
        } => {
            let operands = [
                read("parameter", parameter),
                state("average", average).like("parameter", parameter),
            ];
            let total = total.as_ref();
            Descriptor::new("average", each(parameter, 3), operands)
                .and(total.map(|total| read("total", total).sums_of(SCALAR)))
                .require(*decay > 0.0 && *decay < 1.0, || {
                    format!("the decay of an average is {decay}")
                })
                .flow(Flow::Averages { parameter, average })
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}
