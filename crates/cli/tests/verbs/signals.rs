//! Signals that ask for an end: they are heard, unless the process was started to ignore them.

use crate::trainee::{Case, Trainee};

/// Starts a training from a shell that ignores these signals, sends one, and gives the exit code.
fn code_after(signal: &str, ignored: &str, epochs: usize) -> (Option<i32>, Vec<String>) {
    let case = Case::new();
    case.run_file("run.toml", epochs, "");
    let trap = match ignored {
        "" => String::new(),
        ignored => format!("trap '' {ignored}; "),
    };
    let script = format!("{trap}exec \"$0\" train run.toml --no-prediction");
    let trainee = Trainee::of_shell(&case, &script);
    trainee.while_stopped(|| trainee.signal(signal));
    let (status, said) = trainee.end();
    assert!(status.code().is_some(), "{signal}: {status}: {said}");
    (status.code(), case.files())
}

#[test]
fn signals_that_are_inherited_as_ignored_stay_so() {
    // As nohup ignores SIGHUP, a shell SIGINT for what it starts in the background, and a job script what it traps.
    for signal in ["HUP", "INT", "USR1"] {
        let (code, files) = code_after(signal, signal, 120);
        assert_eq!(code, Some(0), "{signal}");
        let expected = [
            "checkpoints",
            "loss.png",
            "loss.svg",
            "result.json",
            "trace.json",
            "weights.safetensors",
        ];
        assert_eq!(files, expected, "{signal}");
    }
}

#[test]
fn folders_that_a_run_made_go_with_it_and_no_others() {
    let case = Case::new();
    let text = std::fs::read_to_string(case.run_file("run.toml", 1_000_000, "")).unwrap();
    let text = text + "[checkpoint]\nkeep = 0\n";
    std::fs::create_dir(case.path("mine")).unwrap();
    for (output, gone) in [("runs/deep/out", "runs"), ("mine/deep/out", "mine/deep")] {
        let text = text.replace("\"out\"", &format!("\"{output}\""));
        std::fs::write(case.path("run.toml"), text).unwrap();
        let trainee = Trainee::start(&mut case.command("run.toml"));
        assert!(case.path(output).is_dir());
        trainee.signal("TERM");
        let (status, said) = trainee.end();
        assert_eq!(status.code(), Some(130), "{said}");
        assert!(!case.path(gone).exists(), "{gone} is left");
    }
    assert!(case.path("mine").is_dir());
}

#[test]
fn signals_that_are_not_ignored_end_a_run_in_order() {
    for (signal, ignored) in [
        ("HUP", ""),
        ("INT", ""),
        ("TERM", "HUP INT"),
        ("INT", "HUP"),
        ("USR1", ""),
        ("USR2", "USR1"),
    ] {
        let (code, files) = code_after(signal, ignored, 1_000_000);
        assert_eq!(code, Some(130), "{signal}, ignored {ignored}");
        assert_eq!(files, ["checkpoints", "loss.png", "loss.svg"], "{signal}");
    }
}
