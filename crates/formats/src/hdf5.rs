//! The only module that names the HDF5 library: open, list, read and write arrays.
//!
//! Files are read without advisory locks: a dataset appears by a rename when it is whole, and
//! parallel file systems often refuse locks. No object times are written: same input, same bytes.

mod links;
mod mapping;
mod pieces;
mod storage;
mod target;

pub use target::{Integer, TargetArray, TargetFile};

use std::cell::OnceCell;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use partita_run::allocation::handling_failure;
use rust_hdf5::format::FormatError;
use rust_hdf5::{ByteOrder, DatatypeMessage, FillValue, H5Dataset, H5File, Hdf5Error};

use crate::array::{Access, ArrayFile, Opened, StorageLayout, StoredArray};
use crate::element::{Element, Elements, each};
use crate::error::DataError;
use crate::flat::{Order, decode};
use crate::hdf5::links::{Beside, Target};
use crate::hdf5::mapping::Mapped;
use crate::hdf5::pieces::ChunkBytes;
use crate::hdf5::storage::{Members, Written};
use crate::lfs::{LFS, LFS_REMEDY};
use crate::read_error::ReadError;

/// Files that links and virtual datasets lead through, one after the other.
const FILES_MAX: usize = 16;

/// An HDF5 file open for reading.
pub(crate) struct Hdf5File {
    path: PathBuf,
    length_bytes: u64,
    /// Where its superblock lies.
    base: u64,
    file: H5File,
    /// Its external links, once they were asked for.
    external: OnceCell<Vec<String>>,
    members: Members,
}

/// An array of a file open for reading.
struct Hdf5Array {
    array: H5Dataset,
    shape: Vec<usize>,
    /// Extents of a chunk; empty if there are none.
    chunk: Vec<usize>,
    chunk_bytes: ChunkBytes,
    element_bytes: usize,
    /// `None` where what was never written is read as the fill value.
    written: Option<Written>,
}

impl Hdf5File {
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let (base, length_bytes) = check_signature(path)?;
        let file = guarded(|| H5File::options().no_locking().open(path))
            .map_err(|error| error.of(path, None, None))?;
        Ok(Self {
            path: path.to_path_buf(),
            length_bytes,
            base,
            file,
            external: OnceCell::new(),
            members: Members::default(),
        })
    }

    /// An array, which links may lead to; `depth` files led here.
    fn opened(&self, key: &str, access: Access, depth: usize) -> Result<Opened, ReadError> {
        if depth > FILES_MAX {
            return Err(links::cycle(key));
        }
        let key = match links::follow(&self.path, &self.file, key, access)? {
            Target::Here(key) => key,
            Target::Elsewhere { file, key } => {
                let Beside { path, is_outside } = file;
                let named = |reason| format!("{}, `{key}`: {reason}", path.display());
                let file =
                    Self::open(&path).map_err(|error| ReadError::Unsupported(error.to_string()))?;
                let mut opened = file
                    .opened(&key, access, depth + 1)
                    .map_err(|error| error.map(named))?;
                opened.external.extend(is_outside.then_some(path));
                return Ok(opened);
            }
        };
        let array = guarded(|| self.file.dataset(&key))?;
        let element = element_of(&guarded(|| array.datatype())?);
        let stored = guarded(|| stored_of(&array))?;
        let shape = array.shape();
        if stored == StorageLayout::Virtual && element.size() > 0 {
            let mapped = Mapped::open(&self.path, &array, &element, access, depth)?;
            return Ok(Opened {
                shape,
                stored_size: element.size(),
                element,
                stored,
                external: mapped.external()?,
                array: Box::new(mapped),
            });
        }
        let external = check_external(&array, access)?;
        let file = partita_files::open(&self.path)?;
        let fill = access.fill;
        // What lies in raw files has no place in this one.
        let written = if fill || !external.is_empty() {
            None
        } else {
            let opened = (&self.file, &self.members);
            Some(storage::written(&file, self.base, opened, &key, &shape))
        };
        let is_short = written.as_ref().is_some_and(Written::is_short);
        match self.check_room(&array, &stored) {
            Err(_) if is_short => return Err(never_written("not all of its values")),
            Err(error) if !fill => return Err(error),
            Err(_) | Ok(()) => {}
        }
        let is_grid = |chunk: &Vec<usize>| chunk.len() == shape.len() && !chunk.contains(&0);
        let chunk = array.chunk_dims().filter(is_grid).unwrap_or_default();
        let element_bytes = array.element_size();
        Ok(Opened {
            shape: shape.clone(),
            stored_size: element.size(),
            element,
            external,
            array: Box::new(Hdf5Array {
                array,
                shape,
                chunk,
                chunk_bytes: ChunkBytes::of(&stored, element_bytes),
                element_bytes,
                written,
            }),
            stored,
        })
    }

    /// Refuses an array larger than its file can hold: a truncated file, or damaged extents that
    /// would make readers allocate without bounds.
    fn check_room(&self, array: &H5Dataset, stored: &StorageLayout) -> Result<(), ReadError> {
        let size = |extents: &[usize]| {
            extents
                .iter()
                .try_fold(array.element_size(), |bytes, &extent| {
                    bytes.checked_mul(extent)
                })
        };
        let chunk = match stored {
            StorageLayout::Chunked { chunk, .. } => chunk.as_slice(),
            StorageLayout::Contiguous
            | StorageLayout::Compact
            | StorageLayout::Virtual
            | StorageLayout::Stream { .. } => &[],
        };
        let claimed = size(&array.shape()).and_then(|whole| Some(whole.max(size(chunk)?)));
        let Some(factor) = packing(stored) else {
            return Ok(());
        };
        let room = self.length_bytes.saturating_mul(factor);
        if claimed.is_some_and(|bytes| bytes as u64 <= room) {
            return Ok(());
        }
        Err(ReadError::Damaged(format!(
            "values of shape {:?}{} do not fit in its {} bytes",
            array.shape(),
            if chunk.is_empty() {
                String::new()
            } else {
                format!(" in chunks of {chunk:?}")
            },
            self.length_bytes
        )))
    }
}

