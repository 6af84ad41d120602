//! Sessions on ranks that are threads.

use crate::train::checkpoint;
use partita_graph::{Graph, initial_part, text};
use partita_input::Loading;
use partita_lower::{Request, SampleFormat, Strategy, lower};
use partita_program::{
    Buffer, Dtype, Load, Optimizer, Program, ProgramKind, Role, TaskId, Transform,
};
use partita_run::{Inputs, Memory, NoSink, PackedTensor, RunError, Source, SystemClock};
use partita_session::{
    LearningRateSchedule, Outcome, PersistentTensor, Plan, Position, Programs, Progress, RunEnd,
    Session, SessionError, batch_sizes,
};
use partita_site::kernel_set::{KernelSet, Precision};
use partita_site::launch::{RunSetup, run_ranks};
use partita_site::{Context, Environment, launch};
use partita_space::random::{SplitMix, unit};
use partita_space::{Mesh, Rank, Seconds};
use partita_testkit::threads::LaunchError;
use partita_testkit::{MemorySource, ReferenceMenu, Samples, Stored};
use partita_verify::verify;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TINY: &str = "model tiny
input x channels=2 extent=4x4x4
c1 = conv x filters=3 kernel=3 pad=1 bias=true
a1 = leaky_relu c1 slope=0.1
p1 = average_pool a1 kernel=2 stride=2 pad=0 count_padding=true
f = flatten p1
d = dropout f rate=0.2
fc = linear d features=2 bias=true
loss = mse fc
";
const BATCH: usize = 4;
const TRAINING: usize = 10;
const VALIDATION: usize = 5;
const VOLUME: usize = 2 * 4 * 4 * 4;

fn tiny() -> Graph {
    text::parse(TINY).unwrap()
}

/// Noise about a level per channel; the targets are simple functions of the levels.
fn samples() -> Samples {
    let mut stream = SplitMix(12345);
    let mut draw = || unit(stream.bits()) - 0.5;
    let mut values = Vec::new();
    let mut targets = Vec::new();
    for _ in 0..TRAINING + VALIDATION {
        let levels = [draw(), draw()];
        let voxels = (0..VOLUME).map(|i| levels[i * 2 / VOLUME] * 2.0 + 0.2 * draw());
        values.push(Stored::F64(voxels.collect()));
        targets.push(vec![levels[0] + levels[1], levels[0] - levels[1]]);
    }
    Samples {
        shape: [2, 4, 4, 4],
        values,
        targets,
        features: Vec::new(),
    }
}

fn program(strategy: &str, kind: ProgramKind, batch: usize, epsilon: Option<f64>) -> Program {
    let graph = tiny();
    let optimizer = match epsilon {
        None => Optimizer::Sgd {
            momentum: 0.9,
            weight_decay: 1e-4,
        },
        Some(epsilon) => Optimizer::Adam {
            beta1: 0.9,
            beta2: 0.99,
            epsilon,
            weight_decay: 0.0,
        },
    };
    let request = Request {
        graph: &graph,
        strategy: &strategy.parse::<Strategy>().unwrap(),
        batch,
        kind,
        dtype: Dtype::F64,
        optimizer,
        decay_norms: true,
        ema: None,
        clip: Some(1.0),
        samples: SampleFormat {
            dtype: Dtype::F64,
            transform: Transform::Identity,
        },
        menu: &ReferenceMenu,
    };
    let program = lower(&request).unwrap();
    verify(&program).unwrap();
    program
}

fn session_programs(strategy: &str, epsilon: Option<f64>) -> Vec<Programs> {
    let mut session_programs = Vec::new();
    for (kind, samples) in [
        (ProgramKind::Train, TRAINING),
        (ProgramKind::Evaluate, VALIDATION),
    ] {
        for batch in batch_sizes(samples, BATCH) {
            session_programs.push(Programs {
                step: program(strategy, kind, batch, epsilon),
                fetch: program(strategy, ProgramKind::Fetch, batch, epsilon),
            });
        }
    }
    session_programs
}

/// Another order in every epoch.
fn order(epoch: u64) -> Vec<usize> {
    (0..TRAINING)
        .map(|i| (i * 3 + epoch as usize) % TRAINING)
        .collect()
}

fn plan(epochs: u64, rate: f64) -> Plan<'static> {
    Plan {
        epochs,
        batch: BATCH,
        seed: 5,
        schedule: LearningRateSchedule::Linear {
            rate,
            final_factor: 0.5,
            epochs: epochs as f64,
        },
        loss_scaling: None,
        training_order: &order,
        validation: (TRAINING..TRAINING + VALIDATION).collect(),
        groups: Vec::new(),
        divided: None,
        sample_dice: false,
        ends: &|_| false,
        traces_kept: 3,
    }
}

fn initial(buffer: &Buffer, elements: Range<usize>) -> Option<Vec<f64>> {
    let graph = tiny();
    let named = graph.parameters.iter().find(|one| one.name == buffer.name);
    named
        .filter(|_| buffer.role == Role::Parameter)
        .map(|one| initial_part(one, 1, elements))
}

