//! Findings in programs whose bounds are known.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests lie outside test functions"
)]

use crate::fixed_costs;

use fixed_costs::{BodyBuilder, FixedCosts, program, step};
use partita_oracle::explain::{Area, Nature};
use partita_oracle::{
    Change, Contention, Costs, CrossoverSearch, Finding, LimitingFactor, Mode, Progress,
    SampleRead, ScaledCosts, SpeedFactors, crossover, explain, simulate, what_ifs,
};
use partita_program::{
    Algorithm, Body, Buffer, BufferId, Distribution, Dtype, Kernel, Origin, Phase, Program, Role,
    Task, TensorRegion, View, Work,
};
use partita_space::{Axis, AxisList, AxisSet, Bytes, Mesh, Seconds};

const COSTS: FixedCosts = FixedCosts {
    contention: Contention::Units,
    progress: Progress::Queued,
    per_node: 64,
    host: 0.0,
};

fn findings(program: &Program, costs: &dyn Costs) -> Vec<Finding> {
    let simulation = simulate(program, costs, Mode::Ranks, 1).unwrap();
    explain(program, &simulation, costs).unwrap()
}

fn factors(findings: &[Finding]) -> Vec<LimitingFactor> {
    let factors = findings.iter().map(|finding| finding.factor);
    // Hand-made bodies have a buffer that nobody touches.
    factors
        .filter(|factor| factor.area() != Area::Memory)
        .collect()
}

fn of(findings: &[Finding], factor: LimitingFactor) -> &Finding {
    let found = findings.iter().find(|finding| finding.factor == factor);
    found.unwrap_or_else(|| panic!("no {factor} in {findings:?}"))
}

fn seconds(finding: &Finding) -> (f64, f64) {
    (finding.seconds.unwrap().0, finding.rank_seconds.unwrap().0)
}

fn data(ranks: usize) -> Mesh {
    Mesh::new([ranks, 1, 1, 1, 1, 1, 1])
}

/// Two ranks that sum `elements` of gradients after `compute` seconds.
fn summing(compute: f64, elements: usize) -> Program {
    let mut builder = BodyBuilder::new();
    let back = builder.kernel(Phase::Backward, &[], compute);
    let all = AxisSet::of([Axis::Data]);
    let sum = builder.allreduce(Phase::Reduce, &[back], 0, all, elements);
    builder.kernel(Phase::Update, &[sum], 1.0);
    program(data(2), vec![builder.body], vec![0, 0])
}

#[test]
fn gradient_reduction_and_update_are_limitations_of_training_alone() {
    let found = findings(&summing(3.0, 8), &COSTS);
    assert_eq!(
        factors(&found),
        [
            LimitingFactor::GradientExchange,
            LimitingFactor::WeightUpdate
        ]
    );
    let exchange = of(&found, LimitingFactor::GradientExchange);
    assert_eq!(seconds(exchange), (10.0, 10.0));
    assert!((exchange.share - 10.0 / 14.0).abs() < 1e-12);
    assert_eq!(exchange.nature, Nature::Limitation);
    assert_eq!(exchange.phases, [Phase::Reduce]);
    assert!(!exchange.in_inference);
    assert_eq!(
        seconds(of(&found, LimitingFactor::WeightUpdate)),
        (1.0, 1.0)
    );
}

#[test]
fn overlapped_communication_has_no_time_on_the_critical_path() {
    let mut builder = BodyBuilder::new();
    let all = AxisSet::of([Axis::Data]);
    let sum = builder.allreduce(Phase::Reduce, &[], 0, all, 8);
    let last = builder.kernel(Phase::Backward, &[], 20.0);
    builder.kernel(Phase::Update, &[sum, last], 1.0);
    let found = findings(&program(data(2), vec![builder.body], vec![0, 0]), &COSTS);
    assert_eq!(
        seconds(of(&found, LimitingFactor::GradientExchange)),
        (0.0, 10.0)
    );
}

