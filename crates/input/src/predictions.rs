//! Predictions of a network on disk: each rank writes its region of each sample into one scratch file, from which the
//! requested file is made in bounded pieces.

mod band;
mod classes;
mod hdf5;
mod join;
mod nifti;
mod npy;
mod paths;
mod restored;

pub use band::Band;
pub use join::TilePlan;
pub use paths::{is_folder, is_prediction, volume_paths};

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use partita_files::NewFile;
use partita_formats::DataError;
use partita_space::Bytes;

use classes::ClassType;

/// Bytes of a piece of several planes of all channels.
const PIECE_BYTES: usize = 4 << 20;
/// Key of the array in an HDF5 file.
pub(crate) const PREDICTIONS_KEY: &str = "predictions";
/// Key of the names of the samples there.
pub(crate) const NAMES_KEY: &str = "names";

/// Key of the array of a sample in an HDF5 file of samples whose extents differ.
pub fn predictions_key(sample: usize, samples: usize) -> String {
    let digits = (samples - 1).to_string().len();
    format!("{PREDICTIONS_KEY}-{sample:0digits$}")
}

/// What is written of the outputs of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictionKind {
    /// The outputs as they are.
    Scores,
    /// The softmax over channels.
    Probabilities,
    /// The index of the greatest output, the first of equals.
    Classes,
}

impl PredictionKind {
    /// The word used in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scores => "scores",
            Self::Probabilities => "probabilities",
            Self::Classes => "classes",
        }
    }
}

/// What a scratch file has of each position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stored {
    /// The outputs of all channels, in `f32`.
    #[default]
    Scores,
    /// The index of the greatest output, in the narrowest type that has all of them.
    Classes,
}

/// Format of a file of predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictionFormat {
    /// HDF5, with the key `predictions`.
    Hdf5,
    /// NumPy's format.
    Npy,
    /// NIfTI-1, a file for each sample.
    Nifti,
}

/// Shape of all predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictionShape {
    /// Samples.
    pub samples: usize,
    /// Channels of a sample.
    pub channels: usize,
    /// D, H, W of a sample.
    pub extent: [usize; 3],
    /// Spatial dims of the model; others have extent 1 and are left out of the file.
    pub spatial_rank: usize,
}

impl PredictionShape {
    fn positions(&self) -> usize {
        self.extent.iter().product()
    }

    /// Bytes of a scratch file of this many positions.
    fn bytes(&self, stored: Stored, positions: usize) -> u64 {
        let [channels, size] = self.element(stored);
        (channels * positions * size) as u64
    }

    /// Stored values of a position, and bytes of each.
    fn element(&self, stored: Stored) -> [usize; 2] {
        match stored {
            Stored::Scores => [self.channels, size_of::<f32>()],
            Stored::Classes => [1, ClassType::of(self.channels).size()],
        }
    }

    /// Extents of the array in the file: (N, C) for one position, else (N, C, D, H, W) without missing dims; without
    /// C for classes.
    pub fn of_file(&self, kind: PredictionKind) -> Vec<usize> {
        let mut shape = vec![self.samples];
        if kind != PredictionKind::Classes {
            shape.push(self.channels);
        }
        if self.extent != [1; 3] {
            shape.extend_from_slice(&self.extent[3 - self.spatial_rank..]);
        }
        shape
    }
}

/// The scratch file of predictions, (N, C, D, H, W), or (N, D, H, W) of classes. It is removed when the rank that created it drops it.
pub struct PredictionScratch {
    path: PathBuf,
    file: File,
    shape: PredictionShape,
    stored: Stored,
    is_owner: bool,
    /// D, H, W of each sample, where they differ; those of the shape are the largest along each dim.
    extents: Option<Arc<[[usize; 3]]>>,
    /// Of the samples; none where they have numbers alone.
    names: Vec<String>,
    /// The same file, where it has a name of its own.
    _temporary: Option<NewFile>,
}

impl PredictionScratch {
    /// Creates the scratch file beside the requested file.
    ///
    /// Errors: `NoRoom`, `Unwritable`.
    pub fn create(out: &Path, shape: PredictionShape) -> Result<Self, DataError> {
        Self::create_of_extents(out, (shape, Stored::Scores), None)
    }

