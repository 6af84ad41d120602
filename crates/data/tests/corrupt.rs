//! Headers with numbers of any size are answered with an error that names the file, never with a panic or
//! an allocation of what they name.

mod made;

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::fs;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use made::{Random, fixture, whole};
use partita_data::{DataError, Dataset, Samples, Split};

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

fn read_all(path: &Path) -> Result<(), DataError> {
    let dataset = Dataset::open(path)?;
    let mut reader = dataset.reader(Split::Train);
    let mut out = Samples::new(dataset.dtype());
    for n in 0..reader.samples() {
        reader.read_volume(n, whole(dataset.shape()), &mut out)?;
        reader.read_target(n)?;
    }
    Ok(())
}

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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("corrupt.h5");
    let mut random = Random(20_260);
    let long = std::env::var("PARTITA_TEST_LONG").is_ok();
    let rounds = if long { 20_000 } else { 200 };
    for name in [
        "contiguous_int16.h5",
        "big_endian_int16.h5",
        "chunked_int16.h5",
        "gzip_shuffle_float32.h5",
        "latest_contiguous_int16.h5",
        "latest_gzip_shuffle_int16.h5",
        "float64.h5",
    ] {
        let bytes = fs::read(fixture(name)).unwrap();
        for round in 0..rounds {
            let mut corrupt = bytes.clone();
            damage(&mut corrupt, &mut random);
            fs::write(&path, &corrupt).unwrap();
            LARGEST.store(0, Ordering::Relaxed);
            let outcome = catch_unwind(|| read_all(&path).map_err(|error| error.to_string()));
            let Ok(answer) = outcome else {
                panic!("{name}, round {round}: a panic");
            };
            if let Err(text) = answer {
                assert!(text.contains("corrupt.h5"), "{name}, round {round}: {text}");
            }
            let largest = LARGEST.load(Ordering::Relaxed);
            assert!(
                largest < ALLOCATION_MAX,
                "{name}, round {round}: {largest} bytes at once"
            );
        }
    }
}