#[test]
fn collectives_of_layers_and_reductions_of_gradients_are_told_apart() {
    let mut builder = BodyBuilder::new();
    let before = builder.kernel(Phase::Forward, &[], 2.0);
    let all = AxisSet::of([Axis::Data]);
    let gather = builder.allgather(Phase::Forward, &[before], 0, all, 2, 4);
    builder.kernel(Phase::Backward, &[gather], 2.0);
    let found = findings(&program(data(2), vec![builder.body], vec![0, 0]), &COSTS);
    assert_eq!(factors(&found), [LimitingFactor::LayerCollectives]);
    let gathered = of(&found, LimitingFactor::LayerCollectives);
    assert_eq!(seconds(gathered), (8.0, 8.0));
    assert!(gathered.in_inference && gathered.nature == Nature::Limitation);
}

#[test]
fn a_stage_that_waits_for_another_is_load_imbalance() {
    let depth = Mesh::new([1, 2, 1, 1, 1, 1, 1]);
    let body = |seconds: f64, by: i32, after: f64| {
        let mut builder = BodyBuilder::new();
        let before = builder.kernel(Phase::Forward, &[], seconds);
        let message = builder.exchange(Phase::Forward, &[before], 0, &[step(1, by)], 8);
        builder.kernel(Phase::Forward, &[message], after);
        builder.body
    };
    let bodies = vec![body(5.0, 1, 1.0), body(1.0, -1, 5.0)];
    let found = findings(&program(depth, bodies, vec![0, 1]), &COSTS);
    assert_eq!(
        factors(&found),
        [LimitingFactor::Messages, LimitingFactor::WorkloadBalance]
    );
    let message = of(&found, LimitingFactor::Messages);
    assert_eq!(seconds(message), (9.0, 9.0));
    assert!(message.in_inference && message.nature == Nature::Bottleneck);
    // Until 5 the message cannot start, from 14 on each computes for itself, up to 15 and 19.
    assert_eq!(
        seconds(of(&found, LimitingFactor::WorkloadBalance)),
        (4.0, 4.0)
    );
}

#[test]
fn contention_at_network_adapters_is_found() {
    let depth = Mesh::new([2, 2, 1, 1, 1, 1, 1]);
    let body = |by: i32| {
        let mut builder = BodyBuilder::new();
        let message = builder.exchange(Phase::Forward, &[], 0, &[step(1, by)], 8);
        builder.kernel(Phase::Forward, &[message], 10.0);
        builder.body
    };
    // Ranks 0 and 2 share a node, and both send to the other one.
    let apart = |per_node| FixedCosts {
        contention: Contention::Units,
        progress: Progress::Queued,
        per_node,
        host: 0.0,
    };
    let by_depth = program(depth, vec![body(1), body(-1)], vec![0, 1, 0, 1]);
    assert_eq!(
        factors(&findings(&by_depth, &apart(4))),
        [LimitingFactor::Messages]
    );
    let by_data = {
        let body = |by: i32| {
            let mut builder = BodyBuilder::new();
            let message = builder.exchange(Phase::Forward, &[], 0, &[step(0, by)], 8);
            builder.kernel(Phase::Forward, &[message], 10.0);
            builder.body
        };
        program(depth, vec![body(1), body(-1)], vec![0, 0, 1, 1])
    };
    let found = findings(&by_data, &apart(2));
    assert_eq!(
        factors(&found),
        [LimitingFactor::Messages, LimitingFactor::Congestion]
    );
    // 10 and 8 seconds alone; two messages of 8 words leave a node at once.
    assert_eq!(seconds(of(&found, LimitingFactor::Messages)), (26.0, 26.0));
    let congestion = of(&found, LimitingFactor::Congestion);
    assert_eq!(seconds(congestion), (8.0, 8.0));
    assert_eq!(congestion.phases, [Phase::Forward]);
}

