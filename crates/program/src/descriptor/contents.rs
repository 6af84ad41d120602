//! Fills, copies and imports.

use super::*;

pub(super) fn describe(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::Fill { target, value } => {
            let zeros = *value == 0.0;
            let over = if zeros { Over::Zeros } else { Over::Nothing };
            let target = write("target", target).elements(Elements::ProgramOrSums);
            Descriptor::new("fill", 0, [target.over(over)]).flow(Flow::Clears { zeros })
        }
        Kernel::Copy {
            source,
            target,
            accumulate,
        } => {
            let flops = each(target, usize::from(*accumulate));
            let operands = [
                linear("source", source).elements(Elements::Any),
                result("target", target, *accumulate)
                    .elements(Elements::Like(source))
                    .extents(Extents::Volume(source)),
            ];
            Descriptor::new("copy", flops, operands)
                .flow(Flow::Copies { source })
                .accumulates(*accumulate)
        }
        Kernel::Import {
            source,
            target,
            transform,
        } => {
            let [n, c, d, h, w] = source.extent;
            let operands = [
                read("source", source).elements(Elements::Any),
                write("target", target)
                    .elements(Elements::ProgramOrSums)
                    .of([n, d, h, w, c]),
            ];
            Descriptor {
                takes_logarithms: matches!(transform, Transform::LogOnePlus),
                ..Descriptor::new("import", each(target, 1), operands)
                    .constant(Constant::Transform(transform))
            }
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}
