//! A program with the cost of every task, worked out before the simulation.

use super::contraction::Contraction;
use super::task_cost::{Peer, RankProgram, Rendezvous, TaskCost};
use super::topology::Topology;
use super::usage::Usage;
use super::{Classes, Participant, SimulateError};
use crate::cost::precision::transferred;
use crate::cost::{
    AlltoallBlocks, CollectiveCost, Contention, CostError, Costs, KernelBasis, KernelCost,
    Progress, SampleRead, link,
};
use partita_program::{
    Body, BufferId, Collective, CollectiveKind, Count, Kernel, KernelShape, Program, View, Views,
    Work,
};
use partita_run::Trace;
use partita_space::{Bytes, Rank, Seconds};
use std::collections::{BTreeMap, HashMap};

/// A program with the cost of every task, as seen by each participant.
pub(super) struct CostedProgram<'p> {
    pub participants: Vec<RankProgram<'p>>,
    /// Collectives, one of each group.
    pub rendezvous: Vec<Rendezvous>,
    /// See [`Costs::progress`].
    pub progress: Progress,
    /// See [`Costs::contention`].
    pub contention: Contention,
    /// Participants by node, whose kernels slow each other down. Empty where they do not, and where a
    /// participant stands for several ranks: a kernel then takes as long as while all ranks of its node
    /// compute.
    pub co_located: Vec<Vec<usize>>,
}

/// The messages of an exchange of a body, each as an index into the body's offsets and bytes.
struct Messages {
    task: usize,
    sends: Vec<(usize, u64)>,
    receives: Vec<(usize, u64)>,
}

/// Costs of a body that do not depend on the rank, and its communication tasks by sequence number.
struct BodyCosts {
    kernels: Vec<KernelCost>,
    /// Of kernels, as in [`TaskCost::Local`].
    traffic: Vec<f64>,
    exchanges: HashMap<u32, Messages>,
    collectives: HashMap<u32, usize>,
}

/// What a collective moves.
enum Moved {
    AllReduce(Bytes),
    /// Of each member.
    AllGather(Vec<Bytes>),
    /// To each member.
    ReduceScatter(Vec<Bytes>),
    AllToAll(AlltoallBlocks),
}

/// Flows at the adapters of a node that tell what these alone would take.
const MANY: f64 = 1e6;

struct Builder<'a> {
    program: &'a Program,
    /// Of all ranks.
    topology: &'a Topology,
    /// Of the simulated ranks.
    left: &'a Topology,
    originals: &'a [Rank],
    classes: &'a Classes,
    costs: &'a dyn Costs,
    body_costs: Vec<BodyCosts>,
    /// Bytes of the messages that pass a node's network adapters in an exchange, by
    /// (node, sequence, is_out).
    flows: HashMap<(u32, u32, bool), Vec<u64>>,
    rendezvous: Vec<Rendezvous>,
    usage: Usage<'a>,
    /// Rendezvous by (sequence, number of the group).
    rendezvous_of: HashMap<(u32, usize), usize>,
    /// Numbers of groups by (axis set, first participant).
    numbers: HashMap<(usize, u32), usize>,
    /// By (sequence, axis set, group): the cost, and the seconds that it would take on the link of a member
    /// and on the adapters of a node alone.
    collective_costs: HashMap<(u32, usize, u32), (CollectiveCost, [f64; 2])>,
    /// Participants that stand for the members of a group, ascending, by (axis set, group).
    participants_of: HashMap<(usize, u32), Vec<u32>>,
    /// Classes of the members of a group, ascending, with their first members, by (axis set, group).
    firsts_of: HashMap<(usize, u32), Vec<(u32, Rank)>>,
}

