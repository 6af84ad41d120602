//! The loss of a whole model straight from the definitions of its operations: no split, no program, no
//! frame. What is wrong on one rank as under every split shows against it alone.

use partita_graph::{
    Convolution, Graph, Interpolation, Loss, Node, Op, PadMode, Pool, PoolKind, Resample,
    TransposedConvolution,
};
use partita_program::Dtype;
use partita_testkit::{Case, Data, Draws, Samples, Setup, Stored, reference_kernels, run};
use std::sync::Arc;

/// Step of the difference quotient; it must not reach a kink.
const STEP: f64 = 1e-6;
/// Relative error of the loss.
const LOSS: f64 = 1e-10;
/// Error of a directional derivative, next to the norms of gradient and direction.
const SLOPE: f64 = 1e-5;

/// (N, D, H, W, C).
struct Tensor {
    shape: [usize; 5],
    data: Vec<f64>,
}

impl Tensor {
    fn build(shape: [usize; 5], mut value: impl FnMut([usize; 5]) -> f64) -> Self {
        let mut data = Vec::with_capacity(shape.iter().product());
        each(shape, |at| data.push(value(at)));
        Self { shape, data }
    }

    fn map(&self, value: impl Fn(f64, usize) -> f64) -> Self {
        let c = self.shape[4];
        let data = self.data.iter().enumerate();
        Self {
            shape: self.shape,
            data: data.map(|(index, &x)| value(x, index % c)).collect(),
        }
    }

    fn index(&self, [n, d, h, w, c]: [usize; 5]) -> usize {
        let [_, depth, height, width, channels] = self.shape;
        (((n * depth + d) * height + h) * width + w) * channels + c
    }

    fn at(&self, at: [usize; 5]) -> f64 {
        self.data[self.index(at)]
    }
}

/// Visits the indices of a tensor in memory order.
fn each(shape: [usize; 5], mut visit: impl FnMut([usize; 5])) {
    for mut flat in 0..shape.iter().product() {
        let mut at = [0; 5];
        for dim in (0..5).rev() {
            at[dim] = flat % shape[dim];
            flat /= shape[dim];
        }
        visit(at);
    }
}

/// Compares loss and gradient of the first step of one exact rank with the definitions; what differs.
pub fn check(case: &Case, data: &Data) -> Result<(), String> {
    let kernels = reference_kernels(Dtype::F64);
    let plain = Setup {
        samples: Arc::clone(&data.0),
        parameters: data.1.clone(),
        learning_rate: 1.0,
        steps: 1,
        ..Setup::of_case(case, &kernels)
    };
    let outcome = run(&plain).map_err(|error| error.to_string())?;
    let (got, expected) = (outcome.losses[0], loss(&case.graph, &data.0, &data.1));
    let far = (got - expected).abs() / expected.abs().max(1e-3);
    if far > LOSS || far.is_nan() {
        return Err(format!("loss {got} instead of {expected}"));
    }
    let mut draws = Draws::new(case.seed);
    let (mut slope, mut sizes) = (0.0, [0.0; 2]);
    let mut sides = [data.1.clone(), data.1.clone()];
    for (index, parameter) in case.graph.parameters.iter().enumerate() {
        let after = outcome.parameters[1].iter();
        let mut after = after.filter(|(name, _)| *name == parameter.name);
        let after = &after.next().unwrap().1;
        if !parameter.role.is_trained() {
            continue;
        }
        for (at, &before) in data.1[index].iter().enumerate() {
            let (gradient, direction) = (before - after[at], draws.unit());
            slope += gradient * direction;
            sizes[0] += gradient * gradient;
            sizes[1] += direction * direction;
            sides[0][index][at] -= STEP * direction;
            sides[1][index][at] += STEP * direction;
        }
    }
    let [low, high] = sides.map(|parameters| loss(&case.graph, &data.0, &parameters));
    let expected = (high - low) / (2.0 * STEP);
    let size = (sizes[0] * sizes[1]).sqrt();
    if (slope - expected).abs() <= SLOPE * size + 1e-8 * (1.0 + high.abs()) {
        return Ok(());
    }
    Err(format!(
        "slope {slope} instead of {expected}, by a difference quotient; size {size}"
    ))
}

