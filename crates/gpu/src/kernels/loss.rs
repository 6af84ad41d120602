//! Losses, and the errors and class counts beside them.

use super::attention::{check_classes, ignored};
use super::sums::channel_sums;
use crate::arg::Arg;
use crate::device::KernelError;
use crate::launch::Run;
use crate::tensor::Tensor;
use partita_program::fields::{ClassCounts, SoftmaxCrossEntropy};
use partita_program::{Dtype, ElementFunction, Fields, Kernel, View};

/// Work-items for each multiprocessor.
const ITEMS_PER_UNIT: usize = 512;
/// Work-items of the work-group that adds up their sums.
const TOTAL_GROUP: usize = 64;

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_>) -> Result<(), KernelError> {
    match kernel.fields() {
        Fields::MeanSquaredError(of) => {
            let (views, factor) = ([of.x, of.target, of.loss], of.weight / *of.count as f64);
            let dx = of.dx.as_ref();
            element_loss(ElementFunction::Squared, views, dx, (factor, &[]), run)
        }
        Fields::ElementLoss(of) => {
            let (views, factor) = ([of.x, of.target, of.loss], of.weight / *of.count as f64);
            element_loss(
                *of.function,
                views,
                of.dx.as_ref(),
                (factor, of.weights),
                run,
            )
        }
        Fields::SoftmaxCrossEntropy(of) => softmax_cross_entropy(of, run),
        Fields::OutputErrors(of) => {
            let [x, target, y] = [of.x, of.target, of.errors].map(|view| run.tensor(view));
            let rest = [Arg::dtype(&target), Arg::flag(*of.logistic)];
            let sums = channel_sums("error_sums", &[x, target], &rest, false, 2, run)?;
            sums.put(0, &y, false, run)
        }
        Fields::ClassCounts(of) => class_counts(of, run),
        _ => panic!("{} is no loss", kernel.name()),
    }
}

/// One sum per work-item, in the workspace.
pub(super) struct ItemSums {
    pub items: usize,
    first: u64,
}

impl ItemSums {
    /// For this many elements or positions.
    pub(super) fn new(of: usize, run: &mut Run<'_>) -> Self {
        let items = of.clamp(1, run.units * ITEMS_PER_UNIT);
        let first = run.scratch(Dtype::F64, items);
        Self { items, first }
    }

    /// Their number and where they are.
    pub(super) fn args(&self) -> [Arg; 2] {
        [Arg::Uint(self.items as u32), Arg::Ulong(self.first)]
    }

    /// The first element.
    pub(super) fn first(&self) -> Arg {
        Arg::Ulong(self.first)
    }

    pub(super) fn tensor(&self) -> Tensor {
        Tensor::dense(Dtype::F64, self.first, [1, 1, 1, 1, self.items])
    }

    /// Their sum times a factor becomes an element in f64.
    pub(super) fn put(&self, y: u64, factor: f64, run: &mut Run<'_>) -> Result<(), KernelError> {
        let args = [
            self.first(),
            Arg::Uint(self.items as u32),
            Arg::Ulong(y),
            Arg::Double(factor),
            Arg::Shared(TOTAL_GROUP * size_of::<f64>()),
        ];
        run.groups("total", &args, 1, TOTAL_GROUP)
    }
}

/// What all losses take first: values, targets, and the gradient, if there is one.
pub(super) fn operands([x, target]: [&Tensor; 2], dx: Option<&View>, run: &Run<'_>) -> Vec<Arg> {
    let dx = run.optional(dx);
    vec![
        Arg::from(x),
        Arg::from(target),
        Arg::from(&dx.unwrap_or(*x)),
        Arg::Extent(x.raw_extent()),
        Arg::dtype(target),
        Arg::flag(dx.is_some()),
    ]
}

fn element_loss(
    function: ElementFunction,
    [x, target, loss]: [&View; 3],
    dx: Option<&View>,
    (factor, weights): (f64, &[f64]),
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let [x, target, loss] = [x, target, loss].map(|view| run.tensor(view));
    let (number, delta, huber) = match function {
        ElementFunction::Squared => (0, 0.0, 1.0),
        ElementFunction::Absolute => (1, 0.0, 1.0),
        ElementFunction::Huber { delta } => (2, delta, 1.0),
        ElementFunction::SmoothL1 { beta } => (2, beta, 1.0 / beta),
        ElementFunction::LogisticEntropy => (3, 0.0, 1.0),
    };
    let weights: Vec<f64> = (0..x.extent[4])
        .map(|c| weights.get(c).copied().unwrap_or(1.0))
        .collect();
    let sums = ItemSums::new(x.volume(), run);
    let (mut args, weights) = (operands([&x, &target], dx, run), run.table(&weights)?);
    let [items, partial] = sums.args();
    args.extend([
        Arg::Int(number),
        Arg::Double(delta),
        Arg::Double(huber),
        weights,
        Arg::Double(run.inputs.gradient_factor() * factor),
        items,
        partial,
    ]);
    run.items("element_loss", &args, sums.items)?;
    sums.put(loss.offset, factor, run)
}

/// Notes a target that is neither a class nor ignored.
pub(super) fn check_targets(
    target: &Tensor,
    classes: usize,
    ignore: Option<i64>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let last = classes.saturating_sub(1);
    let message =
        move |class: f64| format!("a target names class {class}; classes are 0 to {last}");
    check_classes(target, classes, ignore, Box::new(message), run)
}

fn softmax_cross_entropy(
    of: SoftmaxCrossEntropy<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let factor = of.weight / *of.count as f64;
    let [x, target, loss] = [of.x, of.target, of.loss].map(|view| run.tensor(view));
    check_targets(&target, x.extent[4], None, run)?;
    let sums = ItemSums::new(x.positions(), run);
    let (mut args, [items, partial]) = (operands([&x, &target], of.dx.as_ref(), run), sums.args());
    args.extend([
        Arg::Double(*of.smoothing),
        Arg::Double(run.inputs.gradient_factor() * factor),
        items,
        partial,
    ]);
    run.items("softmax_cross_entropy", &args, sums.items)?;
    sums.put(loss.offset, factor, run)
}

/// A kernel that counts positions in counters, which then become `y`.
pub(super) fn count(
    name: &'static str,
    mut args: Vec<Arg>,
    (positions, y): (usize, &Tensor),
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let counters = run.counters(y.volume())?;
    args.push(counters);
    run.items(name, &args, positions)?;
    let put = [counters, Arg::from(y), Arg::Extent(y.raw_extent())];
    run.elements("put_counters", &put, y)
}

fn class_counts(of: ClassCounts<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let [x, target, y] = [of.x, of.target, of.counts].map(|view| run.tensor(view));
    let classes = x.extent[4];
    check_targets(&target, classes, *of.ignore, run)?;
    let [ignores, class] = ignored(*of.ignore);
    let args = vec![
        Arg::from(&x),
        Arg::from(&target),
        Arg::Extent(x.raw_extent()),
        Arg::dtype(&target),
        ignores,
        class,
    ];
    count("class_counts", args, (x.positions(), &y), run)
}
