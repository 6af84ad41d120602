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
    /// Numbers of the samples of the region among those of the split.
    samples: Vec<usize>,
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
            let (sample, plane) = (store.samples[from[0]], d.start + from[1]);
            self.check(
                [sample, plane],
                [rows.start, w.start, c.start],
                piece.extent,
            )?;
            self.reorder(piece.extent);
            let at = [self.slot(sample), plane];
            let written = self.scratch.write_rows(at, [c, rows, w], &self.ordered);
            written.map_err(|error| RunError::Sink {
                rank: self.rank,
                reason: error.to_string(),
            })?;
        }
        Ok(())
    }

    /// Refuses packed values that are infinite or NaN, of a plane of a sample from a row, column and channel on. Those of
    /// padding are none of a volume.
    fn check(
        &self,
        [sample, plane]: [usize; 2],
        [row, column, channel]: [usize; 3],
        [_, _, _, columns, channels]: [usize; 5],
    ) -> Result<(), RunError> {
        let tile = self.tiles.as_ref().map(|plan| plan.tile(sample));
        let place = |at: usize| {
            let (position, channel) = (at / channels, channel + at % channels);
            let (row, column) = (row + position / columns, column + position % columns);
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

    /// From (H, W, C) to (C, H, W).
    fn reorder(&mut self, [_, _, rows, columns, channels]: [usize; 5]) {
        self.ordered.clear();
        for channel in 0..channels {
            let positions = (0..rows * columns).map(|at| self.packed[at * channels + channel]);
            self.ordered.extend(positions);
        }
    }
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
        self.stores.push(Pending {
            task,
            source: store.source,
            owned,
            samples: listed
                .iter()
                .map(|&sample| sample - self.first_sample)
                .collect(),
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
