//! TFRecord files of `tf.train.Example`, as MLPerf's CosmoFlow has them: `x` are the bytes of int16 volumes,
//! (D, H, W, C), and `y` four numbers. Files are as they are (MLPerf HPC 0.7) or gzipped (1.0).
//!
//! Source: TensorFlow, `tfrecord.rst` and `example.proto`; the reader of github.com/mlcommons/hpc,
//! `cosmoflow/data/cosmo.py`.

use std::cell::RefCell;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::array::{Access, ArrayFile, Opened, StorageLayout, StoredArray};
use crate::checksum::crc32c;
use crate::decode_memory::{self, Claim};
use crate::element::{Element, Elements};
use crate::flat::{DEFLATE_FACTOR, Order, decode, for_runs};
use crate::read_error::ReadError;

/// Channels of a universe of CosmoFlow: the redshifts.
const COSMOFLOW_CHANNELS: usize = 4;
/// Records of a file that are read.
const RECORDS_MAX: usize = 1 << 20;
/// Features of a record that are read.
const FEATURES_MAX: usize = 256;

/// Features of a record, and entries of a list that is not packed, that are read.
const FIELDS_MAX: usize = 1 << 16;

/// A file of records.
pub(crate) struct TfRecordFile {
    path: PathBuf,
    is_gzipped: bool,
    records: usize,
    /// The features of the first record.
    features: Vec<(String, Kind, usize)>,
}

/// What a feature is a list of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bytes,
    Floats,
    Integers,
}

impl TfRecordFile {
    pub(crate) fn open(path: &Path, is_gzipped: bool) -> Result<Self, ReadError> {
        let mut file = Self {
            path: path.to_path_buf(),
            is_gzipped,
            records: 0,
            features: Vec::new(),
        };
        let mut records = file.records()?;
        while let Some((record, _claim)) = records.next()? {
            if file.records == 0 {
                for (key, value) in example(&record)? {
                    file.features.push((key, value.kind, value.length()));
                }
                if file.features.len() > FEATURES_MAX {
                    return Err(ReadError::Unsupported(format!(
                        "its records have more than {FEATURES_MAX} features; write them as NPZ or HDF5"
                    )));
                }
            }
            file.records += 1;
        }
        Ok(file)
    }

    /// The records, from the first on.
    fn records(&self) -> Result<Records, ReadError> {
        let file = partita_files::open(&self.path)?;
        let length = file.metadata()?.len();
        let most = if self.is_gzipped {
            length.saturating_mul(DEFLATE_FACTOR)
        } else {
            length
        };
        let file = BufReader::with_capacity(1 << 18, file);
        let from: Box<dyn Read + Send> = if self.is_gzipped {
            Box::new(MultiGzDecoder::new(file))
        } else {
            Box::new(file)
        };
        Ok(Records {
            from,
            most,
            next: 0,
        })
    }
}

/// A file while its records are read.
struct Records {
    from: Box<dyn Read + Send>,
    /// Bytes that a record may have.
    most: u64,
    /// Number of the next one.
    next: usize,
}

impl Records {
    /// The next record, checked by its sums; `None` after the last.
    fn next(&mut self) -> Result<Option<(Vec<u8>, Claim)>, ReadError> {
        let number = self.next;
        if number == RECORDS_MAX {
            return Err(ReadError::Unsupported(format!(
                "it has more than {RECORDS_MAX} records; spread them over several files"
            )));
        }
        self.next += 1;
        next_record(&mut self.from, self.most)
            .map_err(|error| error.map(|reason| format!("record {number}: {reason}")))
    }
}

fn next_record(from: &mut dyn Read, most: u64) -> Result<Option<(Vec<u8>, Claim)>, ReadError> {
    let mut head = Vec::new();
    from.take(12).read_to_end(&mut head)?;
    if head.is_empty() {
        return Ok(None);
    }
    let Some((word, sum)) = head
        .split_first_chunk::<8>()
        .filter(|(_, sum)| sum.len() == 4)
    else {
        return Err("it is cut off".into());
    };
    check(word, sum)?;
    let length = u64::from_le_bytes(*word);
    if length > most {
        return Err(format!("it is to have {length} bytes, more than the file").into());
    }
    let (mut record, claim) = decode_memory::read_up_to(from, length.saturating_add(4))?;
    let (data, sum) = record.split_last_chunk::<4>().ok_or("it is cut off")?;
    if data.len() as u64 != length {
        return Err("it is cut off".into());
    }
    check(data, sum)?;
    record.truncate(length as usize);
    Ok(Some((record, claim)))
}

