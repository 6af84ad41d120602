//! Reads ranges of tensors from a checkpoint.

use super::digest::{BLOCK, sha256};
use super::error::CheckpointError;
use super::manifest::{FileEntry, MANIFEST, Manifest, Shard, TensorEntry, TensorKind};
use partita_files::RECORD_BYTES_MAX;
use partita_program::{AVERAGE, Dtype};
use partita_space::nearest;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Blocks of files that a reader keeps.
const BLOCKS_KEPT: usize = 16;

/// A whole checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    /// Index of each tensor by name.
    tensors: BTreeMap<String, usize>,
}

impl Checkpoint {
    /// Opens the folder of a checkpoint: reads its manifest, and looks whether all files are there in their sizes.
    ///
    /// Errors: `Missing`, `Unreadable`, `Newer`, `BadManifest`, `MissingFile`, `Size`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let manifest = read_manifest(path)?;
        for entry in &manifest.files {
            check_size(path, entry)?;
        }
        let tensors = manifest.tensors.iter().enumerate();
        let tensors = tensors.map(|(index, tensor)| (tensor.name.clone(), index));
        Ok(Self {
            path: path.to_owned(),
            tensors: tensors.collect(),
            manifest,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// All tensors.
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.manifest.tensors
    }

    /// The tensors of the model as evaluations read them: the names of parameters and running statistics, each with its
    /// entry, and of a parameter with an average that of the average.
    pub fn evaluated(&self) -> impl Iterator<Item = (&str, &TensorEntry)> {
        let of_model = self.tensors().iter().filter(|tensor| match tensor.kind {
            TensorKind::Parameter | TensorKind::State => true,
            TensorKind::Optimizer | TensorKind::Average => false,
        });
        of_model.map(|tensor| (tensor.name.as_str(), self.average_of(tensor)))
    }

    /// The entry of a name among [`evaluated`](Self::evaluated).
    ///
    /// Errors: `NoTensor`.
    pub fn evaluated_tensor(&self, name: &str) -> Result<&TensorEntry, CheckpointError> {
        Ok(self.average_of(self.tensor(name)?))
    }

    /// The average of a tensor; itself where it has none.
    fn average_of<'t>(&'t self, tensor: &'t TensorEntry) -> &'t TensorEntry {
        let average = self.tensors.get(&format!("{}{AVERAGE}", tensor.name));
        let average = average.map(|&index| &self.manifest.tensors[index]);
        let average = average.filter(|average| average.kind == TensorKind::Average);
        average.unwrap_or(tensor)
    }

    /// The tensor of a name.
    ///
    /// Errors: `NoTensor`.
    pub fn tensor(&self, name: &str) -> Result<&TensorEntry, CheckpointError> {
        let found = self.tensors.get(name);
        let found = found.map(|&index| &self.manifest.tensors[index]);
        found.ok_or_else(|| CheckpointError::NoTensor {
            path: self.path.clone(),
            tensor: name.to_owned(),
            nearest: nearest(name, self.tensors.keys().map(String::as_str)).map(str::to_owned),
        })
    }

    /// A reader of its tensors.
    pub fn reader(&self) -> TensorReader<'_> {
        TensorReader {
            checkpoint: self,
            files: BTreeMap::new(),
            blocks: Vec::new(),
        }
    }

    /// Compares all bytes of all files with their checksums.
    ///
    /// Errors: `Checksum` and those of reading.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        let mut reader = self.reader();
        for (file, entry) in self.manifest.files.iter().enumerate() {
            for block in 0..entry.blocks.len() {
                reader.load(file, block, None)?;
            }
        }
        Ok(())
    }
}

