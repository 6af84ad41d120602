//! Copy elimination.

use super::ranges_overlap;
use partita_program::{Access, Body, Buffer, BufferId, Kernel, View, Work};
use std::collections::BTreeSet;
use std::ops::Range;

/// Removes copies of tensors where source and target can share memory: a buffer that the copy reads or writes
/// whole becomes a part of the other one.
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
    let mut aliases = copies.aliases;
    let mut kept = kept.into_iter();
    body.tasks.retain(|_| kept.next() == Some(true));
    for task in &mut body.tasks {
        task.each_view_mut(&mut |view| *view = aliases.resolve(view));
    }
}

/// A buffer that becomes part of another.
struct Merge {
    gone: BufferId,
    into: View,
}

/// Aliases of buffers: each a part of another one, or none.
struct Aliases(Vec<Option<View>>);

impl Aliases {
    /// The view in terms of buffers without alias.
    fn resolve(&mut self, view: &View) -> View {
        let mut view = *view;
        while let Some(mut into) = self.0[view.buffer.0 as usize] {
            if let Some(further) = self.0[into.buffer.0 as usize] {
                // Path halving.
                into = inside(&into, &further);
                self.0[view.buffer.0 as usize] = Some(into);
            }
            view = inside(&view, &into);
        }
        view
    }
}

/// A view of a buffer whose alias is `into`.
fn inside(view: &View, into: &View) -> View {
    View {
        buffer: into.buffer,
        start: std::array::from_fn(|dim| view.start[dim] + into.start[dim]),
        extent: view.extent,
    }
}

/// State of copy elimination. Tasks keep their original views until its end.
struct Copies<'a> {
    body: &'a Body,
    aliases: Aliases,
    /// For each buffer the tasks that access it.
    users: Vec<BTreeSet<usize>>,
    /// For each buffer whether it is communicated, loaded or an output.
    is_external: Vec<bool>,
}

impl<'a> Copies<'a> {
    fn new(body: &'a Body) -> Self {
        let count = body.buffers.len();
        let (mut users, mut is_external) = (vec![BTreeSet::new(); count], vec![false; count]);
        for (id, task) in body.tasks.iter().enumerate() {
            let is_seen = match &task.work {
                Work::Compute { .. } => false,
                Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => true,
            };
            for (view, _) in task.accesses() {
                users[view.buffer.0 as usize].insert(id);
                is_external[view.buffer.0 as usize] |= is_seen;
            }
        }
        for output in &body.outputs {
            is_external[output.view.buffer.0 as usize] = true;
        }
        Self {
            body,
            aliases: Aliases(vec![None; count]),
            users,
            is_external,
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
        let [source, target] = [source, target].map(|view| self.aliases.resolve(view));
        if source.extent != target.extent || source.buffer == target.buffer {
            return None;
        }
        let [from, to] = [source, target].map(|view| self.body.buffer(view.buffer));
        let same_place = match (&from.tensor, &to.tensor) {
            // A concatenation has more channels than its inputs.
            (Some(a), Some(b)) => {
                // Contributions to halos are sent to their owners, except where these are redundant copies.
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
        let merge = if is_whole(from, &source) && !self.is_external[source.buffer.0 as usize] {
            Merge {
                gone: source.buffer,
                into: target,
            }
        } else if is_whole(to, &target) && !self.is_external[target.buffer.0 as usize] {
            Merge {
                gone: target.buffer,
                into: source,
            }
        } else {
            return None;
        };
        let can_share = self.can_share(copy, &source, &target);
        (can_share && !self.interleaves(&merge)).then_some(merge)
    }

    /// Whether a kernel would access interleaved blocks of one buffer and write one of them. Copies may do so.
    fn interleaves(&mut self, merge: &Merge) -> bool {
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
                let view = self.aliases.resolve(&view);
                if view.buffer == gone {
                    ours[0].push((inside(&view, &merge.into), access));
                } else if view.buffer == into {
                    ours[1].push((view, access));
                }
            }
            let [moved, others] = ours;
            moved.iter().any(|(view, access)| {
                others.iter().any(|(other, by)| {
                    (access.writes() || by.writes()) && ranges_overlap(view, other, &pitches)
                })
            })
        })
    }

    /// Whether source and target can share memory: the target is not accessed before the copy, and neither is
    /// written after it while the other is still used.
    fn can_share(&mut self, copy: usize, source: &View, target: &View) -> bool {
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

    /// The first of these tasks that accesses a part of a view in this way.
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
                let view = self.aliases.resolve(view);
                how(*access) && view.buffer == of.buffer && view.region().touches(&region)
            })
        })
    }

    fn merge(&mut self, copy: usize, merge: Merge) {
        let (gone, into) = (merge.gone.0 as usize, merge.into.buffer.0 as usize);
        self.aliases.0[gone] = Some(merge.into);
        let mut fewer = std::mem::take(&mut self.users[gone]);
        let more = &mut self.users[into];
        // The smaller set is merged into the larger.
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
