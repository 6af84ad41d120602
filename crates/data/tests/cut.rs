//! Pictures and compressed files that are cut or damaged are refused by name, or left out where that is asked for.

use std::fs;
use std::path::{Path, PathBuf};

use partita_data::{Conversion, ConvertSpec, Dataset, Split};
use partita_formats::{DataError, Elements, SourceFile, image};

use crate::made;

const END: [u8; 2] = [0xff, 0xd9];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/formats")
        .join(name)
}

const JPEGS: [&str; 9] = [
    "whole",
    "wide",
    "quarter",
    "gray",
    "inks",
    "restarts",
    "progressive",
    "progressive_gray",
    "progressive_restarts",
];

fn read(path: &Path, bytes: &[u8]) -> Result<[usize; 3], String> {
    fs::write(path, bytes).unwrap();
    let image = image::read(path).map_err(|error| error.of(path, None, None).to_string())?;
    Ok(image.shape)
}

/// Where the segment of a marker begins.
fn marker(bytes: &[u8], marker: u8) -> usize {
    let at = bytes.windows(2).position(|pair| pair == [0xff, marker]);
    at.unwrap()
}

#[test]
fn jpegs_that_are_cut_anywhere_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("picture.jpg");
    for name in JPEGS {
        let whole = fs::read(fixture(&format!("jpeg/{name}.jpg"))).unwrap();
        let channels = match name {
            "gray" | "progressive_gray" => 1,
            _ => 3,
        };
        assert_eq!(read(&path, &whole), Ok([40, 52, channels]), "{name}");
        // What follows the end is not part of the image.
        let longer = [&whole[..], &[0; 9]].concat();
        assert_eq!(read(&path, &longer), Ok([40, 52, channels]), "{name}");
        let filled = [&whole[..whole.len() - 2], &[0xff], &END].concat();
        assert_eq!(read(&path, &filled), Ok([40, 52, channels]), "{name}");
        for length in (3..whole.len() - 1)
            .step_by(7)
            .chain([whole.len() - 2, whole.len() - 1])
        {
            let error = read(&path, &whole[..length]).expect_err(name);
            assert!(error.contains("picture.jpg"), "{name}, {length}: {error}");
            assert!(
                error.contains("truncated or damaged"),
                "{name}, {length}: {error}"
            );
            if length < whole.len() - 2 {
                let ended = [&whole[..length], &END].concat();
                read(&path, &ended).expect_err(&format!("{name}, {length} and an end"));
            }
        }
    }
}

#[test]
fn jpegs_with_other_data_than_their_blocks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("picture.jpg");
    let mut all = 0;
    // Of missing, doubled and zero bytes.
    let mut found = [0; 3];
    for name in JPEGS {
        let whole = fs::read(fixture(&format!("jpeg/{name}.jpg"))).unwrap();
        let data = marker(&whole, 0xda) + 14;
        // Bytes that are missing, doubled or zero within the data.
        for at in (data..whole.len() - 22).step_by(31) {
            let missing = [&whole[..at], &whole[at + 20..]].concat();
            let doubled = [&whole[..at + 20], &whole[at..]].concat();
            let mut zero = whole.clone();
            zero[at..at + 20].fill(0);
            all += 1;
            for (found, bytes) in found.iter_mut().zip([missing, doubled, zero]) {
                *found += usize::from(read(&path, &bytes).is_err());
            }
        }
        let more = [&whole[..whole.len() - 2], &[0x55; 5], &END].concat();
        let error = read(&path, &more).expect_err(name);
        assert!(error.contains("behind its last block"), "{name}: {error}");
    }
    // Damage may be other data of as many blocks, which no reader can tell.
    let least = [65, 90, 65];
    let is_found = |(found, least): (&usize, usize)| found * 100 >= all * least;
    assert!(
        all > 250 && found.iter().zip(least).all(is_found),
        "{found:?} of {all}"
    );
}

#[test]
fn jpegs_without_all_their_scans_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("picture.jpg");
    let whole = fs::read(fixture("jpeg/progressive.jpg")).unwrap();
    let scans: Vec<usize> = whole
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| *pair == [0xff, 0xda])
        .map(|(at, _)| at)
        .collect();
    assert!(scans.len() > 5);
    for (number, &at) in scans.iter().enumerate() {
        // Tables stand before a scan.
        let at = if number == 0 {
            at
        } else {
            marker_before(&whole, at)
        };
        let error = read(&path, &[&whole[..at], &END].concat()).expect_err("scans are missing");
        let says = if number == 0 {
            "no scan"
        } else {
            "before all of its scans"
        };
        let is_first = number == 0 && !error.contains("scans");
        assert!(is_first || error.contains(says), "{number}: {error}");
    }
}

