//! Descriptors of kernels: everything but the implementation.
//!
//! Counting, accesses, extents and types, partial sums, gradient flow, costs, fusion, estimates and
//! kernel keys all read the descriptor. A new kernel is an entry of [`Kernel`], its descriptor in the file
//! of its family, and its implementations.

mod batch_norm;
mod class_loss;
mod contents;
mod convolution;
mod group_norm;
mod layer_norm;
mod linear;
mod loss;
mod operand;
mod pointwise;
mod pool;
mod resample;
mod sequence;
mod update;

pub use operand::{Elements, Extents, Operand, Over, SumRole};

use crate::{
    Access, Direction, Distribution, ElementFunction, Kernel, Optimizer, Taps, Transform, View,
};
use operand::*;
use partita_space::{AttentionWindow, Resampling};

/// Properties of a kernel.
#[derive(Debug)]
pub struct Descriptor<'k> {
    /// Name of the kind, as printed in reports and kernel keys; for a fused kernel that of its first part.
    pub name: &'static str,
    /// Its views, in the order of its key.
    pub operands: Vec<Operand<'k>>,
    /// Arithmetic by the rules of [`crate::Count::of`].
    pub flops: u128,
    /// Cost class, by which its time is estimated where it was not measured.
    pub cost: Cost<'k>,
    /// Sliding window over the input, if it has one.
    pub window: Option<Window<'k>>,
    /// For kernels that depend on global indices: the distribution of the tensor, and by how many elements
    /// the view begins before the owned region.
    pub distribution: Option<(&'k Distribution, &'k [usize; 5])>,
    /// Constraint on the distributions of the operands.
    pub layout: Layout<'k>,
    /// Effect on gradients and parameters.
    pub flow: Flow<'k>,
    /// How it can be fused into an earlier kernel.
    pub fusion: FusionRole<'k>,
    /// Whether each element of the target depends on the same element of each operand of its extents,
    /// and an operand may be the target.
    pub is_elementwise: bool,
    /// Whether it computes a logarithm of each element, which takes much longer than its flops suggest.
    pub takes_logarithms: bool,
    /// Constants that its time may depend on, in the order of its key.
    pub constants: [Option<Constant<'k>>; 5],
    /// Violated preconditions that involve more than one operand.
    pub violations: Vec<String>,
}

/// Which pass of a convolution or linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// y from x and w.
    Forward,
    /// dx from dy and w.
    BackwardData,
    /// dw from x and dy.
    BackwardWeight,
}

/// Cost classes of kernels.
#[derive(Clone, Copy, Debug)]
pub enum Cost<'k> {
    /// A convolution over 2 or 3 spatial dims; `input` and `output` are those of the layer, and the
    /// kernel loops over the positions of `written`.
    Convolution {
        /// Its pass.
        pass: Pass,
        /// Input of the layer, or its gradient.
        input: &'k View,
        /// Output of the layer, or its gradient.
        output: &'k View,
        /// The view that it writes, or sums over.
        written: &'k View,
    },
    /// A matrix product.
    Linear {
        /// Its pass.
        pass: Pass,
    },
    /// Bound by memory bandwidth.
    Memory,
}

/// The sliding window of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Window<'k> {
    /// Kernel, stride and dilation.
    pub taps: &'k Taps,
    /// Groups of channels.
    pub groups: usize,
    /// Inputs before the first tap of the first output.
    pub shift: [i64; 3],
    /// Extents of the outputs.
    pub outputs: [usize; 5],
}

/// Constraints on the distributions of operands.
#[derive(Clone, Copy, Debug)]
pub enum Layout<'k> {
    /// None.
    Any,
    /// A product with weights: the channels of one tensor are split by the axes of the rows of the weights,
    /// those of the other by the axes of the columns, or both by whole groups. A sum over split channels is
    /// a partial sum, to which one rank adds the bias.
    Product {
        /// The factor.
        from: &'k View,
        /// The product.
        to: &'k View,
        /// The weights.
        w: &'k View,
        /// Whether the rows of the weights belong to `from`.
        is_forward: bool,
        /// Bias of the product.
        bias: Option<&'k View>,
    },
    /// The same, for the gradient of weights.
    ProductGradient {
        /// Input of the layer.
        x: &'k View,
        /// Gradient of its output.
        dy: &'k View,
        /// Gradient of the weights.
        dw: &'k View,
    },
    /// An embedding table with unsplit rows, its columns split as the channels are.
    Table {
        /// The table or its gradient.
        w: &'k View,
        /// The tensor.
        y: &'k View,
    },
    /// Unsplit positions, all channels split alike, and so the columns of a bias or its gradient.
    Sequences {
        /// Queries, keys and values.
        inputs: [&'k View; 3],
        /// The result or its gradient.
        y: &'k View,
        /// The bias of scores, or its gradient.
        bias: Option<&'k View>,
    },
    /// The gradient has the distribution of its parameter.
    OwnShare {
        /// The parameter.
        parameter: &'k View,
        /// Its gradient.
        gradient: &'k View,
    },
}

