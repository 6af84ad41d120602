//! Data loading of a rank: a background thread reads its hyperslab of each sample.

use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread;

use partita_program::prefetch::{FILLED_PIECES_MAX, PIECE_BUFFERS_MAX, samples_per_piece};
use partita_program::{Dtype, Item, Load, TaskId, Transform, View, When};
use partita_run::{Inputs, Memory, RunError, Source};
use partita_space::{Bytes, Interval, Mesh, Rank, Region};

use crate::augment::{SampleKey, View as SampleView};
use crate::classes::{Classes, SampleLocation};
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::prepare::prepare;
use crate::preprocessing::Preprocessing;
use crate::reader::Reader;
use crate::samples::{DType, Samples};
use crate::slab::{self, Region4};
use crate::split::Split;
use crate::valid::Valid;

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
    shape: [usize; 4],
    /// (D, H, W, C) of the target of a sample.
    target_shape: [usize; 4],
    has_labels: bool,
    mesh: Mesh,
    rank: Rank,
    requests: Sender<ReadRequest>,
    pieces: Receiver<Piece>,
    recycler: Sender<Values>,
    zeros: Vec<(TaskId, View)>,
    bytes: u64,
    read_bytes: Bytes,
}

/// A load, with the samples of which this rank reads a part.
struct ReadRequest {
    task: TaskId,
    target: View,
    samples: Vec<usize>,
    key: SampleKey,
    part: Part,
}

#[derive(Clone)]
enum Part {
    Volume(Region4),
    Targets(Range<usize>),
    Labels(Region4),
}

impl Part {
    /// Bytes of one sample in a buffer.
    fn bytes(&self, dtype: DType) -> usize {
        match self {
            Part::Volume(region) => slab::elements(region) * dtype.size_bytes(),
            Part::Targets(range) => range.len() * size_of::<f32>(),
            Part::Labels(region) => slab::elements(region) * size_of::<f32>(),
        }
    }
}

/// Consecutive samples of a load, or the error.
struct Piece {
    task: TaskId,
    view: View,
    values: Result<Values, DataError>,
    is_last: bool,
    /// Bytes of volumes read so far, as they are stored.
    read_bytes: Bytes,
}

enum Values {
    Volume(Samples),
    Targets(Vec<f32>),
    /// The rank has no sample in this load.
    Nothing,
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
        let accepted = accepted.into();
        let target_shape = match preprocessing.sampling.labels() {
            Some([d, h, w]) => [d, h, w, 1],
            None => [1, 1, 1, dataset.targets().len()],
        };
        let shape = preprocessing.sampling.shape();
        let dtype = preprocessing.dtype(dataset.dtype());
        let (requests, incoming) = channel();
        let (filled, pieces) = sync_channel(FILLED_PIECES_MAX);
        let (recycler, returned) = channel();
        let worker = Worker {
            readers: Split::ALL.map(|split| dataset.reader(split)),
            stored: Samples::new(dataset.dtype()),
            prepared: Vec::new(),
            preprocessing,
            dtype,
            filled,
            returned,
            volumes: Buffers::default(),
            targets: Buffers::default(),
            one: Samples::new(dtype),
            labels: Samples::new(DType::Int16),
            valid: Valid::under(accepted.transform),
            classes: accepted
                .classes
                .filter(|&count| count > 0)
                .map(|count| Classes::of_model(count, accepted.ignored)),
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
            shape,
            target_shape,
            has_labels: dataset.labels().is_some(),
            mesh,
            rank,
            requests,
            pieces,
            recycler,
            zeros: Vec::new(),
            bytes: 0,
            read_bytes: Bytes(0),
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

    /// The region of a load in the terms of the dataset, checked against its shapes.
    fn part(&self, load: &Load, owned: &Region) -> Result<Part, RunError> {
        let [_, d, h, w, c] = load.distribution.shape;
        let [n, depth, height, width, channels] = owned.0.map(range);
        let local = [
            n.len(),
            depth.len(),
            height.len(),
            width.len(),
            channels.len(),
        ];
        let [n, ld, lh, lw, lc] = local;
        match load.item {
            Item::Sample => {
                if self.shape != [c, d, h, w] {
                    let (got, expected) = (self.shape, [c, d, h, w]);
                    let reason = format!("samples are (C, D, H, W) = {got:?}, not {expected:?}");
                    return Err(self.refuse(reason));
                }
                assert_eq!(
                    load.target.extent,
                    [n, lc, ld, lh, lw],
                    "staging of a sample"
                );
                Ok(Part::Volume([channels, depth, height, width]))
            }
            Item::Target => {
                if [d, h, w, c] != self.target_shape {
                    let (got, expected) = (self.target_shape, [d, h, w, c]);
                    let reason = format!(
                        "targets are (D, H, W, C) = {got:?}, those of the network {expected:?}"
                    );
                    return Err(self.refuse(reason));
                }
                assert_eq!(load.target.extent, local, "staging of a target");
                Ok(if self.has_labels {
                    Part::Labels([channels, depth, height, width])
                } else {
                    Part::Targets(channels)
                })
            }
        }
    }

    /// Bytes of volumes that this rank has read from files, as they are stored.
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
            Values::Volume(samples) => {
                match (&samples, dtype) {
                    (Samples::I16(values), Dtype::I16) => memory.unpack(&piece.view, values, false),
                    (Samples::F32(values), Dtype::F32) => memory.unpack(&piece.view, values, false),
                    (Samples::I16(_) | Samples::F32(_), Dtype::I16 | Dtype::F32 | Dtype::F64) => {
                        let stored = samples.dtype().name();
                        let reason = format!("samples are {stored}, the program stages {dtype:?}");
                        return Err(self.refuse(reason));
                    }
                }
                let elements = samples.len();
                // Where the thread has ended, nobody needs the buffer.
                let _ = self.recycler.send(Values::Volume(samples));
                elements
            }
            Values::Targets(values) => {
                unpack_floats(memory, &piece.view, &values);
                let elements = values.len();
                let _ = self.recycler.send(Values::Targets(values));
                elements
            }
            Values::Nothing => 0,
        };
        self.bytes += (elements * dtype.size()) as u64;
        Ok(())
    }
}

