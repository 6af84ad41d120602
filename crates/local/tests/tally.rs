//! What the kernels count from their loops is what the program counts from its views.

mod hand;

use hand::{Bench, Dice};
use partita_local::Real;
use partita_program::{Count, Dtype, Kernel, Optimizer, Place, PoolKind, Taps, Transform, View};

struct Maker<'b> {
    bench: &'b mut Bench,
    dice: Dice,
    dtype: Dtype,
}

impl Maker<'_> {
    fn view(&mut self, extent: [usize; 5]) -> View {
        self.bench.framed(self.dtype, extent, &mut self.dice)
    }

    fn sums(&mut self, rows: usize, channels: usize) -> View {
        let zeros = vec![2.0; rows * channels];
        self.bench
            .put(Dtype::F64, [1, 1, 1, rows, channels], &zeros)
    }

    fn extent(&mut self) -> [usize; 5] {
        std::array::from_fn(|_| self.dice.pick(1, 4))
    }

    fn taps(&mut self) -> Taps {
        let mut triple = || std::array::from_fn(|_| self.dice.pick(1, 2));
        Taps {
            kernel: triple(),
            stride: triple(),
            dilation: triple(),
        }
    }

    fn convolutions(&mut self, accumulate: bool) -> Vec<Kernel> {
        let (taps, groups) = (self.taps(), self.dice.pick(1, 2));
        let [n, d, h, w, c] = self.extent();
        let f = groups * self.dice.pick(1, 3);
        let input = |dim: usize, out: usize| {
            (out - 1) * taps.stride[dim] + (taps.kernel[dim] - 1) * taps.dilation[dim] + 1
        };
        let x = self.view([n, input(0, d), input(1, h), input(2, w), c * groups]);
        let [kd, kh, kw] = taps.kernel;
        let weight = [kd, kh, kw, c, f];
        let (y, dy) = (self.view([n, d, h, w, f]), self.view([n, d, h, w, f]));
        let (w, dw, dx) = (self.view(weight), self.view(weight), self.view(x.extent));
        let bias = self.view([1, 1, 1, 1, f]);
        let transposed_bias = self.view([1, 1, 1, 1, c * groups]);
        vec![
            Kernel::ConvolutionForward {
                x,
                w,
                bias: accumulate.then_some(bias),
                y,
                taps,
                groups,
                accumulate,
            },
            Kernel::ConvolutionBackwardData {
                dy,
                w,
                bias: accumulate.then_some(transposed_bias),
                dx,
                taps,
                shift: [1, 0, -1],
                groups,
                accumulate,
            },
            Kernel::ConvolutionBackwardWeight {
                x,
                dy,
                dw,
                taps,
                groups,
                accumulate,
            },
            Kernel::BiasBackward {
                dy,
                db: bias,
                accumulate,
            },
        ]
    }

    fn pools(&mut self, accumulate: bool) -> Vec<Kernel> {
        let taps = Taps {
            kernel: [2, 3, 2],
            ..self.taps()
        };
        let taps = Taps {
            dilation: [1; 3],
            ..taps
        };
        let [n, d, h, w, c] = self.extent();
        let y = self.view([n, d, h, w, c]);
        let input = |dim: usize, out: usize| (out - 1) * taps.stride[dim] + taps.kernel[dim] - 1;
        let x = self.view([n, input(0, d), input(1, h), input(2, w), c]);
        let dx = self.view(x.extent);
        let kinds = [PoolKind::Max, PoolKind::AverageAll, PoolKind::AverageInside];
        let both = |kind| {
            [
                Kernel::PoolForward {
                    kind,
                    x,
                    y,
                    taps,
                    shift: [1, 1, 0],
                },
                Kernel::PoolBackward {
                    kind,
                    x: (kind == PoolKind::Max).then_some(x),
                    dy: y,
                    dx,
                    taps,
                    shift: [1, 1, 0],
                    accumulate,
                },
            ]
        };
        kinds.into_iter().flat_map(both).collect()
    }

    fn norms(&mut self, accumulate: bool) -> Vec<Kernel> {
        let extent = self.extent();
        let channels = extent[4];
        let [x, y, dy, dx] = [0; 4].map(|_| self.view(extent));
        let [gamma, beta, dgamma, dbeta, mean, variance] =
            [0; 6].map(|_| self.view([1, 1, 1, 1, channels]));
        let (sums, gradient_sums) = (self.sums(2, channels), self.sums(2, channels));
        let (count, epsilon, momentum) = (100, 1e-3, 0.1);
        vec![
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
            Kernel::BatchNormRunning {
                sums,
                mean,
                variance,
                count,
                momentum,
            },
            Kernel::BatchNormInference {
                x,
                mean,
                variance,
                gamma,
                beta,
                y,
                epsilon,
            },
            Kernel::BatchNormBackwardStatistics {
                x,
                sums,
                dy,
                gradient_sums,
                count,
                epsilon,
                accumulate: false,
            },
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
            },
            Kernel::BatchNormBackwardParameters {
                gradient_sums,
                dgamma,
                dbeta,
                accumulate,
            },
        ]
    }

    fn pointwise(&mut self, accumulate: bool) -> Vec<Kernel> {
        let extent = self.extent();
        let [x, y, dy, dx] = [0; 4].map(|_| self.view(extent));
        let negative_slope = 0.3;
        let [n, d, h, w, c] = extent;
        let dtype = if accumulate { Dtype::I16 } else { Dtype::F64 };
        let stored = self.bench.framed(dtype, [n, c, d, h, w], &mut self.dice);
        vec![
            Kernel::Fill {
                target: x,
                value: 0.5,
            },
            Kernel::Copy {
                source: x,
                target: y,
                accumulate,
            },
            Kernel::Import {
                source: stored,
                target: y,
                transform: Transform::Identity,
            },
            Kernel::LeakyReluForward {
                x,
                y,
                negative_slope,
            },
            Kernel::LeakyReluForward {
                x,
                y: x,
                negative_slope,
            },
            Kernel::LeakyReluBackward {
                y,
                dy,
                dx,
                negative_slope,
                accumulate,
            },
            Kernel::LeakyReluBackward {
                y,
                dy,
                dx: dy,
                negative_slope,
                accumulate: false,
            },
            Kernel::Dropout {
                x,
                y,
                rate: 0.4,
                operation: 1,
                place: Place::replicated(extent),
                accumulate,
            },
            Kernel::Add { a: x, b: dx, y },
        ]
    }

    fn linears(&mut self, accumulate: bool) -> Vec<Kernel> {
        let [n, _, d, features, c] = self.extent();
        let x = self.view([n, d, 1, 1, c]);
        let [y, dy] = [0; 2].map(|_| self.view([n, 1, 1, 1, features]));
        let [w, dw] = [0; 2].map(|_| self.view([1, 1, 1, d * c, features]));
        let (bias, dx) = (self.view([1, 1, 1, 1, features]), self.view(x.extent));
        vec![
            Kernel::LinearForward {
                x,
                w,
                bias: accumulate.then_some(bias),
                y,
            },
            Kernel::LinearBackwardData {
                dy,
                w,
                dx,
                accumulate,
            },
            Kernel::LinearBackwardWeight {
                x,
                dy,
                dw,
                accumulate,
            },
        ]
    }

    fn ends(&mut self, with_gradient: bool) -> Vec<Kernel> {
        let extent = self.extent();
        let [n, d, h, w, c] = extent;
        let [x, target, dx] = [0; 3].map(|_| self.view(extent));
        let classes = self.view([n, d, h, w, 1]);
        self.bench.set(&classes, &vec![0.0; classes.volume()]);
        let (loss, errors) = (self.sums(1, 1), self.sums(2, c));
        let dx = with_gradient.then_some(dx);
        let count = 7;
        vec![
            Kernel::MeanSquaredError {
                x,
                target,
                dx,
                loss,
                count,
            },
            Kernel::SoftmaxCrossEntropy {
                x,
                target: classes,
                dx,
                loss,
                count,
            },
            Kernel::OutputErrors { x, target, errors },
        ]
    }

    fn updates(&mut self, clipped: bool) -> Vec<Kernel> {
        let extent = self.extent();
        let [parameter, gradient, first, second] = [0; 4].map(|_| self.view(extent));
        let total = self.sums(1, 1);
        let clip = clipped.then_some((total, 0.1));
        let update = |rule, moments| Kernel::Update {
            rule,
            parameter,
            gradient,
            moments,
            clip,
        };
        let sgd = |momentum| Optimizer::Sgd {
            momentum,
            weight_decay: 0.1,
        };
        let adam = Optimizer::Adam {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
        };
        vec![
            Kernel::SumOfSquares {
                sources: vec![first, second, parameter],
                total,
            },
            update(sgd(0.0), vec![]),
            update(sgd(0.9), vec![first]),
            update(adam, vec![first, second]),
        ]
    }
}

