//! Data sieving: one read over many short rows instead of one read per row.
//!
//! A region cut along the width of a contiguous volume is one short run per row, and a system
//! call per row costs far more than its bytes. Where the gaps are shorter than a page, the
//! storage moves them anyway; so whole rows are read into a small buffer and the region is
//! picked out of it.
//! Source: Thakur, Gropp, Lusk, "Data sieving and collective I/O in ROMIO" (1999), section 3.

use std::ops::Range;

use crate::error::DataError;
use crate::hdf5::SourceArray;
use crate::samples::{DType, Samples};
use crate::slab::{self, Region4};

/// Longest row, in bytes, over whose gaps is read: a page of memory and of most file caches.
const ROW_BYTES_MAX: usize = 4096;
/// Size of the buffer, in bytes, unless the rows of one depth need more.
const BUFFER_BYTES: usize = 1 << 20;

/// What reading a region asked of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) pieces: u64,
    pub(crate) elements: u64,
}

/// Whether a region of a contiguous volume of width `width` is read by whole rows.
pub(crate) fn pays(region: &Region4, width: usize, dtype: DType) -> bool {
    let [.., ws] = region;
    ws.len() < width && width * dtype.size_bytes() <= ROW_BYTES_MAX && slab::elements(region) > 0
}

/// Reads a region by whole rows; `place` is the sample's place where the array is stacked.
pub(crate) fn read(
    array: &SourceArray,
    place: Option<usize>,
    region: &Region4,
    buffer: &mut Samples,
    out: &mut Samples,
) -> Result<Asked, DataError> {
    let [cs, ds, hs, ws] = region;
    let width = array.shape[array.shape.len() - 1];
    let dtype = array.dtype()?;
    let depth_at_once = (BUFFER_BYTES / (hs.len() * width * dtype.size_bytes())).max(1);
    array.make_room(slab::elements(region), out)?;
    let mut filled = 0;
    let mut asked = Asked::default();
    for c in cs.clone() {
        for d in ds.clone().step_by(depth_at_once) {
            let depth = depth_at_once.min(ds.end - d);
            let rows = [(c, 1), (d, depth), (hs.start, hs.len()), (0, width)];
            let box_nc: Vec<(usize, usize)> = place
                .map(|place| (place, 1))
                .into_iter()
                .chain(rows)
                .collect();
            array.read_box(&box_nc, buffer)?;
            filled = pick(buffer, width, ws, out, filled);
            asked.pieces += slab::runs(&array.shape, &box_nc);
            asked.elements += buffer.len() as u64;
        }
    }
    Ok(asked)
}

/// Copies columns `ws` of rows of `width` to `out` from `filled` on; returns the new fill.
fn pick(
    rows: &Samples,
    width: usize,
    ws: &Range<usize>,
    out: &mut Samples,
    filled: usize,
) -> usize {
    match (rows, out) {
        (Samples::I16(rows), Samples::I16(out)) => copy(rows, width, ws, &mut out[filled..]),
        (Samples::F32(rows), Samples::F32(out)) => copy(rows, width, ws, &mut out[filled..]),
        (Samples::I16(_), Samples::F32(_)) | (Samples::F32(_), Samples::I16(_)) => {
            panic!("both buffers were made with the element type of one array")
        }
    }
    filled + rows.len() / width * ws.len()
}

fn copy<T: Copy>(rows: &[T], width: usize, ws: &Range<usize>, out: &mut [T]) {
    for (row, taken) in rows.chunks_exact(width).zip(out.chunks_exact_mut(ws.len())) {
        taken.copy_from_slice(&row[ws.clone()]);
    }
}