fn range(interval: Interval) -> Range<usize> {
    let start = usize::try_from(interval.start).expect("an owned region starts inside its tensor");
    start..start + interval.len()
}

fn unpack_floats(memory: &Memory<'_>, view: &View, values: &[f32]) {
    match memory.body().buffer(view.buffer).dtype {
        Dtype::F32 => memory.unpack(view, values, false),
        Dtype::F64 => {
            let wide: Vec<f64> = values.iter().copied().map(f64::from).collect();
            memory.unpack(view, &wide, false);
        }
        Dtype::I16 => panic!("targets are staged in a floating-point type"),
    }
}

fn unpack_zeros(memory: &Memory<'_>, view: &View) -> u64 {
    let dtype = memory.body().buffer(view.buffer).dtype;
    match dtype {
        Dtype::F32 => memory.clear::<f32>(view),
        Dtype::F64 => memory.clear::<f64>(view),
        Dtype::I16 => memory.clear::<i16>(view),
    }
    (view.volume() * dtype.size()) as u64
}

impl Source for HyperslabSource {
    fn start(&mut self, task: TaskId, load: &Load, inputs: &Inputs) -> Result<(), RunError> {
        let (listed, epoch) = match load.when {
            When::Now => (&inputs.samples, inputs.epoch),
            When::Next if inputs.next_samples.is_empty() => {
                self.zeros.push((task, load.target));
                return Ok(());
            }
            When::Next => (&inputs.next_samples, inputs.next_epoch),
        };
        let owned = load
            .distribution
            .owned(&self.mesh, &self.mesh.coord(self.rank));
        let part = self.part(load, &owned)?;
        let mine = range(owned.0[0]);
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
    /// A buffer for a piece of a load of so many. As many are allocated as can be in use, so that the memory does
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
    readers: [Reader; 3],
    preprocessing: Preprocessing,
    /// Type of the values that are delivered.
    dtype: DType,
    filled: SyncSender<Piece>,
    /// Buffers that the rank returns.
    returned: Receiver<Values>,
    volumes: Buffers<Samples>,
    targets: Buffers<Vec<f32>>,
    /// Values that are still to be prepared or moved.
    stored: Samples,
    /// Prepared values that are still to be moved.
    prepared: Vec<f32>,
    /// The last sample of a piece of several.
    one: Samples,
    /// Stored class indices of a sample.
    labels: Samples,
    valid: Valid,
    /// Classes of the model, if targets are class indices.
    classes: Option<Classes>,
    wake: Option<Waker>,
}

impl Worker {
    /// Reads until the source is dropped or an error occurs.
    fn work(mut self, requests: &Receiver<ReadRequest>) {
        while let Ok(request) = requests.recv() {
            let count = request.samples.len();
            if count == 0 && !self.send(&request, 0..0, Ok(Values::Nothing)) {
                return;
            }
            let at_once = samples_per_piece(request.part.bytes(self.dtype));
            let pieces = count.div_ceil(at_once);
            for start in (0..count).step_by(at_once) {
                let range = start..count.min(start + at_once);
                let Some(buffer) = self.buffer(&request.part, pieces) else {
                    return;
                };
                let values = self.read(&request, range.clone(), buffer);
                if !self.send(&request, range, values) {
                    return;
                }
            }
        }
    }

