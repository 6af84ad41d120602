//! `partita data`.

use crate::command::{answer, error_text, json, partita, refusal};
use partita_data::{Dataset, Split};
use partita_formats::{DType, Samples};
use partita_synth::{CosmologySpec, Fractals, SegmentationSpec, make_segmented, make_universe};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn cosmology<'a>(out: &'a Path, universes: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let head = ["data", "cosmology", "--out", out.to_str().unwrap()];
    let size = ["--grid", "16", "--seed", "7", "--universes", universes];
    [&head[..], &size, more].concat()
}

fn make(out: &Path, universes: &str, more: &[&str]) -> String {
    let output = partita(&cosmology(out, universes, more)).output().unwrap();
    assert!(output.status.success(), "{}", error_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_dataset_holds_the_universes_of_its_seed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("universes");
    let text = make(&out, "10", &["--validation", "0.2", "--test", "0.1"]);
    assert!(text.contains("16x16x16 with 4 channels"), "{text}");
    let dataset = Dataset::open(&out).unwrap();
    assert_eq!(Split::ALL.map(|split| dataset.samples(split)), [7, 2, 1]);
    let spec = CosmologySpec {
        seed: 7,
        ..CosmologySpec::small(16)
    };
    let mut reader = dataset.reader(Split::Validation);
    let mut counts = Samples::new(dataset.dtype());
    reader
        .read_volume(1, [0..4, 0..16, 0..16, 0..16], &mut counts)
        .unwrap();
    assert_eq!(
        counts,
        Samples::I16(make_universe(&spec, 8).unwrap().counts)
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |threads: &str| {
        let out = folder.path().join(threads);
        make(&out, "21", &["--threads", threads]);
        let read = |file: &str| fs::read(out.join(file)).unwrap();
        ["train.h5", "validation.h5", "test.h5", "dataset.toml"].map(read)
    };
    let one = bytes("1");
    assert!(one == bytes("3"), "3 threads write other bytes than 1");
    assert!(one == bytes("40"), "40 threads write other bytes than 1");
}

#[test]
fn fractals_are_those_of_their_seed_however_they_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, more: &[&str]| {
        let out = folder.path().join(name);
        let head = [
            "data",
            "fractals",
            "--out",
            out.to_str().unwrap(),
            "--scale",
        ];
        let text = answer(&[&head[..], more].concat());
        (out, text)
    };
    let (out, text) = made("one", &["5", "--volumes", "10", "--threads", "1"]);
    assert!(text.contains("32x32x32 with 3 channels"), "{text}");
    let dataset = Dataset::open(&out).unwrap();
    assert_eq!(Split::ALL.map(|split| dataset.samples(split)), [7, 3, 0]);
    let (values, labels) = Fractals::new(5, 42).unwrap().volume(8).planes(0..32);
    let mut reader = dataset.reader(Split::Validation);
    let mut found = Samples::new(dataset.dtype());
    reader
        .read_volume(1, [0..3, 0..32, 0..32, 0..32], &mut found)
        .unwrap();
    assert_eq!(found, Samples::I16(values));
    reader
        .read_labels(1, [0..1, 0..32, 0..32, 0..32], &mut found)
        .unwrap();
    assert_eq!(found, Samples::I16(labels));
    let (other, _) = made("other", &["5", "--volumes", "10", "--threads", "3"]);
    for file in ["train.h5", "validation.h5", "dataset.toml"] {
        let read = |out: &Path| fs::read(out.join(file)).unwrap();
        assert!(read(&out) == read(&other), "{file}");
    }
    let (_, text) = made("all", &["3"]);
    assert!(text.contains("169") && text.contains("72"), "{text}");
    let head = ["data", "fractals", "--out", "refused", "--scale"];
    for (scale, nearest) in [("12", "try 11"), ("2", "try 3")] {
        let text = refusal(&[&head[..], &[scale]].concat());
        assert!(text.contains(nearest), "{text}");
    }
}

/// A small network tells fractals by their colors, and the training ends where its Dice reaches the target.
#[test]
fn a_training_on_fractals_ends_at_its_target() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = partita(arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", error_text(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    run(&[
        "data",
        "fractals",
        "--out",
        "fractals",
        "--scale",
        "5",
        "--volumes",
        "20",
    ]);
    let model = "model colors\ninput x channels=3 extent=32x32x32\nc1 = conv x filters=16 kernel=1 bias=true\n\
                 a1 = relu c1\nc2 = conv a1 filters=6 kernel=1 bias=true\nloss = dice_cross_entropy c2\n";
    fs::write(folder.path().join("colors.model"), model).unwrap();
    let text = "model = \"colors.model\"\ndata = \"fractals\"\noutput = \"out\"\nstrategy = \"data=1\"\nbatch = 1\nepochs = 60\n\
                transform = { scale = 0.001 }\ntarget = { mean_dice = 0.4 }\n[schedule]\nlearning_rate = 0.02\n";
    fs::write(folder.path().join("run.toml"), text).unwrap();
    let result = run(&["train", "run.toml", "--no-prediction", "--json"]);
    let result: serde_json::Value = serde_json::from_str(&result).unwrap();
    let epochs = result["epochs"].as_array().unwrap();
    let dice = |epoch: &serde_json::Value| {
        let found = &epoch["validation"]["classification"]["mean_dice"];
        found.as_f64().unwrap()
    };
    assert!(epochs.len() < 60, "{epochs:?}");
    assert!(dice(epochs.last().unwrap()) >= 0.4, "{epochs:?}");
    assert!(epochs.iter().rev().skip(1).all(|epoch| dice(epoch) < 0.4));
}

