//! Seconds of the longest paths by what their errors have in common.

use super::costed_program::CostedProgram;
use super::critical_path::{self, Segment};
use super::engine::Timeline;
use super::task_cost::TaskCost;
use super::topology::Topology;
use crate::cost::KernelBasis;
use crate::cost::kernel::{RateClass, rate_class};
use crate::uncertainty::{PathSeconds, TimeSource};
use partita_program::{Body, Collective, Count, Exchange, KernelShape, Program, Task, View, Work};
use partita_space::Rank;
use std::collections::BTreeMap;

/// Tasks with one key have one error: equal kernels with equal counts.
type Key = (&'static str, u64, u64);

struct Composer<'a> {
    program: &'a Program,
    topology: &'a Topology,
    costed: &'a CostedProgram<'a>,
}

/// The critical path first, then others that may become the longest: those of [`critical_path::other_paths`], and
/// the kernels of the rank that computes longest.
pub(super) fn compositions(
    program: &Program,
    topology: &Topology,
    costed: &CostedProgram<'_>,
    timeline: &Timeline,
    critical: &[Segment],
) -> Vec<PathSeconds> {
    let composer = Composer {
        program,
        topology,
        costed,
    };
    let mut paths = vec![composer.path(critical)];
    let others = critical_path::other_paths(costed, timeline, critical);
    let others = others.iter().map(|segments| composer.path(segments));
    let longest = paths[0].total();
    let computes = |at: &usize| composer.kernel_seconds(*at).map(|one| one.1).sum::<f64>();
    let slowest = (0..costed.participants.len()).map(|at| (at, computes(&at)));
    let slowest = slowest.max_by(|a, b| a.1.total_cmp(&b.1));
    let slowest = slowest.map(|(at, _)| composer.kernels(at));
    // What is longer than the critical path is no path.
    let is_path = |path: &PathSeconds| path.total() <= longest && *path != paths[0];
    let others: Vec<PathSeconds> = others.chain(slowest).filter(is_path).collect();
    paths.extend(others);
    paths
}

/// Whether ranks exchange activations or their gradients: halos, parts of a tensor, what a stage hands on. Statistics
/// of batch norms and parameters do not count.
pub(super) fn exchanges_activations(program: &Program) -> bool {
    let mut tasks =
        (program.bodies.iter()).flat_map(|body| body.tasks.iter().map(move |task| (body, task)));
    tasks.any(|(body, task)| match &task.work {
        Work::Exchange(exchange) => {
            let mut views = exchange.sends.iter().map(|send| &send.view);
            views.any(|view| is_activation(body, view))
        }
        Work::Collective(collective) => {
            let mut views = collective.kind.sources().joined().iter();
            views.any(|view| is_activation(body, view))
        }
        Work::Compute { .. } | Work::Load(_) | Work::Store(_) => false,
    })
}

fn is_activation(body: &Body, view: &View) -> bool {
    body.buffer(view.buffer).role.is_activation()
}

