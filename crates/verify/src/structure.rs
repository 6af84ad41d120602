//! Well-formedness of programs.

use crate::{Case, Fault};
use partita_program::{Body, Buffer, Dtype, Program, Role, Staging, TaskSite, View};
use partita_space::Bytes;
use std::collections::HashSet;

/// Whether all indices of classes, buffers and tasks are valid, and views are inside their buffers.
pub(crate) fn is_indexable(program: &Program, faults: &mut Vec<Fault>) -> bool {
    let before = faults.len();
    classes(program, faults);
    if faults.len() > before {
        return false;
    }
    let ranks = program.representatives();
    for (class, body) in program.bodies.iter().enumerate() {
        for (id, task) in body.tasks.iter().enumerate() {
            let site = || TaskSite::of(program, class, ranks[class], id);
            for after in task.after.iter().filter(|after| after.0 as usize >= id) {
                let after = after.0;
                faults.push(Fault::WaitsForLater {
                    site: site(),
                    after,
                });
            }
            for (view, _) in task.accesses() {
                faults.extend(view_fault(class, body, &view, || site().to_string()));
            }
        }
        for output in &body.outputs {
            let location = || format!("output `{}`", output.name);
            faults.extend(view_fault(class, body, &output.view, location));
        }
    }
    faults.len() == before
}

fn classes(program: &Program, faults: &mut Vec<Fault>) {
    let (expected, got) = (program.mesh.ranks(), program.class_of.len());
    if expected != got {
        faults.push(Fault::ClassCount { expected, got });
    }
    let classes = program.bodies.len();
    let mut used = vec![false; classes];
    for (rank, &class) in program.class_of.iter().enumerate() {
        match used.get_mut(class as usize) {
            Some(used) => *used = true,
            None => faults.push(Fault::NoSuchClass {
                rank,
                class,
                classes,
            }),
        }
    }
    let unused = (0..classes).filter(|&class| !used[class]);
    faults.extend(unused.map(|class| Fault::ClassUnused { class }));
}

fn view_fault(
    class: usize,
    body: &Body,
    view: &View,
    location: impl Fn() -> String,
) -> Option<Fault> {
    let Some(buffer) = body.buffers.get(view.buffer.0 as usize) else {
        return Some(Fault::NoSuchBuffer {
            class,
            location: location(),
            buffer: view.buffer.0,
            buffers: body.buffers.len(),
        });
    };
    let end = std::array::from_fn(|dim| view.start[dim].saturating_add(view.extent[dim]));
    let inside = (0..5).all(|dim| end[dim] <= buffer.dims[dim]);
    (!inside).then(|| Fault::ViewOutside {
        class,
        location: location(),
        buffer: view.buffer.0,
        name: buffer.name.clone(),
        end,
        dims: buffer.dims,
    })
}

/// Buffers, names, persistent memory, order of `after`, and form of the outputs.
pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let all = case.program.bodies.iter().flat_map(|body| &body.buffers);
    let mut tensors = all.filter_map(|buffer| buffer.tensor.as_ref());
    let has_submeshes = tensors.any(|tensor| tensor.distribution.submesh.is_some());
    for (class, body) in case.checked() {
        for (id, task) in body.tasks.iter().enumerate() {
            if !task.after.is_sorted_by(|a, b| a < b) {
                let site = case.site(class, id);
                faults.push(Fault::WaitsUnsorted { site });
            }
        }
        buffers(case, class, body, faults);
        names(case, class, body, faults);
        outputs(case, class, body, faults);
        staging(case, class, body, faults);
        if class > 0 {
            persistent(case, class, has_submeshes, faults);
        }
    }
}

/// One past the last byte of a buffer; counted wide, since extents may come from a text.
pub(crate) fn end_of(buffer: &Buffer) -> u128 {
    let elements = buffer
        .dims
        .iter()
        .fold(1u128, |all, &dim| all.saturating_mul(dim as u128));
    elements
        .saturating_mul(buffer.dtype.size() as u128)
        .saturating_add(u128::from(buffer.offset.0))
}

fn buffers(case: &Case<'_>, class: usize, body: &Body, faults: &mut Vec<Fault>) {
    let rank = case.representatives[class];
    let mut transient = false;
    for (id, buffer) in body.buffers.iter().enumerate() {
        let (name, offset) = (buffer.name.clone(), buffer.offset);
        let end = end_of(buffer);
        if end > u128::from(body.arena.0) {
            faults.push(Fault::OutsideArena {
                class,
                rank,
                buffer: id,
                name,
                end,
                arena: body.arena,
            });
        } else if offset.0 % 64 != 0 {
            faults.push(Fault::Misaligned {
                class,
                rank,
                buffer: id,
                name,
                offset,
            });
        }
        transient |= !buffer.role.is_persistent();
        if transient && buffer.role.is_persistent() {
            faults.push(Fault::PersistentLate {
                class,
                rank,
                buffer: id,
                name: buffer.name.clone(),
            });
        }
    }
}

/// The pool of each lane holds any one of its tasks, so that none waits for packets for ever.
fn staging(case: &Case<'_>, class: usize, body: &Body, faults: &mut Vec<Fault>) {
    for (id, task) in body.tasks.iter().enumerate() {
        let lane = task.work.lane();
        let (needed, pool) = (
            Staging::needed(task, body, &case.program.mesh),
            body.staging.of_lane(lane),
        );
        if needed > pool {
            faults.push(Fault::StagingSmall {
                site: case.site(class, id),
                lane: lane.name(),
                needed,
                pool,
            });
        }
    }
}

