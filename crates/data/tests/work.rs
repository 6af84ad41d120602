//! Small files that claim much work: they are refused, or take time in proportion to their size.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::made::conversion;
use partita_data::{Conversion, Dataset, Inspected, Keys, Split, ValueScope, inspect_path};
use partita_formats::{DType, Samples};
use rust_hdf5::H5File;

/// What a debug build on a busy machine may take for work that is linear.
const SECONDS_MAX: u64 = 20;
/// Arrays of a file; looking for each among all would take minutes.
const ARRAYS: usize = 10_000;

#[track_caller]
fn quickly<T>(work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    let taken = begun.elapsed();
    assert!(taken < Duration::from_secs(SECONDS_MAX), "{taken:?}");
    println!("{taken:?}");
    done
}

fn zarr(folder: &Path, shape: &str, chunks: &str) -> PathBuf {
    let store = folder.join("s.zarr");
    fs::create_dir_all(&store).unwrap();
    let header = format!(
        r#"{{"zarr_format":2,"shape":{shape},"chunks":{chunks},"dtype":"|u1","compressor":null,"fill_value":0,"order":"C","filters":null}}"#
    );
    fs::write(store.join(".zarray"), header).unwrap();
    store
}

/// An NPY file of bytes.
fn npy(shape: &str, values: &[u8]) -> Vec<u8> {
    let head = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n");
    let length = (head.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], head.as_bytes(), values].concat()
}

fn inspect(path: &Path) -> Result<Inspected, String> {
    let inspected = quickly(|| inspect_path(path, ValueScope::First));
    inspected.map_err(|error| error.to_string())
}

#[track_caller]
fn refused<T>(answer: Result<T, String>, part: &str) {
    let error = answer.err().expect("it is refused");
    assert!(error.contains(part), "{part}: {error}");
}

#[test]
fn a_grid_of_chunks_has_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    for (shape, chunks) in [
        ("[1000000000000]", "[1]"),
        ("[4096, 4096, 4096]", "[1, 1, 1]"),
        ("[1, 1, 2048, 2048, 2048]", "[1, 1, 1, 1, 1]"),
        ("[4194304]", "[1]"),
    ] {
        let store = zarr(folder.path(), shape, chunks);
        refused(inspect(&store), "more than 2097152");
    }
    let store = zarr(folder.path(), "[100, 100]", "[1, 1]");
    inspect(&store).unwrap();
}

#[test]
fn arrays_that_were_never_written_are_not_all_read() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.zarr");
    for number in 0..1000 {
        let store = zarr(folder.path(), "[30000, 30000]", "[10000, 30000]");
        fs::create_dir_all(&root).unwrap();
        fs::rename(store, root.join(format!("a{number}"))).unwrap();
    }
    fs::write(root.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    refused(inspect(&root), "claims far more values than its");
}

#[test]
fn samples_of_a_file_have_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let store = zarr(
        folder.path(),
        "[1000000000, 1, 1, 1, 1]",
        "[1000000, 1, 1, 1, 1]",
    );
    let found = quickly(|| {
        let spec = conversion(vec![store.clone()], folder.path().join("set"));
        Conversion::find(&spec).map_err(|error| error.to_string())
    });
    refused(found.map(|_| ()), "claims 1000000000 samples");
    let opened = quickly(|| Dataset::open_samples(&store).map_err(|error| error.to_string()));
    refused(opened, "claims 1000000000 samples");
}

/// Each array was looked for among all, in the file and in its list of names.
#[test]
fn many_arrays_of_a_file_take_linear_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.h5");
    let file = H5File::create(&path).unwrap();
    for number in 0..ARRAYS {
        let array = file.new_dataset::<u8>().shape([1]);
        let array = array.create(&format!("a{number}")).unwrap();
        array.write_raw(&[1u8]).unwrap();
    }
    file.close().unwrap();
    match inspect(&path).unwrap() {
        Inspected::File(file) => assert_eq!(file.arrays.len(), ARRAYS),
        Inspected::Dataset(_) => panic!("it has no samples"),
    }

    let path = folder.path().join("many.npz");
    let mut archive = zip::ZipWriter::new(fs::File::create(&path).unwrap());
    let npy = npy("()", b".");
    for number in 0..ARRAYS {
        let options = zip::write::SimpleFileOptions::default();
        archive
            .start_file(format!("a{number}.npy"), options)
            .unwrap();
        std::io::Write::write_all(&mut archive, &npy).unwrap();
    }
    archive.finish().unwrap();
    match inspect(&path).unwrap() {
        Inspected::File(file) => assert_eq!(file.arrays.len(), ARRAYS),
        Inspected::Dataset(_) => panic!("it has no samples"),
    }
}

/// Samples of one chunk or one stream are read one after the other without decoding it again for each.
#[test]
fn samples_of_one_chunk_take_linear_time() {
    let folder = tempfile::tempdir().unwrap();
    let samples = 20_000;
    let store = zarr(
        folder.path(),
        "[20000, 1, 1, 1, 100]",
        "[20000, 1, 1, 1, 100]",
    );
    fs::write(store.join("0.0.0.0.0"), vec![7; samples * 100]).unwrap();
    let keys = Keys::default();
    let packed = folder.path().join("packed.npz");
    let mut archive = zip::ZipWriter::new(fs::File::create(&packed).unwrap());
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated);
    archive.start_file("full.npy", options).unwrap();
    let npy = npy("(20000, 1, 1, 1, 100)", &vec![7; samples * 100]);
    std::io::Write::write_all(&mut archive, &npy).unwrap();
    archive.finish().unwrap();
    for path in [store, packed] {
        quickly(|| {
            let dataset = Dataset::open_samples_with(&path, &keys).unwrap();
            let mut reader = dataset.reader(Split::Train);
            let mut values = Samples::new(DType::Int16);
            for sample in 0..samples {
                let region = [0..1, 0..1, 0..1, 0..100];
                reader.read_volume(sample, region, &mut values).unwrap();
                assert_eq!(values, Samples::I16(vec![7; 100]));
            }
        });
    }
}

/// Links from a folder to itself lead to ever longer paths.
#[cfg(unix)]
#[test]
fn folders_that_lead_to_themselves_are_looked_into_once() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..8 {
        let link = source.join(format!("l{number}"));
        std::os::unix::fs::symlink(&source, link).unwrap();
    }
    fs::write(source.join("a.npy"), npy("(2, 2, 2)", b"12345678")).unwrap();
    let spec = partita_data::ConvertSpec {
        no_targets: true,
        ..conversion(vec![source], folder.path().join("set"))
    };
    let found = quickly(|| Conversion::find(&spec)).unwrap();
    assert_eq!(found.samples(), 1);
    // A store with links to itself.
    let store = folder.path().join("loop.zarr");
    fs::create_dir(&store).unwrap();
    fs::write(store.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    for number in 0..8 {
        std::os::unix::fs::symlink(&store, store.join(format!("l{number}"))).unwrap();
    }
    refused(inspect(&store), "");
}
