//! Discrete-event simulation of a program, with the driver that real ranks use.
//!
//! A message is transferred once the exchange tasks of both ends have started (rendezvous); an exchange
//! that only sends does not wait for the other end (eager). A collective runs once all members have
//! started it. A rank runs one kernel and one read at a time. The host overhead of messages and
//! collectives delays the kernels that run meanwhile.
//! Messages and collectives that are under way at once share links and network adapters, max-min fairly;
//! a group may have several collectives under way, as in a run.

mod category;
mod classes;
mod composition;
mod contraction;
mod costed_program;
mod critical_path;
mod engine;
mod network;
mod task_cost;
mod topology;
mod usage;

pub use category::{Breakdown, Category};
pub use classes::{Classes, refine};
pub use critical_path::Segment;

use crate::cost::{CostBasis, CostError, Costs, KernelBasis};
use crate::cost::{ScaledCosts, SpeedFactors};
use crate::uncertainty::{PathSeconds, StepUncertainty};
use contraction::Contraction;
use costed_program::CostedProgram;
use engine::Engine;
use partita_cluster::LayerPrecision;
use partita_program::Program;
use partita_run::Trace;
use partita_space::{Offset, Rank, Seconds, on_cores};
use std::collections::BTreeMap;
use topology::Topology;

/// Which ranks are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One participant per class of ranks for which all costs are the same.
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
        /// The rank with the message.
        rank: Rank,
        /// The offset of its peer.
        offset: Offset,
    },
    /// A rank lacks an exchange or collective that another one has with it.
    #[error(
        "rank {rank} waits for rank {peer} in {work} {sequence}, which rank {peer} does not have"
    )]
    Unmatched {
        /// The rank that waits.
        rank: Rank,
        /// The rank that it waits for.
        peer: Rank,
        /// `exchange` or `collective`.
        work: &'static str,
        /// Its sequence number.
        sequence: u32,
    },
    /// No task can complete any more, and some have not completed.
    #[error("deadlock: rank {rank} has {open} tasks left in step {step}")]
    Deadlock {
        /// The first rank with tasks left.
        rank: Rank,
        /// Step of the simulation, from 0.
        step: usize,
        /// Tasks left.
        open: usize,
    },
    /// Zero steps.
    #[error("0 steps were asked for; simulate at least 1")]
    NoSteps,
}

/// A simulated rank, which stands for all ranks of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Participant {
    /// The first rank of the class.
    pub rank: Rank,
    /// Number of ranks of the class.
    pub ranks: usize,
    /// Index of its body in the program.
    pub body: u32,
}

/// Some ranks that were simulated in place of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contracted {
    /// Number of them.
    pub ranks: usize,
    /// For each class of the program one of which a rank was simulated, and whose tasks cost the same.
    pub classes: Vec<u32>,
}

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Which ranks were simulated.
    pub mode: Mode,
    /// Steps simulated, one after the other.
    pub steps: usize,
    /// Whether the costs were measured or modeled.
    pub basis: CostBasis,
    /// Precision of the layers in the costs.
    pub precision: LayerPrecision,
    /// From the start of the first task to the completion of the last.
    pub makespan: Seconds,
    /// Seconds of the critical path by category; they sum to the makespan.
    pub breakdown: Breakdown,
    /// The critical path, from its end to its start.
    pub path: Vec<Segment>,
    /// Seconds of the critical path that are latency of messages and collectives.
    pub path_latency: Seconds,
    /// How sure the makespan is.
    pub uncertainty: StepUncertainty,
    /// Which ranks were simulated, where inner ranks of a large mesh in space stand for others.
    pub contracted: Option<Contracted>,
    /// Participants, in the order of their ranks.
    pub participants: Vec<Participant>,
    /// Per participant, a trace for each step.
    pub traces: Vec<Vec<Trace>>,
    /// Per participant, seconds of its kernels in one step by kernel name, without host overhead; as
    /// simulated where kernels of a node slow each other down.
    pub kernels: Vec<BTreeMap<&'static str, Seconds>>,
    /// Seconds of the kernels of all ranks by what their cost is based on.
    pub kernel_bases: BTreeMap<KernelBasis, Seconds>,
    /// Per participant and task, seconds without host overhead and without waiting for other ranks.
    pub durations: Vec<Vec<Seconds>>,
}

