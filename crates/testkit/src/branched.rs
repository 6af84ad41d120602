//! Random networks with branches on groups of ranks.

use crate::cases::{or_short, random_block};
use crate::{Case, Draws};
use partita_graph::{Graph, GraphBuilder, Loss, NodeId};
use partita_lower::{Branches, LayerChoice, Schedule, Shard, StageChoice, Strategy};

/// Draws a network of blocks that fork in two to four branches of unequal depth and width and join again
/// in a sum or a concatenation, with the axis `branch` over groups of ranks of equal or unequal size,
/// other ones in other blocks, within data parallelism, tiles and stages.
pub fn random_branched_case(seed: u64) -> Case {
    let mut draws = Draws::new(seed);
    loop {
        let graph = forks(&mut draws);
        for _ in 0..20 {
            let (strategy, batch) = random_branches(&mut draws, &graph);
            if strategy.ranks() <= 12 && strategy.check(&graph, batch).is_ok() {
                return Case {
                    batch: or_short(&mut draws, &graph, &strategy, batch),
                    graph,
                    strategy,
                    seed,
                };
            }
        }
    }
}

fn forks(draws: &mut Draws) -> Graph {
    let rank = draws.between(1, 2);
    let extent: Vec<usize> = (0..rank).map(|_| draws.between(4, 9)).collect();
    let mut builder = GraphBuilder::new("forks").expect("the name is valid");
    let mut head = builder
        .input("x", &extent, draws.between(1, 3))
        .expect("the input is valid");
    let mut layers = 0;
    let mut name = |kind: &str| {
        layers += 1;
        format!("{kind}{layers}")
    };
    for _ in 0..draws.between(1, 3) {
        if draws.one_in(2) {
            head = convolution(&mut builder, &name("conv"), head, draws.between(1, 4), 3);
        }
        let joins_by_sum = draws.one_in(2);
        let filters = draws.between(1, 4);
        let branches: Vec<NodeId> = (0..draws.between(2, 4))
            .map(|_| {
                let branch = branch(draws, &mut builder, &mut name, head);
                if joins_by_sum {
                    convolution(&mut builder, &name("last"), branch, filters, 1)
                } else {
                    branch
                }
            })
            .collect();
        head = if joins_by_sum {
            branches
                .into_iter()
                .reduce(|a, b| builder.add(&name("sum"), a, b).expect("they are alike"))
                .unwrap_or(head)
        } else {
            let mut distinct = branches;
            distinct.dedup();
            match distinct.len() {
                1 => distinct[0],
                _ => builder
                    .concat(&name("join"), &distinct)
                    .expect("they are of one extent"),
            }
        };
    }
    // Sums of many branches grow.
    head = builder
        .batch_norm("norm", head, 1e-3, 0.1)
        .expect("a batch norm fits anywhere");
    let flat = builder.flatten("flat", head).expect("it fits anywhere");
    let end = builder
        .linear("end", flat, 3, true)
        .expect("it fits what is flat");
    builder
        .loss("loss", end, Loss::MeanSquaredError)
        .expect("a loss fits anywhere");
    builder.build().expect("the network is whole")
}

/// Up to two convolutions behind `head`, and what follows each.
fn branch(
    draws: &mut Draws,
    builder: &mut GraphBuilder,
    name: &mut impl FnMut(&str) -> String,
    mut head: NodeId,
) -> NodeId {
    for _ in 0..draws.between(0, 2) {
        let kernel = draws.pick(&[1, 3]);
        let filters = draws.between(1, 4);
        head = convolution(builder, &name("conv"), head, filters, kernel);
        head = match draws.between(0, 3) {
            0 => builder
                .batch_norm(&name("norm"), head, 1e-3, 0.1)
                .expect("a batch norm fits anywhere"),
            1 => builder
                .leaky_relu(&name("relu"), head, 0.1)
                .expect("a ReLU fits anywhere"),
            2 => builder
                .dropout(&name("drop"), head, 0.3)
                .expect("a dropout fits anywhere"),
            _ => head,
        };
    }
    head
}

fn convolution(
    builder: &mut GraphBuilder,
    name: &str,
    input: NodeId,
    filters: usize,
    kernel: usize,
) -> NodeId {
    let rank = builder.spatial_rank();
    let window = std::array::from_fn(|dim| {
        if dim < 3 - rank {
            partita_space::Window::ONE
        } else {
            partita_space::Window {
                kernel,
                stride: 1,
                dilation: 1,
                pad_low: kernel / 2,
                pad_high: kernel / 2,
            }
        }
    });
    let convolution = partita_graph::Convolution {
        filters,
        window,
        periodic: false,
        groups: 1,
        bias: true,
    };
    builder
        .convolution(name, input, convolution)
        .expect("its padding keeps the extents")
}

fn random_branches(draws: &mut Draws, graph: &Graph) -> (Strategy, usize) {
    let branch = draws.between(2, 5);
    let mut extents = [draws.pick(&[1, 1, 2]), 1, 1, 1, 1, 1, branch];
    let spatial = graph.spatial_rank;
    if draws.one_in(3) {
        extents[4 - draws.between(1, spatial)] = 2;
    }
    if draws.one_in(4) {
        extents[draws.between(4, 5)] = 2;
    }
    let mut strategy = Strategy::of(extents);
    if draws.one_in(4) {
        let data = extents[0];
        extents[0] = 1;
        strategy = Strategy::of([data, 1, 1, 1, 1, 1, 1]);
        let other = StageChoice {
            layers: Vec::new(),
            extents: [1; 7],
        };
        let wide = StageChoice {
            layers: Vec::new(),
            extents,
        };
        strategy.stages = if draws.one_in(2) {
            vec![wide, other]
        } else {
            vec![wide.clone(), wide]
        };
        strategy.schedule = draws.pick(&[
            Schedule::OneForwardOneBackward,
            Schedule::ZeroBubble,
            Schedule::Gems { repetitions: 1 },
            Schedule::Chimera,
        ]);
    }
    if draws.one_in(4) {
        strategy.shard = draws.pick(&Shard::ALL);
    }
    strategy.micro = draws.pick(&[1, 1, 2, 4]);
    let batch = strategy.micro * draws.between(extents[0], 2 * extents[0] * branch);
    for _ in 0..draws.between(0, 2) {
        let first = draws.between(0, graph.nodes.len() - 1);
        let last = draws.between(first, graph.nodes.len() - 1);
        let branches = match draws.between(0, 3) {
            0 => Branches::Off,
            1 => Branches::Groups(draws.between(1, branch)),
            _ => {
                let cut = draws.between(1, branch - 1);
                Branches::Sizes(vec![cut, branch - cut])
            }
        };
        strategy.layers.push(LayerChoice {
            from: graph.nodes[first].name.clone(),
            to: graph.nodes[last].name.clone(),
            branches: Some(branches),
            ..LayerChoice::default()
        });
    }
    if draws.one_in(4) {
        strategy.layers.push(random_block(draws, graph));
    }
    strategy.fuse = !draws.one_in(4);
    (strategy, batch)
}
