//! How the training is split: what the user specifies. Whether it can be is checked in `check`.

mod error;
mod sizes;
mod stages;
mod text;

pub use error::{SharedParameter, Sharer, StrategyError};
pub(crate) use text::check_split;

use crate::schedule::Schedule;
use partita_space::{Axis, AxisList, Mesh};

/// Ranks of the largest mesh.
const RANKS_MAX: usize = Mesh::RANKS_MAX;

/// How the training is split. The short form reads `data=4,depth=2,height=2`; axes that are not named
/// have extent 1, `overlap=off` keeps convolutions whole instead of hiding exchanges behind them, and
/// `fuse=off` gives every operation a pass over memory of its own.
///
/// N lies on `data`, D, H and W on `depth`, `height` and `width`, the filters of a layer on `filter` and
/// the channels that its weights read on `channel`. What differs for some layers follows after a
/// semicolon: `filter=2,depth=2; conv4..fc2: D=-,F=filter+depth`. `height=4; conv1..relu4: halo=grouped`
/// exchanges halos once for all these layers, and computes twice what lies between them.
///
/// `stages=[depth=2|1]` cuts the network in stages, each with a mesh of its own, which pass micro-batches
/// on in the order of `schedule`; the ranks are then those of `data` times those of all stages.
///
/// `micro=4` takes the mini-batch in four parts, one after the other, and adds their gradients;
/// `shard=optimizer`, `gradients` or `parameters` shares out what replicas would hold alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Strategy {
    pub(crate) extents: [usize; 7],
    /// Whether a convolution is split in interior and border so that its exchange can hide.
    pub overlap: bool,
    /// Whether kernels are fused, and weights packed once for several, where the menu offers it.
    pub fuse: bool,
    /// Micro-batches in a mini-batch.
    pub micro: usize,
    /// What of the training state ranks share that would otherwise each have all of it.
    pub shard: Shard,
    /// What differs for some layers; later entries go before earlier ones.
    pub layers: Vec<LayerChoice>,
    /// The stages of a pipeline, one after the other; none where all ranks run all layers.
    pub stages: Vec<StageChoice>,
    /// In which order stages take micro-batches.
    pub schedule: Schedule,
}

/// A stage of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StageChoice {
    /// From the first layer to the last, as for [`LayerChoice`], where it is specified: once, or for a schedule
    /// with several stages on a place once for each of them. Where it is specified for no stage, stages are
    /// made as equal as they can be.
    pub layers: Vec<(String, String)>,
    /// Extents of the axes of its mesh. Along `data` it splits what the axis `data` of the strategy has
    /// left.
    pub extents: [usize; 7],
}

/// What is shared out over the ranks between which the gradients of weights are summed. Biases and
/// vectors of normalizations are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shard {
    /// Nothing.
    #[default]
    Off,
    /// What the optimizer keeps beside the weights (ZeRO stage 1; Rajbhandari et al. 2020).
    Optimizer,
    /// Gradients, too: they are summed after every micro-batch (stage 2).
    Gradients,
    /// The weights, too: they are gathered for each layer, forward and backward (stage 3).
    Parameters,
}

impl Shard {
    /// All of them.
    pub const ALL: [Shard; 4] = [
        Self::Off,
        Self::Optimizer,
        Self::Gradients,
        Self::Parameters,
    ];

    /// The word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Optimizer => "optimizer",
            Self::Gradients => "gradients",
            Self::Parameters => "parameters",
        }
    }
}

/// What is specified for some layers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LayerChoice {
    /// Which ones: from the first to the last in the order of the model; a name alone is both, and an
    /// empty last name is the end.
    pub from: String,
    /// See `from`.
    pub to: String,
    /// Axes of each [`LayerDim`], where they are specified.
    pub dims: [Option<AxisList>; 6],
    /// Whether what these layers compute is dropped after the forward pass and computed again, all of
    /// it at once, when the backward pass comes to it; where it is specified.
    pub recompute: Option<bool>,
    /// How their halos come, where it is specified.
    pub halo: Option<Halo>,
    /// How the ranks of the axis `branch` share out the branches among these layers, where it is specified.
    pub branches: Option<Branches>,
}

impl LayerChoice {
    /// Which layers, as in the text form.
    pub fn layers(&self) -> String {
        if self.from == self.to && !self.from.is_empty() {
            self.from.clone()
        } else {
            format!("{}..{}", self.from, self.to)
        }
    }
}

/// How branches between a fork and a join are placed on the coordinates of the axis `branch`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Branches {
    /// On all of them, one after the other.
    Off,
    /// In so many groups, of sizes by what they cost.
    Groups(usize),
    /// In groups of these sizes, which add up to the extent of the axis.
    Sizes(Vec<usize>),
}

/// How layers get what they read around a rank's own part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Halo {
    /// Each layer by an exchange of its own, by default.
    Own,
    /// These layers by one wide exchange of each tensor that enters them; what lies around the own part
    /// between them is computed by every rank that needs it.
    Grouped,
}

