//! The resident set, in a process of its own.

use super::MemoryBaseline;
use partita_run::Arena;
use partita_space::Bytes;
use std::env;
use std::process::Command;

/// Set in the process of a test that measures alone: other tests give memory back meanwhile.
const ALONE: &str = "PARTITA_TEST_ALONE";

#[test]
fn a_touched_arena_is_seen() {
    if env::var_os(ALONE).is_none() {
        let this = "launch::memory_baseline::tests::a_touched_arena_is_seen";
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", this]).env(ALONE, "1");
        assert!(command.status().unwrap().success());
        return;
    }
    let before = MemoryBaseline::set();
    let mut arena = Arena::new(Bytes(64 << 20));
    arena.touch();
    let peak = before.peak_above().unwrap().0;
    assert!((60 << 20..80 << 20).contains(&peak), "{peak}");
    drop(arena);
}
