//! Removes copies whose source and target may be one memory.

use super::meet;
use partita_program::{Access, Body, Buffer, BufferId, Kernel, View, Work};
use std::collections::BTreeSet;
use std::ops::Range;

/// Removes copies of tensors where source and target may be one memory: a buffer that the copy takes
/// or fills whole becomes part of the other one.
pub(super) fn remove(body: &mut Body) {
    let mut copies = Copies::new(body);
    let kept: Vec<bool> = (0..body.tasks.len())
        .map(|at| match copies.mergeable(at) {
            Some(merge) => {
                copies.merge(at, merge);
                false
            }
            None => true,
        })
        .collect();
    let mut names = copies.names;
    let mut kept = kept.into_iter();
    body.tasks.retain(|_| kept.next() == Some(true));
    for task in &mut body.tasks {
        task.each_view_mut(&mut |view| *view = names.resolve(view));
    }
}

/// A buffer that becomes part of another.
struct Merge {
    gone: BufferId,
    into: View,
}

/// What buffers have become: each the part of another, or itself.
struct Names(Vec<Option<View>>);

impl Names {
    /// The view by the name that it has now.
    fn resolve(&mut self, view: &View) -> View {
        let mut view = *view;
        while let Some(mut into) = self.0[view.buffer.0 as usize] {
            if let Some(further) = self.0[into.buffer.0 as usize] {
                // Halves the way of whoever asks next.
                into = inside(&into, &further);
                self.0[view.buffer.0 as usize] = Some(into);
            }
            view = inside(&view, &into);
        }
        view
    }
}

/// A view of a buffer that has become `into`.
fn inside(view: &View, into: &View) -> View {
    View {
        buffer: into.buffer,
        start: std::array::from_fn(|dim| view.start[dim] + into.start[dim]),
        extent: view.extent,
    }
}

/// The copies of a body while they go. Tasks keep the names with which they began.
struct Copies<'a> {
    body: &'a Body,
    names: Names,
    /// For each buffer the tasks that touch it.
    users: Vec<BTreeSet<usize>>,
    /// For each buffer whether other ranks, or whoever reads the outputs, see it under its name.
    moves: Vec<bool>,
}

impl<'a> Copies<'a> {
    fn new(body: &'a Body) -> Self {
        let count = body.buffers.len();
        let (mut users, mut moves) = (vec![BTreeSet::new(); count], vec![false; count]);
        for (id, task) in body.tasks.iter().enumerate() {
            let is_seen = match &task.work {
                Work::Compute { .. } => false,
                Work::Exchange(_) | Work::Collective(_) | Work::Load(_) => true,
            };
            for (view, _) in task.accesses() {
                users[view.buffer.0 as usize].insert(id);
                moves[view.buffer.0 as usize] |= is_seen;
            }
        }
        for output in &body.outputs {
            moves[output.view.buffer.0 as usize] = true;
        }
        Self {
            body,
            names: Names(vec![None; count]),
            users,
            moves,
        }
    }

    fn mergeable(&mut self, copy: usize) -> Option<Merge> {
        let Work::Compute {
            kernel:
                Kernel::Copy {
                    source,
                    target,
                    accumulate: false,
                },
            ..
        } = &self.body.tasks[copy].work
        else {
            return None;
        };
        let [source, target] = [source, target].map(|view| self.names.resolve(view));
        if source.extent != target.extent || source.buffer == target.buffer {
            return None;
        }
        let [from, to] = [source, target].map(|view| self.body.buffer(view.buffer));
        let same_place = match (&from.tensor, &to.tensor) {
            // A concatenation has more channels than its inputs.
            (Some(a), Some(b)) => {
                // Contributions to others' parts are sent, those to copies of them are kept.
                a.redundant == b.redundant
                    && a.distribution.axes == b.distribution.axes
                    && a.distribution.submesh == b.distribution.submesh
                    && a.distribution.shape[..4] == b.distribution.shape[..4]
            }
            _ => false,
        };
        if from.role != to.role || !same_place || from.role.is_persistent() {
            return None;
        }
        let merge = if is_whole(from, &source) && !self.moves[source.buffer.0 as usize] {
            Merge {
                gone: source.buffer,
                into: target,
            }
        } else if is_whole(to, &target) && !self.moves[target.buffer.0 as usize] {
            Merge {
                gone: target.buffer,
                into: source,
            }
        } else {
            return None;
        };
        let is_harmless = self.is_harmless(copy, &source, &target);
        (is_harmless && !self.entangles(&merge)).then_some(merge)
    }

    /// Whether a kernel would work on blocks of one buffer that lie in each other's gaps, one of them
    /// to write: these are no memory of their own. A copy takes care of itself.
    fn entangles(&mut self, merge: &Merge) -> bool {
        let (gone, into) = (merge.gone, merge.into.buffer);
        let users = |buffer: BufferId| &self.users[buffer.0 as usize];
        let common: Vec<usize> = users(gone).intersection(users(into)).copied().collect();
        let pitches = self.body.buffer(into).pitches();
        common.into_iter().any(|id| {
            let task = &self.body.tasks[id];
            if let Work::Compute {
                kernel: Kernel::Copy { .. },
                ..
            } = &task.work
            {
                return false;
            }
            let mut ours: [Vec<(View, Access)>; 2] = [Vec::new(), Vec::new()];
            for (view, access) in task.accesses() {
                let view = self.names.resolve(&view);
                if view.buffer == gone {
                    ours[0].push((inside(&view, &merge.into), access));
                } else if view.buffer == into {
                    ours[1].push((view, access));
                }
            }
            let [moved, others] = ours;
            moved.iter().any(|(view, access)| {
                others.iter().any(|(other, by)| {
                    (access.writes() || by.writes()) && meet(view, other, &pitches)
                })
            })
        })
    }

    /// Whether nothing can tell the target from the source: nobody touches the target before the
    /// copy or the source's memory under its name after one of them has been written.
    fn is_harmless(&mut self, copy: usize, source: &View, target: &View) -> bool {
        if self.first(target, 0..copy, |_| true).is_some() {
            return false;
        }
        let after = copy + 1..self.body.tasks.len();
        if self.first(source, after.clone(), Access::writes).is_some() {
            return false;
        }
        match self.first(target, after.clone(), Access::writes) {
            Some(write) => self.first(source, write..after.end, |_| true).is_none(),
            None => true,
        }
    }

    /// The first of these tasks that touches a part of a view in such a way.
    fn first(
        &mut self,
        of: &View,
        tasks: Range<usize>,
        how: impl Fn(Access) -> bool,
    ) -> Option<usize> {
        let region = of.region();
        let mut users = self.users[of.buffer.0 as usize].range(tasks).copied();
        users.find(|&id| {
            let accesses = self.body.tasks[id].accesses();
            accesses.iter().any(|(view, access)| {
                let view = self.names.resolve(view);
                how(*access)
                    && view.buffer == of.buffer
                    && !view.region().intersect(&region).is_empty()
            })
        })
    }

    fn merge(&mut self, copy: usize, merge: Merge) {
        let (gone, into) = (merge.gone.0 as usize, merge.into.buffer.0 as usize);
        self.names.0[gone] = Some(merge.into);
        let mut fewer = std::mem::take(&mut self.users[gone]);
        let more = &mut self.users[into];
        // Whatever grows takes in what is smaller.
        if fewer.len() > more.len() {
            std::mem::swap(&mut fewer, more);
        }
        more.extend(fewer);
        more.remove(&copy);
    }
}

fn is_whole(buffer: &Buffer, view: &View) -> bool {
    buffer.dims == view.extent
}
