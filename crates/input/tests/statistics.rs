//! Statistics that are kept beside the data.

use crate::made;

use std::fs;

use made::{physical, spec, target, volume};
use partita_data::{Dataset, DatasetWriter, Split};
use partita_formats::{DType, Layout};
use partita_input::{STATISTICS_FILE, Step, fit};

#[test]
fn statistics_of_files_that_are_read_otherwise_are_computed_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    let shape = [4, 4, 4, 4];
    let spec = spec(shape, DType::Float32, Layout::Contiguous);
    let mut writer = DatasetWriter::create(&path, &spec).unwrap();
    for split in Split::ALL {
        for n in 0.. {
            if writer.next_universe(split).is_none() {
                break;
            }
            let values = volume(n, shape, DType::Float32);
            writer
                .append(split, &values, &target(n), &physical(n))
                .unwrap();
        }
    }
    writer.finish().unwrap();
    let index = path.join("dataset.toml");
    let text = fs::read_to_string(&index).unwrap();
    let fitted = |text: &str| {
        fs::write(&index, text).unwrap();
        let dataset = Dataset::open(&path).unwrap();
        let found = fit(&[Step::Standardize], &dataset, None, 1).unwrap();
        let kept = fit(&[Step::Standardize], &dataset, None, 1).unwrap();
        assert_eq!(found, kept);
        fs::remove_file(path.join(STATISTICS_FILE)).unwrap();
        let anew = fit(&[Step::Standardize], &dataset, None, 1).unwrap();
        (found, anew)
    };
    let (first, anew) = fitted(&text);
    assert_eq!(first, anew);
    // The same files, sizes and times; the last dim of the arrays holds the channels.
    let (last, anew) = fitted(&text.replace("format = 1", "format = 1\nlayout = \"NDHWC\""));
    assert_eq!(last, anew);
    assert_ne!(last, first);
}
