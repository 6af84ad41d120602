//! The implementation and workspace of every kernel.
//!
//! `CatalogMenu` offers the configurations that no other beats in time and workspace (`tune/frontier`): under a
//! limit per kernel or, by an integer program (`tune/division`), of all kernels together. Once memory is planned,
//! kernels also get what the arena leaves free at their place in the list ([`crate::arena`]). Memory that buffers
//! of other lanes use is free for a kernel only if dependencies order the two already, so that no kernel begins to
//! wait for a message. Kernels whose results are replicated keep the usual implementation, since ranks may have
//! different room (`is_unique`).

use crate::body::Builder;
use crate::strategy::WorkspaceLimit;
use partita_program::descriptor::Layout;
use partita_program::{
    Body, Buffer, BufferId, Choice, Dtype, KernelShape, Menu, MenuError, Role, View, Work,
};
use partita_space::{AxisSet, Bytes, Mesh};

impl Builder<'_> {
    /// Selects for every kernel what the menu gives within a limit. [`WorkspaceLimit::Live`] selects only the usual
    /// implementations, and [`refine`] the rest once memory is planned.
    ///
    /// Errors: a kernel that the menu lacks.
    pub fn select(&mut self, limit: WorkspaceLimit) -> Result<(), MenuError> {
        let mut faster = self.faster(limit).into_iter();
        for id in 0..self.body.tasks.len() {
            let Some(shape) = shape_of(&self.body, id) else {
                continue;
            };
            let choice = match faster.next().flatten() {
                Some(choice) => choice,
                None => self.menu.choose(&shape)?,
            };
            let workspace = (choice.workspace.0 > 0).then(|| {
                let name = format!("{}.workspace", self.body.tasks[id].origin.layer);
                let dtype = self.dtype.arithmetic();
                let dims = dims_of(choice.workspace, dtype.size());
                let id = self.buffer(&name, Role::Workspace, dtype, dims);
                self.whole(id)
            });
            pin(&mut self.body, id, choice, workspace);
        }
        Ok(())
    }

    /// For each kernel what is faster than the usual implementation, if it is to be used now.
    fn faster(&self, limit: WorkspaceLimit) -> Vec<Option<Choice>> {
        let shapes = (0..self.body.tasks.len()).filter_map(|id| shape_of(&self.body, id));
        let shapes: Vec<KernelShape<'_>> = shapes.collect();
        let is_unique = |&at: &usize| is_unique(&shapes[at], &self.world);
        let unique: Vec<usize> = (0..shapes.len()).filter(is_unique).collect();
        let own: Vec<KernelShape<'_>> = unique.iter().map(|&at| shapes[at]).collect();
        let found: Vec<Option<Choice>> = match limit {
            WorkspaceLimit::Live | WorkspaceLimit::Off => return Vec::new(),
            WorkspaceLimit::Kernel(bytes) => own
                .iter()
                .map(|shape| self.menu.fastest_within(shape, bytes))
                .collect(),
            WorkspaceLimit::Total(bytes) => self.menu.divide(&own, bytes),
        };
        let mut faster = vec![None; shapes.len()];
        for (at, choice) in unique.into_iter().zip(found) {
            faster[at] = choice;
        }
        faster
    }

    /// Whether a kernel is expected to run by an implementation that takes the weights as they are, so that
    /// packing them beforehand would keep it from doing so.
    pub fn wants_plain_weights(&self, shape: &KernelShape<'_>, limit: WorkspaceLimit) -> bool {
        let bytes = match limit {
            WorkspaceLimit::Off => return false,
            WorkspaceLimit::Live => Bytes(u64::MAX),
            WorkspaceLimit::Kernel(bytes) | WorkspaceLimit::Total(bytes) => bytes,
        };
        let fastest = self.menu.fastest_within(shape, bytes);
        let is_plain = fastest.is_some_and(|choice| choice.packed_weights == 0);
        is_plain && is_unique(shape, &self.world)
    }
}

