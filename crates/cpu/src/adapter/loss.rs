//! Losses, their gradients, and the errors and class counts beside them.

use super::operand::AnyBlock;
use super::{Output, Run};
use crate::grid::{Canceled, Grid, part};
use crate::rows::{Apply, ApplyRows, Rows, formula, three};
use crate::simd::{Level, Op, Simd};
use crate::team::ELEMENT;
use half::{bf16, f16};
use partita_program::fields::{ClassCounts, MeanSquaredError, OutputErrors, SoftmaxCrossEntropy};
use partita_program::{Fields, Kernel};
use partita_run::{Block, RunError};
use partita_space::Rank;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Parts of a sum, for any number of threads.
pub(super) const PARTS: usize = 64;
/// Elements whose losses are taken together.
const BLOCK: usize = 16;
/// Exponentials that are taken together.
pub(super) const BUFFER: usize = 64;
/// What an exponential costs, next to an element that is read.
pub(super) const EXPONENTIAL: u64 = 4 * ELEMENT;

pub(super) fn execute(kernel: &Kernel, rank: Rank, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::MeanSquaredError(of) => mean_squared_error(of, run),
        Fields::SoftmaxCrossEntropy(of) => softmax_cross_entropy(of, rank, run),
        Fields::OutputErrors(of) => output_errors(of, run),
        Fields::ClassCounts(of) => class_counts(of, rank, run),
        _ => panic!("{} is no loss", kernel.name()),
    }
}

/// Whether a target is the index of a class.
pub(super) fn is_class(target: f64, classes: usize) -> bool {
    target >= 0.0 && target < classes as f64 && target.fract() == 0.0
}

/// Visits every position in memory order.
fn each_position(
    extent: [usize; 5],
    run: &mut Run<'_, '_>,
    mut visit: impl FnMut([usize; 5]),
) -> Result<(), RunError> {
    for n in 0..extent[0] {
        for d in 0..extent[1] {
            for h in 0..extent[2] {
                run.go_on()?;
                (0..extent[3]).for_each(|w| visit([n, d, h, w, 0]));
            }
        }
    }
    Ok(())
}

/// The channels of a position.
fn channels<'b>(x: &'b Block<'_, f32>, at: [usize; 5]) -> &'b [f32] {
    let start = x.at(at);
    &x.data()[start..start + x.extent[4]]
}

fn put(dx: &mut Option<Output<'_>>, [n, d, h, w, _]: [usize; 5], c: usize, value: f64) {
    if let Some(dx) = dx {
        let block = dx.block();
        let at = block.at([n, d, h, w, c]);
        block.data_mut()[at] = value as f32;
    }
}

/// Adds up `body` over ranges of rows, on the team; the same bits for any number of threads.
pub(super) fn sum_rows(
    run: &mut Run<'_, '_>,
    grid: &Grid,
    element: u64,
    body: impl Fn(Level, Range<usize>) -> f64 + Sync,
) -> Result<f64, RunError> {
    let sums = [const { AtomicU64::new(0) }; PARTS];
    let level = run.team.level();
    let cost = element * (grid.elements() / PARTS) as u64;
    let summed = run.team.units(run.progress, PARTS, cost, &|unit, _| {
        let sum = body(level, part(grid.rows(), unit, PARTS));
        sums[unit].store(sum.to_bits(), Ordering::Relaxed);
    });
    summed.map_err(|Canceled| RunError::Cancelled)?;
    let sums = sums
        .iter()
        .map(|sum| f64::from_bits(sum.load(Ordering::Relaxed)));
    Ok(sums.sum())
}

