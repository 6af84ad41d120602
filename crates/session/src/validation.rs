//! Results of evaluations, and validation of snapshots elsewhere, while the training goes on.

use crate::persistent::{OwnedShard, persistent};
use partita_program::{Body, Buffer, BufferId};
use partita_run::{Arena, PackedTensor, RunError};
use partita_space::{Bytes, Seconds};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Results of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Mean loss over its samples.
    pub loss: f64,
    /// Number of samples.
    pub samples: usize,
    /// Sum of absolute errors over samples, for each target of a regression.
    pub absolute: Vec<f64>,
    /// Sum of squared errors over samples, for each target of a regression.
    pub squared: Vec<f64>,
    /// Counts over positions of all samples, for each class of a classifier.
    pub classes: Vec<ClassCount>,
    /// Time, fetches included.
    pub seconds: Seconds,
}

/// Confusion counts of one class, in positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassCount {
    /// True positives.
    pub hits: f64,
    /// Positions predicted as the class: its score is the greatest, the first of equals.
    pub predicted: f64,
    /// Positions labeled with the class.
    pub actual: f64,
}

impl ClassCount {
    /// The Dice coefficient, `2 hits / (predicted + actual)`; `None` if the class is neither predicted nor
    /// labeled.
    ///
    /// Source: Dice, Ecology 26(3), 1945.
    pub fn dice(&self) -> Option<f64> {
        let sum = self.predicted + self.actual;
        (sum > 0.0).then(|| 2.0 * self.hits / sum)
    }

    /// Intersection over union, `hits / (predicted + actual - hits)`; `None` as for [`Self::dice`].
    pub fn iou(&self) -> Option<f64> {
        let union = self.predicted + self.actual - self.hits;
        (union > 0.0).then(|| self.hits / union)
    }
}

impl Validation {
    /// Adds a step; losses are summed until the end.
    pub(crate) fn add(&mut self, batch: &EvaluatedBatch) {
        self.loss += batch.loss() * batch.samples as f64;
        self.samples += batch.samples;
        self.add_errors(&batch.errors());
        self.add_counts(&batch.counts());
    }

    /// Adds the samples of another evaluation of the same network.
    pub fn join(&mut self, other: &Self) {
        let samples = self.samples + other.samples;
        let sums = self.loss * self.samples as f64 + other.loss * other.samples as f64;
        self.loss = sums / samples.max(1) as f64;
        self.samples = samples;
        self.add_errors(&[other.absolute.as_slice(), &other.squared].concat());
        let counts = [
            |class: &ClassCount| class.hits,
            |class: &ClassCount| class.predicted,
            |class: &ClassCount| class.actual,
        ];
        let counts: Vec<f64> = counts
            .iter()
            .flat_map(|count| other.classes.iter().map(count))
            .collect();
        self.add_counts(&counts);
        self.seconds += other.seconds;
    }

    /// Fraction of the positions predicted correctly; `None` for a regression.
    pub fn accuracy(&self) -> Option<f64> {
        let sum = |count: fn(&ClassCount) -> f64| self.classes.iter().map(count).sum::<f64>();
        let actual = sum(|class| class.actual);
        (actual > 0.0).then(|| sum(|class| class.hits) / actual)
    }

    /// `counts` has the hits of all classes, then the predicted, then the actual positions.
    fn add_counts(&mut self, counts: &[f64]) {
        let number = counts.len() / 3;
        self.classes.resize(number, ClassCount::default());
        for (class, count) in self.classes.iter_mut().enumerate() {
            count.hits += counts[class];
            count.predicted += counts[number + class];
            count.actual += counts[2 * number + class];
        }
    }

    /// `errors` has the sums of absolute errors of all targets, then those of squared errors.
    fn add_errors(&mut self, errors: &[f64]) {
        let (absolute, squared) = errors.split_at(errors.len() / 2);
        for (sums, more) in [(&mut self.absolute, absolute), (&mut self.squared, squared)] {
            sums.resize(more.len(), 0.0);
            sums.iter_mut()
                .zip(more)
                .for_each(|(sum, more)| *sum += more);
        }
    }
}

/// The parameters and running statistics of a rank at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    tensors: Vec<(BufferId, PackedTensor)>,
}

/// Buffers that an evaluation reads and no program of it changes.
fn validated(body: &Body) -> impl Iterator<Item = (BufferId, &Buffer)> {
    persistent(body).filter(|(_, buffer)| buffer.role.is_of_model())
}

/// Bytes of the snapshot of a rank.
pub fn snapshot_bytes(body: &Body) -> Bytes {
    validated(body).fold(Bytes(0), |sum, (_, buffer)| sum + buffer.bytes())
}

