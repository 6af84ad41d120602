//! The kernels on bf16 against plain f64 loops: all levels, thread counts, random geometries.
//!
//! Most values are small integers, so that every sum is exact and outputs are the exact ones, rounded.

use crate::naive;

use half::bf16;
use naive::random_epilogue::RandomEpilogue;
use naive::{Case, Random, assert_box, buffer, call, teams};
use partita_cpu::{
    Convolution, Epilogue, Grid, Team, View, ViewMut, Weights, Window, accumulate_bf16,
    bias_backward_bf16, conv_backward_data_bf16, conv_backward_data_scratch_bf16,
    conv_backward_weight_bf16, conv_backward_weight_scratch_bf16, conv_forward_bf16,
    conv_forward_scratch_bf16, copy_bf16, fill_bf16, pack_backward_data_bf16, pack_forward_bf16,
    packed_backward_data_elements_bf16, packed_forward_elements_bf16,
};

const CASES: u64 = 120;

fn narrow(all: &[f32]) -> Vec<bf16> {
    all.iter().map(|a| bf16::from_f32(*a)).collect()
}

fn widen(all: &[bf16]) -> Vec<f32> {
    all.iter().map(|a| a.to_f32()).collect()
}

fn round(all: &mut [f64]) {
    all.iter_mut()
        .for_each(|a| *a = bf16::from_f64(*a).to_f64());
}

/// The packed weights of a case.
fn pack(team: &mut Team, case: &Case, backward: bool) -> Vec<f32> {
    let (c, f, conv) = (case.xg.channels, case.yg.channels, &case.conv);
    let elements = if backward {
        packed_backward_data_elements_bf16(team.level(), conv, c, f)
    } else {
        packed_forward_elements_bf16(team.level(), conv, c, f)
    };
    let mut packed = vec![f32::NAN; elements];
    call(team, 0, |k| {
        if backward {
            pack_backward_data_bf16(k, &case.w, &mut packed, conv, c, f)
        } else {
            pack_forward_bf16(k, &case.w, &mut packed, conv, c, f)
        }
    });
    packed
}

#[test]
fn forward() {
    for seed in 0..CASES {
        println!("seed {seed}");
        let mut random = Random(seed);
        let case = Case::new(&mut random);
        let accumulate = seed % 2 == 1;
        let (c, f, conv) = (case.xg.channels, case.yg.channels, &case.conv);
        let start = buffer(&case.yg, || random.whole());
        let mut want = case.forward();
        if accumulate {
            naive::add_before(&case.yg, &mut want, &start);
        }
        let epilogue = RandomEpilogue::new(&mut random, &case.yg);
        epilogue.apply(&case.yg, &mut want);
        round(&mut want);
        let x = narrow(&case.x);
        for team in &mut teams() {
            let what = format!("seed {seed} {:?} {}", team.level(), team.threads());
            for packed in [false, true] {
                let (mut y, mut sums) = (narrow(&start), epilogue.sums());
                let weights = packed.then(|| pack(team, &case, false));
                let w = match &weights {
                    Some(w) => Weights::Packed(w),
                    None => Weights::Plain(&case.w),
                };
                let o = case.yg.positions();
                let need = conv_forward_scratch_bf16(team.kind(), conv, c, f, o, packed);
                let need = need + epilogue.scratch(team, conv, f);
                let (x, yv) = (View::new(&x, &case.xg), ViewMut::new(&mut y, &case.yg));
                let work = call(team, need, |k| {
                    epilogue.with_bf16(&mut sums, |e| {
                        conv_forward_bf16(k, x, w, yv, conv, accumulate, e)
                    })
                });
                assert_box(&case.yg, &widen(&y), &want, None, &what);
                epilogue.assert_sums(&case.yg, &want, &sums, &what);
                assert_eq!(work.flops, 2 * (case.yg.positions() * case.w.len()) as u64);
            }
        }
    }
}

