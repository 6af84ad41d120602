//! Arrays whose elements lie one after the other in a file, or in a compressed stream.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use crate::array::{Opened, StorageLayout, StoredArray};
use crate::decode_memory;
use crate::element::{Element, Elements};
use crate::read_error::ReadError;

/// Bytes that are read at once, so that a run of any length needs little memory.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes that may follow the values of a stream.
const BEHIND_MAX: u64 = 1 << 20;
/// What a byte of deflate becomes at most.
///
/// Source: RFC 1951: a deflate block codes at most 258 bytes in two bits.
pub(crate) const DEFLATE_FACTOR: u64 = 1032;

/// Byte order of stored numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Little,
    Big,
}

/// Where the bytes of an array are.
pub(crate) enum Bytes {
    /// In a file, from `offset` on.
    File { file: File, offset: u64 },
    /// In what a decoder gives, from `offset` on.
    Stream {
        open: Box<dyn Fn() -> io::Result<Box<dyn Read + Send>> + Send>,
        offset: u64,
        filter: &'static str,
    },
}

/// An array in row-major order.
pub(crate) struct Flat {
    pub(crate) bytes: Bytes,
    /// Extents in the order of the file, the outermost first.
    pub(crate) extents: Vec<usize>,
    pub(crate) element: Element,
    pub(crate) order: Order,
    /// Whether the dims are numbered from the innermost on (Fortran order).
    pub(crate) reversed: bool,
    /// The stream where the last read ended, so that reads in order decode it once.
    pub(crate) place: RefCell<Option<Place>>,
}

/// A stream, and how many of its bytes were read.
pub(crate) struct Place {
    stream: Box<dyn Read + Send>,
    at: u64,
}

impl Flat {
    /// Checks that the array fits in what holds it: `room` bytes from its beginning on.
    pub(crate) fn opened(self, room: u64) -> Result<Opened, ReadError> {
        let claimed = self
            .extents
            .iter()
            .try_fold(self.element.size().max(1) as u64, |bytes, &extent| {
                bytes.checked_mul(extent as u64)
            });
        let mut shape = self.extents.clone();
        if self.reversed {
            shape.reverse();
        }
        if claimed.is_none_or(|bytes| bytes > room) {
            return Err(format!("values of shape {shape:?} do not fit in its {room} bytes").into());
        }
        Ok(Opened {
            shape,
            stored: match &self.bytes {
                Bytes::File { .. } => StorageLayout::Contiguous,
                Bytes::Stream { filter, .. } => StorageLayout::Stream { filter },
            },
            stored_size: self.element.size(),
            element: self.element.clone(),
            external: Vec::new(),
            array: Box::new(self),
        })
    }

    /// Reads a box given in the order of the file.
    fn read_in_order(
        &self,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        let size = self.element.size();
        let mut cursor = Cursor::open(&self.bytes, self.place.take());
        let mut buffer = Vec::new();
        let mut filled = 0;
        for_runs(&self.extents, starts, counts, |first, elements| {
            let mut done = 0;
            while done < elements {
                let now = (elements - done).min(PIECE_BYTES / size);
                buffer.resize(now * size, 0);
                let at = (first + done as u64) * size as u64;
                cursor
                    .read_at(at, &mut buffer)
                    .map_err(|error| match error.kind() {
                        io::ErrorKind::UnexpectedEof => {
                            format!("it ends before byte {at} of the values").into()
                        }
                        _ => ReadError::from(error),
                    })?;
                decode(&buffer, self.order, out, filled);
                filled += now;
                done += now;
            }
            Ok(())
        })?;
        let mut ends = starts.iter().zip(counts).zip(&self.extents);
        if ends.all(|((start, count), extent)| start + count == *extent) {
            cursor.end()?;
        }
        self.place.replace(cursor.into_place());
        Ok(())
    }
}

impl StoredArray for Flat {
    fn read(
        &self,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        if !self.reversed {
            return self.read_in_order(starts, counts, out);
        }
        let back = |dims: &[usize]| dims.iter().rev().copied().collect::<Vec<_>>();
        self.read_in_order(&back(starts), &back(counts), out)?;
        let _claim = decode_memory::claim((out.len() * self.element.size()) as u64)?;
        reverse_dims(out, counts);
        Ok(())
    }
}

/// Reads forward.
enum Cursor<'a> {
    File {
        file: &'a File,
        offset: u64,
    },
    Stream {
        open: &'a dyn Fn() -> io::Result<Box<dyn Read + Send>>,
        place: Option<Place>,
        offset: u64,
    },
}

impl<'a> Cursor<'a> {
    fn open(bytes: &'a Bytes, place: Option<Place>) -> Self {
        match bytes {
            Bytes::File { file, offset } => Cursor::File {
                file,
                offset: *offset,
            },
            Bytes::Stream { open, offset, .. } => Cursor::Stream {
                open,
                place,
                offset: *offset,
            },
        }
    }

    fn into_place(self) -> Option<Place> {
        match self {
            Cursor::File { .. } => None,
            Cursor::Stream { place, .. } => place,
        }
    }

