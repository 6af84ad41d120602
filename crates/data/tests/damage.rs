//! Damaged, truncated and incomplete datasets are answered with errors, never with a panic.

use crate::made;

use std::fs;
use std::path::{Path, PathBuf};

use made::{Random, SHAPE, physical, read_damaged, spec, target, volume, whole};
use partita_data::{Dataset, DatasetWriter, INDEX_FILE, Split};
use partita_formats::{DType, DataError, Layout, Samples};

fn made(folder: &Path, layout: Layout) -> PathBuf {
    let path = folder.join("set");
    let spec = spec(SHAPE, DType::Int16, layout);
    let mut writer = DatasetWriter::create(&path, &spec).expect("a new path");
    for (split, samples) in [(Split::Train, 4), (Split::Validation, 1), (Split::Test, 2)] {
        for n in 0..samples {
            let volume = volume(n, SHAPE, DType::Int16);
            writer
                .append(split, &volume, &target(n), &physical(n))
                .expect("a sample that fits");
        }
    }
    writer.finish().expect("all samples written");
    path
}

fn layouts() -> [Layout; 2] {
    [
        Layout::Contiguous,
        Layout::Chunked {
            chunk: [1, 6, 5, 7],
            deflate: Some(1),
            shuffle: false,
        },
    ]
}

#[test]
fn a_missing_path_and_a_foreign_file_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let error = Dataset::open(folder.path().join("nowhere")).unwrap_err();
    assert!(matches!(error, DataError::Missing { .. }), "{error}");
    for text in [&b"a text file"[..], b""] {
        let path = folder.path().join("text.h5");
        fs::write(&path, text).unwrap();
        let error = Dataset::open(&path).unwrap_err();
        assert!(matches!(error, DataError::NotHdf5 { .. }), "{error}");
    }
}

#[test]
fn an_incomplete_folder_is_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let path = made(folder.path(), Layout::Contiguous);
    fs::rename(path.join("test.h5"), path.join("moved.h5")).unwrap();
    let error = Dataset::open(&path).unwrap_err();
    assert!(matches!(error, DataError::Incomplete { .. }), "{error}");
    fs::copy(path.join("validation.h5"), path.join("test.h5")).unwrap();
    let error = Dataset::open(&path).unwrap_err();
    assert!(matches!(error, DataError::Incomplete { .. }), "{error}");
    fs::rename(path.join("moved.h5"), path.join("test.h5")).unwrap();
    Dataset::open(&path).unwrap();
    fs::remove_file(path.join(INDEX_FILE)).unwrap();
    let error = Dataset::open(&path).unwrap_err();
    assert!(matches!(&error, DataError::Incomplete { .. }), "{error}");
}

#[test]
fn an_index_that_disagrees_with_the_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = made(folder.path(), Layout::Contiguous);
    let index = fs::read_to_string(path.join(INDEX_FILE)).unwrap();
    let refused = |from: &str, to: &str, word: &str| {
        assert!(index.contains(from), "{index}");
        fs::write(path.join(INDEX_FILE), index.replacen(from, to, 1)).unwrap();
        let error = Dataset::open(&path).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(
        "extent = [6, 5, 7]",
        "extent = [6, 5, 8]",
        "[4, 2, 6, 5, 8]",
    );
    refused("\"int16\"", "\"int32\"", "expected `int16` or `float32`");
    refused("format = 1", "format = 9", "possible values: format = 1");
    refused("samples = 7", "samples = 8", "the splits list 7");
    refused("channels = 2", "chanels = 2", "chanels");
    refused(
        "file = \"train.h5\"\n",
        "",
        "[train] with 4 samples and no file",
    );
    refused(
        "\"sigma_8\", ",
        "",
        "key `unitPar` has shape [4, 4]\nhelp: possible values: [4, 3]",
    );
}

#[test]
fn a_truncated_file_is_refused_at_opening() {
    let folder = tempfile::tempdir().unwrap();
    for layout in layouts() {
        let path = made(folder.path(), layout);
        let file = path.join("train.h5");
        let bytes = fs::read(&file).unwrap();
        for length in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
            fs::write(&file, &bytes[..length]).unwrap();
            let error = Dataset::open(&path).expect_err("a truncated file is not whole");
            assert!(error.to_string().contains("train.h5"), "{error}");
        }
        fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn a_file_truncated_while_it_is_read_names_key_and_sample() {
    let folder = tempfile::tempdir().unwrap();
    for layout in layouts() {
        let path = made(folder.path(), layout);
        let mut reader = Dataset::open(&path).unwrap().reader(Split::Train);
        let mut out = Samples::new(DType::Int16);
        reader.read_volume(0, whole(SHAPE), &mut out).unwrap();
        let file = fs::OpenOptions::new()
            .write(true)
            .open(path.join("train.h5"))
            .unwrap();
        file.set_len(1000).unwrap();
        for region in [whole(SHAPE), [0..2, 0..6, 0..5, 2..4]] {
            match reader.read_volume(3, region, &mut out) {
                Err(DataError::Unreadable {
                    path, key, sample, ..
                }) => {
                    assert!(path.ends_with("train.h5"));
                    assert_eq!((key.as_deref(), sample), (Some("full"), Some(3)));
                }
                other => panic!("{other:?}"),
            }
        }
        fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn a_damaged_chunk_names_its_sample() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::Chunked {
        chunk: SHAPE,
        deflate: Some(6),
        shuffle: true,
    };
    let path = made(folder.path(), layout);
    let file = path.join("train.h5");
    let bytes = fs::read(&file).unwrap();
    // A zlib stream of this level begins with 78 9c or 78 5e (RFC 1950).
    let streams: Vec<usize> = (0..bytes.len() - 1)
        .filter(|&at| bytes[at] == 0x78 && bytes[at + 1] == 0x9c)
        .collect();
    assert!(streams.len() >= 4, "no streams found");
    let mut damaged = bytes.clone();
    damaged[streams[2] + 2..streams[2] + 40].fill(0xff);
    fs::write(&file, &damaged).unwrap();
    let mut reader = Dataset::open(&path).unwrap().reader(Split::Train);
    let mut out = Samples::new(DType::Int16);
    let failed: Vec<usize> = (0..4)
        .filter(|&n| match reader.read_volume(n, whole(SHAPE), &mut out) {
            Ok(()) => false,
            Err(DataError::Unreadable { key, sample, .. }) => {
                assert_eq!(key.as_deref(), Some("full"));
                assert_eq!(sample, Some(n));
                true
            }
            Err(error) => panic!("{error}"),
        })
        .collect();
    assert_eq!(failed, [2]);
}

#[test]
fn random_damage_never_panics() {
    let mut random = Random(31_337);
    let names = [
        "contiguous_int16.h5",
        "gzip_int16.h5",
        "latest_gzip_shuffle_int16.h5",
    ];
    let damage = |bytes: &mut [u8]| {
        for _ in 0..1 + random.below(8) {
            let at = random.below(bytes.len().min(4096));
            bytes[at] = random.below(256) as u8;
        }
    };
    read_damaged(&names, 300, damage, |_| ());
}