/// Names are unique and single words, as the text form needs them.
fn names(case: &Case<'_>, class: usize, body: &Body, faults: &mut Vec<Fault>) {
    let rank = case.representatives[class];
    let mut fail = |what: String, name: &str, reason| {
        faults.push(Fault::Name {
            class,
            rank,
            what,
            name: name.to_owned(),
            reason,
        });
    };
    let is_word = |name: &str| !name.is_empty() && !name.contains(char::is_whitespace);
    let mut seen = HashSet::new();
    for (id, buffer) in body.buffers.iter().enumerate() {
        if !is_word(&buffer.name) {
            fail(format!("buffer b{id}"), &buffer.name, "is not one word");
        }
        if !seen.insert(&buffer.name) {
            fail(format!("buffer b{id}"), &buffer.name, "is taken");
        }
    }
    let mut seen = HashSet::new();
    for output in &body.outputs {
        if !is_word(&output.name) {
            fail("an output".to_owned(), &output.name, "is not one word");
        }
        if !seen.insert(&output.name) {
            fail("an output".to_owned(), &output.name, "is taken");
        }
    }
    for (id, task) in body.tasks.iter().enumerate() {
        if !is_word(&task.origin.layer) {
            let what = format!("the layer of t{id}");
            fail(what, &task.origin.layer, "is not one word");
        }
    }
}

fn outputs(case: &Case<'_>, class: usize, body: &Body, faults: &mut Vec<Fault>) {
    let rank = case.representatives[class];
    let first = &case.program.bodies[0].outputs;
    let mut fail = |name: &str, reason: String| {
        faults.push(Fault::Output {
            class,
            rank,
            name: name.to_owned(),
            reason,
        });
    };
    for (index, output) in body.outputs.iter().enumerate() {
        let dtype = body.buffer(output.view.buffer).dtype;
        if dtype != Dtype::F64 {
            fail(&output.name, format!("is of {dtype:?}, not of F64"));
        }
        let same = first.get(index).is_some_and(|other| {
            other.name == output.name && other.view.extent == output.view.extent
        });
        if !same {
            fail(&output.name, "is not the one of class 0".to_owned());
        }
    }
    for output in first.iter().skip(body.outputs.len()) {
        fail(&output.name, "of class 0 is missing".to_owned());
    }
}

/// Persistent buffers are the same in all classes: name, role, dtype, extents and offset.
///
/// With uneven splits, staging buffers and those of split tensors may differ in extents, and all after the first
/// such buffer in offsets. With submeshes, classes have different persistent buffers; those of one name must be
/// alike.
fn persistent(case: &Case<'_>, class: usize, has_submeshes: bool, faults: &mut Vec<Fault>) {
    let list = |class: usize| -> Vec<(usize, &Buffer)> {
        let buffers = case.program.bodies[class].buffers.iter().enumerate();
        buffers
            .filter(|(_, buffer)| buffer.role.is_persistent())
            .collect()
    };
    let (theirs, mine) = (list(0), list(class));
    let rank = case.representatives[class];
    let mut fail = |id: usize, name: &str, reason: String| {
        faults.push(Fault::PersistentDiffers {
            class,
            rank,
            buffer: id,
            name: name.to_owned(),
            reason,
        });
    };
    if has_submeshes {
        for &(id, got) in &mine {
            let same = |other: &&Buffer| other.name == got.name;
            let others = theirs.iter().map(|&(_, buffer)| buffer).find(same);
            let kind = |buffer: &Buffer| (buffer.role, buffer.dtype);
            let alike = |other: &Buffer| {
                let is_like = other.dims == got.dims || may_differ(other) || may_differ(got);
                kind(other) == kind(got) && is_like
            };
            if let Some(other) = others.filter(|other| !alike(other)) {
                let other = (other.role, other.dtype, other.dims);
                fail(id, &got.name, format!("is {other:?} in class 0"));
            }
        }
        return;
    }
    let mut aligned = true;
    for (&(_, expected), &(id, got)) in theirs.iter().zip(&mine) {
        if (&expected.name, expected.role, expected.dtype) != (&got.name, got.role, got.dtype) {
            let other = (&expected.name, expected.role, expected.dtype);
            fail(id, &got.name, format!("is {other:?} in class 0"));
            return;
        }
        if aligned && expected.offset != got.offset {
            let Bytes(other) = expected.offset;
            let reason = format!("lies at {}, at {other} in class 0", got.offset.0);
            fail(id, &got.name, reason);
        }
        if expected.dims != got.dims {
            aligned = false;
            if !(may_differ(expected) && may_differ(got)) {
                let reason = format!("has dims {:?}, {:?} in class 0", got.dims, expected.dims);
                fail(id, &got.name, reason);
            }
        }
    }
    for &(id, extra) in mine.iter().skip(theirs.len()) {
        fail(id, &extra.name, "is not in class 0".to_owned());
    }
    for &(id, missing) in theirs.iter().skip(mine.len()) {
        fail(id, &missing.name, "is in class 0 only".to_owned());
    }
}

fn may_differ(buffer: &Buffer) -> bool {
    let split =
        |tensor: &partita_program::TensorRegion| !tensor.distribution.split_axes().is_empty();
    buffer.role == Role::Staging || buffer.tensor.as_ref().is_some_and(split)
}
