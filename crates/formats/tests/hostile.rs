//! Small files that ask for much: refused by name within the budget of decoding, or read in pieces. One process, as its
//! memory is measured. With `--nocapture`: peak and time of each, as a table.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod makers;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use partita_formats::{DataError, Elements, SourceFile, decode_memory, image};
use partita_space::Bytes;

/// The budget of these tests.
const BUDGET: usize = 16 << 20;
/// Beside what is claimed: buffers of decoders, lists of files.
const SLACK: usize = 4 << 20;

/// Counts live bytes.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grow(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: as of this call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: as of this call.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        grow(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as of this call.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as of this call.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A file, how it is read, and what its error says; `None` where it is read.
struct Case {
    name: &'static str,
    file: &'static str,
    make: fn(&Path),
    read: fn(&Path) -> Result<(), DataError>,
    says: Option<&'static str>,
}

/// What an error of the budget says.
const BUDGET_SAYS: Option<&str> = Some("to decode, and the budget of decoding is 16.00 MiB");

fn picture(path: &Path) -> Result<(), DataError> {
    let read = image::read(path).map(drop);
    read.map_err(|error| error.of(path, None, None))
}

/// Reads all of the first array.
fn whole(path: &Path) -> Result<(), DataError> {
    let file = SourceFile::open(path)?;
    let array = file.array(&file.keys()[0])?;
    let ranges: Vec<(usize, usize)> = array.shape.iter().map(|&extent| (0, extent)).collect();
    array.read_box(&ranges, &mut Elements::new(&array.element))
}

/// Reads the first value along the last dim, of all rows.
fn column(path: &Path) -> Result<(), DataError> {
    let file = SourceFile::open(path)?;
    let array = file.array(&file.keys()[0])?;
    let mut ranges: Vec<(usize, usize)> = array.shape.iter().map(|&extent| (0, extent)).collect();
    *ranges.last_mut().unwrap() = (0, 1);
    let mut values = Elements::new(&array.element);
    array.read_box(&ranges, &mut values)?;
    assert_eq!((values.len(), values.get(0)), (array.shape[0], 7.0));
    Ok(())
}

