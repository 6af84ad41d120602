//! Strings of digits as their users see them: answered rightly, all different, of even lengths.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use partita_synth::{DigitString, DigitStrings, DigitsSpec, DigitsTask, SynthError, TOKENS};
use std::collections::{BTreeMap, BTreeSet};

const TASKS: [DigitsTask; 3] = [DigitsTask::Reverse, DigitsTask::Sort, DigitsTask::Add];

fn spec(task: DigitsTask, digits: usize, samples: usize) -> DigitsSpec {
    DigitsSpec {
        task,
        digits,
        vary: false,
        length: None,
        samples,
        seed: 3,
    }
}

fn all(spec: &DigitsSpec) -> Vec<DigitString> {
    let strings = DigitStrings::new(spec).unwrap();
    (0..spec.samples as u64).map(|i| strings.make(i)).collect()
}

/// Text of the tokens up to the padding, of which nothing but padding may follow.
fn text(tokens: &[i16]) -> String {
    let end = tokens
        .iter()
        .position(|&token| token == 0)
        .unwrap_or(tokens.len());
    assert!(tokens[end..].iter().all(|&token| token == 0), "{tokens:?}");
    tokens[..end].iter().map(|&t| TOKENS[t as usize]).collect()
}

/// The string and its answer, once the three rows agree about it.
fn parts(sample: &DigitString) -> (String, String) {
    let length = sample.labels.len();
    assert_eq!(sample.values.len(), 2 * length);
    let (source, decoded) = sample.values.split_at(length);
    let (decoded, labels) = (text(decoded), text(&sample.labels));
    let answer = labels.strip_suffix("end").unwrap();
    assert_eq!(decoded.strip_prefix("start").unwrap(), answer);
    (text(source), answer.to_owned())
}

/// The answer by other means than those of the maker.
fn expected(task: DigitsTask, source: &str) -> String {
    let number = |text: &str| text.parse::<u128>().unwrap();
    match task {
        DigitsTask::Reverse => source.chars().rev().collect(),
        DigitsTask::Sort => ('0'..='9')
            .map(|digit| digit.to_string().repeat(source.matches(digit).count()))
            .collect(),
        DigitsTask::Add => {
            let (a, b) = source.split_once('+').unwrap();
            assert_eq!(format!("{}+{}", number(a), number(b)), source);
            let sum = (number(a) + number(b)).to_string();
            sum.chars().rev().collect()
        }
    }
}

#[test]
fn every_answer_is_right() {
    for task in TASKS {
        for (digits, vary) in [(1, false), (2, true), (8, false), (8, true), (38, true)] {
            let samples = if digits == 1 { 10 } else { 100 };
            let spec = DigitsSpec {
                vary,
                ..spec(task, digits, samples)
            };
            for sample in all(&spec) {
                let (source, answer) = parts(&sample);
                assert_eq!(answer, expected(task, &source), "{task:?} of {source}");
                let fixed = task != DigitsTask::Add && !vary;
                assert!(!fixed || source.len() == digits, "{source}");
            }
        }
    }
}

#[test]
fn no_two_strings_are_the_same_and_at_most_there_are_all() {
    for (task, vary, digits, possible) in [
        (DigitsTask::Reverse, false, 3, 1000),
        (DigitsTask::Sort, true, 3, 1110),
        (DigitsTask::Add, false, 1, 100),
        (DigitsTask::Add, false, 2, 10_000),
    ] {
        let spec = DigitsSpec {
            vary,
            ..spec(task, digits, possible)
        };
        let sources: BTreeSet<String> = all(&spec).iter().map(|s| parts(s).0).collect();
        assert_eq!(sources.len(), possible, "{task:?}");
        let more = DigitsSpec {
            samples: possible + 1,
            ..spec
        };
        let error = DigitStrings::new(&more).unwrap_err();
        let (asked, possible) = (possible as u64 + 1, possible as u64);
        assert_eq!(error, SynthError::TooMany { asked, possible });
        assert!(error.to_string().contains(&format!(
            "help: try {possible}; possible values: 1 to {possible}"
        )));
    }
}

#[test]
fn lengths_are_as_even_as_short_strings_allow() {
    let counts = |spec: &DigitsSpec, range: std::ops::Range<usize>| {
        let mut counts = BTreeMap::new();
        for sample in &all(spec)[range] {
            *counts.entry(parts(sample).0.len()).or_insert(0) += 1;
        }
        counts.into_iter().collect::<Vec<(usize, i32)>>()
    };
    let vary = DigitsSpec {
        vary: true,
        ..spec(DigitsTask::Reverse, 5, 2000)
    };
    assert_eq!(
        counts(&vary, 0..2000),
        [(1, 10), (2, 100), (3, 630), (4, 630), (5, 630)]
    );
    // So in any part of the dataset: of 400, 126 with a deviation of about 8.3.
    for (length, count) in counts(&vary, 1600..2000).into_iter().skip(2) {
        assert!((90..162).contains(&count), "{length}: {count}");
    }
    // Nine pairs of lengths; a sign lies between them.
    let sums = spec(DigitsTask::Add, 3, 900);
    assert_eq!(
        counts(&sums, 0..900),
        [(3, 100), (4, 200), (5, 300), (6, 200), (7, 100)]
    );
}

#[test]
fn all_digits_of_long_strings_are_drawn() {
    let mut counts = vec![[0; 10]; 30];
    for sample in all(&spec(DigitsTask::Reverse, 30, 1000)) {
        for (position, digit) in parts(&sample).0.bytes().enumerate() {
            counts[position][usize::from(digit - b'0')] += 1;
        }
    }
    // Of 1000, 100 with a deviation of 9.5.
    let even = |&count: &i32| (50..150).contains(&count);
    assert!(counts.iter().flatten().all(even), "{counts:?}");
}

#[test]
fn samples_are_functions_of_specification_and_index() {
    let base = spec(DigitsTask::Add, 8, 50);
    assert_eq!(all(&base), all(&base));
    assert_ne!(all(&base), all(&DigitsSpec { seed: 4, ..base }));
}

#[test]
fn a_sample_has_the_positions_that_it_needs_or_that_are_asked_for() {
    for (task, digits, length, positions) in [
        (DigitsTask::Reverse, 7, None, 8),
        (DigitsTask::Sort, 8, None, 16),
        (DigitsTask::Add, 7, None, 16),
        (DigitsTask::Add, 8, None, 24),
        (DigitsTask::Reverse, 8, Some(9), 9),
        (DigitsTask::Add, 8, Some(100), 100),
    ] {
        let spec = DigitsSpec {
            length,
            ..spec(task, digits, 10)
        };
        assert_eq!(DigitStrings::new(&spec).unwrap().length(), positions);
        assert!(all(&spec).iter().all(|s| s.labels.len() == positions));
    }
    for (task, length, needed) in [(DigitsTask::Sort, 8, 9), (DigitsTask::Add, 16, 17)] {
        let spec = DigitsSpec {
            length: Some(length),
            ..spec(task, 8, 10)
        };
        let error = DigitStrings::new(&spec).unwrap_err();
        assert_eq!(error, SynthError::TooShort { length, needed });
    }
    for digits in [0, 513] {
        let error = DigitStrings::new(&spec(DigitsTask::Sort, digits, 10)).unwrap_err();
        let SynthError::InvalidSpec { field, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(field, "digits");
    }
}
