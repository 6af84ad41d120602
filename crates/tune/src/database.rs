//! A database of measured times: one file that processes share.
//!
//! Whoever writes adds rows in one transaction, under the locks of SQLite and with a rollback journal: a
//! write-ahead log needs memory that hosts do not share. Where a file system has no locks, a new file is renamed
//! into its place. Only rows of the requested setting are read. A process keeps what it measured in memory too, so
//! no lost lock or unwritable folder can take away a time that it has begun to plan with.
//!
//! Times of kernels have keys with a grammar and a version (`program/key`). Keys of the version before are
//! converted; keys of a later version are left as they are.

use crate::store::{Failure, Store};
use crate::tables::{self, Conflict};
use crate::{Conditions, KernelKey, KernelTime, Measurements, TuneError};
use partita_oracle::LinkTimes;
use partita_space::{Bytes, Seconds};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Longest valid time of a kernel, message or read.
const TIME_MAX: Seconds = Seconds(86_400.0);

/// Largest number of a column.
const NUMBER_MAX: u64 = i64::MAX.unsigned_abs();

/// Measurements of this and other machines in an SQLite file that processes share.
#[derive(Debug)]
pub struct Database {
    /// None if times are in memory only.
    store: Option<Store>,
    /// Times that this process has read or measured.
    known: Settings,
    /// Settings whose times in the file are known, or could not be read since the last write.
    loaded: BTreeSet<Conditions>,
    /// Those that could not be read.
    unread: Vec<Conditions>,
    /// Times measured by this process.
    own: Settings,
    is_writable: bool,
    warnings: Vec<TuneError>,
}

type Settings = BTreeMap<Conditions, Measurements>;

/// What the file of measured times cannot hold.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotStorable {
    /// More than a column holds.
    #[error("{0} is not a number of cores, ranks or threads")]
    Number(usize),
    /// A list without points.
    #[error("a list of measured points is empty")]
    NoPoints,
    /// A time of 0.
    #[error("{0} for {1} is not a measured time")]
    NoTime(Seconds, Bytes),
    /// More bytes than a column holds.
    #[error("{} bytes is not a size of a message or read", .0.0)]
    Size(Bytes),
    /// A time beyond the bounds.
    #[error("{:e} s is not a time of a kernel, message or read", .0.0)]
    Time(Seconds),
}

impl Conditions {
    /// Errors: numbers that no column holds.
    pub(crate) fn check(&self) -> Result<(), NotStorable> {
        let numbers = [self.cores, self.ranks, self.at_work, self.threads];
        match numbers.iter().find(|number| **number as u64 > NUMBER_MAX) {
            Some(number) => Err(NotStorable::Number(*number)),
            None => Ok(()),
        }
    }
}

/// Values by signature, then by algorithm.
type OfKernels<T> = BTreeMap<String, BTreeMap<String, T>>;

/// Takes the values of chosen algorithms out.
fn split<T: Copy>(all: &mut OfKernels<T>, is_chosen: &dyn Fn(&str) -> bool) -> OfKernels<T> {
    let mut chosen = OfKernels::new();
    for (signature, algorithms) in all.iter_mut() {
        algorithms.retain(|algorithm, value| {
            let takes = is_chosen(algorithm);
            if takes {
                let own = chosen.entry(signature.clone()).or_default();
                own.insert(algorithm.clone(), *value);
            }
            !takes
        });
    }
    all.retain(|_, algorithms| !algorithms.is_empty());
    chosen
}

impl Measurements {
    /// Whether the time of a kernel is known.
    pub fn has(&self, key: &KernelKey) -> bool {
        self.seconds(key).is_some()
    }

    /// The time of a kernel.
    pub fn seconds(&self, key: &KernelKey) -> Option<Seconds> {
        self.kernels
            .get(&key.signature)?
            .get(&key.algorithm)
            .copied()
    }

    /// Bytes of the workspace of a kernel, if known.
    pub fn workspace(&self, signature: &str, algorithm: &str) -> Option<Bytes> {
        self.workspaces.get(signature)?.get(algorithm).copied()
    }

