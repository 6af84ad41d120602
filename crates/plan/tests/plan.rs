//! Plans over small models with costs that can be reasoned about.

use crate::requests;

use partita_graph::{ClassLoss, Graph, Loss, zoo};
use partita_lower::{LowerError, Request, Strategy, lower};
use partita_oracle::{
    AlltoallBlocks, CollectiveCost, Contention, CostBasis, CostError, Costs, KernelCost, LoadCost,
    MessageCost, Mode, Prediction, Progress, SampleRead, Uncertainty, predict, rank_seconds,
    simulate,
};
use partita_plan::{
    FixedCosts, PlanError, RankedStrategy, Refusal, SearchRequest, UnknownCost, candidates,
    pipelines, plan,
};
use partita_program::{
    Algorithm, Body, Buffer, BufferId, Choice, Collective, CollectiveKind, Count, Dtype,
    KernelShape, Menu, MenuError, Optimizer, Origin, Phase, Program, ProgramKind, Role, Task,
    TaskId, View, Work,
};
use partita_space::{Axis, AxisSet, Bytes, Mesh, Rank, Seconds};
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::LazyLock;

/// Flops and bytes at fixed rates; messages at `alpha + beta n`; reads for nothing.
struct Flat {
    rate: f64,
    alpha: f64,
    beta: f64,
}

impl Flat {
    fn line(&self, bytes: f64) -> (Seconds, Seconds) {
        (Seconds(self.alpha), Seconds(self.beta * bytes))
    }
}

impl Costs for Flat {
    fn basis(&self) -> CostBasis {
        CostBasis::Modeled
    }

    fn uncertainty(&self, _ranks: usize) -> Uncertainty {
        Uncertainty::NONE
    }
    fn progress(&self) -> Progress {
        Progress::Polled
    }

    fn contention(&self) -> Contention {
        Contention::Units
    }

    fn precision(&self) -> partita_testkit::LayerPrecision {
        partita_testkit::LayerPrecision::F32
    }

    fn check_capacity(&self, _ranks: usize) -> Result<(), CostError> {
        Ok(())
    }
    fn node(&self, rank: Rank) -> usize {
        rank / 4
    }
    fn link(&self, a: Rank, b: Rank) -> u32 {
        u32::from(a != b) + u32::from(self.node(a) != self.node(b))
    }
    fn kernel(
        &self,
        _shape: &KernelShape<'_>,
        _algorithm: &Algorithm,
        count: &Count,
    ) -> Result<KernelCost, CostError> {
        let bytes = (count.read + count.written).0 as f64;
        let seconds = Seconds(count.flops.0 as f64 / self.rate + bytes / 1e11);
        Ok(KernelCost::uncontended(seconds))
    }
    fn layer_factor(&self, _origin: &Origin) -> f64 {
        1.0
    }

    fn message(
        &self,
        _from: Rank,
        _to: Rank,
        bytes: Bytes,
        _sharing: f64,
    ) -> Result<MessageCost, CostError> {
        let (latency, transfer) = self.line(bytes.0 as f64);
        let host = Seconds(0.0);
        Ok(MessageCost {
            latency,
            transfer,
            host,
        })
    }
    fn allreduce(
        &self,
        members: &[Rank],
        bytes: Bytes,
        _sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        if members.len() < 2 {
            return Ok(CollectiveCost::default());
        }
        let (latency, transfer) = self.line(2.0 * bytes.0 as f64);
        let host = Seconds(0.0);
        Ok(CollectiveCost {
            latency,
            transfer,
            transfer_min: transfer,
            host,
        })
    }
    fn allgather(
        &self,
        _members: &[Rank],
        bytes_per_member: &[Bytes],
        _sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        let bytes: Bytes = bytes_per_member.iter().copied().sum();
        let (latency, transfer) = self.line(bytes.0 as f64);
        let host = Seconds(0.0);
        Ok(CollectiveCost {
            latency,
            transfer,
            transfer_min: transfer,
            host,
        })
    }
    fn reduce_scatter(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        self.allgather(members, bytes_per_member, sharing)
    }

    fn alltoall(
        &self,
        members: &[Rank],
        blocks: AlltoallBlocks,
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        self.allgather(members, &[blocks.given, blocks.largest], sharing)
    }

    fn load(&self, _: Rank, _: SampleRead) -> Result<LoadCost, CostError> {
        Ok(LoadCost::default())
    }

