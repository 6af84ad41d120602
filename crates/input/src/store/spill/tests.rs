//! Files of samples that no memory is left for.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use partita_formats::DType;
use partita_space::random::SplitMix;
use std::fs;

fn volume(shape: [usize; 4], dtype: DType) -> Samples {
    let count = shape.iter().product::<usize>();
    match dtype {
        DType::Int16 => Samples::I16((0..count).map(|value| value as i16).collect()),
        DType::Float32 => Samples::F32((0..count).map(|value| value as f32).collect()),
    }
}

#[test]
fn any_part_of_a_unit_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut draws = SplitMix(4);
    let mut between = |low: usize, high: usize| low + draws.bits() as usize % (high - low + 1);
    for dtype in [DType::Int16, DType::Float32] {
        for _ in 0..50 {
            let shape = [(); 4].map(|()| between(1, 6));
            let start = between(0, 9);
            let unit: Region4 = shape.map(|extent| start..start + extent);
            let samples = volume(shape, dtype);
            let bytes = Bytes((2 * samples.len() * dtype.size_bytes()) as u64);
            let file = SpillFile::create(folder.path(), 3, bytes).unwrap();
            let at = bytes.0 / 2;
            file.write(at, &samples).unwrap();
            let part: Region4 = std::array::from_fn(|dim| {
                let from = between(0, shape[dim] - 1);
                start + from..start + between(from + 1, shape[dim])
            });
            let own = part.clone().map(|it| it.start - start..it.end - start);
            let (mut rows, mut out) = (Samples::new(DType::Int16), Samples::new(dtype));
            let read = file.read(at, (&unit, &part), &mut rows, &mut out).unwrap();
            assert_eq!(out, samples.slice(shape, &own), "{unit:?}, {part:?}");
            let least = (out.len() * dtype.size_bytes()) as u64;
            assert!(read.0 >= least && read.0 <= bytes.0 / 2, "{read:?}");
            if part[2..] == unit[2..] {
                assert_eq!(read.0, least);
            }
        }
    }
}

#[test]
fn files_have_no_name_so_that_none_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let file = SpillFile::create(folder.path(), 0, Bytes(4096)).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    drop(file);
    let error = SpillFile::create(&folder.path().join("none"), 0, Bytes(4096));
    let error = error.err().unwrap().to_string();
    assert!(error.contains("none/partita-samples.rank-0"), "{error}");
}

#[test]
fn a_full_disk_is_an_error_that_names_the_file() {
    let full = SpillFile {
        file: File::options().write(true).open("/dev/full").unwrap(),
        path: PathBuf::from("/local/partita-samples.rank-1"),
        bytes: Bytes(1 << 20),
    };
    let error = full.write(0, &volume([1, 2, 2, 2], DType::Int16));
    let error = error.unwrap_err().to_string();
    for part in ["/local/partita-samples.rank-1", "No space left", "1.00 MiB"] {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}
