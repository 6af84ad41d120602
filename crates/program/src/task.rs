//! Tasks and the work that they do.

use crate::{Algorithm, Distribution, Kernel, MemberViews, View, Views};
use partita_space::{AxisSet, Coord, Mesh, Offset, Rank, Submesh};
use serde::{Deserialize, Serialize};
use std::slice;

/// Index of a task in its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub u32);

/// A queue of a rank, like a CUDA stream. Tasks of a lane start in their order in the body. The compute and
/// io lanes run one task at a time; several exchanges or collectives may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    /// Kernels.
    Compute,
    /// Point-to-point messages.
    Exchange,
    /// Collectives.
    Collective,
    /// Reading of samples, storing of predictions.
    Io,
}

impl Lane {
    /// All lanes.
    pub const ALL: [Lane; 4] = [Lane::Compute, Lane::Exchange, Lane::Collective, Lane::Io];

    /// Whether a task starts only when the one before it has completed.
    pub fn is_serial(self) -> bool {
        match self {
            Lane::Compute | Lane::Io => true,
            Lane::Exchange | Lane::Collective => false,
        }
    }

    /// The word used in texts.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Compute => "compute",
            Lane::Exchange => "exchange",
            Lane::Collective => "collective",
            Lane::Io => "io",
        }
    }
}

/// Part of a step that a task belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Reading and importing of samples.
    Load,
    /// From the input to the loss.
    Forward,
    /// From the loss to the gradients.
    Backward,
    /// Sums of gradients over ranks.
    Reduce,
    /// The optimizer.
    Update,
    /// Loss and metrics.
    Report,
}

impl Phase {
    /// The word used in texts.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Load => "load",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Reduce => "reduce",
            Phase::Update => "update",
            Phase::Report => "report",
        }
    }
}

/// Where a task comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Name of the layer or parameter.
    pub layer: String,
    /// Part of the step.
    pub phase: Phase,
    /// Position of its layer in the global order of stages and micro-batches, from 1; 0 where all ranks run
    /// all layers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub turn: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(turn: &u32) -> bool {
    *turn == 0
}

/// An entry of a lane.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Its layer and phase.
    pub origin: Origin,
    /// Dependencies: tasks of this rank that must have completed before it starts, ascending.
    pub after: Vec<TaskId>,
    /// What it does.
    pub work: Work,
}

/// What a task does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// A kernel with its implementation pinned.
    Compute {
        /// The computation.
        kernel: Kernel,
        /// The implementation.
        algorithm: Algorithm,
        /// Workspace, with undefined contents.
        workspace: Option<View>,
    },
    /// Messages with other ranks.
    Exchange(Exchange),
    /// A collective.
    Collective(Collective),
    /// Reading of samples.
    Load(Load),
    /// Storing of predictions.
    Store(Store),
}

impl Work {
    /// Its lane.
    pub fn lane(&self) -> Lane {
        match self {
            Work::Compute { .. } => Lane::Compute,
            Work::Exchange(_) => Lane::Exchange,
            Work::Collective(_) => Lane::Collective,
            Work::Load(_) | Work::Store(_) => Lane::Io,
        }
    }

    /// Its kernels, none of them fused, in their order.
    pub fn kernels(&self) -> &[Kernel] {
        match self {
            Work::Compute { kernel, .. } => kernel.parts(),
            Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => &[],
        }
    }

    /// Name of the kind of work.
    pub fn name(&self) -> &'static str {
        match self {
            Work::Compute { kernel, .. } => kernel.name(),
            Work::Exchange(_) => "exchange",
            Work::Collective(collective) => collective.kind.name(),
            Work::Load(_) => "load",
            Work::Store(_) => "store",
        }
    }
}

/// Sends and receives that start together; it completes when all have completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// Message number (tag) of the exchange, the same on all ranks that take part.
    pub sequence: u32,
    /// Messages out.
    pub sends: Vec<Send>,
    /// Messages in.
    pub receives: Vec<Receive>,
}

/// A message out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Send {
    /// The receiver.
    pub to: Offset,
    /// Index among the messages of this exchange between the two ranks in this direction.
    pub part: u32,
    /// What is sent.
    pub view: View,
}

/// A message in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receive {
    /// The sender.
    pub from: Offset,
    /// Index among the messages of this exchange between the two ranks in this direction.
    pub part: u32,
    /// Where it is received.
    pub view: View,
    /// Whether it is added to the contents.
    pub accumulate: bool,
}

/// A collective over all ranks that differ only along `group`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collective {
    /// Number of the collective, the same on all members; ascending in each rank's lane.
    pub sequence: u32,
    /// Axes of the group.
    pub group: AxisSet,
    /// The submesh whose axes they are; none for the mesh of all ranks.
    #[serde(rename = "on", default, skip_serializing_if = "Option::is_none")]
    pub submesh: Option<Submesh>,
    /// The operation.
    pub kind: CollectiveKind,
}

