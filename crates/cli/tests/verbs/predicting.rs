//! `partita predict`.

use crate::command::{answer, assert_keys, json, refusal};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

const KEYS: [&str; 8] = [
    "digest",
    "ranks",
    "iteration_seconds",
    "samples_per_second",
    "memory_bytes_max",
    "breakdown",
    "bottleneck",
    "limits",
];

const HEADINGS: [&str; 8] = [
    "forward_compute",
    "forward_exchange",
    "backward_compute",
    "backward_exchange",
    "gradient_allreduce_exposed",
    "redistribution",
    "io",
    "update",
];

fn asked<'a>(strategy: &'a str, ranks: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let head = [
        "predict",
        "cosmoflow@128",
        "--machine",
        "lassen",
        "--batch",
        "8",
        "--software",
        "partita-cudnn",
    ];
    let tail = ["--ranks", ranks, "--strategy", strategy];
    [&head[..], &tail, more].concat()
}

fn number(record: &Value, key: &str) -> f64 {
    record[key].as_f64().unwrap()
}

#[test]
fn a_prediction_has_its_keys_and_its_parts_sum_up() {
    let record = json(&asked("data=4,depth=2", "8", &["--json"]));
    assert_keys(&record, &KEYS);
    assert_keys(&record["breakdown"], &HEADINGS);
    assert_eq!(record["ranks"], 8);
    let iteration = number(&record, "iteration_seconds");
    let parts: f64 = HEADINGS
        .map(|key| number(&record["breakdown"], key))
        .iter()
        .sum();
    assert!(iteration > 0.0);
    assert!(
        (parts - iteration).abs() < 1e-9 * iteration,
        "{parts} {iteration}"
    );
    let rate = number(&record, "samples_per_second");
    assert!((rate * iteration - 8.0).abs() < 1e-9);
    assert!(record.get("tasks").is_none());
}

#[test]
fn more_ranks_take_less_time() {
    let seconds = |strategy, ranks| {
        number(
            &json(&asked(strategy, ranks, &["--json"])),
            "iteration_seconds",
        )
    };
    let (one, eight) = (seconds("data=1", "1"), seconds("data=8", "8"));
    assert!(eight < one / 4.0, "{one} {eight}");
    assert!(eight > one / 8.5, "{one} {eight}");
}