/// In training, without dropout.
fn loss(graph: &Graph, samples: &Samples, parameters: &[Vec<f64>]) -> f64 {
    let (mut values, mut auxiliary): (Vec<Tensor>, f64) = (Vec::new(), 0.0);
    for node in &graph.nodes {
        let inputs: Vec<&Tensor> = node.inputs.iter().map(|id| &values[id.0]).collect();
        let of = |index: usize| &parameters[node.parameters[index].0];
        let shape = node.shape.batched(samples.values.len());
        let value = match &node.op {
            Op::Input => Tensor::build(shape, |at| sample(samples, at)),
            Op::Features => Tensor::build(shape, |[n, .., c]| samples.features[n][c]),
            Op::Convolution(convolution) => {
                let bias = convolution.bias.then(|| of(1));
                convolve(node, convolution, inputs[0], of(0), bias)
            }
            Op::TransposedConvolution(convolution) => {
                let bias = convolution.bias.then(|| of(1));
                spread(node, convolution, inputs[0], of(0), bias)
            }
            Op::Pool(pool) => slide(node, pool, inputs[0]),
            Op::Resample(resample) => resampled(shape, resample, inputs[0]),
            Op::BatchNorm { epsilon, .. } => normalize(inputs[0], *epsilon, of(0), of(1)),
            Op::LeakyRelu { negative_slope } => {
                inputs[0].map(|x, _| if x > 0.0 { x } else { negative_slope * x })
            }
            Op::Linear { features, bias } => {
                let (w, channels) = (of(0), inputs[0].shape[4]);
                Tensor::build(shape, |[n, _, _, _, f]| {
                    let terms = (0..channels)
                        .map(|c| inputs[0].data[n * channels + c] * w[c * features + f]);
                    terms.sum::<f64>() + if *bias { of(1)[f] } else { 0.0 }
                })
            }
            Op::Dropout { .. }
            | Op::Slice { .. }
            | Op::ChannelShuffle { .. }
            | Op::Embedding { .. }
            | Op::Positions
            | Op::PositionEmbedding { .. }
            | Op::LayerNorm { .. }
            | Op::Multiply
            | Op::Prelu(_)
            | Op::Softmax
            | Op::GroupNorm { .. }
            | Op::Activation(_)
            | Op::Attention { .. } => panic!("no {} here", node.op.keyword()),
            Op::Flatten | Op::Reshape { .. } => Tensor {
                shape,
                data: inputs[0].data.clone(),
            },
            Op::Add => Tensor::build(shape, |at| inputs[0].at(at) + inputs[1].at(at)),
            Op::Concat => Tensor::build(shape, |[n, d, h, w, mut c]| {
                let mut inputs = inputs.iter();
                loop {
                    let input = inputs.next().unwrap();
                    match c.checked_sub(input.shape[4]) {
                        Some(rest) => c = rest,
                        None => return input.at([n, d, h, w, c]),
                    }
                }
            }),
            Op::Loss(loss) => return auxiliary + mean_loss(loss, inputs[0], &samples.targets),
            Op::AuxiliaryLoss { loss, weight } => {
                auxiliary += weight * mean_loss(loss, inputs[0], &samples.targets);
                inputs[0].map(|x, _| x)
            }
        };
        values.push(value);
    }
    panic!("a graph ends with a loss")
}

fn sample(samples: &Samples, [n, d, h, w, c]: [usize; 5]) -> f64 {
    let [_, depth, height, width] = samples.shape;
    let at = ((c * depth + d) * height + h) * width + w;
    match &samples.values[n] {
        Stored::F32(values) => values[at].into(),
        Stored::F64(values) => values[at],
        Stored::I16(values) => values[at].into(),
    }
}

/// By the definitions of PyTorch's documentation, dim by dim.
fn resampled(shape: [usize; 5], resample: &Resample, x: &Tensor) -> Tensor {
    Tensor::build(shape, |[n, d, h, w, c]| {
        let along = |dim: usize, o: usize| taps_along(resample, dim, o, x.shape[dim + 1]);
        let [taps_d, taps_h, taps_w] = [along(0, d), along(1, h), along(2, w)];
        let mut sum = 0.0;
        for &(d, of_d) in &taps_d {
            for &(h, of_h) in &taps_h {
                for &(w, of_w) in &taps_w {
                    sum += of_d * of_h * of_w * x.at([n, d, h, w, c]);
                }
            }
        }
        sum
    })
}

