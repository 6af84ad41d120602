//! Data sieving: one read over many short rows instead of one read per row.
//!
//! A region cut along the width of a contiguous volume is one short run per row, and a system
//! call per row costs far more than its bytes. Where the gaps are shorter than a page, the
//! storage moves them anyway; so whole rows are read into a small buffer and the region is
//! picked out of it.
//! Source: Thakur, Gropp, Lusk, "Data sieving and collective I/O in ROMIO" (1999), section 3.

use std::ops::Range;

use crate::array::StorageLayout;
use crate::element::Elements;
use crate::error::DataError;
use crate::source_file::SourceArray;

/// Longest row, in bytes, over whose gaps is read: a page of memory and of most file caches.
const ROW_BYTES_MAX: usize = 4096;
/// Size of the buffer, in bytes, unless the rows of one depth need more.
const BUFFER_BYTES: usize = 1 << 20;

/// What reading a region asked of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Contiguous runs or chunks.
    pub pieces: u64,
    /// Elements that they hold.
    pub elements: u64,
}

/// Reads a box as it is stored, over short gaps where that pays; `width` is the dim of the width, at and inside
/// of which gaps are.
pub fn read(
    array: &SourceArray,
    width: usize,
    ranges: &[(usize, usize)],
    buffer: &mut Elements,
    out: &mut Elements,
) -> Result<Asked, DataError> {
    if let Some(dim) = cut_dim(array, width, ranges) {
        return read_rows(array, ranges, dim, buffer, out);
    }
    array.read_box(ranges, out)?;
    let (pieces, elements) = array.asked(ranges);
    Ok(Asked { pieces, elements })
}

/// The innermost dim that the box cuts, if whole rows of it are short.
fn cut_dim(array: &SourceArray, width: usize, ranges: &[(usize, usize)]) -> Option<usize> {
    if array.stored != StorageLayout::Contiguous || ranges.iter().any(|&(_, count)| count == 0) {
        return None;
    }
    let shape = &array.shape;
    let dim = (width..ranges.len()).rfind(|&dim| ranges[dim].1 < shape[dim])?;
    let row_bytes = shape[dim..].iter().product::<usize>() * array.element.size();
    // A row per sample alone is one run; nothing is gained.
    let rows: usize = ranges[..dim].iter().map(|&(_, count)| count).product();
    (row_bytes <= ROW_BYTES_MAX && rows > 1).then_some(dim)
}

/// Reads rows whole along `dim` and picks what the box takes of them.
fn read_rows(
    array: &SourceArray,
    ranges: &[(usize, usize)],
    dim: usize,
    buffer: &mut Elements,
    out: &mut Elements,
) -> Result<Asked, DataError> {
    let inner: usize = array.shape[dim + 1..].iter().product();
    let row = array.shape[dim] * inner;
    let (start, count) = ranges[dim];
    let taken = start * inner..(start + count) * inner;
    let elements = ranges.iter().map(|&(_, count)| count).product();
    let _claim = array.claim_copies(elements, array.element.size())?;
    array.make_room(elements, out)?;
    let mut rows = ranges.to_vec();
    rows[dim] = (0, array.shape[dim]);
    // Dims inside `blocked` are read whole at once, those outside one by one.
    let blocked = dim.saturating_sub(2);
    let within: usize = rows[blocked + 1..dim]
        .iter()
        .map(|&(_, count)| count)
        .product();
    let at_once = (BUFFER_BYTES / (within * row * array.element.size())).max(1);
    let mut asked = Asked::default();
    let mut filled = 0;
    let outer: usize = ranges[..blocked].iter().map(|&(_, count)| count).product();
    for number in 0..outer {
        let mut rest = number;
        for at in (0..blocked).rev() {
            rows[at] = (ranges[at].0 + rest % ranges[at].1, 1);
            rest /= ranges[at].1;
        }
        let (first, count) = ranges[blocked];
        for begin in (first..first + count).step_by(at_once) {
            rows[blocked] = (begin, at_once.min(first + count - begin));
            array.read_box(&rows, buffer)?;
            filled = pick(buffer, row, &taken, out, filled);
            let (pieces, elements) = array.asked(&rows);
            asked.pieces += pieces;
            asked.elements += elements;
        }
    }
    Ok(asked)
}

/// Copies a range of each row to `out` from `filled` on; returns the new fill.
fn pick(
    rows: &Elements,
    row: usize,
    taken: &Range<usize>,
    out: &mut Elements,
    filled: usize,
) -> usize {
    macro_rules! of_type {
        ($($kind:ident),*) => {
            match (rows, out) {
                $((Elements::$kind(rows), Elements::$kind(out)) => copy(rows, row, taken, &mut out[filled..]),)*
                (rows, out) => panic!("both buffers were made for one array: {rows:?}, {out:?}"),
            }
        };
    }
    of_type!(U8, I8, U16, I16, U32, I32, U64, I64, F16, F32, F64);
    filled + rows.len() / row * taken.len()
}

fn copy<T: Copy>(rows: &[T], row: usize, taken: &Range<usize>, out: &mut [T]) {
    for (row, picked) in rows
        .chunks_exact(row)
        .zip(out.chunks_exact_mut(taken.len()))
    {
        picked.copy_from_slice(&row[taken.clone()]);
    }
}
