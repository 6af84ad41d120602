//! Data loading of a rank: a background thread reads its hyperslab of each sample.

mod joined;
pub(crate) mod piece;

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread;

use half::{bf16, f16};
use partita_data::{Dataset, Split};
use partita_formats::{DType, DataError, Samples};
use partita_program::prefetch::{FILLED_PIECES_MAX, PIECE_BUFFERS_MAX};
use partita_program::{Dtype, Load, TaskId, Transform, View, When};
use partita_run::{Inputs, Memory, RunError, Source};
use partita_space::{Bytes, Mesh, Rank, Seconds};

use crate::augment::SampleKey;
use crate::preprocessing::Preprocessing;
use crate::store::{EpochLoads, LoadTally};
pub use joined::PredictionSource;
use piece::Part;
pub use piece::{PieceMaker, PieceReader, PieceRequest, PieceValues};

/// Called by the reading thread after each piece, to wake a sleeping rank.
pub type Waker = Box<dyn Fn() + Send>;

/// Reads this rank's part of every sample of a dataset in a background thread.
///
/// Samples of all splits are numbered in one sequence: training, validation, test; see
/// [`first_sample`]. Nothing but the rank's own region is read. `poll` takes what has been read and
/// never waits; the thread sleeps while there is nothing to read, or when the rank does not keep up.
/// The thread also prepares and augments; see [`Preprocessing`].
/// Infinite and extreme values and NaN are errors, before and after the program's transform.
/// A load for the next step delivers zeros if the step inputs list no next samples, and counts them. Errors are [`RunError::Source`] with the rank, the file, the key, and the sample and position of a
/// value that is refused. Targets of a model with scores of classes are class indices, and refused in the
/// same way where they are others.
pub struct HyperslabSource {
    maker: PieceMaker,
    rank: Rank,
    requests: Sender<ReadRequest>,
    pieces: Receiver<Piece>,
    recycler: Sender<PieceValues>,
    zeros: Vec<(TaskId, View)>,
    bytes: u64,
    read_bytes: Bytes,
    tally: Arc<LoadTally>,
}

/// A load, with the samples of which this rank reads a part.
struct ReadRequest {
    task: TaskId,
    target: View,
    samples: Vec<usize>,
    key: SampleKey,
    part: Part,
    /// The step that takes them, from 1.
    step: u64,
}

/// Consecutive samples of a load, or the error.
struct Piece {
    task: TaskId,
    view: View,
    values: Result<PieceValues, DataError>,
    is_last: bool,
    /// Bytes of volumes read so far, as they are stored.
    read_bytes: Bytes,
}

/// Delivers pieces that another process has read.
pub trait PieceSupply: Send {
    /// Replaces the values of a buffer by those of a piece, which `step` takes. False if nothing can be delivered from
    /// now on: the reading thread then reads this piece, and all after it, from files.
    fn deliver(&mut self, piece: &PieceRequest, step: u64, values: &mut PieceValues) -> bool;
}

/// How a network reads stored samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accepted {
    /// Transformation of the values.
    pub transform: Transform,
    /// Number of classes of the network, if targets are class indices.
    pub classes: Option<usize>,
    /// A class index that the loss ignores, which need not be one of the classes.
    pub ignored: Option<i64>,
}

impl From<Transform> for Accepted {
    fn from(transform: Transform) -> Self {
        Self {
            transform,
            classes: None,
            ignored: None,
        }
    }
}

/// Number of the first sample of a split among all samples of the dataset.
pub fn first_sample(dataset: &Dataset, split: Split) -> usize {
    let before = Split::ALL.into_iter().take_while(|&other| other != split);
    before.map(|other| dataset.samples(other)).sum()
}

impl HyperslabSource {
    /// The source of this rank of a mesh. A [`Transform`] suffices as `accepted` if targets are not class
    /// indices. Files are opened at the first load.
    ///
    /// Errors: the thread cannot be started.
    pub fn new(
        dataset: &Dataset,
        mesh: Mesh,
        rank: Rank,
        accepted: impl Into<Accepted>,
        wake: Option<Waker>,
    ) -> Result<Self, RunError> {
        let plain = Preprocessing::plain(dataset);
        Self::preprocessed(dataset, plain, mesh, rank, accepted, wake)
    }

    /// The same, with samples that are prepared and augmented on the way. Sample numbers are those of its
    /// [`Sampling`](crate::Sampling).
    ///
    /// Errors: the thread cannot be started.
    pub fn preprocessed(
        dataset: &Dataset,
        preprocessing: Preprocessing,
        mesh: Mesh,
        rank: Rank,
        accepted: impl Into<Accepted>,
        wake: Option<Waker>,
    ) -> Result<Self, RunError> {
        let reader = PieceReader::new(dataset, preprocessing.clone(), accepted);
        let maker = PieceMaker::new(dataset, &preprocessing, mesh, rank);
        Self::of_pieces(maker, reader, None, rank, wake)
    }

