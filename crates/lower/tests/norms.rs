//! Batch norms need more than one value for each channel in training.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::request;

use partita_graph::{Graph, text};
use partita_lower::{LowerError, Request, Strategy, StrategyError, lower};
use partita_program::ProgramKind;
use request::request;

/// A batch norm over this many positions of each sample.
fn norm(positions: usize) -> Graph {
    let model = format!(
        "model norm\ninput x channels=2 extent=4\nc = conv x filters=4 kernel={} bias=false\n\
         n = batch_norm c epsilon=1e-5 momentum=0.1\nr = relu n\nf = flatten r\n\
         l = linear f features=2 bias=true\nloss = softmax_cross_entropy l\n",
        5 - positions
    );
    text::parse(&model).unwrap()
}

fn lowered(
    graph: &Graph,
    strategy: &str,
    batch: usize,
    kind: ProgramKind,
) -> Result<(), StrategyError> {
    let strategy: Strategy = strategy.parse().unwrap();
    let request = Request {
        kind,
        ..request(graph, &strategy, batch)
    };
    match lower(&request) {
        Ok(_) => Ok(()),
        Err(LowerError::Strategy(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_batch_norm_over_one_value_is_not_trained() {
    let graph = norm(1);
    for (strategy, batch, parts) in [
        ("data=1", 1, 1),
        // Statistics are those of all ranks, but of one micro-batch.
        ("data=1,micro=4", 4, 4),
        ("filter=2,micro=4", 4, 4),
        ("micro=4,stages=[width=1|width=1],schedule=gems", 4, 4),
        ("micro=4,stages=[width=1|width=1],schedule=gems*2", 4, 4),
        // The smaller last mini-batch of an epoch.
        ("data=2,micro=4", 3, 3),
        ("data=2,micro=4", 5, 4),
        ("data=4", 1, 1),
    ] {
        let error = lowered(&graph, strategy, batch, ProgramKind::Train).unwrap_err();
        let expected = StrategyError::OneValue {
            strategy: strategy.parse::<Strategy>().unwrap().to_string(),
            layer: "n".to_owned(),
            micro: parts,
            parts: 1,
            batch,
        };
        assert_eq!(error, expected);
        // Running statistics need no other sample.
        lowered(&graph, strategy, batch, ProgramKind::Evaluate).unwrap();
        lowered(&graph, strategy, batch, ProgramKind::Fetch).unwrap();
    }
}

#[test]
fn two_values_are_enough_wherever_they_are() {
    let both = [
        ("data=1", 1),
        ("data=1,micro=4", 4),
        ("width=2", 1),
        ("data=2", 1),
    ];
    for (strategy, batch) in both {
        lowered(&norm(2), strategy, batch, ProgramKind::Train).unwrap();
        lowered(&norm(1), strategy, 2 * batch, ProgramKind::Train).unwrap();
    }
}

#[test]
fn local_statistics_need_two_values_in_each_part() {
    for (strategy, batch) in [
        ("data=2,batch_norm=local", 2),
        ("data=2,batch_norm=local", 3),
        ("data=2,micro=2,batch_norm=local", 4),
    ] {
        let error = lowered(&norm(1), strategy, batch, ProgramKind::Train).unwrap_err();
        assert!(matches!(error, StrategyError::OneValue { .. }), "{error}");
    }
    for (strategy, batch) in [
        ("data=2,batch_norm=local", 4),
        ("data=2,micro=2,batch_norm=local", 8),
        ("data=1,batch_norm=local", 2),
    ] {
        lowered(&norm(1), strategy, batch, ProgramKind::Train).unwrap();
    }
    lowered(&norm(2), "data=2,batch_norm=local", 2, ProgramKind::Train).unwrap();
    lowered(
        &norm(1),
        "data=2,batch_norm=local",
        2,
        ProgramKind::Evaluate,
    )
    .unwrap();
}

#[test]
fn local_statistics_are_those_of_a_data_coordinate() {
    for (strategy, split, layer) in [
        (
            "data=2,batch_norm=local; n: N=-",
            "the samples of `n` are not split",
            Some("n"),
        ),
        (
            "data=2,filter=2,batch_norm=local; n: N=filter+data,F=-",
            "the samples of `n` are split by `filter+data`",
            Some("n"),
        ),
        (
            "stages=[data=2|1],batch_norm=local",
            "stage 1 splits them by a `data` of its own",
            None,
        ),
    ] {
        let error = lowered(&norm(2), strategy, 4, ProgramKind::Train).unwrap_err();
        let expected = StrategyError::LocalStatistics {
            strategy: strategy.parse::<Strategy>().unwrap().to_string(),
            split: split.to_owned(),
            layer: layer.map(str::to_owned),
        };
        assert_eq!(error, expected);
        let strategy: Strategy = strategy.parse().unwrap();
        assert_eq!(strategy.check(&norm(2), 4), Err(expected));
    }
    lowered(
        &norm(2),
        "data=2,filter=2,batch_norm=local; n: N=data+filter,F=-",
        4,
        ProgramKind::Train,
    )
    .unwrap();
}
