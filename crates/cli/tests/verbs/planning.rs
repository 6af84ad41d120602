//! `partita plan`.

use crate::command::{answer, assert_keys, error_text, json, partita, refusal};
use serde_json::Value;

/// With the memory and the rates of the vendor's libraries.
const ASKED: [&str; 10] = [
    "plan",
    "cosmoflow@32",
    "--machine",
    "lassen",
    "--ranks",
    "4",
    "--batch",
    "2",
    "--software",
    "partita-cudnn",
];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    ASKED.iter().copied().chain(more.iter().copied()).collect()
}

#[test]
fn strategies_are_ranked_best_first_and_refusals_have_reasons() {
    let list = json(&with(&["--json"]));
    let (ranked, refused): (Vec<&Value>, Vec<&Value>) = list
        .as_array()
        .unwrap()
        .iter()
        .partition(|record| record.get("reason").is_none());
    assert!(ranked.len() >= 4);
    let seconds: Vec<f64> = ranked
        .iter()
        .map(|record| record["iteration_seconds"].as_f64().unwrap())
        .collect();
    assert!(seconds.is_sorted(), "{seconds:?}");
    for record in &ranked {
        assert_keys(
            record,
            &["strategy", "digest", "memory_bytes_max", "breakdown"],
        );
    }
    let too_fine = refused
        .iter()
        .find(|record| record["strategy"] == "data=4")
        .unwrap();
    let reason = too_fine["reason"].as_str().unwrap();
    assert!(reason.contains("at most 2 are possible"), "{reason}");
    assert!(answer(&ASKED).contains(ranked[0]["strategy"].as_str().unwrap()));
}

#[test]
fn what_does_not_fit_in_memory_is_refused() {
    let list = json(&with(&["--json", "--memory", "1TiB"]));
    let all = list.as_array().unwrap();
    let memory = |record: &Value| record["memory_bytes_max"].as_u64();
    let smallest = all.iter().filter_map(memory).min().unwrap();
    let limit = format!("{smallest}B");
    let list = json(&with(&["--json", "--memory", &limit]));
    for record in list.as_array().unwrap() {
        let fits = memory(record).is_some_and(|bytes| bytes <= smallest);
        assert_eq!(record.get("reason").is_none(), fits, "{record}");
    }
    for (limit, expected) in [
        ("686MiB", "help: try more ranks"),
        // Less than the software takes beside any program.
        ("1MiB", "context and workspace of the software alone take"),
    ] {
        let output = partita(&with(&["--memory", limit])).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let error = error_text(&output);
        assert!(
            error.contains("no strategy fits") && error.contains(expected),
            "{error}"
        );
    }
}

#[test]
fn what_would_help_where_nothing_suits_does_help() {
    // What became of each strategy is listed all the same.
    let told = |asked: &[&str]| {
        let output = partita(asked).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        error_text(&output)
    };
    let mut asked = with(&[]);
    (asked[5], asked[7]) = ("97", "8");
    let text = told(&asked);
    assert!(
        text.contains("the nearest batch that suits is 97"),
        "{text}"
    );
    asked[7] = "97";
    assert!(answer(&asked).contains("data=97"));
    (asked[5], asked[7]) = ("1", "1");
    asked.extend(["--memory", "745MiB"]);
    let text = told(&asked);
    assert!(
        text.contains("more ranks or at least ") && !text.contains("smaller batch"),
        "{text}"
    );
    assert!(text.contains("of memory, with `data=1"), "{text}");
    let (_, needed) = text.split_once("or at least ").unwrap();
    let (needed, _) = needed.split_once(" of memory").unwrap();
    let enough = needed.replace(' ', "");
    *asked.last_mut().unwrap() = &enough;
    assert!(answer(&asked).contains("data=1"), "{enough}");
    // Little less is enough for activations of half the size.
    let deep = [
        "plan",
        "unet3d@128",
        "--ranks",
        "1",
        "--batch",
        "1",
        "--machine",
        "lassen",
        "--no-io",
    ];
    let mut asked = deep.to_vec();
    asked.extend(["--memory", "3GiB"]);
    let text = told(&asked);
    let advice = "with `--precision bf16` that strategy fits, it takes about ";
    let (_, needed) = text.split_once(advice).expect(&text);
    let enough = needed.lines().next().unwrap().replace([' ', ')'], "");
    asked.extend(["--precision", "bf16"]);
    for memory in ["3GiB", &enough] {
        asked[10] = memory;
        assert!(answer(&asked).contains("data=1"), "{memory}");
    }
    asked[10] = "1GiB";
    asked.truncate(11);
    assert!(!told(&asked).contains("bf16"));
}