impl<'p> CostedProgram<'p> {
    pub fn new(
        program: &'p Program,
        [topology, left]: [&Topology; 2],
        (contraction, classes): (&Contraction, &Classes),
        costs: &dyn Costs,
    ) -> Result<Self, SimulateError> {
        let body_costs = program
            .bodies
            .iter()
            .zip(&topology.offsets)
            .map(|(body, offsets)| BodyCosts::new(body, offsets, costs))
            .collect::<Result<_, _>>()?;
        let mut builder = Builder {
            program,
            topology,
            left,
            originals: &contraction.originals,
            classes,
            costs,
            body_costs,
            flows: HashMap::new(),
            rendezvous: Vec::new(),
            usage: Usage::new(left, classes),
            rendezvous_of: HashMap::new(),
            numbers: HashMap::new(),
            collective_costs: HashMap::new(),
            participants_of: HashMap::new(),
            firsts_of: HashMap::new(),
        };
        let mut participants = Vec::with_capacity(classes.len());
        let mut ranks = vec![0; classes.len()];
        for (&class, &weight) in classes.class_of.iter().zip(&contraction.weights) {
            ranks[class as usize] += weight;
        }
        for (class, &ranks) in ranks.iter().enumerate() {
            let body = classes.body_of[class];
            let representative = classes.representatives[class];
            participants.push(RankProgram {
                participant: Participant {
                    rank: contraction.originals[representative],
                    ranks,
                    body,
                },
                body: &program.bodies[body as usize],
                node: left.node_of[representative] as usize,
                costs: builder.task_costs(class)?,
            });
        }
        Usage::share_within(&mut participants, &mut builder.rendezvous);
        Ok(Self {
            co_located: co_located(&participants),
            participants,
            rendezvous: builder.rendezvous,
            progress: costs.progress(),
            contention: costs.contention(),
        })
    }
}

fn co_located(participants: &[RankProgram<'_>]) -> Vec<Vec<usize>> {
    let is_contended = |cost: &TaskCost| match cost {
        TaskCost::Local { cost, .. } => cost.alone != cost.together,
        TaskCost::Fetch { .. } | TaskCost::Exchange { .. } | TaskCost::Collective { .. } => false,
    };
    let mut kernels = participants.iter().flat_map(|program| &program.costs);
    if participants
        .iter()
        .any(|program| program.participant.ranks > 1)
        || !kernels.any(is_contended)
    {
        return Vec::new();
    }
    let nodes = participants.iter().map(|program| program.node + 1).max();
    let mut co_located = vec![Vec::new(); nodes.unwrap_or(0)];
    for (at, program) in participants.iter().enumerate() {
        co_located[program.node].push(at);
    }
    co_located
}

impl CostedProgram<'_> {
    /// Seconds of the kernels of all ranks by what their cost is based on.
    pub fn kernel_bases(&self) -> BTreeMap<KernelBasis, Seconds> {
        let mut kernel_bases = BTreeMap::new();
        for program in &self.participants {
            for (task, cost) in program.body.tasks.iter().zip(&program.costs) {
                if let (Work::Compute { .. }, TaskCost::Local { cost, .. }) = (&task.work, cost) {
                    let seconds = kernel_bases.entry(cost.basis).or_insert(Seconds(0.0));
                    *seconds += cost.together * program.participant.ranks as f64;
                }
            }
        }
        kernel_bases
    }

    /// Seconds of the kernels of a participant in a step, by kernel name; as simulated where co-located
    /// kernels slow each other down.
    pub fn kernels(&self, participant: usize, traces: &[Trace]) -> BTreeMap<&'static str, Seconds> {
        let program = &self.participants[participant];
        let mut by_kind = BTreeMap::new();
        let mut add = |task: usize, seconds| {
            if let Work::Compute { kernel, .. } = &program.body.tasks[task].work {
                *by_kind.entry(kernel.name()).or_insert(Seconds(0.0)) += seconds;
            }
        };
        if self.co_located.is_empty() {
            for (task, cost) in program.costs.iter().enumerate() {
                match cost {
                    TaskCost::Local { cost, .. } => add(task, cost.together),
                    TaskCost::Fetch { .. }
                    | TaskCost::Exchange { .. }
                    | TaskCost::Collective { .. } => {}
                }
            }
        } else {
            let steps = traces.len() as f64;
            for event in traces.iter().flat_map(|trace| &trace.events) {
                add(
                    event.task.0 as usize,
                    (event.end - event.start) * (1.0 / steps),
                );
            }
        }
        by_kind
    }
}

