//! Kernels as several over slabs of their tensors.

use crate::descriptor::{FusionRole, Operand};
use crate::piece::set_accumulate;
use crate::{Family, Kernel, KernelShape, Role, View};
use partita_space::{Interval, Region};

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
}

impl KernelShape<'_> {
    /// Kernels over slabs of the tensors that one after the other compute what this one does, so that copies of a slab stay
    /// in caches; itself alone unless it and its fused parts work element by element, sum over positions, or pool
    /// by windows side by side.
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

    /// The largest of [`Self::slabs`].
    pub(crate) fn largest_slab(&self) -> Kernel {
        match self.cut() {
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
                let extent = self.elementwise(&parts[0])?.extent;
                Cut {
                    outputs: extent,
                    inputs: extent,
                    stride: [1; 4],
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
        match self.buffers[view.buffer.0 as usize].role {
            Role::Activation | Role::ActivationGradient => true,
            Role::Parameter
            | Role::State
            | Role::Optimizer
            | Role::Gradient
            | Role::Staging
            | Role::PackedWeights
            | Role::Gathered
            | Role::Statistics
            | Role::Workspace => false,
        }
    }

    /// The kernel of a region of the outputs, counted from their start.
    fn slab(&self, cut: &Cut, region: &Region, is_later: bool) -> Kernel {
        let mut slab = self.kernel.clone();
        slab.each_view_mut(&mut |view| {
            if self.is_tensor(view) {
                cut.apply(view, region);
            }
        });
        if let Kernel::Fused { parts } = &mut slab {
            for part in parts {
                set_accumulate(part, is_later);
            }
        } else {
            set_accumulate(&mut slab, is_later);
        }
        slab
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

/// The first of the largest of these parts, moved to the end, where inputs may be left over.
fn largest_region(mut region: Region, elements: usize) -> Region {
    while let Some((dim, extent, count)) = split(&region, elements) {
        let end = region.0[dim].end;
        region.0[dim] = Interval::new(end - extent.div_ceil(count) as i64, end);
    }
    region
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
