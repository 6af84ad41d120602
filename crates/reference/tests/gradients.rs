//! Backward kernels against central differences of the forward kernels, in f64.

mod hand;

use hand::{Bench, Random, close};
use partita_program::{ClassTerms, Dtype, ElementFunction, Kernel, PoolKind, Taps, View};

const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-7;
/// Elements of each gradient that are looked at; under Miri a forward pass takes half a second.
const ELEMENTS: usize = if cfg!(miri) { 2 } else { usize::MAX };
/// Random shapes of each kernel.
const SHAPES: u64 = if cfg!(miri) { 1 } else { 12 };

/// Gradient of `sum(forward output * weights)` with respect to the first elements of `input`.
fn differences(
    bench: &mut Bench,
    input: &View,
    forward: &[Kernel],
    output: &View,
    weights: &[f64],
) -> Vec<f64> {
    let at = bench.get(input);
    let mut value_at = |values: &[f64]| {
        bench.set(input, values);
        for kernel in forward {
            bench.run(kernel);
        }
        let out = bench.get(output);
        out.iter().zip(weights).map(|(y, w)| y * w).sum::<f64>()
    };
    let mut gradient = Vec::new();
    for i in (0..at.len()).take(ELEMENTS) {
        let mut moved = at.clone();
        moved[i] = at[i] + STEP;
        let above = value_at(&moved);
        moved[i] = at[i] - STEP;
        gradient.push((above - value_at(&moved)) / (2.0 * STEP));
    }
    value_at(&at);
    gradient
}

/// Panics where the first elements of a view are not as expected.
fn near(bench: &mut Bench, view: &View, expected: &[f64]) {
    close(&bench.get(view)[..expected.len()], expected, TOLERANCE);
}

/// Runs a backward kernel twice, setting and adding.
fn check(bench: &mut Bench, target: &View, expected: &[f64], kernel: impl Fn(bool) -> Kernel) {
    bench.run(&kernel(false));
    near(bench, target, expected);
    bench.run(&kernel(true));
    let twice: Vec<_> = expected.iter().map(|x| 2.0 * x).collect();
    near(bench, target, &twice);
}

fn random_taps(random: &mut Random, dilated: bool) -> Taps {
    let dilation = if dilated { 2 } else { 1 };
    Taps {
        kernel: std::array::from_fn(|_| random.pick(1, 3)),
        stride: std::array::from_fn(|_| random.pick(1, 2)),
        dilation: std::array::from_fn(|_| random.pick(1, dilation)),
    }
}

#[test]
fn convolution_gradients() {
    for seed in 0..SHAPES {
        let mut random = Random::new(seed);
        let bench = &mut Bench::new();
        let taps = random_taps(&mut random, true);
        let groups = random.pick(1, 3);
        let (channels, filters) = (groups * random.pick(1, 2), groups * random.pick(1, 2));
        let out: [usize; 3] = std::array::from_fn(|_| random.pick(1, 3));
        let n = random.pick(1, 2);
        let input = |dim: usize| {
            (out[dim] - 1) * taps.stride[dim] + (taps.kernel[dim] - 1) * taps.dilation[dim] + 1
        };
        let x = bench.embedded(
            Dtype::F64,
            [n, input(0), input(1), input(2), channels],
            &mut random,
        );
        let dx = bench.embedded(Dtype::F64, x.extent, &mut random);
        let [kd, kh, kw] = taps.kernel;
        let w_extent = [kd, kh, kw, channels / groups, filters];
        let w = bench.embedded(Dtype::F64, w_extent, &mut random);
        let dw = bench.embedded(Dtype::F64, w_extent, &mut random);
        let bias = bench.embedded(Dtype::F64, [1, 1, 1, 1, filters], &mut random);
        let db = bench.embedded(Dtype::F64, [1, 1, 1, 1, filters], &mut random);
        let y_extent = [n, out[0], out[1], out[2], filters];
        let y = bench.embedded(Dtype::F64, y_extent, &mut random);
        let dy = bench.embedded(Dtype::F64, y_extent, &mut random);
        let weights = bench.get(&dy);
        let forward = [Kernel::ConvolutionForward {
            x,
            w,
            bias: Some(bias),
            y,
            taps,
            groups,
            accumulate: false,
        }];
        let expected = differences(bench, &x, &forward, &y, &weights);
        check(bench, &dx, &expected, |accumulate| {
            Kernel::ConvolutionBackwardData {
                dy,
                w,
                bias: None,
                dx,
                taps,
                shift: [0; 3],
                groups,
                accumulate,
            }
        });
        let expected = differences(bench, &w, &forward, &y, &weights);
        check(bench, &dw, &expected, |accumulate| {
            Kernel::ConvolutionBackwardWeight {
                x,
                dy,
                dw,
                taps,
                groups,
                accumulate,
            }
        });
        let expected = differences(bench, &bias, &forward, &y, &weights);
        check(bench, &db, &expected, |accumulate| Kernel::BiasBackward {
            dy,
            db,
            accumulate,
        });
    }
}