    /// The source of a rank that takes pieces from `supply`, and reads them itself where it delivers no more.
    ///
    /// Errors: the thread cannot be started.
    pub fn of_pieces(
        maker: PieceMaker,
        reader: PieceReader,
        supply: Option<Box<dyn PieceSupply>>,
        rank: Rank,
        wake: Option<Waker>,
    ) -> Result<Self, RunError> {
        let (requests, incoming) = channel();
        let (filled, pieces) = sync_channel(FILLED_PIECES_MAX);
        let (recycler, returned) = channel();
        let tally = Arc::clone(reader.tally());
        let worker = Worker {
            dtype: reader.dtype(),
            reader,
            supply,
            filled,
            returned,
            volumes: Buffers::default(),
            targets: Buffers::default(),
            wake,
        };
        // The thread is detached: it ends after its current read when the source is dropped.
        thread::Builder::new()
            .name(format!("reader {rank}"))
            .spawn(move || worker.work(&incoming))
            .map_err(|error| RunError::Source {
                rank,
                reason: format!("no thread to read with: {error}"),
            })?;
        Ok(Self {
            maker,
            rank,
            requests,
            pieces,
            recycler,
            zeros: Vec::new(),
            bytes: 0,
            read_bytes: Bytes(0),
            tally,
        })
    }

    fn refuse(&self, reason: String) -> RunError {
        let rank = self.rank;
        RunError::Source { rank, reason }
    }

    /// Why the reading thread has ended: its last piece has the error.
    fn gone(&self) -> RunError {
        let cause = self.pieces.try_iter().find_map(|piece| piece.values.err());
        self.refuse(cause.map_or_else(
            || "its reading thread ended".to_owned(),
            |error| error.to_string(),
        ))
    }

    /// Bytes of volumes that the thread of this rank has read from files, as they are stored.
    pub fn read_bytes(&self) -> Bytes {
        self.read_bytes
    }

    fn take(&mut self, memory: &Memory<'_>, piece: Piece) -> Result<(), RunError> {
        let dtype = memory.body().buffer(piece.view.buffer).dtype;
        self.read_bytes = piece.read_bytes;
        let values = piece
            .values
            .map_err(|error| self.refuse(error.to_string()))?;
        let elements = match values {
            PieceValues::Volume(samples) => {
                match (&samples, dtype) {
                    (Samples::I16(values), Dtype::I16) => memory.unpack(&piece.view, values, false),
                    (Samples::F32(values), Dtype::F32) => memory.unpack(&piece.view, values, false),
                    (
                        Samples::I16(_) | Samples::F32(_),
                        Dtype::I16 | Dtype::F32 | Dtype::F64 | Dtype::Bf16 | Dtype::F16,
                    ) => {
                        let stored = samples.dtype().name();
                        let reason = format!("samples are {stored}, the program stages {dtype:?}");
                        return Err(self.refuse(reason));
                    }
                }
                let elements = samples.len();
                // Where the thread has ended, nobody needs the buffer.
                let _ = self.recycler.send(PieceValues::Volume(samples));
                elements
            }
            PieceValues::Targets(values) => {
                unpack_floats(memory, &piece.view, &values);
                let elements = values.len();
                let _ = self.recycler.send(PieceValues::Targets(values));
                elements
            }
            PieceValues::Nothing => 0,
        };
        self.bytes += (elements * dtype.size()) as u64;
        Ok(())
    }
}

fn unpack_floats(memory: &Memory<'_>, view: &View, values: &[f32]) {
    match memory.body().buffer(view.buffer).dtype {
        Dtype::F32 => memory.unpack(view, values, false),
        Dtype::F64 => {
            let wide: Vec<f64> = values.iter().copied().map(f64::from).collect();
            memory.unpack(view, &wide, false);
        }
        Dtype::Bf16 | Dtype::F16 | Dtype::I16 => panic!("targets are staged in f32 or f64"),
    }
}

fn unpack_zeros(memory: &Memory<'_>, view: &View) -> u64 {
    let dtype = memory.body().buffer(view.buffer).dtype;
    match dtype {
        Dtype::F32 => memory.clear::<f32>(view),
        Dtype::F64 => memory.clear::<f64>(view),
        Dtype::Bf16 => memory.clear::<bf16>(view),
        Dtype::F16 => memory.clear::<f16>(view),
        Dtype::I16 => memory.clear::<i16>(view),
    }
    (view.volume() * dtype.size()) as u64
}

