//! Zarr 2 and 3 in folders: chunked arrays, each chunk a file; arrays may lie in groups.
//!
//! Read here, as the crate `zarrs` needs a newer compiler than the workspace and a C library for zstd.
//! Source: Zarr storage specification 2; Zarr core specification 3.0 (regular grids).

mod metadata;
mod shard;

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::array::{Access, ArrayFile, ONLY, Opened, StorageLayout, StoredArray};
use crate::codec::Codec;
use crate::decode_memory;
use crate::element::{Element, Elements, each};
use crate::flat::{Order, decode, numpy_type};
use crate::read_error::ReadError;
use crate::zarr::shard::Shards;

/// Groups inside groups that are looked into.
const DEPTH_MAX: usize = 6;
/// Arrays and groups of a store that are listed.
const ENTRIES_MAX: usize = 10_000;
/// Most files of chunks that an array may have, and most chunks that a box is read of.
const CHUNKS_MAX: usize = 1 << 21;
/// Most bytes of a chunk that is kept for the next box.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Most bytes of a decoded chunk.
const CHUNK_BYTES_MAX: usize = 1 << 30;

/// A folder that is an array or a group.
pub(crate) struct ZarrStore {
    root: PathBuf,
    /// Paths of arrays below the root; that of the root itself is empty.
    arrays: Vec<String>,
}

impl ZarrStore {
    pub(crate) fn open(root: &Path) -> Result<Self, ReadError> {
        let mut arrays = Vec::new();
        list(root, "", 0, (&mut arrays, &mut 0))?;
        Ok(Self {
            root: root.to_path_buf(),
            arrays,
        })
    }
}

/// Finds the arrays at and below a path.
fn list(
    root: &Path,
    path: &str,
    depth: usize,
    (arrays, entries): (&mut Vec<String>, &mut usize),
) -> Result<(), ReadError> {
    let folder = root.join(path);
    *entries += 1;
    if *entries > ENTRIES_MAX {
        return Err(ReadError::Unsupported(format!(
            "it has more than {ENTRIES_MAX} groups and arrays; name a group in it"
        )));
    }
    if is_array(&folder) {
        arrays.push(path.to_owned());
        return Ok(());
    }
    if depth > DEPTH_MAX {
        return Err(ReadError::unsupported(
            "it has too many groups inside of groups; name a group in it",
        ));
    }
    metadata::check_group(&folder)?;
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        if entry.path().is_dir() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let below = if path.is_empty() {
                name
            } else {
                format!("{path}/{name}")
            };
            list(root, &below, depth + 1, (arrays, entries))?;
        }
    }
    Ok(())
}

fn is_array(folder: &Path) -> bool {
    let is_third = || {
        let text = partita_files::read_text(folder.join("zarr.json")).ok()?;
        let value: Value = serde_json::from_str(&text).ok()?;
        Some(value.get("node_type")?.as_str()? == "array")
    };
    folder.join(".zarray").is_file() || is_third().unwrap_or(false)
}

impl ArrayFile for ZarrStore {
    fn keys(&self, _: Access) -> Vec<String> {
        if self.is_nameless() {
            vec![ONLY.to_owned()]
        } else {
            self.arrays.clone()
        }
    }

    fn is_nameless(&self) -> bool {
        self.arrays == [""]
    }

    fn array(&self, key: &str, _: Access) -> Result<Opened, ReadError> {
        let folder = if self.is_nameless() {
            self.root.clone()
        } else {
            self.root.join(key)
        };
        let array = if folder.join(".zarray").is_file() {
            second(folder)?
        } else {
            third(folder)?
        };
        array.check()?;
        Ok(Opened {
            shape: array.shape.clone(),
            stored: StorageLayout::Chunked {
                chunk: array.chunk.clone(),
                filters: array
                    .codecs
                    .iter()
                    .map(|codec| codec.name().to_owned())
                    .collect(),
            },
            stored_size: array.element.size(),
            element: array.element.clone(),
            external: Vec::new(),
            array: Box::new(array),
        })
    }
}