impl ArrayFile for Hdf5File {
    fn keys(&self, access: Access) -> Vec<String> {
        let mut keys = self.file.dataset_names();
        let links = self.external.get_or_init(|| {
            let links = links::external(&self.file).into_iter();
            links
                .filter(|link| {
                    self.opened(
                        link,
                        Access {
                            fill: true,
                            ..access
                        },
                        0,
                    )
                    .is_ok()
                })
                .collect()
        });
        keys.extend(links.iter().cloned());
        keys
    }

    fn is_link(&self, key: &str) -> bool {
        links::has_link(&self.file, key)
    }

    fn is_nameless(&self) -> bool {
        false
    }

    fn array(&self, key: &str, access: Access) -> Result<Opened, ReadError> {
        self.opened(key, access, 0)
    }
}

impl Written {
    /// Whether something was not.
    fn is_short(&self) -> bool {
        matches!(self, Written::Nothing | Written::Chunks(_))
    }
}

fn never_written(what: &str) -> ReadError {
    ReadError::Unsupported(format!(
        "{what} were ever written, and the file has only its fill value for them; write them, or take the fill value \
         with `--fill` of `partita data convert`"
    ))
}

impl Hdf5Array {
    /// The chunks of a box, by their numbers.
    fn chunks(&self, starts: &[usize], counts: &[usize]) -> Vec<Vec<usize>> {
        let mut found = vec![Vec::new()];
        for ((start, count), size) in starts.iter().zip(counts).zip(&self.chunk) {
            let numbers = start / size..(start + count).div_ceil(*size);
            let longer = |first: Vec<usize>| {
                numbers
                    .clone()
                    .map(move |number| [first.as_slice(), &[number]].concat())
            };
            found = found.into_iter().flat_map(longer).collect();
        }
        found
    }

    fn first_of(&self, chunk: &[usize]) -> Vec<u64> {
        let sizes = chunk.iter().zip(&self.chunk);
        sizes.map(|(number, size)| (number * size) as u64).collect()
    }

    /// Refuses a box with a chunk that was never written. Where the index of the chunks is not known, the library is
    /// asked for chunks whose values are all the same.
    fn check(
        &self,
        starts: &[usize],
        counts: &[usize],
        values: &Elements,
    ) -> Result<(), ReadError> {
        let missing = match &self.written {
            None | Some(Written::All) => None,
            Some(Written::Nothing) => return Err(never_written("none of its values")),
            Some(_) if self.chunk.is_empty() => None,
            Some(Written::Chunks(written)) => self
                .chunks(starts, counts)
                .into_iter()
                .find(|chunk| !written.contains(&self.first_of(chunk))),
            Some(Written::Unknown) => self.chunks(starts, counts).into_iter().find(|chunk| {
                self.is_uniform(chunk, (starts, counts), values)
                    && guarded(|| self.array.read_chunk_raw_at(chunk)).is_err()
            }),
        };
        let Some(chunk) = missing else {
            return Ok(());
        };
        let (first, shape) = (self.first_of(&chunk), &self.shape);
        Err(never_written(&format!(
            "not all of its values (of shape {shape:?}; not those of the chunk at {first:?})"
        )))
    }

