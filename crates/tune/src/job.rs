use crate::TuneError;
use crate::reuse::{at_hand, buffers_of};
use partita_program::{
    Access, Algorithm, Body, Buffer, Features, Kernel, KernelShape, Program, Task, View, Work,
};
use partita_space::{Bytes, Mesh, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

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
    /// What it touches that caches still hold when a step comes to it, that touched longest ago first.
    pub warm: Vec<View>,
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
        for (body, rank) in program.bodies.iter().zip(program.representatives()) {
            let mut held: Option<Vec<Vec<u32>>> = None;
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
                if is_known(&key) || !seen.insert(key.clone()) {
                    continue;
                }
                if !algorithm.is_pinned() {
                    let signature = key.signature;
                    return Err(TuneError::Unpinned { signature });
                }
                let features = shape.features();
                let held = held.get_or_insert_with(|| at_hand(body, cache));
                jobs.push(job((key, features), program, rank, body, task, &held[id]));
            }
        }
    }
    Ok(jobs)
}

fn job(
    (key, features): (KernelKey, Features),
    program: &Program,
    rank: Rank,
    body: &Body,
    task: &Task,
    held: &[u32],
) -> Job {
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
    let (warm, renewed) = (
        held.iter().map(whole).collect(),
        renewed.map(whole).collect(),
    );
    Job {
        key,
        features,
        mesh: program.mesh,
        rank,
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
            outputs: Vec::new(),
            arena,
        },
    }
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
