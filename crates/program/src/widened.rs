//! Kernels on bf16 as kernels on f32: what they read is widened to copies, and what they write rounded from copies.

use crate::descriptor::{Flow, FusionRole, Layout, Operand};
use crate::piece::{restricted, set_accumulate};
use crate::{Body, Buffer, BufferId, Dtype, Kernel, KernelShape, Role, View};
use partita_space::{Bytes, Interval, Region};

/// Copies begin at multiples of so many bytes.
const ALIGNMENT: u64 = 64;
/// Elements of a slab: copies of two of them lie in the L2 cache of a core.
const SLAB: usize = 1 << 17;

/// A view and its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WideCopy {
    /// In the body of the kernel: of bf16, or weights in f32.
    pub stored: View,
    /// In [`Widened::body`].
    pub wide: View,
    /// Whether the kernel reads the copy. Of weights it reads values that bf16 holds, rounded to nearest even.
    pub is_read: bool,
    /// Whether the kernel writes the copy.
    pub is_written: bool,
}

/// A kernel on f32 in place of one on bf16.
#[derive(Clone, Debug, PartialEq)]
pub struct Widened {
    /// The kernel, on the buffers of `body`.
    pub kernel: Kernel,
    /// The buffers of the kernel: copies, and those of other types at their places in the arena. No tasks.
    pub body: Body,
    /// What is copied before and after.
    pub copies: Vec<WideCopy>,
    /// Memory of the copies.
    pub bytes: Bytes,
}

impl Widened {
    /// The kernel with its buffers.
    pub fn shape(&self) -> KernelShape<'_> {
        KernelShape {
            kernel: &self.kernel,
            buffers: &self.body.buffers,
        }
    }

    /// What is left of a workspace in the arena behind the copies, as a view of `body`; none if it is empty.
    pub fn rest(&mut self, workspace: &Buffer) -> Option<View> {
        let bytes = workspace.bytes().0.saturating_sub(self.bytes.0);
        let elements = bytes as usize / Dtype::F32.size();
        let id = BufferId(self.body.buffers.len() as u32);
        let rest = Buffer {
            name: String::new(),
            role: Role::Workspace,
            dtype: Dtype::F32,
            dims: [1, 1, 1, 1, elements],
            tensor: None,
            offset: Bytes(workspace.offset.0 + self.bytes.0),
        };
        let view = rest.view(id);
        self.body.buffers.push(rest);
        (elements > 0).then_some(view)
    }
}

impl KernelShape<'_> {
    /// Whether it computes with values of bf16. Copies and constants are the same in any type.
    pub fn computes_in_bf16(&self) -> bool {
        let computes = |part: &Kernel| match part.descriptor().flow {
            Flow::Clears { .. } | Flow::Copies { .. } => false,
            Flow::Computes
            | Flow::Packs { .. }
            | Flow::Updates { .. }
            | Flow::Measures { .. }
            | Flow::Tracks => true,
        };
        let parts = self.kernel.parts();
        let mut views = parts.iter().flat_map(Kernel::accesses);
        views.any(|(view, _)| self.buffers[view.buffer.0 as usize].dtype == Dtype::Bf16)
            && parts.iter().any(computes)
    }

    /// Kernels over slabs of the tensors that one after the other compute what this one does, so that copies of a slab stay
    /// in caches; itself alone unless it and its fused parts work element by element or sum over positions.
    pub fn slabs(&self) -> Vec<Kernel> {
        let Some(whole) = self.slab_tensor() else {
            return vec![self.kernel.clone()];
        };
        let regions = regions(whole.region(), SLAB).into_iter().enumerate();
        regions
            .map(|(at, region)| self.slab(&whole, &region, at > 0))
            .collect()
    }

    /// The largest of [`Self::slabs`].
    fn largest_slab(&self) -> Kernel {
        match self.slab_tensor() {
            Some(whole) => self.slab(&whole, &largest_region(whole.region(), SLAB), true),
            None => self.kernel.clone(),
        }
    }

    /// The kernel on f32 of the largest slab, with copies from the start of an arena on.
    pub fn largest_widened(&self) -> Widened {
        let slab = self.largest_slab();
        let shape = KernelShape {
            kernel: &slab,
            buffers: self.buffers,
        };
        shape.widened(Bytes(0))
    }

    /// The tensor along which the kernel is cut into slabs, if it is.
    fn slab_tensor(&self) -> Option<View> {
        let tensors = self.kernel.parts().iter().map(|part| self.cut_tensor(part));
        let tensors = tensors.collect::<Option<Vec<&View>>>()?;
        let whole = **tensors.first()?;
        let is_cut = whole.volume() > SLAB && tensors.iter().all(|one| one.extent == whole.extent);
        is_cut.then_some(whole)
    }

    /// The tensor of a kernel that sums over its positions, or makes another of the same extents element by element:
    /// tensors of these extents are cut together.
    fn cut_tensor<'k>(&self, part: &'k Kernel) -> Option<&'k View> {
        let descriptor = part.descriptor();
        if let FusionRole::Reads(view) = descriptor.fusion {
            return Some(view);
        }
        let first = descriptor.operands.first()?.view;
        let is_cut = |operand: &Operand<'_>| match self.buffers[operand.view.buffer.0 as usize].role
        {
            Role::Activation | Role::ActivationGradient => operand.view.extent == first.extent,
            Role::Parameter
            | Role::State
            | Role::Optimizer
            | Role::Gradient
            | Role::Staging
            | Role::PackedWeights
            | Role::Gathered
            | Role::Statistics
            | Role::Workspace => operand.view.extent != first.extent && !operand.access.writes(),
        };
        // Random numbers are drawn by place.
        let is_elementwise = descriptor.is_elementwise && descriptor.distribution.is_none();
        (is_elementwise && descriptor.operands.iter().all(is_cut)).then_some(first)
    }

    fn slab(&self, whole: &View, region: &Region, is_later: bool) -> Kernel {
        let cut = |part: &Kernel| {
            let mut slab = restricted(part, self.buffers, whole, region);
            set_accumulate(&mut slab, is_later);
            slab
        };
        let mut parts: Vec<Kernel> = self.kernel.parts().iter().map(cut).collect();
        match parts.len() {
            1 => parts.remove(0),
            _ => Kernel::Fused { parts },
        }
    }

    /// The kernel on f32 that computes this one on bf16, with copies from the byte `start` of the arena on. Views of one
    /// buffer are copied to one place, so that what overlaps still does.
    pub fn widened(&self, start: Bytes) -> Widened {
        let places = Places::of(self, start);
        let mut kernel = self.kernel.clone();
        kernel.each_view_mut(&mut |view| *view = places.view(view).0);
        let mut copies: Vec<WideCopy> = Vec::new();
        for (stored, access) in self.kernel.accesses() {
            let (wide, is_copied) = places.view(&stored);
            if !is_copied {
                continue;
            }
            let at = copies.iter().position(|copy| copy.stored == stored);
            let at = at.unwrap_or_else(|| {
                copies.push(WideCopy {
                    stored,
                    wide,
                    is_read: false,
                    is_written: false,
                });
                copies.len() - 1
            });
            copies[at].is_read |= access.reads();
            copies[at].is_written |= access.writes();
        }
        Widened {
            kernel,
            body: Body {
                buffers: places.buffers,
                ..Body::default()
            },
            copies,
            bytes: Bytes(places.end - start.0),
        }
    }
}