    /// An empty buffer for a piece of a load of so many. None where the source was dropped.
    fn buffer(&mut self, part: &Part, pieces: usize) -> Option<Values> {
        loop {
            let free = match part {
                Part::Volume(_) => {
                    let made = self.volumes.take(pieces, || Samples::new(self.dtype));
                    made.map(Values::Volume)
                }
                Part::Targets(_) | Part::Labels(_) => {
                    self.targets.take(pieces, Vec::new).map(Values::Targets)
                }
            };
            if free.is_some() {
                return free;
            }
            match self.returned.recv().ok()? {
                Values::Volume(samples) => self.volumes.free.push(samples),
                Values::Targets(values) => self.targets.free.push(values),
                Values::Nothing => {}
            }
        }
    }

    /// Sends a range of the samples of a request to the rank; false if the thread should end.
    fn send(
        &self,
        request: &ReadRequest,
        range: Range<usize>,
        values: Result<Values, DataError>,
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
            read_bytes: self
                .readers
                .iter()
                .fold(Bytes(0), |sum, reader| sum + reader.tally().volume_bytes),
        };
        let sent = self.filled.send(piece).is_ok();
        if let (true, Some(wake)) = (sent, &self.wake) {
            wake();
        }
        sent && !failed
    }

    /// The same part of some samples, one after the other.
    fn read(
        &mut self,
        request: &ReadRequest,
        range: Range<usize>,
        buffer: Values,
    ) -> Result<Values, DataError> {
        let (samples, key) = (&request.samples[range], request.key);
        let views = samples
            .iter()
            .map(|&sample| self.preprocessing.sampling.view(key, sample));
        let views: Vec<SampleView> = views.collect();
        match (&request.part, buffer) {
            (Part::Volume(region), Values::Volume(mut values)) => {
                self.read_volumes(&views, region, &mut values)?;
                Ok(Values::Volume(values))
            }
            (Part::Targets(range), Values::Targets(mut values)) => {
                values.clear();
                values.reserve_exact(views.len() * range.len());
                for view in &views {
                    let sample = view.volume;
                    let reader = &mut self.readers[view.split as usize];
                    let row = reader.read_target(sample)?;
                    check_target(reader, sample, &row)?;
                    if let Some(classes) = self.classes {
                        let key = reader.keys().target.clone();
                        let location = location(reader, sample, &key);
                        classes.check_row(location, &row)?;
                    }
                    values.extend_from_slice(&row[range.clone()]);
                }
                Ok(Values::Targets(values))
            }
            (Part::Labels(region), Values::Targets(mut values)) => {
                values.clear();
                values.reserve_exact(views.len() * slab::elements(region));
                for view in &views {
                    self.read_labels(view, region, &mut values)?;
                }
                Ok(Values::Targets(values))
            }
            (
                Part::Volume(_) | Part::Targets(_) | Part::Labels(_),
                Values::Volume(_) | Values::Targets(_) | Values::Nothing,
            ) => {
                panic!("a buffer is of the kind that its piece wants")
            }
        }
    }