/// The manifest in a folder.
///
/// Errors: `Missing`, `Unreadable`, `Newer`, `BadManifest`.
pub(super) fn read_manifest(path: &Path) -> Result<Manifest, CheckpointError> {
    let missing = |found: &str| CheckpointError::Missing {
        path: path.to_owned(),
        found: found.to_owned(),
    };
    let file = path.join(MANIFEST);
    let bytes = match partita_files::read(&file, RECORD_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(_) if !path.exists() => return Err(missing("nothing is there")),
        Err(_) if !path.is_dir() => return Err(missing("it is a file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(missing("it has no manifest"));
        }
        Err(error) => return Err(CheckpointError::unreadable(&file, &error)),
    };
    let text = String::from_utf8(bytes).map_err(|error| CheckpointError::BadManifest {
        path: file.clone(),
        found: error.to_string(),
    })?;
    Manifest::parse(&text, &file)
}

fn check_size(folder: &Path, entry: &FileEntry) -> Result<(), CheckpointError> {
    let path = folder.join(&entry.name);
    match fs::metadata(&path) {
        Ok(found) if found.len() == entry.bytes => Ok(()),
        Ok(found) => Err(CheckpointError::Size {
            path,
            rank: entry.rank,
            found: found.len(),
            expected: entry.bytes,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let rank = entry.rank;
            Err(CheckpointError::MissingFile { path, rank })
        }
        Err(error) => Err(CheckpointError::unreadable(&path, &error)),
    }
}

/// Reads ranges of tensors, and of the files no more than the blocks that hold them. Every block is compared with its
/// checksum.
pub struct TensorReader<'c> {
    checkpoint: &'c Checkpoint,
    files: BTreeMap<usize, File>,
    /// File, block and contents, the last used one last.
    blocks: Vec<((usize, usize), Vec<u8>)>,
}

impl TensorReader<'_> {
    /// Elements of a tensor: a range of its elements in row-major order of the global extents.
    ///
    /// Panics on a range beyond the tensor. Errors: `NoTensor`, `Checksum` and those of reading.
    pub fn read(
        &mut self,
        tensor: &str,
        elements: Range<usize>,
    ) -> Result<Vec<f64>, CheckpointError> {
        let checkpoint = self.checkpoint;
        let tensor = checkpoint.tensor(tensor)?;
        assert!(
            elements.end <= tensor.elements(),
            "{elements:?} of `{}`",
            tensor.name
        );
        let mut values = Vec::with_capacity(elements.len());
        let mut at = elements.start;
        let mut last = 0;
        while at < elements.end {
            let index = coordinates(at, &tensor.shape);
            let (found, shard) = holder(tensor, &index, last).ok_or_else(|| {
                let found = format!("no shard of tensor `{}` holds {index:?}", tensor.name);
                let path = checkpoint.path.join(MANIFEST);
                CheckpointError::BadManifest { path, found }
            })?;
            last = found;
            let count = run(at, shard, &tensor.shape).min(elements.end - at);
            let size = tensor.dtype.size();
            let start = shard.offset as usize + place(&index, shard) * size;
            self.append(tensor, shard.file, start..start + count * size, &mut values)?;
            at += count;
        }
        Ok(values)
    }

    /// Appends the values in a range of bytes of a file.
    fn append(
        &mut self,
        tensor: &TensorEntry,
        file: usize,
        bytes: Range<usize>,
        values: &mut Vec<f64>,
    ) -> Result<(), CheckpointError> {
        let mut word = [0; 8];
        let size = tensor.dtype.size();
        let mut filled = 0;
        let mut at = bytes.start;
        while at < bytes.end {
            let block = self.load(file, at / BLOCK, Some(&tensor.name))?;
            let end = bytes.end.min((at / BLOCK + 1) * BLOCK);
            for &byte in &block[at % BLOCK..at % BLOCK + (end - at)] {
                word[filled] = byte;
                filled += 1;
                if filled == size {
                    values.push(value(tensor.dtype, word));
                    filled = 0;
                }
            }
            at = end;
        }
        Ok(())
    }

    /// A block of a file that has its checksum.
    fn load(
        &mut self,
        file: usize,
        block: usize,
        tensor: Option<&str>,
    ) -> Result<&[u8], CheckpointError> {
        let key = (file, block);
        if let Some(at) = self.blocks.iter().position(|(held, _)| *held == key) {
            let held = self.blocks.remove(at);
            self.blocks.push(held);
        } else {
            let bytes = self.read_block(file, block, tensor)?;
            if self.blocks.len() == BLOCKS_KEPT {
                self.blocks.remove(0);
            }
            self.blocks.push((key, bytes));
        }
        Ok(&self.blocks[self.blocks.len() - 1].1)
    }

    fn read_block(
        &mut self,
        file: usize,
        block: usize,
        tensor: Option<&str>,
    ) -> Result<Vec<u8>, CheckpointError> {
        let entry = &self.checkpoint.manifest.files[file];
        let path = self.checkpoint.path.join(&entry.name);
        let failed = |error: io::Error| CheckpointError::unreadable(&path, &error);
        let open = match self.files.remove(&file) {
            Some(open) => open,
            None => partita_files::open(&path).map_err(failed)?,
        };
        let open = self.files.entry(file).or_insert(open);
        let start = block as u64 * BLOCK as u64;
        let end = entry.bytes.min(start + BLOCK as u64);
        let mut bytes = vec![0; (end - start) as usize];
        open.seek(SeekFrom::Start(start)).map_err(failed)?;
        open.read_exact(&mut bytes).map_err(failed)?;
        if sha256(&bytes) != entry.blocks[block] {
            return Err(CheckpointError::Checksum {
                path,
                rank: entry.rank,
                start,
                end,
                tensor: tensor.map(str::to_owned),
            });
        }
        Ok(bytes)
    }
}

