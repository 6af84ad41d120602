//! Published steps lie in the intervals of their predictions.
//!
//! `cargo test --release -p partita-cli --test verbs intervals -- --nocapture` prints, for each table, how many rows
//! lie in their interval, how wide it is, and the root mean square of `ln(published / predicted)` in standard
//! deviations; then the mean square by source of time, weighted by the share of the variance that the source has.
//! It is 1 where spreads are right, and above where the spread of the source is too small. The spreads are in
//! `crates/oracle/src/uncertainty/table.rs`.

use crate::command::{answer, json};
use crate::published::{folder, record, table};
use std::collections::BTreeMap;
use std::fs;

/// Tables to whose rows the spreads were fitted. The others check them.
const FITTED: [&str; 3] = ["cosmoflow-512-strong", "resnet50-abci", "unet3d-256-strong"];

/// Least share of the rows with bounds, of tables that the spreads were not fitted to, that lie in their interval.
const COVERAGE_MIN: f64 = 0.85;

/// Half the width of an interval of 90 %, in standard deviations.
const Z: f64 = 1.644_853_6;

/// A published step beside its prediction.
struct Step {
    /// Whether the head of its table says why it is only shown: software or machine do things that nothing describes.
    is_shown: bool,
    is_inside: bool,
    /// `ln(published / predicted)` in standard deviations.
    z: f64,
    half_width: f64,
    due_to: BTreeMap<String, f64>,
}

fn steps(name: &str) -> Vec<Step> {
    let table = table(name);
    let step = |row: &crate::published::Row| {
        let record = record(&table, row);
        let (interval, published) = (&record["interval"], row.published());
        let of = |key: &str| interval[key].as_f64().unwrap();
        let (low, high) = (of("low_seconds"), of("high_seconds"));
        assert_eq!(of("confidence"), 0.9);
        let predicted = record["iteration_seconds"].as_f64().unwrap();
        assert!(low <= predicted && predicted <= high);
        let end = if published > predicted { high } else { low };
        let shares = interval["due_to"].as_object().unwrap().iter();
        let z = Z * (published / predicted).ln() / (end / predicted).ln().abs();
        println!(
            "{name} {}: {:.1} ms published, {:.1} predicted, {:.1} to {:.1}, {z:+.2} sd",
            row.strategy,
            1e3 * published,
            1e3 * predicted,
            1e3 * low,
            1e3 * high,
        );
        Step {
            is_shown: row.is_shown(),
            is_inside: (low..=high).contains(&published),
            z,
            half_width: (high / low).ln() / 2.0,
            due_to: shares
                .map(|(source, share)| (source.clone(), share.as_f64().unwrap()))
                .collect(),
        }
    };
    table.rows.iter().map(step).collect()
}

/// Share of the steps in their interval, printed with their widths.
fn coverage(name: &str, steps: &[&Step]) -> f64 {
    let inside = steps.iter().filter(|step| step.is_inside).count();
    let mut widths: Vec<f64> = steps.iter().map(|step| step.half_width).collect();
    widths.sort_by(f64::total_cmp);
    let square = steps.iter().map(|step| step.z * step.z).sum::<f64>() / steps.len() as f64;
    println!(
        "{name}: {inside} of {} in their interval, median half-width {:.0} %, {:.2} sd rms",
        steps.len(),
        100.0 * (widths[widths.len() / 2].exp() - 1.0),
        square.sqrt()
    );
    inside as f64 / steps.len() as f64
}

fn print_sources(steps: &[&Step]) {
    let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for step in steps {
        for (source, share) in &step.due_to {
            let sum = sums.entry(source).or_insert((0.0, 0.0));
            *sum = (sum.0 + share * step.z * step.z, sum.1 + share);
        }
    }
    for (source, (square, share)) in sums {
        println!(
            "{source}: mean square {:.2} over {share:.1} rows",
            square / share
        );
    }
}

