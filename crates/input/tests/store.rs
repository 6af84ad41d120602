//! Samples in memory: every rank gets its part of every sample, from files once and then from the owner.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use made::{SHAPE, TARGETS, physical, target, volume};
use partita_data::order::epoch_order;
use partita_data::{Dataset, DatasetSpec, DatasetWriter, Kind, Split};
use partita_formats::{DType, Layout, Samples};
use partita_input::{
    Augmentation, EpochLoads, HyperslabSource, LoadTally, Loading, PieceMaker, PieceReader,
    Preparation, Preprocessing, SampleStore, Sampling,
};
use partita_program::{
    Body, Buffer, BufferId, Distribution, Dtype, Item, Load, Origin, Phase, Program, ProgramKind,
    Role, Task, TaskId, Transform, When, Work,
};
use partita_run::{Arena, Inputs, Source};
use partita_space::random::SplitMix;
use partita_space::{Axis, AxisList, AxisSet, Bytes, Mesh};

const SEED: u64 = 3;
const EPOCHS: u64 = 3;

fn make(path: &Path, dtype: DType, training: usize, validation: usize) -> Dataset {
    let spec = DatasetSpec {
        kind: Kind::Cosmology,
        shape: SHAPE,
        dtype,
        targets: (0..TARGETS).map(|index| format!("t{index}")).collect(),
        labels: None,
        layout: Layout::Contiguous,
        train: (0..training as u64).collect(),
        validation: (training as u64..(training + validation) as u64).collect(),
        test: Vec::new(),
        spec: toml::Table::new(),
    };
    let mut writer = DatasetWriter::create(path, &spec).unwrap();
    let mut n = 0;
    for split in Split::ALL {
        while writer.next_universe(split).is_some() {
            writer
                .append(split, &volume(n, SHAPE, dtype), &target(n), &physical(n))
                .unwrap();
            n += 1;
        }
    }
    writer.finish().unwrap()
}

/// A program of nothing but the loads of the next step, with a body for each rank.
fn program(mesh: Mesh, batch: usize, dtype: DType) -> Program {
    let [c, d, h, w] = SHAPE;
    let axes = |axes: [Option<Axis>; 5]| axes.map(AxisList::from);
    let sample = Distribution {
        shape: [batch, d, h, w, c],
        axes: axes([
            Some(Axis::Data),
            Some(Axis::Depth),
            Some(Axis::Height),
            None,
            None,
        ]),
        micro: None,
        submesh: None,
    };
    let row = Distribution {
        shape: [batch, 1, 1, 1, TARGETS],
        axes: axes([Some(Axis::Data), None, None, None, None]),
        micro: None,
        submesh: None,
    };
    let stored = match dtype {
        DType::Int16 => Dtype::I16,
        DType::Float32 => Dtype::F32,
    };
    let body = |rank: usize| {
        let coord = mesh.coord(rank);
        let [n, d, h, w, c] = sample.owned(&mesh, &coord).shape();
        let dims = [[n, c, d, h, w], row.owned(&mesh, &coord).shape()];
        let mut body = Body::default();
        for (index, (dims, dtype)) in dims.into_iter().zip([stored, Dtype::F32]).enumerate() {
            let buffer = Buffer {
                name: format!("staging{index}"),
                role: Role::Staging,
                dtype,
                dims,
                tensor: None,
                offset: body.arena,
            };
            body.arena = Bytes((body.arena.0 + buffer.bytes().0).next_multiple_of(64));
            let load = Load {
                item: [Item::Sample, Item::Target][index],
                when: When::Now,
                distribution: [sample, row][index],
                target: buffer.view(BufferId(index as u32)),
            };
            body.tasks.push(Task {
                origin: Origin {
                    layer: "x".to_owned(),
                    phase: Phase::Forward,
                    turn: 0,
                },
                after: Vec::new(),
                work: Work::Load(load),
            });
            body.buffers.push(buffer);
        }
        body
    };
    Program {
        title: "loads".to_owned(),
        kind: ProgramKind::Fetch,
        dtype: Dtype::F32,
        batch,
        mesh,
        local_statistics: AxisSet::NONE,
        bodies: (0..mesh.ranks()).map(body).collect(),
        class_of: (0..mesh.ranks() as u32).collect(),
    }
}

