//! Closed forms against published values, and against sums on paper.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use partita_oracle::closed::{Estimate, LayerRow, LayerTable, Link, Links, Parallelism};
use partita_space::{Bytes, Seconds};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Golden {
    name: String,
    tolerance: f64,
    links: Vec<LinkRow>,
    models: BTreeMap<String, Model>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkRow {
    ranks: usize,
    start_us: f64,
    gigabytes_per_second: f64,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Conv,
    Bn,
    Relu,
    Pool,
    Add,
    Fc,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    seconds: f64,
    weights: f64,
    outputs_of_convolutions: f64,
    layers: Vec<(usize, Kind, usize, usize, usize, usize, usize)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    model: String,
    strategy: String,
    batch: usize,
    ranks: usize,
    #[serde(default)]
    group: usize,
    #[serde(default)]
    divisor: f64,
    seconds: f64,
}

impl Model {
    /// The table, with the seconds of a sample shared out by the estimate of arithmetic.
    fn rows(&self) -> Vec<LayerRow> {
        let mut rows = Vec::new();
        for &(count, kind, c, f, k, x, y) in &self.layers {
            let [c, f, k, x, y] = [c, f, k, x, y].map(|extent| extent as f64);
            let (inputs, outputs, products) = (c * x * x, f * y * y, c * f * k * k * y * y);
            let (forward, weights) = match kind {
                Kind::Conv => (2.0 * products, c * f * k * k),
                Kind::Pool => (products, 0.0),
                Kind::Bn => (4.0 * inputs, 0.0),
                Kind::Relu | Kind::Add => (outputs, 0.0),
                Kind::Fc => (c * f, c * f),
            };
            let row = LayerRow {
                inputs,
                outputs,
                weights,
                forward: Seconds(forward),
                backward: Seconds(forward + weights),
                is_split: kind == Kind::Conv,
                ..LayerRow::default()
            };
            rows.extend(vec![row; count]);
        }
        let all: f64 = rows.iter().map(|row| (row.forward + row.backward).0).sum();
        for row in &mut rows {
            row.forward.0 *= self.seconds / all;
            row.backward.0 *= self.seconds / all;
        }
        rows
    }
}

impl Golden {
    fn link(&self, ranks: usize) -> Link {
        let link = self.links.iter().find(|link| ranks <= link.ranks).unwrap();
        Link {
            latency: Seconds(1e-6 * link.start_us),
            byte: Seconds(1e-9 / link.gigabytes_per_second),
        }
    }

    fn estimate(&self, row: &Row) -> Estimate {
        let mut links = Links {
            group: self.link(row.ranks),
            across: self.link(row.ranks),
            ..Links::default()
        };
        let split = match row.strategy.as_str() {
            "data" => Parallelism::Data(row.ranks),
            "filter" => Parallelism::Filter(row.ranks),
            "channel" => Parallelism::Channel(row.ranks),
            "data and filter" => {
                links.group = self.link(row.group);
                links.across.byte.0 *= row.divisor;
                Parallelism::DataFilter([row.ranks / row.group, row.group])
            }
            other => panic!("no strategy {other}"),
        };
        let layers = self.models[&row.model].rows();
        let table = LayerTable {
            layers: &layers,
            batch: row.batch,
            item: 4,
            weight_item: 4,
        };
        table.estimate(&split, &links)
    }
}

#[test]
fn published_values_come_out() {
    let text = include_str!("../../../published/closed-forms/paradl.toml");
    let golden: Golden = toml::from_str(text).unwrap();
    assert_eq!(golden.name, "closed-forms");
    for model in golden.models.values() {
        let rows = model.rows();
        let weights: f64 = rows.iter().map(|row| row.weights).sum();
        assert_eq!(weights, model.weights);
        let split = rows.iter().filter(|row| row.is_split);
        let outputs: f64 = split.map(|row| row.outputs).sum();
        assert_eq!(outputs, model.outputs_of_convolutions);
    }
    let mut worst = 0.0_f64;
    for row in &golden.rows {
        let error = golden.estimate(row).seconds().0 / row.seconds - 1.0;
        let (strategy, ranks) = (&row.strategy, row.ranks);
        println!("{} {strategy} {ranks}: {:+.2} %", row.model, 100.0 * error);
        worst = worst.max(error.abs());
        let bound = golden.tolerance;
        assert!(
            error.abs() <= bound,
            "{} {strategy} on {ranks}: {error}",
            row.model
        );
    }
    assert_eq!(golden.rows.len(), 25);
    println!("worst: {:.2} %", 100.0 * worst);
}

/// Two layers of 8 in, 4 between, 2 out; 10 and 6 weights; the second is not split.
fn two() -> [LayerRow; 2] {
    let first = LayerRow {
        inputs: 8.0,
        outputs: 4.0,
        weights: 10.0,
        forward: Seconds(1.0),
        backward: Seconds(2.0),
        update: Seconds(0.5),
        is_split: true,
        halo_inputs: 2.0,
        halo_outputs: 1.0,
        positions: 8,
        channels: 3,
        filters: 16,
    };
    let second = LayerRow {
        inputs: 4.0,
        outputs: 2.0,
        weights: 6.0,
        forward: Seconds(3.0),
        backward: Seconds(4.0),
        update: Seconds(0.25),
        is_split: false,
        halo_inputs: 1.0,
        ..first
    };
    [first, second]
}

fn links() -> Links {
    let link = |latency, byte| Link {
        latency: Seconds(latency),
        byte: Seconds(byte),
    };
    Links {
        pair: link(1.0, 0.5),
        group: link(2.0, 0.25),
        across: link(4.0, 0.125),
    }
}

#[track_caller]
fn holds(split: Parallelism, [compute, communication]: [f64; 2], memory: u64, ranks_max: usize) {
    let layers = two();
    let table = LayerTable {
        layers: &layers,
        batch: 16,
        item: 4,
        weight_item: 4,
    };
    let expected = Estimate {
        compute: Seconds(compute),
        communication: Seconds(communication),
        memory: Bytes(memory),
        ranks_max,
    };
    assert_eq!(table.estimate(&split, &links()), expected, "{split:?}");
}

#[test]
fn forms_add_up_on_paper() {
    // 16 x 10 s and both updates; 2 x 4 bytes x (16 x 18 + 16).
    holds(Parallelism::Serial, [160.75, 0.0], 8 * (16 * 18 + 16), 1);
    // 64 bytes of gradients in quarters: 2 x 3 x (4 + 16 / 8).
    holds(Parallelism::Data(4), [40.75, 36.0], 8 * (4 * 18 + 16), 16);
    // 16 x (3 / 4 + 7); and a halo of 16 x 3 elements twice: 2 x (2 + 192 / 2).
    let memory = 8 * (16 * 3 + 10 + 16 * 6 + 6);
    holds(Parallelism::Spatial(4), [124.75, 36.0 + 196.0], memory, 8);
    // 16 x 5 / 4 turns of 3 + 4 s, and the longer update; 2 x 4 messages of 4 x 4 elements.
    let stages = || vec![0..1, 1..2];
    let memory = 8 * (16 * 12 + 10);
    holds(
        Parallelism::Pipeline(stages(), 4),
        [20.0 * 7.0 + 0.5, 8.0 * (1.0 + 32.0)],
        memory,
        2,
    );
    // The first layer alone: 16 x (3 / 4 + 7), and 3 x 3 x (2 + 64 / 4).
    let memory = 8 * (16 * 18 + 6) + 20;
    let both = [16.0 * 7.75 + 0.125 + 0.25, 9.0 * 18.0];
    holds(Parallelism::Filter(4), both, memory, 16);
    holds(Parallelism::Channel(4), both, memory, 3);
    // In two groups of two: 8 x (3 / 2 + 7), 3 x (2 + 64 / 4), and 8 elements of gradients in halves.
    let gathers = 3.0 * 18.0 + 2.0 * (4.0 + 16.0 / 8.0);
    let compute = 8.0 * 8.5 + 0.25 + 0.25;
    let memory = 8 * (8 * 18 + 11);
    holds(
        Parallelism::DataFilter([2, 2]),
        [compute, gathers],
        memory,
        256,
    );
    // A halo of 8 x 2 elements, 4 x (1 + 32); a gather of 64 bytes, 2 x (2 + 16); sums of 64 bytes in
    // halves within, 2 x (2 + 8), and between, 2 x (4 + 4).
    let moved = 132.0 + 36.0 + 20.0 + 16.0;
    let memory = 8 * (8 * 6 + 10 + 8 * 6 + 6);
    holds(
        Parallelism::DataSpatial([2, 2]),
        [68.75, moved],
        memory,
        128,
    );
}
