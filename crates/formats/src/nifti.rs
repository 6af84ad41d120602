//! NIfTI-1 and NIfTI-2, medical volumes in one file (`.nii`), as they are or gzipped (`.nii.gz`).
//!
//! The array is (T, Z, Y, X) or (Z, Y, X): X varies fastest in the file. Positions in the body are not looked at.
//! Source: nifti1.h and nifti2.h of the NIfTI Data Format Working Group.

use std::cell::RefCell;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::array::{Access, ArrayFile, Opened, StoredArray};
use crate::decode_memory;
use crate::element::{Element, Elements};
use crate::flat::{Bytes, DEFLATE_FACTOR, Flat, Order};
use crate::read_error::ReadError;

/// Size of the longer header.
const HEADER_BYTES: usize = 540;

/// A file with one volume.
pub(crate) struct NiftiFile {
    path: PathBuf,
    is_gzipped: bool,
}

impl NiftiFile {
    pub(crate) fn new(path: &Path, is_gzipped: bool) -> Self {
        Self {
            path: path.to_path_buf(),
            is_gzipped,
        }
    }

    /// Its first bytes, unpacked.
    fn head(&self) -> io::Result<Vec<u8>> {
        let file = partita_files::open(&self.path)?;
        let mut from: Box<dyn Read> = if self.is_gzipped {
            Box::new(MultiGzDecoder::new(io::BufReader::new(file)))
        } else {
            Box::new(file)
        };
        let mut head = Vec::new();
        from.by_ref()
            .take(HEADER_BYTES as u64)
            .read_to_end(&mut head)?;
        Ok(head)
    }
}

/// Whether bytes begin as a header does.
pub(crate) fn is_header(head: &[u8]) -> bool {
    let Some(&word) = head.first_chunk::<4>() else {
        return false;
    };
    [348, 540]
        .iter()
        .any(|&size| [u32::from_le_bytes(word), u32::from_be_bytes(word)].contains(&size))
}

impl ArrayFile for NiftiFile {
    fn array(&self, _: &str, _: Access) -> Result<Opened, ReadError> {
        let file = partita_files::open(&self.path)?;
        let length = file.metadata()?.len();
        let path = self.path.clone();
        let open = move || -> io::Result<Box<dyn Read + Send>> {
            Ok(Box::new(MultiGzDecoder::new(io::BufReader::new(
                partita_files::open(&path)?,
            ))))
        };
        let head = self.head()?;
        let header = Header::parse(&head)?;
        let (bytes, room) = if self.is_gzipped {
            (
                Bytes::Stream {
                    open: Box::new(open),
                    offset: header.offset,
                    filter: "gzip",
                },
                length.saturating_mul(DEFLATE_FACTOR),
            )
        } else {
            (
                Bytes::File {
                    file,
                    offset: header.offset,
                },
                length,
            )
        };
        let flat = Flat {
            bytes,
            extents: header.shape,
            element: header.element,
            order: header.order,
            reversed: false,
            place: RefCell::default(),
        };
        let mut opened = flat.opened(room.saturating_sub(header.offset))?;
        if let Some((slope, inter)) = header.scale
            && opened.element.size() > 0
        {
            opened.array = Box::new(Scaled {
                stored: std::mem::replace(&mut opened.element, Element::Float64),
                array: opened.array,
                slope,
                inter,
            });
        }
        Ok(opened)
    }
}

/// An array whose values are stored divided by a slope, less an intercept.
struct Scaled {
    array: Box<dyn StoredArray>,
    stored: Element,
    slope: f64,
    inter: f64,
}

impl StoredArray for Scaled {
    fn read(
        &self,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        let mut stored = Elements::new(&self.stored);
        let _claim = decode_memory::claim((out.len() * self.stored.size()) as u64)?;
        stored.resize(out.len())?;
        self.array.read(starts, counts, &mut stored)?;
        let Elements::F64(values) = out else {
            panic!("scaled values are double");
        };
        for (at, value) in values.iter_mut().enumerate() {
            *value = stored.get(at) * self.slope + self.inter;
        }
        Ok(())
    }
}

struct Header {
    order: Order,
    /// The outermost first.
    shape: Vec<usize>,
    element: Element,
    offset: u64,
    scale: Option<(f64, f64)>,
}

/// Fields of a header by their position.
struct Fields<'a> {
    bytes: &'a [u8],
    order: Order,
}

