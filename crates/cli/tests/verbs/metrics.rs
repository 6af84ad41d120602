//! Metrics files and loss curves of a run through the binary, and of one that is killed and resumes.

use crate::trainee::{Case, names};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

const METRICS: &str = "metrics = [\"jsonl\", \"csv\", \"tensorboard\", \"mlperf\"]";
/// Steps of an epoch: 8 samples in batches of 2.
const STEPS: u64 = 4;

/// What an epoch says of the samples that were loaded for it.
pub const LOADS: [&str; 6] = [
    "read_bytes",
    "memory_bytes",
    "spill_bytes",
    "sent_bytes",
    "received_bytes",
    "wait_seconds",
];

fn finish(case: &Case, run: &str, more: &[&str]) -> Value {
    let output = case.command(run).args(more).arg("--json").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{more:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn lines(case: &Case, name: &str) -> Vec<String> {
    let text = fs::read_to_string(case.path("out").join(name)).unwrap();
    assert!(text.ends_with('\n'), "{name} ends with a whole line");
    text.lines().map(str::to_owned).collect()
}

fn json_lines(case: &Case) -> Vec<Value> {
    let lines = lines(case, "metrics.jsonl");
    let parsed = lines.iter().map(|line| serde_json::from_str(line));
    parsed.collect::<Result<_, _>>().unwrap()
}

fn of_kind<'l>(lines: &'l [Value], kind: &str) -> Vec<&'l Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

/// Tag, step and value of all scalars of the event files, whose checksums it compares.
fn scalars(folder: &Path) -> Vec<(String, u64, f32)> {
    let mut found = Vec::new();
    let files = names(folder).into_iter();
    let files: Vec<String> = files.filter(|name| name.contains("tfevents")).collect();
    for name in &files {
        let bytes = fs::read(folder.join(name)).unwrap();
        let mut rest = &bytes[..];
        while let Some((length, after)) = rest.split_first_chunk::<8>() {
            let size = u64::from_le_bytes(*length) as usize;
            assert_eq!(masked(length).to_le_bytes(), after[..4], "{name}");
            let data = &after[4..4 + size];
            assert_eq!(
                masked(data).to_le_bytes(),
                after[4 + size..8 + size],
                "{name}"
            );
            rest = &after[8 + size..];
            let event = fields(data);
            let step = event
                .iter()
                .find(|field| field.0 == 2)
                .map_or(0, |field| field.1);
            for summary in event.iter().filter(|field| field.0 == 5) {
                for value in fields(summary.2) {
                    let value = fields(value.2);
                    let tag = String::from_utf8(value[0].2.to_vec()).unwrap();
                    let number = f32::from_le_bytes(value[1].2.try_into().unwrap());
                    found.push((tag, step, number));
                }
            }
        }
        assert!(rest.is_empty(), "{name} ends with a whole record");
    }
    found
}

/// Number, value and bytes of the fields of a message of protocol buffers.
fn fields(mut data: &[u8]) -> Vec<(u64, u64, &[u8])> {
    let mut all = Vec::new();
    while !data.is_empty() {
        let key = varint(&mut data);
        let (value, size) = match key & 7 {
            0 => (varint(&mut data), 0),
            1 => (0, 8),
            2 => (0, varint(&mut data) as usize),
            5 => (0, 4),
            kind => panic!("a field of kind {kind}"),
        };
        let (bytes, rest) = data.split_at(size);
        data = rest;
        all.push((key >> 3, value, bytes));
    }
    all
}

fn varint(data: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = data.split_first().unwrap();
        *data = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

/// Source: RFC 3720, appendix B.4, and TensorFlow's mask of it.
fn masked(data: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// All files tell what `result` tells of that many epochs.
fn check(case: &Case, result: &Value, epochs: u64) {
    let all = json_lines(case);
    let steps = of_kind(&all, "step");
    let numbers: Vec<u64> = steps
        .iter()
        .map(|step| step["step"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=epochs * STEPS).collect::<Vec<_>>());
    let told = of_kind(&all, "epoch");
    let expected = result["epochs"].as_array().unwrap();
    assert_eq!(
        (told.len(), expected.len()),
        (epochs as usize, epochs as usize)
    );
    for (told, expected) in told.iter().zip(expected) {
        for key in ["epoch", "training_loss", "samples"] {
            assert_eq!(told[key], expected[key], "{key}");
        }
        assert_eq!(told["validation"]["loss"], expected["validation"]["loss"]);
        // A result knows nothing of what was loaded before a resume.
        for key in LOADS.iter().filter(|key| !expected[**key].is_null()) {
            assert_eq!(told[*key], expected[*key], "{key}");
        }
        let samples = told["samples_per_second"].as_f64().unwrap();
        let flops = told["flops_per_second"].as_f64().unwrap();
        let per_sample = result["utilization"]["flops_per_sample"].as_f64().unwrap();
        assert!((flops / samples - per_sample).abs() < 1e-6 * per_sample);
    }
    let ranks = of_kind(&all, "ranks");
    let slowest = ranks.last().unwrap()["slowest_rank"].as_u64();
    assert!(slowest < result["ranks"].as_u64(), "{slowest:?}");

    let rows = lines(case, "epochs.csv");
    let keys: Vec<&str> = rows[0].split(',').collect();
    assert_eq!(rows.len() as u64, epochs + 1);
    for (row, expected) in rows[1..].iter().zip(expected) {
        let cells: Vec<&str> = row.split(',').collect();
        assert_eq!(cells.len(), keys.len(), "{row}");
        let cell = |key: &str| cells[keys.iter().position(|one| *one == key).unwrap()];
        let loss: f64 = cell("training_loss").parse().unwrap();
        assert_eq!(loss, expected["training_loss"].as_f64().unwrap());
        assert_eq!(cell("epoch"), expected["epoch"].to_string());
        for key in LOADS.iter().filter(|key| !expected[**key].is_null()) {
            let number: f64 = cell(key).parse().unwrap();
            assert_eq!(number, expected[*key].as_f64().unwrap(), "{key}");
        }
    }
    check_scalars(case, &steps, &told);
}

/// The event files tell what lines of steps and epochs tell.
fn check_scalars(case: &Case, steps: &[&Value], told: &[&Value]) {
    let scalars = scalars(&case.path("out"));
    let of_tag = |tag: &str, step: u64| {
        let found = scalars
            .iter()
            .rev()
            .find(|one| one.0 == tag && one.1 == step);
        found.unwrap_or_else(|| panic!("{tag} of step {step}")).2
    };
    for step in steps {
        let number = step["step"].as_u64().unwrap();
        let loss = step["loss"].as_f64().unwrap() as f32;
        assert_eq!(of_tag("train/loss", number), loss, "step {number}");
    }
    for epoch in told {
        let loss = epoch["validation"]["loss"].as_f64().unwrap() as f32;
        let number = epoch["epoch"].as_u64().unwrap();
        assert_eq!(of_tag("epoch/validation_loss", number), loss);
        for key in LOADS.iter().filter(|key| !epoch[**key].is_null()) {
            let tag = format!("epoch/{key}");
            let expected = epoch[*key].as_f64().unwrap() as f32;
            assert_eq!(of_tag(&tag, number), expected, "{key}");
        }
    }
}

/// The curve has a point for each step from the first on, with the losses of the metrics files.
fn curve_is_whole(result: &Value, epochs: u64) {
    let points = result["curve"].as_array().unwrap();
    let steps: Vec<u64> = points
        .iter()
        .map(|point| point["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, (1..=epochs * STEPS).collect::<Vec<_>>());
    let of_epoch = points.chunks(STEPS as usize).map(|points| {
        let losses = points.iter().map(|point| point["loss"].as_f64().unwrap());
        losses.sum::<f64>() / STEPS as f64
    });
    for (mean, epoch) in of_epoch.zip(result["epochs"].as_array().unwrap()) {
        let told = epoch["training_loss"].as_f64().unwrap();
        assert!((mean - told).abs() < 1e-9 * told.abs(), "{mean} and {told}");
    }
}

fn mlperf(case: &Case) -> Vec<Value> {
    let lines = lines(case, "mlperf.log");
    let objects = lines
        .iter()
        .map(|line| line.strip_prefix(":::MLLOG ").unwrap());
    objects
        .map(|text| serde_json::from_str(text).unwrap())
        .collect()
}

#[test]
fn metrics_files_tell_what_the_result_tells_and_go_on_when_a_run_resumes() {
    let case = Case::new();
    case.run_file("first.toml", 2, METRICS);
    let result = finish(&case, "first.toml", &[]);
    check(&case, &result, 2);
    let log = mlperf(&case);
    let count = |log: &[Value], key: &str| log.iter().filter(|line| line["key"] == key).count();
    let keys = [
        "run_start",
        "epoch_start",
        "eval_error",
        "tracked_stats",
        "run_stop",
    ];
    assert_eq!(keys.map(|key| count(&log, key)), [1, 2, 2, 2, 1]);
    let told = |key: &str| {
        log.iter()
            .find(|line| line["key"] == key)
            .map(|line| &line["value"])
    };
    let epoch = &result["epochs"][0];
    assert_eq!(told("train_samples"), Some(&epoch["samples"]));
    assert_eq!(told("eval_samples"), Some(&epoch["validation"]["samples"]));
    let times: Vec<u64> = log
        .iter()
        .map(|line| line["time_ms"].as_u64().unwrap())
        .collect();
    assert!(times.is_sorted());

    // The checkpoint at the end of two epochs, and two more.
    case.run_file("more.toml", 4, METRICS);
    let result = finish(&case, "more.toml", &["--resume"]);
    check(&case, &result, 4);
    curve_is_whole(&result, 4);
    let log = mlperf(&case);
    assert_eq!(keys.map(|key| count(&log, key)), [2, 4, 4, 4, 2]);
    assert_eq!(log.last().unwrap()["key"], "compute_of_ranks");
    let svg = fs::read_to_string(case.path("out/loss.svg")).unwrap();
    assert!(svg.contains("validation") && svg.ends_with("</svg>\n"));
    assert!(
        fs::read(case.path("out/loss.png"))
            .unwrap()
            .starts_with(b"\x89PNG\r\n")
    );
}

/// 10 samples of 512 values and 2 targets, of 4 bytes each.
const DATASET: u64 = 10 * (4 * 512 + 8);

/// `--store none` goes before a store of the run file, and before what that says of it.
#[test]
fn the_command_line_switches_a_store_off() {
    let case = Case::new();
    let run = case.run_file("run.toml", 2, METRICS);
    let table = "data = { path = \"set\", store = \"memory\", spill = \".\", preload = true, store_memory = \"6kB\" }";
    let text = fs::read_to_string(&run).unwrap();
    fs::write(&run, text.replace("data = \"set\"", table)).unwrap();
    let bytes = |result: &Value, key: &str| {
        let epochs = result["epochs"].as_array().unwrap().iter();
        epochs
            .map(|epoch| epoch[key].as_u64().unwrap())
            .sum::<u64>()
    };
    let kept = finish(&case, "run.toml", &["--overwrite"]);
    assert!(bytes(&kept, "memory_bytes") + bytes(&kept, "spill_bytes") > 0);
    let read = finish(&case, "run.toml", &["--overwrite", "--store", "none"]);
    assert_eq!(
        bytes(&read, "memory_bytes") + bytes(&read, "spill_bytes"),
        0
    );
    assert_eq!(bytes(&read, "read_bytes"), 2 * DATASET);
}

#[test]
fn epochs_tell_where_samples_came_from() {
    let case = Case::new();
    case.run_file("run.toml", 3, METRICS);
    let store = ["--store", "memory", "--store-memory", "6kB", "--spill", "."];
    let way = ["--ranks", "2", "--strategy", "data=2"];
    let result = finish(&case, "run.toml", &[&way[..], &store].concat());
    check(&case, &result, 3);
    let epochs = result["epochs"].as_array().unwrap();
    for (index, epoch) in epochs.iter().enumerate() {
        let bytes = |key: &str| epoch[key].as_u64().unwrap_or_else(|| panic!("{key}"));
        let read = if index == 0 { DATASET } else { 0 };
        assert_eq!(bytes("read_bytes"), read, "epoch {index}");
        let kept = bytes("memory_bytes") + bytes("spill_bytes");
        assert_eq!(kept, DATASET - read, "epoch {index}");
        assert_eq!(
            bytes("sent_bytes"),
            bytes("received_bytes"),
            "epoch {index}"
        );
        if index > 0 {
            for key in ["memory_bytes", "spill_bytes", "received_bytes"] {
                assert!(bytes(key) > 0, "{key} of epoch {index}");
            }
        }
    }
    // Nothing hides that the first samples are read.
    assert!(epochs[0]["wait_seconds"].as_f64() > Some(0.0));
}

#[test]
fn metrics_of_a_killed_run_are_whole_after_it_resumed() {
    let case = Case::new();
    let epochs = 60;
    case.run_file("run.toml", epochs, METRICS);
    let run = fs::read_to_string(case.path("run.toml")).unwrap();
    fs::write(
        case.path("run.toml"),
        run + "[checkpoint]\nevery_steps = 3\n",
    )
    .unwrap();
    let mut command = case.command("run.toml");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    let metrics = case.path("out/metrics.jsonl");
    let length = || fs::metadata(&metrics).map_or(0, |file| file.len());
    while length() < 4000 && start.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(2));
    }
    // SIGKILL; where it has ended already, the rest of the test still holds.
    child.kill().unwrap();
    child.wait().unwrap();
    let result = finish(&case, "run.toml", &["--resume", "auto"]);
    check(&case, &result, epochs as u64);
    curve_is_whole(&result, epochs as u64);
}

/// A run that resumes at the step where an earlier one did replaces that one's events.
#[test]
fn a_run_resumes_twice_from_one_step() {
    let case = Case::new();
    case.run_file("run.toml", 2, METRICS);
    finish(&case, "run.toml", &[]);
    let from = format!("out/checkpoints/step-{:09}", 2 * STEPS);
    // Nothing is left to train.
    finish(&case, "run.toml", &["--resume", &from]);
    case.run_file("more.toml", 3, METRICS);
    let result = finish(&case, "more.toml", &["--resume", &from]);
    check(&case, &result, 3);
}

#[test]
fn curves_of_a_run_that_diverges_replace_those_of_an_earlier_run() {
    let case = Case::new();
    case.run_file("run.toml", 2, "");
    finish(&case, "run.toml", &[]);
    let read = || ["loss.svg", "loss.png"].map(|name| fs::read(case.path("out").join(name)).ok());
    let before = read();
    let text = fs::read_to_string(case.path("run.toml")).unwrap();
    // The second loss is not finite.
    let text = text.replace("learning_rate = 1e-4", "learning_rate = 1e30");
    fs::write(case.path("run.toml"), text).unwrap();
    let mut command = case.command("run.toml");
    let output = command.arg("--overwrite").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("the loss became"), "{errors}");
    let after = read();
    assert!(after.iter().all(Option::is_some));
    assert!(after[0] != before[0] && after[1] != before[1]);
}
