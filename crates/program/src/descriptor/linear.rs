//! Linear layers: rows are samples.

use super::convolution::bias_of;
use super::*;

fn flops(rows: &View, w: &View) -> u128 {
    product(&[2, rows.extent[0], w.extent[3], w.extent[4]])
}

pub(super) fn describe(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::LinearForward { x, w, bias, y } => {
            let operands = [linear("x", x), weights(read("w", w))];
            Descriptor::new("linear_forward", flops(x, w), operands)
                .and(bias_of(bias.as_ref(), w))
                .and([outputs(write("y", y), x, w).over(Over::Products)])
                .features("x", x, w)
                .cost(Cost::Linear {
                    pass: Pass::Forward,
                })
                .layout(Layout::Product {
                    from: x,
                    to: y,
                    w,
                    is_forward: true,
                    bias: bias.as_ref(),
                })
        }
        Kernel::LinearBackwardData {
            dy,
            w,
            dx,
            accumulate,
        } => {
            let operands = [
                outputs(linear("dy", dy), dx, w),
                weights(read("w", w)),
                result("dx", dx, *accumulate).over(Over::Products),
            ];
            Descriptor::new("linear_backward_data", flops(dy, w), operands)
                .features("dx", dx, w)
                .cost(Cost::Linear {
                    pass: Pass::BackwardData,
                })
                .layout(Layout::Product {
                    from: dy,
                    to: dx,
                    w,
                    is_forward: false,
                    bias: None,
                })
                .accumulates(*accumulate)
        }
        Kernel::LinearBackwardWeight {
            x,
            dy,
            dw,
            accumulate,
        } => {
            let operands = [
                factor("x", x),
                outputs(factor("dy", dy), x, dw),
                weights(result("dw", dw, *accumulate)).over(Over::Positions(dy)),
            ];
            Descriptor::new("linear_backward_weight", flops(dy, dw), operands)
                .features("x", x, dw)
                .cost(Cost::Linear {
                    pass: Pass::BackwardWeight,
                })
                .layout(Layout::ProductGradient { x, dy, dw })
                .accumulates(*accumulate)
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn weights(w: Operand<'_>) -> Operand<'_> {
    let [.., inputs, outputs] = w.view.extent;
    w.of([1, 1, 1, inputs, outputs])
}

/// Rows as of the input, columns as of the weights.
fn outputs<'k>(y: Operand<'k>, x: &View, w: &View) -> Operand<'k> {
    y.of([x.extent[0], 1, 1, 1, w.extent[4]])
}

impl Descriptor<'_> {
    fn features(self, name: &str, x: &View, w: &View) -> Self {
        let [_, features @ ..] = x.extent;
        let features = features.iter().copied().fold(1, usize::saturating_mul);
        let what = format!("features of {name}");
        self.equal(&what, features, w.extent[3])
    }
}
