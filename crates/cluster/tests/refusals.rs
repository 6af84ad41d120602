//! Faulty machine files: errors have the line, the key, and the nearest valid choice.

use partita_cluster::{ConvPass, LayerPrecision, Machine, MachineError};
use std::fs;

/// The Lassen file, with fits of exchanges and sums as a user may have measured them there.
const TEXT: &str = concat!(
    include_str!("../../../machines/lassen.toml"),
    r#"
[exchange]
latency = { value = "300 us", basis = "fitted", source = "an example" }
bandwidth = { value = "2.3 GB/s", basis = "fitted", source = "an example" }

[allreduce]
occupancy = { value = 1.0, basis = "derived", source = "an example" }

[allreduce.intra]
latency = { value = "8 us", source = "an example" }
bandwidth = { value = "37.58 GB/s", basis = "derived", source = "an example" }

[allreduce.inter]
latency = { value = "8 us", basis = "assumed", source = "an example" }
bandwidth = { value = "25 GB/s", basis = "derived", source = "an example" }
growth = { value = 0.304, basis = "fitted", source = "an example" }
"#
);

/// Replaces a part of it: the line of the change, and the error.
fn refused(from: &str, to: &str) -> (usize, MachineError) {
    let text = TEXT;
    let offset = text.find(from).unwrap_or_else(|| panic!("no `{from}`"));
    let line = text[..offset].matches('\n').count() + 1;
    let changed = text.replacen(from, to, 1);
    match Machine::parse(&changed, "bad.toml") {
        Ok(_) => panic!("`{to}` was accepted"),
        Err(error) => (line, error),
    }
}

/// Line and key of a faulty value or an unknown key.
fn fault(error: &MachineError) -> (usize, &str) {
    match error {
        MachineError::BadValue { line, key, .. } | MachineError::UnknownKey { line, key, .. } => {
            (*line, key)
        }
        other => panic!("{other}"),
    }
}

#[track_caller]
fn assert_bad_value(from: &str, to: &str, key: &str) {
    let (line, error) = refused(from, to);
    assert!(matches!(error, MachineError::BadValue { .. }), "{error}");
    assert_eq!(fault(&error), (line, key));
}

#[track_caller]
fn assert_unknown_key(from: &str, to: &str, key: &str, meant: Option<&str>) {
    let (line, error) = refused(from, to);
    assert_eq!(fault(&error), (line, key));
    let MachineError::UnknownKey { nearest, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(nearest.as_deref(), meant);
}

#[track_caller]
fn assert_malformed(from: &str, to: &str) {
    let (line, error) = refused(from, to);
    let at = match &error {
        MachineError::Malformed { line, .. } => *line,
        other => panic!("{other}"),
    };
    assert_eq!(at, line, "{error}");
}

#[test]
fn unknown_keys_name_the_nearest() {
    for (from, to, key, meant) in [
        (
            "latency = { value = \"1.2 us\"",
            "latncy = { value = \"1.2 us\"",
            "latncy",
            "latency",
        ),
        ("[io]", "[oi]", "oi", "io"),
        (
            "memory = { value = \"16 GB\", source",
            "memory = { value = \"16 GB\", sauce",
            "sauce",
            "source",
        ),
    ] {
        assert_unknown_key(from, to, key, Some(meant));
    }
}

#[test]
fn invalid_numbers_are_refused_with_their_line() {
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
        ("\"256 GB\"", "\"-256 GB\"", "host_memory"),
        ("\"256 GB\"", "256", "host_memory"),
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
        assert_bad_value(from, to, key);
    }
}