/// An array of chunks.
struct ZarrArray {
    folder: PathBuf,
    shape: Vec<usize>,
    chunk: Vec<usize>,
    /// Where files hold several chunks.
    shards: Shards,
    element: Element,
    order: Order,
    /// Order of the dims inside a chunk, as dims of the array; empty if it is theirs.
    transpose: Vec<usize>,
    /// The value of chunks that were never written, alone; `None` where the metadata leave it open.
    fill: Option<Elements>,
    /// What is undone first comes first.
    codecs: Vec<Codec>,
    /// Between the numbers of a chunk's name.
    separator: String,
    /// Whether names begin with `c`.
    is_prefixed: bool,
    /// The chunk that was read last, with its index.
    last: RefCell<Option<(Vec<usize>, Elements)>>,
}

/// Source: specification 2, metadata of arrays.
#[derive(Deserialize)]
struct SecondHeader {
    shape: Vec<usize>,
    chunks: Vec<usize>,
    dtype: Value,
    compressor: Option<Value>,
    fill_value: Value,
    order: String,
    filters: Option<Vec<Value>>,
    #[serde(default)]
    dimension_separator: Option<String>,
}

fn header<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, ReadError> {
    let text = partita_files::read_text(path)?;
    let read = serde_json::from_str(&text);
    read.map_err(|error| format!("its metadata are not valid: {error}").into())
}

fn unknown(codec: &Value) -> ReadError {
    ReadError::Unsupported(format!(
        "its codec {codec} is not read; gzip, zlib, zstd, lz4, blosc, shuffle, crc32 and crc32c are; write the array \
         with one of them"
    ))
}

fn second(folder: PathBuf) -> Result<ZarrArray, ReadError> {
    let header: SecondHeader = header(&folder.join(".zarray"))?;
    let (element, order) = match header.dtype.as_str() {
        Some(text) if !text.is_empty() && text.is_ascii() => numpy_type(text),
        Some(_) | None => (Element::Other(header.dtype.to_string()), Order::Little),
    };
    let mut codecs = Vec::new();
    // Filters were applied in order, then the compressor.
    let written = header.filters.iter().flatten().chain(&header.compressor);
    for codec in written.filter(|codec| !codec.is_null()) {
        let size = codec.get("elementsize").and_then(Value::as_u64);
        let size = size.map_or(element.size(), |size| size as usize);
        let name = codec.get("id").and_then(Value::as_str).unwrap_or_default();
        let known = Codec::by_name(name, size).ok_or_else(|| unknown(codec))?;
        let location = codec.get("location").and_then(Value::as_str);
        codecs.insert(0, known.located(location));
    }
    let dims = header.shape.len();
    Ok(ZarrArray {
        folder,
        transpose: match header.order.as_str() {
            "F" => (0..dims).rev().collect(),
            _ => Vec::new(),
        },
        fill: metadata::fill(&header.fill_value, &element)?,
        shape: header.shape,
        chunk: header.chunks,
        shards: Shards::default(),
        element,
        order,
        codecs,
        separator: header.dimension_separator.unwrap_or_else(|| ".".to_owned()),
        is_prefixed: false,
        last: RefCell::default(),
    })
}

fn extents(value: Option<&Value>) -> Option<Vec<usize>> {
    value?
        .as_array()?
        .iter()
        .map(|extent| usize::try_from(extent.as_u64()?).ok())
        .collect()
}

