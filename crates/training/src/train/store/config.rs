//! What a run file says of samples in memory: `[data]`.

use super::error::StoreError;
use crate::train::offload::config::{OffloadConfig, Processes};
use crate::train::section::{RunFileError, Section};
use partita_forecast::InputSource;
use partita_space::Bytes;
use std::path::PathBuf;
use toml::de::DeValue;

const KEYS: [&str; 6] = [
    "path",
    "store",
    "preload",
    "spill",
    "store_memory",
    "decode_memory",
];
const DATA: &str = "the path of a dataset, or a table with `path`";

/// Whether samples stay in memory after they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// Every epoch reads the files.
    #[default]
    None,
    /// The ranks keep one copy of the dataset in memory.
    Memory,
    /// No file is read: for benchmarks, samples are made up.
    Synthetic,
}

impl StoreKind {
    /// All, with their names.
    pub const CHOICES: [(&'static str, Self); 3] = [
        (Self::None.name(), Self::None),
        (Self::Memory.name(), Self::Memory),
        (Self::Synthetic.name(), Self::Synthetic),
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Memory => "memory",
            Self::Synthetic => "synthetic",
        }
    }
}

/// Whether and where samples stay after they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreConfig {
    /// Whether they stay in memory (default: none).
    pub kind: StoreKind,
    /// Whether all are read before the first step (default: false).
    pub preload: bool,
    /// A folder on a local disk for samples that do not fit the memory (default: these are refused).
    pub spill: Option<PathBuf>,
    /// Memory for samples of each rank (default: what its memory limit leaves).
    pub memory: Option<Bytes>,
}

/// The dataset of a run file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataOptions {
    /// A dataset folder or a single HDF5 file.
    pub path: PathBuf,
    /// Whether and where samples stay.
    pub store: StoreConfig,
    /// Memory that decoding of files may take.
    pub decode_memory: Option<Bytes>,
}

impl DataOptions {
    /// Reads `data`, a path or a table.
    ///
    /// Errors: an invalid value, with its line and what is possible.
    pub fn read(top: &Section<'_>) -> Result<Self, RunFileError> {
        let is_table = |value: &DeValue<'_>| matches!(value, DeValue::Table(_));
        if !top
            .get("data")
            .is_some_and(|value| is_table(value.get_ref()))
        {
            return Ok(Self {
                path: top.need("data", top.text("data", DATA)?, DATA)?.into(),
                store: StoreConfig::default(),
                decode_memory: None,
            });
        }
        let section = top.section("data")?;
        let section = top.need("data", section, DATA)?;
        section.check(&KEYS)?;
        let path = "the path of a dataset folder or HDF5 file";
        let folder = "a folder on a local disk, like \"/tmp\"";
        let preload = section.flag("preload")?;
        let spill = section.text("spill", folder)?;
        if spill.as_deref() == Some("") {
            return Err(section.refuse("spill", folder));
        }
        let store = StoreConfig {
            kind: section
                .choice("store", &StoreKind::CHOICES)?
                .unwrap_or_default(),
            preload: preload.unwrap_or(false),
            spill: spill.map(PathBuf::from),
            memory: section.bytes("store_memory")?,
        };
        Ok(Self {
            path: section
                .need("path", section.text("path", path)?, path)?
                .into(),
            store,
            decode_memory: section.bytes("decode_memory")?,
        })
    }
}

impl StoreConfig {
    /// Where samples come from after the first epoch. What lies on a local disk counts as memory.
    pub fn input(&self) -> InputSource {
        match self.kind {
            StoreKind::None => InputSource::FileSystem,
            StoreKind::Memory => InputSource::DataStore,
            StoreKind::Synthetic => InputSource::Ignored,
        }
    }

    /// Checks that there is a store where something is said of it, and that ranks themselves read.
    ///
    /// Errors: otherwise, with what is possible.
    pub fn check(&self, offload: &OffloadConfig) -> Result<(), StoreError> {
        let unused = [
            (self.spill.is_some(), "spill"),
            (self.memory.is_some(), "store_memory"),
        ];
        let unused = unused.into_iter().find(|(is_said, _)| *is_said);
        let store = self.kind.name();
        let has_loaders = offload.loaders != Processes::Started(0);
        match (self.kind, unused) {
            (StoreKind::Memory | StoreKind::Synthetic, _) if has_loaders => {
                Err(StoreError::Loaders { store })
            }
            (StoreKind::None | StoreKind::Synthetic, _) if self.preload => {
                Err(StoreError::Preload { store })
            }
            (StoreKind::None | StoreKind::Synthetic, Some((_, key))) => {
                Err(StoreError::Unused { key, store })
            }
            (StoreKind::None | StoreKind::Memory | StoreKind::Synthetic, _) => Ok(()),
        }
    }
}
