//! The corpus: small inputs of each target, including every input that once found a fault.

use crate::targets::Target;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Subfolder of inputs whose faults are not fixed yet.
const CRASHES: &str = "crashes";

/// The corpus folder of this repository.
pub fn corpus_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The corpus of one target.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// File name and contents, by name.
    pub inputs: Vec<(String, Vec<u8>)>,
}

impl Corpus {
    /// Reads the inputs of `target` below `root`.
    pub fn read(root: &Path, target: &Target) -> io::Result<Self> {
        let folder = root.join(target.name);
        let mut inputs = Vec::new();
        let crashes = format!("{CRASHES}/");
        for (folder, prefix) in [(folder.clone(), ""), (folder.join(CRASHES), &crashes)] {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_file() {
                    let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
                    inputs.push((name, fs::read(entry.path())?));
                }
            }
        }
        inputs.sort();
        Ok(Self { inputs })
    }

    /// Saves an input that found a fault in the `crashes` folder of its target; returns its path, and its name in
    /// [`Corpus::inputs`].
    pub(crate) fn save_crash(
        root: &Path,
        target: &str,
        kind: &str,
        input: &[u8],
    ) -> io::Result<(PathBuf, String)> {
        let folder = root.join(target).join(CRASHES);
        fs::create_dir_all(&folder)?;
        let name = name(kind, input);
        let path = folder.join(&name);
        fs::write(&path, input)?;
        Ok((path, format!("{CRASHES}/{name}")))
    }
}

/// A file name by contents, so that equal inputs are saved once.
pub(crate) fn name(kind: &str, input: &[u8]) -> String {
    // FNV-1a, stable across versions of the compiler.
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{kind}-{hash:016x}")
}
