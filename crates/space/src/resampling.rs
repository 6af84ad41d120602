//! Resampling along one dim: each output is a weighted mean of a few inputs at a rational position.

use crate::Interval;
use serde::{Deserialize, Serialize};

/// How an output is computed from the inputs around its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ResampleRule {
    /// The input at the position rounded down; beyond the border, the border input.
    Nearest,
    /// Linear interpolation between the inputs on both sides of the position; beyond the border, the border
    /// input.
    Linear,
    /// The mean of all inputs that the interval from the position to that of the next output touches.
    Average,
    /// The input at the position rounded down, mirrored at the first and at the last input.
    Reflect,
    /// The input at the position rounded down; beyond the border zero.
    Zero,
}

impl ResampleRule {
    /// All rules.
    pub const ALL: [Self; 5] = [
        Self::Nearest,
        Self::Linear,
        Self::Average,
        Self::Reflect,
        Self::Zero,
    ];

    /// Its word in kernel keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::Linear => "linear",
            Self::Average => "average",
            Self::Reflect => "reflect",
            Self::Zero => "zero",
        }
    }

    /// Whether an output reads at most one input, with weight 1.
    pub fn is_copy(self) -> bool {
        match self {
            Self::Nearest | Self::Reflect | Self::Zero => true,
            Self::Linear | Self::Average => false,
        }
    }
}

/// A map from the inputs along one dim to the outputs: output `o` has the position
/// `(o * numerator + shift) / denominator` among the inputs.
///
/// Counted from the starts of two blocks instead, with [`Resampling::local`], it is the same map as long as the
/// block of inputs is what [`Resampling::inputs_of`] says: then the border of the block acts like that of the
/// dim.
/// Source of the positions: PyTorch, `Upsample`, `AdaptiveAvgPool3d`, `ReflectionPad3d`, `ReplicationPad3d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resampling {
    /// What is computed there.
    pub rule: ResampleRule,
    /// Numerator of the distance between neighboring positions.
    pub numerator: usize,
    /// Its denominator, at least 1.
    pub denominator: usize,
    /// Numerator of the position of output 0.
    pub shift: i64,
}

/// Sums of a few numbers below it do not wrap in 64 bits.
const FAR: i128 = 1 << 60;

impl Resampling {
    /// Each output is the input of the same index.
    pub const IDENTITY: Self = Self {
        rule: ResampleRule::Nearest,
        numerator: 1,
        denominator: 1,
        shift: 0,
    };

    /// Each input is repeated `factor` times.
    pub fn nearest(factor: usize) -> Self {
        Self {
            denominator: factor,
            ..Self::IDENTITY
        }
    }

    /// Linear interpolation to `factor` outputs per input. The corners of the pixels are aligned, or with
    /// `align_corners` the centers of the first and of the last of `extent` inputs and their outputs.
    pub fn linear(extent: usize, factor: usize, align_corners: bool) -> Self {
        if factor == 1 || extent == 1 {
            return Self::nearest(factor);
        }
        let rule = ResampleRule::Linear;
        if align_corners {
            let (inputs, outputs) = (extent - 1, extent * factor - 1);
            return Self::reduced(rule, inputs, outputs);
        }
        Self {
            rule,
            numerator: 2,
            denominator: 2 * factor,
            shift: 1 - factor as i64,
        }
    }

    /// The mean over `outputs` windows that cover `extent` inputs.
    pub fn average(extent: usize, outputs: usize) -> Self {
        Self::reduced(ResampleRule::Average, extent, outputs)
    }

    /// Padding of `low` outputs before the first input.
    pub fn pad(rule: ResampleRule, low: usize) -> Self {
        Self {
            rule,
            shift: -(low as i64),
            ..Self::IDENTITY
        }
    }

    /// Every `step`th input from `start` on.
    pub fn strided(start: usize, step: usize) -> Self {
        Self {
            numerator: step,
            shift: start as i64,
            ..Self::IDENTITY
        }
    }

    /// The nearest of `extent` inputs below the position of each of `outputs`.
    pub fn nearest_of(extent: usize, outputs: usize) -> Self {
        Self::reduced(ResampleRule::Nearest, extent, outputs)
    }