#[test]
fn reads_count_unless_overlapped() {
    let mut builder = BodyBuilder::new();
    builder.load(&[], 12);
    builder.kernel(Phase::Forward, &[], 10.0);
    let found = findings(&program(data(1), vec![builder.body], vec![0]), &COSTS);
    assert_eq!(factors(&found), [LimitingFactor::Reading]);
    assert_eq!(seconds(of(&found, LimitingFactor::Reading)), (12.0, 12.0));
}

fn buffer(name: &str, role: Role, elements: usize, tensor: Option<TensorRegion>) -> Buffer {
    Buffer {
        name: name.to_owned(),
        role,
        dtype: Dtype::F32,
        dims: [1, 1, 1, 1, elements],
        tensor,
        offset: Bytes(0),
    }
}

/// Over the data axis; `low` more elements before what a rank owns, where there are any.
fn by_data(elements: usize, low: usize, redundant: bool) -> TensorRegion {
    let mut distribution = Distribution::replicated([1, 1, 1, 1, elements]);
    distribution.axes[4] = AxisList::of([Axis::Data]);
    TensorRegion {
        id: 0,
        distribution,
        halo_low: [0, 0, 0, 0, low as i64],
        redundant,
    }
}

/// Two ranks along data and two along depth; all hold 16 parameters, those along depth the same 8 values
/// of 16, with 2 before them. Each computes its values in 6 seconds.
fn copying(redundant: bool) -> Program {
    let mesh = Mesh::new([2, 2, 1, 1, 1, 1, 1]);
    let body = |low: usize| {
        let tensor = by_data(16, low, redundant);
        let all = View {
            buffer: BufferId(1),
            start: [0; 5],
            extent: [1, 1, 1, 1, 8 + low],
        };
        let kernel = Kernel::LeakyReluForward {
            x: all,
            y: all,
            negative_slope: 0.0,
        };
        let task = Task {
            origin: Origin {
                layer: "act".to_owned(),
                phase: Phase::Forward,
                turn: 0,
            },
            after: Vec::new(),
            work: Work::Compute {
                kernel,
                algorithm: Algorithm("6".to_owned()),
                workspace: None,
            },
        };
        Body {
            buffers: vec![
                buffer("w", Role::Parameter, 16, None),
                buffer("act", Role::Activation, 8 + low, Some(tensor)),
            ],
            tasks: vec![task],
            arena: Bytes(112),
            ..Body::default()
        }
    };
    program(mesh, vec![body(0), body(2)], vec![0, 0, 1, 1])
}

#[test]
fn replication_fragmentation_and_redundant_computation_are_counted() {
    let found = findings(&copying(false), &COSTS);
    let expected = [
        LimitingFactor::MemoryRedundancy,
        LimitingFactor::MemoryGaps,
        LimitingFactor::ComputationRedundancy,
    ];
    assert_eq!(
        found.iter().map(|one| one.factor).collect::<Vec<_>>(),
        expected
    );
    // Of the second body three quarters of 64 bytes, half of 32, and 8 of the neighbor.
    let redundancy = of(&found, LimitingFactor::MemoryRedundancy);
    assert_eq!(redundancy.bytes, Some(Bytes(48 + 16 + 8)));
    let gaps = of(&found, LimitingFactor::MemoryGaps);
    assert_eq!(gaps.bytes, Some(Bytes(112 - 64 - 40)));
    let twice = of(&found, LimitingFactor::ComputationRedundancy);
    assert_eq!(seconds(twice), (3.0, 3.0));
    assert!(twice.in_inference && twice.nature == Nature::Bottleneck);
    // A flop for each of 2 x 8 and 2 x 10 elements, half of them done by two.
    assert_eq!(twice.flops.unwrap().0, 18);
    // What is computed around the own part is a copy besides: 8 of 10 once, that for two.
    let found = findings(&copying(true), &COSTS);
    let twice = of(&found, LimitingFactor::ComputationRedundancy);
    let most = 6.0 * (1.0 - 0.8 / 2.0);
    assert!((seconds(twice).1 - most).abs() < 1e-12, "{twice:?}");
}

#[test]
fn factors_below_a_thousandth_are_left_out() {
    let found = findings(&summing(1e6, 8), &COSTS);
    assert_eq!(factors(&found), []);
}

