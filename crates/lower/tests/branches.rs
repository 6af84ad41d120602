//! What moves to branches and back, and between the halves of a transformer's layers, against closed
//! forms (Jain et al., IPDPS 2022, with all-to-all for allgather and reduce-scatter for allreduce;
//! Shoeybi et al. 2019 for pairs of column and row).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::request;

use partita_graph::{Graph, text, zoo};
use partita_lower::{Strategy, StrategyError, lower, lower_rank};
use partita_program::{Body, CollectiveKind, Phase, Program, Views, Work};
use partita_space::{Axis, Rank};
use partita_testkit::Typed;
use request::request;

const BATCH: usize = 12;

/// A fork in three branches of 5, 7 and 2 channels on a row of 6 positions, joined by channels.
const FORK: &str = "model fork
input x channels=3 extent=6
stem = conv x filters=4 kernel=3 pad=1 bias=false
a = conv stem filters=5 kernel=3 pad=1 bias=false
b = conv stem filters=7 kernel=5 pad=2 bias=false
c = conv stem filters=2 kernel=1 bias=false
join = concat a b c
flat = flatten join
end = linear flat features=2 bias=false
loss = mse end
";

fn program(graph: &Graph, strategy: &str, batch: usize) -> Program {
    let strategy: Strategy = strategy.parse().unwrap();
    strategy.check(graph, batch).unwrap();
    let program = lower(&request(graph, &strategy, batch));
    program.unwrap_or_else(|error| panic!("{strategy}: {error}"))
}

/// Elements that a rank gets from others in exchanges named after a layer, and the ranks.
fn got(program: &Program, rank: Rank, layer: &str, phase: Phase) -> (usize, Vec<Rank>) {
    let (mut elements, mut ranks) = (0, Vec::new());
    for task in &program.body(rank).tasks {
        let Work::Exchange(exchange) = &task.work else {
            continue;
        };
        if task.origin.layer == layer && task.origin.phase == phase {
            for receive in &exchange.receives {
                elements += receive.view.volume();
                ranks.push(program.mesh.neighbor(rank, receive.from).unwrap());
            }
        }
    }
    ranks.sort_unstable();
    ranks.dedup();
    (elements, ranks)
}

#[test]
fn forks_and_joins_move_what_an_all_to_all_moves() {
    let graph = text::parse(FORK).unwrap();
    // Two parts of the mini-batch, three groups of two ranks, one along each part.
    let program = program(&graph, "data=2,branch=3", BATCH);
    let each = BATCH / 6;
    let row = 6;
    let channels = [5, 7, 2];
    for rank in 0..6 {
        let group = rank % 3;
        let near: Vec<Rank> = (rank - group..rank - group + 3)
            .filter(|&r| r != rank)
            .collect();
        // The fork: all samples of the part, but for those that are here.
        let name = "stem.moved";
        let (elements, from) = got(&program, rank, name, Phase::Forward);
        assert_eq!(elements, 2 * each * row * 4, "rank {rank}");
        assert_eq!(from, near, "rank {rank}: a fork stays among neighbors");
        // The sum of the branches' gradients, of the own samples.
        let (elements, from) = got(&program, rank, name, Phase::Backward);
        assert_eq!((elements, from), (2 * each * row * 4, near.clone()));
        // The join: the own samples of the other branches.
        let others = |rank: Rank| -> usize {
            ["a", "b", "c"]
                .iter()
                .map(|branch| got(&program, rank, &format!("{branch}.moved"), Phase::Forward).0)
                .sum()
        };
        let all: usize = channels.iter().sum();
        let own = order_of_groups(&program, group);
        assert_eq!(
            others(rank),
            each * row * (all - channels[own]),
            "rank {rank}"
        );
        // Its adjoint: the gradients of the own branch for the others' samples.
        let back = format!("{}.moved", ["a", "b", "c"][own]);
        let (elements, _) = got(&program, rank, &back, Phase::Backward);
        assert_eq!(elements, 2 * each * row * channels[own], "rank {rank}");
    }
}

/// The branch whose convolution a group computes.
fn order_of_groups(program: &Program, group: usize) -> usize {
    let body = program.body(group);
    let has = |name: &str| {
        let of_layer = |task: &&partita_program::Task| task.origin.layer == name;
        let mut tasks = body.tasks.iter().filter(of_layer);
        tasks.any(|task| matches!(task.work, Work::Compute { .. }))
    };
    let found = ["a", "b", "c"].iter().position(|name| has(name));
    found.expect("every group has a branch")
}

#[test]
fn groups_are_as_large_as_their_branches_cost_or_as_said() {
    let graph = text::parse(FORK).unwrap();
    let ranks_of = |program: &Program, layer: &str| -> Vec<Rank> {
        let computes = |rank: &Rank| {
            let mut tasks = program.body(*rank).tasks.iter();
            tasks
                .any(|task| task.origin.layer == layer && matches!(task.work, Work::Compute { .. }))
        };
        (0..program.mesh.ranks()).filter(computes).collect()
    };
    // 3 x 5, 5 x 7 and 1 x 2 taps by filters.
    let by_cost = program(&graph, "branch=6", BATCH);
    let sizes = ["b", "a", "c"].map(|name| ranks_of(&by_cost, name).len());
    assert!(sizes[0] > sizes[1] && sizes[1] >= sizes[2], "{sizes:?}");
    assert_eq!(sizes.iter().sum::<usize>(), 6);
    let sized = program(&graph, "branch=6; a..c: branches=[5|1]", BATCH);
    assert_eq!(ranks_of(&sized, "b"), [0, 1, 2, 3, 4]);
    assert_eq!(ranks_of(&sized, "stem"), [0, 1, 2, 3, 4, 5]);
    let off = program(&graph, "branch=6; a..c: branches=off", BATCH);
    assert_eq!(ranks_of(&off, "c").len(), 6);
}

