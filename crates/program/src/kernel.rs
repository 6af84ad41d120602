use crate::{Place, View};
use serde::{Deserialize, Serialize};

/// Taps of a window: kernel, stride and dilation per spatial dim (D, H, W).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Taps {
    /// Taps per dim.
    pub kernel: [usize; 3],
    /// Inputs between neighboring outputs.
    pub stride: [usize; 3],
    /// Inputs between neighboring taps.
    pub dilation: [usize; 3],
}

impl Taps {
    /// Taps in all.
    pub fn volume(&self) -> usize {
        self.kernel.iter().product()
    }
}

/// The kinds of pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PoolKind {
    /// Maximum; the first one in (D, H, W) order takes the gradient.
    Max,
    /// Sum over the taps inside, divided by the window's volume.
    AverageAll,
    /// Mean over the taps inside.
    AverageInside,
}

/// What is done to a stored value on its way into the network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Transform {
    /// `x`
    Identity,
    /// `factor * x`
    Scale {
        /// The factor.
        factor: f64,
    },
    /// `ln(1 + x)`
    LogOnePlus,
}

/// The rule by which a parameter moves, with the constants that do not change from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Optimizer {
    /// `v = momentum * v + g; w -= rate * v`, with `g` including `weight_decay * w`.
    Sgd {
        /// Factor on the old velocity; 0 needs no velocity.
        momentum: f64,
        /// Factor on the weight added to the gradient.
        weight_decay: f64,
    },
    /// Adam with bias correction (Kingma and Ba 2015, algorithm 1); `g` includes `weight_decay * w`.
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        epsilon: f64,
        /// Factor on the weight added to the gradient.
        weight_decay: f64,
    },
}

/// How a kernel touches a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Needs the contents.
    Read,
    /// Sets every element without looking.
    Write,
    /// Needs the contents and changes them.
    Update,
}