/// Effect of a kernel on gradients and parameters, for the analysis of gradient flow.
#[derive(Clone, Copy, Debug)]
pub enum Flow<'k> {
    /// Reads parameters; its results belong to the micro-batches of its inputs.
    Computes,
    /// Overwrites with a constant.
    Clears {
        /// Whether the constant is zero, a neutral element of sums.
        zeros: bool,
    },
    /// Copies another view.
    Copies {
        /// The source.
        source: &'k View,
    },
    /// Packs weights.
    Packs {
        /// The weights.
        w: &'k View,
        /// The whole buffer of packed weights.
        packed: &'k View,
        /// The direction of the convolutions that use them.
        direction: Direction,
    },
    /// Updates a parameter by its gradient.
    Updates {
        /// The parameter.
        parameter: &'k View,
        /// Its gradient.
        gradient: &'k View,
    },
    /// Moves the average of a parameter, after its update.
    Averages {
        /// The parameter.
        parameter: &'k View,
        /// Its average.
        average: &'k View,
    },
    /// Sums squares over a parameter and its gradient, which it may replace by what the update subtracts.
    Measures {
        /// The gradient.
        gradient: &'k View,
    },
    /// Updates running statistics.
    Tracks,
}

/// How a kernel can be fused as an epilogue of an earlier kernel.
#[derive(Clone, Copy, Debug)]
pub enum FusionRole<'k> {
    /// Not at all.
    No,
    /// As a reduction of this operand.
    Reads(&'k View),
    /// As a transformation from the first view to the second.
    Changes(&'k View, &'k View),
    /// As a transformation from either of the two operands to the last view.
    ChangesEither([&'k View; 2], &'k View),
}

/// A constant of a kernel key.
#[derive(Clone, Copy, Debug)]
pub enum Constant<'k> {
    /// `kernel`, `stride` and `dilation`.
    Taps(&'k Taps),
    /// A count.
    Number(&'static str, usize),
    /// Rules and steps of resampling along D, H and W.
    Maps(&'k [Resampling; 3]),
    /// Offsets along D, H and W.
    Offsets(&'static str, &'k [i64; 3]),
    /// A flag.
    Flag(&'static str, bool),
    /// Three flags.
    Flags(&'static str, &'k [bool; 3]),
    /// Extents along D, H and W.
    Extents(&'static str, &'k [usize; 3]),
    /// Windows of attention.
    Windows(&'k AttentionWindow),
    /// A word.
    Word(&'static str, &'static str),
    /// `transform` and its numbers.
    Transform(&'k Transform),
    /// The `rule` of an update and its numbers.
    Rule(&'k Optimizer),
}

impl<'k> Descriptor<'k> {
    /// The views of a kernel that is not fused, and how they are accessed. A view that is read and written in
    /// place is listed twice.
    pub fn accesses(&self) -> Vec<(View, Access)> {
        let operands = self.operands.iter();
        operands
            .map(|operand| (*operand.view, operand.access))
            .collect()
    }

    /// Whether it writes zeros.
    pub fn is_zero(&self) -> bool {
        matches!(self.flow, Flow::Clears { zeros: true })
    }

    #[inline]
    fn new(name: &'static str, flops: u128, first: impl IntoIterator<Item = Operand<'k>>) -> Self {
        // Enough for most kernels: descriptors are made often.
        let mut operands = Vec::with_capacity(6);
        operands.extend(first);
        Self {
            name,
            operands,
            flops,
            cost: Cost::Memory,
            window: None,
            distribution: None,
            layout: Layout::Any,
            flow: Flow::Computes,
            fusion: FusionRole::No,
            is_elementwise: false,
            takes_logarithms: false,
            constants: [None; 5],
            violations: Vec::new(),
        }
    }

    #[inline]
    fn cost(self, cost: Cost<'k>) -> Self {
        Self { cost, ..self }
    }

    #[inline]
    fn window(self, window: Window<'k>) -> Self {
        let window = Some(window);
        Self { window, ..self }
    }

    #[inline]
    fn placed(self, distribution: &'k Distribution, halo_low: &'k [usize; 5]) -> Self {
        let distribution = Some((distribution, halo_low));
        Self {
            distribution,
            ..self
        }
    }

    #[inline]
    fn layout(self, layout: Layout<'k>) -> Self {
        Self { layout, ..self }
    }

    #[inline]
    fn flow(self, flow: Flow<'k>) -> Self {
        Self { flow, ..self }
    }

    #[inline]
    fn fusion(self, fusion: FusionRole<'k>) -> Self {
        Self { fusion, ..self }
    }

    #[inline]
    fn elementwise(self) -> Self {
        let is_elementwise = true;
        Self {
            is_elementwise,
            ..self
        }
    }

    /// With a constant `accumulate`.
    #[inline]
    fn accumulates(self, accumulate: bool) -> Self {
        self.constant(Constant::Flag("accumulate", accumulate))
    }

    #[inline]
    fn constant(mut self, constant: Constant<'k>) -> Self {
        let free = self
            .constants
            .iter_mut()
            .find(|constant| constant.is_none());
        *free.expect("no kernel has more constants") = Some(constant);
        self
    }

    #[inline]
    fn and(mut self, operands: impl IntoIterator<Item = Operand<'k>>) -> Self {
        self.operands.extend(operands);
        self
    }

    /// Adds a violation where a precondition does not hold.
    #[inline]
    fn require(mut self, holds: bool, otherwise: impl FnOnce() -> String) -> Self {
        if !holds {
            self.violations.push(otherwise());
        }
        self
    }

    #[inline]
    fn equal(self, what: &str, got: usize, expected: usize) -> Self {
        self.require(got == expected, || {
            format!("{what} are {got}, {expected} are expected")
        })
    }

    /// The kernel divides by a count, which must be positive.
    #[inline]
    fn counts(self, count: u64) -> Self {
        self.require(count > 0, || "counts no element".to_owned())
    }
}

/// Families of kernels; each has one file of descriptors and one of each implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Several kernels in one.
    Fused,
    /// Fills, copies and imports.
    Contents,
    /// Elementwise kernels.
    Pointwise,
    /// Convolutions, their biases and packed weights.
    Convolution,
    /// Poolings.
    Pool,
    /// Upsampling, padding and means over unequal windows.
    Resample,
    /// Batch norm.
    BatchNorm,
    /// Layer norm.
    LayerNorm,
    /// Group norm.
    GroupNorm,
    /// Linear layers.
    Linear,
    /// Embeddings, positions and attention.
    Sequence,
    /// Losses and metrics.
    Loss,
    /// The optimizer.
    Update,
}

impl Kernel {
    /// Its family.
    pub fn family(&self) -> Family {
        match self {
            Kernel::Fused { .. } => Family::Fused,
            Kernel::Fill { .. } | Kernel::Copy { .. } | Kernel::Import { .. } => Family::Contents,
            Kernel::LeakyReluForward { .. }
            | Kernel::LeakyReluBackward { .. }
            | Kernel::PreluForward { .. }
            | Kernel::PreluBackwardData { .. }
            | Kernel::PreluBackwardSlopes { .. }
            | Kernel::SoftmaxForward { .. }
            | Kernel::SoftmaxBackward { .. }
            | Kernel::ActivationForward { .. }
            | Kernel::ActivationBackward { .. }
            | Kernel::ChannelShuffle { .. }
            | Kernel::Dropout { .. }
            | Kernel::Add { .. }
            | Kernel::Multiply { .. }
            | Kernel::MultiplySum { .. }
            | Kernel::MultiplyChannelSum { .. } => Family::Pointwise,
            Kernel::PackWeights { .. }
            | Kernel::ConvolutionForward { .. }
            | Kernel::ConvolutionBackwardData { .. }
            | Kernel::ConvolutionBackwardWeight { .. }
            | Kernel::BiasBackward { .. } => Family::Convolution,
            Kernel::PoolForward { .. } | Kernel::PoolBackward { .. } => Family::Pool,
            Kernel::ResampleForward { .. } | Kernel::ResampleBackward { .. } => Family::Resample,
            Kernel::BatchNormStatistics { .. }
            | Kernel::BatchNormForward { .. }
            | Kernel::BatchNormRunning { .. }
            | Kernel::BatchNormInference { .. }
            | Kernel::BatchNormInferenceBackward { .. }
            | Kernel::BatchNormBackwardStatistics { .. }
            | Kernel::BatchNormBackwardData { .. }
            | Kernel::BatchNormBackwardParameters { .. } => Family::BatchNorm,
            Kernel::LayerNormStatistics { .. }
            | Kernel::LayerNormForward { .. }
            | Kernel::LayerNormBackwardStatistics { .. }
            | Kernel::LayerNormBackwardData { .. }
            | Kernel::LayerNormBackwardParameters { .. } => Family::LayerNorm,
            Kernel::GroupNormStatistics { .. }
            | Kernel::GroupNormForward { .. }
            | Kernel::GroupNormBackwardStatistics { .. }
            | Kernel::GroupNormBackwardData { .. } => Family::GroupNorm,
            Kernel::LinearForward { .. }
            | Kernel::LinearBackwardData { .. }
            | Kernel::LinearBackwardWeight { .. } => Family::Linear,
            Kernel::EmbeddingForward { .. }
            | Kernel::EmbeddingBackward { .. }
            | Kernel::Positions { .. }
            | Kernel::PositionEmbeddingForward { .. }
            | Kernel::PositionEmbeddingBackward { .. }
            | Kernel::AttentionForward { .. }
            | Kernel::AttentionBackward { .. }
            | Kernel::AttentionBackwardBias { .. } => Family::Sequence,
            Kernel::MeanSquaredError { .. }
            | Kernel::SoftmaxCrossEntropy { .. }
            | Kernel::ElementLoss { .. }
            | Kernel::ClassTotals { .. }
            | Kernel::DiceSums { .. }
            | Kernel::ClassLoss { .. }
            | Kernel::OutputErrors { .. }
            | Kernel::ClassCounts { .. } => Family::Loss,
            Kernel::SumOfSquares { .. }
            | Kernel::UpdateNorms { .. }
            | Kernel::Update { .. }
            | Kernel::Average { .. } => Family::Update,
        }
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> Descriptor<'_> {
        match self.family() {
            Family::Fused => fused(self.parts()),
            Family::Contents => contents::describe(self),
            Family::Pointwise => pointwise::describe(self),
            Family::Convolution => convolution::describe(self),
            Family::Pool => pool::describe(self),
            Family::Resample => resample::describe(self),
            Family::BatchNorm => batch_norm::describe(self),
            Family::LayerNorm => layer_norm::describe(self),
            Family::GroupNorm => group_norm::describe(self),
            Family::Linear => linear::describe(self),
            Family::Sequence => sequence::describe(self),
            Family::Loss => loss::describe(self),
            Family::Update => update::describe(self),
        }
    }
}

/// The operands, flops and violations of all parts; name, cost class and window of the first.
fn fused(parts: &[Kernel]) -> Descriptor<'_> {
    let mut all = Descriptor::new("fused", 0, []);
    all.is_elementwise = true;
    for (at, part) in parts.iter().enumerate() {
        let part = part.descriptor();
        if at == 0 {
            (all.name, all.cost, all.window) = (part.name, part.cost, part.window);
        }
        all.flops = all.flops.saturating_add(part.flops);
        all.operands.extend(part.operands);
        all.is_elementwise &= part.is_elementwise;
        all.violations.extend(part.violations);
    }
    all
}

const SCALAR: [usize; 5] = [1; 5];

/// A saturating product: descriptors are made before sizes are checked.
fn product(factors: &[usize]) -> u128 {
    let factors = factors.iter().map(|&factor| factor as u128);
    factors.fold(1, u128::saturating_mul)
}

/// `flops` per element of a view.
fn each(view: &View, flops: usize) -> u128 {
    product(&view.extent).saturating_mul(flops as u128)
}
