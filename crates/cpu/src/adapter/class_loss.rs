//! Cross-entropy with weights or an ignored class, and Dice.

use super::Run;
use super::loss::{
    BUFFER, Classes, EXPONENTIAL, PARTS, exp, index, is_class, maximum, no_class, sum, sum_rows,
};
use super::operand::AnyBlock;
use crate::grid::{Canceled, part};
use crate::rows::Rows;
use crate::simd::{Op, Simd};
use partita_program::fields::{ClassLoss, ClassTotals, DiceSums};
use partita_program::{ClassTerms, Fields, Kernel};
use partita_run::RunError;
use partita_space::Rank;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Whether a kernel is one of these.
pub(super) fn has(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::ClassTotals { .. } | Kernel::DiceSums { .. } | Kernel::ClassLoss { .. }
    )
}

pub(super) fn execute(kernel: &Kernel, rank: Rank, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::ClassTotals(of) => class_totals(of, rank, run),
        Fields::DiceSums(of) => dice_sums(of, rank, run),
        Fields::ClassLoss(of) => class_loss(of, rank, run),
        _ => panic!("{} has no sums over classes", kernel.name()),
    }
}

/// Longest scratch on the stack.
const SHORT: usize = 1024;

/// Zeros, on the stack unless there are many classes.
fn scratch<'s>(
    short: &'s mut [f64; SHORT],
    long: &'s mut Vec<f64>,
    length: usize,
) -> &'s mut [f64] {
    if length <= SHORT {
        &mut short[..length]
    } else {
        long.resize(length, 0.0);
        long
    }
}

fn is_ignored(target: f64, ignore: Option<i64>) -> bool {
    ignore.is_some_and(|index| target == index as f64)
}

fn class_totals(of: ClassTotals<'_>, rank: Rank, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let extent = of.target.extent;
    // Of x only the positions matter.
    drop(run.input(of.x));
    let target = run.any(of.target);
    let mut totals = run.totals(of.totals, false);
    totals.data_mut().fill(0.0);
    let counts = totals.data_mut();
    let mut wrong = None;
    for n in 0..extent[0] {
        for d in 0..extent[1] {
            for h in 0..extent[2] {
                run.go_on()?;
                for w in 0..extent[3] {
                    let class = target.get([n, d, h, w, 0]);
                    if is_ignored(class, *of.ignore) {
                        continue;
                    }
                    if is_class(class, counts.len()) {
                        counts[class as usize] += 1.0;
                    } else {
                        wrong.get_or_insert(class);
                    }
                }
            }
        }
    }
    if let Some(class) = wrong {
        return Err(no_class(class, counts.len(), rank));
    }
    Ok(extent[..4].iter().product::<usize>() as u64)
}

/// Logits and targets.
#[derive(Clone, Copy)]
struct Scores<'a> {
    x: Rows<'a>,
    classes: Classes<'a>,
    ignore: Option<i64>,
    /// Least number of a position without a class.
    wrong: &'a AtomicUsize,
}

/// A position of a row.
#[derive(Clone, Copy)]
struct Position {
    row: usize,
    w: usize,
    /// None where it does not count.
    class: Option<usize>,
}

impl Scores<'_> {
    fn position(&self, (row, start): (usize, usize), w: usize) -> Position {
        let grid = self.x.grid;
        let target = self.classes.get(start + w * self.classes.pitch[3]);
        let is_valid = is_class(target, grid.channels);
        let is_ignored = is_ignored(target, self.ignore);
        if !is_valid && !is_ignored {
            let position = row * grid.extent[2] + w;
            self.wrong.fetch_min(position, Ordering::Relaxed);
        }
        let class = (is_valid && !is_ignored).then_some(target as usize);
        Position { row, w, class }
    }

    /// Visits every position with its logits, its softmax and the logarithm of the softmax's denominator.
    ///
    /// # Safety
    /// The box has the rows.
    #[inline(always)]
    unsafe fn each_softmax(
        &self,
        rows: Range<usize>,
        mut visit: impl FnMut(Position, &[f32], &[f64], f64),
    ) {
        let grid = self.x.grid;
        let (width, c) = (grid.extent[2], grid.channels);
        let step = (BUFFER / c.max(1)).max(1);
        let (mut short, mut long) = ([0.0; SHORT], Vec::new());
        let shares = scratch(&mut short, &mut long, step * c);
        let mut greatest = [0.0; BUFFER];
        for row in rows {
            let start = self.classes.start(index(grid, row * width));
            for first in (0..width).step_by(step) {
                let count = step.min(width - first);
                // SAFETY: positions of the box.
                let logits = |w: usize| unsafe {
                    let at = self.x.start(row).add(w * grid.pitch[3]);
                    std::slice::from_raw_parts(at.cast_const(), c)
                };
                for i in 0..count {
                    let logits = logits(first + i);
                    let most = f64::from(maximum(logits));
                    greatest[i] = most;
                    for (share, x) in shares[i * c..][..c].iter_mut().zip(logits) {
                        *share = f64::from(*x) - most;
                    }
                }
                for share in shares[..count * c].iter_mut() {
                    *share = exp(*share);
                }
                for i in 0..count {
                    let logits = logits(first + i);
                    let shares = &mut shares[i * c..][..c];
                    let total = sum(shares);
                    shares.iter_mut().for_each(|share| *share /= total);
                    let log_total = greatest[i] + total.ln();
                    visit(
                        self.position((row, start), first + i),
                        logits,
                        shares,
                        log_total,
                    );
                }
            }
        }
    }
}

