//! Files in a zip archive, read under limits.

use crate::{ImportError, Reason};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use zip::ZipArchive;
use zip::result::ZipError;

/// Largest JSON file.
const TEXT_MAX: u64 = 256 << 20;

/// An open archive whose files lie in one folder.
pub(crate) struct Archive {
    folder: String,
    zip: ZipArchive<BufReader<File>>,
}

impl Archive {
    /// Opens an archive that holds `file` in its only folder.
    pub(crate) fn open(path: &Path, file: &str) -> Result<Self, ImportError> {
        let unreadable = ImportError::Unreadable;
        let opened = partita_files::open(path).map_err(unreadable)?;
        let zip = ZipArchive::new(BufReader::new(opened));
        let zip = zip.map_err(|error| damaged(format!("it is no zip archive ({error})")))?;
        let end = format!("/{file}");
        let mut folders = zip.file_names().filter_map(|name| name.strip_suffix(&end));
        let folder = folders.next().map(str::to_owned);
        drop(folders);
        let folder = folder.ok_or_else(|| damaged(format!("the archive has no {file}")))?;
        Ok(Self { folder, zip })
    }

    /// The text of a JSON file.
    pub(crate) fn text(&mut self, file: &str) -> Result<String, ImportError> {
        let bytes = self.bytes(file, TEXT_MAX)?;
        String::from_utf8(bytes).map_err(|error| damaged(format!("{file} is no text ({error})")))
    }

    /// Whether it has a file.
    pub(crate) fn has(&self, file: &str) -> bool {
        let name = format!("{}/{file}", self.folder);
        self.zip.index_for_name(&name).is_some()
    }

    /// The bytes of a file of at most this many.
    pub(crate) fn bytes(&mut self, file: &str, most: u64) -> Result<Vec<u8>, ImportError> {
        let name = format!("{}/{file}", self.folder);
        let read = |zip: &mut ZipArchive<_>| -> Result<Vec<u8>, ZipError> {
            let mut bytes = Vec::new();
            zip.by_name(&name)?.take(most + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read(&mut self.zip) {
            Ok(bytes) if bytes.len() as u64 > most => {
                Err(damaged(format!("{file} has more than {most} bytes")))
            }
            Ok(bytes) => Ok(bytes),
            Err(error) => Err(damaged(format!("{file} cannot be read ({error})"))),
        }
    }
}

pub(crate) fn damaged(fault: impl Into<Reason>) -> ImportError {
    let fault = fault.into();
    ImportError::Damaged { fault }
}
