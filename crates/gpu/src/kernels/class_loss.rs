//! Cross-entropy with weights or an ignored class, and Dice.

use super::attention::ignored;
use super::contents::fill;
use super::loss::{ItemSums, check_targets, count, operands};
use super::sums::{PartialSums, Parts};
use crate::arg::Arg;
use crate::device::KernelError;
use crate::launch::Run;
use crate::tensor::Tensor;
use partita_program::fields::{ClassLoss, ClassTotals, DiceSums};
use partita_program::{ClassTerms, Dtype, Fields, Kernel};

/// None for other kernels.
pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_>) -> Option<Result<(), KernelError>> {
    match kernel.fields() {
        Fields::ClassTotals(of) => Some(class_totals(of, run)),
        Fields::DiceSums(of) => Some(dice_sums(of, run)),
        Fields::ClassLoss(of) => Some(class_loss(of, run)),
        _ => None,
    }
}

fn class_totals(of: ClassTotals<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let (target, y) = (run.tensor(of.target), run.tensor(of.totals));
    let classes = y.extent[4];
    check_targets(&target, classes, *of.ignore, run)?;
    let [ignores, class] = ignored(*of.ignore);
    let args = vec![
        Arg::from(&target),
        Arg::Extent(target.raw_extent()),
        Arg::dtype(&target),
        Arg::Uint(classes as u32),
        ignores,
        class,
    ];
    count("class_totals", args, (target.positions(), &y), run)
}

fn dice_sums(of: DiceSums<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let [x, target, y] = [of.x, of.target, of.sums].map(|view| run.tensor(view));
    let classes = x.extent[4];
    check_targets(&target, classes, *of.ignore, run)?;
    // A work-item has all classes of its part.
    let parts = Parts::new(&x, !of.batch, 1, run.units);
    let sums = PartialSums::new(parts, 3, classes, run);
    let [ignores, class] = ignored(*of.ignore);
    let numbers = [parts.parts, parts.positions, parts.apart];
    let mut args = vec![
        Arg::from(&x),
        Arg::from(&target),
        Arg::Extent(x.raw_extent()),
        Arg::dtype(&target),
        ignores,
        class,
    ];
    args.extend(numbers.map(|number| Arg::Uint(number as u32)));
    args.push(sums.arg());
    run.items("dice_sums", &args, parts.all())?;
    sums.put(0, &y, false, run)
}

/// What cross-entropy is multiplied with at each position, in the workspace.
fn entropy(
    terms: &ClassTerms,
    totals: Option<&Tensor>,
    weights: Arg,
    run: &mut Run<'_>,
) -> Result<Arg, KernelError> {
    let at = run.scratch(Dtype::F64, 1);
    let Some(totals) = totals else {
        let y = Tensor::dense(Dtype::F64, at, [1; 5]);
        fill(y, terms.entropy_factor(None), run)?;
        return Ok(Arg::Ulong(at));
    };
    let args = [
        Arg::from(totals),
        Arg::Uint(totals.extent[4] as u32),
        Arg::Double(terms.cross_entropy),
        weights,
        Arg::Ulong(at),
    ];
    run.items("entropy_factor", &args, 1)?;
    Ok(Arg::Ulong(at))
}

/// What Dice adds at each position, for each row of sums; the number of rows.
fn dice(
    terms: &ClassTerms,
    sums: Option<&Tensor>,
    weights: Arg,
    run: &mut Run<'_>,
) -> Result<[Arg; 2], KernelError> {
    let Some(sums) = sums else {
        return Ok([Arg::Ulong(0), Arg::Uint(0)]);
    };
    let [rows, .., classes] = sums.extent;
    let at = Arg::Ulong(run.scratch(Dtype::F64, rows * (1 + 2 * classes)));
    let first = usize::from(!terms.background);
    let factor = terms.dice / (classes - first) as f64 / terms.all as f64;
    let args = [
        Arg::from(sums),
        Arg::Uint(rows as u32),
        Arg::Uint(classes as u32),
        Arg::Uint(first as u32),
        Arg::Double(terms.smooth),
        Arg::Double(factor),
        Arg::Double(terms.summed as f64),
        weights,
        at,
    ];
    run.items("dice_factors", &args, rows)?;
    Ok([at, Arg::Uint(rows as u32)])
}

fn class_loss(of: ClassLoss<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let (weight, terms) = (*of.weight, of.terms);
    let [x, target, loss] = [of.x, of.target, of.loss].map(|view| run.tensor(view));
    let [totals, sums] = [of.totals, of.sums].map(|view| run.optional(view.as_ref()));
    let classes = x.extent[4];
    check_targets(&target, classes, terms.ignore, run)?;
    let weights: Vec<f64> = (0..classes).map(|class| terms.weight(class)).collect();
    let weights = run.table(&weights)?;
    let entropy = entropy(terms, totals.as_ref(), weights, run)?;
    let of_dice: Vec<f64> = (0..classes).map(|class| terms.dice_weight(class)).collect();
    let of_dice = run.table(&of_dice)?;
    let [factors, rows] = dice(terms, sums.as_ref(), of_dice, run)?;
    let items = ItemSums::new(x.positions(), run);
    let [ignores, class] = ignored(terms.ignore);
    let (mut args, [count, partial]) = (operands([&x, &target], of.dx.as_ref(), run), items.args());
    args.extend([
        ignores,
        class,
        Arg::Double(terms.smoothing),
        weights,
        entropy,
        factors,
        rows,
        Arg::Double(run.inputs.gradient_factor() * weight),
        count,
        partial,
    ]);
    run.items("class_loss", &args, items.items)?;
    items.put(loss.offset, weight, run)
}