    fn write(&self, _: Rank, _: Bytes, _: usize) -> Result<Seconds, CostError> {
        Ok(Seconds(0.0))
    }
}

const FAST_LINK: Flat = Flat {
    rate: 1e10,
    alpha: 1e-6,
    beta: 1e-11,
};

static SINGLE: LazyLock<Strategy> = LazyLock::new(Strategy::single);

fn training(graph: &Graph, batch: usize) -> Request<'_> {
    Request {
        optimizer: Optimizer::Sgd {
            momentum: 0.0,
            weight_decay: 0.0,
        },
        ..requests::training(graph, &SINGLE, batch)
    }
}

fn oracle(costs: &Flat, program: &Program) -> Result<Prediction, UnknownCost> {
    Ok(predict(program, costs, Mode::Classes, 1, false)?)
}

fn planned(
    graph: &Graph,
    (ranks, batch): (usize, usize),
    costs: &Flat,
    memory: Bytes,
    prunes: bool,
) -> Result<Vec<RankedStrategy>, PlanError> {
    plan(&SearchRequest {
        training: training(graph, batch),
        ranks,
        memory,
        lower_bound: &|body, rank, mesh| {
            if prunes {
                rank_seconds(body, rank, mesh, costs)
            } else {
                Seconds(0.0)
            }
        },
        prune_factor: f64::INFINITY,
        micro_statistics: true,
        front: false,
        knows_costs: true,
        cost: &|program| oracle(costs, program),
        stages: &FixedCosts(costs),
        progress: &|_, _| {},
        is_over: &|_, _| false,
    })
}

/// How many strategies are looked at.
fn tried(graph: &Graph, ranks: usize, batch: usize) -> usize {
    candidates(graph, ranks, batch).len() + pipelines(graph, ranks, batch).len()
}

/// Strategies with a choice for each layer that a plan adds at most.
const PER_LAYER: usize = 24;
/// Strategies with savings that are added at most.
const SAVINGS: usize = 30;

#[track_caller]
fn assert_tried(all: &[RankedStrategy], graph: &Graph, ranks: usize, batch: usize) {
    let least = tried(graph, ranks, batch);
    assert!((least..=least + PER_LAYER + SAVINGS).contains(&all.len()));
}

/// Neither a pipeline nor chosen layer by layer.
fn is_whole(graph: &Graph, ranks: usize, batch: usize) -> impl Fn(&&RankedStrategy) -> bool {
    let all = candidates(graph, ranks, batch);
    move |one| all.contains(&one.strategy)
}

const PLENTY: Bytes = Bytes(1 << 50);

#[test]
fn every_candidate_is_ranked_or_refused_and_the_order_is_that_of_the_oracle() {
    let graph = zoo::build("cosmoflow@32").unwrap();
    let all = planned(&graph, (8, 4), &FAST_LINK, PLENTY, false).unwrap();
    assert_tried(&all, &graph, 8, 4);
    let fit = all.iter().take_while(|one| one.reason.is_none()).count();
    assert!(
        all[fit..]
            .iter()
            .all(|one| one.reason.is_some() && one.prediction.is_none())
    );
    let seconds: Vec<f64> = all[..fit]
        .iter()
        .map(|one| one.seconds().unwrap().0)
        .collect();
    assert!(seconds.is_sorted(), "{seconds:?}");
    for one in &all[..fit] {
        let request = Request {
            strategy: &one.strategy,
            ..training(&graph, 4)
        };
        let program = lower(&request).unwrap();
        assert_eq!(one.prediction, Some(oracle(&FAST_LINK, &program).unwrap()));
        assert!(!one.explanation().is_empty());
    }
    // Eight ranks on the data axis want eight samples.
    let eight = all.iter().find(|one| one.strategy.to_string() == "data=8");
    assert_eq!(eight.unwrap().refusal, Some(Refusal::Unsuited));
}

#[test]
fn dear_messages_favor_data_and_cheap_ones_let_a_small_batch_be_split() {
    let graph = zoo::build("cosmoflow@32").unwrap();
    let dear = Flat {
        alpha: 1.0,
        ..FAST_LINK
    };
    let all = planned(&graph, (4, 4), &dear, PLENTY, false).unwrap();
    assert_eq!(all[0].strategy.to_string(), "data=4");
    let all = planned(&graph, (4, 1), &FAST_LINK, PLENTY, false).unwrap();
    assert_eq!(all[0].strategy.extent(Axis::Data), 1);
}