    /// Linear interpolation of `extent` inputs to `outputs` outputs, with corners as in [`Resampling::linear`].
    pub fn linear_of(extent: usize, outputs: usize, align_corners: bool) -> Self {
        if extent == outputs {
            return Self::IDENTITY;
        }
        let rule = ResampleRule::Linear;
        if align_corners {
            return match outputs {
                1 => Self::nearest_of(extent, 1),
                _ => Self::reduced(rule, extent - 1, outputs - 1),
            };
        }
        Self {
            rule,
            numerator: 2 * extent,
            denominator: 2 * outputs,
            shift: extent as i64 - outputs as i64,
        }
    }

    fn reduced(rule: ResampleRule, numerator: usize, denominator: usize) -> Self {
        let divisor = divisor(numerator as i128, denominator as i128).0 as usize;
        Self {
            rule,
            numerator: numerator / divisor,
            denominator: denominator / divisor,
            shift: 0,
        }
    }

    /// The same map between the inputs from `input` on and the outputs from `output` on, counted from these.
    pub fn local(&self, output: i64, input: i64) -> Self {
        let shift = self.scaled(output) - i128::from(input) * self.denominator as i128;
        Self {
            shift: shift as i64,
            ..*self
        }
    }

    /// Numerator of the position of an output.
    fn scaled(&self, output: i64) -> i128 {
        i128::from(output) * self.numerator as i128 + i128::from(self.shift)
    }

    fn below(&self, output: i64) -> i64 {
        self.scaled(output).div_euclid(self.denominator as i128) as i64
    }

    /// The position of an output, rounded up.
    fn above(&self, output: i64) -> i64 {
        -(-self.scaled(output)).div_euclid(self.denominator as i128) as i64
    }

    /// First and last input that a block of outputs would read without a border, both included.
    fn reach(&self, outputs: &Interval) -> (i64, i64) {
        let last = outputs.end - 1;
        let end = match self.rule {
            ResampleRule::Linear => self.below(last) + 1,
            ResampleRule::Average => self.above(last + 1) - 1,
            ResampleRule::Nearest | ResampleRule::Reflect | ResampleRule::Zero => self.below(last),
        };
        (self.below(outputs.start), end)
    }

    /// The inputs of `extent` that a block of outputs reads, with the border input where outputs lie beyond it;
    /// never empty, unless there is no output or no input.
    pub fn inputs_of(&self, outputs: &Interval, extent: usize) -> Interval {
        if outputs.is_empty() || extent == 0 {
            return Interval::new(0, 0);
        }
        let last = extent as i64 - 1;
        let (low, high) = self.reach(outputs);
        let (mut start, mut end) = (low.clamp(0, last), high.clamp(0, last));
        if self.rule == ResampleRule::Reflect {
            if low < 0 {
                end = end.max((-low).min(last));
            }
            if high > last {
                start = start.min((2 * last - high).max(0));
            }
        }
        Interval::new(start, end + 1)
    }

    /// Outputs among `outputs` that may read an input: an interval that holds all that do.
    pub fn outputs_of(&self, input: usize, extent: usize, outputs: usize) -> Interval {
        if self.rule == ResampleRule::Reflect {
            // The output at the input, and those before and behind the borders.
            let (input, last) = (input as i64, extent as i64 - 1);
            let all = Interval::all(outputs);
            let at = [input, -input, 2 * last - input].map(|position| position - self.shift);
            let inside = at.into_iter().filter(|&o| all.start <= o && o < all.end);
            return inside.fold(Interval::default(), |hull, o| {
                hull.hull(&Interval::new(o, o + 1))
            });
        }
        let reads = |o: i64| self.inputs_of(&Interval::new(o, o + 1), extent);
        let input = input as i64;
        let start = first(outputs as i64, |o| reads(o).end > input);
        Interval::new(start, first(outputs as i64, |o| reads(o).start > input))
    }

