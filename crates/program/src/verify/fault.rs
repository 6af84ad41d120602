use crate::{Program, Role};
use partita_space::{AxisSet, Bytes, Offset, Rank, Region};
use std::fmt;

/// Faults printed of a longer list.
const PRINTED_MAX: usize = 50;

/// Everything that is wrong with a program.
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

/// A task of a class, told for the representative of the class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Class of ranks.
    pub class: usize,
    /// Its representative.
    pub rank: Rank,
    /// Index of the task in the body.
    pub task: usize,
    /// Kind of work.
    pub work: &'static str,
    /// Layer it comes from.
    pub layer: String,
    /// Part of the step.
    pub phase: &'static str,
}

impl Site {
    pub(super) fn of(program: &Program, class: usize, rank: Rank, task: usize) -> Self {
        let origin = &program.bodies[class].tasks[task];
        Self {
            class,
            rank,
            task,
            work: origin.work.name(),
            layer: origin.origin.layer.clone(),
            phase: origin.origin.phase.name(),
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            class,
            rank,
            task,
            work,
            layer,
            phase,
        } = self;
        write!(
            f,
            "class {class} (rank {rank}) t{task} {work} of {layer}, {phase}"
        )
    }
}

/// A part of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Index of the buffer in the body.
    pub buffer: u32,
    /// Its name.
    pub name: String,
    /// In its own indices.
    pub region: Region,
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}{} ({})", self.buffer, self.region, self.name)
    }
}

