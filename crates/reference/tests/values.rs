//! Kernels against values worked out by hand.

use crate::hand;

use hand::{Bench, Random, close};
use partita_program::random::unit_draw;
use partita_program::{Distribution, Dtype, Kernel, Optimizer, PoolKind, Taps, Transform};
use partita_run::RunError;
use partita_space::{Axis, AxisList, Mesh};

const LINE: Taps = Taps {
    kernel: [1, 1, 3],
    stride: [1; 3],
    dilation: [1; 3],
};

#[test]
fn convolution_with_groups_by_hand() {
    let bench = &mut Bench::new();
    let x = bench.put(
        Dtype::F32,
        [1, 1, 1, 3, 2],
        &[1.0, 10.0, 2.0, 20.0, 3.0, 30.0],
    );
    let weights: Vec<f64> = (1..=6).map(f64::from).collect();
    let w = bench.put(Dtype::F32, [1, 1, 3, 1, 2], &weights);
    let bias = bench.put(Dtype::F32, [1, 1, 1, 1, 2], &[0.5, -1.0]);
    let y = bench.put(Dtype::F32, [1, 1, 1, 1, 2], &[0.0; 2]);
    bench.run_as::<f32>(&Kernel::ConvolutionForward {
        x,
        w,
        bias: Some(bias),
        y,
        taps: LINE,
        groups: 2,
        accumulate: false,
    });
    // Group 0 sees weights 1, 3, 5 on 1, 2, 3; group 1 sees 2, 4, 6 on 10, 20, 30.
    assert_eq!(bench.get(&y), [22.5, 279.0]);
}

#[test]
fn a_single_input_meets_the_weight_of_its_tap() {
    let bench = &mut Bench::new();
    let taps = Taps {
        kernel: [2, 2, 3],
        stride: [1, 3, 2],
        dilation: [2, 1, 2],
    };
    let x = bench.put(Dtype::F64, [1, 4, 5, 7, 1], &[0.0; 140]);
    // The weight of tap (d, h, w) is 100 (d + 1) + 10 (h + 1) + w + 1.
    let weights = [
        111., 112., 113., 121., 122., 123., 211., 212., 213., 221., 222., 223.,
    ];
    let w = bench.put(Dtype::F64, [2, 2, 3, 1, 1], &weights);
    let y = bench.put(Dtype::F64, [1, 2, 2, 2, 1], &[0.0; 8]);
    let mut answer = |[d, h, w_at]: [usize; 3]| {
        let mut values = vec![0.0; 140];
        values[(d * 5 + h) * 7 + w_at] = 1.0;
        bench.set(&x, &values);
        bench.run(&Kernel::ConvolutionForward {
            x,
            w,
            bias: None,
            y,
            taps,
            groups: 1,
            accumulate: false,
        });
        bench.get(&y)
    };
    assert_eq!(answer([0, 0, 0]), [111., 0., 0., 0., 0., 0., 0., 0.]);
    // Along w, input 4 is tap 2 of output 0 and tap 1 of output 1.
    assert_eq!(answer([0, 0, 4]), [113., 112., 0., 0., 0., 0., 0., 0.]);
    // Along h, input 4 is tap 1 of output 1; along d, input 3 is tap 1 of output 1.
    assert_eq!(answer([3, 4, 2]), [0., 0., 0., 0., 0., 0., 222., 221.]);
    assert_eq!(answer([0, 2, 0]), [0.; 8], "between the strides");
}