fn mean_squared_error(of: MeanSquaredError<'_>, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let (x, target, count, weight) = (of.x, of.target, *of.count, *of.weight);
    assert_eq!(x.extent, target.extent, "{x} and its target have one shape");
    let visits = x.volume() as u64;
    let (x, wide) = (run.input(x), run.any(target));
    let mut loss = run.totals(of.loss, false);
    let mut dx = of.dx.map(|dx| run.output(&dx));
    let sum = match wide {
        AnyBlock::F32(block) => {
            let target = super::Input::new(block);
            let (x, target) = (x.view(), target.view());
            let to = dx.as_mut().map(|dx| Rows::from(dx.view()));
            let factor = (run.inputs.gradient_factor() * weight * 2.0 / count as f64) as f32;
            let [from, want, _] = three([x, target], Rows::from(x));
            sum_rows(run, x.grid, ELEMENT, |level, rows| {
                let mut sum = 0.0;
                for row in rows {
                    let rows = row..row + 1;
                    if let Some(to) = to {
                        let apply = Apply::new([x, target], to, Difference { factor });
                        let rows = rows.clone();
                        // SAFETY: dx is borrowed alone, each row is in one range, and the team has
                        // the level.
                        unsafe { level.run(ApplyRows { apply, rows }) };
                    }
                    let squares = Squares {
                        x: from,
                        target: want,
                        rows,
                    };
                    // SAFETY: boxes of one shape, which are only read.
                    sum += unsafe { level.run(squares) };
                }
                sum
            })?
        }
        AnyBlock::F64(_) | AnyBlock::Bf16(_) | AnyBlock::F16(_) | AnyBlock::I16(_) => {
            let factor = run.inputs.gradient_factor() * weight;
            let mut sum = 0.0;
            each_position(x.block().extent, run, |at| {
                for (c, x) in channels(x.block(), at).iter().enumerate() {
                    let error = f64::from(*x) - wide.get([at[0], at[1], at[2], at[3], c]);
                    sum += error * error;
                    put(&mut dx, at, c, factor * 2.0 * error / count as f64);
                }
            })?;
            sum
        }
    };
    loss.data_mut()[0] = weight * sum / count as f64;
    Ok(4 * visits)
}

formula!(Difference { factor }, false, |S, [x, target, _], _, _| {
    S::mul(factor, S::sub(x, target))
});

/// Sums of the squares of x - target. Pointers: the boxes have the rows, which no thread writes.
struct Squares<'a> {
    x: Rows<'a>,
    target: Rows<'a>,
    rows: Range<usize>,
}

impl Op for Squares<'_> {
    type Out = f64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        let (x, target) = (self.x, self.target);
        let (width, c) = (x.grid.extent[2], x.grid.channels);
        let pitch = [x.grid.pitch[3], target.grid.pitch[3]];
        let (count, len) = if pitch == [c; 2] {
            (1, width * c)
        } else {
            (width, c)
        };
        let mut sums = [0.0; BLOCK];
        for row in self.rows {
            for w in 0..count {
                // SAFETY: stretches of the boxes.
                unsafe {
                    let x = x.start(row).add(w * pitch[0]);
                    let target = target.start(row).add(w * pitch[1]);
                    let x = std::slice::from_raw_parts(x.cast_const(), len);
                    let target = std::slice::from_raw_parts(target.cast_const(), len);
                    errors(x, target, &mut sums);
                }
            }
        }
        sums.iter().sum()
    }
}

/// Adds the squares of x - target to the sums.
#[inline(always)]
fn errors(x: &[f32], target: &[f32], sums: &mut [f64; BLOCK]) {
    let ((x, x_rest), (target, rest)) = (x.as_chunks::<BLOCK>(), target.as_chunks::<BLOCK>());
    let mut sum = *sums;
    for (x, target) in x.iter().zip(target) {
        for i in 0..BLOCK {
            let error = f64::from(x[i]) - f64::from(target[i]);
            sum[i] += error * error;
        }
    }
    for (x, target) in x_rest.iter().zip(rest) {
        sum[0] += (f64::from(*x) - f64::from(*target)).powi(2);
    }
    *sums = sum;
}

fn softmax_cross_entropy(
    of: SoftmaxCrossEntropy<'_>,
    rank: Rank,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (x, target, weight) = (of.x, of.target, *of.weight);
    assert_eq!(
        x.extent[..4],
        target.extent[..4],
        "positions of x and its target"
    );
    if let Some(dx) = of.dx {
        assert_eq!(dx.extent, x.extent, "{dx} and {x} have one shape");
    }
    let visits = x.volume() as u64;
    let (x, target) = (run.input(x), run.any(target));
    let mut loss = run.totals(of.loss, false);
    let mut dx = of.dx.map(|dx| run.output(&dx));
    let grid = x.view().grid;
    let wrong = AtomicUsize::new(usize::MAX);
    let classes = Classes::of(&target);
    let entropy = Entropy {
        x: Rows::from(x.view()),
        dx: dx.as_mut().map(|dx| Rows::from(dx.view())),
        factor: run.inputs.gradient_factor() * weight / *of.count as f64,
        smoothing: *of.smoothing,
        classes,
        wrong: &wrong,
    };
    let sum = sum_rows(run, grid, EXPONENTIAL, |level, rows| {
        // SAFETY: boxes of one shape, of which dx is borrowed alone; each row is in one range, and the
        // team has the level.
        unsafe { level.run(EntropyRows { entropy, rows }) }
    })?;
    let first = wrong.load(Ordering::Relaxed);
    if first != usize::MAX {
        let class = target.get(index(grid, first));
        return Err(no_class(class, grid.channels, rank));
    }
    loss.data_mut()[0] = weight * sum / *of.count as f64;
    Ok(5 * visits)
}