#[test]
fn backward_data() {
    for seed in 0..CASES {
        println!("seed {seed}");
        let mut random = Random(seed + 1000);
        let case = Case::new(&mut random);
        let accumulate = seed % 2 == 1;
        // Any box: beyond dy on all sides, or inside so that dy is complete.
        let extent = [
            random.within(1, 6),
            random.within(1, 7),
            random.within(1, 12),
        ];
        let dxg = random.grid(case.yg.samples, extent, case.xg.channels);
        let shift = [0; 3].map(|_: i64| random.within(0, 10) as i64 - 5);
        let start = buffer(&dxg, || random.whole());
        let mut want = case.data(&dxg, shift);
        if accumulate {
            naive::add_before(&dxg, &mut want, &start);
        }
        let epilogue = RandomEpilogue::new(&mut random, &dxg);
        epilogue.apply(&dxg, &mut want);
        round(&mut want);
        let (c, f, conv) = (case.xg.channels, case.yg.channels, &case.conv);
        let dy = narrow(&case.dy);
        for team in &mut teams() {
            let what = format!("seed {seed} {:?} {}", team.level(), team.threads());
            for packed in [false, true] {
                let (mut dx, mut sums) = (narrow(&start), epilogue.sums());
                let weights = packed.then(|| pack(team, &case, true));
                let w = match &weights {
                    Some(w) => Weights::Packed(w),
                    None => Weights::Plain(&case.w),
                };
                let i = dxg.positions();
                let need = conv_backward_data_scratch_bf16(team.kind(), conv, c, f, i, packed);
                let need = need + epilogue.scratch(team, conv, c);
                let (dy, dxv) = (View::new(&dy, &case.yg), ViewMut::new(&mut dx, &dxg));
                call(team, need, |k| {
                    epilogue.with_bf16(&mut sums, |e| {
                        conv_backward_data_bf16(k, dy, w, dxv, conv, shift, accumulate, e)
                    })
                });
                assert_box(&dxg, &widen(&dx), &want, None, &what);
                epilogue.assert_sums(&dxg, &want, &sums, &what);
            }
        }
    }
}

#[test]
fn backward_weight() {
    for seed in 0..CASES {
        println!("seed {seed}");
        let mut random = Random(seed + 2000);
        let case = Case::new(&mut random);
        let (accumulate, biased) = (seed % 2 == 1, seed % 3 > 0);
        let start: Vec<f32> = case.w.iter().map(|_| random.whole()).collect();
        compare_weights(seed, &case, start, accumulate, biased);
    }
}

/// More positions than a block has, and more output channels than are packed at a time.
#[test]
fn weight_gradients_of_many_blocks() {
    let cases = [
        (1, (3, 1), [23, 22], (7, 80)),
        (3, (3, 2), [31, 27], (3, 75)),
        (1, (1, 1), [21, 20], (30, 1100)),
        (24, (3, 1), [25, 24], (24, 24)),
    ];
    for (seed, (groups, window, extent, channels)) in cases.into_iter().enumerate() {
        println!("seed {seed}");
        let mut random = Random(seed as u64 + 6000);
        let case = planar(&mut random, groups, window, extent, channels, Random::whole);
        let start = vec![f32::NAN; case.w.len()];
        compare_weights(seed as u64, &case, start, false, true);
    }
}

/// The weight gradient of a case on all teams, exactly.
fn compare_weights(seed: u64, case: &Case, mut start: Vec<f32>, accumulate: bool, biased: bool) {
    let f = case.yg.channels;
    let mut want = case.weight();
    let mut sums = vec![0.0; f];
    for (n, at) in naive::positions(&case.yg) {
        let o = naive::offset(&case.yg, n, at);
        (0..f).for_each(|i| sums[i] += f64::from(case.dy[o + i]));
    }
    want.extend(sums);
    start.extend((0..f).map(|i| i as f32));
    let (x, dy) = (narrow(&case.x), narrow(&case.dy));
    for team in &mut teams() {
        let mut got = start.clone();
        let (dw, db) = got.split_at_mut(case.w.len());
        let need = conv_backward_weight_scratch_bf16(team.kind(), &case.conv, &case.xg, f);
        let (x, dy) = (View::new(&x, &case.xg), View::new(&dy, &case.yg));
        call(team, need, |k| {
            let db = biased.then_some(db);
            conv_backward_weight_bf16(k, x, dy, dw, db, &case.conv, accumulate)
        });
        for (i, got) in got.iter().enumerate() {
            let before = f64::from(start[i]);
            let want = match (i < case.w.len() || biased, accumulate) {
                (true, true) => want[i] + before,
                (true, false) => want[i],
                (false, _) => before,
            };
            let what = (seed, team.level(), team.threads(), i);
            assert!(f64::from(*got) == want, "{what:?}: {got} not {want}");
        }
    }
}