fn third(folder: PathBuf) -> Result<ZarrArray, ReadError> {
    let header: Value = header(&folder.join("zarr.json"))?;
    metadata::check_array(&header)?;
    let at = |path: &str| header.pointer(path);
    let text = |path: &str| at(path).and_then(Value::as_str);
    let shape = extents(at("/shape")).ok_or("its metadata has no shape")?;
    let chunk = extents(at("/chunk_grid/configuration/chunk_shape"));
    let chunk = chunk.ok_or("its metadata has no regular grid of chunks")?;
    let element = match text("/data_type").unwrap_or_default() {
        "bool" | "uint8" => Element::UInt8,
        "int8" => Element::Int8,
        "uint16" => Element::UInt16,
        "int16" => Element::Int16,
        "uint32" => Element::UInt32,
        "int32" => Element::Int32,
        "uint64" => Element::UInt64,
        "int64" => Element::Int64,
        "float16" => Element::Float16,
        "float32" => Element::Float32,
        "float64" => Element::Float64,
        other => Element::Other(other.to_owned()),
    };
    let is_prefixed = match text("/chunk_key_encoding/name") {
        Some("default") | None => true,
        Some("v2") => false,
        Some(other) => {
            return Err(ReadError::Unsupported(format!(
                "its chunks are named by `{other}`, which is not read; `default` and `v2` are"
            )));
        }
    };
    let usual = if is_prefixed { "/" } else { "." };
    let fill = at("/fill_value").map_or(Ok(None), |value| metadata::fill(value, &element))?;
    let mut array = ZarrArray {
        folder,
        shape,
        chunk,
        shards: Shards::default(),
        element,
        order: Order::Little,
        transpose: Vec::new(),
        fill,
        codecs: Vec::new(),
        separator: text("/chunk_key_encoding/configuration/separator")
            .unwrap_or(usual)
            .to_owned(),
        is_prefixed,
        last: RefCell::default(),
    };
    let codecs = at("/codecs")
        .and_then(Value::as_array)
        .ok_or("its metadata has no codecs")?;
    read_codecs(&mut array, codecs)?;
    Ok(array)
}

/// Codecs of version 3, of chunks or of shards.
fn read_codecs(array: &mut ZarrArray, codecs: &[Value]) -> Result<(), ReadError> {
    for codec in codecs {
        let setting = |path: &str| codec.pointer(&format!("/configuration/{path}"));
        match codec
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
        {
            "bytes" => {
                if setting("endian").and_then(Value::as_str) == Some("big") {
                    array.order = Order::Big;
                }
            }
            "transpose" if array.transpose.is_empty() => {
                array.transpose = extents(setting("order")).ok_or_else(|| unknown(codec))?;
            }
            "sharding_indexed" => {
                if codecs.len() > 1 {
                    return Err(ReadError::unsupported(
                        "its shards are encoded once more, which is not read; shards are, with \
                         `sharding_indexed` as the only codec of what they are chunks of",
                    ));
                }
                array.chunk = array.shards.add(codec, &array.chunk)?;
                let inner = setting("codecs").and_then(Value::as_array);
                read_codecs(array, inner.ok_or("its shards have no codecs")?)?;
            }
            name => {
                let known = Codec::by_name(name, array.element.size());
                let known = known.ok_or_else(|| unknown(codec))?;
                let location = setting("location").and_then(Value::as_str);
                array.codecs.insert(0, known.located(location));
            }
        }
    }
    Ok(())
}

impl ZarrArray {
    fn check(&self) -> Result<(), ReadError> {
        let dims = self.shape.len();
        let bytes = self
            .chunk
            .iter()
            .try_fold(self.element.size().max(1), |bytes, &extent| {
                bytes.checked_mul(extent)
            });
        let elements = self
            .shape
            .iter()
            .try_fold(8usize, |bytes, &extent| bytes.checked_mul(extent));
        let mut order = self.transpose.clone();
        order.sort_unstable();
        let is_valid = self.chunk.len() == dims
            && !self.chunk.contains(&0)
            && bytes.is_some_and(|bytes| bytes <= CHUNK_BYTES_MAX)
            && elements.is_some_and(|elements| elements <= isize::MAX as usize)
            && (order.is_empty() || order.iter().copied().eq(0..dims))
            && ["/", "."].contains(&self.separator.as_str());
        if is_valid {
            let files = self.shards.extents(&self.chunk);
            let files = self.shape.iter().zip(&files);
            return self.check_chunks(files.map(|(extent, size)| extent.div_ceil(*size)));
        }
        Err(format!(
            "values of shape {:?} in chunks of {:?} are not valid",
            self.shape, self.chunk
        )
        .into())
    }

