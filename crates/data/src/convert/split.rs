//! Splits of subjects, so that no subject is in two of them.

use crate::convert::ConvertSpec;
use crate::convert::find::Found;
use crate::error::DataError;
use crate::order::epoch_order;
use crate::split::Split;

/// Samples of training, validation and test. Folders that are named as splits decide, if there are any; otherwise
/// subjects are drawn by the seed.
pub(super) fn split(asked: &ConvertSpec, found: &Found) -> Result<[Vec<usize>; 3], DataError> {
    let mut splits = [Vec::new(), Vec::new(), Vec::new()];
    let bad = |got: String, expected: &str| DataError::BadValue {
        what: "splits",
        got,
        expected: expected.to_owned(),
    };
    if found.samples.iter().any(|sample| sample.split.is_some()) {
        for (number, sample) in found.samples.iter().enumerate() {
            let split = sample.split.ok_or_else(|| {
                bad(
                    format!("{} in no folder of a split", sample.entry.volumes.display()),
                    "every file below a folder train, validation or test, as others are, or none",
                )
            })?;
            splits[split as usize].push(number);
        }
    } else {
        let subjects = 1 + found
            .samples
            .iter()
            .map(|sample| sample.subject)
            .max()
            .unwrap_or(0);
        let of = |fraction: f64| (fraction * subjects as f64).round() as usize;
        let (validation, test) = (of(asked.fractions[1]), of(asked.fractions[2]));
        let train = subjects.saturating_sub(validation + test);
        let mut splits_of = vec![Split::Train; subjects];
        for (at, subject) in epoch_order(asked.seed, 0, subjects).into_iter().enumerate() {
            splits_of[subject] = match at {
                at if at < train => Split::Train,
                at if at < train + validation => Split::Validation,
                _ => Split::Test,
            };
        }
        for (number, sample) in found.samples.iter().enumerate() {
            splits[splits_of[sample.subject] as usize].push(number);
        }
    }
    if splits[0].is_empty() {
        return Err(bad(
            format!("{} samples, none of them for training", found.samples.len()),
            "a larger first fraction, such as `--split 1,0,0`, or a folder train",
        ));
    }
    Ok(splits)
}
