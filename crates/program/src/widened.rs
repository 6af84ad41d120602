//! Kernels on bf16 as kernels on f32: what they read is widened to copies, and what they write rounded from copies.

use crate::descriptor::{Flow, Layout};
use crate::{Body, Buffer, BufferId, Dtype, Kernel, KernelShape, Role, View};
use partita_space::Bytes;

/// Copies begin at multiples of so many bytes.
const ALIGNMENT: u64 = 64;

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

    /// The kernel on f32 that computes this one on bf16, with copies from the byte `start` of the arena on. Views of one
    /// buffer are copied to one place, so that what overlaps still does.
    pub fn widened(&self, start: Bytes) -> Widened {
        let mut buffers: Vec<Buffer> = Vec::new();
        // Buffer of the kernel, and whether it is copied.
        let mut known: Vec<(BufferId, bool)> = Vec::new();
        let mut end = start.0;
        let parts = self.kernel.parts();
        let weights = weights(parts);
        let all: Vec<View> = parts
            .iter()
            .flat_map(Kernel::accesses)
            .map(|(view, _)| view)
            .collect();
        for view in &all {
            if known.iter().any(|(id, _)| *id == view.buffer) {
                continue;
            }
            let stored = &self.buffers[view.buffer.0 as usize];
            let is_copied = stored.dtype == Dtype::Bf16 || weights.contains(&view.buffer);
            known.push((view.buffer, is_copied));
            let mut buffer = Buffer {
                name: String::new(),
                tensor: None,
                ..stored.clone()
            };
            if is_copied {
                buffer.dtype = Dtype::F32;
                buffer.dims = covering(&all, view.buffer).extent;
                buffer.offset = Bytes(end);
                end += buffer.bytes().0.next_multiple_of(ALIGNMENT);
            }
            buffers.push(buffer);
        }
        // The view among these buffers, and whether it is copied.
        let mapped = |view: &View| {
            let at = known.iter().position(|(id, _)| *id == view.buffer);
            let at = at.expect("a kernel accesses all its views");
            let (buffer, is_copied) = (BufferId(at as u32), known[at].1);
            let mut wide = View { buffer, ..*view };
            if is_copied && !view.is_empty() {
                let whole = covering(&all, view.buffer);
                wide.start = std::array::from_fn(|dim| view.start[dim] - whole.start[dim]);
            }
            (wide, is_copied)
        };
        let mut kernel = self.kernel.clone();
        kernel.each_view_mut(&mut |view| *view = mapped(view).0);
        let mut copies: Vec<WideCopy> = Vec::new();
        for (stored, access) in self.kernel.accesses() {
            let (wide, is_copied) = mapped(&stored);
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
                buffers,
                ..Body::default()
            },
            copies,
            bytes: Bytes(end - start.0),
        }
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

/// The smallest view that holds all views of a buffer.
fn covering(all: &[View], buffer: BufferId) -> View {
    let mut of_buffer = all
        .iter()
        .filter(|view| view.buffer == buffer && !view.is_empty());
    let Some(first) = of_buffer.next() else {
        return View {
            buffer,
            start: [0; 5],
            extent: [0; 5],
        };
    };
    of_buffer.fold(*first, |whole, view| {
        let start: [usize; 5] = std::array::from_fn(|dim| whole.start[dim].min(view.start[dim]));
        let end = |view: &View, dim: usize| view.start[dim] + view.extent[dim];
        View {
            buffer,
            start,
            extent: std::array::from_fn(|dim| end(&whole, dim).max(end(view, dim)) - start[dim]),
        }
    })
}