/// A job: programs for whole and remaining batches of both splits, and the steps of an epoch.
struct Job {
    programs: Vec<Program>,
    training: usize,
    validation: usize,
    batch: usize,
}

impl Job {
    fn new(mesh: Mesh, dtype: DType, [training, validation, batch]: [usize; 3]) -> Self {
        let sizes = [batch, training % batch, validation % batch];
        let sizes = sizes.into_iter().filter(|&size| size > 0);
        Self {
            programs: sizes.map(|size| program(mesh, size, dtype)).collect(),
            training,
            validation,
            batch,
        }
    }

    fn steps(&self, epoch: u64) -> Vec<(usize, Vec<usize>)> {
        let order = epoch_order(SEED, epoch, self.training);
        let validation: Vec<usize> = (self.training..self.training + self.validation).collect();
        let steps = order
            .chunks(self.batch)
            .chain(validation.chunks(self.batch));
        let find = |size| self.programs.iter().position(|one| one.batch == size);
        steps
            .map(|samples| (find(samples.len()).unwrap(), samples.to_vec()))
            .collect()
    }

    fn store(
        &self,
        dataset: &Dataset,
        preprocessing: &Preprocessing,
        local: impl IntoIterator<Item = usize>,
    ) -> Arc<SampleStore> {
        let programs: Vec<&Program> = self.programs.iter().collect();
        let tally = Arc::new(LoadTally::default());
        let sampling = &preprocessing.sampling;
        let steps = self.steps(0);
        Arc::new(SampleStore::new(
            dataset, sampling, &programs, steps, local, tally,
        ))
    }
}

/// A store whose ranks have memory for three quarters of what they keep, and files in a folder for the others.
fn limited(
    job: &Job,
    dataset: &Dataset,
    local: impl IntoIterator<Item = usize> + Clone,
    folder: &Path,
) -> Arc<SampleStore> {
    let plain = Preprocessing::plain(dataset);
    let store = job.store(dataset, &plain, local.clone());
    let mut store = Arc::into_inner(store).unwrap();
    let whole = store.bytes().to_vec();
    let limits: Vec<Bytes> = whole.iter().map(|bytes| Bytes(bytes.0 * 3 / 4)).collect();
    store.limit_memory(&limits);
    for (rank, (&limit, whole)) in limits.iter().zip(whole).enumerate() {
        let (kept, spilled) = (store.bytes()[rank], store.spilled()[rank]);
        assert!(kept <= limit, "rank {rank}: {kept} of {limit}");
        assert_eq!(kept + spilled, whole, "rank {rank}");
        assert!(spilled >= Bytes(whole.0 / 4), "rank {rank}: {spilled}");
    }
    for rank in local {
        store.open_spill(rank, folder).unwrap();
    }
    Arc::new(store)
}

fn source(
    dataset: &Dataset,
    preprocessing: &Preprocessing,
    rank: (Mesh, usize),
    store: &Arc<SampleStore>,
) -> HyperslabSource {
    let loading = Loading {
        store: Some(Arc::clone(store)),
        tally: Arc::clone(store.tally()),
        ..Loading::default()
    };
    let (plain, kind) = (preprocessing.clone(), Transform::Identity);
    let (mesh, rank) = rank;
    let maker = PieceMaker::new(dataset, &plain, mesh, rank);
    let reader = PieceReader::new(dataset, plain, kind).with_loading(dataset, rank, loading);
    HyperslabSource::of_pieces(maker, reader, None, rank, None).unwrap()
}

