//! What is found in programs of which it is known what bounds them.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests lie outside test functions"
)]

mod table;

use partita_oracle::explain::{Area, Nature};
use partita_oracle::{
    Change, Costs, Finding, Item, Mode, Scaled, Speeds, explain, simulate, turning_point, what_ifs,
};
use partita_program::{
    Algorithm, Body, Buffer, BufferId, Distribution, Dtype, Kernel, Origin, Phase, Program, Role,
    Task, TensorRegion, View, Work,
};
use partita_space::{Axis, AxisList, AxisSet, Bytes, Mesh, Seconds};
use table::{Maker, Table, program, step};

const TABLE: Table = Table {
    per_node: 64,
    host: 0.0,
};

fn findings(program: &Program, costs: &dyn Costs) -> Vec<Finding> {
    let simulation = simulate(program, costs, Mode::Ranks, 1).unwrap();
    explain(program, &simulation, costs).unwrap()
}

fn items(findings: &[Finding]) -> Vec<Item> {
    let items = findings.iter().map(|finding| finding.item);
    // Hand-made bodies have a buffer that nobody touches.
    items.filter(|item| item.area() != Area::Memory).collect()
}

fn of(findings: &[Finding], item: Item) -> &Finding {
    let found = findings.iter().find(|finding| finding.item == item);
    found.unwrap_or_else(|| panic!("no {item} in {findings:?}"))
}

fn seconds(finding: &Finding) -> (f64, f64) {
    (finding.seconds.unwrap().0, finding.rank_seconds.unwrap().0)
}

fn data(ranks: usize) -> Mesh {
    Mesh::new([ranks, 1, 1, 1, 1, 1, 1])
}

/// Two ranks that sum `elements` of gradients after `compute` seconds.
fn summing(compute: f64, elements: usize) -> Program {
    let mut maker = Maker::new();
    let back = maker.kernel(Phase::Backward, &[], compute);
    let all = AxisSet::of([Axis::Data]);
    let sum = maker.allreduce(Phase::Reduce, &[back], 0, all, elements);
    maker.kernel(Phase::Update, &[sum], 1.0);
    program(data(2), vec![maker.body], vec![0, 0])
}

#[test]
fn sums_of_gradients_and_the_update_are_limits_of_training_alone() {
    let found = findings(&summing(3.0, 8), &TABLE);
    assert_eq!(items(&found), [Item::GradientExchange, Item::WeightUpdate]);
    let exchange = of(&found, Item::GradientExchange);
    assert_eq!(seconds(exchange), (10.0, 10.0));
    assert!((exchange.share - 10.0 / 14.0).abs() < 1e-12);
    assert_eq!(exchange.nature, Nature::Limitation);
    assert_eq!(exchange.phases, [Phase::Reduce]);
    assert!(!exchange.in_inference);
    assert_eq!(seconds(of(&found, Item::WeightUpdate)), (1.0, 1.0));
}

#[test]
fn what_hides_is_found_with_nothing_on_the_critical_path() {
    let mut maker = Maker::new();
    let all = AxisSet::of([Axis::Data]);
    let sum = maker.allreduce(Phase::Reduce, &[], 0, all, 8);
    let last = maker.kernel(Phase::Backward, &[], 20.0);
    maker.kernel(Phase::Update, &[sum, last], 1.0);
    let found = findings(&program(data(2), vec![maker.body], vec![0, 0]), &TABLE);
    assert_eq!(seconds(of(&found, Item::GradientExchange)), (0.0, 10.0));
}

#[test]
fn collectives_of_layers_are_told_from_sums_of_gradients() {
    let mut maker = Maker::new();
    let before = maker.kernel(Phase::Forward, &[], 2.0);
    let all = AxisSet::of([Axis::Data]);
    let gather = maker.allgather(Phase::Forward, &[before], 0, all, 4);
    maker.kernel(Phase::Backward, &[gather], 2.0);
    let found = findings(&program(data(2), vec![maker.body], vec![0, 0]), &TABLE);
    assert_eq!(items(&found), [Item::LayerCollectives]);
    let gathered = of(&found, Item::LayerCollectives);
    assert_eq!(seconds(gathered), (8.0, 8.0));
    assert!(gathered.in_inference && gathered.nature == Nature::Limitation);
}

