//! The output folder of a training: one run at a time, no run lost unasked, no weights lost at all.

use crate::command::error_text;
use crate::trainee::{Case, Trainee, names};
use partita_testkit::not_run;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Files among what a run writes.
const FILES: [&str; 5] = [
    "loss.png",
    "loss.svg",
    "result.json",
    "trace.json",
    "weights.safetensors",
];
const WRITTEN: [&str; 6] = [
    "checkpoints",
    "loss.png",
    "loss.svg",
    "result.json",
    "trace.json",
    "weights.safetensors",
];

/// What a training says that must be refused before it starts.
fn refusal(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = error_text(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(!text.contains("epoch 1/"), "it has trained: {text}");
    text
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", error_text(&output));
}

fn seed_of_result(folder: &Path) -> u64 {
    let text = fs::read_to_string(folder.join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    result["seed"].as_u64().unwrap()
}

fn seed_of_weights(folder: &Path) -> u64 {
    let weights = partita_weights::load(folder.join("weights.safetensors")).unwrap();
    weights.metadata["seed"].parse().unwrap()
}

#[test]
fn a_folder_that_a_run_uses_is_refused_to_others() {
    let case = Case::new();
    case.run_file(
        "long.toml",
        1_000_000,
        "seed = 1\ncheckpoint = { keep = 0 }",
    );
    case.run_file("short.toml", 1, "seed = 2");
    let first = Trainee::start(&mut case.command("long.toml"));
    for options in [&[][..], &["--overwrite"]] {
        let text = refusal(case.command("short.toml").args(options));
        assert!(text.contains("in use"), "{text}");
        assert!(text.contains(&format!("process {}", first.id())), "{text}");
        assert!(text.contains("help: try output = \"out-2\""), "{text}");
    }
    first.signal("TERM");
    assert_eq!(first.end().0.code(), Some(130));
    assert!(!case.path("out").exists(), "{:?}", case.files());
    // What a killed run leaves stands in nobody's way, and is taken away.
    let killed = Trainee::start(&mut case.command("long.toml"));
    killed.signal("KILL");
    killed.end();
    fs::write(case.path("out/weights.safetensors.1-0.partial"), "part").unwrap();
    succeed(&mut case.command("short.toml"));
    assert_eq!(case.files(), WRITTEN);
}

#[test]
fn of_runs_that_start_together_one_has_the_folder() {
    for _ in 0..3 {
        let case = Case::new();
        let children = [1, 2].map(|seed| {
            let name = format!("run{seed}.toml");
            case.run_file(&name, 20, &format!("seed = {seed}"));
            let mut command = case.command(&name);
            command.stdout(Stdio::null()).stderr(Stdio::piped());
            (seed, command.spawn().unwrap())
        });
        let ended = children.map(|(seed, child)| (seed, child.wait_with_output().unwrap()));
        let (done, refused): (Vec<_>, Vec<_>) = ended
            .iter()
            .partition(|(_, output)| output.status.success());
        assert_eq!((done.len(), refused.len()), (1, 1), "{ended:?}");
        assert_eq!(refused[0].1.status.code(), Some(2), "{ended:?}");
        let folder = case.path("out");
        assert_eq!(case.files(), WRITTEN);
        assert_eq!(seed_of_result(&folder), done[0].0);
        assert_eq!(seed_of_weights(&folder), done[0].0);
    }
}

#[test]
fn a_run_is_not_written_over_unless_that_is_said() {
    let case = Case::new();
    case.run_file("first.toml", 1, "seed = 1");
    case.run_file("second.toml", 1, "seed = 2");
    case.run_file("third.toml", 1, "seed = 3\noverwrite = true");
    succeed(&mut case.command("first.toml"));
    let before = FILES.map(|name| fs::read(case.path("out").join(name)).unwrap());
    let text = refusal(&mut case.command("second.toml"));
    for part in [
        "(result.json, weights.safetensors, trace.json, checkpoints)",
        "`--overwrite`",
        "\"out-2\"",
    ] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    let after = FILES.map(|name| fs::read(case.path("out").join(name)).unwrap());
    assert!(before == after, "a refused run changes nothing");
    fs::write(case.path("out/prediction.json"), "of the first run").unwrap();
    succeed(case.command("second.toml").arg("--overwrite"));
    // The prediction told of other weights.
    assert_eq!(case.files(), WRITTEN);
    assert_eq!(seed_of_result(&case.path("out")), 2);
    assert_eq!(seed_of_weights(&case.path("out")), 2);
    succeed(&mut case.command("third.toml"));
    assert_eq!(seed_of_weights(&case.path("out")), 3);
    // A run that fails takes nothing away.
    case.run_file("long.toml", 1_000_000, "overwrite = true");
    let long = Trainee::start(&mut case.command("long.toml"));
    long.signal("TERM");
    long.end();
    assert_eq!(case.files(), WRITTEN);
    assert_eq!(seed_of_weights(&case.path("out")), 3);
}

#[test]
fn what_cannot_be_written_is_refused_before_the_training() {
    let case = Case::new();
    case.run_file("run.toml", 1, "overwrite = true");
    let out = case.path("out");
    fs::write(&out, "a letter").unwrap();
    let text = refusal(&mut case.command("run.toml"));
    assert!(text.contains("output = \"out\" is a file"), "{text}");
    assert_eq!(fs::read(&out).unwrap(), b"a letter");
    fs::remove_file(&out).unwrap();
    std::os::unix::fs::symlink(case.path("nowhere"), &out).unwrap();
    let text = refusal(&mut case.command("run.toml"));
    assert!(text.contains("is a link to nothing"), "{text}");
    fs::remove_file(&out).unwrap();
    for name in ["result.json", "weights.safetensors"] {
        fs::create_dir_all(out.join(name)).unwrap();
        let text = refusal(&mut case.command("run.toml"));
        assert!(text.contains(&format!("holds a folder `{name}`")), "{text}");
        fs::remove_dir_all(&out).unwrap();
    }
    let text = fs::read_to_string(case.path("run.toml")).unwrap();
    let below = text.replace("\"out\"", "\"tiny.model/out\"");
    fs::write(case.path("below.toml"), below).unwrap();
    let text = refusal(&mut case.command("below.toml"));
    assert!(text.contains("tiny.model is a file"), "{text}");
    assert_eq!(
        names(case.folder()),
        ["below.toml", "run.toml", "set", "tiny.model"]
    );
}

#[test]
fn the_folder_that_a_refusal_suggests_can_be_written_to() {
    let case = Case::new();
    let text = fs::read_to_string(case.run_file("run.toml", 1, "")).unwrap();
    fs::create_dir_all(case.path("q2/trace.json")).unwrap();
    fs::create_dir(case.path("result.json")).unwrap();
    for output in ["/proc/out", "./q2/", ".", "tiny.model/out", "set"] {
        let with = |output: &str| {
            let text = text.replace("\"out\"", &format!("\"{output}\""));
            fs::write(case.path("run.toml"), text).unwrap();
            case.command("run.toml")
        };
        let said = refusal(&mut with(output));
        let (_, nearest) = said.split_once("help: try output = \"").unwrap();
        let (nearest, _) = nearest.split_once('"').unwrap();
        assert!(!case.path(nearest).exists(), "{output}: {said}");
        succeed(&mut with(nearest));
        assert_eq!(names(&case.path(nearest)), WRITTEN, "{output}: {said}");
    }
}

#[test]
fn a_limit_of_files_is_told_before_the_training() {
    let case = Case::new();
    case.run_file("run.toml", 1, "");
    let mut command = Command::new("sh");
    let script = "ulimit -f 8 && exec \"$0\" train run.toml --no-prediction";
    command.args(["-c", script, env!("CARGO_BIN_EXE_partita")]);
    let text = refusal(command.current_dir(case.folder()));
    assert!(text.contains("`ulimit -f`"), "{text}");
    assert!(!case.path("out").exists());
}

/// What a run says whose files are elsewhere, and the folder that it names.
fn assert_rescued(said: &str, rescued: &Path) {
    assert!(said.contains("cannot hold the results"), "{said}");
    let weights = rescued.join("weights.safetensors");
    assert!(said.contains(weights.to_str().unwrap()), "{said}");
    assert_eq!(names(rescued), FILES);
    // Nobody else may read them where nobody asked for them.
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(rescued), mode(&weights)), (0o700, 0o600));
    assert_eq!(seed_of_weights(rescued), seed_of_result(rescued));
    let text = fs::read_to_string(rescued.join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["files"]["weights"], weights.to_str().unwrap());
}