/// The collectives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CollectiveKind {
    /// Every member's views become the sums over the members.
    AllReduce {
        /// Inputs and outputs; several are a bucket, which is summed as one message.
        #[serde(rename = "view", with = "joined")]
        views: Vec<View>,
    },
    /// Every member receives every member's view.
    AllGather {
        /// The part of this member; may be empty.
        source: View,
        /// Where each member's part is received, in rank order, this member included.
        targets: MemberViews,
    },
    /// Every member contributes to the sum of each member, and receives its own sum, added in rank order.
    ReduceScatter {
        /// Contributions to each member's sum, in rank order, this member included; may be empty.
        sources: MemberViews,
        /// Where the sum is received: this member's own source, or disjoint from all sources.
        target: View,
    },
    /// Every member sends a part to each member.
    AllToAll {
        /// What each member receives, in rank order, this member included; may be empty.
        sources: MemberViews,
        /// Where each member's part is received, in rank order; disjoint from all sources.
        targets: MemberViews,
    },
}

/// Text of the views of a bucket: `b7[0:1,0:4,0:4,0:4,0:16]+b9[0:1,0:1,0:1,0:1,0:16]`.
mod joined {
    use crate::View;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(views: &[View], to: S) -> Result<S::Ok, S::Error> {
        let texts: Vec<String> = views.iter().map(View::to_string).collect();
        to.serialize_str(&texts.join("+"))
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<View>, D::Error> {
        let text = String::deserialize(from)?;
        let views = text.split('+').map(str::parse);
        views.collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}

impl CollectiveKind {
    /// The word used in texts.
    pub fn name(&self) -> &'static str {
        match self {
            CollectiveKind::AllReduce { .. } => "allreduce",
            CollectiveKind::AllGather { .. } => "allgather",
            CollectiveKind::ReduceScatter { .. } => "reduce_scatter",
            CollectiveKind::AllToAll { .. } => "alltoall",
        }
    }

    /// Send and receive buffers of which one does not depend on another: each view of a bucket for itself, and of
    /// one that is split the whole.
    pub fn parts(&self) -> Vec<(&[View], &[View])> {
        match self {
            CollectiveKind::AllReduce { views } => {
                let views = views.iter().map(slice::from_ref);
                views.map(|view| (view, view)).collect()
            }
            CollectiveKind::AllGather { .. }
            | CollectiveKind::ReduceScatter { .. }
            | CollectiveKind::AllToAll { .. } => {
                vec![(self.sources().joined(), self.targets().joined())]
            }
        }
    }

    /// Whether it sums.
    pub fn is_sum(&self) -> bool {
        match self {
            CollectiveKind::AllReduce { .. } | CollectiveKind::ReduceScatter { .. } => true,
            CollectiveKind::AllGather { .. } | CollectiveKind::AllToAll { .. } => false,
        }
    }

    /// Whether it sums several views.
    pub fn is_bucket(&self) -> bool {
        matches!(self, CollectiveKind::AllReduce { views } if views.len() > 1)
    }

    /// The send buffers: those of a bucket, one view, or one for each member in rank order.
    pub fn sources(&self) -> Views<'_> {
        match self {
            CollectiveKind::AllReduce { views } => Views::Each(views),
            CollectiveKind::AllGather { source, .. } => Views::one(source),
            CollectiveKind::ReduceScatter { sources, .. }
            | CollectiveKind::AllToAll { sources, .. } => sources.views(),
        }
    }

    /// The receive buffers: those of a bucket, one view, or one for each member in rank order.
    pub fn targets(&self) -> Views<'_> {
        match self {
            CollectiveKind::AllReduce { views } => Views::Each(views),
            CollectiveKind::AllGather { targets, .. }
            | CollectiveKind::AllToAll { targets, .. } => targets.views(),
            CollectiveKind::ReduceScatter { target, .. } => Views::one(target),
        }
    }
}

/// Which part of a sample of the dataset is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Item {
    /// The sample, (N, C, D, H, W) as stored.
    Sample,
    /// The label or target values, (N, D, H, W, C) as the tensor that the loss reads.
    Target,
    /// The numbers beside the sample, (N, C, 1, 1, 1).
    Features,
}

/// For which step samples are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum When {
    /// The current one.
    Now,
    /// The next one, so that reading overlaps with computation.
    Next,
}

/// Reading of this rank's part of the mini-batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Sample, features or target.
    pub item: Item,
    /// For which step.
    pub when: When,
    /// Distribution of the tensor (N, D, H, W, C), from which the part follows.
    #[serde(rename = "place")]
    pub distribution: Distribution,
    /// Where it is stored.
    pub target: View,
}

