//! What the writer writes is read back, and nothing half-written stays behind.

use crate::made;

use std::fs;
use std::path::Path;
use std::thread;

use made::{Random, physical, spec, target, volume, whole};
use partita_data::{
    Dataset, DatasetSpec, DatasetWriter, INDEX_FILE, Split, StorageLayout, inspect,
};
use partita_formats::{DType, DataError, Layout, Samples, VolumeShape};

const SHAPE: VolumeShape = [3, 9, 6, 10];

fn layouts() -> [Layout; 3] {
    [
        Layout::Contiguous,
        Layout::Chunked {
            chunk: [1, 4, 6, 10],
            deflate: None,
            shuffle: false,
        },
        Layout::Chunked {
            chunk: [3, 4, 4, 3],
            deflate: Some(4),
            shuffle: true,
        },
    ]
}

fn fill(writer: &mut DatasetWriter, spec: &DatasetSpec) {
    let splits = [
        (Split::Train, &spec.train),
        (Split::Validation, &spec.validation),
    ];
    for (split, universes) in splits.into_iter().chain([(Split::Test, &spec.test)]) {
        for (place, &universe) in universes.iter().enumerate() {
            assert_eq!(writer.next_universe(split), Some(universe));
            let n = number(split, place);
            let volume = volume(n, spec.shape, spec.dtype);
            writer
                .append(split, &volume, &target(n), &physical(n))
                .expect("a sample that fits");
        }
        assert_eq!(writer.next_universe(split), None);
    }
}

fn number(split: Split, place: usize) -> usize {
    split as usize * 10 + place
}

fn make(path: &Path, spec: &DatasetSpec) -> Dataset {
    let mut writer = DatasetWriter::create(path, spec).expect("a new path");
    fill(&mut writer, spec);
    writer.finish().expect("all samples written")
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

#[test]
fn every_layout_and_dtype_is_read_back_by_hyperslabs() {
    let mut random = Random(4711);
    for layout in layouts() {
        for dtype in [DType::Int16, DType::Float32] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("set");
            let spec = spec(SHAPE, dtype, layout.clone());
            make(&path, &spec);
            assert_eq!(names(folder.path()), ["set"]);
            assert_eq!(
                names(&path),
                [INDEX_FILE, "test.h5", "train.h5", "validation.h5"]
            );
            let dataset = Dataset::open(&path).unwrap();
            assert_eq!(dataset.targets(), spec.targets);
            assert_eq!(dataset.spec(), &spec.spec);
            for split in Split::ALL {
                let mut reader = dataset.reader(split);
                let mut out = Samples::new(dtype);
                for n in 0..reader.samples() {
                    let expected = volume(number(split, n), SHAPE, dtype);
                    reader.read_volume(n, whole(SHAPE), &mut out).unwrap();
                    assert_eq!(out, expected, "{layout:?}");
                    for _ in 0..30 {
                        let region = random.region(SHAPE);
                        reader.read_volume(n, region.clone(), &mut out).unwrap();
                        assert_eq!(out, expected.slice(SHAPE, &region), "{layout:?} {region:?}");
                    }
                    assert_eq!(reader.read_target(n).unwrap(), target(number(split, n)));
                    let physical = physical(number(split, n));
                    assert_eq!(reader.read_physical(n).unwrap(), Some(physical));
                }
            }
        }
    }
}

#[test]
fn regions_of_rows_longer_than_a_page_are_read_exactly() {
    const WIDE: VolumeShape = [2, 3, 4, 2100];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let dataset = make(&path, &spec(WIDE, DType::Int16, Layout::Contiguous));
    let mut reader = dataset.reader(Split::Train);
    let mut out = Samples::new(DType::Int16);
    let mut random = Random(5);
    for _ in 0..60 {
        let region = random.region(WIDE);
        reader.read_volume(3, region.clone(), &mut out).unwrap();
        assert_eq!(
            out,
            volume(3, WIDE, DType::Int16).slice(WIDE, &region),
            "{region:?}"
        );
    }
    assert_eq!(reader.tally().file_bytes, reader.tally().volume_bytes);
}

#[test]
fn the_summary_names_the_layout() {
    let folder = tempfile::tempdir().unwrap();
    let [contiguous, _, chunked] = layouts();
    make(
        &folder.path().join("a"),
        &spec(SHAPE, DType::Int16, contiguous),
    );
    make(
        &folder.path().join("b"),
        &spec(SHAPE, DType::Int16, chunked),
    );
    let storage = |name: &str| {
        let summary = inspect(folder.path().join(name)).unwrap();
        assert_eq!(summary.splits[0].universes, 3);
        assert_eq!(summary.splits[0].samples, 4);
        summary.splits[0]
            .arrays
            .iter()
            .find(|a| a.key == "full")
            .unwrap()
            .storage
            .clone()
    };
    assert_eq!(storage("a"), StorageLayout::Contiguous);
    assert_eq!(
        storage("b"),
        StorageLayout::Chunked {
            chunk: vec![1, 3, 4, 4, 3],
            filters: vec!["shuffle".to_string(), "gzip".to_string()],
        }
    );
}

#[test]
fn the_same_samples_give_the_same_bytes() {
    for layout in layouts() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        let spec = spec(SHAPE, DType::Int16, layout);
        make(&a, &spec);
        // Times in HDF5 headers count seconds; a stored one would differ after this.
        thread::sleep(std::time::Duration::from_millis(1100));
        make(&b, &spec);
        for name in names(&a) {
            assert!(
                fs::read(a.join(&name)).unwrap() == fs::read(b.join(&name)).unwrap(),
                "{name}"
            );
        }
    }
}