#[test]
fn a_report_says_what_the_json_says() {
    let text = answer(&asked("data=4,depth=2", "8", &[]));
    let record = json(&asked("data=4,depth=2", "8", &["--json"]));
    for part in [
        "iteration",
        "samples/s",
        "memory",
        "forward computation",
        "lassen",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    assert!(text.contains(record["bottleneck"].as_str().unwrap()));
    assert!(text.contains(record["digest"].as_str().unwrap()));
}

#[test]
fn what_does_not_fit_is_said_first() {
    let head = ["predict", "cosmoflow@512", "--machine", "lassen", "--json"];
    let tail = ["--batch", "1", "--ranks", "1", "--strategy", "data=1"];
    let record = json(&[&head[..], &tail].concat());
    assert!(number(&record, "memory_bytes_max") > number(&record, "memory_bytes_device"));
    let first = record["limits"][0].as_str().unwrap();
    assert!(first.starts_with("It does not fit"), "{first}");
    // Advice that can help: smaller samples do not where the weights or the software alone are too large.
    for (memory, expected) in [
        ("1MiB", "alone take 685.15 MiB, so no strategy fits"),
        ("700MiB", "split them by `shard=parameters`"),
    ] {
        let text = answer(&asked("data=4,depth=2", "8", &["--memory", memory]));
        assert!(text.contains("; it does not fit"), "{text}");
        assert!(text.contains(expected), "{memory}: {text}");
    }
}

#[test]
fn tasks_are_listed_where_asked_for() {
    let record = json(&asked("depth=2", "2", &["--json", "--tasks"]));
    let tasks = record["tasks"].as_array().unwrap();
    assert!(tasks.len() > 50);
    let keys = [
        "class", "task", "layer", "kind", "phase", "flops", "bytes", "seconds",
    ];
    assert_keys(&tasks[0], &keys);
    // One rank takes all of a sample: 27 taps, 4 to 16 channels, 128^3 outputs.
    let whole = json(&asked("data=1", "1", &["--json", "--tasks"]));
    let of_first = |kind: &str| {
        let tasks = whole["tasks"].as_array().unwrap();
        let of_kind = tasks.iter().find(|task| task["kind"] == kind);
        let task = of_kind.unwrap();
        assert_eq!(task["layer"], "conv1");
        (
            task["flops"].as_u64().unwrap(),
            task["bytes"].as_u64().unwrap(),
        )
    };
    let (outputs, inputs) = (8 * 128u64.pow(3), 8 * 130u64.pow(3));
    let flops = 2 * 27 * 4 * 16 * outputs;
    let bytes = 4 * (4 * inputs + 16 * outputs + 27 * 4 * 16);
    assert_eq!(of_first("convolution_forward"), (flops, bytes));
    assert!(answer(&asked("depth=2", "2", &["--tasks"])).contains("convolution"));
}

#[test]
fn machines_are_found_by_path_and_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    let lassen = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines/lassen.toml");
    let text = fs::read_to_string(lassen).unwrap();
    fs::write(&path, text.replace("name = \"lassen\"", "name = \"mine\"")).unwrap();
    let on = |machine: &str| {
        let head = ["predict", "cosmoflow@32", "--batch", "2", "--ranks", "2"];
        let tail = ["--strategy", "data=2", "--machine", machine, "--json"];
        [&head[..], &tail]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let call = |machine: &str| on(machine);
    let arguments = call(path.to_str().unwrap());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    assert_eq!(json(&arguments)["machine"], "mine");
    for (asked, expected) in [
        ("lasen", "help: try `lassen`"),
        (
            "leonardo",
            "abci, dgx-1, dgx-a100, dgx-b200, dgx-h100, dgx-h200, el-capitan, frontera, frontier, fugaku, juwels-booster, lassen, pascal-roce, perlmutter, summit, tesla-p40",
        ),
        ("no/such.toml", "cannot be read"),
    ] {
        let arguments = call(asked);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let text = refusal(&arguments);
        assert!(text.contains(expected), "{asked}: {text}");
    }
    fs::write(
        &path,
        text.replace("[links.inter]\nlatency", "[links.inter]\nlatncy"),
    )
    .unwrap();
    let arguments = call(path.to_str().unwrap());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let text = refusal(&arguments);
    assert!(
        text.contains("latncy") && text.contains("`latency`"),
        "{text}"
    );
}

#[test]
fn more_ranks_than_devices_are_refused() {
    let head = [
        "predict",
        "cosmoflow@32",
        "--machine",
        "lassen",
        "--batch",
        "4096",
    ];
    let text = refusal(&[&head[..], &["--ranks", "4096", "--strategy", "data=4096"]].concat());
    assert!(
        text.contains("2048 devices") && text.contains("--ranks 2048"),
        "{text}"
    );
}

#[test]
fn reading_is_left_out_on_request_and_only_then() {
    let head = [
        "predict",
        "cosmoflow@32",
        "--batch",
        "2",
        "--ranks",
        "2",
        "--json",
    ];
    let tail = ["--strategy", "data=2", "--machine"];
    let call = [&head[..], &tail].concat();
    // What is known of ABCI does not include its file system.
    let text = refusal(&[&call[..], &["abci"]].concat());
    assert!(text.contains("`io`") && text.contains("--no-io"), "{text}");
    let plan = [
        "plan",
        "cosmoflow@32",
        "--batch",
        "2",
        "--ranks",
        "2",
        "--machine",
        "abci",
    ];
    assert_eq!(refusal(&plan), text);
    assert!(
        number(
            &json(&[&call[..], &["abci", "--no-io"]].concat()),
            "iteration_seconds"
        ) > 0.0
    );
    let summit = ["summit", "--software", "partita-cudnn"];
    let with = json(&[&call[..], &summit].concat());
    let without = json(&[&call[..], &summit, &["--no-io"]].concat());
    assert_eq!(with["digest"], without["digest"]);
    assert!(number(&without, "iteration_seconds") < number(&with, "iteration_seconds"));
}

/// Evaluations and inferences have no backward pass and keep no activations for one.
#[test]
fn forward_steps_are_predicted() {
    let with = |kind: &str, verb: &[&str]| {
        let call = ["unet3d@64", "--ranks", "4", "--batch", "4", "--json"];
        let more = ["--strategy", "data=2,depth=2", "--kind", kind];
        json(&[verb, &call[..], &more].concat())
    };
    let predict = ["predict", "--machine", "lassen"];
    let lower = ["lower", "--kernels", "unpinned"];
    let train = with("train", &predict);
    for kind in ["evaluate", "infer"] {
        let forward = with(kind, &predict);
        assert_eq!(forward["kind"], kind);
        assert_eq!(forward["digest"], with(kind, &lower)["digest"]);
        let seconds = number(&forward, "iteration_seconds");
        assert!(
            seconds < 0.5 * number(&train, "iteration_seconds"),
            "{forward}"
        );
        for part in ["backward_compute", "backward_exchange", "update"] {
            assert_eq!(number(&forward["breakdown"], part), 0.0, "{part}");
        }
        let of = |record: &Value, item: &str| number(&record["memory"], item);
        assert!(of(&forward, "activations") < 0.6 * of(&train, "activations"));
        assert_eq!(of(&forward, "gradients"), 0.0);
        assert!(forward["closed_form"].is_null());
    }
    // Predictions are written to files, of which nothing is known there.
    let call = "predict cosmoflow@32 --machine abci --ranks 2 --batch 2 --strategy data=2 --dataset-samples 9 --kind";
    let call: Vec<&str> = call.split(' ').collect();
    let text = refusal(&[&call[..], &["infer"]].concat());
    assert!(text.contains("writing of predictions"), "{text}");
    let text = answer(&[&call[..], &["evaluate"]].concat());
    assert!(text.contains("evaluation: forward pass"), "{text}");
}

/// Two nodes of two ranks, or one of many: whatever the machine, a step takes time and fits.
#[test]
fn every_built_in_machine_predicts() {
    let names = refusal(&asked_on("none"));
    let known = names.split_once("possible values: ").unwrap().1;
    let known = known.split_once(", or a path").unwrap().0;
    let known: Vec<&str> = known.split(", ").collect();
    for name in ["dgx-a100", "dgx-h100", "frontera", "lassen", "summit"] {
        assert!(known.contains(&name), "{known:?}");
    }
    for name in known {
        let record = json(&asked_on(name));
        assert_eq!(record["machine"], name);
        let rate = number(&record, "samples_per_second");
        assert!((50.0..50_000.0).contains(&rate), "{name}: {rate} samples/s");
        let memory = number(&record, "memory_bytes_max");
        assert!(memory <= number(&record, "memory_bytes_device"), "{name}");
    }
}

fn asked_on(machine: &str) -> [&str; 12] {
    let head = ["predict", "resnet50@224", "--ranks", "8", "--batch", "64"];
    let tail = ["--strategy", "data=8", "--no-io", "--json", "--machine"];
    let mut all = [machine; 12];
    all[..6].copy_from_slice(&head);
    all[6..11].copy_from_slice(&tail);
    all
}

/// What is found of a training on Lassen, by item.
fn found(model: &str, batch: &str, ranks: &str, strategy: &str) -> Vec<Value> {
    let head = ["predict", model, "--machine", "lassen", "--no-io", "--json"];
    let head = [&head[..], &["--software", "partita-cudnn"]].concat();
    let tail = ["--batch", batch, "--ranks", ranks, "--strategy", strategy];
    let record = json(&[&head[..], &tail].concat());
    record["explanation"]["findings"]
        .as_array()
        .unwrap()
        .clone()
}

fn share(findings: &[Value], item: &str) -> f64 {
    let finding = findings.iter().find(|one| one["item"] == item);
    finding.map_or(0.0, |one| one["share"].as_f64().unwrap())
}

#[test]
fn what_bounds_a_split_is_found_in_its_program() {
    let data = found("resnet50@224", "64", "64", "data=64");
    let exchange = data
        .iter()
        .find(|one| one["item"] == "gradient_exchange")
        .unwrap();
    assert_eq!(
        (&exchange["nature"], &exchange["area"]),
        (&"limitation".into(), &"communication".into())
    );
    assert_eq!(
        (&exchange["in_inference"], &exchange["phases"][0]),
        (&false.into(), &"reduce".into())
    );
    assert!(
        exchange["rank_seconds"].as_f64().unwrap() > 1e-3,
        "{exchange}"
    );
    assert!(share(&data, "memory_redundancy") > 0.2);
    // Batch norm sums its statistics over the ranks; halos there are none.
    assert!(share(&data, "messages") == 0.0);
    let ranks = data.iter().find(|one| one["item"] == "ranks").unwrap();
    assert_eq!(ranks["ranks"], 64);

    let filter = found("resnet50@224", "64", "8", "filter=8");
    assert!(share(&filter, "layer_collectives") > 0.5);
    assert!(filter.iter().all(|one| one["item"] != "gradient_exchange"));

    let depth = found("cosmoflow@128", "1", "4", "depth=4");
    let messages = depth.iter().find(|one| one["item"] == "messages").unwrap();
    assert_eq!(messages["in_inference"], true);
}

#[test]
fn a_pipeline_of_few_micro_batches_waits_more() {
    let stages = |micro: &str| format!("stages=[data=1|data=1|data=1|data=1],micro={micro}");
    let waits = |micro: &str| {
        share(
            &found("vgg16@224", "64", "4", &stages(micro)),
            "workload_balance",
        )
    };
    let (few, many) = (waits("2"), waits("16"));
    assert!(few > 0.4 && many < 0.6 * few, "{few} {many}");
}

#[test]
fn work_done_twice_is_found() {
    let twice = |strategy: &str| {
        share(
            &found("cosmoflow@64", "4", "4", strategy),
            "computation_redundancy",
        )
    };
    let (plain, again, around) = (
        twice("depth=4"),
        twice("depth=4; conv1..pool3: recompute=on"),
        twice("depth=4; conv1..pool2: halo=grouped"),
    );
    assert!(again > plain + 0.05, "{plain} {again}");
    assert!(around > plain + 0.05, "{plain} {around}");
}

#[test]
fn faster_links_help_what_they_bound() {
    let speedup = |model: &str, strategy: &str, change: &str| {
        let head = [
            "predict",
            model,
            "--machine",
            "lassen",
            "--no-io",
            "--json",
            "--explain",
            "--software",
            "partita-cudnn",
        ];
        let tail = ["--batch", "8", "--ranks", "8", "--strategy", strategy];
        let record = json(&[&head[..], &tail].concat());
        let changes = record["explanation"]["what_ifs"]
            .as_array()
            .unwrap()
            .clone();
        let found = changes.iter().find(|one| one["change"] == change);
        found.unwrap()["speedup"].as_f64().unwrap()
    };
    assert!(speedup("resnet50@224", "filter=8", "link_bandwidth") > 1.2);
    assert!(speedup("cosmoflow@128", "data=8", "link_bandwidth") < 1.05);
    assert!(speedup("cosmoflow@128", "data=8", "arithmetic") > 1.5);
}

#[test]
fn closed_forms_stand_beside_plain_strategies() {
    for (strategy, name) in [
        ("data=4", "data"),
        ("depth=4", "spatial"),
        ("data=2,depth=2", "data and spatial"),
        ("data=2,filter=2", "data and filter"),
    ] {
        let record = json(&asked(strategy, "4", &["--json", "--no-io"]));
        let form = &record["closed_form"];
        assert_eq!(form["strategy"], name);
        let sum = number(form, "compute_seconds") + number(form, "communication_seconds");
        assert!((sum / number(form, "seconds") - 1.0).abs() < 1e-9);
        assert!(number(form, "memory_bytes") > 0.0);
        // Both mean the same step.
        let ratio = sum / number(&record, "iteration_seconds");
        assert!((0.5..2.0).contains(&ratio), "{strategy}: {ratio}");
        let text = answer(&asked(strategy, "4", &["--no-io"]));
        assert!(text.contains(&format!(" for {name}: compute ")), "{text}");
    }
    let other = json(&asked("depth=2; fc1..: F=depth", "2", &["--json"]));
    assert!(other.get("closed_form").is_none());
}

#[test]
fn a_measured_time_of_a_sample_scales_the_computation() {
    let predicted = |strategy: &str, ranks: &str, more: &[&str]| {
        let mut arguments = vec!["predict", "vgg16@224", "--machine", "abci", "--no-io"];
        arguments.extend(["--batch", "32", "--json", "--strategy", strategy]);
        arguments.extend(["--ranks", ranks, "--software", "partita-cudnn"]);
        json(&[&arguments[..], more].concat())
    };
    let computation = |value: &Value| {
        let of = |key: &str| value["breakdown"][key].as_f64().unwrap();
        of("forward_compute") + of("backward_compute")
    };
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    for seconds in [0.002, 0.0082, 0.1] {
        let text = format!("{}us", 1e6 * seconds);
        let one = predicted("data=1", "1", &["--seconds-per-sample", &text]);
        close(computation(&one), 32.0 * seconds);
        let scale = &one["compute_scale"];
        close(scale["seconds_per_sample"].as_f64().unwrap(), seconds);
        assert_eq!(scale["samples"], 32);
        // Weight updates are not of a sample.
        let update = |value: &Value| value["breakdown"]["update"].as_f64().unwrap();
        close(update(&one), update(&predicted("data=1", "1", &[])));
        // A rank of four has a fourth of the samples.
        let four = predicted("data=4", "4", &["--seconds-per-sample", &text]);
        assert_eq!(four["compute_scale"]["samples"], 8);
        let step = four["iteration_seconds"].as_f64().unwrap();
        assert!(
            (8.0 * seconds..8.0 * seconds + 0.2).contains(&step),
            "{step}"
        );
    }
    // Given what is modeled, nothing changes.
    let scale = &predicted("data=2,height=2", "4", &["--seconds-per-sample", "8ms"]);
    let modeled = scale["compute_scale"]["modeled_seconds_per_sample"].as_f64();
    let same = format!("{}ns", 1e9 * modeled.unwrap());
    let given = predicted("data=2,height=2", "4", &["--seconds-per-sample", &same]);
    let plain = predicted("data=2,height=2", "4", &[]);
    let [given, plain] = [given, plain].map(|one| one["iteration_seconds"].as_f64().unwrap());
    close(given, plain);
    let mut on_here = vec!["predict", "cosmoflow@32", "--ranks", "1", "--batch", "2"];
    on_here.extend(["--strategy", "data=1", "--seconds-per-sample", "8ms"]);
    let error = refusal(&on_here);
    assert!(
        error.contains("8.00 ms") && error.contains("--machine"),
        "{error}"
    );
}

/// A table with the modeled times changes nothing, and one with twice of them doubles the computation.
#[test]
fn measured_times_of_layers_replace_modeled_ones() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layers.toml");
    let predicted = |strategy: &str, ranks: &str, more: &[&str]| {
        let mut arguments = vec!["predict", "resnet50@224", "--machine", "abci", "--no-io"];
        arguments.extend(["--batch", "32", "--json", "--strategy", strategy]);
        arguments.extend(["--ranks", ranks]);
        json(&[&arguments[..], more].concat())
    };
    let sums = |prediction: &Value| {
        let mut sums: BTreeMap<(String, String), f64> = BTreeMap::new();
        for task in prediction["tasks"].as_array().unwrap() {
            let word = |key: &str| task[key].as_str().unwrap().to_owned();
            *sums.entry((word("layer"), word("phase"))).or_default() +=
                task["seconds"].as_f64().unwrap();
        }
        sums
    };
    let write = |factor: f64| {
        let plain = predicted("data=1", "1", &["--tasks"]);
        let mut layers: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for ((layer, phase), seconds) in sums(&plain) {
            if ["forward", "backward"].contains(&phase.as_str()) && seconds > 0.0 {
                let time = format!("{phase} = \"{} ns\"", 1e9 * factor * seconds);
                layers.entry(layer).or_default().push(time);
            }
        }
        let mut text = "samples = 32\n[layers]\n".to_owned();
        for (layer, times) in layers {
            text += &format!("{layer:?} = {{ {} }}\n", times.join(", "));
        }
        std::fs::write(&file, text).unwrap();
    };
    let table = ["--layer-times", file.to_str().unwrap()];
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-6, "{a} {b}");
    let computation = |value: &Value| {
        let of = |key: &str| value["breakdown"][key].as_f64().unwrap();
        of("forward_compute") + of("backward_compute")
    };
    for factor in [1.0, 2.0] {
        write(factor);
        let given = predicted("data=1", "1", &table);
        let plain = predicted("data=1", "1", &[]);
        close(computation(&given), factor * computation(&plain));
        close(given["layer_scale"]["share"].as_f64().unwrap(), 1.0);
    }
    // A rank of two slabs computes each layer in twice the time, too.
    let tasks = |more: &[&str]| {
        let prediction = predicted("height=2", "2", &[more, &["--tasks"]].concat());
        sums(&prediction)[&("conv1".to_owned(), "forward".to_owned())]
    };
    close(tasks(&table), 2.0 * tasks(&[]));
}