#[test]
fn of_strategies_that_take_as_long_the_smallest_comes_first() {
    let mut asked = with(&["--json"]);
    (asked[5], asked[7]) = ("16", "16");
    let list = json(&asked);
    let list = list.as_array().unwrap();
    let costed = list.iter().filter(|record| record.get("reason").is_none());
    let key = |record: &Value| {
        let seconds = record["iteration_seconds"].as_f64().unwrap();
        (seconds, record["memory_bytes_max"].as_u64().unwrap())
    };
    let keys: Vec<(f64, u64)> = costed.map(key).collect();
    assert!(keys.len() > 3 && keys.is_sorted(), "{keys:?}");
}

#[test]
fn local_statistics_of_batch_norms_are_used_on_request_alone() {
    let strategies = |more: &[&str]| -> Vec<String> {
        let mut asked = vec![
            "plan",
            "resnet18@32",
            "--machine",
            "lassen",
            "--no-io",
            "--json",
        ];
        asked.extend(["--ranks", "4", "--batch", "8"]);
        asked.extend(more);
        let output = partita(&asked).output().unwrap();
        let told = error_text(&output);
        let is_note =
            told.is_empty() || told.contains("batch norm takes the statistics of one micro-batch");
        assert!(output.status.success() && is_note, "{told}");
        let list: Value = serde_json::from_slice(&output.stdout).unwrap();
        let all = list.as_array().unwrap().iter();
        all.map(|one| one["strategy"].as_str().unwrap().to_owned())
            .collect()
    };
    let is_local = |one: &String| one.contains("batch_norm=local");
    assert!(!strategies(&[]).iter().any(is_local));
    let local = strategies(&["--batch-norm", "local"]);
    // Without a data axis there is nothing local.
    for one in &local {
        assert_eq!(one.contains("data="), is_local(one), "{one}");
    }
    for expected in [
        "data=4,batch_norm=local",
        "data=2,height=2,batch_norm=local",
        "height=2,width=2",
    ] {
        assert!(local.iter().any(|one| one == expected), "{local:#?}");
    }
    assert!(
        local
            .iter()
            .any(|one| is_local(one) && one.contains("stages="))
    );
}

#[test]
fn buckets_are_kept_where_they_are_faster() {
    let mut asked = vec![
        "plan",
        "resnet50@64",
        "--machine",
        "abci",
        "--no-io",
        "--json",
    ];
    asked.extend(["--ranks", "16", "--batch", "256", "--all"]);
    let list = json(&asked);
    let all: Vec<&Value> = list.as_array().unwrap().iter().collect();
    let strategy = |one: &Value| one["strategy"].as_str().unwrap().to_owned();
    let seconds = |of: &str| {
        let mut all = all.iter().filter(|one| one.get("reason").is_none());
        let found = all.find(|one| strategy(one) == of);
        found.and_then(|one| one["iteration_seconds"].as_f64())
    };
    let (apart, together) = (seconds("data=16"), seconds("data=16,bucket=25MiB"));
    assert!(together.unwrap() < apart.unwrap());
    let mut kept = 0;
    for one in all.iter().map(|one| strategy(one)) {
        let base = one.replace(",bucket=25MiB", "").replace(",bucket=4MiB", "");
        if let (true, Some(with)) = (base != one, seconds(&one)) {
            assert!(with < seconds(&base).unwrap(), "{one}");
            kept += 1;
        }
    }
    assert!(kept > 0);
}

#[test]
fn a_machine_of_unknown_reading_is_refused_before_the_search() {
    let mut asked = with(&[]);
    asked[3] = "abci";
    let text = refusal(&asked);
    assert!(text.contains("`io`") && text.contains("--no-io"), "{text}");
}

#[test]
fn the_front_is_marked_and_the_first_is_explained() {
    let list = json(&with(&["--json"]));
    let all = list.as_array().unwrap();
    let ranked = all.iter().filter(|one| one.get("reason").is_none());
    let ranked: Vec<&Value> = ranked.collect();
    let number = |one: &Value, key: &str| one[key].as_f64().unwrap();
    let place = |one: &Value| {
        let memory = number(one, "memory_bytes_max");
        (memory, number(one, "iteration_seconds"))
    };
    assert_eq!(ranked[0]["front"], true);
    for one in &ranked {
        let (memory, seconds) = place(one);
        let is_beaten = ranked
            .iter()
            .map(|other| place(other))
            .any(|other| other.0 <= memory && other.1 <= seconds && other != (memory, seconds));
        if one["front"] == true {
            assert!(!is_beaten, "{one}");
        }
    }
    let explained: Vec<&Value> = all
        .iter()
        .filter(|one| one.get("explanation").is_some())
        .collect();
    assert_eq!(explained, [ranked[0]]);
    let explanation = &ranked[0]["explanation"];
    assert_keys(explanation, &["findings", "what_ifs", "rival"]);
    let links = &explanation["what_ifs"][0];
    assert_keys(
        links,
        &[
            "change",
            "iteration_seconds",
            "samples_per_second",
            "speedup",
        ],
    );
    let refused = all.iter().filter(|one| one.get("reason").is_some());
    for one in refused {
        assert!(["memory", "slower", "unsuited"].contains(&one["refusal"].as_str().unwrap()));
        assert_eq!(one["front"], false);
    }
}

