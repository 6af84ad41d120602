//! The kernels, a closed enum.

use crate::each_view::EachView;
use crate::{
    Activation, ClassTerms, Direction, Distribution, DropoutMask, ElementFunction, Optimizer,
    PoolKind, Taps, Transform, View,
};
use partita_space::{AttentionWindow, Resampling};
use serde::{Deserialize, Serialize};

/// Defines the kernels, structs of their fields, and a visitor of their views.
macro_rules! kernels {
    (
        $(#[$meta:meta])*
        pub enum Kernel {
            $( $(#[$of_kind:meta])* $kind:ident {
                $( $(#[$of_field:meta])* $field:ident: $type:ty ),* $(,)?
            }, )*
        }
    ) => {
        $(#[$meta])*
        pub enum Kernel {
            $( $(#[$of_kind])* $kind { $( $(#[$of_field])* $field: $type ),* }, )*
        }

        impl Kernel {
            /// Number of kinds.
            pub const KINDS: usize = [$( stringify!($kind) ),*].len();
        }

        /// The fields of each kind of kernel.
        #[allow(missing_docs, reason = "as of the kernels")]
        pub mod fields {
            use super::*;

            $(
                #[derive(Clone, Copy, Debug)]
                pub struct $kind<'k> { $( pub $field: &'k $type ),* }
            )*
        }

        /// A kernel by its kind, with its fields in one.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "as of the kernels")]
        pub enum Fields<'k> {
            $( $kind(fields::$kind<'k>), )*
        }

        impl Kernel {
            /// Its fields.
            pub fn fields(&self) -> Fields<'_> {
                match self {
                    $( Kernel::$kind { $( $field ),* } => {
                        Fields::$kind(fields::$kind { $( $field ),* })
                    } )*
                }
            }
        }

        impl EachView for Kernel {
            fn each_view_mut(&mut self, f: &mut dyn FnMut(&mut View)) {
                match self {
                    $( Kernel::$kind { $( $field ),* } => { $( $field.each_view_mut(f); )* } )*
                }
            }
        }
    };
}

kernels! {
    /// A computation on local views. Letters: x input, y output, w weight, d... gradient of.
    ///
    /// Activations are (N, D, H, W, C), weights (Kd, Kh, Kw, C / groups, F), vectors (1, 1, 1, 1, F).
    /// The `w` of a convolution may be packed weights instead: all of a buffer of that role.
    /// `accumulate` adds to the target instead of replacing it. Input `i` of a window kernel belongs to
    /// output `o` and tap `k` if `i + shift = o * stride + k * dilation`, all counted from the starts of
    /// the views.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[allow(missing_docs, reason = "the fields are named by the letters above")]
    pub enum Kernel {
        /// Computes its parts one after the other in one pass over memory. Parts are not fused themselves.
        Fused { parts: Vec<Kernel> },
        /// Sets every element.
        Fill { target: View, value: f64 },
        /// Copies or adds a view to another of the same volume and dtype, both in memory order: with equal
        /// extents a copy of a box, else a reshape.
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
        /// Packs weights for the convolutions of the same direction, taps and groups. Only the implementation
        /// knows the packed form; `packed` is the whole buffer.
        PackWeights {
            w: View,
            packed: View,
            direction: Direction,
            taps: Taps,
            groups: usize,
        },
        /// The view `x` holds the input of every tap: shift 0 and no clipping. It is also the data gradient of
        /// a transposed convolution, which may accumulate.
        ConvolutionForward {
            x: View,
            w: View,
            bias: Option<View>,
            y: View,
            taps: Taps,
            groups: usize,
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            accumulate: bool,
        },
        /// Outputs outside `dy` count as zero. It is also the forward pass of a transposed convolution, which
        /// may have a bias.
        ConvolutionBackwardData {
            dy: View,
            w: View,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            bias: Option<View>,
            dx: View,
            taps: Taps,
            shift: [i64; 3],
            groups: usize,
            accumulate: bool,
        },
        /// As forward, summed over samples and positions; of a transposed convolution `x` is the gradient
        /// of the output and `dy` the input.
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
        /// Taps outside `x` are padding and are ignored.
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
        /// Each spatial dim by its map, counted from the starts of the views. `x` holds all that outputs read, and
        /// no further input on a side where an output lies beyond the border.
        ResampleForward {
            x: View,
            y: View,
            maps: [Resampling; 3],
        },
        /// The transpose: `dx` has the geometry of `x` in the forward kernel.
        ResampleBackward {
            dy: View,
            dx: View,
            maps: [Resampling; 3],
            accumulate: bool,
        },
        /// `sums` is (1, 1, 1, 2, C) in f64: sums of x and of x squared.
        BatchNormStatistics {
            x: View,
            sums: View,
            accumulate: bool,
        },
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
        /// Updates the running statistics.
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
        /// Gradient of the input where the running statistics normalized.
        BatchNormInferenceBackward {
            dy: View,
            variance: View,
            gamma: View,
            dx: View,
            epsilon: f64,
            accumulate: bool,
        },
        /// `gradient_sums` is (1, 1, 1, 2, C) in f64: sums of dy and of dy times the normalized x.
        BatchNormBackwardStatistics {
            x: View,
            sums: View,
            dy: View,
            gradient_sums: View,
            count: u64,
            epsilon: f64,
            accumulate: bool,
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
        /// Gradients of gamma and beta from these sums, or partial sums of the gradients from local ones.
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
        /// `y = x` where `x > 0`, else `x` times the slope of its channel, or the only one of `slopes`.
        PreluForward { x: View, slopes: View, y: View },
        /// `dx` is `dy`, times the slope where not `x > 0`.
        PreluBackwardData {
            x: View,
            slopes: View,
            dy: View,
            dx: View,
            accumulate: bool,
        },
        /// Sum of `dy x` over samples and positions where not `x > 0`; with `one`, over channels, too.
        PreluBackwardSlopes {
            x: View,
            dy: View,
            dslopes: View,
            one: bool,
            accumulate: bool,
        },
        /// `exp(x)` over its sum over channels.
        SoftmaxForward { x: View, y: View },
        /// `dx = y (dy - s)`, `s` being the sum of `y dy` over channels.
        SoftmaxBackward {
            y: View,
            dy: View,
            dx: View,
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
        /// Channel `j groups + g` of `y` is channel `g C / groups + j` of `x`.
        ChannelShuffle {
            x: View,
            y: View,
            groups: usize,
            accumulate: bool,
        },
        /// Zeroes elements by random numbers keyed by (seed, epoch, sample, `operation`, element); `y` may be `x`.
        /// Under another mask the number of an element is that of its channel, or 0.
        /// The view begins `halo_low` elements before the owned region of a tensor with this distribution. The
        /// same kernel serves forward (x, y) and backward (dy, dx).
        Dropout {
            x: View,
            y: View,
            rate: f64,
            #[serde(default, skip_serializing_if = "DropoutMask::is_element")]
            mask: DropoutMask,
            operation: u32,
            #[serde(rename = "place")]
            distribution: Distribution,
            #[serde(rename = "low", default, skip_serializing_if = "is_zero")]
            halo_low: [usize; 5],
            accumulate: bool,
        },
        /// `y = a + b`
        Add { a: View, b: View, y: View },
        /// `y = a b`; or `b` is (N, 1, 1, 1, C) and the factor of all positions, or (N, D, H, W, 1) and the
        /// factor of all channels.
        Multiply {
            a: View,
            b: View,
            y: View,
            accumulate: bool,
        },
        /// `y` is (N, 1, 1, 1, C): the sum of `a b` over positions.
        MultiplySum {
            a: View,
            b: View,
            y: View,
            accumulate: bool,
        },
        /// `y` is (N, D, H, W, 1): the sum of `a b` over channels.
        MultiplyChannelSum {
            a: View,
            b: View,
            y: View,
            accumulate: bool,
        },
        /// Rows of `w` (1, 1, 1, rows, C) by the class numbers in `x` (N, D, H, W, 1).
        EmbeddingForward { x: View, w: View, y: View },
        /// Sums of `dy` over the samples and positions of each class number, one row each.
        EmbeddingBackward {
            x: View,
            dy: View,
            dw: View,
            accumulate: bool,
        },
        /// Adds `sin(w / 10000^(c / C))` where the channel `c` is even, and where it is odd the cosine of
        /// the channel before, `w` and `c` counted in the whole tensor, C its channels. The view begins
        /// `halo_low` elements before the owned region.
        Positions {
            x: View,
            y: View,
            #[serde(rename = "place")]
            distribution: Distribution,
            #[serde(rename = "low", default, skip_serializing_if = "is_zero")]
            halo_low: [usize; 5],
        },
        /// `sums` is (N, D, H, W, 2) in f64: sums over channels of x, or 0 in an RMS norm, and of x squared.
        LayerNormStatistics {
            x: View,
            sums: View,
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            rms: bool,
        },
        /// Normalizes by the moments in `sums` over `count` channels.
        LayerNormForward {
            x: View,
            sums: View,
            gamma: View,
            beta: View,
            y: View,
            count: u64,
            epsilon: f64,
        },
        /// `gradient_sums` is (N, D, H, W, 2) in f64: sums over channels of dy times gamma, or 0 in an RMS norm, and
        /// of dy times gamma times the normalized x.
        LayerNormBackwardStatistics {
            x: View,
            sums: View,
            gamma: View,
            dy: View,
            gradient_sums: View,
            count: u64,
            epsilon: f64,
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            rms: bool,
        },
        /// Gradient of the input from complete sums.
        LayerNormBackwardData {
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
        /// Gradients of gamma and beta, summed over samples and positions.
        LayerNormBackwardParameters {
            x: View,
            sums: View,
            dy: View,
            dgamma: View,
            dbeta: View,
            count: u64,
            epsilon: f64,
            accumulate: bool,
        },
        /// `sums` is (N, 1, 1, 2, C) in f64: sums over positions of x and of x squared.
        GroupNormStatistics { x: View, sums: View },
        /// Normalizes by the moments in `sums` of each of `groups` ranges of equally many channels, over
        /// `count` elements per group.
        GroupNormForward {
            x: View,
            sums: View,
            gamma: View,
            beta: View,
            y: View,
            groups: usize,
            count: u64,
            epsilon: f64,
        },
        /// Gradients of gamma and beta, summed over samples and positions; `gradient_sums`, if the gradient of the
        /// input is needed, is (N, 1, 1, 2, C) in f64: sums over positions of dy and of dy times the normalized x.
        GroupNormBackwardStatistics {
            x: View,
            sums: View,
            dy: View,
            gradient_sums: Option<View>,
            dgamma: View,
            dbeta: View,
            groups: usize,
            count: u64,
            epsilon: f64,
            accumulate: bool,
        },
        /// Gradient of the input from complete sums.
        GroupNormBackwardData {
            x: View,
            sums: View,
            gamma: View,
            dy: View,
            gradient_sums: View,
            dx: View,
            groups: usize,
            count: u64,
            epsilon: f64,
            accumulate: bool,
        },
        /// `y = function(x)`
        ActivationForward {
            function: Activation,
            x: View,
            y: View,
        },
        /// The derivative is taken at `x`.
        ActivationBackward {
            function: Activation,
            x: View,
            dy: View,
            dx: View,
            accumulate: bool,
        },
        /// Adds row `p` of `w` (1, 1, 1, rows, C) to position `p` of each sample, (D, H, W) counted in the whole
        /// tensor; positions without a row stay. The view begins `halo_low` elements before the owned region.
        PositionEmbeddingForward {
            x: View,
            w: View,
            y: View,
            #[serde(rename = "place")]
            distribution: Distribution,
            #[serde(rename = "low", default, skip_serializing_if = "is_zero")]
            halo_low: [usize; 5],
        },
        /// Sums of `dy` over the samples, for each row its position.
        PositionEmbeddingBackward {
            dy: View,
            dw: View,
            #[serde(rename = "place")]
            distribution: Distribution,
            #[serde(rename = "low", default, skip_serializing_if = "is_zero")]
            halo_low: [usize; 5],
            accumulate: bool,
        },
        /// For each sample and each of `heads` ranges of equally many channels, K of them:
        /// `softmax(q k' / sqrt(K) + bias) v` over all positions; `q` and `y` are (N, D, H, W, C), `k` and `v` of other
        /// D, H and W. With `causal` position `i` of q sees positions 0 to `i`, in (D, H, W) order. `bias` is (1, 1, 1,
        /// rows, heads); its rows are [`partita_space::ScoreRows`] of `table`.
        AttentionForward {
            q: View,
            k: View,
            v: View,
            y: View,
            heads: usize,
            causal: bool,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            window: Option<AttentionWindow>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            bias: Option<View>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            table: Option<[usize; 3]>,
        },
        /// The gradients that are needed; `accumulate` is for dq, dk and dv.
        AttentionBackward {
            q: View,
            k: View,
            v: View,
            dy: View,
            dq: Option<View>,
            dk: Option<View>,
            dv: Option<View>,
            heads: usize,
            causal: bool,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            window: Option<AttentionWindow>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            bias: Option<View>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            table: Option<[usize; 3]>,
            accumulate: [bool; 3],
        },
        /// Sums over the samples and windows of the gradients of the scores, each added to its row of `dbias`.
        AttentionBackwardBias {
            q: View,
            k: View,
            v: View,
            dy: View,
            dbias: View,
            heads: usize,
            causal: bool,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            window: Option<AttentionWindow>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            bias: Option<View>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            table: Option<[usize; 3]>,
            accumulate: bool,
        },
        /// `loss` (one f64) becomes the sum of squares over `count`, times `weight`; `dx` its gradient.
        MeanSquaredError {
            x: View,
            target: View,
            dx: Option<View>,
            loss: View,
            count: u64,
            #[serde(default = "one", skip_serializing_if = "is_one")]
            weight: f64,
        },
        /// `target` (N, D, H, W, 1) holds class numbers; the sum is over positions, divided by `count`
        /// and times `weight`. All classes share `smoothing` of what is expected, the target has the rest.
        SoftmaxCrossEntropy {
            x: View,
            target: View,
            dx: Option<View>,
            loss: View,
            count: u64,
            #[serde(default = "one", skip_serializing_if = "is_one")]
            weight: f64,
            #[serde(default, skip_serializing_if = "is_none")]
            smoothing: f64,
        },
        /// `loss` (one f64) becomes the sum of `function` over elements, each times `weights` of its channel
        /// (empty: all 1), over `count`, times `weight`; `dx` its gradient.
        ElementLoss {
            function: ElementFunction,
            x: View,
            target: View,
            dx: Option<View>,
            loss: View,
            count: u64,
            weight: f64,
            weights: Vec<f64>,
        },
        /// `totals` is (1, 1, 1, 1, C) in f64: positions of each class in `target` (N, D, H, W, 1), but for
        /// those of the class `ignore`. The tensor `x`, which may be the target itself, has these positions.
        ClassTotals {
            x: View,
            target: View,
            totals: View,
            ignore: Option<i64>,
        },
        /// `sums` is (N, 1, 1, 3, C) in f64, or (1, 1, 1, 3, C) with `batch`: per class the sums of the softmax
        /// of x over the positions of the class, of the softmax over all positions, and the positions of the
        /// class, but for those of the class `ignore`.
        DiceSums {
            x: View,
            target: View,
            sums: View,
            batch: bool,
            ignore: Option<i64>,
        },
        /// Sum of cross-entropy and Dice times `weight`, from the totals of the mini-batch and the sums that they
        /// need; `dx` is its gradient.
        ClassLoss {
            x: View,
            target: View,
            totals: Option<View>,
            sums: Option<View>,
            dx: Option<View>,
            loss: View,
            weight: f64,
            terms: ClassTerms,
        },
        /// `errors` is (1, 1, 1, 2, C) in f64: sums of absolute and of squared errors per channel; with
        /// `logistic` those of the sigmoid of x.
        OutputErrors {
            x: View,
            target: View,
            errors: View,
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            logistic: bool,
        },
        /// `counts` is (1, 1, 1, 3, C) in f64: per class the positions of `target` (N, D, H, W, 1) that
        /// are of it and whose greatest element of `x` is its, all those whose greatest element is its,
        /// and all those that are of it. The first of equals is the greatest. Positions of the class `ignore`
        /// do not count.
        ClassCounts {
            x: View,
            target: View,
            counts: View,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            ignore: Option<i64>,
        },
        /// `total` (one f64) becomes the sum of squares over all views.
        SumOfSquares { sources: Vec<View>, total: View },
        /// `norms` (1, 1, 1, 1, 2) in f64 become sums of squares over a parameter, and over what LARS and LAMB
        /// compare it with: for LARS the gradient, for LAMB the direction `u`, which replaces the gradient
        /// here and needs both `moments`. `clip` is that of the update.
        UpdateNorms {
            rule: Optimizer,
            parameter: View,
            gradient: View,
            moments: Vec<View>,
            clip: Option<(View, f64)>,
            norms: View,
        },
        /// One step of the optimizer, learning rate and step count from the step inputs. `moments` are
        /// the velocity, or first and second moment. With `clip`, gradients are scaled by
        /// `min(1, maximum / (sqrt(total) + 1e-6))`. With `norms` the update is scaled by the trust ratio of
        /// LARS or LAMB; for LAMB the gradient is the direction, and there are no moments and no clipping.
        Update {
            rule: Optimizer,
            parameter: View,
            gradient: View,
            moments: Vec<View>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            norms: Option<View>,
            clip: Option<(View, f64)>,
        },
        /// `average += (1 - decay) * (parameter - average)`, with the updated parameter. With `total`, the sum of squares of
        /// all gradients, it leaves the average as it is where the update leaves the parameter as it is.
        Average {
            parameter: View,
            average: View,
            decay: f64,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            total: Option<View>,
        },
    }
}

/// The weight of a loss that is not auxiliary.
fn one() -> f64 {
    1.0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_one(weight: &f64) -> bool {
    *weight == 1.0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_none(smoothing: &f64) -> bool {
    *smoothing == 0.0
}

fn is_zero(halo_low: &[usize; 5]) -> bool {
    *halo_low == [0; 5]
}

impl Kernel {
    /// Name of the kind, as printed in reports and kernel keys; for a fused kernel that of its first part.
    pub fn name(&self) -> &'static str {
        // Only the descriptor of the first part is made.
        self.parts()
            .first()
            .map_or("fused", |first| first.descriptor().name)
    }

    /// The parts of a fused kernel in their order, or the kernel itself.
    pub fn parts(&self) -> &[Kernel] {
        if let Kernel::Fused { parts } = self {
            parts
        } else {
            std::slice::from_ref(self)
        }
    }

    /// Calls `f` with each view, those of fused parts included.
    pub fn each_view_mut(&mut self, f: &mut dyn FnMut(&mut View)) {
        EachView::each_view_mut(self, f);
    }
}
