//! A database of measured times: one file that processes share.

use crate::key_version_0::converted;
use crate::store::{Store, check_regular, scratch};
use crate::{KernelKey, KernelTime, TuneError};
use partita_oracle::{Features, LinkTimes, TransferTime};
use partita_program::KernelShape;
use partita_space::Seconds;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

/// Format of the file. Times in an older format are discarded (it is also raised after faulty measurements), a
/// newer format is not read.
///
/// Keys of kernels have their own version ([`KernelShape::KEY_VERSION`]), so processes with different versions
/// can share a file: each leaves the keys of the other unchanged.
const FORMAT: u32 = 5;

/// Longest wait for another process that writes the file, which takes milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(3);

/// Longest valid time of a kernel, message or read.
const TIME_MAX: Seconds = Seconds(86_400.0);

/// The conditions of a measurement. Times of different settings are never mixed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Setting {
    /// Model name of the processor.
    pub processor: String,
    /// Cores available to the process.
    pub cores: usize,
    /// Instruction level of the kernels.
    pub simd: String,
    /// Kernel set or transport, with its version.
    pub backend: String,
    /// Ranks that share the caches.
    pub ranks: usize,
    /// Ranks that computed at the same time.
    pub at_work: usize,
    /// Threads per rank.
    pub threads: usize,
}

/// All measurements under a setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurements {
    /// Seconds of kernels by signature, then by algorithm.
    #[serde(default)]
    pub kernels: BTreeMap<String, BTreeMap<String, Seconds>>,
    /// Features of kernels by signature.
    #[serde(default)]
    pub shapes: BTreeMap<String, Features>,
    /// Messages and collectives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<LinkTimes>,
    /// Reads, by what was read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub loads: BTreeMap<String, Vec<TransferTime>>,
}

/// Measurements of this and other machines in a JSON file that processes share.
#[derive(Debug)]
pub struct Database {
    /// None if times are in memory only.
    store: Option<Store>,
    /// All times.
    settings: Settings,
    /// Times measured by this process.
    own: Settings,
    is_writable: bool,
    lacks_lock: bool,
    warnings: Vec<TuneError>,
}

type Settings = BTreeMap<Setting, Measurements>;

/// Contents of a file.
enum Content {
    /// Times, and the number of kernel keys that could not be converted.
    Times(Settings, usize),
    /// No database, with the reason.
    Corrupt(String),
    /// A newer format.
    Newer(u32),
}

/// The part that all formats have.
#[derive(Deserialize)]
struct Header {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    format: u32,
    settings: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    setting: Setting,
    measurements: Measurements,
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

    /// Adds times, which replace older ones.
    pub fn add(&mut self, measured: impl IntoIterator<Item = KernelTime>) {
        for KernelTime {
            key,
            features,
            seconds,
        } in measured
        {
            self.shapes.insert(key.signature.clone(), features);
            let algorithms = self.kernels.entry(key.signature).or_default();
            algorithms.insert(key.algorithm, seconds);
        }
    }

