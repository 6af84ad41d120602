//! The table `[offload]` of a run file.

use super::super::section::{RunFileError, Section, duration, suggest, whole};
use partita_offload::Address;
use partita_program::Body;
use partita_session::snapshot_bytes;
use partita_site::cores::{list, parse_cores};
use partita_space::help::Expected;
use partita_space::{Bytes, Seconds};
use std::path::PathBuf;
use toml::de::DeValue;

const KEYS: [&str; 7] = [
    "loaders",
    "validators",
    "credits",
    "cores",
    "secret",
    "connect_timeout",
    "timeout",
];
/// Most processes that a training starts for a role: each takes tens of milliseconds and of MiB.
const STARTED_MAX: usize = 256;
/// Most processes of a role at addresses.
const ADDRESSES_MAX: usize = 4096;
const CREDITS: usize = 4;
/// Most pieces that a loader may hold for a rank.
const CREDITS_MAX: usize = 1024;
const CONNECT_TIMEOUT: Seconds = Seconds(10.0);

/// Processes of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Processes {
    /// This many, started by the training on its host. None for 0.
    Started(usize),
    /// At these addresses, started by the user.
    At(Vec<Address>),
}

impl Default for Processes {
    fn default() -> Self {
        Self::Started(0)
    }
}

impl Processes {
    /// Their number.
    pub fn count(&self) -> usize {
        match self {
            Self::Started(count) => *count,
            Self::At(addresses) => addresses.len(),
        }
    }
}

/// What is done in processes of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct OffloadConfig {
    /// Processes that read, prepare and augment samples.
    pub loaders: Processes,
    /// Processes that validate snapshots.
    pub validators: Processes,
    /// Pieces that a loader reads ahead for a rank.
    pub credits: usize,
    /// Cores of the processes that the training starts (default: all that it may use).
    pub cores: Option<String>,
    /// The file with the secret of processes at addresses (default: that of the user).
    pub secret: Option<PathBuf>,
    /// How long the training waits at its start for processes that do not listen yet.
    pub connect_timeout: Seconds,
    /// How long a process may take for an answer before it counts as lost (default: half of the watchdog's limit).
    pub timeout: Option<Seconds>,
}

impl Default for OffloadConfig {
    fn default() -> Self {
        Self {
            loaders: Processes::default(),
            validators: Processes::default(),
            credits: CREDITS,
            cores: None,
            secret: None,
            connect_timeout: CONNECT_TIMEOUT,
            timeout: None,
        }
    }
}

impl OffloadConfig {
    /// Bytes of the copies of parameters that a rank needs.
    pub fn copies(&self, body: &Body) -> Bytes {
        match self.validators.count() {
            0 => Bytes(0),
            _ => snapshot_bytes(body),
        }
    }
}

/// The table `[offload]`, or its defaults. A time must be shorter than `watchdog`.
pub fn read_offload(top: &Section<'_>, watchdog: Seconds) -> Result<OffloadConfig, RunFileError> {
    let Some(section) = top.section("offload")? else {
        return Ok(OffloadConfig::default());
    };
    section.check(&KEYS)?;
    let limit = Expected::new(format_args!(
        "a time above 0 and below `watchdog`, which is {} s",
        watchdog.0
    ))
    .nearest(format_args!("\"{} s\"", watchdog.0 / 2.0));
    let credits = format!("a whole number from 1 to {CREDITS_MAX}");
    Ok(OffloadConfig {
        loaders: processes(&section, "loaders")?,
        validators: processes(&section, "validators")?,
        credits: section
            .read("credits", credits, |value| count(value, 1..=CREDITS_MAX))?
            .unwrap_or(CREDITS),
        cores: cores(&section)?.map(|cores| list(&cores)),
        secret: section.read("secret", "the path of a file", |value| {
            value.as_str().map(PathBuf::from)
        })?,
        connect_timeout: section
            .time("connect_timeout", "10 s")?
            .unwrap_or(CONNECT_TIMEOUT),
        timeout: section.read("timeout", limit, |value| {
            duration(value.as_str()?).filter(|&time| time < watchdog)
        })?,
    })
}

/// The key `cores` of a table, a list.
pub fn cores(section: &Section<'_>) -> Result<Option<Vec<usize>>, RunFileError> {
    let value = section.get("cores").map(|value| value.get_ref());
    let expected = Expected::from("a text with a list of cores, like \"0\" or \"0,4-7\"")
        .maybe_nearest(value.and_then(suggest::cores));
    section.read("cores", expected, |value| parse_cores(value.as_str()?))
}

fn processes(section: &Section<'_>, key: &str) -> Result<Processes, RunFileError> {
    let expected = Expected::new(format_args!(
        "a whole number from 0 to {STARTED_MAX} of processes that the training starts, or a list of up to \
         {ADDRESSES_MAX} addresses, like [\"node7:7700\", \"unix:/tmp/loader\"]"
    ));
    let asked = section.get(key).map(|value| value.get_ref());
    let nearest = asked.and_then(|value| suggest::whole_number(value, 0, STARTED_MAX as u64));
    let expected = expected.maybe_nearest(nearest);
    let read = |value: &DeValue<'_>| {
        let DeValue::Array(list) = value else {
            return count(value, 0..=STARTED_MAX).map(Processes::Started);
        };
        let list = Some(list).filter(|list| list.len() <= ADDRESSES_MAX)?;
        let addresses = list.iter().map(|one| one.get_ref().as_str()?.parse().ok());
        addresses.collect::<Option<_>>().map(Processes::At)
    };
    Ok(section.read(key, expected, read)?.unwrap_or_default())
}

fn count(value: &DeValue<'_>, bounds: std::ops::RangeInclusive<usize>) -> Option<usize> {
    let number = usize::try_from(whole(value)?).ok()?;
    bounds.contains(&number).then_some(number)
}
