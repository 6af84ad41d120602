//! What moves where filters and channels are split, against the closed forms of the literature.
//!
//! Per layer boundary: filters gather the output of a layer and scatter the sum of its gradient;
//! channels scatter the sum of an output and gather its gradient (Kahira et al., HPDC 2021, table 3,
//! with reduce-scatters for allreduces; Dryden et al., SC 2019, stationary y, x and w). In each of
//! these a group of p ranks passes on (p - 1) times the tensor.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::request;

use partita_graph::{Graph, ParameterRole, text};
use partita_lower::{Strategy, lower};
use partita_program::{Collective, CollectiveKind, Phase, Program, Role, Task, View, Views, Work};
use partita_space::{AxisSet, Rank};
use request::request;
use std::collections::BTreeMap;

const BATCH: usize = 6;

fn program(graph: &Graph, strategy: &str) -> Program {
    let strategy: Strategy = strategy.parse().unwrap();
    lower(&request(graph, &strategy, BATCH)).unwrap_or_else(|error| panic!("{strategy}: {error}"))
}

/// A movement: phase, kind, axes of the group, and elements that one rank gives to others, gets from
/// others (a gather) or has summed (an allreduce).
type Movement = (Phase, &'static str, String, usize);

fn movement(task: &Task, place: impl Fn(AxisSet) -> usize) -> Option<Movement> {
    let phase = task.origin.phase;
    let all = |views: &[View]| views.iter().map(View::volume).sum::<usize>();
    let others = |me: usize, views: Views<'_>| {
        let all = views.iter().map(|view| view.volume()).sum::<usize>();
        all - views.get(me).unwrap().volume()
    };
    match &task.work {
        Work::Compute { .. } | Work::Load(_) | Work::Store(_) => None,
        Work::Exchange(exchange) => {
            let sent = exchange.sends.iter().map(|send| send.view.volume()).sum();
            Some((phase, "exchange", String::new(), sent))
        }
        Work::Collective(Collective { group, kind, .. }) => {
            let me = place(*group);
            let elements = match kind {
                CollectiveKind::AllReduce { views } => all(views),
                CollectiveKind::AllGather { .. } => others(me, kind.targets()),
                CollectiveKind::ReduceScatter { .. } | CollectiveKind::AllToAll { .. } => {
                    others(me, kind.sources())
                }
            };
            Some((phase, kind.name(), group.to_string(), elements))
        }
    }
}

/// Everything that a rank moves but the loss.
fn movements(program: &Program, rank: Rank) -> Vec<Movement> {
    let place = |group: AxisSet| {
        let members = program.mesh.group(rank, group);
        members.iter().position(|&member| member == rank).unwrap()
    };
    let tasks = program.body(rank).tasks.iter();
    let tasks = tasks.filter(|task| task.origin.phase != Phase::Report);
    tasks.filter_map(|task| movement(task, place)).collect()
}