    /// Reads a box whose chunks are all kept until the end.
    fn read_piece(
        &self,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        guarded(|| each!(out, values => self.array.read_slice_into(values, starts, counts)))?;
        self.check(starts, counts, out)
    }

    /// Whether all values that a box has of a chunk are the same.
    fn is_uniform(
        &self,
        chunk: &[usize],
        (starts, counts): (&[usize], &[usize]),
        values: &Elements,
    ) -> bool {
        let dims = 0..starts.len();
        let spans: Vec<(usize, usize)> = dims
            .map(|dim| {
                let first = chunk[dim] * self.chunk[dim];
                let low = first.max(starts[dim]);
                (
                    low - starts[dim],
                    (first + self.chunk[dim]).min(starts[dim] + counts[dim]) - low,
                )
            })
            .collect();
        let elements: usize = spans.iter().map(|&(_, count)| count).product();
        let at = |mut number: usize| {
            let (mut at, mut stride) = (0, 1);
            for (&(low, count), extent) in spans.iter().zip(counts).rev() {
                at += (low + number % count) * stride;
                number /= count;
                stride *= extent;
            }
            at
        };
        let first = values.get(at(0));
        (1..elements)
            .map(|number| values.get(at(number)))
            .all(|value| value == first || (value.is_nan() && first.is_nan()))
    }
}

impl StoredArray for Hdf5Array {
    fn read(
        &self,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        self.read_in_pieces(starts, counts, out)
    }
}

/// The files of raw values in files of their own. These may be any file that this process can read.
///
/// Errors: files that are not allowed; missing or too short ones, for which zeros would be read.
fn check_external(array: &H5Dataset, access: Access) -> Result<Vec<PathBuf>, ReadError> {
    let segments = guarded(|| array.external_files())?;
    let files: Vec<PathBuf> = segments
        .iter()
        .map(|one| PathBuf::from(&one.name))
        .collect();
    if !files.is_empty() && !access.external {
        return Err(links::not_allowed("its values lie", &files));
    }
    let extents = array.shape().into_iter().chain([array.element_size()]);
    let mut left = extents.fold(1, |bytes: u64, extent| bytes.saturating_mul(extent as u64));
    for segment in segments {
        let needed = segment.size.min(left);
        left -= needed;
        let file = partita_files::open(&segment.name);
        let found = file
            .and_then(|file| file.metadata())
            .map_or(0, |data| data.len());
        if found.saturating_sub(segment.offset) < needed {
            return Err(ReadError::Unsupported(format!(
                "its values lie in the file {}, of which {needed} bytes from {} on are needed, and it has {found}; \
                 run where it lies, or copy the array to an ordinary one with h5py",
                segment.name, segment.offset
            )));
        }
    }
    Ok(files)
}

/// The fill value of an array, alone.
fn fill_of(array: &H5Dataset, element: &Element) -> Result<Elements, ReadError> {
    let mut value = Elements::new(element);
    value.resize(1)?;
    if let FillValue::UserDefined(bytes) = guarded(|| array.fill_value())? {
        let order = match guarded(|| array.datatype())? {
            DatatypeMessage::FixedPoint {
                byte_order: ByteOrder::BigEndian,
                ..
            }
            | DatatypeMessage::FloatingPoint {
                byte_order: ByteOrder::BigEndian,
                ..
            } => Order::Big,
            _ => Order::Little,
        };
        decode(&bytes, order, &mut value, 0);
    }
    Ok(value)
}

/// An attribute of a file that is a text.
pub fn attribute(path: &Path, name: &str) -> Option<String> {
    let file = Hdf5File::open(path).ok()?.file;
    guarded(|| file.attr_string(name)).ok()
}

/// The arrays of a file; none of one that cannot be read.
pub fn keys(path: &Path) -> Vec<String> {
    Hdf5File::open(path).map_or_else(|_| Vec::new(), |file| file.keys(Access::default()))
}

