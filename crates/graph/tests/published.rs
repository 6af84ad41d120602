//! The zoo against the figures of its publications.

#![allow(clippy::unwrap_used)] // The setting for tests leaves out their helper functions.

use partita_graph::{Counts, Graph, Op, ParameterId, ParameterRole, count, text, zoo};

const SIZES: [usize; 5] = [32, 64, 128, 256, 512];

fn counts(name: &str) -> Counts {
    count(&zoo::build(name).unwrap())
}

fn giga(flops: partita_space::Flops) -> String {
    format!("{:.2}", flops.0 as f64 / 1e9)
}

fn gib(bytes: partita_space::Bytes) -> String {
    format!("{:.4}", bytes.0 as f64 / f64::from(1 << 30))
}

fn names_of(graph: &Graph, wanted: fn(&Op) -> bool) -> Vec<&str> {
    let nodes = graph.nodes.iter().filter(|node| wanted(&node.op));
    nodes.map(|node| node.name.as_str()).collect()
}

/// Oyama et al., table 1, with the digits that its formulas give.
#[test]
fn cosmoflow_has_the_published_flops_and_memory() {
    let published = [
        (128, "18.52", "55.55", "0.8236"),
        (256, "147.93", "443.78", "6.5888"),
        (512, "1183.42", "3550.27", "52.7103"),
    ];
    for (size, forward, training, memory) in published {
        let counts = counts(&format!("cosmoflow@{size}"));
        assert_eq!(counts.parameters, 9_435_328, "{size}");
        assert_eq!(giga(counts.forward_flops), forward);
        assert_eq!(giga(counts.training_flops), training);
        assert_eq!(gib(counts.memory_bytes_per_sample), memory);
        assert_eq!(
            counts.linear_flops.0,
            2 * (2048 * 2048 + 2048 * 256 + 256 * 4)
        );
    }
}

#[test]
fn linear_layers_would_change_a_printed_digit() {
    for size in [128, 256, 512] {
        let counts = counts(&format!("cosmoflow@{size}"));
        let both = counts.forward_flops + counts.linear_flops;
        assert_ne!(giga(both), giga(counts.forward_flops), "{size}");
    }
}

#[test]
fn every_size_ends_at_the_published_features() {
    for size in SIZES {
        for suffix in ["", "+bn"] {
            let graph = zoo::build(&format!("cosmoflow@{size}{suffix}")).unwrap();
            let flatten = graph.node(graph.find("flatten").unwrap());
            let last = graph.node(flatten.inputs[0]);
            assert_eq!(last.shape.batched(1), [1, 2, 2, 2, 256], "{size}{suffix}");
            assert_eq!(flatten.shape.channels, 2048);
            assert_eq!(graph.nodes.last().unwrap().shape.channels, 4);
        }
    }
}

#[test]
fn pools_follow_the_table_and_its_rule() {
    let pools = |size: usize| {
        let graph = zoo::build(&format!("cosmoflow@{size}")).unwrap();
        names_of(&graph, |op| matches!(op, Op::Pool(_))).join(" ")
    };
    assert_eq!(pools(32), "pool1 pool2 pool3");
    assert_eq!(pools(64), "pool1 pool2 pool3 pool4");
    assert_eq!(pools(128), "pool1 pool2 pool3 pool4 pool5");
    assert_eq!(pools(256), "pool1 pool2 pool3 pool4 pool5 pool6");
    assert_eq!(pools(512), "pool1 pool2 pool3 pool4 pool5 pool6 pool7");
}

#[test]
fn batch_norms_add_parameters_and_memory_but_no_flops() {
    for size in SIZES {
        let plain = counts(&format!("cosmoflow@{size}"));
        let normed = counts(&format!("cosmoflow@{size}+bn"));
        let filters: u64 = [16, 32, 64, 128, 256, 256, 256].iter().sum();
        assert_eq!(normed.parameters, plain.parameters + 2 * filters);
        assert_eq!(normed.forward_flops, plain.forward_flops);
        let convolutions = plain
            .layers
            .iter()
            .filter(|layer| layer.operation == "conv");
        let added: u64 = convolutions.map(|layer| layer.memory_bytes.0).sum();
        assert_eq!(
            normed.memory_bytes_per_sample.0,
            plain.memory_bytes_per_sample.0 + added
        );
    }
    assert_eq!(counts("cosmoflow@512+bn").parameters, 9_437_344);
}

