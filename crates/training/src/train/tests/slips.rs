//! Slips in a run file, and what is then suggested.

use crate::train::run_file::RunFile;
use crate::train::section::suggest::{homes, synonyms};
use std::collections::BTreeSet;

/// A run file with one more line at its top, and one more table.
fn refused(line: &str, tables: &str) -> String {
    let all = [
        "model = \"m\"",
        "data = \"d\"",
        "output = \"o\"",
        "batch = 4",
        "epochs = 2",
    ];
    let key = |line: &str| line.split('=').next().unwrap().trim().to_owned();
    let others = all.iter().filter(|other| key(other) != key(line));
    let others: Vec<&str> = others.copied().collect();
    let schedule = if tables.contains("[schedule]") {
        ""
    } else {
        "[schedule]\nlearning_rate = 0.1\n"
    };
    let text = format!("{line}\n{}\n{schedule}{tables}\n", others.join("\n"));
    match RunFile::parse(&text, "r") {
        Ok(run) => panic!("{line} {tables} is read as {run:?}"),
        Err(error) => error.to_string(),
    }
}

/// Asserts that each error has all its parts.
fn assert_said(cases: &[(&str, &str, &[&str])]) {
    for (line, tables, parts) in cases {
        let error = refused(line, tables);
        for part in *parts {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
        let mut rest = error.lines().skip(1);
        assert!(rest.all(|line| line.starts_with("help: ")), "{error}");
    }
}

#[test]
fn keys_of_other_tools_and_tables_lead_to_those_here() {
    assert_said(&[
        ("batch_size = 4", "", &["help: try `batch`"]),
        ("lr = 0.1", "", &["help: try `schedule.learning_rate`"]),
        ("tune = true", "", &["help: try \"live\""]),
        ("tune = \"on\"", "", &["help: try \"live\""]),
        ("tune = false", "", &["help: try \"off\""]),
        ("momentum = 0.9", "", &["help: try `optimizer.momentum`"]),
        (
            "",
            "[schedule]\nlr = 0.1",
            &["help: try `schedule.learning_rate`"],
        ),
        (
            "",
            "[schedule]\nwarmup = 5\nlearning_rate = 1",
            &["`schedule.warmup_epochs`"],
        ),
        (
            "",
            "[schedule]\npower = 2\nlearning_rate = 1",
            &["a key of kind \"polynomial\""],
        ),
        (
            "",
            "[optimizer]\nlr = 0.1",
            &["help: try `schedule.learning_rate`"],
        ),
        (
            "",
            "[optimizer]\neps = 0.1",
            &["help: try `optimizer.epsilon`"],
        ),
        (
            "",
            "[optimizer]\nkind = \"sgd\"\nwd = 0.1",
            &["`optimizer.weight_decay`"],
        ),
        (
            "",
            "[optimizer]\nkind = \"sgd\"\nbeta1 = 0.1",
            &["a key of kind \"adam\", \"adamw\", \"lamb\""],
        ),
        (
            "schedule = \"cosine\"",
            "",
            &["there twice, first in line 1"],
        ),
        (
            "optimizer = \"sgd\"",
            "",
            &["`[optimizer]` with `kind = \"sgd\"`"],
        ),
    ]);
}

#[test]
fn every_suggested_key_is_one() {
    for (_, key) in synonyms() {
        let is_key = homes().any(|(_, known)| known == key);
        assert!(is_key || ["kind", "trust", "every"].contains(&key), "{key}");
    }
    for (table, key) in homes() {
        // A date is no value of any key.
        let value = format!("{key} = 2000-01-01");
        let table = table.trim_end_matches('.');
        let error = match table {
            "" => refused(&value, ""),
            table => refused("", &format!("[{table}]\n{value}")),
        };
        let is_known = !error.contains("there is no key") || error.contains("a key of kind");
        assert!(is_known, "{error}");
    }
}

/// No key hides another one.
#[test]
fn wrong_values_of_all_keys_are_told_at_once() {
    let tables = homes().map(|(table, _)| table.trim_end_matches('.'));
    let tables: BTreeSet<&str> = tables.collect();
    let mut text = String::new();
    let mut expected = Vec::new();
    for table in &tables {
        if !table.is_empty() {
            text += &format!("[{table}]\n");
        }
        for (home, key) in homes() {
            if home.trim_end_matches('.') == *table && !(home.is_empty() && tables.contains(key)) {
                text += &format!("{key} = 2000-01-01\n");
                expected.push(format!("`{home}{key}`"));
            }
        }
    }
    let error = RunFile::parse(&text, "r").unwrap_err().to_string();
    for key in &expected {
        let lines = error.lines().filter(|line| {
            let (told, _) = line
                .split_once(" is 2000")
                .or(line.split_once("; `"))
                .unwrap_or((line, ""));
            told.ends_with(key)
        });
        assert_eq!(lines.count(), 1, "{key} in: {error}");
    }
    let missing = error.lines().filter(|line| line.contains(" is missing"));
    assert_eq!(
        (
            missing.count(),
            error
                .lines()
                .filter(|line| !line.starts_with("  help: "))
                .count()
        ),
        (2, expected.len() + 2),
        "{error}"
    );
}

#[test]
fn keys_that_are_there_twice_are_named_with_both_lines() {
    assert_said(&[
        (
            "seed = 1\nseed = 2",
            "",
            &["r, line 2", "key `seed` is there twice, first in line 1"],
        ),
        (
            "",
            "[optimizer]\nclip = 1\n# more\nclip = 2",
            &["line 12", "key `optimizer.clip`", "first in line 10"],
        ),
        (
            "",
            "[schedule]\nlearning_rate = 1\n[optimizer]\n[schedule]",
            &["line 10", "table `[schedule]`", "first in line 7"],
        ),
    ]);
}

#[test]
fn steps_of_a_transform_are_refused_one_by_one() {
    assert_said(&[
        (
            "transform = \"standardise\"",
            "",
            &["help: try \"standardize\""],
        ),
        (
            "transform = \"normalize\"",
            "",
            &["help: try \"standardize\""],
        ),
        ("transform = \"scal\"", "", &["help: try {scale = NUMBER}"]),
        (
            "transform = { clip = [2, 1] }",
            "",
            &["help: try {clip = [1, 2]}"],
        ),
        ("transform = { clip = 2 }", "", &["like {clip = [0, 5]}"]),
        (
            "transform = { percentiles = [1, 101] }",
            "",
            &["from 0 to 100", "help: try {percentiles = [1, 100]}"],
        ),
        (
            "transform = { one_hot = 1 }",
            "",
            &["2 to 4096 classes\nhelp: try 2"],
        ),
        ("transform = { scale = 0 }", "", &["a number other than 0"]),
        (
            "transform = [\"log1p\", \"stadardize\"]",
            "",
            &["in the place of step 2", "help: try \"standardize\""],
        ),
    ]);
}

#[test]
fn values_in_another_form_are_answered_with_what_was_meant() {
    assert_said(&[
        ("metrics = [\"json\"]", "", &["help: try [\"jsonl\"]"]),
        ("metrics = \"csv\"", "", &["help: try [\"csv\"]"]),
        (
            "metrics = [\"csv\", \"csv\"]",
            "",
            &["each once\nhelp: try [\"csv\"]"],
        ),
        ("epochs = 3.0", "", &["help: try 3"]),
        ("epochs = \"3\"", "", &["help: try 3"]),
        ("batch = 0", "", &["help: try 1"]),
        ("seed = -1", "", &["help: try 0"]),
        ("watchdog = 60", "", &["help: try \"60 s\""]),
        ("watchdog = \"2 minutes\"", "", &["help: try \"2 min\""]),
        ("memory = 8", "", &["help: try \"8GiB\""]),
        (
            "overwrite = \"yes\"",
            "",
            &["true or false\nhelp: try true"],
        ),
        ("freeze = \"c1\"", "", &["help: try [\"c1\"]"]),
        (
            "",
            "[augmentation]\nflip = [\"x\"]",
            &["(x, the last)\nhelp: try [\"width\"]"],
        ),
        (
            "",
            "[augmentation]\nflip = [\"y\", \"z\"]",
            &["help: try [\"depth\", \"height\"]"],
        ),
        ("", "[augmentation]\nrotate = 90", &["help: try true"]),
        ("", "[augmentation]\ncrop = 4", &["help: try [4, 4, 4]"]),
        (
            "",
            "[augmentation]\nelastic = true",
            &["{ magnitude = 2, spacing = 8 }"],
        ),
        ("", "[offload]\ncores = 2", &["help: try \"2\""]),
        ("", "[offload]\ncores = [5, 6]", &["help: try \"5,6\""]),
        (
            "",
            "[checkpoint]\nbest = \"loss\"",
            &["help: try \"validation_loss\""],
        ),
        ("precision = \"float32\"", "", &["help: try \"f32\""]),
    ]);
}

#[test]
fn what_ends_a_training_is_refused_with_what_was_meant() {
    assert_said(&[
        (
            "early_stop = 3",
            "",
            &["no key `early_stop`", "help: try `early_stopping`"],
        ),
        (
            "min_delta = 0.1",
            "",
            &["help: try `early_stopping.min_delta`"],
        ),
        ("drop_last = 1", "", &["help: try true"]),
        ("early_stopping = 3", "", &["a table, `[early_stopping]`"]),
        (
            "",
            "[early_stopping]\nmetric = \"accuracy\"",
            &["early_stopping.patience", "like 10"],
        ),
        ("", "[early_stopping]\npatience = 0", &["help: try 1"]),
        (
            "",
            "[early_stopping]\npatience = 1\nmin_delta = -1",
            &["at least 0"],
        ),
        (
            "",
            "[early_stopping]\npatience = 1\nmetric = \"val_loss\"",
            &["help: try \"validation_loss\""],
        ),
        (
            "",
            "[target]\naccuracy = 0.9\nmean_dice = 0.9",
            &["a table of one metric"],
        ),
        (
            "",
            "[checkpoint]\nkeep = 0\nbest = \"accuracy\"",
            &["1 or more with `best`"],
        ),
    ]);
}

#[test]
fn numbers_below_zero_are_told_apart_from_those_that_are_too_small() {
    let rate = |number: &str| refused("", &format!("[schedule]\nlearning_rate = {number}"));
    for number in ["-1", "-inf"] {
        assert!(
            rate(number).contains("at least 0, like 0.001\nhelp: try 0"),
            "{number}"
        );
    }
    assert!(rate("1e-50").contains("0 or a number from 1.1754944e-38"));
    assert!(rate("\"1e-3\"").contains("help: try 0.001"));
    let clip = |number: &str| refused("", &format!("[optimizer]\nclip = {number}"));
    for number in ["0", "-1"] {
        let error = clip(number);
        assert!(
            error.ends_with("a number greater than 0, like 1"),
            "{error}"
        );
    }
    assert!(clip("1e99").contains("help: try 3.4028235e38"));
    let decay = refused("", "[optimizer]\nweight_decay = -1");
    assert!(
        decay.contains("at least 0") && decay.ends_with("help: try 0"),
        "{decay}"
    );
}
