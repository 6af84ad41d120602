//! Measured times, kept in one file that processes share.

use crate::store::{Store, check_regular, scratch};
use crate::{KernelKey, Measured, TuneError};
use partita_oracle::{Features, LinkTimes, Point};
use partita_space::Seconds;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

/// Number of the file's format, raised also when times were measured wrongly: what a file of an older
/// format holds does not count, one of a newer format is not read.
const FORMAT: u32 = 5;

/// How long a process waits for another one that writes the file, which takes milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(3);

/// No kernel, message or read that is measured takes longer.
const DAY: Seconds = Seconds(86_400.0);

/// Under what a time was measured; times of different settings are never mixed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Setting {
    /// Model name of the processor.
    pub processor: String,
    /// Cores that the process may use.
    pub cores: usize,
    /// Instruction level of the kernels.
    pub simd: String,
    /// Kernel set or transport, with its version.
    pub backend: String,
    /// Ranks that share the caches.
    pub ranks: usize,
    /// Ranks at work at the same time.
    pub at_work: usize,
    /// Threads of each.
    pub threads: usize,
}

/// All that was measured under a setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurements {
    /// Seconds of kernels by signature, then by algorithm.
    #[serde(default)]
    pub kernels: BTreeMap<String, BTreeMap<String, Seconds>>,
    /// Shapes of kernels by signature.
    #[serde(default)]
    pub shapes: BTreeMap<String, Features>,
    /// Messages and collectives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<LinkTimes>,
    /// Reads, by what is read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub loads: BTreeMap<String, Vec<Point>>,
}

/// Measurements of this and other machines, kept in one JSON file that processes share.
#[derive(Debug)]
pub struct Database {
    /// None where times are kept in memory only.
    store: Option<Store>,
    /// All that is known.
    settings: Settings,
    /// What this process has measured itself.
    own: Settings,
    is_writable: bool,
    lacks_lock: bool,
    warnings: Vec<TuneError>,
}

type Settings = BTreeMap<Setting, Measurements>;

/// What a file holds.
enum Content {
    Times(Settings),
    /// No database, and why.
    Corrupt(String),
    /// Of this newer format.
    Newer(u32),
}

/// What files of all forms begin with.
#[derive(Deserialize)]
struct Form {
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