#[test]
fn pooling_at_the_border_by_hand() {
    let bench = &mut Bench::new();
    let x = bench.put(Dtype::F64, [1, 1, 1, 4, 1], &[-3.0, -1.0, -1.0, -6.0]);
    let y = bench.put(Dtype::F64, [1, 1, 1, 4, 1], &[0.0; 4]);
    let mut pool = |kind| {
        bench.run(&Kernel::PoolForward {
            kind,
            x,
            y,
            taps: LINE,
            shift: [0, 0, 1],
        });
        bench.get(&y)
    };
    assert_eq!(pool(PoolKind::Max), [-1.0, -1.0, -1.0, -1.0]);
    close(
        &pool(PoolKind::AverageAll),
        &[-4.0 / 3.0, -5.0 / 3.0, -8.0 / 3.0, -7.0 / 3.0],
        1e-15,
    );
    close(
        &pool(PoolKind::AverageInside),
        &[-2.0, -5.0 / 3.0, -8.0 / 3.0, -3.5],
        1e-15,
    );
    let dy = bench.put(Dtype::F64, [1, 1, 1, 4, 1], &[1.0, 2.0, 4.0, 8.0]);
    let dx = bench.put(Dtype::F64, [1, 1, 1, 4, 1], &[9.0; 4]);
    bench.run(&Kernel::PoolBackward {
        kind: PoolKind::Max,
        x: Some(x),
        dy,
        dx,
        taps: LINE,
        shift: [0, 0, 1],
        accumulate: false,
    });
    // The tie between elements 1 and 2 goes to the first wherever both are seen.
    assert_eq!(bench.get(&dx), [0.0, 7.0, 8.0, 0.0]);
}

#[test]
fn batch_norm_by_hand() {
    let bench = &mut Bench::new();
    let x = bench.put(Dtype::F64, [4, 1, 1, 1, 1], &[1.0, 2.0, 3.0, 6.0]);
    let sums = bench.put(Dtype::F64, [1, 1, 1, 2, 1], &[7.0; 2]);
    let mean = bench.put(Dtype::F64, [1; 5], &[1.0]);
    let variance = bench.put(Dtype::F64, [1; 5], &[2.0]);
    let gamma = bench.put(Dtype::F64, [1; 5], &[2.0]);
    let beta = bench.put(Dtype::F64, [1; 5], &[0.5]);
    let y = bench.put(Dtype::F64, [4, 1, 1, 1, 1], &[0.0; 4]);
    bench.run(&Kernel::BatchNormStatistics {
        x,
        sums,
        accumulate: false,
    });
    assert_eq!(bench.get(&sums), [12.0, 50.0]);
    bench.run(&Kernel::BatchNormForward {
        x,
        sums,
        gamma,
        beta,
        y,
        count: 4,
        epsilon: 0.5,
    });
    // Mean 3, biased variance 3.5.
    assert_eq!(bench.get(&y), [-1.5, -0.5, 0.5, 3.5]);
    bench.run(&Kernel::BatchNormRunning {
        sums,
        mean,
        variance,
        count: 4,
        momentum: 0.25,
    });
    close(&bench.get(&mean), &[1.5], 1e-15);
    close(
        &bench.get(&variance),
        &[1.5 + 0.25 * 3.5 * 4.0 / 3.0],
        1e-15,
    );
    bench.set(&variance, &[3.5]);
    bench.run(&Kernel::BatchNormInference {
        x,
        mean,
        variance,
        gamma,
        beta,
        y,
        epsilon: 0.5,
    });
    close(&bench.get(&y), &[0.0, 1.0, 2.0, 5.0], 1e-15);
}

