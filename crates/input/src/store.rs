//! Samples in memory: a job reads each sample once, and later epochs read no files.
//!
//! There is one copy of the dataset in a job. A *unit* is what a rank reads of a sample (its hyperslab, its class
//! indices, its target vector), or the whole of it where augmentation reads other regions in each epoch. Every
//! rank computes the owner of each unit from the programs and the order of the first epoch ([`Owners`]): a rank that
//! reads the unit in that epoch, so filling the store moves nothing between ranks. Elements are kept as they are
//! stored; preparation and augmentation come after the store.
//!
//! Ranks that are threads look up units in each other's memory. Between processes the reading thread of a rank
//! requests parts from their owners a step ahead, and each process answers on a thread of its own. Messages are
//! carried by the world of each rank ([`SampleMessages`]), while it computes and wherever it waits.
//!
//! No deadlock: an answer waits for nothing but files. It is computed by a thread that waits for no message, and
//! sent without blocking by a rank that carries messages until all ranks have ended. So every request is answered,
//! whatever the ranks wait for. Memory is bounded: a rank has at most 32 MiB of parts requested and not yet
//! used, or one part, so an owner has at most that many bytes of answers under way to each rank.
//!
//! Units for which a rank has no memory lie in a file of its own on a local disk ([`SampleStore::limit_memory`]). Which
//! ones follows from the limit alone, not from timing.

mod link;
mod message;
mod owners;
mod shard;
mod spill;
mod tally;

pub(crate) use owners::range;
pub use tally::{EpochLoads, LoadTally};

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use partita_data::Dataset;
use partita_formats::slab::{self, Region4};
use partita_formats::{DType, DataError, Samples};
use partita_program::{Item, Program};
use partita_run::{RunError, SampleMessages};
use partita_space::{Bytes, Rank};

use crate::augment::Sampling;
use crate::plain_files::{Readers, Wanted};
use link::{Incoming, Link, LinkMessages};
use owners::{OVERHEAD, Owners, UnitKey};
use shard::{Found, Kept, Shard};

/// The samples that the ranks of this process keep in memory, and the way to those of other processes.
pub struct SampleStore {
    dataset: Dataset,
    owners: Owners,
    /// Memory of what each rank keeps, by rank.
    bytes: Vec<Bytes>,
    /// Bytes that each rank keeps in its file, by rank.
    spilled: Vec<Bytes>,
    /// By rank; `None` for ranks of other processes.
    shards: Vec<Option<Shard>>,
    link: Arc<Link>,
    tally: Arc<LoadTally>,
}

impl SampleStore {
    /// An empty store. Equal on all ranks, but for `local`, the ranks of this process. `steps` are those of the first
    /// epoch that is run: the index of the program of each in `programs`, and its samples.
    pub fn new(
        dataset: &Dataset,
        sampling: &Sampling,
        programs: &[&Program],
        steps: impl IntoIterator<Item = (usize, Vec<usize>)>,
        local: impl IntoIterator<Item = Rank>,
        tally: Arc<LoadTally>,
    ) -> Self {
        let owners = Owners::new(dataset, sampling, programs, steps);
        let mut shards: Vec<Option<Shard>> = (0..owners.ranks()).map(|_| None).collect();
        for rank in local {
            shards[rank] = Some(Shard::default());
        }
        Self {
            dataset: dataset.clone(),
            bytes: owners.held(),
            spilled: vec![Bytes(0); owners.ranks()],
            owners,
            shards,
            link: Arc::default(),
            tally,
        }
    }

    /// Memory that each rank needs for what it keeps, in rank order.
    pub fn bytes(&self) -> &[Bytes] {
        &self.bytes
    }

    /// Bytes that each rank keeps in its file, in rank order.
    pub fn spilled(&self) -> &[Bytes] {
        &self.spilled
    }

