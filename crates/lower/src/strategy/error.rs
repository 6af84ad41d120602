//! Errors of strategies.

use partita_space::Help;
use partita_space::help::{Message, extend};

/// A parameter that two layers share and split in different ways.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "strategy `{strategy}`: `{}` and `{}` share `{parameter}` and split it differently: `{}` has {} ({}), `{}` \
     has {} ({})",
    layers[0].name, layers[1].name,
    layers[0].name, layers[0].split, layers[0].origin,
    layers[1].name, layers[1].split, layers[1].origin
)]
pub struct SharedParameter {
    /// The strategy.
    pub strategy: String,
    /// The layers.
    pub layers: [Sharer; 2],
    /// The parameter.
    pub parameter: String,
}

/// How a layer splits a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharer {
    /// Its name.
    pub name: String,
    /// Text of its axes: `C=-,F=filter`.
    pub split: String,
    /// The entry of the strategy that specifies it, or `by default`.
    pub origin: String,
}

/// The nearest choices that a command accepts, or that there are none.
fn with_choices(error: &StrategyError, choices: Option<&str>) -> Message {
    match choices {
        Some(choices) => extend(error, Help::none().nearest(choices)),
        None => extend(error, "; no similar strategy is valid"),
    }
}

fn local_text(parts: usize) -> String {
    if parts > 1 {
        format!(", each of {parts} parts with statistics of its own,")
    } else {
        String::new()
    }
}

