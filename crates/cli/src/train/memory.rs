//! What the system says about the memory of this process.

use partita_space::Bytes;
use std::fs;

/// How [`peak_above`] measures, for reports.
pub const METHOD: &str = "largest resident set of the process (VmHWM of /proc/self/status, reset \
                          before the arenas were made) less the resident set before (VmRSS); every \
                          page of the arenas was touched; messages under way and the buffers of \
                          readers come on top of the arenas";

/// Resident set of this process now, its largest value forgotten; none where the system tells nothing.
pub fn mark() -> Option<Bytes> {
    // Where the system refuses, the peak so far counts too, which the method names.
    let _ = fs::write("/proc/self/clear_refs", "5");
    status("VmRSS")
}

/// Largest resident set above what it was at the mark.
pub fn peak_above(mark: Option<Bytes>) -> Option<Bytes> {
    Some(Bytes(status("VmHWM")?.0.saturating_sub(mark?.0)))
}

fn status(key: &str) -> Option<Bytes> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes * 1024))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{mark, peak_above};
    use partita_run::Arena;
    use partita_space::Bytes;

    #[test]
    fn a_touched_arena_is_seen() {
        let before = mark();
        let mut arena = Arena::new(Bytes(64 << 20));
        arena.touch();
        let peak = peak_above(before).unwrap().0;
        assert!(peak >= 60 << 20, "{peak}");
        drop(arena);
    }
}