/// A reduce-scatter and an all-to-all of two ranks, the first of which sends more and the second of
/// which has more for itself.
fn shares() -> Program {
    let view = |length: usize| View {
        buffer: BufferId(0),
        start: [0; 5],
        extent: [1, 1, 1, 1, length],
    };
    let body = |rank: usize| {
        let whole = view(1 << 20);
        let buffer = Buffer {
            name: "all".to_owned(),
            role: Role::Activation,
            dtype: Dtype::F32,
            dims: whole.extent,
            tensor: None,
            offset: Bytes(0),
        };
        let kinds = [
            CollectiveKind::ReduceScatter {
                sources: [300, 700].map(view).to_vec().into(),
                target: view([300, 700][rank]),
            },
            CollectiveKind::AllToAll {
                sources: [[10, 900], [400, 1000]][rank].map(view).to_vec().into(),
                targets: [[10, 400], [900, 1000]][rank].map(view).to_vec().into(),
            },
        ];
        let task = |(sequence, kind)| Task {
            origin: Origin {
                layer: "layer".to_owned(),
                phase: Phase::Forward,
                turn: 0,
            },
            after: (0..sequence).map(TaskId).collect(),
            work: Work::Collective(Collective {
                sequence,
                group: AxisSet::of([Axis::Data]),
                submesh: None,
                kind,
            }),
        };
        Body {
            arena: buffer.bytes(),
            buffers: vec![buffer],
            tasks: (0..).zip(kinds).map(task).collect(),
            ..Body::default()
        }
    };
    Program {
        title: "shares".to_owned(),
        kind: ProgramKind::Train,
        dtype: Dtype::F32,
        batch: 2,
        mesh: Mesh::new([2, 1, 1, 1, 1, 1, 1]),
        local_statistics: partita_space::AxisSet::NONE,
        bodies: vec![body(0), body(1)],
        class_of: vec![0, 1],
    }
}

#[test]
fn the_floor_of_shares_knows_what_one_rank_sends_and_receives() {
    let program = shares();
    let step = simulate(&program, &FAST_LINK, Mode::Ranks, 1).unwrap();
    let of = |given: f64, largest: f64| {
        let bytes = 4.0 * (1000.0 + given + largest);
        2.0 * FAST_LINK.alpha + bytes * FAST_LINK.beta
    };
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    close(step.makespan.0, of(1400.0, 900.0));
    for (rank, given) in [(0, 910.0), (1, 1400.0)] {
        let floor = rank_seconds(program.body(rank), rank, &program.mesh, &FAST_LINK);
        close(floor.0, of(given, 900.0));
    }
}

#[test]
fn the_floor_is_below_every_step_and_prunes_without_changing_the_best() {
    let graph = zoo::build("cosmoflow@32").unwrap();
    let all = planned(&graph, (12, 6), &FAST_LINK, PLENTY, false).unwrap();
    for one in all.iter().filter(|one| one.reason.is_none()) {
        let request = Request {
            strategy: &one.strategy,
            ..training(&graph, 6)
        };
        let seconds = one.seconds().unwrap().0;
        let program = lower(&request).unwrap();
        let representatives = program.representatives().into_iter();
        let floors: Vec<f64> = representatives
            .map(|rank| rank_seconds(program.body(rank), rank, &program.mesh, &FAST_LINK).0)
            .collect();
        let most = floors.iter().copied().fold(0.0, f64::max);
        assert!(
            most <= seconds * (1.0 + 1e-9),
            "{}: {floors:?} {seconds}",
            one.strategy
        );
        assert!(
            most >= 0.8 * seconds,
            "{}: {floors:?} {seconds}",
            one.strategy
        );
    }
    let costed = RefCell::new(0);
    let texts: Vec<String> = candidates(&graph, 12, 6)
        .iter()
        .map(|one| format!(" {one}"))
        .collect();
    let pruned = plan(&SearchRequest {
        training: training(&graph, 6),
        ranks: 12,
        memory: PLENTY,
        lower_bound: &|body, rank, mesh| rank_seconds(body, rank, mesh, &FAST_LINK),
        prune_factor: f64::INFINITY,
        micro_statistics: true,
        front: false,
        knows_costs: true,
        cost: &|program| {
            *costed.borrow_mut() +=
                usize::from(texts.iter().any(|text| program.title.ends_with(text)));
            oracle(&FAST_LINK, program)
        },
        stages: &FixedCosts(&FAST_LINK),
        progress: &|_, _| {},
        is_over: &|_, _| false,
    })
    .unwrap();
    assert_eq!(pruned[0].strategy, all[0].strategy);
    assert_tried(&pruned, &graph, 12, 6);
    let passed_over = pruned
        .iter()
        .filter(is_whole(&graph, 12, 6))
        .filter(|one| one.refusal == Some(Refusal::Slower))
        .count();
    assert!(passed_over > 0);
    let fit = all
        .iter()
        .filter(is_whole(&graph, 12, 6))
        .filter(|one| one.reason.is_none())
        .count();
    assert_eq!(passed_over + *costed.borrow(), fit);
}

