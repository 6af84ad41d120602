//! The system's allocator, with a line to read where it has nothing left.
//!
//! Small allocations are everywhere and cannot be handled one by one; the standard library aborts where
//! one fails, and its hook for that is unstable. So the process ends here, with the code of a failure.
//! Large ones, of arenas, packets and samples, are handled where they are made, with an error that says more.

use partita_run::allocation::{is_failure_handled, with_named_work};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as of this call.
        looked_at(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as of this call.
        looked_at(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as of this call.
        looked_at(unsafe { System.realloc(start, layout, size) }, size)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as of this call.
        unsafe { System.dealloc(start, layout) }
    }
}

fn looked_at(start: *mut u8, bytes: usize) -> *mut u8 {
    if start.is_null() && !is_failure_handled() {
        end(bytes);
    }
    start
}

/// Says what is missing and ends the process, once; nothing is allocated and nothing put in order.
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
            "partita: the system gives no more memory ({bytes} bytes were asked for{separator}{work}); give \
             this process more (`ulimit -v` shows the limit of its address space), or choose a smaller \
             model, mini-batch or number of ranks"
        );
    });
    let left = rest.len();
    let written = text.len() - left;
    let _ = std::io::stderr().write_all(&text[..written]);
    unsafe extern "C" {
        fn _exit(code: i32) -> !;
    }
    // SAFETY: a function of every C library, without conditions.
    unsafe { _exit(1) }
}
