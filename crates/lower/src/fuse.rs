//! Kernel fusion.
//!
//! Bias, activations, additions, batch norm and its statistics are fused as epilogues of the preceding
//! convolution, and derivatives of activations as epilogues of gradient kernels. Copies are removed where source
//! and target can share memory, and all parameters are updated in one task. The menu decides which kernels can
//! be fused.
//!
//! A `Kernel::Fused` is defined as its parts, one after the other: the reference kernels compute it so, and its
//! flops are those of the parts. Its bytes are what passes between the whole and memory. A run compares the flops
//! with what its loops did, but not the bytes, since no loop sees which of them reach memory. Where a kernel was
//! cut into interior and border, fusion goes box by box. What the menu does not offer as one kernel stays apart.
//! Inputs of a concatenation are computed in place, as views with gaps, where no other reader can tell.
//!
//! In training, batch norm is applied in a pass of its own, with the activation and addition after it. Its moments
//! are not known before the convolution in front of it ends, and the convolution behind it would have to normalize
//! every input that it loads, once per 64 output channels and tap: more instructions than the pass costs in memory.
//!
//! Whatever sums elements of a replicated tensor is a kernel of its own, in the same order on all ranks
//! (`fuse/attach`), so replicas stay equal bit by bit. `fuse=off` in a strategy turns all fusion off.

mod attach;
mod copies;

use partita_program::{
    Access, Body, BufferId, Kernel, KernelShape, Menu, Optimizer, Origin, Task, View, Work,
};
use partita_space::Mesh;
use std::collections::BTreeSet;

/// Fuses the kernels that the menu offers fused, and drops unused buffers.
///
/// `world` is the mesh of all ranks.
pub(crate) fn fuse(body: &mut Body, menu: &dyn Menu, world: &Mesh) {
    copies::remove(body);
    if menu.fuses() {
        let mut fusion = Fusion::new(body, menu, world);
        for slot in 0..fusion.slots.len() {
            fusion.attach(slot);
            fusion.join_bias(slot);
        }
        fusion.join_updates();
        body.tasks = fusion.slots.into_iter().flatten().collect();
    }
    drop_unused(body);
}

/// The tasks of a body during fusion. A slot holds what is left of the task at this index.
struct Fusion<'a> {
    body: &'a Body,
    slots: Vec<Vec<Task>>,
    /// The accesses of each slot.
    accesses: Vec<Vec<(View, Access)>>,
    /// For each buffer the slots that access it.
    users: Vec<BTreeSet<usize>>,
    /// For each buffer the slots that write it.
    writers: Vec<BTreeSet<usize>>,
    menu: &'a dyn Menu,
    world: Mesh,
}

impl<'a> Fusion<'a> {
    fn new(body: &'a mut Body, menu: &'a dyn Menu, world: &Mesh) -> Self {
        let tasks = std::mem::take(&mut body.tasks);
        let body = &*body;
        let mut fusion = Self {
            body,
            slots: vec![Vec::new(); tasks.len()],
            accesses: vec![Vec::new(); tasks.len()],
            users: vec![BTreeSet::new(); body.buffers.len()],
            writers: vec![BTreeSet::new(); body.buffers.len()],
            menu,
            world: *world,
        };
        for (slot, task) in tasks.into_iter().enumerate() {
            fusion.put(slot, vec![task]);
        }
        fusion
    }

    /// Replaces the tasks of a slot.
    fn put(&mut self, slot: usize, tasks: Vec<Task>) {
        for (view, _) in &self.accesses[slot] {
            self.users[view.buffer.0 as usize].remove(&slot);
            self.writers[view.buffer.0 as usize].remove(&slot);
        }
        self.accesses[slot] = tasks.iter().flat_map(Task::accesses).collect();
        self.slots[slot] = tasks;
        for (view, access) in &self.accesses[slot] {
            self.users[view.buffer.0 as usize].insert(slot);
            if access.writes() {
                self.writers[view.buffer.0 as usize].insert(slot);
            }
        }
    }

    /// The kernel of a slot with a single task.
    fn kernel(&self, slot: usize) -> Option<&Kernel> {
        match &self.slots[slot][..] {
            [task] => match &task.work {
                Work::Compute { kernel, .. } => Some(kernel),
                Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
            },
            _ => None,
        }
    }

    fn users(&self, buffer: BufferId) -> &BTreeSet<usize> {
        &self.users[buffer.0 as usize]
    }

    /// Whether a task between conflicts with moving a kernel from a slot to right after an earlier one.
    fn conflicts(&self, kernel: &Kernel, earlier: usize, slot: usize) -> bool {
        kernel.accesses().iter().any(|(view, access)| {
            // Readers conflict with writers only.
            let others = if access.writes() {
                &self.users
            } else {
                &self.writers
            };
            let between = others[view.buffer.0 as usize].range(earlier + 1..slot);
            between
                .flat_map(|&other| &self.accesses[other])
                .any(|(other, by)| {
                    (access.writes() || by.writes())
                        && other.buffer == view.buffer
                        && other.region().touches(&view.region())
                })
        })
    }