#[test]
fn published_steps_lie_in_their_intervals() {
    let mut all: Vec<(String, Vec<Step>)> = Vec::new();
    let files = fs::read_dir(folder()).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.extension().is_some_and(|end| end == "toml")) {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let steps = steps(&name);
        all.push((name, steps));
    }
    for (name, steps) in &all {
        coverage(name, &steps.iter().collect::<Vec<_>>());
    }
    let of = |is_wanted: &dyn Fn(&str, &Step) -> bool| -> Vec<&Step> {
        let wanted = |(name, steps): &'_ (String, Vec<Step>)| -> Vec<usize> {
            let at = (0..steps.len()).filter(|&at| is_wanted(name, &steps[at]));
            at.collect()
        };
        let tables = all.iter();
        tables
            .flat_map(|table| wanted(table).into_iter().map(|at| &table.1[at]))
            .collect()
    };
    let is_fitted = |name: &str| FITTED.contains(&name);
    coverage("all rows", &of(&|_, _| true));
    coverage("rows that are only shown", &of(&|_, step| step.is_shown));
    coverage(
        "tables fitted to",
        &of(&|name, step| is_fitted(name) && !step.is_shown),
    );
    let bounded = of(&|_, step| !step.is_shown);
    print_sources(&bounded);
    let all_bounded = coverage("all rows with bounds", &bounded);
    let others = of(&|name, step| !is_fitted(name) && !step.is_shown);
    let share = coverage("rows with bounds of the other tables", &others);
    assert!(
        share >= COVERAGE_MIN && all_bounded >= COVERAGE_MIN,
        "{share} {all_bounded}"
    );
}

#[test]
fn a_plan_says_how_sure_its_first_place_is() {
    let asked = "plan cosmoflow@64 --machine lassen --ranks 8 --batch 8 --no-io";
    let asked: Vec<&str> = asked.split(' ').collect();
    let list = json(&[&asked[..], &["--json"]].concat());
    let (fitting, refused): (Vec<_>, Vec<_>) =
        (list.as_array().unwrap().iter()).partition(|one| one["reason"].is_null());
    assert!(fitting.len() > 1 && !refused.is_empty());
    let probability = |one: &serde_json::Value| one["probability_fastest"].as_f64().unwrap();
    let sum: f64 = fitting.iter().map(|one| probability(one)).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    let ties = fitting.iter().take_while(|one| one["tie"] == true).count();
    assert!(ties > 1, "strategies that differ by less than a percent");
    for one in refused {
        assert!(one["probability_fastest"].is_null() && one["tie"].is_null());
    }
    let line = format!(
        "1 to {ties} of {} are within prediction error: the first is the fastest with probability {:.0} %",
        fitting.len(),
        100.0 * probability(fitting[0])
    );
    let text = answer(&asked);
    let printed = text.lines().find(|one| one.starts_with(&line));
    let printed = printed.unwrap_or_else(|| panic!("{line}\n{text}"));
    // One behind the first may be likelier to be the fastest, and then is named.
    let most = fitting
        .iter()
        .map(|one| probability(one))
        .fold(0.0, f64::max);
    assert_eq!(
        printed.contains("though it is predicted to take longer"),
        most > probability(fitting[0])
    );
}

/// A machine of which more is known has narrower intervals, and so has a measured sample.
#[test]
fn what_is_known_narrows_an_interval() {
    let width = |machine: &str, more: &[&str]| {
        let asked =
            "predict cosmoflow@512 --ranks 16 --batch 2 --no-io --strategy data=2,depth=8 --json";
        let mut asked: Vec<&str> = asked.split(' ').collect();
        asked.extend(["--machine", machine]);
        asked.extend(more);
        let interval = &json(&asked)["interval"];
        let end = |key: &str| interval[key].as_f64().unwrap();
        (end("high_seconds") / end("low_seconds")).ln()
    };
    let fitted = width("lassen", &["--software", "lbann"]);
    let by_file = width("lassen", &[]);
    assert!(fitted < by_file, "{fitted} {by_file}");
    // Messages of a profile were fitted, so that kernels count.
    let assumed = width("summit", &["--software", "lbann"]);
    let measured = ["--software", "lbann", "--seconds-per-sample", "1.4s"];
    let sample = width("summit", &measured);
    assert!(sample < assumed, "{sample} {assumed}");
}
