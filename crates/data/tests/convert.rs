//! Users' files become datasets: samples, answers and splits are found, and nothing leaks.

use crate::made;

use std::fs;
use std::path::{Path, PathBuf};

use made::{SHAPE, npy, target, volume, whole};
use partita_data::{Conversion, ConvertSpec, Dataset, Keys, Split, inspect};
use partita_formats::{DType, DataError, Samples};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/formats")
        .join(name)
}

fn asked(sources: &[&str], out: PathBuf) -> ConvertSpec {
    ConvertSpec {
        fractions: [0.4, 0.3, 0.3],
        ..made::conversion(sources.iter().map(|name| file(name)).collect(), out)
    }
}

fn convert(asked: &ConvertSpec) -> Result<Dataset, DataError> {
    let conversion = Conversion::find(asked)?;
    let mut last = 0;
    let written = conversion.write(|written| {
        last = written;
        true
    })?;
    assert_eq!(last, conversion.samples());
    let (dataset, _) = written.expect("nobody stopped it");
    Ok(dataset)
}

fn read(dataset: &Dataset, split: Split, sample: usize) -> Samples {
    let mut out = Samples::new(dataset.dtype());
    let mut reader = dataset.reader(split);
    reader
        .read_volume(sample, whole(dataset.shape()), &mut out)
        .expect("a sample");
    out
}

#[test]
fn a_medical_task_is_converted_with_its_class_names() {
    let folder = tempfile::tempdir().unwrap();
    let task = folder.path().join("task");
    for sub in ["imagesTr", "labelsTr", "imagesTs"] {
        fs::create_dir_all(task.join(sub)).unwrap();
    }
    for n in 0..3 {
        let name = format!("scan_{n:03}.nii.gz");
        for sub in ["imagesTr", "labelsTr"] {
            fs::copy(
                file("task").join(sub).join(&name),
                task.join(sub).join(&name),
            )
            .unwrap();
        }
    }
    // Files of a test without labels, and of a Mac, are left alone.
    fs::copy(
        task.join("imagesTr/scan_000.nii.gz"),
        task.join("imagesTs/scan_009.nii.gz"),
    )
    .unwrap();
    fs::write(task.join("imagesTr/._scan_000.nii.gz"), b"junk").unwrap();
    fs::write(
        task.join("dataset.json"),
        r#"{"labels": {"0": "background", "1": "organ", "2": "lesion"}}"#,
    )
    .unwrap();
    let mut asked = asked(&[], folder.path().join("set"));
    asked.sources = vec![task.clone()];
    let dataset = convert(&asked).unwrap();
    assert_eq!((dataset.shape(), dataset.dtype()), (SHAPE, DType::Int16));
    assert_eq!(dataset.targets(), ["background", "organ", "lesion"]);
    assert_eq!(dataset.labels(), Some([6, 5, 7]));
    let mut seen = Vec::new();
    for split in Split::ALL {
        assert_eq!(dataset.samples(split), 1, "{split}");
        let subject = dataset.universes(split)[0] as usize;
        assert_eq!(
            read(&dataset, split, 0),
            volume(subject, SHAPE, DType::Int16)
        );
        let mut labels = Samples::new(DType::Int16);
        let region = [0..1, 1..2, 2..3, 3..4];
        dataset
            .reader(split)
            .read_labels(0, region, &mut labels)
            .unwrap();
        assert_eq!(labels, Samples::I16(vec![((subject + 6) % 3) as i16]));
        seen.push(subject);
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2]);

    asked.out = folder.path().join("other");
    asked.size = Some([4, 6]);
    let error = convert(&asked).unwrap_err().to_string();
    assert!(
        error.contains("`--size 4x6`") && error.contains("scan_000.nii.gz is none"),
        "{error}"
    );
    assert!(error.contains(".png, .jpg or .jpeg"), "{error}");
    assert!(!asked.out.exists());
    asked.size = None;
    fs::remove_file(task.join("labelsTr/scan_001.nii.gz")).unwrap();
    let error = convert(&asked).unwrap_err().to_string();
    assert!(error.contains("imagesTr/scan_001.nii.gz"), "{error}");
    assert!(!asked.out.exists());
}

