//! What lowered programs compute and copy against what the model says.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::request;

use partita_graph::{Graph, count, text};
use partita_lower::{LowerError, Request, Strategy, StrategyError, lower};
use partita_program::{Body, Count, Kernel, Phase, Program, ProgramKind, Task, Work};
use partita_space::Bytes;
use request::request;

const LEVELS: &str = "model levels
input x channels=2 extent=12x8
e = conv x filters=4 kernel=3 pad=1 bias=true
a = relu e
p = max_pool a kernel=2 stride=2
d = conv p filters=6 kernel=3 pad=1 bias=true
u = conv_transpose d filters=4 kernel=2 stride=2 groups=2 bias=true
k = concat a u
c = conv k filters=3 kernel=1 bias=false
loss = mse c
";

/// With a head of its own for an auxiliary loss, and one of what the way to the loss reads too.
const HEADS: &str = "model heads
input x channels=2 extent=12x8
c1 = conv x filters=4 kernel=3 pad=1 bias=true
aux.pool = average_pool c1 kernel=4 stride=4 count_padding=true
aux.conv = conv aux.pool filters=4 kernel=1 bias=false
aux.bn = batch_norm aux.conv epsilon=1e-3 momentum=0.1
aux.f = flatten aux.bn
aux.fc = linear aux.f features=4 bias=true
aux.loss = softmax_cross_entropy aux.fc weight=0.4
c2 = conv c1 filters=4 kernel=3 pad=1 bias=true
f = flatten c2
fc1 = linear f features=4 bias=true
early = softmax_cross_entropy fc1 weight=0.25
fc2 = linear fc1 features=4 bias=true
loss = softmax_cross_entropy fc2
";

fn program(graph: &Graph, strategy: &str, batch: usize) -> Program {
    program_of(graph, strategy, batch, ProgramKind::Train)
}

fn program_of(graph: &Graph, strategy: &str, batch: usize, kind: ProgramKind) -> Program {
    let strategy: Strategy = strategy.parse().unwrap();
    lower(&Request {
        kind,
        ..request(graph, &strategy, batch)
    })
    .unwrap()
}

/// Kernels of a layer in a phase.
fn kernels<'a>(body: &'a Body, layer: &str, phase: Phase) -> Vec<&'a Kernel> {
    let of_layer = |task: &&Task| task.origin.layer == layer && task.origin.phase == phase;
    let tasks = body.tasks.iter().filter(of_layer);
    let kernels = tasks.filter_map(|task| match &task.work {
        Work::Compute { kernel, .. } => Some(kernel),
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
    });
    kernels.collect()
}

#[test]
fn a_transposed_convolution_computes_what_the_model_counts() {
    let graph = text::parse(LEVELS).unwrap();
    let counts = count(&graph);
    let layer = counts.layers.iter().find(|layer| layer.name == "u");
    let layer = layer.unwrap();
    assert_eq!(layer.forward_flops.0, 2 * 4 * 2 * 6 * 6 * 4);
    let batch = 3;
    // Kernels that do not overlap meet no halo, so that a split computes nothing twice.
    for strategy in ["data=1", "height=3", "data=3,height=2,width=2"] {
        let program = program(&graph, strategy, batch);
        let flops = |phase: Phase, bias: u64| -> u64 {
            let of_class = |&class: &u32| {
                let body = &program.bodies[class as usize];
                let kernels = kernels(body, "u", phase).into_iter();
                kernels
                    .map(|kernel| Count::of_kernel(kernel, &body.buffers).flops.0)
                    .sum::<u64>()
            };
            program.class_of.iter().map(of_class).sum::<u64>() - bias
        };
        let samples = batch as u64;
        let forward = flops(Phase::Forward, 0);
        assert_eq!(forward, samples * layer.forward_flops.0, "{strategy}");
        // The gradient of the bias adds each element once.
        let backward = flops(Phase::Backward, samples * 12 * 8 * 4);
        let all = samples * layer.executed_flops.0;
        assert_eq!(forward + backward, all, "{strategy}");
    }
}