pub(super) fn no_class(class: f64, classes: usize, rank: Rank) -> RunError {
    let last = classes - 1;
    let reason = format!("a target names class {class}; classes are 0 to {last}");
    RunError::Source { rank, reason }
}

/// Index of a position by its number, channel 0.
pub(super) fn index(grid: &Grid, position: usize) -> [usize; 5] {
    let [depth, height, width] = grid.extent;
    let (w, row) = (position % width, position / width);
    let (h, rest) = (row % height, row / height);
    [rest / depth, rest % depth, h, w, 0]
}

/// Class numbers, or other targets, as threads may read them.
#[derive(Clone, Copy)]
pub(super) struct Classes<'a> {
    numbers: Numbers<'a>,
    pub(super) pitch: [usize; 5],
}

#[derive(Clone, Copy)]
enum Numbers<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
    I16(&'a [i16]),
}

impl<'a> Classes<'a> {
    pub(super) fn of(target: &'a AnyBlock<'_>) -> Classes<'a> {
        let (numbers, pitch) = match target {
            AnyBlock::F32(block) => (Numbers::F32(block.data()), block.pitch),
            AnyBlock::F64(block) => (Numbers::F64(block.data()), block.pitch),
            AnyBlock::Bf16(block) => (Numbers::Bf16(block.data()), block.pitch),
            AnyBlock::F16(block) => (Numbers::F16(block.data()), block.pitch),
            AnyBlock::I16(block) => (Numbers::I16(block.data()), block.pitch),
        };
        Classes { numbers, pitch }
    }

    pub(super) fn start(&self, index: [usize; 5]) -> usize {
        (0..5).map(|dim| index[dim] * self.pitch[dim]).sum()
    }

    pub(super) fn get(&self, at: usize) -> f64 {
        match self.numbers {
            Numbers::F32(numbers) => f64::from(numbers[at]),
            Numbers::F64(numbers) => numbers[at],
            Numbers::Bf16(numbers) => f64::from(numbers[at]),
            Numbers::F16(numbers) => f64::from(numbers[at]),
            Numbers::I16(numbers) => f64::from(numbers[at]),
        }
    }
}

/// Logits and classes.
#[derive(Clone, Copy)]
struct Entropy<'a> {
    x: Rows<'a>,
    dx: Option<Rows<'a>>,
    factor: f64,
    smoothing: f64,
    classes: Classes<'a>,
    /// Least number of a position without a class.
    wrong: &'a AtomicUsize,
}

impl Entropy<'_> {
    /// Class of a position of a row, whose first class lies at `start`.
    fn class(&self, (row, start): (usize, usize), w: usize) -> Option<usize> {
        let grid = self.x.grid;
        let class = self.classes.get(start + w * self.classes.pitch[3]);
        let valid = is_class(class, grid.channels);
        if !valid {
            let position = row * grid.extent[2] + w;
            self.wrong.fetch_min(position, Ordering::Relaxed);
        }
        valid.then_some(class as usize)
    }
}

/// Pointers: the boxes have the rows, and no other thread accesses those of dx.
struct EntropyRows<'a> {
    entropy: Entropy<'a>,
    rows: Range<usize>,
}