#[test]
fn a_search_that_ends_early_has_what_it_evaluated() {
    let graph = zoo::build("cosmoflow@32").unwrap();
    let ended = |is_over: &dyn Fn(bool, f64) -> bool| {
        plan(&SearchRequest {
            training: training(&graph, 4),
            ranks: 4,
            memory: PLENTY,
            lower_bound: &|_, _, _| Seconds(0.0),
            prune_factor: 3.0,
            micro_statistics: true,
            front: false,
            knows_costs: true,
            cost: &|program| oracle(&FAST_LINK, program),
            stages: &FixedCosts(&FAST_LINK),
            progress: &|_, _| {},
            is_over,
        })
    };
    let all = ended(&|has_evaluated, _| has_evaluated).unwrap();
    let evaluated = all.iter().filter(|one| one.prediction.is_some());
    assert_eq!(evaluated.count(), 1);
    let of_kind = |kind| all.iter().filter(move |one| one.refusal == Some(kind));
    assert!(of_kind(Refusal::Untried).count() > 20);
    let strategies: HashSet<String> = all.iter().map(|one| one.strategy.to_string()).collect();
    for strategy in candidates(&graph, 4, 4)
        .iter()
        .chain(&pipelines(&graph, 4, 4))
    {
        assert!(strategies.contains(&strategy.to_string()), "{strategy}");
    }
    assert_eq!(ended(&|_, _| true), Err(PlanError::Ended));
    // Where the time is limited, some of it is left for buckets.
    let all = ended(&|has_evaluated, share| has_evaluated && share < 1.0).unwrap();
    let in_buckets = all.iter().filter(|one| one.strategy.bucket > Bytes(0));
    let looked_at = in_buckets.filter(|one| one.refusal != Some(Refusal::Untried));
    assert_eq!(looked_at.count(), 2);
}

#[test]
fn memory_is_looked_at_before_time() {
    let graph = zoo::build("cosmoflow@32").unwrap();
    let all = planned(&graph, (4, 4), &FAST_LINK, PLENTY, false).unwrap();
    let mut needs: Vec<Bytes> = all
        .iter()
        .filter(is_whole(&graph, 4, 4))
        .filter_map(|one| one.prediction.as_ref())
        .map(|prediction| prediction.memory_bytes_max)
        .collect();
    needs.sort_unstable();
    let limit = needs[needs.len() / 2];
    let asked = RefCell::new(Vec::new());
    let some = plan(&SearchRequest {
        training: training(&graph, 4),
        ranks: 4,
        memory: limit,
        lower_bound: &|_, _, _| Seconds(0.0),
        prune_factor: f64::INFINITY,
        micro_statistics: true,
        front: false,
        knows_costs: true,
        cost: &|program| {
            asked.borrow_mut().push(program.memory_max());
            oracle(&FAST_LINK, program)
        },
        stages: &FixedCosts(&FAST_LINK),
        progress: &|_, _| {},
        is_over: &|_, _| false,
    })
    .unwrap();
    assert!(asked.borrow().iter().all(|&needed| needed <= limit));
    let refused: Vec<&RankedStrategy> = some
        .iter()
        .filter(is_whole(&graph, 4, 4))
        .filter(|one| one.reason.is_some())
        .collect();
    assert_eq!(
        refused.len(),
        needs.iter().filter(|&&needed| needed > limit).count()
    );
    for one in refused {
        assert!(
            one.explanation().contains(&limit.to_string()),
            "{}",
            one.explanation()
        );
    }
    let error = planned(&graph, (4, 4), &FAST_LINK, Bytes(1000), false).unwrap_err();
    let text = error.to_string();
    let PlanError::NoneFits {
        refused, nearest, ..
    } = error
    else {
        panic!("{text}");
    };
    assert_tried(&refused, &graph, 4, 4);
    assert!(
        text.contains("1000 B") && text.contains(&nearest.to_string()),
        "{text}"
    );
}

