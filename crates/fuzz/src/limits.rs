//! Limits of an input: memory by the allocator, time by a watchdog thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Memory limit of a worker; allocations beyond it fail.
const BYTES_MAX: usize = 2 << 30;
/// CPU time limit of one input; wall time depends on the load of the machine.
pub(crate) const CPU_SECONDS_MAX: u64 = 10;
/// Wall time limit of one input, for inputs that wait forever.
pub(crate) const WALL_SECONDS_MAX: u64 = 60;

static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Number of inputs that have started.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// The allocator of the fuzzer: the system's with an upper bound on live memory.
pub struct LimitedMemory;

impl LimitedMemory {
    fn admits(bytes: usize) -> bool {
        let before = LIVE.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) <= BYTES_MAX {
            return true;
        }
        LIVE.fetch_sub(bytes, Ordering::Relaxed);
        false
    }
}

// SAFETY: every call is forwarded to the system's allocator with the same layout, or refused by the counter.
unsafe impl GlobalAlloc for LimitedMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::admits(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !Self::admits(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: guaranteed by the caller; `pointer` came from the allocator of the system.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let more = size.saturating_sub(layout.size());
        if more > 0 && !Self::admits(more) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_sub(layout.size().saturating_sub(size), Ordering::Relaxed);
        // SAFETY: guaranteed by the caller; `pointer` came from the allocator of the system.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Marks the start of the next input.
pub(crate) fn start_input() {
    STARTED.fetch_add(1, Ordering::SeqCst);
}

/// Calls `hang` with the seconds when an input exceeds a time limit.
pub(crate) fn watch(hang: impl Fn(f64) + Send + 'static) {
    std::thread::spawn(move || {
        let (mut input, mut wall, mut cpu) = (0, 0.0, 0.0);
        loop {
            let now = STARTED.load(Ordering::SeqCst);
            if now != input {
                (input, wall, cpu) = (now, 0.0, cpu_seconds());
            }
            let spent = cpu_seconds() - cpu;
            if now > 0 && (spent > CPU_SECONDS_MAX as f64 || wall > WALL_SECONDS_MAX as f64) {
                hang(spent.max(wall));
                return;
            }
            std::thread::sleep(Duration::from_millis(250));
            wall += 0.25;
        }
    });
}

/// Processor time of this process so far; 0 where the system does not emit it, and wall time counts alone.
fn cpu_seconds() -> f64 {
    /// Clock ticks per second of `/proc`, on all architectures of Linux.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the name in parentheses and may hold blanks; user and system time are the
    // fourteenth and fifteenth.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks
        .filter_map(|field| field.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS_PER_SECOND
}
