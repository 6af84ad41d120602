//! Labeled volumes and images as their users see them: reproducible, and about what they say.

use partita_synth::{
    CLASSES, Picture, SegmentationSpec, SegmentedVolume, ShapesSpec, SynthError, class_names,
    make_picture, make_segmented,
};

fn volume(grid: usize, index: u64) -> SegmentedVolume {
    make_segmented(&SegmentationSpec { grid, seed: 3 }, index).unwrap_or_else(|e| panic!("{e}"))
}

fn picture(size: usize, classes: usize, index: u64) -> Picture {
    let spec = ShapesSpec {
        size,
        classes,
        seed: 3,
    };
    make_picture(&spec, index).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn every_volume_has_all_classes_in_their_proportions() {
    let mut shares = [0.0; 3];
    for index in 0..20 {
        let volume = volume(32, index);
        for (class, share) in shares.iter_mut().enumerate() {
            let has = |&&label: &&i16| label as usize == class;
            let count = volume.labels.iter().filter(has).count();
            assert!(count > 50, "volume {index}: {count} of {}", CLASSES[class]);
            *share += count as f64 / 32768.0 / 20.0;
        }
    }
    let [background, organ, lesion] = shares;
    assert!((0.8..0.95).contains(&background), "{shares:?}");
    assert!((0.05..0.2).contains(&organ), "{shares:?}");
    assert!((0.005..0.05).contains(&lesion), "{shares:?}");
}

/// Mean over the voxels of a class, and how many voxels a threshold gives to a wrong side.
#[test]
fn classes_differ_in_their_means_but_no_threshold_tells_them() {
    let (mut sums, mut counts) = ([0.0; 3], [0.0; 3]);
    let mut wrong = 0;
    for index in 0..10 {
        let volume = volume(32, index);
        for (&value, &label) in volume.values.iter().zip(&volume.labels) {
            sums[label as usize] += f64::from(value);
            counts[label as usize] += 1.0;
            wrong += usize::from((value > 30) != (label > 0));
        }
    }
    let means = [0, 1, 2].map(|class| sums[class] / counts[class]);
    assert!(means[0].abs() < 20.0, "{means:?}");
    assert!((means[1] - 60.0).abs() < 15.0 && (means[2] - 120.0).abs() < 15.0);
    assert!(wrong as f64 > 0.2 * 327_680.0, "{wrong}");
}

#[test]
fn a_volume_shows_the_same_on_any_grid() {
    let (coarse, fine) = (volume(16, 4), volume(48, 4));
    let mut same = 0;
    for d in 0..16 {
        for h in 0..16 {
            for w in 0..16 {
                // The middle of the 3 x 3 x 3 fine voxels has the place of the coarse one.
                let at = ((3 * d + 1) * 48 + 3 * h + 1) * 48 + 3 * w + 1;
                same += usize::from(coarse.labels[(d * 16 + h) * 16 + w] == fine.labels[at]);
            }
        }
    }
    assert_eq!(same, 4096);
}

#[test]
fn samples_are_functions_of_seed_and_index() {
    assert_eq!(volume(16, 7), volume(16, 7));
    assert_ne!(volume(16, 7), volume(16, 8));
    let other = make_segmented(&SegmentationSpec { grid: 16, seed: 4 }, 7);
    assert_ne!(volume(16, 7), other.unwrap_or_else(|e| panic!("{e}")));
    assert_eq!(picture(32, 10, 7), picture(32, 10, 7));
    assert_ne!(picture(32, 10, 7), picture(32, 10, 17));
}

#[test]
fn classes_take_turns_and_have_names_of_their_own() {
    for (index, classes, class) in [(0, 10, 0), (13, 10, 3), (999, 1000, 999), (1000, 1000, 0)] {
        assert_eq!(picture(16, classes, index).class, class);
    }
    let mut names = class_names(1000);
    assert_eq!(names[3], "ring");
    assert_eq!(names[423], "ring-2-4");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 1000);
}

/// Pixels of the ground have its color: a figure is where the corner's color is not.
#[test]
fn figures_fill_what_their_shapes_do() {
    // Share of the square about a figure's circle: disk, bar, cross, ring, triangle.
    let shares = [PI / 4.0, 0.275, 0.42, 0.548, 0.325];
    for (class, share) in (0..).zip(shares) {
        let mut sum = 0.0;
        for turn in 0..40 {
            let picture = picture(64, 10, class + 10 * turn);
            let red = &picture.values[..4096];
            // Noise has deviation 20 and colors differ by 60 or more.
            let corner = red[..64].iter().map(|&v| f64::from(v)).sum::<f64>() / 64.0;
            let far = |&&v: &&i16| (f64::from(v) - corner).abs() > 35.0;
            sum += red.iter().filter(far).count() as f64 / 4096.0;
        }
        // Radii are 0.22 to 0.36; their mean square is 0.0857. Noise adds 8 % of the ground.
        let expected = 4.0 * 0.0857 * share;
        let found = sum / 40.0;
        let noise = 0.08 * (1.0 - expected);
        assert!(
            (found - noise - expected).abs() < 0.04,
            "{class}: {found} {expected}"
        );
    }
}

const PI: f64 = std::f64::consts::PI;

#[test]
fn specifications_beyond_their_limits_are_refused() {
    let volume = make_segmented(&SegmentationSpec { grid: 4, seed: 1 }, 0);
    assert!(matches!(
        volume,
        Err(SynthError::InvalidSpec { field: "grid", .. })
    ));
    for (size, classes, expected) in [(8, 10, "size"), (32, 1, "classes"), (32, 1001, "classes")] {
        let spec = ShapesSpec {
            size,
            classes,
            seed: 1,
        };
        match make_picture(&spec, 0) {
            Err(SynthError::InvalidSpec { field, .. }) => assert_eq!(field, expected),
            other => panic!("{other:?}"),
        }
    }
}