/// Simulates `steps` steps of a program.
///
/// In [`Mode::Classes`] the classes of the program are split until they are stable ([`refine`]), so
/// that the result is that of [`Mode::Ranks`]. Of more than 128 ranks in space only some inner ones are
/// simulated, where they do the same: of a row of equal ones along depth, height or width two, or a node of
/// them. Their costs are those in the whole mesh; `contracted` says how many are left. Of more than 256 classes those
/// that do the same over the same kinds of link are one, however far they are from others; that changes a step by
/// less than 1 %.
/// Errors: an unknown cost, or a deadlock (which `verify` finds first).
pub fn simulate(
    program: &Program,
    costs: &dyn Costs,
    mode: Mode,
    steps: usize,
) -> Result<Simulation, SimulateError> {
    if steps == 0 {
        return Err(SimulateError::NoSteps);
    }
    costs.check_capacity(program.mesh.ranks())?;
    let topology = Topology::new(program, &|rank| costs.node(rank))?;
    let link = |a, b| costs.link(a, b);
    let contracted = match mode {
        Mode::Classes => topology.contraction(program),
        Mode::Ranks => None,
    };
    let contracted = contracted.and_then(|contraction| {
        let left = topology.contracted(program, &contraction, &link)?;
        Some((contraction, left))
    });
    let (contraction, left) = match &contracted {
        Some((contraction, left)) => (contraction, left),
        None => (&Contraction::none(program), &topology),
    };
    let topologies = [&topology, left];
    let classes = match mode {
        Mode::Classes => classes::few(program, topologies, contraction, &link),
        Mode::Ranks => Classes::of_ranks(program),
    };
    let costed = CostedProgram::new(program, topologies, (contraction, &classes), costs)?;
    let timeline = Engine::new(&costed, steps).run()?;
    let path = critical_path::critical_path(&costed, &timeline);
    let paths = composition::compositions(program, &topology, &costed, &timeline, &path.segments);
    let traces = timeline.traces.iter().enumerate();
    let kernels = traces
        .map(|(at, traces)| costed.kernels(at, traces))
        .collect();
    Ok(Simulation {
        mode,
        steps,
        basis: costs.basis(),
        precision: costs.precision(),
        makespan: Seconds(timeline.makespan()),
        breakdown: critical_path::breakdown(&path.segments),
        path: path.segments,
        path_latency: path.latency,
        uncertainty: StepUncertainty {
            costs: costs.uncertainty(program.mesh.ranks()),
            paths,
            exchanges_activations: composition::exchanges_activations(program),
        },
        contracted: contracted.as_ref().map(|(one, _)| one.told(program)),
        participants: costed
            .participants
            .iter()
            .map(|one| one.participant)
            .collect(),
        traces: timeline.traces,
        kernels,
        kernel_bases: costed.kernel_bases(),
        durations: costed
            .participants
            .iter()
            .map(costed_program::durations)
            .collect(),
    })
}

/// By how much communication is slower and faster in the simulations of [`add_paths`].
const STRETCHES: [f64; 2] = [2.0, 0.5];

/// Tasks of simulated ranks above which these are left out. A second of a core.
const PATH_TASKS_MAX: usize = 60_000;

/// Adds the critical paths of the program where communication takes twice as long, and half as long, to the paths
/// from which intervals are made. Nearly critical paths go through other layers one by one, so that few are found by
/// looking at the last tasks alone. Of simulations of very many tasks nothing is added.
///
/// Errors: those of [`simulate`].
pub fn add_paths(
    program: &Program,
    costs: &dyn Costs,
    simulation: &mut Simulation,
) -> Result<(), SimulateError> {
    let Some(longest) = simulation.uncertainty.paths.first().map(PathSeconds::total) else {
        return Ok(());
    };
    if simulation.durations.iter().map(Vec::len).sum::<usize>() > PATH_TASKS_MAX {
        return Ok(());
    }
    let (mode, steps) = (simulation.mode, simulation.steps);
    let others = on_cores(STRETCHES.len(), program.tasks(), |at| {
        let speeds = SpeedFactors {
            links: 1.0 / STRETCHES[at],
            latency: 1.0 / STRETCHES[at],
            ..SpeedFactors::default()
        };
        simulate(program, &ScaledCosts::new(costs, speeds), mode, steps)
    });
    for (stretch, other) in STRETCHES.into_iter().zip(others) {
        let critical = other?.uncertainty.paths.into_iter().next();
        let path = critical.map(|path| path.with_communication(1.0 / stretch));
        // What shares links longer there is no longer than the longest here.
        let path = path.and_then(|path| path.no_longer_than(longest));
        simulation.uncertainty.paths.extend(path);
    }
    Ok(())
}
