//! Classes of positions, and how they are stored.

use std::ops::Range;

use partita_formats::DataError;

use super::{PIECE_BYTES, Piece, PredictionScratch, Stored};

/// The type of stored classes: the narrowest that has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClassType {
    UInt8,
    UInt16,
    Int32,
}

impl ClassType {
    /// That of this many classes.
    pub fn of(classes: usize) -> Self {
        match classes {
            0..=0x100 => Self::UInt8,
            0x101..=0x1_0000 => Self::UInt16,
            _ => Self::Int32,
        }
    }

    /// Bytes of a class.
    pub fn size(self) -> usize {
        match self {
            Self::UInt8 => 1,
            Self::UInt16 => 2,
            Self::Int32 => 4,
        }
    }

    /// Little-endian bytes of classes.
    pub fn encode(self, classes: &[i32]) -> Vec<u8> {
        let bytes = classes.iter().flat_map(|class| class.to_le_bytes());
        let kept = bytes.enumerate().filter(|(at, _)| at % 4 < self.size());
        kept.map(|(_, byte)| byte).collect()
    }

    /// Classes of little-endian bytes.
    pub fn decode(self, bytes: &[u8]) -> Vec<i32> {
        let class = |word: &[u8]| {
            let mut wide = [0; 4];
            wide[..word.len()].copy_from_slice(word);
            i32::from_le_bytes(wide)
        };
        bytes.chunks_exact(self.size()).map(class).collect()
    }
}

impl PredictionScratch {
    /// The type of its classes.
    pub(super) fn class_type(&self) -> ClassType {
        ClassType::of(self.shape.channels)
    }

    /// Calls `visit` with the classes of planes of all samples, in order.
    pub(super) fn each_classes(
        &self,
        mut visit: impl FnMut(Piece, Vec<i32>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        for sample in 0..self.shape.samples {
            self.each_classes_of(sample, &mut visit)?;
        }
        Ok(())
    }

    /// As [`Self::each_classes`], of one sample.
    pub(super) fn each_classes_of(
        &self,
        sample: usize,
        mut visit: impl FnMut(Piece, Vec<i32>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        if self.stored == Stored::Scores {
            let channels = self.shape.channels;
            return self.each_piece_of(sample, |piece, values| {
                visit(piece, classes(&values, channels))
            });
        }
        let [depth, height, width] = self.extent_of(sample);
        let plane = height * width * self.class_type().size();
        let at_once = (PIECE_BYTES / plane.max(1)).clamp(1, depth);
        for first in (0..depth).step_by(at_once) {
            let planes = first..depth.min(first + at_once);
            let mut found = Vec::with_capacity(planes.len() * height * width);
            for plane in planes.clone() {
                let bytes = self.read_bytes([sample, 0, plane], [0..height, 0..width])?;
                found.append(&mut self.class_type().decode(&bytes));
            }
            visit(Piece { sample, planes }, found)?;
        }
        Ok(())
    }

    /// Writes the classes of rows of a plane of a sample by the scores of all channels, (C, H, W).
    pub(super) fn write_classes(
        &self,
        [sample, plane]: [usize; 2],
        [rows, columns]: [Range<usize>; 2],
        scores: &[f32],
    ) -> Result<(), DataError> {
        let found = classes(scores, self.shape.channels);
        let bytes = self.class_type().encode(&found);
        self.write_bytes([sample, 0, plane], [rows, columns], &bytes)
    }
}

/// The channel of the greatest value at each position, the first of equals; `values` are (C, positions).
pub(super) fn classes(values: &[f32], channels: usize) -> Vec<i32> {
    let positions = values.len() / channels;
    let best = |at: usize| {
        let mut best = 0;
        for channel in 1..channels {
            if values[channel * positions + at] > values[best * positions + at] {
                best = channel;
            }
        }
        best as i32
    };
    (0..positions).map(best).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_take_the_narrowest_type_and_come_back() {
        for (count, size) in [(1, 1), (2, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4)] {
            let class_type = ClassType::of(count);
            assert_eq!(class_type.size(), size, "{count}");
            let all = [0, count as i32 / 2, count as i32 - 1];
            let bytes = class_type.encode(&all);
            assert_eq!(bytes.len(), 3 * size);
            assert_eq!(class_type.decode(&bytes), all, "{count}");
        }
    }
}