#[test]
fn numbers_need_a_source_and_shares_a_basis() {
    let source = "value = 4, source = \"Oyama et al., evaluation environment\"";
    assert_malformed(
        &format!("devices_per_node = {{ {source} }}"),
        "devices_per_node = 4",
    );
    let (line, error) = refused(source, "value = 4");
    let MachineError::MissingKey { key, table, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(key, "source");
    assert_eq!(table.as_ref().map(|(at, _)| *at), Some(line));
    assert_bad_value(
        source,
        "value = 4, source = \" \"",
        "devices_per_node.source",
    );
    assert_bad_value(
        "value = 0.8, basis = \"assumed\"",
        "value = 0.8",
        "device.efficiency.memory_bound.basis",
    );
}

#[test]
fn words_outside_their_choice_are_refused_with_the_nearest() {
    for (from, to, meant) in [
        ("kind = \"gpu\"", "kind = \"gpus\"", "\"gpu\""),
        ("basis = \"assumed\"", "basis = \"assumd\"", "\"assumed\""),
    ] {
        let (line, error) = refused(from, to);
        assert_eq!(fault(&error).0, line);
        let MachineError::BadValue { expected, .. } = error else {
            panic!("{error}")
        };
        assert!(expected.text.contains(meant), "{expected}");
        assert_eq!(expected.nearest.as_deref(), Some(meant));
    }
}

#[test]
fn a_part_may_not_exceed_its_whole() {
    assert_bad_value(
        "node_bandwidth = { value = \"25 GB/s\"",
        "node_bandwidth = { value = \"6 GB/s\"",
        "links.inter.node_bandwidth",
    );
    assert_bad_value(
        "bandwidth_total = { value = \"240 GB/s\"",
        "bandwidth_total = { value = \"2.4 GB/s\"",
        "io.bandwidth_total",
    );
}

#[test]
fn text_that_is_not_toml_is_refused_with_its_line() {
    assert_malformed("[links.intra]", "[links.intra");
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
                    "abci",
                    "dgx-1",
                    "dgx-a100",
                    "dgx-b200",
                    "dgx-h100",
                    "dgx-h200",
                    "el-capitan",
                    "frontera",
                    "frontier",
                    "fugaku",
                    "juwels-booster",
                    "lassen",
                    "pascal-roce",
                    "perlmutter",
                    "summit",
                    "tesla-p40"
                ]
            );
            assert_eq!(nearest.as_deref(), Some("lassen"));
        }
        other => panic!("{other}"),
    }
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
    let text = TEXT;
    let start = text.find(&head).expect("the saturation table") + head.len();
    let given = text[start..].lines().next().expect("its number");
    for wrong in ["0.0", "-1.0", "nan", "inf", "\"2 planes\"", "true"] {
        let (line, error) = refused(&format!("{head}{given}"), &format!("{head}{wrong}"));
        assert_eq!(fault(&error), (line + 1, thickness));
    }
    assert_unknown_key(
        &format!("[{thickness}]"),
        "[device.efficiency.conv3d.saturation.thicknes]",
        "thicknes",
        Some("thickness"),
    );
    assert_unknown_key("growth = {", "grows = {", "grows", Some("growth"));
    for (from, to, key) in [
        ("1.0", "1.5", "allreduce.occupancy"),
        ("1.0", "0.0", "allreduce.occupancy"),
        (
            "1.0, basis = \"derived\"",
            "1.0",
            "allreduce.occupancy.basis",
        ),
    ] {
        let value = |text: &str| format!("occupancy = {{ value = {text}");
        assert_bad_value(&value(from), &value(to), key);
    }
}