    /// Moves what is above a limit of memory, given in rank order, to files of the ranks: of the units in the order of
    /// the dataset those that do not fit beside the ones before them. Every unit takes some memory, wherever it lies, so
    /// [`bytes`](Self::bytes) may still be above a limit. Before anything is loaded.
    ///
    /// Panics if there is not a limit for each rank.
    pub fn limit_memory(&mut self, limits: &[Bytes]) {
        assert_eq!(limits.len(), self.bytes.len(), "a limit for each rank");
        let is_above = |rank: Rank| self.bytes[rank] > limits[rank];
        if !(0..limits.len()).any(is_above) {
            return;
        }
        let mut places = vec![HashMap::new(); limits.len()];
        let mut units = vec![0; limits.len()];
        for unit in self.owners.units() {
            units[self.owners.owner(unit)] += 1;
        }
        let entries = |rank: Rank| OVERHEAD.saturating_mul(units[rank]);
        let mut room: Vec<u64> = (0..limits.len())
            .map(|rank| limits[rank].0.saturating_sub(entries(rank)))
            .collect();
        for unit in self.owners.units() {
            let (rank, bytes) = (self.owners.owner(unit), self.owners.bytes(unit));
            if bytes <= room[rank] {
                room[rank] -= bytes;
                continue;
            }
            if self.shards[rank].is_some() {
                places[rank].insert(unit, self.spilled[rank].0);
            }
            self.spilled[rank] += Bytes(bytes);
            self.bytes[rank] = Bytes(self.bytes[rank].0 - bytes);
        }
        for (shard, places) in self.shards.iter_mut().zip(places) {
            if let Some(shard) = shard {
                *shard = Shard::new(places);
            }
        }
    }

    /// Makes the file of a rank of this process in a folder, if it keeps something there. Before anything is loaded.
    ///
    /// Errors: the folder cannot be written to, or has no room.
    pub fn open_spill(&self, rank: Rank, folder: &Path) -> Result<(), DataError> {
        match (self.shard(rank), self.spilled[rank]) {
            (None, _) | (_, Bytes(0)) => Ok(()),
            (Some(shard), bytes) => shard.open(folder, rank, bytes),
        }
    }

    /// Number of units that the ranks of this process keep now.
    pub fn units(&self) -> usize {
        self.shards.iter().flatten().map(Shard::len).sum()
    }

    /// What was loaded in each epoch.
    pub fn tally(&self) -> &Arc<LoadTally> {
        &self.tally
    }

    /// Whether all ranks are of this process.
    pub(crate) fn is_local(&self) -> bool {
        self.shards.iter().all(Option::is_some)
    }

    fn shard(&self, rank: Rank) -> Option<&Shard> {
        self.shards[rank].as_ref()
    }

    /// Whether a rank is of this process.
    pub(crate) fn is_here(&self, rank: Rank) -> bool {
        self.shards[rank].is_some()
    }

    /// The rank that keeps the unit of a part.
    pub(crate) fn owner(&self, wanted: &Wanted) -> Rank {
        self.owners.owner(self.owners.unit(wanted))
    }

    /// Reads all units of a rank of this process, counted for `epoch`. `is_cancelled` is asked before each.
    ///
    /// Errors: those of the files, no memory. Ends early without an error when cancelled.
    pub fn preload(
        &self,
        rank: Rank,
        epoch: u64,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), DataError> {
        let mut readers = Readers::new(&self.dataset);
        let mut buffer = Samples::new(self.dataset.dtype());
        for unit in self.owners.units() {
            if is_cancelled() {
                return Ok(());
            }
            if self.owners.owner(unit) == rank {
                self.take((rank, unit), epoch, (&mut readers, &mut buffer), None)?;
            }
        }
        Ok(())
    }

    /// Element type of the units of an item.
    pub(crate) fn dtype(&self, item: Item) -> DType {
        self.owners.dtype(item)
    }

    /// Asks a rank of another process for a part. Returns the number of the request.
    pub(crate) fn request(&self, owner: Rank, epoch: u64, wanted: Wanted) -> u64 {
        self.link.request(owner, epoch, wanted)
    }

    /// Waits for the part that was requested.
    ///
    /// Errors: that of the owner; the run has ended.
    pub(crate) fn wait(&self, owner: Rank, request: u64) -> Result<Samples, DataError> {
        self.link.wait(owner, request)
    }

    /// Replaces `out` by a part of what a rank of this process keeps, or will keep from now on.
    ///
    /// Errors: those of the files, no memory.
    pub(crate) fn copy(
        &self,
        owner: Rank,
        epoch: u64,
        buffers: (&mut Readers, &mut Samples),
        (wanted, out): (&Wanted, &mut Samples),
    ) -> Result<(), DataError> {
        let unit = (owner, self.owners.unit(wanted));
        self.take(unit, epoch, buffers, Some((&wanted.region, out)))
    }