    fn read_labels(
        &mut self,
        view: &SampleView,
        part: &Region4,
        values: &mut Vec<f32>,
    ) -> Result<(), DataError> {
        let moves = self.preprocessing.sampling.labels_voxels();
        let region = if moves {
            view.source(part)
        } else {
            part.clone()
        };
        let reader = &mut self.readers[view.split as usize];
        reader.read_labels(view.volume, region.clone(), &mut self.labels)?;
        if let Some(classes) = self.classes {
            let key = reader.keys().label.clone();
            let location = location(reader, view.volume, &key);
            classes.check(location, &region, &self.labels)?;
        }
        if moves && !view.is_as_stored() {
            view.arrange_labels(part, &self.labels, values);
        } else {
            self.labels.append_f32(values);
        }
        Ok(())
    }

    fn read_volumes(
        &mut self,
        views: &[SampleView],
        region: &Region4,
        values: &mut Samples,
    ) -> Result<(), DataError> {
        if views.len() > 1 {
            values.reserve_exact(views.len() * slab::elements(region));
        }
        let mut one = std::mem::replace(&mut self.one, Samples::new(self.dtype));
        for (index, view) in views.iter().enumerate() {
            let into = if index == 0 { &mut *values } else { &mut one };
            self.read_volume(view, region, into)?;
            if index > 0 {
                values.append(&one);
            }
        }
        self.one = one;
        Ok(())
    }

    /// A part of a sample, as the network sees it.
    fn read_volume(
        &mut self,
        view: &SampleView,
        part: &Region4,
        into: &mut Samples,
    ) -> Result<(), DataError> {
        let region = view.source(part);
        let computes = self.preprocessing.computes();
        let reader = &mut self.readers[view.split as usize];
        if !computes && view.is_as_stored() {
            reader.read_volume(view.volume, region.clone(), into)?;
            return check_volume(self.valid, reader, view.volume, &region, into);
        }
        reader.read_volume(view.volume, region.clone(), &mut self.stored)?;
        if !computes {
            check_volume(self.valid, reader, view.volume, &region, &self.stored)?;
            into.clear();
            into.reserve_exact(slab::elements(part));
            view.arrange(part, &self.stored, into);
            return Ok(());
        }
        self.stored.write_f32(&mut self.prepared);
        let preparation = &self.preprocessing.preparation;
        prepare(
            preparation,
            reader,
            view.volume,
            &region,
            &mut self.prepared,
        )?;
        let Samples::F32(values) = into else {
            panic!("prepared values are floats");
        };
        values.clear();
        values.reserve_exact(slab::elements(part));
        view.arrange_floats(part, &self.prepared, values);
        view.adjust(part, values);
        Ok(())
    }
}

fn location<'a>(reader: &'a Reader, sample: usize, key: &'a str) -> SampleLocation<'a> {
    SampleLocation {
        path: reader.target_file(sample),
        key,
        split: reader.split(),
        sample,
    }
}

/// Errors: a value that a network cannot be trained on.
fn check_volume(
    valid: Valid,
    reader: &Reader,
    sample: usize,
    region: &Region4,
    values: &Samples,
) -> Result<(), DataError> {
    let Some((at, value)) = valid.first_outside(values) else {
        return Ok(());
    };
    let [c, d, h, w] = slab::position(region, at);
    let position = format!("at (C, D, H, W) = ({c}, {d}, {h}, {w})");
    Err(untrainable(
        valid,
        reader,
        sample,
        (reader.file(sample), &reader.keys().volume, position),
        value,
    ))
}

/// Errors: targets that are not finite.
fn check_target(reader: &Reader, sample: usize, row: &[f32]) -> Result<(), DataError> {
    let valid = Valid::under(Transform::Identity);
    let Some((at, value)) = valid.first_outside_floats(row) else {
        return Ok(());
    };
    let position = format!("target {at}");
    Err(untrainable(
        valid,
        reader,
        sample,
        (reader.target_file(sample), &reader.keys().target, position),
        value,
    ))
}

fn untrainable(
    valid: Valid,
    reader: &Reader,
    sample: usize,
    (path, key, position): (&Path, &str, String),
    value: f32,
) -> DataError {
    DataError::Untrainable {
        path: path.to_path_buf(),
        key: key.to_owned(),
        split: reader.split().name(),
        sample,
        found: format!("{position}: {}", valid.fault(value)),
        expected: valid.expected(),
    }
}