#[test]
fn unknown_costs_and_missing_kernels_are_told() {
    let graph = zoo::build("cosmoflow@32").unwrap();
    let request = |menu| SearchRequest {
        training: Request {
            menu,
            ..training(&graph, 2)
        },
        ranks: 2,
        memory: PLENTY,
        lower_bound: &|_, _, _| Seconds(0.0),
        prune_factor: f64::INFINITY,
        micro_statistics: true,
        front: false,
        knows_costs: true,
        cost: &|_| Err(UnknownCost("nobody measured this".to_owned())),
        stages: &FixedCosts(&FAST_LINK),
        progress: &|_, _| {},
        is_over: &|_, _| false,
    };
    let error = plan(&request(&requests::Open)).unwrap_err().to_string();
    assert!(error.contains("nobody measured this"), "{error}");
    struct Empty;
    impl Menu for Empty {
        fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
            Err(MenuError {
                backend: "nobody".to_owned(),
                kernel: shape.to_string(),
            })
        }
    }
    let error = plan(&request(&Empty)).unwrap_err();
    assert!(
        matches!(error, PlanError::Lower(LowerError::Menu(_))),
        "{error}"
    );
}

#[test]
fn a_thousand_ranks_are_planned() {
    let graph = zoo::build("cosmoflow@512").unwrap();
    let costs = Flat {
        rate: 8e12,
        alpha: 5e-6,
        beta: 5e-11,
    };
    let memory = Bytes(16_000_000_000);
    let all = planned(&graph, (1024, 64), &costs, memory, true).unwrap();
    assert_tried(&all, &graph, 1024, 64);
    assert!(all[0].reason.is_none());
}

#[test]
fn branches_and_pairs_are_tried_where_a_model_has_them() {
    let texts = |name: &str, ranks: usize, batch: usize| -> Vec<String> {
        let graph = zoo::build(name).unwrap();
        let all = candidates(&graph, ranks, batch);
        all.iter().map(ToString::to_string).collect()
    };
    let inception = texts("inceptionv3@128", 4, 2);
    for text in ["data=2,branch=2", "height=2,branch=2", "branch=4"] {
        assert!(inception.iter().any(|one| one == text), "{inception:?}");
    }
    let transformer = texts("t5-2-32-4@8", 4, 2);
    for text in ["data=2,branch=2", "filter=4; *.out: C=filter,F=-"] {
        assert!(transformer.iter().any(|one| one == text), "{transformer:?}");
    }
    let plain = texts("cosmoflow@32", 4, 2);
    assert!(!plain.iter().any(|one| one.contains("branch")), "{plain:?}");
    assert!(!plain.iter().any(|one| one.contains("*.")), "{plain:?}");
}

#[test]
fn micro_batches_that_change_the_training_are_tried_on_request_alone() {
    let dice = |batch| {
        Loss::Classes(ClassLoss {
            batch,
            ..ClassLoss::DICE
        })
    };
    for (model, loss, allowed, tries) in [
        ("cosmoflow@32", None, false, true),
        ("cosmoflow@32+bn", None, false, false),
        ("cosmoflow@32+bn", None, true, true),
        ("cosmoflow@32", Some(dice(false)), false, true),
        ("cosmoflow@32", Some(dice(true)), false, false),
        ("cosmoflow@32", Some(dice(true)), true, true),
    ] {
        let mut graph = zoo::build(model).unwrap();
        if let Some(loss) = loss {
            graph = graph.with_loss(&loss).unwrap();
        }
        let all = plan(&SearchRequest {
            training: training(&graph, 4),
            ranks: 2,
            memory: PLENTY,
            lower_bound: &|_, _, _| Seconds(0.0),
            prune_factor: f64::INFINITY,
            micro_statistics: allowed,
            front: false,
            knows_costs: true,
            cost: &|program| oracle(&FAST_LINK, program),
            stages: &FixedCosts(&FAST_LINK),
            progress: &|_, _| {},
            is_over: &|_, _| false,
        });
        let has_micro = all.unwrap().iter().any(|one| one.strategy.micro > 1);
        assert_eq!(has_micro, tries, "{model}, {allowed}");
    }
}