/// Whether no other rank computes the same results, so that a rank may compute them in its own way. Replicas must
/// be equal bit by bit, and different ranks may have different room for workspaces.
fn is_unique(shape: &KernelShape<'_>, world: &Mesh) -> bool {
    let parts = shape.kernel.parts();
    let split = |view: &View| match shape.buffers[view.buffer.0 as usize].tensor {
        Some(tensor) => {
            let all = tensor.distribution.mesh(world).split_axes();
            Some((tensor.distribution.split_axes(), all))
        }
        None => None,
    };
    let covers = |found: &[Option<(AxisSet, AxisSet)>]| {
        let known: Option<Vec<(AxisSet, AxisSet)>> = found.iter().copied().collect();
        known.is_some_and(|known| {
            let axes = known.iter().map(|(axes, _)| *axes);
            let axes = axes.fold(AxisSet::NONE, AxisSet::union);
            known.iter().all(|(_, all)| *all == axes)
        })
    };
    if world.ranks() == 1 {
        return true;
    }
    match parts[0].descriptor().layout {
        Layout::Product { to, .. } => covers(&[split(to)]),
        // Each rank that has the output gradient sums that of the bias.
        Layout::ProductGradient { x, dy, .. } => {
            covers(&[split(x), split(dy)]) && (parts.len() == 1 || covers(&[split(dy)]))
        }
        Layout::Any | Layout::Table { .. } | Layout::Sequences { .. } | Layout::OwnShare { .. } => {
            false
        }
    }
}

fn dims_of(workspace: Bytes, element: usize) -> [usize; 5] {
    [1, 1, 1, 1, (workspace.0 as usize).div_ceil(element)]
}

fn shape_of(body: &Body, id: usize) -> Option<KernelShape<'_>> {
    body.kernel_shape(&body.tasks[id])
}

fn pin(body: &mut Body, id: usize, choice: Choice, view: Option<View>) {
    if let Work::Compute {
        algorithm,
        workspace,
        ..
    } = &mut body.tasks[id].work
    {
        *algorithm = choice.algorithm;
        *workspace = view;
    }
}

/// Gives a kernel of a body with planned memory the fastest configuration whose workspace fits into a
/// free range of the arena, from `start` on.
pub(crate) fn refine(body: &mut Body, menu: &dyn Menu, id: usize, (start, size): (u64, u64)) {
    let Some(choice) =
        shape_of(body, id).and_then(|shape| menu.fastest_within(&shape, Bytes(size)))
    else {
        return;
    };
    let Work::Compute { workspace, .. } = &body.tasks[id].work else {
        return;
    };
    let held = workspace.map(|view| view.buffer);
    if choice.workspace.0 == 0 {
        return pin(body, id, choice, None);
    }
    let handle = held.unwrap_or_else(|| {
        let buffer = Buffer {
            name: free_name(body, &format!("{}.workspace", body.tasks[id].origin.layer)),
            role: Role::Workspace,
            dtype: Dtype::F32,
            dims: [0; 5],
            tensor: None,
            offset: Bytes(0),
        };
        body.buffers.push(buffer);
        BufferId(body.buffers.len() as u32 - 1)
    });
    let buffer = &mut body.buffers[handle.0 as usize];
    buffer.dims = dims_of(choice.workspace, buffer.dtype.size());
    buffer.offset = Bytes(start);
    let view = buffer.view(handle);
    pin(body, id, choice, Some(view));
}

/// Whether a kernel has a configuration that is faster than the usual one, and may have it.
pub(crate) fn has_faster(body: &Body, menu: &dyn Menu, world: &Mesh, id: usize) -> bool {
    shape_of(body, id).is_some_and(|shape| {
        let fastest = menu.fastest_within(&shape, Bytes(u64::MAX));
        fastest.is_some() && is_unique(&shape, world)
    })
}

fn free_name(body: &Body, name: &str) -> String {
    let is_free = |name: &String| body.buffers.iter().all(|buffer| buffer.name != *name);
    let numbered = (2..).map(|number| format!("{name}.{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(is_free).unwrap_or_default()
}