impl Op for EntropyRows<'_> {
    type Out = f64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        let Entropy { x, dx, classes, .. } = self.entropy;
        let (width, c) = (x.grid.extent[2], x.grid.channels);
        let (mut loss, mut buffer) = (0.0, [0.0; BUFFER]);
        let joined = x.grid.pitch[3] == c && dx.is_none_or(|dx| dx.grid.pitch[3] == c);
        let step = if joined {
            (BUFFER / c.max(1)).max(1)
        } else {
            1
        };
        for row in self.rows {
            let start = classes.start(index(x.grid, row * width));
            for w in (0..width).step_by(step) {
                let count = step.min(width - w);
                // SAFETY: positions of the boxes; each row is in one range.
                let (logits, shares) = unsafe {
                    let x = x.start(row).add(w * x.grid.pitch[3]);
                    let dx = dx.map(|dx| {
                        let start = dx.start(row).add(w * dx.grid.pitch[3]);
                        std::slice::from_raw_parts_mut(start, count * c)
                    });
                    (std::slice::from_raw_parts(x.cast_const(), count * c), dx)
                };
                let at = ((row, start), w);
                loss += if c <= BUFFER {
                    self.entropy.positions(at, logits, shares, &mut buffer)
                } else {
                    self.entropy.position(at, logits, shares, &mut buffer)
                };
            }
        }
        loss
    }
}

impl Entropy<'_> {
    /// Loss of positions whose exponentials fit the buffer together.
    #[inline(always)]
    fn positions(
        &self,
        (row, w): ((usize, usize), usize),
        logits: &[f32],
        mut shares: Option<&mut [f32]>,
        buffer: &mut [f64; BUFFER],
    ) -> f64 {
        let c = self.x.grid.channels;
        let mut loss = 0.0;
        for (i, logits) in logits.chunks_exact(c).enumerate() {
            let most = f64::from(maximum(logits));
            for (e, x) in buffer[i * c..].iter_mut().zip(logits) {
                *e = f64::from(*x) - most;
            }
        }
        for e in buffer.iter_mut() {
            *e = exp(*e);
        }
        // The totals lie between 1 and c, so that their product has a place in f64.
        let mut product = 1.0;
        for (i, all) in buffer[..logits.len()].chunks_exact(c).enumerate() {
            let Some(class) = self.class(row, w + i) else {
                continue;
            };
            let total = sum(all);
            let logits = &logits[i * c..][..c];
            loss += f64::from(maximum(logits)) - f64::from(logits[class]);
            product *= total;
            if let Some(shares) = &mut shares {
                let (shares, scale) = (&mut shares[i * c..][..c], self.factor / total);
                for (share, e) in shares.iter_mut().zip(all) {
                    *share = (scale * *e) as f32;
                }
                shares[class] = (scale * (all[class] - total)) as f32;
            }
            let shares = shares.as_mut().map(|shares| &mut shares[i * c..][..c]);
            loss += self.smooth(logits, class, shares);
        }
        loss + product.ln()
    }

    /// What smoothing adds to the loss of a position of this class; the gradient becomes that of the
    /// smoothed target.
    #[inline(always)]
    fn smooth(&self, logits: &[f32], class: usize, shares: Option<&mut [f32]>) -> f64 {
        if self.smoothing == 0.0 {
            return 0.0;
        }
        let classes = logits.len() as f64;
        if let Some(shares) = shares {
            let each = (self.factor * self.smoothing / classes) as f32;
            shares.iter_mut().for_each(|share| *share -= each);
            shares[class] += (self.factor * self.smoothing) as f32;
        }
        let total: f64 = logits.iter().map(|x| f64::from(*x)).sum();
        self.smoothing * (f64::from(logits[class]) - total / classes)
    }

    /// Loss of one position.
    #[inline(always)]
    fn position(
        &self,
        (row, w): ((usize, usize), usize),
        logits: &[f32],
        shares: Option<&mut [f32]>,
        buffer: &mut [f64; BUFFER],
    ) -> f64 {
        let Some(class) = self.class(row, w) else {
            return 0.0;
        };
        let most = f64::from(maximum(logits));
        let own = f64::from(logits[class]);
        let mut total = 0.0;
        let Some(shares) = shares else {
            for logits in logits.chunks(BUFFER) {
                total += sum(exponentials(logits, most, buffer));
            }
            return most + total.ln() - own + self.smooth(logits, class, None);
        };
        for (logits, shares) in logits.chunks(BUFFER).zip(shares.chunks_mut(BUFFER)) {
            let all = exponentials(logits, most, buffer);
            total += sum(all);
            for (share, e) in shares.iter_mut().zip(all) {
                *share = *e as f32;
            }
        }
        let scale = self.factor / total;
        for share in shares.iter_mut() {
            *share = (scale * f64::from(*share)) as f32;
        }
        shares[class] = (scale * (exp(own - most) - total)) as f32;
        most + total.ln() - own + self.smooth(logits, class, Some(shares))
    }
}

