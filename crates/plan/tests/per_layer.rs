//! Distributions chosen layer by layer: the cheapest of all paths, and near the fastest of all programs.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::requests;

use partita_graph::{Graph, text, zoo};
use partita_lower::{Request, Strategy, lower};
use partita_oracle::{Costs, MachineCosts, Mode, predict, rank_seconds};
use partita_plan::{FixedCosts, PerLayer, RankedStrategy, SearchRequest, plan};
use partita_program::Program;
use partita_space::{Bytes, Seconds};
use partita_testkit::Machine;
use requests::training;
use std::cell::Cell;

/// With samples in memory, or nearly so.
fn lassen() -> MachineCosts {
    let mut machine = Machine::load("lassen", &[]).unwrap();
    machine.io.as_mut().unwrap().latency.value = Seconds(1e-9);
    MachineCosts::new(
        machine,
        partita_testkit::Software::load("partita-cudnn", &[]).unwrap(),
    )
}

fn step(costs: &dyn Costs, program: &Program) -> f64 {
    let prediction = predict(program, costs, Mode::Classes, 1, false).unwrap();
    prediction.iteration_seconds.0
}

/// The paths over this many units.
fn paths([states, units]: [usize; 2]) -> impl Iterator<Item = Vec<usize>> {
    let digit = move |number: usize, unit: u32| number / states.pow(unit) % states;
    (0..states.pow(units as u32))
        .map(move |number| (0..units as u32).map(|unit| digit(number, unit)).collect())
}

/// Two convolutions and two linear layers, one of them with most of the weights.
const SMALL: &str = "model small
input x channels=3 extent=32x32
conv1 = conv x filters=16 kernel=3 stride=1 pad=1 bias=false
act1 = leaky_relu conv1 slope=0.0
pool1 = max_pool act1 kernel=2 stride=2
conv2 = conv pool1 filters=32 kernel=3 stride=1 pad=1 bias=false
act2 = leaky_relu conv2 slope=0.0
pool2 = max_pool act2 kernel=2 stride=2
flat = flatten pool2
fc1 = linear flat features=2048 bias=true
act3 = leaky_relu fc1 slope=0.0
fc2 = linear act3 features=16 bias=true
loss = softmax_cross_entropy fc2
";

/// This many paths are simulated at most, evenly among all.
const SIMULATED: usize = 700;

#[test]
fn the_path_is_the_cheapest_of_all_and_its_program_near_the_fastest() {
    let graph = text::parse(SMALL).unwrap();
    let costs = lassen();
    for (mesh, batch) in [("data=4", 16), ("data=8", 256), ("data=2,height=2", 16)] {
        let mesh: Strategy = mesh.parse().unwrap();
        let training = training(&graph, &mesh, batch);
        let seconds = |strategy: &Strategy| {
            let request = Request {
                strategy,
                ..training
            };
            strategy.check(&graph, batch).ok()?;
            Some(step(&costs, &lower(&request).unwrap()))
        };
        let mut nearest = f64::INFINITY;
        let (mut fastest, mut slowest, mut words) = (f64::INFINITY, 0.0_f64, Strategy::single());
        for shown in [1.0, 0.4, 0.1] {
            let layers = PerLayer::new(&training, &FixedCosts(&costs), shown)
                .unwrap()
                .unwrap();
            let all = paths(layers.size()).map(|path| layers.seconds(&path).0);
            let least = all.fold(f64::INFINITY, f64::min);
            let best = layers.best();
            let own = layers.seconds(&best).0;
            assert!(own <= least * (1.0 + 1e-12), "{mesh} {own} {least}");
            let found = layers.strategy(&best);
            nearest = nearest.min(seconds(&found).unwrap());
            if shown < 1.0 {
                continue;
            }
            let [states, units] = layers.size();
            let apart = states.pow(units as u32).div_ceil(SIMULATED);
            for path in paths(layers.size()).step_by(apart) {
                let strategy = layers.strategy(&path);
                if layers.seconds(&path).0.is_infinite() {
                    continue;
                }
                if let Some(seconds) = seconds(&strategy) {
                    slowest = slowest.max(seconds);
                    if seconds < fastest {
                        (fastest, words) = (seconds, strategy);
                    }
                }
            }
        }
        println!("{mesh}: {nearest} of {fastest} to {slowest}; {words}");
        assert!(
            nearest <= 1.05 * fastest,
            "{mesh}: {nearest}, {words} takes {fastest}"
        );
        assert!(slowest > 1.3 * fastest);
    }
}