fn check(data: &[u8], sum: &[u8]) -> Result<(), ReadError> {
    let found = crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8);
    if found.to_le_bytes() == sum {
        return Ok(());
    }
    Err("its checksum does not match".into())
}

/// A list of a record.
struct Value<'a> {
    kind: Kind,
    /// Bytes of the one entry, or of packed numbers.
    bytes: &'a [u8],
}

impl Value<'_> {
    fn length(&self) -> usize {
        match self.kind {
            Kind::Bytes => self.bytes.len() / 2,
            Kind::Floats => self.bytes.len() / 4,
            // The last byte of each has no highest bit.
            Kind::Integers => self.bytes.iter().filter(|&&byte| byte < 128).count(),
        }
    }

    fn integers(&self) -> Result<Vec<i64>, ReadError> {
        let mut rest = self.bytes;
        let mut numbers = Vec::with_capacity(self.length());
        while !rest.is_empty() {
            numbers.push(varint(&mut rest)? as i64);
        }
        Ok(numbers)
    }
}

fn varint(bytes: &mut &[u8]) -> Result<u64, ReadError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or("a record is cut off")?;
        *bytes = rest;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok(value);
        }
    }
    Err("a record has a number of more than 64 bits".into())
}

/// The fields of a message that have a length: number and contents. Others are skipped.
fn fields(mut bytes: &[u8]) -> Result<Vec<(u64, &[u8])>, ReadError> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let length = match tag & 7 {
            0 => {
                varint(&mut bytes)?;
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes)?,
            5 => 4,
            kind => return Err(format!("a record has a field of wire type {kind}").into()),
        };
        let length = usize::try_from(length).map_err(|error| error.to_string())?;
        let (field, rest) = bytes
            .split_at_checked(length)
            .ok_or("a record is cut off")?;
        bytes = rest;
        if tag & 7 == 2 {
            if found.len() == FIELDS_MAX {
                return Err(ReadError::Unsupported(format!(
                    "a record has a list of more than {FIELDS_MAX} entries; write numbers packed, or as bytes"
                )));
            }
            found.push((tag >> 3, field));
        }
    }
    Ok(found)
}

/// The features of a `tf.train.Example`.
fn example(record: &[u8]) -> Result<Vec<(String, Value<'_>)>, ReadError> {
    let mut found = Vec::new();
    for (_, features) in fields(record)?
        .into_iter()
        .filter(|&(number, _)| number == 1)
    {
        for (_, entry) in fields(features)? {
            let entry = fields(entry)?;
            let part = |number| {
                entry
                    .iter()
                    .find(|&&(found, _)| found == number)
                    .map(|&(_, bytes)| bytes)
            };
            let key = String::from_utf8_lossy(part(1).unwrap_or_default()).into_owned();
            let Some(&(kind, list)) = fields(part(2).unwrap_or_default())?.first() else {
                continue;
            };
            let bytes = fields(list)?.first().map_or(&[][..], |&(_, bytes)| bytes);
            let kind = match kind {
                1 => Kind::Bytes,
                2 => Kind::Floats,
                _ => Kind::Integers,
            };
            found.push((key, Value { kind, bytes }));
        }
    }
    Ok(found)
}

