//! Headers with numbers of any size are answered with an error that names the file, never with a panic or
//! an allocation of what they name.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]

mod made;

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use made::{Random, read_damaged};

/// The fixtures have some kilobytes; what is decompressed at once has less than this.
const ALLOCATION_MAX: usize = 64 << 20;

/// Remembers the largest allocation.
struct Largest;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        LARGEST.fetch_max(memory.size(), Ordering::Relaxed);
        // SAFETY: as of this call.
        unsafe { System.alloc(memory) }
    }

    unsafe fn alloc_zeroed(&self, memory: Memory) -> *mut u8 {
        LARGEST.fetch_max(memory.size(), Ordering::Relaxed);
        // SAFETY: as of this call.
        unsafe { System.alloc_zeroed(memory) }
    }

    unsafe fn realloc(&self, start: *mut u8, memory: Memory, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as of this call.
        unsafe { System.realloc(start, memory, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, memory: Memory) {
        // SAFETY: as of this call.
        unsafe { System.dealloc(start, memory) }
    }
}

#[global_allocator]
static ALLOCATOR: Largest = Largest;

/// Overwrites a few bytes, mostly of the headers.
fn damage(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let range = if random.below(4) > 0 { 1200 } else { 4096 };
        let at = random.below(bytes.len().min(range));
        let length = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
        let fill = [0x00, 0x01, 0x20, 0x7f, 0x80, 0xff][random.below(6)];
        match random.below(3) {
            0 => bytes[at..at + length].fill(fill),
            // The most significant byte of a number.
            1 => bytes[at + length - 1] = fill,
            _ => bytes[at] = random.below(256) as u8,
        }
    }
}

#[test]
fn corrupt_headers_are_refused() {
    let mut random = Random(20_260);
    let long = std::env::var("PARTITA_TEST_LONG").is_ok();
    let rounds = if long { 20_000 } else { 200 };
    let names = [
        "contiguous_int16.h5",
        "big_endian_int16.h5",
        "chunked_int16.h5",
        "gzip_shuffle_float32.h5",
        "latest_contiguous_int16.h5",
        "latest_gzip_shuffle_int16.h5",
        "float64.h5",
    ];
    let damage = |bytes: &mut [u8]| {
        damage(bytes, &mut random);
        LARGEST.store(0, Ordering::Relaxed);
    };
    read_damaged(&names, rounds, damage, |case| {
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(largest < ALLOCATION_MAX, "{case}: {largest} bytes at once");
    });
}
