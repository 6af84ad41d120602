//! Names and positions of the samples that a network sees: volumes, or crops of them.

use partita_data::{Dataset, Placement, Split};
use partita_formats::DataError;

use crate::augment::{SampleKey, Sampling, View};

impl Sampling {
    /// Names of the samples that a network sees of a split: of a crop that is not all of its volume, the name of that and
    /// the number of the crop.
    pub fn names_of(&self, dataset: &Dataset, split: Split) -> Vec<String> {
        let samples = 0..self.samples(split);
        let views: Vec<View> = samples.map(|sample| view(self, split, sample)).collect();
        let named = |(at, view): (usize, &View)| {
            let before = views[..at].iter().rev();
            let crop = before
                .take_while(|other| other.volume == view.volume)
                .count();
            let name = dataset.name(split, view.volume);
            if view.is_whole() {
                name
            } else {
                format!("{name}-crop{crop}")
            }
        };
        views.iter().enumerate().map(named).collect()
    }

    /// As [`Dataset::placement`], of a sample that a network sees: a crop lies where it was cut.
    ///
    /// Errors: those of whole volumes.
    pub fn placement_of(
        &self,
        dataset: &Dataset,
        split: Split,
        sample: usize,
    ) -> Result<Option<Placement>, DataError> {
        let view = view(self, split, sample);
        if view.is_whole() && !view.is_padded() {
            return dataset.placement(split, view.volume);
        }
        Ok(dataset.placement_at(split, view.volume, view.offset()))
    }
}

/// A sample of a split, as an evaluation sees it.
fn view(sampling: &Sampling, split: Split, sample: usize) -> View {
    sampling.view(SampleKey::default(), sampling.first_sample(split) + sample)
}