#[test]
fn a_plan_fits_on_a_screen_and_all_of_it_is_told_on_request() {
    let asked = "plan cosmoflow@64 --machine lassen --ranks 16 --batch 8";
    let asked: Vec<&str> = asked.split(' ').collect();
    let (short, long) = (answer(&asked), answer(&[&asked[..], &["--all"]].concat()));
    assert!(short.lines().count() <= 40, "{short}");
    for part in [
        "front",
        "limiting factor",
        "number of ranks",
        "changes:",
        "Not chosen",
    ] {
        assert!(short.contains(part), "no `{part}` in\n{short}");
    }
    let list = json(&[&asked[..], &["--json"]].concat());
    for one in list.as_array().unwrap() {
        let strategy = one["strategy"].as_str().unwrap();
        assert!(long.contains(strategy), "{strategy}");
        if let Some(reason) = one["reason"].as_str() {
            assert!(long.contains(reason), "{strategy}");
        }
    }
}

#[test]
fn a_search_may_be_limited_in_time() {
    let list = json(&with(&["--no-io", "--budget", "1ns", "--json"]));
    let list = list.as_array().unwrap();
    let (fitting, refused): (Vec<&Value>, Vec<&Value>) =
        list.iter().partition(|one| one["reason"].is_null());
    assert_eq!(fitting.len(), 1);
    assert!(fitting[0]["iteration_seconds"].as_f64().unwrap() > 0.0);
    assert!(refused.iter().any(|one| one["refusal"] == "untried"));
    let text = answer(&with(&["--no-io", "--budget", "1ns"]));
    assert!(text.contains(" were not looked at, first `"), "{text}");
    let text = answer(&with(&["--no-io", "--budget", "1000s"]));
    assert!(!text.contains(" were not looked at"), "{text}");
    // Where what was looked at does not fit, it is told, and what was not looked at.
    let tight = ["--no-io", "--budget", "1ns", "--memory", "686MiB"];
    let output = partita(&with(&tight)).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = error_text(&output);
    assert!(
        error.contains("the search ended before it found a strategy that fits 4 ranks"),
        "{error}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(" were not looked at, first `"), "{text}");
    assert!(text.contains(" do not fit in memory, first `"), "{text}");
    for wrong in ["10", "-1s", "0s", "nans", "inf s", "1 hour", "1e300s"] {
        let error = refusal(&with(&["--budget", wrong]));
        assert!(error.contains("like `10s`"), "{wrong}: {error}");
    }
}

#[test]
fn more_memory_and_more_ranks_are_told_of_on_request() {
    // A sample takes more than this.
    let asked = "plan cosmoflow@128 --machine lassen --software partita-cudnn --ranks 4 --batch 4 --json --explain --memory 1025MiB";
    let list = json(&asked.split(' ').collect::<Vec<_>>());
    let first = &list[0];
    let changes = first["explanation"]["what_ifs"].as_array().unwrap();
    let memory = changes
        .iter()
        .find(|one| one["change"] == "device_memory")
        .unwrap();
    let is_whole = |one: &Value| one["strategy"].as_str().unwrap().starts_with("data=4");
    assert!(is_whole(memory) && !is_whole(first), "{memory}");
    assert!(memory["speedup"].as_f64().unwrap() > 1.0);
    let asked = "predict cosmoflow@128 --machine lassen --software partita-cudnn --ranks 4 --batch 4 --json --explain --strategy";
    let asked: Vec<&str> = asked.split(' ').chain(["data=2,depth=2"]).collect();
    let scaling = &json(&asked)["explanation"]["scaling"];
    let points = scaling["points"].as_array().unwrap();
    let efficiency: Vec<f64> = points
        .iter()
        .map(|one| one["efficiency"].as_f64().unwrap())
        .collect();
    let (last, before) = efficiency.split_last().unwrap();
    assert!(before.iter().all(|&one| one >= 0.5), "{efficiency:?}");
    assert!(*last < 1.0 && !scaling["end"].as_str().unwrap().is_empty());
}

#[test]
fn buckets_hold_gradients_of_split_and_whole_weights() {
    for (ranks, strategy) in [("4", "data=2,channel=2"), ("8", "data=2,depth=2,channel=2")] {
        let strategy = format!("{strategy},bucket=4MiB");
        let words = [
            "lower",
            "cosmoflow@32",
            "--ranks",
            ranks,
            "--batch",
            "4",
            "--strategy",
        ];
        let text = answer(&[&words[..], &[&strategy]].concat());
        assert!(text.contains("reduce conv7.weight.."), "{strategy}");
    }
}