/// What a rank stages of a step.
fn play(source: &mut HyperslabSource, body: &Body, inputs: &Inputs) -> [Vec<f64>; 2] {
    let mut arena = Arena::new(body.arena);
    let memory = arena.memory(body);
    let loads: Vec<&Load> = body
        .tasks
        .iter()
        .map(|task| match &task.work {
            Work::Load(load) => load,
            _ => panic!("a load"),
        })
        .collect();
    for (index, load) in loads.iter().enumerate() {
        source.start(TaskId(index as u32), load, inputs).unwrap();
    }
    let (mut done, end) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    while done.len() < loads.len() {
        source.poll(&memory, &mut done).unwrap();
        thread::yield_now();
        assert!(Instant::now() < end, "nothing came");
    }
    [0, 1].map(|index| {
        let view = &loads[index].target;
        match body.buffer(view.buffer).dtype {
            Dtype::I16 => {
                let mut values = Vec::new();
                memory.pack::<i16>(view, &mut values);
                values.into_iter().map(f64::from).collect()
            }
            Dtype::F32 => {
                let mut values = Vec::new();
                memory.pack::<f32>(view, &mut values);
                values.into_iter().map(f64::from).collect()
            }
            Dtype::F64 | Dtype::Bf16 | Dtype::F16 => panic!("staged in a narrower type"),
        }
    })
}

fn wide(samples: &Samples) -> Vec<f64> {
    match samples {
        Samples::I16(values) => values.iter().copied().map(f64::from).collect(),
        Samples::F32(values) => values.iter().copied().map(f64::from).collect(),
    }
}

/// What a rank must stage of a step.
fn expected(program: &Program, rank: usize, samples: &[usize], dtype: DType) -> [Vec<f64>; 2] {
    let mesh = program.mesh;
    let [sample, row] = [0, 1].map(|index| match &program.bodies[rank].tasks[index].work {
        Work::Load(load) => load.distribution.owned(&mesh, &mesh.coord(rank)),
        _ => panic!("a load"),
    });
    let range = |side: partita_space::Interval| side.start as usize..side.end as usize;
    let [n, d, h, w, c] = sample.0.map(range);
    let region = [c, d, h, w];
    let volumes = samples[n].iter();
    let volumes = volumes.flat_map(|&id| wide(&volume(id, SHAPE, dtype).slice(SHAPE, &region)));
    let rows = samples[range(row.0[0])].iter();
    let rows = rows.flat_map(|&id| target(id)).map(f64::from);
    [volumes.collect(), rows.collect()]
}

fn inputs(epoch: u64, samples: &[usize]) -> Inputs {
    Inputs {
        loss_scale: None,
        skipped: 0,
        seed: SEED,
        epoch,
        samples: samples.to_vec(),
        ..Inputs::default()
    }
}

/// Plays all steps of all ranks and compares what they stage.
fn play_all(job: &Job, dtype: DType, sources: &mut [HyperslabSource], epochs: u64, case: &str) {
    for epoch in 0..epochs {
        for (program, samples) in job.steps(epoch) {
            let program = &job.programs[program];
            for (rank, source) in sources.iter_mut().enumerate() {
                let found = play(source, &program.bodies[rank], &inputs(epoch, &samples));
                let expected = expected(program, rank, &samples, dtype);
                assert_eq!(found, expected, "{case}, epoch {epoch}, rank {rank}");
            }
        }
    }
}

fn sum(stores: &[Arc<SampleStore>], epoch: u64) -> EpochLoads {
    let mut sum = EpochLoads::default();
    for store in stores {
        let loads = store.tally().epoch(epoch);
        sum += loads.unwrap_or_default();
    }
    sum
}

/// Files are read once, in the first epoch, in which volumes do not move between ranks.
fn check_loads(job: &Job, dtype: DType, mesh: Mesh, stores: &[Arc<SampleStore>], case: &str) {
    let samples = (job.training + job.validation) as u64;
    let volumes: usize = SHAPE.iter().product();
    let row = 4 * TARGETS as u64;
    let whole = samples * (volumes * dtype.size_bytes()) as u64;
    let first = sum(stores, 0);
    assert!(first.read.0 >= whole + samples * row, "{case}: {first:?}");
    assert!(
        first.received.0 <= samples * row * mesh.ranks() as u64,
        "{case}: {first:?}"
    );
    let regions = mesh.extent(Axis::Depth) * mesh.extent(Axis::Height);
    for epoch in 1..EPOCHS {
        let loads = sum(stores, epoch);
        assert_eq!(loads.read, Bytes(0), "{case}, epoch {epoch}");
        assert_eq!(loads.sent, loads.received, "{case}, epoch {epoch}");
        let used = whole + samples * row * regions as u64;
        let kept = loads.memory + loads.spilled;
        assert_eq!(kept, Bytes(used), "{case}, epoch {epoch}: {loads:?}");
    }
    let units: usize = stores.iter().map(|store| store.units()).sum();
    assert_eq!(units as u64, samples * (regions as u64 + 1), "{case}");
    let of_ranks = [stores[0].bytes(), stores[0].spilled()];
    let held: u64 = of_ranks.into_iter().flatten().map(|bytes| bytes.0).sum();
    assert!(held >= whole + samples * row, "{case}: {held}");
    assert!(
        held <= whole + samples * (row + 200 * (regions as u64 + 1)),
        "{case}: {held}"
    );
}