/// Where the tables of a scan begin: behind the data of the scan before it.
fn marker_before(bytes: &[u8], scan: usize) -> usize {
    let tables = bytes[..scan]
        .windows(2)
        .rposition(|pair| pair == [0xff, 0xc4]);
    tables.unwrap()
}

#[test]
fn other_files_that_are_cut_or_damaged_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, key, is_summed) in [
        ("gray16.png", "", true),
        ("pictures/train/cat/1.png", "", true),
        ("task/imagesTr/scan_000.nii.gz", "", true),
        ("scaled.nii", "", false),
        ("whole.npy", "", false),
        ("deflated.npz", "x", true),
        ("stored.npz", "x", true),
        ("cosmo/univ_ics_2000_000.tfrecord", "x", true),
        ("chunked_last.h5", "x", false),
    ] {
        let whole = fs::read(fixture(name)).unwrap();
        let path = folder.path().join(Path::new(name).file_name().unwrap());
        let decode = |bytes: &[u8]| -> Result<Vec<f64>, DataError> {
            fs::write(&path, bytes).unwrap();
            let file = SourceFile::open(&path)?;
            let array = file.array(key)?;
            array.check_element()?;
            let ranges: Vec<(usize, usize)> =
                array.shape.iter().map(|&extent| (0, extent)).collect();
            let mut values = Elements::new(&array.element);
            array.read_box(&ranges, &mut values)?;
            Ok((0..values.len()).map(|at| values.get(at)).collect())
        };
        let values = decode(&whole).unwrap();
        for tenth in 0..10 {
            let error = decode(&whole[..whole.len() * tenth / 10]);
            let error = error.expect_err(name).to_string();
            // HDF5 may lack any part of its structure.
            let is_named = name.ends_with(".h5") && error.contains("chunked_last.h5");
            assert!(
                error.contains("damaged") || is_named,
                "{name}, {tenth}: {error}"
            );
        }
        if !is_summed {
            continue;
        }
        for at in (0..whole.len()).step_by(5) {
            let mut other = whole.clone();
            other[at] ^= 4;
            if let Ok(read) = decode(&other) {
                assert_eq!(read, values, "{name}, byte {at}");
            }
        }
    }
}

#[test]
fn damaged_samples_are_left_out_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("pictures");
    for kind in ["cat", "dog"] {
        fs::create_dir_all(source.join(kind)).unwrap();
        for (at, name) in ["whole", "wide", "quarter", "progressive"]
            .iter()
            .enumerate()
        {
            let to = source.join(kind).join(format!("{at}.jpg"));
            fs::copy(fixture(&format!("jpeg/{name}.jpg")), to).unwrap();
        }
    }
    let cut = source.join("cat/0.jpg");
    let bytes = fs::read(&cut).unwrap();
    fs::write(&cut, &bytes[..bytes.len() / 3]).unwrap();
    fs::write(source.join("dog/2.jpg"), []).unwrap();
    let refused = made::conversion(vec![source.clone()], folder.path().join("refused"));
    let error = match Conversion::find(&refused) {
        Ok(conversion) => conversion.write(|_| true).map(drop).unwrap_err(),
        Err(error) => error,
    };
    let error = error.to_string();
    assert!(error.contains("cat/0.jpg"), "{error}");
    assert!(error.contains("\nhelp: `--skip-damaged`"), "{error}");
    assert!(!folder.path().join("refused").exists());

    let asked = ConvertSpec {
        skip_damaged: true,
        ..made::conversion(vec![source.clone()], folder.path().join("set"))
    };
    let conversion = Conversion::find(&asked).unwrap();
    let notes = conversion.notes().join("\n");
    for part in [
        "2 of 8 files or cases are damaged",
        "cat/0.jpg",
        "dog/2.jpg",
        "it is empty",
    ] {
        assert!(notes.contains(part), "{notes}");
    }
    let (dataset, _) = conversion.write(|_| true).unwrap().unwrap();
    assert_eq!(dataset.samples(Split::Train), 6);
    let again = Dataset::open(folder.path().join("set")).unwrap();
    let damaged = again.spec()["damaged"].as_array().unwrap();
    assert_eq!(damaged.len(), 2);

    for kind in ["cat", "dog"] {
        for entry in fs::read_dir(source.join(kind)).unwrap() {
            fs::write(entry.unwrap().path(), b"\xff\xd8\xff").unwrap();
        }
    }
    let error = Conversion::find(&ConvertSpec {
        out: folder.path().join("none"),
        ..asked
    });
    let error = error.err().unwrap().to_string();
    assert!(error.contains("0.jpg"), "{error}");
}