#[test]
fn a_dataset_can_be_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("universes");
    make(&out, "10", &[]);
    let path = out.to_str().unwrap();
    let summary = json(&["data", "inspect", path, "--json"]);
    assert_eq!(summary["kind"], "cosmology");
    assert_eq!(summary["channels"], 4);
    assert_eq!(summary["splits"][0]["samples"], 8);
    assert_eq!(summary["spec"]["seed"], 7);
    // 27 particles in a voxel, as many in every universe.
    let mean = summary["splits"][0]["values"]["mean"].as_f64().unwrap();
    assert!((mean - 27.0).abs() < 1e-9, "{mean}");
    let text = answer(&["data", "inspect", path]);
    for part in ["Omega_m", "contiguous", "seed = 7"] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    let text = refusal(&[
        "data",
        "inspect",
        folder.path().join("gone").to_str().unwrap(),
    ]);
    assert!(text.contains("does not exist"), "{text}");
    let stray = folder.path().join("stray.h5");
    fs::write(&stray, "no hdf5").unwrap();
    let text = refusal(&["data", "inspect", stray.to_str().unwrap()]);
    assert!(text.contains("not an HDF5 file"), "{text}");
}

#[test]
fn what_cannot_be_made_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("universes");
    let odd_grid = ["--grid", "33"];
    let head = [
        "data",
        "cosmology",
        "--out",
        out.to_str().unwrap(),
        "--universes",
        "4",
    ];
    let text = refusal(&[&head[..], &odd_grid].concat());
    assert!(text.contains("a power of two from 16 to 512"), "{text}");
    let text = refusal(&cosmology(
        &out,
        "10",
        &["--validation", "0.5", "--test", "0.5"],
    ));
    assert!(text.contains("leaves none to train on"), "{text}");
    let text = refusal(&cosmology(&out, "10", &["--validation", "1.5"]));
    assert!(text.contains("help: try 1"), "{text}");
    let text = refusal(&cosmology(&out, "0", &[]));
    assert!(text.contains("help: try 1"), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    fs::create_dir(&out).unwrap();
    fs::write(out.join("letter.txt"), "mine").unwrap();
    let text = refusal(&cosmology(&out, "10", &[]));
    assert!(
        text.contains("a folder with other files is there"),
        "{text}"
    );
    assert_eq!(fs::read(out.join("letter.txt")).unwrap(), b"mine");
}

