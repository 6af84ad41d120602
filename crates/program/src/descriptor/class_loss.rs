//! Losses of classes that take sums over positions first.

use super::loss::classes;
use super::*;

/// Extents of three sums per sum of Dice and class.
fn dice_extents(x: &View, batch: bool) -> [usize; 5] {
    let sums = if batch { 1 } else { x.extent[0] };
    [sums, 1, 1, 3, x.extent[4]]
}

pub(super) fn describe(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::ClassTotals {
            x, target, totals, ..
        } => {
            let [.., classes_of] = if x == target { totals } else { x }.extent;
            let totals = write("totals", totals).sums_of([1, 1, 1, 1, classes_of]);
            let operands = [
                read("x", x),
                classes(target, x),
                totals.over(Over::Positions(x)),
            ];
            Descriptor::new("class_totals", each(target, 1), operands)
        }
        Kernel::DiceSums {
            x,
            target,
            sums,
            batch,
            ..
        } => {
            let over = if *batch {
                Over::Positions(x)
            } else {
                Over::Space(x)
            };
            let sums = write("sums", sums).sums_of(dice_extents(x, *batch));
            let operands = [read("x", x), classes(target, x), sums.over(over)];
            Descriptor::new("dice_sums", each(x, 6), operands)
                .constant(Constant::Flag("batch", *batch))
        }
        Kernel::ClassLoss { .. } => class_loss(kernel),
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn class_loss(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::ClassLoss {
        x,
        target,
        totals,
        sums,
        dx,
        loss,
        weight,
        terms,
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let classes_of = x.extent[4];
    let totals = totals.as_ref();
    let dice = sums.as_ref().map(|view| {
        let is_batch = view.extent[0] != x.extent[0];
        read("sums", view).sums_of(dice_extents(x, is_batch))
    });
    let totals = totals.map(|view| read("totals", view).counts_of([1, 1, 1, 1, classes_of]));
    Descriptor::new(
        "class_loss",
        each(x, 10),
        [read("x", x), classes(target, x)],
    )
    .and(totals)
    .and(dice)
    .loss(x, dx.as_ref(), loss)
    .weighted(terms.all.min(terms.summed), *weight)
    .weights_of(&terms.weights, classes_of)
    .weights_of(
        terms.dice_weights.as_deref().unwrap_or_default(),
        classes_of,
    )
    .require(sums.is_some() == (terms.dice != 0.0), || {
        "needs sums for Dice alone".to_owned()
    })
    .require(terms.smooth > 0.0, || {
        format!("is smoothed by {}", terms.smooth)
    })
}