    /// Replaces `out` by a part of a unit of a rank of this process, which is read from its file if it is not there
    /// yet. Without a part, nothing is copied. Counted for an epoch.
    fn take(
        &self,
        (owner, unit): (Rank, UnitKey),
        epoch: u64,
        (readers, buffer): (&mut Readers, &mut Samples),
        part: Option<(&Region4, &mut Samples)>,
    ) -> Result<(), DataError> {
        let shard = self.shard(owner).expect("a rank of this process");
        let region = &self.owners.region(unit);
        let mut loads = EpochLoads::default();
        match (shard.find(unit), part) {
            (Found::Missing(filling), part) => {
                let whole = Wanted {
                    item: unit.item,
                    split: unit.split,
                    volume: unit.volume,
                    region: region.clone(),
                };
                loads.read = readers.read(&whole, buffer)?;
                filling.keep(buffer)?;
                if let Some((part, out)) = part {
                    copy_part(region, buffer, part, out);
                }
            }
            (Found::Kept(_), None) => {}
            (Found::Kept(Kept::Memory(samples)), Some((part, out))) => {
                copy_part(region, &samples, part, out);
                loads.memory = out.bytes();
            }
            (Found::Kept(Kept::File(at)), Some((part, out))) => {
                let dtype = self.owners.dtype(unit.item);
                if out.dtype() != dtype {
                    *out = Samples::new(dtype);
                }
                loads.spilled = shard.file().read(at, (region, part), buffer, out)?;
            }
        }
        self.tally.add(owner, epoch, loads);
        Ok(())
    }

    /// Starts to answer requests for what `rank`, the only one of this process, keeps. The world of the rank carries
    /// the messages.
    ///
    /// Errors: no thread.
    pub fn connect(self: &Arc<Self>, rank: Rank) -> Result<Box<dyn SampleMessages>, RunError> {
        let (requests, incoming) = channel();
        let store = Arc::clone(self);
        // The thread is detached: it ends when the messages are dropped.
        thread::Builder::new()
            .name(format!("store {rank}"))
            .spawn(move || store.answer(rank, &incoming))
            .map_err(|error| RunError::Source {
                rank,
                reason: format!("no thread to send samples with: {error}"),
            })?;
        Ok(Box::new(LinkMessages::new(
            Arc::clone(&self.link),
            requests,
        )))
    }

    fn answer(&self, rank: Rank, incoming: &Receiver<Incoming>) {
        let mut readers = Readers::new(&self.dataset);
        let mut buffer = Samples::new(self.dataset.dtype());
        while let Ok(request) = incoming.recv() {
            let unit = self.owners.unit(&request.wanted);
            let mut part = Samples::new(self.owners.dtype(unit.item));
            let wanted = Some((&request.wanted.region, &mut part));
            let (epoch, buffers) = (request.epoch, (&mut readers, &mut buffer));
            let taken = self.take((rank, unit), epoch, buffers, wanted);
            let sent = EpochLoads::sent(part.bytes());
            self.tally.add(rank, epoch, sent);
            let answer = taken.map(|()| part);
            let answer = answer.map_err(|error| error.to_string());
            self.link.reply(request.from, request.id, answer);
        }
    }
}

/// Replaces `out` by a part of a unit. Panics if the part is not inside it.
pub(crate) fn copy_part(unit: &Region4, samples: &Samples, part: &Region4, out: &mut Samples) {
    if out.dtype() != samples.dtype() {
        *out = Samples::new(samples.dtype());
    }
    out.clear();
    out.reserve_exact(slab::elements(part));
    append_part(unit, samples, part, out);
}

/// Appends a part of a unit to elements of its type. Panics if the part is not inside it.
fn append_part(unit: &Region4, samples: &Samples, part: &Region4, out: &mut Samples) {
    fn rows<T: Copy>(unit: &Region4, values: &[T], part: &Region4, out: &mut Vec<T>) {
        if unit == part {
            return out.extend_from_slice(values);
        }
        let [_, d, h, w] = unit.clone().map(|range| range.len());
        let [c0, d0, h0, w0] = std::array::from_fn(|dim| unit[dim].start);
        let [channels, depth, height, width] = part.clone();
        for c in channels {
            for z in depth.clone() {
                for y in height.clone() {
                    let row = ((c - c0) * d + z - d0) * h + y - h0;
                    let start = row * w + width.start - w0;
                    out.extend_from_slice(&values[start..start + width.len()]);
                }
            }
        }
    }
    match (samples, out) {
        (Samples::I16(values), Samples::I16(out)) => rows(unit, values, part, out),
        (Samples::F32(values), Samples::F32(out)) => rows(unit, values, part, out),
        (Samples::I16(_), Samples::F32(_)) | (Samples::F32(_), Samples::I16(_)) => {
            panic!("the parts of a unit have its type")
        }
    }
}
