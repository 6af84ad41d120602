//! The manifest of a checkpoint.

use super::digest::{BLOCK, sha256};
use super::error::CheckpointError;
use partita_program::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// Name of the manifest in the folder of a checkpoint.
pub const MANIFEST: &str = "manifest.json";
/// Version of the format that is written, and the newest one that is read.
pub const FORMAT_VERSION: u64 = 1;
const FORMAT: &str = "partita checkpoint";
const KEY: &str = "\"sha256\": \"";
/// In the place of a manifest's own checksum while that is computed.
const BLANK: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// What a checkpoint holds, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    format: String,
    format_version: u64,
    /// Checksum of the manifest's text, computed with zeros in its place.
    sha256: String,
    /// A number that grows from checkpoint to checkpoint of a folder.
    pub serial: u64,
    /// What the caller wants to know when it reads the checkpoint.
    pub training: Value,
    /// The tensors.
    pub tensors: Vec<TensorEntry>,
    /// The files, in rank order.
    pub files: Vec<FileEntry>,
}

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorKind {
    /// A trained parameter.
    Parameter,
    /// Running statistics.
    State,
    /// Momentum or a moment of the optimizer.
    Optimizer,
    /// Exponential moving average of a parameter.
    Average,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub kind: TensorKind,
    /// Type of its elements: F32 or F64.
    pub dtype: Dtype,
    /// Global extents.
    pub shape: [usize; 5],
    /// Its shards, each element in one of them.
    pub shards: Vec<Shard>,
}

/// A shard of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Index of its file.
    pub file: usize,
    /// Offset of its first element from the start of the file, in bytes.
    pub offset: u64,
    /// Global indices that it holds in each dim: start and end.
    pub region: [[usize; 2]; 5],
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the folder.
    pub name: String,
    /// The rank that wrote it.
    pub rank: usize,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its SHA-256 checksum.
    pub sha256: String,
    /// The checksum of each block of 1 MiB, the last one shorter.
    pub blocks: Vec<String>,
}

impl TensorEntry {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Shard {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.region.iter().map(|[start, end]| end - start).product()
    }
}

impl Manifest {
    /// A manifest of these tensors and files.
    pub fn new(
        serial: u64,
        training: Value,
        tensors: Vec<TensorEntry>,
        files: Vec<FileEntry>,
    ) -> Self {
        Self {
            format: FORMAT.to_owned(),
            format_version: FORMAT_VERSION,
            sha256: BLANK.to_owned(),
            serial,
            training,
            tensors,
            files,
        }
    }

    /// The text of the manifest, with its checksum.
    pub fn to_text(&self) -> String {
        let blank = Self {
            sha256: BLANK.to_owned(),
            ..self.clone()
        };
        let text = serde_json::to_string_pretty(&blank)
            .unwrap_or_else(|error| panic!("a manifest is valid JSON: {error}"));
        let text = text + "\n";
        let sum = sha256(text.as_bytes());
        // Its first key of that name is the manifest's own.
        text.replacen(&format!("{KEY}{BLANK}"), &format!("{KEY}{sum}"), 1)
    }

    /// Reads the text of a manifest; errors name it `path`.
    ///
    /// Errors: `Newer`; `BadManifest` for another checksum, or shards that do not fit tensors and files.
    pub fn parse(text: &str, path: &Path) -> Result<Self, CheckpointError> {
        let bad = |found: String| CheckpointError::BadManifest {
            path: path.to_owned(),
            found,
        };
        let head: Head = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        if head.format != FORMAT {
            return Err(bad(format!("its `format` is not \"{FORMAT}\"")));
        }
        if head.format_version > FORMAT_VERSION {
            return Err(CheckpointError::Newer {
                path: path.to_owned(),
                version: head.format_version,
                known: FORMAT_VERSION,
            });
        }
        let named = format!("{KEY}{}", head.sha256);
        let blank = text.replacen(&named, &format!("{KEY}{BLANK}"), 1);
        if head.sha256.len() != BLANK.len() || sha256(blank.as_bytes()) != head.sha256 {
            return Err(bad(
                "its text has another SHA-256 checksum than when it was written".to_owned(),
            ));
        }
        let manifest: Self = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        manifest.check(&bad)?;
        Ok(manifest)
    }

    /// Checks that shards lie within their tensors and files, and files have all their checksums.
    fn check(&self, bad: &dyn Fn(String) -> CheckpointError) -> Result<(), CheckpointError> {
        for file in &self.files {
            let blocks = file.bytes.div_ceil(BLOCK as u64);
            if blocks != file.blocks.len() as u64 {
                let found = file.blocks.len();
                return Err(bad(format!(
                    "{} has {found} checksums, expected {blocks}",
                    file.name
                )));
            }
            if file.name.contains(['/', '\\']) || file.name.starts_with('.') {
                return Err(bad(format!(
                    "`{}` is not the name of a file in it",
                    file.name
                )));
            }
        }
        self.tensors.iter().try_for_each(|tensor| {
            self.check_tensor(tensor, &|found| {
                bad(format!("tensor `{}`: {found}", tensor.name))
            })
        })
    }

    fn check_tensor(
        &self,
        tensor: &TensorEntry,
        bad: &dyn Fn(String) -> CheckpointError,
    ) -> Result<(), CheckpointError> {
        let size = match tensor.dtype {
            Dtype::F32 | Dtype::F64 => tensor.dtype.size() as u64,
            Dtype::Bf16 | Dtype::F16 => {
                let name = tensor.dtype.name();
                return Err(bad(format!("it holds parameters in {name}")));
            }
            Dtype::I16 => return Err(bad("it holds integers".to_owned())),
        };
        let product = |extents: [usize; 5]| {
            let mut extents = extents.iter();
            extents.try_fold(1u64, |all, &extent| all.checked_mul(extent as u64))
        };
        let elements = product(tensor.shape);
        let elements = elements.ok_or_else(|| bad("its shape is too large".to_owned()))?;
        let mut held = 0u64;
        for shard in &tensor.shards {
            let fits =
                |([start, end], &extent): (&[usize; 2], &usize)| start <= end && *end <= extent;
            if !shard.region.iter().zip(&tensor.shape).all(fits) {
                return Err(bad(format!("a shard {:?} lies outside", shard.region)));
            }
            let count = product(shard.region.map(|[start, end]| end - start)).unwrap_or(u64::MAX);
            let end = count
                .checked_mul(size)
                .and_then(|it| it.checked_add(shard.offset));
            let file = self.files.get(shard.file).map(|file| file.bytes);
            if end.is_none_or(|end| file.is_none_or(|bytes| end > bytes)) {
                return Err(bad(format!(
                    "a shard lies beyond the end of file {}",
                    shard.file
                )));
            }
            held = held.saturating_add(count);
        }
        if held != elements {
            return Err(bad(format!(
                "its shards hold {held} of {elements} elements"
            )));
        }
        Ok(())
    }
}

/// What every version of a manifest has.
#[derive(Deserialize)]
struct Head {
    format: String,
    format_version: u64,
    sha256: String,
}