/// The memory of the best strategy where there is plenty.
fn memory_of_best(graph: &Graph, size: (usize, usize)) -> Bytes {
    let all = planned(graph, size, &FAST_LINK, PLENTY, true).unwrap();
    let best = all[0].prediction.as_ref().unwrap();
    best.memory_bytes_max
}

#[test]
fn what_does_not_fit_is_tried_with_savings() {
    for (model, size, part, saves) in [
        ("unet3d@64", (1, 1), 0.85, "recompute=selective"),
        ("unet3d@64", (1, 1), 0.75, "recompute=on"),
        ("resnet50@64", (1, 8), 0.95, "micro="),
        ("cosmoflow@64", (1, 8), 0.7, "micro="),
        ("unet3d@64", (2, 2), 0.55, "recompute=on"),
    ] {
        let graph = zoo::build(model).unwrap();
        let most = memory_of_best(&graph, size);
        let limit = Bytes((part * most.0 as f64) as u64);
        let all = planned(&graph, size, &FAST_LINK, limit, true).unwrap();
        let fit: Vec<&RankedStrategy> = all.iter().filter(|one| one.reason.is_none()).collect();
        let saving = fit
            .iter()
            .find(|one| one.strategy.to_string().contains(saves));
        assert!(saving.is_some(), "{model} {size:?}: {fit:#?}");
        for one in &fit {
            let request = Request {
                strategy: &one.strategy,
                ..training(&graph, size.1)
            };
            let needed = lower(&request).unwrap().memory_max();
            assert!(needed <= limit, "{}", one.strategy);
        }
        let different: HashSet<String> = all.iter().map(|one| one.strategy.to_string()).collect();
        assert!(different.len() > all.len() / 2);
    }
}

#[test]
fn where_nothing_fits_the_least_is_told() {
    let graph = zoo::build("unet3d@64").unwrap();
    let error = planned(&graph, (1, 1), &FAST_LINK, Bytes(1 << 20), true).unwrap_err();
    let text = error.to_string();
    let PlanError::NoneFits {
        refused, nearest, ..
    } = error
    else {
        panic!("{text}");
    };
    assert!(nearest.to_string().contains("recompute=on"), "{text}");
    let request = Request {
        strategy: &nearest,
        ..training(&graph, 1)
    };
    let least = lower(&request).unwrap().memory_max();
    assert_eq!(refused[0].refusal, Some(Refusal::Memory(least)));
    let single = lower(&training(&graph, 1)).unwrap().memory_max();
    assert!(least.0 * 10 < single.0 * 9, "{least} of {single}");
}

#[test]
fn the_front_reaches_down_to_the_least() {
    let graph = zoo::build("resnet110v2@32").unwrap();
    let error = planned(&graph, (1, 1), &FAST_LINK, Bytes(1 << 20), true).unwrap_err();
    let PlanError::NoneFits { refused, .. } = error else {
        panic!("{error}");
    };
    let Some(Refusal::Memory(least)) = refused[0].refusal else {
        panic!("{:?}", refused[0]);
    };
    let all = plan(&SearchRequest {
        training: training(&graph, 1),
        ranks: 1,
        memory: PLENTY,
        lower_bound: &|body, rank, mesh| rank_seconds(body, rank, mesh, &FAST_LINK),
        prune_factor: f64::INFINITY,
        micro_statistics: true,
        front: true,
        knows_costs: true,
        cost: &|program| oracle(&FAST_LINK, program),
        stages: &FixedCosts(&FAST_LINK),
        progress: &|_, _| {},
        is_over: &|_, _| false,
    });
    let all = all.unwrap();
    let costed = all.iter().filter_map(|one| one.prediction.as_ref());
    let mut points: Vec<(Bytes, f64)> = costed
        .map(|one| (one.memory_bytes_max, one.iteration_seconds.0))
        .collect();
    assert_eq!(all[0].strategy.to_string(), "data=1");
    points.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    assert_eq!(points[0].0, least);
    let mut fastest = f64::INFINITY;
    points.retain(|one| {
        let is_faster = one.1 < fastest;
        fastest = fastest.min(one.1);
        is_faster
    });
    assert!(points.len() >= 4, "{points:?}");
}
