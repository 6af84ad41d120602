//! What micro-batches, shared training state and blocks that are computed again cost and save.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::request;

use partita_graph::{Graph, text};
use partita_lower::{Strategy, lower};
use partita_program::{Body, Item, Kernel, Load, Phase, Program, Role, Task, When, Work};
use partita_space::Bytes;
use partita_testkit::verify;
use request::request;

/// Two convolutions and a linear layer of 27 * 4 * 8 + 27 * 8 * 8 + 512 * 64 weights, and 64 of the bias.
const TOWER: &str = "model tower
input x channels=4 extent=8x8x8
c1 = conv x filters=8 kernel=3 pad=1 bias=false
a1 = relu c1
c2 = conv a1 filters=8 kernel=3 stride=2 pad=1 bias=false
a2 = relu c2
f = flatten a2
l = linear f features=64 bias=true
loss = mse l
";
const WEIGHTS: u64 = 27 * 4 * 8 + 27 * 8 * 8 + 512 * 64;
const BIAS: u64 = 64;

fn train(strategy: &str) -> Program {
    program(TOWER, strategy)
}

fn program(model: &str, strategy: &str) -> Program {
    let graph: Graph = text::parse(model).unwrap();
    let strategy: Strategy = strategy.parse().unwrap();
    let program = lower(&request(&graph, &strategy, 8)).unwrap();
    if let Err(faults) = verify::verify(&program) {
        let sound = faults
            .0
            .iter()
            .all(|fault| matches!(fault, verify::Fault::Unpinned { .. }));
        assert!(sound, "{faults}");
    }
    program
}

/// Elements that each collective of a phase is given, by its name.
fn given(body: &Body, phase: Phase) -> Vec<(&'static str, u64)> {
    let of_phase = |task: &&Task| task.origin.phase == phase;
    let tasks = body.tasks.iter().filter(of_phase);
    let sizes = tasks.filter_map(|task| match &task.work {
        Work::Collective(collective) => {
            let kind = &collective.kind;
            let elements: usize = kind.sources().iter().map(|view| view.volume()).sum();
            Some((kind.name(), elements as u64))
        }
        Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) | Work::Store(_) => None,
    });
    sizes.collect()
}