fn ranked(graph: &Graph, ranks: usize, batch: usize) -> Vec<RankedStrategy> {
    ranked_with(graph, ranks, batch, true).0
}

/// With the number of programs that were simulated.
fn ranked_with(
    graph: &Graph,
    ranks: usize,
    batch: usize,
    knows_costs: bool,
) -> (Vec<RankedStrategy>, usize) {
    let simulated = Cell::new(0);
    let single = Strategy::single();
    let costs = lassen();
    let request = SearchRequest {
        training: training(graph, &single, batch),
        ranks,
        memory: Bytes(16_000_000_000),
        lower_bound: &|body, rank, mesh| rank_seconds(body, rank, mesh, &costs),
        prune_factor: 3.0,
        micro_statistics: true,
        front: false,
        knows_costs,
        cost: &|program| {
            simulated.set(simulated.get() + 1);
            Ok(predict(program, &costs, Mode::Classes, 1, false)?)
        },
        stages: &FixedCosts(&costs),
        progress: &|_, _| {},
        is_over: &|_, _| false,
    };
    let all = plan(&request).unwrap();
    (all, simulated.get())
}

/// The best candidate is the same, and what is passed over says why.
#[test]
fn candidates_like_slower_ones_are_not_simulated() {
    let name = "alexnet@224";
    let graph = zoo::build(name).unwrap();
    let (all, every) = ranked_with(&graph, 64, 64, false);
    let (expected, fewer) = ranked_with(&graph, 64, 64, true);
    assert_eq!(all[0].strategy, expected[0].strategy, "{name}");
    assert!(fewer < every, "{name}: {fewer} of {every} simulated");
    let like = |one: &&RankedStrategy| one.explanation().starts_with("by candidates like it");
    assert!(expected.iter().filter(like).count() > 0, "{name}");
    assert_eq!(all.iter().filter(like).count(), 0, "{name}");
}

/// Convolutions by samples, linear layers by their filters and channels in turns.
#[test]
fn linear_layers_go_by_weights_where_there_are_many() {
    let graph = zoo::build("vgg16@224").unwrap();
    let all = ranked(&graph, 32, 128);
    let best = &all[0];
    let text = best.strategy.to_string();
    println!("{text}: {:?}", best.seconds());
    assert!(text.contains("classifier.0.."), "{text}");
    assert_eq!(text.parse::<Strategy>().unwrap(), best.strategy);
    let costs = lassen();
    let uniform: Strategy = "data=32".parse().unwrap();
    let uniform = lower(&training(&graph, &uniform, 128)).unwrap();
    let (uniform, own) = (step(&costs, &uniform), best.seconds().unwrap());
    assert!(own < Seconds(0.8 * uniform), "{own} {uniform}");
    // Reasons are kept for all others.
    for one in all.iter().filter(|one| one.prediction.is_none()) {
        assert!(!one.explanation().is_empty(), "{}", one.strategy);
    }
}

#[test]
fn what_closed_forms_refuse_is_not_the_best() {
    let graph = zoo::build("vgg16@224").unwrap();
    let all = ranked(&graph, 64, 1024);
    let is_far = |one: &&RankedStrategy| one.explanation().starts_with("by the closed forms");
    let far: Vec<&RankedStrategy> = all.iter().filter(is_far).collect();
    assert!(!far.is_empty());
    let costs = lassen();
    for one in far.into_iter().step_by(6) {
        let program = lower(&training(&graph, &one.strategy, 1024)).unwrap();
        let seconds = step(&costs, &program);
        assert!(
            all[0].seconds().unwrap() < Seconds(seconds),
            "{}",
            one.strategy
        );
    }
}
