//! Resident memory of this process.

use partita_space::Bytes;
use std::fs;

/// How [`MemoryBaseline::peak_above`] measures, for reports.
pub const PEAK_METHOD: &str = "largest resident set of the process until the last step (VmHWM of \
                          /proc/self/status, reset before the arenas were made) less the resident \
                          set before (VmRSS, after freed memory went back to the system) and the \
                          pages of files, like the program itself, that came since (RssFile); every \
                          page of the arenas was touched; stacks and small allocations of threads, \
                          and what an MPI library holds for itself, come on top of what is \
                          predicted";

/// The resident set of this process before the arenas are allocated.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBaseline {
    resident: Option<Bytes>,
    /// The part of it that files back: code, which comes into memory where it first runs.
    of_files: Option<Bytes>,
}

impl MemoryBaseline {
    /// The current resident set. Returns freed memory to the system first, so that later allocations are seen,
    /// and resets the peak.
    pub fn set() -> Self {
        give_back_freed();
        // If the system refuses, the earlier peak counts too.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Self {
            resident: status("VmRSS"),
            of_files: status("RssFile"),
        }
    }

    /// Peak resident set above the baseline, without pages of files that came since; `None` if unknown.
    pub fn peak_above(self) -> Option<Bytes> {
        let above = status("VmHWM")?.0.saturating_sub(self.resident?.0);
        let of_files = match (status("RssFile"), self.of_files) {
            (Some(now), Some(before)) => now.0.saturating_sub(before.0),
            (None, _) | (_, None) => 0,
        };
        Some(Bytes(above.saturating_sub(of_files)))
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_back_freed() {
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
    // SAFETY: it only releases free memory.
    unsafe { malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back_freed() {}

fn status(key: &str) -> Option<Bytes> {
    let text = partita_files::read_text("/proc/self/status").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes * 1024))
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
