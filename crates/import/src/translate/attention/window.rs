//! Windows of attention, by the axes of scores.

use super::positions;
use crate::layout::Axis;
use partita_graph::{AttentionWindow, Shape};

/// Whether an axis counts positions.
pub(super) fn is_of_space(axis: &Axis) -> bool {
    matches!(axis, Axis::Space(_) | Axis::Block { .. })
}

/// The dim of an axis of space, what it is shifted by, and its stride and extent.
fn parts(axis: Axis, shape: Shape) -> Option<(usize, [usize; 3])> {
    match axis {
        Axis::Space(dim) => Some((dim, [0, 1, shape.extent[dim]])),
        Axis::Block {
            dim,
            shift,
            stride,
            extent,
        } => Some((dim, [shift, stride, extent])),
        Axis::Sample | Axis::Channel | Axis::Part { .. } => None,
    }
}

/// The windows, without a mask, whose positions these are, where the batch counts the windows; some of none where
/// they are all positions, none where they are no windows.
pub(super) fn window(
    shape: Shape,
    own: &[Axis],
    batch: &[Axis],
) -> Option<Option<AttentionWindow>> {
    let outer: Vec<_> = batch
        .iter()
        .filter_map(|&axis| parts(axis, shape))
        .collect();
    if own == positions(shape) && outer.is_empty() {
        return Some(None);
    }
    let own = own.iter().map(|&axis| parts(axis, shape));
    let own: Vec<_> = own.collect::<Option<_>>()?;
    let is_ordered = own.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let mut window = AttentionWindow {
        extent: [1; 3],
        shift: [0; 3],
        mask: 0.0,
    };
    for dim in 0..3 {
        let of = |all: &[(usize, [usize; 3])]| -> Vec<[usize; 3]> {
            let found = all.iter().filter(|one| one.0 == dim);
            found.map(|one| one.1).collect()
        };
        match (&of(&own)[..], &of(&outer)[..]) {
            (&[[shift, 1, inner]], &[[other, stride, count]])
                if (shift, inner) == (other, stride) && inner * count == shape.extent[dim] =>
            {
                (window.extent[dim], window.shift[dim]) = (inner, shift % inner);
                if shift >= inner {
                    return None;
                }
            }
            (&[[shift, 1, inner]], []) if inner == shape.extent[dim] => {
                (window.extent[dim], window.shift[dim]) = (inner, shift);
            }
            // Windows of one position.
            ([], &[[_, 1, count]]) if count == shape.extent[dim] => {}
            ([], []) if shape.extent[dim] == 1 => {}
            _ => return None,
        }
    }
    is_ordered.then_some(Some(window))
}

/// The same windows; without a shift, where there is nothing to mask, with the mask that is not printed.
pub(super) fn with_usual_mask(window: AttentionWindow) -> AttentionWindow {
    let mask = match window.shift {
        [0, 0, 0] => AttentionWindow::MASK,
        _ => window.mask,
    };
    AttentionWindow { mask, ..window }
}

/// Numbers of windows in the order of (D, H, W), for each in the order of the axes of a dim that counts them; none for
/// another dim.
pub(super) fn numbers(shape: Shape, window: &AttentionWindow, axes: &[Axis]) -> Option<Vec<usize>> {
    let axes = axes.iter().map(|&axis| parts(axis, shape));
    let axes: Vec<_> = axes.collect::<Option<_>>()?;
    let counts: [usize; 3] = std::array::from_fn(|dim| shape.extent[dim] / window.extent[dim]);
    let is_outer = |&(dim, [_, stride, extent]): &(usize, [usize; 3])| {
        stride == window.extent[dim] && extent == counts[dim]
    };
    let count: usize = axes.iter().map(|one| one.1[2]).product();
    if !axes.iter().all(is_outer) || count != counts.iter().product::<usize>() {
        return None;
    }
    let number = |mut at: usize| {
        let mut index = [0; 3];
        for &(dim, [.., extent]) in axes.iter().rev() {
            index[dim] = at % extent;
            at /= extent;
        }
        (index[0] * counts[1] + index[1]) * counts[2] + index[2]
    };
    Some((0..count).map(number).collect())
}