/// Fails if a target class is out of range.
fn check(scores: &Scores<'_>, target: &AnyBlock<'_>, rank: Rank) -> Result<(), RunError> {
    let first = scores.wrong.load(Ordering::Relaxed);
    if first == usize::MAX {
        return Ok(());
    }
    let grid = scores.x.grid;
    let class = target.get(index(grid, first));
    Err(no_class(class, grid.channels, rank))
}

thread_local! {
    /// Sums of the parts of a sample and factors of samples, kept by the thread of a rank from step to step.
    static SLOTS: Cell<Vec<AtomicU64>> = const { Cell::new(Vec::new()) };
    static FACTORS: Cell<Vec<Factors>> = const { Cell::new(Vec::new()) };
}

fn dice_sums(of: DiceSums<'_>, rank: Rank, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let visits = of.x.volume() as u64;
    let (x, target) = (run.input(of.x), run.any(of.target));
    let mut sums = run.totals(of.sums, false);
    let wrong = AtomicUsize::new(usize::MAX);
    let scores = Scores {
        x: Rows::from(x.view()),
        classes: Classes::of(&target),
        ignore: *of.ignore,
        wrong: &wrong,
    };
    let grid = x.view().grid;
    let (level, classes) = (run.team.level(), grid.channels);
    let rows_of_sample = grid.rows() / grid.samples.max(1);
    let cost = EXPONENTIAL * (grid.elements() / grid.samples.max(1) / PARTS) as u64;
    let all = sums.data_mut();
    all.fill(0.0);
    let mut kept = SLOTS.take();
    kept.resize_with(PARTS * 3 * classes, AtomicU64::default);
    for sample in 0..grid.samples {
        let slots = &kept[..];
        let summed = run.team.units(run.progress, PARTS, cost, &|unit, _| {
            let within = part(rows_of_sample, unit, PARTS);
            let first = sample * rows_of_sample;
            let (mut short, mut long) = ([0.0; SHORT], Vec::new());
            let own = scratch(&mut short, &mut long, 3 * classes);
            let rows = DiceRows {
                scores,
                rows: within.start + first..within.end + first,
                sums: own,
            };
            // SAFETY: the box has the rows, and the team has the level.
            unsafe { level.run(rows) };
            for (slot, sum) in slots[unit * 3 * classes..].iter().zip(own) {
                slot.store(sum.to_bits(), Ordering::Relaxed);
            }
        });
        summed.map_err(|Canceled| RunError::Cancelled)?;
        let row = if *of.batch { 0 } else { sample };
        let row = &mut all[row * 3 * classes..][..3 * classes];
        for (at, slot) in slots.iter().enumerate() {
            row[at % (3 * classes)] += f64::from_bits(slot.load(Ordering::Relaxed));
        }
    }
    SLOTS.set(kept);
    check(&scores, &target, rank)?;
    Ok(6 * visits)
}

/// Pointers: the box has the rows.
struct DiceRows<'a, 's> {
    scores: Scores<'a>,
    rows: Range<usize>,
    sums: &'s mut [f64],
}

impl Op for DiceRows<'_, '_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let classes = self.scores.x.grid.channels;
        let (hits, rest) = self.sums.split_at_mut(classes);
        let (given, wanted) = rest.split_at_mut(classes);
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.scores.each_softmax(self.rows, |at, _, shares, _| {
                let Some(class) = at.class else { return };
                for (sum, share) in given.iter_mut().zip(shares) {
                    *sum += share;
                }
                hits[class] += shares[class];
                wanted[class] += 1.0;
            });
        }
    }
}

/// What Dice adds at each position of a sample, and its derivatives by the softmax.
type Factors = (f64, Vec<[f64; 2]>);

fn factors(terms: &ClassTerms, sums: &[f64], classes: usize) -> Vec<Factors> {
    let mut factors = FACTORS.take();
    factors.resize_with(sums.len() / (3 * classes), Factors::default);
    for (row, (value, derivatives)) in sums.chunks_exact(3 * classes).zip(&mut factors) {
        derivatives.clear();
        derivatives.resize(classes, [0.0; 2]);
        let three = std::array::from_fn(|i| &row[i * classes..][..classes]);
        *value = terms.dice_factors(three, derivatives);
    }
    factors
}

