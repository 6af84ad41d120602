//! Bytes that files and folders have, and what they bound.

use std::path::Path;

use partita_formats::{DataError, ReadError, SourceArray};

/// Samples of a file, whatever its size, and of all.
const SAMPLES: std::ops::RangeInclusive<u64> = 1 << 16..=1 << 24;

/// Refuses more samples than a file can hold: a few bytes of it may claim any number.
pub(crate) fn check_samples(volumes: &SourceArray, samples: usize) -> Result<(), DataError> {
    if samples as u64 <= *SAMPLES.start() {
        return Ok(());
    }
    // A sample takes more than a byte.
    let bytes = bytes_on_disk(volumes.path()).unwrap_or_default();
    let most = bytes.clamp(*SAMPLES.start(), *SAMPLES.end());
    if samples as u64 <= most {
        return Ok(());
    }
    let reason = format!(
        "it claims {samples} samples, and at most {most} are read of a file of {bytes} bytes; spread them over several \
         files, or name another order of dims (`--layout`)"
    );
    Err(ReadError::Unsupported(reason).of(volumes.path(), Some(&volumes.key), None))
}

/// Bytes of a file, or of all files of a folder; links in it count as they are.
pub(crate) fn bytes_on_disk(path: &Path) -> std::io::Result<u64> {
    let found = path.metadata()?;
    if !found.is_dir() {
        return Ok(found.len());
    }
    let mut bytes = 0;
    let mut folders = vec![path.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir()? {
            let entry = entry?;
            let found = entry.metadata()?;
            if found.is_dir() {
                folders.push(entry.path());
            } else {
                bytes += found.len();
            }
        }
    }
    Ok(bytes)
}
