//! Geometries at which splits go wrong elsewhere, by name.

use crate::layers::{
    DILATIONS, KERNELS, Layer, OPERATIONS, Operation, POOLINGS, Padding, STRIDES, Tower,
};
use crate::ledger::{Ledger, Refusal, meshes};
use crate::{PARTS, seeds};
use partita_graph::text::parse;
use partita_graph::{Graph, Loss};
use partita_lower::{LowerError, Strategy};
use partita_program::{Dtype, ProgramKind};
use partita_space::Window;
use partita_testkit::{Case, Data, Draws, Samples, Setup, Share, Stored, Trial, reference_kernels};
use std::sync::Arc;

const CONVOLUTION: Operation = Operation::Convolution;
const MAXIMUM: Operation = Operation::Maximum;

fn window(kernel: usize, stride: usize, pad: usize) -> Window {
    Window {
        kernel,
        stride,
        dilation: 1,
        pad_low: pad,
        pad_high: pad,
    }
}

/// All strategies of these numbers of ranks.
pub fn all_meshes(spatial_rank: usize, ranks: &[usize]) -> Vec<Strategy> {
    ranks
        .iter()
        .flat_map(|&ranks| meshes(spatial_rank, ranks))
        .collect()
}

/// Compares a graph under the strategies that the run's share has.
pub fn check_share(
    ledger: &mut Ledger,
    title: &str,
    graph: &Graph,
    batch: usize,
    strategies: &[Strategy],
) {
    let taken = taken(strategies, ledger.cases() / seeds().1);
    check_all(ledger, title, graph, batch, &taken);
}

/// The share of the strategies of a case with this number.
fn taken(strategies: &[Strategy], number: u64) -> Vec<Strategy> {
    let share = Share::of(PARTS);
    let strategies = strategies.iter().enumerate();
    let taken = strategies.filter(|&(at, _)| share.has(1000 * number + at as u64));
    taken.map(|(_, strategy)| strategy.clone()).collect()
}

/// Compares a graph under strategies, for as many seeds as asked. Each case has a seed of its own, by
/// which its level and threads go.
pub fn check_all(
    ledger: &mut Ledger,
    title: &str,
    graph: &Graph,
    batch: usize,
    strategies: &[Strategy],
) {
    let (start, rounds) = seeds();
    // The same however many rounds there are, so that a seed repeats a case.
    let number = ledger.cases() / rounds;
    for seed in start..start + rounds {
        let case = Case {
            graph: graph.clone(),
            strategy: Strategy::single(),
            batch,
            seed: 1000 * seed + number,
        };
        ledger.compare(&format!("PARTITA_SEED={seed} {title}"), &case, strategies);
    }
}

/// Convolution 7/2/3, batch norm, ReLU, maximum 3/2/1.
fn stem(extent: &[usize], linear: bool) -> Graph {
    let rank = extent.len();
    let tower = Tower::new("stem", extent, 2)
        .then(Layer {
            bias: false,
            ..Layer::convolution(rank, window(7, 2, 3), 3)
        })
        .norm()
        .relu(0.0)
        .then(Layer::pool(MAXIMUM, rank, window(3, 2, 1)));
    if linear {
        tower.linear(3).finish(Loss::CROSS_ENTROPY)
    } else {
        tower.pointwise(2, true).finish(Loss::MeanSquaredError)
    }
}

#[test]
fn a_residual_networks_stem_on_odd_extents_under_all_meshes() {
    let mut ledger = Ledger::default();
    let cases: [(&[usize], usize); 5] = [
        (&[13], 2),
        (&[29], 3),
        (&[13, 11], 3),
        (&[9, 15], 2),
        (&[9, 7, 11], 2),
    ];
    for (extent, batch) in cases {
        let strategies = all_meshes(extent.len(), &[2, 4, 6, 8]);
        for linear in [false, true] {
            let graph = stem(extent, linear);
            check_share(&mut ledger, "stem", &graph, batch, &strategies);
        }
    }
    ledger.close_share("stem", 250, &[Refusal::TooFine]);
}

