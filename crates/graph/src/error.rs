//! Errors of models.

mod text;

pub use text::TextError;

use crate::Shape;
use partita_space::Help;
use thiserror::Error;

/// Why a graph cannot be built: the node, what was asked, what is possible, the nearest valid choice.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum GraphError {
    /// A name that the text form could not hold.
    #[error(
        "{asked:?} is no valid name{}",
        Help::possible(format_args!("letters, digits and {also}")).code(nearest)
    )]
    InvalidName {
        /// As given.
        asked: String,
        /// Characters that are possible besides letters and digits.
        also: &'static str,
        /// Without the invalid characters.
        nearest: String,
    },
    /// Two nodes of one name.
    #[error(
        "`{node}` is the name of an earlier node{}{}",
        padding_of(node),
        Help::none().code(nearest)
    )]
    DuplicateName {
        /// The name.
        node: String,
        /// A free one.
        nearest: String,
    },
    /// A node or parameter that does not exist.
    #[error(
        "there is no {what} `{asked}`{}",
        Help::possible(possible).maybe_code(nearest.as_ref())
    )]
    UnknownName {
        /// `node` or `parameter`.
        what: &'static str,
        /// As given.
        asked: String,
        /// All names so far.
        possible: String,
        /// The most similar of them, if there are some.
        nearest: Option<String>,
    },
    /// An id that this builder did not give out.
    #[error(
        "`{node}` uses {what} {asked}, but there are {count} so far, counted from 0{}",
        Help::none().maybe_nearest(*nearest)
    )]
    UnknownId {
        /// The node with the id.
        node: String,
        /// `node` or `parameter`.
        what: &'static str,
        /// The id.
        asked: usize,
        /// How many ids exist.
        count: usize,
        /// The last id, if there is one.
        nearest: Option<usize>,
    },
    /// The first node is not an input.
    #[error("`{node}` has no input: the first node must be the input")]
    NoInput {
        /// The node, or the graph when it has none.
        node: String,
    },
    /// A second input.
    #[error(
        "`{node}` is a second input, a graph has exactly one{}",
        Help::none().nearest(format_args!("to read `{first}`"))
    )]
    SecondInput {
        /// The second.
        node: String,
        /// The first.
        first: String,
    },
    /// Spatial dims out of range.
    #[error(
        "input `{node}` has {asked} spatial dims{}",
        Help::possible("1 (W), 2 (H, W), 3 (D, H, W)").nearest(nearest)
    )]
    SpatialRank {
        /// The input.
        node: String,
        /// Dims given.
        asked: usize,
        /// 1 or 3.
        nearest: usize,
    },
    /// No loss at the end.
    #[error(
        "graph `{graph}` has no loss without a weight at its end{}",
        Help::none().nearest(format_args!("a loss that reads its last node, `{last}`"))
    )]
    NoLoss {
        /// The graph.
        graph: String,
        /// The last node.
        last: String,
    },
    /// A node after the loss.
    #[error(
        "`{node}` comes after the loss `{loss}`, which must be the last node, once; put it before, or \
         make `{loss}` an auxiliary loss by giving it a weight"
    )]
    AfterLoss {
        /// The node.
        node: String,
        /// The loss.
        loss: String,
    },
    /// Losses that do not share a target.
    #[error(
        "`{node}` is the {asked}, but the loss `{first}` is the {expected}; all losses have the same \
         target{}",
        Help::none().nearest(format_args!("the {expected}"))
    )]
    LossesDiffer {
        /// The later loss.
        node: String,
        /// Its kind and shape.
        asked: String,
        /// The first loss.
        first: String,
        /// Its kind and shape.
        expected: String,
    },
    /// Two losses of one tensor.
    #[error(
        "`{node}` reads `{input}`, of which `{first}` is a loss already{}",
        Help::none().nearest("one loss of it, with another weight")
    )]
    LossTwice {
        /// The later loss.
        node: String,
        /// The tensor.
        input: String,
        /// The first loss.
        first: String,
    },
    /// A loss as an input.
    #[error(
        "`{node}` reads the loss `{loss}`, which is no tensor{}",
        Help::none().nearest(format_args!("to read `{nearest}`"))
    )]
    ReadsLoss {
        /// The reader.
        node: String,
        /// The auxiliary loss.
        loss: String,
        /// The input of the loss.
        nearest: String,
    },
    /// A node that nothing reads.
    #[error(
        "nothing reads `{node}`{}",
        Help::advice("use it or leave it out").nearest(format_args!("to read it in `{nearest}`"))
    )]
    Unused {
        /// The node.
        node: String,
        /// The next node in order.
        nearest: String,
    },
    /// Wrong number of inputs.
    #[error("`{node}`: {operation} reads {expected} tensor(s), {asked} given")]
    InputCount {
        /// The node.
        node: String,
        /// Its operation.
        operation: &'static str,
        /// Tensors given.
        asked: usize,
        /// Tensors it reads.
        expected: usize,
    },
    /// Too few inputs of an operation with any number of them.
    #[error(
        "`{node}`: {operation} reads {nearest} tensors or more, {asked} given{}",
        Help::none().nearest(nearest)
    )]
    FewInputs {
        /// The node.
        node: String,
        /// Its operation.
        operation: &'static str,
        /// Tensors given.
        asked: usize,
        /// The least that it reads.
        nearest: usize,
    },
    /// A number outside its range.
    #[error(
        "`{node}`: {key}={asked} is not possible{}",
        Help::possible(possible).nearest(nearest)
    )]
    OutOfRange {
        /// The node.
        node: String,
        /// Which number.
        key: &'static str,
        /// As given.
        asked: String,
        /// The range.
        possible: &'static str,
        /// The nearest in the range.
        nearest: String,
    },
    /// Groups that do not divide the channels or the filters.
    #[error(
        "`{node}`: groups={groups} must divide {channels} input channels and {filters} filters{}",
        Help::possible(possible).nearest(nearest)
    )]
    Groups {
        /// The convolution.
        node: String,
        /// As given.
        groups: usize,
        /// Input channels.
        channels: usize,
        /// Output channels.
        filters: usize,
        /// Common divisors.
        possible: String,
        /// The nearest of them, the smaller of two.
        nearest: usize,
    },
    /// A window that does not fit.
    #[error(
        "`{node}`: kernel {kernel} with dilation {dilation} spans {span} along {dim}, more than extent {extent} \
         with padding, {padded}{}",
        Help::possible(format_args!("kernels up to {nearest}")).nearest(nearest)
    )]
    WindowTooLarge {
        /// The convolution or pooling.
        node: String,
        /// D, H or W.
        dim: &'static str,
        /// Taps.
        kernel: usize,
        /// Inputs between taps.
        dilation: usize,
        /// Inputs from the first to the last tap.
        span: usize,
        /// Input extent.
        extent: usize,
        /// Input extent and padding.
        padded: usize,
        /// The largest kernel that fits.
        nearest: usize,
    },
    /// A window along a dim that the model does not have.
    #[error(
        "`{node}` slides along {dim}, or changes its extent, but the model has {spatial_rank} spatial dim(s){}",
        Help::possible("Window::ONE there, or the same extent")
    )]
    MissingDim {
        /// The convolution, pooling or resampling.
        node: String,
        /// D or H.
        dim: &'static str,
        /// Spatial dims of the model.
        spatial_rank: usize,
    },
    /// Output padding of a transposed convolution beyond stride and dilation.
    #[error(
        "`{node}`: output_padding={asked} along {dim} must be below stride {stride} or dilation {dilation}{}",
        Help::possible(format_args!("0 to {nearest}")).nearest(nearest)
    )]
    OutputPadding {
        /// The transposed convolution.
        node: String,
        /// D, H or W.
        dim: &'static str,
        /// As given.
        asked: usize,
        /// Outputs between neighboring inputs.
        stride: usize,
        /// Outputs between neighboring taps.
        dilation: usize,
        /// The largest that is possible.
        nearest: usize,
    },
    /// Padding that removes all outputs of a transposed convolution.
    #[error(
        "`{node}`: pad={low}:{high} along {dim} removes all {full} outputs{}",
        Help::possible(format_args!("less than {full} together"))
            .nearest(format_args!("pad={nearest}"))
    )]
    NothingLeft {
        /// The transposed convolution.
        node: String,
        /// D, H or W.
        dim: &'static str,
        /// Outputs taken from the beginning.
        low: usize,
        /// Outputs taken from the end.
        high: usize,
        /// Outputs without padding.
        full: usize,
        /// The largest padding on both sides that leaves an output.
        nearest: usize,
    },
    /// Padding of a pooling beyond half its kernel.
    #[error(
        "`{node}`: pad={asked} along {dim} is more than half of kernel {kernel}{}",
        Help::possible(format_args!("0 to {nearest}")).nearest(nearest)
    )]
    PoolPadding {
        /// The pooling.
        node: String,
        /// D, H or W.
        dim: &'static str,
        /// The larger side.
        asked: usize,
        /// Taps.
        kernel: usize,
        /// Half the kernel.
        nearest: usize,
    },
    /// A dilated pooling.
    #[error(
        "`{node}`: dilation={asked} along {dim}: a pooling has dilation 1{}",
        Help::none().nearest("1")
    )]
    PoolDilation {
        /// The pooling.
        node: String,
        /// D, H or W.
        dim: &'static str,
        /// As given.
        asked: usize,
    },
    /// Periodic padding that would repeat the input more than once.
    #[error(
        "`{node}`: periodic pad={asked} along {dim} is more than the extent {extent}{}",
        Help::possible(format_args!("0 to {extent}")).nearest(extent)
    )]
    PeriodicPadding {
        /// The convolution.
        node: String,
        /// D, H or W.
        dim: &'static str,
        /// The larger side.
        asked: usize,
        /// Input extent.
        extent: usize,
    },
    /// Reflect padding beyond the inputs that it mirrors.
    #[error(
        "`{node}`: reflect pad={asked} along {dim} must be less than the extent {extent}{}",
        Help::possible(format_args!("0 to {nearest}")).nearest(nearest)
    )]
    ReflectPadding {
        /// The padding.
        node: String,
        /// D, H or W.
        dim: &'static str,
        /// One side.
        asked: usize,
        /// Input extent.
        extent: usize,
        /// One less than that.
        nearest: usize,
    },
    /// A linear layer on an input with positions.
    #[error(
        "`{node}`: linear reads features only (extent 1x1x1), its input is {shape}{}",
        Help::none().nearest(format_args!("a flatten before it, which gives {nearest} features"))
    )]
    LinearBeforeFlatten {
        /// The linear layer.
        node: String,
        /// Its input.
        shape: Shape,
        /// Features after a flatten.
        nearest: usize,
    },
    /// A sum of two shapes.
    #[error(
        "`{node}`: add reads two tensors of one shape, not {left} and {right}{}",
        Help::advice(nearest)
    )]
    AddShapes {
        /// The sum.
        node: String,
        /// First input.
        left: Shape,
        /// Second input.
        right: Shape,
        /// What would make them equal.
        nearest: String,
    },
    /// A product of two shapes.
    #[error(
        "`{node}`: multiply reads two tensors of one shape, or a second of one position or of one channel, not \
         {left} and {right}{}",
        Help::advice(nearest)
    )]
    MultiplyShapes {
        /// The product.
        node: String,
        /// First input.
        left: Shape,
        /// Second input.
        right: Shape,
        /// What would make them fit.
        nearest: String,
    },
    /// Channels that are no whole blocks of positions.
    #[error(
        "`{node}`: {channels} channels are no blocks of {block} positions, as factor asks{}",
        Help::possible(format_args!("multiples of {block}")).nearest(nearest)
    )]
    ShuffleChannels {
        /// The pixel shuffle.
        node: String,
        /// Of its input.
        channels: usize,
        /// Positions of a block.
        block: usize,
        /// The next multiple.
        nearest: usize,
    },
    /// Groups of a norm that do not divide the channels.
    #[error(
        "`{node}`: groups={groups} must divide {channels} channels{}",
        Help::possible(possible).nearest(nearest)
    )]
    NormGroups {
        /// The group norm.
        node: String,
        /// As given.
        groups: usize,
        /// Its channels.
        channels: usize,
        /// Divisors.
        possible: String,
        /// The nearest of them, the smaller of two.
        nearest: usize,
    },
    /// Channels of inputs of other extents.
    #[error(
        "`{node}`: concat reads tensors of equal extents, not {first} and {other}{}",
        Help::none().nearest(format_args!("{nearest} for the latter"))
    )]
    ConcatExtents {
        /// The node.
        node: String,
        /// First input.
        first: Shape,
        /// The first input of other extents.
        other: Shape,
        /// The extents of the first.
        nearest: String,
    },
    /// A range of channels that the input does not have.
    #[error(
        "`{node}`: start={start} channels={channels} goes beyond the {input} channels of its input{}",
        Help::none().nearest(nearest)
    )]
    Slice {
        /// The node.
        node: String,
        /// The first channel.
        start: usize,
        /// How many.
        channels: usize,
        /// Channels of the input.
        input: usize,
        /// A range that exists.
        nearest: String,
    },
    /// An embedding of more than one index per position.
    #[error(
        "`{node}`: embedding reads one channel of class indices, its input has {asked}{}",
        Help::none().nearest("`slice` with channels=1 before it")
    )]
    EmbeddingChannels {
        /// The embedding.
        node: String,
        /// Channels of its input.
        asked: usize,
    },
    /// Class indices that depend on parameters.
    #[error(
        "`{node}`: embedding reads class indices of the sample, but `{input}` depends on parameters{}",
        Help::none().nearest(format_args!("to read `{nearest}`"))
    )]
    EmbeddingOfTrained {
        /// The embedding.
        node: String,
        /// What it reads.
        input: String,
        /// The sample.
        nearest: String,
    },
    /// An operation on sequences, on a tensor with other dims than W.
    #[error(
        "`{node}`: {operation} works on sequences along W, its input is {shape}{}",
        Help::none().nearest(format_args!("a model with one spatial dim of {nearest}"))
    )]
    NoSequence {
        /// The node.
        node: String,
        /// Its operation.
        operation: &'static str,
        /// Its input.
        shape: Shape,
        /// Positions of the input.
        nearest: usize,
    },
    /// More rows of a position embedding than positions.
    #[error(
        "`{node}`: rows={rows} are more than the {positions} positions of its input{}",
        Help::none().nearest(format_args!("rows={positions}"))
    )]
    PositionRows {
        /// The position embedding.
        node: String,
        /// As given.
        rows: usize,
        /// Of its input.
        positions: usize,
    },
    /// Extents of other positions than the input has.
    #[error(
        "`{node}`: reshape to {asked} has other positions than its input, {input}{}",
        Help::none().nearest(format_args!("extent=1x1x{nearest}, a sequence"))
    )]
    ReshapeExtent {
        /// The node.
        node: String,
        /// As given.
        asked: String,
        /// Its input.
        input: Shape,
        /// Positions of the input.
        nearest: usize,
    },
    /// Heads that do not divide the channels.
    #[error(
        "`{node}`: heads={heads} must divide {channels} channels{}",
        Help::possible(possible).nearest(nearest)
    )]
    Heads {
        /// The attention.
        node: String,
        /// As given.
        heads: usize,
        /// Its channels.
        channels: usize,
        /// Divisors.
        possible: String,
        /// The nearest of them, the smaller of two.
        nearest: usize,
    },
    /// Queries, keys and values whose shapes do not match.
    #[error(
        "`{node}`: attention reads q, k and v of as many channels, k and v of one extent, not {given}{}",
        Help::none().nearest(format_args!("{nearest} for k and v"))
    )]
    AttentionShapes {
        /// The attention.
        node: String,
        /// Shapes of q, k and v.
        given: String,
        /// What keys and values could be.
        nearest: String,
    },
    /// Windows or a bias that attention cannot have.
    #[error("{node}: the attention {what}{}", Help::none().nearest(nearest))]
    AttentionWindow {
        /// The attention.
        node: String,
        /// What is wrong.
        what: String,
        /// What would be right.
        nearest: String,
    },
    /// A parameter that cannot be left out.
    #[error(
        "{node}: its {role} cannot be constant alone{}",
        Help::possible("gamma and beta of a norm together, beta of a layer norm, and the weight of a pixel shuffle")
            .nearest("to give it a parameter of its own")
    )]
    NotConstant {
        /// The node.
        node: String,
        /// Role of the parameter.
        role: &'static str,
    },
    /// A pattern of frozen parameters that fits none.
    #[error(
        "`{pattern}` fits no layer with parameters and no trained parameter{}",
        Help::possible("names of layers, of parameters like `LAYER.weight`, and beginnings of names with `*`")
            .maybe_nearest(nearest.as_ref())
    )]
    NothingToFreeze {
        /// The pattern.
        pattern: String,
        /// The most similar name, if there are some.
        nearest: Option<String>,
    },
    /// All parameters are frozen.
    #[error(
        "all parameters are frozen, so there is nothing to train; at least one layer must be left out{}",
        Help::none().nearest(format_args!("to train {nearest}"))
    )]
    AllFrozen {
        /// The last layer with parameters.
        nearest: String,
    },
    /// A parameter that the operation does not have.
    #[error("`{node}`: {operation} has no {asked}{}", Help::possible(possible).nearest(nearest))]
    NoSuchParameter {
        /// The node.
        node: String,
        /// Its operation.
        operation: &'static str,
        /// The role asked for.
        asked: &'static str,
        /// Roles it has.
        possible: String,
        /// The most similar of them, or to leave it out.
        nearest: String,
    },
    /// A shared parameter of another role or shape.
    #[error(
        "`{node}`: its {wanted} cannot be {asked}{}",
        Help::possible(possible).nearest(nearest)
    )]
    SharedShape {
        /// The node.
        node: String,
        /// Role and shape that it needs.
        wanted: String,
        /// Name, role and shape of the parameter asked for.
        asked: String,
        /// Parameters that fit.
        possible: String,
        /// The most similar name, or one of its own.
        nearest: String,
    },
    /// Running statistics shared by two batch norms.
    #[error(
        "`{node}`: its {role} cannot be shared, because each batch norm updates its own{}",
        Help::none().nearest("one of its own")
    )]
    SharedState {
        /// The batch norm.
        node: String,
        /// Which one.
        role: &'static str,
    },
    /// An initialization of weights for a vector, a random one for running statistics, or an invalid number.
    #[error(
        "`{node}`: its {role} cannot start with {asked}{}",
        Help::possible(
            "a constant that f32 holds, for what is trained also normal:DEVIATION and uniform:LIMIT, for a weight \
             also glorot_uniform, he_normal and he_normal_fan_out"
        )
            .nearest(nearest)
    )]
    Initialization {
        /// The node.
        node: String,
        /// Which one.
        role: &'static str,
        /// As given.
        asked: String,
        /// The default constant, 0 for a weight.
        nearest: f64,
    },
    /// A size beyond the limits.
    #[error(
        "`{node}`: {asked} {what} are too many{}",
        Help::possible(format_args!("up to {limit}")).nearest(limit)
    )]
    TooLarge {
        /// The node.
        node: String,
        /// What is counted.
        what: &'static str,
        /// How many.
        asked: u128,
        /// The bound.
        limit: u64,
    },
}

