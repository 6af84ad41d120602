//! Predictions as HDF5: one array, or one for each sample where their extents differ.

use std::fs;
use std::ops::Range;
use std::path::Path;

use partita_formats::DataError;
use partita_formats::hdf5::{TargetArray, TargetFile};

use super::classes::ClassType;
use super::paths::{MAKER, MAKER_KEY};
use super::{
    NAMES_KEY, PREDICTIONS_KEY, Piece, PredictionKind, PredictionScratch, PredictionShape,
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
        let array = |key: &str, shape: &[usize]| match self.class_type() {
            _ if !is_class => file.floats(key, shape),
            ClassType::UInt8 => file.integers::<u8>(key, shape),
            ClassType::UInt16 => file.integers::<u16>(key, shape),
            ClassType::Int32 => file.integers::<i32>(key, shape),
        };
        if self.extents.is_none() {
            let array = array(PREDICTIONS_KEY, shape)?;
            for sample in 0..self.shape.samples {
                self.write_sample_of(sample, (&array, true), kind)?;
            }
        } else {
            for sample in 0..self.shape.samples {
                let of_sample = PredictionShape {
                    extent: self.extent_of(sample),
                    ..self.shape
                };
                let key = predictions_key(sample, self.shape.samples);
                let array = array(&key, &of_sample.of_file(kind)[1..])?;
                self.write_sample_of(sample, (&array, false), kind)?;
            }
        }
        file.close()?;
        let placed = fs::rename(&partial, out);
        placed.map_err(|error| {
            let _ = fs::remove_file(&partial);
            unwritable(out, &error)
        })
    }

    /// Writes a sample into an array of HDF5, which is of all samples, stacked, or its own.
    fn write_sample_of(
        &self,
        sample: usize,
        (array, is_stacked): (&TargetArray, bool),
        kind: PredictionKind,
    ) -> Result<(), DataError> {
        if kind == PredictionKind::Classes {
            return self.each_classes_of(sample, |at, classes| {
                let (starts, counts) = self.region(kind, (is_stacked, &at));
                let classes = classes.iter().copied();
                match self.class_type() {
                    ClassType::UInt8 => {
                        let narrow: Vec<u8> = classes.map(|class| class as u8).collect();
                        array.write_integers(&starts, &counts, &narrow)
                    }
                    ClassType::UInt16 => {
                        let narrow: Vec<u16> = classes.map(|class| class as u16).collect();
                        array.write_integers(&starts, &counts, &narrow)
                    }
                    ClassType::Int32 => {
                        let all: Vec<i32> = classes.collect();
                        array.write_integers(&starts, &counts, &all)
                    }
                }
            });
        }
        self.each_piece_of(sample, |at, mut values| {
            let (starts, counts) = self.region(kind, (is_stacked, &at));
            if kind == PredictionKind::Probabilities {
                softmax(&mut values, self.shape.channels);
            }
            array.write_floats(&starts, &counts, &values)
        })
    }

    /// Where a piece begins in an array of HDF5, of all samples or of its own, and its extents.
    fn region(
        &self,
        kind: PredictionKind,
        (is_stacked, at): (bool, &Piece),
    ) -> (Vec<usize>, Vec<usize>) {
        let extent = self.extent_of(at.sample);
        let channels = (kind != PredictionKind::Classes).then_some(0..self.shape.channels);
        let sample = is_stacked.then(|| at.sample..at.sample + 1);
        let mut region: Vec<Range<usize>> = sample.into_iter().chain(channels).collect();
        if self.shape.extent != [1; 3] {
            let all = [at.planes.clone(), 0..extent[1], 0..extent[2]];
            region.extend_from_slice(&all[3 - self.shape.spatial_rank..]);
        }
        let starts = region.iter().map(|range| range.start).collect();
        (starts, region.iter().map(Range::len).collect())
    }
}
