//! What layers on sequences carry, and what moves for it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::request;

use partita_graph::{Graph, text};
use partita_lower::{Strategy, lower};
use partita_program::{CollectiveKind, Kernel, Program, Work};
use request::request;

const BATCH: usize = 4;

fn model() -> Graph {
    text::parse(
        "model sequences\n\
         input x channels=2 extent=8\n\
         s = slice x start=0 channels=1\n\
         e = embedding s rows=5 channels=12\n\
         n = layer_norm e epsilon=1e-6\n\
         q = conv n filters=12 kernel=1 bias=false\n\
         k = conv n filters=12 kernel=1 bias=false\n\
         v = conv n filters=12 kernel=1 bias=false\n\
         a = attention q k v heads=6 causal=true\n\
         o = conv a filters=12 kernel=1 bias=false\n\
         loss = mse o\n",
    )
    .unwrap()
}

fn refusal(strategy: &str) -> String {
    let strategy: Strategy = strategy.parse().unwrap();
    let graph = model();
    match lower(&request(&graph, &strategy, BATCH)) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{strategy} was lowered"),
    }
}

fn program(strategy: &str) -> Program {
    let strategy: Strategy = strategy.parse().unwrap();
    let graph = model();
    lower(&request(&graph, &strategy, BATCH)).unwrap_or_else(|error| panic!("{strategy}: {error}"))
}

#[test]
fn what_a_layer_cannot_carry_is_refused_with_what_it_can() {
    for (strategy, parts) in [
        ("filter=4", &["`a` has 6 heads", "over 4 ranks"][..]),
        (
            "width=2; a: W=width",
            &["the attention `a`", "width on W", "N and C"],
        ),
        (
            "filter=2; s: C=filter",
            &["the slice `s`", "on C", "N, D, H and W"],
        ),
        (
            "filter=2; e: C=filter",
            &["the embedding `e`", "on C", "N, D, H, W and F"],
        ),
    ] {
        let error = refusal(strategy);
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
}

/// Views that ranks sum in allreduces of a layer.
fn summed(program: &Program, layer: &str) -> Vec<[usize; 5]> {
    let tasks = program.bodies[0].tasks.iter();
    let views = tasks.filter_map(|task| match &task.work {
        Work::Collective(collective) if task.origin.layer == layer => match &collective.kind {
            CollectiveKind::AllReduce { views } => Some(views[0].extent),
            CollectiveKind::ReduceScatter { .. }
            | CollectiveKind::AllGather { .. }
            | CollectiveKind::AllToAll { .. } => None,
        },
        Work::Collective(_)
        | Work::Compute { .. }
        | Work::Exchange(_)
        | Work::Load(_)
        | Work::Store(_) => None,
    });
    views.collect()
}

#[test]
fn a_layer_norm_sums_two_numbers_per_position_where_channels_are_split() {
    let split = program("data=2,filter=2");
    assert_eq!(summed(&split, "n"), [[2, 1, 1, 8, 2]; 2]);
    // Gradients of its vectors are summed over samples.
    assert_eq!(summed(&split, "n.gamma"), [[1, 1, 1, 1, 6]]);
    assert_eq!(summed(&split, "e.weight"), [[1, 1, 1, 5, 6]]);
    let tiles = program("width=2");
    assert_eq!(summed(&tiles, "n"), [[0; 5]; 0]);
    assert_eq!(summed(&tiles, "n.beta"), [[1, 1, 1, 1, 12]]);
}

#[test]
fn attention_is_shared_out_by_heads() {
    let split = program("filter=3");
    let tasks = split.bodies[0].tasks.iter();
    let heads = tasks.filter_map(|task| match task.work.kernels() {
        [Kernel::AttentionForward { heads, q, .. }] => Some((*heads, q.extent)),
        [Kernel::AttentionBackward { heads, dq, .. }] => Some((*heads, dq.unwrap().extent)),
        _ => None,
    });
    let share = (2, [4, 1, 1, 8, 4]);
    assert_eq!(heads.collect::<Vec<_>>(), [share; 2]);
}