fn check(graph: &Graph, strategy: &str, expected: &[(Phase, &'static str, &str, usize)]) {
    let program = program(graph, strategy);
    for rank in 0..program.mesh.ranks() {
        let expected: Vec<Movement> = expected
            .iter()
            .map(|&(phase, name, group, elements)| (phase, name, group.to_owned(), elements))
            .collect();
        assert_eq!(
            movements(&program, rank),
            expected,
            "{strategy} rank {rank}"
        );
    }
}

/// Sums over all ranks by phase and kind.
fn totals(graph: &Graph, strategy: &str) -> BTreeMap<(Phase, &'static str), usize> {
    let program = program(graph, strategy);
    let mut totals = BTreeMap::new();
    for rank in 0..program.mesh.ranks() {
        for (phase, name, _, elements) in movements(&program, rank) {
            *totals.entry((phase, name)).or_default() += elements;
        }
    }
    totals
}

const CHAIN: &str = "model chain
input x channels=3 extent=8x8
c1 = conv x filters=8 kernel=3 pad=1 bias=true
r1 = relu c1
c2 = conv r1 filters=16 kernel=3 pad=1 bias=true
r2 = relu c2
c3 = conv r2 filters=4 kernel=3 pad=1 bias=true
loss = mse c3
";

const UNEVEN: &str = "model uneven
input x channels=3 extent=9x7
c1 = conv x filters=7 kernel=3 pad=1 bias=false
r1 = relu c1
c2 = conv r1 filters=13 kernel=3 pad=1 bias=true
r2 = relu c2
c3 = conv r2 filters=5 kernel=3 pad=1 bias=true
loss = mse c3
";

const VGG: &str = "model vgg
input x channels=3 extent=8x8
c1 = conv x filters=8 kernel=3 pad=1 bias=false
n1 = batch_norm c1 epsilon=0.001 momentum=0.1
r1 = relu n1
c2 = conv r1 filters=8 kernel=3 pad=1 bias=false
n2 = batch_norm c2 epsilon=0.001 momentum=0.1
s2 = add n2 r1
r2 = relu s2
d2 = dropout r2 rate=0.2
p2 = max_pool d2 kernel=2 stride=2
c3 = conv p2 filters=16 kernel=3 pad=1 bias=true
r3 = relu c3
p3 = max_pool r3 kernel=2 stride=2
f = flatten p3
l1 = linear f features=32 bias=true
a1 = relu l1
d1 = dropout a1 rate=0.2
l2 = linear d1 features=8 bias=true
loss = mse l2
";

use Phase::{Backward, Forward, Reduce};

#[test]
fn filters_gather_outputs_and_scatter_sums_of_gradients() {
    let graph = text::parse(CHAIN).unwrap();
    let [y1, y2, y3] = [8, 16, 4].map(|channels| BATCH * 64 * channels);
    check(
        &graph,
        "filter=4",
        &[
            (Forward, "allgather", "filter", 3 * y1 / 4),
            (Forward, "allgather", "filter", 3 * y2 / 4),
            // The loss reads whole outputs, and each rank then has their whole gradient.
            (Forward, "allgather", "filter", 3 * y3 / 4),
            (Backward, "reduce_scatter", "filter", 3 * y2 / 4),
            (Backward, "reduce_scatter", "filter", 3 * y1 / 4),
        ],
    );
}

#[test]
fn channels_scatter_sums_of_outputs_and_gather_gradients() {
    let graph = text::parse(CHAIN).unwrap();
    let [y2, y3] = [16, 4].map(|channels| BATCH * 64 * channels);
    check(
        &graph,
        "channel=4",
        &[
            // The sample is read whole, so the first layer splits its filters.
            (Forward, "reduce_scatter", "channel", 3 * y2 / 4),
            // The loss reads whole outputs.
            (Forward, "allreduce", "channel", y3),
            (Backward, "allgather", "channel", 3 * y2 / 4),
        ],
    );
}

#[test]
fn uneven_shares_move_as_much_in_all() {
    let graph = text::parse(UNEVEN).unwrap();
    let [y1, y2, y3] = [7, 13, 5].map(|channels| BATCH * 63 * channels);
    for p in [2, 3, 5] {
        let totals = totals(&graph, &format!("filter={p}"));
        let expected = BTreeMap::from([
            ((Forward, "allgather"), (p - 1) * (y1 + y2 + y3)),
            ((Backward, "reduce_scatter"), (p - 1) * (y1 + y2)),
        ]);
        assert_eq!(totals, expected, "filter={p}");
    }
    for p in [2, 3, 5] {
        let totals = totals(&graph, &format!("channel={p}"));
        let expected = BTreeMap::from([
            ((Forward, "reduce_scatter"), (p - 1) * y2),
            ((Forward, "allreduce"), p * y3),
            ((Backward, "allgather"), (p - 1) * y2),
        ]);
        assert_eq!(totals, expected, "channel={p}");
    }
}

#[test]
fn filters_and_channels_swap_their_axes() {
    let graph = text::parse(CHAIN).unwrap();
    let [y1, y2, y3] = [8, 16, 4].map(|channels| BATCH * 64 * channels);
    // Of an input on both axes a rank gathers along one what is its own along the other, and the sum
    // of the outputs goes along that other one.
    check(
        &graph,
        "filter=2,channel=2",
        &[
            (Forward, "allgather", "channel", y1 / 4),
            (Forward, "reduce_scatter", "filter", y2 / 4),
            (Forward, "allgather", "filter", y2 / 4),
            (Forward, "allreduce", "channel", y3 / 2),
            (Forward, "allgather", "filter", y3 / 2),
            (Backward, "reduce_scatter", "filter", y2 / 4),
            (Backward, "allgather", "filter", y2 / 4),
            (Backward, "reduce_scatter", "channel", y1 / 4),
        ],
    );
}

#[test]
fn what_a_narrow_layer_reads_is_moved_instead_of_what_is_added() {
    let bottleneck = "model bottleneck
input x channels=3 extent=8x8
c0 = conv x filters=16 kernel=3 pad=1 bias=false
a1 = conv c0 filters=4 kernel=1 bias=false
r1 = relu a1
a2 = conv r1 filters=4 kernel=3 pad=1 bias=false
r2 = relu a2
a3 = conv r2 filters=16 kernel=1 bias=false
n3 = batch_norm a3 epsilon=0.001 momentum=0.1
s = add n3 c0
loss = mse s
";
    let graph = text::parse(bottleneck).unwrap();
    let [y, q] = [16, 4].map(|channels| BATCH * 64 * channels);
    let totals = totals(&graph, "filter=2,channel=2");
    let of = |phase, name| totals.get(&(phase, name)).copied().unwrap_or(0);
    // If a3 had its input in place, its value would lie on channel+filter and c0 on filter+channel, and
    // two of four ranks would give each other their quarters of y, forward and backward.
    assert_eq!(of(Forward, "alltoall"), 0);
    // Each rank wants a half of q along channel. It has a quarter of it along filter+channel, which is
    // in that half at two of four ranks.
    assert_eq!(of(Forward, "exchange"), (1 + 1 + 2 + 2) * q / 4);
    assert_eq!(of(Backward, "alltoall"), 2 * q / 4);
    // c0 as a1 reads it, and r1; of s, which is read whole, all that a rank lacks.
    assert_eq!(of(Forward, "allgather"), y + q + 3 * y);
    assert_eq!(of(Forward, "reduce_scatter"), q + q + y);
    assert_eq!(of(Backward, "reduce_scatter"), q + q + y);
    assert_eq!(of(Backward, "allgather"), y + q + q);
    // Messages between four ranks tell no others apart.
    let replicas = program(&graph, "data=3,filter=2,channel=2");
    assert_eq!((replicas.mesh.ranks(), replicas.bodies.len()), (12, 4));
}

#[test]
fn data_and_filters_sum_shards_over_the_data_groups() {
    let graph = text::parse(CHAIN).unwrap();
    let half = BATCH / 2;
    let [y1, y2, y3] = [8, 16, 4].map(|channels| half * 64 * channels);
    let [w1, w2, w3] = [3 * 8, 8 * 16, 16 * 4].map(|pairs| 9 * pairs);
    check(
        &graph,
        "data=2,filter=4",
        &[
            (Forward, "allgather", "filter", 3 * y1 / 4),
            (Forward, "allgather", "filter", 3 * y2 / 4),
            (Forward, "allgather", "filter", 3 * y3 / 4),
            (Reduce, "allreduce", "data", w3 / 4),
            (Reduce, "allreduce", "data", 4 / 4),
            (Backward, "reduce_scatter", "filter", 3 * y2 / 4),
            (Reduce, "allreduce", "data", w2 / 4),
            (Reduce, "allreduce", "data", 16 / 4),
            (Backward, "reduce_scatter", "filter", 3 * y1 / 4),
            (Reduce, "allreduce", "data", w1 / 4),
            (Reduce, "allreduce", "data", 8 / 4),
        ],
    );
}

#[test]
fn data_space_and_filters_together_move_what_each_does() {
    let graph = text::parse(CHAIN).unwrap();
    let [y1, y2, y3] = [8, 16, 4].map(|channels| BATCH * 64 * channels);
    let weights = 9 * (3 * 8 + 8 * 16 + 16 * 4) + 8 + 16 + 4;
    let totals = totals(&graph, "data=2,height=2,filter=2");
    // Gradients of weights: each of two shards is summed by four ranks.
    assert_eq!(totals[&(Reduce, "allreduce")], 4 * weights);
    assert_eq!(totals[&(Forward, "allgather")], y1 + y2 + y3);
    assert_eq!(totals[&(Backward, "reduce_scatter")], y1 + y2);
    // Both ranks of a pair want the rows of all channels.
    let row = BATCH * 8 * (3 + 8 + 16);
    assert_eq!(totals[&(Forward, "exchange")], 2 * 2 * row);
}

#[test]
fn layers_without_weights_follow_without_movement() {
    let graph = text::parse(VGG).unwrap();
    let still = [
        "n1", "r1", "n2", "s2", "r2", "d2", "p2", "r3", "p3", "a1", "d1",
    ];
    for strategy in ["filter=2", "filter=4", "channel=2", "filter=2,channel=2"] {
        let program = program(&graph, strategy);
        for rank in 0..program.mesh.ranks() {
            let tasks = program.body(rank).tasks.iter();
            let moving = tasks.filter(|task| match task.work {
                Work::Compute { .. } | Work::Load(_) | Work::Store(_) => false,
                Work::Exchange(_) | Work::Collective(_) => true,
            });
            let layers: Vec<&str> = moving.map(|task| task.origin.layer.as_str()).collect();
            let moved = still.iter().find(|layer| layers.contains(layer));
            assert_eq!(moved, None, "{strategy} rank {rank}: {layers:?}");
        }
    }
}

#[test]
fn a_flatten_and_linear_layers_gather_once_each() {
    let graph = text::parse(VGG).unwrap();
    let [y1, p2, p3] = [8 * 64, 8 * 16, 16 * 4].map(|elements| BATCH * elements);
    let [l1, l2] = [32, 8].map(|features| BATCH * features);
    check(
        &graph,
        "filter=4",
        &[
            (Forward, "allgather", "filter", 3 * y1 / 4),
            (Forward, "allgather", "filter", 3 * p2 / 4),
            (Forward, "allgather", "filter", 3 * p3 / 4),
            (Forward, "allgather", "filter", 3 * l1 / 4),
            (Forward, "allgather", "filter", 3 * l2 / 4),
            (Backward, "reduce_scatter", "filter", 3 * l1 / 4),
            (Backward, "reduce_scatter", "filter", 3 * p3 / 4),
            (Backward, "reduce_scatter", "filter", 3 * p2 / 4),
            (Backward, "reduce_scatter", "filter", 3 * y1 / 4),
        ],
    );
}

#[test]
fn a_concatenation_gathers_its_inputs_and_scatters_the_sums() {
    let joined = "model joined
input x channels=3 extent=8x8
a = conv x filters=8 kernel=3 pad=1 bias=false
b = conv x filters=4 kernel=1 bias=false
k = concat a b
c = conv k filters=4 kernel=3 pad=1 bias=false
loss = mse c
";
    let graph = text::parse(joined).unwrap();
    let [a, b, c] = [8, 4, 4].map(|channels| BATCH * 64 * channels);
    check(
        &graph,
        "filter=2",
        &[
            (Forward, "allgather", "filter", a / 2),
            (Forward, "allgather", "filter", b / 2),
            (Forward, "allgather", "filter", c / 2),
            (Backward, "reduce_scatter", "filter", b / 2),
            (Backward, "reduce_scatter", "filter", a / 2),
        ],
    );
}

#[test]
fn ranks_of_space_become_ranks_of_filters_or_channels_at_one_seam() {
    let graph = text::parse(CHAIN).unwrap();
    let [y2, y3] = [16, 4].map(|channels| BATCH * 64 * channels);
    let row = |channels: usize| BATCH * 8 * channels;
    let gradients = [
        (Reduce, "allreduce", "height", 9 * 8 * 16),
        (Reduce, "allreduce", "height", 16),
    ];
    let first = [
        (Reduce, "allreduce", "height", 9 * 3 * 8),
        (Reduce, "allreduce", "height", 8),
    ];
    // Each rank's filters read all of the input, the least that a gather gives.
    let filters = [
        vec![
            (Forward, "exchange", "", row(3)),
            (Forward, "exchange", "", row(8)),
            (Forward, "allgather", "height", y2 / 2),
            (Forward, "allgather", "height", y3 / 2),
            (Backward, "reduce_scatter", "height", y2 / 2),
            (Backward, "exchange", "", row(8)),
        ],
        gradients.to_vec(),
        first.to_vec(),
    ]
    .concat();
    let sorted = |list: &[(Phase, &'static str, &str, usize)]| {
        let mut list: Vec<Movement> = list
            .iter()
            .map(|&(phase, name, group, elements)| (phase, name, group.to_owned(), elements))
            .collect();
        list.sort();
        list
    };
    let channels = [
        vec![
            (Forward, "exchange", "", row(3)),
            (Forward, "exchange", "", row(8)),
            (Forward, "alltoall", "height", y2 / 4),
            (Forward, "allreduce", "height", y3),
            (Backward, "alltoall", "height", y2 / 4),
            (Backward, "exchange", "", row(8)),
        ],
        gradients.to_vec(),
        first.to_vec(),
    ]
    .concat();
    for (strategy, expected) in [
        ("height=2; c3..: H=-,F=height", filters),
        ("height=2; c3..: H=-,C=height", channels),
    ] {
        let program = program(&graph, strategy);
        for rank in 0..2 {
            let mut got = movements(&program, rank);
            got.sort();
            assert_eq!(got, sorted(&expected), "{strategy} rank {rank}");
        }
    }
}

#[test]
fn linear_layers_on_the_ranks_of_space_scatter_the_sum_of_the_seam() {
    let graph = text::parse(VGG).unwrap();
    let p3 = BATCH * 16 * 4;
    let [l1, l2] = [32, 8].map(|features| BATCH * features);
    let program = program(&graph, "height=2; l1..l2: F=height");
    for rank in 0..2 {
        let all = movements(&program, rank);
        let of = |kind: &str, phase: Phase| -> Vec<usize> {
            let wanted = all.iter().filter(|one| one.0 == phase && one.1 == kind);
            wanted.map(|one| one.3).collect()
        };
        assert_eq!(of("allgather", Forward), [p3 / 2, l1 / 2, l2 / 2]);
        assert_eq!(of("reduce_scatter", Backward), [l1 / 2, p3 / 2]);
        // The shards of the linear layers are nobody else's.
        let summed: usize = of("allreduce", Reduce).iter().sum();
        assert_eq!(summed, 9 * (3 * 8 + 8 * 8 + 8 * 16) + 16);
        assert_eq!(of("allreduce", Backward), [2 * 8, 2 * 8]);
    }
}

/// A convolution, a flatten and two linear layers.
fn slabs(extent: &str, kernel: usize) -> Graph {
    let text = format!(
        "model slabs
input x channels=2 extent={extent}
c = conv x filters=4 kernel={kernel} pad={} bias=false
f = flatten c
d = dropout f rate=0.2
l = linear d features=12 bias=true
r = relu l
m = linear r features=4 bias=false
loss = mse m
",
        kernel / 2
    );
    text::parse(&text).unwrap()
}

/// What the first rank moves between layers, but for halos.
fn moved_between_layers(graph: &Graph, strategy: &str) -> Vec<Movement> {
    let program = program(graph, strategy);
    let first = movements(&program, 0).into_iter();
    let between = first.filter(|one| match one.0 {
        Forward | Backward => one.1 != "exchange",
        Phase::Load | Reduce | Phase::Update | Phase::Report => false,
    });
    between.collect()
}

/// What the two linear layers of [`slabs`] move among themselves.
fn moved_between_linear_layers(group: &str, parts: usize) -> Vec<Movement> {
    let sum = BATCH * 12 / parts * (parts - 1);
    vec![
        (Forward, "reduce_scatter", group.to_owned(), sum),
        (Forward, "allreduce", group.to_owned(), BATCH * 4),
        (Backward, "allgather", group.to_owned(), sum),
    ]
}

#[test]
fn slabs_of_positions_are_shares_of_features() {
    // The outermost dim of more than one index in slabs, and the next in them where each is one index:
    // nothing moves between the convolution and the first linear layer.
    for (extent, strategy, group, parts) in [
        ("4x3x2", "depth=2; l..: C=depth", "depth", 2),
        ("6x2", "height=3; l..: C=height", "height", 3),
        ("1x1x1", "channel=4", "channel", 4),
        (
            "2x2x3",
            "depth=2,height=2; l..: C=depth+height",
            "depth+height",
            4,
        ),
    ] {
        let moved = moved_between_layers(&slabs(extent, 1), strategy);
        let expected = moved_between_linear_layers(group, parts);
        assert_eq!(moved, expected, "{extent} {strategy}");
    }
}

#[test]
fn other_parts_of_positions_move_to_become_shares_of_features() {
    let flat = |graph: &Graph| BATCH * graph.node(graph.find("f").unwrap()).shape.channels;
    // Rows are no range of features where there are planes: each rank gives the other what of its
    // rows lies in the other's planes, half of its half.
    let graph = slabs("4x6x2", 3);
    let moved = moved_between_layers(&graph, "height=2; l..: H=-,C=height");
    let all = flat(&graph);
    let mut expected = moved_between_linear_layers("height", 2);
    expected.insert(0, (Forward, "alltoall", "height".to_owned(), all / 4));
    expected.push((Backward, "alltoall", "height".to_owned(), all / 4));
    assert_eq!(moved, expected);
    // Slabs of 2 and 3 planes are no even shares of the features: rank 0 gets the three planes that it
    // lacks, and keeps a share of all.
    let graph = slabs("5x2x2", 1);
    let moved = moved_between_layers(&graph, "depth=2; l..: C=depth");
    let mut expected = moved_between_linear_layers("depth", 2);
    let all = flat(&graph);
    expected.insert(0, (Forward, "allgather", "depth".to_owned(), all / 5 * 3));
    expected.push((Backward, "allgather", "depth".to_owned(), all / 2));
    assert_eq!(moved, expected);
}

#[test]
fn each_rank_keeps_its_share_of_parameters_gradients_and_moments() {
    let graph = text::parse(CHAIN).unwrap();
    let weight_of = |name: &str| {
        let found = graph.parameters.iter().find(|one| one.name == name);
        found.filter(|one| one.role == ParameterRole::Weight)
    };
    for (strategy, filters, channels) in [
        ("filter=4", 4, 1),
        ("channel=4", 1, 4),
        ("filter=2,channel=2", 2, 2),
        ("data=2,filter=2,channel=2", 2, 2),
        ("data=2,height=2,filter=2", 2, 1),
    ] {
        let program = program(&graph, strategy);
        for rank in 0..program.mesh.ranks() {
            let mut seen = 0;
            for buffer in &program.body(rank).buffers {
                let base = match buffer.role {
                    Role::Parameter => buffer.name.as_str(),
                    Role::Gradient => buffer.name.trim_start_matches("d."),
                    Role::Optimizer => buffer.name.rsplit_once('.').unwrap().0,
                    _ => continue,
                };
                let Some(parameter) = weight_of(base) else {
                    continue;
                };
                let all: usize = parameter.shape.iter().product();
                let kept: usize = buffer.dims.iter().product();
                assert_eq!(
                    kept,
                    all / (filters * channels),
                    "{strategy} {}",
                    buffer.name
                );
                seen += 1;
            }
            assert_eq!(seen, 3 * 4, "{strategy}: weights, gradients, two moments");
        }
    }
}
