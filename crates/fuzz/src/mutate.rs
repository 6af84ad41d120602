//! Mutations: small changes of corpus inputs that preserve most of their structure.

use crate::targets::Form;
use partita_testkit::Draws;
use std::ops::Range;

/// Numbers at which sizes, counts and indices break.
const HOSTILE_NUMBERS: [&str; 32] = [
    "0",
    "-0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "16",
    "255",
    "256",
    "1000",
    "65536",
    "16777217",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
    "nan",
    "inf",
    "-inf",
    "1e308",
    "1e-320",
    "1e999",
    "0.5",
    "-1.5",
    "0x10",
];
/// Hostile numbers as machine words.
const HOSTILE_WORDS: [u64; 14] = [
    0,
    1,
    2,
    7,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0xffff_ffff_ffff_ffff,
];
const BRACKETS: &[u8] = b"([{<\"'";
/// Most repeats of a part of a text.
const REPEATS_MAX: usize = 1000;
/// Nesting depth of brackets that overflows the stack of a recursive parser.
const NESTED: usize = 20_000;
/// Longest input.
const LENGTH_MAX: usize = 1 << 17;

/// Words of a corpus, which mutations substitute.
pub(crate) struct Dictionary {
    words: Vec<Vec<u8>>,
}

impl Dictionary {
    /// The words of these inputs; none of binary ones.
    pub(crate) fn of<'i>(form: Form, inputs: impl Iterator<Item = &'i [u8]>) -> Self {
        let mut words: Vec<Vec<u8>> = Vec::new();
        if form == Form::Text {
            for input in inputs {
                words.extend(tokens(input).into_iter().map(|token| input[token].to_vec()));
            }
        }
        words.sort();
        words.dedup();
        words.retain(|word| word.len() <= 64);
        Self { words }
    }
}

/// A changed copy of `input`; `other` is an input from which parts may come.
pub(crate) fn mutate(
    input: &[u8],
    other: &[u8],
    form: Form,
    dictionary: &Dictionary,
    draws: &mut Draws,
) -> Vec<u8> {
    let mut bytes = input.to_vec();
    // Mostly a single change, so that the reader reaches it.
    let changes = if draws.one_in(2) {
        1
    } else {
        draws.between(1, 6)
    };
    for _ in 0..changes {
        let as_text = match form {
            Form::Text => !draws.one_in(8),
            Form::Binary => false,
            // Offsets and lengths of a header in text, with a binary body.
            Form::Mixed => draws.one_in(2),
        };
        if as_text {
            change_text(&mut bytes, other, dictionary, draws);
        } else {
            change_bytes(&mut bytes, other, draws);
        }
        bytes.truncate(LENGTH_MAX);
    }
    bytes
}

fn change_text(bytes: &mut Vec<u8>, other: &[u8], dictionary: &Dictionary, draws: &mut Draws) {
    match draws.between(0, 15) {
        0..=4 => {
            let hostile = draws.pick(&HOSTILE_NUMBERS).as_bytes();
            replace(bytes, numbers, hostile, draws);
        }
        5 => {
            if let Some(number) = pick(&numbers(other), draws) {
                replace(bytes, numbers, &other[number], draws);
            }
        }
        6 | 7 => {
            if let Some(word) = one_of(&dictionary.words, draws) {
                replace(bytes, tokens, word, draws);
            }
        }
        8 => {
            if let Some(word) = one_of(&dictionary.words, draws) {
                let at = pick(&tokens(bytes), draws).map_or(0, |token| token.start);
                bytes.splice(at..at, word.iter().copied());
            }
        }
        9 => replace(bytes, tokens, b"", draws),
        10 => replace(bytes, lines, b"", draws),
        11 => {
            if let Some(line) = pick(&lines(bytes), draws) {
                repeat(bytes, line, draws);
            }
        }
        12 => {
            if let Some(token) = pick(&tokens(bytes), draws) {
                repeat(bytes, token, draws);
            }
        }
        13 => {
            if let Some(line) = pick(&lines(other), draws) {
                let at = pick(&lines(bytes), draws).map_or(0, |line| line.start);
                bytes.splice(at..at, other[line].iter().copied());
            }
        }
        14 => swap(bytes, draws),
        _ => {
            let at = draws.between(0, bytes.len());
            let bracket = draws.pick(BRACKETS);
            let count = if draws.one_in(4) {
                NESTED
            } else {
                draws.between(1, 64)
            };
            bytes.splice(at..at, std::iter::repeat_n(bracket, count));
        }
    }
}

