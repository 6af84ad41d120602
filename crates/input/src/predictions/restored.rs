//! Predictions on the voxels of the images that their samples were converted from.

use std::io::Write;
use std::path::Path;

use partita_data::Placement;
use partita_formats::DataError;

use super::{PredictionKind, PredictionScratch, Stored, unwritable};

impl PredictionScratch {
    /// Writes the values of a sample on the voxels of its image, in the order of NIfTI: scores and probabilities by
    /// linear interpolation, classes as those with the greatest interpolated score.
    pub(super) fn write_restored(
        &self,
        (sample, placement): (usize, &Placement),
        kind: PredictionKind,
        to: &mut dyn Write,
        path: &Path,
    ) -> Result<(), DataError> {
        let mut write = |bytes: Vec<u8>| {
            let written = to.write_all(&bytes);
            written.map_err(|error| unwritable(path, &error))
        };
        let channel = |channel: usize| {
            let mut values = Vec::new();
            let [depth, height, width] = self.extent_of(sample);
            for plane in 0..depth {
                let mut rows = Vec::new();
                self.read_rows([sample, channel, plane], [0..height, 0..width], &mut rows)?;
                values.append(&mut rows);
            }
            Ok(placement.restore(values))
        };
        if kind != PredictionKind::Classes {
            for at in 0..self.shape.channels {
                let values = channel(at)?;
                write(
                    values
                        .iter()
                        .flat_map(|value| value.to_le_bytes())
                        .collect(),
                )?;
            }
            return Ok(());
        }
        if self.stored == Stored::Classes {
            let mut classes = Vec::new();
            self.each_classes_of(sample, |_, planes| {
                classes.extend(planes.into_iter().map(|class| class as f32));
                Ok(())
            })?;
            // On the same voxels in another order, so that nothing is interpolated.
            let restored = placement.restore(classes).into_iter();
            let classes: Vec<i32> = restored.map(|class| class as i32).collect();
            return write(self.class_type().encode(&classes));
        }
        let mut best = channel(0)?;
        let mut classes = vec![0_i32; best.len()];
        for at in 1..self.shape.channels {
            let scores = channel(at)?;
            for ((best, class), score) in best.iter_mut().zip(&mut classes).zip(scores) {
                if score > *best {
                    (*best, *class) = (score, at as i32);
                }
            }
        }
        write(self.class_type().encode(&classes))
    }
}