/// What happens to the folder of a run while it trains.
type Strike = (&'static str, fn(&Path));

#[test]
fn weights_are_not_lost_with_the_folder() {
    let strikes: [Strike; 3] = [
        ("removed", |out| fs::remove_dir_all(out).unwrap()),
        ("replaced", |out| {
            fs::remove_dir_all(out).unwrap();
            fs::create_dir(out).unwrap();
        }),
        ("made a file", |out| {
            fs::remove_dir_all(out).unwrap();
            fs::write(out, "a letter").unwrap();
        }),
    ];
    for (what, strike) in strikes {
        let case = Case::new();
        case.run_file("run.toml", 120, "");
        let trainee = Trainee::start(&mut case.command("run.toml"));
        let rescued = case.path(&format!("out-rescued-{}", trainee.id()));
        trainee.while_stopped(|| strike(&case.path("out")));
        let (status, said) = trainee.end();
        assert_eq!(status.code(), Some(1), "{what}: {said}");
        assert_rescued(&said, &rescued);
        assert!(case.files().is_empty(), "{what}: {:?}", case.files());
    }
}

#[test]
fn a_run_that_comes_while_another_trains_is_kept() {
    let case = Case::new();
    case.run_file("run.toml", 120, "");
    let trainee = Trainee::start(&mut case.command("run.toml"));
    let rescued = case.path(&format!("out-rescued-{}", trainee.id()));
    let other = case.path("out/result.json");
    trainee.while_stopped(|| fs::write(&other, "of another run").unwrap());
    let (status, said) = trainee.end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("files of another run came there"), "{said}");
    assert_rescued(&said, &rescued);
    assert_eq!(fs::read_to_string(other).unwrap(), "of another run");
    assert!(!case.path("out/weights.safetensors").exists());
}