    /// Takes in times; a newer one replaces an older.
    pub fn add(&mut self, measured: impl IntoIterator<Item = Measured>) {
        for Measured {
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

    /// Takes in everything of `newer`.
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

    /// Errors: what no measurement gives.
    fn check(&self) -> Result<(), String> {
        let is_possible = |time: &Seconds| (0.0..=DAY.0).contains(&time.0);
        let links = self.links.iter();
        let of_groups = links.clone().flat_map(LinkTimes::of_groups);
        if of_groups
            .clone()
            .chain(self.loads.values())
            .any(Vec::is_empty)
        {
            return Err("a list of measured points is empty".to_owned());
        }
        let messages = links.flat_map(|links| &links.message);
        let points = of_groups.chain(self.loads.values()).flatten();
        let points = points.chain(messages);
        // Lines are fitted to the relative errors of points, so that none may take no time.
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
    /// Reads the file; one that does not exist, or of an older format, holds nothing.
    ///
    /// A file that cannot be parsed is renamed, one of a newer format is left as it is, and one that
    /// cannot be read leaves the database in memory; [`take_warnings`](Self::take_warnings) tells of each.
    pub fn open(path: &Path) -> Self {
        let mut database = Self {
            store: Some(Store::new(path)),
            ..Self::in_memory()
        };
        // Files are replaced in one step, so that a good one can be read without the lock.
        let read = match read(path) {
            Ok(Content::Times(settings)) => Ok(settings),
            Ok(Content::Corrupt(_) | Content::Newer(_)) | Err(_) => {
                database.locked(Self::settings_of_file)
            }
        };
        match read {
            Ok(settings) => database.settings = settings,
            Err(error) => database.give_up(error),
        }
        database
    }

    /// Without a file: what is measured is known until the process ends.
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

    /// What was measured under a setting.
    pub fn measurements(&self, setting: &Setting) -> Measurements {
        self.settings.get(setting).cloned().unwrap_or_default()
    }

    /// The folder of the file; none where times are in memory only.
    pub fn folder(&self) -> Option<&Path> {
        self.store.as_ref().map(Store::folder)
    }

    /// Makes sure that the file can be written, before anything is measured for it. Where it cannot, the
    /// database goes on in memory, with a warning.
    pub fn check_writable(&mut self) {
        let Some(store) = self.store.as_ref().filter(|_| !self.is_writable) else {
            return;
        };
        match scratch(store.folder()) {
            Ok(_) => self.is_writable = true,
            Err(error) => {
                let error = store.not_kept(&error);
                self.give_up(error);
            }
        }
    }

    /// Takes in what was measured under a setting, and writes the file.
    ///
    /// What other processes have written meanwhile is kept. What this process has measured it knows from
    /// now on, whatever becomes of the file: another process may replace or remove it at any time. A file
    /// that cannot be written leaves the database in memory, with a warning.
    pub fn keep(&mut self, setting: &Setting, new: &Measurements) {
        let written = match self.store {
            Some(_) => self.locked(|database| database.write(setting, new)),
            None => Ok(()),
        };
        for known in [&mut self.settings, &mut self.own] {
            known.entry(setting.clone()).or_default().merge(new);
        }
        if let Err(error) = written {
            self.give_up(error);
        }
    }

    /// What has gone wrong with the file since the last call; none of it keeps anybody from measuring.
    pub fn take_warnings(&mut self) -> Vec<TuneError> {
        std::mem::take(&mut self.warnings)
    }

    fn give_up(&mut self, error: TuneError) {
        self.store = None;
        self.warnings.push(error);
    }

    /// Does something with the file while no other process writes it. Without the lock, where it cannot be
    /// had: times that others write at the same moment may then be lost, and are measured again.
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
        // Where the work fails its error says enough.
        if let (Some(Err(error)), Ok(_), false) = (lock, &result, self.lacks_lock) {
            self.lacks_lock = true;
            self.warnings.push(error);
        }
        result
    }

    /// What the file holds, after what is no database has been moved or passed over.
    fn settings_of_file(&mut self) -> Result<Settings, TuneError> {
        while let Some(store) = &mut self.store {
            match read(store.path()).map_err(|error| store.unreadable(&error))? {
                Content::Times(settings) => return Ok(settings),
                Content::Corrupt(reason) => {
                    let warning = store.set_aside(reason)?;
                    self.warnings.push(warning);
                }
                Content::Newer(found) => {
                    let warning = store.pass_over(found, FORMAT)?;
                    self.warnings.push(warning);
                }
            }
        }
        Ok(Settings::new())
    }

    fn write(&mut self, setting: &Setting, new: &Measurements) -> Result<(), TuneError> {
        let of_file = self.settings_of_file()?;
        let Some(store) = &self.store else {
            return Ok(());
        };
        // Another process that had no lock may have lost what this one wrote.
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
        // A kernel has one time as long as the process lives; the file only adds to what is known.
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
        // That nothing can be written there is found out before something is measured.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Content::Times(Settings::new()));
        }
        Err(error) => return Err(error),
    };
    Ok(parsed(&text).unwrap_or_else(Content::Corrupt))
}

/// Errors: why the text is no database.
fn parsed(text: &[u8]) -> Result<Content, String> {
    let form: Form = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    match form.format.cmp(&FORMAT) {
        Ordering::Less => return Ok(Content::Times(Settings::new())),
        Ordering::Equal => {}
        Ordering::Greater => return Ok(Content::Newer(form.format)),
    }
    let stored: Stored = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let mut settings = Settings::new();
    for entry in stored.settings {
        entry.measurements.check()?;
        settings
            .entry(entry.setting)
            .or_default()
            .merge(&entry.measurements);
    }
    Ok(Content::Times(settings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::Bytes;

    fn setting(ranks: usize) -> Setting {
        Setting {
            processor: "Some CPU".to_owned(),
            cores: 2,
            simd: "AVX2".to_owned(),
            backend: "plain 1".to_owned(),
            ranks,
            at_work: ranks,
            threads: 1,
        }
    }

    fn key(number: usize) -> KernelKey {
        KernelKey {
            signature: format!("fill {number}"),
            algorithm: "plain".to_owned(),
        }
    }

    fn times(numbers: &[(usize, f64)]) -> Measurements {
        let mut all = Measurements::default();
        all.add(numbers.iter().map(|&(number, seconds)| Measured {
            key: key(number),
            features: Features {
                family: "fill".to_owned(),
                flops: 0.0,
                bytes: number as f64,
                shape: [0.0; Features::NAMES.len()],
            },
            seconds: Seconds(seconds),
        }));
        all
    }

    /// All that has been told of it.
    fn told(database: &mut Database) -> String {
        let warnings = database.take_warnings();
        let texts: Vec<String> = warnings.iter().map(TuneError::to_string).collect();
        texts.join("; ")
    }

    /// A database that has nothing to tell.
    fn opened(path: &Path) -> Database {
        let mut database = Database::open(path);
        assert_eq!(told(&mut database), "");
        database
    }

    #[test]
    fn times_are_read_again_to_the_last_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        // A reader of JSON that rounds digit by digit makes 2.184467440737095 of it.
        let one = times(&[(1, 2.184_467_440_737_095_4)]);
        let mut database = opened(&path);
        database.keep(&setting(1), &one);
        let again = opened(&path);
        assert_eq!(again.measurements(&setting(1)), one);
    }

    #[test]
    fn what_is_kept_is_read_again_by_setting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/measured.json");
        let mut database = opened(&path);
        let mut one = times(&[(1, 0.5), (2, 1e-6)]);
        let point = Point {
            bytes: Bytes(64),
            seconds: Seconds(2e-6),
            host: Seconds(1e-6),
        };
        one.links = Some(LinkTimes {
            message: vec![point],
            allreduce: [(2, vec![point, point])].into(),
            ..LinkTimes::default()
        });
        one.loads.insert("a file".to_owned(), vec![point]);
        database.check_writable();
        database.keep(&setting(1), &one);
        database.keep(&setting(2), &times(&[(1, 0.75)]));
        assert_eq!(told(&mut database), "");
        let again = opened(&path);
        assert_eq!(again.settings, database.settings);
        assert_eq!(again.measurements(&setting(1)), one);
        assert_eq!(
            again.measurements(&setting(2)).seconds(&key(1)),
            Some(Seconds(0.75))
        );
        assert!(!again.measurements(&setting(3)).has(&key(1)));
        let files = fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(files.count(), 2, "the file and its lock, nothing temporary");
    }

    #[test]
    fn two_writers_lose_nothing_and_the_newer_wins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        let (mut first, mut second) = (opened(&path), opened(&path));
        first.keep(&setting(1), &times(&[(1, 1.0), (2, 2.0)]));
        second.keep(&setting(1), &times(&[(2, 20.0), (3, 30.0)]));
        let all = opened(&path).measurements(&setting(1));
        assert_eq!(all, times(&[(1, 1.0), (2, 20.0), (3, 30.0)]));
        assert_eq!(second.measurements(&setting(1)), all);
        // The first one's plans rest on the time that it knows.
        first.keep(&setting(1), &times(&[(4, 4.0)]));
        let own = times(&[(1, 1.0), (2, 2.0), (3, 30.0), (4, 4.0)]);
        assert_eq!(first.measurements(&setting(1)), own);
        let all = opened(&path).measurements(&setting(1));
        assert_eq!(all.seconds(&key(2)), Some(Seconds(20.0)));
    }