/// Carries messages between stores in an arbitrary order until the end; returns how many went each way.
fn carry(stores: &[Arc<SampleStore>], is_over: &AtomicBool) -> [u64; 2] {
    let connect = |(rank, store): (usize, &Arc<SampleStore>)| store.connect(rank).unwrap();
    let mut ends: Vec<_> = stores.iter().enumerate().map(connect).collect();
    let (mut draws, mut counts) = (SplitMix(5), [0, 0]);
    let mut under_way = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        for (from, end) in ends.iter_mut().enumerate() {
            while let Some((to, message)) = end.next() {
                assert_ne!(from, to, "a rank sends nothing to itself");
                counts[usize::from(message[0] == 2)] += 1;
                under_way.push((from, to, message));
            }
        }
        if under_way.is_empty() {
            thread::yield_now();
            continue;
        }
        let one = draws.bits() as usize % under_way.len();
        let (from, to, message) = under_way.swap_remove(one);
        ends[to].deliver(from, message);
    }
    assert!(under_way.is_empty(), "every message has arrived");
    counts
}

/// Plays all epochs on stores of ranks that are processes of their own, and checks what was loaded.
fn play_carried(
    job: &Job,
    (dataset, plain): (&Dataset, &Preprocessing),
    (mesh, dtype): (Mesh, DType),
    stores: &[Arc<SampleStore>],
    case: &str,
) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&is_over);
        let carrier = scope.spawn(|| carry(stores, &is_over));
        let sources = stores.iter().enumerate();
        let sources = sources.map(|(rank, store)| source(dataset, plain, (mesh, rank), store));
        let mut sources: Vec<HyperslabSource> = sources.collect();
        play_all(job, dtype, &mut sources, EPOCHS, case);
        drop(over);
        let [requests, replies] = carrier.join().unwrap();
        assert_eq!(requests, replies, "{case}");
    });
    check_loads(job, dtype, mesh, stores, case);
}

/// Ends the carrying of messages, also where a test fails.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn cases() -> Vec<([usize; 3], [usize; 3], DType)> {
    let mut draws = SplitMix(11);
    let mut between = |low: usize, high: usize| low + draws.bits() as usize % (high - low + 1);
    let case = |index: usize| {
        let mesh = [between(1, 3), between(1, 3), between(1, 2)];
        let batch = between(mesh[0], 5);
        let sizes = [between(batch, 11), between(0, 5), batch];
        let dtype = [DType::Int16, DType::Float32][index % 2];
        (mesh, sizes, dtype)
    };
    (0..8).map(case).collect()
}

fn mesh([data, depth, height]: [usize; 3]) -> Mesh {
    Mesh::new([data, depth, height, 1, 1, 1, 1])
}

#[test]
fn ranks_that_are_threads_read_each_sample_once() {
    let folder = tempfile::tempdir().unwrap();
    for (index, (extents, sizes, dtype)) in cases().into_iter().enumerate() {
        let case = format!("mesh {extents:?}, {sizes:?} samples, {dtype:?}");
        let mesh = mesh(extents);
        let path = folder.path().join(index.to_string());
        let dataset = make(&path, dtype, sizes[0], sizes[1]);
        let plain = Preprocessing::plain(&dataset);
        let job = Job::new(mesh, dtype, sizes);
        let store = job.store(&dataset, &plain, 0..mesh.ranks());
        let source = |rank| source(&dataset, &plain, (mesh, rank), &store);
        let mut sources: Vec<HyperslabSource> = (0..mesh.ranks()).map(source).collect();
        play_all(&job, dtype, &mut sources, EPOCHS, &case);
        check_loads(&job, dtype, mesh, &[store], &case);
    }
}

