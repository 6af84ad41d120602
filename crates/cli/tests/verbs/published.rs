//! What is predicted for the rows of published tables, against what was measured there.

use crate::command::json;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

/// Published rates closer than this are not ranked: runs on shared machines differ by as much.
const APART: f64 = 1.15;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub name: String,
    machine: String,
    model: String,
    /// The profile of the software of the published runs.
    software: String,
    /// Bound of the mean relative error of a step's time, over the rows that it holds for.
    mean_error_max: Option<f64>,
    /// What rows have in common that are ranked among each other.
    ranked_by: Option<GroupKey>,
    /// Pairs of strategies that are ranked the other way round, for a reason that the head states.
    #[serde(default)]
    misses: Vec<[String; 2]>,
    pub rows: Vec<Row>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum GroupKey {
    /// As many samples: the fastest number of ranks is the fastest, too.
    Batch,
    /// As many ranks.
    Ranks,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Use {
    /// The machine file was fitted to it.
    Fit,
    /// The machine file is bound to predict it.
    Predict,
    /// Ranked and shown; the head of the table says why its time is not bounded.
    Show,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    r#use: Use,
    model: Option<String>,
    machine: Option<String>,
    /// As `--precision` (default: f32).
    precision: Option<String>,
    batch: usize,
    ranks: usize,
    pub strategy: String,
    samples_per_second: Option<f64>,
    milliseconds: Option<f64>,
    #[serde(default)]
    parts: BTreeMap<String, f64>,
    authors: Option<f64>,
    authors_samples_per_second: Option<f64>,
}

impl Row {
    /// Seconds of a step as published.
    pub fn published(&self) -> f64 {
        let by_rate = self.samples_per_second.map(|rate| self.batch as f64 / rate);
        self.milliseconds
            .map_or(by_rate, |ms| Some(ms / 1e3))
            .unwrap()
    }

    fn authors(&self) -> Option<f64> {
        let by_rate = self.authors_samples_per_second;
        let by_rate = by_rate.map(|rate| self.batch as f64 / rate);
        self.authors.map(|ms| ms / 1e3).or(by_rate)
    }

    fn model<'a>(&'a self, table: &'a Table) -> &'a str {
        self.model.as_deref().unwrap_or(&table.model)
    }
}

pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../published")
}

pub fn table(name: &str) -> Table {
    let text = fs::read_to_string(folder().join(format!("{name}.toml"))).unwrap();
    let table: Table = toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(table.name, name);
    table
}

fn predicted(table: &Table, row: &Row) -> f64 {
    record(table, row)["iteration_seconds"].as_f64().unwrap()
}

/// What `predict` says of a row.
pub fn record(table: &Table, row: &Row) -> serde_json::Value {
    let (ranks, batch) = (row.ranks.to_string(), row.batch.to_string());
    json(&[
        "predict",
        row.model(table),
        "--machine",
        row.machine.as_ref().unwrap_or(&table.machine),
        "--software",
        &table.software,
        "--ranks",
        &ranks,
        "--batch",
        &batch,
        "--strategy",
        &row.strategy,
        "--precision",
        row.precision.as_deref().unwrap_or("f32"),
        "--no-io",
        "--json",
    ])
}

/// Predicts all rows and holds them against the bounds that the table states.
fn check(name: &str) {
    let table = table(name);
    let ours: Vec<f64> = table
        .rows
        .iter()
        .map(|row| predicted(&table, row))
        .collect();
    for (row, &ours) in table.rows.iter().zip(&ours) {
        let (published, error) = (row.published(), ours / row.published() - 1.0);
        let authors = row.authors().map_or(String::new(), |theirs| {
            format!(" authors {:+6.1} %", 100.0 * (theirs / published - 1.0))
        });
        println!(
            "{name} {} {} samples on {}, {}: {:.1} ms, predicted {:.1} ms, {:+.1} %{authors}",
            row.model(&table),
            row.batch,
            row.ranks,
            row.strategy,
            1e3 * published,
            1e3 * ours,
            100.0 * error
        );
    }
    check_errors(&table, &ours);
    if let Some(key) = table.ranked_by {
        check_ranks(&table, &ours, key);
    }
}