    /// The same, of samples with these D, H, W, if they differ. Each begins the place of one of the largest, which are
    /// those of the shape; what it leaves of that takes no space on the disk.
    ///
    /// Errors: `NoRoom`, `Unwritable`.
    pub fn create_of_extents(
        out: &Path,
        (shape, stored): (PredictionShape, Stored),
        extents: Option<Arc<[[usize; 3]]>>,
    ) -> Result<Self, DataError> {
        let path = scratch_path(out);
        let positions = |extents: &Arc<[[usize; 3]]>| -> usize {
            let each = extents
                .iter()
                .map(|extent| extent.iter().product::<usize>());
            each.sum()
        };
        let whole = shape.samples * shape.positions();
        let positions = extents.as_ref().map_or(whole, positions);
        let bytes = shape.bytes(stored, positions);
        check_room(&path, bytes)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&path);
        // Dropped, and so removed, where it cannot have its size.
        let scratch = Self {
            file: file.map_err(|error| unwritable(&path, &error))?,
            path,
            shape,
            stored,
            is_owner: true,
            extents,
            names: Vec::new(),
            _temporary: None,
        };
        let sized = scratch.file.set_len(shape.bytes(stored, whole));
        sized.map_err(|error| unwritable(&scratch.path, &error))?;
        Ok(scratch)
    }

    /// Creates a scratch file for no file of predictions, with a name that begins as `path` and no other process
    /// takes; one that a killed process left is removed.
    ///
    /// Errors: `NoRoom`, `Unwritable`.
    pub fn temporary(path: &Path, shape: PredictionShape) -> Result<Self, DataError> {
        let bytes = shape.bytes(Stored::Scores, shape.samples * shape.positions());
        check_room(path, bytes)?;
        let (temporary, file) = temporary_file(path)?;
        let sized = file.set_len(bytes);
        sized.map_err(|error| unwritable(path, &error))?;
        Ok(Self {
            path: temporary.partial().to_path_buf(),
            file,
            shape,
            stored: Stored::Scores,
            is_owner: false,
            extents: None,
            names: Vec::new(),
            _temporary: Some(temporary),
        })
    }

    fn extent_of(&self, sample: usize) -> [usize; 3] {
        let own = self.extents.as_ref().map(|extents| extents[sample]);
        own.unwrap_or(self.shape.extent)
    }

    /// The same with the names of the samples, which the published files tell.
    #[must_use]
    pub fn named(mut self, names: Vec<String>) -> Self {
        self.names = names;
        self
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it has of each position.
    pub fn stored(&self) -> Stored {
        self.stored
    }

    /// Opens the scratch file of scores that another rank has created.
    ///
    /// Errors: `Unwritable`.
    pub fn open(out: &Path, shape: PredictionShape) -> Result<Self, DataError> {
        Self::open_at(&scratch_path(out), (shape, Stored::Scores))
    }

    /// As [`Self::open`], by the path of the scratch file itself.
    ///
    /// Errors: `Unwritable`.
    pub fn open_at(
        path: &Path,
        (shape, stored): (PredictionShape, Stored),
    ) -> Result<Self, DataError> {
        let path = path.to_path_buf();
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        Ok(Self {
            file: opened.map_err(|error| unwritable(&path, &error))?,
            path,
            shape,
            stored,
            is_owner: false,
            extents: None,
            names: Vec::new(),
            _temporary: None,
        })
    }

    /// The same file once more, wherever its path leads by now.
    ///
    /// Errors: `Unwritable`.
    pub fn share(&self) -> Result<Self, DataError> {
        let file = self.file.try_clone();
        Ok(Self {
            path: self.path.clone(),
            file: file.map_err(|error| unwritable(&self.path, &error))?,
            shape: self.shape,
            stored: self.stored,
            is_owner: false,
            extents: None,
            names: Vec::new(),
            _temporary: None,
        })
    }

    /// Reads rows of a plane of a channel of a sample.
    ///
    /// Shapes: `values` become (H, W) of these rows and columns.
    /// Errors: `Unwritable`, as of a file that was cut.
    pub(crate) fn read_rows(
        &self,
        [sample, channel, plane]: [usize; 3],
        [rows, columns]: [Range<usize>; 2],
        values: &mut Vec<f32>,
    ) -> Result<(), DataError> {
        assert_eq!(self.stored, Stored::Scores, "scores are read of scores");
        let bytes = self.read_bytes([sample, channel, plane], [rows, columns])?;
        let words = bytes.as_chunks::<4>().0.iter();
        values.clear();
        values.extend(words.map(|&word| f32::from_le_bytes(word)));
        Ok(())
    }

    /// What is stored of rows of a plane of a channel of a sample.
    fn read_bytes(
        &self,
        plane: [usize; 3],
        [rows, columns]: [Range<usize>; 2],
    ) -> Result<Vec<u8>, DataError> {
        let [_, size] = self.shape.element(self.stored);
        let mut bytes = vec![0; rows.len() * columns.len() * size];
        let (run, runs) = self.runs(plane, [rows, columns]);
        for (run, at) in bytes.chunks_exact_mut(run).zip(runs) {
            let read = self.file.read_exact_at(run, at);
            read.map_err(|error| unwritable(&self.path, &error))?;
        }
        Ok(bytes)
    }

    /// Writes what is stored of rows of a plane of a channel of a sample.
    fn write_bytes(
        &self,
        plane: [usize; 3],
        part: [Range<usize>; 2],
        bytes: &[u8],
    ) -> Result<(), DataError> {
        let (run, runs) = self.runs(plane, part);
        for (run, at) in bytes.chunks_exact(run).zip(runs) {
            let written = self.file.write_all_at(run, at);
            written.map_err(|error| unwritable(&self.path, &error))?;
        }
        Ok(())
    }

    /// Bytes of each run of rows that lie together, at least 1, and where they begin.
    fn runs(
        &self,
        [sample, channel, plane]: [usize; 3],
        [rows, columns]: [Range<usize>; 2],
    ) -> (usize, impl Iterator<Item = u64>) {
        let [_, size] = self.shape.element(self.stored);
        // Samples below the largest extents begin their place in the file.
        let is_whole = columns.len() == self.shape.extent[2];
        let at_once = if is_whole { rows.len() } else { 1 };
        let place = move |row| self.offset([sample, channel, plane, row, columns.start]);
        let run = at_once * columns.len() * size;
        (run.max(1), rows.step_by(at_once.max(1)).map(place))
    }

    fn offset(&self, [n, c, d, h, w]: [usize; 5]) -> u64 {
        let [depth, height, width] = self.shape.extent;
        let [channels, size] = self.shape.element(self.stored);
        let element = (((n * channels + c) * depth + d) * height + h) * width + w;
        (element * size) as u64
    }

    /// Writes rows of a plane of a sample; where classes are stored, those of these values, which are of all channels.
    ///
    /// Shapes: `values` are (C, H, W) of these channels, rows and columns.
    /// Errors: `Unwritable`.
    pub fn write_rows(
        &self,
        [sample, plane]: [usize; 2],
        [channels, rows, columns]: [Range<usize>; 3],
        values: &[f32],
    ) -> Result<(), DataError> {
        if self.stored == Stored::Classes {
            assert_eq!(channels, 0..self.shape.channels, "scores of all channels");
            return self.write_classes([sample, plane], [rows, columns], values);
        }
        let of_channel = rows.len() * columns.len();
        assert_eq!(
            values.len(),
            channels.len() * of_channel,
            "values of all rows"
        );
        for (channel, values) in channels.zip(values.chunks_exact(of_channel.max(1))) {
            let part = [rows.clone(), columns.clone()];
            self.write_bytes([sample, channel, plane], part, &encode(values))?;
        }
        Ok(())
    }

    /// Multiplies each channel by a factor and adds a summand, once all ranks have written.
    ///
    /// Errors: `Unwritable`.
    pub fn scale(&self, channels: &[(f64, f64)]) -> Result<(), DataError> {
        self.each_piece(|at, mut values| {
            let positions = values.len() / self.shape.channels;
            for (values, (factor, summand)) in values.chunks_mut(positions).zip(channels) {
                for value in values {
                    *value = (f64::from(*value) * factor + summand) as f32;
                }
            }
            self.write_piece(&at, &values)
        })
    }

    /// Makes the requested file, once all ranks have written. Where extents differ, one of HDF5 has an array for each
    /// sample; see [`predictions_key`].
    ///
    /// Errors: `Unwritable`. Panics for NPY where extents differ.
    pub fn publish(
        &self,
        out: &Path,
        format: PredictionFormat,
        kind: PredictionKind,
    ) -> Result<(), DataError> {
        let shape = self.shape.of_file(kind);
        match format {
            PredictionFormat::Npy => self.write_npy(out, &shape, kind),
            PredictionFormat::Hdf5 => self.write_hdf5(out, &shape, kind),
            PredictionFormat::Nifti => self.publish_volumes(out, kind, &|_| None),
        }
    }

    /// Calls `visit` with planes of all channels, (C, planes, H, W), in order.
    fn each_piece(
        &self,
        mut visit: impl FnMut(Piece, Vec<f32>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        for sample in 0..self.shape.samples {
            self.each_piece_of(sample, &mut visit)?;
        }
        Ok(())
    }

    /// As [`Self::each_piece`], of one sample.
    fn each_piece_of(
        &self,
        sample: usize,
        mut visit: impl FnMut(Piece, Vec<f32>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let [depth, height, width] = self.extent_of(sample);
        let plane = self.shape.channels * height * width * size_of::<f32>();
        let at_once = (PIECE_BYTES / plane.max(1)).clamp(1, depth);
        for first in (0..depth).step_by(at_once) {
            let planes = first..depth.min(first + at_once);
            let piece = Piece { sample, planes };
            let values = self.read_piece(&piece)?;
            visit(piece, values)?;
        }
        Ok(())
    }

    fn read_piece(&self, piece: &Piece) -> Result<Vec<f32>, DataError> {
        let [_, height, width] = self.extent_of(piece.sample);
        let planes = self.shape.channels * piece.planes.len();
        let (mut rows, mut values) = (Vec::new(), Vec::with_capacity(planes * height * width));
        for channel in 0..self.shape.channels {
            for plane in piece.planes.clone() {
                let at = [piece.sample, channel, plane];
                self.read_rows(at, [0..height, 0..width], &mut rows)?;
                values.extend_from_slice(&rows);
            }
        }
        Ok(values)
    }

    fn write_piece(&self, piece: &Piece, values: &[f32]) -> Result<(), DataError> {
        let [_, height, width] = self.extent_of(piece.sample);
        let planes = (0..self.shape.channels)
            .flat_map(|channel| piece.planes.clone().map(move |plane| (channel, plane)));
        for ((channel, plane), run) in planes.zip(values.chunks_exact(height * width)) {
            let region = [channel..channel + 1, 0..height, 0..width];
            self.write_rows([piece.sample, plane], region, run)?;
        }
        Ok(())
    }
}

impl Drop for PredictionScratch {
    fn drop(&mut self) {
        if self.is_owner {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Planes of a sample.
struct Piece {
    sample: usize,
    planes: Range<usize>,
}

/// Errors: `NoRoom`. Where the system does not tell, writing will.
fn check_room(path: &Path, bytes: u64) -> Result<(), DataError> {
    let free = partita_files::free_bytes(partita_files::parent(path));
    match free.ok().flatten().filter(|&free| free < bytes) {
        None => Ok(()),
        Some(free) => Err(DataError::NoRoom {
            path: path.to_path_buf(),
            outputs: Bytes(bytes),
            free: Bytes(free),
        }),
    }
}

fn scratch_path(out: &Path) -> PathBuf {
    with_end(out, ".scores.partial")
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn encode(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Softmax over channels, in place; `values` are (C, positions).
fn softmax(values: &mut [f32], channels: usize) {
    let positions = values.len() / channels;
    for at in 0..positions {
        let of = |channel: usize| channel * positions + at;
        let largest = (0..channels)
            .map(|c| values[of(c)])
            .fold(f32::MIN, f32::max);
        let power = |value: f32| f64::from(value - largest).exp();
        let sum: f64 = (0..channels).map(|c| power(values[of(c)])).sum();
        for channel in 0..channels {
            values[of(channel)] = (power(values[of(channel)]) / sum) as f32;
        }
    }
}

/// A file beside `path` to write and read, which is removed with the first of the two.
fn temporary_file(path: &Path) -> Result<(NewFile, File), DataError> {
    let create = || {
        let temporary = NewFile::create(path)?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(temporary.partial())?;
        Ok((temporary, file))
    };
    create().map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> DataError {
    DataError::Unwritable {
        path: path.to_path_buf(),
        reason: error.to_string(),
    }
}