/// Why a model cannot read samples of other extents.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ExtentError {
    /// A pooling of one fixed window.
    #[error(
        "`{node}` pools its whole input of {}x{}x{} by a fixed window, which would be a part of samples of another \
         extent{}",
        extent[0], extent[1], extent[2],
        Help::none().nearest("a global or adaptive pooling, which takes all of it")
    )]
    FixedWindow {
        /// The pooling.
        node: String,
        /// Extents of its input.
        extent: [usize; 3],
    },
    /// A layer cannot read them.
    #[error(transparent)]
    Layer(#[from] TextError),
    /// Means whose windows would no longer cover their input.
    #[error(
        "the windows of `{node}`, whose means cover all positions, would leave out some of {}x{}x{}",
        extent[0], extent[1], extent[2]
    )]
    LeavesOut {
        /// The pooling.
        node: String,
        /// Extents that its input would have.
        extent: [usize; 3],
    },
    /// A position embedding whose rows would belong to other positions.
    #[error(
        "`{node}` has trained rows for the positions of {}x{}x{}, and none for others{}",
        extent[0], extent[1], extent[2],
        Help::none().nearest("samples of the extents of its training")
    )]
    Rows {
        /// The position embedding.
        node: String,
        /// Extents of its input in training.
        extent: [usize; 3],
    },
    /// A parameter of another shape.
    #[error("parameter `{parameter}` of shape {before:?} would have the shape {now:?}")]
    ParameterShape {
        /// The parameter.
        parameter: String,
        /// Its shape.
        before: [usize; 5],
        /// That it would have.
        now: [usize; 5],
    },
}

/// Where a name comes from that no line of a model gives.
fn padding_of(node: &str) -> String {
    match node.strip_suffix(".pad") {
        Some(convolution) => {
            format!(", perhaps of the padding of `{convolution}`, which is a node of its own")
        }
        None => String::new(),
    }
}