#[test]
fn each_part_of_the_mini_batch_has_the_classes_of_the_first() {
    let graph = text::parse(FORK).unwrap();
    let strategy: Strategy = "data=4,branch=3".parse().unwrap();
    // Three groups share the four samples of a part unevenly; fifteen samples make uneven parts.
    for (batch, is_even) in [(16, true), (15, false)] {
        let request = request(&graph, &strategy, batch);
        let program = lower(&request).unwrap();
        assert_eq!(program.bodies.len() == 3, is_even, "{:?}", program.class_of);
        let bodies: Vec<Body> = (0..12)
            .map(|rank| lower_rank(&request, rank).unwrap())
            .collect();
        for rank in 0..12 {
            let first = program
                .class_of
                .iter()
                .position(|&class| class == program.class_of[rank]);
            assert_eq!(bodies[first.unwrap()], bodies[rank], "rank {rank}");
        }
    }
}

#[test]
fn what_cannot_be_placed_is_refused_with_the_nearest_choice() {
    let graph = text::parse(FORK).unwrap();
    let error = |strategy: &str| {
        let strategy: Strategy = strategy.parse().unwrap();
        strategy.check(&graph, BATCH).unwrap_err()
    };
    for (strategy, choice) in [
        ("branch=4; a..c: branches=4", "`branch=4; a..c: branches=3`"),
        (
            "branch=4; a..c: branches=[2|1]",
            "`branch=4; a..c: branches=3`",
        ),
        (
            "branch=2; flat..end: branches=2",
            "`branch=2; a..c: branches=2`",
        ),
        ("data=2; a..c: branches=2", "branch=2 with ranks = 4"),
    ] {
        let ranks = strategy.parse::<Strategy>().unwrap().ranks();
        let typed = Typed {
            strategy: strategy.to_owned(),
            ranks,
            batch: BATCH,
        };
        let refusal = typed.refusal(&graph).unwrap();
        assert!(
            refusal.contains(&format!("help: try {choice}")),
            "{refusal}"
        );
        for next in typed.suggestions(&refusal) {
            assert_eq!(next.refusal(&graph), None, "{refusal}");
        }
    }
    let chain = zoo::build("vgg16@224").unwrap();
    let strategy: Strategy = "branch=2".parse().unwrap();
    let refused = strategy.check(&chain, BATCH).unwrap_err();
    assert!(matches!(refused, StrategyError::Axis { .. }), "{refused}");
    let most = graph.nodes.len() - 1;
    let many = error(&format!("stages={}", most + 1));
    let is_named = matches!(&many, StrategyError::TooManyStages { layers, .. } if *layers == most);
    assert!(is_named, "{many}");
}

/// Elements that a rank passes on in the collectives of the forward pass of some layers, but for the
/// moments of norms.
fn passed_on(program: &Program, prefix: &str) -> usize {
    let volume = |views: Views<'_>| views.iter().map(|view| view.volume()).sum::<usize>();
    let tasks = program.body(0).tasks.iter();
    let of_layer = tasks.filter(|task| {
        task.origin.phase == Phase::Forward && task.origin.layer.starts_with(prefix)
    });
    of_layer
        .map(|task| match &task.work {
            Work::Collective(collective) => {
                let members =
                    program.mesh.extent(Axis::Filter) * program.mesh.extent(Axis::Channel);
                match &collective.kind {
                    CollectiveKind::AllReduce { .. } => 0,
                    kind @ CollectiveKind::AllGather { .. } => {
                        volume(kind.targets()) * (members - 1) / members
                    }
                    kind @ (CollectiveKind::ReduceScatter { .. }
                    | CollectiveKind::AllToAll { .. }) => {
                        volume(kind.sources()) * (members - 1) / members
                    }
                }
            }
            Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) | Work::Store(_) => 0,
        })
        .sum()
}

#[test]
fn transformers_sliced_and_in_pairs_move_what_the_closed_forms_say() {
    let graph = zoo::build("t5-2-64-4@16").unwrap();
    let (samples, row) = (8, 16 * 64);
    for parts in [2, 4] {
        let share = samples * row * (parts - 1) / parts;
        // Six sums of a second layer: q, k, v, what attention gives, and both of the feed-forward part,
        // of which one is four times as wide.
        let sliced = program(&graph, &format!("channel={parts}"), samples);
        assert_eq!(passed_on(&sliced, "encoder.2."), 9 * share);
        // Twice a gather and a sum.
        let paired = format!("filter={parts}; *.out: C=filter,F=-");
        let paired = program(&graph, &paired, samples);
        assert_eq!(
            passed_on(&paired, "encoder.2.") + passed_on(&paired, "encoder.1.forward.sum"),
            4 * share
        );
    }
}
