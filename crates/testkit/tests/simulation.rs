//! The simulation by classes is that by ranks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_cluster::Machine;
use partita_graph::{Graph, zoo};
use partita_lower::{Request, SampleFormat, Strategy, class_count, lower, lower_ranks};
use partita_oracle::{MachineCosts, Mode, simulate};
use partita_program::{Dtype, Optimizer, Program, ProgramKind, Transform, UnpinnedMenu};
use partita_testkit::{
    Share, random_case, random_layer_case, random_sequence_case, random_staged_case, seeds,
};
use partita_verify::Fault;

const ADAM: Optimizer = Optimizer::Adam {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.0,
};

fn program(graph: &partita_graph::Graph, strategy: Strategy, batch: usize) -> Program {
    lower(&request(graph, &strategy, batch)).unwrap()
}

fn request<'a>(graph: &'a Graph, strategy: &'a Strategy, batch: usize) -> Request<'a> {
    let samples = SampleFormat {
        dtype: Dtype::I16,
        transform: Transform::Identity,
    };
    Request {
        graph,
        strategy,
        batch,
        kind: ProgramKind::Train,
        dtype: Dtype::F32,
        optimizer: ADAM,
        decay_norms: true,
        ema: None,
        clip: None,
        samples,
        menu: &UnpinnedMenu,
    }
}

fn costs() -> MachineCosts {
    MachineCosts::new(
        Machine::load("lassen", &[]).unwrap(),
        partita_cluster::Software::load("partita-cudnn", &[]).unwrap(),
    )
}

/// Simulates both ways and gives the number of classes.
fn compare(program: &Program) -> usize {
    let costs = costs();
    let [classes, ranks] =
        [Mode::Classes, Mode::Ranks].map(|mode| simulate(program, &costs, mode, 2).unwrap());
    let (a, b) = (classes.makespan.0, ranks.makespan.0);
    assert!(
        (a - b).abs() <= 1e-3 * b,
        "{}: {a} s by classes, {b} s by ranks",
        program.title
    );
    assert_eq!(ranks.participants.len(), program.mesh.ranks());
    classes.participants.len()
}

#[test]
fn random_programs_take_the_same_time_by_classes_and_by_ranks() {
    let cases = seeds(150, 3, 150).flat_map(|seed| {
        [
            random_case(seed),
            random_layer_case(seed),
            random_sequence_case(seed),
        ]
    });
    for case in cases {
        compare(&program(&case.graph, case.strategy, case.batch));
    }
}

#[test]
fn random_pipelines_take_the_same_time_by_classes_and_by_ranks() {
    for case in seeds(200, 4, 200).map(random_staged_case) {
        compare(&program(&case.graph, case.strategy, case.batch));
    }
}

#[test]
fn a_pipeline_of_many_replicas_is_as_many_classes_as_one() {
    let graph = zoo::build("cosmoflow@64").unwrap();
    for schedule in ["1f1b", "gems*2", "chimera"] {
        let classes = [2, 16].map(|data| {
            let text =
                format!("data={data},micro=4,stages=[depth=2|1|1|depth=2],schedule={schedule}");
            compare(&program(&graph, text.parse().unwrap(), 4 * data))
        });
        assert!(classes[1] <= classes[0], "{schedule}: {classes:?}");
    }
}

#[test]
fn cosmoflow_on_up_to_512_ranks_takes_the_same_time_by_classes_and_by_ranks() {
    let graph = zoo::build("cosmoflow@256+bn").unwrap();
    for (data, spatial) in [
        (4, [4, 1, 1]),
        (16, [4, 2, 1]),
        (64, [8, 1, 1]),
        (8, [4, 4, 4]),
    ] {
        let program = program(&graph, Strategy::hybrid(data, spatial), 64);
        let classes = compare(&program);
        assert!(classes <= program.mesh.ranks());
        if data == 64 {
            assert!(
                classes <= 32,
                "{classes} classes of {} ranks",
                program.mesh.ranks()
            );
        }
    }
}

#[test]
fn a_thousand_ranks_are_a_few_classes() {
    let graph = zoo::build("cosmoflow@512").unwrap();
    let program = program(&graph, Strategy::hybrid(64, [16, 1, 1]), 64);
    let simulation = simulate(&program, &costs(), Mode::Classes, 1).unwrap();
    assert_eq!(program.mesh.ranks(), 1024);
    assert!(
        simulation.participants.len() <= 64,
        "{} classes",
        simulation.participants.len()
    );
    let total: usize = simulation.participants.iter().map(|who| who.ranks).sum();
    assert_eq!(total, 1024);
}