    /// Adds times, which replace older ones.
    pub fn add(&mut self, measured: impl IntoIterator<Item = KernelTime>) {
        for KernelTime {
            key,
            features,
            seconds,
            workspace,
        } in measured
        {
            self.shapes.insert(key.signature.clone(), features);
            if let Some(bytes) = workspace {
                let algorithms = self.workspaces.entry(key.signature.clone()).or_default();
                algorithms.insert(key.algorithm.clone(), bytes);
            }
            let algorithms = self.kernels.entry(key.signature).or_default();
            algorithms.insert(key.algorithm, seconds);
        }
    }

    /// Times of kernels whose algorithms are chosen, with the features of these kernels, and everything else.
    pub fn partition(mut self, is_chosen: &dyn Fn(&str) -> bool) -> (Self, Self) {
        let mut chosen = Self::default();
        for (signature, own) in split(&mut self.kernels, is_chosen) {
            let shape = self.shapes.get(&signature);
            let shape = shape.map(|shape| (signature.clone(), shape.clone()));
            chosen.shapes.extend(shape);
            chosen.kernels.insert(signature, own);
        }
        chosen.workspaces = split(&mut self.workspaces, is_chosen);
        (chosen, self)
    }

    /// Adds those of `newer`, which replace older ones.
    pub fn merge(&mut self, newer: &Measurements) {
        for (signature, algorithms) in &newer.kernels {
            let own = self.kernels.entry(signature.clone()).or_default();
            own.extend(algorithms.iter().map(|(name, time)| (name.clone(), *time)));
        }
        for (signature, algorithms) in &newer.workspaces {
            let own = self.workspaces.entry(signature.clone()).or_default();
            own.extend(algorithms.iter().map(|(name, size)| (name.clone(), *size)));
        }
        let shapes = newer.shapes.iter();
        self.shapes
            .extend(shapes.map(|(signature, shape)| (signature.clone(), shape.clone())));
        if let Some(newer) = &newer.links {
            self.links.get_or_insert_default().merge(newer);
        }
        let loads = newer.loads.iter();
        self.loads
            .extend(loads.map(|(what, points)| (what.clone(), points.clone())));
    }

    /// Errors: values that no measurement has.
    pub(crate) fn check(&self) -> Result<(), NotStorable> {
        let is_possible = |time: &Seconds| (0.0..=TIME_MAX.0).contains(&time.0);
        let links = self.links.iter();
        let collectives = links.clone().flat_map(LinkTimes::collectives);
        if collectives
            .clone()
            .chain(self.loads.values())
            .any(Vec::is_empty)
        {
            return Err(NotStorable::NoPoints);
        }
        let messages = links.flat_map(|links| &links.message);
        let points = collectives.chain(self.loads.values()).flatten();
        let points = points.chain(messages);
        // Fits minimize relative errors, which a time of 0 does not have.
        if let Some(point) = points.clone().find(|point| point.seconds.0 == 0.0) {
            return Err(NotStorable::NoTime(point.seconds, point.bytes));
        }
        if let Some(point) = points.clone().find(|point| point.bytes.0 > NUMBER_MAX) {
            return Err(NotStorable::Size(point.bytes));
        }
        let times = points.flat_map(|point| [&point.seconds, &point.host]);
        let kernels = self.kernels.values().flat_map(BTreeMap::values);
        match times.chain(kernels).find(|time| !is_possible(time)) {
            Some(time) => Err(NotStorable::Time(*time)),
            None => Ok(()),
        }
    }
}

impl Database {
    /// Opens and checks the file; a missing file, or one of an older format, is empty.
    ///
    /// A corrupt file is renamed, one of a newer format is left unchanged, and if a file cannot be read the
    /// database is in memory; each gives a warning ([`take_warnings`](Self::take_warnings)).
    pub fn open(path: &Path) -> Self {
        let mut store = Store::new(path);
        let mut database = Self::in_memory();
        let checked = store.read(|tx| match tables::fault(tx)? {
            Some(fault) => Err(Failure::Corrupt(fault)),
            None => Ok(()),
        });
        database.store = Some(store);
        if let Err(error) = checked {
            database.continue_in_memory(error);
        }
        database
    }

    /// A database without a file.
    pub fn in_memory() -> Self {
        Self {
            store: None,
            known: Settings::new(),
            loaded: BTreeSet::new(),
            unread: Vec::new(),
            own: Settings::new(),
            is_writable: false,
            warnings: Vec::new(),
        }
    }