#[test]
fn transposed_convolution_gradients() {
    for seed in 0..SHAPES {
        let mut random = Random::new(50 + seed);
        let bench = &mut Bench::new();
        let taps = random_taps(&mut random, true);
        let groups = random.pick(1, 3);
        let (channels, filters) = (groups * random.pick(1, 2), groups * random.pick(1, 2));
        let extent: [usize; 3] = std::array::from_fn(|_| random.pick(1, 3));
        let output = |dim: usize| {
            (extent[dim] - 1) * taps.stride[dim] + (taps.kernel[dim] - 1) * taps.dilation[dim] + 1
        };
        let x_extent = [2, extent[0], extent[1], extent[2], channels];
        let y_extent = [2, output(0), output(1), output(2), filters];
        let [kd, kh, kw] = taps.kernel;
        let w_extent = [kd, kh, kw, filters / groups, channels];
        let mut tensor = |extent| bench.embedded(Dtype::F64, extent, &mut random);
        let [x, dx] = [0; 2].map(|_| tensor(x_extent));
        let [y, dy] = [0; 2].map(|_| tensor(y_extent));
        let [w, dw] = [0; 2].map(|_| tensor(w_extent));
        let [bias, db] = [0; 2].map(|_| tensor([1, 1, 1, 1, filters]));
        let weights = bench.get(&dy);
        let forward = [Kernel::ConvolutionBackwardData {
            dy: x,
            w,
            bias: Some(bias),
            dx: y,
            taps,
            shift: [0; 3],
            groups,
            accumulate: false,
        }];
        let expected = differences(bench, &x, &forward, &y, &weights);
        check(bench, &dx, &expected, |accumulate| {
            Kernel::ConvolutionForward {
                x: dy,
                w,
                bias: None,
                y: dx,
                taps,
                groups,
                accumulate,
            }
        });
        let expected = differences(bench, &w, &forward, &y, &weights);
        check(bench, &dw, &expected, |accumulate| {
            Kernel::ConvolutionBackwardWeight {
                x: dy,
                dy: x,
                dw,
                taps,
                groups,
                accumulate,
            }
        });
        let expected = differences(bench, &bias, &forward, &y, &weights);
        check(bench, &db, &expected, |accumulate| Kernel::BiasBackward {
            dy,
            db,
            accumulate,
        });
    }
}

