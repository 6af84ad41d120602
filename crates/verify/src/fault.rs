//! Faults of programs.

use partita_program::{Role, SizeFault, TaskSite};
use partita_space::{AxisList, AxisSet, Bytes, Offset, Rank, Region};
use std::fmt;

/// Faults printed of a longer list.
const PRINTED_MAX: usize = 50;

/// All faults of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the program has {} fault(s):", self.0.len())?;
        for fault in self.0.iter().take(PRINTED_MAX) {
            write!(f, "\n  {fault}")?;
        }
        match self.0.len().saturating_sub(PRINTED_MAX) {
            0 => Ok(()),
            rest => write!(f, "\n  and {rest} more"),
        }
    }
}

impl std::error::Error for Faults {}

/// A region of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferRegion {
    /// Index of the buffer in the body.
    pub buffer: u32,
    /// Its name.
    pub name: String,
    /// In its own indices.
    pub region: Region,
}

impl fmt::Display for BufferRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}{} ({})", self.buffer, self.region, self.name)
    }
}

/// A fault of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Fault {
    #[error("classes are given for {got} ranks, the mesh has {expected}")]
    ClassCount { expected: usize, got: usize },
    #[error("rank {rank} is of class {class}, but there are {classes} bodies")]
    NoSuchClass {
        rank: Rank,
        class: u32,
        classes: usize,
    },
    #[error("class {class} has no rank")]
    ClassUnused { class: usize },
    #[error(transparent)]
    Size(SizeFault),
    #[error("class {class}: {location} refers to buffer b{buffer}, the body has {buffers}")]
    NoSuchBuffer {
        class: usize,
        location: String,
        buffer: u32,
        buffers: usize,
    },
    #[error("class {class}: {location} reaches to {end:?} in b{buffer} ({name}) of {dims:?}")]
    ViewOutside {
        class: usize,
        location: String,
        buffer: u32,
        name: String,
        end: [usize; 5],
        dims: [usize; 5],
    },
    #[error("{site} depends on t{after}, which is not before it")]
    WaitsForLater { site: TaskSite, after: u32 },
    #[error("{site} has unsorted or repeated dependencies")]
    WaitsUnsorted { site: TaskSite },
    #[error(
        "class {class} (rank {rank}): b{buffer} ({name}) ends at byte {end} of an arena of {arena}"
    )]
    OutsideArena {
        class: usize,
        rank: Rank,
        buffer: usize,
        name: String,
        end: u128,
        arena: Bytes,
    },
    #[error(
        "class {class} (rank {rank}): b{buffer} ({name}) starts at byte {}, no multiple of 64",
        offset.0
    )]
    Misaligned {
        class: usize,
        rank: Rank,
        buffer: usize,
        name: String,
        offset: Bytes,
    },
    #[error("{site} needs packets of {} bytes, the pool of the {lane} lane has {}", needed.0, pool.0)]
    StagingSmall {
        site: TaskSite,
        lane: &'static str,
        needed: Bytes,
        pool: Bytes,
    },
    #[error("class {class} (rank {rank}): the name `{name}` of {what} {reason}")]
    Name {
        class: usize,
        rank: Rank,
        what: String,
        name: String,
        reason: &'static str,
    },
    #[error(
        "class {class} (rank {rank}): persistent b{buffer} ({name}) comes after one that is not"
    )]
    PersistentLate {
        class: usize,
        rank: Rank,
        buffer: usize,
        name: String,
    },
    #[error("class {class} (rank {rank}): persistent b{buffer} ({name}) {reason}")]
    PersistentDiffers {
        class: usize,
        rank: Rank,
        buffer: usize,
        name: String,
        reason: String,
    },
    #[error("class {class} (rank {rank}): output `{name}` {reason}")]
    Output {
        class: usize,
        rank: Rank,
        name: String,
        reason: String,
    },
    #[error("{site}: {reason}")]
    Shape { site: TaskSite, reason: String },
    #[error("{site}: {reason}")]
    Dtype { site: TaskSite, reason: String },
    #[error("{site} has no implementation pinned")]
    Unpinned { site: TaskSite },
    #[error("{site} has its workspace in {spot}, a buffer for {role:?}")]
    WorkspaceRole {
        site: TaskSite,
        spot: BufferRegion,
        role: Role,
    },
    #[error("{site} has the message number {sequence} of t{first}")]
    SequenceTwice {
        site: TaskSite,
        sequence: u32,
        first: usize,
    },
    #[error(
        "{site} has the number {sequence} after {previous}; numbers of collectives must ascend"
    )]
    SequenceDescends {
        site: TaskSite,
        sequence: u32,
        previous: u32,
    },
    #[error("{site}: part {part} {direction} {offset:?} is repeated")]
    PartTwice {
        site: TaskSite,
        direction: &'static str,
        offset: Offset,
        part: u32,
    },
    #[error("{site}: there is no rank at {offset:?}")]
    NoPeer { site: TaskSite, offset: Offset },
    #[error("{site}: part {part} of exchange {sequence} to rank {peer}, {spot}, is never received")]
    SendUnmatched {
        site: TaskSite,
        sequence: u32,
        part: u32,
        peer: Rank,
        spot: BufferRegion,
    },
    #[error("{site}: part {part} of exchange {sequence} from rank {peer}, {spot}, is never sent")]
    ReceiveUnmatched {
        site: TaskSite,
        sequence: u32,
        part: u32,
        peer: Rank,
        spot: BufferRegion,
    },
    #[error("{site}: {spot}, part {part} to rank {peer}, does not fit {target}: {reason}")]
    MessageDiffers {
        site: TaskSite,
        spot: BufferRegion,
        part: u32,
        peer: Rank,
        target: BufferRegion,
        reason: String,
    },
    #[error("{site}: rank {member} does not take part in collective {sequence}")]
    MemberMissing {
        site: TaskSite,
        sequence: u32,
        member: Rank,
    },
    #[error("{site}: collective {sequence} differs on rank {member}: {reason}")]
    CollectiveDiffers {
        site: TaskSite,
        sequence: u32,
        member: Rank,
        reason: String,
    },
    #[error("{site}: collective {sequence} has {got} {what} for {expected} members")]
    PartCount {
        site: TaskSite,
        sequence: u32,
        what: &'static str,
        expected: usize,
        got: usize,
    },
    #[error(
        "class {class}: rank {rank} is not equivalent to rank {representative}, which stands for its \
         class: {reason}"
    )]
    NotEquivalent {
        class: usize,
        rank: Rank,
        representative: Rank,
        reason: String,
    },
    #[error(
        "deadlock{}: {}",
        if *one_by_one { " if each lane holds one task at a time" } else { "" },
        chain.join(" -> ")
    )]
    Cycle {
        chain: Vec<String>,
        one_by_one: bool,
    },
    #[error("{first} and t{} {} are not ordered, and one writes {spot}", second.task, second.work)]
    Race {
        first: TaskSite,
        second: TaskSite,
        spot: BufferRegion,
    },
    #[error("{site} accesses {spot} twice and writes it")]
    Overlap { site: TaskSite, spot: BufferRegion },
    #[error(
        "class {class} (rank {rank}): {first} and {second} share memory, and {first_use} is not \
         ordered with {second_use}"
    )]
    Sharing {
        class: usize,
        rank: Rank,
        first: String,
        second: String,
        first_use: String,
        second_use: String,
    },
    #[error("class {class} (rank {rank}): {persistent} is persistent, and {other} overlaps it")]
    PersistentShared {
        class: usize,
        rank: Rank,
        persistent: String,
        other: String,
    },
    #[error("{site} reads {spot}, which nothing before it has written")]
    Uninitialized { site: TaskSite, spot: BufferRegion },
    #[error("{site}: {spot} holds packed weights, and {reason}")]
    Packed {
        site: TaskSite,
        spot: BufferRegion,
        reason: String,
    },
    #[error("{site} uses packed weights, but {writer} may have changed {weights} since")]
    PackedStale {
        site: TaskSite,
        weights: BufferRegion,
        writer: TaskSite,
    },
    #[error("{site}: {spot}: partial sum over {axes} is read before its reduction")]
    PartialSumRead {
        site: TaskSite,
        spot: BufferRegion,
        axes: AxisSet,
    },
    #[error(
        "{site}: {spot} is summed over the ranks along {local}, along which batch norms have statistics of \
         their own"
    )]
    StatisticsNotLocal {
        site: TaskSite,
        spot: BufferRegion,
        local: AxisSet,
    },
    #[error("{site}: {spot} mixes partial sums of different reductions")]
    PartialSumsMixed { site: TaskSite, spot: BufferRegion },
    #[error("{site}: {spot} is reduced over {group}, but is no partial sum")]
    NotPartial {
        site: TaskSite,
        spot: BufferRegion,
        group: AxisSet,
    },
    #[error("{site}: {spot}: partial sum over {axes} is reduced over {group}")]
    ReducedOverOthers {
        site: TaskSite,
        spot: BufferRegion,
        axes: AxisSet,
        group: AxisSet,
    },
    #[error("{site}: {spot}: partial sum over {axes} is sent along {along} before its reduction")]
    PartialSumSent {
        site: TaskSite,
        spot: BufferRegion,
        axes: AxisSet,
        along: AxisSet,
    },
    #[error("{site}: {spot}: several ranks of a partial sum over {axes} add the bias")]
    BiasRepeated {
        site: TaskSite,
        spot: BufferRegion,
        axes: AxisSet,
    },
    #[error("{site}: {spot} does not have the distribution of the parameter")]
    NotOwnShare { site: TaskSite, spot: BufferRegion },
    #[error(
        "{site}: {spot} has its channels split by `{channels}`, the other operand by `{other}`, and the weights \
         by `{rows}` and `{columns}`"
    )]
    WeightsMisplaced {
        site: TaskSite,
        spot: BufferRegion,
        channels: AxisList,
        other: AxisList,
        rows: AxisList,
        columns: AxisList,
    },
    #[error(
        "{site}: {spot} has its channels split by `{channels}`, and the rows and columns of the weights by \
         `{rows}` and `{columns}`"
    )]
    TableMisplaced {
        site: TaskSite,
        spot: BufferRegion,
        channels: AxisList,
        rows: AxisList,
        columns: AxisList,
    },
    #[error(
        "{site}: {spot} has its positions split by `{positions}` and its channels by `{channels}`; attention reads \
         unsplit positions, with channels split by `{wanted}`"
    )]
    SequenceMisplaced {
        site: TaskSite,
        spot: BufferRegion,
        positions: AxisList,
        channels: AxisList,
        wanted: AxisList,
    },
    #[error(
        "class {class} (rank {rank}): output `{name}`, {spot}, is a partial sum that is not reduced"
    )]
    OutputPartial {
        class: usize,
        rank: Rank,
        name: String,
        spot: BufferRegion,
    },
    #[error("{site} updates {spot}, but the stored parameter does not get the update")]
    UpdateLost { site: TaskSite, spot: BufferRegion },
    #[error("{site} writes {spot}, and {reason}")]
    GradientLost {
        site: TaskSite,
        spot: BufferRegion,
        reason: &'static str,
    },
    #[error("{site} writes {spot}, a partial sum over {axes} that is never read")]
    PartialSumLost {
        site: TaskSite,
        spot: BufferRegion,
        axes: AxisSet,
    },
    #[error(
        "{site} updates a parameter by {spot}, which lacks the gradient of the micro-batch from sample \
         {sample} on, of the ranks from {first} on"
    )]
    GradientIncomplete {
        site: TaskSite,
        spot: BufferRegion,
        first: Rank,
        sample: usize,
    },
    #[error(
        "{site} accesses {spot} of another micro-batch than its other operands: from sample {sample} on"
    )]
    MicroBatches {
        site: TaskSite,
        spot: BufferRegion,
        sample: usize,
    },
    #[error("{site} repeats on {spot} what {first} has done")]
    Repeated {
        site: TaskSite,
        spot: BufferRegion,
        first: TaskSite,
    },
    #[error(
        "class {class} (rank {rank}): output `{name}` lacks the micro-batch from sample {sample} on"
    )]
    OutputIncomplete {
        class: usize,
        rank: Rank,
        name: String,
        sample: usize,
    },
    #[error("class {class} (rank {rank}): {spot} is not updated, but its replicas are")]
    WeightsStale {
        class: usize,
        rank: Rank,
        spot: BufferRegion,
    },
    #[error("{site} reads {spot} after its update in this step")]
    UpdatedEarly { site: TaskSite, spot: BufferRegion },
    #[error("{site} averages {spot} before its update in this step")]
    AveragedEarly { site: TaskSite, spot: BufferRegion },
    #[error("{site} reads {spot}, which no load fills")]
    NotLoaded { site: TaskSite, spot: BufferRegion },
    #[error("{site} reads {spot}, a halo that was filled with a constant")]
    HaloFilled { site: TaskSite, spot: BufferRegion },
    #[error(
        "{site}: a message (accumulate={accumulate}) to {spot} overwrites unread data or is lost"
    )]
    ReceiveMisplaced {
        site: TaskSite,
        spot: BufferRegion,
        accumulate: bool,
    },
    #[error("{site} sends {spot}, a redundant copy of what other ranks compute")]
    CopySent { site: TaskSite, spot: BufferRegion },
    #[error("{site} reads {spot}, a halo that still holds the rank's contribution to its owner")]
    HaloStale { site: TaskSite, spot: BufferRegion },
    #[error(
        "{site} omits the contribution of {spot}, and its owner, rank {owner}, does not compute it"
    )]
    ContributionMissing {
        site: TaskSite,
        spot: BufferRegion,
        owner: Rank,
    },
    #[error("{site} writes a contribution to another rank, {spot}, that is never read")]
    ContributionLost { site: TaskSite, spot: BufferRegion },
    #[error("class {class} (rank {rank}): output `{name}` is not written: {spot}")]
    OutputUnwritten {
        class: usize,
        rank: Rank,
        name: String,
        spot: BufferRegion,
    },
}
