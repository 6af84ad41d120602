//! Benchmarks of kernels, extracted from programs.

use crate::TuneError;
use crate::cache_residency::{Resident, buffers_of, resident_operands};
use partita_oracle::{Features, rough_seconds};
use partita_program::{
    Access, Algorithm, Body, Buffer, Count, Kernel, KernelShape, Program, Task, View, Work,
};
use partita_space::{Bytes, Mesh, Rank, Seconds};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Identity of a kernel: those with equal keys take equal time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelKey {
    /// [`KernelShape::signature`].
    pub signature: String,
    /// The implementation.
    pub algorithm: String,
}

/// A kernel extracted from its body, with its own arena.
pub(crate) struct KernelBenchmark {
    pub key: KernelKey,
    pub features: Features,
    /// A guess of its seconds in a step, all occurrences together, to compare kernels.
    pub weight: f64,
    pub mesh: Mesh,
    /// A rank that runs it.
    pub rank: Rank,
    /// One task, and the buffers of the original body, of which the arena has those of the task alone.
    pub body: Body,
    /// Batch size.
    pub batch: usize,
    /// Bytes of the other buffers of a step, which pass through the caches.
    pub other_bytes: Bytes,
    /// Operands that are in the caches when a step reaches the kernel, least recently used first, each with
    /// the time since its last access.
    pub warm: Vec<(View, Seconds)>,
    /// Buffers that it reads and writes.
    pub read_write: Vec<View>,
}

impl KernelBenchmark {
    pub fn kernel(&self) -> (&Kernel, &Algorithm, Option<&View>) {
        match &self.body.tasks[0].work {
            Work::Compute {
                kernel,
                algorithm,
                workspace,
            } => (kernel, algorithm, workspace.as_ref()),
            Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => {
                panic!("a benchmark has a kernel")
            }
        }
    }

    /// Bytes of the workspace, 0 without one.
    pub fn workspace_bytes(&self) -> Bytes {
        let (_, _, workspace) = self.kernel();
        workspace.map_or(Bytes(0), |view| view.bytes(&self.body.buffers))
    }
}

/// The kernels of all programs, each key once, without known ones. `cache` is the size of the caches of a rank.
pub(crate) fn benchmarks(
    programs: &[&Program],
    is_known: &dyn Fn(&KernelKey) -> bool,
    cache: Bytes,
) -> Result<Vec<KernelBenchmark>, TuneError> {
    let mut seen = BTreeSet::new();
    let mut benchmarks = Vec::new();
    for program in programs {
        let mut found: BTreeMap<KernelKey, Vec<Occurrence<'_>>> = BTreeMap::new();
        let mut order = Vec::new();
        for (body, rank) in program.bodies.iter().zip(program.representatives()) {
            let mut resident: Option<Vec<Vec<Resident>>> = None;
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
                let resident = resident.get_or_insert_with(|| resident_operands(body, cache));
                let one = Occurrence {
                    rank,
                    body,
                    task,
                    resident: std::mem::take(&mut resident[id]),
                };
                let all = found.entry(key.clone()).or_default();
                if all.is_empty() {
                    order.push(key);
                }
                all.push(one);
            }
        }
        for key in order {
            let all = found.remove(&key).expect("what was found is kept");
            let count = all.len();
            benchmarks.push(typical(all).benchmark(key.clone(), program, count));
            seen.insert(key);
        }
    }
    Ok(benchmarks)
}

/// An occurrence of a kernel in a body.
struct Occurrence<'p> {
    rank: Rank,
    body: &'p Body,
    task: &'p Task,
    resident: Vec<Resident>,
}

impl Occurrence<'_> {
    fn benchmark(self, key: KernelKey, program: &Program, occurrences: usize) -> KernelBenchmark {
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
        let read_write = own.iter().filter(|id| is_read(**id) && is_written(**id));
        let read_write = read_write.map(whole).collect();
        let warm = self.resident.iter();
        let warm = warm
            .map(|resident| (whole(&resident.buffer), resident.age))
            .collect();
        let count = Count::of_kernel(kernel, &body.buffers);
        KernelBenchmark {
            key,
            features: Features::of(&shape),
            weight: occurrences as f64 * rough_seconds(&count).0,
            mesh: program.mesh,
            rank: self.rank,
            batch: program.batch,
            other_bytes: Bytes(body.arena.0.saturating_sub(arena.0)),
            warm,
            read_write,
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

/// The occurrence with the median of resident bytes, since the first of many micro-batches, for example, may
/// find other operands in the caches than the rest.
fn typical(mut all: Vec<Occurrence<'_>>) -> Occurrence<'_> {
    let resident = |one: &Occurrence<'_>| -> u64 {
        let buffers = one.resident.iter().map(|resident| resident.buffer as usize);
        buffers.map(|id| one.body.buffers[id].bytes().0).sum()
    };
    all.sort_by_key(resident);
    all.swap_remove((all.len() - 1) / 2)
}

/// The same buffers, those in `own` packed from the start of the arena, the others empty.
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
        // Lowering aligns buffers to 64 bytes, too.
        end = (end + buffer.bytes().0).next_multiple_of(64);
    }
    (buffers, Bytes(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_residency::tests::copies;

    /// A kernel of several tasks is measured in its typical state: here two of three find cold caches.
    #[test]
    fn the_occurrence_with_median_residency_is_measured() {
        let body = copies(&[[0, 1], [1, 2], [2, 3], [0, 4], [5, 1]]);
        let resident = resident_operands(&body, Bytes(1 << 16));
        let count = [1, 3, 4].map(|at: usize| resident[at].len());
        assert_eq!(count, [1, 0, 0]);
        let occurrence = |at: usize| Occurrence {
            rank: at,
            body: &body,
            task: &body.tasks[at],
            resident: resident[at].clone(),
        };
        let all = [1, 3, 4].map(occurrence).into_iter().collect();
        assert!(typical(all).resident.is_empty());
        let all = [1, 3, 0].map(occurrence).into_iter().collect();
        assert_eq!(typical(all).resident.len(), 1);
    }
}