#[test]
fn messages_name_the_range_and_what_is_nearest() {
    let occupancy = |text: &str| format!("occupancy = {{ value = {text}");
    for (from, to, expected) in [
        (
            occupancy("1.0"),
            occupancy("0.0"),
            "is 0.0, expected a number such as 0.5, above 0 and at most 1",
        ),
        (
            occupancy("1.0"),
            occupancy("1e300"),
            "is 1e300, expected a number such as 0.5, above 0 and at most 1",
        ),
        (
            "nodes = { value = 512".to_owned(),
            "nodes = { value = 99999999999999999".to_owned(),
            "expected a whole number from 1 to 16777216\nhelp: try 16777216",
        ),
        (
            "value = \"256 GB\"".to_owned(),
            "value = \"1e30 GB\"".to_owned(),
            "expected a size from 1 B to 8192 TiB",
        ),
        (
            "value = \"900 GB/s\"".to_owned(),
            "value = \"1e300 GB/s\"".to_owned(),
            "expected a rate above 0, at most 1e30 B/s",
        ),
    ] {
        let error = refused(&from, &to).1.to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn missing_keys_are_said_with_their_table() {
    let message = |from: &str| refused(from, "#").1.to_string();
    let text = message("nodes = {");
    assert_eq!(text, "bad.toml: `nodes` is missing before the first table");
    let text = message("memory_bandwidth = {");
    assert!(
        text.contains("`memory_bandwidth` is missing in `[device]`"),
        "{text}"
    );
}

#[test]
fn a_software_profile_is_no_machine() {
    let text = include_str!("../../../software/lbann.toml");
    let error = Machine::parse(text, "lbann.toml").expect_err("a profile");
    assert!(
        error.to_string().contains("`--software lbann.toml`"),
        "{error}"
    );
}

/// The text without a table.
fn without(text: &str, table: &str) -> String {
    let start = text.find(&format!("\n[{table}]\n")).expect("the table");
    let after = text[start + 1..].find("\n[").expect("a table behind it");
    format!("{}{}", &text[..start], &text[start + 1 + after..])
}

/// A machine with every optional key of a device.
fn with_tiles() -> String {
    let own = [
        "device.rates",
        "device.tiles",
        "device.efficiency.f16.conv2d",
        "device.efficiency.f16.conv3d",
    ];
    let text = own
        .iter()
        .fold(TEXT.to_owned(), |text, table| without(&text, table));
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("processors ="));
    let text = lines.map(|line| format!("{line}\n")).collect::<String>();
    let tables = r#"
[device.rates]
f16 = { value = "125 Tflop/s", source = "an example" }

[device.tiles]
rows = { value = 256, source = "an example" }
columns = { value = 128, source = "an example" }
half_side = { value = 32.0, basis = "assumed", source = "an example" }
start = { value = "1 us", basis = "assumed", source = "an example" }
alignment = { value = "16 B", source = "an example" }

[device.efficiency.f16.conv2d]
forward = { value = 0.7, basis = "assumed", source = "an example" }
backward_data = { value = 0.6, basis = "assumed", source = "an example" }
backward_weight = { value = 0.5, basis = "assumed", source = "an example" }
"#;
    let processors = "processors = { value = 80, source = \"an example\" }\n";
    let split = "[device.efficiency]";
    text.replacen(split, &format!("{processors}\n{tables}\n{split}"), 1)
}

#[test]
fn precisions_and_tiles_are_read_and_written() {
    let machine =
        Machine::parse(&with_tiles(), "ours.toml").unwrap_or_else(|error| panic!("{error}"));
    let device = &machine.device;
    assert_eq!(
        device.precisions(),
        [LayerPrecision::F32, LayerPrecision::F16]
    );
    assert_eq!(
        device.peak(LayerPrecision::F16).map(|peak| peak.0),
        Some(125e12)
    );
    assert_eq!(device.peak(LayerPrecision::Bf16), None);
    let share = |precision, dims| {
        let table = device.efficiency.by_precision(precision, dims);
        table.by_pass(ConvPass::BackwardData).0
    };
    assert_eq!(share(LayerPrecision::F16, 2), 0.6);
    // The same units compute both.
    assert_eq!(share(LayerPrecision::Bf16, 2), 0.6);
    assert_eq!(
        share(LayerPrecision::Tf32, 2),
        share(LayerPrecision::F32, 2)
    );
    assert_eq!(share(LayerPrecision::F16, 3), share(LayerPrecision::F32, 3));
    let again =
        Machine::parse(&machine.to_toml(), "again").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again, machine);
}

#[test]
fn faults_of_precisions_and_tiles_are_named() {
    let text = with_tiles();
    for (from, to, key) in [
        ("processors = {", "# processors = {", "device.processors"),
        ("\"125 Tflop/s\"", "\"0 Tflop/s\"", "device.rates.f16"),
        ("value = 256", "value = 0", "device.tiles.rows"),
        ("value = 32.0", "value = -1.0", "device.tiles.half_side"),
        (
            "value = 0.7",
            "value = 7.0",
            "device.efficiency.f16.conv2d.forward",
        ),
        ("f16 = {", "fp16 = {", "fp16"),
        ("half_side = {", "halfside = {", "halfside"),
        (
            "[device.efficiency.f16.conv2d]",
            "[device.efficiency.f16.conv1d]",
            "conv1d",
        ),
    ] {
        assert!(text.contains(from), "no `{from}`");
        let changed = text.replacen(from, to, 1);
        let error = Machine::parse(&changed, "bad.toml").expect_err(to);
        assert_eq!(fault(&error).1, key, "{error}");
    }
}

/// Every number of every file: without its unit, with another one, and negative.
#[test]
fn no_file_loads_with_an_invalid_number() {
    for name in Machine::available(&[]) {
        let text = Machine::load(&name, &[]).expect("built in").to_toml();
        for (at, line) in text.lines().enumerate() {
            let Some((key, rest)) = line.split_once(" = { value = ") else {
                continue;
            };
            let (value, rest) = rest.split_once(", ").expect("a source follows");
            let invalid = match value.trim_matches('"').split_once(' ') {
                Some((number, _)) => vec![number.to_owned(), format!("\"{number} parsec\"")],
                None => vec![format!("\"{value}\""), "-1".to_owned()],
            };
            for wrong in invalid {
                let changed = format!("{key} = {{ value = {wrong}, {rest}");
                let lines: Vec<&str> = text.lines().collect();
                let all = [&lines[..at], &[&changed], &lines[at + 1..]].concat();
                let error = Machine::parse(&all.join("\n"), "bad.toml").expect_err(&changed);
                let (line, path) = fault(&error);
                assert_eq!(line, at + 1, "{error}");
                assert!(path.ends_with(key), "{error}");
            }
        }
    }
}