    /// The inputs of `extent` that an output reads, with their weights, ascending but for mirrored ones; an input
    /// may come twice.
    pub fn taps(&self, output: i64, extent: usize, mut visit: impl FnMut(usize, f64)) {
        let last = extent as i64 - 1;
        let first = self.below(output);
        let inside = |input: i64| input.clamp(0, last) as usize;
        match self.rule {
            ResampleRule::Nearest => visit(inside(first), 1.0),
            ResampleRule::Linear => {
                let rest = self.scaled(output).rem_euclid(self.denominator as i128);
                let weight = rest as f64 / self.denominator as f64;
                visit(inside(first), 1.0 - weight);
                visit(inside(first + 1), weight);
            }
            ResampleRule::Average => {
                let end = self.above(output + 1);
                let weight = 1.0 / (end - first) as f64;
                (first..end).for_each(|input| visit(inside(input), weight));
            }
            ResampleRule::Reflect => {
                let mirrored = if first < 0 { -first } else { first };
                let mirrored = if mirrored > last {
                    2 * last - mirrored
                } else {
                    mirrored
                };
                visit(inside(mirrored), 1.0);
            }
            ResampleRule::Zero => {
                if (0..=last).contains(&first) {
                    visit(first as usize, 1.0);
                }
            }
        }
    }

    /// Taps of the first `outputs` outputs together, those on zeros included.
    pub fn tap_count(&self, outputs: usize) -> u128 {
        let count = outputs as u128;
        match self.rule {
            ResampleRule::Nearest | ResampleRule::Reflect | ResampleRule::Zero => count,
            ResampleRule::Linear => 2 * count,
            ResampleRule::Average if outputs == 0 => 0,
            ResampleRule::Average => {
                // Neighboring windows share an input unless one begins where the other ends.
                let all = self.above(outputs as i64) - self.below(0);
                all.max(0) as u128 + (count - 1) - self.whole_positions(count - 1)
            }
        }
    }

    /// How many of the outputs `1..=outputs` have a position without a fraction.
    fn whole_positions(&self, outputs: u128) -> u128 {
        let (numerator, denominator) = (self.numerator as i128, self.denominator as i128);
        let (common, inverse) = divisor(numerator, denominator);
        let shift = i128::from(self.shift);
        if shift.rem_euclid(common) != 0 {
            return 0;
        }
        // Output o has one where o * numerator = -shift modulo the denominator.
        let period = denominator / common;
        let first = (-shift / common).rem_euclid(period) * inverse.rem_euclid(period) % period;
        let before = |count: i128| (count - first + period - 1).div_euclid(period).max(0);
        (before(outputs as i128 + 1) - before(1)) as u128
    }

    /// Whether outputs are defined and arithmetic on positions does not wrap, for blocks of this many inputs and
    /// outputs.
    pub fn fits(&self, inputs: usize, outputs: usize) -> bool {
        if self.denominator == 0 || inputs == 0 {
            return false;
        }
        let sizes = [self.numerator, self.denominator, inputs, outputs];
        let is_near = sizes.iter().all(|&size| (size as u128) < FAR as u128)
            && i128::from(self.shift).abs() < FAR
            && self.scaled(outputs as i64).abs() < FAR;
        if !is_near || outputs == 0 {
            return is_near;
        }
        let last = inputs as i64 - 1;
        let (low, high) = self.reach(&Interval::all(outputs));
        match self.rule {
            ResampleRule::Nearest | ResampleRule::Linear | ResampleRule::Zero => true,
            ResampleRule::Average => self.numerator > 0 && low >= 0 && high <= last,
            ResampleRule::Reflect => low >= -last && high <= 2 * last,
        }
    }
}

/// The first index below `end` at which a monotonic predicate holds, else `end`.
fn first(end: i64, holds: impl Fn(i64) -> bool) -> i64 {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Greatest common divisor, and a number that times `a` is it modulo `b`. Source: extended Euclidean algorithm.
fn divisor(a: i128, b: i128) -> (i128, i128) {
    let (mut old, mut rest) = ((a, 1), (b, 0));
    while rest.0 != 0 {
        let quotient = old.0 / rest.0;
        (old, rest) = (rest, (old.0 - quotient * rest.0, old.1 - quotient * rest.1));
    }
    old
}

#[cfg(test)]
mod tests;