fn sum(given: &[(&'static str, u64)], name: &str) -> u64 {
    let of_name = given.iter().filter(|(known, _)| *known == name);
    of_name.map(|(_, elements)| elements).sum()
}

#[test]
fn the_optimizers_state_is_shared_out_and_sums_stay_where_they_are_used() {
    for (strategy, ranks) in [("data=2", 2), ("data=4", 4), ("data=2,depth=2", 2)] {
        let plain = train(strategy);
        let shared = train(&format!("{strategy},shard=optimizer"));
        for (a, b) in plain.class_of.iter().zip(&shared.class_of) {
            let (plain, shared) = (&plain.bodies[*a as usize], &shared.bodies[*b as usize]);
            assert_eq!(plain.bytes_of(Role::Optimizer), Bytes(8 * (WEIGHTS + BIAS)));
            if ranks == 4 || strategy == "data=2" {
                let left = Bytes(8 * (WEIGHTS / ranks + BIAS));
                assert_eq!(shared.bytes_of(Role::Optimizer), left, "{strategy}");
            }
            assert_eq!(
                shared.bytes_of(Role::Parameter),
                plain.bytes_of(Role::Parameter)
            );
            let reduced = given(shared, Phase::Reduce);
            assert_eq!(sum(&reduced, "reduce_scatter"), WEIGHTS, "{strategy}");
            assert_eq!(sum(&reduced, "allreduce"), BIAS);
            let moved = shared.bytes_of(Role::Gathered).0 / 4;
            assert_eq!(sum(&given(shared, Phase::Update), "allgather"), moved);
        }
    }
}

#[test]
fn weights_by_shares_are_gathered_for_each_pass_and_never_kept_whole() {
    let program = train("data=4,shard=parameters");
    for body in &program.bodies {
        assert_eq!(
            body.bytes_of(Role::Parameter),
            Bytes(4 * (WEIGHTS / 4 + BIAS))
        );
        assert_eq!(
            body.bytes_of(Role::Optimizer),
            Bytes(8 * (WEIGHTS / 4 + BIAS))
        );
        let forward = given(body, Phase::Forward);
        assert_eq!(forward.len(), 3, "{forward:?}");
        assert_eq!(sum(&forward, "allgather"), WEIGHTS / 4);
        // The first convolution has no gradient of its input.
        let backward = given(body, Phase::Backward);
        assert_eq!(sum(&backward, "allgather"), (WEIGHTS - 27 * 4 * 8) / 4);
        assert!(given(body, Phase::Update).is_empty());
    }
    // With even shares all ranks do the same.
    assert_eq!(program.bodies.len(), 1);
}

#[test]
fn gradients_are_summed_once_or_after_every_micro_batch() {
    for (shard, times) in [
        ("off", 1),
        ("optimizer", 1),
        ("gradients", 4),
        ("parameters", 4),
    ] {
        let program = train(&format!("data=2,micro=4,shard={shard}"));
        let reduced = given(&program.bodies[0], Phase::Reduce);
        let name = if shard == "off" {
            "allreduce"
        } else {
            "reduce_scatter"
        };
        let bias = if shard == "off" { BIAS } else { 0 };
        assert_eq!(sum(&reduced, name), times * WEIGHTS + bias, "{shard}");
    }
}

#[test]
fn micro_batches_need_less_memory_and_are_read_one_after_the_other() {
    let (whole, parts) = (train("data=2"), train("data=2,micro=4"));
    let staged = |program: &Program| program.bodies[0].bytes_of(Role::Staging);
    assert_eq!(staged(&whole).0, 4 * staged(&parts).0);
    assert!(parts.memory_max() < whole.memory_max());
    assert_eq!(parts.count().load_bytes, whole.count().load_bytes);
    let loads: Vec<&Load> = parts.bodies[0].loads().collect();
    let samples: Vec<(When, Option<(usize, usize)>)> = loads
        .iter()
        .filter(|load| load.item == Item::Sample)
        .map(|load| (load.when, load.distribution.micro))
        .collect();
    let expected = [
        (When::Now, Some((2, 2))),
        (When::Now, Some((4, 2))),
        (When::Now, Some((6, 2))),
        (When::Next, Some((0, 2))),
    ];
    assert_eq!(samples, expected);
}

#[test]
fn blocks_are_computed_twice() {
    let plain = train("data=2");
    let again = train("data=2; c1..a1: recompute=on; c2..a2: recompute=on");
    let convolutions = |program: &Program, phase: Phase| {
        let body = &program.bodies[0];
        let of_phase = body.tasks.iter().filter(|task| task.origin.phase == phase);
        let forward = of_phase.filter(|task| {
            matches!(
                &task.work,
                Work::Compute {
                    kernel: Kernel::ConvolutionForward { .. },
                    ..
                }
            )
        });
        forward.count()
    };
    assert_eq!(convolutions(&plain, Phase::Backward), 0);
    assert_eq!(convolutions(&again, Phase::Forward), 2);
    // What is read after a block is kept: the second one's output.
    assert_eq!(convolutions(&again, Phase::Backward), 0);
    let block = train("data=2; c1..f: recompute=on");
    assert_eq!(convolutions(&block, Phase::Backward), 2);
    assert_eq!(convolutions(&block, Phase::Forward), 2);
    assert!(block.count().flops.0 > plain.count().flops.0);
    let none = train("data=2; c1..f: recompute=on; x..: recompute=off");
    assert_eq!(none.count(), plain.count());
}

/// A residual block, and a head behind a pooling.
const RESIDUAL: &str = "model residual
input x channels=4 extent=8x8
c0 = conv x filters=8 kernel=3 pad=1 bias=false
n1 = batch_norm c0 epsilon=0.001 momentum=0.1
r1 = relu n1
c1 = conv r1 filters=8 kernel=3 pad=1 bias=false
m1 = batch_norm c1 epsilon=0.001 momentum=0.1
q1 = relu m1
d1 = conv q1 filters=8 kernel=3 pad=1 bias=false
s1 = add d1 c0
p = average_pool s1 kernel=2 stride=2 count_padding=true
f = flatten p
l = linear f features=4 bias=false
loss = mse l
";

/// The layers whose forward kernels run in a phase of rank 0, in their order.
fn forward_layers(program: &Program, phase: Phase) -> Vec<&str> {
    let tasks = program.bodies[0].tasks.iter();
    let forward = tasks.filter(|task| {
        let is_forward = match &task.work {
            Work::Compute { kernel, .. } => matches!(
                kernel,
                Kernel::ConvolutionForward { .. }
                    | Kernel::BatchNormForward { .. }
                    | Kernel::LeakyReluForward { .. }
                    | Kernel::Add { .. }
                    | Kernel::PoolForward { .. }
            ),
            Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => false,
        };
        task.origin.phase == phase && is_forward
    });
    let mut names: Vec<&str> = forward.map(|task| task.origin.layer.as_str()).collect();
    names.dedup();
    names
}

#[test]
fn what_the_backward_pass_does_not_read_is_not_computed_again() {
    let program = program(RESIDUAL, "height=2,fuse=off; n1..f: recompute=on");
    let all = ["c0", "n1", "r1", "c1", "m1", "q1", "d1", "s1", "p"];
    assert_eq!(forward_layers(&program, Phase::Forward), all);
    // Neither a sum nor a mean looks at what it was given, so the last convolution comes once.
    let again = ["n1", "r1", "c1", "m1", "q1"];
    assert_eq!(forward_layers(&program, Phase::Backward), again);
}

#[test]
fn cheap_layers_are_computed_again_for_each_layer_that_reads_them() {
    let program = program(RESIDUAL, "height=2,fuse=off; ..: recompute=selective");
    // Each right before the backward pass of the convolution after it; its own backward pass finds it in memory.
    let again = ["m1", "q1", "n1", "r1"];
    assert_eq!(forward_layers(&program, Phase::Backward), again);
}

#[test]
fn a_skip_connection_is_dropped_between_its_readers() {
    let mut text =
        "model skip\ninput x channels=4 extent=8x8\nc0 = conv x filters=4 kernel=3 pad=1\n\
                    n0 = batch_norm c0\nr0 = relu n0\np0 = max_pool r0 kernel=2 stride=2\n"
            .to_owned();
    let mut last = "p0".to_owned();
    for i in 1..7 {
        text += &format!(
            "c{i} = conv {last} filters=4 kernel=3 pad=1\nn{i} = batch_norm c{i}\nr{i} = relu n{i}\n"
        );
        last = format!("r{i}");
    }
    text += &format!(
        "u = conv_transpose {last} filters=4 kernel=2 stride=2\nn7 = batch_norm u\nk = concat n7 r0\n\
         end = conv k filters=2 kernel=3 pad=1\nloss = mse end\n"
    );
    let plain = program(&text, "data=1,fuse=off");
    let selective = program(&text, "data=1,fuse=off; ..: recompute=selective");
    let again = forward_layers(&selective, Phase::Backward);
    assert_eq!(
        again.iter().filter(|&&layer| layer == "r0").count(),
        2,
        "{again:?}"
    );
    assert_eq!(
        again.iter().filter(|&&layer| layer == "r3").count(),
        1,
        "{again:?}"
    );
    assert!(
        again.iter().all(|layer| !layer.starts_with('c')),
        "{again:?}"
    );
    let [before, after] = [&plain, &selective].map(|program| program.bodies[0].arena.0 as f64);
    assert!(after < 0.9 * before, "{after} of {before}");
}

#[test]
fn a_later_entry_overrides_what_is_recomputed() {
    let plain = program(RESIDUAL, "data=1");
    let none = program(
        RESIDUAL,
        "data=1; ..: recompute=selective; ..: recompute=off",
    );
    assert_eq!(none.count(), plain.count());
    let block = program(
        RESIDUAL,
        "data=1; ..: recompute=selective; n1..f: recompute=on",
    );
    let alone = program(RESIDUAL, "data=1; n1..f: recompute=on");
    assert_eq!(block.bodies, alone.bodies);
}

#[test]
fn blocks_of_a_chain_need_less_memory() {
    let mut chain = "model chain\ninput x channels=8 extent=16x16\n".to_owned();
    let mut blocks = String::new();
    let mut last = "x".to_owned();
    for i in 0..12 {
        chain +=
            &format!("c{i} = conv {last} filters=8 kernel=3 pad=1 bias=false\na{i} = relu c{i}\n");
        last = format!("a{i}");
        if i % 4 == 3 {
            blocks += &format!("; c{}..a{i}: recompute=on", i - 3);
        }
    }
    chain += &format!("h = conv {last} filters=2 kernel=1 bias=false\nloss = mse h\n");
    let plain = program(&chain, "height=2");
    let again = program(&chain, &format!("height=2{blocks}"));
    // Twelve values before; then three between blocks, and three inside the one at hand.
    let arena = |program: &Program| program.bodies.iter().map(|body| body.arena.0).max();
    let [before, after] = [&plain, &again].map(|program| arena(program).unwrap() as f64);
    assert!(after < 0.65 * before, "{after} of {before}");
}