#[test]
fn batch_norm_in_training_under_spatial_and_data_splits() {
    let mut ledger = Ledger::default();
    let cases: [(&[usize], usize); 6] = [
        (&[7], 3),
        (&[13], 4),
        (&[7, 5], 3),
        (&[5, 9], 1),
        (&[5, 3, 7], 3),
        // Two elements per channel in the end, the least that there may be.
        (&[2, 2], 2),
    ];
    for (extent, batch) in cases {
        let rank = extent.len();
        let graph = Tower::new("norms", extent, 3)
            .norm()
            .then(Layer::convolution(rank, window(3, 1, 1), 4))
            .norm()
            .relu(0.1)
            .then(Layer::convolution(rank, window(3, 2, 1), 5))
            .norm()
            .pointwise(2, true)
            .finish(Loss::MeanSquaredError);
        let strategies = all_meshes(rank, &[2, 3, 4, 6]);
        check_share(&mut ledger, "norms", &graph, batch, &strategies);
    }
    ledger.close_share("batch norm", 90, &[Refusal::TooFine]);
}

#[test]
fn auxiliary_losses() {
    let mut ledger = Ledger::default();
    for loss in [Loss::MeanSquaredError, Loss::CROSS_ENTROPY] {
        for extent in [&[13][..], &[7, 5], &[5, 3, 7]] {
            let rank = extent.len();
            let graph = Tower::new("early", extent, 2)
                .then(Layer::convolution(rank, window(3, 1, 1), 3))
                .early(loss.clone(), 0.4)
                .norm()
                .then(Layer::convolution(rank, window(5, 1, 2), 3))
                .early(loss.clone(), 1.5)
                .finish(loss.clone());
            let strategies = all_meshes(rank, &[2, 3, 4, 6]);
            check_share(&mut ledger, "early", &graph, 2, &strategies);
        }
    }
    ledger.close_share("auxiliary losses", 60, &[Refusal::TooFine]);
}

/// A layer between two pointwise convolutions.
fn between(extent: &[usize], channels: usize, layer: Layer) -> Graph {
    Tower::new("between", extent, 2)
        .pointwise(channels, false)
        .then(layer)
        .pointwise(2, true)
        .finish(Loss::MeanSquaredError)
}

#[test]
fn shards_narrower_than_a_halo_of_nine() {
    let mut ledger = Ledger::default();
    let wide = CONVOLUTION.window([7, 1, 3], Padding::Same);
    assert_eq!(wide.pad_low, 9);
    for stride in STRIDES {
        for periodic in [false, true] {
            let layer = |rank: usize| Layer {
                periodic,
                ..Layer::convolution(rank, Window { stride, ..wide }, 2)
            };
            for extent in [9, 11, 13, 20] {
                let strategies = all_meshes(1, &[2, 3, 4, 5, 7, 8]);
                let graph = between(&[extent], 3, layer(1));
                check_share(&mut ledger, "halo of nine", &graph, 2, &strategies);
            }
            let graph = between(&[9, 11], 2, layer(2));
            let strategies = all_meshes(2, &[3, 4, 6, 8]);
            check_share(&mut ledger, "halo of nine", &graph, 2, &strategies);
        }
    }
    ledger.close_share("halo of nine", 500, &[]);
}

#[test]
fn strides_beyond_the_kernel() {
    let mut ledger = Ledger::default();
    for operation in OPERATIONS {
        for (kernel, stride) in [(1, 2), (1, 3), (1, 5), (2, 3), (2, 5), (3, 7)] {
            for (pad, extent) in [(0, 7), (0, 8), (0, 11), (kernel / 2, 9), (kernel / 2, 12)] {
                let one = |rank| {
                    let layer = Layer::convolution(rank, window(kernel, stride, pad), 3);
                    Layer { operation, ..layer }
                };
                let graph = between(&[extent], 2, one(1));
                let strategies = all_meshes(1, &[2, 3, 5, 7]);
                check_share(&mut ledger, "gaps", &graph, 2, &strategies);
            }
            let layer = Layer::convolution(2, window(kernel, stride, 0), 3);
            let graph = between(&[5, 7], 2, Layer { operation, ..layer });
            check_share(&mut ledger, "gaps", &graph, 2, &all_meshes(2, &[4, 6]));
        }
    }
    ledger.close_share("strides beyond the kernel", 1000, &[Refusal::TooFine]);
}

