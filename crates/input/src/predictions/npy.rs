//! Predictions as one NPY array.

use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use partita_files::NewFile;
use partita_formats::DataError;

use super::classes::ClassType;
use super::paths::NPY_HEADER_BYTES;
use super::{PIECE_BYTES, PredictionKind, PredictionScratch, Stored, softmax, unwritable};

impl PredictionScratch {
    /// Errors: `Unwritable`. Panics where extents differ.
    pub(super) fn write_npy(
        &self,
        out: &Path,
        shape: &[usize],
        kind: PredictionKind,
    ) -> Result<(), DataError> {
        assert!(self.extents.is_none(), "NPY has one array");
        let failed = |error: io::Error| unwritable(out, &error);
        let mut file = NewFile::create(out).map_err(failed)?;
        let is_class = kind == PredictionKind::Classes;
        let element = match self.class_type() {
            _ if !is_class => "<f4",
            ClassType::UInt8 => "|u1",
            ClassType::UInt16 => "<u2",
            ClassType::Int32 => "<i4",
        };
        let header = npy_header(shape, element);
        file.write_all(&header).map_err(failed)?;
        if kind == PredictionKind::Probabilities {
            self.each_piece(|at, mut values| {
                softmax(&mut values, self.shape.channels);
                self.write_piece(&at, &values)
            })?;
        }
        if is_class {
            self.each_classes(|_, classes| {
                let bytes = self.class_type().encode(&classes);
                file.write_all(&bytes).map_err(failed)
            })?;
        } else {
            let mut buffer = vec![0; PIECE_BYTES];
            let positions = self.shape.samples * self.shape.positions();
            let (mut at, end) = (0, self.shape.bytes(Stored::Scores, positions));
            while at < end {
                let length = PIECE_BYTES.min((end - at) as usize);
                let read = self.file.read_exact_at(&mut buffer[..length], at);
                read.map_err(|error| unwritable(&self.path, &error))?;
                file.write_all(&buffer[..length]).map_err(failed)?;
                at += length as u64;
            }
        }
        file.place().map_err(failed)
    }
}

/// The header of an NPY file in C order, padded to [`NPY_HEADER_BYTES`].
///
/// Source: NumPy Enhancement Proposal 1, "A Simple File Format for NumPy Arrays", version 1.0.
fn npy_header(shape: &[usize], element: &str) -> Vec<u8> {
    let extents: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
    let shape = match shape.len() {
        1 => extents.trim_end().to_string(),
        _ => extents.trim_end_matches(", ").to_string(),
    };
    let mut text =
        format!("{{'descr': '{element}', 'fortran_order': False, 'shape': ({shape}), }}");
    let length = NPY_HEADER_BYTES - 10;
    text.extend(std::iter::repeat_n(' ', length - 1 - text.len()));
    text.push('\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend_from_slice(&(length as u16).to_le_bytes());
    header.extend_from_slice(text.as_bytes());
    header
}
