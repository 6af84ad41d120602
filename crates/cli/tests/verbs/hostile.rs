//! Inputs made to take all time and memory, to end the process, or to say what Partita did not say: refused within
//! bounds of both.

use crate::command::{error_text, partita};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Output;

/// Most memory of a process.
const MEMORY: u64 = 2 << 30;
/// Most seconds of processor time of a process, in a debug build on a busy machine.
const SECONDS: u64 = 30;

/// What a call prints, in bounds of memory and time, in a folder.
fn bounded(folder: &Path, arguments: &[&str]) -> Output {
    let limit = |what, most: u64| {
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: `setrlimit` may be called between fork and exec, and reads `limit` alone.
        match unsafe { libc::setrlimit(what, &limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let mut command = partita(arguments);
    command.current_dir(folder);
    let bound = move || {
        limit(libc::RLIMIT_AS, MEMORY)?;
        limit(libc::RLIMIT_CPU, SECONDS)
    };
    // SAFETY: what is called neither allocates nor takes locks.
    unsafe { command.pre_exec(bound) };
    command.output().unwrap()
}

/// What a call says that is refused within bounds, with an exit code of its own.
fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = bounded(folder, arguments);
    let text = error_text(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
    assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    text
}

/// Writes a run file with more at its top and its end.
fn run_file(folder: &Path, (top, batch): (&str, usize), end: &str) {
    let text = format!(
        "model = \"cosmoflow@32\"\ndata = \"no data\"\noutput = \"out\"\nbatch = {batch}\nepochs = 1\n{top}\n\
         [schedule]\nlearning_rate = 1e-3\n{end}\n"
    );
    fs::write(folder.join("run.toml"), text).unwrap();
}

#[test]
fn passes_over_micro_batches_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let on = |ranks, strategy| {
        let head = [
            "lower",
            "cosmoflow@32",
            "--ranks",
            ranks,
            "--batch",
            "16384",
        ];
        [&head[..], &["--strategy", strategy]].concat()
    };
    for (ranks, strategy) in [
        ("1", "micro=16384"),
        ("16", "stages=16,micro=16384"),
        ("2", "stages=[1|1],micro=16384,schedule=chimera"),
        ("8", "depth=2,height=2,width=2,micro=1024"),
    ] {
        let text = refused(folder.path(), &on(ranks, strategy));
        assert!(text.contains("programs have at most 65536"), "{text}");
        assert!(text.contains("help: try micro="), "{text}");
    }
    let mut predict = on("16", "stages=16,micro=16384");
    predict[0] = "predict";
    predict.extend(["--machine", "lassen", "--no-io"]);
    assert!(refused(folder.path(), &predict).contains("help: try micro="));
}

#[test]
fn processes_that_a_training_starts_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    for role in ["loaders", "validators"] {
        run_file(folder.path(), ("", 2), &format!("[offload]\n{role} = 4096"));
        let text = refused(folder.path(), &["train", "run.toml"]);
        assert!(text.contains("a whole number from 0 to 256"), "{text}");
        assert!(text.contains("help: try 256"), "{text}");
    }
}

#[test]
fn lists_of_steps_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let steps = vec!["\"log1p\""; 100_000].join(",");
    run_file(folder.path(), (&format!("transform = [{steps}]"), 2), "");
    let text = refused(folder.path(), &["train", "run.toml"]);
    assert!(text.contains("a list of at most 64 steps"), "{text}");
}

#[test]
fn networks_without_weights_are_predicted_and_planned() {
    let folder = tempfile::tempdir().unwrap();
    let model =
        "model m\ninput x channels=2 extent=8x8x8\nr = relu x\nf = flatten r\nloss = mse f\n";
    fs::write(folder.path().join("relu.model"), model).unwrap();
    let asked = [
        "relu.model",
        "--machine",
        "lassen",
        "--ranks",
        "2",
        "--batch",
        "2",
        "--no-io",
    ];
    for verb in [&["predict", "--strategy", "data=2"][..], &["plan"]] {
        let output = bounded(folder.path(), &[verb, &asked].concat());
        assert_eq!(output.status.code(), Some(0), "{}", error_text(&output));
    }
}

#[test]
fn names_make_no_lines_and_no_control_characters() {
    let folder = tempfile::tempdir().unwrap();
    let forged = r#""a\u001b[2J\npartita: all ranks have ended\u202e" = 1"#;
    run_file(folder.path(), (forged, 2), "");
    let text = refused(folder.path(), &["train", "run.toml"]);
    let told = r"a\u001b[2J\npartita: all ranks have ended\u202e";
    assert!(text.contains(told), "{text}");
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
    assert!(
        text.lines()
            .all(|line| line != "partita: all ranks have ended"),
        "{text}"
    );
    let long = format!("\"{}\" = 1", "k".repeat(6 << 20));
    run_file(folder.path(), (&long, 2), "");
    let text = refused(folder.path(), &["train", "run.toml"]);
    assert!(
        text.contains("kkk...") && text.len() < 20_000,
        "{} bytes",
        text.len()
    );
    // An argument may be the name of a file of others.
    let text = refused(folder.path(), &["inspect", "x\u{1b}]0;y\u{7}", "z\u{9b}"]);
    assert!(!text.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{text:?}");
    let text = refused(
        folder.path(),
        &["data", "inspect", "x\u{1b}]0;y\npartita: z"],
    );
    assert!(text.contains(r"x\u001b]0;y\npartita: z"), "{text:?}");
}