#[test]
fn what_a_disk_cannot_hold_is_refused_with_what_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("not/there/universes");
    let made = |universes: &str| {
        let head = ["data", "cosmology", "--out", out.to_str().unwrap()];
        refusal(&[&head[..], &["--grid", "512", "--universes", universes]].concat())
    };
    let text = made("1000000");
    assert!(text.contains("1000000 universes take"), "{text}");
    assert!(text.contains("are free there\nhelp: try "), "{text}");
    // Others write to the disk, too, so that a few samples fewer or more may fit by now.
    if let Some((_, most)) = text.split_once("possible values: 1 to ") {
        let most: usize = most.split_once(' ').unwrap().0.parse().unwrap();
        let text = made(&(2 * most + 100).to_string());
        assert!(text.contains("are free there"), "{text}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
#[cfg(unix)]
fn a_file_that_may_not_grow_ends_the_making_with_one_message() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("universes");
    let script = "ulimit -f 64 && exec \"$0\" data cosmology --out \"$1\" --grid 16 --universes 40";
    let run = Command::new("bash")
        .args([
            "-c",
            script,
            env!("CARGO_BIN_EXE_partita"),
            out.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    let text = error_text(&run);
    assert_eq!(run.status.code(), Some(1), "{text}");
    assert!(
        text.contains("cannot be written") && !text.contains("rust-hdf5"),
        "{text}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_number_that_is_suggested_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("set");
    let out = out.to_str().unwrap();
    // Each case lacks what it must have in the end, so that nothing is made.
    for (verb, option, asked, range, nearest) in [
        (
            "cosmology",
            "--grid",
            "0",
            "a power of two from 16 to 512",
            "16",
        ),
        (
            "cosmology",
            "--grid",
            "100",
            "a power of two from 16 to 512",
            "128",
        ),
        ("segmentation", "--grid", "0", "from 8 to 1024", "8"),
        ("shapes", "--size", "1", "from 16 to 4096", "16"),
        ("shapes", "--classes", "1001", "from 2 to 1000", "1000"),
        ("digits", "--digits", "0", "from 1 to 512", "1"),
        (
            "digits",
            "--seed",
            "-1",
            "from 0 to 18446744073709551615",
            "0",
        ),
        (
            "digits",
            "--seed",
            "99999999999999999999999",
            "from 0 to 18446744073709551615",
            "18446744073709551615",
        ),
    ] {
        let said =
            |value: &str| refusal(&["data", verb, "--out", out, &format!("{option}={value}")]);
        let text = said(asked);
        assert!(text.contains(range), "{text}");
        assert!(text.contains(&format!("help: try {nearest}")), "{text}");
        let text = said(nearest);
        assert!(text.contains("required"), "{text}");
    }
}

#[test]
#[cfg(unix)]
fn ctrl_c_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("universes");
    let head = [
        "data",
        "cosmology",
        "--out",
        out.to_str().unwrap(),
        "--threads",
        "1",
    ];
    let mut child = partita(&[&head[..], &["--grid", "32", "--universes", "5000"]].concat())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !folder.path().join("universes.partial").is_dir() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "it never started"
        );
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "it ended before it was asked to"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", error_text(&output));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn volumes_and_images_come_with_their_classes() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, verb: &str, options: &[&str]| {
        let out = folder.path().join(name);
        let head = ["data", verb, "--out", out.to_str().unwrap(), "--seed", "7"];
        let text = answer(&[&head[..], options].concat());
        (Dataset::open(&out).unwrap(), text)
    };
    let options = ["--volumes", "10", "--grid", "16"];
    let (volumes, text) = made("volumes", "segmentation", &options);
    assert!(text.contains("background, organ, lesion; one per position"));
    assert_eq!(
        (volumes.shape(), volumes.labels()),
        ([1, 16, 16, 16], Some([16; 3]))
    );
    let spec = SegmentationSpec { grid: 16, seed: 7 };
    let expected = make_segmented(&spec, 8).unwrap();
    let (mut values, mut labels) = (Samples::new(DType::Int16), Samples::new(DType::Int16));
    let mut reader = volumes.reader(Split::Validation);
    let whole = [0..1, 0..16, 0..16, 0..16];
    reader.read_volume(0, whole.clone(), &mut values).unwrap();
    reader.read_labels(0, whole, &mut labels).unwrap();
    assert_eq!(values, Samples::I16(expected.values));
    assert_eq!(labels, Samples::I16(expected.labels));

    let options = [
        "--images",
        "10",
        "--size",
        "24",
        "--classes",
        "7",
        "--test",
        "0.2",
    ];
    let (images, text) = made("images", "shapes", &options);
    assert!(text.contains("crescent; one per sample"), "{text}");
    assert_eq!(
        (images.shape(), images.labels()),
        ([3, 1, 24, 24], Some([1; 3]))
    );
    let mut reader = images.reader(Split::Test);
    reader
        .read_labels(1, [0..1, 0..1, 0..1, 0..1], &mut labels)
        .unwrap();
    assert_eq!(labels, Samples::I16(vec![9 % 7]));

    let out = folder.path().join("none");
    for (verb, option, expected) in [
        (
            "segmentation",
            ["--volumes", "4", "--grid", "7"],
            "8 to 1024",
        ),
        ("shapes", ["--images", "4", "--size", "8"], "16 to 4096"),
    ] {
        let head = ["data", verb, "--out", out.to_str().unwrap()];
        let text = refusal(&[&head[..], &option].concat());
        assert!(text.contains(expected), "{text}");
    }
}

/// A program that died leaves a part of its array unwritten, which HDF5 would read as its fill value.
#[test]
fn values_that_were_never_written_are_converted_with_fill() {
    let folder = tempfile::tempdir().unwrap();
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../data/tests/fixtures/foreign/unwritten_chunks.h5"
    );
    let out = folder.path().join("set");
    let call = ["data", "convert", source, "--out", out.to_str().unwrap()];
    let text = refusal(&call);
    for part in [
        "key `full`, sample 2 of the file",
        "were ever written",
        "`--fill`",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("damaged") && !out.exists(), "{text}");
    answer(&[&call[..], &["--fill"]].concat());
    let dataset = Dataset::open(&out).unwrap();
    let samples: usize = Split::ALL.map(|split| dataset.samples(split)).iter().sum();
    assert_eq!(samples, 3);
}