impl TfRecordFile {
    /// Extents (D, H, W, C) of the bytes of a feature. A record does not state them, nor what the bytes are.
    ///
    /// Errors: features that are not CosmoFlow's, cubes `x` of four channels beside numbers `y`.
    fn cosmoflow_extents(&self, key: &str, length: usize) -> Result<[usize; 4], ReadError> {
        let side = (1..=4096usize)
            .find(|side| side.pow(3) * COSMOFLOW_CHANNELS >= length)
            .unwrap_or(1);
        let is_targets =
            |(name, kind, _): &(String, Kind, usize)| name == "y" && *kind == Kind::Floats;
        let is_cosmoflow =
            key == "x" && self.features.len() == 2 && self.features.iter().any(is_targets);
        if is_cosmoflow && side.pow(3) * COSMOFLOW_CHANNELS == length {
            return Ok([side, side, side, COSMOFLOW_CHANNELS]);
        }
        let names: Vec<&str> = self
            .features
            .iter()
            .map(|(name, ..)| name.as_str())
            .collect();
        Err(ReadError::Unsupported(format!(
            "its records hold {} bytes, and do not state their shape or type (features {}); read are those of \
             CosmoFlow, where `x` is an int16 cube of {COSMOFLOW_CHANNELS} channels and `y` numbers; write others as \
             NPY or HDF5",
            2 * length,
            names.join(", ")
        )))
    }
}

impl ArrayFile for TfRecordFile {
    fn keys(&self, _: Access) -> Vec<String> {
        self.features.iter().map(|(key, ..)| key.clone()).collect()
    }

    fn is_nameless(&self) -> bool {
        false
    }

    fn array(&self, key: &str, _: Access) -> Result<Opened, ReadError> {
        let found = self.features.iter().find(|(name, ..)| name == key);
        let &(_, kind, length) = found.ok_or("no record has it")?;
        let element = match kind {
            Kind::Bytes => Element::Int16,
            Kind::Floats => Element::Float32,
            Kind::Integers => Element::Int64,
        };
        let mut shape = vec![self.records];
        match kind {
            Kind::Bytes => shape.extend(self.cosmoflow_extents(key, length)?),
            Kind::Floats | Kind::Integers => shape.push(length),
        }
        Ok(Opened {
            stored: StorageLayout::Stream {
                filter: if self.is_gzipped { "gzip" } else { "records" },
            },
            stored_size: element.size(),
            element,
            external: Vec::new(),
            array: Box::new(Feature {
                file: Self {
                    path: self.path.clone(),
                    features: self.features.clone(),
                    ..*self
                },
                key: key.to_owned(),
                kind,
                shape: shape.clone(),
                place: RefCell::default(),
            }),
            shape,
        })
    }
}

/// One feature of all records.
struct Feature {
    file: TfRecordFile,
    key: String,
    kind: Kind,
    shape: Vec<usize>,
    /// Where the last read ended, so that reads in order decode the file once.
    place: RefCell<Option<Records>>,
}

impl StoredArray for Feature {
    fn read(
        &self,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        let each = self.shape[1..].iter().product::<usize>();
        let size = match self.kind {
            Kind::Bytes => 2,
            Kind::Floats => 4,
            Kind::Integers => 8,
        };
        let mut filled = 0;
        let here = self.place.take().filter(|place| place.next <= starts[0]);
        let mut records = here.map_or_else(|| self.file.records(), Ok)?;
        while records.next < starts[0] + counts[0] {
            let at = records.next;
            let Some((record, _claim)) = records.next()? else {
                break;
            };
            if at < starts[0] {
                continue;
            }
            let features = example(&record)?;
            let found = features.iter().find(|(key, _)| *key == self.key);
            let (_, value) = found.ok_or_else(|| format!("record {at} has no {}", self.key))?;
            if value.kind != self.kind || value.length() != each {
                return Err(
                    format!("record {at} has {} values, not {each}", value.length()).into(),
                );
            }
            let mut whole = out.same_type();
            let _claim = decode_memory::claim((each * size) as u64)?;
            match &mut whole {
                Elements::I64(numbers) => *numbers = value.integers()?,
                other => {
                    other.resize(each)?;
                    decode(value.bytes, Order::Little, other, 0);
                }
            }
            for_runs(
                &self.shape[1..],
                &starts[1..],
                &counts[1..],
                |first, length| {
                    whole.copy_to(first as usize, length, out, filled);
                    filled += length;
                    Ok(())
                },
            )?;
        }
        if filled == out.len() {
            self.place.replace(Some(records));
            return Ok(());
        }
        Err("it has fewer records than when it was opened".into())
    }
}
