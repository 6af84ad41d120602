//! Volumes of fractals: reproducible, of all categories, and drawn where their clouds lie.

use partita_synth::{FRACTAL_CHANNELS, FRACTAL_VOLUMES, Fractals, fractal_classes};
use std::collections::BTreeSet;

fn whole(fractals: &Fractals, index: u64) -> (Vec<i16>, Vec<i16>) {
    fractals.volume(index).planes(0..fractals.grid())
}

#[test]
fn the_same_seed_and_index_give_the_same_volume_in_any_parts() {
    let fractals = Fractals::new(5, 3).unwrap();
    assert_eq!((fractals.grid(), FRACTAL_VOLUMES), (32, 241));
    let (values, labels) = whole(&fractals, 7);
    assert_eq!(
        whole(&Fractals::new(5, 3).unwrap(), 7),
        (values.clone(), labels.clone())
    );
    assert_ne!(whole(&fractals, 8).1, labels);
    assert_ne!(whole(&Fractals::new(5, 4).unwrap(), 7).1, labels);
    let volume = fractals.volume(7);
    for planes in [0..1, 5..12, 30..32] {
        let (some, classes) = volume.planes(planes.clone());
        let plane = 32 * 32;
        assert_eq!(classes, labels[planes.start * plane..planes.end * plane]);
        for channel in 0..FRACTAL_CHANNELS {
            let first = channel * 32 * plane;
            let expected = &values[first + planes.start * plane..first + planes.end * plane];
            let count = planes.len() * plane;
            assert_eq!(&some[channel * count..(channel + 1) * count], expected);
        }
    }
}

#[test]
fn volumes_show_three_fractals_whose_colors_are_those_of_their_classes() {
    let fractals = Fractals::new(6, 42).unwrap();
    let classes = fractal_classes().len() as i16;
    let mut colors: Vec<BTreeSet<[i16; 3]>> = vec![BTreeSet::new(); classes as usize];
    let count = 64_usize.pow(3);
    for index in 0..20 {
        let (values, labels) = whole(&fractals, index);
        let mut shown = BTreeSet::new();
        for (at, &label) in labels.iter().enumerate() {
            assert!((0..classes).contains(&label));
            let color = [0, 1, 2].map(|channel| values[channel * count + at]);
            colors[label as usize].insert(color);
            shown.insert(label);
        }
        assert!((2..=4).contains(&shown.len()), "{index}: {shown:?}");
        let drawn = labels.iter().filter(|&&label| label > 0).count();
        // At most a point for 256 voxels each, of which many fall together.
        assert!(drawn > 50 && drawn <= 3 * count / 256, "{index}: {drawn}");
    }
    assert_eq!(colors[0], BTreeSet::from([[0; 3]]));
    assert!(colors.iter().all(|colors| colors.len() == 1), "{colors:?}");
    let different: BTreeSet<_> = colors.iter().flatten().collect();
    assert_eq!(different.len(), classes as usize);
}

#[test]
fn clouds_fill_the_volume_along_their_longest_dim_and_lie_in_its_middle() {
    let fractals = Fractals::new(6, 1).unwrap();
    for index in 0..8 {
        let (_, labels) = whole(&fractals, index);
        let mut spans = [[64, 0]; 3];
        for at in (0..labels.len()).filter(|&at| labels[at] > 0) {
            for (span, place) in spans.iter_mut().zip([at / 4096, at / 64 % 64, at % 64]) {
                *span = [span[0].min(place), span[1].max(place)];
            }
        }
        assert!(spans.contains(&[0, 63]), "{index}: {spans:?}");
    }
}

#[test]
fn instances_are_drawn_once_before_any_is_drawn_again() {
    let fractals = Fractals::new(3, 9).unwrap();
    let all: Vec<_> = (0..FRACTAL_VOLUMES as u64)
        .map(|index| fractals.volume(index))
        .collect();
    // Every fifth fractal or so is of each category.
    let mut counts = [0; 6];
    for volume in &all {
        let classes: BTreeSet<i16> = volume.planes(0..8).1.into_iter().collect();
        classes
            .into_iter()
            .for_each(|class| counts[class as usize] += 1);
    }
    assert!(
        counts[1..].iter().all(|&count| (60..=145).contains(&count)),
        "{counts:?}"
    );
    for scale in [2, 12] {
        let text = Fractals::new(scale, 1).unwrap_err().to_string();
        assert!(text.contains("3 to 11"), "{text}");
    }
}
