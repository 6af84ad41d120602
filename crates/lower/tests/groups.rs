//! Groups of layers with one wide halo: how many exchanges, how wide, and how often elements count.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::request;

use partita_graph::{Graph, text};
use partita_lower::{LowerError, Strategy, StrategyError, lower};
use partita_program::{Body, Exchange, Kernel, Phase, Program, Work};
use partita_testkit::{Typed, verify};
use request::request;
use std::fmt::Write;

/// A first convolution and residual blocks of two convolutions, each behind a batch norm and an
/// activation; one block may halve the extents.
fn residual(extent: &str, blocks: usize, halving: Option<usize>) -> Graph {
    let mut model = format!(
        "model residual\ninput x channels=2 extent={extent}\n\
         c0 = conv x filters=3 kernel=3 pad=1 bias=false\n"
    );
    let mut head = "c0".to_owned();
    for i in 1..=blocks {
        let stride = if halving == Some(i) { 2 } else { 1 };
        let mut line = |text: String| writeln!(model, "{text}").unwrap();
        line(format!(
            "n{i} = batch_norm {head} epsilon=1e-3 momentum=0.1"
        ));
        line(format!("r{i} = relu n{i}"));
        line(format!(
            "c{i} = conv r{i} filters=3 kernel=3 stride={stride} pad=1 bias=false"
        ));
        line(format!("m{i} = batch_norm c{i} epsilon=1e-3 momentum=0.1"));
        line(format!("q{i} = relu m{i}"));
        line(format!(
            "d{i} = conv q{i} filters=3 kernel=3 pad=1 bias=false"
        ));
        if stride == 2 {
            line(format!(
                "k{i} = conv {head} filters=3 kernel=1 stride=2 pad=0 bias=false"
            ));
            head = format!("k{i}");
        }
        line(format!("s{i} = add {head} d{i}"));
        head = format!("s{i}");
    }
    model.push_str("end = conv ");
    model.push_str(&head);
    model.push_str(" filters=2 kernel=1 bias=false\nloss = softmax_cross_entropy end\n");
    text::parse(&model).unwrap()
}

/// This many blocks per group.
fn grouped(axes: &str, blocks: usize, fused: usize) -> String {
    let firsts = (1..=blocks).step_by(fused);
    let ranges = firsts.map(|first| {
        let last = blocks.min(first + fused - 1);
        format!("; n{first}..s{last}: halo=grouped")
    });
    axes.to_owned() + &ranges.collect::<String>()
}

fn try_program(graph: &Graph, strategy: &str, batch: usize) -> Result<Program, LowerError> {
    let strategy: Strategy = strategy.parse().unwrap();
    lower(&request(graph, &strategy, batch))
}

fn program(graph: &Graph, strategy: &str, batch: usize) -> Program {
    let program = try_program(graph, strategy, batch).unwrap();
    let faults = verify::verify(&program).err();
    let other = faults.iter().flat_map(|faults| &faults.0);
    // The menu pins nothing.
    let other = other.filter(|fault| !matches!(fault, verify::Fault::Unpinned { .. }));
    let other: Vec<String> = other.map(ToString::to_string).collect();
    assert!(other.is_empty(), "{strategy}: {other:?}");
    program
}

fn exchanges(body: &Body, phase: Phase) -> Vec<&Exchange> {
    let of_phase = body.tasks.iter().filter(|task| task.origin.phase == phase);
    let found = of_phase.filter_map(|task| match &task.work {
        Work::Exchange(exchange) => Some(exchange),
        Work::Compute { .. } | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
    });
    found.collect()
}

/// Columns that an exchange brings from the left and from the right.
fn widths(exchange: &Exchange) -> Vec<usize> {
    let mut receives: Vec<_> = exchange.receives.iter().collect();
    receives.sort_by_key(|receive| receive.view.start[3]);
    receives
        .iter()
        .map(|receive| receive.view.extent[3])
        .collect()
}

#[test]
fn a_group_of_blocks_has_one_exchange_forward_and_one_back() {
    // Blocks of ResNet-110 on tiles: 18, of which the 13th halves the extents.
    let graph = residual("192", 18, Some(13));
    let single = program(&graph, "width=3", 1);
    assert_eq!(exchanges(single.body(1), Phase::Forward).len(), 37);
    assert_eq!(exchanges(single.body(1), Phase::Backward).len(), 36);
    for (fused, count) in [(1, 19), (2, 10), (4, 6), (6, 4), (12, 3)] {
        let split = program(&graph, &grouped("width=3", 18, fused), 1);
        let forward = exchanges(split.body(1), Phase::Forward);
        let backward = exchanges(split.body(1), Phase::Backward);
        assert_eq!(forward.len(), count, "{fused} blocks in a group");
        // Nobody wants the gradient of the samples.
        assert_eq!(backward.len(), count - 1, "{fused} blocks in a group");
        for (at, exchange) in forward.iter().enumerate().skip(1) {
            let first = fused * (at - 1) + 1;
            let blocks = fused.min(18 - first + 1);
            let halo = match first {
                13 => 2 * (2 * blocks - 1) + 1,
                _ => 2 * blocks,
            };
            // The windows of a convolution with stride 2 begin one element before the part, and end
            // with it.
            let high = halo - usize::from(first == 13);
            assert_eq!(
                widths(exchange),
                [halo, high],
                "group {at} of {fused} blocks"
            );
        }
    }
}