    /// The fused kernel, if the menu offers it and it overwrites none of its operands.
    fn offered(&self, parts: Vec<Kernel>) -> Option<Kernel> {
        let fused = Kernel::Fused { parts };
        let mut accesses = fused.accesses();
        accesses.sort_by_key(|(view, _)| view.buffer);
        let mut by_buffer = accesses.chunk_by(|(view, _), (other, _)| view.buffer == other.buffer);
        let clash = by_buffer.any(|of_one| {
            of_one.iter().enumerate().any(|(i, (view, access))| {
                of_one[..i].iter().any(|(other, by)| {
                    let pitches = self.body.buffer(view.buffer).pitches();
                    (access.writes() || by.writes())
                        && ranges_overlap(other, view, &pitches)
                        && !(other == view
                            && !(access.writes() && by.writes())
                            && fused.is_elementwise())
                })
            })
        });
        let shape = KernelShape {
            kernel: &fused,
            buffers: &self.body.buffers,
        };
        (!clash && self.menu.choose(&shape).is_ok()).then_some(fused)
    }

    fn with_kernel(&self, slot: usize, kernel: Kernel) -> Task {
        compute(self.slots[slot][0].origin.clone(), kernel)
    }

    /// Fuses the gradient of a bias with that of the weights, which reads the same view.
    fn join_bias(&mut self, slot: usize) {
        let Some(kernel) = self.kernel(slot).cloned() else {
            return;
        };
        let Kernel::BiasBackward { dy, .. } = kernel else {
            return;
        };
        let reads_dy = |part: &Kernel| {
            matches!(part, Kernel::ConvolutionBackwardWeight { dy: other, .. }
                | Kernel::LinearBackwardWeight { dy: other, .. } if *other == dy)
        };
        let earlier = self.users(dy.buffer).range(..slot).rev();
        let mut single = earlier.filter_map(|&host| Some((host, self.kernel(host)?.parts())));
        let Some((host, parts)) = single.find(|(_, parts)| parts.iter().any(reads_dy)) else {
            return;
        };
        if self.conflicts(&kernel, host, slot) {
            return;
        }
        if let Some(fused) = self.offered([parts, &[kernel]].concat()) {
            let task = self.with_kernel(host, fused);
            self.put(host, vec![task]);
            self.put(slot, Vec::new());
        }
    }

    /// Fuses all updates by one rule into the last of them, and so all averages.
    fn join_updates(&mut self) {
        let mut rules: Vec<Optimizer> = Vec::new();
        for slot in 0..self.slots.len() {
            if let Some(Kernel::Update { rule, .. }) = self.kernel(slot)
                && !rules.contains(rule)
            {
                rules.push(*rule);
            }
        }
        for rule in rules {
            self.join_updates_by(&rule);
        }
        self.join_all(|kernel| matches!(kernel, Kernel::Average { .. }));
    }

    fn join_updates_by(&mut self, rule: &Optimizer) {
        self.join_all(|kernel| matches!(kernel, Kernel::Update { rule: own, .. } if own == rule));
    }

    /// Fuses all kernels of a kind into the last of them.
    fn join_all(&mut self, is_one: impl Fn(&Kernel) -> bool) {
        let updates: Vec<usize> = (0..self.slots.len())
            .filter(|&slot| self.kernel(slot).is_some_and(&is_one))
            .collect();
        let Some((&last, earlier)) = updates.split_last() else {
            return;
        };
        let parts: Vec<Kernel> = updates
            .iter()
            .filter_map(|&slot| self.kernel(slot).cloned())
            .collect();
        let mut waiting = earlier.iter().zip(&parts);
        if earlier.is_empty() || waiting.any(|(&slot, kernel)| self.conflicts(kernel, slot, last)) {
            return;
        }
        if let Some(fused) = self.offered(parts) {
            for &slot in earlier {
                self.put(slot, Vec::new());
            }
            let mut task = self.with_kernel(last, fused);
            task.origin.layer = "parameters".to_owned();
            self.put(last, vec![task]);
        }
    }
}

/// Whether the address ranges of two views of a buffer overlap.
fn ranges_overlap(view: &View, other: &View, pitches: &[usize; 5]) -> bool {
    let ends = |view: &View| {
        let at = |index: &dyn Fn(usize) -> usize| -> usize {
            (0..5).map(|dim| index(dim) * pitches[dim]).sum()
        };
        let last = at(&|dim| view.start[dim] + view.extent[dim].max(1) - 1);
        (at(&|dim| view.start[dim]), last)
    };
    let (a, b) = (ends(view), ends(other));
    !view.is_empty() && !other.is_empty() && a.0 <= b.1 && b.0 <= a.1
}

/// A kernel whose implementation is chosen later.
pub(crate) fn compute(origin: Origin, kernel: Kernel) -> Task {
    Task {
        origin,
        after: Vec::new(),
        work: Work::Compute {
            kernel,
            algorithm: partita_program::Algorithm::unpinned(),
            workspace: None,
        },
    }
}

/// Drops transient buffers that no task accesses, and renumbers the others.
fn drop_unused(body: &mut Body) {
    let mut used: Vec<bool> = body
        .buffers
        .iter()
        .map(|buffer| buffer.role.is_persistent())
        .collect();
    for task in &mut body.tasks {
        task.each_view_mut(&mut |view| used[view.buffer.0 as usize] = true);
    }
    for output in &body.outputs {
        used[output.view.buffer.0 as usize] = true;
    }
    let mut next = 0;
    let numbers: Vec<BufferId> = used
        .iter()
        .map(|&used| {
            let id = BufferId(next);
            next += u32::from(used);
            id
        })
        .collect();
    let mut kept = used.iter();
    body.buffers.retain(|_| kept.next() == Some(&true));
    let mut renumber = |view: &mut View| view.buffer = numbers[view.buffer.0 as usize];
    for task in &mut body.tasks {
        task.each_view_mut(&mut renumber);
    }
    for output in &mut body.outputs {
        renumber(&mut output.view);
    }
}