/// Where the buffers of a kernel lie after widening.
struct Places {
    buffers: Vec<Buffer>,
    /// For each of them what all views of the kernel on it cover together, and whether that is copied.
    whole: Vec<(View, bool)>,
    /// End of the copies in the arena.
    end: u64,
}

impl Places {
    fn of(shape: &KernelShape<'_>, start: Bytes) -> Self {
        let parts = shape.kernel.parts();
        let weights = weights(parts);
        let mut whole: Vec<(View, bool)> = Vec::new();
        for (view, _) in parts.iter().flat_map(Kernel::accesses) {
            if let Some((known, _)) = whole.iter_mut().find(|one| one.0.buffer == view.buffer) {
                *known = covering(known, &view);
            } else {
                let dtype = shape.buffers[view.buffer.0 as usize].dtype;
                let is_copied = dtype == Dtype::Bf16 || weights.contains(&view.buffer);
                whole.push((view, is_copied));
            }
        }
        let mut end = start.0;
        let placed = whole.iter().map(|(view, is_copied)| {
            let stored = &shape.buffers[view.buffer.0 as usize];
            let mut buffer = Buffer {
                name: String::new(),
                tensor: None,
                ..stored.clone()
            };
            if *is_copied {
                buffer.dtype = Dtype::F32;
                buffer.dims = view.extent;
                buffer.offset = Bytes(end);
                end += buffer.bytes().0.next_multiple_of(ALIGNMENT);
            }
            buffer
        });
        Self {
            buffers: placed.collect(),
            whole,
            end,
        }
    }

    /// A view of the kernel in these buffers, and whether it is copied.
    fn view(&self, view: &View) -> (View, bool) {
        let at = self
            .whole
            .iter()
            .position(|(whole, _)| whole.buffer == view.buffer);
        let at = at.expect("a kernel accesses all its views");
        let buffer = BufferId(at as u32);
        let (whole, is_copied) = &self.whole[at];
        let mut wide = View { buffer, ..*view };
        if *is_copied && !view.is_empty() {
            wide.start = std::array::from_fn(|dim| view.start[dim] - whole.start[dim]);
        }
        (wide, *is_copied)
    }
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

/// The first of the largest of these parts, moved to the start.
fn largest_region(mut region: Region, elements: usize) -> Region {
    while let Some((dim, extent, count)) = split(&region, elements) {
        let start = region.0[dim].start;
        region.0[dim] = Interval::new(start, start + extent.div_ceil(count) as i64);
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

/// Buffers of the weights of products.
fn weights(parts: &[Kernel]) -> Vec<BufferId> {
    let of_part = |part: &Kernel| match part.descriptor().layout {
        Layout::Product { w, .. } => Some(w.buffer),
        Layout::Any
        | Layout::ProductGradient { .. }
        | Layout::Table { .. }
        | Layout::Sequences { .. }
        | Layout::OwnShare { .. } => None,
    };
    parts.iter().filter_map(of_part).collect()
}

/// The smallest view of a buffer that holds two.
fn covering(a: &View, b: &View) -> View {
    if a.is_empty() || b.is_empty() {
        return if a.is_empty() { *b } else { *a };
    }
    let start: [usize; 5] = std::array::from_fn(|dim| a.start[dim].min(b.start[dim]));
    let end = |view: &View, dim: usize| view.start[dim] + view.extent[dim];
    View {
        buffer: a.buffer,
        start,
        extent: std::array::from_fn(|dim| end(a, dim).max(end(b, dim)) - start[dim]),
    }
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