/// An invalid strategy, or one that does not fit the model, the mini-batch or the ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrategyError {
    /// A syntax error.
    #[error(
        "strategy `{text}`: {} is not of the form axis=number, the number at least 1, or \
         overlap=on|off, fuse=on|off, batch_norm=synchronized|local, bucket=size, \
         workspace=live|off|size, workspace_total=size, micro=number, shard=off|optimizer|gradients|parameters, \
         stages=[...] or schedule=1f1b{}",
        if word.is_empty() { "an empty part".to_owned() } else { format!("`{word}`") },
        Help::advice(
            "a strategy reads like `data=2,depth=2`, and what differs for some layers follows like \
             `; conv3..fc2: D=-,F=depth`"
        )
        .maybe_code(nearest.as_ref())
    )]
    Form {
        /// The strategy.
        text: String,
        /// The part that does not fit.
        word: String,
        /// What was probably meant, if it can be told.
        nearest: Option<String>,
    },
    /// An invalid value.
    #[error(
        "strategy `{text}`: `{word}` is not possible{}",
        Help::possible(possible).code(nearest)
    )]
    Value {
        /// The strategy.
        text: String,
        /// The key with its value.
        word: String,
        /// Valid values.
        possible: String,
        /// The key with the nearest valid value.
        nearest: String,
    },
    /// A mini-batch beyond the limits.
    #[error(
        "a mini-batch of {batch} samples is not possible{}",
        Help::possible(format_args!("1 to {most}")).nearest(nearest)
    )]
    Batch {
        /// The requested value.
        batch: usize,
        /// The limit.
        most: usize,
        /// The nearest valid choice.
        nearest: usize,
    },
    /// A layer that exceeds a limit with this mini-batch.
    #[error(
        "layer `{layer}` has {asked} {what} with a mini-batch of {batch}; at most {limit} are possible, \
         with a mini-batch of at most {nearest}"
    )]
    LargeLayer {
        /// The layer.
        layer: String,
        /// Samples.
        batch: usize,
        /// Its value, in digits: it may not fit in 64 bits.
        asked: String,
        /// The quantity.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// The largest possible mini-batch.
        nearest: usize,
    },
    /// Too many passes of stages over micro-batches.
    #[error(
        "strategy `{strategy}`: {stages} stages with {micro} micro-batches each are more than {most} \
         passes each way"
    )]
    Passes {
        /// The strategy.
        strategy: String,
        /// Stages of a replica.
        stages: usize,
        /// Micro-batches.
        micro: usize,
        /// The limit.
        most: usize,
    },
    /// Too many passes of layers over micro-batches, each of which is a part of a program.
    #[error(
        "strategy `{strategy}`: {layers} layers with {micro} micro-batches each, in {classes} kinds of ranks, are \
         {} passes of layers; programs have at most {most}",
        layers * micro * classes
    )]
    LayerPasses {
        /// The strategy.
        strategy: String,
        /// Layers of the model.
        layers: usize,
        /// Micro-batches.
        micro: usize,
        /// Kinds of ranks: the first, inner and last ones along each spatial dim.
        classes: usize,
        /// The limit.
        most: usize,
    },
    /// A syntax error in the settings of layers.
    #[error(
        "strategy `{text}`: `{word}` cannot be set for layers{}",
        Help::possible(
            "recompute=on|off|selective, halo=own|grouped, chunks=number, branches=2|[3|1]|off, and DIM=AXES with a dim of N, D, H, W, C or F \
             and axes such as `depth`, `filter+channel` or `-` for none"
        )
        .maybe_code(nearest.as_ref())
    )]
    LayerForm {
        /// The strategy.
        text: String,
        /// The part that does not fit.
        word: String,
        /// The same with the setting that is meant.
        nearest: Option<String>,
    },
    /// A layer that the model does not have.
    #[error("strategy `{strategy}`: {model} has no layer `{asked}`{}", Help::none().code(nearest))]
    UnknownLayer {
        /// The strategy.
        strategy: String,
        /// Name of the model.
        model: String,
        /// The given name.
        asked: String,
        /// The nearest name.
        nearest: String,
    },
    /// A pattern in a range.
    #[error(
        "strategy `{strategy}`: `{layers}` is a range from one layer to another, in which `*` cannot stand \
         for letters{}",
        Help::advice("write a name with `*` alone, or the names of the first and the last layer")
    )]
    StarInRange {
        /// The strategy.
        strategy: String,
        /// The range.
        layers: String,
    },
    /// A range of layers that ends before it begins.
    #[error("strategy `{strategy}`: `{to}` comes before `{from}`")]
    Backwards {
        /// The strategy.
        strategy: String,
        /// The first layer.
        from: String,
        /// The last one.
        to: String,
    },
    /// A layer in two halo groups.
    #[error(
        "strategy `{strategy}`: layer `{layer}` is in the groups `{first}` and `{second}`, but one exchange \
         serves one group"
    )]
    TwoGroups {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
        /// Layers of one group.
        first: String,
        /// Layers of the other group.
        second: String,
    },
    /// Periodic padding inside a halo group.
    #[error(
        "strategy `{strategy}`: `{layer}` has periodic padding and reads `{input}` of its own group, of \
         which no rank computes what lies across the border"
    )]
    PeriodicInGroup {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
        /// Its input.
        input: String,
        /// Index of the entry of the group.
        group: usize,
    },
    /// An axis that would split two dims of one layer.
    #[error("strategy `{strategy}`: in layer `{layer}` {axis} splits both {first} and {second}")]
    AxisTwice {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
        /// The axis.
        axis: &'static str,
        /// A dim.
        first: &'static str,
        /// The other dim.
        second: &'static str,
    },
    /// A layer in two blocks that are recomputed.
    #[error("strategy `{strategy}`: `{layer}` is in two blocks with recompute=on or chunks")]
    TwoBlocks {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
    },
    /// A layer that cannot be computed in chunks.
    #[error(
        "strategy `{strategy}`: {kind} `{layer}` cannot be computed in chunks, {reason}{}",
        Help::possible(
            "convolutions without periodic padding, poolings, paddings, crops and other resamplings, activations, sums, \
             products, concatenations, slices, channel shuffles, and batch norms that take no statistics, all with one split"
        )
    )]
    Chunks {
        /// The strategy.
        strategy: String,
        /// `the pooling`.
        kind: &'static str,
        /// The layer.
        layer: String,
        /// Why.
        reason: &'static str,
    },
    /// More chunks than positions.
    #[error(
        "strategy `{strategy}`: `{layer}` has {positions} position(s) on a rank along the dim of its chunks, which \
         cannot be computed in {chunks} chunks{}",
        Help::possible(format_args!("1 to {most}"))
    )]
    ManyChunks {
        /// The strategy.
        strategy: String,
        /// The last layer of the block.
        layer: String,
        /// Positions on each rank.
        positions: usize,
        /// The limit.
        most: usize,
        /// The requested value.
        chunks: usize,
    },
    /// A dim that a layer cannot split.
    #[error(
        "strategy `{strategy}`: {kind} `{layer}` cannot carry {axes} on {dim}{}",
        Help::possible(possible)
    )]
    Dim {
        /// The strategy.
        strategy: String,
        /// `the pooling`.
        kind: &'static str,
        /// The layer.
        layer: String,
        /// The dim.
        dim: &'static str,
        /// The requested axes.
        axes: String,
        /// Dims that can be split.
        possible: &'static str,
    },
    /// Groups of a convolution that do not divide evenly.
    #[error(
        "strategy `{strategy}`: `{layer}` has {groups} groups, which do not divide evenly over \
         {parts} ranks"
    )]
    Groups {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
        /// Its groups.
        groups: usize,
        /// The requested value.
        parts: usize,
    },
    /// Groups of a norm that do not divide evenly.
    #[error(
        "strategy `{strategy}`: `{layer}` normalizes {groups} groups of channels, which do not divide evenly over \
         {parts} ranks"
    )]
    NormGroups {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
        /// Its groups.
        groups: usize,
        /// The requested value.
        parts: usize,
    },
    /// Attention heads that do not divide evenly.
    #[error(
        "strategy `{strategy}`: `{layer}` has {heads} heads, which do not divide evenly over \
         {parts} ranks"
    )]
    Heads {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
        /// Pattern of all layers of its kind.
        all: String,
        /// Its heads.
        heads: usize,
        /// The requested value.
        parts: usize,
    },
    /// Layers that share a parameter split it in different ways.
    #[error(transparent)]
    Shared(Box<SharedParameter>),
    /// Micro-batches of different sizes, or of fewer samples than ranks of the data axis.
    #[error(
        "strategy `{strategy}`: a mini-batch of {batch} is not divisible into {micro} micro-batches of at \
         least {data} sample(s), one for each rank of the data axis"
    )]
    Micro {
        /// The strategy.
        strategy: String,
        /// The requested value.
        micro: usize,
        /// Samples.
        batch: usize,
        /// Extent of the data axis.
        data: usize,
    },
    /// Statistics of a batch norm over one value.
    #[error(
        "strategy `{strategy}`: in training the batch norm `{layer}` takes the mean and the variance of each \
         channel over a single value, as {micro} micro-batch(es) of a mini-batch of {batch}{} leave one \
         sample in one of them, and the layer has one position; at least 2 values are needed",
        local_text(*parts)
    )]
    OneValue {
        /// The strategy.
        strategy: String,
        /// The batch norm.
        layer: String,
        /// Micro-batches.
        micro: usize,
        /// Parts of a micro-batch with local statistics; 1 where these are synchronized.
        parts: usize,
        /// Samples.
        batch: usize,
    },
    /// Local statistics of batch norms whose samples are split otherwise than by the data axis of all ranks.
    #[error(
        "strategy `{strategy}`: batch_norm=local takes statistics over the samples of each coordinate of \
         `data`, but {split}"
    )]
    LocalStatistics {
        /// The strategy.
        strategy: String,
        /// What is split otherwise.
        split: String,
        /// The batch norm, unless it is a stage.
        layer: Option<String>,
    },
    /// A setting of layers, given for all.
    #[error(
        "strategy `{text}`: `{name}` is set for layers, like `; {example}`; axes, overlap, fuse, \
         batch_norm, bucket, workspace, workspace_total, micro, shard, stages and schedule go before the first semicolon{}",
        Help::none().maybe_code(nearest.as_ref())
    )]
    OfLayers {
        /// The strategy.
        text: String,
        /// The key.
        name: String,
        /// An example.
        example: &'static str,
        /// The strategy with the setting for all layers, where that has a meaning.
        nearest: Option<String>,
    },
    /// An axis that a layer names and that has an extent of 1.
    #[error(
        "strategy `{text}`: `{word}` is set for `{layers}`, but `{axis}` has an extent of 1 here, so it splits \
         nothing{}",
        Help::possible(format_args!("{possible}, or `-` for none"))
    )]
    Unsplit {
        /// The strategy.
        text: String,
        /// The layers.
        layers: String,
        /// The entry.
        word: String,
        /// The axis.
        axis: &'static str,
        /// Axes of extent above 1.
        possible: String,
    },
    /// An unknown key.
    #[error(
        "strategy `{text}`: there is no axis or option `{name}`; the axes are {known}{}",
        Help::none().maybe_code(nearest.as_ref())
    )]
    UnknownAxis {
        /// The strategy.
        text: String,
        /// The part that does not fit.
        name: String,
        /// All axes.
        known: String,
        /// The nearest axis or option, if one is near.
        nearest: Option<String>,
    },
    /// A key that is given twice.
    #[error(
        "strategy `{text}`: `{name}` is given twice{}",
        Help::advice("give it once")
    )]
    Twice {
        /// The strategy.
        text: String,
        /// The key.
        name: String,
    },
    /// Too many ranks.
    #[error("strategy `{text}` is for more than {most} ranks; at most {most} are possible")]
    TooMany {
        /// The strategy.
        text: String,
        /// The limit.
        most: usize,
    },
    /// The number of ranks is not that of the strategy.
    #[error("strategy `{strategy}` is for {product} rank(s), but {ranks} are asked for")]
    Ranks {
        /// The strategy.
        strategy: String,
        /// Number of ranks of the strategy.
        product: usize,
        /// The requested value.
        ranks: usize,
    },
    /// An axis that no layer of the model can use.
    #[error("strategy `{strategy}`: {reason}{}", Help::possible(possible))]
    Axis {
        /// The strategy.
        strategy: String,
        /// The axis.
        axis: partita_space::Axis,
        /// Which axis and why.
        reason: String,
        /// Valid axes.
        possible: String,
    },
    /// A split finer than what it splits.
    #[error(
        "strategy `{strategy}` splits {what} of {extent} into {parts} parts; at most {extent} are \
         possible"
    )]
    TooFine {
        /// The strategy.
        strategy: String,
        /// `the mini-batch`, `the filters of conv1`.
        what: String,
        /// The extent.
        extent: usize,
        /// The requested value.
        parts: usize,
        /// The layer, if it is the channels or the filters of one.
        layer: Option<Box<String>>,
    },
    /// An axis of all ranks besides stages.
    #[error(
        "strategy `{strategy}`: with stages only `data` can be an axis of all ranks{}",
        Help::advice(format_args!("write {axes} into the stages to split, as in `stages=[{stages}]`"))
    )]
    OutsideStages {
        /// The strategy.
        strategy: String,
        /// The axes with their extents.
        axes: String,
        /// Stages with these.
        stages: String,
    },
    /// A syntax error in the list of stages.
    #[error(
        "strategy `{text}`: `{word}` is not a list of stages{}",
        Help::advice(
            "a list reads like `stages=[depth=2|1]`, with the axes of each stage, `1` for one rank, and optionally its \
             layers before a colon, `stages=[..pool2: depth=2|conv3..: 1]`; `stages=4` is four stages of one rank"
        )
    )]
    StagesForm {
        /// The strategy.
        text: String,
        /// The part that does not fit.
        word: String,
    },
    /// More stages than there are layers.
    #[error(
        "strategy `{strategy}`: {model} has {layers} layers, too few for {stages} stages; at most \
         {layers} are possible"
    )]
    TooManyStages {
        /// The strategy.
        strategy: String,
        /// The model.
        model: String,
        /// Layers that it has.
        layers: usize,
        /// Requested stages.
        stages: usize,
    },
    /// Layers of stages that leave gaps or are not specified for all stages.
    #[error(
        "strategy `{strategy}`: stage {stage} {reason}; stages cover all layers of {model} from \
         {whole}"
    )]
    StageLayers {
        /// The strategy.
        strategy: String,
        /// The model.
        model: String,
        /// From 1.
        stage: usize,
        /// The reason.
        reason: String,
        /// Its first and last layer.
        whole: String,
    },
    /// Two replicas whose stages overlap on some, but not the same ranks.
    #[error(
        "strategy `{strategy}`: stage {stage} of one replica runs on ranks {} to {}, that of the other \
         on {} to {}; they must be the same ranks or have none in common, as with stages of equal size, \
         or a first and last half of as many ranks",
        ranks.0, ranks.1, mirrored.0, mirrored.1
    )]
    ReplicasMeet {
        /// The strategy.
        strategy: String,
        /// From 1.
        stage: usize,
        /// First and last rank.
        ranks: (usize, usize),
        /// Those of the other replica.
        mirrored: (usize, usize),
    },
    /// A number of stages that the schedule does not allow.
    #[error(
        "strategy `{strategy}`: schedule={schedule} needs {} stages, and there are {devices}",
        if schedule == "chimera" { "an even number of" } else { "two or more" }
    )]
    StageCount {
        /// The strategy.
        strategy: String,
        /// The schedule.
        schedule: String,
        /// Number of stages, or of devices that run them.
        devices: usize,
    },
    /// A number of micro-batches that the schedule does not allow.
    #[error(
        "strategy `{strategy}`: schedule={schedule} takes micro-batches in multiples of {multiple}, and \
         there are {micro}"
    )]
    Scheduled {
        /// The strategy.
        strategy: String,
        /// The schedule.
        schedule: String,
        /// The number must be a multiple of this.
        multiple: usize,
        /// The requested value.
        micro: usize,
    },
    /// An unknown schedule.
    #[error(
        "strategy `{text}`: there is no schedule `{schedule}`{}",
        Help::possible(possible)
            .maybe_nearest(nearest.map(|name| format!("schedule={name}")))
    )]
    UnknownSchedule {
        /// The strategy.
        text: String,
        /// The requested value.
        schedule: String,
        /// All names.
        possible: String,
        /// The nearest name, if one is near.
        nearest: Option<&'static str>,
    },
    /// A schedule without stages.
    #[error(
        "strategy `{text}`: a schedule is for stages, and there are none{}",
        Help::advice(format_args!("add them, as in `stages=[1|1],schedule={schedule}`"))
    )]
    NoStages {
        /// The strategy.
        text: String,
        /// The schedule.
        schedule: String,
    },
    /// Branches requested where there are none, or too few.
    #[error("strategy `{strategy}`: `{layers}` {reason}")]
    NoBranches {
        /// The strategy.
        strategy: String,
        /// The layers.
        layers: String,
        /// The reason.
        reason: String,
    },
    /// Any of these, with the nearest choices that a command accepts.
    #[error("{}", with_choices(error, choices.as_deref()))]
    Nearest {
        /// What is wrong.
        error: Box<StrategyError>,
        /// The choices, if there are some.
        choices: Option<String>,
    },
}