fn value(dtype: Dtype, word: [u8; 8]) -> f64 {
    let [a, b, c, d, ..] = word;
    match dtype {
        Dtype::F32 => f64::from(f32::from_le_bytes([a, b, c, d])),
        Dtype::F64 => f64::from_le_bytes(word),
        Dtype::Bf16 | Dtype::F16 | Dtype::I16 => {
            panic!("a manifest with a tensor of integers or of floats of two bytes is refused")
        }
    }
}

/// Index in each dim of an element in row-major order.
fn coordinates(element: usize, shape: &[usize; 5]) -> [usize; 5] {
    let mut rest = element;
    let mut index = [0; 5];
    for dim in (0..5).rev() {
        index[dim] = rest % shape[dim];
        rest /= shape[dim];
    }
    index
}

/// The shard that holds an element; shards are tried from `first` on.
fn holder<'t>(
    tensor: &'t TensorEntry,
    index: &[usize; 5],
    first: usize,
) -> Option<(usize, &'t Shard)> {
    let count = tensor.shards.len();
    let order = (0..count).map(|step| (first + step) % count);
    let holds = |shard: &Shard| {
        let mut dims = shard.region.iter().zip(index);
        dims.all(|([start, end], at)| (start..end).contains(&at))
    };
    let mut all = order.map(|at| (at, &tensor.shards[at]));
    all.find(|(_, shard)| holds(shard))
}

/// Elements from one on that follow each other in the tensor and in the shard.
fn run(element: usize, shard: &Shard, shape: &[usize; 5]) -> usize {
    let mut inner = 1;
    for dim in (0..5).rev() {
        let [start, end] = shard.region[dim];
        let is_whole = start == 0 && end == shape[dim];
        if !is_whole || dim == 0 {
            return end * inner - element % (shape[dim] * inner);
        }
        inner *= shape[dim];
    }
    unreachable!("the first dim returns")
}

/// Number of an element within a shard.
fn place(index: &[usize; 5], shard: &Shard) -> usize {
    let dims = index.iter().zip(&shard.region);
    dims.fold(0, |place, (at, [start, end])| {
        place * (end - start) + (at - start)
    })
}