/// Looks for the signature where the format allows it: at 0, 512, 1024, 2048 and so on.
///
/// Returns where it is, and the length of the file in bytes.
/// Source: HDF5 File Format Specification 3.0, section II.A.
fn check_signature(path: &Path) -> Result<(u64, u64), DataError> {
    const SIGNATURE: [u8; 8] = *b"\x89HDF\r\n\x1a\n";
    let unopenable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => DataError::Missing {
            path: path.to_path_buf(),
            valid: "an HDF5 file (.h5) is needed there".to_string(),
        },
        _ => DataError::Unopenable {
            path: path.to_path_buf(),
            reason: error.to_string(),
        },
    };
    let mut file = partita_files::open(path).map_err(unopenable)?;
    let length = file.metadata().map_err(unopenable)?.len();
    let mut head = Vec::new();
    file.by_ref()
        .take(LFS.len() as u64)
        .read_to_end(&mut head)
        .map_err(unopenable)?;
    if head == LFS {
        return Err(ReadError::unsupported(LFS_REMEDY).of(path, None, None));
    }
    head.truncate(SIGNATURE.len());
    let (mut found, mut at) = (0, 512);
    let mut word = head.clone();
    while word != SIGNATURE && at < length {
        word.clear();
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(at)).map_err(unopenable)?;
        file.by_ref()
            .take(SIGNATURE.len() as u64)
            .read_to_end(&mut word)
            .map_err(unopenable)?;
        found = at;
        at *= 2;
    }
    if word == SIGNATURE {
        let start = if head == SIGNATURE { 0 } else { found };
        return match stored_end(&file, start) {
            Some(end) if end > length => Err(ReadError::Damaged(format!(
                "it is cut off: it has {length} bytes of {end}"
            ))
            .of(path, None, None)),
            Some(_) | None => Ok((found, length)),
        };
    }
    let found = match head.as_slice() {
        [] => "nothing, it is empty".to_string(),
        bytes => bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<Vec<_>>()
            .join(" "),
    };
    Err(DataError::NotHdf5 {
        path: path.to_path_buf(),
        found,
    })
}

/// The end of the file that the superblock states. What lies beyond the end of a file would be read as fill values.
///
/// Source: HDF5 File Format Specification 3.0, section II.A.
fn stored_end(file: &File, start: u64) -> Option<u64> {
    let mut block = [0; 64];
    file.read_exact_at(&mut block, start).ok()?;
    let (wide, first) = match block[8] {
        0 => (block[13], 24),
        1 => (block[13], 28),
        2 | 3 => (block[9], 12),
        _ => return None,
    };
    let wide = usize::from(wide);
    let at = first + 2 * wide;
    let end = block.get(at..at + wide).filter(|_| wide <= 8)?;
    let end = end
        .iter()
        .rev()
        .fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    // The end is not known where it was never stored.
    Some(end).filter(|&end| end < 1 << 62)
}

/// Calls the library to read.
///
/// It decodes whole headers before any of their numbers can be looked at from here, and computes with them
/// in 32 bits in places (the width in bits of an element of 2^29 bytes), which panics where overflow is
/// checked. What leads there is avoided as far as it is known; the rest ends here, with the file that is
/// being read, which is then given up. Memory that it asks for and does not get, it reports.
fn guarded<T>(call: impl FnOnce() -> rust_hdf5::Result<T>) -> Result<T, ReadError> {
    let unsupported = |reason: String| ReadError::Unsupported(reason);
    match catch_unwind(AssertUnwindSafe(|| handling_failure(call))) {
        Ok(answer) => answer.map_err(|error| match error {
            Hdf5Error::Io(error) => error.into(),
            Hdf5Error::Format(FormatError::UnsupportedFeature(_))
            | Hdf5Error::NotFound(_)
            | Hdf5Error::Unsupported(_)
            | Hdf5Error::DanglingLink { .. }
            | Hdf5Error::ExternalFileNotFound { .. } => unsupported(error.to_string()),
            // The error of its layer of input, whose type is private, begins so.
            error if error.to_string().contains("unsupported feature") => {
                unsupported(error.to_string())
            }
            error => error.to_string().into(),
        }),
        Err(_) => Err("its headers are damaged: they hold sizes that cannot be".into()),
    }
}

fn element_of(datatype: &DatatypeMessage) -> Element {
    match datatype {
        &DatatypeMessage::FixedPoint {
            size: size @ (1 | 2 | 4 | 8),
            signed,
            bit_offset: 0,
            bit_precision,
            ..
        } if u32::from(bit_precision) == 8 * size => integer(size, signed),
        DatatypeMessage::FloatingPoint {
            size: 2,
            exponent_size: 5,
            mantissa_size: 10,
            exponent_bias: 15,
            ..
        } => Element::Float16,
        DatatypeMessage::FloatingPoint {
            size: 4,
            exponent_size: 8,
            mantissa_size: 23,
            exponent_bias: 127,
            ..
        } => Element::Float32,
        DatatypeMessage::FloatingPoint {
            size: 8,
            exponent_size: 11,
            mantissa_size: 52,
            exponent_bias: 1023,
            ..
        } => Element::Float64,
        // Booleans of h5py.
        DatatypeMessage::Enum { base, .. } => match element_of(base) {
            Element::Int8 => Element::Int8,
            Element::UInt8 => Element::UInt8,
            _ => Element::Other(described(datatype)),
        },
        other => Element::Other(described(other)),
    }
}

