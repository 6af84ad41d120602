//! Liveness of gradients: none is lost.

use crate::memory::without;
use crate::{Case, Fault};
use partita_program::descriptor::Flow;
use partita_program::{Access, Body, Kernel, Role, View, Work};
use partita_space::Region;
use std::collections::BTreeSet;

/// No value is overwritten before it is read, and no sum is left unread; nor a gradient, on ranks that update its
/// parameter. On other ranks it may be a replica, of which only one is sent.
pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    for (class, body) in case.checked() {
        let mut lost = |(task, view): (usize, View), reason| {
            faults.push(Fault::GradientLost {
                site: case.site(class, task),
                spot: case.spot(class, &view),
                reason,
            });
        };
        let walk = Backward::through(body);
        for &at in &walk.overwritten {
            lost(at, "it is overwritten before anything has read it");
        }
        let tensor = |view: &View| case.tensor(class, view).map(|tensor| tensor.id);
        let kernels = body.tasks.iter().flat_map(|task| task.work.kernels());
        let moved: BTreeSet<Option<u32>> = kernels
            .filter_map(|kernel| {
                let Flow::Updates { gradient, .. } = kernel.descriptor().flow else {
                    return None;
                };
                Some(tensor(gradient))
            })
            .collect();
        for &(task, view) in &walk.unread {
            let is_lost = match body.buffer(view.buffer).role {
                Role::Gradient => tensor(&view).is_none() || moved.contains(&tensor(&view)),
                Role::Statistics => is_summed(body, task, &view),
                Role::Parameter
                | Role::State
                | Role::Constant
                | Role::Optimizer
                | Role::Average
                | Role::Staging
                | Role::Activation
                | Role::ActivationGradient
                | Role::PackedWeights
                | Role::Gathered
                | Role::Workspace => false,
            };
            if is_lost {
                lost((task, view), "nothing reads it after that");
            }
        }
    }
}

/// Whether a task computes a sum, and does not only copy it.
fn is_summed(body: &Body, task: usize, view: &View) -> bool {
    let sums = |part: &Kernel| {
        let descriptor = part.descriptor();
        let mut operands = descriptor.operands.iter();
        let writes = operands.any(|to| to.access.writes() && to.view.buffer == view.buffer);
        writes && !matches!(descriptor.flow, Flow::Copies { .. })
    };
    body.tasks[task].work.kernels().iter().any(sums)
}

/// Gradients of parameters that are not read after their last write, with the writing tasks.
pub(crate) fn unread(body: &Body) -> Vec<(usize, View)> {
    let mut unread = Backward::through(body).unread;
    unread.retain(|(_, view)| body.buffer(view.buffer).role == Role::Gradient);
    unread
}

/// A backward liveness analysis of a body.
struct Backward {
    /// Regions that are overwritten before they are read.
    dead: Vec<Vec<Region>>,
    /// Regions that are neither written nor read any more.
    idle: Vec<Vec<Region>>,
    overwritten: Vec<(usize, View)>,
    unread: Vec<(usize, View)>,
}

impl Backward {
    fn through(body: &Body) -> Self {
        let whole = |(id, buffer): (usize, &partita_program::Buffer)| {
            vec![buffer.view(partita_program::BufferId(id as u32)).region()]
        };
        let mut walk = Self {
            dead: vec![Vec::new(); body.buffers.len()],
            idle: body.buffers.iter().enumerate().map(whole).collect(),
            overwritten: Vec::new(),
            unread: Vec::new(),
        };
        for output in &body.outputs {
            walk.pass(output.view.buffer.0 as usize, &output.view.region());
        }
        for (task, entry) in body.tasks.iter().enumerate().rev() {
            let steps: Vec<(bool, Vec<(View, Access)>)> = match &entry.work {
                Work::Compute { kernel, .. } => {
                    let parts = kernel.parts().iter().map(Kernel::descriptor);
                    // Zeros may be overwritten.
                    parts
                        .map(|part| (part.is_zero(), part.accesses()))
                        .collect()
                }
                Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => {
                    vec![(false, entry.accesses())]
                }
            };
            for (is_zero, mut accesses) in steps.into_iter().rev() {
                accesses.retain(|(view, _)| is_followed(body, view));
                walk.step((!is_zero).then_some(task), &accesses);
            }
        }
        walk
    }

    /// `task` is given where a lost write is a fault.
    fn step(&mut self, task: Option<usize>, accesses: &[(View, Access)]) {
        for (view, access) in accesses {
            if !access.writes() {
                continue;
            }
            let (id, region) = (view.buffer.0 as usize, view.region());
            let touches = |all: &[Region]| all.iter().any(|one| one.touches(&region));
            if touches(&self.dead[id]) {
                self.overwritten.extend(task.map(|task| (task, *view)));
            }
            if touches(&self.idle[id]) {
                self.unread.extend(task.map(|task| (task, *view)));
            }
            self.pass(id, &region);
            if *access == Access::Write {
                self.dead[id].push(region);
            }
        }
        for (view, access) in accesses {
            if access.reads() {
                self.pass(view.buffer.0 as usize, &view.region());
            }
        }
    }

    fn pass(&mut self, id: usize, region: &Region) {
        for all in [&mut self.dead[id], &mut self.idle[id]] {
            *all = without(std::mem::take(all), region);
        }
    }
}

fn is_followed(body: &Body, view: &View) -> bool {
    let is_value = match body.buffer(view.buffer).role {
        Role::Gradient | Role::ActivationGradient | Role::Statistics | Role::Activation => true,
        Role::Parameter
        | Role::State
        | Role::Constant
        | Role::Optimizer
        | Role::Average
        | Role::Staging
        | Role::PackedWeights
        | Role::Gathered
        | Role::Workspace => false,
    };
    is_value && !view.is_empty()
}