#[test]
fn faulty_tables_of_layers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layers.toml");
    let mut arguments = vec!["predict", "alexnet@224", "--machine", "abci", "--no-io"];
    arguments.extend(["--batch", "8", "--ranks", "1", "--strategy", "data=1"]);
    arguments.extend(["--layer-times", file.to_str().unwrap()]);
    for (text, expected) in [
        (
            "[layers]\n\"features.O\" = { forward = \"1 ms\" }",
            "help: try `features.0`",
        ),
        ("[layers]\nx = { forward = \"1 m\" }", "layers.x.forward"),
        ("[layers]\nx = { forwards = \"1 ms\" }", "forwards"),
        ("samples = 0\n[layers]\n", "help: try 1"),
        (
            "samples = -3\n[layers]\n",
            "line 1: `samples` is -3, expected a whole number",
        ),
        ("samples = 1.5\n[layers]\n", "`samples` is 1.5"),
        ("samples = 4", "layers"),
        (
            "[layers]\nx = \"1 ms\"",
            "line 2: `layers.x` is \"1 ms\", expected a time of at least one pass",
        ),
        (
            "[layers]\nx = { forward = 1.2 }",
            "`layers.x.forward` is 1.2, expected a number with a unit",
        ),
        ("[layers]\n", "`layers` is empty, expected a time"),
        ("[layers]\nx = {}", "`layers.x` is empty"),
        (
            "samples = 4\n[layers]\nx = { forwards = \"1 ms\" }",
            "layers.toml, line 3: `layers.x.forwards` is an unknown key, expected `forward` or `backward`\nhelp: try \
             `forward`",
        ),
        (
            "[layers]\nx = { forward = \"1 m\" }",
            "is \"1 m\", expected a number",
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = refusal(&arguments);
        assert!(error.contains(expected), "{text}: {error}");
        assert!(error.contains("layers.toml"), "{error}");
    }
    let here = ["predict", "alexnet@224", "--batch", "8", "--ranks", "1"];
    let more = [
        "--strategy",
        "data=1",
        "--layer-times",
        file.to_str().unwrap(),
    ];
    assert!(refusal(&[&here[..], &more].concat()).contains("`--machine`"));
}

