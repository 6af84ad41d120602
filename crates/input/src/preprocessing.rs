//! What lies between the files of a dataset and a network: which samples there are, how their values are
//! prepared, and how training samples are augmented.

use partita_data::Dataset;
use partita_formats::DType;
use partita_space::Bytes;

use crate::augment::Sampling;
use crate::prepare::Preparation;

/// Sampling and preparation of the samples of a dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocessing {
    /// Which samples there are, and how they are augmented.
    pub sampling: Sampling,
    /// How values are prepared before that.
    pub preparation: Preparation,
}

impl Preprocessing {
    /// Whole volumes with values as they are stored.
    pub fn plain(dataset: &Dataset) -> Self {
        Self {
            sampling: Sampling::plain(dataset),
            preparation: Preparation::default(),
        }
    }

    /// Element type of the values that are delivered, of samples that are stored as `stored`.
    pub fn dtype(&self, stored: DType) -> DType {
        if self.computes() {
            DType::Float32
        } else {
            stored
        }
    }

    /// Bytes of the buffers that a rank needs besides those of its loads, of which a part has extents C, D, H, W.
    pub fn buffer_bytes(&self, stored: DType, part: [usize; 4]) -> Bytes {
        let augmentation = self.sampling.augmentation();
        let pads = self.sampling.pads();
        if !self.computes() && !self.sampling.turns() && !pads {
            return Bytes(0);
        }
        let margin = augmentation
            .elastic
            .map_or(0, |elastic| 2 * elastic.magnitude.ceil() as usize);
        let [channels, extent @ ..] = part;
        let elements = channels
            * extent
                .iter()
                .map(|extent| extent + margin)
                .product::<usize>();
        let copies = match (self.computes(), self.preparation.one_hot()) {
            (false, _) => 0,
            (true, None) => 1,
            (true, Some(_)) => 2,
        };
        let prepared = copies * DType::Float32.size_bytes();
        let padded = usize::from(pads) * self.dtype(stored).size_bytes();
        Bytes((elements * (stored.size_bytes() + prepared + padded)) as u64)
    }

    /// Whether values are delivered that are not stored.
    pub(crate) fn computes(&self) -> bool {
        !self.preparation.is_empty() || self.sampling.augmentation().changes_values()
    }
}