#[test]
fn a_stage_that_waits_for_another_is_a_matter_of_balance() {
    let depth = Mesh::new([1, 2, 1, 1, 1, 1, 1]);
    let body = |seconds: f64, by: i32, after: f64| {
        let mut maker = Maker::new();
        let before = maker.kernel(Phase::Forward, &[], seconds);
        let message = maker.exchange(Phase::Forward, &[before], 0, &[step(1, by)], 8);
        maker.kernel(Phase::Forward, &[message], after);
        maker.body
    };
    let bodies = vec![body(5.0, 1, 1.0), body(1.0, -1, 5.0)];
    let found = findings(&program(depth, bodies, vec![0, 1]), &TABLE);
    assert_eq!(items(&found), [Item::Messages, Item::WorkloadBalance]);
    let message = of(&found, Item::Messages);
    assert_eq!(seconds(message), (9.0, 9.0));
    assert!(message.in_inference && message.nature == Nature::Bottleneck);
    // Until 5 the message cannot start, from 14 on each computes for itself, up to 15 and 19.
    assert_eq!(seconds(of(&found, Item::WorkloadBalance)), (4.0, 4.0));
}

#[test]
fn shared_adapters_are_told_by_what_they_cost() {
    let depth = Mesh::new([2, 2, 1, 1, 1, 1, 1]);
    let body = |by: i32| {
        let mut maker = Maker::new();
        let message = maker.exchange(Phase::Forward, &[], 0, &[step(1, by)], 8);
        maker.kernel(Phase::Forward, &[message], 10.0);
        maker.body
    };
    // Ranks 0 and 2 share a node, and both send to the other one.
    let apart = |per_node| Table {
        per_node,
        host: 0.0,
    };
    let by_depth = program(depth, vec![body(1), body(-1)], vec![0, 1, 0, 1]);
    assert_eq!(items(&findings(&by_depth, &apart(4))), [Item::Messages]);
    let by_data = {
        let body = |by: i32| {
            let mut maker = Maker::new();
            let message = maker.exchange(Phase::Forward, &[], 0, &[step(0, by)], 8);
            maker.kernel(Phase::Forward, &[message], 10.0);
            maker.body
        };
        program(depth, vec![body(1), body(-1)], vec![0, 0, 1, 1])
    };
    let found = findings(&by_data, &apart(2));
    assert_eq!(items(&found), [Item::Messages, Item::Congestion]);
    // 10 and 8 seconds alone; two messages of 8 words leave a node at once.
    assert_eq!(seconds(of(&found, Item::Messages)), (26.0, 26.0));
    let congestion = of(&found, Item::Congestion);
    assert_eq!(seconds(congestion), (8.0, 8.0));
    assert_eq!(congestion.phases, [Phase::Forward]);
}