fn check<T: Real>(dtype: Dtype, seed: u64) -> usize {
    let bench = &mut Bench::new();
    bench.inputs.samples = vec![0; 4];
    bench.inputs.step = 1;
    let mut maker = Maker {
        bench,
        dice: Dice::new(seed),
        dtype,
    };
    let flag = maker.dice.flag();
    let mut kernels = maker.convolutions(flag);
    kernels.extend(maker.pools(flag));
    kernels.extend(maker.norms(flag));
    kernels.extend(maker.pointwise(flag));
    kernels.extend(maker.linears(flag));
    kernels.extend(maker.ends(flag));
    kernels.extend(maker.updates(flag));
    for kernel in &kernels {
        let worked = bench.run_as::<T>(kernel);
        let count = Count::of_kernel(kernel, &bench.body.buffers);
        let expected = (count.flops.0, count.read.0 + count.written.0);
        assert_eq!(
            (worked.flops, worked.bytes),
            expected,
            "seed {seed}: {kernel:?}"
        );
    }
    let mut kinds: Vec<_> = kernels.iter().map(Kernel::name).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.len()
}

#[test]
fn every_kernel_counts_what_the_program_counts() {
    for seed in 0..20 {
        assert_eq!(check::<f32>(Dtype::F32, seed), 28, "all kinds take part");
        assert_eq!(check::<f64>(Dtype::F64, seed), 28, "all kinds take part");
    }
}
