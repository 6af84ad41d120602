//! Arrays of a file that is no dataset.

use std::path::Path;

use partita_formats::{DataError, Elements, ReadError, SourceArray, SourceFile, StorageLayout};
use partita_space::Bytes;

use super::{BLOCK_ELEMENTS, FileArray, FileSummary, ValueScope, array_summary};
use crate::disk::bytes_on_disk;
use crate::moments::ValueCount;

/// Values that are read, whatever the size of the file.
const VALUES_MAX: u64 = 1 << 26;
/// Further values for each byte of the file, more than any compression makes of it.
const VALUES_PER_BYTE: u64 = 1 << 12;
/// Most channels with statistics of their own.
const CHANNELS_MAX: usize = 64;

pub(super) fn summarize(
    path: &Path,
    file: &SourceFile,
    refused: &DataError,
    scope: ValueScope,
) -> Result<FileSummary, DataError> {
    let file_bytes = bytes_on_disk(path).unwrap_or_default();
    check_claims(file, file_bytes, scope)?;
    let arrays = file.keys().iter().map(|key| {
        let array = file.array(key)?;
        let (values, channels) = statistics(&array, scope)?;
        Ok(FileArray {
            array: array_summary(&array),
            values,
            channels,
        })
    });
    Ok(FileSummary {
        path: path.to_path_buf(),
        no_dataset: refused.to_string(),
        file_bytes: Bytes(file_bytes),
        arrays: arrays.collect::<Result<_, DataError>>()?,
    })
}

/// Refuses arrays of more values to be read than a file can hold: most would be its fill value.
fn check_claims(file: &SourceFile, file_bytes: u64, scope: ValueScope) -> Result<(), DataError> {
    let mut left = VALUES_MAX.saturating_add(file_bytes.saturating_mul(VALUES_PER_BYTE));
    for key in file.keys() {
        let array = file.array(key)?;
        let extents = array.shape.iter().map(|&extent| extent as u64);
        let claimed = extents.fold(1, u64::saturating_mul);
        let read = claimed.min(scope.elements_max() as u64);
        left = left.checked_sub(read).ok_or_else(|| {
            let reason = format!(
                "its file claims far more values than its {file_bytes} bytes hold (shape {:?} here); write it without \
                 values that were never written",
                array.shape
            );
            ReadError::Unsupported(reason).of(array.path(), Some(key), None)
        })?;
    }
    Ok(())
}

type Found = (
    Option<crate::moments::ValueStatistics>,
    Vec<crate::moments::ValueStatistics>,
);

/// Statistics of all values, and by channel where there are several.
fn statistics(array: &SourceArray, scope: ValueScope) -> Result<Found, DataError> {
    let elements = array
        .shape
        .iter()
        .try_fold(1usize, |product, &extent| product.checked_mul(extent));
    if array.check_element().is_err() || elements.is_none_or(|elements| elements == 0) {
        return Ok((None, Vec::new()));
    }
    let dim = channel_dim(&array.shape);
    let mut counts = vec![ValueCount::default(); dim.map_or(1, |dim| array.shape[dim])];
    let mut left = scope.elements_max();
    let mut buffer = Elements::new(&array.element);
    for ranges in boxes(array, scope) {
        let extents: Vec<usize> = ranges.iter().map(|&(_, count)| count).collect();
        let read = extents.iter().product::<usize>();
        if read > left {
            break;
        }
        left -= read;
        array.read_box(&ranges, &mut buffer)?;
        // Runs of one channel: what lies inside its dim.
        let run: usize = dim.map_or(read, |dim| extents[dim + 1..].iter().product());
        for (index, start) in (0..read).step_by(run).enumerate() {
            let channel = dim.map_or(0, |dim| ranges[dim].0 + index % extents[dim]);
            counts[channel].add(run, |at| buffer.get(start + at));
        }
    }
    let mut all = ValueCount::default();
    counts.iter().for_each(|count| all.join(count));
    let channels = match dim {
        Some(_) => counts.iter().map(ValueCount::statistics).collect(),
        None => Vec::new(),
    };
    Ok((Some(all.statistics()), channels))
}

fn channel_dim(shape: &[usize]) -> Option<usize> {
    let dim = match shape.len() {
        4 => 0,
        5 => 1,
        _ => return None,
    };
    (2..=CHANNELS_MAX).contains(&shape[dim]).then_some(dim)
}

/// Boxes that cover the array in order, each small enough to be read at once.
///
/// A stream is decoded from its beginning at each read, so that its boxes are larger.
pub(crate) fn boxes(
    array: &SourceArray,
    scope: ValueScope,
) -> impl Iterator<Item = Vec<(usize, usize)>> {
    let most = match array.stored {
        StorageLayout::Stream { .. } => ValueScope::First.elements_max().min(scope.elements_max()),
        StorageLayout::Contiguous
        | StorageLayout::Chunked { .. }
        | StorageLayout::Compact
        | StorageLayout::Virtual => BLOCK_ELEMENTS,
    };
    let shape = array.shape.clone();
    // Dims inside `cut` are read whole, those outside one by one.
    let (mut cut, mut inside) = (shape.len(), 1);
    while cut > 0 && inside * shape[cut - 1] <= most {
        cut -= 1;
        inside *= shape[cut];
    }
    let step = match cut {
        0 => 1,
        _ => (most / inside).clamp(1, shape[cut - 1]),
    };
    let outer: usize = shape[..cut.saturating_sub(1)].iter().product();
    let along = if cut == 0 { 1 } else { shape[cut - 1] };
    (0..outer).flat_map(move |number| {
        let shape = shape.clone();
        (0..along).step_by(step).map(move |start| {
            let mut ranges: Vec<(usize, usize)> = shape.iter().map(|&extent| (0, extent)).collect();
            if cut > 0 {
                ranges[cut - 1] = (start, step.min(along - start));
            }
            let mut rest = number;
            for dim in (0..cut.saturating_sub(1)).rev() {
                ranges[dim] = (rest % shape[dim], 1);
                rest /= shape[dim];
            }
            ranges
        })
    })
}