#[test]
fn processes_send_what_others_read() {
    let folder = tempfile::tempdir().unwrap();
    let received = AtomicU64::new(0);
    for (index, (extents, sizes, dtype)) in cases().into_iter().enumerate() {
        let case = format!("mesh {extents:?}, {sizes:?} samples, {dtype:?}");
        let mesh = mesh(extents);
        let path = folder.path().join(index.to_string());
        let dataset = make(&path, dtype, sizes[0], sizes[1]);
        let plain = Preprocessing::plain(&dataset);
        let job = Job::new(mesh, dtype, sizes);
        let stores: Vec<_> = (0..mesh.ranks())
            .map(|rank| job.store(&dataset, &plain, [rank]))
            .collect();
        play_carried(&job, (&dataset, &plain), (mesh, dtype), &stores, &case);
        received.fetch_add(sum(&stores, 1).received.0, Ordering::Relaxed);
    }
    assert!(received.into_inner() > 0, "samples move between ranks");
}

#[test]
fn samples_beyond_the_memory_come_from_a_file_of_their_rank() {
    let folder = tempfile::tempdir().unwrap();
    let disk = tempfile::tempdir().unwrap();
    let mut from_files = Bytes(0);
    for (index, (extents, sizes, dtype)) in cases().into_iter().enumerate() {
        let case = format!("mesh {extents:?}, {sizes:?} samples, {dtype:?}");
        let mesh = mesh(extents);
        let path = folder.path().join(index.to_string());
        let dataset = make(&path, dtype, sizes[0], sizes[1]);
        let plain = Preprocessing::plain(&dataset);
        let job = Job::new(mesh, dtype, sizes);
        let store = limited(&job, &dataset, 0..mesh.ranks(), disk.path());
        let one = |rank| source(&dataset, &plain, (mesh, rank), &store);
        let mut sources: Vec<HyperslabSource> = (0..mesh.ranks()).map(one).collect();
        play_all(&job, dtype, &mut sources, EPOCHS, &case);
        check_loads(&job, dtype, mesh, &[Arc::clone(&store)], &case);
        from_files += sum(&[store], 1).spilled;
        let stores: Vec<_> = (0..mesh.ranks())
            .map(|rank| limited(&job, &dataset, [rank], disk.path()))
            .collect();
        for (rank, store) in stores.iter().enumerate() {
            store.preload(rank, 0, &|| false).unwrap();
        }
        fs::remove_dir_all(&path).unwrap();
        play_carried(&job, (&dataset, &plain), (mesh, dtype), &stores, &case);
        from_files += sum(&stores, 1).spilled;
    }
    assert!(from_files > Bytes(0));
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
}

#[test]
fn samples_that_are_read_before_the_first_step_are_never_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let dtype = DType::Int16;
    let dataset = make(&path, dtype, 7, 3);
    let plain = Preprocessing::plain(&dataset);
    let mesh = mesh([2, 2, 1]);
    let job = Job::new(mesh, dtype, [7, 3, 3]);
    let store = job.store(&dataset, &plain, 0..mesh.ranks());
    for rank in 0..mesh.ranks() {
        store.preload(rank, 0, &|| false).unwrap();
    }
    let read = sum(&[Arc::clone(&store)], 0).read;
    fs::remove_dir_all(&path).unwrap();
    let source = |rank| source(&dataset, &plain, (mesh, rank), &store);
    let mut sources: Vec<HyperslabSource> = (0..mesh.ranks()).map(source).collect();
    play_all(&job, dtype, &mut sources, EPOCHS, "preloaded");
    assert_eq!(sum(&[Arc::clone(&store)], 0).read, read);
    check_loads(&job, dtype, mesh, &[store], "preloaded");
}

#[test]
fn a_preload_ends_early_when_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = make(&folder.path().join("set"), DType::Int16, 4, 0);
    let plain = Preprocessing::plain(&dataset);
    let job = Job::new(mesh([1, 1, 1]), DType::Int16, [4, 0, 2]);
    let store = job.store(&dataset, &plain, [0]);
    let asked = AtomicU64::new(0);
    let is_cancelled = || asked.fetch_add(1, Ordering::Relaxed) == 3;
    store.preload(0, 0, &is_cancelled).unwrap();
    assert_eq!(store.units(), 3);
}

