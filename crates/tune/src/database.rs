use crate::{KernelKey, LinkTimes, Measured, Point, TuneError};
use partita_program::Features;
use partita_space::Seconds;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Number of the file's form, raised also when times were measured wrongly: what a file of an older
/// form holds does not count, one of a newer form is not read.
const FORMAT: u32 = 5;

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

/// Measurements of this and other machines, kept in one JSON file.
#[derive(Clone, Debug, PartialEq)]
pub struct Database {
    path: PathBuf,
    settings: BTreeMap<Setting, Measurements>,
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
}

impl Database {
    /// Reads the file; one that does not exist, or of an older form, holds nothing.
    ///
    /// Errors: a file that cannot be read, or that is no database; it is named and left as it is.
    pub fn open(path: &Path) -> Result<Self, TuneError> {
        Ok(Self {
            path: path.to_owned(),
            settings: read(path)?,
        })
    }

    /// What was measured under a setting.
    pub fn measurements(&self, setting: &Setting) -> Measurements {
        self.settings.get(setting).cloned().unwrap_or_default()
    }

    /// Takes in what was measured under a setting, and writes the file.
    ///
    /// What other processes have written meanwhile is kept. The new file takes the place of the old
    /// one in one step, so that a reader sees one or the other.
    /// Errors: a file that cannot be read or written.
    pub fn keep(&mut self, setting: &Setting, new: &Measurements) -> Result<(), TuneError> {
        let mut settings = read(&self.path)?;
        settings.entry(setting.clone()).or_default().merge(new);
        let entry = |(setting, measurements): (&Setting, &Measurements)| Entry {
            setting: setting.clone(),
            measurements: measurements.clone(),
        };
        let stored = Stored {
            format: FORMAT,
            settings: settings.iter().map(entry).collect(),
        };
        self.write(&stored)?;
        self.settings = settings;
        Ok(())
    }

    fn write(&self, stored: &Stored) -> Result<(), TuneError> {
        let failed = |reason: String| TuneError::File {
            verb: "written",
            path: self.path.clone(),
            reason,
        };
        let text = serde_json::to_string_pretty(stored).map_err(|e| failed(e.to_string()))?;
        let temporary = self
            .path
            .with_extension(format!("{}.new", std::process::id()));
        let write = || {
            if let Some(folder) = self.path.parent() {
                fs::create_dir_all(folder)?;
            }
            let mut file = fs::File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &self.path)
        };
        write().map_err(|error: std::io::Error| {
            // The unfinished file is of no use; that it cannot be removed would change nothing.
            let _ = fs::remove_file(&temporary);
            failed(error.to_string())
        })
    }
}

fn read(path: &Path) -> Result<BTreeMap<Setting, Measurements>, TuneError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => {
            return Err(TuneError::File {
                verb: "read",
                path: path.to_owned(),
                reason: error.to_string(),
            });
        }
    };
    let corrupt = |reason: String| TuneError::Corrupt {
        path: path.to_owned(),
        reason,
    };
    let form: Form = serde_json::from_str(&text).map_err(|error| corrupt(error.to_string()))?;
    match form.format.cmp(&FORMAT) {
        Ordering::Less => return Ok(BTreeMap::new()),
        Ordering::Equal => {}
        Ordering::Greater => {
            let found = form.format;
            return Err(corrupt(format!(
                "its form is {found}, {FORMAT} can be read"
            )));
        }
    }
    let stored: Stored = serde_json::from_str(&text).map_err(|error| corrupt(error.to_string()))?;
    let mut settings: BTreeMap<Setting, Measurements> = BTreeMap::new();
    for entry in stored.settings {
        let times = entry
            .measurements
            .kernels
            .values()
            .flat_map(BTreeMap::values);
        let mut wrong = times.filter(|time| !(time.0.is_finite() && time.0 >= 0.0));
        if let Some(time) = wrong.next() {
            return Err(corrupt(format!("{time} is no time")));
        }
        settings
            .entry(entry.setting)
            .or_default()
            .merge(&entry.measurements);
    }
    Ok(settings)
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

    #[test]
    fn times_are_read_again_to_the_last_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        // A reader of JSON that rounds digit by digit makes 2.184467440737095 of it.
        let one = times(&[(1, 2.184_467_440_737_095_4)]);
        let mut database = Database::open(&path).unwrap();
        database.keep(&setting(1), &one).unwrap();
        let again = Database::open(&path).unwrap();
        assert_eq!(again.measurements(&setting(1)), one);
    }

    #[test]
    fn what_is_kept_is_read_again_by_setting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/measured.json");
        let mut database = Database::open(&path).unwrap();
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
        database.keep(&setting(1), &one).unwrap();
        database.keep(&setting(2), &times(&[(1, 0.75)])).unwrap();
        let again = Database::open(&path).unwrap();
        assert_eq!(again, database);
        assert_eq!(again.measurements(&setting(1)), one);
        assert_eq!(
            again.measurements(&setting(2)).seconds(&key(1)),
            Some(Seconds(0.75))
        );
        assert!(!again.measurements(&setting(3)).has(&key(1)));
        let files = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(files, 1, "no temporary file is left");
    }

    #[test]
    fn two_writers_lose_nothing_and_the_newer_wins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        let mut first = Database::open(&path).unwrap();
        let mut second = Database::open(&path).unwrap();
        first
            .keep(&setting(1), &times(&[(1, 1.0), (2, 2.0)]))
            .unwrap();
        second
            .keep(&setting(1), &times(&[(2, 20.0), (3, 30.0)]))
            .unwrap();
        let all = Database::open(&path).unwrap().measurements(&setting(1));
        assert_eq!(all, times(&[(1, 1.0), (2, 20.0), (3, 30.0)]));
        assert_eq!(second.measurements(&setting(1)), all);
    }

    #[test]
    fn a_corrupt_file_is_named_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        let newer = FORMAT + 1;
        for wrong in [
            &format!("{{\"format\": {FORMAT}, \"settings\": ["),
            &format!("{{\"format\": {FORMAT}}}"),
            &format!("{{\"format\": {newer}, \"settings\": []}}"),
            "[]",
            "",
        ] {
            fs::write(&path, wrong).unwrap();
            let error = Database::open(&path).unwrap_err().to_string();
            assert!(error.contains("measured.json"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), wrong);
        }
        let mut database = Database {
            path: path.clone(),
            settings: BTreeMap::new(),
        };
        assert!(database.keep(&setting(1), &times(&[(1, 1.0)])).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
    }

    #[test]
    fn times_of_an_older_form_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        let mut database = Database::open(&path).unwrap();
        database.keep(&setting(2), &times(&[(1, 2.0)])).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let form = |number: u32| format!("\"format\": {number}");
        let older = text.replace(&form(FORMAT), &form(FORMAT - 1));
        assert_ne!(older, text);
        fs::write(&path, older).unwrap();
        let mut database = Database::open(&path).unwrap();
        assert!(!database.measurements(&setting(2)).has(&key(1)));
        database.keep(&setting(2), &times(&[(2, 1.0)])).unwrap();
        let all = Database::open(&path).unwrap().measurements(&setting(2));
        assert_eq!(all, times(&[(2, 1.0)]));
    }

    #[test]
    fn a_negative_time_is_corrupt() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.json");
        let mut database = Database::open(&path).unwrap();
        database.keep(&setting(1), &times(&[(1, -1.0)])).unwrap();
        let error = Database::open(&path).unwrap_err();
        assert!(matches!(error, TuneError::Corrupt { .. }), "{error}");
    }
}