#[test]
fn extents_smaller_than_the_kernel() {
    let mut ledger = Ledger::default();
    for operation in OPERATIONS {
        for kernel in [3, 5, 7] {
            for &dilation in operation.dilations() {
                let window = operation.window([kernel, 1, dilation], Padding::Same);
                for extent in 1..kernel {
                    for stride in STRIDES {
                        let layer = |rank| Layer {
                            operation,
                            ..Layer::convolution(rank, Window { stride, ..window }, 2)
                        };
                        let graph = between(&[extent], 2, layer(1));
                        let strategies = all_meshes(1, &[2, 3]);
                        check_share(&mut ledger, "small", &graph, 2, &strategies);
                        if extent == 3 && kernel < 7 {
                            let graph = between(&[2, 3], 2, layer(2));
                            check_share(&mut ledger, "small", &graph, 1, &all_meshes(2, &[2, 6]));
                        }
                    }
                }
            }
        }
    }
    ledger.close_share("extents below the kernel", 500, &[Refusal::TooFine]);
}

#[test]
fn periodic_borders_wider_than_a_shard() {
    let mut ledger = Ledger::default();
    for (kernel, dilation, stride) in [(3, 2, 1), (5, 1, 1), (5, 2, 1), (5, 2, 2), (7, 1, 3)] {
        for padding in [Padding::Same, Padding::Low, Padding::Wide] {
            let layer = |rank| Layer {
                periodic: true,
                ..Layer::convolution(
                    rank,
                    CONVOLUTION.window([kernel, stride, dilation], padding),
                    2,
                )
            };
            let cases: [(&[usize], &[usize]); 3] =
                [(&[7], &[2, 3, 7]), (&[6, 5], &[4, 6]), (&[3, 5, 4], &[8])];
            for (extent, ranks) in cases {
                if extent.len() == 3 && kernel > 3 {
                    continue;
                }
                let layer = layer(extent.len());
                let extent = layer.fit(extent.to_vec());
                let graph = between(&extent, 2, layer);
                let strategies = all_meshes(extent.len(), ranks);
                check_share(&mut ledger, "periodic", &graph, 2, &strategies);
            }
        }
    }
    ledger.close_share("periodic borders", 200, &[Refusal::TooFine]);
}

#[test]
fn groups_up_to_depthwise() {
    let mut ledger = Ledger::default();
    let operations = [CONVOLUTION, Operation::Transposed];
    for (channels, filters, groups) in [
        (3, 3, 3),
        (5, 10, 5),
        (7, 21, 7),
        (9, 9, 3),
        (16, 16, 16),
        (17, 17, 17),
        (6, 10, 2),
    ] {
        for (kernel, stride, pad) in [(3, 1, 1), (3, 2, 1), (5, 3, 0), (2, 2, 1)] {
            for extent in [&[11][..], &[7, 5], &[3, 5, 4]] {
                let rank = extent.len();
                for operation in operations {
                    let layer = Layer {
                        operation,
                        groups,
                        ..Layer::convolution(rank, window(kernel, stride, pad), filters)
                    };
                    if layer.refusal(extent).is_none() {
                        let graph = between(extent, channels, layer);
                        check_share(&mut ledger, "groups", &graph, 2, &all_meshes(rank, &[3, 4]));
                    }
                }
            }
        }
    }
    ledger.close_share("groups", 300, &[Refusal::TooFine]);
}

