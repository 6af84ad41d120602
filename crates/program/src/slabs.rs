//! Kernels as several over slabs of their tensors.

use crate::descriptor::{FusionRole, Operand};
use crate::piece::{contributing, part_of, set_accumulate};
use crate::{Family, Kernel, KernelShape, PoolKind, View};
use partita_space::{Bytes, Interval, Region};

/// Elements of a slab: copies of two of them lie in the L2 cache of a core.
const SLAB: usize = 1 << 17;

/// The tensors of a kernel that is cut. Its windows lie side by side, so that outputs `o` need the inputs from
/// `o * stride` on, and no others do.
struct Cut {
    outputs: [usize; 5],
    /// Equal to the outputs for kernels that work element by element.
    inputs: [usize; 5],
    /// Inputs of an output along N, D, H and W.
    stride: [usize; 4],
    /// Whether the first part is a pooling whose windows overlap or have padding. Slabs are then of what it writes.
    is_pooling: bool,
}

impl KernelShape<'_> {
    /// Kernels over slabs of the tensors that one after the other compute what this one does, so that copies of a slab stay
    /// in caches; itself alone unless it and its fused parts work element by element, sum over positions, or pool;
    /// gradients of maxima and norms only over windows side by side.
    pub fn slabs(&self) -> Vec<Kernel> {
        let Some(cut) = self.cut() else {
            return vec![self.kernel.clone()];
        };
        let regions = regions(whole(cut.outputs), cut.slab_outputs()).into_iter();
        regions
            .enumerate()
            .map(|(at, region)| self.slab(&cut, &region, at > 0))
            .collect()
    }

    /// The one of [`Self::slabs`] with the largest copies.
    pub(crate) fn largest_slab(&self) -> Kernel {
        match self.cut() {
            // Those at the border have less margin.
            Some(cut) if cut.is_pooling => {
                let slabs = self.slabs().into_iter();
                let buffers = self.buffers;
                let copies = |kernel: &Kernel| KernelShape { kernel, buffers }.widened(Bytes(0));
                let largest = slabs.max_by_key(|slab| copies(slab).bytes);
                largest.unwrap_or_else(|| self.kernel.clone())
            }
            Some(cut) => {
                let region = largest_region(whole(cut.outputs), cut.slab_outputs());
                self.slab(&cut, &region, true)
            }
            None => self.kernel.clone(),
        }
    }

    /// How the kernel is cut into slabs, if it is.
    fn cut(&self) -> Option<Cut> {
        let parts = self.kernel.parts();
        let cut = match self.pooling(&parts[0]) {
            Some(cut) => cut,
            None => {
                let overlapping = overlapping(&parts[0]);
                let extent = match overlapping {
                    Some(view) => view.extent,
                    None => self.elementwise(&parts[0])?.extent,
                };
                Cut {
                    outputs: extent,
                    inputs: extent,
                    stride: [1; 4],
                    is_pooling: overlapping.is_some(),
                }
            }
        };
        let is_cut = |part: &Kernel| {
            let tensor = self.elementwise(part);
            tensor.is_some_and(|one| [cut.inputs, cut.outputs].contains(&one.extent))
        };
        let volume: usize = cut.inputs.iter().product();
        (volume > SLAB && parts[1..].iter().all(is_cut)).then_some(cut)
    }

    /// A pooling by windows side by side, without padding.
    fn pooling(&self, part: &Kernel) -> Option<Cut> {
        if part.family() != Family::Pool {
            return None;
        }
        let descriptor = part.descriptor();
        let window = descriptor.window?;
        let (taps, outputs) = (window.taps, window.outputs);
        let is_dense = taps.dilation == [1; 3] && window.shift == [0; 3];
        let is_side_by_side = is_dense && taps.kernel == taps.stride;
        let mut views = descriptor.operands.iter().map(|operand| operand.view);
        let inputs = views.find(|view| view.extent != outputs)?.extent;
        let [d, h, w] = taps.stride;
        let stride = [1, d, h, w];
        let holds = (0..4).all(|dim| outputs[dim] * stride[dim] <= inputs[dim]);
        let is_tensor = |operand: &Operand<'_>| {
            self.is_tensor(operand.view) && [inputs, outputs].contains(&operand.view.extent)
        };
        let are_tensors = descriptor.operands.iter().all(is_tensor);
        (is_side_by_side && holds && are_tensors).then_some(Cut {
            outputs,
            inputs,
            stride,
            is_pooling: false,
        })
    }

    /// The tensor of a kernel that sums over its positions, or makes another of the same extents element by element:
    /// tensors of these extents are cut together.
    fn elementwise<'k>(&self, part: &'k Kernel) -> Option<&'k View> {
        let descriptor = part.descriptor();
        if let FusionRole::Reads(view) = descriptor.fusion {
            return Some(view);
        }
        let first = descriptor.operands.first()?.view;
        let is_cut = |operand: &Operand<'_>| {
            let is_same = operand.view.extent == first.extent;
            is_same == self.is_tensor(operand.view) && (is_same || !operand.access.writes())
        };
        // Random numbers are drawn by place.
        let is_elementwise = descriptor.is_elementwise && descriptor.distribution.is_none();
        (is_elementwise && descriptor.operands.iter().all(is_cut)).then_some(first)
    }

    fn is_tensor(&self, view: &View) -> bool {
        self.buffers[view.buffer.0 as usize].role.is_activation()
    }

    /// The kernel of a region of the outputs, counted from their start.
    fn slab(&self, cut: &Cut, region: &Region, is_later: bool) -> Kernel {
        let slab_of = |(at, part): (usize, &Kernel)| {
            let mut slab = part.clone();
            if at == 0 && cut.is_pooling {
                cut_pooling(&mut slab, region);
                return slab;
            }
            slab.each_view_mut(&mut |view| {
                if self.is_tensor(view) {
                    cut.apply(view, region);
                }
            });
            set_accumulate(&mut slab, is_later);
            slab
        };
        let parts = self.kernel.parts().iter().enumerate();
        let mut parts: Vec<Kernel> = parts.map(slab_of).collect();
        match parts.len() {
            1 => parts.remove(0),
            _ => Kernel::Fused { parts },
        }
    }
}