impl Fields<'_> {
    fn word<const N: usize>(&self, at: usize) -> Result<[u8; N], ReadError> {
        let bytes = self.bytes.get(at..).and_then(<[u8]>::first_chunk::<N>);
        let mut word = *bytes.ok_or("its header is cut off")?;
        if self.order == Order::Big {
            word.reverse();
        }
        Ok(word)
    }
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<Self, ReadError> {
        let word = *bytes.first_chunk::<4>().ok_or("its header is cut off")?;
        let (order, size) = match (u32::from_le_bytes(word), u32::from_be_bytes(word)) {
            (size @ (348 | 540), _) => (Order::Little, size),
            (_, size @ (348 | 540)) => (Order::Big, size),
            (size, _) => return Err(format!("its header has {size} bytes, not 348 or 540").into()),
        };
        let fields = Fields { bytes, order };
        let is_first = size == 348;
        let magic: [u8; 4] = {
            let at = if is_first { 344 } else { 4 };
            *bytes
                .get(at..)
                .and_then(<[u8]>::first_chunk::<4>)
                .ok_or("its header is cut off")?
        };
        if &magic != b"n+1\0" && &magic != b"n+2\0" {
            return Err(ReadError::unsupported(
                "its header is that of a pair of files (.hdr and .img) or of Analyze 7.5, which are not read; write \
                 it as one NIfTI file (magic n+1 or n+2)",
            ));
        }
        let dim = |at: usize| -> Result<i64, ReadError> {
            Ok(if is_first {
                i16::from_le_bytes(fields.word(40 + 2 * at)?).into()
            } else {
                i64::from_le_bytes(fields.word(16 + 8 * at)?)
            })
        };
        let float = |first: usize, second: usize| -> Result<f64, ReadError> {
            Ok(if is_first {
                f32::from_le_bytes(fields.word(first)?).into()
            } else {
                f64::from_le_bytes(fields.word(second)?)
            })
        };
        let dims = dim(0)?;
        if !(1..=7).contains(&dims) {
            return Err(format!("its header states {dims} dims").into());
        }
        let extents: Result<Vec<i64>, ReadError> = (1..=dims as usize).rev().map(dim).collect();
        let extents: Result<Vec<usize>, _> = extents?.into_iter().map(usize::try_from).collect();
        let mut shape = extents.map_err(|_| "its header states a negative extent")?;
        // Outer dims of extent 1 say nothing.
        while shape.len() > 3 && shape[0] == 1 {
            shape.remove(0);
        }
        let code = i16::from_le_bytes(fields.word(if is_first { 70 } else { 12 })?);
        let offset = if is_first {
            f32::from_le_bytes(fields.word(108)?) as u64
        } else {
            i64::from_le_bytes(fields.word(168)?).max(0) as u64
        };
        let (slope, inter) = (float(112, 176)?, float(116, 184)?);
        Ok(Self {
            order,
            shape,
            element: element_of(code),
            offset: offset.max(if is_first { 348 } else { 540 }),
            scale: scale(slope, inter)?,
        })
    }
}

/// Slope and intercept of the values; `None` where they are as stored.
///
/// A slope of 0 means so, and one that is not finite too, as nibabel writes where values were not scaled. Errors: of
/// the two, only one is a number.
/// Source: nifti1.h, `scl_slope`; nibabel, `Nifti1Header.get_slope_inter`.
fn scale(slope: f64, inter: f64) -> Result<Option<(f64, f64)>, ReadError> {
    let is_unscaled = if slope.is_finite() {
        slope == 0.0
    } else {
        inter == 0.0 || !inter.is_finite()
    };
    if is_unscaled {
        return Ok(None);
    }
    if slope.is_finite() && inter.is_finite() {
        return Ok(Some((slope, inter)).filter(|&scale| scale != (1.0, 0.0)));
    }
    Err(ReadError::Unsupported(format!(
        "its header scales the values by the slope {slope} and the intercept {inter} (`scl_slope`, `scl_inter`); set \
         both to numbers, or the slope to 0 for the values as they are stored"
    )))
}

/// Positions of voxels: row r gives coordinate r of a voxel (x, y, z), `row[0] x + row[1] y + row[2] z + row[3]`, in
/// millimeters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine(pub [[f64; 4]; 3]);

impl Affine {
    /// Distances between neighbors along x, y and z.
    pub fn spacing(&self) -> [f64; 3] {
        [0, 1, 2].map(|dim| {
            self.0
                .map(|row| row[dim] * row[dim])
                .iter()
                .sum::<f64>()
                .sqrt()
        })
    }

    /// From what an index file has: the rows, one after the other.
    pub fn of_toml(value: &toml::Value) -> Option<Self> {
        let numbers: Option<Vec<f64>> = value
            .as_array()?
            .iter()
            .map(toml::Value::as_float)
            .collect();
        let (rows, _) = numbers.as_deref()?.as_chunks::<4>();
        Some(Self(rows.try_into().ok()?))
    }

    /// As [`of_toml`](Self::of_toml) reads it.
    pub fn to_toml(self) -> toml::Value {
        let numbers = self.0.into_iter().flatten().map(toml::Value::Float);
        toml::Value::Array(numbers.collect())
    }
}

