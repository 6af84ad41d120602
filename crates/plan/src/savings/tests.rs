//! What is saved, beside an exhaustive choice, and whether all ranks then fit.

use super::*;
use crate::layers::{StageCosts, UnknownCost};
use crate::partition::balance;
use crate::plan::SearchRequest;
use crate::requests;
use partita_graph::{Graph, GraphBuilder, Loss, zoo};
use partita_lower::{LayerChoice, Recompute, lower};
use partita_oracle::LayerPrecision;
use partita_oracle::closed::Link;
use partita_program::{Body, Count, Program};
use partita_space::{Bytes, Mesh, Seconds, Window};

/// Arithmetic and memory traffic at fixed rates, and no messages.
struct Rates;

impl Rates {
    fn tasks(body: &Body) -> Vec<Seconds> {
        let seconds = |count: Count| {
            let bytes = (count.read + count.written).0 as f64;
            Seconds(count.flops.0 as f64 / 1e11 + bytes / 1e10)
        };
        let tasks = body.tasks.iter();
        tasks
            .map(|task| seconds(Count::of(task, &body.buffers)))
            .collect()
    }

    fn rank(body: &Body) -> Seconds {
        Seconds(Self::tasks(body).iter().map(|one| one.0).sum())
    }
}

impl StageCosts for Rates {
    fn precision(&self) -> LayerPrecision {
        LayerPrecision::F32
    }

    fn delays(&self, program: &Program, rank: Rank) -> Result<Vec<Seconds>, UnknownCost> {
        Ok(Self::tasks(program.body(rank)))
    }

    fn message(&self, _from: Rank, _to: Rank, _bytes: Bytes) -> Seconds {
        Seconds(0.0)
    }

    fn seconds(&self, program: &Program, rank: Rank) -> Result<Vec<Seconds>, UnknownCost> {
        Ok(Self::tasks(program.body(rank)))
    }

    fn ring(&self, _members: &[Rank]) -> Link {
        Link::default()
    }
}

fn request<'a>(training: Request<'a>, ranks: usize) -> SearchRequest<'a> {
    SearchRequest {
        training,
        ranks,
        memory: Bytes(1 << 50),
        lower_bound: &|body: &Body, _: Rank, _: &Mesh| Rates::rank(body),
        prune_factor: f64::INFINITY,
        micro_statistics: true,
        front: false,
        knows_costs: true,
        cost: &|_| Err(UnknownCost("nothing is simulated".to_owned())),
        stages: &Rates,
        progress: &|_, _| {},
        is_over: &|_, _| false,
    }
}

/// Convolutions of unequal widths, each with a batch norm and an activation; with a skip from the first to the last one
/// if asked for.
fn units(filters: &[usize], has_skip: bool) -> Graph {
    let mut builder = GraphBuilder::new("units").unwrap();
    let mut head = builder.input("x", &[12, 12], 2).unwrap();
    let mut first = None;
    for (at, &filters) in filters.iter().enumerate() {
        let same = Window {
            kernel: 3,
            stride: 1,
            dilation: 1,
            pad_low: 1,
            pad_high: 1,
        };
        if let (Some(skip), true) = (first, has_skip && at + 1 == 3) {
            head = builder.concat("join", &[skip, head]).unwrap();
        }
        let convolution = partita_graph::Convolution {
            filters,
            window: [Window::ONE, same, same],
            periodic: false,
            groups: 1,
            bias: false,
        };
        let name = |kind: &str| format!("{kind}{at}");
        head = builder
            .convolution(&name("conv"), head, convolution)
            .unwrap();
        head = builder.batch_norm(&name("norm"), head, 1e-3, 0.1).unwrap();
        head = builder.leaky_relu(&name("relu"), head, 0.1).unwrap();
        first.get_or_insert(head);
    }
    let flat = builder.flatten("flat", head).unwrap();
    let end = builder.linear("end", flat, 2, true).unwrap();
    builder.loss("loss", end, Loss::MeanSquaredError).unwrap();
    builder.build().unwrap()
}

/// All sets of disjoint ranges of layers; a range begins with a convolution or a norm, and ends with a convolution or an
/// activation.
fn all_sets(units: usize) -> Vec<Vec<[String; 2]>> {
    let begins = |at: usize| format!("{}{}", ["conv", "norm"][at % 2], at / 2);
    let ends = |at: usize| format!("{}{}", ["conv", "relu"][at % 2], at / 2);
    // By the number of parts that are left.
    let mut sets: Vec<Vec<Vec<[String; 2]>>> = vec![vec![Vec::new()]];
    let parts = 2 * units;
    for left in 1..=parts {
        let at = parts - left;
        let mut all = sets[left - 1].clone();
        for last in at..parts {
            for rest in &sets[parts - 1 - last] {
                let range = [begins(at), ends(last)];
                all.push([range].into_iter().chain(rest.iter().cloned()).collect());
            }
        }
        sets.push(all);
    }
    sets.pop().unwrap()
}

