//! Strategies: how the user wants the training to be split. `check` validates them.

mod error;
mod settings;
mod sizes;
mod stages;
mod text;
mod values;
mod workspace;

pub use error::{SharedParameter, Sharer, StrategyError};
pub use settings::Setting;
pub(crate) use sizes::PASSES_MAX;
pub(crate) use text::check_split;
pub use workspace::WorkspaceLimit;

use crate::schedule::Schedule;
use partita_space::{Axis, AxisList, AxisSet, Bytes, Mesh};

/// Ranks of the largest mesh.
const RANKS_MAX: usize = Mesh::RANKS_MAX;

/// How the training is split. The short form reads `data=4,depth=2,height=2`; axes that are not named
/// have extent 1, `overlap=off` keeps convolutions whole instead of hiding exchanges behind them, and
/// `fuse=off` gives every operation a pass over memory of its own.
///
/// N lies on `data`, D, H and W on `depth`, `height` and `width`, the filters of a layer on `filter` and
/// the channels that its weights read on `channel`. What differs for some layers follows after a
/// semicolon: `filter=2,depth=2; conv4..fc2: D=-,F=filter+depth`. `height=4; conv1..relu4: halo=grouped`
/// exchanges halos once for all these layers, and computes twice what lies between them. `conv1..pool1: chunks=8`
/// computes these layers in eight slabs, one after the other on each rank, and never holds what lies between them whole.
///
/// `stages=[depth=2|1]` partitions the network into pipeline stages, each with a mesh of its own, which process
/// micro-batches in the order of `schedule`; the number of ranks is `data` times those of all stages.
///
/// `batch_norm=local` takes the statistics of batch norms over the samples of each coordinate of `data` alone.
///
/// `bucket=25MiB` sums gradients over ranks in messages of at least that size.
///
/// `workspace=64MiB` limits the workspace of each kernel whose configurations were measured, `workspace_total=1GiB`
/// that of all together, and `workspace=off` ignores what was measured; see [`WorkspaceLimit`].
///
/// `micro=4` processes the mini-batch as four micro-batches and accumulates their gradients;
/// `shard=optimizer`, `gradients` or `parameters` shards the training state over replicas (ZeRO).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Strategy {
    pub(crate) extents: [usize; 7],
    /// Whether a convolution is split in interior and border so that its exchange can hide.
    pub overlap: bool,
    /// Whether kernels are fused, and weights packed once for several, where the menu offers it.
    pub fuse: bool,
    /// Over which ranks batch norms take their statistics in training.
    pub batch_norm: BatchNormStatistics,
    /// Gradients are summed over ranks together, once they have as many bytes on a rank; each for itself if 0.
    pub bucket: Bytes,
    /// Limit of the workspace of kernels.
    pub workspace: WorkspaceLimit,
    /// Micro-batches in a mini-batch.
    pub micro: usize,
    /// Which training state is sharded.
    pub shard: Shard,
    /// Settings of some layers; later entries override earlier ones.
    pub layers: Vec<LayerChoice>,
    /// The stages of a pipeline; none where all ranks run all layers.
    pub stages: Vec<StageChoice>,
    /// In which order stages take micro-batches.
    pub schedule: Schedule,
}

/// A stage of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StageChoice {
    /// First and last layer, as for [`LayerChoice`], of each stage on these ranks, of which a schedule may have
    /// several. Where no layers are specified, stages are balanced.
    pub layers: Vec<(String, String)>,
    /// Extents of the axes of its mesh. Its `data` axis further splits each part of the mini-batch.
    pub extents: [usize; 7],
}

/// Over which samples of a micro-batch a batch norm takes its statistics in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BatchNormStatistics {
    /// Over all.
    #[default]
    Synchronized,
    /// Over those of one coordinate of the data axis, so that the result depends on its extent: it is that of
    /// as many micro-batches on one rank. Running statistics are those over all samples.
    Local,
}

impl BatchNormStatistics {
    /// Both.
    pub const ALL: [BatchNormStatistics; 2] = [Self::Synchronized, Self::Local];

    /// Its name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Synchronized => "synchronized",
            Self::Local => "local",
        }
    }
}

/// Which training state of weights is sharded over the ranks that reduce their gradients. Biases and parameters
/// of normalizations are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shard {
    /// Nothing.
    #[default]
    Off,
    /// The optimizer state (ZeRO stage 1; Rajbhandari et al. 2020).
    Optimizer,
    /// Also gradients, which are reduced after every micro-batch (stage 2).
    Gradients,
    /// Also weights, which are gathered for each layer, forward and backward (stage 3).
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

    /// Its name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Optimizer => "optimizer",
            Self::Gradients => "gradients",
            Self::Parameters => "parameters",
        }
    }
}

