//! What is predicted for the rows of published tables, against what was measured there.

use crate::command::json;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Published rates closer than this are not ranked: runs on shared machines differ by as much.
const APART: f64 = 1.15;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub name: String,
    machine: String,
    model: String,
    /// The profile of the software of the published runs, for `--software` (default: that of Partita).
    software: Option<String>,
    /// Replaces `spatial_io` of the profile.
    spatial_io: Option<bool>,
    /// Where samples come from, for `--io` (default: input takes no time).
    io: Option<String>,
    /// Number format of the published kernels, for `--precision`.
    precision: Option<String>,
    optimizer: Option<String>,
    /// Bound of the mean relative error of a step's time, over the rows that it holds for.
    mean_error_max: Option<f64>,
    /// The same over the rows that are only shown: it keeps them from getting worse.
    shown_error_max: Option<f64>,
    /// The same over the rows that files were fitted to.
    fit_error_max: Option<f64>,
    /// Mean error of the authors' own model, where it is known over more points than the rows.
    authors_mean_error: Option<f64>,
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
    software: Option<String>,
    precision: Option<String>,
    /// Folder of the logs that the row is computed from, in a public repository.
    source: Option<String>,
    batch: usize,
    ranks: usize,
    pub strategy: String,
    samples_per_second: Option<f64>,
    milliseconds: Option<f64>,
    #[serde(default)]
    parts: BTreeMap<String, f64>,
    authors: Option<f64>,
    authors_samples_per_second: Option<f64>,
    /// Further arguments.
    #[serde(skip)]
    more: Vec<String>,
}

impl Row {
    pub fn published(&self) -> f64 {
        let by_rate = self.samples_per_second.map(|rate| self.batch as f64 / rate);
        self.milliseconds
            .map_or(by_rate, |ms| Some(ms / 1e3))
            .unwrap()
    }

    /// Whether its time is not bounded.
    pub fn is_shown(&self) -> bool {
        self.r#use == Use::Show
    }

    fn authors(&self) -> Option<f64> {
        let by_rate = self.authors_samples_per_second;
        let by_rate = by_rate.map(|rate| self.batch as f64 / rate);
        self.authors.map(|ms| ms / 1e3).or(by_rate)
    }

    fn model<'a>(&'a self, table: &'a Table) -> &'a str {
        self.model.as_deref().unwrap_or(&table.model)
    }

    fn machine<'a>(&'a self, table: &'a Table) -> &'a str {
        self.machine.as_deref().unwrap_or(&table.machine)
    }

    fn software<'a>(&'a self, table: &'a Table) -> Option<&'a str> {
        self.software.as_deref().or(table.software.as_deref())
    }

    fn precision<'a>(&'a self, table: &'a Table) -> Option<&'a str> {
        self.precision.as_deref().or(table.precision.as_deref())
    }

