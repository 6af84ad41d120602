//! Models of many equal blocks: found from shortened models is what a search of all would find.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::requests;

use partita_graph::{Graph, text};
use partita_lower::Strategy;
use partita_oracle::{MachineCosts, Mode, predict, rank_seconds};
use partita_plan::{FixedCosts, RankedStrategy, SearchRequest, plan};
use partita_space::{Bytes, Seconds};
use partita_testkit::{Machine, Software};
use requests::training;

/// This many residual blocks on 16 x 16 positions.
fn blocks(count: usize) -> Graph {
    let mut lines = "model blocks\ninput x channels=3 extent=16x16\n".to_owned();
    lines += "a0 = conv x filters=16 kernel=3 pad=1 bias=false\n";
    for at in 1..=count {
        let before = at - 1;
        lines += &format!(
            "n{at} = batch_norm a{before} epsilon=1e-5 momentum=0.1\nr{at} = relu n{at}\n\
             c{at} = conv r{at} filters=16 kernel=3 pad=1 bias=false\na{at} = add a{before} c{at}\n"
        );
    }
    lines += &format!(
        "p = average_pool a{count} kernel=16 stride=16 count_padding=true\nf = flatten p\n\
         fc = linear f features=10 bias=true\nloss = softmax_cross_entropy fc\n"
    );
    text::parse(&lines).unwrap()
}

fn planned(graph: &Graph, costs: &MachineCosts, prune_factor: f64) -> Vec<RankedStrategy> {
    let single = Strategy::single();
    let is_exhaustive = prune_factor.is_infinite();
    plan(&SearchRequest {
        training: training(graph, &single, 8),
        ranks: 4,
        memory: Bytes(1 << 40),
        lower_bound: &|body, rank, mesh| {
            if is_exhaustive {
                Seconds(0.0)
            } else {
                rank_seconds(body, rank, mesh, costs)
            }
        },
        prune_factor,
        micro_statistics: true,
        front: false,
        knows_costs: true,
        cost: &|program| Ok(predict(program, costs, Mode::Classes, 1, false)?),
        stages: &FixedCosts(costs),
        progress: &|_, _| {},
        is_over: &|_, _| false,
    })
    .unwrap()
}

#[test]
fn the_best_strategy_of_equal_blocks_is_that_of_a_whole_search() {
    for machine in ["summit", "abci"] {
        let costs = MachineCosts::new(
            Machine::load(machine, &[]).unwrap(),
            Software::load("partita-cudnn", &[]).unwrap(),
        );
        let graph = blocks(32);
        let pruned = planned(&graph, &costs, 3.0);
        let all = planned(&graph, &costs, f64::INFINITY);
        let [found, best] = [&pruned[0], &all[0]].map(|one| one.seconds().unwrap().0);
        assert!(
            found <= 1.001 * best,
            "{machine}: `{}` {found}, `{}` {best}",
            pruned[0].strategy,
            all[0].strategy
        );
        let fit = |all: &[RankedStrategy]| all.iter().filter(|one| one.reason.is_none()).count();
        assert!(
            fit(&pruned) < fit(&all) / 2,
            "{} {}",
            fit(&pruned),
            fit(&all)
        );
    }
}
