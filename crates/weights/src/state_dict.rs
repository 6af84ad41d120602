//! State dicts of PyTorch as safetensors: reading other float types, and writing with counters of batches.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use partita_formats::DataError;
use partita_space::Help;
use safetensors::Dtype;
use serde::Deserialize;
use serde_json::Value;

use crate::foreign::foreign;
use crate::tensors::checksums::Checksums;
use crate::tensors::{
    ElementType, Entry, Tensor, Values, Weights, Writer, damaged, take_checksums,
};

/// A file of tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateDict {
    /// Tensors of floats; F16 and BF16 are widened to F32.
    pub floats: Weights,
    /// Names of the tensors of integers.
    pub integers: BTreeSet<String>,
}

/// A file of tensors whose values are read where they are needed.
#[derive(Debug)]
pub struct StateDictFile {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, Stored>,
    integers: BTreeSet<String>,
    metadata: BTreeMap<String, String>,
    checksums: Checksums,
}

/// A tensor of floats in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    dtype: FloatType,
    shape: Vec<usize>,
    /// Position of its first byte in the file.
    start: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FloatType {
    F32,
    F64,
    F16,
    Bf16,
}

impl FloatType {
    fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// An entry of the header.
#[derive(Deserialize)]
struct HeaderEntry {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// Longest header that is read, as in the reference implementation.
const HEADER_MAX: u64 = 100_000_000;

impl StateDictFile {
    /// Reads the header of a file of tensors and checks that the file is as long as it says.
    ///
    /// Errors: `Missing`, `BadWeights` (damaged, or of a type that is no number).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let bad = |reason: String| bad(path, reason);
        let file = partita_files::open(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => DataError::Missing {
                path: path.to_path_buf(),
                valid: "a safetensors file is needed there".to_string(),
            },
            _ => bad(error.to_string()),
        })?;
        let length = file.metadata().map_err(|error| bad(error.to_string()))?;
        let (header, first) = header(path, &file, length.len())?;
        let mut found = Self {
            path: path.to_path_buf(),
            file,
            tensors: BTreeMap::new(),
            integers: BTreeSet::new(),
            metadata: BTreeMap::new(),
            checksums: Checksums::default(),
        };
        let mut ranges = Vec::new();
        for (name, value) in header {
            if name == "__metadata__" {
                let metadata = serde_json::from_value(value);
                found.metadata = metadata.map_err(|error| bad(error.to_string()))?;
                found.checksums = take_checksums(path, &mut found.metadata)?;
                continue;
            }
            let entry: HeaderEntry = serde_json::from_value(value)
                .map_err(|error| bad(format!("tensor `{name}`: {error}")))?;
            ranges.push(found.add(name, entry, first)?);
        }
        ranges.sort_unstable();
        let mut end = 0;
        for (from, to) in ranges {
            if from != end {
                return Err(bad(format!(
                    "the tensors have a gap or overlap at byte {end}"
                )));
            }
            end = to;
        }
        if first + end != length.len() {
            let (found, expected) = (length.len(), first + end);
            return Err(bad(format!(
                "it has {found} bytes, and its header says {expected}"
            )));
        }
        Ok(found)
    }

    /// Errors: `BadWeights`.
    fn add(
        &mut self,
        name: String,
        entry: HeaderEntry,
        first: u64,
    ) -> Result<(u64, u64), DataError> {
        let bad = |reason: String| bad(&self.path, reason);
        let (from, to) = entry.data_offsets;
        let dtype = match entry.dtype {
            Dtype::F32 => Some(FloatType::F32),
            Dtype::F64 => Some(FloatType::F64),
            Dtype::BF16 => Some(FloatType::Bf16),
            Dtype::F16 => Some(FloatType::F16),
            Dtype::I64 | Dtype::I32 | Dtype::U8 | Dtype::I8 | Dtype::I16 => None,
            other => {
                return Err(bad(format!(
                    "tensor `{name}` holds {other:?}{}",
                    Help::possible("F32, F64, F16 and BF16")
                )));
            }
        };
        let size = entry.dtype.bitsize() as u64 / 8;
        let mut extents = entry.shape.iter();
        let bytes = extents.try_fold(size, |bytes, &extent| bytes.checked_mul(extent as u64));
        if bytes.is_none() || bytes != to.checked_sub(from) {
            let shape = &entry.shape;
            return Err(bad(format!(
                "tensor `{name}` of shape {shape:?} has the bytes {from} to {to}"
            )));
        }
        let start = first.checked_add(from);
        let start = start.ok_or_else(|| bad("an offset beyond 64 bits".to_owned()))?;
        match dtype {
            Some(dtype) => {
                let shape = entry.shape;
                self.tensors.insert(
                    name,
                    Stored {
                        dtype,
                        shape,
                        start,
                    },
                );
            }
            None => {
                self.integers.insert(name);
            }
        }
        Ok((from, to))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the tensors of floats.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Names of the tensors of integers.
    pub fn integers(&self) -> impl Iterator<Item = &str> {
        self.integers.iter().map(String::as_str)
    }

    /// Free text by name.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Whether it has checksums, as all files that Partita writes.
    pub fn has_checksums(&self) -> bool {
        !self.checksums.is_empty()
    }

    /// Extents of a tensor of floats, if there is one of that name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.tensors.get(name)?.shape)
    }