    /// Refuses more chunks than are read: a chunk that was never written costs time, but no byte of the store.
    fn check_chunks(&self, mut counts: impl Iterator<Item = usize>) -> Result<(), ReadError> {
        let all = counts.try_fold(1usize, |all, count| all.checked_mul(count));
        if all.is_some_and(|all| all <= CHUNKS_MAX) {
            return Ok(());
        }
        Err(ReadError::Unsupported(format!(
            "its values of shape {:?} lie in chunks of {:?}, which are more than {CHUNKS_MAX}; write it in larger \
             chunks, or in shards",
            self.shape, self.chunk
        )))
    }

    /// The elements of a chunk in the order of the array's dims; `None` where it was never written.
    fn chunk_at(&self, index: &[usize]) -> Result<Option<Elements>, ReadError> {
        let numbers = self.shards.of(index);
        let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
        let joined = numbers.join(&self.separator);
        let name = match (self.is_prefixed, numbers.is_empty()) {
            (true, true) => "c".to_owned(),
            (true, false) => format!("c{}{joined}", self.separator),
            (false, true) => "0".to_owned(),
            (false, false) => joined,
        };
        let path = self.folder.join(&name);
        let elements: usize = self.chunk.iter().product();
        let expected = elements * self.element.size();
        // Checksums and headers add to what a codec gives to the next.
        let limit = expected + 64;
        // What a codec takes and gives; in the end bytes and elements.
        let _claim = decode_memory::claim(2 * limit as u64)?;
        let (name, read) = if self.shards.are_none() {
            match stored(&path, limit) {
                Ok(None) => return Ok(None),
                read => (name, read),
            }
        } else {
            (
                format!("{index:?} of shard {name}"),
                self.shards.chunk(&path, index, limit),
            )
        };
        let in_chunk = |error: ReadError| error.map(|reason| format!("chunk {name}: {reason}"));
        let Some(mut bytes) = read.map_err(in_chunk)? else {
            return Ok(None);
        };
        for codec in &self.codecs {
            bytes = codec.decode(bytes, limit).map_err(in_chunk)?;
        }
        if bytes.len() != expected {
            return Err(format!("chunk {name} has {} bytes, not {expected}", bytes.len()).into());
        }
        let mut out = Elements::new(&self.element);
        out.resize(elements)?;
        decode(&bytes, self.order, &mut out, 0);
        drop(bytes);
        if !self.transpose.is_empty() {
            let (chunk, transpose) = (&self.chunk, &self.transpose);
            each!(&mut out, values => *values = untransposed(values, chunk, transpose));
        }
        Ok(Some(out))
    }
}

/// The bytes of the file of a chunk; `None` where it was never written.
fn stored(path: &Path, limit: usize) -> Result<Option<Vec<u8>>, ReadError> {
    let mut file = match partita_files::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let length = file.metadata()?.len();
    check_stored(length, limit)?;
    let (bytes, _) = decode_memory::read_file(&mut file, length)?;
    Ok(Some(bytes))
}

/// Refuses a chunk that is stored in far more bytes than it has decoded: no codec adds as many.
fn check_stored(length: u64, limit: usize) -> Result<(), ReadError> {
    let most = 2 * limit as u64 + 1024;
    if length <= most {
        return Ok(());
    }
    Err(format!("{length} bytes are stored, and a chunk has {limit} decoded").into())
}

