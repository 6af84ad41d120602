//! Reads parts of samples from the files of a dataset.

use partita_data::{Dataset, Reader, Split};
use partita_formats::slab::Region4;
use partita_formats::{DataError, Samples};
use partita_program::Item;
use partita_space::Bytes;

/// A part of a volume, of its class indices, or of its target vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) item: Item,
    pub(crate) split: Split,
    pub(crate) volume: usize,
    /// Region (C, D, H, W) of the volume; of a target vector the last dim has its elements.
    pub(crate) region: Region4,
}

/// File handles of one thread.
pub(crate) struct Readers {
    splits: [Reader; 3],
    has_labels: bool,
}

impl Readers {
    pub(crate) fn new(dataset: &Dataset) -> Self {
        Self {
            splits: Split::ALL.map(|split| dataset.reader(split)),
            has_labels: dataset.labels().is_some(),
        }
    }

    /// Replaces `out` by the elements of a part. Returns the bytes read.
    pub(crate) fn read(&mut self, wanted: &Wanted, out: &mut Samples) -> Result<Bytes, DataError> {
        let before = self.file_bytes();
        let reader = &mut self.splits[wanted.split as usize];
        let (volume, region) = (wanted.volume, wanted.region.clone());
        match wanted.item {
            Item::Sample => reader.read_volume(volume, region, out)?,
            Item::Target if self.has_labels => reader.read_labels(volume, region, out)?,
            Item::Target => *out = Samples::F32(reader.read_target(volume)?),
            Item::Features => panic!("features are part of the dataset"),
        }
        Ok(Bytes(self.file_bytes() - before))
    }

    /// The reader of a split, for names of files and keys.
    pub(crate) fn split(&self, split: Split) -> &Reader {
        &self.splits[split as usize]
    }

    pub(crate) fn has_labels(&self) -> bool {
        self.has_labels
    }

    /// Bytes of volumes read so far, as they are stored.
    pub(crate) fn volume_bytes(&self) -> Bytes {
        let splits = self.splits.iter();
        splits.fold(Bytes(0), |sum, reader| sum + reader.tally().volume_bytes)
    }

    fn file_bytes(&self) -> u64 {
        let tallies = self.splits.iter().map(Reader::tally);
        tallies
            .map(|tally| tally.file_bytes.0 + tally.target_bytes.0)
            .sum()
    }
}