    /// A range of elements of a tensor of floats, in the order of the file; F16 and BF16 are widened to F32.
    ///
    /// Where the file has checksums, whole blocks of a MiB are read and compared with theirs. Errors: `BadWeights` where the
    /// file cannot be read, `DamagedTensor`. Panics on a tensor or elements that it does not have.
    pub fn read(&self, name: &str, elements: Range<usize>) -> Result<Values, DataError> {
        let stored = &self.tensors[name];
        let volume: usize = stored.shape.iter().product();
        assert!(elements.end <= volume, "elements of `{name}`");
        let size = stored.dtype.size();
        let wanted = elements.start * size..elements.end * size;
        let around = self.checksums.cover(name, wanted.clone(), volume * size);
        let mut bytes = vec![0; around.len()];
        let at = stored.start + around.start as u64;
        let read = self.file.read_exact_at(&mut bytes, at);
        read.map_err(|error| bad(&self.path, format!("tensor `{name}`: {error}")))?;
        if let Some(block) = self.checksums.damaged(name, around.start, &bytes) {
            return Err(damaged(&self.path, name, block));
        }
        let bytes = &bytes[wanted.start - around.start..wanted.end - around.start];
        Ok(match stored.dtype {
            FloatType::F32 => Values::F32(decode(bytes, f32::from_le_bytes)),
            FloatType::F64 => Values::F64(decode(bytes, f64::from_le_bytes)),
            FloatType::Bf16 => Values::F32(decode(bytes, bf16)),
            FloatType::F16 => Values::F32(decode(bytes, f16)),
        })
    }
}

fn bad(path: &Path, reason: String) -> DataError {
    DataError::BadWeights {
        path: path.to_path_buf(),
        reason,
    }
}

/// The header of a file of `length` bytes, and where its tensors begin.
///
/// Errors: `BadWeights`.
fn header(
    path: &Path,
    file: &File,
    length: u64,
) -> Result<(serde_json::Map<String, Value>, u64), DataError> {
    let other =
        |error: &dyn std::fmt::Display| bad(path, format!("it is no safetensors file: {error}"));
    let read = |bytes: &mut [u8], at| {
        let read = file.read_exact_at(bytes, at);
        read.map_err(|error| other(&error))
    };
    let mut size = [0; 8];
    read(&mut size, 0)?;
    let size = u64::from_le_bytes(size);
    let rest = length.saturating_sub(8);
    if size > rest.min(HEADER_MAX) {
        let limit = if size > rest {
            format!("the file has {rest} more")
        } else {
            format!("a header has at most {HEADER_MAX}")
        };
        let mut start = vec![0; length.min(FOREIGN_BYTES) as usize];
        read(&mut start, 0)?;
        let reason = match foreign(&start) {
            Some(kind) => format!("it is {kind}"),
            None => format!(
                "it is damaged or no safetensors file: its first 8 bytes announce a header of {size} bytes, and {limit}"
            ),
        };
        return Err(bad(path, reason));
    }
    let mut text = vec![0; size as usize];
    read(&mut text, 8)?;
    let header = serde_json::from_slice(&text);
    let header = header.map_err(|error: serde_json::Error| other(&error))?;
    Ok((header, 8 + size))
}

/// Bytes by which a file of another format is known; the index of files of tensors is read whole.
const FOREIGN_BYTES: u64 = 1 << 26;

/// Reads a file of tensors as a whole. Errors: as for [`StateDictFile::open`].
pub fn load(path: impl AsRef<Path>) -> Result<StateDict, DataError> {
    let file = StateDictFile::open(path)?;
    let mut found = StateDict::default();
    for (name, stored) in &file.tensors {
        let values = file.read(name, 0..stored.shape.iter().product())?;
        let shape = stored.shape.clone();
        let tensor = Tensor { shape, values };
        found.floats.tensors.insert(name.clone(), tensor);
    }
    found.floats.metadata = file.metadata;
    found.integers = file.integers;
    Ok(found)
}