#[test]
fn a_writer_dropped_before_the_end_leaves_nothing() {
    for written in [0, 3] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("set");
        let spec = spec(SHAPE, DType::Int16, Layout::Contiguous);
        let mut writer = DatasetWriter::create(&path, &spec).unwrap();
        for n in 0..written {
            let volume = volume(n, SHAPE, DType::Int16);
            writer
                .append(Split::Train, &volume, &target(n), &physical(n))
                .unwrap();
        }
        assert_eq!(names(folder.path()), ["set.partial"]);
        drop(writer);
        assert!(names(folder.path()).is_empty());
    }
}

#[test]
fn finishing_early_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let spec = spec(SHAPE, DType::Int16, Layout::Contiguous);
    let writer = DatasetWriter::create(&path, &spec).unwrap();
    let error = writer.finish().unwrap_err();
    assert!(matches!(error, DataError::Incomplete { .. }), "{error}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn what_a_killed_writer_left_is_replaced_but_foreign_files_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let partial = folder.path().join("set.partial");
    let spec = spec(SHAPE, DType::Int16, Layout::Contiguous);
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("train.h5"), b"half").unwrap();
    make(&path, &spec);
    assert_eq!(names(folder.path()), ["set"]);

    fs::remove_dir_all(&path).unwrap();
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("notes.txt"), b"mine").unwrap();
    let error = DatasetWriter::create(&path, &spec).err().unwrap();
    assert!(matches!(error, DataError::Occupied { .. }), "{error}");
    assert_eq!(fs::read(partial.join("notes.txt")).unwrap(), b"mine");
}

#[test]
fn a_path_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let spec = spec(SHAPE, DType::Int16, Layout::Contiguous);
    let first = DatasetWriter::create(&path, &spec).unwrap();
    let error = DatasetWriter::create(&path, &spec).err().unwrap();
    assert!(matches!(error, DataError::Occupied { .. }), "{error}");
    drop(first);
    make(&path, &spec);
    let before = fs::read(path.join("train.h5")).unwrap();
    let error = DatasetWriter::create(&path, &spec).err().unwrap();
    assert!(matches!(error, DataError::Occupied { .. }), "{error}");
    assert!(before == fs::read(path.join("train.h5")).unwrap());
}

#[test]
fn samples_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(SHAPE, DType::Int16, Layout::Contiguous);
    let mut writer = DatasetWriter::create(folder.path().join("set"), &spec).unwrap();
    let good = volume(0, SHAPE, DType::Int16);
    let short = volume(0, [1, 9, 6, 10], DType::Int16);
    let float = volume(0, SHAPE, DType::Float32);
    for bad in [&short, &float] {
        let error = writer
            .append(Split::Train, bad, &target(0), &physical(0))
            .unwrap_err();
        assert!(
            matches!(error, DataError::BadValue { what: "volume", .. }),
            "{error}"
        );
    }
    let error = writer
        .append(Split::Train, &good, &target(0)[..3], &physical(0))
        .unwrap_err();
    assert!(
        error.to_string().contains("4 (omega_m, sigma_8, n_s, h_0)"),
        "{error}"
    );
    writer
        .append(Split::Validation, &good, &target(0), &physical(0))
        .unwrap();
    let error = writer
        .append(Split::Validation, &good, &target(0), &physical(0))
        .unwrap_err();
    assert!(
        matches!(
            error,
            DataError::BadValue {
                what: "number of samples of a split",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_spec_that_contradicts_itself_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let good = spec(SHAPE, DType::Int16, Layout::Contiguous);
    let mut leak = good.clone();
    leak.test.push(1);
    let mut chunk = good.clone();
    chunk.layout = Layout::Chunked {
        chunk: [1, 10, 6, 10],
        deflate: None,
        shuffle: false,
    };
    let mut nameless = good.clone();
    nameless.targets.clear();
    nameless.labels = Some([1; 3]);
    for (bad, word) in [
        (leak, "universe 1 in train and in test"),
        (chunk, "chunk"),
        (nameless, "targets"),
    ] {
        let error = DatasetWriter::create(&path, &bad).err().unwrap();
        assert!(error.to_string().contains(word), "{error}");
        assert!(names(folder.path()).is_empty());
    }
}

#[test]
fn readers_go_to_threads_and_share_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let spec = spec([4, 8, 8, 8], DType::Int16, Layout::Contiguous);
    let dataset = make(&path, &spec);
    thread::scope(|scope| {
        for rank in 0..4 {
            let mut reader = dataset.reader(Split::Train);
            scope.spawn(move || {
                let region = [0..4, 2 * rank..2 * rank + 2, 0..8, 0..8];
                let mut out = Samples::new(DType::Int16);
                for n in 0..4 {
                    reader.read_volume(n, region.clone(), &mut out).unwrap();
                    let whole = volume(n, [4, 8, 8, 8], DType::Int16);
                    assert_eq!(out, whole.slice([4, 8, 8, 8], &region));
                }
                let tally = reader.tally();
                assert_eq!(tally.volume_bytes.0, 4 * 4 * 2 * 64 * 2);
                assert_eq!(tally.file_pieces, 4 * 4, "one run per sample and channel");
            });
        }
    });
}