/// Storing of this rank's part of the predictions for the current mini-batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Store {
    /// Distribution of the tensor (N, D, H, W, C), from which the part follows.
    #[serde(rename = "place")]
    pub distribution: Distribution,
    /// The part.
    pub source: View,
}

/// The ranks of a collective: those that differ from one only along axes of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// The axes.
    pub axes: AxisSet,
    /// The submesh whose axes they are; none for the mesh of all ranks.
    pub submesh: Option<Submesh>,
}

impl Group {
    /// The members, `rank` included, in the order of the mesh; none if it is not in the mesh.
    pub fn members(&self, world: &Mesh, rank: Rank) -> Vec<Rank> {
        match self.submesh {
            None => world.group(rank, self.axes),
            Some(submesh) => submesh.group(rank, self.axes),
        }
    }

    /// Number of members.
    pub fn size(&self, world: &Mesh) -> usize {
        let mesh = self.submesh.map_or(*world, |submesh| submesh.mesh());
        mesh.group_size(self.axes)
    }

    /// The first member; the rank itself if it is not in the mesh.
    pub fn first(&self, world: &Mesh, rank: Rank) -> Rank {
        let corner = |mut coord: Coord| {
            self.axes.iter().for_each(|axis| coord[axis.index()] = 0);
            coord
        };
        match self.submesh {
            None => world.rank(corner(world.coord(rank))),
            Some(submesh) => submesh
                .coord(rank)
                .map_or(rank, |coord| submesh.rank(&corner(coord))),
        }
    }

    /// Axes along which there is more than one member.
    pub fn wide(&self, world: &Mesh) -> AxisSet {
        let mesh = self.submesh.map_or(*world, |submesh| submesh.mesh());
        AxisSet::of(self.axes.iter().filter(|&axis| mesh.extent(axis) > 1))
    }
}

impl Collective {
    /// Its group.
    pub fn group(&self) -> Group {
        Group {
            axes: self.group,
            submesh: self.submesh,
        }
    }
}

impl Exchange {
    /// Every view it accesses, and how.
    pub fn accesses(&self) -> Vec<(View, crate::Access)> {
        let sends = self
            .sends
            .iter()
            .map(|send| (send.view, crate::Access::Read));
        let receives = self.receives.iter().map(|receive| {
            let access = if receive.accumulate {
                crate::Access::Update
            } else {
                crate::Access::Write
            };
            (receive.view, access)
        });
        sends.chain(receives).collect()
    }
}

impl Task {
    /// Calls `f` with each view; with the whole of one that is split over members.
    pub fn each_view_mut(&mut self, f: &mut dyn FnMut(&mut View)) {
        match &mut self.work {
            Work::Compute {
                kernel, workspace, ..
            } => {
                kernel.each_view_mut(f);
                workspace.iter_mut().for_each(f);
            }
            Work::Exchange(exchange) => {
                exchange.sends.iter_mut().for_each(|send| f(&mut send.view));
                exchange
                    .receives
                    .iter_mut()
                    .for_each(|receive| f(&mut receive.view));
            }
            Work::Collective(Collective { kind, .. }) => match kind {
                CollectiveKind::AllReduce { views } => views.iter_mut().for_each(f),
                CollectiveKind::AllGather { source, targets } => {
                    f(source);
                    targets.each_view_mut(f);
                }
                CollectiveKind::ReduceScatter { sources, target } => {
                    sources.each_view_mut(f);
                    f(target);
                }
                CollectiveKind::AllToAll { sources, targets } => {
                    sources.each_view_mut(f);
                    targets.each_view_mut(f);
                }
            },
            Work::Load(load) => f(&mut load.target),
            Work::Store(store) => f(&mut store.source),
        }
    }

    /// Every view it accesses, and how. What members have of one view that is split is the whole.
    pub fn accesses(&self) -> Vec<(View, crate::Access)> {
        use crate::Access::{Read, Update, Write};
        match &self.work {
            Work::Compute {
                kernel, workspace, ..
            } => {
                let mut all = kernel.accesses();
                all.extend(workspace.map(|view| (view, Write)));
                all
            }
            Work::Exchange(exchange) => exchange.accesses(),
            Work::Collective(Collective { kind, .. }) => match kind {
                CollectiveKind::AllReduce { views } => {
                    views.iter().map(|&view| (view, Update)).collect()
                }
                CollectiveKind::AllGather { .. }
                | CollectiveKind::ReduceScatter { .. }
                | CollectiveKind::AllToAll { .. } => {
                    let sources = kind.sources().joined().iter().map(|&view| (view, Read));
                    let targets = kind.targets().joined().iter().map(|&view| (view, Write));
                    sources.chain(targets).collect()
                }
            },
            Work::Load(load) => vec![(load.target, Write)],
            Work::Store(store) => vec![(store.source, Read)],
        }
    }
}
