//! Random geometries of every kind of kernel.

mod dropout;
mod fused;
mod resampling;
mod sequence;

use crate::{Bench, Draws};
use partita_program::{
    ClassTerms, Dtype, ElementFunction, Kernel, Optimizer, PoolKind, Taps, Transform, View,
};
use partita_run::Inputs;
use partita_space::{Mesh, Rank};
use std::collections::HashSet;
use std::mem::discriminant;

/// Makes kernels of every kind on random geometries, and the buffers on which they work.
pub struct Maker {
    /// The buffers.
    pub bench: Bench,
    dtype: Dtype,
    draws: Draws,
}

impl Maker {
    /// Kinds of kernels that it makes: all but the packing of weights, whose format is up to implementations.
    pub const KINDS: usize = Kernel::KINDS - 1;

    /// How many kinds there are among kernels.
    pub fn kinds(kernels: &[Kernel]) -> usize {
        kernels
            .iter()
            .map(discriminant)
            .collect::<HashSet<_>>()
            .len()
    }

    /// A maker of kernels in `dtype`.
    pub fn new(seed: u64, dtype: Dtype) -> Self {
        Self {
            bench: Bench::default(),
            dtype,
            draws: Draws::new(seed),
        }
    }

    fn pick(&mut self, low: usize, high: usize) -> usize {
        self.draws.between(low, high)
    }

    /// One of the sizes; of the first three under Miri, which is slower by orders of magnitude.
    fn size(&mut self, sizes: &[usize]) -> usize {
        let most = if cfg!(miri) { 3 } else { sizes.len() };
        self.draws.pick(&sizes[..most.min(sizes.len())])
    }

    /// A random box of these extents inside a larger buffer.
    pub fn view(&mut self, extent: [usize; 5]) -> View {
        self.bench
            .embedded(self.dtype, extent, 1.0, &mut self.draws)
    }

    fn dense(&mut self, extent: [usize; 5]) -> View {
        self.bench.drawn(self.dtype, extent, 1.0, &mut self.draws)
    }

    fn vector(&mut self, channels: usize) -> View {
        self.dense([1, 1, 1, 1, channels])
    }

    /// Sums of `count` values around 0.3 and of their squares.
    fn sums(&mut self, channels: usize, count: u64) -> View {
        let count = count as f64;
        let first: Vec<f64> = (0..channels).map(|_| 0.3 * self.draws.unit()).collect();
        let second = first.iter().map(|mean| mean * mean + 0.5);
        let all = first
            .iter()
            .copied()
            .chain(second)
            .map(|sum| sum * count)
            .collect();
        self.bench.put(Dtype::F64, [1, 1, 1, 2, channels], all)
    }

    /// Extents, with channels for whole and partial vectors of every level.
    fn extent(&mut self) -> [usize; 5] {
        let channels = self.size(&[1, 2, 3, 4, 8, 16, 17, 33]);
        let most = if cfg!(miri) { [2; 4] } else { [3, 3, 5, 9] };
        let [n, d, h, w] = most.map(|most| self.pick(1, most));
        [n, d, h, w, channels]
    }

