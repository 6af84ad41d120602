//! Write-back of updated parameters.

use crate::memory::without;
use crate::{Case, Fault};
use partita_program::descriptor::Flow;
use partita_program::{Body, Role, View};

/// An update of a copy of a parameter is written back to all of its persistent buffers.
pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    for (class, body) in case.checked() {
        for (id, task) in body.tasks.iter().enumerate() {
            for part in task.work.kernels() {
                let Flow::Updates {
                    parameter: moved, ..
                } = part.descriptor().flow
                else {
                    continue;
                };
                if body.buffer(moved.buffer).role.is_persistent() {
                    continue;
                }
                let tensor = body.buffer(moved.buffer).tensor;
                let tensor = tensor.map(|tensor| tensor.id);
                let kept = (0..body.buffers.len()).filter(|&at| {
                    let buffer = &body.buffers[at];
                    let same = buffer.tensor.map(|tensor| tensor.id) == tensor;
                    buffer.role == Role::Parameter && same && tensor.is_some()
                });
                let mut kept = kept.peekable();
                let lost = kept.peek().is_none()
                    || kept.any(|buffer| !is_replaced(body, id, moved, buffer));
                if lost {
                    faults.push(Fault::UpdateLost {
                        site: case.site(class, id),
                        spot: case.spot(class, moved),
                    });
                }
            }
        }
    }
}

/// Whether later tasks that read the update overwrite a buffer.
fn is_replaced(body: &Body, after: usize, moved: &View, buffer: usize) -> bool {
    let mut open = vec![
        body.buffers[buffer]
            .view(partita_program::BufferId(buffer as u32))
            .region(),
    ];
    for task in &body.tasks[after + 1..] {
        let accesses = task.accesses();
        let reads = accesses
            .iter()
            .any(|(view, access)| access.reads() && view.buffer == moved.buffer);
        for (view, access) in accesses {
            if reads && access.writes() && view.buffer.0 as usize == buffer {
                open = without(open, &view.region());
            }
        }
    }
    open.iter().all(|region| region.is_empty())
}