/// Rates of a machine in each precision that it has, by the JSON of `predict`.
fn rate(machine: &str, precision: &str, model: &str) -> f64 {
    let arguments = ["predict", model, "--machine", machine, "--no-io", "--json"];
    let more = ["--ranks", "1", "--batch", "4", "--strategy", "data=1"];
    let given = ["--precision", precision, "--software", "partita-cudnn"];
    let value = json(&[&arguments[..], &more, &given].concat());
    assert_eq!(value["precision"], precision);
    value["samples_per_second"].as_f64().unwrap()
}

#[test]
fn each_machine_predicts_in_the_precisions_that_it_has() {
    let half = ["f32", "f16"].as_slice();
    for (machine, precisions) in [
        ("abci", ["f32"].as_slice()),
        ("dgx-1", half),
        ("dgx-a100", &["f32", "tf32", "bf16", "f16"]),
        ("dgx-b200", &["f32", "tf32", "bf16", "f16"]),
        ("dgx-h100", &["f32", "tf32", "bf16", "f16"]),
        ("dgx-h200", &["f32", "tf32", "bf16", "f16"]),
        ("el-capitan", &["f32", "tf32", "bf16", "f16"]),
        ("frontera", &["f32"]),
        ("frontier", &["f32", "bf16", "f16"]),
        ("fugaku", half),
        ("juwels-booster", &["f32", "tf32", "bf16", "f16"]),
        ("lassen", half),
        ("pascal-roce", half),
        ("perlmutter", &["f32", "tf32", "bf16", "f16"]),
        ("summit", half),
        ("tesla-p40", &["f32"]),
    ] {
        for model in ["resnet50@64", "cosmoflow@64"] {
            let rates: Vec<f64> = precisions
                .iter()
                .map(|precision| rate(machine, precision, model))
                .collect();
            assert!(rates[0] > 0.0, "{machine} {model}");
            // Gradients in f16 are scaled, which takes their norm.
            let (f16, others): (Vec<_>, Vec<_>) = rates
                .iter()
                .zip(precisions)
                .partition(|(_, precision)| **precision == "f16");
            let rate_of = |pair: &(&f64, &&str)| *pair.0;
            assert!(
                others.iter().map(rate_of).is_sorted(),
                "{machine} {model}: {rates:?}"
            );
            for rate in f16.iter().map(rate_of) {
                assert!(rate > rates[0], "{machine} {model}: {rates:?}");
                let widest = others.iter().map(rate_of).fold(0.0, f64::max);
                assert!(rate > 0.95 * widest, "{machine} {model}: {rates:?}");
            }
        }
    }
}

