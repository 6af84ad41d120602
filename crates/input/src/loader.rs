//! Loads parts of samples for one thread: from files, from the store of its process, or from another process.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use partita_data::{Dataset, Reader, Split};
use partita_formats::slab::{self, Region4};
use partita_formats::{DType, DataError, Samples};
use partita_program::Item;
use partita_space::{Bytes, Rank};

use crate::plain_files::{Readers, Wanted};
use crate::store::{EpochLoads, LoadTally, SampleStore, copy_part};

/// Bytes that a thread has asked other processes for and not used yet, unless a single part has more.
const CREDIT_BYTES: usize = 32 << 20;

/// Where samples come from besides the files, and who counts them.
#[derive(Clone, Default)]
pub struct Loading {
    /// Samples in memory, if they are kept. Without it every epoch reads the files.
    pub store: Option<Arc<SampleStore>>,
    /// Counts what is read and received.
    pub tally: Arc<LoadTally>,
    /// No file is read: samples are made up, and all alike.
    pub is_synthetic: bool,
}

/// A part that will be loaded from another process.
struct Ahead {
    owner: Rank,
    wanted: Wanted,
    bytes: usize,
    /// The number of its request, if it was sent.
    request: Option<u64>,
}

/// Loads parts of samples for the reading thread of a rank.
pub(crate) struct Loader {
    rank: Rank,
    readers: Readers,
    store: Option<Arc<SampleStore>>,
    tally: Arc<LoadTally>,
    /// Parts of the current load that come from other processes, in the order in which they are wanted.
    ahead: VecDeque<Ahead>,
    /// A unit that is being read.
    unit: Samples,
    /// Where samples are made up, the parts that were asked for.
    made: Option<HashMap<(Item, Region4), Samples>>,
}

impl Loader {
    pub(crate) fn new(dataset: &Dataset, rank: Rank, loading: Loading) -> Self {
        let Loading {
            store,
            tally,
            is_synthetic,
        } = loading;
        Self {
            rank,
            readers: Readers::new(dataset),
            store,
            tally,
            ahead: VecDeque::new(),
            unit: Samples::new(dataset.dtype()),
            made: is_synthetic.then(HashMap::new),
        }
    }

    /// The reader of a split, for names of files and keys.
    pub(crate) fn reader(&self, split: Split) -> &Reader {
        self.readers.split(split)
    }

    /// Counts what it loads.
    pub(crate) fn tally(&self) -> &Arc<LoadTally> {
        &self.tally
    }

    /// Bytes of volumes read from files by this thread.
    pub(crate) fn volume_bytes(&self) -> Bytes {
        self.readers.volume_bytes()
    }

    /// Whether parts come from other processes, so that it pays to announce them.
    pub(crate) fn wants_announcements(&self) -> bool {
        self.store.as_ref().is_some_and(|store| !store.is_local())
    }

    /// Requests what other processes keep of parts that will be loaded next, in this order, as far as the credit
    /// goes.
    pub(crate) fn announce(&mut self, epoch: u64, parts: impl IntoIterator<Item = Wanted>) {
        let Some(store) = self.store.clone() else {
            return;
        };
        for wanted in parts.into_iter().filter(has_elements) {
            let owner = store.owner(&wanted);
            if !store.is_here(owner) {
                let dtype = store.dtype(wanted.item);
                self.ahead.push_back(Ahead {
                    owner,
                    bytes: slab::elements(&wanted.region) * dtype.size_bytes(),
                    wanted,
                    request: None,
                });
            }
        }
        self.request(&store, epoch);
    }

    fn request(&mut self, store: &SampleStore, epoch: u64) {
        let requested = self.ahead.iter().filter(|part| part.request.is_some());
        let mut in_flight: usize = requested.map(|part| part.bytes).sum();
        for part in &mut self.ahead {
            if part.request.is_some() {
                continue;
            }
            if in_flight > 0 && in_flight + part.bytes > CREDIT_BYTES {
                return;
            }
            in_flight += part.bytes;
            let wanted = part.wanted.clone();
            part.request = Some(store.request(part.owner, epoch, wanted));
        }
    }

    /// Replaces `out` by the elements of a part that is used in an epoch.
    ///
    /// Errors: those of files and of the owner.
    pub(crate) fn load(
        &mut self,
        epoch: u64,
        wanted: &Wanted,
        out: &mut Samples,
    ) -> Result<(), DataError> {
        if self.made.is_some() {
            self.make(wanted, out);
            return Ok(());
        }
        let Some(store) = self.store.clone().filter(|_| has_elements(wanted)) else {
            let loads = EpochLoads {
                read: self.readers.read(wanted, out)?,
                ..EpochLoads::default()
            };
            self.tally.add(self.rank, epoch, loads);
            return Ok(());
        };
        let owner = store.owner(wanted);
        let is_here = store.is_here(owner);
        if is_here {
            let buffers = (&mut self.readers, &mut self.unit);
            store.copy(owner, epoch, buffers, (wanted, &mut *out))?;
        } else {
            *out = self.receive(&store, epoch, owner, wanted)?;
        }
        if owner != self.rank {
            let received = EpochLoads {
                received: out.bytes(),
                ..EpochLoads::default()
            };
            self.tally.add(self.rank, epoch, received);
            if is_here {
                // An owner in another process counts what it sends itself.
                self.tally.add(owner, epoch, EpochLoads::sent(out.bytes()));
            }
        }
        Ok(())
    }

    /// Replaces `out` by a part of the sample that stands for all: small whole numbers that follow from the position, so that
    /// ranks with other parts have the same sample, and the first class or target 0.
    fn make(&mut self, wanted: &Wanted, out: &mut Samples) {
        let Wanted { item, region, .. } = wanted;
        let dtype = match (item, self.readers.has_labels()) {
            (Item::Sample, _) => self.unit.dtype(),
            (Item::Target, true) => DType::Int16,
            (Item::Target, false) | (Item::Features, _) => DType::Float32,
        };
        let made = self.made.get_or_insert_default();
        let key = (*item, region.clone());
        let samples = made.entry(key).or_insert_with(|| {
            let mut samples = Samples::zeros(dtype, slab::elements(region));
            if *item == Item::Sample {
                let value = |at: usize| {
                    let [c, d, h, w] = slab::position(region, at);
                    (31 * c + 7 * d + 5 * h + 3 * w) % 11
                };
                match &mut samples {
                    Samples::I16(values) => {
                        let places = values.iter_mut().enumerate();
                        places.for_each(|(at, place)| *place = value(at) as i16);
                    }
                    Samples::F32(values) => {
                        let places = values.iter_mut().enumerate();
                        places.for_each(|(at, place)| *place = value(at) as f32);
                    }
                }
            }
            samples
        });
        copy_part(region, samples, region, out);
    }

    /// Takes a part that was announced from another process.
    fn receive(
        &mut self,
        store: &SampleStore,
        epoch: u64,
        owner: Rank,
        wanted: &Wanted,
    ) -> Result<Samples, DataError> {
        if self.ahead.front().is_none_or(|part| part.wanted != *wanted) {
            self.ahead.clear();
            self.announce(epoch, [wanted.clone()]);
        }
        let part = self.ahead.front().and_then(|part| part.request);
        let request = part.expect("the first part is always requested");
        let samples = store.wait(owner, request)?;
        self.ahead.pop_front();
        self.request(store, epoch);
        Ok(samples)
    }
}

fn has_elements(wanted: &Wanted) -> bool {
    slab::elements(&wanted.region) > 0
}