/// Large enough for fast kernels to work in blocks, and on threads of their own.
#[test]
fn extents_of_many_blocks() {
    let mut ledger = Ledger::default();
    let cases: [(&[usize], [Strategy; 2]); 3] = [
        (
            &[1501],
            [[1, 3], [2, 2]].map(|[n, w]| Strategy::hybrid(n, [1, 1, w])),
        ),
        (
            &[61, 47],
            [[1, 3], [2, 2]].map(|[n, h]| Strategy::hybrid(n, [1, h, 2])),
        ),
        (
            &[13, 11, 19],
            [[2, 1], [1, 2]].map(|[d, h]| Strategy::hybrid(1, [d, h, 3])),
        ),
    ];
    for (extent, strategies) in cases {
        let rank = extent.len();
        for groups in [1, 9] {
            let layers = [
                Layer::convolution(rank, window(5, 1, 2), 9),
                Layer::pool(POOLINGS[2], rank, window(3, 2, 1)),
                Layer {
                    groups,
                    ..Layer::convolution(rank, CONVOLUTION.window([3, 2, 3], Padding::Same), 18)
                },
            ];
            let mut tower = Tower::new("blocks", extent, 3);
            for layer in layers {
                tower = tower.then(layer).norm();
            }
            let graph = tower.pointwise(2, true).finish(Loss::MeanSquaredError);
            check_all(&mut ledger, "blocks", &graph, 2, &strategies);
        }
    }
    ledger.close("many blocks", 12, &[]);
}

#[test]
fn parts_that_run_empty() {
    let mut ledger = Ledger::default();
    for operation in OPERATIONS {
        for (extent, ranks) in [
            (&[7][..], &[5, 7][..]),
            (&[5, 7], &[6, 8]),
            (&[4, 3, 4], &[8]),
        ] {
            let rank = extent.len();
            let small = Layer::convolution(rank, window(3, 2, 1), 3);
            let reduced = || {
                let tower = Tower::new("empty", extent, 2).pointwise(3, true);
                let layer = Layer {
                    operation,
                    ..small.clone()
                };
                tower.then(layer.clone()).norm().then(layer)
            };
            let wide = Layer::convolution(rank, window(5, 1, 2), 2);
            let graph = reduced().then(wide).norm().finish(Loss::MeanSquaredError);
            let strategies = all_meshes(rank, ranks);
            check_share(&mut ledger, "empty", &graph, 2, &strategies);
            // Padding lets the extents grow again.
            let grown = Layer::convolution(rank, window(2, 1, 3), 2);
            let graph = reduced().then(grown).linear(2);
            let graph = graph.finish(Loss::CROSS_ENTROPY);
            check_share(&mut ledger, "empty", &graph, 1, &strategies);
        }
    }
    ledger.close_share("empty parts", 150, &[Refusal::TooFine]);
}

/// Equal maxima at positions that differ in the second channel, whose weight is zero at first: its
/// gradient tells which of them was taken. All are negative, so that padding by zeros would win. Few
/// values, so that later maxima are equal or far apart.
fn ties(case: &Case, redraw: u64) -> Data {
    let mut draws = Draws::new(case.seed + 1_000_000 * redraw);
    let (samples, mut parameters) = Setup::draw(&case.graph, case.batch, draws.bits() >> 8);
    let round = |value: f64| f64::from(value as f32);
    let volume = case.graph.nodes[0].shape.volume();
    let values = (0..case.batch).map(|_| {
        let values = (0..volume).map(|index| match index / (volume / 2) {
            0 => draws.pick(&[-1.0, -0.5]),
            _ => draws.pick(&[-1.0, -0.5, 0.5, 1.0]),
        });
        Stored::F64(values.collect())
    });
    let values = values.collect();
    let targets = samples
        .targets
        .iter()
        .map(|all| all.iter().map(|&v| round(v)).collect());
    let samples = Samples {
        shape: samples.shape,
        values,
        targets: targets.collect(),
        features: Vec::new(),
    };
    for values in &mut parameters {
        values.iter_mut().for_each(|value| *value = round(*value));
    }
    parameters[0] = vec![1.0, 0.5, 0.0, 0.0];
    (Arc::new(samples), parameters)
}

