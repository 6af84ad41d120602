//! Losses and metrics.

use super::*;
use std::slice;

pub(super) fn describe(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::MeanSquaredError {
            x,
            target,
            dx,
            loss,
            count,
            weight,
        } => Descriptor::new(
            "mean_squared_error",
            each(x, 4),
            [read("x", x), values(target, x)],
        )
        .loss(x, dx.as_ref(), loss)
        .weighted(*count, *weight)
        .elementwise(),
        Kernel::SoftmaxCrossEntropy {
            x,
            target,
            dx,
            loss,
            count,
            weight,
            smoothing,
        } => Descriptor::new(
            "softmax_cross_entropy",
            each(x, 5),
            [read("x", x), classes(target, x)],
        )
        .loss(x, dx.as_ref(), loss)
        .weighted(*count, *weight)
        .require((0.0..1.0).contains(smoothing), || {
            format!("is smoothed by {smoothing}")
        }),
        Kernel::ElementLoss { .. } => element_loss(kernel),
        Kernel::ClassTotals { .. } | Kernel::DiceSums { .. } | Kernel::ClassLoss { .. } => {
            class_loss::describe(kernel)
        }
        Kernel::OutputErrors {
            x,
            target,
            errors,
            logistic,
        } => {
            let errors = write("errors", errors)
                .sums_of([1, 1, 1, 2, x.extent[4]])
                .over(Over::Positions(x));
            let operands = [read("x", x), values(target, x), errors];
            let errors = Descriptor::new("output_errors", each(x, 4), operands);
            // The key of the kernel without a sigmoid is older than the flag.
            if *logistic {
                errors.constant(Constant::Flag("logistic", true))
            } else {
                errors
            }
        }
        Kernel::ClassCounts {
            x, target, counts, ..
        } => {
            let counts = write("counts", counts)
                .sums_of([1, 1, 1, 3, x.extent[4]])
                .over(Over::Positions(x));
            let operands = [read("x", x), classes(target, x), counts];
            Descriptor::new("class_counts", each(x, 1), operands)
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn element_loss(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::ElementLoss {
        function,
        x,
        target,
        dx,
        loss,
        count,
        weight,
        weights,
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let operands = [read("x", x), values(target, x)];
    let described = Descriptor::new(function.name(), each(x, 6), operands)
        .loss(x, dx.as_ref(), loss)
        .weighted(*count, *weight)
        .weights_of(weights, x.extent[4]);
    if *function == ElementFunction::LogisticEntropy {
        Descriptor {
            takes_logarithms: true,
            ..described
        }
    } else {
        described
    }
}

/// Target values, in the type of the dataset or of the program.
fn values<'k>(target: &'k View, x: &'k View) -> Operand<'k> {
    let target = read("target", target).elements(Elements::Floats);
    target.like("x", x)
}

/// Target classes, of any type.
pub(super) fn classes<'k>(target: &'k View, x: &View) -> Operand<'k> {
    let [n, d, h, w, _] = x.extent;
    let target = read("target", target).elements(Elements::Any);
    target.of([n, d, h, w, 1])
}

impl<'k> Descriptor<'k> {
    pub(super) fn loss(self, x: &'k View, dx: Option<&'k View>, loss: &'k View) -> Self {
        let all = Over::All(slice::from_ref(x));
        self.and(dx.map(|dx| write("dx", dx).like("x", x)))
            .and([write("loss", loss).sums_of(SCALAR).over(all)])
    }

    /// One per channel, or none.
    pub(super) fn weights_of(self, weights: &[f64], channels: usize) -> Self {
        if weights.is_empty() {
            self
        } else {
            self.equal("weights", weights.len(), channels)
        }
    }

    pub(super) fn weighted(self, count: u64, weight: f64) -> Self {
        let is_sound = weight.is_finite() && weight > 0.0;
        self.counts(count)
            .require(is_sound, || format!("has the weight {weight}"))
    }
}
