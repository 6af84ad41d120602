//! Predictions as HDF5: one array, or one for each sample where their extents differ.

use std::fs;
use std::ops::Range;
use std::path::Path;

use partita_formats::DataError;
use partita_formats::hdf5::{TargetArray, TargetFile};

use super::paths::{MAKER, MAKER_KEY};
use super::{
    NAMES_KEY, PREDICTIONS_KEY, Piece, PredictionKind, PredictionScratch, PredictionShape, classes,
    predictions_key, softmax, unwritable, with_end,
};

impl PredictionScratch {
    /// Errors: `Unwritable`.
    pub(super) fn write_hdf5(
        &self,
        out: &Path,
        shape: &[usize],
        kind: PredictionKind,
    ) -> Result<(), DataError> {
        let partial = with_end(out, ".partial");
        let file = TargetFile::create(&partial)?;
        file.attribute(MAKER_KEY, MAKER)?;
        let is_class = kind == PredictionKind::Classes;
        if !self.names.is_empty() {
            file.texts(NAMES_KEY, &self.names)?;
        }
        let array = |key: &str, shape: &[usize]| {
            if is_class {
                file.integers(key, shape)
            } else {
                file.floats(key, shape)
            }
        };
        if self.extents.is_none() {
            let array = array(PREDICTIONS_KEY, shape)?;
            self.each_piece(|at, values| self.write_values(&array, kind, (true, &at), values))?;
        } else {
            for sample in 0..self.shape.samples {
                let of_sample = PredictionShape {
                    extent: self.extent_of(sample),
                    ..self.shape
                };
                let key = predictions_key(sample, self.shape.samples);
                let array = array(&key, &of_sample.of_file(kind)[1..])?;
                self.each_piece_of(sample, &mut |at, values| {
                    self.write_values(&array, kind, (false, &at), values)
                })?;
            }
        }
        file.close()?;
        let placed = fs::rename(&partial, out);
        placed.map_err(|error| {
            let _ = fs::remove_file(&partial);
            unwritable(out, &error)
        })
    }

    /// Writes a piece into an array of HDF5, of all samples or of its own.
    fn write_values(
        &self,
        array: &TargetArray,
        kind: PredictionKind,
        (is_stacked, at): (bool, &Piece),
        mut values: Vec<f32>,
    ) -> Result<(), DataError> {
        let extent = self.extent_of(at.sample);
        let channels = (kind != PredictionKind::Classes).then_some(0..self.shape.channels);
        let sample = is_stacked.then(|| at.sample..at.sample + 1);
        let mut region: Vec<Range<usize>> = sample.into_iter().chain(channels).collect();
        if self.shape.extent != [1; 3] {
            let all = [at.planes.clone(), 0..extent[1], 0..extent[2]];
            region.extend_from_slice(&all[3 - self.shape.spatial_rank..]);
        }
        let starts: Vec<usize> = region.iter().map(|range| range.start).collect();
        let counts: Vec<usize> = region.iter().map(Range::len).collect();
        match kind {
            PredictionKind::Classes => {
                let classes = classes(&values, self.shape.channels);
                return array.write_integers(&starts, &counts, &classes);
            }
            PredictionKind::Probabilities => softmax(&mut values, self.shape.channels),
            PredictionKind::Scores => {}
        }
        array.write_floats(&starts, &counts, &values)
    }
}