/// The option goes before the run file, for readers of every verb.
#[test]
fn decoding_has_a_budget() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fixtures/formats/jpeg/whole.jpg"
    );
    let out = at("set");
    let call = ["data", "convert", source, "--out", &out, "--no-targets"];
    let text = refusal(&[&call[..], &["--decode-memory", "3kB"]].concat());
    for part in [
        "whole.jpg: its structure takes",
        "the budget of decoding is 2.93 KiB",
        "help: where the file is what it should be, `--decode-memory 1MiB`",
    ] {
        assert!(text.contains(part), "{text}");
    }
    answer(&[&call[..], &["--decode-memory", "1MiB"]].concat());

    let organs = at("organs");
    let sizes = ["--volumes", "4", "--grid", "8"];
    answer(&[&["data", "segmentation", "--out", &organs][..], &sizes].concat());
    let text = refusal(&["data", "inspect", &organs, "--decode-memory", "500B"]);
    assert!(text.contains("budget of decoding is 500 B"), "{text}");
    fs::write(
        at("near.model"),
        "model near\ninput x channels=1 extent=8x8x8\n\
         c1 = conv x filters=3 kernel=3 pad=1 bias=true\nloss = softmax_cross_entropy c1\n",
    )
    .unwrap();
    let run = format!(
        "model = \"{}\"\noutput = \"{}\"\nbatch = 1\nepochs = 1\nstrategy = \"data=1\"\n\
         data = {{ path = \"{organs}\", decode_memory = \"500B\" }}\n[schedule]\nlearning_rate = 0.01\n",
        at("near.model"),
        at("trained")
    );
    fs::write(at("run.toml"), run).unwrap();
    let (file, train) = (at("run.toml"), "--no-prediction");
    let text = refusal(&["train", &file, train]);
    assert!(text.contains("budget of decoding is 500 B"), "{text}");
    let output = partita(&["train", &file, train, "--decode-memory", "1MiB"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", error_text(&output));
}
