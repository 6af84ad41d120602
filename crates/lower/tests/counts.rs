//! What lowered programs compute and copy against what the model says.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod request;

use partita_graph::{Graph, count, text};
use partita_lower::{Strategy, lower};
use partita_program::{Body, Count, Kernel, Phase, Program, Task, Work};
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

fn program(graph: &Graph, strategy: &str, batch: usize) -> Program {
    let strategy: Strategy = strategy.parse().unwrap();
    lower(&request(graph, &strategy, batch)).unwrap()
}

/// Kernels of a layer in a phase.
fn kernels<'a>(body: &'a Body, layer: &str, phase: Phase) -> Vec<&'a Kernel> {
    let of_layer = |task: &&Task| task.origin.layer == layer && task.origin.phase == phase;
    let tasks = body.tasks.iter().filter(of_layer);
    let kernels = tasks.filter_map(|task| match &task.work {
        Work::Compute { kernel, .. } => Some(kernel),
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) => None,
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