fn taps_along(resample: &Resample, dim: usize, o: usize, extent: usize) -> Vec<(usize, f64)> {
    match resample {
        Resample::Upsample {
            factors,
            interpolation,
        } => {
            let factor = factors[dim];
            let position = match interpolation {
                Interpolation::Nearest => return vec![(o / factor, 1.0)],
                Interpolation::Linear {
                    align_corners: false,
                } => ((o as f64 + 0.5) / factor as f64 - 0.5).max(0.0),
                Interpolation::Linear {
                    align_corners: true,
                } => (o * (extent - 1)) as f64 / (extent * factor - 1).max(1) as f64,
            };
            let first = (position as usize).min(extent - 1);
            let second = (first + 1).min(extent - 1);
            let share = position - first as f64;
            vec![(first, 1.0 - share), (second, share)]
        }
        Resample::Crop { starts, steps, .. } => vec![(starts[dim] + o * steps[dim], 1.0)],
        Resample::Resize {
            outputs,
            interpolation,
        } => {
            let outputs = outputs[dim];
            let position = match interpolation {
                Interpolation::Nearest => return vec![(o * extent / outputs, 1.0)],
                Interpolation::Linear {
                    align_corners: false,
                } => ((o as f64 + 0.5) * extent as f64 / outputs as f64 - 0.5).max(0.0),
                Interpolation::Linear {
                    align_corners: true,
                } => (o * (extent - 1)) as f64 / (outputs - 1).max(1) as f64,
            };
            let first = (position as usize).min(extent - 1);
            let second = (first + 1).min(extent - 1);
            let share = position - first as f64;
            vec![(first, 1.0 - share), (second, share)]
        }
        Resample::AdaptiveAverage { outputs } => {
            let outputs = outputs[dim];
            let window = o * extent / outputs..((o + 1) * extent).div_ceil(outputs);
            let share = 1.0 / window.len() as f64;
            window.map(|input| (input, share)).collect()
        }
        Resample::Pad { sides, mode } => {
            let (at, last) = (o as i64 - sides[dim].0 as i64, extent as i64 - 1);
            let from = match mode {
                PadMode::Zero if at < 0 || at > last => return Vec::new(),
                PadMode::Zero => at,
                PadMode::Replicate => at.clamp(0, last),
                PadMode::Reflect => last - (last - at.abs()).abs(),
            };
            vec![(from as usize, 1.0)]
        }
    }
}

/// Visits the taps of an output: the number of the tap, and its input unless it lies over padding.
fn for_taps(
    windows: &[partita_space::Window; 3],
    periodic: bool,
    out: [usize; 3],
    extent: [usize; 3],
    mut visit: impl FnMut(usize, Option<[usize; 3]>),
) {
    let kernel = windows.map(|window| window.kernel);
    for tap in 0..kernel.iter().product() {
        let taps = [
            tap / kernel[2] / kernel[1],
            tap / kernel[2] % kernel[1],
            tap % kernel[2],
        ];
        let mut input = [0; 3];
        let mut inside = true;
        for dim in 0..3 {
            let window = &windows[dim];
            let at = (out[dim] * window.stride + taps[dim] * window.dilation) as i64
                - window.pad_low as i64;
            let size = extent[dim] as i64;
            inside &= periodic || (0..size).contains(&at);
            input[dim] = at.rem_euclid(size) as usize;
        }
        visit(tap, inside.then_some(input));
    }
}

fn convolve(
    node: &Node,
    convolution: &Convolution,
    x: &Tensor,
    weight: &[f64],
    bias: Option<&Vec<f64>>,
) -> Tensor {
    let (filters, groups) = (convolution.filters, convolution.groups);
    let channels = x.shape[4] / groups;
    let extent = [x.shape[1], x.shape[2], x.shape[3]];
    Tensor::build(node.shape.batched(x.shape[0]), |[n, d, h, w, f]| {
        let mut sum = bias.map_or(0.0, |bias| bias[f]);
        let first = f / (filters / groups) * channels;
        let (windows, out) = (&convolution.window, [d, h, w]);
        for_taps(windows, convolution.periodic, out, extent, |tap, input| {
            let Some([d, h, w]) = input else { return };
            for c in 0..channels {
                sum += x.at([n, d, h, w, first + c]) * weight[(tap * channels + c) * filters + f];
            }
        });
        sum
    })
}