/// Fills a small file system before a run, and while another one trains. `$0` is the binary.
const FULL: &str = "
mount -t tmpfs -o size=2m tmpfs small || exit 99
head -c 1900000 /dev/zero > small/filler
\"$0\" train run.toml --no-prediction 2> full; echo $? > full.code
rm small/filler
\"$0\" train run.toml --no-prediction > answer 2> filled & run=$!
until grep -q 'epoch 2/' filled; do kill -0 $run || exit 98; sleep 0.02; done
kill -STOP $run
head -c 3000000 /dev/zero > small/filler 2> /dev/null
kill -CONT $run
wait $run
echo $? > filled.code; echo $run > id
";

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_told_before_the_training_and_costs_no_weights() {
    let case = Case::new();
    let run = case.run_file("run.toml", 120, "");
    let text = fs::read_to_string(&run).unwrap();
    fs::write(&run, text.replace("\"out\"", "\"small/out\"")).unwrap();
    for folder in ["small", "home"] {
        fs::create_dir(case.path(folder)).unwrap();
    }
    let script = [env!("CARGO_BIN_EXE_partita")];
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", FULL]);
    command.args(script).current_dir(case.folder());
    let output = command.env("HOME", case.path("home")).output();
    let text = |name: &str| fs::read_to_string(case.path(name)).unwrap_or_default();
    let output = match output {
        Ok(output) if output.status.code() != Some(99) && !text("full.code").is_empty() => output,
        other => {
            let test = "a_full_disk_is_told_before_the_training_and_costs_no_weights";
            return not_run(test, format!("no file system of its own: {other:?}"));
        }
    };
    assert!(output.status.success(), "{output:?}, {}", text("filled"));
    let (full, filled) = (text("full"), text("filled"));
    assert_eq!(text("full.code"), "2\n", "{full}");
    assert!(full.contains("is on a file system with"), "{full}");
    assert!(!full.contains("epoch 1/"), "{full}");
    assert_eq!(text("filled.code"), "1\n", "{filled}");
    assert!(filled.contains("No space left"), "{filled}");
    let id = text("id");
    let rescued = case.path(&format!("home/out-rescued-{}", id.trim()));
    assert_rescued(&filled, &rescued);
}
