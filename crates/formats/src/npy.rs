//! NPY, the format of `numpy.save`, and NPZ, a zip of such files.
//!
//! Source: NumPy Enhancement Proposal 1, versions 1.0 to 3.0 of the format.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use flate2::read::DeflateDecoder;

use crate::array::{Access, ArrayFile, Opened, StoredArray};
use crate::element::{Element, Elements};
use crate::flat::{Bytes, DEFLATE_FACTOR, Flat, Order, numpy_type};
use crate::read_error::ReadError;

/// The first bytes of a file.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest header that is read; numpy's own limit is 10,000 characters.
const HEADER_BYTES_MAX: usize = 1 << 16;

/// A file with one array.
pub(crate) struct NpyFile(PathBuf);

impl NpyFile {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_path_buf())
    }
}

impl ArrayFile for NpyFile {
    fn array(&self, _: &str, _: Access) -> Result<Opened, ReadError> {
        let mut file = partita_files::open(&self.0)?;
        let header = Header::read(&mut file)?;
        let length = file.metadata()?.len();
        let room = length.saturating_sub(header.bytes);
        let offset = header.bytes;
        header.flat(Bytes::File { file, offset }).opened(room)
    }
}

/// A file of named arrays.
pub(crate) struct NpzFile {
    path: PathBuf,
    /// By their keys; of members of one name the first.
    members: BTreeMap<String, Member>,
}

#[derive(Clone)]
struct Member {
    /// Where its bytes begin in the file.
    offset: u64,
    /// Bytes in the file.
    packed: u64,
    is_deflated: bool,
    /// Bytes that it is decoded to, and their checksum (CRC-32).
    size: u64,
    sum: u32,
}

impl NpzFile {
    pub(crate) fn open(path: &Path) -> Result<Self, ReadError> {
        let file = partita_files::open(path)?;
        let mut archive = zip::ZipArchive::new(file).map_err(zip_error)?;
        if archive.file_names().all(|name| !name.ends_with(".npy")) {
            return Err(ReadError::unsupported(of_other(archive.file_names())));
        }
        let mut members = BTreeMap::new();
        for at in 0..archive.len() {
            let member = archive.by_index_raw(at).map_err(zip_error)?;
            let Some(key) = member.name().strip_suffix(".npy") else {
                continue;
            };
            let is_deflated = match member.compression() {
                zip::CompressionMethod::Stored => false,
                zip::CompressionMethod::Deflated => true,
                other => {
                    return Err(ReadError::Unsupported(format!(
                        "its member {key} is compressed by {other}; stored and deflated members are read"
                    )));
                }
            };
            members.entry(key.to_owned()).or_insert(Member {
                offset: member.data_start(),
                packed: member.compressed_size(),
                is_deflated,
                size: member.size(),
                sum: member.crc32(),
            });
        }
        Ok(Self {
            path: path.to_path_buf(),
            members,
        })
    }
}

fn zip_error(error: zip::result::ZipError) -> ReadError {
    match error {
        zip::result::ZipError::Io(error) => error.into(),
        zip::result::ZipError::UnsupportedArchive(reason) => ReadError::unsupported(reason),
        error => ReadError::Damaged(error.to_string()),
    }
}

/// What a zip without arrays of NumPy is, by the names of its members.
fn of_other<'a>(mut names: impl Iterator<Item = &'a str>) -> String {
    let known = names.find_map(|name| match name.rsplit('/').next()? {
        "zarr.json" | ".zarray" | ".zgroup" => {
            Some("a zipped Zarr store, which is not read; unzip it to a folder, and name that")
        }
        "data.pkl" => Some(
            "a file of `torch.save`, which is not read; load it in PyTorch and write NPZ or HDF5 for samples, or \
             safetensors for weights",
        ),
        _ => None,
    });
    let known = known.unwrap_or("a zip file without arrays of NumPy (.npy); name the files in it");
    format!("it is {known}")
}

/// A stream whose checksum is compared where its last byte is read.
struct Checked<R> {
    stream: R,
    found: flate2::Crc,
    left: u64,
    sum: u32,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.found.update(&buffer[..read]);
        let before = self.left;
        self.left = before.saturating_sub(read as u64);
        if before > 0 && self.left == 0 && self.found.sum() != self.sum {
            return Err(io::Error::new(io::ErrorKind::InvalidData, SUM_DIFFERS));
        }
        Ok(read)
    }
}

const SUM_DIFFERS: &str = "the checksum of the member (CRC-32) does not match";

/// A stored member, whose checksum is compared where all of it is read.
struct Summed {
    array: Box<dyn StoredArray>,
    path: PathBuf,
    shape: Vec<usize>,
    member: Member,
}

