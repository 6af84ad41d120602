use crate::command::{answer, assert_keys, error_text, json, partita, refusal};
use serde_json::Value;

const ASKED: [&str; 8] = [
    "plan",
    "cosmoflow@32",
    "--machine",
    "lassen",
    "--ranks",
    "4",
    "--batch",
    "2",
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
    assert!(too_fine["reason"].as_str().unwrap().contains("data=2"));
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
    let output = partita(&with(&["--memory", "1MiB"])).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error_text(&output).contains("no strategy fits"),
        "{}",
        error_text(&output)
    );
}

#[test]
fn a_machine_of_unknown_reading_is_refused_before_the_search() {
    let mut asked = with(&[]);
    asked[3] = "abci";
    let text = refusal(&asked);
    assert!(text.contains("`io`") && text.contains("--no-io"), "{text}");
}