#[test]
fn folders_of_images_are_classes_and_splits() {
    let folder = tempfile::tempdir().unwrap();
    let mut asked = asked(&["pictures"], folder.path().join("set"));
    let error = convert(&asked).unwrap_err().to_string();
    assert!(
        error.contains("10x15") && error.contains("--size"),
        "{error}"
    );
    asked.size = Some([8, 8]);
    let dataset = convert(&asked).unwrap();
    assert_eq!(dataset.shape(), [3, 1, 8, 8]);
    assert_eq!(dataset.targets(), ["cat", "dog"]);
    assert_eq!(Split::ALL.map(|split| dataset.samples(split)), [6, 2, 0]);
    let mut labels = Samples::new(DType::Int16);
    for (sample, class, color) in [
        (0, 0, [200, 40, 40]),
        (1, 0, [200, 200, 200]),
        (3, 1, [40, 40, 200]),
        (5, 1, [40, 40, 200]),
    ] {
        let Samples::I16(values) = read(&dataset, Split::Train, sample) else {
            panic!("bytes become int16");
        };
        for (pixels, color) in values.chunks(64).zip(color) {
            // JPEG keeps a color up to rounding.
            assert!(
                pixels.iter().all(|&pixel| (pixel - color).abs() <= 2),
                "{sample}: {pixels:?}"
            );
        }
        let mut reader = dataset.reader(Split::Train);
        reader
            .read_labels(sample, [0..1, 0..1, 0..1, 0..1], &mut labels)
            .unwrap();
        assert_eq!(labels, Samples::I16(vec![class]));
    }
}

#[test]
fn records_of_cosmoflow_are_converted_without_leaks() {
    let folder = tempfile::tempdir().unwrap();
    let mut asked = asked(&["cosmo"], folder.path().join("set"));
    asked.fractions = [0.5, 0.5, 0.0];
    let dataset = convert(&asked).unwrap();
    assert_eq!(dataset.shape(), [4, 4, 4, 4]);
    // Two crops of each universe stay together.
    assert_eq!(Split::ALL.map(|split| dataset.samples(split)), [2, 2, 0]);
    for split in [Split::Train, Split::Validation] {
        let universe = dataset.universes(split)[0];
        assert_eq!(dataset.universes(split), [universe; 2]);
        for sample in 0..2 {
            let n = 2 * universe as usize + sample;
            let Samples::I16(values) = volume(n, [4; 4], DType::Int16) else {
                unreachable!()
            };
            let values = values.into_iter().map(|value| value + 2000).collect();
            assert_eq!(read(&dataset, split, sample), Samples::I16(values));
            let numbers = [0.0, 0.25, 0.5, 0.75].map(|value| value - n as f32 / 8.0);
            assert_eq!(dataset.reader(split).read_target(sample).unwrap(), numbers);
        }
    }
}

#[test]
fn a_table_gives_numbers_classes_and_subjects() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("targets.csv");
    let mut asked = asked(
        &["one_0.h5", "one_1.h5", "one_2.h5"],
        folder.path().join("numbers"),
    );
    asked.keys.volume = "x".to_owned();
    asked.targets = Some(table.clone());
    asked.fractions = [0.5, 0.5, 0.0];
    fs::write(
        &table,
        "file,mass,patient,age\none_2.h5,30,p1,5\none_0,10,p1,5\none_1.h5,20,p2,5\n",
    )
    .unwrap();
    let dataset = convert(&asked).unwrap();
    assert_eq!(dataset.targets(), ["mass", "age"]);
    let samples = Split::ALL.map(|split| dataset.samples(split));
    assert!(samples == [2, 1, 0] || samples == [1, 2, 0], "{samples:?}");
    let pair = if samples[0] == 2 {
        Split::Train
    } else {
        Split::Validation
    };
    let mut reader = dataset.reader(pair);
    // The mass is brought to [-1, 1]; what never varies becomes 0.
    assert_eq!(reader.read_target(0).unwrap(), [-1.0, 0.0]);
    assert_eq!(reader.read_physical(1).unwrap(), Some(vec![30.0, 5.0]));

    asked.out = folder.path().join("classes");
    fs::write(
        &table,
        "file,kind\none_2,spiral\none_0,spiral\none_1,ring\n",
    )
    .unwrap();
    let dataset = convert(&asked).unwrap();
    assert_eq!(
        (dataset.targets(), dataset.labels()),
        (&["ring".to_owned(), "spiral".to_owned()][..], Some([1; 3]))
    );

    asked.out = folder.path().join("none");
    for (text, says) in [
        (
            "file,kind\none_2,spiral\none_0,spiral\n",
            "no row for one_1.h5",
        ),
        ("file,mass,age\none_2,1\n", "line 2: 2 cells, not 3"),
        (
            "file,mass,age\none_2,1,2\none_1,nan,3\none_0,1,2\n",
            "line 3: nan, 3, which are no finite numbers",
        ),
    ] {
        fs::write(&table, text).unwrap();
        let error = convert(&asked).unwrap_err().to_string();
        assert!(
            error.contains(says) && error.contains("targets.csv"),
            "{error}"
        );
        assert!(!asked.out.exists());
    }
}

