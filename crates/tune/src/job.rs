//! Kernels taken out of programs, to be measured one by one.

use crate::TuneError;
use crate::reuse::{Held, at_hand, buffers_of};
use partita_oracle::Features;
use partita_program::{
    Access, Algorithm, Body, Buffer, Kernel, KernelShape, Program, Task, View, Work,
};
use partita_space::{Bytes, Mesh, Rank, Seconds};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What is measured as one: kernels of equal keys take equal time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelKey {
    /// [`KernelShape::signature`].
    pub signature: String,
    /// The implementation.
    pub algorithm: String,
}

/// A kernel taken out of its body, with memory of its own.
pub(crate) struct Job {
    pub key: KernelKey,
    pub features: Features,
    pub mesh: Mesh,
    /// A rank that runs it.
    pub rank: Rank,
    /// The buffers of its body, of which only its own have room in the arena; one task.
    pub body: Body,
    /// Samples of a step.
    pub batch: usize,
    /// Bytes that the rest of a step moves through the caches.
    pub rest: Bytes,
    /// What it touches that caches still hold when a step comes to it, that touched longest ago first, and
    /// about how long ago.
    pub warm: Vec<(View, Seconds)>,
    /// Buffers whose contents it changes and depends on.
    pub renewed: Vec<View>,
}

impl Job {
    pub fn kernel(&self) -> (&Kernel, &Algorithm, Option<&View>) {
        match &self.body.tasks[0].work {
            Work::Compute {
                kernel,
                algorithm,
                workspace,
            } => (kernel, algorithm, workspace.as_ref()),
            Work::Exchange(_) | Work::Collective(_) | Work::Load(_) => {
                panic!("a job holds a kernel")
            }
        }
    }
}

/// The kernels of all programs, each key once, without those already known; `cache` is what the caches of
/// a rank hold.
pub(crate) fn jobs(
    programs: &[&Program],
    is_known: &dyn Fn(&KernelKey) -> bool,
    cache: Bytes,
) -> Result<Vec<Job>, TuneError> {
    let mut seen = BTreeSet::new();
    let mut jobs = Vec::new();
    for program in programs {
        let mut found: BTreeMap<KernelKey, Vec<Occurrence<'_>>> = BTreeMap::new();
        let mut order = Vec::new();
        for (body, rank) in program.bodies.iter().zip(program.representatives()) {
            let mut held: Option<Vec<Vec<Held>>> = None;
            for (id, task) in body.tasks.iter().enumerate() {
                let Work::Compute {
                    kernel, algorithm, ..
                } = &task.work
                else {
                    continue;
                };
                let shape = KernelShape {
                    kernel,
                    buffers: &body.buffers,
                };
                let key = KernelKey {
                    signature: shape.signature(),
                    algorithm: algorithm.0.clone(),
                };
                if is_known(&key) || seen.contains(&key) {
                    continue;
                }
                if !algorithm.is_pinned() {
                    let signature = key.signature;
                    return Err(TuneError::Unpinned { signature });
                }
                let held = held.get_or_insert_with(|| at_hand(body, cache));
                let one = Occurrence {
                    rank,
                    body,
                    task,
                    held: std::mem::take(&mut held[id]),
                };
                let all = found.entry(key.clone()).or_default();
                if all.is_empty() {
                    order.push(key);
                }
                all.push(one);
            }
        }
        for key in order {
            let one = typical(found.remove(&key).expect("what was found is kept"));
            jobs.push(one.job(key.clone(), program));
            seen.insert(key);
        }
    }
    Ok(jobs)
}

/// A kernel where a body has it.
struct Occurrence<'p> {
    rank: Rank,
    body: &'p Body,
    task: &'p Task,
    held: Vec<Held>,
}

impl Occurrence<'_> {
    fn job(self, key: KernelKey, program: &Program) -> Job {
        let Self { body, task, .. } = self;
        let Work::Compute { kernel, .. } = &task.work else {
            panic!("an occurrence is of a kernel")
        };
        let shape = KernelShape {
            kernel,
            buffers: &body.buffers,
        };
        let accesses = task.accesses();
        let own = buffers_of(task);
        let (buffers, arena) = packed(&body.buffers, &own);
        let is_written = |id: u32| {
            accesses
                .iter()
                .any(|(view, access)| view.buffer.0 == id && *access != Access::Read)
        };
        let is_read = |id: u32| {
            accesses
                .iter()
                .any(|(view, access)| view.buffer.0 == id && *access != Access::Write)
        };
        let whole = |&id: &u32| buffers[id as usize].view(partita_program::BufferId(id));
        let renewed = own.iter().filter(|id| is_read(**id) && is_written(**id));
        let renewed = renewed.map(whole).collect();
        let warm = self.held.iter();
        let warm = warm.map(|held| (whole(&held.buffer), held.age)).collect();
        Job {
            key,
            features: Features::of(&shape),
            mesh: program.mesh,
            rank: self.rank,
            batch: program.batch,
            rest: Bytes(body.arena.0.saturating_sub(arena.0)),
            warm,
            renewed,
            body: Body {
                buffers,
                tasks: vec![Task {
                    origin: task.origin.clone(),
                    after: Vec::new(),
                    work: task.work.clone(),
                }],
                arena,
                ..Body::default()
            },
        }
    }
}

/// That of which caches hold neither most nor least: the first of many micro-batches, for one, may find
/// what all the others do not.
fn typical(mut all: Vec<Occurrence<'_>>) -> Occurrence<'_> {
    let held = |one: &Occurrence<'_>| -> u64 {
        let buffers = one.held.iter().map(|held| held.buffer as usize);
        buffers.map(|id| one.body.buffers[id].bytes().0).sum()
    };
    all.sort_by_key(held);
    all.swap_remove((all.len() - 1) / 2)
}

/// The same buffers, those in `own` one after the other from the start of the arena, the others empty.
fn packed(buffers: &[Buffer], own: &BTreeSet<u32>) -> (Vec<Buffer>, Bytes) {
    let mut buffers = buffers.to_vec();
    for (id, buffer) in buffers.iter_mut().enumerate() {
        if !own.contains(&(id as u32)) {
            buffer.dims = [0; 5];
            buffer.offset = Bytes(0);
        }
    }
    let mut end = 0;
    for &id in own {
        let buffer = &mut buffers[id as usize];
        buffer.offset = Bytes(end);
        // Where lowering places a buffer is a multiple of 64 bytes too.
        end = (end + buffer.bytes().0).next_multiple_of(64);
    }
    (buffers, Bytes(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reuse::tests::copies;

    /// A kernel that many tasks have is measured as it is found most of the time: here twice cold and
    /// once with what the task before it has touched.
    #[test]
    fn the_middle_of_what_caches_hold_is_measured() {
        let body = copies(&[[0, 1], [1, 2], [2, 3], [0, 4], [5, 1]]);
        let held = at_hand(&body, Bytes(1 << 16));
        let count = [1, 3, 4].map(|at: usize| held[at].len());
        assert_eq!(count, [1, 0, 0]);
        let occurrence = |at: usize| Occurrence {
            rank: at,
            body: &body,
            task: &body.tasks[at],
            held: held[at].clone(),
        };
        let all = [1, 3, 4].map(occurrence).into_iter().collect();
        assert!(typical(all).held.is_empty());
        let all = [1, 3, 0].map(occurrence).into_iter().collect();
        assert_eq!(typical(all).held.len(), 1);
    }
}