impl Cut {
    /// Outputs of a slab.
    fn slab_outputs(&self) -> usize {
        let inputs: usize = self.stride.iter().product();
        (SLAB / inputs).max(1)
    }

    /// The part of a view of the inputs or the outputs. The last inputs may belong to no output.
    fn apply(&self, view: &mut View, region: &Region) {
        let stride = match view.extent {
            extent if extent == self.outputs => [1; 4],
            extent if extent == self.inputs => self.stride,
            _ => return,
        };
        for dim in 0..4 {
            let [first, end] = [region.0[dim].start, region.0[dim].end].map(|at| at as usize);
            let end = if end == self.outputs[dim] {
                view.extent[dim]
            } else {
                end * stride[dim]
            };
            view.start[dim] += first * stride[dim];
            view.extent[dim] = end - first * stride[dim];
        }
    }
}

/// What a pooling writes, if a slab of that follows from a slab of what it reads with a margin. A gradient that depends
/// on whole windows does not.
fn overlapping(part: &Kernel) -> Option<&View> {
    if let Kernel::PoolForward { y, .. } = part {
        Some(y)
    } else if let Kernel::PoolBackward {
        kind: PoolKind::AverageAll,
        dx,
        ..
    } = part
    {
        Some(dx)
    } else {
        None
    }
}

