//! A program played in virtual time with the driver that real ranks use.
//!
//! A message moves when the exchange tasks of both ends have started; an exchange that only sends goes on
//! without the other end, as ranks send packets of their own. A collective runs when all members have
//! started it. Kernels of a rank, and its reads, run one at a time. What a message or collective costs
//! the host is taken from kernels that run meanwhile.

mod classes;
mod engine;
mod path;
mod schedule;
mod topology;

pub use classes::{Classes, refine};
pub use path::{Breakdown, Category, Segment};

use crate::cost::{CostBasis, CostError, Costs, Known};
use engine::Engine;
use partita_program::Program;
use partita_run::Trace;
use partita_space::{Offset, Rank, Seconds};
use schedule::Schedule;
use std::collections::BTreeMap;
use topology::Topology;

/// Who takes part in a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One participant per class of ranks that see the same of everything that costs time.
    Classes,
    /// One participant per rank.
    Ranks,
}

/// Why a program could not be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// A cost is not known.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// A peer lies outside the mesh.
    #[error("rank {rank} has no peer at offset {offset:?}")]
    Peer {
        /// Who looks.
        rank: Rank,
        /// Where.
        offset: Offset,
    },
    /// A rank takes no part in an exchange or collective that others count on.
    #[error(
        "rank {rank} waits for rank {peer} in {work} {sequence}, which that rank does not have"
    )]
    Unmatched {
        /// Who waits.
        rank: Rank,
        /// For whom.
        peer: Rank,
        /// `exchange` or `collective`.
        work: &'static str,
        /// Its number.
        sequence: u32,
    },
    /// Nothing can happen anymore, and not everything is done.
    #[error("the program stands still: rank {rank} is left with {open} tasks in step {step}")]
    Standstill {
        /// The first rank that is not finished.
        rank: Rank,
        /// In which step.
        step: usize,
        /// Tasks not completed.
        open: usize,
    },
    /// Nothing to simulate.
    #[error("0 steps were asked for; simulate at least 1")]
    NoSteps,
}

/// A participant of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Participant {
    /// The rank it stands for, the first of its class.
    pub rank: Rank,
    /// Ranks that it stands for.
    pub ranks: usize,
    /// Its body in the program.
    pub body: u32,
}

/// A program in virtual time.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Who took part.
    pub mode: Mode,
    /// Steps played, one after the other.
    pub steps: usize,
    /// Whether the costs were measured or modelled.
    pub basis: CostBasis,
    /// From the start of the first task to the completion of the last.
    pub makespan: Seconds,
    /// Seconds on the critical path by what they were spent on; sums to the makespan.
    pub breakdown: Breakdown,
    /// The critical path, from its end to its start.
    pub path: Vec<Segment>,
    /// Part of the critical path that is latency of messages and collectives.
    pub path_latency: Seconds,
    /// Participants, in the order of their ranks.
    pub participants: Vec<Participant>,
    /// Per participant, a trace for each step.
    pub traces: Vec<Vec<Trace>>,
    /// Per participant, seconds of its kernels in one step, by kernel name: without interruptions,
    /// except where kernels of a node hold each other up.
    pub kernels: Vec<BTreeMap<&'static str, Seconds>>,
    /// Seconds of the kernels of all ranks by how they are known.
    pub known: BTreeMap<Known, Seconds>,
    /// Per participant and task, seconds without interruptions and without waiting for others.
    pub durations: Vec<Vec<Seconds>>,
}

/// Plays `steps` steps of a program.
///
/// In [`Mode::Classes`] the classes of the program are split until they are stable ([`refine`]), so
/// that the result is that of [`Mode::Ranks`].
/// Errors: a cost that is not known, or a program that does not end (which `verify` finds first).
pub fn simulate(
    program: &Program,
    costs: &dyn Costs,
    mode: Mode,
    steps: usize,
) -> Result<Simulation, SimulateError> {
    if steps == 0 {
        return Err(SimulateError::NoSteps);
    }
    costs.admit(program.mesh.ranks())?;
    let topology = Topology::new(program, &|rank| costs.node(rank))?;
    let classes = match mode {
        Mode::Classes => classes::stable(program, &topology, &|a, b| costs.link(a, b)),
        Mode::Ranks => Classes::of_ranks(program),
    };
    let schedule = Schedule::new(program, &topology, &classes, costs)?;
    let played = Engine::new(&schedule, steps).run()?;
    let walk = path::walk(&schedule, &played);
    let traces = played.traces.iter().enumerate();
    let kernels = traces
        .map(|(at, traces)| schedule.kernels(at, traces))
        .collect();
    Ok(Simulation {
        mode,
        steps,
        basis: costs.basis(),
        makespan: Seconds(played.makespan()),
        breakdown: path::breakdown(&walk.segments),
        path: walk.segments,
        path_latency: walk.latency,
        participants: schedule.participants.iter().map(|one| one.who).collect(),
        traces: played.traces,
        kernels,
        known: schedule.known(),
        durations: schedule
            .participants
            .iter()
            .map(schedule::durations)
            .collect(),
    })
}
