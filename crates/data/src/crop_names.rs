//! Names and positions of the samples that a network sees: volumes, or crops of them.

use crate::augment::{SampleKey, Sampling, View};
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::formats::nifti::Affine;
use crate::grid::Grid;
use crate::predictions::Placement;
use crate::split::Split;

impl Dataset {
    /// Names of the samples that a network sees of a split: of a crop that is not all of its volume, the name of that and
    /// the number of the crop.
    pub fn names_of(&self, sampling: &Sampling, split: Split) -> Vec<String> {
        let samples = 0..sampling.samples(split);
        let views: Vec<View> = samples
            .map(|sample| view(sampling, split, sample))
            .collect();
        let named = |(at, view): (usize, &View)| {
            let before = views[..at].iter().rev();
            let crop = before
                .take_while(|other| other.volume == view.volume)
                .count();
            let name = self.name(split, view.volume);
            if view.is_whole() {
                name
            } else {
                format!("{name}-crop{crop}")
            }
        };
        views.iter().enumerate().map(named).collect()
    }

    /// As [`placement`](Self::placement), of a sample that a network sees: a crop lies where it was cut.
    ///
    /// Errors: those of whole volumes.
    pub fn placement_of(
        &self,
        sampling: &Sampling,
        split: Split,
        sample: usize,
    ) -> Result<Option<Placement>, DataError> {
        let view = view(sampling, split, sample);
        if view.is_whole() && !view.is_padded() {
            return self.placement(split, view.volume);
        }
        let Some(Affine(mut rows)) = self.affine(split, view.volume) else {
            return Ok(None);
        };
        let [d, h, w] = view.offset();
        let stored = Grid {
            extent: [1; 3],
            affine: Affine(rows),
        };
        for (row, origin) in rows.iter_mut().zip(stored.position([w, h, d])) {
            row[3] = origin;
        }
        Ok(Some(Placement::as_stored(Affine(rows))))
    }
}

/// A sample of a split, as an evaluation sees it.
fn view(sampling: &Sampling, split: Split, sample: usize) -> View {
    sampling.view(SampleKey::default(), sampling.first_sample(split) + sample)
}
