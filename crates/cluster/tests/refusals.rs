//! Machine files with a fault: the error names the file, the line, the key and what is possible.

use partita_cluster::{Machine, MachineError};
use std::fs;

/// A line of the Lassen file replaced; the line number of the change and the error it causes.
fn refused(from: &str, to: &str) -> (usize, String) {
    let text = include_str!("../../../published/machines/lassen-lbann.toml");
    let offset = text.find(from).unwrap_or_else(|| panic!("no `{from}`"));
    let line = text[..offset].matches('\n').count() + 1;
    let changed = text.replacen(from, to, 1);
    match Machine::parse(&changed, "bad.toml") {
        Ok(_) => panic!("`{to}` was accepted"),
        Err(error) => (line, error.to_string()),
    }
}

fn assert_refused(from: &str, to: &str, parts: &[&str]) {
    let (line, message) = refused(from, to);
    assert!(message.contains("bad.toml"), "{message}");
    assert!(message.contains(&format!("line {line}")), "{message}");
    for part in parts {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}

#[test]
fn unknown_keys_name_the_nearest() {
    assert_refused(
        "latency = { value = \"1.2 us\"",
        "latncy = { value = \"1.2 us\"",
        &[
            "unknown key `latncy`",
            "did you mean `latency`?",
            "nics_per_node",
        ],
    );
    assert_refused("[io]", "[oi]", &["unknown key `oi`", "did you mean `io`?"]);
    assert_refused(
        "memory = { value = \"16 GB\", source",
        "memory = { value = \"16 GB\", sauce",
        &["unknown key `sauce`", "did you mean `source`?"],
    );
}

#[test]
fn nonsensical_numbers_are_refused_with_their_line() {
    let bandwidth = "bandwidth = { value = \"12.5 GB/s\", basis";
    for (from, to, key) in [
        (
            bandwidth,
            "bandwidth = { value = \"0 GB/s\", basis",
            "links.inter.bandwidth",
        ),
        (
            bandwidth,
            "bandwidth = { value = \"nan GB/s\", basis",
            "links.inter.bandwidth",
        ),
        (
            bandwidth,
            "bandwidth = { value = \"25 GB\", basis",
            "links.inter.bandwidth",
        ),
        (
            bandwidth,
            "bandwidth = { value = 25e9, basis",
            "links.inter.bandwidth",
        ),
        ("\"1.2 us\"", "\"-1.2 us\"", "links.inter.latency"),
        ("value = 512", "value = 0", "nodes"),
        ("value = 512", "value = 5.5", "nodes"),
        ("\"16 GB\"", "\"-16 GB\"", "device.memory"),
        ("\"16 GB\"", "\"16 Gflop/s\"", "device.memory"),
        (
            "value = 0.844",
            "value = -0.844",
            "device.efficiency.conv3d.forward",
        ),
        (
            "value = 0.844",
            "value = nan",
            "device.efficiency.conv3d.forward",
        ),
        (
            "value = 0.8",
            "value = 1.1",
            "device.efficiency.memory_bound",
        ),
    ] {
        assert_refused(from, to, &[&format!("`{key}` is "), "expected"]);
    }
}

#[test]
fn numbers_need_a_source_and_shares_a_basis() {
    assert_refused(
        "devices_per_node = { value = 4, source = \"Oyama et al., evaluation environment\" }",
        "devices_per_node = 4",
        &["a number with its source"],
    );
    assert_refused(
        "value = 4, source = \"Oyama et al., evaluation environment\"",
        "value = 4, source = \" \"",
        &["`devices_per_node.source` is empty"],
    );
    assert_refused(
        "value = 4, source = \"Oyama et al., evaluation environment\"",
        "value = 4",
        &["missing field `source`"],
    );
    assert_refused(
        "value = 0.8, basis = \"assumed\"",
        "value = 0.8",
        &["`device.efficiency.memory_bound.basis` is missing"],
    );
}

#[test]
fn words_outside_their_choice_are_refused() {
    assert_refused(
        "kind = \"gpu\"",
        "kind = \"gpus\"",
        &["`device.kind` is \"gpus\"", "did you mean \"gpu\"?"],
    );
    assert_refused(
        "basis = \"assumed\"",
        "basis = \"assumd\"",
        &["did you mean \"assumed\"?"],
    );
}

#[test]
fn a_part_may_not_exceed_its_whole() {
    assert_refused(
        "node_bandwidth = { value = \"25 GB/s\"",
        "node_bandwidth = { value = \"6 GB/s\"",
        &[
            "`links.inter.node_bandwidth`",
            "at least links.inter.bandwidth",
        ],
    );
    assert_refused(
        "bandwidth_total = { value = \"240 GB/s\"",
        "bandwidth_total = { value = \"2.4 GB/s\"",
        &["`io.bandwidth_total`", "at least io.bandwidth_per_node"],
    );
}

#[test]
fn text_that_is_not_toml_is_refused_with_its_line() {
    assert_refused("[links.intra]", "[links.intra", &["[links.intra"]);
}

#[test]
fn unknown_names_list_those_that_exist() {
    let error = Machine::load("lasen", &[]).expect_err("misspelled");
    match &error {
        MachineError::Unknown {
            available, nearest, ..
        } => {
            assert_eq!(
                available,
                &[
                    "abci", "dgx-a100", "dgx-h100", "frontera", "lassen", "summit"
                ]
            );
            assert_eq!(nearest.as_deref(), Some("lassen"));
        }
        other => panic!("{other}"),
    }
    let message = error.to_string();
    assert!(message.contains("did you mean `lassen`?"), "{message}");
}

#[test]
fn files_are_found_by_name_and_by_path() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lassen = Machine::load("lassen", &[]).expect("built in");
    let mut ours = lassen.clone();
    ours.name = "ours".to_owned();
    let path = folder.path().join("ours.toml");
    fs::write(&path, ours.to_toml()).expect("written");
    let dirs = [folder.path().join("absent"), folder.path().to_owned()];
    assert_eq!(Machine::load("ours", &dirs).expect("by name"), ours);
    let by_path = Machine::load(&path.display().to_string(), &[]).expect("by path");
    assert_eq!(by_path, ours);
    let names = Machine::available(&dirs);
    assert!(names.contains(&"ours".to_owned()) && names.contains(&"lassen".to_owned()));
    assert_eq!(names.len(), Machine::available(&[]).len() + 1);
    // A file of the user's comes before what is compiled in.
    fs::write(folder.path().join("lassen.toml"), ours.to_toml()).expect("written");
    assert_eq!(Machine::load("lassen", &dirs).expect("shadowed"), ours);
    let absent = Machine::load("absent/none.toml", &[]).expect_err("no such file");
    assert!(matches!(absent, MachineError::Unreadable { .. }));
}

