//! What everything but an implementation has to know of a kernel, in one place for each kind.
//!
//! Counting, accesses, extents and types, partial sums, gradient flow, costs, fusion, estimates and
//! kernel keys all read the descriptor. A new kernel is an entry of [`Kernel`], its descriptor in the file
//! of its family, and its implementations.

mod batch_norm;
mod contents;
mod convolution;
mod layer_norm;
mod linear;
mod loss;
mod operand;
mod pointwise;
mod pool;
mod sequence;
mod update;

pub use operand::{Elements, Extents, Operand, Over, SumRole};

use crate::{Access, Direction, Distribution, Kernel, Optimizer, Taps, Transform, View};
use operand::*;

/// What is known of a kernel.
#[derive(Debug)]
pub struct Descriptor<'k> {
    /// Name of the kind, as printed in reports and catalogs; of a fused kernel that of its first part.
    pub name: &'static str,
    /// Its views, in the order of its key.
    pub operands: Vec<Operand<'k>>,
    /// Arithmetic by the rules of [`crate::Count::of`].
    pub flops: u128,
    /// What decides its time where it was not measured.
    pub cost: Cost<'k>,
    /// The window that it moves over its input.
    pub window: Option<Window<'k>>,
    /// Where elements lie in the whole tensor, if what is done to them depends on it: the tensor, and
    /// by how many elements the view begins before what the rank owns.
    pub distribution: Option<(&'k Distribution, &'k [usize; 5])>,
    /// How operands have to lie on the ranks.
    pub layout: Layout<'k>,
    /// What it does to gradients and parameters.
    pub flow: Flow<'k>,
    /// How it can become part of a kernel before it.
    pub fusion: FusionRole<'k>,
    /// Whether each element of the target depends on the same element of each operand of its extents,
    /// and an operand may be the target.
    pub is_elementwise: bool,
    /// Whether it takes a logarithm of each element, which takes much longer than its flops say.
    pub takes_logarithms: bool,
    /// Constants that its time may depend on, in the order of its key.
    pub constants: [Option<Constant<'k>>; 4],
    /// What is wrong with it, apart from single operands.
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

/// Classes of kernels whose times follow different rates.
#[derive(Clone, Copy, Debug)]
pub enum Cost<'k> {
    /// A convolution over 2 or 3 spatial dims; `input` and `output` are those of the layer, and the
    /// kernel goes through the positions of `written`.
    Convolution {
        /// Its pass.
        pass: Pass,
        /// Input of the layer, or its gradient.
        input: &'k View,
        /// Output of the layer, or its gradient.
        output: &'k View,
        /// What it writes, or sums over.
        written: &'k View,
    },
    /// A product of matrices, like the 2D convolution of one tap.
    Linear {
        /// Its pass.
        pass: Pass,
    },
    /// Few flops per byte.
    Memory,
}

/// Taps that a kernel moves over its input.
#[derive(Clone, Copy, Debug)]
pub struct Window<'k> {
    /// Kernel, stride and dilation.
    pub taps: &'k Taps,
    /// Of the channels.
    pub groups: usize,
    /// Inputs before the first tap of the first output.
    pub shift: [i64; 3],
    /// Extents of the outputs.
    pub outputs: [usize; 5],
}

