//! Predictions as NIfTI-1, a file for each sample: X, Y, Z, and the channels as the fourth dim.
//!
//! Source: nifti1.h of the NIfTI Data Format Working Group.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use partita_data::Placement;
use partita_files::NewFile;
use partita_formats::DataError;
use partita_formats::nifti::Affine;

use super::classes::ClassType;
use super::paths::{MAKER, volume_paths};
use super::{PredictionKind, PredictionScratch, encode, softmax, unwritable};

/// Header with the four bytes that say that no extension follows.
const HEADER_BYTES: usize = 352;
/// Largest extent of a dim.
const EXTENT_MAX: usize = i16::MAX as usize;
/// Codes of element types.
const FLOAT32: i16 = 16;
const UINT8: i16 = 2;
const UINT16: i16 = 512;
const INT32: i16 = 8;
/// Code of positions that are those of a scanner.
const SCANNER: i16 = 1;
/// Code of millimeters.
const MILLIMETERS: u8 = 2;

impl PredictionScratch {
    /// Makes a file for each sample, once all ranks have written; `placement` says where its voxels lie, and on which it
    /// is written.
    ///
    /// Errors: `BadValue` for extents beyond those of the format, `Unwritable`.
    pub fn publish_volumes(
        &self,
        out: &Path,
        kind: PredictionKind,
        placement: &dyn Fn(usize) -> Option<Placement>,
    ) -> Result<(), DataError> {
        let is_class = kind == PredictionKind::Classes;
        let channels = if is_class { 1 } else { self.shape.channels };
        let extents = |sample: usize, placement: &Option<Placement>| {
            let image = placement.as_ref().and_then(Placement::image_extent);
            image.unwrap_or_else(|| self.extent_of(sample))
        };
        let all = (0..self.shape.samples).flat_map(|sample| extents(sample, &placement(sample)));
        let largest = all.fold(channels, usize::max);
        if largest > EXTENT_MAX {
            return Err(DataError::BadValue {
                what: "extent of a NIfTI file",
                got: largest.to_string(),
                expected: format!("at most {EXTENT_MAX}; HDF5 and NPY have no such limit"),
            });
        }
        if kind == PredictionKind::Probabilities {
            self.each_piece(|at, mut values| {
                softmax(&mut values, self.shape.channels);
                self.write_piece(&at, &values)
            })?;
        }
        let paths = volume_paths(out, &self.names_or_numbers());
        for sample in 0..self.shape.samples {
            let path = &paths[sample];
            let failed = |error| unwritable(path, &error);
            let mut file = NewFile::create(path).map_err(failed)?;
            let placement = placement(sample);
            let affine = placement.as_ref().map(Placement::affine);
            let element = is_class.then(|| self.class_type());
            let header = header(extents(sample, &placement), channels, element, affine);
            let restored = placement
                .as_ref()
                .filter(|placement| placement.is_restored());
            let write = |to: &mut dyn Write| match restored {
                Some(placement) => self.write_restored((sample, placement), kind, to, path),
                None => self.write_sample(sample, kind, to, path),
            };
            if path.extension().is_some_and(|end| end == "gz") {
                let mut packed = GzEncoder::new(&mut file, Compression::fast());
                packed.write_all(&header).map_err(failed)?;
                write(&mut packed)?;
                packed.finish().map_err(failed)?;
            } else {
                file.write_all(&header).map_err(failed)?;
                write(&mut file)?;
            }
            file.place().map_err(failed)?;
        }
        Ok(())
    }

    /// Writes the values of a sample in the order of the scratch file, which is that of NIfTI.
    fn write_sample(
        &self,
        sample: usize,
        kind: PredictionKind,
        to: &mut dyn Write,
        path: &Path,
    ) -> Result<(), DataError> {
        let mut write = |bytes: &[u8]| {
            let written = to.write_all(bytes);
            written.map_err(|error| unwritable(path, &error))
        };
        if kind == PredictionKind::Classes {
            return self.each_classes_of(sample, |_, classes| {
                write(&self.class_type().encode(&classes))
            });
        }
        let [depth, height, width] = self.extent_of(sample);
        let mut rows = Vec::new();
        for channel in 0..self.shape.channels {
            for plane in 0..depth {
                let at = [sample, channel, plane];
                self.read_rows(at, [0..height, 0..width], &mut rows)?;
                write(&encode(&rows))?;
            }
        }
        Ok(())
    }

    fn names_or_numbers(&self) -> Vec<String> {
        if self.names.is_empty() {
            return (0..self.shape.samples)
                .map(|sample| sample.to_string())
                .collect();
        }
        self.names.clone()
    }
}

fn header(
    [depth, height, width]: [usize; 3],
    channels: usize,
    classes: Option<ClassType>,
    affine: Option<Affine>,
) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &348_i32.to_le_bytes());
    let dims = if channels > 1 { 4 } else { 3 };
    let extents = [dims, width, height, depth, channels, 1, 1, 1];
    for (dim, extent) in extents.into_iter().enumerate() {
        put(40 + 2 * dim, &(extent as i16).to_le_bytes());
    }
    let (code, bits) = match classes {
        None => (FLOAT32, 32_i16),
        Some(ClassType::UInt8) => (UINT8, 8),
        Some(ClassType::UInt16) => (UINT16, 16),
        Some(ClassType::Int32) => (INT32, 32),
    };
    put(70, &code.to_le_bytes());
    put(72, &bits.to_le_bytes());
    let spacing = affine.map_or([1.0; 3], |affine| affine.spacing());
    // The first is the handedness of a rotation that is not used.
    let pixdim = [1.0, spacing[0], spacing[1], spacing[2], 1.0, 1.0, 1.0, 1.0];
    for (dim, size) in pixdim.into_iter().enumerate() {
        put(76 + 4 * dim, &(size as f32).to_le_bytes());
    }
    put(148, MAKER.as_bytes());
    put(108, &(HEADER_BYTES as f32).to_le_bytes());
    put(112, &1_f32.to_le_bytes());
    if let Some(Affine(rows)) = affine {
        put(123, &[MILLIMETERS]);
        put(254, &SCANNER.to_le_bytes());
        for (at, value) in rows.iter().flatten().enumerate() {
            put(280 + 4 * at, &(*value as f32).to_le_bytes());
        }
    }
    put(344, b"n+1\0");
    bytes
}