#[test]
fn saturation_and_allreduce_fits_are_checked_too() {
    let thickness = "device.efficiency.conv3d.saturation.thickness";
    let head = format!("[{thickness}]\nvalue = ");
    let text = include_str!("../../../published/machines/lassen-lbann.toml");
    let start = text.find(&head).expect("the saturation table") + head.len();
    let given = text[start..].lines().next().expect("its number");
    for wrong in ["0.0", "-1.0", "nan", "inf", "\"2 planes\"", "true"] {
        let (line, message) = refused(&format!("{head}{given}"), &format!("{head}{wrong}"));
        assert!(message.contains(&format!("`{thickness}` is ")), "{message}");
        assert!(message.contains(&format!("line {}", line + 1)), "{message}");
    }
    assert_refused(
        "[device.efficiency.conv3d.saturation.thickness]",
        "[device.efficiency.conv3d.saturation.thicknes]",
        &["unknown key `thicknes`", "did you mean `thickness`?"],
    );
    for (from, to, part) in [
        ("growth = {", "grows = {", "unknown key `grows`"),
        (
            "occupancy = { value = 1.0",
            "occupancy = { value = 1.5",
            "`allreduce.occupancy` is 1.5",
        ),
        (
            "occupancy = { value = 1.0",
            "occupancy = { value = 0.0",
            "`allreduce.occupancy` is 0.0",
        ),
        (
            "occupancy = { value = 1.0, basis = \"derived\"",
            "occupancy = { value = 1.0",
            "`allreduce.occupancy.basis` is missing",
        ),
    ] {
        assert_refused(from, to, &[part]);
    }
}

/// Every number of every file: without its unit, with another one, and left out.
#[test]
fn no_file_loads_with_a_number_spoiled() {
    for name in Machine::available(&[]) {
        let text = Machine::load(&name, &[]).expect("built in").to_toml();
        for (at, line) in text.lines().enumerate() {
            let Some((key, rest)) = line.split_once(" = { value = ") else {
                continue;
            };
            let (value, rest) = rest.split_once(", ").expect("a source follows");
            let spoiled = match value.trim_matches('"').split_once(' ') {
                Some((number, _)) => vec![number.to_owned(), format!("\"{number} parsec\"")],
                None => vec![format!("\"{value}\""), "-1".to_owned()],
            };
            for wrong in spoiled {
                let changed = format!("{key} = {{ value = {wrong}, {rest}");
                let lines: Vec<&str> = text.lines().collect();
                let all = [&lines[..at], &[&changed], &lines[at + 1..]].concat();
                let error = Machine::parse(&all.join("\n"), "bad.toml").expect_err(&changed);
                let message = error.to_string();
                assert!(message.contains(&format!("line {}:", at + 1)), "{message}");
                assert!(message.contains(key), "{message}");
            }
        }
    }
}
