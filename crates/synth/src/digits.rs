//! Strings of digits and what is made of them: reversed, sorted, or added.

use crate::error::SynthError;
use crate::random::{CounterRng, Stream, permuted};

/// Names of the tokens, by number; the last two are free.
pub const TOKENS: [&str; 16] = [
    "padding",
    "start",
    "end",
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "9",
    "+",
    "unused 14",
    "unused 15",
];

const PADDING: i16 = 0;
const START: i16 = 1;
const END: i16 = 2;
/// The token of the digit 0; the others follow.
const ZERO: i16 = 3;
const PLUS: i16 = 13;

/// Longest number, in digits.
const DIGITS_MAX: usize = 512;
/// Digits in which no two numbers of a length agree where there are as many: 10^9 numbers are more
/// than any dataset asks for, and 10^18 pairs of them still fit 64 bits.
const HEAD: usize = 9;
/// Lengths are multiples of it where none is asked for.
const LENGTH_STEP: usize = 8;

/// What the answer to a string is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigitsTask {
    /// The digits from last to first.
    Reverse,
    /// The digits in ascending order.
    Sort,
    /// The sum of two numbers, its least significant digit first.
    Add,
}

/// What a dataset of digit strings is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DigitsSpec {
    /// What is to be answered.
    pub task: DigitsTask,
    /// Digits of a string, or of the longer number of a sum at most, 1 to 512.
    pub digits: usize,
    /// Whether strings have any number of digits from 1 on; those of sums always do.
    pub vary: bool,
    /// Positions of a sample; the smallest multiple of 8 that suffices if not given.
    pub length: Option<usize>,
    /// Samples of the whole dataset, at least 1.
    pub samples: usize,
    /// Names the dataset: with the other fields and the index of a sample it determines every bit.
    pub seed: u64,
}

/// A string with its answer, as an encoder and a decoder take them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DigitString {
    /// Indices into [`TOKENS`], layout (C, W): the string, then what a decoder has read when it is to
    /// give the label of the same position, `start` and the answer.
    pub values: Vec<i16>,
    /// Indices into [`TOKENS`], layout (W): the answer, `end`, padding.
    pub labels: Vec<i16>,
}

/// The strings of a dataset, of which no two are the same.
///
/// Lengths are as even as that allows: short strings run out first, and the longer ones share what
/// is left. Of a length, strings are drawn without putting any back.
#[derive(Debug, Clone)]
pub struct DigitStrings {
    spec: DigitsSpec,
    length: usize,
    groups: Vec<LengthGroup>,
}

/// Strings whose numbers have the same lengths.
#[derive(Debug, Clone)]
struct LengthGroup {
    /// Digits of each number.
    digits: Vec<usize>,
    /// Samples in all groups before this one.
    before: u64,
}

impl DigitsSpec {
    /// Positions that every sample fits in: of the answer and its `end`, or of both numbers of a sum
    /// and their sign.
    fn needed(&self) -> usize {
        match self.task {
            DigitsTask::Reverse | DigitsTask::Sort => self.digits + 1,
            DigitsTask::Add => 2 * self.digits + 1,
        }
    }

    /// Digits of each number of a string, for every group.
    fn groups(&self) -> Vec<Vec<usize>> {
        let lengths = 1..=self.digits;
        match (self.task, self.vary) {
            (DigitsTask::Reverse | DigitsTask::Sort, false) => vec![vec![self.digits]],
            (DigitsTask::Reverse | DigitsTask::Sort, true) => lengths.map(|a| vec![a]).collect(),
            (DigitsTask::Add, _) => lengths
                .clone()
                .flat_map(|a| lengths.clone().map(move |b| vec![a, b]))
                .collect(),
        }
    }
}

impl DigitStrings {
    /// Shares the samples out among the lengths.
    ///
    /// Errors: `InvalidSpec` for digits beyond their limits, `TooShort` for a length that does not
    /// hold every sample, `TooMany` for more samples than there are strings.
    pub fn new(spec: &DigitsSpec) -> Result<Self, SynthError> {
        if !(1..=DIGITS_MAX).contains(&spec.digits) {
            return Err(SynthError::InvalidSpec {
                field: "digits",
                expected: "1 to 512",
                got: spec.digits.to_string(),
            });
        }
        let needed = spec.needed();
        let length = spec.length.unwrap_or(needed.next_multiple_of(LENGTH_STEP));
        if length < needed {
            return Err(SynthError::TooShort { length, needed });
        }
        let digits = spec.groups();
        let sizes: Vec<u64> = digits.iter().map(|digits| size(digits)).collect();
        let possible = sizes.iter().copied().fold(0, u64::saturating_add);
        let asked = spec.samples as u64;
        if asked > possible {
            return Err(SynthError::TooMany { asked, possible });
        }
        let mut before = 0;
        let group = |(digits, share)| {
            let group = LengthGroup { digits, before };
            before += share;
            group
        };
        let groups = digits.into_iter().zip(shares(&sizes, asked)).map(group);
        Ok(Self {
            spec: *spec,
            length,
            groups: groups.collect(),
        })
    }