#[test]
fn convolution_data_gradient_of_an_inner_part() {
    // A rank computes dx on its own rows from dy with halo: shift = start of dx - start of dy taps.
    let mut random = Random::new(3);
    let bench = &mut Bench::new();
    let taps = Taps {
        kernel: [1, 1, 3],
        stride: [1, 1, 2],
        dilation: [1; 3],
    };
    let w = bench.embedded(Dtype::F64, [1, 1, 3, 2, 2], &mut random);
    let dy = bench.embedded(Dtype::F64, [1, 1, 1, 4, 2], &mut random);
    let whole = bench.embedded(Dtype::F64, [1, 1, 1, 9, 2], &mut random);
    let part = bench.embedded(Dtype::F64, [1, 1, 1, 4, 2], &mut random);
    let kernel = |dx: View, shift: i64| Kernel::ConvolutionBackwardData {
        dy,
        w,
        bias: None,
        dx,
        taps,
        shift: [0, 0, shift],
        groups: 1,
        accumulate: false,
    };
    bench.run(&kernel(whole, 0));
    bench.run(&kernel(part, 3));
    let expected = bench.get(&whole)[6..14].to_vec();
    assert_eq!(bench.get(&part), expected);
    bench.run(&kernel(part, -2));
    let mut expected = vec![0.0; 4];
    expected.extend(&bench.get(&whole)[..4]);
    assert_eq!(bench.get(&part), expected);
}

#[test]
fn pool_gradients() {
    for seed in 0..SHAPES {
        for kind in [PoolKind::Max, PoolKind::AverageAll, PoolKind::AverageInside] {
            let mut random = Random::new(100 + seed);
            let bench = &mut Bench::new();
            let taps = random_taps(&mut random, false);
            let pad: [usize; 3] = std::array::from_fn(|dim| random.pick(0, taps.kernel[dim] / 2));
            let out: [usize; 3] = std::array::from_fn(|_| random.pick(2, 3));
            let input =
                |dim: usize| (out[dim] - 1) * taps.stride[dim] + taps.kernel[dim] - 2 * pad[dim];
            let c = random.pick(1, 3);
            let x = bench.embedded(
                Dtype::F64,
                [2, input(0), input(1), input(2), c],
                &mut random,
            );
            let dx = bench.embedded(Dtype::F64, x.extent, &mut random);
            let y = bench.embedded(Dtype::F64, [2, out[0], out[1], out[2], c], &mut random);
            let dy = bench.embedded(Dtype::F64, y.extent, &mut random);
            let weights = bench.get(&dy);
            let shift = pad.map(|pad| pad as i64);
            let forward = [Kernel::PoolForward {
                kind,
                x,
                y,
                taps,
                shift,
            }];
            let expected = differences(bench, &x, &forward, &y, &weights);
            check(bench, &dx, &expected, |accumulate| Kernel::PoolBackward {
                kind,
                x: (kind == PoolKind::Max).then_some(x),
                dy,
                dx,
                taps,
                shift,
                accumulate,
            });
        }
    }
}

#[test]
fn linear_gradients() {
    let mut random = Random::new(5);
    let bench = &mut Bench::new();
    // The input keeps its spatial extents; features count channels fastest.
    let x = bench.embedded(Dtype::F64, [3, 2, 1, 2, 3], &mut random);
    let dx = bench.embedded(Dtype::F64, x.extent, &mut random);
    let w = bench.embedded(Dtype::F64, [1, 1, 1, 12, 4], &mut random);
    let dw = bench.embedded(Dtype::F64, w.extent, &mut random);
    let bias = bench.embedded(Dtype::F64, [1, 1, 1, 1, 4], &mut random);
    let y = bench.embedded(Dtype::F64, [3, 1, 1, 1, 4], &mut random);
    let dy = bench.embedded(Dtype::F64, y.extent, &mut random);
    let weights = bench.get(&dy);
    let forward = [Kernel::LinearForward {
        x,
        w,
        bias: Some(bias),
        y,
    }];
    let expected = differences(bench, &x, &forward, &y, &weights);
    check(bench, &dx, &expected, |accumulate| {
        Kernel::LinearBackwardData {
            dy,
            w,
            dx,
            accumulate,
        }
    });
    let expected = differences(bench, &w, &forward, &y, &weights);
    check(bench, &dw, &expected, |accumulate| {
        Kernel::LinearBackwardWeight {
            x,
            dy,
            dw,
            accumulate,
        }
    });
}