/// Brings a chunk that was stored with its dims in another order to that of the array.
fn untransposed<T: Copy>(values: &[T], extents: &[usize], order: &[usize]) -> Vec<T> {
    let mut strides = vec![0; extents.len()];
    let mut stride = 1;
    for &dim in order.iter().rev() {
        strides[dim] = stride;
        stride *= extents[dim];
    }
    let mut index = vec![0; extents.len()];
    let mut out = Vec::with_capacity(values.len());
    for _ in 0..values.len() {
        out.push(
            values[index
                .iter()
                .zip(&strides)
                .map(|(at, stride)| at * stride)
                .sum::<usize>()],
        );
        step(&mut index, extents);
    }
    out
}

/// The next index in row-major order; false after the last.
fn step(index: &mut [usize], extents: &[usize]) -> bool {
    for dim in (0..extents.len()).rev() {
        index[dim] += 1;
        if index[dim] < extents[dim] {
            return true;
        }
        index[dim] = 0;
    }
    false
}

/// Where the values of a chunk come from.
enum Values<'a> {
    Chunk(&'a Elements),
    /// One value for all.
    Fill(&'a Elements),
}

impl StoredArray for ZarrArray {
    fn read(
        &self,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) -> Result<(), ReadError> {
        let first: Vec<usize> = starts
            .iter()
            .zip(&self.chunk)
            .map(|(start, size)| start / size)
            .collect();
        let ends = starts.iter().zip(counts).zip(&self.chunk);
        let number: Vec<usize> = ends
            .zip(&first)
            .map(|(((start, count), size), first)| (start + count - 1) / size - first + 1)
            .collect();
        self.check_chunks(number.iter().copied())?;
        let mut relative = vec![0; first.len()];
        loop {
            let index: Vec<usize> = first
                .iter()
                .zip(&relative)
                .map(|(first, at)| first + at)
                .collect();
            let kept = self.last.take().filter(|(at, _)| *at == index);
            let chunk = match kept {
                Some((_, chunk)) => Some(chunk),
                None => self.chunk_at(&index)?,
            };
            let values = match (&chunk, &self.fill) {
                (Some(chunk), _) => Values::Chunk(chunk),
                (None, Some(fill)) => Values::Fill(fill),
                (None, None) => {
                    return Err(ReadError::Unsupported(format!(
                        "chunk {index:?} was never written, and the metadata state no `fill_value` for it; write \
                         it, or state one"
                    )));
                }
            };
            self.copy(&index, &values, starts, counts, out);
            let size = self.element.size();
            let kept = chunk.filter(|chunk| chunk.len() * size <= KEPT_BYTES_MAX);
            self.last.replace(kept.map(|chunk| (index, chunk)));
            if !step(&mut relative, &number) {
                return Ok(());
            }
        }
    }
}

impl ZarrArray {
    /// Copies what the box has of a chunk, row by row.
    fn copy(
        &self,
        index: &[usize],
        values: &Values<'_>,
        starts: &[usize],
        counts: &[usize],
        out: &mut Elements,
    ) {
        let dims = self.shape.len();
        let begins: Vec<usize> = index
            .iter()
            .zip(&self.chunk)
            .map(|(at, size)| at * size)
            .collect();
        let low: Vec<usize> = (0..dims).map(|dim| begins[dim].max(starts[dim])).collect();
        let extents: Vec<usize> = (0..dims)
            .map(|dim| (begins[dim] + self.chunk[dim]).min(starts[dim] + counts[dim]) - low[dim])
            .collect();
        let row = extents.last().copied().unwrap_or(1);
        let mut rows = extents.clone();
        if let Some(last) = rows.last_mut() {
            *last = 1;
        }
        let mut within = vec![0; dims];
        loop {
            let (mut from, mut to) = (0, 0);
            for dim in 0..dims {
                from = from * self.chunk[dim] + low[dim] - begins[dim] + within[dim];
                to = to * counts[dim] + low[dim] - starts[dim] + within[dim];
            }
            match values {
                Values::Chunk(chunk) => chunk.copy_to(from, row, out, to),
                Values::Fill(fill) => (to..to + row).for_each(|to| fill.copy_to(0, 1, out, to)),
            }
            if !step(&mut within, &rows) {
                return;
            }
        }
    }
}