    /// Positions of every sample.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Makes sample `index` of the dataset; same specification and index, same sample.
    ///
    /// Panics where the dataset has no such sample.
    pub fn make(&self, index: u64) -> DigitString {
        let numbers = self.numbers(index);
        let mut source = vec![];
        for digits in &numbers {
            if !source.is_empty() {
                source.push(PLUS);
            }
            source.extend(digits.iter().map(|&digit| token(digit)));
        }
        let answer = answer(self.spec.task, &numbers).into_iter().map(token);
        let decoded = std::iter::once(START).chain(answer.clone()).collect();
        let labels = answer.chain([END]).collect();
        DigitString {
            values: [self.padded(source), self.padded(decoded)].concat(),
            labels: self.padded(labels),
        }
    }

    /// The numbers of a string, most significant digit first.
    fn numbers(&self, index: u64) -> Vec<Vec<u8>> {
        let (seed, samples) = (self.spec.seed, self.spec.samples as u64);
        assert!(index < samples, "sample {index} of {samples}");
        // Splits are ranges of indices, and are to have all lengths in the same proportions.
        let place = permuted(seed, 0, samples, index);
        let at = self.groups.partition_point(|group| group.before <= place) - 1;
        let LengthGroup { digits, before } = &self.groups[at];
        let mut heads = permuted(seed, 1 + at as u64, size(digits), place - before);
        let rng = CounterRng::new(seed, index);
        let is_sum = digits.len() > 1;
        let number = |(slot, &digits): (usize, &usize)| {
            let (least, count) = heads_of(digits, is_sum);
            let head = least + heads % count;
            heads /= count;
            let head = (0..digits.min(HEAD) as u32)
                .rev()
                .map(|power| (head / 10u64.pow(power) % 10) as u8);
            let tail = (HEAD..digits).map(|position| {
                let [word, _, _, _] =
                    rng.words(Stream::Scene, (slot * DIGITS_MAX + position) as u64);
                ((u64::from(word) * 10) >> 32) as u8
            });
            head.chain(tail).collect()
        };
        digits.iter().enumerate().map(number).collect()
    }

    fn padded(&self, mut tokens: Vec<i16>) -> Vec<i16> {
        tokens.resize(self.length, PADDING);
        tokens
    }
}

fn token(digit: u8) -> i16 {
    ZERO + i16::from(digit)
}

/// The least head of a number and how many there are; a number of a sum does not begin with 0 unless
/// that is all of it.
fn heads_of(digits: usize, is_sum: bool) -> (u64, u64) {
    let end = 10u64.pow(digits.min(HEAD) as u32);
    let least = if is_sum && digits > 1 { end / 10 } else { 0 };
    (least, end - least)
}

/// Strings with numbers of these lengths, no two of the same heads.
fn size(digits: &[usize]) -> u64 {
    let heads = |&length| heads_of(length, digits.len() > 1).1;
    digits.iter().map(heads).product()
}

/// Shares of `total` as even as groups of these sizes allow.
fn shares(sizes: &[u64], total: u64) -> Vec<u64> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&group| sizes[group]);
    let (mut shares, mut left) = (vec![0; sizes.len()], total);
    for (rank, group) in order.into_iter().enumerate() {
        let even = left / (sizes.len() - rank) as u64;
        shares[group] = even.min(sizes[group]);
        left -= shares[group];
    }
    shares
}

fn answer(task: DigitsTask, numbers: &[Vec<u8>]) -> Vec<u8> {
    let mut digits = numbers[0].clone();
    match task {
        DigitsTask::Reverse => digits.reverse(),
        DigitsTask::Sort => digits.sort_unstable(),
        DigitsTask::Add => digits = sum(&numbers[0], &numbers[1]),
    }
    digits
}

/// Least significant digit first.
fn sum(a: &[u8], b: &[u8]) -> Vec<u8> {
    let place = |number: &[u8], power| number.iter().rev().nth(power).copied().unwrap_or(0);
    let mut carry = 0;
    let mut digits = Vec::new();
    for power in 0..a.len().max(b.len()) {
        let sum = place(a, power) + place(b, power) + carry;
        digits.push(sum % 10);
        carry = sum / 10;
    }
    if carry > 0 {
        digits.push(carry);
    }
    digits
}
