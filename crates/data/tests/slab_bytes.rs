//! A slab read takes from the file the slab and no more (Linux counts what a thread reads).
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::io::Write;
use std::path::Path;

use made::{npy, physical, spec, target, volume};
use partita_data::{Dataset, DatasetWriter, Split};
use partita_formats::{DType, Layout, Samples, VolumeShape};

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

const SHAPE: VolumeShape = [4, 64, 48, 48];
const CHUNK: VolumeShape = [1, 8, 48, 48];
/// Chunks of a shard along D.
const SHARD_CHUNKS: usize = 4;

fn bytes_of(samples: &Samples) -> Vec<u8> {
    let Samples::I16(values) = samples else {
        panic!("whole numbers");
    };
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// NIfTI-1, of which X varies fastest.
///
/// Source: nifti1.h: `dim` at byte 40, `datatype` at 70, `vox_offset` at 108, the magic word at 344.
fn nifti(values: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 352];
    header[..4].copy_from_slice(&348i32.to_le_bytes());
    let [c, d, h, w] = SHAPE;
    for (at, extent) in [4, w, h, d, c, 1, 1, 1].into_iter().enumerate() {
        header[40 + 2 * at..42 + 2 * at].copy_from_slice(&(extent as i16).to_le_bytes());
    }
    header[70..72].copy_from_slice(&4i16.to_le_bytes());
    header[72..74].copy_from_slice(&16i16.to_le_bytes());
    header[108..112].copy_from_slice(&352f32.to_le_bytes());
    header[344..348].copy_from_slice(b"n+1\0");
    header.extend(values);
    header
}

fn chunk_of(whole: &Samples, c: usize, slab: usize) -> Vec<u8> {
    let depth = CHUNK[1];
    bytes_of(&whole.slice(
        SHAPE,
        &[c..c + 1, slab * depth..(slab + 1) * depth, 0..48, 0..48],
    ))
}

fn zarr(path: &Path, whole: &Samples) {
    fs::create_dir_all(path).unwrap();
    let text = format!(
        "{{\"shape\": {SHAPE:?}, \"chunks\": {CHUNK:?}, \"dtype\": \"<i2\", \"compressor\": null, \
         \"fill_value\": 0, \"order\": \"C\", \"filters\": null, \"zarr_format\": 2}}"
    );
    fs::write(path.join(".zarray"), text).unwrap();
    for c in 0..SHAPE[0] {
        for slab in 0..SHAPE[1] / CHUNK[1] {
            fs::write(
                path.join(format!("{c}.{slab}.0.0")),
                chunk_of(whole, c, slab),
            )
            .unwrap();
        }
    }
}

