//! Candidates that fit with savings.

use crate::requests;

use partita_graph::zoo;
use partita_lower::{LayerChoice, Strategy, lower};
use partita_oracle::{MachineCosts, Mode, predict, rank_seconds};
use partita_plan::{FixedCosts, SearchRequest, plan};
use partita_space::Bytes;
use partita_testkit::{Machine, Software};
use requests::training;

/// The fastest strategy of one device of Lassen for one sample of a U-Net, and the seconds of its step.
fn best_within(memory: u64) -> (f64, Strategy) {
    let (graph, single) = (zoo::build("unet3d@128").unwrap(), Strategy::single());
    let costs = MachineCosts::new(
        Machine::load("lassen", &[]).unwrap(),
        Software::load("partita-opencl", &[]).unwrap(),
    );
    let request = SearchRequest {
        training: training(&graph, &single, 1),
        ranks: 1,
        memory: Bytes(memory),
        lower_bound: &|body, rank, mesh| rank_seconds(body, rank, mesh, &costs),
        prune_factor: 3.0,
        micro_statistics: true,
        front: false,
        knows_costs: true,
        cost: &|program| Ok(predict(program, &costs, Mode::Classes, 1, false)?),
        stages: &FixedCosts(&costs),
        progress: &|_, _| {},
        is_over: &|_, _| false,
    };
    let best = plan(&request).unwrap().swap_remove(0);
    (best.seconds().unwrap().0, best.strategy)
}

/// Recomputing alone fits from 5.3 GB on; with some layers in chunks less of it is needed.
#[test]
fn more_memory_gives_no_slower_step_where_chunks_save_recomputing() {
    let mut before = f64::INFINITY;
    for memory in [
        4.3e9, 4.8e9, 5.4e9, 5.5e9, 5.7e9, 5.9e9, 6.2e9, 6.6e9, 9.5e9,
    ] {
        let (seconds, strategy) = best_within(memory as u64);
        assert!(seconds <= before, "{memory} {seconds} {before} {strategy}");
        before = seconds;
    }
}

/// A split of the samples alone fits in chunks only, and is slower than splits in space that fit without.
#[test]
fn candidates_in_chunks_take_no_place_of_others() {
    let (graph, single) = (zoo::build("unet3d@256").unwrap(), Strategy::single());
    let costs = MachineCosts::new(
        Machine::load("summit", &[]).unwrap(),
        Software::load("partita-opencl", &[]).unwrap(),
    );
    let request = SearchRequest {
        training: training(&graph, &single, 16),
        ranks: 16,
        memory: Bytes(15_500_000_000),
        lower_bound: &|body, rank, mesh| rank_seconds(body, rank, mesh, &costs),
        prune_factor: 3.0,
        micro_statistics: true,
        front: false,
        knows_costs: true,
        cost: &|program| Ok(predict(program, &costs, Mode::Classes, 1, false)?),
        stages: &FixedCosts(&costs),
        progress: &|_, _| {},
        is_over: &|_, _| false,
    };
    let all = plan(&request).unwrap();
    let fit: Vec<_> = all.iter().filter(|one| one.prediction.is_some()).collect();
    let texts: Vec<String> = fit.iter().map(|one| one.strategy.to_string()).collect();
    let has_chunks = |at: usize| fit[at].strategy.layers.iter().any(LayerChoice::is_chunked);
    assert!((0..fit.len()).any(has_chunks), "{texts:?}");
    assert!(!has_chunks(0), "{texts:?}");
    let known = "data=4,depth=2,width=2,micro=4; down1.conv1..down1.conv2: recompute=on; \
                 down2.bn1..down2.conv2: recompute=on";
    let strategy: Strategy = known.parse().unwrap();
    let program = lower(&training(&graph, &strategy, 16)).unwrap();
    assert!(program.memory_max() <= request.memory);
    let other = predict(&program, &costs, Mode::Classes, 1, false).unwrap();
    let best = fit[0].seconds().unwrap();
    assert!(best <= other.iteration_seconds * 1.001, "{best} {texts:?}");
}