struct RunOutput {
    outcomes: Vec<Outcome>,
    values: Vec<(PersistentTensor, Vec<f64>)>,
    events: Vec<Progress>,
}

type MakeSource<'s> = &'s (dyn Fn(Mesh, Rank) -> Box<dyn Source> + Sync);

fn run_with(
    session: &Session<'_>,
    cancel: &AtomicBool,
    watchdog: f64,
    make_source: MakeSource<'_>,
) -> Result<RunOutput, LaunchError> {
    let mesh = session.main_program().mesh;
    let events = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&events);
    let setup = RunSetup {
        kernels: KernelSet::REFERENCE,
        precision: Precision::F64,
        processing: Context::new(Environment::default()).processing(1),
        watchdog: Seconds(watchdog),
        cancel,
        source: &|rank, _| Ok(make_source(mesh, rank)),
        loading: &Loading::default(),
        sink: &|_| Ok(Box::new(NoSink)),
        clock: SystemClock::start(),
        initial: &|buffer, elements| Ok(initial(buffer, elements)),
        position: &Position::default(),
        hook: &checkpoint::Off,
        validators: None,
        joins: None,
        is_followed: false,
        on_epoch: None,
        shares_loads: false,
    };
    let listener = Box::new(move |progress| recorder.lock().unwrap().push(progress));
    let launch::RankResults {
        outcomes,
        mut arenas,
    } = run_ranks(session, &setup, listener, (&[], Seconds(0.0)))?;
    let whole = |tensor: PersistentTensor| {
        let holders = tensor.holders.iter();
        let shards = holders.map(|&holder| session.shard(holder, &mut arenas[holder.0]));
        match session.assemble(&tensor, shards) {
            PackedTensor::F64(values) => (tensor, values),
            other => panic!("{other:?} in a run in f64"),
        }
    };
    let values = session
        .persistent_tensors()
        .into_iter()
        .map(whole)
        .collect();
    let events = std::mem::take(&mut *events.lock().unwrap());
    Ok(RunOutput {
        outcomes,
        values,
        events,
    })
}

fn run(strategy: &str, epochs: u64, rate: f64) -> RunOutput {
    let session = Session::new(session_programs(strategy, None), plan(epochs, rate)).unwrap();
    let samples = Arc::new(samples());
    let source = |mesh, rank| -> Box<dyn Source> {
        Box::new(MemorySource::new(Arc::clone(&samples), mesh, rank))
    };
    run_with(&session, &AtomicBool::new(false), 20.0, &source).unwrap()
}

#[test]
fn the_loss_falls_and_every_epoch_is_reported() {
    let output = run("data=1", 12, 0.05);
    let outcome = &output.outcomes[0];
    assert_eq!((outcome.end, outcome.steps), (RunEnd::Finished, 36));
    let (first, last) = (&outcome.epochs[0], &outcome.epochs[11]);
    assert!(
        last.training_loss < 0.5 * first.training_loss,
        "{outcome:?}"
    );
    let loss = |epoch: &partita_session::EpochReport| epoch.validation.as_ref().unwrap().loss;
    assert!(loss(last) < 0.5 * loss(first));
    let steps: Vec<_> = output
        .events
        .iter()
        .filter_map(|progress| match progress {
            Progress::Step {
                samples,
                learning_rate,
                ..
            } => Some((*samples, *learning_rate)),
            Progress::Evaluated { .. } | Progress::Epoch(_) | Progress::Done { .. } => None,
        })
        .collect();
    assert_eq!(
        steps.iter().map(|step| step.0).collect::<Vec<_>>(),
        [4, 4, 2].repeat(12)
    );
    assert_eq!(steps[0].1, 0.05);
    assert!((steps[18].1 - 0.0375).abs() < 1e-15);
    assert!(matches!(
        output.events.last(),
        Some(Progress::Done { steps: 36, .. })
    ));
    // 24 steps of full size, 2 of them warm-up.
    assert_eq!((outcome.measured_steps, outcome.traces.len()), (22, 3));
    assert!(outcome.step_seconds.0 > 0.0 && !outcome.task_seconds.is_empty());
}

#[test]
fn an_epoch_is_the_same_on_one_rank_and_on_several() {
    let one = run("data=1", 2, 0.05);
    for strategy in ["data=2", "depth=2", "data=2,height=2", "data=3"] {
        let other = run(strategy, 2, 0.05);
        for (a, b) in one.outcomes[0].epochs.iter().zip(&other.outcomes[0].epochs) {
            close(&[a.training_loss], &[b.training_loss], strategy);
            let (a, b) = (
                a.validation.as_ref().unwrap(),
                b.validation.as_ref().unwrap(),
            );
            assert_eq!((a.samples, b.samples), (VALIDATION, VALIDATION));
            close(&[a.loss], &[b.loss], strategy);
            close(&a.absolute, &b.absolute, strategy);
            close(&a.squared, &b.squared, strategy);
        }
        assert_eq!(one.values.len(), other.values.len());
        for (a, b) in one.values.iter().zip(&other.values) {
            assert_eq!((&a.0.name, a.0.dims), (&b.0.name, b.0.dims));
            close(&a.1, &b.1, strategy);
        }
        for outcome in &other.outcomes {
            assert_eq!(outcome.end, RunEnd::Finished);
            assert_eq!(outcome.epochs.len(), 2);
        }
    }
}