/// Seconds of each task from the last start that it needs to its end; of kernels, while all ranks of
/// the node compute.
pub(super) fn durations(program: &RankProgram<'_>) -> Vec<Seconds> {
    let seconds = |cost: &TaskCost| match cost {
        TaskCost::Local { cost, .. } => cost.together.0,
        TaskCost::Fetch { seconds, .. } | TaskCost::Collective { seconds, .. } => *seconds,
        TaskCost::Exchange { peers, .. } => peers.iter().map(|peer| peer.delay).fold(0.0, f64::max),
    };
    program
        .costs
        .iter()
        .map(|cost| Seconds(seconds(cost)))
        .collect()
}

impl BodyCosts {
    fn new(
        body: &Body,
        offsets: &[partita_space::Offset],
        costs: &dyn Costs,
    ) -> Result<Self, SimulateError> {
        let mut body_costs = Self {
            kernels: vec![KernelCost::default(); body.tasks.len()],
            traffic: vec![0.0; body.tasks.len()],
            exchanges: HashMap::new(),
            collectives: HashMap::new(),
        };
        let index = |offset| {
            offsets
                .binary_search(&offset)
                .unwrap_or_else(|_| panic!("offset {offset:?} is not listed"))
        };
        let bytes = |view: &View| transferred(view, &body.buffers, costs.precision()).0;
        for (id, task) in body.tasks.iter().enumerate() {
            match &task.work {
                Work::Compute {
                    kernel, algorithm, ..
                } => {
                    let shape = KernelShape {
                        kernel,
                        buffers: &body.buffers,
                    };
                    let count = Count::of(task, &body.buffers);
                    let cost = costs.kernel(&shape, algorithm, &count)?;
                    let cost = cost.scaled(costs.layer_factor(&task.origin));
                    let bytes = (count.read + count.written).0 as f64;
                    body_costs.traffic[id] = bytes / cost.alone.0.max(f64::MIN_POSITIVE);
                    body_costs.kernels[id] = cost;
                }
                Work::Exchange(exchange) => {
                    let sends = exchange.sends.iter();
                    let receives = exchange.receives.iter();
                    let messages = Messages {
                        task: id,
                        sends: sends.map(|one| (index(one.to), bytes(&one.view))).collect(),
                        receives: receives
                            .map(|one| (index(one.from), bytes(&one.view)))
                            .collect(),
                    };
                    body_costs.exchanges.insert(exchange.sequence, messages);
                }
                Work::Collective(collective) => {
                    body_costs.collectives.insert(collective.sequence, id);
                }
                Work::Load(_) | Work::Store(_) => {}
            }
        }
        Ok(body_costs)
    }
}

/// A kernel that also waits until the samples that it reads are ready.
fn later(cost: KernelCost, kernel: &Kernel, delayed: &[(BufferId, Seconds)]) -> KernelCost {
    if delayed.is_empty() {
        return cost;
    }
    let accesses = kernel.accesses();
    let reads = |buffer: BufferId| accesses.iter().any(|(view, _)| view.buffer == buffer);
    let waits = delayed.iter().filter(|(buffer, _)| reads(*buffer));
    let most = waits.map(|(_, exposed)| exposed.0).fold(0.0, f64::max);
    KernelCost {
        alone: cost.alone + Seconds(most),
        together: cost.together + Seconds(most),
        ..cost
    }
}