    #[test]
    fn many_writers_at_once_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        let write = |writer: usize| {
            for number in 0..20 {
                // Each time as another process would.
                let mut database = opened(&path);
                database.keep(&setting(1), &times(&[(100 * writer + number, 1.0)]));
                assert_eq!(told(&mut database), "");
            }
        };
        std::thread::scope(|scope| {
            for writer in 0..6 {
                scope.spawn(move || write(writer));
            }
        });
        let all = opened(&path).measurements(&setting(1));
        assert_eq!(all.kernels.len(), 6 * 20);
    }

    #[test]
    fn what_a_process_measured_it_knows_whatever_others_do_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        let mut database = opened(&path);
        database.keep(&setting(2), &times(&[(1, 1.0)]));
        fs::remove_file(&path).unwrap();
        database.keep(&setting(1), &times(&[(1, 2.0)]));
        for database in [&database, &opened(&path)] {
            assert_eq!(
                database.measurements(&setting(2)),
                times(&[(1, 1.0)]),
                "times that are not in the file"
            );
            assert_eq!(database.measurements(&setting(1)), times(&[(1, 2.0)]));
        }
    }

    #[test]
    fn a_corrupt_file_is_renamed_and_named_and_measuring_starts_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        let mut whole = opened(&path);
        let mut one = times(&[(1, 1.0)]);
        one.loads.insert("a file".to_owned(), Vec::new());
        whole.keep(&setting(1), &one);
        let empty_list = fs::read(&path).unwrap();
        let mut timeless = one.clone();
        let point = Point {
            bytes: Bytes(64),
            seconds: Seconds(0.0),
            host: Seconds(0.0),
        };
        timeless.loads.insert("a file".to_owned(), vec![point]);
        fs::remove_file(&path).unwrap();
        opened(&path).keep(&setting(1), &timeless);
        let timeless = fs::read(&path).unwrap();
        one.loads.clear();
        fs::remove_file(&path).unwrap();
        opened(&path).keep(&setting(1), &one);
        let good = fs::read(&path).unwrap();
        let negative = String::from_utf8(good.clone()).unwrap();
        let negative = negative.replace("1.0", "-1.0").into_bytes();
        assert_ne!(negative, good);
        let endless = String::from_utf8(good.clone()).unwrap();
        let endless = endless.replace("1.0", "1e300").into_bytes();
        let wrong = [
            good[..good.len() / 2].to_vec(),
            format!("{{\"format\": {FORMAT}}}").into_bytes(),
            negative,
            endless,
            timeless,
            empty_list,
            b"[]".to_vec(),
            b"\xff\xfe".to_vec(),
            Vec::new(),
        ];
        for (number, wrong) in (1..).zip(&wrong) {
            fs::write(&path, wrong).unwrap();
            let mut database = Database::open(&path);
            let renamed = format!("measured.corrupt-{number}.json");
            let said = told(&mut database);
            assert!(
                said.contains("measured.json holds") && said.contains(&renamed),
                "{said}"
            );
            assert_eq!(&fs::read(folder.path().join(renamed)).unwrap(), wrong);
            database.keep(&setting(1), &one);
            assert_eq!(fs::read(&path).unwrap(), good);
        }
        // Another process may have spoilt the file meanwhile.
        let mut database = opened(&path);
        fs::write(&path, "{").unwrap();
        database.keep(&setting(1), &one);
        assert!(told(&mut database).contains("measured.corrupt-10.json"));
        assert_eq!(fs::read(&path).unwrap(), good);
    }

    #[test]
    fn a_file_of_a_newer_format_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        let newer = format!("{{\"format\": {}, \"else\": 1}}", FORMAT + 1);
        fs::write(&path, &newer).unwrap();
        for turn in 0..2 {
            let mut database = Database::open(&path);
            let said = told(&mut database);
            let own = format!("measured.{FORMAT}.json");
            assert!(
                said.contains("newer version") && said.contains(&own),
                "{said}"
            );
            assert_eq!(database.measurements(&setting(1)).has(&key(1)), turn == 1);
            database.keep(&setting(1), &times(&[(1, 1.0)]));
            assert_eq!(told(&mut database), "");
            assert_eq!(fs::read_to_string(&path).unwrap(), newer);
        }
        fs::write(
            folder.path().join(format!("measured.{FORMAT}.json")),
            &newer,
        )
        .unwrap();
        let mut database = Database::open(&path);
        assert!(told(&mut database).contains("cannot be read"));
        database.keep(&setting(1), &times(&[(1, 1.0)]));
        assert!(database.measurements(&setting(1)).has(&key(1)));
    }

    #[test]
    fn times_that_cannot_be_written_are_known_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "no folder").unwrap();
        let mut database = opened(&file.join("partita/measured.json"));
        for _ in 0..2 {
            database.check_writable();
        }
        let said = told(&mut database);
        assert_eq!(said.matches("cannot be kept in").count(), 1, "{said}");
        database.keep(&setting(1), &times(&[(1, 1.0)]));
        assert!(database.measurements(&setting(1)).has(&key(1)));
        assert_eq!(told(&mut database), "");
        // A folder in the place of the file.
        let path = folder.path().join("measured.json");
        fs::create_dir(&path).unwrap();
        let mut database = Database::open(&path);
        assert!(told(&mut database).contains("cannot be read"));
        database.keep(&setting(1), &times(&[(1, 1.0)]));
        assert!(database.measurements(&setting(1)).has(&key(1)));
    }

    #[test]
    #[cfg(unix)]
    fn a_pipe_or_a_device_in_the_place_of_a_file_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        let pipe = |name: &str| {
            let made = std::process::Command::new("mkfifo")
                .arg(folder.path().join(name))
                .status();
            assert!(made.unwrap().success());
        };
        pipe("measured.json");
        let said = told(&mut Database::open(&path));
        assert!(said.contains("it is no regular file"), "{said}");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        let said = told(&mut Database::open(&path));
        assert!(said.contains("it is no regular file"), "{said}");
        fs::remove_file(&path).unwrap();
        fs::remove_file(folder.path().join("measured.lock")).unwrap();
        pipe("measured.lock");
        let mut database = opened(&path);
        database.keep(&setting(1), &times(&[(1, 1.0)]));
        let said = told(&mut database);
        assert!(said.contains("measured.lock cannot be locked"), "{said}");
        assert!(opened(&path).measurements(&setting(1)).has(&key(1)));
    }

    #[test]
    fn a_lock_that_cannot_be_had_is_told_once_and_does_without() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        let stuck = fs::File::create(folder.path().join("measured.lock")).unwrap();
        stuck.lock().unwrap();
        let mut database = opened(&path);
        let start = std::time::Instant::now();
        database.keep(&setting(1), &times(&[(1, 1.0)]));
        let said = told(&mut database);
        assert!(said.contains("measured.lock cannot be locked"), "{said}");
        let waited = start.elapsed();
        assert!(waited >= LOCK_WAIT, "{waited:?}");
        database.keep(&setting(1), &times(&[(2, 2.0)]));
        assert_eq!(told(&mut database), "");
        assert!(start.elapsed() < waited + LOCK_WAIT);
        let both = times(&[(1, 1.0), (2, 2.0)]);
        assert_eq!(opened(&path).measurements(&setting(1)), both);
    }

    #[test]
    fn times_of_an_older_format_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        opened(&path).keep(&setting(2), &times(&[(1, 2.0)]));
        let text = fs::read_to_string(&path).unwrap();
        let form = |number: u32| format!("\"format\": {number}");
        let older = text.replace(&form(FORMAT), &form(FORMAT - 1));
        assert_ne!(older, text);
        fs::write(&path, older).unwrap();
        let mut database = opened(&path);
        assert!(!database.measurements(&setting(2)).has(&key(1)));
        database.keep(&setting(2), &times(&[(2, 1.0)]));
        let all = opened(&path).measurements(&setting(2));
        assert_eq!(all, times(&[(2, 1.0)]));
    }
}
