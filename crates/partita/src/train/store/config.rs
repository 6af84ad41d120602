//! What a run file says of samples in memory: `[data]`.

use super::error::StoreError;
use crate::train::offload::config::{OffloadConfig, Processes};
use crate::train::section::{RunFileError, Section};
use std::path::PathBuf;
use toml::de::DeValue;

const KEYS: [&str; 3] = ["path", "store", "preload"];
const DATA: &str = "the path of a dataset, or a table with `path`";

/// Whether samples stay in memory after they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// Every epoch reads the files.
    #[default]
    None,
    /// The ranks keep one copy of the dataset in memory.
    Memory,
}

impl StoreKind {
    /// All, with their names.
    pub const CHOICES: [(&'static str, StoreKind); 2] =
        [("none", StoreKind::None), ("memory", StoreKind::Memory)];
}

/// The dataset of a run file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataOptions {
    /// A dataset folder or a single HDF5 file.
    pub path: PathBuf,
    /// Whether samples stay in memory (default: none).
    pub store: StoreKind,
    /// Whether all samples are read before the first step (default: false).
    pub preload: bool,
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
                store: StoreKind::default(),
                preload: false,
            });
        }
        let section = top.section("data")?;
        let section = top.need("data", section, DATA)?;
        section.check(&KEYS)?;
        let path = "the path of a dataset folder or HDF5 file";
        let preload = section.read("preload", "true or false", DeValue::as_bool)?;
        Ok(Self {
            path: section
                .need("path", section.text("path", path)?, path)?
                .into(),
            store: section
                .choice("store", &StoreKind::CHOICES)?
                .unwrap_or_default(),
            preload: preload.unwrap_or(false),
        })
    }
}

/// Checks that there is a store where it is to be filled before the first step, and that ranks themselves read.
pub fn check(store: StoreKind, preload: bool, offload: &OffloadConfig) -> Result<(), StoreError> {
    match store {
        StoreKind::None if preload => Err(StoreError::Preload),
        StoreKind::Memory if offload.loaders != Processes::Started(0) => Err(StoreError::Loaders),
        StoreKind::None | StoreKind::Memory => Ok(()),
    }
}
