//! Maps against their definitions, block by block.

use super::*;

fn taps_of(map: &Resampling, output: i64, extent: usize) -> Vec<(usize, f64)> {
    let mut taps = Vec::new();
    map.taps(output, extent, |input, weight| taps.push((input, weight)));
    taps
}

/// Maps of `extent` inputs, with the number of their outputs.
fn maps(extent: usize) -> Vec<(Resampling, usize)> {
    let mut maps = Vec::new();
    for factor in 1..5 {
        maps.push((Resampling::nearest(factor), extent * factor));
        for align_corners in [false, true] {
            let linear = Resampling::linear(extent, factor, align_corners);
            maps.push((linear, extent * factor));
        }
    }
    for outputs in 1..2 * extent + 2 {
        maps.push((Resampling::average(extent, outputs), outputs));
    }
    for rule in [
        ResampleRule::Nearest,
        ResampleRule::Zero,
        ResampleRule::Reflect,
    ] {
        let most = if rule == ResampleRule::Reflect {
            extent - 1
        } else {
            extent + 2
        };
        for low in 0..=most {
            for high in [0, most / 2, most] {
                maps.push((Resampling::pad(rule, low), low + extent + high));
            }
        }
    }
    maps
}

/// Every output of every block reads in the block's inputs what it reads of all inputs.
#[test]
fn a_block_of_outputs_reads_the_same_of_its_block_of_inputs() {
    let mut checked = 0;
    for extent in 1..8 {
        for (map, outputs) in maps(extent) {
            for start in 0..outputs as i64 {
                for end in start + 1..=outputs as i64 {
                    let inputs = map.inputs_of(&Interval::new(start, end), extent);
                    assert!(!inputs.is_empty() && 0 <= inputs.start);
                    assert!(inputs.end <= extent as i64, "{map:?} {inputs:?}");
                    let local = map.local(start, inputs.start);
                    let count = (end - start) as usize;
                    assert!(local.fits(inputs.len(), count), "{map:?} {start}..{end}");
                    let mut taps = 0;
                    for output in start..end {
                        let all = taps_of(&map, output, extent);
                        let mut part = taps_of(&local, output - start, inputs.len());
                        part.iter_mut()
                            .for_each(|tap| tap.0 += inputs.start as usize);
                        assert_eq!(part, all, "{map:?} of {extent}, {start}..{end}");
                        taps += all.len().max(1) as u128;
                        checked += 1;
                    }
                    assert_eq!(local.tap_count(count), taps, "{map:?} {start}..{end}");
                }
            }
        }
    }
    assert!(checked > 100_000, "{checked}");
}

#[test]
fn outputs_of_an_input_are_all_that_read_it() {
    for extent in 1..8 {
        for (map, outputs) in maps(extent) {
            for input in 0..extent {
                let found = map.outputs_of(input, extent, outputs);
                assert!(found.is_empty() || 0 <= found.start);
                assert!(found.end <= outputs as i64, "{map:?} {found:?}");
                for output in 0..outputs as i64 {
                    let taps = taps_of(&map, output, extent);
                    let reads = taps.iter().any(|tap| tap.0 == input);
                    let is_found = found.start <= output && output < found.end;
                    assert!(is_found || !reads, "{map:?} {input} {output}");
                }
            }
        }
    }
}

#[test]
fn positions_are_those_of_pytorch() {
    for extent in 2..9 {
        for factor in 2..5 {
            for output in 0..(extent * factor) as i64 {
                let centers = (output as f64 + 0.5) / factor as f64 - 0.5;
                let corners = output as f64 * (extent - 1) as f64 / (extent * factor - 1) as f64;
                for (align_corners, position) in [(false, centers.max(0.0)), (true, corners)] {
                    let map = Resampling::linear(extent, factor, align_corners);
                    let taps = taps_of(&map, output, extent);
                    let mean: f64 = taps.iter().map(|(i, weight)| *i as f64 * weight).sum();
                    let expected = position.min((extent - 1) as f64);
                    assert!((mean - expected).abs() < 1e-12, "{map:?} {output}");
                }
            }
        }
        for outputs in 1..12usize {
            let map = Resampling::average(extent, outputs);
            for output in 0..outputs {
                let inputs: Vec<usize> = taps_of(&map, output as i64, extent)
                    .iter()
                    .map(|tap| tap.0)
                    .collect();
                let (start, end) = (
                    output * extent / outputs,
                    ((output + 1) * extent).div_ceil(outputs),
                );
                assert_eq!(inputs, (start..end).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn padding_repeats_and_mirrors() {
    let of = |rule, outputs: i64| -> Vec<Option<usize>> {
        let map = Resampling::pad(rule, 2);
        let tap = |o| taps_of(&map, o, 3).first().map(|tap| tap.0);
        (0..outputs).map(tap).collect()
    };
    let all = |inputs: [usize; 7]| inputs.map(Some).to_vec();
    assert_eq!(of(ResampleRule::Nearest, 7), all([0, 0, 0, 1, 2, 2, 2]));
    assert_eq!(of(ResampleRule::Reflect, 7), all([2, 1, 0, 1, 2, 1, 0]));
    let zeros = [None, None, Some(0), Some(1), Some(2), None, None];
    assert_eq!(of(ResampleRule::Zero, 7), zeros);
}

#[test]
fn what_is_undefined_does_not_fit() {
    let reflect = Resampling::pad(ResampleRule::Reflect, 3);
    assert!(reflect.fits(4, 10));
    assert!(!reflect.fits(3, 8));
    assert!(!reflect.fits(4, 11));
    let average = Resampling::average(7, 3);
    assert!(average.fits(7, 3));
    assert!(!average.fits(6, 3));
    assert!(!average.local(0, 1).fits(7, 3));
    let huge = Resampling {
        shift: i64::MAX,
        ..Resampling::nearest(2)
    };
    assert!(!huge.fits(4, 8));
    let nowhere = Resampling {
        denominator: 0,
        ..Resampling::IDENTITY
    };
    assert!(!nowhere.fits(4, 4));
    assert!(!Resampling::nearest(2).fits(0, 1));
}