/// e^(x - most) of the logits, in the buffer.
#[inline(always)]
fn exponentials<'b>(logits: &[f32], most: f64, buffer: &'b mut [f64; BUFFER]) -> &'b [f64] {
    let all = &mut buffer[..logits.len()];
    for (e, x) in all.iter_mut().zip(logits) {
        *e = exp(f64::from(*x) - most);
    }
    all
}

#[inline(always)]
pub(super) fn maximum(values: &[f32]) -> f32 {
    let larger = |most: f32, x: f32| if x > most { x } else { most };
    let (blocks, rest) = values.as_chunks::<8>();
    let mut most = [f32::NEG_INFINITY; 8];
    for block in blocks {
        for i in 0..8 {
            most[i] = larger(most[i], block[i]);
        }
    }
    most.iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, |most, x| larger(most, *x))
}

#[inline(always)]
pub(super) fn sum(values: &[f64]) -> f64 {
    let (blocks, rest) = values.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for block in blocks {
        for i in 0..8 {
            sums[i] += block[i];
        }
    }
    sums.iter().sum::<f64>() + rest.iter().sum::<f64>()
}

/// e^x for x up to about 0, without branches, so that loops over it become vectors; to 1e-11, which
/// is far below what f32 holds.
///
/// x = n ln 2 + r with |r| <= ln(2) / 2, and e^r by its series.
#[inline(always)]
pub(super) fn exp(x: f64) -> f64 {
    /// Adding it leaves the nearest whole number in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    const LEAST: f64 = -700.0;
    let x = if x < LEAST { LEAST } else { x };
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let r = x - (shifted - ROUND) * std::f64::consts::LN_2;
    let (r2, r4) = (r * r, r * r * (r * r));
    let low = (1.0 + r) + r2 * (1.0 / 2.0 + r * (1.0 / 6.0));
    let middle = (1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5_040.0));
    let high = 1.0 / 40_320.0 + r * (1.0 / 362_880.0);
    let series = low + r4 * (middle + r4 * high);
    series * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
}

fn output_errors(of: OutputErrors<'_>, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let (x, target) = (of.x, of.target);
    assert_eq!(x.extent, target.extent, "{x} and its target have one shape");
    let (x, target) = (run.read::<f32>(x), run.any(target));
    let mut errors = run.totals(of.errors, false);
    errors.data_mut().fill(0.0);
    let (absolute, squared) = errors.data_mut().split_at_mut(x.extent[4]);
    let mut visits = 0;
    each_position(x.extent, run, |at| {
        for (c, x) in channels(&x, at).iter().enumerate() {
            let x = f64::from(*x);
            let given = if *of.logistic {
                1.0 / (1.0 + (-x).exp())
            } else {
                x
            };
            let error = given - target.get([at[0], at[1], at[2], at[3], c]);
            absolute[c] += error.abs();
            squared[c] += error * error;
            visits += 1;
        }
    })?;
    Ok(4 * visits)
}

fn class_counts(of: ClassCounts<'_>, rank: Rank, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let (x, target) = (of.x, of.target);
    assert_eq!(
        x.extent[..4],
        target.extent[..4],
        "positions of x and its target"
    );
    let (x, target) = (run.read::<f32>(x), run.any(target));
    let mut counts = run.totals(of.counts, false);
    counts.data_mut().fill(0.0);
    let classes = x.extent[4];
    let mut wrong = None;
    each_position(x.extent, run, |at| {
        let class = target.get(at);
        if of.ignore.is_some_and(|index| class == index as f64) {
            return;
        }
        if !is_class(class, classes) {
            wrong.get_or_insert(class);
            return;
        }
        let (mut given, mut most) = (0, f32::NEG_INFINITY);
        for (c, &score) in channels(&x, at).iter().enumerate() {
            if score > most {
                (given, most) = (c, score);
            }
        }
        let class = class as usize;
        let counts = counts.data_mut();
        counts[class] += if given == class { 1.0 } else { 0.0 };
        counts[classes + given] += 1.0;
        counts[2 * classes + class] += 1.0;
    })?;
    if let Some(class) = wrong {
        return Err(no_class(class, classes, rank));
    }
    Ok(x.extent.iter().product::<usize>() as u64)
}
