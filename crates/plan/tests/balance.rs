//! Layers of stages: as fast as any cut, and within the memory that a rank may fill.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::requests;

use partita_graph::zoo;
use partita_lower::{Request, Strategy, lower};
use partita_oracle::{MachineCosts, Mode, predict};
use partita_plan::{BalanceError, Balanced, FixedCosts, Steps, balance};
use partita_space::{Bytes, Seconds};
use partita_testkit::{Machine, Share, Software};
use requests::training;

fn lassen() -> MachineCosts {
    MachineCosts::new(
        Machine::load("lassen", &[]).unwrap(),
        Software::load("partita-cudnn", &[]).unwrap(),
    )
}

const PLENTY: Bytes = Bytes(1 << 50);

fn step(request: &Request<'_>, strategy: &Strategy) -> (Seconds, Bytes) {
    let program = lower(&Request {
        strategy,
        ..*request
    })
    .unwrap();
    let prediction = predict(&program, &lassen(), Mode::Classes, 1, false).unwrap();
    (prediction.iteration_seconds, program.memory_max())
}

/// Layers by simulated steps.
fn simulated(request: &Request<'_>, costs: &MachineCosts) -> Balanced {
    let steps = Steps {
        cost: &|program| Ok(predict(program, costs, Mode::Classes, 1, false).unwrap()),
        tasks_max: 250_000,
        is_over: &|| false,
    };
    balance(request, PLENTY, &FixedCosts(costs), Some(steps)).unwrap()
}

/// Every cut in two stages, with its step and what it needs.
fn cuts(request: &Request<'_>) -> Vec<(Seconds, Bytes)> {
    let nodes = request.graph.nodes.len();
    let cut = |at: usize| {
        request
            .strategy
            .with_layers(request.graph, &[0..at, at..nodes])
    };
    (2..nodes).map(|at| step(request, &cut(at))).collect()
}

#[test]
fn no_cut_in_two_is_much_faster() {
    for (model, text, batch) in Share::of(3).of_items([
        ("cosmoflow@64", "stages=2,micro=8", 8),
        (
            "cosmoflow@64",
            "micro=4,stages=[depth=2|1],schedule=gpipe",
            8,
        ),
        ("resnet18@64", "stages=2,micro=4,schedule=gems*2", 32),
        ("resnet18@64", "stages=2,micro=4,schedule=zero-bubble", 32),
        (
            "resnet18@64",
            "data=2,micro=4,stages=[1|1],schedule=chimera",
            32,
        ),
    ]) {
        let graph = zoo::build(model).unwrap();
        let strategy: Strategy = text.parse().unwrap();
        let request = training(&graph, &strategy, batch);
        let costs = lassen();
        let found = balance(&request, PLENTY, &FixedCosts(&costs), None).unwrap();
        let (seconds, _) = step(&request, &found.strategy);
        let all = cuts(&request);
        let best = all.iter().map(|one| one.0.0).fold(f64::INFINITY, f64::min);
        let worst = all.iter().map(|one| one.0.0).fold(0.0, f64::max);
        let least = found.seconds.0;
        println!("{model} {text}: {seconds}, best {best}, worst {worst}, about {least}");
        assert!(
            seconds.0 <= 1.1 * best,
            "{model} {}: {seconds} {best}",
            found.strategy
        );
        assert!(worst > 1.05 * best, "{model} {text}: {worst} {best}");
        assert!(
            least <= 1.1 * seconds.0,
            "{model} {text}: {least} {seconds}"
        );
        let simulated = simulated(&request, &costs);
        let (after, _) = step(&request, &simulated.strategy);
        println!("{}: {after}", simulated.strategy);
        assert!(after <= seconds, "{after} {seconds}");
        // The fastest stages in turns do not distribute the memory.
        assert!(after.0 <= 1.03 * best, "{after} {best}");
        // What is said by hand stays.
        let said = training(&graph, &found.strategy, batch);
        assert_eq!(
            balance(&said, Bytes(1), &FixedCosts(&costs), None)
                .unwrap()
                .strategy,
            found.strategy
        );
        let text = found.strategy.to_string();
        assert_eq!(text.parse::<Strategy>().unwrap(), found.strategy);
    }
}