#[test]
fn reading_counts_where_it_does_not_hide() {
    let mut maker = Maker::new();
    maker.load(&[], 12);
    maker.kernel(Phase::Forward, &[], 10.0);
    let found = findings(&program(data(1), vec![maker.body], vec![0]), &TABLE);
    assert_eq!(items(&found), [Item::Reading]);
    assert_eq!(seconds(of(&found, Item::Reading)), (12.0, 12.0));
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
        halo_low: [0, 0, 0, 0, low],
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
fn copies_gaps_and_work_done_twice_are_counted() {
    let found = findings(&copying(false), &TABLE);
    let expected = [
        Item::MemoryRedundancy,
        Item::MemoryGaps,
        Item::ComputationRedundancy,
    ];
    assert_eq!(
        found.iter().map(|one| one.item).collect::<Vec<_>>(),
        expected
    );
    // Of the second body three quarters of 64 bytes, half of 32, and 8 of the neighbor.
    let redundancy = of(&found, Item::MemoryRedundancy);
    assert_eq!(redundancy.bytes, Some(Bytes(48 + 16 + 8)));
    let gaps = of(&found, Item::MemoryGaps);
    assert_eq!(gaps.bytes, Some(Bytes(112 - 64 - 40)));
    let twice = of(&found, Item::ComputationRedundancy);
    assert_eq!(seconds(twice), (3.0, 3.0));
    assert!(twice.in_inference && twice.nature == Nature::Bottleneck);
    // A flop for each of 2 x 8 and 2 x 10 elements, half of them done by two.
    assert_eq!(twice.flops.unwrap().0, 18);
    // What is computed around the own part is a copy besides: 8 of 10 once, that for two.
    let found = findings(&copying(true), &TABLE);
    let twice = of(&found, Item::ComputationRedundancy);
    let most = 6.0 * (1.0 - 0.8 / 2.0);
    assert!((seconds(twice).1 - most).abs() < 1e-12, "{twice:?}");
}

#[test]
fn what_is_left_out_makes_no_thousandth() {
    let found = findings(&summing(1e6, 8), &TABLE);
    assert_eq!(items(&found), []);
}

#[test]
fn bandwidth_speeds_up_what_it_bounds_and_nothing_else() {
    let speedup = |program: &Program, change: Change| {
        let now = simulate(program, &TABLE, Mode::Ranks, 1).unwrap().makespan;
        let all = what_ifs(program, &TABLE, Mode::Ranks, now).unwrap();
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
fn two_programs_change_places_where_their_times_meet() {
    let costs: &dyn Costs = &TABLE;
    let (alone, summed) = (
        {
            let mut maker = Maker::new();
            maker.kernel(Phase::Backward, &[], 11.0);
            program(data(2), vec![maker.body], vec![0, 0])
        },
        // 6 + 2 + 8 + 1 seconds: 11 where 8 take 2.
        summing(6.0, 8),
    );
    let turn = turning_point((&alone, costs), (&summed, costs), Mode::Classes)
        .unwrap()
        .unwrap();
    assert!((turn.bandwidth - 4.0).abs() < 0.12, "{turn:?}");
    assert_eq!(turn.iteration_seconds, Seconds(11.0));
    let never = summing(9.0, 8);
    assert_eq!(
        turning_point((&alone, costs), (&never, costs), Mode::Classes),
        Ok(None)
    );
}

#[test]
fn speeds_divide_what_they_are_of() {
    let speeds = Speeds {
        kernels: 2.0,
        links: 4.0,
        latency: 0.5,
        reading: 3.0,
        ..Speeds::default()
    };
    let scaled = Scaled::new(&TABLE, speeds);
    let message = scaled.message(0, 1, Bytes(32), 1.0).unwrap();
    assert_eq!(
        (message.latency, message.transfer),
        (Seconds(2.0), Seconds(2.0))
    );
    let sum = scaled.allreduce(&[0, 1], Bytes(32), 1.0).unwrap();
    assert_eq!((sum.latency, sum.transfer), (Seconds(4.0), Seconds(2.0)));
    assert_eq!(scaled.load(0, Bytes(12), 1).unwrap(), Seconds(1.0));
    let unshared = Scaled::new(
        &TABLE,
        Speeds {
            sharing: false,
            ..Speeds::default()
        },
    );
    assert_eq!(
        unshared.message(0, 1, Bytes(32), 5.0).unwrap().transfer,
        Seconds(8.0)
    );
    let unchanged = simulate(
        &summing(3.0, 8),
        &Scaled::new(&TABLE, Speeds::default()),
        Mode::Ranks,
        1,
    );
    assert_eq!(
        unchanged,
        simulate(&summing(3.0, 8), &TABLE, Mode::Ranks, 1)
    );
}