/// Even and uneven extents; U-Net's halos go both ways, and its deep levels have parts of one voxel and of none.
#[test]
fn each_rank_in_space_has_the_body_of_its_class() {
    for (name, spatial, most) in [
        ("unet3d@64", [4, 4, 4], 27),
        ("unet3d@32", [16, 2, 2], 40),
        ("unet3d@64", [3, 5, 4], 60),
        // Each rank takes another part of the gradient of what all have gathered.
        ("cosmoflow@32", [4, 4, 4], 64),
        // Ranks without a part of the last levels are alike, wherever they lie.
        ("cosmoflow@64+bn", [16, 4, 4], 144),
        ("scaffold@32", [16, 4, 3], 72),
        ("scaffold@32", [32, 1, 1], 10),
    ] {
        let (graph, strategy) = (zoo::build(name).unwrap(), Strategy::hybrid(1, spatial));
        let request = request(&graph, &strategy, 1);
        let program = lower(&request).unwrap();
        assert!(
            program.bodies.len() <= most,
            "{name}: {}",
            program.bodies.len()
        );
        if let Err(partita_verify::Faults(faults)) = partita_verify::verify(&program) {
            let is_pinning = |fault: &Fault| matches!(fault, Fault::Unpinned { .. });
            assert!(faults.iter().all(is_pinning), "{name}");
        }
        let ranks: Vec<usize> = (0..program.mesh.ranks()).collect();
        for (rank, body) in lower_ranks(&request, &ranks).unwrap().enumerate() {
            assert!(body.unwrap() == *program.body(rank), "{name}, rank {rank}");
        }
    }
}

/// As many classes as levels that have fewer voxels than there are ranks.
#[test]
fn thousands_of_ranks_in_space_are_hundreds_of_classes() {
    let (graph, strategy) = (
        zoo::build("scaffold@32").unwrap(),
        Strategy::hybrid(1, [16, 16, 16]),
    );
    let request = request(&graph, &strategy, 1);
    let program = lower(&request).unwrap();
    assert!(program.bodies.len() <= 320, "{}", program.bodies.len());
    assert_eq!(class_count(&request).unwrap(), Some(program.bodies.len()));
    let ranks: Vec<usize> = (0..200).map(|at| (at * 7919 + 13) % 4096).collect();
    for (&rank, body) in ranks.iter().zip(lower_ranks(&request, &ranks).unwrap()) {
        assert!(body.unwrap() == *program.body(rank), "rank {rank}");
    }
}

/// Ten networks, even and uneven extents, parts without a voxel.
#[test]
fn about_500_ranks_take_the_same_time_by_classes_and_by_ranks() {
    let cases = [
        ("cosmoflow@512", [8, 8, 8]),
        ("cosmoflow@256+bn", [7, 8, 9]),
        ("unet3d@64", [7, 9, 8]),
        ("unet3d@32", [8, 8, 8]),
        ("scaffold@32", [5, 10, 10]),
        ("scaffold@64", [16, 8, 4]),
        ("resnet50@224", [1, 32, 16]),
        ("vgg16@224", [1, 16, 32]),
        ("alexnet@224", [1, 16, 32]),
        ("resnet110v2@64", [1, 32, 16]),
    ];
    for (name, spatial) in Share::of(5).of_items(cases) {
        let graph = zoo::build(name).unwrap();
        let program = program(&graph, Strategy::hybrid(1, spatial), 1);
        let costs = costs();
        let [some, all] =
            [Mode::Classes, Mode::Ranks].map(|mode| simulate(&program, &costs, mode, 1).unwrap());
        let (a, b) = (some.makespan.0, all.makespan.0);
        assert!(
            (a - b).abs() <= 0.01 * b,
            "{name}: {a} s, {b} s by all ranks"
        );
        let ranks = some.participants.iter().map(|one| one.ranks);
        assert_eq!(ranks.sum::<usize>(), program.mesh.ranks(), "{name}");
        // Classes are joined where there are many.
        if name == "cosmoflow@512" {
            assert!(some.participants.len() < 300, "{}", some.participants.len());
        }
    }
}

/// Of a long row of equal ranks two, or a node of them, stand for all.
#[test]
fn some_inner_ranks_tell_the_time_of_all() {
    for (name, spatial) in [("unet3d@64", [8, 8, 4]), ("unet3d@128", [16, 16, 1])] {
        let graph = zoo::build(name).unwrap();
        let program = program(&graph, Strategy::hybrid(1, spatial), 1);
        let costs = costs();
        let [some, all] =
            [Mode::Classes, Mode::Ranks].map(|mode| simulate(&program, &costs, mode, 1).unwrap());
        let left = some.contracted.as_ref().unwrap().ranks;
        assert!(left <= 128, "{name}: {left} ranks are left");
        assert_eq!(all.contracted, None);
        let (a, b) = (some.makespan.0, all.makespan.0);
        assert!(
            (a - b).abs() <= 0.01 * b,
            "{name}: {a} s, {b} s by all ranks"
        );
        let ranks = some.participants.iter().map(|one| one.ranks);
        assert_eq!(ranks.sum::<usize>(), program.mesh.ranks());
        for (basis, seconds) in &all.kernel_bases {
            let by_some = some.kernel_bases[basis].0;
            assert!(
                (by_some - seconds.0).abs() <= 1e-9 * seconds.0,
                "{name}: {basis:?}"
            );
        }
    }
}
