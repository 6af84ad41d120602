//! Tensors that a file holds: initializers and constants, of which most are read only when their numbers are wanted.

use super::schema::{Entry, TensorMessage};
use crate::Reason;
use crate::strided::{positions, row_major, volume};
use crate::weights::Element;
use half::{bf16, f16};
use prost::bytes::Bytes;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Component, Path};
use std::sync::Arc;

/// A tensor that does not depend on the input.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// Its name in the file.
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) element: Element,
    /// Whether it is a constant of the graph, no initializer.
    pub(super) is_constant: bool,
    source: Arc<Source>,
    moves: Vec<Move>,
}

/// Where numbers are.
#[derive(Debug)]
struct Source {
    shape: Vec<usize>,
    element: Element,
    data: Data,
}

#[derive(Debug)]
enum Data {
    /// Little-endian.
    Raw(Bytes),
    Numbers(Vec<f64>),
    /// In another file.
    External {
        location: String,
        offset: u64,
        length: Option<u64>,
    },
}

/// What makes another tensor of the same numbers.
#[derive(Clone, Debug, PartialEq)]
enum Move {
    /// Dim `order[i]` becomes dim `i`.
    Permute(Vec<usize>),
    Reshape(Vec<usize>),
}

/// The element type of a number of `TensorProto.DataType`.
pub(super) fn element_of(number: i32) -> Option<Element> {
    Some(match number {
        1 => Element::F32,
        2 => Element::U8,
        3 => Element::I8,
        5 => Element::I16,
        6 => Element::I32,
        7 => Element::I64,
        9 => Element::Bool,
        10 => Element::F16,
        11 => Element::F64,
        16 => Element::Bf16,
        _ => return None,
    })
}

/// Whether numbers of this type have fractions.
pub(super) fn is_real(element: Element) -> bool {
    match element {
        Element::F16 | Element::Bf16 | Element::F32 | Element::F64 => true,
        Element::U8 | Element::I8 | Element::I16 | Element::I32 | Element::I64 | Element::Bool => {
            false
        }
    }
}

impl Held {
    /// A tensor of a file.
    ///
    /// Errors: a type that is not read, fewer numbers than its extents say.
    pub(super) fn read(
        name: &str,
        tensor: &TensorMessage,
        is_constant: bool,
    ) -> Result<Self, Reason> {
        let fault = |what: &str| Reason::from(format!("the tensor `{name}` {what}"));
        let element = element_of(tensor.data_type).ok_or_else(|| {
            fault(&format!(
                "has the type {}, which is not read",
                tensor.data_type
            ))
        })?;
        let shape = tensor.dims.iter().map(|&one| usize::try_from(one).ok());
        let shape = shape.collect::<Option<Vec<usize>>>();
        let shape = shape.ok_or_else(|| fault("has a negative extent"))?;
        let count = volume(&shape).ok_or_else(|| fault("has more numbers than can be counted"))?;
        let data = if tensor.data_location == 1 {
            external(&tensor.external_data).map_err(|what| fault(&what.to_string()))?
        } else {
            data(tensor, element)
        };
        let found = match &data {
            Data::Raw(bytes) => Some(bytes.len() / element.bytes()),
            Data::Numbers(numbers) => Some(numbers.len()),
            Data::External { .. } => None,
        };
        if found.is_some_and(|found| found != count) {
            return Err(fault("has another length than its extents say"));
        }
        let source = Source {
            shape: shape.clone(),
            element,
            data,
        };
        Ok(Self {
            name: name.to_owned(),
            shape,
            element,
            is_constant,
            source: Arc::new(source),
            moves: Vec::new(),
        })
    }

    /// A tensor that follows from constants; `values` has as many as `shape` says.
    pub(super) fn computed(
        name: &str,
        shape: Vec<usize>,
        element: Element,
        values: Vec<f64>,
    ) -> Self {
        let source = Source {
            shape: shape.clone(),
            element,
            data: Data::Numbers(values),
        };
        Self {
            name: name.to_owned(),
            shape,
            element,
            is_constant: true,
            source: Arc::new(source),
            moves: Vec::new(),
        }
    }

    /// Number of elements.
    pub(super) fn volume(&self) -> usize {
        volume(&self.shape).unwrap_or(usize::MAX)
    }