#[test]
fn a_network_has_the_keys_of_its_kind() {
    let nodes = "nodes = { value = 512";
    let level = |nodes: usize, ratio: &str| {
        format!(
            "{{ nodes = {{ value = {nodes}, source = \"s\" }}, oversubscription = {{ value = {ratio}, \
             source = \"s\" }}, latency = {{ value = \"1 us\", source = \"s\" }} }}"
        )
    };
    let levels =
        |levels: &[String]| format!("kind = \"fat-tree\", levels = [{}]", levels.join(", "));
    let extents = "kind = \"torus\", extents = { value = [4, 2], source = \"s\" }";
    for (network, key) in [
        ("kind = \"ring\"".to_owned(), "network.kind"),
        ("kind = \"fat-tree\"".to_owned(), "network.levels"),
        (
            levels(&[level(4, "0.5")]),
            "network.levels.oversubscription",
        ),
        (
            levels(&[level(4, "1.0"), level(4, "2.0")]),
            "network.levels.nodes",
        ),
        (extents.to_owned(), "network.link_bandwidth"),
        (
            format!(
                "{}, extents = {{ value = [4], source = \"s\" }}",
                levels(&[level(4, "2.0")])
            ),
            "network.extents",
        ),
        (
            "kind = \"torus\", extents = { value = [], source = \"s\" }".to_owned(),
            "network.extents",
        ),
        (
            format!(
                "{extents}, levels = [], link_bandwidth = {{ value = \"1 GB/s\", source = \"s\" }}, hop_latency = \
                 {{ value = \"1 us\", source = \"s\" }}"
            )
            .replace("[4, 2]", "[512, 2]"),
            "network.levels",
        ),
    ] {
        assert_bad_value(nodes, &format!("network = {{ {network} }}\n{nodes}"), key);
    }
    assert_bad_value("kind = \"nvlink\"", "kind = \"nvlnk\"", "links.intra.kind");
    // A choice is a text alone, though all numbers near it have sources.
    let fact = "kind = { value = \"nvlink\", source = \"s\" }";
    assert_bad_value("kind = \"nvlink\"", fact, "links.intra.kind");
    assert_bad_value("kind = \"gpu\"", "kind = 1", "device.kind");
}

/// The line of a network's fault is that of its key, not of the table or of `kind`.
#[test]
fn a_network_names_the_line_of_the_key() {
    let fact = |key: &str, value: &str| format!("{key} = {{ value = {value}, source = \"s\" }}\n");
    let torus = [
        fact("link_bandwidth", "\"1 GB/s\""),
        fact("hop_latency", "\"1 us\""),
    ]
    .concat();
    let dragonfly = [
        fact("nodes_per_group", "4"),
        fact("group_bandwidth", "\"1 GB/s\""),
        fact("latency", "\"1 us\""),
    ]
    .concat();
    let level = "[[network.levels]]\nnodes = { value = 4, source = \"s\" }\noversubscription = { value = 1.0, \
                 source = \"s\" }\nlatency = { value = \"1 us\", source = \"s\" }\n";
    let few = fact("extents", "[2, 2]");
    for (kind, keys, key, lines) in [
        ("torus", [&torus, &few[..]], "network.extents", 5),
        ("dragonfly", [&dragonfly, &few[..]], "network.extents", 6),
        ("dragonfly", [&dragonfly, level], "network.levels", 7),
    ] {
        let text = format!(
            "{TEXT}\n[network]\nkind = \"{kind}\"\n{}{}",
            keys[0], keys[1]
        );
        let error = Machine::parse(&text, "bad.toml").expect_err(kind);
        let before = TEXT.lines().count() + 1;
        assert_eq!(fault(&error), (before + lines, key), "{error}");
    }
}

#[test]
fn whole_numbers_beyond_64_bits_are_called_so() {
    let error = Machine::parse(
        &TEXT.replacen(
            "nodes = { value = 512",
            "nodes = { value = 99999999999999999999",
            1,
        ),
        "bad.toml",
    );
    let text = error.expect_err("too large").to_string();
    assert!(
        text.contains("a whole number of more than 64 bits"),
        "{text}"
    );
}
