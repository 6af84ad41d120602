use partita_program::{Access, Body, Buffer, BufferId, Kernel, Task, View, Work};

/// Removes copies of tensors where source and target may be one memory: a buffer that the copy takes
/// or fills whole becomes part of the other one.
pub(super) fn remove(body: &mut Body) {
    let mut at = 0;
    while at < body.tasks.len() {
        if let Some(merge) = mergeable(body, at) {
            let mut rename = |view: &mut View| merge.rename(view);
            body.tasks.remove(at);
            for task in &mut body.tasks {
                task.each_view_mut(&mut rename);
            }
        } else {
            at += 1;
        }
    }
}

/// A buffer that becomes part of another.
struct Merge {
    gone: BufferId,
    into: View,
}

impl Merge {
    fn rename(&self, view: &mut View) {
        if view.buffer == self.gone {
            view.buffer = self.into.buffer;
            for dim in 0..5 {
                view.start[dim] += self.into.start[dim];
            }
        }
    }
}

fn mergeable(body: &Body, copy: usize) -> Option<Merge> {
    let Work::Compute {
        kernel:
            Kernel::Copy {
                source,
                target,
                accumulate: false,
            },
        ..
    } = &body.tasks[copy].work
    else {
        return None;
    };
    if source.extent != target.extent || source.buffer == target.buffer {
        return None;
    }
    let (from, to) = (body.buffer(source.buffer), body.buffer(target.buffer));
    let same_place = match (&from.home, &to.home) {
        (Some(a), Some(b)) => a.place == b.place,
        _ => false,
    };
    if from.role != to.role || !same_place || from.role.is_persistent() {
        return None;
    }
    let merge = if is_whole(from, source) && !moves(body, source.buffer) {
        Merge {
            gone: source.buffer,
            into: *target,
        }
    } else if is_whole(to, target) && !moves(body, target.buffer) {
        Merge {
            gone: target.buffer,
            into: *source,
        }
    } else {
        return None;
    };
    is_harmless(body, copy, source, target).then_some(merge)
}

fn is_whole(buffer: &Buffer, view: &View) -> bool {
    buffer.dims == view.extent
}

/// Whether other ranks, or whoever reads the outputs, see a buffer under its name.
fn moves(body: &Body, buffer: BufferId) -> bool {
    let is_it = |view: &View| view.buffer == buffer;
    let in_task = |task: &Task| match &task.work {
        Work::Compute { .. } => false,
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) => {
            task.accesses().iter().any(|(view, _)| is_it(view))
        }
    };
    body.tasks.iter().any(in_task) || body.outputs.iter().any(|output| is_it(&output.view))
}

/// Whether nothing can tell the target from the source: nobody touches the target before the copy or
/// the source's memory under its name after one of them has been written.
fn is_harmless(body: &Body, copy: usize, source: &View, target: &View) -> bool {
    let touches = |range: std::ops::Range<usize>, of: &View| -> Vec<(usize, Access)> {
        let tasks = range.flat_map(|id| {
            let accesses = body.tasks[id].accesses();
            accesses.into_iter().map(move |access| (id, access))
        });
        tasks
            .filter(|(_, (view, _))| {
                view.buffer == of.buffer && !view.region().intersect(&of.region()).is_empty()
            })
            .map(|(id, (_, access))| (id, access))
            .collect()
    };
    let count = body.tasks.len();
    let before = touches(0..copy, target);
    let of_source = touches(copy + 1..count, source);
    let of_target = touches(copy + 1..count, target);
    let first_write = of_target
        .iter()
        .filter(|(_, access)| access.writes())
        .map(|(id, _)| *id)
        .min();
    let last_read = of_source.iter().map(|(id, _)| *id).max();
    before.is_empty()
        && of_source.iter().all(|(_, access)| !access.writes())
        && first_write.is_none_or(|write| last_read.is_none_or(|read| read < write))
}