    fn convolutions(&mut self, extent: [usize; 5], accumulate: bool) -> Vec<Kernel> {
        let mut triple = |most| std::array::from_fn(|_| self.draws.between(1, most));
        let mut taps = Taps {
            kernel: triple(3),
            stride: triple(2),
            dilation: triple(2),
        };
        let mut groups = self.pick(1, 2);
        if self.draws.one_in(3) {
            // Of these most implementations are offered.
            taps = Taps {
                kernel: self.draws.pick(&[[1, 3, 3], [3; 3], [3; 3], [1, 5, 6]]),
                stride: [1; 3],
                dilation: [1; 3],
            };
            groups = 1;
        }
        let [n, d, h, w, c] = extent;
        let f = groups * self.size(&[1, 3, 4, 16, 20]);
        let input = |dim: usize, out: usize| {
            (out - 1) * taps.stride[dim] + (taps.kernel[dim] - 1) * taps.dilation[dim] + 1
        };
        let x = self.view([n, input(0, d), input(1, h), input(2, w), c * groups]);
        let [kd, kh, kw] = taps.kernel;
        let weight = [kd, kh, kw, c, f];
        let [y, dy] = [0; 2].map(|_| self.view([n, d, h, w, f]));
        let [w, dw] = [0; 2].map(|_| self.dense(weight));
        let dx_extent = [1, 2, 3].map(|dim| x.extent[dim] + self.pick(0, 2));
        let dx = self.view([n, dx_extent[0], dx_extent[1], dx_extent[2], c * groups]);
        let bias = self.vector(f);
        let transposed_bias = self.vector(c * groups);
        let shift = [0; 3].map(|_| self.pick(0, 4) as i64 - 2);
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
                bias: self.draws.one_in(2).then_some(transposed_bias),
                dx,
                taps,
                shift,
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

    fn pools(&mut self, extent: [usize; 5], accumulate: bool) -> Vec<Kernel> {
        let mut triple = |low, most| std::array::from_fn(|_| self.draws.between(low, most));
        let taps = Taps {
            kernel: triple(2, 3),
            stride: triple(1, 3),
            dilation: [1; 3],
        };
        let shift: [i64; 3] = std::array::from_fn(|_| self.draws.between(0, 1) as i64);
        let [n, d, h, w, c] = extent;
        let y = self.view(extent);
        let out = [d, h, w];
        let input = std::array::from_fn(|dim: usize| {
            (out[dim] - 1) * taps.stride[dim] + taps.kernel[dim]
                - self.draws.between(0, 1)
                - shift[dim] as usize
        });
        let input: [usize; 3] = input.map(|extent| extent.max(1));
        let x = self.view([n, input[0], input[1], input[2], c]);
        let dx = self.view(x.extent);
        let meets =
            (0..3).all(|dim| (out[dim] - 1) * taps.stride[dim] < input[dim] + shift[dim] as usize);
        let both = |kind| {
            [
                Kernel::PoolForward {
                    kind,
                    x,
                    y,
                    taps,
                    shift,
                },
                Kernel::PoolBackward {
                    kind,
                    x: [PoolKind::Max, PoolKind::L2].contains(&kind).then_some(x),
                    dy: y,
                    dx,
                    taps,
                    shift,
                    accumulate,
                },
            ]
        };
        let defined = PoolKind::ALL
            .into_iter()
            .filter(|kind| meets || *kind == PoolKind::AverageAll);
        defined.flat_map(both).collect()
    }

    fn norms(&mut self, extent: [usize; 5], accumulate: bool) -> Vec<Kernel> {
        let channels = extent[4];
        let [x, y, dy, dx] = [0; 4].map(|_| self.view(extent));
        let [gamma, beta, dgamma, dbeta, mean] = [0; 5].map(|_| self.vector(channels));
        let variance = self.variance(channels);
        let count = self.draws.pick(&[1, 2, 100]);
        let (sums, gradient_sums) = (self.sums(channels, count), self.sums(channels, count));
        let (epsilon, momentum) = (1e-3, 0.1);
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
            self.inference(x, y),
            Kernel::BatchNormInferenceBackward {
                dy,
                variance: self.variance(channels),
                gamma,
                dx,
                epsilon,
                accumulate,
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

    fn inference(&mut self, x: View, y: View) -> Kernel {
        let [mean, gamma, beta] = [0; 3].map(|_| self.vector(x.extent[4]));
        Kernel::BatchNormInference {
            x,
            mean,
            variance: self.variance(x.extent[4]),
            gamma,
            beta,
            y,
            epsilon: 1e-3,
        }
    }

    fn variance(&mut self, channels: usize) -> View {
        let positive = (0..channels)
            .map(|_| 1.0 + 0.5 * self.draws.unit())
            .collect();
        self.bench.put(self.dtype, [1, 1, 1, 1, channels], positive)
    }

    fn imports(&mut self) -> Vec<Kernel> {
        let [n, d, h, w, c] = self.extent();
        let target = self.view([n, d, h, w, c]);
        let transforms = [
            Transform::Identity,
            Transform::Scale { factor: 0.25 },
            Transform::LogOnePlus,
        ];
        let mut kernels = Vec::new();
        for (dtype, scale) in [(Dtype::I16, 300.0), (Dtype::F32, 0.9), (Dtype::F64, 0.9)] {
            let source = self
                .bench
                .embedded(dtype, [n, c, d, h, w], scale, &mut self.draws);
            for transform in transforms {
                // Counts are not negative.
                if dtype == Dtype::I16 && transform == Transform::LogOnePlus {
                    continue;
                }
                kernels.push(Kernel::Import {
                    source,
                    target,
                    transform,
                });
            }
        }
        kernels
    }

    fn activations(&mut self, accumulate: bool) -> Vec<Kernel> {
        let extent = self.extent();
        let [x, y, dy, dx] = [0; 4].map(|_| self.view(extent));
        let negative_slope = self.draws.pick(&[0.0, 0.3]);
        let possible = (1..=extent[4]).filter(|groups| extent[4].is_multiple_of(*groups));
        let groups = self.draws.pick(&possible.collect::<Vec<_>>());
        let forward = |x, y| Kernel::LeakyReluForward {
            x,
            y,
            negative_slope,
        };
        let backward = |dx, accumulate| Kernel::LeakyReluBackward {
            y,
            dy,
            dx,
            negative_slope,
            accumulate,
        };
        vec![
            forward(x, y),
            forward(x, x),
            backward(dx, accumulate),
            backward(dy, accumulate),
            Kernel::ChannelShuffle {
                x,
                y,
                groups,
                accumulate,
            },
            Kernel::Add { a: x, b: dx, y },
            Kernel::Add { a: x, b: x, y },
        ]
    }

    fn copies(&mut self, accumulate: bool) -> Vec<Kernel> {
        let extent = self.extent();
        let [n, d, h, w, c] = extent;
        let [x, y] = [0; 2].map(|_| self.view(extent));
        let [flat, tall] = [0; 2].map(|_| self.dense(extent));
        let turned = [n, 1, w, d, h * c];
        let (embedded, other) = (self.view(turned), self.dense(turned));
        let sums = [0; 2].map(|_| self.sums(c, 3));
        // Two boxes side by side in one buffer, their ranges of memory interleaved.
        let pair = self.view([n, d, h, 2 * w, c]);
        let mut halves = [pair, pair];
        halves.iter_mut().for_each(|half| half.extent[3] = w);
        halves[1].start[3] += w;
        let copy = |source, target| Kernel::Copy {
            source,
            target,
            accumulate,
        };
        vec![
            copy(x, y),
            copy(flat, tall),
            copy(flat, other),
            copy(flat, embedded),
            copy(x, other),
            copy(embedded, y),
            copy(halves[0], halves[1]),
            copy(halves[1], halves[0]),
            copy(sums[0], sums[1]),
            Kernel::Fill {
                target: x,
                value: 0.5,
            },
            Kernel::Fill {
                target: sums[0],
                value: 0.25,
            },
        ]
    }

    fn linears(&mut self, extent: [usize; 5], accumulate: bool) -> Vec<Kernel> {
        let [n, _, h, d, c] = extent;
        let features = self.size(&[1, 4, 16, 19]);
        let [y, dy] = [0; 2].map(|_| self.view([n, 1, 1, 1, features]));
        let bias = self.vector(features);
        let mut kernels = Vec::new();
        // Few inputs: the rounding of long sums would need a wider tolerance.
        for extent in [[n, 1, 1, 1, c], [n, d.min(2), h, 2, c]] {
            let inputs = extent[1..].iter().product();
            let [w, dw] = [0; 2].map(|_| self.dense([1, 1, 1, inputs, features]));
            let [x, dx] = [0; 2].map(|_| self.view(extent));
            kernels.extend([
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
            ]);
        }
        kernels
    }

    fn losses(&mut self, with_gradient: bool) -> Vec<Kernel> {
        let extent = self.extent();
        let [n, d, h, w, c] = extent;
        let [x, target, dx] = [0; 3].map(|_| self.view(extent));
        let wide = self
            .bench
            .embedded(Dtype::F64, extent, 1.0, &mut self.draws);
        let positions = n * d * h * w;
        let classes = (0..positions)
            .map(|_| self.draws.between(0, c - 1) as f64)
            .collect();
        let classes = self.bench.put(self.dtype, [n, d, h, w, 1], classes);
        let loss = self.bench.put(Dtype::F64, [1; 5], vec![1.0]);
        let errors = self.sums(c, 2);
        let counts = self
            .bench
            .put(Dtype::F64, [1, 1, 1, 3, c], vec![1.0; 3 * c]);
        let (dx, count) = (with_gradient.then_some(dx), 7);
        let weight = self.draws.pick(&[1.0, 0.4]);
        let squared = |target| Kernel::MeanSquaredError {
            x,
            target,
            dx,
            loss,
            count,
            weight,
        };
        let entropy = |smoothing| Kernel::SoftmaxCrossEntropy {
            x,
            target: classes,
            dx,
            loss,
            count,
            weight,
            smoothing,
        };
        let mut kernels = vec![squared(target), squared(wide), entropy(0.0), entropy(0.1)];
        for logistic in [false, true] {
            kernels.push(Kernel::OutputErrors {
                x,
                target,
                errors,
                logistic,
            });
        }
        for ignore in [None, Some(0)] {
            kernels.push(Kernel::ClassCounts {
                x,
                target: classes,
                counts,
                ignore,
            });
        }
        let weights: Vec<f64> = (0..c).map(|c| 0.5 + c as f64).collect();
        for (i, function) in ElementFunction::ALL.into_iter().enumerate() {
            let weights = [Vec::new(), weights.clone()];
            kernels.push(Kernel::ElementLoss {
                function,
                x,
                target: [target, wide][i % 2],
                dx,
                loss,
                count,
                weight,
                weights: weights[(i + count as usize) % 2].clone(),
            });
        }
        kernels.extend(self.class_losses([x, classes, loss], dx, &weights));
        kernels
    }

    fn class_losses(
        &mut self,
        [x, target, loss]: [View; 3],
        dx: Option<View>,
        weights: &[f64],
    ) -> Vec<Kernel> {
        let [n, d, h, w, c] = x.extent;
        let positions = (n * d * h * w) as u64;
        let positive = |rows: usize| vec![0.5 * positions as f64; rows * c];
        let totals = self.bench.put(Dtype::F64, [1, 1, 1, 1, c], positive(1));
        let batch = self.draws.one_in(2);
        let rows = if batch { 1 } else { n };
        let sums = self
            .bench
            .put(Dtype::F64, [rows, 1, 1, 3, c], positive(3 * rows));
        let plain = ClassTerms {
            cross_entropy: 0.7,
            dice: 0.0,
            smoothing: 0.1,
            smooth: 0.5,
            background: true,
            weights: Vec::new(),
            dice_weights: None,
            ignore: None,
            all: 2 * positions,
            summed: if batch {
                positions
            } else {
                positions / n as u64
            },
        };
        let weighted = ClassTerms {
            weights: weights.to_vec(),
            ignore: Some(0),
            smoothing: 0.0,
            ..plain.clone()
        };
        let dice = ClassTerms {
            dice: 1.5,
            dice_weights: batch.then(Vec::new),
            background: c == 1,
            ..weighted.clone()
        };
        let mut kernels: Vec<Kernel> = [(plain, None, None), (weighted, Some(totals), None)]
            .into_iter()
            .chain([(dice, Some(totals), Some(sums))])
            .map(|(terms, totals, sums)| Kernel::ClassLoss {
                x,
                target,
                totals,
                sums,
                dx,
                loss,
                weight: 0.4,
                terms,
            })
            .collect();
        kernels.extend(class_sums([x, target, totals, sums], batch));
        kernels
    }

    fn updates(&mut self, extent: [usize; 5], clipped: bool) -> Vec<Kernel> {
        let [parameter, gradient, first] = [0; 3].map(|_| self.dense(extent));
        let volume = parameter.volume();
        let squares = (0..volume).map(|_| self.draws.unit().abs()).collect();
        let second = self.bench.put(self.dtype, extent, squares);
        let total = self.bench.put(Dtype::F64, [1; 5], vec![2.0]);
        let clip = clipped.then_some((total, 0.1));
        let update = |rule, moments| Kernel::Update {
            rule,
            parameter,
            gradient,
            moments,
            norms: None,
            clip,
        };
        let norms = self.bench.put(Dtype::F64, [1, 1, 1, 1, 2], vec![2.0, 0.5]);
        let update_norms = |rule, moments| Kernel::UpdateNorms {
            rule,
            parameter,
            gradient,
            moments,
            clip,
            norms,
        };
        let sgd = |momentum| Optimizer::Sgd {
            momentum,
            weight_decay: 0.1,
        };
        let adam = Optimizer::Adam {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
        };
        let [nesterov, adamw, lars, lamb] = other_rules();
        vec![
            Kernel::SumOfSquares {
                sources: vec![first, gradient, parameter],
                total,
            },
            update(sgd(0.0), vec![]),
            update(sgd(0.9), vec![first]),
            update(adam, vec![first, second]),
            update(nesterov, vec![first]),
            update(adamw, vec![first, second]),
            update_norms(lars, vec![]),
            update(lars, vec![first]),
            Kernel::Update {
                rule: lars,
                parameter,
                gradient,
                moments: vec![first],
                norms: Some(norms),
                clip,
            },
            update_norms(lamb, vec![first, second]),
            Kernel::Update {
                rule: lamb,
                parameter,
                gradient,
                moments: vec![],
                norms: Some(norms),
                clip: None,
            },
            average([parameter, first], clipped.then_some(total)),
        ]
    }

    /// Boxes without elements where programs may have them.
    fn empties(&mut self, accumulate: bool) -> Vec<Kernel> {
        let taps = Taps {
            kernel: [2; 3],
            stride: [1; 3],
            dilation: [1; 3],
        };
        let dy = self.view([1, 0, 3, 3, 4]);
        let none = self.view([2, 3, 0, 3, 4]);
        let also = self.view([2, 3, 0, 3, 4]);
        let dx = self.view([1, 2, 4, 4, 4]);
        let x = self.view([1, 2, 4, 4, 4]);
        let w = self.dense([2, 2, 2, 4, 4]);
        let db = self.vector(4);
        let sums = self.sums(4, 2);
        vec![
            Kernel::ConvolutionBackwardData {
                dy,
                w,
                bias: None,
                dx,
                taps,
                shift: [0; 3],
                groups: 1,
                accumulate,
            },
            Kernel::PoolBackward {
                kind: PoolKind::Max,
                x: Some(x),
                dy,
                dx,
                taps,
                shift: [0; 3],
                accumulate,
            },
            Kernel::BiasBackward { dy, db, accumulate },
            Kernel::BatchNormStatistics {
                x: none,
                sums,
                accumulate: false,
            },
            Kernel::Copy {
                source: none,
                target: also,
                accumulate,
            },
            Kernel::Fill {
                target: none,
                value: 1.0,
            },
            Kernel::Add {
                a: none,
                b: none,
                y: also,
            },
        ]
    }

    /// Kernels of every kind, alone and fused.
    pub fn all(&mut self, mesh: &Mesh, rank: Rank) -> Vec<Kernel> {
        let flag = self.draws.one_in(2);
        let [convolved, pooled, normed, features, moved, fused] = [0; 6].map(|_| self.extent());
        let mut kernels = self.convolutions(convolved, flag);
        kernels.extend(self.pools(pooled, flag));
        kernels.extend(self.norms(normed, flag));
        kernels.extend(self.imports());
        kernels.extend(self.activations(flag));
        kernels.extend(self.dropouts(mesh, rank, flag));
        kernels.extend(self.copies(flag));
        kernels.extend(self.linears(features, flag));
        kernels.extend(self.losses(flag));
        kernels.extend(self.updates(moved, flag));
        kernels.extend(self.empties(flag));
        kernels.extend(self.fused(fused, flag));
        kernels.extend(self.sequences(mesh, rank, flag));
        let resampled = self.extent();
        kernels.extend(self.resamplings(resampled, flag));
        kernels
    }

    /// Inputs of a step whose samples suffice for every kernel.
    pub fn inputs() -> Inputs {
        Inputs {
            step: 3,
            epoch: 2,
            seed: 11,
            learning_rate: 0.05,
            loss_scale: None,
            skipped: 0,
            samples: vec![5, 0, 9, 2],
            next_samples: Vec::new(),
            next_epoch: 0,
        }
    }
}

fn average([parameter, average]: [View; 2], total: Option<View>) -> Kernel {
    Kernel::Average {
        parameter,
        average,
        decay: 0.9,
        total,
    }
}

/// Nesterov, AdamW, LARS and LAMB.
fn other_rules() -> [Optimizer; 4] {
    [
        Optimizer::Nesterov {
            momentum: 0.9,
            weight_decay: 0.1,
        },
        Optimizer::AdamW {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
        },
        Optimizer::Lars {
            momentum: 0.9,
            weight_decay: 0.1,
            trust: 0.02,
            epsilon: 1e-8,
        },
        Optimizer::Lamb {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-6,
            weight_decay: 0.01,
        },
    ]
}

/// The kernels before a loss of classes.
fn class_sums([x, target, totals, sums]: [View; 4], batch: bool) -> [Kernel; 2] {
    [
        Kernel::ClassTotals {
            x,
            target,
            totals,
            ignore: Some(0),
        },
        Kernel::DiceSums {
            x,
            target,
            sums,
            batch,
            ignore: None,
        },
    ]
}