#[test]
fn recomputed_blocks_take_as_long_as_the_best_of_all_sets() {
    for (filters, has_skip) in [([6, 12, 3], false), ([4, 6, 8], true)] {
        let graph = units(&filters, has_skip);
        let single = Strategy::single();
        let training = requests::training(&graph, &single, 4);
        let request = request(training, 1);
        let mut ranking = Ranking::new(&request, None);
        let whole = ranking.need(&single).unwrap().ok().unwrap();
        let mut known = Vec::new();
        for set in all_sets(filters.len()) {
            let mut strategy = single.clone();
            strategy.layers = set
                .into_iter()
                .map(|[from, to]| LayerChoice {
                    from,
                    to,
                    recompute: Some(Recompute::On),
                    ..LayerChoice::default()
                })
                .collect();
            let need = ranking.need(&strategy).unwrap().ok().unwrap();
            known.push((need.memory, need.lower_bound.0, strategy.to_string()));
        }
        let least = known.iter().map(|one| one.0).min().unwrap();
        assert!(least.0 * 10 < whole.memory.0 * 9);
        for part in [0.0, 0.1, 0.3, 0.6, 0.9] {
            let between = (whole.memory.0 - least.0) as f64;
            let limit = Bytes(least.0 + (part * between) as u64);
            ranking.limit = limit;
            let fitting = known.iter().filter(|one| one.0 <= limit);
            let best = fitting.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            let plain = with(&single, 1, Shard::Off);
            let need = ranking.need(&plain).unwrap().ok().unwrap();
            let shards = [Shard::Off];
            let found = ranking
                .recomputed_and_sharded(&plain, &need, &shards)
                .unwrap();
            let text = found.as_ref().map(|one| one.strategy.to_string());
            let found = found.map_or(f64::INFINITY, |one| one.lower_bound.0);
            assert!(
                found <= 1.02 * best.1,
                "{filters:?} {has_skip} {part}: {text:?} takes {found} within {limit}, best is {best:?}"
            );
        }
    }
}

#[test]
fn stages_that_do_not_fit_take_less_memory() {
    let activations = units(&[8, 8, 8, 8, 8, 8], false);
    let weights = zoo::build("cosmoflow@32").unwrap();
    let of_activations = [
        (
            "stages=2,micro=2,schedule=1f1b",
            0.75,
            "recompute=selective",
        ),
        ("stages=2,micro=2,schedule=1f1b", 0.65, "recompute=on"),
        ("stages=2,micro=2,schedule=gpipe", 0.65, "recompute=on"),
        (
            "stages=2,micro=2,schedule=chimera",
            0.8,
            "recompute=selective",
        ),
        ("stages=2,micro=2,schedule=chimera", 0.65, "recompute=on"),
        ("stages=2,micro=2,schedule=zero-bubble", 0.8, "micro=4"),
        ("data=2,stages=[width=2|1],micro=1", 0.8, "micro=2"),
    ];
    let of_activations =
        of_activations.map(|(text, part, saves)| (&activations, text, 16, part, saves));
    let of_weights = (&weights, "data=4,stages=2,micro=1", 4, 0.6, "shard=");
    for (graph, text, batch, part, saves) in of_activations.into_iter().chain([of_weights]) {
        let open: Strategy = text.parse().unwrap();
        let training = requests::training(graph, &open, batch);
        let request = request(training, open.ranks());
        let all = Bytes(1 << 50);
        let plain = balance(&training, all, &Rates, None).unwrap().strategy;
        let needs = |strategy: &Strategy| {
            let training = Request {
                strategy,
                ..training
            };
            lower(&training).unwrap().memory_max()
        };
        let limit = Bytes((part * needs(&plain).0 as f64) as u64);
        let mut ranking = Ranking::new(&request, None);
        ranking.limit = limit;
        let found = ranking.variants_of_stages(&open).unwrap();
        let texts: Vec<String> = found.iter().map(|one| one.strategy.to_string()).collect();
        assert!(
            texts.iter().any(|text| text.contains(saves)),
            "{text} within {limit}: {texts:#?}; {:#?}",
            ranking.refused
        );
        for one in &found {
            let needed = needs(&one.strategy);
            assert!(needed <= limit, "{}: {needed} of {limit}", one.strategy);
        }
    }
}

#[test]
fn averages_count_as_training_state() {
    let graph = zoo::build("cosmoflow@32").unwrap();
    let single = Strategy::single();
    let state = |ema: Option<f64>| {
        let training = Request {
            ema,
            ..requests::training(&graph, &single, 1)
        };
        let request = request(training, 1);
        let ranking = Ranking::new(&request, None);
        ranking.need(&single).unwrap().ok().unwrap().state
    };
    let parameters = Bytes(4 * partita_graph::count(&graph).parameters);
    assert_eq!(state(Some(0.9)), state(None) + parameters);
}
