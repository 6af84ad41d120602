//! How often each class occurs in the training split.

use partita_data::{Classes, Dataset, Reader, Split};
use partita_formats::{DType, DataError, Samples};
use partita_space::on_threads;

use crate::source::Accepted;
use crate::source::piece::location;

/// Class indices that are read at once.
const BLOCK_ELEMENTS: usize = 1 << 22;

/// Counts the labels of each class of a network in the stored samples of the training split: of whole volumes, once each,
/// whatever crops and augmentation make of them. Labels that the loss or the dataset ignores do not count.
///
/// Errors: those of reading; classes that dataset or network do not have; no label counts.
pub fn class_counts(
    dataset: &Dataset,
    accepted: Accepted,
    threads: usize,
) -> Result<Vec<u64>, DataError> {
    let samples = dataset.samples(Split::Train);
    let count = Count {
        dataset,
        classes: accepted.classes.unwrap_or(0),
        ignored: accepted.ignored.or(dataset.ignored()),
    };
    let threads = threads.clamp(1, samples.max(1));
    let share = |thread: usize| {
        let mut reader = dataset.reader(Split::Train);
        let mut counts = vec![0; count.classes];
        for sample in (thread..samples).step_by(threads) {
            if let Err(error) = count.add(&mut reader, sample, &mut counts) {
                return Err(Box::new((sample, error)));
            }
        }
        Ok(counts)
    };
    let found = on_threads(threads, threads, share);
    let mut counts = vec![0; count.classes];
    let mut failed = None::<Box<(usize, DataError)>>;
    for found in found {
        match found {
            Ok(more) => counts
                .iter_mut()
                .zip(more)
                .for_each(|(all, more)| *all += more),
            // The first in the order of samples, whichever thread found it.
            Err(error) if failed.as_ref().is_none_or(|first| error.0 < first.0) => {
                failed = Some(error);
            }
            Err(_) => {}
        }
    }
    match (failed, count.ignored) {
        (Some(failed), _) => Err(failed.1),
        (None, Some(ignored)) if counts.iter().all(|&count| count == 0) => {
            Err(DataError::AllIgnored {
                path: dataset.path().to_path_buf(),
                split: Split::Train.name(),
                ignored,
            })
        }
        (None, _) => Ok(counts),
    }
}

/// What is counted.
struct Count<'d> {
    dataset: &'d Dataset,
    classes: usize,
    ignored: Option<i64>,
}

impl Count<'_> {
    /// Adds the labels of a sample.
    fn add(&self, reader: &mut Reader, sample: usize, counts: &mut [u64]) -> Result<(), DataError> {
        let classes = Classes::of_model(
            self.classes.max(1),
            self.ignored,
            self.dataset.ignored_by_index(),
        );
        let Some([d, h, w]) = self.dataset.labels_of(Split::Train, sample) else {
            let row = reader.read_target(sample)?;
            classes.check_row(location(reader, sample, &reader.keys().target), &row)?;
            row.iter()
                .for_each(|&class| self.count(class as i64, counts));
            return Ok(());
        };
        let mut labels = Samples::new(DType::Int16);
        let thickness = (BLOCK_ELEMENTS / (h * w).max(1)).max(1);
        for start in (0..d).step_by(thickness) {
            let region = [0..1, start..d.min(start + thickness), 0..h, 0..w];
            reader.read_labels(sample, region.clone(), &mut labels)?;
            let at = location(reader, sample, &reader.keys().label);
            classes.check(at, &region, &labels)?;
            if let Samples::I16(labels) = &labels {
                labels
                    .iter()
                    .for_each(|&class| self.count(class.into(), counts));
            }
        }
        Ok(())
    }

    fn count(&self, class: i64, counts: &mut [u64]) {
        if self.ignored == Some(class) {
            return;
        }
        let count = usize::try_from(class).ok();
        if let Some(count) = count.and_then(|class| counts.get_mut(class)) {
            *count += 1;
        }
    }
}
