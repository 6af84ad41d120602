//! Networks that read numbers beside the samples: every strategy equals one rank.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{Graph, text};
use partita_lower::Strategy;
use partita_program::{Dtype, Item, ProgramKind, Work};
use partita_testkit::verify::verify;
use partita_testkit::{
    Case, Draws, Setup, least_of, mismatch, random_branched_case, random_case, random_layer_case,
    random_sequence_case, random_staged_case, reference_kernels, run, seeds,
};

/// The same network with a gate of three numbers on what the loss reads, or with these among its features; they stand
/// after the input or just before they are read.
fn with_features(graph: &Graph, draws: &mut Draws) -> Graph {
    let printed = text::print(graph);
    let mut lines: Vec<String> = printed.lines().map(str::to_owned).collect();
    let loss = lines.pop().unwrap();
    let last = &graph.nodes[graph.nodes.len() - 1];
    let head = graph.node(last.inputs[0]);
    let (name, channels) = (&head.name, head.shape.channels);
    let features = "input tabular features=3".to_owned();
    if draws.one_in(2) {
        lines.insert(2, features);
    } else {
        lines.push(features);
    }
    if head.shape.extent == [1; 3] && draws.one_in(2) {
        lines.push(format!("tabular.both = concat {name} tabular"));
        lines.push(format!(
            "tabular.out = linear tabular.both features={channels}"
        ));
    } else {
        lines.push("tabular.hidden = linear tabular features=4".to_owned());
        lines.push("tabular.act = tanh tabular.hidden".to_owned());
        lines.push(format!(
            "tabular.gate = linear tabular.act features={channels}"
        ));
        lines.push(format!("tabular.out = multiply {name} tabular.gate"));
    }
    let (before, after) = loss.rsplit_once(&format!(" {name}")).unwrap();
    lines.push(format!("{before} tabular.out{after}"));
    text::parse(&lines.join("\n")).unwrap_or_else(|error| panic!("{error}\n{}", lines.join("\n")))
}

/// Compares cases with one rank, of which at least a number can be split as drawn.
fn compare(least: usize, cases: u64, draw: fn(u64) -> Case) {
    let mut done = 0;
    let range = seeds(cases, 4, 10 * cases);
    let least = least_of(least, cases, &range);
    for seed in range {
        let mut case = draw(seed);
        let has_auxiliary = case
            .graph
            .nodes
            .iter()
            .filter(|node| node.op.loss().is_some());
        if has_auxiliary.count() > 1 {
            // All losses have one shape and kind of reader.
            continue;
        }
        case.graph = with_features(&case.graph, &mut Draws::new(seed ^ 0xfea7));
        if case.strategy.check(&case.graph, case.batch).is_err() {
            continue;
        }
        let kernels = reference_kernels(Dtype::F64);
        let setup = Setup::of_case(&case, &kernels);
        let mut alone = setup.clone();
        alone.strategy = Strategy::single();
        alone.strategy.micro = case.strategy.micro;
        let text = format!("seed {seed} {}", case.strategy);
        let program = setup.program(ProgramKind::Train).unwrap();
        verify(&program).unwrap_or_else(|faults| panic!("{text}: {faults}"));
        let [split, one] =
            [&setup, &alone].map(|setup| run(setup).unwrap_or_else(|e| panic!("{text}: {e}")));
        if one
            .losses
            .iter()
            .any(|loss| loss.abs() > 1e12 || loss.is_nan())
        {
            continue;
        }
        if let Some(mismatch) = mismatch(&split, &one, 1e-9) {
            panic!("{text}: {mismatch}\n{}", text::print(&case.graph));
        }
        done += 1;
    }
    assert!(done >= least, "only {done} cases were compared");
}

#[test]
fn features_under_hybrids() {
    compare(40, 100, random_case);
}

#[test]
fn features_on_every_axis() {
    compare(30, 80, random_layer_case);
}

#[test]
fn features_beside_sequences() {
    compare(10, 40, random_sequence_case);
}

#[test]
fn features_of_stages_and_branches() {
    compare(15, 60, random_staged_case);
    compare(8, 40, random_branched_case);
}

/// They change the result, and are read by each rank for its own samples alone.
#[test]
fn features_are_read_by_samples() {
    let model = "model m\ninput x channels=1 extent=4x4\ninput t features=2
f = flatten x\nk = concat f t\ny = linear k features=1\nloss = mse y";
    let graph = text::parse(model).unwrap();
    let kernels = reference_kernels(Dtype::F64);
    let case = Case {
        graph,
        strategy: "data=2,height=2".parse().unwrap(),
        batch: 4,
        seed: 7,
    };
    let mut setup = Setup::of_case(&case, &kernels);
    let program = setup.program(ProgramKind::Train).unwrap();
    for body in &program.bodies {
        let loads = body.tasks.iter().filter_map(|task| match &task.work {
            Work::Load(load) if load.item == Item::Features => Some(load.target.extent),
            _ => None,
        });
        for extent in loads {
            assert_eq!(extent, [2, 2, 1, 1, 1]);
        }
    }
    let before = run(&setup).unwrap().losses[0];
    let mut other = (*setup.samples).clone();
    other.features[3][1] += 1.0;
    setup.samples = std::sync::Arc::new(other);
    assert_ne!(run(&setup).unwrap().losses[0], before);
}