    /// Adds those of `newer`, which replace older ones.
    fn merge(&mut self, newer: &Measurements) {
        for (signature, algorithms) in &newer.kernels {
            let own = self.kernels.entry(signature.clone()).or_default();
            own.extend(algorithms.iter().map(|(name, time)| (name.clone(), *time)));
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

    /// Converts keys without a version to version 1. Marks those that cannot be converted as version 0, and
    /// returns their number.
    fn convert_keys(&mut self) -> usize {
        let keys = self.kernels.keys().chain(self.shapes.keys());
        let old: BTreeSet<String> = keys.filter(|key| !has_version(key)).cloned().collect();
        let mut unconverted = 0;
        for old in old {
            let new = converted(&old).unwrap_or_else(|| {
                unconverted += 1;
                format!("k0 {old}")
            });
            // Times under the new key are from a later version.
            if let Some(algorithms) = self.kernels.remove(&old) {
                let known = self.kernels.entry(new.clone()).or_default();
                for (algorithm, seconds) in algorithms {
                    known.entry(algorithm).or_insert(seconds);
                }
            }
            if let Some(features) = self.shapes.remove(&old) {
                self.shapes.entry(new).or_insert(features);
            }
        }
        unconverted
    }

    /// Errors: values that no measurement has.
    fn check(&self) -> Result<(), String> {
        let is_possible = |time: &Seconds| (0.0..=TIME_MAX.0).contains(&time.0);
        let links = self.links.iter();
        let collectives = links.clone().flat_map(LinkTimes::collectives);
        if collectives
            .clone()
            .chain(self.loads.values())
            .any(Vec::is_empty)
        {
            return Err("a list of measured points is empty".to_owned());
        }
        let messages = links.flat_map(|links| &links.message);
        let points = collectives.chain(self.loads.values()).flatten();
        let points = points.chain(messages);
        // Fits minimize relative errors, which a time of 0 does not have.
        if let Some(point) = points.clone().find(|point| point.seconds.0 == 0.0) {
            let time = point.seconds;
            return Err(format!("{time} for {} is not a measured time", point.bytes));
        }
        let times = points.flat_map(|point| [&point.seconds, &point.host]);
        let kernels = self.kernels.values().flat_map(BTreeMap::values);
        match times.chain(kernels).find(|time| !is_possible(time)) {
            Some(time) => Err(format!(
                "{:e} s is not a time of a kernel, message or read",
                time.0
            )),
            None => Ok(()),
        }
    }
}

impl Database {
    /// Reads the file; a missing file, or one of an older format, is empty.
    ///
    /// A corrupt file is renamed, one of a newer format is left unchanged, and if a file cannot be read the
    /// database is in memory; each gives a warning ([`take_warnings`](Self::take_warnings)).
    pub fn open(path: &Path) -> Self {
        let mut database = Self {
            store: Some(Store::new(path)),
            ..Self::in_memory()
        };
        // Files are replaced atomically, so a valid one can be read without the lock.
        let read = match read(path) {
            Ok(Content::Times(settings, _)) => Ok(settings),
            Ok(Content::Corrupt(_) | Content::Newer(_)) | Err(_) => {
                let of_file = database.locked(Self::settings_of_file);
                of_file.map(|(settings, _)| settings)
            }
        };
        match read {
            Ok(settings) => database.settings = settings,
            Err(error) => database.continue_in_memory(error),
        }
        database
    }

    /// A database without a file.
    pub fn in_memory() -> Self {
        Self {
            store: None,
            settings: Settings::new(),
            own: Settings::new(),
            is_writable: false,
            lacks_lock: false,
            warnings: Vec::new(),
        }
    }

    /// The measurements under a setting.
    pub fn measurements(&self, setting: &Setting) -> Measurements {
        self.settings.get(setting).cloned().unwrap_or_default()
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
        match scratch(store.folder()) {
            Ok(_) => self.is_writable = true,
            Err(error) => {
                let error = store.not_kept(&error);
                self.continue_in_memory(error);
            }
        }
    }

    /// Adds measurements under a setting, and writes the file.
    ///
    /// Times that other processes have written meanwhile are kept. This process keeps its own times in memory,
    /// too, since another process may replace or remove the file at any time. If the file cannot be written,
    /// the database continues in memory, with a warning.
    pub fn keep(&mut self, setting: &Setting, new: &Measurements) {
        let written = match self.store {
            Some(_) => self.locked(|database| database.write(setting, new)),
            None => Ok(()),
        };
        for known in [&mut self.settings, &mut self.own] {
            known.entry(setting.clone()).or_default().merge(new);
        }
        if let Err(error) = written {
            self.continue_in_memory(error);
        }
    }

    /// Problems with the file since the last call; none of them prevents measurements.
    pub fn take_warnings(&mut self) -> Vec<TuneError> {
        std::mem::take(&mut self.warnings)
    }

    fn continue_in_memory(&mut self, error: TuneError) {
        self.store = None;
        self.warnings.push(error);
    }

    /// Runs `work` with the lock of the file, or without if it cannot be locked: times that others write at the
    /// same time may then be lost, and are measured again.
    fn locked<R>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<R, TuneError>,
    ) -> Result<R, TuneError> {
        let limit = if self.lacks_lock {
            Duration::ZERO
        } else {
            LOCK_WAIT
        };
        let lock = self.store.as_ref().map(|store| store.lock(limit));
        let result = work(self);
        // If the work fails, its error suffices.
        if let (Some(Err(error)), Ok(_), false) = (lock, &result, self.lacks_lock) {
            self.lacks_lock = true;
            self.warnings.push(error);
        }
        result
    }

    /// Contents of the file, and the number of its keys that could not be converted. A corrupt file is renamed
    /// first, and one of a newer format replaced by another file.
    fn settings_of_file(&mut self) -> Result<(Settings, usize), TuneError> {
        while let Some(store) = &mut self.store {
            match read(store.path()).map_err(|error| store.unreadable(&error))? {
                Content::Times(settings, unconverted) => return Ok((settings, unconverted)),
                Content::Corrupt(reason) => {
                    let warning = store.set_aside(reason)?;
                    self.warnings.push(warning);
                }
                Content::Newer(found) => {
                    let warning = store.switch_file(found, FORMAT)?;
                    self.warnings.push(warning);
                }
            }
        }
        Ok((Settings::new(), 0))
    }

    fn write(&mut self, setting: &Setting, new: &Measurements) -> Result<(), TuneError> {
        let (of_file, unconverted) = self.settings_of_file()?;
        let Some(store) = &self.store else {
            return Ok(());
        };
        // Another process without a lock may have overwritten what this one wrote.
        let mut written = self.own.clone();
        merge(&mut written, &of_file);
        written.entry(setting.clone()).or_default().merge(new);
        let entry = |(setting, measurements): (&Setting, &Measurements)| Entry {
            setting: setting.clone(),
            measurements: measurements.clone(),
        };
        let stored = Stored {
            format: FORMAT,
            settings: written.iter().map(entry).collect(),
        };
        let text = serde_json::to_vec_pretty(&stored).map_err(|error| store.not_kept(&error))?;
        store
            .replace(&text)
            .map_err(|error| store.not_kept(&error))?;
        // These keys now have a version, so this is reported once.
        if unconverted > 0 {
            self.warnings.push(TuneError::OldKeys {
                path: store.path().to_owned(),
                kernels: unconverted,
                version: KernelShape::KEY_VERSION,
            });
        }
        // The time of a kernel does not change while the process lives; the file only adds others.
        let known = std::mem::replace(&mut self.settings, written);
        merge(&mut self.settings, &known);
        Ok(())
    }
}

fn merge(own: &mut Settings, newer: &Settings) {
    for (setting, measurements) in newer {
        own.entry(setting.clone()).or_default().merge(measurements);
    }
}

fn read(path: &Path) -> io::Result<Content> {
    let text = match check_regular(path).and_then(|()| fs::read(path)) {
        Ok(text) => text,
        // `check_writable` finds out whether the file can be written.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Content::Times(Settings::new(), 0));
        }
        Err(error) => return Err(error),
    };
    Ok(parsed(&text).unwrap_or_else(Content::Corrupt))
}

/// Errors: why the text is no database.
fn parsed(text: &[u8]) -> Result<Content, String> {
    let header: Header = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    match header.format.cmp(&FORMAT) {
        Ordering::Less => return Ok(Content::Times(Settings::new(), 0)),
        Ordering::Equal => {}
        Ordering::Greater => return Ok(Content::Newer(header.format)),
    }
    let stored: Stored = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let (mut settings, mut unconverted) = (Settings::new(), 0);
    for mut entry in stored.settings {
        entry.measurements.check()?;
        unconverted += entry.measurements.convert_keys();
        settings
            .entry(entry.setting)
            .or_default()
            .merge(&entry.measurements);
    }
    Ok(Content::Times(settings, unconverted))
}

/// Whether a kernel key has a version; those of version 0 do not.
fn has_version(key: &str) -> bool {
    let number = key.strip_prefix('k').and_then(|rest| rest.split_once(' '));
    number.is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests;