#[test]
fn losses_and_errors_by_hand() {
    let bench = &mut Bench::new();
    let x = bench.put(Dtype::F64, [2, 1, 1, 1, 2], &[1.0, 2.0, 3.0, 5.0]);
    let target = bench.put(Dtype::F64, [2, 1, 1, 1, 2], &[0.0, 4.0, 3.0, 4.0]);
    let loss = bench.put(Dtype::F64, [1; 5], &[0.0]);
    let errors = bench.put(Dtype::F64, [1, 1, 1, 2, 2], &[0.0; 4]);
    bench.run(&Kernel::MeanSquaredError {
        x,
        target,
        dx: None,
        loss,
        count: 8,
        weight: 0.5,
    });
    assert_eq!(bench.get(&loss), [0.375]);
    bench.run(&Kernel::OutputErrors {
        x,
        target,
        errors,
        logistic: false,
    });
    assert_eq!(bench.get(&errors), [1.0, 3.0, 1.0, 5.0]);
    let classes = bench.put(Dtype::I16, [2, 1, 1, 1, 1], &[0.0, 1.0]);
    let entropy = Kernel::SoftmaxCrossEntropy {
        x,
        target: classes,
        dx: None,
        loss,
        count: 2,
        weight: 1.0,
        smoothing: 0.0,
    };
    bench.run(&entropy);
    let expected = ((1.0 + 1f64.exp()).ln() + (1.0 + (-2f64).exp()).ln()) / 2.0;
    close(&bench.get(&loss), &[expected], 1e-14);
    let counts = bench.put(Dtype::F64, [1, 1, 1, 3, 2], &[7.0; 6]);
    let count = Kernel::ClassCounts {
        x,
        target: classes,
        counts,
        ignore: None,
    };
    bench.run(&count);
    // Both positions are given to class 1; one of them is of it, the other of class 0.
    assert_eq!(bench.get(&counts), [0.0, 1.0, 0.0, 2.0, 1.0, 1.0]);
    bench.set(&x, &[4.0, 4.0, 3.0, 5.0]);
    bench.run(&count);
    assert_eq!(bench.get(&counts), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    bench.set(&classes, &[0.0, 2.0]);
    let error = bench.try_run::<f64>(&count, 0, &mut || true).unwrap_err();
    assert!(matches!(error, RunError::Source { .. }), "{error}");
    let error = bench.try_run::<f64>(&entropy, 0, &mut || true).unwrap_err();
    assert!(matches!(error, RunError::Source { .. }), "{error}");
}

#[test]
fn optimizers_by_hand() {
    let bench = &mut Bench::new();
    bench.inputs.learning_rate = 0.1;
    let parameter = bench.put(Dtype::F64, [1, 1, 1, 1, 2], &[1.0, -2.0]);
    let gradient = bench.put(Dtype::F64, [1, 1, 1, 1, 2], &[3.0, 4.0]);
    let first = bench.put(Dtype::F64, [1, 1, 1, 1, 2], &[0.0; 2]);
    let total = bench.put(Dtype::F64, [1; 5], &[0.0]);
    bench.run(&Kernel::SumOfSquares {
        sources: vec![gradient, gradient],
        total,
    });
    assert_eq!(bench.get(&total), [50.0]);
    bench.set(&total, &[25.0]);
    let sgd = Kernel::Update {
        rule: Optimizer::Sgd {
            momentum: 0.5,
            weight_decay: 0.1,
        },
        parameter,
        gradient,
        moments: vec![first],
        norms: None,
        clip: None,
    };
    bench.run(&sgd);
    close(&bench.get(&parameter), &[1.0 - 0.31, -2.0 - 0.38], 1e-15);
    bench.run(&sgd);
    // Velocity 3.1 / 2 + 3 + 0.069 and 3.8 / 2 + 4 - 0.238.
    close(
        &bench.get(&parameter),
        &[0.69 - 0.4619, -2.38 - 0.5662],
        1e-14,
    );
    bench.set(&parameter, &[1.0, -2.0]);
    let plain = |clip| Kernel::Update {
        rule: Optimizer::Sgd {
            momentum: 0.0,
            weight_decay: 0.0,
        },
        parameter,
        gradient,
        moments: vec![],
        norms: None,
        clip,
    };
    bench.run(&plain(Some((total, 1.0))));
    let scale = 1.0 / (5.0 + 1e-6);
    close(
        &bench.get(&parameter),
        &[1.0 - 0.3 * scale, -2.0 - 0.4 * scale],
        1e-15,
    );
    bench.set(&parameter, &[1.0, -2.0]);
    bench.run(&plain(Some((total, 6.0))));
    close(&bench.get(&parameter), &[0.7, -2.4], 1e-15);
}

#[test]
fn adam_by_hand() {
    let bench = &mut Bench::new();
    bench.inputs.learning_rate = 0.1;
    let parameter = bench.put(Dtype::F64, [1; 5], &[1.0]);
    let gradient = bench.put(Dtype::F64, [1; 5], &[2.0]);
    let moments = vec![
        bench.put(Dtype::F64, [1; 5], &[0.0]),
        bench.put(Dtype::F64, [1; 5], &[0.0]),
    ];
    let update = Kernel::Update {
        rule: Optimizer::Adam {
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.0,
        },
        parameter,
        gradient,
        moments,
        norms: None,
        clip: None,
    };
    bench.inputs.step = 1;
    bench.run(&update);
    close(&bench.get(&parameter), &[0.9], 1e-8);
    bench.set(&gradient, &[-1.0]);
    bench.inputs.step = 2;
    bench.run(&update);
    let m: f64 = (0.9 * 0.2 - 0.1) / (1.0 - 0.81);
    let v: f64 = (0.99 * 0.04 + 0.01) / (1.0 - 0.99 * 0.99);
    close(&bench.get(&parameter), &[0.9 - 0.1 * m / v.sqrt()], 1e-7);
}

/// Three steps of one weight, with a decay of 3/4, and of one that does not move.
#[test]
fn averages_by_hand() {
    let bench = &mut Bench::new();
    let parameter = bench.put(Dtype::F64, [1, 1, 1, 1, 2], &[2.0, 0.1]);
    let average = bench.put(Dtype::F64, [1, 1, 1, 1, 2], &[2.0, 0.1]);
    let total = bench.put(Dtype::F64, [1; 5], &[1.0]);
    let step = |total| Kernel::Average {
        parameter,
        average,
        decay: 0.75,
        total,
    };
    // 2 + (6 - 2) / 4, 3 + (-1 - 3) / 4, 2 + (4 - 2) / 4.
    for (weight, expected) in [(6.0, 3.0), (-1.0, 2.0), (4.0, 2.5)] {
        bench.set(&parameter, &[weight, 0.1]);
        bench.run(&step(None));
        assert_eq!(bench.get(&average), [expected, 0.1]);
    }
    // Updates are skipped where scaled gradients are not finite.
    bench.inputs.loss_scale = Some(1024.0);
    bench.set(&total, &[f64::INFINITY]);
    bench.run(&step(Some(total)));
    assert_eq!(bench.get(&average), [2.5, 0.1]);
    bench.set(&total, &[9.0]);
    bench.run(&step(Some(total)));
    assert_eq!(bench.get(&average), [2.875, 0.1]);
    bench.inputs.loss_scale = None;
    bench.set(&total, &[f64::INFINITY]);
    bench.run(&step(Some(total)));
    assert_eq!(bench.get(&average), [3.15625, 0.1]);
}

#[test]
fn import_transposes_and_transforms() {
    let bench = &mut Bench::new();
    let source = bench.put(Dtype::I16, [1, 2, 1, 1, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let target = bench.put(Dtype::F32, [1, 1, 1, 3, 2], &[0.0; 6]);
    let mut import = |transform| {
        bench.run_as::<f32>(&Kernel::Import {
            source,
            target,
            transform,
        });
        bench.get(&target)
    };
    assert_eq!(import(Transform::Identity), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let half = Transform::Scale { factor: 0.5 };
    assert_eq!(import(half), [0.5, 2.0, 1.0, 2.5, 1.5, 3.0]);
    let log: Vec<_> = [1.0f64, 4.0, 2.0, 5.0, 3.0, 6.0].map(f64::ln_1p).to_vec();
    close(&import(Transform::LogOnePlus), &log, 1e-7);
}

#[test]
fn a_copy_may_stay_inside_one_buffer() {
    let bench = &mut Bench::new();
    let whole = bench.put(
        Dtype::F32,
        [1, 1, 1, 4, 2],
        &[0., 0., 1., 2., 3., 4., 0., 0.],
    );
    let column = |at: usize| {
        let mut view = whole;
        view.start[3] = at;
        view.extent[3] = 1;
        view
    };
    for (from, to) in [(2, 0), (1, 3)] {
        bench.run_as::<f32>(&Kernel::Copy {
            source: column(from),
            target: column(to),
            accumulate: false,
        });
    }
    assert_eq!(bench.get(&whole), [3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0]);
}

#[test]
fn dropout_does_not_depend_on_the_split() {
    let mut random = Random::new(1);
    let shape = [4, 3, 2, 5, 3];
    let values = random.values(shape.iter().product());
    let dropout =
        |mesh: Mesh, distribution: Distribution, rank: usize, bench: &mut Bench, in_place: bool| {
            bench.mesh = mesh;
            let owned = distribution.owned(&mesh, &mesh.coord(rank));
            let whole = bench.put(Dtype::F64, shape, &values);
            let x = partita_program::View::of(whole.buffer, &owned);
            let y = if in_place {
                x
            } else {
                let dims = owned.shape();
                bench.put(Dtype::F64, dims, &vec![0.0; owned.volume()])
            };
            let kernel = Kernel::Dropout {
                x,
                y,
                rate: 0.3,
                mask: partita_program::DropoutMask::Element,
                operation: 5,
                distribution,
                halo_low: [0; 5],
                accumulate: false,
            };
            bench.inputs.samples = vec![8, 3, 11, 4];
            bench.inputs.seed = 42;
            bench.inputs.epoch = 2;
            bench.try_run::<f64>(&kernel, rank, &mut || true).unwrap();
            (whole, owned, bench.get(&y))
        };
    let serial = &mut Bench::new();
    let whole = Distribution::replicated(shape);
    let (_, _, expected) = dropout(Mesh::new([1; 7]), whole, 0, serial, false);
    let index = ((3 * 3 + 2) * 2 + 1) * 15;
    let kept = unit_draw(42, 2, 4, 5, ((2 * 2 + 1) * 15) as u64) >= 0.3;
    assert_eq!(
        expected[index],
        if kept {
            values[index] * (1.0 / 0.7)
        } else {
            0.0
        }
    );
    let zeros = expected.iter().filter(|&&y| y == 0.0).count();
    assert!((60..160).contains(&zeros), "{zeros} of 360");
    let mesh = Mesh::new([2, 2, 1, 2, 1, 1, 1]);
    let mut axes = [None; 5];
    (axes[0], axes[1], axes[3]) = (Some(Axis::Data), Some(Axis::Depth), Some(Axis::Width));
    let axes = axes.map(AxisList::from);
    for rank in 0..mesh.ranks() {
        let bench = &mut Bench::new();
        let micro = None;
        let distribution = Distribution {
            shape,
            axes,
            micro,
            submesh: None,
        };
        let (_, owned, got) = dropout(mesh, distribution, rank, bench, rank % 2 == 0);
        let reference = serial.put(Dtype::F64, shape, &expected);
        let part = partita_program::View::of(reference.buffer, &owned);
        assert_eq!(got, serial.get(&part), "rank {rank}");
    }
}

#[test]
fn a_kernel_ends_when_it_is_told_to() {
    let bench = &mut Bench::new();
    let target = bench.put(Dtype::F32, [4, 1, 1, 1, 1], &[0.0; 4]);
    let mut calls = 0;
    let kernel = Kernel::Fill { target, value: 1.0 };
    let ended = bench.try_run::<f32>(&kernel, 0, &mut || {
        calls += 1;
        calls <= 2
    });
    assert!(matches!(ended, Err(RunError::Cancelled)));
    assert_eq!(bench.get(&target), [1.0, 1.0, 0.0, 0.0]);
}