/// A computation on local views. Letters: x input, y output, w weight, d... gradient of.
///
/// Activations are (N, D, H, W, C), weights (Kd, Kh, Kw, C / groups, F), vectors (1, 1, 1, 1, F).
/// `accumulate` adds to the target instead of replacing it. Input `i` of a window kernel belongs to
/// output `o` and tap `k` if `i + shift = o * stride + k * dilation`, all counted from the starts of
/// the views.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are named by the letters above")]
pub enum Kernel {
    /// Sets every element.
    Fill { target: View, value: f64 },
    /// Copies or adds a view to another of the same volume and dtype, both taken in memory order: with
    /// equal extents a copy of a box, else a change of shape.
    Copy {
        source: View,
        target: View,
        accumulate: bool,
    },
    /// (N, C, D, H, W) as stored to (N, D, H, W, C), cast and transformed.
    Import {
        source: View,
        target: View,
        transform: Transform,
    },
    /// The view `x` holds every input of every tap: shift 0 and nothing is clipped.
    ConvolutionForward {
        x: View,
        w: View,
        bias: Option<View>,
        y: View,
        taps: Taps,
        groups: usize,
    },
    /// Outputs outside `dy` contribute nothing.
    ConvolutionBackwardData {
        dy: View,
        w: View,
        dx: View,
        taps: Taps,
        shift: [i64; 3],
        groups: usize,
        accumulate: bool,
    },
    /// As forward, summed over samples and positions.
    ConvolutionBackwardWeight {
        x: View,
        dy: View,
        dw: View,
        taps: Taps,
        groups: usize,
        accumulate: bool,
    },
    /// Sum of `dy` over samples and positions.
    BiasBackward {
        dy: View,
        db: View,
        accumulate: bool,
    },
    /// Taps outside `x` lie outside the image and do not count.
    PoolForward {
        kind: PoolKind,
        x: View,
        y: View,
        taps: Taps,
        shift: [i64; 3],
    },
    /// `dx` has the geometry of `x` in the forward kernel; `x` is read by a maximum only.
    PoolBackward {
        kind: PoolKind,
        x: Option<View>,
        dy: View,
        dx: View,
        taps: Taps,
        shift: [i64; 3],
        accumulate: bool,
    },
    /// `sums` is (1, 1, 1, 2, C) in f64: sums of x and of x squared.
    BatchNormStatistics { x: View, sums: View },
    /// Normalizes by the moments in `sums` over `count` elements per channel.
    BatchNormForward {
        x: View,
        sums: View,
        gamma: View,
        beta: View,
        y: View,
        count: u64,
        epsilon: f64,
    },
    /// Moves the running statistics toward those of this step.
    BatchNormRunning {
        sums: View,
        mean: View,
        variance: View,
        count: u64,
        momentum: f64,
    },
    /// Normalizes by the running statistics.
    BatchNormInference {
        x: View,
        mean: View,
        variance: View,
        gamma: View,
        beta: View,
        y: View,
        epsilon: f64,
    },
    /// `gradient_sums` is (1, 1, 1, 2, C) in f64: sums of dy and of dy times the normalized x.
    BatchNormBackwardStatistics {
        x: View,
        sums: View,
        dy: View,
        gradient_sums: View,
        count: u64,
        epsilon: f64,
    },
    /// Gradient of the input from complete sums.
    BatchNormBackwardData {
        x: View,
        sums: View,
        gamma: View,
        dy: View,
        gradient_sums: View,
        dx: View,
        count: u64,
        epsilon: f64,
        accumulate: bool,
    },
    /// Gradients of gamma and beta from complete sums.
    BatchNormBackwardParameters {
        gradient_sums: View,
        dgamma: View,
        dbeta: View,
        accumulate: bool,
    },
    /// `y` may be `x`.
    LeakyReluForward {
        x: View,
        y: View,
        negative_slope: f64,
    },
    /// Takes the sign from `y`; `dx` may be `dy`.
    LeakyReluBackward {
        y: View,
        dy: View,
        dx: View,
        negative_slope: f64,
        accumulate: bool,
    },
    /// Rows are samples.
    LinearForward {
        x: View,
        w: View,
        bias: Option<View>,
        y: View,
    },
    /// `dx = dy w'`
    LinearBackwardData {
        dy: View,
        w: View,
        dx: View,
        accumulate: bool,
    },
    /// `dw = x' dy`
    LinearBackwardWeight {
        x: View,
        dy: View,
        dw: View,
        accumulate: bool,
    },
    /// Zeroes elements by a draw keyed by (seed, epoch, sample, `operation`, element); `y` may be `x`.
    /// `place` tells which element of the tensor the first one of the view is. The same kernel serves
    /// forward (x, y) and backward (dy, dx).
    Dropout {
        x: View,
        y: View,
        rate: f64,
        operation: u32,
        place: Place,
        accumulate: bool,
    },
    /// `y = a + b`
    Add { a: View, b: View, y: View },
    /// `loss` (one f64) becomes the sum of squares over `count`; `dx` its gradient.
    MeanSquaredError {
        x: View,
        target: View,
        dx: Option<View>,
        loss: View,
        count: u64,
    },
    /// `target` (N, D, H, W, 1) holds class numbers; the sum is over positions, divided by `count`.
    SoftmaxCrossEntropy {
        x: View,
        target: View,
        dx: Option<View>,
        loss: View,
        count: u64,
    },
    /// `errors` is (1, 1, 1, 2, C) in f64: sums of absolute and of squared errors per channel.
    OutputErrors { x: View, target: View, errors: View },
    /// `total` (one f64) becomes the sum of squares over all views.
    SumOfSquares { sources: Vec<View>, total: View },
    /// One step of the optimizer, learning rate and step count from the step inputs. `moments` are
    /// the velocity, or first and second moment. With `clip`, gradients are scaled by
    /// `min(1, maximum / (sqrt(total) + 1e-6))`.
    Update {
        rule: Optimizer,
        parameter: View,
        gradient: View,
        moments: Vec<View>,
        clip: Option<(View, f64)>,
    },
}