    /// The measurements under a setting, which are read when they are first asked for. Until the next
    /// [`keep`](Self::keep) they stay the same, whatever other processes write.
    pub fn measurements(&mut self, setting: &Conditions) -> Measurements {
        if !self.loaded.contains(setting) {
            let read = self.with_store(|store, _| store.read(|tx| Ok(tables::read(tx, setting)?)));
            match read {
                Some(of_file) => self.load(setting, of_file),
                None => {
                    self.loaded.insert(setting.clone());
                    self.unread.push(setting.clone());
                }
            }
        }
        self.known.get(setting).cloned().unwrap_or_default()
    }

    /// The settings with measurements in the file, in order.
    pub fn settings(&mut self) -> Vec<Conditions> {
        let read = self.with_store(|store, _| store.read(|tx| Ok(tables::settings(tx)?)));
        read.unwrap_or_default()
    }

    /// The folder of the file; none if times are in memory only.
    pub fn folder(&self) -> Option<&Path> {
        self.store.as_ref().map(Store::folder)
    }

    /// Checks that the file can be written, before measurements start. If it cannot, the database continues in
    /// memory, with a warning.
    pub fn check_writable(&mut self) {
        let Some(store) = self.store.as_ref().filter(|_| !self.is_writable) else {
            return;
        };
        match store.check_writable() {
            Ok(()) => self.is_writable = true,
            Err(error) => self.continue_in_memory(error),
        }
    }

    /// Adds measurements under a setting, and writes them to the file in one transaction. Kernels need features.
    ///
    /// Times that other processes have written meanwhile are kept. This process keeps its own times in memory,
    /// too, since another process may replace or remove the file at any time, and adds to the file those that it
    /// lacks. If another process holds the lock, they are written with the next ones. If the file cannot be
    /// written, the database continues in memory, with a warning.
    pub fn keep(&mut self, setting: &Conditions, new: &Measurements) {
        let checked = setting.check().and_then(|()| new.check());
        if let (Err(reason), Some(store)) = (checked, &self.store) {
            self.warnings.push(store.not_kept(&reason));
            self.known.entry(setting.clone()).or_default().merge(new);
            return;
        }
        let written = self.with_store(|store, own| {
            store.write(|tx| {
                for (setting, measurements) in own {
                    tables::write(tx, setting, measurements, Conflict::Keep)?;
                }
                tables::write(tx, setting, new, Conflict::Replace)?;
                Ok(tables::read(tx, setting)?)
            })
        });
        if let Some(of_file) = written {
            for unread in self.unread.drain(..) {
                self.loaded.remove(&unread);
            }
            self.load(setting, of_file);
        }
        for known in [&mut self.known, &mut self.own] {
            known.entry(setting.clone()).or_default().merge(new);
        }
    }

    /// Problems with the file since the last call; none of them prevents measurements.
    pub fn take_warnings(&mut self) -> Vec<TuneError> {
        let mut warnings = std::mem::take(&mut self.warnings);
        if let Some(store) = &mut self.store {
            warnings.splice(0..0, store.warnings.drain(..));
        }
        warnings
    }

    /// Adds times of the file. The time of a kernel does not change while the process lives; the file only adds
    /// others.
    fn load(&mut self, setting: &Conditions, of_file: Measurements) {
        let known = self.known.entry(setting.clone()).or_default();
        let earlier = std::mem::replace(known, of_file);
        known.merge(&earlier);
        self.loaded.insert(setting.clone());
    }

    /// Runs an operation on the file. None if there is no file, or it gives none.
    fn with_store<R>(
        &mut self,
        work: impl FnOnce(&mut Store, &Settings) -> Result<Option<R>, TuneError>,
    ) -> Option<R> {
        let done = work(self.store.as_mut()?, &self.own);
        done.unwrap_or_else(|error| {
            self.continue_in_memory(error);
            None
        })
    }

    fn continue_in_memory(&mut self, error: TuneError) {
        if let Some(store) = self.store.take() {
            self.warnings.extend(store.warnings);
        }
        self.warnings.push(error);
    }
}

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;
