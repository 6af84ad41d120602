//! Pieces of kernels: what computes a part of the outputs, or adds a part of a sum.

use crate::{Buffer, Kernel, KernelShape, Taps, View};
use partita_space::Region;

impl KernelShape<'_> {
    /// Extents of the box over which [`Self::piece`] cuts: the outputs of a convolution, or the gradient of the
    /// outputs for a gradient of weights; none for kernels that are not cut.
    pub fn cut_extents(&self) -> Option<[usize; 5]> {
        cut_view(&self.kernel.parts()[0]).map(|view| view.extent)
    }

    /// The kernel for `extent` positions from `start` on along a dim (0 to 3 for N, D, H, W) of
    /// [`Self::cut_extents`], with its epilogue. Pieces that cover the dim in their order compute what the kernel
    /// computes; sums are added up piece by piece. None for kernels that are not cut.
    pub fn piece(&self, dim: usize, start: usize, extent: usize) -> Option<Kernel> {
        let parts = self.kernel.parts();
        let whole = cut_view(&parts[0])?;
        if start == 0 && extent == whole.extent[dim] {
            return Some(self.kernel.clone());
        }
        let mut region = whole.region();
        let first = whole.start[dim] + start;
        region.0[dim].start = first as i64;
        region.0[dim].end = (first + extent) as i64;
        let mut pieces = vec![first_piece(&parts[0], dim, start, extent)?];
        for part in &parts[1..] {
            let mut piece = restricted(part, self.buffers, whole, &region);
            set_accumulate(&mut piece, start > 0);
            pieces.push(piece);
        }
        Some(if pieces.len() == 1 {
            pieces.remove(0)
        } else {
            Kernel::Fused { parts: pieces }
        })
    }
}

/// The box along which a kernel is cut.
fn cut_view(kernel: &Kernel) -> Option<&View> {
    if let Kernel::ConvolutionForward { y, .. } = kernel {
        Some(y)
    } else if let Kernel::ConvolutionBackwardData { dx, .. } = kernel {
        Some(dx)
    } else if let Kernel::ConvolutionBackwardWeight { dy, .. } = kernel {
        Some(dy)
    } else {
        None
    }
}

/// A piece of a convolution itself.
fn first_piece(kernel: &Kernel, dim: usize, start: usize, extent: usize) -> Option<Kernel> {
    let mut piece = kernel.clone();
    if let Kernel::ConvolutionForward { x, y, taps, .. } = &mut piece {
        (*x, *y) = inputs_and_outputs((x, y), taps, (dim, start, extent));
    } else if let Kernel::ConvolutionBackwardWeight {
        x,
        dy,
        taps,
        accumulate,
        ..
    } = &mut piece
    {
        (*x, *dy) = inputs_and_outputs((x, dy), taps, (dim, start, extent));
        *accumulate |= start > 0;
    } else if let Kernel::ConvolutionBackwardData {
        dy,
        dx,
        taps,
        shift,
        ..
    } = &mut piece
    {
        *dx = part_of(dx, dim, start, extent);
        if dim == 0 {
            *dy = part_of(dy, dim, start, extent);
        } else {
            let at = dim - 1;
            let moved = shift[at] + start as i64;
            let outputs = contributing(dy.extent[dim], taps, at, (moved, extent));
            shift[at] = moved - (outputs.0 * taps.stride[at]) as i64;
            *dy = part_of(dy, dim, outputs.0, outputs.1);
        }
    } else {
        return None;
    }
    Some(piece)
}

/// A part of the outputs of a window and the inputs that it reads.
fn inputs_and_outputs(
    (inputs, outputs): (&View, &View),
    taps: &Taps,
    (dim, start, extent): (usize, usize, usize),
) -> (View, View) {
    let (first, read) = match dim {
        0 => (start, extent),
        _ => {
            let at = dim - 1;
            let reach = (taps.kernel[at] - 1) * taps.dilation[at] + 1;
            let steps = extent.saturating_sub(1) * taps.stride[at];
            (start * taps.stride[at], steps + reach)
        }
    };
    (
        part_of(inputs, dim, first, read),
        part_of(outputs, dim, start, extent),
    )
}

/// First and number of the outputs that contribute to `extent` inputs from `shift` on, of `outputs` in all;
/// all of them if none does.
pub(crate) fn contributing(
    outputs: usize,
    taps: &Taps,
    at: usize,
    (shift, extent): (i64, usize),
) -> (usize, usize) {
    let reach = ((taps.kernel[at] - 1) * taps.dilation[at]) as i64;
    let stride = taps.stride[at] as i64;
    let last = (shift + extent as i64 - 1).div_euclid(stride);
    let first = (shift - reach + stride - 1).div_euclid(stride).max(0);
    let end = (last + 1).min(outputs as i64);
    if first < end {
        (first as usize, (end - first) as usize)
    } else {
        (0, outputs)
    }
}

pub(crate) fn part_of(view: &View, dim: usize, start: usize, extent: usize) -> View {
    let mut part = *view;
    part.start[dim] += start;
    part.extent[dim] = extent;
    part
}

/// A kernel restricted to a region of its operand `on`; every tensor of the same extents shrinks with it.
/// Panics if the region has other channels.
pub fn restricted(kernel: &Kernel, buffers: &[Buffer], on: &View, region: &Region) -> Kernel {
    let mut part = kernel.clone();
    if on.region() == *region {
        return part;
    }
    let start: [usize; 5] =
        std::array::from_fn(|dim| (region.0[dim].start - on.start[dim] as i64) as usize);
    assert_eq!(on.extent[4], region.0[4].len(), "channels stay together");
    part.each_view_mut(&mut |view| {
        let is_tensor = buffers[view.buffer.0 as usize].role.is_activation();
        if is_tensor && view.extent == on.extent {
            for dim in 0..5 {
                view.start[dim] += start[dim];
                view.extent[dim] = region.0[dim].len();
            }
        }
    });
    part
}

/// Of a sum over several regions: all but the first accumulate.
pub fn set_accumulate(kernel: &mut Kernel, later: bool) {
    if let Kernel::BatchNormStatistics { accumulate, .. }
    | Kernel::BatchNormBackwardStatistics { accumulate, .. }
    | Kernel::BiasBackward { accumulate, .. } = kernel
    {
        *accumulate |= later;
    }
}
