//! Element types and the buffers that volumes are read into.

use std::io;

use partita_space::Bytes;
use serde::{Deserialize, Serialize};

use crate::slab::Region4;

/// Bytes that are converted at a time.
const CHUNK: usize = 1 << 16;

/// Shape of one sample, (C, D, H, W).
pub type VolumeShape = [usize; 4];

/// Element type of the volumes of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// Signed 16-bit integers (particle counts).
    Int16,
    /// IEEE 754 single precision.
    Float32,
}

impl DType {
    /// Size of one element. Units: bytes.
    pub fn size_bytes(self) -> usize {
        match self {
            DType::Int16 => 2,
            DType::Float32 => 4,
        }
    }

    /// Name as it stands in the index file.
    pub fn name(self) -> &'static str {
        match self {
            DType::Int16 => "int16",
            DType::Float32 => "float32",
        }
    }
}

/// Elements of a volume or of a region of one, in (C, D, H, W) order.
#[derive(Clone, Debug, PartialEq)]
pub enum Samples {
    /// Elements of an `int16` dataset.
    I16(Vec<i16>),
    /// Elements of a `float32` dataset.
    F32(Vec<f32>),
}

impl Samples {
    /// An empty buffer.
    pub fn new(dtype: DType) -> Self {
        Self::zeros(dtype, 0)
    }

    /// A buffer of `len` zeros.
    pub fn zeros(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::Int16 => Samples::I16(vec![0; len]),
            DType::Float32 => Samples::F32(vec![0.0; len]),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Samples::I16(values) => values.len(),
            Samples::F32(values) => values.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size of all elements.
    pub fn bytes(&self) -> Bytes {
        Bytes((self.len() * self.dtype().size_bytes()) as u64)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            Samples::I16(_) => DType::Int16,
            Samples::F32(_) => DType::Float32,
        }
    }

    /// Replaces the contents of `out` by the elements as `f32` (exact: |i16| < 2^24).
    pub fn write_f32(&self, out: &mut Vec<f32>) {
        out.clear();
        self.append_f32(out);
    }

    /// The same behind what is there.
    pub fn append_f32(&self, out: &mut Vec<f32>) {
        match self {
            Samples::I16(values) => out.extend(values.iter().map(|&value| f32::from(value))),
            Samples::F32(values) => out.extend_from_slice(values),
        }
    }

    /// The elements of `region` of a whole volume of shape `shape`, in (C, D, H, W) order.
    ///
    /// Panics if `self` does not hold the whole volume or `region` leaves it.
    pub fn slice(&self, shape: VolumeShape, region: &Region4) -> Samples {
        assert_eq!(
            self.len(),
            shape.iter().product::<usize>(),
            "not a volume of {shape:?}"
        );
        match self {
            Samples::I16(values) => Samples::I16(slice_of(values, shape, region)),
            Samples::F32(values) => Samples::F32(slice_of(values, shape, region)),
        }
    }

    /// Adds the elements of `more` at the end. Panics where their types differ.
    pub fn append(&mut self, more: &Samples) {
        match (self, more) {
            (Samples::I16(values), Samples::I16(more)) => values.extend_from_slice(more),
            (Samples::F32(values), Samples::F32(more)) => values.extend_from_slice(more),
            (Samples::I16(_), Samples::F32(_)) | (Samples::F32(_), Samples::I16(_)) => {
                panic!("samples of one dataset have one element type")
            }
        }
    }

    /// Writes all elements in little-endian order.
    pub fn write_to(&self, out: &mut dyn io::Write) -> io::Result<()> {
        match self {
            Samples::I16(values) => write_values(values, i16::to_le_bytes, out),
            Samples::F32(values) => write_values(values, f32::to_le_bytes, out),
        }
    }

    /// Replaces the elements by this many that are read in little-endian order.
    pub fn read_from(&mut self, elements: usize, input: &mut dyn io::Read) -> io::Result<()> {
        match self {
            Samples::I16(values) => read_values(values, elements, i16::from_le_bytes, input),
            Samples::F32(values) => read_values(values, elements, f32::from_le_bytes, input),
        }
    }

    /// Removes all elements.
    pub fn clear(&mut self) {
        match self {
            Samples::I16(values) => values.clear(),
            Samples::F32(values) => values.clear(),
        }
    }

    /// Room for this many elements, and no more.
    pub fn reserve_exact(&mut self, elements: usize) {
        match self {
            Samples::I16(values) => values.reserve_exact(elements.saturating_sub(values.len())),
            Samples::F32(values) => values.reserve_exact(elements.saturating_sub(values.len())),
        }
    }
}

/// Writes values through a small buffer, in chunks.
pub fn write_values<T: Copy, const N: usize>(
    values: &[T],
    to_bytes: fn(T) -> [u8; N],
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(CHUNK.min(values.len() * N));
    for chunk in values.chunks(CHUNK / N) {
        bytes.clear();
        chunk
            .iter()
            .for_each(|&value| bytes.extend_from_slice(&to_bytes(value)));
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// Replaces values by this many that are read in chunks.
pub fn read_values<T, const N: usize>(
    values: &mut Vec<T>,
    elements: usize,
    from_bytes: fn([u8; N]) -> T,
    input: &mut dyn io::Read,
) -> io::Result<()> {
    values.clear();
    values.reserve_exact(elements);
    let mut bytes = vec![0; CHUNK.min(elements * N)];
    while values.len() < elements {
        let count = (elements - values.len()).min(CHUNK / N);
        let chunk = &mut bytes[..count * N];
        input.read_exact(chunk)?;
        values.extend(
            chunk
                .as_chunks::<N>()
                .0
                .iter()
                .map(|&word| from_bytes(word)),
        );
    }
    Ok(())
}

/// The elements of a region of a volume.
pub fn slice_of<T: Copy>(values: &[T], shape: VolumeShape, region: &Region4) -> Vec<T> {
    let [_, depth, height, width] = shape;
    let [cs, ds, hs, ws] = region;
    let mut out = Vec::with_capacity(cs.len() * ds.len() * hs.len() * ws.len());
    for c in cs.clone() {
        for d in ds.clone() {
            for h in hs.clone() {
                let row = ((c * depth + d) * height + h) * width;
                out.extend_from_slice(&values[row + ws.start..row + ws.end]);
            }
        }
    }
    out
}
