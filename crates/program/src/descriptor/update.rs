//! The optimizer, and the norm of all gradients.

use super::*;

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
        Kernel::Update {
            rule,
            parameter,
            gradient,
            moments,
            clip,
        } => {
            let (flops, expected) = match rule {
                Optimizer::Sgd { momentum, .. } => (6, usize::from(*momentum != 0.0)),
                Optimizer::Adam { .. } => (14, 2),
            };
            let like = |operand: Operand<'k>| operand.like("parameter", parameter);
            let operands = [
                like(read("gradient", gradient)),
                state("parameter", parameter),
            ];
            let clip = clip.as_ref();
            let total = clip.map(|(total, _)| read("total", total).sums_of(SCALAR));
            Descriptor::new("update", each(parameter, flops), operands)
                .and(moments.iter().map(|view| like(state("moment", view))))
                .and(total)
                .equal("moments", moments.len(), expected)
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