/// Something that is wrong with a program.
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
    #[error("{place}: {what} {got}; possible is {possible}")]
    Size {
        place: String,
        what: &'static str,
        got: String,
        possible: String,
    },
    #[error("class {class}: {place} names buffer b{buffer}, the body has {buffers}")]
    NoSuchBuffer {
        class: usize,
        place: String,
        buffer: u32,
        buffers: usize,
    },
    #[error("class {class}: {place} reaches to {end:?} in b{buffer} ({name}) of {dims:?}")]
    ViewOutside {
        class: usize,
        place: String,
        buffer: u32,
        name: String,
        end: [usize; 5],
        dims: [usize; 5],
    },
    #[error("{site} waits for t{after}, which does not come before it")]
    WaitsForLater { site: Site, after: u32 },
    #[error("{site} lists what it waits for out of order or twice")]
    WaitsUnsorted { site: Site },
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
        site: Site,
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
    Shape { site: Site, reason: String },
    #[error("{site}: {reason}")]
    Dtype { site: Site, reason: String },
    #[error("{site} has no implementation pinned")]
    Unpinned { site: Site },
    #[error("{site} has its workspace in {spot}, a buffer for {role:?}")]
    WorkspaceRole { site: Site, spot: Spot, role: Role },
    #[error("{site} has the sequence {sequence} of t{first}")]
    SequenceTwice {
        site: Site,
        sequence: u32,
        first: usize,
    },
    #[error("{site} has the sequence {sequence} after {previous}; collectives ascend")]
    SequenceDescends {
        site: Site,
        sequence: u32,
        previous: u32,
    },
    #[error("{site}: part {part} {direction} {offset:?} comes twice")]
    PartTwice {
        site: Site,
        direction: &'static str,
        offset: Offset,
        part: u32,
    },
    #[error("{site}: there is no rank at {offset:?}")]
    NoPeer { site: Site, offset: Offset },
    #[error("{site}: part {part} of exchange {sequence} to rank {peer}, {spot}, is never received")]
    SendUnmatched {
        site: Site,
        sequence: u32,
        part: u32,
        peer: Rank,
        spot: Spot,
    },
    #[error("{site}: part {part} of exchange {sequence} from rank {peer}, {spot}, is never sent")]
    ReceiveUnmatched {
        site: Site,
        sequence: u32,
        part: u32,
        peer: Rank,
        spot: Spot,
    },
    #[error("{site}: {spot}, part {part} to rank {peer}, does not fit {target}: {reason}")]
    MessageDiffers {
        site: Site,
        spot: Spot,
        part: u32,
        peer: Rank,
        target: Spot,
        reason: String,
    },
    #[error("{site}: rank {member} takes no part in collective {sequence}")]
    MemberMissing {
        site: Site,
        sequence: u32,
        member: Rank,
    },
    #[error("{site}: collective {sequence} is another one on rank {member}: {reason}")]
    CollectiveDiffers {
        site: Site,
        sequence: u32,
        member: Rank,
        reason: String,
    },
    #[error("{site}: collective {sequence} has {got} {what} for {expected} members")]
    PartCount {
        site: Site,
        sequence: u32,
        what: &'static str,
        expected: usize,
        got: usize,
    },
    #[error("class {class}: rank {rank} does not stand as rank {representative} does: {reason}")]
    Inequitable {
        class: usize,
        rank: Rank,
        representative: Rank,
        reason: String,
    },
    #[error(
        "the step never ends{}: {}",
        if *one_by_one { " if each lane holds one task at a time" } else { "" },
        chain.join(" -> ")
    )]
    Cycle {
        chain: Vec<String>,
        one_by_one: bool,
    },
    #[error("{first} and t{} {} are not ordered, and one writes {spot}", second.task, second.work)]
    Race {
        first: Site,
        second: Site,
        spot: Spot,
    },
    #[error("{site} touches {spot} twice and writes it")]
    Overlap { site: Site, spot: Spot },
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
    #[error("class {class} (rank {rank}): {persistent} outlives the step, and {other} overlaps it")]
    PersistentShared {
        class: usize,
        rank: Rank,
        persistent: String,
        other: String,
    },
    #[error("{site} reads {spot}, which nothing before it has written")]
    Uninitialized { site: Site, spot: Spot },
    #[error("{site}: {spot} holds packed weights, and {reason}")]
    Packed {
        site: Site,
        spot: Spot,
        reason: String,
    },
    #[error("{site} takes packed weights, but {writer} may have changed {weights} since")]
    PackedStale {
        site: Site,
        weights: Spot,
        writer: Site,
    },
    #[error("{site}: {spot} {reason}")]
    Due {
        site: Site,
        spot: Spot,
        reason: String,
    },
    #[error(
        "class {class} (rank {rank}): output `{name}`, {spot}, is an addend of a sum still due"
    )]
    OutputDue {
        class: usize,
        rank: Rank,
        name: String,
        spot: Spot,
    },
    #[error("{site} updates {spot}, and the parameter that is kept does not get it")]
    UpdateLost { site: Site, spot: Spot },
    #[error("{site} writes {spot}, and {reason}")]
    GradientLost {
        site: Site,
        spot: Spot,
        reason: &'static str,
    },
    #[error(
        "{site} writes {spot}, an addend of a sum due along {due}, and nothing reads it after that"
    )]
    AddendLost {
        site: Site,
        spot: Spot,
        due: AxisSet,
    },
    #[error(
        "{site} moves a parameter by {spot}, which lacks the gradient of the micro-batch from sample \
         {sample} on, of the ranks from {first} on"
    )]
    GradientIncomplete {
        site: Site,
        spot: Spot,
        first: Rank,
        sample: usize,
    },
    #[error(
        "{site} works on {spot}, of another micro-batch than the rest: from sample {sample} on"
    )]
    MicroBatches {
        site: Site,
        spot: Spot,
        sample: usize,
    },
    #[error("{site} does to {spot} what {first} did before")]
    Repeated { site: Site, spot: Spot, first: Site },
    #[error(
        "class {class} (rank {rank}): output `{name}` lacks the micro-batch from sample {sample} on"
    )]
    OutputIncomplete {
        class: usize,
        rank: Rank,
        name: String,
        sample: usize,
    },
    #[error("class {class} (rank {rank}): {spot} stays as it was, and others have moved it")]
    WeightsStale {
        class: usize,
        rank: Rank,
        spot: Spot,
    },
    #[error("{site} reads {spot}, which has moved in this step already")]
    MovedEarly { site: Site, spot: Spot },
    #[error("{site} reads {spot}, which belongs to another rank and holds a constant")]
    HaloFilled { site: Site, spot: Spot },
    #[error(
        "{site}: a message (accumulate={accumulate}) comes to {spot}, where it destroys or is lost"
    )]
    ReceiveMisplaced {
        site: Site,
        spot: Spot,
        accumulate: bool,
    },
    #[error("{site} sends {spot}, the rank's own copy of what others compute")]
    CopySent { site: Site, spot: Spot },
    #[error("{site} reads {spot}, where the rank's own contribution to another rank still stands")]
    HaloStale { site: Site, spot: Spot },
    #[error("{site} leaves out what {spot} contributes, and rank {owner} does not send it")]
    ContributionMissing { site: Site, spot: Spot, owner: Rank },
    #[error("{site} writes {spot} for another rank, and nothing reads it after that")]
    ContributionLost { site: Site, spot: Spot },
    #[error("class {class} (rank {rank}): output `{name}` is not written: {spot}")]
    OutputUnwritten {
        class: usize,
        rank: Rank,
        name: String,
        spot: Spot,
    },
}