impl Source for HyperslabSource {
    fn start(&mut self, task: TaskId, load: &Load, inputs: &Inputs) -> Result<(), RunError> {
        let (listed, epoch, step) = match load.when {
            When::Now => (&inputs.samples, inputs.epoch, inputs.step),
            When::Next if inputs.next_samples.is_empty() => {
                self.zeros.push((task, load.target));
                return Ok(());
            }
            When::Next => (&inputs.next_samples, inputs.next_epoch, inputs.step + 1),
        };
        let (part, mine) = self
            .maker
            .part(load)
            .map_err(|error| self.refuse(error.to_string()))?;
        assert!(
            mine.end <= listed.len(),
            "{} samples for {}",
            listed.len(),
            load.distribution.shape[0]
        );
        let request = ReadRequest {
            task,
            target: load.target,
            samples: listed[mine].to_vec(),
            key: SampleKey {
                seed: inputs.seed,
                epoch,
            },
            part,
            step,
        };
        self.requests.send(request).map_err(|_| self.gone())
    }

    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        for (task, view) in std::mem::take(&mut self.zeros) {
            self.bytes += unpack_zeros(memory, &view);
            done.push(task);
        }
        loop {
            match self.pieces.try_recv() {
                Ok(piece) => {
                    let finished = piece.is_last.then_some(piece.task);
                    self.take(memory, piece)?;
                    done.extend(finished);
                }
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(self.gone()),
            }
        }
    }

    fn waited(&mut self, epoch: u64, time: Seconds) {
        let waits = EpochLoads {
            waited: time,
            ..EpochLoads::default()
        };
        self.tally.add(self.rank, epoch, waits);
    }

    fn take_tally(&mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

/// Buffers of one kind, which circulate between the reading thread and the rank.
struct Buffers<T> {
    free: Vec<T>,
    made: usize,
}

impl<T> Default for Buffers<T> {
    fn default() -> Self {
        Self {
            free: Vec::new(),
            made: 0,
        }
    }
}

impl<T> Buffers<T> {
    /// A buffer for a piece of a load of this many. As many are allocated as can be in use, so that the memory does
    /// not depend on timing.
    fn take(&mut self, pieces: usize, make: impl FnOnce() -> T) -> Option<T> {
        if self.made < pieces.min(PIECE_BUFFERS_MAX) {
            self.made += 1;
            return Some(make());
        }
        self.free.pop()
    }
}

/// The reading thread.
struct Worker {
    reader: PieceReader,
    /// Delivers pieces in place of the reader.
    supply: Option<Box<dyn PieceSupply>>,
    /// Type of the volumes that are delivered.
    dtype: DType,
    filled: SyncSender<Piece>,
    /// Buffers that the rank returns.
    returned: Receiver<PieceValues>,
    volumes: Buffers<Samples>,
    targets: Buffers<Vec<f32>>,
    wake: Option<Waker>,
}

impl Worker {
    /// Reads until the source is dropped or an error occurs.
    fn work(mut self, requests: &Receiver<ReadRequest>) {
        while let Ok(request) = requests.recv() {
            let count = request.samples.len();
            if count == 0 && !self.send(&request, 0..0, Ok(PieceValues::Nothing)) {
                return;
            }
            if self.supply.is_none() {
                self.reader
                    .announce(&request.samples, request.key, &request.part);
            }
            let at_once = request.part.samples_per_piece(self.dtype);
            let pieces = count.div_ceil(at_once);
            for start in (0..count).step_by(at_once) {
                let range = start..count.min(start + at_once);
                let Some(buffer) = self.buffer(&request.part, pieces) else {
                    return;
                };
                let piece = PieceRequest {
                    samples: request.samples[range.clone()].to_vec(),
                    key: request.key,
                    part: request.part.clone(),
                };
                let values = self.read(&piece, request.step, buffer);
                if !self.send(&request, range, values) {
                    return;
                }
            }
        }
    }

    /// The values of a piece: delivered, else read.
    fn read(
        &mut self,
        piece: &PieceRequest,
        step: u64,
        mut buffer: PieceValues,
    ) -> Result<PieceValues, DataError> {
        if let Some(supply) = &mut self.supply {
            if supply.deliver(piece, step, &mut buffer) {
                return Ok(buffer);
            }
            self.supply = None;
        }
        self.reader.read(piece, buffer)
    }

    /// An empty buffer for a piece of a load of this many. None where the source was dropped.
    fn buffer(&mut self, part: &Part, pieces: usize) -> Option<PieceValues> {
        loop {
            let free = match part {
                Part::Volume(_) => {
                    let made = self.volumes.take(pieces, || Samples::new(self.dtype));
                    made.map(PieceValues::Volume)
                }
                Part::Targets(_) | Part::Labels(_) | Part::Features(_) => self
                    .targets
                    .take(pieces, Vec::new)
                    .map(PieceValues::Targets),
            };
            if free.is_some() {
                return free;
            }
            match self.returned.recv().ok()? {
                PieceValues::Volume(samples) => self.volumes.free.push(samples),
                PieceValues::Targets(values) => self.targets.free.push(values),
                PieceValues::Nothing => {}
            }
        }
    }

    /// Sends a range of the samples of a request to the rank; false if the thread should end.
    fn send(
        &self,
        request: &ReadRequest,
        range: Range<usize>,
        values: Result<PieceValues, DataError>,
    ) -> bool {
        let failed = values.is_err();
        let mut view = request.target;
        view.start[0] += range.start;
        view.extent[0] = range.len();
        let is_last = range.end == request.samples.len();
        let task = request.task;
        let piece = Piece {
            task,
            view,
            values,
            is_last,
            read_bytes: self.reader.read_bytes(),
        };
        let sent = self.filled.send(piece).is_ok();
        if let (true, Some(wake)) = (sent, &self.wake) {
            wake();
        }
        sent && !failed
    }
}