/// A dense case of these groups, with as many taps in H and W and a stride, on a plane of outputs.
fn planar(
    random: &mut Random,
    groups: usize,
    (taps, stride): (usize, usize),
    [h, w]: [usize; 2],
    (c, f): (usize, usize),
    mut value: impl FnMut(&mut Random) -> f32,
) -> Case {
    let window = Window {
        kernel: [1, taps, taps],
        stride: [1, stride, stride],
        dilation: [1; 3],
    };
    let (conv, yg) = (Convolution { window, groups }, Grid::dense(1, [1, h, w], f));
    let xg = Grid::dense(1, window.input_extent(yg.extent), c);
    let weights = conv.weight_elements(c, f);
    Case {
        x: buffer(&xg, || value(random)),
        dy: buffer(&yg, || value(random)),
        w: (0..weights).map(|_| value(random)).collect(),
        conv,
        xg,
        yg,
    }
}

/// Outputs and data gradient of a case, on a team.
fn both(team: &mut Team, case: &Case) -> [Vec<f32>; 2] {
    let (c, f, conv) = (case.xg.channels, case.yg.channels, &case.conv);
    let kind = team.kind();
    let (w, none) = (Weights::Plain(&case.w), Epilogue::default);
    let mut y = narrow(&vec![f32::NAN; case.dy.len()]);
    let need = conv_forward_scratch_bf16(kind, conv, c, f, case.yg.positions(), false);
    let x = narrow(&case.x);
    let (from, to) = (View::new(&x, &case.xg), ViewMut::new(&mut y, &case.yg));
    call(team, need, |k| {
        conv_forward_bf16(k, from, w, to, conv, false, none())
    });
    let mut dx = narrow(&vec![f32::NAN; case.x.len()]);
    let need = conv_backward_data_scratch_bf16(kind, conv, c, f, case.xg.positions(), false);
    let dy = narrow(&case.dy);
    let (from, to) = (View::new(&dy, &case.yg), ViewMut::new(&mut dx, &case.xg));
    call(team, need, |k| {
        conv_backward_data_bf16(k, from, w, to, conv, [0; 3], false, none())
    });
    [widen(&y), widen(&dx)]
}

/// More rows than a sweep has, with weights that are packed in advance or by each thread.
#[test]
fn sums_of_several_sweeps_are_rounded_once() {
    let cases = [
        (1, (3, 1), [5, 11], (180, 170)),
        (2, (3, 2), [6, 9], (282, 300)),
        (1, (1, 1), [7, 7], (1100, 130)),
        (1, (3, 1), [23, 22], (131, 66)),
        (1, (3, 1), [23, 22], (140, 66)),
    ];
    for (seed, (groups, window, extent, channels)) in cases.into_iter().enumerate() {
        println!("seed {seed}");
        let mut random = Random(seed as u64 + 4000);
        let case = planar(&mut random, groups, window, extent, channels, Random::whole);
        let mut want = [case.forward(), case.data(&case.xg, [0; 3])];
        want.iter_mut().for_each(|want| round(want));
        for team in &mut teams() {
            let what = format!("{seed} {:?} {}", team.level(), team.threads());
            let [y, dx] = both(team, &case);
            assert_box(&case.yg, &y, &want[0], None, &what);
            assert_box(&case.xg, &dx, &want[1], None, &what);
        }
    }
}