impl Snapshot {
    /// Replaces it by what the arena holds.
    pub(crate) fn take(&mut self, body: &Body, arena: &mut Arena) {
        let memory = arena.memory(body);
        if self.tensors.is_empty() {
            let empty = |(id, buffer): (BufferId, &Buffer)| {
                let elements = buffer.dims.iter().product();
                (id, PackedTensor::with_capacity(buffer.dtype, elements))
            };
            self.tensors.extend(validated(body).map(empty));
        }
        for (id, values) in &mut self.tensors {
            values.resize(0);
            values.pack(&memory, &body.buffer(*id).view(*id));
        }
    }

    /// Puts it into the arena, and the arena's values into it.
    pub(crate) fn swap(&mut self, body: &Body, arena: &mut Arena) {
        let mut before = Self::default();
        before.take(body, arena);
        let memory = arena.memory(body);
        for (id, values) in &self.tensors {
            let view = body.buffer(*id).view(*id);
            match values {
                PackedTensor::F32(values) => memory.unpack(&view, values, false),
                PackedTensor::F64(values) => memory.unpack(&view, values, false),
                PackedTensor::Bf16(values) => memory.unpack(&view, values, false),
                PackedTensor::F16(values) => memory.unpack(&view, values, false),
                PackedTensor::I16(values) => memory.unpack(&view, values, false),
            }
        }
        *self = before;
    }

    /// The values of a shard of the rank, in memory order; `None` for one that a snapshot does not hold.
    pub fn shard(&self, shard: &OwnedShard) -> Option<&PackedTensor> {
        let found = self.tensors.iter().find(|(id, _)| *id == shard.id);
        found.map(|(_, values)| values)
    }
}

/// Results of one step of an evaluation, as bits, so that they are exact in any text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluatedBatch {
    /// Samples.
    pub samples: usize,
    loss: u64,
    errors: Vec<u64>,
    counts: Vec<u64>,
}

impl EvaluatedBatch {
    /// The results of so many samples: their mean loss, sums of errors and counts.
    pub fn new(samples: usize, loss: f64, errors: &[f64], counts: &[f64]) -> Self {
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect();
        Self {
            samples,
            loss: loss.to_bits(),
            errors: bits(errors),
            counts: bits(counts),
        }
    }

    /// Mean loss.
    pub fn loss(&self) -> f64 {
        f64::from_bits(self.loss)
    }

    /// The same as results of an evaluation of these samples alone, without a time.
    pub fn validation(&self) -> Validation {
        let mut validation = Validation::default();
        validation.add(self);
        validation.loss = self.loss();
        validation
    }

    pub(crate) fn errors(&self) -> Vec<f64> {
        self.errors.iter().copied().map(f64::from_bits).collect()
    }

    pub(crate) fn counts(&self) -> Vec<f64> {
        self.counts.iter().copied().map(f64::from_bits).collect()
    }
}

/// The results of all steps of an evaluation, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// Of each step.
    pub batches: Vec<EvaluatedBatch>,
    /// Time, fetches included.
    pub seconds: Seconds,
}

/// Joins outputs of samples, group by group, on each rank.
pub trait JoinOutputs {
    /// Called on every rank once its steps of a group are done, for the group of this number.
    ///
    /// Errors: files that cannot be read or written; another rank failed, or the run was cancelled.
    fn join(&mut self, group: usize) -> Result<(), RunError>;

    /// Called on every rank after the last group of an evaluation in a training: the results of what was joined, the same
    /// on all ranks; with the loss that ended it, if one is infinite or NaN.
    ///
    /// Errors: as for [`join`](Self::join), and those of a step.
    fn evaluate(&mut self) -> Result<Validation, RunError>;
}

/// Validates snapshots elsewhere, one at a time. All answers but that of [`poll`](Self::poll) are the same on all ranks.
pub trait Validators {
    /// Whether the training needs the results of an epoch before the next one.
    fn is_awaited(&self) -> bool;

    /// Takes the snapshot of the end of an epoch. False if the ranks are to evaluate it themselves.
    ///
    /// Errors: another rank failed, or the run was cancelled.
    fn begin(&mut self, epoch: u64, snapshot: &Arc<Snapshot>) -> Result<bool, RunError>;

    /// The results of the last snapshot, on rank 0 and once they are there.
    fn poll(&mut self) -> Option<Evaluated>;

    /// Waits for the results of the last snapshot. None if they will not come: the ranks then evaluate it themselves.
    ///
    /// Errors: another rank failed, or the run was cancelled.
    fn finish(&mut self, epoch: u64) -> Result<Option<Evaluated>, RunError>;
}
