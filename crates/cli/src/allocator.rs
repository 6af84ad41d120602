//! The system's allocator, with a message when out of memory.
//!
//! Small allocations cannot be handled one by one; the standard library aborts when one fails, and its hook
//! for that is unstable. So the process ends here, with the exit code of a failure. Large allocations, of
//! arenas, packets and samples, are handled by their callers, with a more specific error.

use partita_run::allocation::{is_failure_handled, with_named_work};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the same.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the same.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract is the same.
        checked(unsafe { System.realloc(start, layout, size) }, size)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(start, layout) }
    }
}

fn checked(start: *mut u8, bytes: usize) -> *mut u8 {
    if start.is_null() && !is_failure_handled() {
        end(bytes);
    }
    start
}

/// Prints a message and ends the process, without allocating and without cleanup.
#[cold]
fn end(bytes: usize) {
    static IS_ENDING: AtomicBool = AtomicBool::new(false);
    if IS_ENDING.swap(true, Ordering::Relaxed) {
        return;
    }
    let mut text = [0; 512];
    let mut rest = &mut text[..];
    with_named_work(|work| {
        let separator = if work.is_empty() { "" } else { " while " };
        let _ = writeln!(
            rest,
            "partita: out of memory ({bytes} bytes were requested{separator}{work}); give this process more \
             (`ulimit -v` shows the limit of its address space), or choose a smaller model, mini-batch or \
             number of ranks"
        );
    });
    let left = rest.len();
    let written = text.len() - left;
    let _ = std::io::stderr().write_all(&text[..written]);
    unsafe extern "C" {
        fn _exit(code: i32) -> !;
    }
    // SAFETY: `_exit` of POSIX has no preconditions.
    unsafe { _exit(1) }
}