fn check_errors(table: &Table, ours: &[f64]) {
    let Some(most) = table.mean_error_max else {
        return;
    };
    let errors: Vec<f64> = (table.rows.iter().zip(ours))
        .filter(|(row, _)| row.r#use == Use::Predict)
        .map(|(row, ours)| (ours / row.published() - 1.0).abs())
        .collect();
    assert!(!errors.is_empty(), "{}: no row counts", table.name);
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    println!("{}: mean error {:.1} %", table.name, 100.0 * mean);
    assert!(mean <= most, "{}: mean error {mean} of {most}", table.name);
}

fn check_ranks(table: &Table, ours: &[f64], key: GroupKey) {
    let group = |row: &Row| match key {
        GroupKey::Batch => row.batch,
        GroupKey::Ranks => row.ranks,
    };
    let rate = |row: &Row, seconds: f64| row.batch as f64 / seconds;
    let all: Vec<(&Row, f64, f64)> = (table.rows.iter().zip(ours))
        .map(|(row, &ours)| (row, rate(row, row.published()), rate(row, ours)))
        .collect();
    let mut wrong = Vec::new();
    for (a, theirs_a, ours_a) in &all {
        for (b, theirs_b, ours_b) in &all {
            if group(a) == group(b) && *theirs_a > APART * theirs_b && ours_a <= ours_b {
                wrong.push([a.strategy.clone(), b.strategy.clone()]);
            }
        }
    }
    assert_eq!(wrong, table.misses, "{}: faster as published", table.name);
    match key {
        GroupKey::Ranks => {}
        GroupKey::Batch => {
            let batches: BTreeSet<usize> = table.rows.iter().map(|row| row.batch).collect();
            for batch in batches {
                let rows = || all.iter().filter(|(row, ..)| row.batch == batch);
                let theirs = rows().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
                let ours = rows().max_by(|a, b| a.2.total_cmp(&b.2)).unwrap();
                assert_eq!(ours.0.strategy, theirs.0.strategy, "{batch} samples");
            }
        }
    }
}

#[test]
fn strong_scaling_of_cosmoflow() {
    check("cosmoflow-512-strong");
}

#[test]
fn strong_scaling_of_unet() {
    check("unet3d-256-strong");
}

#[test]
fn weak_scaling_of_small_volumes() {
    check("cosmoflow-128-weak");
}

#[test]
fn weak_scaling_of_large_volumes_with_batch_norm() {
    check("cosmoflow-512-bn-weak");
}

#[test]
fn five_strategies_for_resnet() {
    check("resnet50-abci");
}

#[test]
fn epochs_of_resnet() {
    check("resnet50-abci-epochs");
}

#[test]
fn cosmoflow_on_another_machine() {
    check("cosmoflow-abci");
}

#[test]
fn resnet_in_each_precision() {
    check("kernel-rates");
}

#[test]
fn horovod_on_pascal() {
    check("horovod-pascal");
}

#[test]
fn every_table_is_checked_and_says_where_it_is_from() {
    let source = include_str!("published.rs");
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(source.contains(&format!("check(\"{name}\")")), "{name}");
        let text = fs::read_to_string(&path).unwrap();
        let says = |word: &str| text.contains(&format!("\n# {word}: "));
        assert!(says("Source") && says("Tolerance"), "{name}");
        assert!(says("Printed") || says("Digitized"), "{name}");
    }
}

/// The rows that are predicted must not be those that the machine file was made from.
#[test]
fn only_small_batches_were_fitted_to() {
    let table = table("cosmoflow-512-strong");
    for row in &table.rows {
        assert_eq!(row.r#use == Use::Fit, row.batch == 4);
        let parts: f64 = row.parts.values().sum();
        // What is left is reading and the update, up to 2.4 ms.
        let rest = 1e3 * row.published() - parts;
        assert!((0.0..=2.5).contains(&rest), "{rest} ms of {}", row.strategy);
    }
}