fn class_loss(of: ClassLoss<'_>, rank: Rank, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let (x, weight, terms) = (of.x, *of.weight, of.terms);
    if let Some(dx) = of.dx {
        assert_eq!(dx.extent, x.extent, "{dx} and {x} have one shape");
    }
    let visits = x.volume() as u64;
    let (x, target) = (run.input(x), run.any(of.target));
    let [totals, sums] = [of.totals, of.sums].map(|view| view.map(|view| run.sums(&view)));
    let mut loss = run.totals(of.loss, false);
    let mut dx = of.dx.map(|dx| run.output(&dx));
    let grid = x.view().grid;
    let wrong = AtomicUsize::new(usize::MAX);
    let dice = sums
        .as_ref()
        .map_or_else(Vec::new, |sums| factors(terms, sums.data(), grid.channels));
    let slopes = Slopes {
        scores: Scores {
            x: Rows::from(x.view()),
            classes: Classes::of(&target),
            ignore: terms.ignore,
            wrong: &wrong,
        },
        dx: dx.as_mut().map(|dx| Rows::from(dx.view())),
        terms,
        entropy: terms.entropy_factor(totals.as_ref().map(|totals| totals.data())),
        dice: &dice,
        weight: run.inputs.gradient_factor() * weight,
    };
    let sum = sum_rows(run, grid, EXPONENTIAL, |level, rows| {
        // SAFETY: boxes of one shape, of which dx is borrowed alone; each row is in one range, and the team has
        // the level.
        unsafe { level.run(SlopeRows { slopes, rows }) }
    })?;
    check(&slopes.scores, &target, rank)?;
    if !dice.is_empty() {
        FACTORS.set(dice);
    }
    loss.data_mut()[0] = weight * sum;
    Ok(10 * visits)
}

/// Of a loss, its value and gradient.
#[derive(Clone, Copy)]
struct Slopes<'a> {
    scores: Scores<'a>,
    dx: Option<Rows<'a>>,
    terms: &'a ClassTerms,
    /// Factor of the cross-entropy of a position.
    entropy: f64,
    dice: &'a [Factors],
    weight: f64,
}

/// Pointers: the boxes have the rows, and no other thread accesses those of dx.
struct SlopeRows<'a> {
    slopes: Slopes<'a>,
    rows: Range<usize>,
}

impl Op for SlopeRows<'_> {
    type Out = f64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        let slopes = self.slopes;
        let grid = slopes.scores.x.grid;
        let rows_of_sample = grid.extent[0] * grid.extent[1];
        let mut loss = 0.0;
        let (mut short, mut long) = ([0.0; SHORT], Vec::new());
        let slope = scratch(&mut short, &mut long, grid.channels);
        // SAFETY: guaranteed by the caller.
        unsafe {
            slopes
                .scores
                .each_softmax(self.rows, |at, logits, shares, log_total| {
                    slope.fill(0.0);
                    let dice = match slopes.dice {
                        [] => None,
                        [one] => Some(one),
                        all => Some(&all[at.row / rows_of_sample]),
                    };
                    loss += dice.map_or(0.0, |(value, _)| *value);
                    if let Some(class) = at.class {
                        loss += slopes.entropy((logits, log_total), shares, class, slope);
                        if let Some((_, derivatives)) = dice {
                            add_dice(derivatives, shares, class, slope);
                        }
                    }
                    if let Some(dx) = slopes.dx {
                        let start = dx.start(at.row).add(at.w * dx.grid.pitch[3]);
                        let dx = std::slice::from_raw_parts_mut(start, shares.len());
                        for (dx, slope) in dx.iter_mut().zip(slope.iter()) {
                            *dx = (slopes.weight * slope) as f32;
                        }
                    }
                });
        }
        loss
    }
}

impl Slopes<'_> {
    /// Cross-entropy of a position, which becomes its slope.
    #[inline(always)]
    fn entropy(
        &self,
        (logits, log_total): (&[f32], f64),
        shares: &[f64],
        class: usize,
        slope: &mut [f64],
    ) -> f64 {
        let (terms, factor) = (self.terms, self.entropy);
        if factor == 0.0 {
            return 0.0;
        }
        let own = factor * (1.0 - terms.smoothing) * terms.weight(class);
        let (mut loss, mut expected) = (own * (log_total - f64::from(logits[class])), own);
        slope[class] -= own;
        if terms.smoothing != 0.0 {
            let each = factor * terms.smoothing / shares.len() as f64;
            for (c, slope) in slope.iter_mut().enumerate() {
                let one = each * terms.weight(c);
                loss += one * (log_total - f64::from(logits[c]));
                expected += one;
                *slope -= one;
            }
        }
        for (slope, share) in slope.iter_mut().zip(shares) {
            *slope += expected * share;
        }
        loss
    }
}

/// Adds the gradient of Dice by the logits to a slope.
#[inline(always)]
fn add_dice(derivatives: &[[f64; 2]], shares: &[f64], class: usize, slope: &mut [f64]) {
    let pairs = derivatives.iter().zip(shares);
    let all: f64 = pairs.map(|([all, _], share)| all * share).sum();
    let own = derivatives[class][1];
    let mean = all - own * shares[class];
    for ((slope, share), [all, _]) in slope.iter_mut().zip(shares).zip(derivatives) {
        *slope += share * (all - mean);
    }
    slope[class] -= shares[class] * own;
}
