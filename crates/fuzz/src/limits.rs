//! The limits under which an input is run: memory by the allocator, time by a thread that watches.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Memory of a worker. More is not given: the allocation fails as it does where memory is short.
const BYTES_MAX: usize = 2 << 30;
/// Processor time of one input; wall time depends on what else runs on the machine.
pub(crate) const CPU_SECONDS_MAX: u64 = 10;
/// Wall time of one input, for those that wait for something that does not come.
pub(crate) const WALL_SECONDS_MAX: u64 = 60;

static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Number of inputs that have started.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// The allocator of the fuzzer: that of the system with an upper bound on all that lives.
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

// SAFETY: every call goes to the allocator of the system with the same layout; beside it only a counter
// moves, which no allocation depends on but by being refused.
unsafe impl GlobalAlloc for LimitedMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::admits(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !Self::admits(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise; `pointer` came from the allocator of the system.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let more = size.saturating_sub(layout.size());
        if more > 0 && !Self::admits(more) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_sub(layout.size().saturating_sub(size), Ordering::Relaxed);
        // SAFETY: the caller's promise; `pointer` came from the allocator of the system.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Says that the next input starts.
pub(crate) fn start_input() {
    STARTED.fetch_add(1, Ordering::SeqCst);
}

/// Watches that no input takes longer than the limits; calls `hang` with the seconds when one does.
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

/// Processor time of this process so far; 0 where the system does not tell it, and wall time counts alone.
fn cpu_seconds() -> f64 {
    /// Of the kernel's interface, on all architectures of Linux.
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
