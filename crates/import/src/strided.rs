//! Where the elements of tensors with strides lie.

/// Elements of a tensor; none if they cannot be counted.
pub(crate) fn volume(shape: &[usize]) -> Option<usize> {
    let mut extents = shape.iter();
    extents.try_fold(1usize, |all, &extent| all.checked_mul(extent))
}

/// The strides of a tensor in row-major order.
pub(crate) fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim].saturating_mul(shape[dim]);
    }
    strides
}

/// Positions of the elements of a view that begins at `start`, in its row-major order; none if they cannot be counted.
pub(crate) fn positions(
    shape: &[usize],
    strides: &[usize],
    start: usize,
) -> impl Iterator<Item = usize> {
    let mut index = vec![0; shape.len()];
    let mut next = start;
    (0..volume(shape).unwrap_or(0)).map(move |_| {
        let at = next;
        for dim in (0..shape.len()).rev() {
            index[dim] += 1;
            // Strides of dims with one index may have any size.
            next = next.wrapping_add(strides[dim]);
            if index[dim] < shape[dim] {
                break;
            }
            next = next.wrapping_sub(strides[dim].wrapping_mul(shape[dim]));
            index[dim] = 0;
        }
        at
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_walked_in_row_major_order() {
        assert_eq!(row_major(&[2, 3, 4]), [12, 4, 1]);
        let all: Vec<usize> = positions(&[3, 2], &[1, 3], 1).collect();
        assert_eq!(all, [1, 4, 2, 5, 3, 6]);
        let far: Vec<usize> = positions(&[1, 2], &[usize::MAX, 5], 7).collect();
        assert_eq!(far, [7, 12]);
        assert_eq!(positions(&[], &[], 4).collect::<Vec<_>>(), [4]);
        assert_eq!(positions(&[0, 2], &[2, 1], 4).count(), 0);
        assert_eq!(positions(&[usize::MAX, 2], &[0, 0], 0).count(), 0);
    }
}