impl Kernel {
    /// Name of the kind, as printed in reports and menus.
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::Fill { .. } => "fill",
            Kernel::Copy { .. } => "copy",
            Kernel::Import { .. } => "import",
            Kernel::ConvolutionForward { .. } => "convolution_forward",
            Kernel::ConvolutionBackwardData { .. } => "convolution_backward_data",
            Kernel::ConvolutionBackwardWeight { .. } => "convolution_backward_weight",
            Kernel::BiasBackward { .. } => "bias_backward",
            Kernel::PoolForward { .. } => "pool_forward",
            Kernel::PoolBackward { .. } => "pool_backward",
            Kernel::BatchNormStatistics { .. } => "batch_norm_statistics",
            Kernel::BatchNormForward { .. } => "batch_norm_forward",
            Kernel::BatchNormRunning { .. } => "batch_norm_running",
            Kernel::BatchNormInference { .. } => "batch_norm_inference",
            Kernel::BatchNormBackwardStatistics { .. } => "batch_norm_backward_statistics",
            Kernel::BatchNormBackwardData { .. } => "batch_norm_backward_data",
            Kernel::BatchNormBackwardParameters { .. } => "batch_norm_backward_parameters",
            Kernel::LeakyReluForward { .. } => "leaky_relu_forward",
            Kernel::LeakyReluBackward { .. } => "leaky_relu_backward",
            Kernel::LinearForward { .. } => "linear_forward",
            Kernel::LinearBackwardData { .. } => "linear_backward_data",
            Kernel::LinearBackwardWeight { .. } => "linear_backward_weight",
            Kernel::Dropout { .. } => "dropout",
            Kernel::Add { .. } => "add",
            Kernel::MeanSquaredError { .. } => "mean_squared_error",
            Kernel::SoftmaxCrossEntropy { .. } => "softmax_cross_entropy",
            Kernel::OutputErrors { .. } => "output_errors",
            Kernel::SumOfSquares { .. } => "sum_of_squares",
            Kernel::Update { .. } => "update",
        }
    }

    /// Every view it touches, and how. A view that is read and written in place comes twice.
    pub fn accesses(&self) -> Vec<(View, Access)> {
        use Access::{Read, Write};
        let target = |accumulate: bool| if accumulate { Access::Update } else { Write };
        match self {
            Kernel::Fill { target: t, .. } => vec![(*t, Write)],
            Kernel::Copy {
                source,
                target: t,
                accumulate,
            } => {
                vec![(*source, Read), (*t, target(*accumulate))]
            }
            Kernel::Import {
                source, target: t, ..
            } => vec![(*source, Read), (*t, Write)],
            Kernel::ConvolutionForward { x, w, bias, y, .. }
            | Kernel::LinearForward { x, w, bias, y } => {
                let mut all = vec![(*x, Read), (*w, Read)];
                all.extend(bias.map(|bias| (bias, Read)));
                all.push((*y, Write));
                all
            }
            Kernel::ConvolutionBackwardData {
                dy,
                w,
                dx,
                accumulate,
                ..
            }
            | Kernel::LinearBackwardData {
                dy,
                w,
                dx,
                accumulate,
            } => {
                vec![(*dy, Read), (*w, Read), (*dx, target(*accumulate))]
            }
            Kernel::ConvolutionBackwardWeight {
                x,
                dy,
                dw,
                accumulate,
                ..
            }
            | Kernel::LinearBackwardWeight {
                x,
                dy,
                dw,
                accumulate,
            } => {
                vec![(*x, Read), (*dy, Read), (*dw, target(*accumulate))]
            }
            Kernel::BiasBackward { dy, db, accumulate } => {
                vec![(*dy, Read), (*db, target(*accumulate))]
            }
            Kernel::PoolForward { x, y, .. } => vec![(*x, Read), (*y, Write)],
            Kernel::PoolBackward {
                x,
                dy,
                dx,
                accumulate,
                ..
            } => {
                let mut all: Vec<_> = x.map(|x| (x, Read)).into_iter().collect();
                all.extend([(*dy, Read), (*dx, target(*accumulate))]);
                all
            }
            Kernel::BatchNormStatistics { .. }
            | Kernel::BatchNormForward { .. }
            | Kernel::BatchNormRunning { .. }
            | Kernel::BatchNormInference { .. }
            | Kernel::BatchNormBackwardStatistics { .. }
            | Kernel::BatchNormBackwardData { .. }
            | Kernel::BatchNormBackwardParameters { .. } => self.batch_norm_accesses(),
            Kernel::LeakyReluForward { x, y, .. } => vec![(*x, Read), (*y, Write)],
            Kernel::LeakyReluBackward {
                y,
                dy,
                dx,
                accumulate,
                ..
            } => {
                vec![(*y, Read), (*dy, Read), (*dx, target(*accumulate))]
            }
            Kernel::Dropout {
                x, y, accumulate, ..
            } => {
                vec![(*x, Read), (*y, target(*accumulate))]
            }
            Kernel::Add { a, b, y } => vec![(*a, Read), (*b, Read), (*y, Write)],
            Kernel::MeanSquaredError {
                x,
                target: t,
                dx,
                loss,
                ..
            }
            | Kernel::SoftmaxCrossEntropy {
                x,
                target: t,
                dx,
                loss,
                ..
            } => {
                let mut all = vec![(*x, Read), (*t, Read)];
                all.extend(dx.map(|dx| (dx, Write)));
                all.push((*loss, Write));
                all
            }
            Kernel::OutputErrors {
                x,
                target: t,
                errors,
            } => {
                vec![(*x, Read), (*t, Read), (*errors, Write)]
            }
            Kernel::SumOfSquares { sources, total } => sources
                .iter()
                .map(|&view| (view, Read))
                .chain([(*total, Write)])
                .collect(),
            Kernel::Update {
                parameter,
                gradient,
                moments,
                clip,
                ..
            } => {
                let mut all = vec![(*gradient, Read), (*parameter, Access::Update)];
                all.extend(moments.iter().map(|&view| (view, Access::Update)));
                all.extend(clip.map(|(total, _)| (total, Read)));
                all
            }
        }
    }

    fn batch_norm_accesses(&self) -> Vec<(View, Access)> {
        use Access::{Read, Write};
        let target = |accumulate: bool| if accumulate { Access::Update } else { Write };
        match self {
            Kernel::BatchNormStatistics { x, sums } => vec![(*x, Read), (*sums, Write)],
            Kernel::BatchNormForward {
                x,
                sums,
                gamma,
                beta,
                y,
                ..
            } => {
                vec![
                    (*x, Read),
                    (*sums, Read),
                    (*gamma, Read),
                    (*beta, Read),
                    (*y, Write),
                ]
            }
            Kernel::BatchNormRunning {
                sums,
                mean,
                variance,
                ..
            } => {
                vec![
                    (*sums, Read),
                    (*mean, Access::Update),
                    (*variance, Access::Update),
                ]
            }
            Kernel::BatchNormInference {
                x,
                mean,
                variance,
                gamma,
                beta,
                y,
                ..
            } => {
                let reads = [*x, *mean, *variance, *gamma, *beta];
                reads
                    .into_iter()
                    .map(|view| (view, Read))
                    .chain([(*y, Write)])
                    .collect()
            }
            Kernel::BatchNormBackwardStatistics {
                x,
                sums,
                dy,
                gradient_sums,
                ..
            } => {
                vec![
                    (*x, Read),
                    (*sums, Read),
                    (*dy, Read),
                    (*gradient_sums, Write),
                ]
            }
            Kernel::BatchNormBackwardData {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                dx,
                accumulate,
                ..
            } => {
                let reads = [*x, *sums, *gamma, *dy, *gradient_sums];
                let reads = reads.into_iter().map(|view| (view, Read));
                reads.chain([(*dx, target(*accumulate))]).collect()
            }
            Kernel::BatchNormBackwardParameters {
                gradient_sums,
                dgamma,
                dbeta,
                accumulate,
            } => {
                let write = target(*accumulate);
                vec![(*gradient_sums, Read), (*dgamma, write), (*dbeta, write)]
            }
            other => panic!("{} is no batch norm kernel", other.name()),
        }
    }
}