#[test]
fn batch_norm_gradients() {
    let mut random = Random::new(6);
    let bench = &mut Bench::new();
    let x = bench.embedded(Dtype::F64, [2, 2, 1, 3, 3], &mut random);
    let dx = bench.embedded(Dtype::F64, x.extent, &mut random);
    let y = bench.embedded(Dtype::F64, x.extent, &mut random);
    let dy = bench.embedded(Dtype::F64, x.extent, &mut random);
    let vector = [1, 1, 1, 1, 3];
    let [gamma, beta, dgamma, dbeta] =
        [0; 4].map(|_| bench.embedded(Dtype::F64, vector, &mut random));
    let sums = bench.put(Dtype::F64, [1, 1, 1, 2, 3], &[0.0; 6]);
    let gradient_sums = bench.put(Dtype::F64, [1, 1, 1, 2, 3], &[0.0; 6]);
    let weights = bench.get(&dy);
    let (count, epsilon) = (12, 1e-3);
    let forward = [
        Kernel::BatchNormStatistics {
            x,
            sums,
            accumulate: false,
        },
        Kernel::BatchNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            count,
            epsilon,
        },
    ];
    let expected = differences(bench, &x, &forward, &y, &weights);
    bench.run(&Kernel::BatchNormBackwardStatistics {
        x,
        sums,
        dy,
        gradient_sums,
        count,
        epsilon,
        accumulate: false,
    });
    check(bench, &dx, &expected, |accumulate| {
        Kernel::BatchNormBackwardData {
            x,
            sums,
            gamma,
            dy,
            gradient_sums,
            dx,
            count,
            epsilon,
            accumulate,
        }
    });
    let of_gamma = differences(bench, &gamma, &forward, &y, &weights);
    let of_beta = differences(bench, &beta, &forward, &y, &weights);
    let parameters = |accumulate| Kernel::BatchNormBackwardParameters {
        gradient_sums,
        dgamma,
        dbeta,
        accumulate,
    };
    check(bench, &dgamma, &of_gamma, parameters);
    check(bench, &dbeta, &of_beta, parameters);
}

#[test]
fn batch_norm_gradients_by_running_statistics() {
    let mut random = Random::new(6);
    let bench = &mut Bench::new();
    let x = bench.embedded(Dtype::F64, [2, 2, 1, 3, 3], &mut random);
    let [y, dy, dx] = [0; 3].map(|_| bench.embedded(Dtype::F64, x.extent, &mut random));
    let vector = [1, 1, 1, 1, 3];
    let [gamma, beta] = [0; 2].map(|_| bench.embedded(Dtype::F64, vector, &mut random));
    let weights = bench.get(&dy);
    let epsilon = 1e-3;
    let mean = bench.embedded(Dtype::F64, vector, &mut random);
    let variance = bench.put(Dtype::F64, vector, &[0.5, 1.0, 3.0]);
    let forward = [Kernel::BatchNormInference {
        x,
        mean,
        variance,
        gamma,
        beta,
        y,
        epsilon,
    }];
    let expected = differences(bench, &x, &forward, &y, &weights);
    check(bench, &dx, &expected, |accumulate| {
        Kernel::BatchNormInferenceBackward {
            dy,
            variance,
            gamma,
            dx,
            epsilon,
            accumulate,
        }
    });
}

#[test]
fn leaky_relu_gradients() {
    let mut random = Random::new(7);
    let bench = &mut Bench::new();
    let [x, y, dy, dx] = [0; 4].map(|_| bench.embedded(Dtype::F64, [2, 2, 2, 2, 3], &mut random));
    let weights = bench.get(&dy);
    let negative_slope = 0.1;
    let forward = [Kernel::LeakyReluForward {
        x,
        y,
        negative_slope,
    }];
    let expected = differences(bench, &x, &forward, &y, &weights);
    let backward = |dx: View, accumulate| Kernel::LeakyReluBackward {
        y,
        dy,
        dx,
        negative_slope,
        accumulate,
    };
    check(bench, &dx, &expected, |accumulate| backward(dx, accumulate));
    bench.run(&backward(dy, false));
    near(bench, &dy, &expected);
    // In place forward gives the same values.
    let out = bench.get(&y);
    bench.run(&Kernel::LeakyReluForward {
        x,
        y: x,
        negative_slope,
    });
    assert_eq!(bench.get(&x), out);
}