    /// The same with dim `order[i]` as dim `i`; none if the order is none of its dims.
    pub(super) fn permuted(&self, order: &[usize]) -> Option<Self> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.shape.len()) {
            return None;
        }
        let mut other = self.clone();
        other.shape = order.iter().map(|&dim| self.shape[dim]).collect();
        let order = match other.moves.last() {
            Some(Move::Permute(first)) => {
                let both = order.iter().map(|&dim| first[dim]).collect();
                other.moves.pop();
                both
            }
            Some(Move::Reshape(_)) | None => order.to_vec(),
        };
        if !order.iter().copied().eq(0..order.len()) {
            other.moves.push(Move::Permute(order));
        }
        Some(other)
    }

    /// The same numbers in other extents; none if these hold another number of them.
    pub(super) fn reshaped(&self, shape: &[usize]) -> Option<Self> {
        if volume(shape) != volume(&self.shape) {
            return None;
        }
        let mut other = self.clone();
        other.shape = shape.to_vec();
        if matches!(other.moves.last(), Some(Move::Reshape(_))) {
            other.moves.pop();
        }
        let before = other.moves.iter().rev().find_map(|one| match one {
            Move::Reshape(shape) => Some(shape.clone()),
            Move::Permute(_) => None,
        });
        let before = before.unwrap_or_else(|| self.source.shape.clone());
        let is_as_before = other.moves.is_empty() && before == shape;
        if !is_as_before && *shape != *self.shape_before(&other.moves) {
            other.moves.push(Move::Reshape(shape.to_vec()));
        }
        Some(other)
    }

    /// The extents after these moves.
    fn shape_before(&self, moves: &[Move]) -> Vec<usize> {
        let start = self.source.shape.clone();
        moves.iter().fold(start, |shape, one| match one {
            Move::Reshape(to) => to.clone(),
            Move::Permute(order) => order.iter().map(|&dim| shape[dim]).collect(),
        })
    }

    /// Words that tell tensors of one name apart; empty for the tensor of the file.
    pub(super) fn moved(&self) -> String {
        let word = |one: &Move| match one {
            Move::Permute(order) => format!(" permuted {order:?}"),
            Move::Reshape(shape) => format!(" reshaped {shape:?}"),
        };
        self.moves.iter().map(word).collect()
    }

    /// The numbers in row-major order. `folder` holds files that the tensor may lie in.
    ///
    /// Errors: a file that cannot be read, is too short or lies elsewhere.
    pub(super) fn values(&self, folder: &Path) -> Result<Vec<f64>, Reason> {
        let mut values = self
            .source
            .values(folder)
            .map_err(|what| format!("the tensor `{}` {what}", self.name))?;
        let mut shape = self.source.shape.clone();
        for one in &self.moves {
            match one {
                Move::Reshape(to) => shape.clone_from(to),
                Move::Permute(order) => {
                    values = permute(&values, &shape, order);
                    shape = order.iter().map(|&dim| shape[dim]).collect();
                }
            }
        }
        Ok(values)
    }
}

impl Source {
    fn values(&self, folder: &Path) -> Result<Vec<f64>, Reason> {
        let count = volume(&self.shape).unwrap_or(usize::MAX);
        match &self.data {
            Data::Numbers(numbers) => Ok(numbers.clone()),
            Data::Raw(bytes) => Ok(decode(self.element, bytes, count)),
            Data::External {
                location,
                offset,
                length,
            } => {
                let bytes = count.checked_mul(self.element.bytes());
                let bytes = bytes.ok_or("is longer than its file")? as u64;
                if length.is_some_and(|length| length != bytes) {
                    return Err("has another length than its extents say".into());
                }
                let bytes = read_external(folder, location, *offset, bytes)?;
                Ok(decode(self.element, &bytes, count))
            }
        }
    }
}

fn decode(element: Element, bytes: &[u8], count: usize) -> Vec<f64> {
    (0..count).map_while(|at| element.at(bytes, at)).collect()
}