/// Norm-wise to 1e-10.
fn close(a: &[f64], b: &[f64], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let off = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
    let size = norm(&mut a.iter().copied());
    assert!(off <= 1e-10 * size.max(1e-10), "{what}: {off} of {size}");
}

#[test]
fn the_same_run_twice_gives_the_same_bits() {
    assert_eq!(
        run("depth=2", 1, 0.05).values,
        run("depth=2", 1, 0.05).values
    );
}

#[test]
fn a_loss_that_is_nan_ends_the_run_on_all_ranks() {
    let mut samples = samples();
    samples.targets[6] = vec![f64::NAN, 0.0];
    let samples = Arc::new(samples);
    let session = Session::new(session_programs("data=2", None), plan(3, 0.01)).unwrap();
    let source = |mesh, rank| -> Box<dyn Source> {
        Box::new(MemorySource::new(Arc::clone(&samples), mesh, rank))
    };
    let output = run_with(&session, &AtomicBool::new(false), 20.0, &source).unwrap();
    for outcome in &output.outcomes {
        // Sample 6 is the third of the first step.
        let RunEnd::NotFinite {
            kind,
            epoch,
            step,
            loss,
        } = outcome.end
        else {
            panic!("{outcome:?}");
        };
        assert_eq!((kind, epoch, step), (ProgramKind::Train, 0, 1));
        assert!(loss.is_nan());
    }
}

/// Delivers nothing on one rank.
struct SilentSource {
    inner: MemorySource,
    is_silent: bool,
}

impl Source for SilentSource {
    fn start(&mut self, task: TaskId, load: &Load, inputs: &Inputs) -> Result<(), RunError> {
        self.inner.start(task, load, inputs)
    }

    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        if self.is_silent {
            return Ok(());
        }
        self.inner.poll(memory, done)
    }

    fn take_tally(&mut self) -> u64 {
        self.inner.take_tally()
    }
}

#[test]
fn a_stalled_source_trips_the_watchdog() {
    let samples = Arc::new(samples());
    let session = Session::new(session_programs("depth=2", None), plan(1, 0.01)).unwrap();
    let source = |mesh, rank| -> Box<dyn Source> {
        Box::new(SilentSource {
            inner: MemorySource::new(Arc::clone(&samples), mesh, rank),
            is_silent: rank == 1,
        })
    };
    let start = Instant::now();
    let result = run_with(&session, &AtomicBool::new(false), 0.2, &source);
    let is_stalled = matches!(
        result,
        Err(LaunchError::Rank {
            error: RunError::Stalled {
                limit: Seconds(0.2),
                ..
            },
            ..
        })
    );
    assert!(is_stalled);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_request_to_stop_ends_all_ranks_within_a_second() {
    let samples = Arc::new(samples());
    let session = Session::new(session_programs("data=2", None), plan(1_000_000, 0.01)).unwrap();
    let source = |mesh, rank| -> Box<dyn Source> {
        Box::new(MemorySource::new(Arc::clone(&samples), mesh, rank))
    };
    let cancel = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            cancel.store(true, Ordering::Relaxed);
            Instant::now()
        });
        let result = run_with(&session, &cancel, 20.0, &source).map(|_| ());
        let late = asked.join().unwrap().elapsed();
        let cancelled = matches!(
            result,
            Err(LaunchError::Rank {
                error: RunError::Cancelled,
                ..
            })
        );
        assert!(cancelled && late < Duration::from_secs(1), "{late:?}");
    });
}

#[test]
fn a_plan_without_its_programs_is_refused() {
    let mut some = session_programs("data=1", None);
    some.retain(|one| one.step.batch != 2);
    let error = Session::new(some, plan(1, 0.1)).map(|_| ()).unwrap_err();
    let (kind, batch) = (ProgramKind::Train, 2);
    assert_eq!(error, SessionError::NoProgram { kind, batch });
    let none = Session::new(session_programs("data=1", None), plan(0, 0.1)).map(|_| ());
    assert_eq!(none.unwrap_err(), SessionError::Empty);
}

#[test]
#[should_panic(expected = "persistent buffers")]
fn programs_of_different_optimizers_are_refused() {
    let mut mixed = session_programs("data=1", None);
    mixed.truncate(2);
    mixed.extend(session_programs("data=1", Some(1e-8)).into_iter().skip(2));
    let _ = Session::new(mixed, plan(1, 0.1));
}