impl Builder<'_> {
    fn task_costs(&mut self, class: usize) -> Result<Vec<TaskCost>, SimulateError> {
        let here = self.classes.representatives[class];
        let rank = self.originals[here];
        let body_index = self.classes.body_of[class] as usize;
        let program = self.program;
        let body = &program.bodies[body_index];
        let ranks = program.mesh.ranks();
        let delayed = self.delayed(rank, body)?;
        let mut costs = Vec::with_capacity(body.tasks.len());
        for (id, task) in body.tasks.iter().enumerate() {
            costs.push(match &task.work {
                Work::Compute { kernel, .. } => TaskCost::Local {
                    cost: later(self.body_costs[body_index].kernels[id], kernel, &delayed),
                    traffic: self.body_costs[body_index].traffic[id],
                },
                Work::Load(load) => self.load([rank, here], load, body)?,
                Work::Store(store) => {
                    let bytes = store.source.bytes(&body.buffers);
                    TaskCost::file(self.costs.write(rank, bytes, ranks)?)
                }
                Work::Exchange(exchange) => {
                    self.exchange([rank, here], body_index, exchange.sequence)?
                }
                Work::Collective(collective) => {
                    let axes = self.topology.index_of(collective.group());
                    self.collective([rank, here], collective, axes, body)?
                }
            });
        }
        Ok(costs)
    }

    /// Buffers of samples that are not ready when they are loaded, and for how long.
    fn delayed(&self, rank: Rank, body: &Body) -> Result<Vec<(BufferId, Seconds)>, SimulateError> {
        let mut delayed = Vec::new();
        for task in &body.tasks {
            if let Work::Load(load) = &task.work {
                let read = SampleRead::of(load, body, self.program.mesh.ranks());
                let exposed = self.costs.load(rank, read)?.exposed;
                if exposed > Seconds(0.0) {
                    delayed.push((load.target.buffer, exposed));
                }
            }
        }
        Ok(delayed)
    }

    /// A load of a rank, which is simulated as `here`.
    fn load(
        &self,
        [rank, here]: [Rank; 2],
        load: &partita_program::Load,
        body: &Body,
    ) -> Result<TaskCost, SimulateError> {
        let read = SampleRead::of(load, body, self.program.mesh.ranks());
        let cost = self.costs.load(rank, read)?;
        if cost.link == Seconds(0.0) {
            return Ok(TaskCost::file(cost.seconds));
        }
        let mut loads = Vec::new();
        let seconds = cost.seconds.0;
        let parts = [cost.link.0 / seconds, cost.adapters.0 / seconds];
        self.usage.add_samples(here, parts, &mut loads);
        Ok(TaskCost::Fetch { seconds, loads })
    }

    /// An exchange of a rank, which is simulated as `here`.
    fn exchange(
        &mut self,
        [rank, here]: [Rank; 2],
        body: usize,
        sequence: u32,
    ) -> Result<TaskCost, SimulateError> {
        let peers_of = |at: usize| {
            let [peer, there] =
                [(self.topology, rank), (self.left, here)].map(|(all, rank)| all.peers[rank][at]);
            (peer as Rank, there as Rank)
        };
        let messages = &self.body_costs[body].exchanges[&sequence];
        let out = messages
            .sends
            .iter()
            .map(|&(at, bytes)| (peers_of(at), false, bytes));
        let back = messages
            .receives
            .iter()
            .map(|&(at, bytes)| (peers_of(at), true, bytes));
        let all: Vec<((Rank, Rank), bool, u64)> = out.chain(back).collect();
        let mut peers: BTreeMap<usize, Peer> = BTreeMap::new();
        let mut host = 0.0;
        let mut loads = Vec::new();
        for ((other, there), is_received, bytes) in all {
            let (from, to) = if is_received {
                (other, rank)
            } else {
                (rank, other)
            };
            let contention = self.contention(from, to, bytes, sequence);
            let cost = self.costs.message(from, to, Bytes(bytes), contention)?;
            host += cost.host.0;
            let task = self.peer_task(rank, other, sequence)?;
            let participant = self.classes.class_of[there] as usize;
            let peer = peers.entry(participant).or_insert(Peer {
                participant,
                task,
                is_awaited: false,
                delay: 0.0,
                latency: 0.0,
            });
            peer.is_awaited |= is_received;
            if is_received {
                let alone = self.costs.message(from, to, Bytes(bytes), 1.0)?.transfer.0;
                let adapters = self.costs.message(from, to, Bytes(bytes), MANY)?.transfer.0 / MANY;
                self.usage
                    .add_message(there, here, [alone, adapters], &mut loads);
            }
            let delay = cost.seconds().0;
            if delay > peer.delay {
                (peer.delay, peer.latency) = (delay, cost.latency.0);
            }
        }
        Ok(TaskCost::Exchange {
            peers: peers.into_values().collect(),
            host,
            loads,
        })
    }

    fn peer_task(&self, rank: Rank, peer: Rank, sequence: u32) -> Result<usize, SimulateError> {
        let body = self.program.class_of[peer] as usize;
        match self.body_costs[body].exchanges.get(&sequence) {
            Some(messages) => Ok(messages.task),
            None => Err(SimulateError::Unmatched {
                rank,
                peer,
                work: "exchange",
                sequence,
            }),
        }
    }

    /// The larger contention of the sender's and the receiver's network adapters.
    fn contention(&mut self, from: Rank, to: Rank, bytes: u64, sequence: u32) -> f64 {
        let (here, there) = (self.topology.node_of[from], self.topology.node_of[to]);
        if here == there {
            return 1.0;
        }
        let out = link::fair_sharing(bytes, self.flows(here, sequence, true));
        let back = link::fair_sharing(bytes, self.flows(there, sequence, false));
        out.max(back)
    }

    fn flows(&mut self, node: u32, sequence: u32, is_out: bool) -> &[u64] {
        let (topology, body_costs, program) = (self.topology, &self.body_costs, self.program);
        self.flows
            .entry((node, sequence, is_out))
            .or_insert_with(|| {
                let mut flows = Vec::new();
                for &rank in &topology.node_ranks[node as usize] {
                    let body = program.class_of[rank] as usize;
                    let Some(messages) = body_costs[body].exchanges.get(&sequence) else {
                        continue;
                    };
                    let list = if is_out {
                        &messages.sends
                    } else {
                        &messages.receives
                    };
                    let leaves =
                        |at: usize| topology.node_of[topology.peers[rank][at] as usize] != node;
                    flows.extend(list.iter().filter(|one| leaves(one.0)).map(|one| one.1));
                }
                flows
            })
    }

    /// A collective of a rank, which is simulated as `here`.
    fn collective(
        &mut self,
        [rank, here]: [Rank; 2],
        collective: &Collective,
        axes: usize,
        body: &Body,
    ) -> Result<TaskCost, SimulateError> {
        let sequence = collective.sequence;
        let group = self.topology.groups[axes].group_of[rank];
        let (cost, seconds) = match self.collective_costs.get(&(sequence, axes, group)) {
            Some(&known) => known,
            None => {
                let contention = f64::from(self.topology.groups[axes].contention[group as usize]);
                self.note_firsts(axes, group);
                let moved = self.moved(rank, sequence, axes, collective, body)?;
                let with = |contention| self.collective_cost(rank, axes, &moved, contention);
                let seconds = [with(1.0)?.transfer_min.0, with(MANY)?.transfer_min.0 / MANY];
                let known = (with(contention)?, seconds);
                self.collective_costs.insert((sequence, axes, group), known);
                known
            }
        };
        let (left, classes) = (self.left, self.classes);
        let members = &left.groups[axes].members[left.groups[axes].group_of[here] as usize];
        let participants_of = self
            .participants_of
            .entry((axes, group))
            .or_insert_with(|| {
                let mut all: Vec<u32> =
                    members.iter().map(|&rank| classes.class_of[rank]).collect();
                all.sort_unstable();
                all.dedup();
                all
            });
        let groups = self.numbers.len();
        let number = *self
            .numbers
            .entry((axes, participants_of[0]))
            .or_insert(groups);
        let key = (sequence, number);
        let next = self.rendezvous.len();
        let rendezvous = *self.rendezvous_of.entry(key).or_insert(next);
        if rendezvous == next {
            self.rendezvous.push(Rendezvous {
                participants: participants_of.len(),
                group: number,
                sequence,
                seconds: cost.seconds().0,
                loads: Vec::new(),
            });
        }
        let loads = &mut self.rendezvous[rendezvous].loads;
        self.usage.add_member(here, axes, seconds, loads);
        Ok(TaskCost::Collective {
            rendezvous,
            latency: cost.latency.0,
            seconds: cost.seconds().0,
            host: cost.host.0,
        })
    }

    fn collective_cost(
        &self,
        rank: Rank,
        axes: usize,
        moved: &Moved,
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let groups = &self.topology.groups[axes];
        let members = &groups.members[groups.group_of[rank] as usize];
        match moved {
            Moved::AllReduce(bytes) => self.costs.allreduce(members, *bytes, contention),
            Moved::AllGather(given) => self.costs.allgather(members, given, contention),
            Moved::ReduceScatter(shares) => self.costs.reduce_scatter(members, shares, contention),
            Moved::AllToAll(blocks) => self.costs.alltoall(members, *blocks, contention),
        }
    }

    /// Notes each class of the members of a group once, with its first member.
    fn note_firsts(&mut self, axes: usize, group: u32) {
        let members = &self.topology.groups[axes].members[group as usize];
        let class_of = &self.program.class_of;
        self.firsts_of.entry((axes, group)).or_insert_with(|| {
            let firsts = members.iter().map(|&rank| (class_of[rank], rank));
            let mut firsts: Vec<(u32, Rank)> = firsts.collect();
            firsts.sort_unstable();
            firsts.dedup_by_key(|(class, _)| *class);
            firsts
        });
    }

    /// What a collective of a rank moves. Errors: a member without it.
    fn moved(
        &self,
        rank: Rank,
        sequence: u32,
        axes: usize,
        collective: &Collective,
        body: &Body,
    ) -> Result<Moved, SimulateError> {
        let groups = &self.topology.groups[axes];
        let group = groups.group_of[rank];
        let members = &groups.members[group as usize];
        let class_of = &self.program.class_of;
        let firsts = &self.firsts_of[&(axes, group)];
        // What a member of each class sends.
        let mut sources: Vec<(Views<'_>, &Body)> = Vec::with_capacity(firsts.len());
        for &(_, member) in firsts {
            sources.push(self.sources(rank, member, sequence)?);
        }
        let bytes_of = |(views, body): (Views<'_>, &Body)| -> Vec<Bytes> {
            let precision = self.costs.precision();
            let bytes = |view: View| transferred(&view, &body.buffers, precision);
            views.iter().map(bytes).collect()
        };
        let place = |member: Rank| {
            let found = firsts.binary_search_by_key(&class_of[member], |(class, _)| *class);
            found.unwrap_or_default()
        };
        let mine = || bytes_of((collective.kind.sources(), body));
        Ok(match &collective.kind {
            CollectiveKind::AllReduce { .. } => Moved::AllReduce(mine().into_iter().sum()),
            CollectiveKind::AllGather { .. } => {
                let given = sources
                    .iter()
                    .map(|&views| bytes_of(views).into_iter().sum());
                let given: Vec<Bytes> = given.collect();
                let members = members.iter();
                Moved::AllGather(members.map(|&member| given[place(member)]).collect())
            }
            CollectiveKind::ReduceScatter { .. } => Moved::ReduceScatter(mine()),
            CollectiveKind::AllToAll { .. } => {
                let given: Vec<Vec<Bytes>> = sources.iter().map(|&views| bytes_of(views)).collect();
                let sent = members.iter().enumerate().flat_map(|(at, &member)| {
                    let others = given[place(member)].iter().enumerate();
                    others.filter(move |&(to, _)| to != at)
                });
                let totals = given.iter().map(|views| views.iter().copied().sum());
                Moved::AllToAll(AlltoallBlocks {
                    largest: sent.map(|(_, &bytes)| bytes).max().unwrap_or_default(),
                    given: totals.max().unwrap_or_default(),
                })
            }
        })
    }

    /// What a member sends in a collective.
    fn sources(
        &self,
        rank: Rank,
        member: Rank,
        sequence: u32,
    ) -> Result<(Views<'_>, &Body), SimulateError> {
        let index = self.program.class_of[member] as usize;
        let body = &self.program.bodies[index];
        let task = self.body_costs[index].collectives.get(&sequence);
        match task.map(|&id| &body.tasks[id].work) {
            Some(Work::Collective(collective)) => Ok((collective.kind.sources(), body)),
            Some(Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) | Work::Store(_))
            | None => Err(SimulateError::Unmatched {
                rank,
                peer: member,
                work: "collective",
                sequence,
            }),
        }
    }
}