    /// What tells the row from others with as many ranks or samples.
    fn label(&self) -> String {
        let more = self.machine.iter().chain(&self.software);
        let more: String = more.map(|word| format!(" ({word})")).collect();
        format!("{}{more}", self.strategy)
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

/// A file that lies beside the tables, or a name that the binary knows.
fn own(name: &str) -> String {
    if name.contains('/') {
        folder().join(name).to_str().unwrap().to_string()
    } else {
        name.to_string()
    }
}

fn predicted(table: &Table, row: &Row) -> f64 {
    record(table, row)["iteration_seconds"].as_f64().unwrap()
}

/// A profile of the repository with `spatial_io`, as a file in a folder.
fn with_spatial_io(name: &str, is_spatial: bool, folder: &Path) -> String {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../software");
    let text = fs::read_to_string(own.join(format!("{name}.toml"))).unwrap();
    let more =
        format!("spatial_io = {{ value = {is_spatial}, source = \"the table\" }}\ndata_store");
    let path = folder.join(format!("{name}.toml"));
    fs::write(&path, text.replacen("data_store", &more, 1)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What `predict` says of a row, which is asked once for all tests.
pub fn record(table: &Table, row: &Row) -> serde_json::Value {
    let (ranks, batch) = (row.ranks.to_string(), row.batch.to_string());
    let (model, machine) = (own(row.model(table)), own(row.machine(table)));
    let mut arguments = vec!["predict", &model, "--machine", &machine, "--ranks", &ranks];
    arguments.extend(["--batch", &batch, "--strategy", &row.strategy]);
    let io = table.io.as_deref().unwrap_or("none");
    arguments.extend(["--io", io, "--json"]);
    if let Some(precision) = row.precision(table) {
        arguments.extend(["--precision", precision]);
    }
    arguments.extend(row.more.iter().map(String::as_str));
    if let Some(optimizer) = &table.optimizer {
        arguments.extend(["--optimizer", optimizer]);
    }
    static KNOWN: Mutex<BTreeMap<String, serde_json::Value>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = format!(
        "{arguments:?} {:?} {:?}",
        row.software(table),
        table.spatial_io
    );
    if let Some(answer) = known().get(&asked) {
        return answer.clone();
    }
    let scratch = tempfile::tempdir().unwrap();
    let profile = row.software(table).map(|name| {
        let spatial = table.spatial_io;
        spatial.map_or(name.to_owned(), |spatial| {
            with_spatial_io(name, spatial, scratch.path())
        })
    });
    if let Some(profile) = &profile {
        arguments.extend(["--software", profile]);
    }
    let answer = json(&arguments);
    known().insert(asked, answer.clone());
    answer
}

/// A row with what is predicted for it, in seconds.
struct Case<'a> {
    row: &'a Row,
    ours: f64,
}

impl Case<'_> {
    fn error(&self) -> f64 {
        self.ours / self.row.published() - 1.0
    }
}

/// Predicts all rows and compares them with the bounds that the table states.
fn check(name: &str) {
    let table = table(name);
    let mut cases = Vec::new();
    for row in &table.rows {
        let ours = predicted(&table, row);
        let case = Case { row, ours };
        print_row(&table, &case);
        cases.push(case);
    }
    let wrong = wrong_pairs(&table, &cases);
    summary(&table, &cases, wrong.len());
    check_errors(&table, &cases);
    if let Some(key) = table.ranked_by {
        assert_eq!(wrong, table.misses, "{}: faster as published", table.name);
        check_fastest(&cases, key);
    }
}

fn print_row(table: &Table, case: &Case) {
    let row = case.row;
    let published = row.published();
    let authors = row.authors().map_or(String::new(), |theirs| {
        format!(" authors {:+6.1} %", 100.0 * (theirs / published - 1.0))
    });
    println!(
        "{} {} {} samples on {}, {}: {:.1} ms, predicted {:.1} ms, {:+.1} %{authors}",
        table.name,
        row.model(table),
        row.batch,
        row.ranks,
        row.label(),
        1e3 * published,
        1e3 * case.ours,
        100.0 * case.error()
    );
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Mean error of the rows with this use.
fn error_of(cases: &[Case], r#use: Use) -> Option<f64> {
    let alike = cases.iter().filter(|case| case.row.r#use == r#use);
    mean(alike.map(|case| case.error().abs()))
}

/// One line of a table, as bench/record_published.py writes it.
fn summary(table: &Table, cases: &[Case], wrong: usize) {
    let percent = |value: Option<f64>| value.map_or("-".into(), |x| format!("{:.1} %", 100.0 * x));
    let all = mean(cases.iter().map(|case| case.error().abs()));
    let with_authors = || cases.iter().filter(|case| case.row.authors().is_some());
    let theirs = mean(with_authors().map(|case| {
        let row = case.row;
        (row.authors().unwrap() / row.published() - 1.0).abs()
    }));
    let there = mean(with_authors().map(|case| case.error().abs()));
    let pairs = pairs(table, cases).len();
    println!(
        "table {}: {} of {} rows predicted, mean error {}, bounded rows {} (bound {}), shown rows {} (bound {}), \
         rows with the authors' model {} (theirs {}, over all their points {}), {} of {pairs} pairs right",
        table.name,
        cases.len(),
        table.rows.len(),
        percent(all),
        percent(error_of(cases, Use::Predict)),
        percent(table.mean_error_max),
        percent(error_of(cases, Use::Show)),
        percent(table.shown_error_max),
        percent(there),
        percent(theirs),
        percent(table.authors_mean_error),
        pairs - wrong,
    );
}

fn check_errors(table: &Table, cases: &[Case]) {
    let name = &table.name;
    for (most, r#use) in [
        (table.mean_error_max, Use::Predict),
        (table.shown_error_max, Use::Show),
        (table.fit_error_max, Use::Fit),
    ] {
        let Some(most) = most else {
            continue;
        };
        let mean = error_of(cases, r#use).unwrap_or_else(|| panic!("{name}: no row counts"));
        assert!(mean <= most, "{name}: mean error {mean} of {most}");
    }
}

/// Cases that are ranked among each other, and more than 15 % apart: the faster one first.
fn pairs<'a>(table: &Table, cases: &'a [Case<'a>]) -> Vec<[&'a Case<'a>; 2]> {
    let key = table.ranked_by.unwrap_or(GroupKey::Ranks);
    let group = |row: &Row| match key {
        GroupKey::Batch => row.batch,
        GroupKey::Ranks => row.ranks,
    };
    let rate = |case: &Case| case.row.batch as f64 / case.row.published();
    let mut pairs = Vec::new();
    for a in cases {
        for b in cases {
            let alike = group(a.row) == group(b.row) && a.row.model(table) == b.row.model(table);
            if alike && rate(a) > APART * rate(b) {
                pairs.push([a, b]);
            }
        }
    }
    pairs
}

/// Pairs that are ranked the other way round.
fn wrong_pairs(table: &Table, cases: &[Case]) -> Vec<[String; 2]> {
    let rate = |case: &Case| case.row.batch as f64 / case.ours;
    let pairs = pairs(table, cases);
    let wrong = pairs.iter().filter(|[a, b]| rate(a) <= rate(b));
    wrong.map(|[a, b]| [a.row.label(), b.row.label()]).collect()
}

fn check_fastest(cases: &[Case], key: GroupKey) {
    match key {
        GroupKey::Ranks => {}
        GroupKey::Batch => {
            let batches: BTreeSet<usize> = cases.iter().map(|case| case.row.batch).collect();
            for batch in batches {
                let rows = || cases.iter().filter(|case| case.row.batch == batch);
                let published = |case: &&Case| case.row.published();
                let theirs = rows().min_by(|a, b| published(a).total_cmp(&published(b)));
                let ours = rows().min_by(|a, b| a.ours.total_cmp(&b.ours));
                let strategy = |case: Option<&Case>| case.map(|case| case.row.strategy.clone());
                assert_eq!(strategy(ours), strategy(theirs), "{batch} samples");
            }
        }
    }
}

#[test]
fn strong_scaling_of_cosmoflow() {
    check("cosmoflow-512-strong");
}

#[test]
fn whole_samples_stop_scaling() {
    check("cosmoflow-512-whole-samples");
}

/// Oyama et al., Fig. 4: input takes at most 2 ms with hyperslabs and a store.
#[test]
fn hyperslabs_from_a_store_are_hidden() {
    let mut table = table("cosmoflow-512-strong");
    table.io = Some("store".to_owned());
    for row in &mut table.rows {
        let samples = (row.ranks * 40).to_string();
        row.more = vec!["--dataset-samples".to_owned(), samples];
    }
    for row in &table.rows {
        let record = record(&table, row);
        assert_eq!(record["input"], "data_store");
        let input = record["breakdown"]["io"].as_f64().unwrap();
        assert!(input <= 2e-3, "{}: {input}", row.strategy);
    }
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
fn networks_on_one_gpu() {
    check("gpu-rows");
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
        let table = table(name);
        let sources = table.rows.iter().filter_map(|row| row.source.as_ref());
        for source in sources {
            // A repository and a folder in it.
            assert!(source.split('/').count() > 2, "{name}: {source}");
        }
        assert!(
            says("Printed") || says("Digitized") || says("Recomputed"),
            "{name}"
        );
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

#[test]
fn vgg_on_another_machine() {
    check("vgg16-abci");
}

#[test]
fn logs_of_resnet() {
    check("resnet50-abci-logs");
}

#[test]
fn logs_of_alexnet() {
    check("alexnet-abci");
}

#[test]
fn weak_scaling_of_other_software() {
    check("cosmoflow-128-weak-tensorflow");
}

#[test]
fn results_of_cosmoflow_on_many_machines() {
    check("mlperf-hpc-cosmoflow");
}

#[test]
fn results_of_resnet_on_three_generations() {
    check("mlperf-training-resnet50");
}