    /// Reads what stands behind the last value, so that a checksum there is compared. The next read begins anew.
    fn end(&mut self) -> Result<(), ReadError> {
        let Cursor::Stream { place, .. } = self else {
            return Ok(());
        };
        let Some(Place { stream, .. }) = place.take() else {
            return Ok(());
        };
        match io::copy(&mut stream.take(BEHIND_MAX + 1), &mut io::sink()) {
            Ok(bytes) if bytes > BEHIND_MAX => Err("more follows its values".into()),
            Ok(_) => Ok(()),
            // Bytes that are no further member of a gzip file.
            Err(error) if error.to_string().contains("header") => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Fills the buffer from a position. A stream begins anew where it is before the end of the last.
    fn read_at(&mut self, position: u64, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Cursor::File { file, offset } => file.read_exact_at(buffer, *offset + position),
            Cursor::Stream {
                open,
                place,
                offset,
            } => {
                let first = *offset + position;
                if place.as_ref().is_none_or(|place| place.at > first) {
                    let stream = open()?;
                    *place = Some(Place { stream, at: 0 });
                }
                let Some(Place { stream, at }) = place else {
                    return Ok(());
                };
                let skip = first - *at;
                let skipped = io::copy(&mut stream.by_ref().take(skip), &mut io::sink())?;
                if skipped < skip {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                stream.read_exact(buffer)?;
                *at += skip + buffer.len() as u64;
                Ok(())
            }
        }
    }
}

/// Calls with first element and length of each contiguous run of a box, in order.
pub(crate) fn for_runs(
    extents: &[usize],
    starts: &[usize],
    counts: &[usize],
    mut each: impl FnMut(u64, usize) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut outer = extents.len().saturating_sub(1);
    while outer > 0 && counts[outer] == extents[outer] {
        outer -= 1;
    }
    let run: usize = counts[outer.min(counts.len())..].iter().product();
    let runs: usize = counts[..outer.min(counts.len())].iter().product();
    for number in 0..runs {
        let mut rest = number;
        let mut first = 0u64;
        let mut stride = 1u64;
        for dim in (0..extents.len()).rev() {
            let place = if dim < outer {
                let place = starts[dim] + rest % counts[dim];
                rest /= counts[dim];
                place
            } else {
                starts[dim]
            };
            first += place as u64 * stride;
            stride *= extents[dim] as u64;
        }
        each(first, run)?;
    }
    Ok(())
}

/// Turns bytes into elements from position `at` of `out` on.
pub(crate) fn decode(bytes: &[u8], order: Order, out: &mut Elements, at: usize) {
    macro_rules! typed {
        ($values:expr, $kind:ty) => {{
            let (words, _) = bytes.as_chunks::<{ size_of::<$kind>() }>();
            for (value, word) in $values[at..].iter_mut().zip(words) {
                *value = match order {
                    Order::Little => <$kind>::from_le_bytes(*word),
                    Order::Big => <$kind>::from_be_bytes(*word),
                };
            }
        }};
    }
    match out {
        Elements::U8(values) => typed!(values, u8),
        Elements::I8(values) => typed!(values, i8),
        Elements::U16(values) | Elements::F16(values) => typed!(values, u16),
        Elements::I16(values) => typed!(values, i16),
        Elements::U32(values) => typed!(values, u32),
        Elements::I32(values) => typed!(values, i32),
        Elements::U64(values) => typed!(values, u64),
        Elements::I64(values) => typed!(values, i64),
        Elements::F32(values) => typed!(values, f32),
        Elements::F64(values) => typed!(values, f64),
    }
}

/// Transposes a box with its dims reversed to row-major order of `counts`.
fn reverse_dims(elements: &mut Elements, counts: &[usize]) {
    crate::element::each!(elements, values => *values = reversed(values, counts));
}

fn reversed<T: Copy>(values: &[T], counts: &[usize]) -> Vec<T> {
    let mut index = vec![0; counts.len()];
    let mut out = Vec::with_capacity(values.len());
    for _ in 0..values.len() {
        let mut at = 0;
        for dim in (0..counts.len()).rev() {
            at = at * counts[dim] + index[dim];
        }
        out.push(values[at]);
        for dim in (0..counts.len()).rev() {
            index[dim] += 1;
            if index[dim] < counts[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
    out
}

/// The element type of a NumPy type string such as `<f4`, as NPY and Zarr write it.
///
/// Source: NumPy's array interface, `typestr`.
pub(crate) fn numpy_type(text: &str) -> (Element, Order) {
    let (order, kind) = match text.as_bytes().first() {
        Some(b'>') => (Order::Big, &text[1..]),
        Some(b'<' | b'|' | b'=') => (Order::Little, &text[1..]),
        Some(_) | None => (Order::Little, text),
    };
    let element = match kind {
        "u1" | "b1" => Element::UInt8,
        "i1" => Element::Int8,
        "u2" => Element::UInt16,
        "i2" => Element::Int16,
        "u4" => Element::UInt32,
        "i4" => Element::Int32,
        "u8" => Element::UInt64,
        "i8" => Element::Int64,
        "f2" => Element::Float16,
        "f4" => Element::Float32,
        "f8" => Element::Float64,
        _ => Element::Other(text.to_owned()),
    };
    (element, order)
}
