//! Deep levels over other axes than the first ones.

use crate::requests;

use partita_graph::zoo;
use partita_lower::{Request, Strategy, lower};
use partita_oracle::{MachineCosts, Mode, predict, rank_seconds};
use partita_plan::{FixedCosts, RankedStrategy, SearchRequest, plan};
use partita_space::{Bytes, Seconds};
use partita_testkit::{Machine, Software};
use requests::training;

fn costs(machine: &str) -> MachineCosts {
    MachineCosts::new(
        Machine::load(machine, &[]).unwrap(),
        Software::load("partita-cudnn", &[]).unwrap(),
    )
}

/// For one sample on a machine with this much memory for each rank.
fn ranked(model: &str, machine: &str, ranks: usize, memory: Bytes) -> Vec<RankedStrategy> {
    searched(model, machine, (ranks, memory), true)
}

/// Whether or not lower bounds know the costs, which they do not where costs are measured while strategies are compared.
fn searched(
    model: &str,
    machine: &str,
    (ranks, memory): (usize, Bytes),
    knows_costs: bool,
) -> Vec<RankedStrategy> {
    let (graph, costs, single) = (
        zoo::build(model).unwrap(),
        costs(machine),
        Strategy::single(),
    );
    let request = SearchRequest {
        training: training(&graph, &single, 1),
        ranks,
        memory,
        lower_bound: &|body, rank, mesh| {
            if knows_costs {
                rank_seconds(body, rank, mesh, &costs)
            } else {
                Seconds(0.0)
            }
        },
        prune_factor: 3.0,
        micro_statistics: false,
        front: false,
        knows_costs,
        cost: &|program| Ok(predict(program, &costs, Mode::Classes, 1, false)?),
        stages: &FixedCosts(&costs),
        progress: &|_, _| {},
        is_over: &|_, _| false,
    };
    plan(&request).unwrap()
}

fn step(model: &str, machine: &str, strategy: &str) -> Seconds {
    let graph = zoo::build(model).unwrap();
    let strategy: Strategy = strategy.parse().unwrap();
    let program = lower(&training(&graph, &strategy, 1)).unwrap();
    let prediction = predict(&program, &costs(machine), Mode::Classes, 1, false).unwrap();
    prediction.iteration_seconds
}

/// Sums of the gradients of its deep weights take most of the time of a U-Net that is split in space alone.
#[test]
fn weights_of_deep_levels_are_split() {
    let (model, machine) = ("scaffold@64", "lassen");
    let all = ranked(model, machine, 16, Bytes(16_000_000_000));
    let best = &all[0];
    let text = best.strategy.to_string();
    let seconds = best.seconds().unwrap();
    println!("{text}: {seconds}");
    assert!(
        text.contains("F=") && !best.strategy.layers.is_empty(),
        "{text}"
    );
    assert_eq!(text.parse::<Strategy>().unwrap(), best.strategy);
    // The mesh alone, and what is fastest without levels.
    let mesh = text.split(';').next().unwrap();
    let filters = "depth=2,height=2,width=2,filter=2,bucket=25MiB";
    for (other, factor) in [(mesh, 0.85), (filters, 0.9)] {
        let other = step(model, machine, other);
        assert!(seconds < other * factor, "{seconds} {other}");
    }
}

#[test]
fn levels_are_chosen_while_costs_are_measured() {
    let (model, machine) = ("scaffold@64", "lassen");
    let all = searched(model, machine, (8, Bytes(16_000_000_000)), false);
    let best = &all[0];
    let text = best.strategy.to_string();
    assert!(text.contains("F=") && text.contains(".."), "{text}");
    let mesh = text.split(';').next().unwrap();
    let seconds = best.seconds().unwrap();
    assert!(seconds < step(model, machine, mesh) * 0.9, "{seconds}");
}

/// The deep levels of networks that classify large images, one of which has many equal cells and is planned by shortened models.
#[test]
fn deep_levels_of_images_are_split_by_their_filters() {
    for (model, factor) in [("resnet50@1024", 0.92), ("amoebanetd-18-214@512", 0.95)] {
        let all = ranked(model, "lassen", 16, Bytes(16_000_000_000));
        let is_of_levels = |one: &&RankedStrategy| {
            let text = one.strategy.to_string();
            text.contains("..: W=-") || text.contains("..: H=-")
        };
        let best = all.iter().find(is_of_levels).unwrap();
        let seconds = best.seconds().unwrap();
        let text = best.strategy.to_string();
        let mesh = text.split(';').next().unwrap();
        let other = step(model, "lassen", mesh);
        println!("{model}: {text}, {seconds}, without {other}");
        assert!(seconds < other * factor, "{text}: {seconds} {other}");
    }
}

/// Where the weights of all layers do not fit on a rank, those of deep levels are split, before training state is shared.
#[test]
fn weights_of_deep_levels_are_split_where_nothing_else_fits() {
    let (memory, single) = (Bytes(250_000_000), Strategy::single());
    let all = ranked("scaffold@64", "lassen", 16, memory);
    let best = &all[0];
    let text = best.strategy.to_string();
    let prediction = best.prediction.as_ref().unwrap();
    println!("{text}: {}", prediction.memory_bytes_max);
    assert!(prediction.memory_bytes_max <= memory);
    assert!(text.contains("F=") && text.contains(".."), "{text}");
    // A split in space alone does not fit.
    let graph = zoo::build("scaffold@64").unwrap();
    let mesh: Strategy = text.split(';').next().unwrap().parse().unwrap();
    let request = Request {
        strategy: &mesh,
        ..training(&graph, &single, 1)
    };
    assert!(lower(&request).unwrap().memory_max() > memory);
}
