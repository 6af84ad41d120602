//! Kernels on floats of two bytes (bf16, f16) as kernels on f32: what they read is widened to copies, and what they write rounded from copies.
//!
//! Activations, their gradients and packets of these have the type of the program; `Dtype::of_role` gives the type
//! of every other buffer. Kernels with an implementation of their own for the type are not widened. Copies lie in
//! the workspace of the kernel, so they are counted in memory.

use crate::descriptor::{Flow, Layout};
use crate::{Body, Buffer, BufferId, Dtype, Kernel, KernelShape, Role, View};
use partita_space::Bytes;

/// Alignment of copies in bytes.
const ALIGNMENT: u64 = 64;

/// A view and its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WideCopy {
    /// In the body of the kernel: of two bytes, or weights in f32.
    pub stored: View,
    /// In [`Widened::body`].
    pub wide: View,
    /// Whether the kernel reads the copy. Of weights it reads values that the type of two bytes holds, rounded to nearest even.
    pub is_read: bool,
    /// Whether the kernel writes the copy.
    pub is_written: bool,
}

/// A kernel on f32 in place of one on floats of two bytes.
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

    /// What is left behind the copies of a workspace of `size` from `start` on, as a view of `body`; none if it is empty.
    pub fn rest(&mut self, start: Bytes, size: Bytes) -> Option<View> {
        let bytes = size.0.saturating_sub(self.bytes.0);
        let elements = bytes as usize / Dtype::F32.size();
        let id = BufferId(self.body.buffers.len() as u32);
        let rest = Buffer {
            name: String::new(),
            role: Role::Workspace,
            dtype: Dtype::F32,
            dims: [1, 1, 1, 1, elements],
            tensor: None,
            offset: Bytes(start.0 + self.bytes.0),
        };
        let view = rest.view(id);
        self.body.buffers.push(rest);
        (elements > 0).then_some(view)
    }
}

impl KernelShape<'_> {
    /// Whether it computes with floats of two bytes. Copies and constants are the same in any type.
    pub fn computes_in_half(&self) -> bool {
        let computes = |part: &Kernel| match part.descriptor().flow {
            Flow::Clears { .. } | Flow::Copies { .. } => false,
            Flow::Computes
            | Flow::Packs { .. }
            | Flow::Updates { .. }
            | Flow::Averages { .. }
            | Flow::Measures { .. }
            | Flow::Tracks => true,
        };
        let parts = self.kernel.parts();
        let mut views = parts.iter().flat_map(Kernel::accesses);
        views.any(|(view, _)| self.buffers[view.buffer.0 as usize].dtype.is_half())
            && parts.iter().any(computes)
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

    /// The kernel on f32 that computes this one on floats of two bytes, with copies from the byte `start` of the arena on. Views of one
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
                let is_copied = dtype.is_half() || weights.contains(&view.buffer);
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