#[test]
fn loss_gradients() {
    let mut random = Random::new(8);
    let bench = &mut Bench::new();
    let x = bench.embedded(Dtype::F64, [2, 1, 2, 2, 4], &mut random);
    let dx = bench.embedded(Dtype::F64, x.extent, &mut random);
    let target = bench.embedded(Dtype::F32, x.extent, &mut random);
    let loss = bench.put(Dtype::F64, [1; 5], &[0.0]);
    let squared = Kernel::MeanSquaredError {
        x,
        target,
        dx: Some(dx),
        loss,
        count: 64,
        weight: 1.0,
    };
    let expected = differences(bench, &x, std::slice::from_ref(&squared), &loss, &[1.0]);
    bench.run(&squared);
    near(bench, &dx, &expected);
    let classes = bench.embedded(Dtype::I16, [2, 1, 2, 2, 1], &mut random);
    bench.set(&classes, &[0.0, 1.0, 2.0, 3.0, 3.0, 0.0, 1.0, 1.0]);
    let entropy = Kernel::SoftmaxCrossEntropy {
        x,
        target: classes,
        dx: Some(dx),
        loss,
        count: 8,
        weight: 0.4,
        smoothing: 0.1,
    };
    let expected = differences(bench, &x, std::slice::from_ref(&entropy), &loss, &[1.0]);
    bench.run(&entropy);
    near(bench, &dx, &expected);
    for function in ElementFunction::ALL {
        let kernel = Kernel::ElementLoss {
            function,
            x,
            target,
            dx: Some(dx),
            loss,
            count: 64,
            weight: 0.4,
            weights: vec![1.0, 0.5, 0.0, 3.0],
        };
        let expected = differences(bench, &x, std::slice::from_ref(&kernel), &loss, &[1.0]);
        bench.run(&kernel);
        near(bench, &dx, &expected);
    }
    class_loss_gradients(bench, [x, classes, loss, dx]);
}

/// With the sums that the loss is a function of.
fn class_loss_gradients(bench: &mut Bench, [x, target, loss, dx]: [View; 4]) {
    let totals = bench.put(Dtype::F64, [1, 1, 1, 1, 4], &[0.0; 4]);
    for (batch, ignore) in [
        (false, None),
        (false, Some(1)),
        (true, Some(3)),
        (true, None),
    ] {
        let rows = if batch { 1 } else { 2 };
        let sums = bench.put(Dtype::F64, [rows, 1, 1, 3, 4], &vec![0.0; 12 * rows]);
        for (cross_entropy, dice, background) in
            [(1.0, 0.0, true), (0.0, 0.6, false), (0.5, 2.0, true)]
        {
            let kernels = [
                Kernel::ClassTotals {
                    x,
                    target,
                    totals,
                    ignore,
                },
                Kernel::DiceSums {
                    x,
                    target,
                    sums,
                    batch,
                    ignore,
                },
                Kernel::ClassLoss {
                    x,
                    target,
                    totals: Some(totals),
                    sums: (dice != 0.0).then_some(sums),
                    dx: Some(dx),
                    loss,
                    weight: 0.4,
                    terms: ClassTerms {
                        cross_entropy,
                        dice,
                        smoothing: 0.1,
                        smooth: 0.5,
                        background,
                        weights: vec![1.0, 0.5, 0.0, 3.0],
                        dice_weights: background.then(|| vec![2.0, 0.0, 1.0, 0.5]),
                        ignore,
                        all: 16,
                        summed: 8 / rows as u64,
                    },
                },
            ];
            let expected = differences(bench, &x, &kernels, &loss, &[1.0]);
            for kernel in &kernels {
                bench.run(kernel);
            }
            near(bench, &dx, &expected);
        }
    }
}