/// Augmentation reads other regions in each epoch, so whole samples are kept and parts of them are sent.
#[test]
fn augmented_samples_are_those_that_are_read_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    augmented(&path, None);
    augmented(&path, Some(folder.path()));
}

/// With `disk`, all samples lie in files there.
fn augmented(path: &Path, disk: Option<&Path>) {
    let dtype = DType::Float32;
    let path = path.with_extension(if disk.is_some() { "files" } else { "memory" });
    let dataset = make(&path, dtype, 6, 2);
    let augmentation = Augmentation {
        flip: [true, true, false],
        ..Augmentation::default()
    };
    let preprocessing = Preprocessing {
        sampling: Sampling::new(&dataset, None, Some(augmentation)).unwrap(),
        preparation: Preparation::default(),
    };
    let mesh = mesh([2, 2, 1]);
    let job = Job::new(mesh, dtype, [6, 2, 4]);
    let stores: Vec<_> = (0..mesh.ranks())
        .map(|rank| {
            let store = job.store(&dataset, &preprocessing, [rank]);
            let mut store = Arc::into_inner(store).unwrap();
            if let Some(disk) = disk {
                store.limit_memory(&vec![Bytes(0); mesh.ranks()]);
                store.open_spill(rank, disk).unwrap();
            }
            Arc::new(store)
        })
        .collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&is_over);
        let carrier = scope.spawn(|| carry(&stores, &is_over));
        for rank in 0..mesh.ranks() {
            let mut kept = source(&dataset, &preprocessing, (mesh, rank), &stores[rank]);
            let (kind, plain) = (Transform::Identity, preprocessing.clone());
            let mut direct =
                HyperslabSource::preprocessed(&dataset, plain, mesh, rank, kind, None).unwrap();
            for epoch in 0..EPOCHS {
                for (program, samples) in job.steps(epoch) {
                    let (body, inputs) =
                        (&job.programs[program].bodies[rank], inputs(epoch, &samples));
                    let found = play(&mut kept, body, &inputs);
                    assert_eq!(found, play(&mut direct, body, &inputs), "rank {rank}");
                }
            }
        }
        drop(over);
        carrier.join().unwrap();
    });
    let units: usize = stores.iter().map(|store| store.units()).sum();
    assert_eq!(units, 2 * 8, "a volume and a target vector of each sample");
    let second = sum(&stores, 1);
    let used = match disk {
        Some(_) => [second.spilled, second.memory],
        None => [second.memory, second.spilled],
    };
    assert!(used[0] > Bytes(0) && used[1] == Bytes(0), "{second:?}");
}

#[test]
fn errors_of_an_owner_reach_the_rank_that_asks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let dataset = make(&path, DType::Int16, 4, 0);
    let plain = Preprocessing::plain(&dataset);
    let mesh = mesh([2, 1, 1]);
    let job = Job::new(mesh, DType::Int16, [4, 0, 2]);
    let stores = [0, 1].map(|rank| job.store(&dataset, &plain, [rank]));
    fs::remove_dir_all(&path).unwrap();
    // Each rank is asked for a sample of the other.
    let (program, samples) = job.steps(0).swap_remove(0);
    let swapped = [samples[1], samples[0]];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| carry(&stores, &is_over));
        let mut source = source(&dataset, &plain, (mesh, 0), &stores[0]);
        let body = &job.programs[program].bodies[0];
        let Work::Load(load) = &body.tasks[0].work else {
            panic!("a load");
        };
        source.start(TaskId(0), load, &inputs(0, &swapped)).unwrap();
        let mut arena = Arena::new(body.arena);
        let memory = arena.memory(body);
        let end = Instant::now() + Duration::from_secs(60);
        let error = loop {
            if let Err(error) = source.poll(&memory, &mut Vec::new()) {
                break error.to_string();
            }
            assert!(Instant::now() < end, "no error came");
            thread::yield_now();
        };
        assert!(error.contains("rank 0"), "{error}");
        assert!(error.contains("rank 1 keeps the sample"), "{error}");
        assert!(error.contains("train.h5"), "{error}");
    });
}
