//! A run allocates what its programs say, and nothing beside that grows with the model.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{Convolution, Graph, GraphBuilder, Loss};
use partita_space::{Bytes, Seconds, Window};
use partita_testkit::{
    Case, CountedCase, CountingAllocator, random_branched_case, random_case, random_grouped_case,
    random_layer_case, random_saving_case, random_sequence_case, random_staged_case,
    random_tied_case,
};
use partita_threads::{connect, launch};
use std::sync::Barrier;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// A way to draw cases, and its name.
type Draw = (&'static str, fn(u64) -> Case);

/// One count for the whole process, so its tests must not run concurrently.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes that the ranks of a case hold at most while they play, and those of their programs.
fn held(case: &Case) -> [u64; 3] {
    let counted = CountedCase::new(case);
    let mesh = counted.programs()[1].mesh;
    let (barrier, before) = (Barrier::new(mesh.ranks()), AtomicUsize::new(0));
    let most = Mutex::new(0);
    let cancel = AtomicBool::new(false);
    let parts = connect(mesh, Seconds(0.0));
    let played = launch(parts, &cancel, |rank, transport| {
        let visits = AtomicUsize::new(0);
        let barrier = || {
            barrier.wait();
            // All are here: nothing is allocated meanwhile.
            if rank == 0 && visits.fetch_add(1, Ordering::SeqCst) == 0 {
                before.store(ALLOCATOR.reset(), Ordering::SeqCst);
            } else if rank == 0 {
                *most.lock().unwrap() = ALLOCATOR.peak_above(before.load(Ordering::SeqCst));
            }
            barrier.wait();
        };
        counted.run(rank, Box::new(transport), &cancel, &barrier)
    });
    played.unwrap_or_else(|error| panic!("seed {} {}: {error}", case.seed, case.strategy));
    let sum = |of: &dyn Fn(usize) -> Bytes| (0..mesh.ranks()).map(of).sum::<Bytes>().0;
    let most = *most.lock().unwrap();
    [
        most,
        sum(&|rank| counted.predicted(rank)),
        sum(&|rank| counted.allowance(rank)),
    ]
}

fn check(what: &str, case: &Case) -> u64 {
    let [held, predicted, allowed] = held(case);
    let name = format!(
        "{what} seed {} {} batch {}",
        case.seed, case.strategy, case.batch
    );
    assert!(
        held >= predicted,
        "{name}: {held} held, {predicted} predicted"
    );
    let beside = held - predicted;
    println!("{name}: {predicted} predicted, {beside} of {allowed} beside");
    assert!(
        beside <= allowed,
        "{name}: {held} held, {predicted} predicted, {beside} beside that, {allowed} allowed"
    );
    beside
}

#[test]
fn threads_allocate_what_their_programs_say() {
    let _alone = ALONE.lock().unwrap();
    let draws: [Draw; 8] = [
        ("random", random_case),
        ("layer", random_layer_case),
        ("grouped", random_grouped_case),
        ("branched", random_branched_case),
        ("staged", random_staged_case),
        ("sequence", random_sequence_case),
        ("tied", random_tied_case),
        ("saving", random_saving_case),
    ];
    let long = std::env::var("PARTITA_TEST_LONG").is_ok();
    for (what, draw) in draws {
        for seed in 0..if long { 200 } else { 12 } {
            check(what, &draw(seed));
        }
    }
}

/// Three convolutions of a volume, each with a batch norm and an activation.
fn volume() -> Graph {
    let mut builder = GraphBuilder::new("volume").unwrap();
    let mut head = builder.input("x", &[32, 16, 16], 2).unwrap();
    for at in 1..=3 {
        let name = |kind: &str| format!("{kind}{at}");
        let window = Window {
            kernel: 3,
            stride: 1,
            dilation: 1,
            pad_low: 1,
            pad_high: 1,
        };
        let convolution = Convolution {
            filters: 16,
            window: [window, Window::ONE, Window::ONE],
            periodic: false,
            groups: 1,
            bias: false,
        };
        head = builder
            .convolution(&name("conv"), head, convolution)
            .unwrap();
        head = builder.batch_norm(&name("norm"), head, 1e-3, 0.1).unwrap();
        head = builder.leaky_relu(&name("relu"), head, 0.1).unwrap();
    }
    let flat = builder.flatten("flat", head).unwrap();
    let end = builder.linear("end", flat, 2, true).unwrap();
    builder.loss("loss", end, Loss::MeanSquaredError).unwrap();
    builder.build().unwrap()
}

#[test]
fn tiles_that_shard_and_recompute_hold_what_is_predicted_within_3_percent() {
    let _alone = ALONE.lock().unwrap();
    let of = |text: &str| {
        let case = Case {
            graph: volume(),
            strategy: text.parse().unwrap(),
            batch: 4,
            seed: 0,
        };
        let [held, predicted, _] = held(&case);
        assert!(held >= predicted, "{text}: {held} of {predicted}");
        let beside = (held - predicted) as f64 / predicted as f64;
        assert!(beside <= 0.03, "{text}: {held} of {predicted}");
        predicted
    };
    let all = of("data=2,depth=2");
    let sharded = of("data=2,depth=2,shard=parameters");
    let both = of("data=2,depth=2,shard=parameters; conv1..norm2: recompute=on");
    let parts = of("data=2,depth=2,micro=2,shard=parameters; conv1..norm2: recompute=on");
    let smaller = [all, sharded, both, parts];
    assert!(smaller.is_sorted_by(|a, b| a > b), "{smaller:?}");
}

#[test]
fn what_is_held_beside_does_not_grow_with_the_batch() {
    let _alone = ALONE.lock().unwrap();
    for seed in 0..10 {
        let small = random_layer_case(seed);
        let micro = small.strategy.micro;
        if micro > 1 {
            continue;
        }
        let large = Case {
            graph: small.graph.clone(),
            strategy: small.strategy.clone(),
            batch: 16 * small.batch,
            seed,
        };
        let (little, much) = (check("small", &small), check("large", &large));
        // Lists of sample numbers, of which the source has a copy, and what it converts.
        let ranks = large.strategy.ranks();
        let counted = CountedCase::new(&large);
        let converted: Bytes = (0..ranks).map(|rank| counted.io(rank)).sum();
        let samples = 64 * (large.batch * ranks) as u64 + converted.0;
        assert!(
            much <= little + little / 2 + samples,
            "seed {seed} {}: {little} beside the programs, {much} with 16 times the batch",
            small.strategy
        );
    }
}