/// Writes a state dict as a whole, with a zero for each of the counters and these metadata besides PyTorch's. The same
/// tensors give the same bytes.
///
/// Errors: `BadValue` for a tensor whose values do not fit its shape, `Unwritable`.
pub fn save(
    path: impl AsRef<Path>,
    tensors: &[(String, Tensor)],
    counters: &[String],
    mut metadata: BTreeMap<String, String>,
) -> Result<(), DataError> {
    let mut entries = Vec::with_capacity(tensors.len() + counters.len());
    let mut values = BTreeMap::new();
    for (name, tensor) in tensors {
        values.insert(name, &tensor.values);
        entries.push(Entry {
            name: name.clone(),
            element: tensor.values.element(),
            shape: tensor.shape.clone(),
        });
    }
    entries.extend(counters.iter().map(|name| Entry {
        name: name.clone(),
        element: ElementType::I64,
        shape: Vec::new(),
    }));
    metadata.insert("format".to_owned(), "pt".to_owned());
    let mut writer = Writer::create(path, entries, &metadata)?;
    while let Some(entry) = writer.next() {
        match values.get(&entry.name) {
            Some(values) => writer.push(values)?,
            None => writer.push_integers(&[0])?,
        }
    }
    writer.finish()
}

/// Writes a state dict of tensors of any type, given as bytes. The same tensors give the same bytes.
///
/// Errors: `BadValue` for a tensor whose bytes do not fit its shape, `Unwritable`.
pub fn save_bytes(
    path: impl AsRef<Path>,
    tensors: &BTreeMap<String, (Entry, Vec<u8>)>,
    mut metadata: BTreeMap<String, String>,
) -> Result<(), DataError> {
    metadata.insert("format".to_owned(), "pt".to_owned());
    let entries = tensors.values().map(|(entry, _)| entry.clone());
    let mut writer = Writer::create(path, entries.collect(), &metadata)?;
    while let Some(entry) = writer.next() {
        writer.push_bytes(&tensors[&entry.name].1)?;
    }
    writer.finish()
}

fn decode<T, const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    let words = bytes.as_chunks::<N>().0.iter();
    words.map(|&word| from(word)).collect()
}

/// The upper half of a single-precision number.
fn bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// Source: IEEE 754-2008, section 3.4, binary16.
fn f16(bytes: [u8; 2]) -> f32 {
    let bits = u16::from_le_bytes(bytes);
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2_f32.powi(-24),
        0x1f if fraction == 0.0 => f32::INFINITY,
        0x1f => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2_f32.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_widened() {
        let half = |bits: u16| f16(bits.to_le_bytes());
        assert_eq!(
            [half(0x3c00), half(0xc500), half(0x0001)],
            [1.0, -5.0, 2_f32.powi(-24)]
        );
        assert_eq!([half(0x7bff), half(0x7c00)], [65504.0, f32::INFINITY]);
        assert!(half(0x7e00).is_nan());
        assert_eq!(bf16(0xc0a0_u16.to_le_bytes()), -5.0);
    }

    #[test]
    fn a_part_of_a_file_larger_than_any_memory_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("large.safetensors");
        let elements: u64 = 1 << 42;
        let bytes = 4 * elements;
        let header = format!(
            "{{\"w\":{{\"dtype\":\"F32\",\"shape\":[4096,{}],\"data_offsets\":[0,{bytes}]}}}}",
            elements / 4096
        );
        let file = File::create(&path).expect("a file");
        let first = 8 + header.len() as u64;
        // Sparse: it has no blocks but two.
        if file.set_len(first + bytes).is_err() {
            return;
        }
        let write = |data: &[u8], at| file.write_all_at(data, at).expect("it can be written");
        write(&(header.len() as u64).to_le_bytes(), 0);
        write(header.as_bytes(), 8);
        write(&1.5_f32.to_le_bytes(), first + bytes / 2);
        let found = StateDictFile::open(&path).expect("it is whole");
        let middle = (elements / 2) as usize;
        let part = found
            .read("w", middle - 1..middle + 2)
            .expect("it can be read");
        assert_eq!(part, Values::F32(vec![0.0, 1.5, 0.0]));
        file.set_len(first + bytes - 1).expect("it can be cut");
        let error = StateDictFile::open(&path)
            .expect_err("it is cut")
            .to_string();
        assert!(error.contains("its header says"), "{error}");
    }
}