#[test]
fn a_concatenation_copies_what_fusion_leaves() {
    let graph = text::parse(LEVELS).unwrap();
    let copied = |strategy: &str, phase: Phase| -> Bytes {
        let program = program(&graph, strategy, 2);
        let body = &program.bodies[0];
        let copies = kernels(body, "k", phase).into_iter();
        let copies = copies.filter(|kernel| matches!(kernel, Kernel::Copy { .. }));
        copies
            .map(|copy| Count::of_kernel(copy, &body.buffers).written)
            .sum()
    };
    let part = |channels: u64| Bytes(4 * 2 * 12 * 8 * channels);
    for phase in [Phase::Forward, Phase::Backward] {
        assert_eq!(copied("fuse=off", phase), part(4 + 4));
    }
    assert_eq!(copied("data=1", Phase::Forward), Bytes(0));
    assert_eq!(copied("height=2,width=2", Phase::Forward), Bytes(0));
    assert_eq!(copied("data=1", Phase::Backward), Bytes(0));
}

/// Kernels that compute a loss, and their weights.
fn weights(program: &Program) -> Vec<(&str, f64)> {
    let tasks = program.bodies[0].tasks.iter();
    tasks
        .filter_map(|task| match &task.work {
            Work::Compute {
                kernel: Kernel::SoftmaxCrossEntropy { weight, .. },
                ..
            } => Some((task.origin.layer.as_str(), *weight)),
            Work::Compute { .. }
            | Work::Exchange(_)
            | Work::Collective(_)
            | Work::Load(_)
            | Work::Store(_) => None,
        })
        .collect()
}

#[test]
fn an_evaluation_has_no_task_of_an_auxiliary_head() {
    let graph = text::parse(HEADS).unwrap();
    let plain: Vec<&str> = HEADS
        .lines()
        .filter(|line| !line.starts_with("aux.") && !line.starts_with("early"))
        .collect();
    let plain = text::parse(&plain.join("\n")).unwrap();
    for strategy in [
        "data=1",
        "data=2,height=2",
        "height=2,filter=2",
        "height=2; c1..fc1: halo=grouped",
        "data=2; c1..aux.fc: recompute=on",
    ] {
        let trained = program(&graph, strategy, 2);
        let expected = [("aux.loss", 0.4), ("early", 0.25), ("loss", 1.0)];
        assert_eq!(weights(&trained), expected, "{strategy}");
        let evaluated = program_of(&graph, strategy, 2, ProgramKind::Evaluate);
        assert_eq!(weights(&evaluated), [("loss", 1.0)], "{strategy}");
        for body in &evaluated.bodies {
            let mut tasks = body.tasks.iter();
            let of_head = |layer: &str| layer.starts_with("aux.") || layer == "early";
            assert!(tasks.all(|task| !of_head(&task.origin.layer)), "{strategy}");
        }
    }
    for strategy in ["data=1", "data=2,height=2", "height=2,filter=2"] {
        let [with, without] = [&graph, &plain].map(|graph| {
            let program = program_of(graph, strategy, 2, ProgramKind::Evaluate);
            let works = |body: &Body| body.tasks.iter().map(|task| task.origin.clone()).collect();
            program.bodies.iter().map(works).collect::<Vec<Vec<_>>>()
        });
        assert_eq!(with, without, "{strategy}");
    }
}

#[test]
fn an_auxiliary_loss_has_the_distribution_of_the_loss() {
    let graph = text::parse(HEADS).unwrap();
    let strategy: Strategy = "data=2; early: N=data".parse().unwrap();
    let refused = lower(&request(&graph, &strategy, 2)).unwrap_err();
    let LowerError::Strategy(StrategyError::Dim {
        layer, dim, axes, ..
    }) = refused
    else {
        panic!("{refused}");
    };
    assert_eq!([&layer, dim, &axes], ["early", "N", "data"]);
    // The scores of the head have another distribution; they are moved to that of the targets.
    let moved = program(&graph, "data=2; aux.fc: N=-; fc1: F=data", 2);
    let mut tasks = moved.bodies[0].tasks.iter();
    assert!(tasks.any(|task| task.origin.layer == "aux.fc.moved"));
}