#[test]
fn equal_maxima_on_both_sides_of_a_border() {
    let mut ledger = Ledger::strict();
    let (start, rounds) = seeds();
    for (kernel, stride, pad) in [
        (3, 2, 1),
        (2, 1, 1),
        (3, 1, 1),
        (5, 2, 2),
        (7, 3, 3),
        (2, 2, 0),
    ] {
        // The last is of many blocks.
        for extent in [&[9][..], &[12], &[7, 5], &[3, 5, 4], &[257, 251]] {
            let rank = extent.len();
            let layer = Layer::pool(MAXIMUM, rank, window(kernel, stride, pad));
            if layer.refusal(extent).is_some() {
                continue;
            }
            let graph = Tower::new("ties", extent, 2)
                .pointwise(2, false)
                .then(layer)
                .pointwise(2, true)
                .finish(Loss::MeanSquaredError);
            let number = ledger.cases() / rounds;
            for seed in start..start + rounds {
                let case = Case {
                    graph: graph.clone(),
                    strategy: Strategy::single(),
                    batch: 1,
                    seed: 1000 * seed + number,
                };
                let trial = Trial::with_data(&case, |redraw| ties(&case, redraw));
                let ranks = if extent.len() == 2 && extent[0] > 9 {
                    &[2][..]
                } else {
                    &[2, 3, 4]
                };
                let strategies = taken(&all_meshes(rank, ranks), number);
                let name = format!("PARTITA_SEED={seed} ties");
                match trial {
                    Some(trial) => ledger.judge(&name, &case, &trial, &strategies),
                    None => ledger.kinked(&case),
                }
            }
        }
    }
    ledger.close_share("ties", 250, &[Refusal::TooFine]);
}

/// A tensor read by two layers whose outputs are added, in the text form.
fn two_readers(extent: &str, [left, right]: [&str; 2]) -> Graph {
    let text = format!(
        "model readers\ninput x channels=2 extent={extent}\n\
         both = conv x filters=3 kernel=1 stride=1 pad=0 bias=true\n\
         left = {left}\nright = {right}\nsum = add left right\nloss = mse sum\n"
    );
    parse(&text).unwrap()
}

#[test]
fn two_readers_of_one_tensor_with_other_borders() {
    let mut ledger = Ledger::default();
    let narrow = "conv both filters=3 kernel=3 stride=1 pad=1 bias=true";
    let maximum = "max_pool both kernel=3 stride=1 pad=1";
    let periodic = "conv both filters=3 kernel=3 stride=1 pad=1 padding=periodic bias=true";
    let mean = "average_pool both kernel=5 stride=1 pad=2 count_padding=false";
    let pairs = [
        [narrow, maximum],
        [
            "conv both filters=3 kernel=3 stride=1 pad=3 dilation=3 bias=true",
            mean,
        ],
        [
            "conv both filters=3 kernel=5 stride=2 pad=2 bias=true",
            "max_pool both kernel=2 stride=2 pad=1:0",
        ],
        [
            "conv both filters=3 kernel=5 stride=1 pad=4:0 bias=true",
            "conv both filters=3 kernel=5 stride=1 pad=0:4 bias=false",
        ],
        [
            "conv both filters=3 kernel=3 stride=1 pad=1 padding=periodic bias=true",
            "conv both filters=3 kernel=5 stride=1 pad=4:0 padding=periodic bias=true",
        ],
        [maximum, mean],
        [maximum, "add both both"],
        [periodic, narrow],
        [maximum, periodic],
        [
            "conv both filters=3 kernel=3 stride=1 pad=2:0 padding=periodic bias=false",
            "conv both filters=3 kernel=1 stride=1 pad=0 bias=true",
        ],
        [
            "conv both filters=3 kernel=5 stride=2 pad=3:1 padding=periodic bias=true",
            "average_pool both kernel=3 stride=2 pad=1 count_padding=false",
        ],
    ];
    for pair in pairs {
        for (extent, rank, ranks) in [("9", 1, &[2, 3, 5][..]), ("7x5", 2, &[2, 4, 6])] {
            let graph = two_readers(extent, pair);
            let strategies = all_meshes(rank, ranks);
            check_share(&mut ledger, "readers", &graph, 2, &strategies);
        }
    }
    ledger.close_share("two readers", 150, &[Refusal::TooFine]);
}