#[test]
fn stacks_of_other_tools_are_converted() {
    let folder = tempfile::tempdir().unwrap();
    let mut asked = asked(&["stored.npz"], folder.path().join("npz"));
    asked.keys.volume = "x".to_owned();
    let error = convert(&asked).unwrap_err().to_string();
    assert!(
        error.contains("`x`, `y`") && error.contains("--target-key"),
        "{error}"
    );
    asked.keys.target = "y".to_owned();
    asked.keys.order = Some("NDHWC".parse().unwrap());
    let first = convert(&asked).unwrap();
    for split in Split::ALL {
        let n = first.universes(split)[0] as usize;
        assert_eq!(read(&first, split, 0), volume(n, SHAPE, DType::Int16));
        assert_eq!(first.reader(split).read_target(0).unwrap(), target(n));
    }
    // The same seed gives the same bytes.
    asked.out = folder.path().join("again");
    convert(&asked).unwrap();
    let bytes = |name: &str| fs::read(folder.path().join(name).join("train.h5")).unwrap();
    assert_eq!(bytes("npz"), bytes("again"));
    // Labels in a file of their own.
    let mut asked = self::asked(&["whole.npy"], folder.path().join("npy"));
    asked.targets = Some(file("labels.npy"));
    let dataset = convert(&asked).unwrap();
    assert_eq!(
        (dataset.labels(), dataset.targets().len()),
        (Some([6, 5, 7]), 3)
    );
}

#[test]
fn what_cannot_be_trained_on_and_what_is_stopped_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(file("fortran.npy")).unwrap();
    // The last value of the last sample, in Fortran order.
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&f32::NAN.to_be_bytes());
    let path = folder.path().join("nan.npy");
    fs::write(&path, bytes).unwrap();
    let mut asked = asked(&[], folder.path().join("set"));
    asked.sources = vec![path];
    asked.targets = Some(file("labels.npy"));
    let error = convert(&asked).unwrap_err().to_string();
    assert!(
        error.contains("nan.npy")
            && error.contains("sample 2 of the file, at (C, D, H, W) = (1, 5, 4, 6): NaN"),
        "{error}"
    );
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 1, "only the source");
    asked.sources = vec![file("whole.npy")];
    let stopped = Conversion::find(&asked)
        .unwrap()
        .write(|written| written < 2)
        .unwrap();
    assert!(stopped.is_none());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// The bytes of a file with the first occurrence of a word replaced.
fn replaced(name: &str, word: &[u8], by: &[u8]) -> Vec<u8> {
    let mut bytes = fs::read(file(name)).expect("a fixture");
    let at = bytes
        .windows(word.len())
        .position(|window| window == word)
        .expect("the word");
    bytes[at..at + word.len()].copy_from_slice(by);
    bytes
}

