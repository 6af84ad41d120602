//! No repetition: a layer in place changes its elements once, an activation gradient contributes once to the
//! gradient of a parameter, and contributions to an activation gradient are not overwritten.
//!
//! Detects tasks that access the tensor of another micro-batch.

use crate::memory::without;
use crate::{Case, Fault};
use partita_program::{Access, Body, BufferId, Kernel, Role, View, Work};
use partita_space::Region;
use std::collections::HashMap;

pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    for (class, body) in case.checked() {
        let mut interpreter = Interpreter {
            body,
            in_place: HashMap::new(),
            contributions: HashMap::new(),
            written: HashMap::new(),
            repeated: Vec::new(),
        };
        for (id, task) in body.tasks.iter().enumerate() {
            match &task.work {
                Work::Compute { kernel, .. } => {
                    kernel
                        .parts()
                        .iter()
                        .for_each(|part| interpreter.kernel(id, part));
                }
                Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => {
                    let accesses = task.accesses();
                    interpreter.write_anew(&accesses);
                    interpreter.receive_gradients(id, &accesses);
                }
            }
        }
        faults.extend(
            interpreter
                .repeated
                .into_iter()
                .map(|again| Fault::Repeated {
                    site: case.site(class, again.task),
                    spot: case.spot(class, &again.view),
                    first: case.site(class, again.first),
                }),
        );
    }
}

/// A task that repeats what another one has done to a view.
struct Repetition {
    task: usize,
    view: View,
    first: usize,
}

struct Interpreter<'p> {
    body: &'p Body,
    /// Regions of tensors changed in place since they were written, with the tasks.
    in_place: HashMap<BufferId, Vec<(Region, usize)>>,
    /// By activation gradient and gradient of a parameter: regions of both, and the tasks.
    contributions: HashMap<[BufferId; 2], Vec<([Region; 2], usize)>>,
    /// Regions of activation gradients written by kernels or messages, with the tasks.
    written: HashMap<BufferId, Vec<(Region, usize)>>,
    repeated: Vec<Repetition>,
}

impl Interpreter<'_> {
    fn kernel(&mut self, task: usize, kernel: &Kernel) {
        let descriptor = kernel.descriptor();
        let (is_zero, accesses) = (descriptor.is_zero(), descriptor.accesses());
        let (of_tensors, others): (Vec<_>, Vec<_>) = accesses
            .iter()
            .partition(|(view, access)| *access == Access::Write && is_in_place(&accesses, view));
        self.write_anew(&others);
        for (view, access) in &others {
            let role = self.body.buffer(view.buffer).role;
            if *access == Access::Write && role == Role::ActivationGradient {
                self.write_gradient(task, view, is_zero);
            }
        }
        for (view, _) in of_tensors {
            self.change(task, &view);
        }
        for dy in self.with_role(&accesses, Role::ActivationGradient) {
            for target in self.with_role(&accesses, Role::Gradient) {
                self.contribute(task, dy, target);
            }
        }
    }

    fn with_role(&self, accesses: &[(View, Access)], role: Role) -> Vec<View> {
        let views = accesses.iter().map(|(view, _)| *view);
        views
            .filter(|view| self.body.buffer(view.buffer).role == role && !view.is_empty())
            .collect()
    }

    fn write_anew(&mut self, accesses: &[(View, Access)]) {
        for (view, access) in accesses {
            if let (Access::Write, Some(known)) = (access, self.in_place.get_mut(&view.buffer)) {
                let old = std::mem::take(known).into_iter();
                known.extend(old.flat_map(|(region, task)| {
                    let left = without(vec![region], &view.region());
                    left.into_iter().map(move |region| (region, task))
                }));
            }
        }
    }

    /// Whether two tasks belong to the same layer and phase.
    fn is_same(body: &Body, one: usize, other: usize) -> bool {
        let [one_of, other_of] = [one, other].map(|task| &body.tasks[task].origin);
        one != other && one_of.layer == other_of.layer && one_of.phase == other_of.phase
    }

    fn change(&mut self, task: usize, view: &View) {
        let region = view.region();
        let known = self.in_place.entry(view.buffer).or_default();
        let again = known.iter().find(|(changed, first)| {
            Self::is_same(self.body, *first, task) && changed.touches(&region)
        });
        self.repeated.extend(again.map(|&(_, first)| Repetition {
            task,
            view: *view,
            first,
        }));
        known.push((region, task));
    }

    /// Contributions of other layers to an activation gradient must not be overwritten.
    fn write_gradient(&mut self, task: usize, view: &View, is_zero: bool) {
        let region = view.region();
        let known = self.written.entry(view.buffer).or_default();
        if is_zero {
            let old = std::mem::take(known).into_iter();
            known.extend(old.flat_map(|(written, task)| {
                let left = without(vec![written], &region);
                left.into_iter().map(move |region| (region, task))
            }));
            return;
        }
        let first = known.iter().find(|(written, _)| written.touches(&region));
        self.repeated.extend(first.map(|&(_, first)| Repetition {
            task,
            view: *view,
            first,
        }));
        known.push((region, task));
    }

    /// Messages may overwrite a halo whose contributions have been sent to the owner.
    fn receive_gradients(&mut self, task: usize, accesses: &[(View, Access)]) {
        for (view, access) in accesses {
            let role = self.body.buffer(view.buffer).role;
            if *access == Access::Write && role == Role::ActivationGradient {
                let known = self.written.entry(view.buffer).or_default();
                known.push((view.region(), task));
            }
        }
    }

    fn contribute(&mut self, task: usize, dy: View, target: View) {
        let regions = [dy.region(), target.region()];
        let known = self
            .contributions
            .entry([dy.buffer, target.buffer])
            .or_default();
        let again = known.iter().find(|(known, first)| {
            let mut both = known.iter().zip(&regions);
            Self::is_same(self.body, *first, task) && both.all(|(a, b)| a.touches(b))
        });
        self.repeated.extend(again.map(|&(_, first)| Repetition {
            task,
            view: dy,
            first,
        }));
        known.push((regions, task));
    }
}

/// Whether a kernel reads what it overwrites.
fn is_in_place(accesses: &[(View, Access)], written: &View) -> bool {
    let region = written.region();
    accesses.iter().any(|(view, access)| {
        *access == Access::Read && view.buffer == written.buffer && view.region().touches(&region)
    })
}
