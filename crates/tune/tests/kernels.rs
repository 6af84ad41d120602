//! Kernels are measured once per shape, by all ranks at the same time, on data in their domain.

use partita_program::{
    Algorithm, Body, Buffer, BufferId, Choice, Dtype, Kernel, KernelShape, Menu, MenuError,
    Optimizer, Origin, Phase, Program, ProgramKind, Role, Task, TaskId, View, Work,
};
use partita_run::{Inputs, KernelTally, Kernels, Memory, RunError};
use partita_space::{Bytes, Mesh, Rank, Seconds};
use partita_testkit::{Setup, random_case, reference_kernels};
use partita_tune::{KernelKey, Options, TuneError, measure, median_of_passes};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Counts calls by algorithm, and sleeps as `sleep` says.
struct Sleeper<'a> {
    rank: Rank,
    calls: &'a Mutex<Vec<(String, usize)>>,
    sleep: &'a (dyn Fn(&str, usize) -> Duration + Sync),
    inside: &'a AtomicUsize,
    inside_max: &'a AtomicUsize,
}

impl Kernels for Sleeper<'_> {
    fn execute(
        &mut self,
        kernel: &Kernel,
        algorithm: &Algorithm,
        _workspace: Option<&View>,
        memory: &Memory<'_>,
        _inputs: &Inputs,
        _progress: &mut dyn FnMut() -> bool,
    ) -> Result<KernelTally, RunError> {
        if algorithm.0 == "broken" {
            return Err(RunError::Cancelled);
        }
        for (view, _) in kernel.accesses() {
            let block = memory.read::<f32>(&view);
            assert!(block.data().iter().all(|value| value.is_normal()));
        }
        let turn = {
            let mut calls = self.calls.lock().expect("nobody panics with the lock");
            let of_rank = calls
                .iter()
                .filter(|(name, rank)| *name == algorithm.0 && *rank == self.rank);
            let turn = of_rank.count();
            calls.push((algorithm.0.clone(), self.rank));
            turn
        };
        let now = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.inside_max.fetch_max(now, Ordering::SeqCst);
        std::thread::sleep((self.sleep)(&algorithm.0, turn));
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(KernelTally::default())
    }
}

/// A body of copies between big buffers, one for each algorithm.
fn program(algorithms: &[&str]) -> Program {
    let buffer = |index: usize| Buffer {
        name: format!("b{index}"),
        role: Role::Activation,
        dtype: Dtype::F32,
        dims: [1, 1, 1, 16, 16],
        tensor: None,
        offset: Bytes(1024 * index as u64),
    };
    let buffers: Vec<Buffer> = (0..4).map(buffer).collect();
    let view = |index: u32| buffers[index as usize].view(BufferId(index));
    let task = |(index, name): (usize, &&str)| Task {
        origin: Origin {
            layer: format!("layer {index}"),
            phase: Phase::Forward,
            turn: 0,
        },
        after: (index > 0)
            .then(|| TaskId(index as u32 - 1))
            .into_iter()
            .collect(),
        work: Work::Compute {
            kernel: Kernel::Copy {
                source: view(index as u32 % 4),
                target: view((index as u32 + 1) % 4),
                accumulate: false,
            },
            algorithm: Algorithm((*name).to_owned()),
            workspace: None,
        },
    };
    let tasks = algorithms.iter().enumerate().map(task).collect();
    Program {
        title: "copies".to_owned(),
        kind: ProgramKind::Train,
        dtype: Dtype::F32,
        batch: 2,
        mesh: Mesh::new([2, 1, 1, 1, 1, 1, 1]),
        local_statistics: partita_space::AxisSet::NONE,
        bodies: vec![Body {
            buffers,
            tasks,

            arena: Bytes(4096),
            ..Body::default()
        }],
        class_of: vec![0, 0],
    }
}

struct Watch {
    calls: Mutex<Vec<(String, usize)>>,
    inside: AtomicUsize,
    inside_max: AtomicUsize,
    ranks: AtomicUsize,
}

impl Watch {
    fn new() -> Self {
        Self {
            calls: Mutex::default(),
            inside: AtomicUsize::new(0),
            inside_max: AtomicUsize::new(0),
            ranks: AtomicUsize::new(0),
        }
    }

    fn calls(&self, name: &str) -> usize {
        self.calls
            .lock()
            .expect("nobody panics with the lock")
            .iter()
            .filter(|(called, _)| called == name)
            .count()
    }
}

