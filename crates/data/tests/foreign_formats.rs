//! What files say that is easily passed over: fill values, scales, orientations; and files that are something else.

#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use crate::made;

use std::fs;
use std::path::{Path, PathBuf};

use partita_data::{Conversion, ConvertSpec, Keys, Split};
use partita_formats::{DType, Samples};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/formats")
        .join(name)
}

/// The first sample of a source with one channel and class folders or a target.
fn convert(
    source: &Path,
    key: &str,
    layout: Option<&str>,
) -> Result<(Vec<usize>, Vec<f32>), String> {
    let folder = tempfile::tempdir().unwrap();
    let text = |error: partita_formats::DataError| error.to_string();
    let targets = folder.path().join("targets.csv");
    let name = source.file_name().unwrap().to_string_lossy();
    fs::write(&targets, format!("file,t\n{name},1\n{name}:0,1\n")).unwrap();
    let asked = ConvertSpec {
        keys: Keys {
            volume: key.to_owned(),
            order: layout.map(|layout| layout.parse().unwrap()),
            ..Keys::default()
        },
        dtype: Some(DType::Float32),
        targets: Some(targets),
        ..made::conversion(vec![source.to_path_buf()], folder.path().join("set"))
    };
    let (dataset, _) = Conversion::find(&asked)
        .and_then(|conversion| conversion.write(|_| true))
        .map_err(text)?
        .unwrap();
    let shape = dataset.shape();
    let mut out = Samples::new(DType::Float32);
    let mut reader = dataset.reader(Split::Train);
    reader
        .read_volume(0, shape.map(|extent| 0..extent), &mut out)
        .map_err(text)?;
    let Samples::F32(values) = out else {
        unreachable!("float32 was asked for")
    };
    Ok((shape.to_vec(), values))
}

fn is_no_damage(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(
        !error.contains("damaged") && !error.contains("restore"),
        "{error}"
    );
}

/// A Zarr store of 1x2x2 values, none of which was written.
fn zarr(folder: &Path, dtype: &str, fill: &str, more: &str) -> PathBuf {
    let store = folder.join("s.zarr");
    fs::create_dir_all(&store).unwrap();
    let text = format!(
        r#"{{"zarr_format": 3, "node_type": "array", "shape": [1, 2, 2], "data_type": "{dtype}", "chunk_grid":
        {{"name": "regular", "configuration": {{"chunk_shape": [1, 2, 2]}}}}, "chunk_key_encoding": {{"name":
        "default"}}, "fill_value": {fill}, "codecs": [{{"name": "bytes", "configuration": {{"endian": "little"}}}}],
        "attributes": {{}}{more}}}"#
    );
    fs::write(store.join("zarr.json"), text).unwrap();
    store
}