/// Settings of some layers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LayerChoice {
    /// The first layer, in the order of the model. An empty name is the first layer of the model.
    pub from: String,
    /// The last layer. An empty name is the last layer of the model.
    pub to: String,
    /// Axes of each [`LayerDim`], where they are specified.
    pub dims: [Option<AxisList>; 6],
    /// Whether the activations of these layers are recomputed in the backward pass; where it is specified.
    pub recompute: Option<Recompute>,
    /// How their halos are exchanged, where it is specified.
    pub halo: Option<Halo>,
    /// In how many slabs they are computed, one after the other, where it is specified; 1 computes them whole.
    pub chunks: Option<usize>,
    /// How the branches among these layers are placed along the axis `branch`, where it is specified.
    pub branches: Option<Branches>,
}

impl LayerChoice {
    /// Whether its layers are computed in slabs.
    pub fn is_chunked(&self) -> bool {
        self.chunks.is_some_and(|chunks| chunks > 1)
    }

    /// Whether it sets anything.
    pub fn is_any_set(&self) -> bool {
        let layers = Self {
            from: self.from.clone(),
            to: self.to.clone(),
            ..Self::default()
        };
        *self != layers
    }

    /// The range of layers, in the text form.
    pub fn layers(&self) -> String {
        if self.from == self.to && !self.from.is_empty() {
            self.from.clone()
        } else {
            format!("{}..{}", self.from, self.to)
        }
    }
}

/// Which activations of some layers are dropped after the forward pass and computed again for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recompute {
    /// None, the default.
    Off,
    /// All inside of the layers, as one block.
    On,
    /// Those of norms, activations, concatenations and the like, each for the layers that read it, so that no layer with
    /// weights runs again.
    Selective,
}

impl Recompute {
    /// All of them.
    pub const ALL: [Recompute; 3] = [Self::Off, Self::On, Self::Selective];

    /// Its name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Selective => "selective",
        }
    }
}

/// How branches between a fork and a join are placed on the coordinates of the axis `branch`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Branches {
    /// All ranks run all branches, one after the other.
    Off,
    /// In this number of groups, with sizes by cost.
    Groups(usize),
    /// In groups of these sizes, which add up to the extent of the axis.
    Sizes(Vec<usize>),
}

/// How layers get their halos.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Halo {
    /// A halo exchange for each layer, the default.
    Own,
    /// One wide halo exchange of each tensor that enters the group; halos between its layers are computed
    /// redundantly.
    Grouped,
}

impl Halo {
    /// Its name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Grouped => "grouped",
        }
    }
}

/// A dim of the computation of a layer.
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
    /// Input channels.
    C,
    /// Filters, the output channels of layers with weights.
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
            batch_norm: BatchNormStatistics::default(),
            bucket: Bytes(0),
            workspace: WorkspaceLimit::default(),
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

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.mesh().ranks()
    }

    /// The mesh of all ranks. The ranks of all stages are along `branch`, stage after stage.
    pub fn mesh(&self) -> Mesh {
        let mut extents = self.extents;
        if !self.stages.is_empty() {
            extents[Axis::Branch.index()] = self.ranks_of_stages();
        }
        Mesh::new(extents)
    }

    /// With these statistics of batch norms, where the data axis makes them differ.
    #[must_use]
    pub fn with_batch_norm(self, batch_norm: BatchNormStatistics) -> Self {
        let asked = Self { batch_norm, ..self };
        if asked.local_statistics().is_empty() {
            Self {
                batch_norm: BatchNormStatistics::default(),
                ..asked
            }
        } else {
            asked
        }
    }

    /// With these extents of the axes, and all else alike.
    #[must_use]
    pub fn with_extents(&self, extents: [usize; 7]) -> Self {
        Self {
            extents,
            ..self.clone()
        }
    }

    /// The axes along which batch norms have statistics of their own in training.
    pub fn local_statistics(&self) -> AxisSet {
        let axis = (self.batch_norm == BatchNormStatistics::Local).then_some(Axis::Data);
        AxisSet::of(axis.filter(|&axis| self.extent(axis) > 1))
    }

    /// Number of micro-batches of a mini-batch. A smaller last mini-batch of an epoch has at least one sample in
    /// each, independent of the axes, so that results equal those of one rank; where it does not divide, the
    /// first ones have a sample more.
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

    /// Whether micro-batches have equal size, with a sample for each rank of the data axes.
    pub(crate) fn is_micro_fitting(&self, batch: usize) -> bool {
        batch.is_multiple_of(self.micro) && self.micro <= batch / self.data_parts()
    }
}