#[test]
fn the_limit_of_memory_holds_and_the_least_need_is_told() {
    for (model, text, batch) in [
        ("resnet18@64", "stages=2,micro=4", 32),
        ("resnet18@64", "stages=2,micro=4,schedule=gems*2", 32),
        ("cosmoflow@64", "micro=4,stages=[depth=2|1]", 8),
    ] {
        let graph = zoo::build(model).unwrap();
        let strategy: Strategy = text.parse().unwrap();
        let request = training(&graph, &strategy, batch);
        let costs = lassen();
        let all = cuts(&request);
        let mut needs: Vec<Bytes> = all.iter().map(|one| one.1).collect();
        needs.sort_unstable();
        // What the fastest cut needs, less and less, down to what the leanest one does.
        let fastest = balance(&request, PLENTY, &FixedCosts(&costs), None).unwrap();
        let (_, most) = step(&request, &fastest.strategy);
        let least = needs[0];
        for share in [1.0, 0.7, 0.4, 0.1] {
            let limit = Bytes(least.0 + ((most.0 - least.0) as f64 * share) as u64);
            let found = balance(&request, limit, &FixedCosts(&costs), None).unwrap();
            let (seconds, needed) = step(&request, &found.strategy);
            assert!(
                needed <= limit,
                "{model} {}: {needed} {limit}",
                found.strategy
            );
            let within = all.iter().filter(|one| one.1 <= limit);
            let best = within.map(|one| one.0.0).fold(f64::INFINITY, f64::min);
            println!("{model} {text} {share}: {needed} of {limit}, {seconds}, best {best}");
            assert!(
                seconds.0 <= 1.3 * best,
                "{model} {}: {seconds} {best}",
                found.strategy
            );
        }
        let limit = Bytes(least.0 / 2);
        let error = balance(&request, limit, &FixedCosts(&costs), None).unwrap_err();
        let BalanceError::Memory { needed, .. } = &error else {
            panic!("{error}");
        };
        assert!(
            *needed >= least && needed.0 as f64 <= 1.1 * least.0 as f64,
            "{error} {least}"
        );
        let text = error.to_string();
        assert!(text.contains(&limit.to_string()), "{text}");
        let may_grow = request.strategy.micro < request.batch;
        assert_eq!(text.contains("a larger `micro`"), may_grow, "{text}");
    }
}

#[test]
fn stages_that_share_a_place_are_told_apart() {
    let graph = zoo::build("resnet18@64").unwrap();
    let strategy: Strategy = "stages=2,micro=4,schedule=interleaved*2".parse().unwrap();
    let request = training(&graph, &strategy, 8);
    let costs = lassen();
    let found = balance(&request, PLENTY, &FixedCosts(&costs), None).unwrap();
    let text = found.strategy.to_string();
    assert_eq!(text.parse::<Strategy>().unwrap(), found.strategy);
    assert!(
        found
            .strategy
            .stages
            .iter()
            .all(|stage| stage.layers.len() == 2),
        "{text}"
    );
    let (balanced, _) = step(&request, &found.strategy);
    let (equal, _) = step(&request, &strategy.resolved(&graph).unwrap());
    println!("{text}: {balanced}, equal in arithmetic {equal}");
    assert!(balanced <= equal * 1.05, "{balanced} {equal}");
}

/// Layers are chosen by simulated steps, so that those for a better network are no worse.
#[test]
fn stages_get_no_slower_by_a_better_network() {
    for (name, model, text, batch) in Share::of(3).of_items([
        (
            "lassen",
            "cosmoflow@128",
            "data=2,micro=4,stages=[depth=2,height=2|depth=2|1|1],schedule=gems",
            8,
        ),
        (
            "pascal-roce",
            "cosmoflow@128",
            "data=8,micro=2,stages=[depth=2|1|1]",
            32,
        ),
        ("abci", "vgg16@224", "data=4,micro=4,stages=4", 64),
    ]) {
        let graph = zoo::build(model).unwrap();
        let strategy: Strategy = text.parse().unwrap();
        let request = training(&graph, &strategy, batch);
        let mut least = f64::INFINITY;
        for times in [1.0, 1.5, 2.0] {
            let mut machine = Machine::load(name, &[]).unwrap();
            for link in [
                &mut machine.links.intra.bandwidth,
                &mut machine.links.inter.bandwidth,
            ] {
                link.value.0 *= times;
            }
            machine.links.inter.node_bandwidth.value.0 *= times;
            let costs = MachineCosts::new(machine, Software::load("partita-cudnn", &[]).unwrap());
            let found = simulated(&request, &costs);
            let program = lower(&Request {
                strategy: &found.strategy,
                ..request
            });
            let prediction = predict(&program.unwrap(), &costs, Mode::Classes, 1, false);
            let seconds = prediction.unwrap().iteration_seconds.0;
            println!("{name} {times}: {seconds} s, {}", found.strategy);
            assert!(
                seconds <= 1.002 * least,
                "{name} {times}: {least} s, then {seconds} s"
            );
            least = least.min(seconds);
        }
    }
}

/// A cut within a block would have tensors inside it sent, which needs them whole.
#[test]
fn a_block_in_chunks_stays_in_one_stage() {
    for (model, block) in [
        ("cosmoflow@32", "conv1..pool1"),
        ("cosmoflow@32", "conv2..pool2"),
        ("cosmoflow@64", "conv1..pool2"),
    ] {
        for stages in ["stages=4", "stages=2,schedule=chimera"] {
            let graph = zoo::build(model).unwrap();
            let text = format!("micro=4,{stages}; {block}: chunks=2");
            let strategy: Strategy = text.parse().unwrap();
            let request = training(&graph, &strategy, 8);
            let costs = lassen();
            for found in [
                balance(&request, PLENTY, &FixedCosts(&costs), None).unwrap(),
                simulated(&request, &costs),
            ] {
                let strategy = &found.strategy;
                let lowered = lower(&Request {
                    strategy,
                    ..request
                });
                assert!(lowered.is_ok(), "{text} {strategy} {:?}", lowered.err());
            }
        }
    }
}
