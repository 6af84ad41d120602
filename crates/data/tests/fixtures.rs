//! Files written by h5py are read exactly.

use crate::made;

use made::{Random, SHAPE, fixture, physical, target, volume, whole};
use partita_data::{Dataset, Split, StorageLayout, inspect};
use partita_formats::{DType, DataError, Samples};

const FILES: [(&str, DType); 8] = [
    ("contiguous_int16.h5", DType::Int16),
    ("contiguous_float32.h5", DType::Float32),
    ("big_endian_int16.h5", DType::Int16),
    ("chunked_int16.h5", DType::Int16),
    ("gzip_int16.h5", DType::Int16),
    ("gzip_shuffle_float32.h5", DType::Float32),
    ("latest_gzip_shuffle_int16.h5", DType::Int16),
    ("latest_contiguous_int16.h5", DType::Int16),
];

#[test]
fn whole_samples_and_targets_are_read_exactly() {
    for (name, dtype) in FILES {
        let dataset = Dataset::open(fixture(name)).unwrap();
        assert_eq!((dataset.shape(), dataset.dtype()), (SHAPE, dtype), "{name}");
        assert_eq!(dataset.samples(Split::Train), 3);
        assert_eq!(dataset.samples(Split::Test), 0);
        assert_eq!(dataset.targets().len(), 4);
        let mut reader = dataset.reader(Split::Train);
        let mut out = Samples::new(dtype);
        for n in [2, 0, 1] {
            reader.read_volume(n, whole(SHAPE), &mut out).unwrap();
            assert_eq!(out, volume(n, SHAPE, dtype), "{name}, sample {n}");
            assert_eq!(
                reader.read_target(n).unwrap(),
                target(n),
                "{name}, sample {n}"
            );
            assert_eq!(
                reader.read_physical(n).unwrap(),
                Some(physical(n)),
                "{name}, sample {n}"
            );
        }
    }
}

#[test]
fn a_hyperslab_equals_the_slice_of_the_whole() {
    let mut random = Random(20_250_101);
    for (name, dtype) in FILES {
        let mut reader = Dataset::open(fixture(name)).unwrap().reader(Split::Train);
        let mut out = Samples::new(dtype);
        let mut bytes = 0;
        for _ in 0..200 {
            let n = random.below(3);
            let region = random.region(SHAPE);
            reader.read_volume(n, region.clone(), &mut out).unwrap();
            assert_eq!(
                out,
                volume(n, SHAPE, dtype).slice(SHAPE, &region),
                "{name} {region:?}"
            );
            bytes += (out.len() * dtype.size_bytes()) as u64;
        }
        assert_eq!(reader.tally().volume_bytes.0, bytes);
        assert_eq!(reader.tally().volumes, 200);
    }
}

#[test]
fn a_folder_of_universes_is_read_by_its_index() {
    let dataset = Dataset::open(fixture("universes")).unwrap();
    assert_eq!(dataset.samples(Split::Train), 2);
    assert_eq!(dataset.universes(Split::Train), [0, 2]);
    assert_eq!(dataset.targets()[1], "sigma_8");
    let mut random = Random(99);
    for (split, sample, universe) in [
        (Split::Train, 0, 0),
        (Split::Train, 1, 2),
        (Split::Validation, 0, 1),
    ] {
        let mut reader = dataset.reader(split);
        let mut out = Samples::new(DType::Float32);
        for _ in 0..20 {
            let region = random.region(SHAPE);
            reader
                .read_volume(sample, region.clone(), &mut out)
                .unwrap();
            let expected = volume(universe, SHAPE, DType::Int16).slice(SHAPE, &region);
            assert_eq!(out, expected, "the buffer takes the dataset's element type");
        }
        assert_eq!(reader.read_target(sample).unwrap(), target(universe));
        assert_eq!(reader.read_physical(sample).unwrap(), None);
    }
}