#[test]
fn more_bandwidth_speeds_up_bandwidth_bound_programs_alone() {
    let speedup = |program: &Program, change: Change| {
        let now = simulate(program, &COSTS, Mode::Ranks, 1).unwrap().makespan;
        let all = what_ifs((program, &COSTS), Mode::Ranks, now, &|| false).unwrap();
        all.iter().find(|one| one.change == change).unwrap().speedup
    };
    let links = summing(1.0, 60);
    // 1 + 2 + 60 + 1 seconds, of which 60 halve, or 2.
    assert!((speedup(&links, Change::LinkBandwidth) - 64.0 / 34.0).abs() < 1e-12);
    assert!((speedup(&links, Change::LinkLatency) - 64.0 / 63.0).abs() < 1e-12);
    assert!(speedup(&links, Change::Kernels) < 1.02);
    let kernels = summing(1000.0, 1);
    assert!(speedup(&kernels, Change::LinkBandwidth) < 1.001);
    assert!(speedup(&kernels, Change::Kernels) > 1.99);
}

#[test]
fn the_crossover_is_where_two_programs_take_equally_long() {
    let costs: &dyn Costs = &COSTS;
    let (alone, summed) = (
        {
            let mut builder = BodyBuilder::new();
            builder.kernel(Phase::Backward, &[], 11.0);
            program(data(2), vec![builder.body], vec![0, 0])
        },
        // 6 + 2 + 8 + 1 seconds: 11 where 8 take 2.
        summing(6.0, 8),
    );
    let search = |second: &Program, is_late: &dyn Fn() -> bool| {
        crossover((&alone, costs), (second, costs), Mode::Classes, is_late).unwrap()
    };
    let CrossoverSearch::Found(found) = search(&summed, &|| false) else {
        panic!("no crossover");
    };
    assert!((found.bandwidth - 4.0).abs() < 0.12, "{found:?}");
    assert_eq!(found.iteration_seconds, Seconds(11.0));
    let never = summing(9.0, 8);
    assert_eq!(search(&never, &|| false), CrossoverSearch::Never);
    // After two looks at the time.
    let looks = std::cell::Cell::new(0);
    let is_late = || looks.replace(looks.get() + 1) == 2;
    assert_eq!(search(&summed, &is_late), CrossoverSearch::Ended);
    assert_eq!(looks.get(), 3);
}

#[test]
fn speed_factors_divide_costs() {
    let speeds = SpeedFactors {
        kernels: 2.0,
        links: 4.0,
        latency: 0.5,
        reading: 3.0,
        ..SpeedFactors::default()
    };
    let scaled = ScaledCosts::new(&COSTS, speeds);
    let message = scaled.message(0, 1, Bytes(32), 1.0).unwrap();
    assert_eq!(
        (message.latency, message.transfer),
        (Seconds(2.0), Seconds(2.0))
    );
    let sum = scaled.allreduce(&[0, 1], Bytes(32), 1.0).unwrap();
    assert_eq!((sum.latency, sum.transfer), (Seconds(4.0), Seconds(2.0)));
    let read = SampleRead {
        bytes: Bytes(12),
        bytes_f32: Bytes(12),
        readers: 1,
        parts: 1,
    };
    assert_eq!(scaled.load(0, read).unwrap().seconds, Seconds(1.0));
    let unshared = ScaledCosts::new(
        &COSTS,
        SpeedFactors {
            contention: false,
            ..SpeedFactors::default()
        },
    );
    assert_eq!(
        unshared.message(0, 1, Bytes(32), 5.0).unwrap().transfer,
        Seconds(8.0)
    );
    let unchanged = simulate(
        &summing(3.0, 8),
        &ScaledCosts::new(&COSTS, SpeedFactors::default()),
        Mode::Ranks,
        1,
    );
    assert_eq!(
        unchanged,
        simulate(&summing(3.0, 8), &COSTS, Mode::Ranks, 1)
    );
}