/// Values of any magnitude: half a step of bf16, and the rounding of sums in f32.
#[test]
fn errors_are_those_of_one_rounding() {
    for seed in 0..12 {
        println!("seed {seed}");
        let mut random = Random(seed + 5000);
        let channels = (random.pick(&[3, 16, 64, 141]), random.pick(&[8, 40, 64]));
        let window = (random.pick(&[1, 3]), random.pick(&[1, 2]));
        let value = |random: &mut Random| random.unit() - 0.5;
        let mut case = planar(&mut random, 1, window, [9, 13], channels, value);
        let weights = case.w.clone();
        for values in [&mut case.x, &mut case.dy, &mut case.w] {
            *values = widen(&narrow(values));
        }
        let want = [case.forward(), case.data(&case.xg, [0; 3])];
        // Sums of the magnitudes, by the same loops.
        let mut sizes = case;
        for values in [&mut sizes.x, &mut sizes.dy, &mut sizes.w] {
            values.iter_mut().for_each(|a| *a = a.abs());
        }
        let bounds = [sizes.forward(), sizes.data(&sizes.xg, [0; 3])];
        let mut random = Random(seed + 5000);
        let channels = (random.pick(&[3, 16, 64, 141]), random.pick(&[8, 40, 64]));
        let window = (random.pick(&[1, 3]), random.pick(&[1, 2]));
        let mut case = planar(&mut random, 1, window, [9, 13], channels, value);
        case.w = weights;
        let terms = [case.conv.weight_elements(case.xg.channels, 1), {
            case.conv.window.volume() * case.yg.channels
        }];
        for team in &mut teams() {
            let got = both(team, &case);
            for direction in 0..2 {
                let elements = [case.yg.elements(), case.xg.elements()][direction];
                for (i, got) in got[direction][..elements].iter().enumerate() {
                    let (want, size) = (want[direction][i], bounds[direction][i]);
                    let sums = terms[direction] as f64 * f64::from(f32::EPSILON) * size;
                    let bound = want.abs() * 2f64.powi(-8) + 1.01 * sums;
                    let error = (f64::from(*got) - want).abs();
                    let level = team.level();
                    assert!(
                        got.is_nan() || error <= bound,
                        "{level:?} {i}: {got} not {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn copies_sums_and_constants() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = Random(seed + 7000);
        let extent = [1, 4, 9].map(|most| random.within(1, most));
        let (n, c) = (random.within(1, 2), random.within(1, 40));
        let (xg, yg) = (random.grid(n, extent, c), random.grid(n, extent, c));
        let (x, start) = (
            buffer(&xg, || random.whole()),
            buffer(&yg, || random.whole()),
        );
        for team in &mut teams() {
            let what = format!("seed {seed} {:?} {}", team.level(), team.threads());
            let x = narrow(&x);
            let [mut copied, mut added, mut filled] = [(); 3].map(|()| narrow(&start));
            call(team, 0, |k| {
                copy_bf16(k, View::new(&x, &xg), ViewMut::new(&mut copied, &yg))?;
                accumulate_bf16(k, View::new(&x, &xg), ViewMut::new(&mut added, &yg))?;
                fill_bf16(k, bf16::ONE, ViewMut::new(&mut filled, &yg))
            });
            let x = naive::inside(&xg, &widen(&x));
            let before = naive::inside(&yg, &start);
            let sums: Vec<f32> = x.iter().zip(&before).map(|(x, y)| x + y).collect();
            let ones = vec![1.0; x.len()];
            for (got, want) in [(&copied, &x), (&added, &sums), (&filled, &ones)] {
                naive::assert_untouched_outside(&yg, &widen(got));
                assert_eq!(naive::inside(&yg, &widen(got)), *want, "{what}");
            }
        }
    }
}

#[test]
fn bias_gradients_are_sums() {
    for (seed, (extent, c)) in [([1, 3, 3], 19), ([4, 9, 31], 40)].into_iter().enumerate() {
        let mut random = Random(seed as u64 + 8000);
        let grid = random.grid(2, extent, c);
        let dy = buffer(&grid, || random.whole());
        let mut want = vec![1.0; c];
        for row in naive::inside(&grid, &dy).chunks(c) {
            want.iter_mut().zip(row).for_each(|(sum, a)| *sum += a);
        }
        let dy = narrow(&dy);
        for team in &mut teams() {
            let mut db = vec![1.0; c];
            call(team, 0, |k| {
                bias_backward_bf16(k, View::new(&dy, &grid), &mut db, true)
            });
            assert_eq!(db, want, "{:?}", team.level());
        }
    }
}