/// Shards of several chunks along D, with an index at the end.
fn sharded(path: &Path, whole: &Samples) {
    let [c, d, h, w] = CHUNK;
    let shard = [c, d * SHARD_CHUNKS, h, w];
    let text = format!(
        "{{\"zarr_format\": 3, \"node_type\": \"array\", \"shape\": {SHAPE:?}, \"data_type\": \"int16\", \
         \"fill_value\": 0, \"chunk_grid\": {{\"name\": \"regular\", \"configuration\": {{\"chunk_shape\": \
         {shard:?}}}}}, \"chunk_key_encoding\": {{\"name\": \"default\"}}, \"codecs\": [{{\"name\": \
         \"sharding_indexed\", \"configuration\": {{\"chunk_shape\": {CHUNK:?}, \"codecs\": [{{\"name\": \
         \"bytes\"}}], \"index_codecs\": [{{\"name\": \"bytes\"}}]}}}}]}}"
    );
    fs::create_dir_all(path).unwrap();
    fs::write(path.join("zarr.json"), text).unwrap();
    for c in 0..SHAPE[0] {
        for number in 0..SHAPE[1] / shard[1] {
            let slabs = number * SHARD_CHUNKS..(number + 1) * SHARD_CHUNKS;
            let bytes = indexed(slabs.map(|slab| chunk_of(whole, c, slab)));
            let folder = path.join(format!("c/{c}/{number}/0"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("0"), bytes).unwrap();
        }
    }
}

/// Shards of two shards of two chunks each along D, with their indices at the end.
fn nested(path: &Path, whole: &Samples) {
    let [c, d, h, w] = CHUNK;
    let (shard, inner) = ([c, 4 * d, h, w], [c, 2 * d, h, w]);
    let codec = |chunk: [usize; 4], codecs: &str| {
        format!(
            "[{{\"name\": \"sharding_indexed\", \"configuration\": {{\"chunk_shape\": {chunk:?}, \
             \"codecs\": {codecs}, \"index_codecs\": [{{\"name\": \"bytes\"}}]}}}}]"
        )
    };
    let codecs = codec(inner, &codec(CHUNK, "[{\"name\": \"bytes\"}]"));
    let text = format!(
        "{{\"zarr_format\": 3, \"node_type\": \"array\", \"shape\": {SHAPE:?}, \"data_type\": \"int16\", \
         \"fill_value\": 0, \"chunk_grid\": {{\"name\": \"regular\", \"configuration\": {{\"chunk_shape\": \
         {shard:?}}}}}, \"chunk_key_encoding\": {{\"name\": \"default\"}}, \"codecs\": {codecs}}}"
    );
    fs::create_dir_all(path).unwrap();
    fs::write(path.join("zarr.json"), text).unwrap();
    for c in 0..SHAPE[0] {
        for number in 0..SHAPE[1] / shard[1] {
            let inner = |number: usize| {
                let slabs = 2 * number..2 * number + 2;
                indexed(slabs.map(|slab| chunk_of(whole, c, slab)))
            };
            let bytes = indexed((2 * number..2 * number + 2).map(inner));
            let folder = path.join(format!("c/{c}/{number}/0"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("0"), bytes).unwrap();
        }
    }
}

/// Chunks, and the index behind them.
fn indexed(chunks: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let (mut bytes, mut index) = (Vec::new(), Vec::new());
    for chunk in chunks {
        index.extend((bytes.len() as u64).to_le_bytes());
        index.extend((chunk.len() as u64).to_le_bytes());
        bytes.extend(chunk);
    }
    [bytes, index].concat()
}

/// The same sample in each format, and its target.
fn write_files(folder: &Path, whole: &Samples) {
    let values = bytes_of(whole);
    fs::write(folder.join("full.npy"), npy(&SHAPE, "<i2", &values)).unwrap();
    fs::write(folder.join("full.nii"), nifti(&values)).unwrap();
    let mut archive = zip::ZipWriter::new(fs::File::create(folder.join("full.npz")).unwrap());
    let options = zip::write::SimpleFileOptions::default();
    let options = options.compression_method(zip::CompressionMethod::Stored);
    archive.start_file("full.npy", options).unwrap();
    archive.write_all(&npy(&SHAPE, "<i2", &values)).unwrap();
    archive.finish().unwrap();
    zarr(&folder.join("full.zarr"), whole);
    sharded(&folder.join("sharded.zarr"), whole);
    nested(&folder.join("nested.zarr"), whole);
    fs::write(folder.join("y.npy"), npy(&[1], "<f4", &1f32.to_le_bytes())).unwrap();
}

/// NPY, stored NPZ, NIfTI and Zarr: what of a file is read is the slab, or the chunks that it touches.
#[test]
fn a_slab_of_other_formats_reads_no_more_either() {
    // Rows of a page are read over; the index of a shard; this test's own reading of its counter.
    const OVERHEAD_MAX: u64 = 8 * 1024;
    let folder = tempfile::tempdir().unwrap();
    let whole = volume(1, SHAPE, DType::Int16);
    write_files(folder.path(), &whole);
    for name in [
        "full.npy",
        "full.nii",
        "full.npz",
        "full.zarr",
        "sharded.zarr",
        "nested.zarr",
    ] {
        let text = format!(
            "format = 1\nkind = \"other\"\nsamples = 1\nchannels = 4\nextent = [64, 48, 48]\ndtype = \"int16\"\n\
             targets = [\"a\"]\n[train]\nfiles = [\"{name}\"]\ntarget_files = [\"y.npy\"]\nuniverses = [0]\n"
        );
        fs::write(folder.path().join("dataset.toml"), text).unwrap();
        let mut reader = Dataset::open(folder.path()).unwrap().reader(Split::Train);
        let mut out = Samples::new(DType::Int16);
        reader
            .read_volume(0, [0..1, 0..1, 0..1, 0..1], &mut out)
            .unwrap();
        let depth = [0..4, 16..32, 0..48, 0..48];
        let odd = [1..3, 30..37, 0..48, 0..48];
        let height = [0..4, 0..64, 12..24, 0..48];
        for region in [depth, odd, height] {
            let tallied = reader.tally();
            let before = read_so_far();
            reader.read_volume(0, region.clone(), &mut out).unwrap();
            let read = read_so_far() - before;
            assert_eq!(out, whole.slice(SHAPE, &region), "{name}");
            let tally = reader.tally();
            let requested = tally.volume_bytes.0 - tallied.volume_bytes.0;
            let file = tally.file_bytes.0 - tallied.file_bytes.0;
            if name.ends_with("zarr") {
                let slabs = region[1].end.div_ceil(8) - region[1].start / 8;
                assert_eq!(
                    file,
                    (region[0].len() * slabs * 8 * 48 * 48 * 2) as u64,
                    "{name}"
                );
            } else {
                assert_eq!(file, requested, "{name}");
            }
            assert!(
                read >= file,
                "{name}: {read} bytes counted for {file}: wrong counter"
            );
            assert!(
                read <= file + OVERHEAD_MAX,
                "{name}: {read} bytes read, {file} tallied"
            );
        }
    }
}
