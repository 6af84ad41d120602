//! Files of format 5.

use super::*;
use crate::database::fixtures::{json, key, setting, times};
use partita_space::Seconds;

/// What is read of a text.
fn imported(text: &str) -> Result<Imported, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    fs::write(&path, text).unwrap();
    read(&path)
}

#[test]
fn times_are_read_to_the_last_bit() {
    // A reader of JSON that rounds digit by digit makes 2.184467440737095 of it.
    let one = times(&[(1, 2.184_467_440_737_095_4), (2, 1e-6)]);
    let read = imported(&json(&setting(1), &one)).unwrap();
    assert_eq!(read.settings, [(setting(1), one)].into());
    assert_eq!(read.unconverted, 0);
}

#[test]
fn what_is_no_file_of_format_5_gives_no_times() {
    let good = json(&setting(1), &times(&[(1, 1.5)]));
    let other = |format: u32| good.replace("\"format\":5", &format!("\"format\":{format}"));
    for format in [4, 6] {
        assert!(imported(&other(format)).unwrap().settings.is_empty());
    }
    let cores = "\"cores\":2";
    let wrong = [
        good[..good.len() / 2].to_owned(),
        "{\"format\": 5}".to_owned(),
        "[]".to_owned(),
        String::new(),
        good.replace("1.5", "-1.5"),
        good.replace("1.5", "1e300"),
        good.replace(cores, "\"cores\":18446744073709551615"),
        good.replace("\"loads\":{}", "\"loads\":{\"a file\":[]}"),
        good.replace(
            "\"loads\":{}",
            "\"loads\":{\"a file\":[{\"bytes\":1,\"seconds\":0.0,\"host\":0.0}]}",
        ),
        good.replace(
            "\"loads\":{}",
            "\"loads\":{\"a file\":[{\"bytes\":18446744073709551615,\"seconds\":1.0,\"host\":0.0}]}",
        ),
    ];
    for wrong in wrong {
        assert_ne!(wrong, good);
        assert!(imported(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn keys_without_a_version_are_converted_and_others_left_out() {
    let all = times(&[(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]);
    let text = json(&setting(1), &all);
    let text = text.replace(&key(1).signature, "fill  | F32 1x1x1x1x1 of 1x1x1x1x1");
    let text = text.replace(&key(2).signature, "fill of some kind");
    let text = text.replace(&key(3).signature, "k2 fill in another way");
    let text = text.replace(&key(4).signature, "k0 fill of some kind");
    let read = imported(&text).unwrap();
    assert_eq!(read.unconverted, 2);
    let known = &read.settings[&setting(1)];
    assert_eq!(known.seconds(&key(1)), Some(Seconds(1.0)));
    assert_eq!(known.kernels.len(), 2);
    assert!(known.kernels.keys().eq(known.shapes.keys()));
    assert!(known.kernels.contains_key("k2 fill in another way"));
}

#[test]
fn times_under_a_newer_key_override_those_under_an_older_one() {
    let mut all = times(&[(1, 1.0)]);
    let features = all.shapes.values().next().unwrap().clone();
    let old = "fill  | F32 1x1x1x1x1 of 1x1x1x1x1".to_owned();
    let both = [("plain", 9.0), ("another", 5.0)];
    let both = both.map(|(name, time)| (name.to_owned(), Seconds(time)));
    all.kernels.insert(old.clone(), both.into());
    all.shapes.insert(old, features);
    assert_eq!(convert_keys(&mut all), 0);
    let mut expected = times(&[(1, 1.0)]);
    let known = expected.kernels.values_mut().next().unwrap();
    known.insert("another".to_owned(), Seconds(5.0));
    assert_eq!(all, expected);
}
