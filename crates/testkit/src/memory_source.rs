//! A dataset in memory, for tests.

use half::{bf16, f16};
use partita_program::{Dtype, Item, Load, TaskId, View, When};
use partita_run::{Inputs, Memory, RunError, Source};
use partita_space::{Mesh, Rank, Region};
use std::sync::Arc;

/// The values of one sample, (C, D, H, W), in the type they are stored in.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// 16-bit integers.
    I16(Vec<i16>),
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit floats.
    F64(Vec<f64>),
}

impl Stored {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Stored::I16(values) => values.len(),
            Stored::F32(values) => values.len(),
            Stored::F64(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn get(&self, at: usize) -> f64 {
        match self {
            Stored::I16(values) => f64::from(values[at]),
            Stored::F32(values) => f64::from(values[at]),
            Stored::F64(values) => values[at],
        }
    }
}

/// A dataset in memory, shared by the ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// Extents (C, D, H, W) of every sample.
    pub shape: [usize; 4],
    /// One per sample.
    pub values: Vec<Stored>,
    /// One per sample, (D, H, W, C) of the target tensor.
    pub targets: Vec<Vec<f64>>,
    /// The numbers beside each sample; empty where no network reads them.
    pub features: Vec<Vec<f64>>,
}

/// A source of samples in memory.
///
/// A load for the next step where the step inputs list no next samples delivers zeros, and counts
/// them. Panics where the inputs list fewer samples than the program's batch.
pub struct MemorySource {
    samples: Arc<Samples>,
    mesh: Mesh,
    rank: Rank,
    pending: Vec<Pending>,
    bytes: u64,
}

struct Pending {
    task: TaskId,
    load: Load,
    /// This rank's own samples in batch order; `None` delivers zeros.
    ids: Option<Vec<usize>>,
}

impl MemorySource {
    /// The source of this rank of a mesh.
    pub fn new(samples: Arc<Samples>, mesh: Mesh, rank: Rank) -> Self {
        Self {
            samples,
            mesh,
            rank,
            pending: Vec::new(),
            bytes: 0,
        }
    }

    fn refuse(&self, reason: String) -> RunError {
        let rank = self.rank;
        RunError::Source { rank, reason }
    }

    /// The ids of the samples, if all are there and have the shape that the program expects.
    fn check(&self, ids: &[usize], load: &Load) -> Result<(), RunError> {
        let [_, d, h, w, c] = load.distribution.shape;
        for &id in ids {
            let Some(values) = self.samples.values.get(id) else {
                let count = self.samples.values.len();
                return Err(self.refuse(format!("sample {id} of {count}")));
            };
            let (what, got, expected) = match load.item {
                Item::Sample if self.samples.shape != [c, d, h, w] => {
                    let got = self.samples.shape;
                    let reason =
                        format!("samples are (C, D, H, W) = {got:?}, not {:?}", [c, d, h, w]);
                    return Err(self.refuse(reason));
                }
                Item::Sample => ("sample", values.len(), c * d * h * w),
                Item::Target => {
                    let target = self.samples.targets.get(id).map_or(0, Vec::len);
                    ("target", target, d * h * w * c)
                }
                Item::Features => {
                    let features = self.samples.features.get(id).map_or(0, Vec::len);
                    ("row of features", features, c)
                }
            };
            if got != expected {
                let reason = format!("{what} {id} has {got} values, not {expected}");
                return Err(self.refuse(reason));
            }
        }
        Ok(())
    }

    fn deliver(&self, pending: &Pending, memory: &Memory<'_>) -> u64 {
        let load = &pending.load;
        let owned = load
            .distribution
            .owned(&self.mesh, &self.mesh.coord(self.rank));
        let value = |[n, d, h, w, c]: [usize; 5]| {
            pending.ids.as_ref().map_or(0.0, |ids| {
                let at = global(&owned, [n, d, h, w, c]);
                self.value(load, ids[n], at)
            })
        };
        let [n, d, h, w, c] = owned.shape();
        let expected = match load.item {
            Item::Sample | Item::Features => [n, c, d, h, w],
            Item::Target => [n, d, h, w, c],
        };
        assert_eq!(
            load.target.extent, expected,
            "{} takes the rank's part",
            load.target
        );
        let values = indices(expected).map(|i| match load.item {
            Item::Sample | Item::Features => value([i[0], i[2], i[3], i[4], i[1]]),
            Item::Target => value(i),
        });
        write(memory, &load.target, values);
        load.target.bytes(&memory.body().buffers).0
    }

    /// The value at a global (D, H, W, C).
    fn value(&self, load: &Load, id: usize, [d, h, w, c]: [usize; 4]) -> f64 {
        let [_, depth, height, width, channels] = load.distribution.shape;
        match load.item {
            Item::Sample => self.samples.values[id].get(((c * depth + d) * height + h) * width + w),
            Item::Target => self.samples.targets[id][((d * height + h) * width + w) * channels + c],
            Item::Features => self.samples.features[id][c],
        }
    }
}

/// All indices of a box, in memory order.
fn indices([n, d, h, w, c]: [usize; 5]) -> impl Iterator<Item = [usize; 5]> {
    (0..n * d * h * w * c).map(move |at| {
        let (at, i4) = (at / c, at % c);
        let (at, i3) = (at / w, at % w);
        let (at, i2) = (at / h, at % h);
        [at / d, at % d, i2, i3, i4]
    })
}

/// Writes values in memory order, rounded to the dtype of the buffer; integers saturate.
fn write(memory: &Memory<'_>, target: &View, values: impl Iterator<Item = f64>) {
    match memory.body().buffer(target.buffer).dtype {
        Dtype::F32 => {
            let values: Vec<f32> = values.map(|value| value as f32).collect();
            memory.unpack(target, &values, false);
        }
        Dtype::F64 => memory.unpack(target, &values.collect::<Vec<_>>(), false),
        Dtype::Bf16 => {
            let values: Vec<bf16> = values.map(bf16::from_f64).collect();
            memory.unpack(target, &values, false);
        }
        Dtype::F16 => {
            let values: Vec<f16> = values.map(f16::from_f64).collect();
            memory.unpack(target, &values, false);
        }
        Dtype::I16 => {
            let values: Vec<i16> = values.map(|value| value as i16).collect();
            memory.unpack(target, &values, false);
        }
    }
}

fn global(owned: &Region, local: [usize; 5]) -> [usize; 4] {
    let at = |dim: usize| owned.0[dim].start as usize + local[dim];
    [at(1), at(2), at(3), at(4)]
}

impl Source for MemorySource {
    fn start(&mut self, task: TaskId, load: &Load, inputs: &Inputs) -> Result<(), RunError> {
        let listed = match load.when {
            When::Now => Some(&inputs.samples),
            When::Next => Some(&inputs.next_samples).filter(|next| !next.is_empty()),
        };
        let batch = load.distribution.shape[0];
        let coord = self.mesh.coord(self.rank);
        let mine = load.distribution.owned(&self.mesh, &coord).0[0];
        let ids = listed.map(|listed| {
            let count = listed.len();
            assert!(
                count >= batch,
                "{count} samples are listed for a batch of {batch}"
            );
            listed[mine.start as usize..mine.end as usize].to_vec()
        });
        self.check(ids.as_deref().unwrap_or_default(), load)?;
        self.pending.push(Pending {
            task,
            load: load.clone(),
            ids,
        });
        Ok(())
    }

    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        for pending in std::mem::take(&mut self.pending) {
            self.bytes += self.deliver(&pending, memory);
            done.push(pending.task);
        }
        Ok(())
    }

    fn take_tally(&mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}
