//! Pipes, and links to devices without end, where the command line expects files.

use crate::command::{answer, partita};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Virtual memory of a call: several times what one takes that reads nothing.
const MEMORY_MAX: u64 = 8 << 30;
const TIME_MAX: Duration = Duration::from_secs(60);

/// Calls with a pipe without a writer and with a device without end at a path. Both are refused at once.
#[track_caller]
fn refused(place: &Path, arguments: &[&str]) {
    let pipe = |path: &Path| {
        let made = Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    };
    let device = |path: &Path| symlink("/dev/zero", path).unwrap();
    let kinds: [&dyn Fn(&Path); 2] = [&pipe, &device];
    for kind in kinds {
        kind(place);
        let mut command = partita(arguments);
        let limit = || {
            let most = libc::rlimit {
                rlim_cur: MEMORY_MAX,
                rlim_max: MEMORY_MAX,
            };
            // SAFETY: `setrlimit` may be called between fork and exec, and `most` lives meanwhile.
            unsafe { libc::setrlimit(libc::RLIMIT_AS, &most) };
            Ok(())
        };
        // SAFETY: what is called neither allocates nor takes locks.
        unsafe { command.pre_exec(limit) };
        let begun = Instant::now();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            if begun.elapsed() > TIME_MAX {
                child.kill().unwrap();
                panic!("{arguments:?} waits for {}", place.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        let code = output.status.code();
        assert!(
            matches!(code, Some(1 | 2)),
            "{arguments:?}: {code:?} {text}"
        );
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
        fs::remove_file(place).unwrap();
    }
}

#[test]
fn files_of_the_command_line_are_regular() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    let out = text("out");
    for (name, call) in [
        ("a.model", &["inspect", "FILE"][..]),
        ("a.onnx", &["inspect", "FILE"]),
        ("a.pt2", &["import", "FILE"]),
        (
            "a.toml",
            &[
                "plan",
                "cosmoflow@32",
                "--ranks",
                "2",
                "--batch",
                "2",
                "--machine",
                "FILE",
            ],
        ),
        ("a.toml", &["train", "FILE"]),
        ("a.h5", &["data", "inspect", "FILE"]),
        (
            "a.nii.gz",
            &["data", "convert", "FILE", "--no-targets", "--out", &out],
        ),
        (
            "a.safetensors",
            &[
                "weights",
                "import",
                "FILE",
                "--model",
                "cosmoflow@32",
                "--out",
                &out,
            ],
        ),
        ("a.json", &["compare", "FILE", "FILE"]),
    ] {
        let file = text(name);
        let call: Vec<&str> = call
            .iter()
            .map(|&part| if part == "FILE" { &*file } else { part })
            .collect();
        refused(&path(name), &call);
    }
}

#[test]
fn files_beside_those_that_are_named_are_regular() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("set");
    let named = set.to_str().unwrap();
    answer(&[
        "data",
        "cosmology",
        "--out",
        named,
        "--universes",
        "4",
        "--grid",
        "32",
        "--seed",
        "1",
    ]);
    let run = folder.path().join("run.toml");
    let text = "model = \"cosmoflow@32\"\ndata = \"set\"\noutput = \"out\"\nbatch = 1\nepochs = 1\nranks = 1\n\
                strategy = \"\"\n";
    fs::write(&run, text).unwrap();
    for name in ["dataset.toml", "train.h5"] {
        let (file, kept) = (set.join(name), folder.path().join("kept"));
        fs::rename(&file, &kept).unwrap();
        refused(&file, &["data", "inspect", named]);
        refused(&file, &["train", run.to_str().unwrap(), "--no-prediction"]);
        fs::rename(&kept, &file).unwrap();
    }
    // A checkpoint whose manifest is none.
    let checkpoint = folder.path().join("checkpoint");
    fs::create_dir(&checkpoint).unwrap();
    refused(
        &checkpoint.join("manifest.json"),
        &[
            "train",
            run.to_str().unwrap(),
            "--resume",
            checkpoint.to_str().unwrap(),
        ],
    );
}

/// What a file names elsewhere is read by permission alone, and told.
#[test]
fn files_outside_of_a_folder_are_read_with_allow_external() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("set");
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../data/tests/fixtures/foreign/virtual.h5"
    );
    let call = ["data", "convert", source, "--out", out.to_str().unwrap()];
    let text = crate::command::refusal(&call);
    assert!(
        text.contains("u0.h5") && text.contains("--allow-external"),
        "{text}"
    );
    assert!(!out.exists());
    let output = partita(&[&call[..], &["--allow-external"]].concat())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    for name in ["u0.h5", "u1.h5", "as it is allowed"] {
        assert!(text.contains(name), "{name}: {text}");
    }
}
