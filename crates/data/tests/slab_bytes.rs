//! A slab read takes from the file the slab and no more (Linux counts what a thread reads).
#![cfg(target_os = "linux")]

mod common;

use std::fs;

use common::{physical, spec, target, volume};
use partita_data::{DType, DatasetWriter, Layout, Samples, Split, VolumeShape};

/// Bytes this thread has read by system calls so far.
fn read_so_far() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("rchar: "))
        .unwrap();
    line.parse().unwrap()
}

#[test]
fn a_depth_slab_of_a_large_sample_reads_its_own_bytes_only() {
    const SHAPE: VolumeShape = [4, 64, 48, 48];
    // Header reads and this test's own reading of its counter.
    const OVERHEAD_MAX: u64 = 8 * 1024;
    let folder = tempfile::tempdir().unwrap();
    for (layout, slack) in [
        (Layout::Contiguous, 0),
        (
            Layout::Chunked {
                chunk: [1, 8, 48, 48],
                deflate: None,
                shuffle: false,
            },
            64 * 1024,
        ),
    ] {
        let path = folder.path().join("set");
        let spec = spec(SHAPE, DType::Int16, layout);
        let mut writer = DatasetWriter::create(&path, &spec).unwrap();
        for (split, samples) in [(Split::Train, 4), (Split::Validation, 1), (Split::Test, 2)] {
            for n in 0..samples {
                let volume = volume(n, SHAPE, DType::Int16);
                writer
                    .append(split, &volume, &target(n), &physical(n))
                    .unwrap();
            }
        }
        let dataset = writer.finish().unwrap();
        let mut reader = dataset.reader(Split::Train);
        let mut out = Samples::new(DType::Int16);
        reader
            .read_volume(0, [0..1, 0..1, 0..1, 0..1], &mut out)
            .unwrap();

        let region = [0..4, 16..32, 0..48, 0..48];
        let tallied = reader.tally().volume_bytes.0;
        let before = read_so_far();
        reader.read_volume(2, region.clone(), &mut out).unwrap();
        let read = read_so_far() - before;
        let requested = reader.tally().volume_bytes.0 - tallied;
        assert_eq!(requested, 4 * 16 * 48 * 48 * 2);
        assert_eq!(out, volume(2, SHAPE, DType::Int16).slice(SHAPE, &region));
        assert!(
            read >= requested,
            "{read} bytes counted for {requested}: the counter is wrong"
        );
        assert!(
            read <= requested + OVERHEAD_MAX + slack,
            "{read} bytes read for {requested}"
        );
        fs::remove_dir_all(&path).unwrap();
    }
}