/// How operands have to lie on the ranks that split them.
#[derive(Clone, Copy, Debug)]
pub enum Layout<'k> {
    /// As they do.
    Any,
    /// Weights between two tensors: the channels of one lie on the axes of their rows, those of the
    /// other on the axes of their columns, or both by whole groups. What is summed over split channels
    /// is a partial sum, to which one rank adds the bias.
    Product {
        /// What is multiplied.
        from: &'k View,
        /// The product.
        to: &'k View,
        /// The weights.
        w: &'k View,
        /// Whether rows belong to `from`.
        is_forward: bool,
        /// Added to the product.
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
    /// A table with whole rows, its columns on the axes of the channels.
    Table {
        /// The table or its gradient.
        w: &'k View,
        /// The tensor.
        y: &'k View,
    },
    /// Whole sequences, all channels on the same axes.
    Sequences {
        /// What is read whole.
        inputs: [&'k View; 3],
        /// The result or its gradient.
        y: &'k View,
    },
    /// A gradient is just the own share of its parameter.
    OwnShare {
        /// What is updated.
        parameter: &'k View,
        /// By which it is.
        gradient: &'k View,
    },
}

/// What a kernel does to gradients and parameters on their way through a step.
#[derive(Clone, Copy, Debug)]
pub enum Flow<'k> {
    /// Takes parameters as they are, and what it writes is of the micro-batches that it reads.
    Computes,
    /// Forgets what was there; with zeros also for sums.
    Clears {
        /// Whether zeros are left.
        zeros: bool,
    },
    /// Hands on what another view holds.
    Copies {
        /// The other view.
        source: &'k View,
    },
    /// Makes the packed form of weights.
    Packs {
        /// The weights.
        w: &'k View,
        /// All of the buffer of the packed form.
        packed: &'k View,
        /// The direction that takes them.
        direction: Direction,
    },
    /// Moves a parameter by its gradient.
    Updates {
        /// What is updated.
        parameter: &'k View,
        /// By which it is.
        gradient: &'k View,
    },
    /// Moves running statistics toward those of this step.
    Tracks,
}