#[test]
fn answers_that_cannot_be_trained_on_are_named_with_file_key_and_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Two samples of numbers, the second with an infinite one.
    let row: Vec<u8> = target(1).iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut infinite = row.clone();
    infinite[4..8].copy_from_slice(&f32::INFINITY.to_le_bytes());
    fs::write(path("0.h5"), fs::read(file("one_0.h5")).unwrap()).unwrap();
    fs::write(path("1.h5"), replaced("one_1.h5", &row, &infinite)).unwrap();
    let mut numbers = asked(&[], path("set"));
    numbers.sources = vec![path("0.h5"), path("1.h5")];
    (numbers.keys.volume, numbers.keys.target) = ("x".to_owned(), "y".to_owned());
    numbers.fractions = [1.0, 0.0, 0.0];
    let error = convert(&numbers).unwrap_err().to_string();
    assert!(
        error.contains("1.h5: key `y`, target 1: inf is not finite"),
        "{error}"
    );
    // The first classes are 0, 1, 2, 0, ... along W.
    let word: Vec<u8> = [0i64, 1, 2].iter().flat_map(|v| v.to_le_bytes()).collect();
    let negative: Vec<u8> = [0i64, -7, 2].iter().flat_map(|v| v.to_le_bytes()).collect();
    fs::write(path("2.h5"), replaced("scan_int8.h5", &word, &negative)).unwrap();
    let mut classes = asked(&[], path("set"));
    classes.sources = vec![path("2.h5")];
    classes.keys = Keys {
        volume: "scans/image".to_owned(),
        label: "scans/mask".to_owned(),
        order: Some("NDHWC".parse().unwrap()),
        ..Keys::default()
    };
    let error = convert(&classes).unwrap_err().to_string();
    let place = "2.h5: key `scans/mask`, sample 0, at (C, D, H, W) = (0, 0, 0, 1): -7 is no class";
    assert!(error.contains(place), "{error}");
    assert!(error.contains("`--ignore -7`"), "{error}");
    // Positions that do not count are no class, and stay as they are.
    classes.ignore = Some(-7);
    classes.out = path("ignoring");
    classes.fractions = [1.0, 0.0, 0.0];
    let dataset = convert(&classes).unwrap();
    assert_eq!(dataset.targets().len(), 3);
    assert_eq!(dataset.ignored(), Some(-7));
    let mut labels = Samples::new(DType::Int16);
    let region = [0..1, 0..1, 0..1, 0..3];
    let mut reader = dataset.reader(Split::Train);
    reader.read_labels(0, region, &mut labels).unwrap();
    assert_eq!(labels, Samples::I16(vec![0, -7, 2]));
    let found = inspect(dataset.path()).unwrap();
    let counted = found.splits[0].classes.clone().unwrap();
    assert_eq!((counted.ignored, counted.invalid), (1, 0));
    // A medical task without the class indices of one image.
    let task = path("task");
    for sub in ["imagesTr", "labelsTr"] {
        fs::create_dir_all(task.join(sub)).unwrap();
        for n in 0..3 {
            let name = format!("{sub}/scan_{n:03}.nii.gz");
            fs::copy(file("task").join(&name), task.join(&name)).unwrap();
        }
    }
    fs::remove_file(task.join("labelsTr/scan_001.nii.gz")).unwrap();
    let mut medical = asked(&[], path("set"));
    medical.sources = vec![task];
    let error = convert(&medical).unwrap_err().to_string();
    assert!(
        error.contains("labelsTr/scan_001.nii.gz does not exist")
            && error.contains("imagesTr/scan_001.nii.gz is needed"),
        "{error}"
    );
    assert!(!path("set").exists());
}

/// An array of this shape, all bytes 1.
fn ones(path: &Path, descr: &str, shape: &[usize]) {
    let size = match descr.as_bytes()[2] {
        b'1' => 1,
        _ => 4,
    };
    let values = vec![1; size * shape.iter().product::<usize>()];
    fs::write(path, npy(shape, descr, &values)).expect("room");
}

#[test]
fn answers_that_do_not_fit_are_told_with_what_would() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let refusal = |volumes: &[usize], descr: &str, answers: &[usize]| {
        ones(&at("x.npy"), "|u1", volumes);
        ones(&at("y.npy"), descr, answers);
        let mut asked = asked(&[], at("set"));
        asked.sources = vec![at("x.npy")];
        asked.targets = Some(at("y.npy"));
        convert(&asked).unwrap_err().to_string()
    };
    let positions = "for each of 6 samples one at each of 4x5x3 positions or one in all";
    // Too few, and of another extent.
    for (descr, answers) in [
        ("|u1", [5, 4, 5, 3]),
        ("|u1", [6, 4, 5, 2]),
        ("<f4", [6, 4, 5, 2]),
    ] {
        let text = refusal(&[6, 1, 4, 5, 3], descr, &answers);
        assert!(
            text.contains(positions) && text.contains(&format!("{answers:?}")),
            "{text}"
        );
        assert_eq!(text.contains("not float32"), descr == "<f4", "{text}");
    }
    // No whole numbers.
    let text = refusal(&[6, 1, 4, 5, 3], "<f4", &[6, 4, 5, 3]);
    let place = "sample 0 of the file at (C, D, H, W) = (0, 0, 0, 0) is 0.0000";
    assert!(
        text.contains(place) && text.contains("classes are whole numbers"),
        "{text}"
    );
    let text = refusal(&[0, 1, 4, 5, 3], "|u1", &[0, 4, 5, 3]);
    assert!(text.contains("at least one sample"), "{text}");
    assert!(!at("set").exists());
}