impl StoredArray for Summed {
    fn read(
        &self,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        if counts == self.shape {
            let sum = || -> io::Result<u32> {
                let mut file = partita_files::open(&self.path)?;
                file.seek(SeekFrom::Start(self.member.offset))?;
                let mut sum = flate2::CrcReader::new(file.take(self.member.packed));
                io::copy(&mut sum, &mut io::sink())?;
                Ok(sum.crc().sum())
            };
            if sum()? != self.member.sum {
                return Err(SUM_DIFFERS.into());
            }
        }
        self.array.read(starts, counts, out)
    }
}

impl ArrayFile for NpzFile {
    fn keys(&self, _: Access) -> Vec<String> {
        self.members.keys().cloned().collect()
    }

    fn is_nameless(&self) -> bool {
        false
    }

    fn array(&self, key: &str, _: Access) -> Result<Opened, ReadError> {
        let member = self.members.get(key).ok_or("it is gone")?.clone();
        if !member.is_deflated {
            let mut file = partita_files::open(&self.path)?;
            let seek = file.seek(SeekFrom::Start(member.offset));
            seek?;
            let header = Header::read(&mut file)?;
            let room = member.packed.saturating_sub(header.bytes);
            let offset = member.offset + header.bytes;
            let mut opened = header.flat(Bytes::File { file, offset }).opened(room)?;
            opened.array = Box::new(Summed {
                array: opened.array,
                path: self.path.clone(),
                shape: opened.shape.clone(),
                member,
            });
            return Ok(opened);
        }
        let path = self.path.clone();
        let (offset, packed, size, sum) = (member.offset, member.packed, member.size, member.sum);
        let open = move || -> io::Result<Box<dyn Read + Send>> {
            let mut file = partita_files::open(&path)?;
            file.seek(SeekFrom::Start(offset))?;
            Ok(Box::new(Checked {
                stream: DeflateDecoder::new(file.take(packed)),
                found: flate2::Crc::new(),
                left: size,
                sum,
            }))
        };
        let header = Header::read(&mut open()?)?;
        let stream = Bytes::Stream {
            open: Box::new(open),
            offset: header.bytes,
            filter: "deflate",
        };
        header
            .flat(stream)
            .opened(packed.saturating_mul(DEFLATE_FACTOR))
    }
}

/// What stands before the elements.
struct Header {
    element: Element,
    order: Order,
    is_fortran: bool,
    shape: Vec<usize>,
    /// Its own length.
    bytes: u64,
}

impl Header {
    fn read(from: &mut dyn Read) -> Result<Self, ReadError> {
        let mut head = [0; 8];
        from.read_exact(&mut head)
            .map_err(|error| format!("it has no whole header: {error}"))?;
        if !head.starts_with(MAGIC) {
            return Err("it does not begin as an NPY file does".into());
        }
        let mut word = [0; 4];
        let width = if head[6] == 1 { 2 } else { 4 };
        let short = |error: io::Error| format!("it has no whole header: {error}");
        from.read_exact(&mut word[..width]).map_err(short)?;
        let length = u32::from_le_bytes(word) as usize;
        if length > HEADER_BYTES_MAX {
            return Err(format!("its header is to have {length} bytes").into());
        }
        let mut text = vec![0; length];
        from.read_exact(&mut text).map_err(short)?;
        let bytes = (8 + width + length) as u64;
        Self::parse(&String::from_utf8_lossy(&text), bytes)
    }

    /// The header is the text of a Python dict.
    fn parse(text: &str, bytes: u64) -> Result<Self, ReadError> {
        let value = |key: &str| {
            let (_, rest) = text.split_once(&format!("'{key}':"))?;
            Some(rest.trim_start())
        };
        let bad = |key: &str| format!("its header has no valid `{key}`: {}", text.trim());
        let descr = value("descr").ok_or_else(|| bad("descr"))?;
        let (element, order) = match descr
            .strip_prefix('\'')
            .and_then(|rest| rest.split_once('\''))
        {
            Some((descr, _)) => numpy_type(descr),
            // A list describes records.
            None => (Element::Other("records".to_owned()), Order::Little),
        };
        let is_fortran = match value("fortran_order") {
            Some(rest) if rest.starts_with("True") => true,
            Some(rest) if rest.starts_with("False") => false,
            Some(_) | None => return Err(bad("fortran_order").into()),
        };
        let shape = value("shape").and_then(|rest| rest.strip_prefix('(')?.split_once(')'));
        let (shape, _) = shape.ok_or_else(|| bad("shape"))?;
        let extents = shape
            .split(',')
            .map(str::trim)
            .filter(|extent| !extent.is_empty());
        let shape: Result<Vec<usize>, _> = extents.map(str::parse).collect();
        Ok(Self {
            element,
            order,
            is_fortran,
            shape: shape.map_err(|_| bad("shape"))?,
            bytes,
        })
    }

    fn flat(self, bytes: Bytes) -> Flat {
        let mut extents = self.shape;
        if self.is_fortran {
            extents.reverse();
        }
        Flat {
            bytes,
            extents,
            element: self.element,
            order: self.order,
            reversed: self.is_fortran,
            place: RefCell::default(),
        }
    }
}
