//! Cross-entropy with weights or an ignored class, and Dice.

use super::Call;
use super::loss::{check_class, is_class};
use crate::values::{Values, cell, each_position, entry};
use partita_program::fields::{ClassLoss, ClassTotals, DiceSums};
use partita_program::{ClassTerms, Fields, Kernel};
use partita_run::RunError;
use partita_space::Rank;

/// Whether a kernel is one of these.
pub(super) fn has(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::ClassTotals { .. } | Kernel::DiceSums { .. } | Kernel::ClassLoss { .. }
    )
}

pub(super) fn execute(
    kernel: &Kernel,
    rank: Rank,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::ClassTotals(of) => class_totals(of, rank, call),
        Fields::DiceSums(of) => dice_sums(of, rank, call),
        Fields::ClassLoss(of) => class_loss(of, rank, call),
        _ => panic!("{} has no sums over classes", kernel.name()),
    }
}

/// The class of a position; none where it is ignored, or where it is none, which is noted.
fn class(
    target: f64,
    classes: usize,
    ignore: Option<i64>,
    wrong: &mut Option<f64>,
) -> Option<usize> {
    if ignore.is_some_and(|index| target == index as f64) {
        return None;
    }
    if is_class(target, classes) {
        return Some(target as usize);
    }
    wrong.get_or_insert(target);
    None
}

fn class_totals(of: ClassTotals<'_>, rank: Rank, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    // Of x only the positions matter.
    call.values(of.x);
    let (target, totals) = (call.values(of.target), call.values(of.totals));
    let classes = totals.extent()[4];
    let (mut counts, mut wrong) = (vec![0.0; classes], None);
    let visits = each_position(target.extent(), call.progress, |[n, d, h, w]| {
        let class = class(target.get([n, d, h, w, 0]), classes, *of.ignore, &mut wrong);
        if let Some(class) = class {
            counts[class] += 1.0;
        }
    })?;
    check_class(wrong, classes, rank)?;
    for (c, count) in counts.iter().enumerate() {
        totals.set(entry(c), *count);
    }
    Ok(visits)
}

/// The softmax at a position, and the logarithm of its denominator.
fn softmax(x: &Values<'_>, [n, d, h, w]: [usize; 4], to: &mut [f64]) -> f64 {
    let at = |c: usize| x.get([n, d, h, w, c]);
    let most = (0..to.len()).map(at).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = (0..to.len()).map(|c| (at(c) - most).exp()).sum();
    let log_total = most + total.ln();
    for (c, share) in to.iter_mut().enumerate() {
        *share = (at(c) - log_total).exp();
    }
    log_total
}

fn dice_sums(kernel: DiceSums<'_>, rank: Rank, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let [x, target, sums] = [kernel.x, kernel.target, kernel.sums].map(|view| call.values(view));
    let (batch, ignore) = (*kernel.batch, *kernel.ignore);
    let [rows, _, _, _, classes] = sums.extent();
    let mut all = vec![[0.0; 3]; rows * classes];
    let (mut shares, mut wrong) = (vec![0.0; classes], None);
    let visits = each_position(x.extent(), call.progress, |at| {
        let [n, d, h, w] = at;
        let of = class(target.get([n, d, h, w, 0]), classes, ignore, &mut wrong);
        let Some(of) = of else { return };
        softmax(&x, at, &mut shares);
        let row = if batch { 0 } else { n };
        let row = &mut all[row * classes..][..classes];
        for (sums, share) in row.iter_mut().zip(&shares) {
            sums[1] += share;
        }
        row[of][0] += shares[of];
        row[of][2] += 1.0;
    })?;
    check_class(wrong, classes, rank)?;
    for (at, three) in all.iter().enumerate() {
        for (i, sum) in three.iter().enumerate() {
            sums.set([at / classes, 0, 0, i, at % classes], *sum);
        }
    }
    Ok(6 * visits * classes as u64)
}

/// What Dice adds at each position of a sample, and its derivatives by the softmax, per row of sums.
fn factors(terms: &ClassTerms, sums: &Values<'_>) -> Vec<(f64, Vec<[f64; 2]>)> {
    let [rows, _, _, _, classes] = sums.extent();
    let row = |row: usize| {
        let sum =
            |i: usize| -> Vec<f64> { (0..classes).map(|c| sums.get([row, 0, 0, i, c])).collect() };
        let mut derivatives = vec![[0.0; 2]; classes];
        let [hits, given, wanted] = [sum(0), sum(1), sum(2)];
        let value = terms.dice_factors([&hits, &given, &wanted], &mut derivatives);
        (value, derivatives)
    };
    (0..rows).map(row).collect()
}

fn class_loss(kernel: ClassLoss<'_>, rank: Rank, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let (weight, terms) = (kernel.weight, kernel.terms);
    let [x, target, loss] = [kernel.x, kernel.target, kernel.loss].map(|view| call.values(view));
    let [totals, sums, dx] =
        [kernel.totals, kernel.sums, kernel.dx].map(|view| view.map(|view| call.values(&view)));
    let (classes, scale) = (x.extent()[4], call.inputs.gradient_factor());
    let counts: Option<Vec<f64>> = totals
        .as_ref()
        .map(|totals| (0..classes).map(|c| totals.get(cell(0, c))).collect());
    let entropy = terms.entropy_factor(counts.as_deref());
    let dice = sums.as_ref().map(|sums| factors(terms, sums));
    let (mut sum, mut wrong) = (0.0, None);
    let (mut shares, mut gradient) = (vec![0.0; classes], vec![0.0; classes]);
    let visits = each_position(x.extent(), call.progress, |at| {
        let [n, d, h, w] = at;
        let row = dice.as_ref().map(|dice| &dice[n.min(dice.len() - 1)]);
        sum += row.map_or(0.0, |(value, _)| *value);
        let of = class(
            target.get([n, d, h, w, 0]),
            classes,
            terms.ignore,
            &mut wrong,
        );
        gradient.fill(0.0);
        if let Some(of) = of {
            let log_total = softmax(&x, at, &mut shares);
            for c in 0..classes {
                let hit = if c == of { 1.0 } else { 0.0 };
                let mean = terms.smoothing / classes as f64;
                let expected = ((1.0 - terms.smoothing) * hit + mean) * terms.weight(c);
                if entropy * expected != 0.0 {
                    sum += entropy * expected * (log_total - x.get([n, d, h, w, c]));
                }
                for (share, slope) in shares.iter().zip(&mut gradient) {
                    *slope += entropy * expected * share;
                }
                gradient[c] -= entropy * expected;
            }
            if let Some((_, derivatives)) = row {
                let by_softmax = |c: usize| {
                    let [all, own] = derivatives[c];
                    if c == of { all - own } else { all }
                };
                let mean: f64 = (0..classes).map(|c| by_softmax(c) * shares[c]).sum();
                for (c, slope) in gradient.iter_mut().enumerate() {
                    *slope += shares[c] * (by_softmax(c) - mean);
                }
            }
        }
        for (c, slope) in gradient.iter().enumerate() {
            if let Some(dx) = &dx {
                dx.set([n, d, h, w, c], scale * weight * slope);
            }
        }
    })?;
    check_class(wrong, classes, rank)?;
    loss.set(entry(0), weight * sum);
    Ok(10 * visits * classes as u64)
}
