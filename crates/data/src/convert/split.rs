//! Splits of subjects, so that no subject is in two of them.

use partita_formats::DataError;

use crate::convert::ConvertSpec;
use crate::convert::cases;
use crate::convert::find::Found;
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
    let all = 0..found.samples.len();
    if found.are_alone {
        splits[Split::Test as usize].extend(all);
        return Ok(splits);
    }
    let is_named = found.samples.iter().any(|sample| sample.split.is_some());
    if !is_named {
        draw(asked, found, all, asked.fractions, &mut splits);
    } else {
        let mut drawn = Vec::new();
        for number in all {
            let sample = &found.samples[number];
            match sample.split {
                Some(split) => splits[split as usize].push(number),
                // The images of a test lie beside them.
                None if cases::is_for_training(&sample.entry.volumes) => drawn.push(number),
                None => {
                    return Err(bad(
                        format!("{} in no folder of a split", sample.entry.volumes.display()),
                        "every file below a folder train, validation or test, as others are, or none",
                    ));
                }
            }
        }
        let [train, validation, _] = asked.fractions;
        let shares = (train + validation).max(f64::MIN_POSITIVE);
        let fractions = [train / shares, validation / shares, 0.0];
        draw(asked, found, drawn, fractions, &mut splits);
    }
    if splits[0].is_empty() {
        return Err(bad(
            format!("{} samples, none of them for training", found.samples.len()),
            "a larger first fraction, such as `--split 1,0,0`, or a folder train",
        ));
    }
    Ok(splits)
}

/// Draws the splits of subjects.
fn draw(
    asked: &ConvertSpec,
    found: &Found,
    samples: impl IntoIterator<Item = usize>,
    fractions: [f64; 3],
    splits: &mut [Vec<usize>; 3],
) {
    let samples: Vec<usize> = samples.into_iter().collect();
    let of_sample = |&sample: &usize| found.samples[sample].subject;
    let mut subjects: Vec<usize> = samples.iter().map(of_sample).collect();
    subjects.sort_unstable();
    subjects.dedup();
    let of = |fraction: f64| (fraction * subjects.len() as f64).round() as usize;
    let (validation, test) = (of(fractions[1]), of(fractions[2]));
    let train = subjects.len().saturating_sub(validation + test);
    let mut splits_of = std::collections::BTreeMap::new();
    let order = epoch_order(asked.seed, 0, subjects.len());
    for (at, subject) in order.into_iter().enumerate() {
        let split = match at {
            at if at < train => Split::Train,
            at if at < train + validation => Split::Validation,
            _ => Split::Test,
        };
        splits_of.insert(subjects[subject], split);
    }
    for sample in samples {
        let split = splits_of[&found.samples[sample].subject];
        splits[split as usize].push(sample);
    }
}