#[test]
fn half_precision_halves_activations_and_keeps_master_weights() {
    let memory = |precision: &str| {
        let arguments = [
            "predict",
            "cosmoflow@64",
            "--machine",
            "dgx-h100",
            "--no-io",
        ];
        let more = [
            "--ranks",
            "1",
            "--batch",
            "8",
            "--strategy",
            "data=1",
            "--json",
        ];
        let given = ["--precision", precision, "--software", "partita-cudnn"];
        let value = json(&[&arguments[..], &more, &given].concat());
        let of = |key: &str| value["memory"][key].as_u64().unwrap();
        let keys = [
            "weights",
            "optimizer",
            "gradients",
            "activations",
            "activation_gradients",
        ];
        (keys.map(of), value["memory_bytes_max"].as_u64().unwrap())
    };
    let ([weights, optimizer, gradients, activations, their], all) = memory("f32");
    assert_eq!(memory("tf32"), memory("f32"));
    let (half, least) = memory("bf16");
    let wanted = [
        weights * 3 / 2,
        optimizer,
        gradients,
        activations / 2,
        their / 2,
    ];
    assert_eq!(half, wanted);
    assert!(least < all);
}

#[test]
fn a_precision_that_a_machine_lacks_is_refused() {
    let more = ["--ranks", "1", "--batch", "8", "--strategy", "data=1"];
    let asked = |machine: &str, precision: &str| {
        let arguments = ["predict", "cosmoflow@64", "--machine", machine, "--no-io"];
        refusal(&[&arguments[..], &more, &["--precision", precision]].concat())
    };
    let error = refusal(
        &[
            &["predict", "cosmoflow@64", "--machine", "summit", "--no-io"],
            &more[..],
            &["--precision", "bf16", "--software", "partita-cudnn"],
        ]
        .concat(),
    );
    assert!(error.contains("possible values: f32, f16"), "{error}");
    assert!(error.contains("device.rates.bf16"), "{error}");
    let error = asked("dgx-h100", "tf32");
    assert!(
        error.contains("`partita-opencl` computes in f32"),
        "{error}"
    );
    let possible = "possible values: `--precision f32`, `--precision bf16` and `--precision f16`";
    let errors = [
        asked("here", "tf32"),
        refusal(
            &[
                &["lower", "cosmoflow@64"],
                &more[..],
                &["--precision", "tf32"],
            ]
            .concat(),
        ),
        refusal(
            &[
                &["tune", "cosmoflow@64"],
                &more[..],
                &["--precision", "tf32"],
            ]
            .concat(),
        ),
    ];
    for error in errors {
        assert!(error.contains(possible), "{error}");
    }
}
