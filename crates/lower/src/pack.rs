//! Weights packed once per step.
//!
//! A convolution kernel may need weights in another memory layout. A convolution cut into pieces would pack
//! them once per piece; instead they are packed once before the first piece, where the menu says so:
//!
//! Packed weights fill a buffer of the role `packed_weights`, from the packing to the last reader. Only the
//! implementation knows its contents. `verify` proves that it was packed for what it is used for, and that the
//! weights have not changed since. What a single task packs stays inside that task.
//!
//! ```text
//! convolution_forward x[interior] w           pack_weights        w -> p
//! convolution_forward x[border]   w    ->     convolution_forward x[interior] p
//!                                             convolution_forward x[border]   p
//! ```

use crate::body::Builder;
use crate::fuse::compute;
use crate::strategy::WorkspaceLimit;
use partita_program::{
    Algorithm, BufferId, Direction, Kernel, KernelShape, MenuError, Role, Taps, Task, View, Work,
};
use std::collections::HashMap;

/// What determines packed weights; equal needs share them.
#[derive(PartialEq)]
struct Need {
    w: View,
    direction: Direction,
    taps: Taps,
    groups: usize,
    algorithm: Algorithm,
    elements: usize,
}

/// Tasks with the same need between two updates of the weights.
struct Packing {
    need: Need,
    /// Ascending.
    users: Vec<usize>,
}

impl Builder<'_> {
    /// Packs weights once where two or more tasks need them.
    ///
    /// Errors: a kernel that the menu lacks.
    pub fn pack(&mut self, limit: WorkspaceLimit) -> Result<(), MenuError> {
        let mut packings = self.packings(limit)?;
        packings.retain(|packing| packing.users.len() > 1);
        let mut before: Vec<(usize, Task)> = Vec::with_capacity(packings.len());
        for Packing { need, users, .. } in packings {
            let name = format!("{}.packed", self.body.buffer(need.w.buffer).name);
            let dims = [1, 1, 1, 1, need.elements];
            let role = Role::PackedWeights;
            let id = self.buffer(&name, role, self.dtype.of_role(role), dims);
            let packed = self.whole(id);
            for &user in &users {
                if let Work::Compute { kernel, .. } = &mut self.body.tasks[user].work {
                    take(kernel, packed);
                }
            }
            let kernel = Kernel::PackWeights {
                w: need.w,
                packed,
                direction: need.direction,
                taps: need.taps,
                groups: need.groups,
            };
            let origin = self.body.tasks[users[0]].origin.clone();
            before.push((users[0], compute(origin, kernel)));
        }
        // Packings are in the order of their first users.
        let mut before = before.into_iter().peekable();
        let tasks = std::mem::take(&mut self.body.tasks);
        self.body.tasks.reserve(tasks.len() + before.len());
        for (id, task) in tasks.into_iter().enumerate() {
            let packing = before.next_if(|(first, _)| *first == id);
            self.body.tasks.extend(packing.map(|(_, task)| task));
            self.body.tasks.push(task);
        }
        Ok(())
    }

    fn packings(&self, limit: WorkspaceLimit) -> Result<Vec<Packing>, MenuError> {
        let mut packings: Vec<Packing> = Vec::new();
        // By buffer of the weights, packings of weights that have not changed since.
        let mut open: HashMap<BufferId, Vec<usize>> = HashMap::new();
        for (id, task) in self.body.tasks.iter().enumerate() {
            if let Some(need) = self.need(task, limit)? {
                let open = open.entry(need.w.buffer).or_default();
                match open.iter().find(|&&at| packings[at].need == need) {
                    Some(&at) => packings[at].users.push(id),
                    None => {
                        open.push(packings.len());
                        packings.push(Packing {
                            need,
                            users: vec![id],
                        });
                    }
                }
            }
            for (view, access) in task.accesses() {
                if let Some(open) = open.get_mut(&view.buffer)
                    && access.writes()
                {
                    let shared = |w: &View| w.region().intersect(&view.region());
                    open.retain(|&at| shared(&packings[at].need.w).is_empty());
                }
            }
        }
        Ok(packings)
    }

    fn need(&self, task: &Task, limit: WorkspaceLimit) -> Result<Option<Need>, MenuError> {
        let Work::Compute { kernel, .. } = &task.work else {
            return Ok(None);
        };
        let first = &kernel.parts()[0];
        let (w, direction, taps, groups) =
            if let Kernel::ConvolutionForward {
                w, taps, groups, ..
            } = first
            {
                (w, Direction::Forward, taps, groups)
            } else if let Kernel::ConvolutionBackwardData {
                w, taps, groups, ..
            } = first
            {
                (w, Direction::BackwardData, taps, groups)
            } else {
                return Ok(None);
            };
        let shape = KernelShape {
            kernel,
            buffers: &self.body.buffers,
        };
        if self.wants_plain_weights(&shape, limit) {
            return Ok(None);
        }
        let choice = self.menu.choose(&shape)?;
        Ok((choice.packed_weights > 0).then_some(Need {
            w: *w,
            direction,
            taps: *taps,
            groups: *groups,
            algorithm: choice.algorithm,
            elements: choice.packed_weights,
        }))
    }
}

/// Replaces the weights of the convolution in a kernel by packed ones.
fn take(kernel: &mut Kernel, packed: View) {
    let first = if let Kernel::Fused { parts } = kernel {
        &mut parts[0]
    } else {
        kernel
    };
    if let Kernel::ConvolutionForward { w, .. } | Kernel::ConvolutionBackwardData { w, .. } = first
    {
        *w = packed;
    }
}