/// Voxels of a file along x, y and z, and their positions if it has any.
pub struct Voxels {
    /// How many along x, y and z.
    pub extent: [usize; 3],
    /// Their positions, by sform or else qform.
    pub affine: Option<Affine>,
}

/// Voxels of a file; `None` if it is no NIfTI file.
pub fn voxels(path: &Path) -> Option<Voxels> {
    let file = NiftiFile::new(path, path.extension().is_some_and(|end| end == "gz"));
    let bytes = file.head().ok()?;
    let header = Header::parse(&bytes).ok()?;
    let mut extents = header.shape.iter().rev().copied();
    Some(Voxels {
        extent: [0; 3].map(|_| extents.next().unwrap_or(1)),
        affine: affine(&bytes, header.order),
    })
}

/// Positions of the voxels of a header: by its sform, else its qform; `None` if it has neither.
///
/// Source: nifti1.h, methods 2 and 3.
fn affine(bytes: &[u8], order: Order) -> Option<Affine> {
    let fields = Fields { bytes, order };
    let is_first = bytes.get(344..347) == Some(b"n+1");
    let float = |first: usize, second: usize, number: usize| -> Option<f64> {
        Some(if is_first {
            f32::from_le_bytes(fields.word(first + 4 * number).ok()?).into()
        } else {
            f64::from_le_bytes(fields.word(second + 8 * number).ok()?)
        })
    };
    let code = |first: usize, second: usize| -> Option<i32> {
        Some(if is_first {
            i16::from_le_bytes(fields.word(first).ok()?).into()
        } else {
            i32::from_le_bytes(fields.word(second).ok()?)
        })
    };
    let mut rows = [[0.0; 4]; 3];
    if code(254, 348)? > 0 {
        for (at, value) in rows.iter_mut().flatten().enumerate() {
            *value = float(280, 400, at)?;
        }
    } else if code(252, 344)? > 0 {
        let quaternion = [
            float(256, 352, 0)?,
            float(256, 352, 1)?,
            float(256, 352, 2)?,
        ];
        let turned = rotation(quaternion);
        let pixdim = |dim| float(76, 104, dim);
        let size = |dim| pixdim(dim).map(|size| if size > 0.0 { size } else { 1.0 });
        // The sign of the third axis.
        let hand = if pixdim(0)? < 0.0 { -1.0 } else { 1.0 };
        let sizes = [size(1)?, size(2)?, size(3)? * hand];
        for (row, values) in rows.iter_mut().enumerate() {
            for dim in 0..3 {
                values[dim] = turned[row][dim] * sizes[dim];
            }
            values[3] = float(268, 376, row)?;
        }
    } else {
        return None;
    }
    let is_finite = rows.iter().flatten().all(|value| value.is_finite());
    is_finite.then_some(Affine(rows))
}

/// What a NIfTI-1 file says of itself.
///
/// Source: nifti1.h, `descrip`.
pub fn description(path: &Path) -> Option<Vec<u8>> {
    let file = NiftiFile::new(path, path.extension().is_some_and(|end| end == "gz"));
    let head = file.head().ok()?;
    (is_header(&head) && head.get(344..347) == Some(b"n+1")).then(|| head[148..228].to_vec())
}

/// The rotation of a unit quaternion, of which b, c and d are given in single precision.
///
/// Source: nifti1_io.c, `nifti_quatern_to_mat44`.
fn rotation(vector: [f64; 3]) -> [[f64; 3]; 3] {
    let square: f64 = vector.iter().map(|value| value * value).sum();
    // A half turn: what is left of a is rounding.
    let is_half = 1.0 - square < 1e-7;
    let (a, scale) = if is_half {
        (0.0, 1.0 / square.sqrt())
    } else {
        ((1.0 - square).sqrt(), 1.0)
    };
    let [b, c, d] = vector.map(|value| value * scale);
    [
        [
            a * a + b * b - c * c - d * d,
            2.0 * (b * c - a * d),
            2.0 * (b * d + a * c),
        ],
        [
            2.0 * (b * c + a * d),
            a * a + c * c - b * b - d * d,
            2.0 * (c * d - a * b),
        ],
        [
            2.0 * (b * d - a * c),
            2.0 * (c * d + a * b),
            a * a + d * d - b * b - c * c,
        ],
    ]
}

/// Source: nifti1.h, `datatype`.
fn element_of(code: i16) -> Element {
    match code {
        2 => Element::UInt8,
        4 => Element::Int16,
        8 => Element::Int32,
        16 => Element::Float32,
        64 => Element::Float64,
        256 => Element::Int8,
        512 => Element::UInt16,
        768 => Element::UInt32,
        1024 => Element::Int64,
        1280 => Element::UInt64,
        code => Element::Other(format!("NIfTI type {code}")),
    }
}
