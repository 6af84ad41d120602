//! The sink of a rank that writes its region of each prediction into the scratch file.

use std::ops::Range;
use std::sync::Arc;

use partita_program::prefetch::stored_pieces;
use partita_program::{Store, TaskId, View};
use partita_run::{Inputs, Memory, RunError, Sink};
use partita_space::{AXES, Interval, Mesh, Rank, Region};

use crate::predictions::{PredictionScratch, TilePlan};

/// Writes this rank's region of each prediction, in pieces. Of ranks with the same region the first writes.
pub struct PredictionSink {
    scratch: PredictionScratch,
    /// Number of the first sample among all samples of the dataset.
    first_sample: usize,
    mesh: Mesh,
    rank: Rank,
    stores: Vec<Pending>,
    bytes: u64,
    /// A piece as it lies in the arena, and in the order of the file.
    packed: Vec<f32>,
    ordered: Vec<f32>,
    /// Where samples are tiles, whose predictions are joined group by group.
    tiles: Option<Arc<TilePlan>>,
}

struct Pending {
    task: TaskId,
    source: View,
    owned: Region,
    /// D, H, W of the prediction of a sample.
    extent: [usize; 3],
    /// Numbers of the samples of the region among those of the split, and which of D, H, W are reversed in them.
    samples: Vec<(usize, [bool; 3])>,
    is_writer: bool,
}

impl PredictionSink {
    /// The sink of a rank; samples of the file begin with `first_sample` of the dataset.
    pub fn new(scratch: PredictionScratch, first_sample: usize, mesh: Mesh, rank: Rank) -> Self {
        Self {
            scratch,
            first_sample,
            mesh,
            rank,
            stores: Vec::new(),
            bytes: 0,
            packed: Vec::new(),
            ordered: Vec::new(),
            tiles: None,
        }
    }

    /// The same for samples that are tiles, of which the file has those of a group.
    #[must_use]
    pub fn of_tiles(self, tiles: Arc<TilePlan>) -> Self {
        Self {
            tiles: Some(tiles),
            ..self
        }
    }

    /// Number of a sample of the network among those of the split, and which of D, H, W are reversed in it.
    fn seen(&self, sample: usize) -> (usize, [bool; 3]) {
        let first = self.first_sample;
        match &self.tiles {
            Some(plan) => plan.seen(sample, first),
            None => (sample - first, [false; 3]),
        }
    }

    /// Number in the file of a sample of the split.
    fn slot(&self, sample: usize) -> usize {
        self.tiles.as_ref().map_or(sample, |plan| plan.slot(sample))
    }

    fn write(&mut self, memory: &Memory<'_>, store: &Pending) -> Result<(), RunError> {
        let dtype = memory.body().buffer(store.source.buffer).dtype;
        for piece in stored_pieces(&store.source, dtype) {
            self.bytes += (piece.volume() * dtype.size()) as u64;
            if !store.is_writer {
                continue;
            }
            self.packed.resize(piece.volume(), 0.0);
            memory.pack_f32(&piece, &mut self.packed);
            let [n, d, h, w, c] = store.owned.0.map(range);
            let from: [usize; 3] =
                std::array::from_fn(|dim| piece.start[dim] - store.source.start[dim]);
            assert!(from[0] < n.len(), "a piece is of an owned sample");
            let rows = h.start + from[2]..h.start + from[2] + piece.extent[2];
            let ((sample, flip), plane) = (store.samples[from[0]], d.start + from[1]);
            let region = [plane..plane + 1, rows, w];
            let stored = |dim: usize| {
                let (extent, range) = (store.extent[dim], region[dim].clone());
                if flip[dim] {
                    extent - range.end..extent - range.start
                } else {
                    range
                }
            };
            let [planes, rows, columns] = [stored(0), stored(1), stored(2)];
            self.reorder(piece.extent, flip);
            let first = [planes.start, rows.start, columns.start];
            self.check((sample, flip), first, c.start, piece.extent)?;
            let at = [self.slot(sample), planes.start];
            let written = self
                .scratch
                .write_rows(at, [c, rows, columns], &self.ordered);
            written.map_err(|error| RunError::Sink {
                rank: self.rank,
                reason: error.to_string(),
            })?;
        }
        Ok(())
    }

    /// Refuses values that are infinite or NaN, of rows of a sample from a position and channel on. Those of padding are
    /// none of a volume.
    fn check(
        &self,
        (sample, flip): (usize, [bool; 3]),
        [plane, row, column]: [usize; 3],
        channel: usize,
        [_, _, rows, columns, channels]: [usize; 5],
    ) -> Result<(), RunError> {
        let tile = self.tiles.as_ref().map(|plan| plan.tile(sample));
        let place = |at: usize| {
            let (position, channel) = (at / channels, channel + at % channels);
            let row = row + turned(position / columns, rows, flip[1]);
            let column = column + turned(position % columns, columns, flip[2]);
            match tile {
                Some(tile) => Some((tile.volume, channel, tile.in_volume([plane, row, column])?)),
                None => Some((sample, channel, [plane, row, column])),
            }
        };
        let mut bad = (0..self.packed.len()).filter(|&at| !self.packed[at].is_finite());
        let found = bad.find_map(|at| Some((self.packed[at], place(at)?)));
        let Some((value, (sample, channel, [d, h, w]))) = found else {
            return Ok(());
        };
        Err(RunError::OutputNotFinite {
            rank: self.rank,
            sample,
            position: [channel, d, h, w],
            value,
        })
    }

    /// From (H, W, C) to (C, H, W), and from reversed rows and columns to those of the sample as it is stored.
    fn reorder(&mut self, [_, _, rows, columns, channels]: [usize; 5], flip: [bool; 3]) {
        self.ordered.clear();
        for channel in 0..channels {
            for row in (0..rows).map(|row| turned(row, rows, flip[1])) {
                let positions = (0..columns).map(|at| row * columns + turned(at, columns, flip[2]));
                let values = positions.map(|at| self.packed[at * channels + channel]);
                self.ordered.extend(values);
            }
        }
    }
}

/// A position along a dim of this extent, which may be reversed.
fn turned(at: usize, extent: usize, is_reversed: bool) -> usize {
    if is_reversed { extent - 1 - at } else { at }
}

fn range(interval: Interval) -> Range<usize> {
    let start = usize::try_from(interval.start).expect("an owned region starts inside its tensor");
    start..start + interval.len()
}

impl Sink for PredictionSink {
    fn start(&mut self, task: TaskId, store: &Store, inputs: &Inputs) -> Result<(), RunError> {
        let coord = self.mesh.coord(self.rank);
        let owned = store.distribution.owned(&self.mesh, &coord);
        let shards = store.distribution.split_axes();
        let local = store.distribution.local_coord(&self.mesh, &coord);
        let mut same = AXES.into_iter().filter(|&axis| !shards.has(axis));
        let is_writer = local.is_some_and(|local| same.all(|axis| local[axis.index()] == 0));
        let listed = &inputs.samples[range(owned.0[0])];
        let [_, d, h, w, _] = store.distribution.shape;
        self.stores.push(Pending {
            task,
            source: store.source,
            owned,
            extent: [d, h, w],
            samples: listed.iter().map(|&sample| self.seen(sample)).collect(),
            is_writer,
        });
        Ok(())
    }

    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        for store in std::mem::take(&mut self.stores) {
            self.write(memory, &store)?;
            done.push(store.task);
        }
        Ok(())
    }

    fn take_tally(&mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}
