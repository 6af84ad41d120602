//! Hyperslabs: how many pieces of a file a region of a sample touches.

use std::ops::Range;

/// A half-open box of a sample, dims C, D, H, W.
pub type Region4 = [Range<usize>; 4];

/// Number of elements of a region.
pub fn elements(region: &Region4) -> usize {
    region.iter().map(ExactSizeIterator::len).product()
}

/// Index (C, D, H, W) in the sample of an element of a region that lies in that order.
pub fn position(region: &Region4, element: usize) -> [usize; 4] {
    let mut rest = element;
    let mut index = [0; 4];
    for (dim, range) in region.iter().enumerate().rev() {
        index[dim] = range.start + rest % range.len();
        rest /= range.len();
    }
    index
}

/// Number of maximal contiguous runs of a row-major array that the box covers.
///
/// Dims that are taken whole fold into the run of the dim outside them.
pub(crate) fn runs(shape: &[usize], starts_counts: &[(usize, usize)]) -> u64 {
    if starts_counts.iter().any(|&(_, count)| count == 0) {
        return 0;
    }
    let mut outer = shape.len() - 1;
    while outer > 0 && starts_counts[outer].1 == shape[outer] {
        outer -= 1;
    }
    starts_counts[..outer]
        .iter()
        .map(|&(_, count)| count as u64)
        .product()
}

/// Number of chunks of a chunked array that the box touches.
pub(crate) fn chunks(chunk: &[usize], starts_counts: &[(usize, usize)]) -> u64 {
    starts_counts
        .iter()
        .zip(chunk)
        .map(|(&(start, count), &size)| match count {
            0 => 0,
            count => ((start + count - 1) / size - start / size + 1) as u64,
        })
        .product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_from_the_start_of_the_sample() {
        assert_eq!(position(&[0..2, 3..5, 0..4, 6..8], 0), [0, 3, 0, 6]);
        assert_eq!(position(&[0..2, 3..5, 0..4, 6..8], 31), [1, 4, 3, 7]);
        assert_eq!(position(&[1..2, 0..5, 2..4, 6..8], 5), [1, 1, 2, 7]);
    }

    #[test]
    fn a_depth_slab_of_every_channel_is_one_run_per_channel() {
        assert_eq!(
            runs(&[9, 4, 8, 8, 8], &[(3, 1), (0, 4), (2, 2), (0, 8), (0, 8)]),
            4
        );
        assert_eq!(
            runs(&[9, 4, 8, 8, 8], &[(3, 1), (0, 4), (0, 8), (0, 8), (0, 8)]),
            1
        );
        assert_eq!(
            runs(&[9, 4, 8, 8, 8], &[(3, 1), (0, 4), (0, 8), (0, 8), (0, 4)]),
            256
        );
        assert_eq!(
            runs(&[9, 4, 8, 8, 8], &[(3, 1), (0, 4), (0, 0), (0, 8), (0, 4)]),
            0
        );
    }

    #[test]
    fn chunks_are_counted_where_the_box_crosses_them() {
        assert_eq!(chunks(&[1, 4], &[(0, 1), (3, 2)]), 2);
        assert_eq!(chunks(&[1, 4], &[(0, 3), (4, 4)]), 3);
        assert_eq!(chunks(&[1, 4], &[(0, 3), (4, 0)]), 0);
    }
}