/// Restricts such a pooling to a region of what it writes.
fn cut_pooling(part: &mut Kernel, region: &Region) {
    for dim in 0..4 {
        let (start, extent) = (region.0[dim].start as usize, region.0[dim].len());
        if let Kernel::PoolForward {
            x, y, taps, shift, ..
        } = part
        {
            *y = part_of(y, dim, start, extent);
            let Some(at) = dim.checked_sub(1) else {
                *x = part_of(x, dim, start, extent);
                continue;
            };
            let reach = (taps.kernel[at] - 1) * taps.dilation[at];
            let first = (start * taps.stride[at]) as i64 - shift[at];
            let end = first + ((extent - 1) * taps.stride[at] + reach + 1) as i64;
            // A window in the padding alone keeps one input, of which no tap is.
            let begin = first.clamp(0, x.extent[dim] as i64 - 1);
            let end = end.clamp(begin + 1, x.extent[dim] as i64);
            shift[at] = begin - first;
            *x = part_of(x, dim, begin as usize, (end - begin) as usize);
        } else if let Kernel::PoolBackward {
            dy,
            dx,
            taps,
            shift,
            ..
        } = part
        {
            *dx = part_of(dx, dim, start, extent);
            let Some(at) = dim.checked_sub(1) else {
                *dy = part_of(dy, dim, start, extent);
                continue;
            };
            let moved = shift[at] + start as i64;
            let outputs = contributing(dy.extent[dim], taps, at, (moved, extent));
            shift[at] = moved - (outputs.0 * taps.stride[at]) as i64;
            *dy = part_of(dy, dim, outputs.0, outputs.1);
        }
    }
}

/// A tensor of these extents.
fn whole(extent: [usize; 5]) -> Region {
    Region(extent.map(|extent| Interval::new(0, extent as i64)))
}

/// A region in parts of at most `elements`, in memory order, that keep channels together.
fn regions(region: Region, elements: usize) -> Vec<Region> {
    let mut all = Vec::new();
    let mut open = vec![region];
    while let Some(region) = open.pop() {
        let Some((dim, extent, count)) = split(&region, elements) else {
            all.push(region);
            continue;
        };
        // The last one is taken from the end first.
        for at in (0..count).rev() {
            let mut part = region;
            let end = |at: usize| region.0[dim].start + (extent * at / count) as i64;
            part.0[dim] = Interval::new(end(at), end(at + 1));
            open.push(part);
        }
    }
    all
}

/// The largest of these parts, moved to the end, where inputs may be left over. A part that is a little larger than others may be
/// cut once more, so that they are the largest.
fn largest_region(region: Region, elements: usize) -> Region {
    let Some((dim, extent, count)) = split(&region, elements) else {
        return region;
    };
    let part = |extent: usize| {
        let mut part = region;
        part.0[dim].start = part.0[dim].end - extent as i64;
        largest_region(part, elements)
    };
    let [more, less] = [part(extent.div_ceil(count)), part(extent / count)];
    if less.volume() > more.volume() {
        less
    } else {
        more
    }
}

/// The dim along which a region is cut, its extent, and into how many parts; none if it is small enough.
fn split(region: &Region, elements: usize) -> Option<(usize, usize, usize)> {
    let volume: usize = region.shape().iter().product();
    let dim = (0..4).find(|&dim| region.0[dim].len() > 1)?;
    let extent = region.0[dim].len();
    (volume > elements).then(|| (dim, extent, volume.div_ceil(elements).min(extent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_cover_a_region_and_none_is_larger_than_said() {
        let whole = |extent: [i64; 5]| Region(extent.map(|end| Interval::new(0, end)));
        for (extent, elements) in [
            ([1, 7, 5, 3, 4], 50),
            ([3, 1, 1, 11, 2], 7),
            ([2, 3, 4, 5, 6], 6),
            ([2, 3, 4, 5, 6], 1000),
            // Of 24 planes in 7 parts those of four are cut again, so that those of three are the largest.
            ([2, 24, 24, 24, 8], (1 << 17) / 8),
            ([1, 28, 28, 28, 6], (1 << 17) / 8),
        ] {
            let parts = regions(whole(extent), elements);
            let volume = |region: &Region| region.shape().iter().product::<usize>();
            let sum: usize = parts.iter().map(volume).sum();
            assert_eq!(sum, volume(&whole(extent)));
            let most = parts.iter().map(volume).max();
            assert_eq!(most, Some(volume(&largest_region(whole(extent), elements))));
            assert!(most <= Some(elements.max(extent[4] as usize)));
            // In memory order.
            let starts: Vec<[i64; 5]> = parts.iter().map(|part| part.0.map(|i| i.start)).collect();
            assert!(starts.is_sorted());
        }
    }
}
