//! A slab read takes from the file the slab and no more (Linux counts what a thread reads).
#![cfg(target_os = "linux")]

mod made;

use std::fs;

use made::{physical, spec, target, volume};
use partita_data::{DType, DatasetWriter, Layout, Samples, Split, VolumeShape};

/// Bytes this thread has read by system calls so far.
fn read_so_far() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/io").expect("Linux counts reads");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("rchar: "))
        .expect("a count");
    line.parse().expect("a number")
}

#[test]
fn a_slab_of_a_large_sample_reads_what_is_tallied_and_no_more() {
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
        let spec = spec(SHAPE, DType::Int16, layout.clone());
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

        let depth = [0..4, 16..32, 0..48, 0..48];
        let height = [0..4, 0..64, 12..24, 0..48];
        let width = [0..4, 16..32, 8..40, 12..24];
        for region in [depth, height, width] {
            let tallied = reader.tally();
            let before = read_so_far();
            reader.read_volume(2, region.clone(), &mut out).unwrap();
            let read = read_so_far() - before;
            assert_eq!(out, volume(2, SHAPE, DType::Int16).slice(SHAPE, &region));
            let requested = reader.tally().volume_bytes.0 - tallied.volume_bytes.0;
            let file = reader.tally().file_bytes.0 - tallied.file_bytes.0;
            assert_eq!(requested, 2 * out.len() as u64);
            let whole_rows = requested / region[3].len() as u64 * 48;
            match layout {
                Layout::Contiguous => assert_eq!(file, whole_rows),
                Layout::Chunked { .. } => {
                    assert_eq!(file, 4 * region[1].len() as u64 / 8 * (8 * 48 * 48 * 2));
                }
            }
            assert!(
                read >= requested,
                "{read} bytes counted for {requested}: wrong counter"
            );
            assert!(
                read <= file + OVERHEAD_MAX + slack,
                "{read} bytes read, {file} tallied"
            );
        }
        fs::remove_dir_all(&path).unwrap();
    }
}