/// Levels beside each other in one tensor: read by other layers too, normalized, computed in place,
/// under windows of their own, and more than once.
#[test]
fn encoders_and_decoders() {
    let mut ledger = Ledger::default();
    let models = [
        (
            "max_pool a kernel=2 stride=2",
            "conv_transpose d filters=3 kernel=2 stride=2 output_padding=1 bias=true",
            "concat a up",
        ),
        (
            "conv a filters=4 kernel=3 stride=2 pad=1 bias=false",
            "conv_transpose d filters=2 kernel=3 stride=2 pad=1 bias=true",
            "concat up a up",
        ),
        (
            "average_pool a kernel=3 stride=2 pad=1 count_padding=false",
            "conv_transpose d filters=8 kernel=4 stride=2 pad=2:1 groups=4 bias=false",
            "concat e a up x",
        ),
    ];
    for (down, up, joint) in models {
        for (extent, rank, ranks) in [
            ("9", 1, &[2, 3, 5][..]),
            ("7x5", 2, &[2, 4, 6]),
            ("3x3x5", 3, &[4, 8]),
        ] {
            for after in ["norm", "relu", "conv", "mean"] {
                let after = match after {
                    "norm" => "n = batch_norm k epsilon=0.001 momentum=0.1",
                    "relu" => "n = leaky_relu k slope=0.1",
                    "mean" => "n = average_pool k kernel=3 stride=1 pad=1 count_padding=true",
                    _ => "n = conv k filters=4 kernel=3 pad=1 bias=true",
                };
                let text = format!(
                    "model levels\ninput x channels=2 extent={extent}\n\
                     e = conv x filters=4 kernel=3 pad=1 bias=true\na = leaky_relu e slope=0.1\n\
                     p = {down}\nd = conv p filters=4 kernel=3 pad=1 bias=true\nup = {up}\n\
                     k = {joint}\n{after}\n\
                     c = conv n filters=2 kernel=1 bias=true\nloss = mse c\n"
                );
                let graph = parse(&text).unwrap();
                let strategies = all_meshes(rank, ranks);
                check_share(&mut ledger, "levels", &graph, 2, &strategies);
            }
        }
    }
    ledger.close_share("encoders and decoders", 150, &[Refusal::TooFine]);
}

#[test]
fn what_was_flattened_joins_what_was_not() {
    let mut ledger = Ledger::default();
    for joint in ["concat p f", "concat f p", "add p f"] {
        let text = format!(
            "model joined\ninput x channels=2 extent=4\np = conv x filters=2 kernel=4 bias=true\n\
             f = flatten p\nk = {joint}\nloss = mse k\n"
        );
        let graph = parse(&text).unwrap();
        check_all(&mut ledger, "joined", &graph, 2, &all_meshes(1, &[2, 4]));
    }
    ledger.close("flattened and not", 6, &[]);
}

