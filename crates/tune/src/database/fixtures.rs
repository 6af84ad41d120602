//! Measurements for tests.

use super::*;
use partita_oracle::Features;
use std::fmt::Debug;

pub(crate) fn setting(ranks: usize) -> Conditions {
    Conditions {
        processor: "Some CPU".to_owned(),
        cores: 2,
        simd: "AVX2".to_owned(),
        backend: "plain 1".to_owned(),
        ranks,
        at_work: ranks,
        threads: 1,
    }
}

pub(crate) fn key(number: usize) -> KernelKey {
    KernelKey {
        signature: format!("k1 fill target=f32:1x1x1x1x{number}/1x1x1x1x{number}"),
        algorithm: "plain".to_owned(),
    }
}

pub(crate) fn times(numbers: &[(usize, f64)]) -> Measurements {
    let mut all = Measurements::default();
    all.add(numbers.iter().map(|&(number, seconds)| KernelTime {
        key: key(number),
        features: Features {
            family: "fill".to_owned(),
            flops: 0.0,
            bytes: number as f64,
            shape: std::array::from_fn(|at| (at * number) as f64 / 7.0),
        },
        seconds: Seconds(seconds),
        workspace: None,
    }));
    all
}

#[track_caller]
pub(crate) fn assert_no_warnings(database: &mut Database) {
    let warnings = database.take_warnings();
    assert!(warnings.is_empty(), "{warnings:?}");
}

/// The only warning of a database.
#[track_caller]
pub(crate) fn warning(database: &mut Database) -> TuneError {
    let mut warnings = database.take_warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    warnings.remove(0)
}

/// A database without warnings.
#[track_caller]
pub(crate) fn opened(path: &Path) -> Database {
    let mut database = Database::open(path);
    assert_no_warnings(&mut database);
    database
}

/// What the file has under a setting.
#[track_caller]
pub(crate) fn stored(path: &Path, setting: &Conditions) -> Measurements {
    let mut database = opened(path);
    let all = database.measurements(setting);
    assert_no_warnings(&mut database);
    all
}

/// Fails unless two equal values are equal, without printing thousands of rows.
#[track_caller]
pub(crate) fn assert_same<T: PartialEq + Debug>(left: &T, right: &T) {
    assert!(left == right, "other times than were written");
}