#[test]
fn a_stride_inside_of_a_group_widens_what_comes_before() {
    for fused in 2..5 {
        // This many blocks from the one with the stride to the end.
        for strided in 1..fused {
            let halving = fused - strided + 1;
            let graph = residual("144", fused, Some(halving));
            let split = program(&graph, &grouped("width=3", fused, fused), 1);
            let forward = exchanges(split.body(1), Phase::Forward);
            let halo = 2 * (fused - strided) + 2 * (2 * strided - 1) + 1;
            assert_eq!(widths(forward[1]), [halo, halo - 1]);
        }
    }
}

#[test]
fn tiles_exchange_the_edges_and_corners_of_the_wide_halo() {
    let (graph, batch, channels) = (residual("32x24", 4, None), 2, 3);
    for fused in [1, 2, 4] {
        let split = program(&graph, &grouped("height=2,width=2", 4, fused), batch);
        let (high, wide, halo) = (32 / 2, 24 / 2, 2 * fused);
        let elements = halo * (high + wide + halo) * channels * batch;
        for rank in 0..4 {
            for (phase, skipped) in [(Phase::Forward, 1), (Phase::Backward, 0)] {
                let all = exchanges(split.body(rank), phase);
                assert_eq!(all.len(), skipped + 4 / fused);
                for exchange in &all[skipped..] {
                    let volume = |views: Vec<usize>| views.into_iter().sum::<usize>();
                    let received = exchange.receives.iter();
                    let received = volume(received.map(|r| r.view.volume()).collect());
                    let sent = exchange.sends.iter();
                    let sent = volume(sent.map(|send| send.view.volume()).collect());
                    assert_eq!([sent, received], [elements; 2], "{fused} {phase:?}");
                }
            }
        }
    }
}

#[test]
fn moments_count_each_element_once() {
    let (graph, batch) = (residual("16x12", 2, Some(2)), 3);
    let strategy = "data=2,height=2,width=2; n1..s2: halo=grouped";
    let split = program(&graph, strategy, batch);
    for (layer, elements) in [("n1", 16 * 12), ("m1", 16 * 12), ("m2", 8 * 6)] {
        let mut summed = 0;
        let mut normalized = 0;
        for rank in 0..split.mesh.ranks() {
            let tasks = split.body(rank).tasks.iter();
            for task in tasks.filter(|task| task.origin.phase == Phase::Forward) {
                let Work::Compute { kernel, .. } = &task.work else {
                    continue;
                };
                for part in kernel.parts() {
                    let body = split.body(rank);
                    if let Kernel::BatchNormStatistics { x, sums, .. } = part
                        && body.buffer(sums.buffer).name.starts_with(layer)
                    {
                        summed += x.volume() / 3;
                    } else if let Kernel::BatchNormForward { y, sums, .. } = part
                        && body.buffer(sums.buffer).name.starts_with(layer)
                    {
                        normalized += y.volume() / 3;
                    }
                }
            }
        }
        assert_eq!(summed, batch * elements, "{layer}");
        assert!(
            normalized > summed,
            "{layer} is computed in the overlap too"
        );
    }
}

const RING: &str = "model ring
input x channels=1 extent=12
c1 = conv x filters=2 kernel=3 pad=1 bias=false
a1 = relu c1
c2 = conv a1 filters=2 kernel=3 pad=1 padding=periodic bias=false
c3 = conv c2 filters=2 kernel=3 pad=1 bias=false
loss = mse c3
";

#[test]
fn impossible_groups_are_refused_by_name() {
    let graph = text::parse(RING).unwrap();
    let check = |text: &str| {
        let strategy: Strategy = text.parse().unwrap();
        strategy.check(&graph, 1)
    };
    let two = check("width=2; c1..a1: halo=grouped; a1..: halo=grouped").unwrap_err();
    let StrategyError::TwoGroups {
        layer,
        first,
        second,
        ..
    } = two
    else {
        panic!("{two}");
    };
    assert_eq!([&layer, &first, &second], ["a1", "c1..a1", "a1.."]);
    let periodic = check("width=2; c1..c3: halo=grouped").unwrap_err();
    assert!(
        matches!(periodic, StrategyError::PeriodicInGroup { .. }),
        "{periodic}"
    );
    let typed = Typed {
        strategy: "width=2; c1..c3: halo=grouped".to_owned(),
        ranks: 2,
        batch: 1,
    };
    let refusal = typed.refusal(&graph).unwrap();
    let nearest = "width=2; c1..a1: halo=grouped; c2..c3: halo=grouped";
    assert!(
        refusal.ends_with(&format!("help: try `{nearest}`")),
        "{refusal}"
    );
    // What is named as the nearest choice is one, also where the input of the group wraps around.
    program(&graph, nearest, 1);
    let unknown = check("width=2; c1..c9: halo=grouped").unwrap_err();
    assert!(matches!(unknown, StrategyError::UnknownLayer { .. }));
    // A layer may be taken out again.
    check("width=2; c1..c3: halo=grouped; c2: halo=own").unwrap();
}