/// Every input adds to the outputs under its taps, if they are left by the padding.
fn spread(
    node: &Node,
    convolution: &TransposedConvolution,
    x: &Tensor,
    weight: &[f64],
    bias: Option<&Vec<f64>>,
) -> Tensor {
    let filters = convolution.filters / convolution.groups;
    let (channels, shape) = (x.shape[4], node.shape.batched(x.shape[0]));
    let mut y = Tensor::build(shape, |at| bias.map_or(0.0, |bias| bias[at[4]]));
    let extent = [shape[1], shape[2], shape[3]];
    each(x.shape, |[n, d, h, w, c]| {
        let first = c / (channels / convolution.groups) * filters;
        for_taps(
            &convolution.window,
            false,
            [d, h, w],
            extent,
            |tap, output| {
                let Some([od, oh, ow]) = output else { return };
                for f in 0..filters {
                    let at = [n, od, oh, ow, first + f];
                    let value = x.at([n, d, h, w, c]) * weight[(tap * filters + f) * channels + c];
                    let index = y.index(at);
                    y.data[index] += value;
                }
            },
        );
    });
    y
}

fn slide(node: &Node, pool: &Pool, x: &Tensor) -> Tensor {
    let extent = [x.shape[1], x.shape[2], x.shape[3]];
    Tensor::build(node.shape.batched(x.shape[0]), |[n, d, h, w, c]| {
        let (mut inside, mut taps) = (Vec::new(), 0.0);
        for_taps(&pool.window, false, [d, h, w], extent, |_, input| {
            taps += 1.0;
            inside.extend(input.map(|[d, h, w]| x.at([n, d, h, w, c])));
        });
        let count = inside.len() as f64;
        match pool.kind {
            PoolKind::Max => inside.into_iter().fold(f64::NEG_INFINITY, f64::max),
            PoolKind::L2 => inside.iter().map(|x| x * x).sum::<f64>().sqrt(),
            PoolKind::AverageAll => inside.iter().sum::<f64>() / taps,
            PoolKind::AverageInside => inside.iter().sum::<f64>() / count,
        }
    })
}

fn normalize(x: &Tensor, epsilon: f64, gamma: &[f64], beta: &[f64]) -> Tensor {
    let channels = x.shape[4];
    let count = (x.data.len() / channels) as f64;
    let of = |c: usize| x.data.iter().skip(c).step_by(channels);
    let means: Vec<f64> = (0..channels).map(|c| of(c).sum::<f64>() / count).collect();
    let deviations: Vec<f64> = (0..channels)
        .map(|c| {
            let squares = of(c).map(|x| (x - means[c]) * (x - means[c]));
            (squares.sum::<f64>() / count + epsilon).sqrt()
        })
        .collect();
    x.map(|x, c| gamma[c] * (x - means[c]) / deviations[c] + beta[c])
}

fn mean_loss(loss: &Loss, x: &Tensor, targets: &[Vec<f64>]) -> f64 {
    let targets: Vec<f64> = targets.iter().flatten().copied().collect();
    let terms: Vec<f64> = match loss {
        Loss::MeanSquaredError => {
            let pairs = x.data.iter().zip(&targets);
            pairs
                .map(|(x, target)| (x - target) * (x - target))
                .collect()
        }
        Loss::Elements(_) | Loss::Classes(_) => panic!("no such losses here"),
        Loss::SoftmaxCrossEntropy { smoothing } => {
            assert_eq!(*smoothing, 0.0, "no smoothing here");
            let rows = x.data.chunks(x.shape[4]).zip(&targets);
            rows.map(|(row, &class)| {
                let total: f64 = row.iter().map(|x| x.exp()).sum();
                total.ln() - row[class as usize]
            })
            .collect()
        }
    };
    terms.iter().sum::<f64>() / terms.len() as f64
}