#[test]
fn fill_values_of_zarr_are_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let read = |dtype: &str, fill: &str| {
        let store = zarr(folder.path(), dtype, fill, "");
        convert(&store, "array", None).map(|(_, values)| values)
    };
    for (dtype, fill, expected) in [
        ("float32", r#""0x40490fdb""#, std::f32::consts::PI),
        ("float16", r#""0xc000""#, -2.0),
        ("float64", r#""0x3ff8000000000000""#, 1.5),
        ("float16", "0.5", 0.5),
        ("uint8", "200", 200.0),
        ("int64", "-7", -7.0),
        ("bool", "true", 1.0),
    ] {
        assert_eq!(read(dtype, fill).unwrap(), [expected; 4], "{dtype} {fill}");
    }
    for (fill, value) in [
        ("\"NaN\"", "NaN"),
        ("\"0x7fc00000\"", "NaN"),
        ("\"-Infinity\"", "-inf"),
    ] {
        let error = read("float32", fill).unwrap_err();
        assert!(
            error.contains(value) && !error.contains("no value of"),
            "{error}"
        );
    }
    for (dtype, fill) in [
        ("float32", "\"zero\""),
        ("float32", "\"0x7fc0\""),
        ("float32", "[1]"),
        ("uint8", "256"),
        ("int16", "0.5"),
        ("int16", "\"NaN\""),
    ] {
        let error = read(dtype, fill).unwrap_err();
        assert!(
            error.contains(&format!("its fill value {fill} is no value of {dtype}")),
            "{error}"
        );
    }
    is_no_damage(
        &read("float32", "null").unwrap_err(),
        &["never written", "`fill_value`"],
    );
    fs::remove_file(folder.path().join("s.zarr/zarr.json")).unwrap();
    let second = r#"{"zarr_format": 2, "shape": [1, 2, 2], "chunks": [1, 2, 2], "dtype": "<f4", "compressor": null,
        "fill_value": FILL, "order": "C", "filters": null}"#;
    for (fill, expected) in [("3.5", Some(3.5)), ("null", None)] {
        let text = second.replace("FILL", fill);
        fs::write(folder.path().join("s.zarr/.zarray"), text).unwrap();
        let found = convert(&folder.path().join("s.zarr"), "array", None);
        assert_eq!(
            found.ok().map(|(_, values)| values),
            expected.map(|value| vec![value; 4])
        );
    }
}

#[test]
fn extensions_of_zarr_that_have_to_be_understood_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (more, is_read) in [
        (r#", "statistics": {"must_understand": false}"#, true),
        (r#", "dimension_names": ["d", "h", "w"]"#, true),
        (r#", "offset": {"must_understand": true, "by": 3}"#, false),
        (r#", "offset": {"by": 3}"#, false),
        (r#", "storage_transformers": [{"name": "twice"}]"#, false),
    ] {
        let store = zarr(folder.path(), "float32", "1", more);
        match convert(&store, "array", None) {
            Ok(_) => assert!(is_read, "{more}"),
            Err(error) => {
                assert!(!is_read, "{more}: {error}");
                is_no_damage(&error, &["without"]);
            }
        }
    }
}

#[test]
fn scales_of_nifti_are_numbers_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scan.nii");
    let bytes = fs::read(fixture("scaled.nii")).unwrap();
    let read = |slope: f32, inter: f32| {
        let mut bytes = bytes.clone();
        bytes[112..116].copy_from_slice(&slope.to_le_bytes());
        bytes[116..120].copy_from_slice(&inter.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        convert(&path, "array", None).map(|(_, values)| values)
    };
    let stored = read(0.0, 0.0).unwrap();
    assert!(stored.iter().any(|&value| value != 0.0));
    for (slope, inter) in [
        (0.0, 5.0),
        (1.0, 0.0),
        (f32::NAN, f32::NAN),
        (f32::NAN, 0.0),
    ] {
        assert_eq!(read(slope, inter).unwrap(), stored, "{slope}, {inter}");
    }
    let scaled: Vec<f32> = stored.iter().map(|value| 2.0 * value + 1.0).collect();
    assert_eq!(read(2.0, 1.0).unwrap(), scaled);
    for (slope, inter) in [(2.0, f32::NAN), (1.0, f32::INFINITY), (f32::NAN, 1.0)] {
        is_no_damage(
            &read(slope, inter).unwrap_err(),
            &["scl_slope", "scl_inter"],
        );
    }
    let mut pair = bytes.clone();
    pair[344..348].copy_from_slice(b"ni1\0");
    fs::write(&path, pair).unwrap();
    is_no_damage(
        &convert(&path, "array", None).unwrap_err(),
        &[".hdr and .img"],
    );
}

/// The tones of the corners of `gray.jpg`, as an orientation shows them: above left, above right, below left and right.
#[test]
fn photographs_are_turned_and_gray_has_one_channel() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(fixture("gray.jpg")).unwrap();
    for (orientation, extents, corners) in [
        (0u8, [16, 24], [20, 90, 160, 230]),
        (1, [16, 24], [20, 90, 160, 230]),
        (2, [16, 24], [90, 20, 230, 160]),
        (3, [16, 24], [230, 160, 90, 20]),
        (4, [16, 24], [160, 230, 20, 90]),
        (5, [24, 16], [20, 160, 90, 230]),
        (6, [24, 16], [160, 20, 230, 90]),
        (7, [24, 16], [230, 90, 160, 20]),
        (8, [24, 16], [90, 230, 20, 160]),
    ] {
        let mut photograph = bytes[..2].to_vec();
        if orientation > 0 {
            photograph.extend([0xff, 0xe1, 0, 34]);
            photograph.extend(b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0");
            photograph.extend([orientation, 0, 0, 0, 0, 0, 0, 0]);
        }
        photograph.extend(&bytes[2..]);
        let path = folder.path().join("photograph.jpg");
        fs::write(&path, photograph).unwrap();
        let (shape, values) = convert(&path, "array", None).unwrap();
        let [height, width] = extents;
        assert_eq!(shape, [1, 1, height, width], "{orientation}");
        let at = |y: usize, x: usize| values[y * width + x];
        let found = [
            at(1, 1),
            at(1, width - 2),
            at(height - 2, 1),
            at(height - 2, width - 2),
        ];
        for (found, expected) in found.into_iter().zip(corners) {
            assert!(
                (found - expected as f32).abs() <= 3.0,
                "{orientation}: {found}, {expected}"
            );
        }
    }
}

/// CRC-32C with the mask of TFRecord.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    let crc = bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            crc >> 1 ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    });
    (!crc)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
        .to_le_bytes()
}

fn field(number: u8, data: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = data.len();
    while length > 127 {
        out.push(length as u8 | 128);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(data);
    out
}

/// A file of one record with these features: name, kind (1: bytes, 2: floats) and bytes.
fn record(path: &Path, features: &[(&str, u8, Vec<u8>)]) {
    let entries = features.iter().flat_map(|(name, kind, bytes)| {
        let value = field(*kind, &field(1, bytes));
        field(1, &[field(1, name.as_bytes()), field(2, &value)].concat())
    });
    let data = field(1, &entries.collect::<Vec<u8>>());
    let head = (data.len() as u64).to_le_bytes();
    let parts = [&head[..], &masked_crc(&head), &data, &masked_crc(&data)];
    fs::write(path, parts.concat()).unwrap();
}

#[test]
fn records_of_unknown_shape_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tfrecord");
    let targets = || ("y", 2, vec![0; 16]);
    record(&path, &[("x", 1, vec![0; 2 * 4 * 8 * 6 * 6]), targets()]);
    is_no_damage(
        &convert(&path, "x", None).unwrap_err(),
        &["2304 bytes", "do not state their shape", "features x, y"],
    );
    let floats: Vec<u8> = (0..288)
        .flat_map(|value| (value as f32).to_le_bytes())
        .collect();
    record(&path, &[("image", 2, floats), targets()]);
    is_no_damage(
        &convert(&path, "image", None).unwrap_err(),
        &["lists of 288 numbers", "--layout NW"],
    );
    let (shape, values) = convert(&path, "image", Some("NW")).unwrap();
    assert_eq!((shape, values[287]), (vec![1, 1, 1, 288], 287.0));
    record(&path, &[("x", 1, vec![1; 2 * 4 * 64]), targets()]);
    let (shape, values) = convert(&path, "x", None).unwrap();
    assert_eq!((shape, values[0]), (vec![4, 4, 4, 4], 257.0));
    record(
        &path,
        &[
            ("x", 1, vec![1; 2 * 4 * 64]),
            targets(),
            ("z", 2, vec![0; 4]),
        ],
    );
    is_no_damage(
        &convert(&path, "x", None).unwrap_err(),
        &["features x, y, z"],
    );
}

const LFS: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n";

#[test]
fn files_of_other_kinds_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let mut dicom = vec![0; 128];
    dicom.extend(b"DICM");
    for (name, bytes, part) in [
        ("a.h5", LFS.as_bytes(), "git lfs pull"),
        ("a.tfrecord", LFS.as_bytes(), "git lfs pull"),
        ("a.npy", LFS.as_bytes(), "git lfs pull"),
        ("b.h5", &dicom, "dcm2niix"),
        ("c.h5", b"II*\0\x08\0\0\0", "TIFF"),
        ("d.h5", b"NRRD0004\n", "NRRD"),
        ("e.h5", b"\x80\x04\x95\x10\0\0\0\0", "pickle"),
    ] {
        is_no_damage(
            &convert(&write(name, bytes), "full", None).unwrap_err(),
            &[part],
        );
    }
    // A zip of one stored file, without its contents.
    let zip = |name: &str| {
        let mut local = b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        local.extend((name.len() as u16).to_le_bytes());
        local.extend([0, 0]);
        local.extend(name.as_bytes());
        let start = local.len() as u32;
        let mut central =
            b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        central.extend((name.len() as u16).to_le_bytes());
        central.extend([0; 16]);
        central.extend(name.as_bytes());
        let size = central.len() as u32;
        local.extend(central);
        local.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
        local.extend(size.to_le_bytes());
        local.extend(start.to_le_bytes());
        local.extend([0, 0]);
        local
    };
    for (name, member, part) in [
        ("s.zarr.zip", "x/.zarray", "unzip it"),
        ("t.zip", "zarr.json", "unzip it"),
        ("u.npz", "archive/data.pkl", "torch.save"),
        ("v.zip", "readme.txt", "without arrays"),
    ] {
        is_no_damage(
            &convert(&write(name, &zip(member)), "full", None).unwrap_err(),
            &[part],
        );
    }
}