fn measured(
    watch: &'static Watch,
    programs: &[&Program],
    sleep: &'static (dyn Fn(&str, usize) -> Duration + Sync),
    known: &BTreeSet<KernelKey>,
    concurrency: usize,
) -> Result<Vec<partita_tune::KernelTime>, TuneError> {
    let maker = |_: Mesh, _: Rank, _: usize| -> Box<dyn Kernels> {
        Box::new(Sleeper {
            rank: watch.ranks.fetch_add(1, Ordering::SeqCst),
            calls: &watch.calls,
            sleep,
            inside: &watch.inside,
            inside_max: &watch.inside_max,
        })
    };
    let options = Options {
        concurrency,
        ..Options::default()
    };
    measure(
        programs,
        &maker,
        &|key| known.contains(key),
        &options,
        &|_, _| {},
    )
}

fn leaked() -> &'static Watch {
    Box::leak(Box::new(Watch::new()))
}

#[test]
fn each_shape_and_algorithm_is_measured_once_and_only_if_missing() {
    let watch = leaked();
    let one = program(&["a", "b", "a", "a"]);
    let two = program(&["b", "c"]);
    let sleep = &|_: &str, _: usize| Duration::from_millis(4);
    let first = measured(watch, &[&one], sleep, &BTreeSet::new(), 1).unwrap();
    assert_eq!(first.len(), 2);
    assert!(
        first
            .iter()
            .all(|one| (0.004..0.04).contains(&one.seconds.0)),
        "{first:?}"
    );
    // One that does not count, and 30 ms by 4 ms.
    let calls = watch.calls("a");
    assert!((4..=8).contains(&calls), "{calls}");
    let known: BTreeSet<KernelKey> = first.into_iter().map(|one| one.key).collect();
    let second = measured(watch, &[&one, &two], sleep, &known, 1).unwrap();
    assert_eq!(second.len(), 1);
    assert_eq!(second[0].key.algorithm, "c");
    assert_eq!(watch.calls("a"), calls);
    let all: BTreeSet<KernelKey> = known.into_iter().chain([second[0].key.clone()]).collect();
    assert!(
        measured(watch, &[&one, &two], sleep, &all, 1)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_disturbed_pass_of_three_does_not_count() {
    let one = program(&["a", "b"]);
    let pass = |milliseconds: u64| {
        let sleep = Box::leak(Box::new(move |_: &str, _: usize| {
            Duration::from_millis(milliseconds)
        }));
        measured(leaked(), &[&one], sleep, &BTreeSet::new(), 1).unwrap()
    };
    let passes = [pass(4), pass(60), pass(4)];
    let seconds = |all: &[partita_tune::KernelTime]| -> Vec<f64> {
        all.iter().map(|one| one.seconds.0).collect()
    };
    assert!(seconds(&passes[1]).iter().all(|&seconds| seconds >= 0.06));
    let found = median_of_passes(&passes);
    assert!(
        seconds(&found).iter().all(|s| (0.004..0.04).contains(s)),
        "{found:?}"
    );
    let keys = |all: &[partita_tune::KernelTime]| -> Vec<KernelKey> {
        all.iter().map(|one| one.key.clone()).collect()
    };
    assert_eq!(keys(&found), keys(&passes[0]));
    assert!(median_of_passes(&[]).is_empty());
}

#[test]
fn repeats_are_5_for_long_kernels_and_few_for_short_ones() {
    let watch = leaked();
    let sleep = &|name: &str, _: usize| match name {
        "long" => Duration::from_millis(60),
        _ => Duration::ZERO,
    };
    measured(
        watch,
        &[&program(&["long", "short"])],
        sleep,
        &BTreeSet::new(),
        1,
    )
    .unwrap();
    assert_eq!(watch.calls("long"), 6);
    // Before each repeat once more, on other operands.
    assert_eq!(watch.calls("short"), 1 + 2 * 15);
}

#[test]
fn the_median_of_the_slowest_rank_counts() {
    let watch = leaked();
    // The first call warms up, one of the five that count is disturbed.
    let sleep = &|_: &str, turn: usize| match turn {
        0 => Duration::from_millis(200),
        2 => Duration::from_millis(400),
        _ => Duration::from_millis(40),
    };
    let times = measured(watch, &[&program(&["a"])], sleep, &BTreeSet::new(), 2).unwrap();
    assert!((0.040..0.150).contains(&times[0].seconds.0), "{times:?}");
    assert_eq!(watch.calls("a"), 12);
    assert_eq!(
        watch.inside_max.load(Ordering::SeqCst),
        2,
        "ranks run together"
    );
}

/// All threads make kernels of the same rank; slots tell them apart.
#[test]
fn each_thread_has_a_slot_of_its_own() {
    let watch = leaked();
    let made = Mutex::new(Vec::new());
    let maker = |_: Mesh, rank: Rank, slot: usize| -> Box<dyn Kernels> {
        let thread = std::thread::current().id();
        made.lock().unwrap().push((rank, slot, thread));
        Box::new(Sleeper {
            rank: slot,
            calls: &watch.calls,
            sleep: &|_: &str, _: usize| Duration::ZERO,
            inside: &watch.inside,
            inside_max: &watch.inside_max,
        })
    };
    let options = Options {
        concurrency: 3,
        ..Options::default()
    };
    let copies = program(&["a", "b"]);
    measure(&[&copies], &maker, &|_| false, &options, &|_, _| {}).unwrap();
    let made = made.into_inner().unwrap();
    let ranks: BTreeSet<Rank> = made.iter().map(|(rank, _, _)| *rank).collect();
    assert_eq!(ranks, BTreeSet::from([0]), "the benchmark is of rank 0");
    let mut slots: Vec<usize> = made.iter().map(|(_, slot, _)| *slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2], "each slot once");
    let threads: HashSet<_> = made.iter().map(|(_, _, thread)| *thread).collect();
    assert_eq!(threads.len(), 3, "each on its own thread");
}

#[test]
fn unpinned_and_failing_kernels_are_errors() {
    let sleep = &|_: &str, _: usize| Duration::ZERO;
    let open = measured(
        leaked(),
        &[&program(&["unpinned"])],
        sleep,
        &BTreeSet::new(),
        1,
    );
    assert!(matches!(open, Err(TuneError::Unpinned { .. })));
    let broken = measured(
        leaked(),
        &[&program(&["a", "broken"])],
        sleep,
        &BTreeSet::new(),
        2,
    );
    let Err(TuneError::Kernel { algorithm, .. }) = broken else {
        panic!("{broken:?}")
    };
    assert_eq!(algorithm, "broken");
}

const ADAM: Optimizer = Optimizer::Adam {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.01,
};
const SGD: Optimizer = Optimizer::Sgd {
    momentum: 0.9,
    weight_decay: 0.01,
};

/// Chooses the reference kernels.
struct Reference;

impl Menu for Reference {
    fn choose(&self, _shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        Ok(Choice {
            algorithm: Algorithm("reference".to_owned()),
            workspace: Bytes(0),
            packed_weights: 0,
        })
    }
}

/// Every kind of kernel that lowering emits can be measured.
#[test]
fn kernels_of_random_programs_can_be_measured() {
    let kernels = reference_kernels(Dtype::F32);
    let mut kinds = BTreeSet::new();
    let mut known = BTreeSet::new();
    for seed in 0..12 {
        let case = random_case(seed);
        let (samples, parameters) = Setup::draw(&case.graph, case.batch, seed);
        let setup = Setup {
            graph: &case.graph,
            strategy: case.strategy,
            dtype: Dtype::F32,
            menu: &Reference,
            kernels: &kernels,
            optimizer: if seed % 2 == 0 { ADAM } else { SGD },
            decay_norms: true,
            ema: (seed % 3 == 0).then_some(0.9),
            clip: Some(1.0),
            learning_rate: 0.01,
            loss_scale: None,
            samples,
            parameters,
            steps: 1,
            seed,
        };
        let train = setup.program(ProgramKind::Train).unwrap();
        let [cache, cache_at_work] = [Bytes(1 << 19); 2];
        let options = Options {
            concurrency: 1 + seed as usize % 2,
            cache,
            cache_at_work,
            budget: Seconds(0.0),
            ..Options::default()
        };
        let new = measure(
            &[&train],
            &|mesh, rank, _| kernels(mesh, rank),
            &|key| known.contains(key),
            &options,
            &|_, _| {},
        );
        let few = measure(
            &[&train],
            &|mesh, rank, _| kernels(mesh, rank),
            &|_| false,
            &Options {
                family_max: 2,
                ..options
            },
            &|_, _| {},
        );
        let mut families: BTreeMap<String, usize> = BTreeMap::new();
        for one in few.unwrap() {
            *families.entry(one.features.family).or_insert(0) += 1;
        }
        assert_eq!(families.values().max(), Some(&2), "{families:?}");
        for one in new.unwrap() {
            let is_time = (f64::MIN_POSITIVE..10.0).contains(&one.seconds.0);
            assert!(is_time, "seed {seed}: {one:?}");
            kinds.insert(one.key.signature.split(' ').nth(1).unwrap().to_owned());
            assert!(known.insert(one.key), "seed {seed}");
        }
    }
    assert!(kinds.len() >= 15, "{kinds:?}");
}
