//! Takes over times of JSON files, in which versions before format 6 kept them.

use crate::key_version_0::converted;
use crate::store::check_regular;
use crate::{Measurements, Setting};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The only format whose times are taken over; earlier ones hold faulty measurements.
const FORMAT: u32 = 5;

/// Times of a file.
#[derive(Debug, Default)]
pub(crate) struct Imported {
    pub settings: BTreeMap<Setting, Measurements>,
    /// Number of kernels whose key of version 0 cannot be converted. They are left out.
    pub unconverted: usize,
}

/// The part that all formats have.
#[derive(Deserialize)]
struct Header {
    format: u32,
}

#[derive(Deserialize)]
struct Stored {
    settings: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    setting: Setting,
    measurements: Measurements,
}

/// Times of a file; none of another format.
///
/// Errors: the file cannot be read, or is no file of times.
pub(crate) fn read(path: &Path) -> Result<Imported, String> {
    let text = check_regular(path).and_then(|()| fs::read(path));
    let text = text.map_err(|error| error.to_string())?;
    let header: Header = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let mut imported = Imported::default();
    if header.format != FORMAT {
        return Ok(imported);
    }
    let stored: Stored = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    for mut entry in stored.settings {
        entry.setting.check()?;
        entry.measurements.check()?;
        imported.unconverted += convert_keys(&mut entry.measurements);
        let known = imported.settings.entry(entry.setting).or_default();
        known.merge(&entry.measurements);
    }
    Ok(imported)
}

/// Converts keys without a version to version 1. Removes those that cannot be converted, and returns their
/// number.
fn convert_keys(measurements: &mut Measurements) -> usize {
    let Measurements {
        kernels, shapes, ..
    } = measurements;
    let keys = kernels.keys().chain(shapes.keys());
    let old: BTreeSet<String> = keys.filter(|key| !has_version(key)).cloned().collect();
    let mut unconverted = 0;
    for old in old {
        let (algorithms, features) = (kernels.remove(&old), shapes.remove(&old));
        let Some(new) = converted(&old) else {
            unconverted += 1;
            continue;
        };
        // Times under the new key are from a later version.
        for (algorithm, seconds) in algorithms.into_iter().flatten() {
            let known = kernels.entry(new.clone()).or_default();
            known.entry(algorithm).or_insert(seconds);
        }
        if let Some(features) = features {
            shapes.entry(new).or_insert(features);
        }
    }
    unconverted
}

/// Whether a kernel key has a version; those of version 0 do not.
fn has_version(key: &str) -> bool {
    let number = key.strip_prefix('k').and_then(|rest| rest.split_once(' '));
    // `k0` marks keys that could not be converted earlier.
    number.is_some_and(|(number, _)| number.parse::<u32>().is_ok_and(|number| number > 0))
}

#[cfg(test)]
mod tests;
