//! Cases shared by the tests: the formulas of `fixtures/make.py` and a seeded generator.
#![allow(dead_code)] // Each test file uses a part of it.
#![allow(clippy::unwrap_used, reason = "helper functions of tests")]

use std::fs;
use std::ops::Range;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use partita_data::{ConvertSpec, Dataset, DatasetSpec, GeometrySpec, Keys, Kind, Split};
use partita_formats::{DType, DataError, Layout, Samples, VolumeShape};

pub const SHAPE: VolumeShape = [2, 6, 5, 7];
pub const TARGETS: usize = 4;

pub type Region = [Range<usize>; 4];

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

pub fn whole(shape: VolumeShape) -> Region {
    shape.map(|extent| 0..extent)
}

pub fn volume(n: usize, shape: VolumeShape, dtype: DType) -> Samples {
    let [channels, depth, height, width] = shape;
    let mut values = Vec::new();
    for c in 0..channels {
        for d in 0..depth {
            for h in 0..height {
                for w in 0..width {
                    let word = (n * 31 + c * 17 + d * 13 + h * 7 + w * 3) * 29 % 4001;
                    values.push(word as i16 - 2000);
                }
            }
        }
    }
    match dtype {
        DType::Int16 => Samples::I16(values),
        DType::Float32 => Samples::F32(values.iter().map(|&v| f32::from(v) / 8.0).collect()),
    }
}

pub fn target(n: usize) -> Vec<f32> {
    (0..TARGETS)
        .map(|t| ((n * 5 + t * 3) % 17) as f32 / 8.0 - 1.0)
        .collect()
}

pub fn physical(n: usize) -> Vec<f32> {
    target(n).iter().map(|value| value * 10.0).collect()
}

pub fn spec(shape: VolumeShape, dtype: DType, layout: Layout) -> DatasetSpec {
    let mut spec = toml::Table::new();
    spec.insert("seed".to_string(), toml::Value::Integer(7));
    DatasetSpec {
        kind: Kind::Cosmology,
        shape,
        dtype,
        targets: ["omega_m", "sigma_8", "n_s", "h_0"]
            .map(str::to_string)
            .to_vec(),
        labels: None,
        layout,
        train: vec![0, 1, 1, 4],
        validation: vec![2],
        test: vec![3, 5],
        spec,
    }
}

fn read_all(path: &Path) -> Result<(), DataError> {
    let dataset = Dataset::open(path)?;
    let mut reader = dataset.reader(Split::Train);
    let mut out = Samples::new(dataset.dtype());
    for n in 0..reader.samples() {
        reader.read_volume(n, whole(dataset.shape()), &mut out)?;
        reader.read_target(n)?;
    }
    Ok(())
}

/// Reads fixtures with damage that is drawn anew in each round: no panic, and errors that name the file.
/// `check` is told which one has been read.
pub fn read_damaged(
    names: &[&str],
    rounds: usize,
    mut damage: impl FnMut(&mut [u8]),
    check: impl Fn(&str),
) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("damaged.h5");
    for name in names {
        let bytes = fs::read(fixture(name)).expect("a fixture");
        for round in 0..rounds {
            let case = format!("{name}, round {round}");
            let mut damaged = bytes.clone();
            damage(&mut damaged);
            fs::write(&path, &damaged).expect("room for a file");
            let outcome = catch_unwind(|| read_all(&path).map_err(|error| error.to_string()));
            if let Err(text) = outcome.unwrap_or_else(|_| panic!("{case}: a panic")) {
                assert!(text.contains("damaged.h5"), "{case}: {text}");
            }
            check(&case);
        }
    }
}

/// A seeded generator (xorshift64*, Vigna 2016).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    /// A region of a volume; may be empty, is whole in some dims.
    pub fn region(&mut self, shape: VolumeShape) -> Region {
        shape.map(|extent| match self.below(3) {
            0 => 0..extent,
            _ => {
                let start = self.below(extent + 1);
                start..start + self.below(extent - start + 1)
            }
        })
    }
}

/// An array as NPY, in the order of C.
pub fn npy(shape: &[usize], descr: &str, values: &[u8]) -> Vec<u8> {
    let extents: Vec<String> = shape.iter().map(usize::to_string).collect();
    let extents = extents.join(", ");
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({extents},), }}");
    while !(header.len() + 11).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values);
    bytes
}

/// A conversion of all samples to the training split, in which nothing else is asked for.
pub fn conversion(sources: Vec<PathBuf>, out: PathBuf) -> ConvertSpec {
    ConvertSpec {
        sources,
        out,
        keys: Keys::default(),
        fractions: [1.0, 0.0, 0.0],
        seed: 1,
        dtype: None,
        size: None,
        targets: None,
        classes: Vec::new(),
        ignore: None,
        map: Vec::new(),
        no_targets: false,
        geometry: GeometrySpec::default(),
        skip_damaged: false,
    }
}