const CASES: [Case; 20] = [
    Case {
        name: "JPEG, baseline, 0.7 kB that claim 20000x20000 pixels in colors",
        file: "a.jpg",
        make: makers::claiming_jpeg,
        read: picture,
        says: Some("too large"),
    },
    Case {
        name: "JPEG, baseline, 0.7 kB that claim 16000x16000 pixels",
        file: "b.jpg",
        make: makers::large_jpeg,
        read: picture,
        says: Some("ends before all of its blocks"),
    },
    Case {
        name: "JPEG, progressive, 4 kB that claim 16000x16000 pixels",
        file: "c.jpg",
        make: makers::short_progressive,
        read: picture,
        says: Some("ends before all of its blocks"),
    },
    Case {
        name: "JPEG, baseline, whole, 128 kB of 5800x5800 pixels",
        file: "d.jpg",
        make: makers::flat_jpeg,
        read: picture,
        says: BUDGET_SAYS,
    },
    Case {
        name: "JPEG, progressive, whole, 8 kB of 2048x2048 pixels",
        file: "e.jpg",
        make: makers::flat_progressive,
        read: picture,
        says: None,
    },
    Case {
        name: "JPEG, progressive, whole, 52 kB of 5120x5120 pixels",
        file: "f.jpg",
        make: makers::large_progressive,
        read: picture,
        says: BUDGET_SAYS,
    },
    Case {
        name: "PNG, 20 kB of 4400x4400 pixels",
        file: "a.png",
        make: makers::flat_png,
        read: picture,
        says: BUDGET_SAYS,
    },
    Case {
        name: "PNG, 0.1 kB that claim 32000x32000 pixels",
        file: "b.png",
        make: makers::claiming_png,
        read: picture,
        says: Some("cannot hold"),
    },
    Case {
        name: "PNG, a profile of 24 MiB in 24 kB",
        file: "c.png",
        make: makers::profile_png,
        read: picture,
        says: None,
    },
    Case {
        name: "HDF5, scale-offset, one value for 2^25, whole",
        file: "a.h5",
        make: makers::scale_offset,
        read: whole,
        says: BUDGET_SAYS,
    },
    Case {
        name: "HDF5, gzip, 24 chunks of 1 MiB, whole",
        file: "b.h5",
        make: makers::gzip_chunks,
        read: whole,
        says: BUDGET_SAYS,
    },
    Case {
        name: "HDF5, gzip, 24 chunks of 1 MiB, a value of each",
        file: "c.h5",
        make: makers::gzip_chunks,
        read: column,
        says: None,
    },
    Case {
        name: "HDF5, gzip five times, a chunk of 1 MiB",
        file: "d.h5",
        make: makers::gzip_tower,
        read: column,
        says: BUDGET_SAYS,
    },
    Case {
        name: "Zarr, gzip, a chunk of 24 MiB in 24 kB",
        file: "a.zarr",
        make: makers::zarr_gzip,
        read: column,
        says: BUDGET_SAYS,
    },
    Case {
        name: "Zarr, zstd, 64 MiB in 2 kB for a chunk of 1 kB",
        file: "b.zarr",
        make: makers::zarr_zstd,
        read: column,
        says: Some("has 1089 bytes, not 1024"),
    },
    Case {
        name: "Zarr, blosc, 512 MiB for a chunk of 1 kB",
        file: "c.zarr",
        make: makers::zarr_blosc,
        read: column,
        says: Some("a chunk has 1088 at most"),
    },
    Case {
        name: "Zarr, a chunk of 1 kB in a file of 1 TiB",
        file: "d.zarr",
        make: makers::zarr_sparse,
        read: column,
        says: Some("are stored, and a chunk has"),
    },
    Case {
        name: "TFRecord, gzip, a record of 24 MiB in 24 kB",
        file: "a.tfrecord.gz",
        make: makers::tfrecord,
        read: whole,
        says: BUDGET_SAYS,
    },
    Case {
        name: "NIfTI, gzip, 24 MiB in 24 kB",
        file: "a.nii.gz",
        make: makers::nifti,
        read: whole,
        says: BUDGET_SAYS,
    },
    Case {
        name: "NPY, a file of 1 TiB without contents",
        file: "a.npy",
        make: makers::sparse_npy,
        read: whole,
        says: BUDGET_SAYS,
    },
];

#[test]
fn small_files_take_no_more_than_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    decode_memory::set_limit(Some(Bytes(BUDGET as u64)));
    for case in &CASES {
        let path = folder.path().join(case.file);
        (case.make)(&path);
        let before = LIVE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let start = Instant::now();
        let read = (case.read)(&path);
        let seconds = start.elapsed().as_secs_f64();
        let peak = PEAK.load(Ordering::Relaxed) - before;
        let name = case.name;
        println!(
            "| {name} | {} | {:.1} MiB | {seconds:.2} s |",
            if read.is_ok() { "read" } else { "refused" },
            peak as f64 / (1 << 20) as f64
        );
        match (read, case.says) {
            (Ok(()), None) => {}
            (Err(error), Some(says)) => {
                let text = error.to_string();
                assert!(text.contains(says), "{name}: {text}");
                assert!(text.contains(case.file), "{name}: {text}");
                if case.says == BUDGET_SAYS {
                    assert!(text.contains("\nhelp: "), "{name}: {text}");
                    assert!(text.contains("--decode-memory"), "{name}: {text}");
                }
            }
            (Ok(()), Some(_)) => panic!("{name} was read"),
            (Err(error), None) => panic!("{name}: {error}"),
        }
        assert!(peak <= BUDGET + SLACK, "{name}: {peak} bytes");
        assert!(seconds < 20.0, "{name}: {seconds} s");
        assert_eq!(decode_memory::limit(), Bytes(BUDGET as u64));
    }
    // Nothing stays claimed.
    drop(decode_memory::claim(BUDGET as u64).unwrap());
}