/// The numbers of a tensor in its file.
fn data(tensor: &TensorMessage, element: Element) -> Data {
    if let Some(raw) = &tensor.raw_data {
        return Data::Raw(raw.clone());
    }
    let ints = || tensor.int32_data.iter().copied();
    Data::Numbers(match element {
        Element::F32 => tensor.float_data.iter().copied().map(f64::from).collect(),
        Element::F64 => tensor.double_data.clone(),
        Element::I64 => tensor.int64_data.iter().map(|&one| one as f64).collect(),
        // Halves are stored by their bits.
        Element::F16 => ints()
            .map(|one| f16::from_bits(one as u16).to_f64())
            .collect(),
        Element::Bf16 => ints()
            .map(|one| bf16::from_bits(one as u16).to_f64())
            .collect(),
        Element::U8 | Element::I8 | Element::I16 | Element::I32 | Element::Bool => {
            ints().map(f64::from).collect()
        }
    })
}

fn external(entries: &[Entry]) -> Result<Data, Reason> {
    let find = |key: &str| entries.iter().find(|one| one.key == key);
    let number = |key: &str| {
        let entry = find(key).map(|one| one.value.parse::<u64>());
        entry
            .transpose()
            .map_err(|_| format!("has an `{key}` in another file that is no number"))
    };
    let location = find("location").ok_or("lies in another file that is not named")?;
    Ok(Data::External {
        location: location.value.clone(),
        offset: number("offset")?.unwrap_or(0),
        length: number("length")?,
    })
}

/// Bytes of a file beside the network: of a regular file in its folder or below.
fn read_external(
    folder: &Path,
    location: &str,
    offset: u64,
    bytes: u64,
) -> Result<Vec<u8>, Reason> {
    let path = Path::new(location);
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if location.is_empty() || !path.components().all(is_plain) {
        return Err(format!(
            "lies in `{location}`, and only files beside the network or in folders below are read"
        )
        .into());
    }
    let unreadable = |error| format!("lies in `{location}`, which cannot be read: {error}");
    let here = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let found = here.join(path).canonicalize().map_err(unreadable)?;
    let root = here.canonicalize().map_err(unreadable)?;
    if !found.starts_with(&root) {
        return Err(format!(
            "lies in `{location}`, a link out of the folder of the network, which is not followed"
        )
        .into());
    }
    let about = found.metadata().map_err(unreadable)?;
    if !about.is_file() {
        return Err(format!("lies in `{location}`, which is no file").into());
    }
    let end = offset.checked_add(bytes);
    if end.is_none_or(|end| end > about.len()) {
        return Err(format!("ends beyond the {} bytes of `{location}`", about.len()).into());
    }
    let mut file = partita_files::open(&found).map_err(unreadable)?;
    file.seek(SeekFrom::Start(offset)).map_err(unreadable)?;
    let mut held = Vec::new();
    file.take(bytes)
        .read_to_end(&mut held)
        .map_err(unreadable)?;
    Ok(held)
}

/// The numbers with dim `order[i]` as dim `i`.
pub(super) fn permute(values: &[f64], shape: &[usize], order: &[usize]) -> Vec<f64> {
    let strides = row_major(shape);
    let extents: Vec<usize> = order.iter().map(|&dim| shape[dim]).collect();
    let steps: Vec<usize> = order.iter().map(|&dim| strides[dim]).collect();
    positions(&extents, &steps, 0)
        .map(|at| values[at])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_that_undo_each_other_leave_the_tensor() {
        let values: Vec<f64> = (0..6).map(f64::from).collect();
        let held = Held::computed("w", vec![2, 3], Element::F32, values.clone());
        let turned = held.permuted(&[1, 0]).unwrap();
        assert_eq!(turned.shape, [3, 2]);
        let none = Path::new("");
        assert_eq!(turned.values(none).unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(turned.permuted(&[1, 0]).unwrap().moved(), "");
        let flat = held.reshaped(&[6, 1]).unwrap();
        assert_eq!(flat.moved(), " reshaped [6, 1]");
        assert_eq!(flat.reshaped(&[2, 3]).unwrap().moved(), "");
        let both = turned.reshaped(&[6]).unwrap().reshaped(&[3, 2]).unwrap();
        assert_eq!(both.moved(), turned.moved());
        assert!(held.permuted(&[0, 0]).is_none() && held.reshaped(&[5]).is_none());
    }
}
