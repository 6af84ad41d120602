//! Checkpoints: a training that was stopped or killed at any moment resumes to the bits of an undisturbed one.

use crate::trainee::{Case, Trainee, names, write_dataset};
use partita_space::random::SplitMix;
use partita_testkit::Share;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const KILLS: usize = 20;
const KILLS_LONG: usize = 200;

const MODEL: &str = "model tiny
input x channels=1 extent=8x8x8
c1 = conv x filters=4 kernel=3 pad=1 bias=true
n1 = batch_norm c1 epsilon=1e-5 momentum=0.1
a1 = relu n1
p1 = max_pool a1 kernel=2 stride=2
c2 = conv p1 filters=6 kernel=3 pad=1 bias=false
a2 = leaky_relu c2 slope=0.1
f = flatten a2
d = dropout f rate=0.25
fc = linear d features=2 bias=true
loss = mse fc
";

/// A case of the model, with a run file per output folder.
fn case() -> Case {
    let case = Case::new();
    fs::write(case.path("tiny.model"), MODEL).unwrap();
    case
}

/// Writes a run file for an output folder, of 3 + 1 samples a step.
fn run_file(case: &Case, output: &str, epochs: usize, checkpoint: &str) -> String {
    let name = format!("{output}.toml");
    let text = format!(
        "model = \"tiny.model\"\ndata = \"set\"\noutput = \"{output}\"\nbatch = 3\nepochs = {epochs}\n\
         strategy = \"data=1\"\nseed = 5\n[schedule]\nkind = \"cosine\"\nlearning_rate = 1e-2\n\
         [checkpoint]\n{checkpoint}\n"
    );
    fs::write(case.path(&name), text).unwrap();
    name
}

fn train(case: &Case, run: &str, more: &[&str]) -> Command {
    let mut command = case.command(run);
    command.args(more).stdin(Stdio::null());
    command
}

fn error_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Another command in the folder of a case.
fn partita(case: &Case, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partita"));
    let command = command.args(arguments).current_dir(case.folder());
    command.output().unwrap()
}

/// Trains to the end.
fn finish(case: &Case, run: &str, more: &[&str]) {
    let output = train(case, run, more).output().unwrap();
    assert!(output.status.success(), "{more:?}: {}", error_text(&output));
}

/// What a refusal says.
fn refusal(case: &Case, run: &str, more: &[&str]) -> String {
    let output = train(case, run, more).output().unwrap();
    let text = error_text(&output);
    assert!(
        !output.status.success() && !text.contains("panicked"),
        "{text}"
    );
    text
}

fn weights(case: &Case, output: &str) -> Vec<u8> {
    fs::read(case.path(output).join("weights.safetensors")).unwrap()
}

