//! The source of a rank whose samples are predictions in a scratch file, with the targets of a dataset.

use std::ops::Range;

use partita_formats::DataError;
use partita_program::{Dtype, Item, Load, TaskId, View, When};
use partita_run::{Inputs, Memory, RunError, Source};
use partita_space::{Mesh, Rank};

use super::{HyperslabSource, unpack_zeros};
use crate::predictions::PredictionScratch;
use crate::store::range;

/// Reads this rank's part of predictions that are whole, as the samples of a network.
///
/// Samples are numbered as those of the targets are.
pub struct PredictionSource {
    scratch: PredictionScratch,
    targets: HyperslabSource,
    /// Number of the first sample of the scratch file.
    first_sample: usize,
    mesh: Mesh,
    rank: Rank,
    loads: Vec<Pending>,
    zeros: Vec<(TaskId, View)>,
    bytes: u64,
    values: Vec<f32>,
}

struct Pending {
    task: TaskId,
    target: View,
    /// Numbers in the scratch file.
    samples: Vec<usize>,
    /// Of a sample: channels, D, H, W.
    region: [Range<usize>; 4],
}

impl PredictionSource {
    /// The source of a rank of a mesh, with the targets that `targets` reads.
    pub fn new(
        scratch: PredictionScratch,
        first_sample: usize,
        targets: HyperslabSource,
        mesh: Mesh,
        rank: Rank,
    ) -> Self {
        Self {
            scratch,
            targets,
            first_sample,
            mesh,
            rank,
            loads: Vec::new(),
            zeros: Vec::new(),
            bytes: 0,
            values: Vec::new(),
        }
    }

    /// Reads a load plane by plane.
    fn read(&mut self, memory: &Memory<'_>, load: &Pending) -> Result<(), DataError> {
        let [channels, planes, rows, columns] = load.region.clone();
        let dtype = memory.body().buffer(load.target.buffer).dtype;
        assert_eq!(
            dtype,
            Dtype::F32,
            "predictions are staged as they are stored"
        );
        for (n, &sample) in load.samples.iter().enumerate() {
            for (c, channel) in channels.clone().enumerate() {
                for (d, plane) in planes.clone().enumerate() {
                    let at = [sample, channel, plane];
                    let part = [rows.clone(), columns.clone()];
                    self.scratch.read_rows(at, part, &mut self.values)?;
                    let mut view = load.target;
                    for (dim, offset) in [n, c, d].into_iter().enumerate() {
                        view.start[dim] += offset;
                        view.extent[dim] = 1;
                    }
                    memory.unpack(&view, &self.values, false);
                    self.bytes += (self.values.len() * dtype.size()) as u64;
                }
            }
        }
        Ok(())
    }
}

impl Source for PredictionSource {
    fn start(&mut self, task: TaskId, load: &Load, inputs: &Inputs) -> Result<(), RunError> {
        match load.item {
            Item::Sample => {}
            Item::Target | Item::Features => return self.targets.start(task, load, inputs),
        }
        let listed = match load.when {
            When::Now => &inputs.samples,
            When::Next if inputs.next_samples.is_empty() => {
                self.zeros.push((task, load.target));
                return Ok(());
            }
            When::Next => &inputs.next_samples,
        };
        let owned = load
            .distribution
            .owned(&self.mesh, &self.mesh.coord(self.rank));
        let [n, d, h, w, c] = owned.0.map(range);
        let samples = listed[n].iter().map(|sample| sample - self.first_sample);
        self.loads.push(Pending {
            task,
            target: load.target,
            samples: samples.collect(),
            region: [c, d, h, w],
        });
        Ok(())
    }

    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        for (task, view) in std::mem::take(&mut self.zeros) {
            self.bytes += unpack_zeros(memory, &view);
            done.push(task);
        }
        for load in std::mem::take(&mut self.loads) {
            let read = self.read(memory, &load);
            read.map_err(|error| RunError::Source {
                rank: self.rank,
                reason: error.to_string(),
            })?;
            done.push(load.task);
        }
        self.targets.poll(memory, done)
    }

    fn take_tally(&mut self) -> u64 {
        std::mem::take(&mut self.bytes) + self.targets.take_tally()
    }
}