#[test]
fn rows_sum_to_totals_and_the_first_convolution_has_no_backward_data() {
    for name in zoo::names() {
        let counts = counts(&name);
        let forward: u64 = counts
            .layers
            .iter()
            .map(|layer| layer.forward_flops.0)
            .sum();
        assert_eq!(forward, counts.forward_flops.0 + counts.linear_flops.0);
        let first = counts
            .layers
            .iter()
            .find(|layer| layer.name == "conv1")
            .unwrap();
        assert_eq!(first.executed_flops.0, 2 * first.forward_flops.0);
        assert_eq!(counts.executed_flops.0, 3 * forward - first.forward_flops.0);
    }
}

#[test]
fn normalization_comes_between_convolution_and_activation() {
    let graph = zoo::build("cosmoflow@32+bn").unwrap();
    let order: Vec<&str> = graph.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(order[..5], ["x", "conv1", "bn1", "act1", "pool1"]);
    let tail = [
        "flatten", "drop1", "fc1", "fc1_act", "drop2", "fc2", "fc2_act", "drop3", "fc3", "loss",
    ];
    assert_eq!(order[order.len() - tail.len()..], tail);
    let norm = &graph.node(graph.find("bn1").unwrap()).op;
    let expected = Op::BatchNorm {
        epsilon: 1e-5,
        momentum: 0.001,
    };
    assert_eq!(*norm, expected);
    let roles = &graph.node(graph.find("bn1").unwrap()).parameters;
    let roles: Vec<_> = roles.iter().map(|&id| graph.parameter(id).role).collect();
    assert_eq!(
        roles,
        [
            ParameterRole::Gamma,
            ParameterRole::Beta,
            ParameterRole::RunningMean,
            ParameterRole::RunningVariance
        ]
    );
    assert_eq!(graph.parameter(ParameterId(0)).name, "conv1.weight");
}

#[test]
fn every_name_builds_a_graph_of_that_name_that_its_text_gives_back() {
    let names = zoo::names();
    assert_eq!(names.len(), 10);
    for name in names {
        let graph = zoo::build(&name).unwrap();
        assert_eq!(graph.name, name);
        assert_eq!(text::parse(&text::print(&graph)).unwrap(), graph);
    }
}

#[test]
fn wrong_names_say_what_is_possible_and_the_nearest() {
    for (asked, problem, nearest) in [
        ("cosmoflw@128", "no model", "cosmoflow@128"),
        ("", "no model", "cosmoflow@32"),
        ("cosmoflow", "needs its input size", "cosmoflow@32"),
        ("cosmoflow@100", "size \"100\"", "cosmoflow@128"),
        ("cosmoflow@1024", "size \"1024\"", "cosmoflow@512"),
        (
            "cosmoflow@99999999999999999999999+bn",
            "size",
            "cosmoflow@512+bn",
        ),
        ("cosmoflow@big", "size \"big\"", "cosmoflow@32"),
        ("cosmoflow@048", "size \"048\"", "cosmoflow@32"),
        ("cosmoflow@64+gn", "no variant `+gn`", "cosmoflow@64+bn"),
        ("cosmoflow@64+", "no variant `+`", "cosmoflow@64+bn"),
        (
            "cosmoflow@64+bn+bn",
            "no variant `+bn+bn`",
            "cosmoflow@64+bn",
        ),
    ] {
        let error = zoo::build(asked).unwrap_err().to_string();
        assert!(error.contains(problem), "{asked}: {error}");
        assert!(
            error.ends_with(&format!("nearest is `{nearest}`")),
            "{asked}: {error}"
        );
        assert!(error.contains("possible are"), "{asked}: {error}");
    }
}