impl Composer<'_> {
    fn path(&self, segments: &[Segment]) -> PathSeconds {
        let mut path = PathSeconds::default();
        let mut of_tasks: BTreeMap<(TimeSource, Key), f64> = BTreeMap::new();
        for segment in segments {
            let task = &self.program.bodies[segment.body as usize].tasks[segment.task.0 as usize];
            let (seconds, latency) = (segment.seconds.0, segment.latency.0);
            if segment.is_overhead {
                path.add(TimeSource::HostOverhead, seconds);
                continue;
            }
            match &task.work {
                Work::Compute { .. } => {
                    let (source, key) = self.kernel(segment.participant, segment.task.0 as usize);
                    path.add(source, seconds);
                    *of_tasks.entry((source, key)).or_insert(0.0) += seconds;
                }
                Work::Load(_) | Work::Store(_) => path.add(TimeSource::Reads, seconds),
                Work::Exchange(exchange) => {
                    let [by_latency, by_bytes] = self.messages(exchange, segment.rank);
                    path.add(by_latency, latency);
                    path.add(by_bytes, seconds - latency);
                }
                Work::Collective(collective) => {
                    let [by_latency, by_bytes] = self.collective(collective, segment.rank);
                    path.add(by_latency, latency);
                    path.add(by_bytes, seconds - latency);
                }
            }
        }
        path.add_tasks(of_tasks.into_iter().map(|((source, _), sum)| (source, sum)));
        path
    }

    /// All kernels of a participant, one after the other, while no other rank computes.
    fn kernels(&self, participant: usize) -> PathSeconds {
        let mut path = PathSeconds::default();
        let mut of_tasks: BTreeMap<(TimeSource, Key), f64> = BTreeMap::new();
        for (at, seconds) in self.kernel_seconds(participant) {
            let (source, key) = self.kernel(participant, at);
            path.add(source, seconds);
            *of_tasks.entry((source, key)).or_insert(0.0) += seconds;
        }
        path.add_tasks(of_tasks.into_iter().map(|((source, _), sum)| (source, sum)));
        path
    }

    /// The kernels of a participant by their tasks.
    fn kernel_seconds(&self, participant: usize) -> impl Iterator<Item = (usize, f64)> {
        let program = &self.costed.participants[participant];
        let tasks = program.body.tasks.iter().zip(&program.costs).enumerate();
        tasks.filter_map(|(at, both)| match both {
            (
                Task {
                    work: Work::Compute { .. },
                    ..
                },
                TaskCost::Local { cost, .. },
            ) => Some((at, cost.alone.0)),
            (
                _,
                TaskCost::Local { .. }
                | TaskCost::Fetch { .. }
                | TaskCost::Exchange { .. }
                | TaskCost::Collective { .. },
            ) => None,
        })
    }

    fn kernel(&self, participant: usize, at: usize) -> (TimeSource, Key) {
        let program = &self.costed.participants[participant];
        let task: &Task = &program.body.tasks[at];
        let count = Count::of(task, &program.body.buffers);
        let bytes = (count.read + count.written).0;
        let key = (task.work.name(), count.flops.0, bytes);
        (self.source_of_kernel(participant, at), key)
    }

    fn source_of_kernel(&self, participant: usize, at: usize) -> TimeSource {
        let program = &self.costed.participants[participant];
        let basis = match &program.costs[at] {
            TaskCost::Local { cost, .. } => cost.basis,
            TaskCost::Fetch { .. } | TaskCost::Exchange { .. } | TaskCost::Collective { .. } => {
                KernelBasis::Modeled
            }
        };
        match (basis, &program.body.tasks[at].work) {
            (KernelBasis::Measured, _) => TimeSource::MeasuredKernels,
            (KernelBasis::Estimated, _) => TimeSource::EstimatedKernels,
            (KernelBasis::Extrapolated, _) => TimeSource::ExtrapolatedKernels,
            (KernelBasis::Modeled, Work::Compute { kernel, .. }) => {
                let buffers = &program.body.buffers;
                match rate_class(&KernelShape { kernel, buffers }) {
                    RateClass::Convolution {
                        spatial_dims: 3.., ..
                    } => TimeSource::Convolutions3d,
                    RateClass::Convolution { .. } | RateClass::Linear { .. } => {
                        TimeSource::Convolutions2d
                    }
                    RateClass::Memory => TimeSource::MemoryBoundKernels,
                }
            }
            (
                KernelBasis::Modeled,
                Work::Load(_) | Work::Store(_) | Work::Exchange(_) | Work::Collective(_),
            ) => TimeSource::Reads,
        }
    }

    /// Sources of latency and bytes of an exchange: of messages to other nodes, if it has one.
    fn messages(&self, exchange: &Exchange, rank: Rank) -> [TimeSource; 2] {
        let sends = exchange.sends.iter().map(|send| send.to);
        let receives = exchange.receives.iter().map(|receive| receive.from);
        let mut peers = sends
            .chain(receives)
            .filter_map(|offset| self.program.mesh.neighbor(rank, offset));
        let node_of = &self.topology.node_of;
        if peers.any(|peer| node_of[peer] != node_of[rank]) {
            [
                TimeSource::MessageLatencyBetween,
                TimeSource::MessageTransferBetween,
            ]
        } else {
            [
                TimeSource::MessageLatencyWithin,
                TimeSource::MessageTransferWithin,
            ]
        }
    }

    fn collective(&self, collective: &Collective, rank: Rank) -> [TimeSource; 2] {
        let groups = &self.topology.groups[self.topology.index_of(collective.group())];
        let members = &groups.members[groups.group_of[rank] as usize];
        let node_of = &self.topology.node_of;
        if members.iter().any(|&one| node_of[one] != node_of[rank]) {
            [
                TimeSource::CollectiveLatencyBetween,
                TimeSource::CollectiveTransferBetween,
            ]
        } else {
            [
                TimeSource::CollectiveLatencyWithin,
                TimeSource::CollectiveTransferWithin,
            ]
        }
    }
}