fn integer(bytes: u32, signed: bool) -> Element {
    match (bytes, signed) {
        (1, false) => Element::UInt8,
        (1, true) => Element::Int8,
        (2, false) => Element::UInt16,
        (2, true) => Element::Int16,
        (4, false) => Element::UInt32,
        (4, true) => Element::Int32,
        (_, false) => Element::UInt64,
        (_, true) => Element::Int64,
    }
}

/// Name of an element type. That of the library multiplies the size that stands in the file in 32 bits.
fn described(datatype: &DatatypeMessage) -> String {
    let bits = |size: &u32| 8 * u64::from(*size);
    match datatype {
        DatatypeMessage::FixedPoint { size, signed, .. } => {
            format!("{}{}", if *signed { "i" } else { "u" }, bits(size))
        }
        DatatypeMessage::FloatingPoint { size, .. } => format!("f{}", bits(size)),
        DatatypeMessage::BitField { size, .. } => format!("bit fields of {} bits", bits(size)),
        DatatypeMessage::Enum { base, .. } => format!("enumeration of {}", described(base)),
        DatatypeMessage::VarLenSequence { base } => format!("sequences of {}", described(base)),
        DatatypeMessage::Array { dims, base } => format!("arrays {dims:?} of {}", described(base)),
        DatatypeMessage::Opaque { .. }
        | DatatypeMessage::FixedString { .. }
        | DatatypeMessage::Compound { .. }
        | DatatypeMessage::VarLenString { .. }
        | DatatypeMessage::Reference { .. } => datatype.to_string(),
    }
}

fn stored_of(array: &H5Dataset) -> rust_hdf5::Result<StorageLayout> {
    Ok(match array.storage_layout()? {
        rust_hdf5::StorageLayout::Contiguous => StorageLayout::Contiguous,
        rust_hdf5::StorageLayout::Compact => StorageLayout::Compact,
        rust_hdf5::StorageLayout::Virtual => StorageLayout::Virtual,
        rust_hdf5::StorageLayout::Chunked => StorageLayout::Chunked {
            chunk: array.chunk_dims().unwrap_or_default(),
            filters: array
                .filters()?
                .iter()
                .map(|filter| filter_name(filter.id))
                .collect(),
        },
    })
}

/// Bytes of values that a byte of file can hold at most; `None` where there is no bound.
///
/// Source: RFC 1951: a deflate block codes at most 258 bytes in two bits, 1032 to 1.
fn packing(stored: &StorageLayout) -> Option<u64> {
    match stored {
        StorageLayout::Contiguous | StorageLayout::Compact => Some(1),
        StorageLayout::Virtual | StorageLayout::Stream { .. } => None,
        StorageLayout::Chunked { filters, .. } => {
            filters
                .iter()
                .try_fold(1, |factor, filter| match filter.as_str() {
                    "shuffle" | "fletcher32" => Some(factor),
                    "gzip" => Some(factor * 1032),
                    _ => None,
                })
        }
    }
}

/// Source: HDF5 File Format Specification 3.0, section IV.A.2.l (filter pipeline message).
fn filter_name(id: u16) -> String {
    match id {
        1 => "gzip".to_string(),
        2 => "shuffle".to_string(),
        3 => "fletcher32".to_string(),
        4 => "szip".to_string(),
        5 => "nbit".to_string(),
        6 => "scaleoffset".to_string(),
        id => format!("filter {id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rust_hdf5::ByteOrder;

    #[test]
    fn element_types_of_any_size_have_a_name() {
        let whole = |size| DatatypeMessage::FixedPoint {
            size,
            byte_order: ByteOrder::LittleEndian,
            signed: true,
            bit_offset: 0,
            bit_precision: 16,
        };
        for (datatype, expected) in [
            (whole(4), "i32"),
            (whole(u32::MAX), "i34359738360"),
            (
                DatatypeMessage::VarLenSequence {
                    base: Box::new(whole(1 << 29)),
                },
                "sequences of i4294967296",
            ),
        ] {
            assert_eq!(element_of(&datatype).name(), expected);
        }
    }
}
