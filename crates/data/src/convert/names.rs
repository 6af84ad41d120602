//! Names of the samples that are converted.

use crate::convert::find::Sample;
use crate::names::{choose, distinct, in_file, stems};

/// End of the names of files with the first modality of a case.
///
/// Source: nnU-Net, "Dataset format".
const FIRST_MODALITY: &str = "_0000";

/// A name for each sample, all different: the stem of its file, below its folders where files of several folders have
/// one stem, and with its place where a file holds several samples.
pub(super) fn names(samples: &[Sample]) -> Vec<String> {
    let is_first = |sample: &Sample| sample.place.unwrap_or(0) == 0;
    let firsts = samples.iter().filter(|sample| is_first(sample));
    let mut stems = choose(firsts.map(case).collect()).into_iter();
    let mut stem = String::new();
    let named = |sample: &Sample| {
        if is_first(sample) {
            stem = stems.next().unwrap_or_default();
        }
        in_file(
            &stem,
            sample.place.unwrap_or(0),
            sample.entry.stacked.unwrap_or(1),
        )
    };
    distinct(samples.iter().map(named).collect())
}

/// The stem of the file of a sample, alone and below its folders, without the number of the modality.
fn case(sample: &Sample) -> [String; 2] {
    let own = stems(&sample.below);
    let Some(name) = own[0].strip_suffix(FIRST_MODALITY) else {
        return own;
    };
    let labels = sample.entry.targets.as_deref().map(stems);
    let folder = sample
        .entry
        .volumes
        .parent()
        .and_then(|folder| folder.file_name());
    let is_of_task = folder.is_some_and(|folder| folder == "imagesTr" || folder == "imagesTs");
    if is_of_task || labels.is_some_and(|[label, _]| label == name) {
        return own.map(|stem| stem[..stem.len() - FIRST_MODALITY.len()].to_owned());
    }
    own
}