/// What of a kernel can be done while a kernel before it still has its output at hand.
#[derive(Clone, Copy, Debug)]
pub enum FusionRole<'k> {
    /// Nothing.
    No,
    /// It only reads this operand, and sums over it.
    Reads(&'k View),
    /// It changes this operand and leaves it in the other view.
    Changes(&'k View, &'k View),
    /// It changes the first or the second operand and leaves it in the third view.
    ChangesEither([&'k View; 2], &'k View),
}

/// A constant of a kernel key; those without a name here have several, or one of their own.
#[derive(Clone, Copy, Debug)]
pub enum Constant<'k> {
    /// `kernel`, `stride` and `dilation`.
    Taps(&'k Taps),
    /// How many of something.
    Number(&'static str, usize),
    /// How far it is to something along D, H and W.
    Offsets(&'static str, &'k [i64; 3]),
    /// Whether something holds.
    Flag(&'static str, bool),
    /// The same of several things.
    Flags(&'static str, &'k [bool; 3]),
    /// One of several words.
    Word(&'static str, &'static str),
    /// `transform` and its numbers.
    Transform(&'k Transform),
    /// The `rule` of an update and its numbers.
    Rule(&'k Optimizer),
}

impl<'k> Descriptor<'k> {
    /// The views of a kernel that is not fused, and how it touches them. A view that is read and written in
    /// place comes twice.
    pub fn accesses(&self) -> Vec<(View, Access)> {
        let operands = self.operands.iter();
        operands
            .map(|operand| (*operand.view, operand.access))
            .collect()
    }

    /// Whether it leaves zeros.
    pub fn is_zero(&self) -> bool {
        matches!(self.flow, Flow::Clears { zeros: true })
    }

    #[inline]
    fn new(name: &'static str, flops: u128, first: impl IntoIterator<Item = Operand<'k>>) -> Self {
        // As many as most kernels have: programs are described again and again.
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
            constants: [None; 4],
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

    /// Whether it adds to its results.
    #[inline]
    fn accumulates(self, accumulate: bool) -> Self {
        self.constant(Constant::Flag("accumulate", accumulate))
    }

    /// One more constant.
    #[inline]
    fn constant(mut self, constant: Constant<'k>) -> Self {
        let free = self
            .constants
            .iter_mut()
            .find(|constant| constant.is_none());
        *free.expect("no kernel has more constants") = Some(constant);
        self
    }

    /// One more operand, where there is one.
    #[inline]
    fn and(mut self, operands: impl IntoIterator<Item = Operand<'k>>) -> Self {
        self.operands.extend(operands);
        self
    }

    /// Something has to hold.
    #[inline]
    fn require(mut self, holds: bool, otherwise: impl FnOnce() -> String) -> Self {
        if !holds {
            self.violations.push(otherwise());
        }
        self
    }

    /// A number has to be another one.
    #[inline]
    fn equal(self, what: &str, got: usize, expected: usize) -> Self {
        self.require(got == expected, || {
            format!("{what} are {got}, {expected} are expected")
        })
    }

    /// Something is divided by the number of elements.
    #[inline]
    fn counts(self, count: u64) -> Self {
        self.require(count > 0, || "counts no element".to_owned())
    }
}

/// Kernels that are described and implemented side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Several kernels in one.
    Fused,
    /// Contents that are set, copied and read.
    Contents,
    /// Element by element.
    Pointwise,
    /// Convolutions, their biases and packed weights.
    Convolution,
    /// Poolings.
    Pool,
    /// Batch norm.
    BatchNorm,
    /// Layer norm.
    LayerNorm,
    /// Linear layers.
    Linear,
    /// Embeddings, positions and attention.
    Sequence,
    /// Losses, and what is counted beside them.
    Loss,
    /// The optimizer.
    Update,
}

impl Kernel {
    /// Where it is described.
    pub fn family(&self) -> Family {
        match self {
            Kernel::Fused { .. } => Family::Fused,
            Kernel::Fill { .. } | Kernel::Copy { .. } | Kernel::Import { .. } => Family::Contents,
            Kernel::LeakyReluForward { .. }
            | Kernel::LeakyReluBackward { .. }
            | Kernel::ActivationForward { .. }
            | Kernel::ActivationBackward { .. }
            | Kernel::Dropout { .. }
            | Kernel::Add { .. } => Family::Pointwise,
            Kernel::PackWeights { .. }
            | Kernel::ConvolutionForward { .. }
            | Kernel::ConvolutionBackwardData { .. }
            | Kernel::ConvolutionBackwardWeight { .. }
            | Kernel::BiasBackward { .. } => Family::Convolution,
            Kernel::PoolForward { .. } | Kernel::PoolBackward { .. } => Family::Pool,
            Kernel::BatchNormStatistics { .. }
            | Kernel::BatchNormForward { .. }
            | Kernel::BatchNormRunning { .. }
            | Kernel::BatchNormInference { .. }
            | Kernel::BatchNormBackwardStatistics { .. }
            | Kernel::BatchNormBackwardData { .. }
            | Kernel::BatchNormBackwardParameters { .. } => Family::BatchNorm,
            Kernel::LayerNormStatistics { .. }
            | Kernel::LayerNormForward { .. }
            | Kernel::LayerNormBackwardStatistics { .. }
            | Kernel::LayerNormBackwardData { .. }
            | Kernel::LayerNormBackwardParameters { .. } => Family::LayerNorm,
            Kernel::LinearForward { .. }
            | Kernel::LinearBackwardData { .. }
            | Kernel::LinearBackwardWeight { .. } => Family::Linear,
            Kernel::EmbeddingForward { .. }
            | Kernel::EmbeddingBackward { .. }
            | Kernel::Positions { .. }
            | Kernel::AttentionForward { .. }
            | Kernel::AttentionBackward { .. } => Family::Sequence,
            Kernel::MeanSquaredError { .. }
            | Kernel::SoftmaxCrossEntropy { .. }
            | Kernel::OutputErrors { .. }
            | Kernel::ClassCounts { .. } => Family::Loss,
            Kernel::SumOfSquares { .. } | Kernel::Update { .. } => Family::Update,
        }
    }

    /// What everything but an implementation has to know of it.
    pub fn descriptor(&self) -> Descriptor<'_> {
        match self.family() {
            Family::Fused => fused(self.parts()),
            Family::Contents => contents::describe(self),
            Family::Pointwise => pointwise::describe(self),
            Family::Convolution => convolution::describe(self),
            Family::Pool => pool::describe(self),
            Family::BatchNorm => batch_norm::describe(self),
            Family::LayerNorm => layer_norm::describe(self),
            Family::Linear => linear::describe(self),
            Family::Sequence => sequence::describe(self),
            Family::Loss => loss::describe(self),
            Family::Update => update::describe(self),
        }
    }
}

/// All parts together; what is said of one kernel alone is that of the first.
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

/// One number.
const SCALAR: [usize; 5] = [1; 5];

/// A product of any extents, cut at the end of the type: programs are described before their sizes are
/// checked.
fn product(factors: &[usize]) -> u128 {
    let factors = factors.iter().map(|&factor| factor as u128);
    factors.fold(1, u128::saturating_mul)
}

/// A number of flops for each element of a view.
fn each(view: &View, flops: usize) -> u128 {
    product(&view.extent).saturating_mul(flops as u128)
}