#[test]
fn parameters_of_several_layers() {
    let mut ledger = Ledger::default();
    let norm = "batch_norm c2 epsilon=0.001 momentum=0.1";
    for (shared, weight) in [
        ("gamma=n1.gamma", "filters=3 kernel=3 stride=1 pad=1"),
        ("beta=n1.beta", "filters=3 kernel=3 stride=2 pad=0:2"),
        (
            "gamma=n1.gamma beta=n1.beta",
            "filters=3 kernel=3 stride=2 dilation=2 pad=3 weight=c1.weight",
        ),
        ("", "filters=3 kernel=3 stride=3 pad=1 weight=c1.weight"),
    ] {
        for (extent, rank) in [("11", 1), ("5x7", 2)] {
            let text = format!(
                "model shared\ninput x channels=3 extent={extent}\n\
                 c1 = conv x filters=3 kernel=3 stride=1 pad=1 bias=true\n\
                 n1 = batch_norm c1 epsilon=0.001 momentum=0.1\n\
                 c2 = conv n1 {weight} bias=true\nn2 = {norm} {shared}\n\
                 c3 = conv n2 filters=3 kernel=1 stride=1 pad=0 bias=c2.bias\nloss = mse c3\n"
            );
            let graph = parse(&text).unwrap();
            let strategies = all_meshes(rank, &[2, 4, 5]);
            check_all(&mut ledger, "shared", &graph, 2, &strategies);
        }
    }
    ledger.close("shared parameters", 70, &[]);
}

/// Why a model cannot be lowered.
fn refused(graph: &Graph, strategy: Strategy) -> LowerError {
    let kernels = reference_kernels(Dtype::F64);
    let case = Case {
        graph: graph.clone(),
        strategy,
        batch: 2,
        seed: 0,
    };
    let setup = Setup::of_case(&case, &kernels);
    setup.program(ProgramKind::Train).unwrap_err()
}

#[test]
fn what_is_not_possible_is_refused_in_words() {
    let mut ledger = Ledger::default();
    let mut refuse = |layer: Layer, extent: usize| {
        let mut tower = Tower::new("refused", &[extent], 2);
        match tower.layer("op", &layer) {
            Ok(()) => ledger.fail(format!("{layer:?} on {extent} was not refused")),
            Err(error) => ledger.refused("op", layer.refusal(&[extent]), &error),
        }
    };
    for operation in POOLINGS {
        for kernel in KERNELS {
            for dilation in &DILATIONS[1..] {
                let window = Window {
                    dilation: *dilation,
                    ..window(kernel, 1, kernel / 2)
                };
                refuse(Layer::pool(operation, 1, window), 20);
            }
            let window = window(kernel, 1, kernel / 2 + 1);
            refuse(Layer::pool(operation, 1, window), 20);
        }
    }
    for (kernel, dilation, extent) in [(2, 1, 1), (3, 2, 4), (7, 3, 18)] {
        let window = CONVOLUTION.window([kernel, 1, dilation], Padding::None);
        refuse(Layer::convolution(1, window, 2), extent);
        let periodic = Layer {
            periodic: true,
            ..Layer::convolution(1, self::window(3, 1, extent + 1), 2)
        };
        refuse(periodic, extent);
        let transposed = |window: Window, extra: usize| Layer {
            operation: Operation::Transposed,
            extras: vec![extra],
            ..Layer::convolution(1, window, 2)
        };
        let window = Window { dilation, ..window };
        refuse(transposed(window, dilation), extent);
        let pad = (extent + window.span()) / 2;
        let all_away = Window {
            pad_low: pad,
            pad_high: pad,
            ..window
        };
        refuse(transposed(all_away, 0), extent);
    }
    ledger.close(
        "refusals",
        0,
        &[
            Refusal::WindowTooLarge,
            Refusal::OutputPadding,
            Refusal::NothingLeft,
            Refusal::PoolPadding,
            Refusal::PoolDilation,
            Refusal::PeriodicPadding,
        ],
    );
    let text = "model m\ninput x channels=1 extent=9\n\
                pool = max_pool x kernel=3 stride=2 pad=1 dilation=2\nloss = mse pool\n";
    let error = parse(text).unwrap_err().to_string();
    for word in ["line 3", "dilation", "max_pool", "kernel, stride, pad"] {
        assert!(error.contains(word), "{error}");
    }
    let graph = stem(&[9], false);
    let error = refused(&graph, Strategy::hybrid(1, [1, 2, 1])).to_string();
    assert!(error.contains("data, width"), "{error}");
}