impl Halo {
    /// As in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Grouped => "grouped",
        }
    }
}

/// A dim of a layer's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerDim {
    /// Samples.
    N,
    /// Positions.
    D,
    /// Positions.
    H,
    /// Positions.
    W,
    /// Channels that are read: of weights, or of a layer without them.
    C,
    /// Filters: channels that weights give.
    F,
}

impl LayerDim {
    /// All of them.
    pub const ALL: [LayerDim; 6] = [Self::N, Self::D, Self::H, Self::W, Self::C, Self::F];

    /// The letter.
    pub fn name(self) -> &'static str {
        match self {
            Self::N => "N",
            Self::D => "D",
            Self::H => "H",
            Self::W => "W",
            Self::C => "C",
            Self::F => "F",
        }
    }

    /// The axis on which it lies by default.
    pub fn axis(self) -> Axis {
        match self {
            Self::N => Axis::Data,
            Self::D => Axis::Depth,
            Self::H => Axis::Height,
            Self::W => Axis::Width,
            Self::C => Axis::Channel,
            Self::F => Axis::Filter,
        }
    }
}

impl Strategy {
    /// From the extents of all axes.
    pub fn of(extents: [usize; 7]) -> Self {
        Self {
            extents,
            overlap: true,
            fuse: true,
            micro: 1,
            shard: Shard::Off,
            layers: Vec::new(),
            stages: Vec::new(),
            schedule: Schedule::default(),
        }
    }

    /// One rank.
    pub fn single() -> Self {
        Self::of([1; 7])
    }

    /// From the extents of data and the three spatial axes.
    pub fn hybrid(data: usize, [depth, height, width]: [usize; 3]) -> Self {
        Self::of([data, depth, height, width, 1, 1, 1])
    }

    /// Extent of an axis.
    pub fn extent(&self, axis: Axis) -> usize {
        self.extents[axis.index()]
    }

    /// Ranks it is for.
    pub fn ranks(&self) -> usize {
        self.mesh().ranks()
    }

    /// The mesh of all ranks. With stages these stand along `branch`, stage after stage.
    pub fn mesh(&self) -> Mesh {
        let mut extents = self.extents;
        if !self.stages.is_empty() {
            extents[Axis::Branch.index()] = self.ranks_of_stages();
        }
        Mesh::new(extents)
    }

    /// Checks it against a number of ranks, which train on mini-batches of so many samples.
    pub fn check_ranks(&self, ranks: usize, batch: usize) -> Result<(), StrategyError> {
        if self.ranks() == ranks {
            return Ok(());
        }
        let mut fitted = self.clone();
        let others = self.ranks() / self.extent(Axis::Data);
        if ranks.is_multiple_of(others) {
            fitted.extents[Axis::Data.index()] = ranks / others;
        } else {
            fitted = Self {
                micro: self.micro,
                ..Self::of([ranks, 1, 1, 1, 1, 1, 1])
            };
        }
        let has_samples = fitted.data_parts() * fitted.micro <= batch;
        Err(StrategyError::Ranks {
            strategy: self.to_string(),
            product: self.ranks(),
            ranks,
            nearest: if has_samples && self.stages.is_empty() == fitted.stages.is_empty() {
                format!(", or `{fitted}` for {ranks}")
            } else {
                String::new()
            },
        })
    }

    /// Micro-batches in which a mini-batch is taken: as many as are asked for. A smaller last one of an
    /// epoch has at least one sample in each, whatever the axes, so that they are those of one rank; where
    /// it does not divide, the first ones have a sample more.
    pub fn micro_batches(&self, batch: usize) -> usize {
        self.micro.min(batch).max(1)
    }

    /// First sample and number of samples of each micro-batch.
    pub(crate) fn samples_of_micro_batches(
        &self,
        batch: usize,
    ) -> impl Iterator<Item = (usize, usize)> {
        let parts = self.micro_batches(batch);
        (0..parts).map(move |part| {
            let [start, end] = [part, part + 1].map(|part| {
                let rest = batch % parts;
                part * (batch / parts) + part.min(rest)
            });
            (start, end - start)
        })
    }

    /// Whether the micro-batches are of one size and leave samples to all ranks of the data axes.
    pub(crate) fn is_micro_fitting(&self, batch: usize) -> bool {
        batch.is_multiple_of(self.micro) && self.micro <= batch / self.data_parts()
    }

    /// The most micro-batches below those asked for that can be scheduled and fit; else what else can be.
    pub(crate) fn fitting_micro(&self, batch: usize) -> String {
        let most = self.micro.min(batch / self.data_parts());
        let fits = |parts: &usize| batch.is_multiple_of(*parts) && self.can_schedule(*parts);
        match (1..=most).rev().find(fits) {
            Some(micro) => format!("micro={micro}"),
            None => self.nearest_micro(batch),
        }
    }
}