#[test]
fn a_single_universe_file_is_a_dataset_of_one_sample() {
    let dataset = Dataset::open(fixture("universes/u1.h5")).unwrap();
    assert_eq!((dataset.samples(Split::Train), dataset.shape()), (1, SHAPE));
    assert_eq!(
        dataset.reader(Split::Train).read_target(0).unwrap(),
        target(1)
    );
}

#[test]
fn storage_and_values_are_summarized() {
    let summary = inspect(fixture("gzip_shuffle_float32.h5")).unwrap();
    let train = &summary.splits[0];
    let full = train
        .arrays
        .iter()
        .find(|array| array.key == "full")
        .unwrap();
    assert_eq!(full.shape, [3, 2, 6, 5, 7]);
    assert_eq!(
        full.storage,
        StorageLayout::Chunked {
            chunk: vec![1, 1, 4, 3, 4],
            filters: vec!["shuffle".to_string(), "gzip".to_string()],
        }
    );
    assert_eq!(summary.sample_bytes.0, 2 * 6 * 5 * 7 * 4);
    let Samples::F32(all) = (0..3).map(|n| volume(n, SHAPE, DType::Float32)).fold(
        Samples::F32(Vec::new()),
        |all, one| match (all, one) {
            (Samples::F32(all), Samples::F32(one)) => Samples::F32([all, one].concat()),
            _ => unreachable!(),
        },
    ) else {
        unreachable!()
    };
    let values = train.values.as_ref().unwrap();
    assert_eq!((values.samples, values.elements), (3, all.len()));
    let mean = all.iter().map(|&value| f64::from(value)).sum::<f64>() / all.len() as f64;
    assert!((values.mean - mean).abs() < 1e-9 * mean.abs().max(1.0));
    assert_eq!(
        values.min,
        all.iter().copied().fold(f32::INFINITY, f32::min) as f64
    );
    assert_eq!(
        values.max,
        all.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64
    );
    assert!(summary.splits[1].values.is_none());
}

#[test]
fn a_misspelled_key_is_answered_with_the_nearest() {
    let error = Dataset::open(fixture("misspelled.h5")).unwrap_err();
    let DataError::MissingKey {
        key,
        found,
        nearest,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(key, "unitPar");
    assert_eq!(found, &["full", "redshifts", "unitpar"]);
    assert_eq!(nearest.as_deref(), Some("unitpar"));
    let text = error.to_string();
    assert!(
        text.contains("`redshifts`") && text.ends_with("help: try `unitpar`"),
        "{text}"
    );
}

#[test]
fn targets_of_more_samples_than_there_are_volumes_are_refused() {
    let error = Dataset::open(fixture("float64.h5"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`unitPar` has shape [3, 4]\nhelp: possible values: [1, 4] (N, targets)"),
        "{error}"
    );
}

#[test]
fn samples_and_regions_out_of_range_are_refused() {
    let dataset = Dataset::open(fixture("contiguous_int16.h5")).unwrap();
    let mut reader = dataset.reader(Split::Train);
    let mut out = Samples::new(DType::Int16);
    let error = reader.read_volume(3, whole(SHAPE), &mut out).unwrap_err();
    let out_of_range = |error: &DataError| match error {
        DataError::SampleOutOfRange {
            sample, samples, ..
        } => Some((*sample, *samples)),
        _ => None,
    };
    assert_eq!(out_of_range(&error), Some((3, 3)), "{error}");
    let error = dataset.reader(Split::Test).read_target(0).unwrap_err();
    assert_eq!(out_of_range(&error), Some((0, 0)), "{error}");
    for region in [[0..2, 0..7, 0..5, 0..7], [0..2, 0..6, 0..5, 7..8]] {
        let error = reader.read_volume(0, region, &mut out).unwrap_err();
        assert!(
            matches!(error, DataError::RegionOutOfRange { .. }),
            "{error}"
        );
    }
    assert_eq!(reader.tally(), Default::default());
}
