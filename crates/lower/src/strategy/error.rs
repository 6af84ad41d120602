//! Why a strategy is refused.

/// A parameter that two layers share and split in different ways.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "strategy `{strategy}`: `{}` and `{}` share `{parameter}` and split it differently: `{}` has {} ({}), `{}` \
     has {} ({}); the nearest valid choice is {nearest}",
    layers[0].name, layers[1].name,
    layers[0].name, layers[0].split, layers[0].origin,
    layers[1].name, layers[1].split, layers[1].origin
)]
pub struct SharedParameter {
    /// The strategy.
    pub strategy: String,
    /// Who shares it.
    pub layers: [Sharer; 2],
    /// What they share.
    pub parameter: String,
    /// What would be valid.
    pub nearest: String,
}

/// How a layer splits a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharer {
    /// Its name.
    pub name: String,
    /// As words for layers: `C=-,F=filter`.
    pub split: String,
    /// The words that specify it, or that it is the default.
    pub origin: String,
}

/// A strategy that cannot be read, or cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrategyError {
    /// Not of the form.
    #[error(
        "strategy `{text}`: `{word}` is not of the form axis=number, the number at least 1, or \
         overlap=on|off, fuse=on|off, micro=number, shard=off|optimizer|gradients|parameters, \
         stages=[...] or schedule=1f1b; a strategy reads like `data=2,depth=2`, and what differs for \
         some layers follows like `; conv3..fc2: D=-,F=depth`"
    )]
    Form {
        /// The whole.
        text: String,
        /// The part that does not fit.
        word: String,
    },
    /// A word that takes others.
    #[error(
        "strategy `{text}`: `{word}` is not possible; possible is {possible}; nearest is `{nearest}`"
    )]
    Value {
        /// The whole.
        text: String,
        /// The word with its value.
        word: String,
        /// The values that it takes.
        possible: String,
        /// The same word, with what was probably meant.
        nearest: String,
    },
    /// A mini-batch of no samples, or of more than can be counted.
    #[error(
        "a mini-batch of {batch} samples is not possible; possible are 1 to {most}; nearest is {nearest}"
    )]
    Batch {
        /// As asked for.
        batch: usize,
        /// The bound.
        most: usize,
        /// What would be valid.
        nearest: usize,
    },
    /// A layer that is too large with so many samples.
    #[error(
        "layer `{layer}` has {asked} {what} with a mini-batch of {batch}; at most {limit} are possible; \
         nearest is a mini-batch of {nearest}"
    )]
    LargeLayer {
        /// The layer.
        layer: String,
        /// Samples.
        batch: usize,
        /// How many, in digits: 64 bits may not hold it.
        asked: String,
        /// What is counted.
        what: &'static str,
        /// The bound.
        limit: u64,
        /// Samples that are possible.
        nearest: usize,
    },
    /// More passes of stages over micro-batches than can be put in order.
    #[error(
        "strategy `{strategy}`: {stages} stages with {micro} micro-batches each are more than {most} \
         passes each way; the nearest valid choice is {nearest}"
    )]
    Passes {
        /// The strategy.
        strategy: String,
        /// Stages of a replica.
        stages: usize,
        /// Micro-batches.
        micro: usize,
        /// The bound.
        most: usize,
        /// What would be valid.
        nearest: String,
    },
    /// What is specified for some layers is not of the form.
    #[error(
        "strategy `{text}`: `{word}` cannot be set for layers; possible are \
         recompute=on|off, halo=own|grouped, branches=2|[3|1]|off, and DIM=AXES with a dim of N, D, H, W, C or F and axes such as `depth`, \
         `filter+channel` or `-` for none"
    )]
    LayerForm {
        /// The whole.
        text: String,
        /// The part that does not fit.
        word: String,
    },
    /// Layers that the model does not have.
    #[error(
        "strategy `{strategy}`: {model} has no layer `{asked}`; nearest is `{nearest}`, and \
         `{nearest}..` is that layer and all after it"
    )]
    UnknownLayer {
        /// The strategy.
        strategy: String,
        /// Name of the model.
        model: String,
        /// As given.
        asked: String,
        /// A name that exists.
        nearest: String,
    },
    /// A pattern in a range.
    #[error(
        "strategy `{strategy}`: `{layers}` is a range from one layer to another, in which `*` cannot stand \
         for letters; write a name with `*` alone, or the names of the first and the last layer"
    )]
    StarInRange {
        /// The strategy.
        strategy: String,
        /// The range.
        layers: String,
    },
    /// A range of layers that ends before it begins.
    #[error("strategy `{strategy}`: `{to}` comes before `{from}`; nearest is `{to}..{from}`")]
    Backwards {
        /// The strategy.
        strategy: String,
        /// The first layer.
        from: String,
        /// The last one.
        to: String,
    },
    /// A layer in two groups.
    #[error(
        "strategy `{strategy}`: layer `{layer}` is in the groups `{first}` and `{second}`, but one exchange \
         serves one group; the nearest valid choice is one `halo=grouped` for all of them, or to end the \
         first before `{layer}`"
    )]
    TwoGroups {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
        /// Layers of a group.
        first: String,
        /// Those of another.
        second: String,
    },
    /// What a rank computes around its own part ends at the border of the image.
    #[error(
        "strategy `{strategy}`: `{layer}` has periodic padding and reads `{input}` of its own group, of \
         which no rank computes what lies across the border; the nearest valid choice is {nearest}"
    )]
    PeriodicInGroup {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
        /// What it reads.
        input: String,
        /// Groups that are possible.
        nearest: String,
    },
    /// An axis that would split two dims of one layer.
    #[error(
        "strategy `{strategy}`: in layer `{layer}` {axis} splits both {first} and {second}; give one of \
         them another axis, or `-`"
    )]
    AxisTwice {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
        /// The axis.
        axis: &'static str,
        /// A dim.
        first: &'static str,
        /// Another one.
        second: &'static str,
    },
    /// A layer that is to be computed again with two blocks.
    #[error(
        "strategy `{strategy}`: `{layer}` is in two blocks with recompute=on; let the second begin after it"
    )]
    TwoBlocks {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
    },
    /// A dim that a layer does not have.
    #[error(
        "strategy `{strategy}`: {kind} `{layer}` cannot carry {axes} on {dim}; possible are {possible}"
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
        /// Axes that were to split it.
        axes: String,
        /// Dims that can be split.
        possible: &'static str,
    },
    /// Channels of a grouped convolution are split by whole groups.
    #[error(
        "strategy `{strategy}`: `{layer}` has {groups} groups, which cannot be shared out evenly over \
         {parts} ranks; the nearest valid choice is {nearest} (or `; {layer}: F=-,C=-`)"
    )]
    Groups {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
        /// Its groups.
        groups: usize,
        /// As asked for.
        parts: usize,
        /// A number of parts that works.
        nearest: usize,
    },
    /// Channels of attention are split by whole heads.
    #[error(
        "strategy `{strategy}`: `{layer}` has {heads} heads, which cannot be shared out evenly over \
         {parts} ranks; the nearest valid choice is {nearest} (or `; {all}: C=-`)"
    )]
    Heads {
        /// The strategy.
        strategy: String,
        /// The layer.
        layer: String,
        /// All layers of its kind, as words for layers name them.
        all: String,
        /// Its heads.
        heads: usize,
        /// As asked for.
        parts: usize,
        /// A number of parts that works.
        nearest: usize,
    },
    /// Layers that share a parameter split it in different ways.
    #[error(transparent)]
    Shared(Box<SharedParameter>),
    /// Micro-batches of different sizes, or of fewer samples than ranks of the data axis.
    #[error(
        "strategy `{strategy}`: a mini-batch of {batch} is not divisible into {micro} micro-batches of at \
         least {data} sample(s), one for each rank of the data axis; the nearest valid choice is \
         {nearest}"
    )]
    Micro {
        /// The strategy.
        strategy: String,
        /// As asked for.
        micro: usize,
        /// Samples.
        batch: usize,
        /// Extent of the data axis.
        data: usize,
        /// What divides.
        nearest: String,
    },
    /// Statistics of a batch norm over one value.
    #[error(
        "strategy `{strategy}`: in training the batch norm `{layer}` takes the mean and the variance of each \
         channel over a single value, as {micro} micro-batch(es) of a mini-batch of {batch} leave one sample \
         in one of them, and the layer has one position; at least 2 values are needed, the nearest valid \
         choice is {nearest}"
    )]
    OneValue {
        /// The strategy.
        strategy: String,
        /// The batch norm.
        layer: String,
        /// Micro-batches.
        micro: usize,
        /// Samples.
        batch: usize,
        /// What gives it two values.
        nearest: String,
    },
    /// What is specified for some layers, given for all.
    #[error(
        "strategy `{text}`: `{name}` is set for layers, like `; {example}`; nothing else goes before the \
         first semicolon than axes, overlap, fuse, micro and shard"
    )]
    OfLayers {
        /// The whole.
        text: String,
        /// The key.
        name: String,
        /// How it is specified.
        example: &'static str,
    },
    /// An axis that a layer names and that has an extent of 1.
    #[error(
        "strategy `{text}`: `{word}` is set for `{layers}`, but `{axis}` has an extent of 1 here, so it \
         splits nothing; possible are {possible}, or `-` for none"
    )]
    Unsplit {
        /// The whole.
        text: String,
        /// The layers.
        layers: String,
        /// The word.
        word: String,
        /// The axis.
        axis: &'static str,
        /// Axes that split.
        possible: String,
    },
    /// A key that is no axis.
    #[error("strategy `{text}`: there is no axis `{name}`; the axes are {known}{nearest}")]
    UnknownAxis {
        /// The whole.
        text: String,
        /// The part that does not fit.
        name: String,
        /// All keys.
        known: String,
        /// A hint.
        nearest: String,
    },
    /// An axis named twice.
    #[error("strategy `{text}`: `{name}` is given twice; give it once")]
    Twice {
        /// The whole.
        text: String,
        /// The key.
        name: String,
    },
    /// More ranks than can be numbered.
    #[error("strategy `{text}` is for more than {most} ranks; at most {most} are possible")]
    TooMany {
        /// The whole.
        text: String,
        /// The bound.
        most: usize,
    },
    /// The number of ranks does not fit.
    #[error(
        "strategy `{strategy}` is for {product} rank(s), but {ranks} are asked for; choose ranks = \
         {product}{nearest}"
    )]
    Ranks {
        /// The strategy.
        strategy: String,
        /// Product of its extents.
        product: usize,
        /// As asked for.
        ranks: usize,
        /// A strategy that fits.
        nearest: String,
    },
    /// An axis that nothing of the model can carry.
    #[error("strategy `{strategy}`: {reason}; the axes possible here are {possible}")]
    Axis {
        /// The strategy.
        strategy: String,
        /// Which axis and why.
        reason: String,
        /// Those that can be used.
        possible: String,
    },
    /// A split finer than what it splits.
    #[error(
        "strategy `{strategy}` splits {what} of {extent} into {parts} parts; at most {extent} are \
         possible, the nearest valid choice is {nearest}"
    )]
    TooFine {
        /// The strategy.
        strategy: String,
        /// `the mini-batch`, `the filters of conv1`.
        what: String,
        /// What would be valid.
        nearest: String,
        /// What there is to split.
        extent: usize,
        /// As asked for.
        parts: usize,
    },
    /// An axis beside stages.
    #[error(
        "strategy `{strategy}`: beside stages only `data` can be an axis of all ranks; write \
         {axis}={extent} into the stages that shall be split so, as in `stages=[{axis}={extent}|1]`"
    )]
    OutsideStages {
        /// The strategy.
        strategy: String,
        /// The axis.
        axis: &'static str,
        /// Its extent.
        extent: usize,
    },
    /// Not of the form.
    #[error(
        "strategy `{text}`: `{word}` is not a list of stages; it reads like `stages=[depth=2|1]`, with the \
         axes of each stage, `1` for one rank, and its layers before a colon if they shall be chosen by \
         hand, `stages=[..pool2: depth=2|conv3..: 1]`; `stages=4` is four stages of one rank"
    )]
    StagesForm {
        /// The whole.
        text: String,
        /// The part that does not fit.
        word: String,
    },
    /// More stages than there are layers.
    #[error(
        "strategy `{strategy}`: {model} has {layers} layers, too few for {stages} stages; at most \
         {layers} are possible; the nearest valid choice is {nearest}"
    )]
    TooManyStages {
        /// The strategy.
        strategy: String,
        /// The model.
        model: String,
        /// Layers that it has.
        layers: usize,
        /// Stages asked for.
        stages: usize,
        /// What would be valid.
        nearest: String,
    },
    /// Layers chosen by hand that leave gaps or are not specified for all stages.
    #[error(
        "strategy `{strategy}`: stage {stage} {reason}; the stages of {model} go without gap from \
         {whole}, or their layers are left out and chosen for all of them"
    )]
    StageLayers {
        /// The strategy.
        strategy: String,
        /// The model.
        model: String,
        /// From 1.
        stage: usize,
        /// What is wrong.
        reason: String,
        /// Its first and last layer.
        whole: String,
    },
    /// Replicas whose stages stand on some, but not the same ranks.
    #[error(
        "strategy `{strategy}`: stage {stage} of the one replica stands on ranks {} to {}, that of the other \
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
    /// Training state shared out beside two replicas.
    #[error(
        "strategy `{strategy}`: with schedule={schedule} one of two replicas keeps the state of the \
         optimizer, and it cannot be shared out further; choose shard=off, or schedule=1f1b"
    )]
    SharedOut {
        /// The strategy.
        strategy: String,
        /// The schedule.
        schedule: String,
    },
    /// A number of stages that a schedule cannot take.
    #[error(
        "strategy `{strategy}`: schedule={schedule} needs {} stages, and there are {devices}; choose \
         another number, or schedule=1f1b",
        if schedule == "chimera" { "an even number of" } else { "two or more" }
    )]
    StageCount {
        /// The strategy.
        strategy: String,
        /// The schedule.
        schedule: String,
        /// Stages, or places on which they stand.
        devices: usize,
    },
    /// A number of micro-batches that a schedule cannot take.
    #[error(
        "strategy `{strategy}`: schedule={schedule} takes micro-batches in multiples of {multiple}, and \
         there are {micro}; the nearest valid choice is {nearest}"
    )]
    Scheduled {
        /// The strategy.
        strategy: String,
        /// The schedule.
        schedule: String,
        /// Of what they must be a multiple.
        multiple: usize,
        /// As asked for.
        micro: usize,
        /// What would be valid.
        nearest: String,
    },
    /// A schedule that is none.
    #[error(
        "strategy `{text}`: there is no schedule `{schedule}`; possible are {possible}{nearest}"
    )]
    UnknownSchedule {
        /// The whole.
        text: String,
        /// As asked for.
        schedule: String,
        /// All names.
        possible: String,
        /// The nearest one, with the words around it.
        nearest: String,
    },
    /// A schedule where there are no stages.
    #[error(
        "strategy `{text}`: a schedule is for stages, and there are none; add them, as in \
         `stages=[1|1],schedule={schedule}`"
    )]
    NoStages {
        /// The whole.
        text: String,
        /// The schedule.
        schedule: String,
    },
    /// Branches asked for where there are none, or too few.
    #[error("strategy `{strategy}`: `{layers}` {reason}; {nearest}")]
    NoBranches {
        /// The strategy.
        strategy: String,
        /// The layers.
        layers: String,
        /// What is there, and what is asked for.
        reason: String,
        /// What would be valid.
        nearest: String,
    },
}
