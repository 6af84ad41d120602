//! The tables of the book against the keys that the binary names where it refuses one.

use crate::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

type Words = BTreeSet<String>;

/// What the binary says of an input that it refuses.
fn refusal(arguments: &[&str], files: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let output = Command::new(env!("CARGO_BIN_EXE_partita"))
        .args(arguments)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
    text
}

/// The words between two marks of a text.
fn between(text: &str, before: &str, after: &str) -> Words {
    let (_, rest) = text
        .split_once(before)
        .unwrap_or_else(|| panic!("no {before:?} in: {text}"));
    let list = rest.split(after).next().unwrap();
    let words = list
        .split(',')
        .map(|word| word.trim().trim_matches(['`', '"']));
    words
        .filter(|word| *word != "none")
        .map(str::to_owned)
        .collect()
}

/// The first cells of the rows of a table below a heading of a page, and what stands in backticks in
/// another column.
fn rows(page: &str, heading: &str, column: usize) -> BTreeMap<String, Words> {
    let text = fs::read_to_string(root().join("docs/src").join(page)).unwrap();
    let (_, below) = text
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("{page} has no heading {heading:?}"));
    let table = below.lines().skip_while(|line| !line.starts_with('|'));
    let rows = table.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = in_code(cells[1]).into_iter().next();
        (name.unwrap_or_default(), in_code(cells[column]))
    })
    .collect()
}

