//! The binary as tests call it.

use serde_json::Value;
use std::process::{Command, Output};

/// `partita` with these arguments, in the folder of the tests and without machines of the user. Tests run side by side, so
/// it locks no cores.
pub fn partita(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partita"));
    command.args(arguments).env_remove("PARTITA_MACHINES");
    command.env_remove("PARTITA_SOFTWARE");
    command.env("PARTITA_CORE_LOCKS", "off");
    listening(&mut command);
    command
}

/// Whoever runs the tests may ignore signals, as a shell does for what it starts in the background; a
/// command that is to be signalled must not inherit that.
#[cfg(unix)]
pub fn listening(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    let listen = || {
        for signal in [
            libc::SIGINT,
            libc::SIGHUP,
            libc::SIGTERM,
            libc::SIGUSR1,
            libc::SIGUSR2,
        ] {
            // SAFETY: `signal` may be called between fork and exec.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: what is called neither allocates nor takes locks.
    unsafe { command.pre_exec(listen) };
}

#[cfg(not(unix))]
pub fn listening(_: &mut Command) {}

/// Standard output of a call that must succeed.
pub fn answer(arguments: &[&str]) -> String {
    let output = partita(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        error_text(&output)
    );
    assert_eq!(error_text(&output), "", "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The JSON that a call prints.
pub fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&answer(arguments)).unwrap()
}

/// What a call with a user's error says: exit code 2, nothing on standard output, one paragraph.
pub fn refusal(arguments: &[&str]) -> String {
    let output = partita(arguments).output().unwrap();
    let text = error_text(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
    assert!(
        output.stdout.is_empty(),
        "{arguments:?} prints before it refuses"
    );
    assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    assert!(!text.trim_end().contains("\n\n\n"), "{arguments:?}: {text}");
    text
}

/// Standard error without lines of the status, which a slow machine prints and a fast one does not.
pub fn error_text(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    let lines = text.split_inclusive('\n');
    let is_status =
        |line: &&str| line.starts_with("partita: ") && line.trim_end().ends_with(" ...");
    lines.filter(|line| !is_status(line)).collect()
}

/// Asserts that an object has these keys, in this order at its start.
pub fn assert_keys(value: &Value, keys: &[&str]) {
    let object = value.as_object().unwrap();
    for key in keys {
        assert!(
            object.contains_key(*key),
            "no `{key}` in {:?}",
            object.keys()
        );
    }
}