fn change_bytes(bytes: &mut Vec<u8>, other: &[u8], draws: &mut Draws) {
    if bytes.is_empty() {
        bytes.extend_from_slice(other);
        return;
    }
    let at = draws.between(0, bytes.len() - 1);
    match draws.between(0, 10) {
        0 | 1 => bytes[at] ^= 1 << draws.between(0, 7),
        2 => bytes[at] = draws.bits() as u8,
        3..=6 => put_word(bytes, at, draws),
        7 => {
            let range = range(bytes.len(), 64, draws);
            bytes.drain(range);
        }
        8 => {
            let range = range(bytes.len(), 64, draws);
            let part = bytes[range].to_vec();
            bytes.splice(at..at, part);
        }
        9 => {
            if draws.one_in(2) {
                bytes.truncate(at);
            } else if !other.is_empty() {
                // Splice: the beginning of one, the end of the other.
                let from = at.min(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
        _ => {
            let part = range(bytes.len(), 32, draws);
            let copy = bytes[part].to_vec();
            let end = (at + copy.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&copy[..end - at]);
        }
    }
}

/// Replaces a word of 1, 2, 4 or 8 bytes by a hostile one, or changes it by a little.
fn put_word(bytes: &mut [u8], at: usize, draws: &mut Draws) {
    let size = draws.pick(&[1, 2, 4, 8]);
    let end = (at + size).min(bytes.len());
    let mut word = [0; 8];
    word[..end - at].copy_from_slice(&bytes[at..end]);
    let value = if draws.one_in(2) {
        draws.pick(&HOSTILE_WORDS)
    } else {
        let step = draws.between(1, 32) as u64;
        let value = u64::from_le_bytes(word);
        if draws.one_in(2) {
            value.wrapping_add(step)
        } else {
            value.wrapping_sub(step)
        }
    };
    bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
}

/// Replaces one of the parts by `by`.
fn replace(
    bytes: &mut Vec<u8>,
    parts: impl Fn(&[u8]) -> Vec<Range<usize>>,
    by: &[u8],
    draws: &mut Draws,
) {
    if let Some(part) = pick(&parts(bytes), draws) {
        bytes.splice(part, by.iter().copied());
    }
}

fn repeat(bytes: &mut Vec<u8>, part: Range<usize>, draws: &mut Draws) {
    let times = if draws.one_in(8) {
        draws.between(2, REPEATS_MAX)
    } else {
        draws.between(1, 3)
    };
    let room = LENGTH_MAX / part.len().max(1);
    let copies = bytes[part.clone()].repeat(times.min(room));
    bytes.splice(part.end..part.end, copies);
}

/// Exchanges two words.
fn swap(bytes: &mut Vec<u8>, draws: &mut Draws) {
    let tokens = tokens(bytes);
    let (Some(a), Some(b)) = (pick(&tokens, draws), pick(&tokens, draws)) else {
        return;
    };
    let (a, b) = if a.start <= b.start { (a, b) } else { (b, a) };
    if a.end > b.start {
        return;
    }
    let (first, second) = (bytes[a.clone()].to_vec(), bytes[b.clone()].to_vec());
    bytes.splice(b, first);
    bytes.splice(a, second);
}

fn range(length: usize, longest: usize, draws: &mut Draws) -> Range<usize> {
    let start = draws.between(0, length - 1);
    start..(start + draws.between(1, longest)).min(length)
}

fn pick(ranges: &[Range<usize>], draws: &mut Draws) -> Option<Range<usize>> {
    one_of(ranges, draws).cloned()
}

fn one_of<'i, T>(items: &'i [T], draws: &mut Draws) -> Option<&'i T> {
    (!items.is_empty()).then(|| &items[draws.between(0, items.len() - 1)])
}

/// Words: runs of letters, digits, `_`, `.` and `-`, and each other character that is no blank.
fn tokens(text: &[u8]) -> Vec<Range<usize>> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    runs(text, is_word, |byte| !byte.is_ascii_whitespace())
}

/// Runs of digits.
fn numbers(text: &[u8]) -> Vec<Range<usize>> {
    runs(text, |byte| byte.is_ascii_digit(), |_| false)
}

/// Lines with their ends.
fn lines(text: &[u8]) -> Vec<Range<usize>> {
    let mut start = 0;
    let ends = text.split_inclusive(|&byte| byte == b'\n');
    ends.map(|line| {
        start += line.len();
        start - line.len()..start
    })
    .collect()
}

/// Runs of the bytes of `is_joined`, and each byte of `is_single` by itself.
fn runs(
    text: &[u8],
    is_joined: impl Fn(u8) -> bool,
    is_single: impl Fn(u8) -> bool,
) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut is_open = false;
    for (at, &byte) in text.iter().enumerate() {
        if is_joined(byte) {
            match runs.last_mut().filter(|_| is_open) {
                Some(run) => run.end = at + 1,
                None => runs.push(at..at + 1),
            }
            is_open = true;
        } else {
            is_open = false;
            if is_single(byte) {
                runs.push(at..at + 1);
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str, ranges: Vec<Range<usize>>) -> Vec<&str> {
        ranges.into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn words_numbers_and_lines_are_found() {
        let text = "c1 = conv x\nkernel=3x12";
        let words = ["c1", "=", "conv", "x", "kernel", "=", "3x12"];
        assert_eq!(texts(text, tokens(text.as_bytes())), words);
        assert_eq!(texts(text, numbers(text.as_bytes())), ["1", "3", "12"]);
        assert_eq!(
            texts(text, lines(text.as_bytes())),
            ["c1 = conv x\n", "kernel=3x12"]
        );
    }

    #[test]
    fn mutations_change_inputs_and_repeat_from_the_seed() {
        let (input, other) = (
            b"data=2,depth=2; c1: F=depth\n".as_slice(),
            b"micro=4".as_slice(),
        );
        for form in [Form::Text, Form::Binary, Form::Mixed] {
            let dictionary = Dictionary::of(form, [input, other].into_iter());
            let run = |seed| {
                let mut draws = Draws::new(seed);
                let mutated = |_| mutate(input, other, form, &dictionary, &mut draws);
                (0..500).map(mutated).collect::<Vec<_>>()
            };
            let first = run(1);
            assert_eq!(first, run(1));
            let mut kinds = first.clone();
            kinds.sort();
            kinds.dedup();
            assert!(kinds.len() > 250, "{} different inputs of 500", kinds.len());
            assert!(first.iter().all(|input| input.len() <= LENGTH_MAX));
        }
    }

    #[test]
    fn nothing_is_wrong_with_empty_inputs() {
        let dictionary = Dictionary::of(Form::Text, std::iter::empty());
        let mut draws = Draws::new(3);
        for form in [Form::Text, Form::Binary, Form::Mixed] {
            for _ in 0..2000 {
                mutate(b"", b"", form, &dictionary, &mut draws);
            }
        }
    }
}