fn in_code(cell: &str) -> Words {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn names(page: &str, heading: &str) -> Words {
    rows(page, heading, 1).into_keys().collect()
}

fn model_refusal(line: &str) -> String {
    let text = format!("model m\ninput x channels=2 extent=8x8x8\n{line}\n");
    refusal(&["inspect", "./m.txt"], &[("m.txt", &text)])
}

#[test]
fn the_table_of_operations_has_all_operations_and_keys() {
    let known = between(&model_refusal("a = nothing x"), "possible values: ", "\n");
    let table = rows("model.md", "## Operations", 3);
    assert_eq!(table.keys().cloned().collect::<Words>(), known);
    for (operation, keys) in table {
        let text = model_refusal(&format!("a = {operation} x no_key=1"));
        assert_eq!(
            between(&text, "possible values: ", "\n"),
            keys,
            "{operation}"
        );
    }
}

#[test]
fn the_tables_of_the_run_file_have_all_keys() {
    let needed = "model = \"m\"\ndata = \"d\"\noutput = \"o\"\nbatch = 1\nepochs = 1\n";
    let possible = |more: &str| {
        let text = refusal(
            &["train", "r.toml"],
            &[("r.toml", &format!("{needed}{more}"))],
        );
        between(&text, "possible values: ", "\n")
    };
    assert_eq!(names("run-file.md", "## Keys"), possible("no_key = 1"));
    let of_both: Words = ["adam", "adamw", "sgd", "lars", "lamb"]
        .iter()
        .flat_map(|kind| possible(&format!("[optimizer]\nkind = \"{kind}\"\nno_key = 1")))
        .collect();
    assert_eq!(names("run-file.md", "## `[optimizer]`"), of_both);
    let augmentation = possible("[augmentation]\nno_key = 1");
    assert_eq!(names("run-file.md", "## `[augmentation]`"), augmentation);
    let data = refusal(
        &["train", "r.toml"],
        &[(
            "r.toml",
            &needed.replace("\"d\"", "{ path = \"d\", no_key = 1 }"),
        )],
    );
    let data = between(&data, "possible values: ", "\n");
    assert_eq!(names("run-file.md", "## `[data]`"), data);
    let schedule = possible("[schedule]\nlearning_rate = 1\nno_key = 1");
    assert_eq!(names("run-file.md", "## `[schedule]`"), schedule);
    let offload = possible("[offload]\nno_key = 1\n[schedule]\nlearning_rate = 1");
    assert_eq!(names("offload.md", "## Keys and options"), offload);
}

#[test]
fn the_table_of_the_index_has_all_keys() {
    let possible = |text: &str| {
        let text = refusal(&["data", "inspect", "d"], &[("d/dataset.toml", text)]);
        between(&text, "expected one of ", "\n")
    };
    assert_eq!(names("data.md", "## The index"), possible("no_key = 1"));
    let all = "format = 1\nkind = \"shapes\"\nsamples = 0\nchannels = 1\nextent = [1, 1, 1]\n\
        dtype = \"int16\"\ntargets = [\"a\"]\n[train]\nno_key = 1";
    assert_eq!(names("data.md", "### A split"), possible(all));
}

#[test]
fn the_table_of_machine_files_has_all_keys() {
    let table = names("machine.md", "## Keys");
    let lassen = fs::read_to_string(root().join("machines/lassen.toml")).unwrap();
    let possible = |text: &str| {
        let arguments = ["predict", "cosmoflow@32", "--ranks", "1", "--batch", "1"];
        let more = ["--strategy", "data=1", "--machine", "./m.toml"];
        let arguments: Vec<&str> = arguments.into_iter().chain(more).collect();
        let text = refusal(&arguments, &[("m.toml", text)]);
        between(text.trim_end(), "possible values: ", "\n")
    };
    // A key of a table stands as `table.key`, or as `table.*.key` where several tables have it.
    for (section, prefix) in [
        ("", ""),
        ("[device]", "device."),
        ("[device.rates]", "device.rates."),
        ("[device.tiles]", "device.tiles."),
        ("[device.efficiency]", "device.efficiency."),
        ("[device.efficiency.conv3d]", "device.efficiency.conv3d."),
        (
            "[device.efficiency.conv3d.saturation]",
            "device.efficiency.conv3d.saturation.",
        ),
        ("[links]", "links."),
        ("[links.intra]", "links.intra."),
        ("[links.inter]", "links.inter."),
        ("[allreduce]", "allreduce."),
        ("[allreduce.intra]", "allreduce.intra."),
        ("[exchange]", "exchange."),
        ("[io]", "io."),
    ] {
        let own: Words = table
            .iter()
            .filter_map(|name| name.strip_prefix(prefix))
            .map(|rest| rest.split('.').next().unwrap().to_owned())
            .collect();
        let text = match (section, lassen.contains(&format!("\n{section}\n"))) {
            ("", _) => format!("no_key = 1\n{lassen}"),
            (_, true) => lassen.replace(
                &format!("\n{section}\n"),
                &format!("\n{section}\nno_key = 1\n"),
            ),
            (_, false) => format!("{lassen}\n{section}\nno_key = 1\n"),
        };
        assert_eq!(own, possible(&text), "{section}");
    }
}

#[test]
fn the_tables_of_strategies_have_all_words() {
    let strategy = |text: &str| {
        let arguments = ["predict", "cosmoflow@32", "--ranks", "2", "--batch", "2"];
        let more = ["--machine", "lassen", "--strategy", text];
        let arguments: Vec<&str> = arguments.into_iter().chain(more).collect();
        refusal(&arguments, &[])
    };
    let words = names("strategies.md", "## Syntax");
    let axes = between(strategy("no_axis=2").trim_end(), "the axes are ", "\n");
    let missing: Vec<&String> = axes.difference(&words).collect();
    assert!(missing.is_empty(), "strategies.md leaves out {missing:?}");
    for word in words.difference(&axes) {
        // A word that is known is refused for its value, not for its name.
        let text = strategy(&format!("{word}=no_value,no_axis=2"));
        assert!(!text.contains(&format!("no axis `{word}`")), "{text}");
    }
    let schedules = between(&strategy("stages=2,schedule=no"), "possible values: ", "\n");
    let known = names("strategies.md", "### Schedules");
    assert_eq!(known, schedules);
    let shards = between(&strategy("shard=no"), "one of ", "\n");
    assert_eq!(names("strategies.md", "### Sharded training state"), shards);
}