fn result(case: &Case, output: &str) -> Value {
    let text = fs::read_to_string(case.path(output).join("result.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Losses of training and validation of all epochs.
fn losses(case: &Case, output: &str) -> Vec<f64> {
    let result = result(case, output);
    let epochs = result["epochs"].as_array().unwrap();
    let both = |epoch: &Value| {
        [
            epoch["training_loss"].as_f64().unwrap(),
            epoch["validation"]["loss"].as_f64().unwrap(),
        ]
    };
    epochs.iter().flat_map(both).collect()
}

fn checkpoints(case: &Case, output: &str) -> Vec<PathBuf> {
    let folder = case.path(output).join("checkpoints");
    let all = names(&folder);
    all.into_iter().map(|name| folder.join(name)).collect()
}

#[test]
fn a_training_killed_at_any_moment_resumes_to_the_same_weights() {
    let is_long = std::env::var("PARTITA_TEST_LONG").is_ok();
    let kills = if is_long { KILLS_LONG } else { KILLS };
    let case = case();
    let settings = "every_steps = 2\nevery_epochs = 1\nkeep = 2";
    let run = run_file(&case, "whole", 16, settings);
    let start = Instant::now();
    finish(&case, &run, &[]);
    let time = start.elapsed();
    let expected = weights(&case, "whole");
    let run = run_file(&case, "killed", 16, settings);
    let mut random = SplitMix(2026);
    let (mut killed, mut ended, mut with_checkpoint) = (0, 0, 0);
    while killed < kills {
        let mut child = train(&case, &run, &["--resume", "auto"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let part = random.bits() % 1000;
        thread::sleep(Duration::from_micros(time.as_micros() as u64 * part / 1000));
        let is_over = child.try_wait().unwrap().is_some();
        // SIGKILL.
        child.kill().unwrap();
        let status = child.wait().unwrap();
        if is_over {
            assert!(status.success(), "{status}");
        } else {
            killed += 1;
            with_checkpoint += usize::from(!checkpoints(&case, "killed").is_empty());
        }
        // Every second time the training goes on from where it was killed, and may be killed again.
        if is_over || killed % 2 == 0 {
            finish(&case, &run, &["--resume", "auto"]);
            assert!(weights(&case, "killed") == expected, "after {killed} kills");
            assert_eq!(result(&case, "killed")["steps"], 48);
            assert_eq!(losses(&case, "killed"), losses(&case, "whole"));
            let left = checkpoints(&case, "killed");
            assert!(left.len() == 2, "{left:?}");
            fs::remove_dir_all(case.path("killed")).unwrap();
            ended += 1;
        }
    }
    println!(
        "{killed} kills, {with_checkpoint} of them after a first checkpoint; {ended} trainings of 48 steps ended \
         with the weights of the undisturbed one, bit for bit"
    );
    assert!(with_checkpoint > kills / 4, "{with_checkpoint} of {kills}");
}

#[test]
fn a_signal_ends_a_training_with_a_checkpoint_from_which_it_goes_on() {
    let case = case();
    let run = run_file(&case, "whole", 1500, "every_epochs = 0");
    finish(&case, &run, &[]);
    let run = run_file(&case, "out", 1500, "every_epochs = 0");
    let mut rounds = 0;
    loop {
        let more: &[&str] = if rounds == 0 { &[] } else { &["--resume"] };
        if rounds == 2 {
            finish(&case, &run, more);
            break;
        }
        let mut command = train(&case, &run, more);
        let trainee = if rounds == 0 {
            Trainee::start(&mut command)
        } else {
            Trainee::started(&mut command, "epoch ")
        };
        trainee.while_stopped(|| trainee.signal(["TERM", "INT"][rounds]));
        let (status, said) = trainee.end();
        assert_eq!(status.code(), Some(130), "{said}");
        assert!(said.contains("stopped on request after step"), "{said}");
        assert_eq!(checkpoints(&case, "out").len(), rounds + 1, "{said}");
        let files = ["checkpoints", "loss.png", "loss.svg"];
        assert_eq!(names(&case.path("out")), files);
        rounds += 1;
    }
    assert!(weights(&case, "out") == weights(&case, "whole"));
    assert_eq!(losses(&case, "out"), losses(&case, "whole"));
}

/// A run file in double precision, in which strategies differ by less than the losses show.
fn exact_run_file(case: &Case, output: &str, settings: &str) -> String {
    let run = run_file(case, output, 4, settings);
    let text = fs::read_to_string(case.path(&run)).unwrap();
    let exact = "seed = 5\nkernels = \"reference\"\nprecision = \"f64\"";
    fs::write(case.path(&run), text.replace("seed = 5", exact)).unwrap();
    run
}

/// Ranks and strategies of the model.
const STRATEGIES: [(&str, &str); 8] = [
    ("1", "data=1"),
    ("3", "data=3"),
    ("2", "depth=2"),
    ("2", "filter=2"),
    ("2", "data=2,shard=parameters"),
    ("4", "data=2,width=2,shard=optimizer"),
    ("2", "stages=[..p1: 1|c2..: 1]"),
    ("4", "filter=2,channel=2"),
];

#[test]
fn a_training_resumes_under_any_strategy_with_the_same_losses() {
    let is_long = std::env::var("PARTITA_TEST_LONG").is_ok();
    let case = case();
    let settings = "every_steps = 1\nkeep = 100";
    let mut random = SplitMix(7);
    let mut expected: Option<Vec<f64>> = None;
    for (index, (ranks, strategy)) in Share::of(4).of_items(STRATEGIES.into_iter().enumerate()) {
        let output = format!("from{index}");
        let run = exact_run_file(&case, &output, settings);
        finish(&case, &run, &["--ranks", ranks, "--strategy", strategy]);
        let all = losses(&case, &output);
        let expected = expected.get_or_insert(all.clone());
        assert_near(&all, expected, strategy);
        let written = checkpoints(&case, &output);
        assert_eq!(written.len(), 12, "{strategy}");
        let pairs = if is_long { STRATEGIES.len() } else { 2 };
        for pair in 0..pairs {
            // The same one first.
            let to = (index + pair * (1 + random.bits() as usize % 6)) % STRATEGIES.len();
            let (ranks, other) = STRATEGIES[to];
            let from = &written[random.bits() as usize % written.len()];
            let name = format!("{output}to{pair}");
            let run = exact_run_file(&case, &name, settings);
            let from = from.display().to_string();
            let more = ["--ranks", ranks, "--strategy", other, "--resume", &from];
            finish(&case, &run, &more);
            let found = losses(&case, &name);
            assert_near(
                &found,
                expected,
                &format!("{strategy} to {other} from {from}"),
            );
            if to == index {
                assert_eq!(found, all, "{strategy} from {from}");
                assert!(
                    weights(&case, &name) == weights(&case, &output),
                    "{strategy}"
                );
            }
            assert_eq!(result(&case, &name)["resumed_from"], from);
        }
    }
}

fn assert_near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let error = (found - expected).abs() / expected.abs();
        assert!(error < 1e-6, "{what}: {found} instead of {expected}");
    }
}

#[test]
fn the_last_and_the_best_checkpoints_are_kept() {
    let case = case();
    let settings = "every_epochs = 1\nbest = \"validation_loss\"\nkeep = 2";
    let run = run_file(&case, "out", 12, settings);
    finish(&case, &run, &[]);
    let losses: Vec<f64> = losses(&case, "out")
        .into_iter()
        .skip(1)
        .step_by(2)
        .collect();
    let best = (0..12)
        .min_by(|&a, &b| losses[a].total_cmp(&losses[b]))
        .unwrap()
        + 1;
    let mut kept = vec![11 * 3, 12 * 3, best * 3];
    kept.sort_unstable();
    kept.dedup();
    let expected: Vec<String> = kept.iter().map(|step| format!("step-{step:09}")).collect();
    assert_eq!(names(&case.path("out/checkpoints")), expected);
    // None at all.
    let run = run_file(&case, "none", 2, "keep = 0");
    finish(&case, &run, &[]);
    assert!(!case.path("none/checkpoints").exists());
    // By time: the pauses between steps are longer.
    let run = run_file(
        &case,
        "timed",
        400,
        "every = \"1 ms\"\nevery_epochs = 0\nkeep = 1000",
    );
    finish(&case, &run, &[]);
    assert!(checkpoints(&case, "timed").len() > 1);
}

#[test]
fn a_damaged_checkpoint_is_refused_by_file_and_rank() {
    let case = case();
    let run = run_file(&case, "out", 2, "");
    finish(
        &case,
        &run,
        &["--ranks", "2", "--strategy", "depth=2,shard=optimizer"],
    );
    let checkpoint = checkpoints(&case, "out").pop().unwrap();
    let again = |checkpoint: &Path| {
        let run = run_file(&case, "again", 3, "");
        let from = checkpoint.display().to_string();
        let ranks = ["--ranks", "2", "--strategy", "depth=2", "--resume", &from];
        refusal(&case, &run, &ranks)
    };
    let mut files = BTreeMap::new();
    for name in names(&checkpoint) {
        files.insert(name.clone(), fs::read(checkpoint.join(&name)).unwrap());
    }
    assert_eq!(files.len(), 3, "{:?}", files.keys());
    let mut random = SplitMix(3);
    for (name, bytes) in &files {
        let path = checkpoint.join(name);
        for _ in 0..4 {
            let mut bad = bytes.clone();
            let at = random.bits() as usize % bad.len();
            bad[at] ^= 1 << (random.bits() % 8);
            fs::write(&path, bad).unwrap();
            let said = again(&checkpoint);
            assert!(said.contains(name.as_str()), "byte {at}: {said}");
            assert!(said.contains("rank ") || name == "manifest.json", "{said}");
            assert!(!case.path("again").exists(), "{said}");
        }
        fs::write(&path, bytes).unwrap();
    }
    let newer = String::from_utf8(files["manifest.json"].clone()).unwrap();
    let newer = newer.replace("\"format_version\": 1", "\"format_version\": 7");
    fs::write(checkpoint.join("manifest.json"), newer).unwrap();
    assert!(again(&checkpoint).contains("format version 7"));
}

/// Flips a bit of the first file of shards of a checkpoint.
fn damage(checkpoint: &Path) {
    let path = checkpoint.join("rank-00000.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 9;
    bytes[last] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// What is done to the training of a manifest.
type Change<'c> = &'c dyn Fn(&mut Value);

/// Changes the training of a manifest, and its checksum with it.
fn forge(checkpoint: &Path, change: Change<'_>) {
    let path = checkpoint.join("manifest.json");
    let mut manifest: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut manifest["training"]);
    let blank = "0".repeat(64);
    manifest["sha256"] = blank.clone().into();
    let text = serde_json::to_string_pretty(&manifest).unwrap();
    fs::write(&path, &text).unwrap();
    let sum = Command::new("sha256sum")
        .arg(&path)
        .output()
        .unwrap()
        .stdout;
    let sum = String::from_utf8(sum).unwrap();
    fs::write(&path, text.replacen(&blank, &sum[..64], 1)).unwrap();
}

#[test]
fn a_checkpoint_with_numbers_of_no_training_is_refused() {
    let case = case();
    let run = run_file(&case, "out", 2, "every_epochs = 1\nkeep = 1");
    finish(&case, &run, &[]);
    let run = run_file(&case, "out", 3, "every_epochs = 1\nkeep = 1");
    let [last] = &checkpoints(&case, "out")[..] else {
        panic!("one checkpoint");
    };
    let written = fs::read(last.join("manifest.json")).unwrap();
    let cases: [(Change<'_>, &str); 8] = [
        (
            &|it| it["position"]["epochs"][0]["training_loss"] = 1e308.into(),
            "a training loss is 1e308",
        ),
        (
            &|it| it["position"]["epochs"][1]["validation"]["loss"] = (-1e308).into(),
            "a validation loss is -1e308",
        ),
        (
            &|it| it["curve"]["points"][0]["loss"] = 1e308.into(),
            "a loss of the curve is 1e308",
        ),
        (
            &|it| it["curve"]["steps_per_epoch"] = 0.into(),
            "the curve of its losses has 0 steps an epoch",
        ),
        (
            &|it| it["position"]["epoch"] = (1_u64 << 40).into(),
            "1099511627776 epochs are done, with the results of 2",
        ),
        (&|it| it["epochs"] = 1.into(), "2 epochs are done of 1"),
        (
            &|it| it["position"]["updates"] = (1_u64 << 40).into(),
            "1099511627776 updates are done after 2 epochs of 3 steps",
        ),
        (
            &|it| it["position"]["done"] = (1_u64 << 40).into(),
            "1099511627776 steps of epoch 3 are done, which has 3 training steps",
        ),
    ];
    for (change, expected) in cases {
        forge(last, change);
        let said = refusal(&case, &run, &["--resume"]);
        let told = "cannot be of this training: ";
        assert!(said.contains(&format!("{told}{expected}")), "{said}");
        fs::write(last.join("manifest.json"), &written).unwrap();
    }
    // As it was written, also with a new checksum.
    forge(last, &|_| {});
    finish(&case, &run, &["--resume"]);
}

#[test]
fn a_resume_with_nothing_left_keeps_trace_and_times() {
    let case = case();
    let run = run_file(&case, "out", 3, "every_epochs = 1\nkeep = 1");
    finish(&case, &run, &[]);
    let events = || {
        let text = fs::read_to_string(case.path("out/trace.json")).unwrap();
        let trace: Value = serde_json::from_str(&text).unwrap();
        trace["traceEvents"].as_array().unwrap().len()
    };
    let times = || {
        let result = result(&case, "out");
        let keys = ["steps_measured", "step_seconds_median", "tasks"];
        keys.map(|key| result[key].clone())
    };
    let before = (events(), times());
    assert!(before.0 > 0 && before.1[0].as_u64().unwrap() > 0);
    finish(&case, &run, &["--resume"]);
    assert_eq!((events(), times()), before);
    finish(&case, &run, &["--resume"]);
    assert_eq!((events(), times()), before);
}

#[test]
fn the_error_of_a_damaged_checkpoint_names_a_whole_one() {
    let case = case();
    let run = run_file(&case, "out", 3, "every_epochs = 1\nkeep = 3");
    finish(&case, &run, &[]);
    let all = checkpoints(&case, "out");
    let [first, second, last] = all.as_slice() else {
        panic!("three checkpoints: {all:?}");
    };
    let run = run_file(&case, "out", 4, "every_epochs = 1\nkeep = 3");
    let relative = |checkpoint: &Path| {
        let name = checkpoint
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        format!("out/checkpoints/{name}")
    };
    let instead = |checkpoint: &Path| {
        let path = relative(checkpoint);
        format!("the nearest whole checkpoint is {path}, resume from it with `--resume {path}`")
    };
    damage(last);
    let said = refusal(&case, &run, &["--resume"]);
    assert!(said.contains(&instead(second)), "{said}");
    assert!(!said.contains("its last checkpoint is"), "{said}");
    damage(second);
    let said = refusal(&case, &run, &["--resume"]);
    assert!(said.contains(&instead(first)), "{said}");
    fs::write(last.join("manifest.json"), "{").unwrap();
    let said = refusal(&case, &run, &["--resume"]);
    assert!(said.contains(&instead(first)), "{said}");
    let from = relative(second);
    let output = partita(&case, &["evaluate", &run, "--weights", &from]);
    let said = error_text(&output);
    assert!(
        said.contains("the nearest whole checkpoint is") && !output.status.success(),
        "{said}"
    );
    fs::remove_dir_all(last).unwrap();
    // From the one that was named it goes on.
    finish(&case, &run, &["--resume", &relative(first)]);
    let all = checkpoints(&case, "out");
    all.iter().for_each(|checkpoint| damage(checkpoint));
    let run = run_file(&case, "out", 5, "every_epochs = 1\nkeep = 3");
    let said = refusal(&case, &run, &["--resume"]);
    assert!(
        said.contains("no other checkpoint beside it is whole"),
        "{said}"
    );
}

#[test]
fn what_may_change_is_told_in_the_words_of_the_run_file() {
    let case = case();
    let sgd = "keep = 9\n[augmentation]\nrotate = true\n[optimizer]\nkind = \"sgd\"";
    let run = run_file(&case, "out", 2, sgd);
    finish(&case, &run, &[]);
    let text = fs::read_to_string(case.path(&run)).unwrap();
    let changed = |pairs: &[[&str; 2]]| {
        let change = |text: String, [from, to]: &[&str; 2]| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        };
        let text = pairs.iter().fold(text.clone(), change);
        fs::write(case.path(&run), text).unwrap();
    };
    changed(&[["rotate = true", "rotate = false"]]);
    let said = refusal(&case, &run, &["--resume"]);
    let differs =
        "with augmentation.rotate = true, and the run file has augmentation.rotate = false";
    assert!(said.contains(differs), "{said}");
    changed(&[["kind = \"sgd\"", "kind = \"sgd\"\nmomentum = 0.5"]]);
    let said = refusal(&case, &run, &["--resume"]);
    let differs = "with optimizer.momentum = 0, and the run file has optimizer.momentum = 0.5";
    assert!(said.contains(differs), "{said}");
    changed(&[
        ["epochs = 2", "epochs = 3"],
        ["1e-2", "2e-2"],
        [
            "kind = \"sgd\"",
            "kind = \"sgd\"\nweight_decay = 1e-5\nclip = 2",
        ],
    ]);
    let output = train(&case, &run, &["--resume"]).output().unwrap();
    let said = error_text(&output);
    assert!(output.status.success(), "{said}");
    let old = "`optimizer` was { kind = \"sgd\", momentum = 0, nesterov = false, weight_decay = 0, decay_norms = true } in the";
    for part in [
        "`schedule.learning_rate` was 0.01 in the checkpoint and is 0.02 from here on",
        old,
        "weight_decay = 1e-5, decay_norms = true, clip = 2 } from here on",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!said.contains("Sgd"), "{said}");
}

#[test]
fn another_dataset_is_told_from_a_key() {
    let case = case();
    let run = run_file(&case, "out", 1, "");
    finish(&case, &run, &[]);
    write_dataset(&case.path("fewer"), 7);
    let text = fs::read_to_string(case.path(&run)).unwrap();
    fs::write(case.path(&run), text.replace("\"set\"", "\"fewer\"")).unwrap();
    let said = refusal(&case, &run, &["--resume"]);
    assert!(
        said.contains("was made on set with ") && said.contains("fewer has "),
        "{said}"
    );
    assert!(
        said.contains("training samples") && !said.contains("data ("),
        "{said}"
    );
}

/// What a run file has, what it has instead, and what is then said.
const CHANGES: [[&str; 3]; 9] = [
    [
        "batch = 3",
        "batch = 4",
        "batch = 3, and the run file has batch = 4",
    ],
    [
        "batch = 3",
        "batch = 3\naccumulate = 2",
        "batch * accumulate = 3, and the run file has batch * accumulate = 6",
    ],
    [
        "seed = 5",
        "seed = 6",
        "seed = 5, and the run file has seed = 6",
    ],
    [
        "[schedule]",
        "[optimizer]\nkind = \"sgd\"\n[schedule]",
        "made with optimizer.kind = \"adam\", and the run file has optimizer.kind = \"sgd\"",
    ],
    [
        "[schedule]",
        "[augmentation]\nnoise = 0.5\nflip = [\"depth\"]\n[schedule]",
        "made with augmentation.flip = [], and the run file has augmentation.flip = [\"depth\"]",
    ],
    [
        "seed = 5",
        "seed = 5\ntransform = [{ clip = [0, 5] }]",
        "transform = \"identity\", and the run file has transform = { clip = [0, 5] }; transform must stay",
    ],
    [
        "[schedule]",
        "[augmentation]\nscale_intensity = [0.9, 1.1]\n[schedule]",
        "made without augmentation.scale_intensity, and the run file has augmentation.scale_intensity = [0.9, 1.1]; \
         augmentation.scale_intensity must stay to resume: leave it out",
    ],
    [
        "\"tiny.model\"",
        "\"wide.model\"",
        "its tensor `c2.weight` has the shape",
    ],
    [
        "\"tiny.model\"",
        "\"other.model\"",
        "it has the line `a2 = leaky_relu c2",
    ],
];

#[test]
fn what_must_stay_is_named_and_what_may_change_is_told() {
    let case = case();
    let run = run_file(&case, "out", 2, "");
    let said = refusal(&case, &run, &["--resume"]);
    assert!(
        said.contains("out/checkpoints holds no checkpoint"),
        "{said}"
    );
    finish(&case, &run, &["--resume", "auto"]);
    let said = refusal(&case, &run, &[]);
    assert!(
        said.contains("checkpoints)") && said.contains("--resume"),
        "{said}"
    );
    let text = fs::read_to_string(case.path(&run)).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        fs::write(case.path(&run), text.replace(from, to)).unwrap();
    };
    for [from, to, expected] in CHANGES {
        let wide = MODEL.replace("filters=6", "filters=8");
        fs::write(case.path("wide.model"), wide).unwrap();
        let other = MODEL.replace("slope=0.1", "slope=0.2");
        fs::write(case.path("other.model"), other).unwrap();
        changed(from, to);
        let said = refusal(&case, &run, &["--resume"]);
        assert!(said.contains(expected), "{said}");
    }
    // More epochs and another learning rate.
    let longer = text.replace("epochs = 2", "epochs = 3");
    fs::write(case.path(&run), longer).unwrap();
    let output = train(&case, &run, &["--resume"]).output().unwrap();
    let said = error_text(&output);
    assert!(output.status.success(), "{said}");
    let follows =
        "`epochs` was 2 in the checkpoint and is 3 from here on, which the schedule follows";
    assert!(said.contains(follows), "{said}");
    assert_eq!(result(&case, "out")["epochs"].as_array().unwrap().len(), 3);
    changed("[checkpoint]", "[checkpoint]\nbest = \"accuracy\"");
    let said = refusal(&case, &run, &["--resume"]);
    assert!(said.contains("best = \"accuracy\" needs classes"), "{said}");
}

#[test]
fn a_loss_that_is_not_finite_names_the_checkpoint_before() {
    let case = case();
    let run = run_file(&case, "out", 50, "every_steps = 1");
    let text = fs::read_to_string(case.path(&run)).unwrap();
    fs::write(case.path(&run), text.replace("1e-2", "1e14")).unwrap();
    let said = refusal(&case, &run, &[]);
    assert!(
        said.contains("its last checkpoint is out/checkpoints/step-0000000"),
        "{said}"
    );
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_told_and_costs_no_training() {
    let case = case();
    let run = run_file(&case, "out", 3, "every_epochs = 1");
    fs::create_dir(case.path("out")).unwrap();
    fs::write(case.path("out/checkpoints"), "in the way").unwrap();
    let output = train(&case, &run, &[]).output().unwrap();
    let said = error_text(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("the checkpoint of step 3 could not be written"),
        "{said}"
    );
    assert!(said.contains("training goes on"), "{said}");
    assert!(!weights(&case, "out").is_empty());
}
