//! What can happen in a step, with its costs, before anything happens.

use super::topology::Topology;
use super::{Classes, Participant, SimulateError};
use crate::cost::{Blocks, CollectiveCost, Costs, KernelCost, Known, link};
use partita_program::{Body, CollectiveKind, Count, KernelShape, Program, View, Work};
use partita_run::Trace;
use partita_space::{Bytes, Rank, Seconds};
use std::collections::{BTreeMap, HashMap};

/// Everything that can happen in a step, with its cost, as integers and seconds.
pub(super) struct Schedule<'p> {
    pub participants: Vec<Player<'p>>,
    /// Per collective and group, the number of participants that meet.
    pub meetings: Vec<usize>,
    /// See [`Costs::delivers_between_kernels`].
    pub delivers_between_kernels: bool,
    /// Participants by node, where kernels of one hold those of another up. Empty where they do not,
    /// and where a participant stands for several ranks: kernels then take as long as with all ranks
    /// of their node at work.
    pub crowds: Vec<Vec<usize>>,
}

/// A participant with its duties.
pub(super) struct Player<'p> {
    pub who: Participant,
    pub body: &'p Body,
    /// Of its rank.
    pub node: usize,
    /// Per task.
    pub duties: Vec<Duty>,
}

/// What a task takes.
pub(super) enum Duty {
    /// A kernel or a read.
    Alone { cost: KernelCost },
    /// An exchange.
    Exchange { peers: Vec<Peer>, host: f64 },
    /// A collective.
    Collective {
        meeting: usize,
        latency: f64,
        seconds: f64,
        host: f64,
    },
}

/// The other end of the messages of an exchange.
pub(super) struct Peer {
    pub participant: usize,
    pub task: usize,
    /// Whether anything comes from it. A sender gives its message away and goes on, whether the other end
    /// has come or not.
    pub is_awaited: bool,
    /// From the later of the two starts until the last message in either direction has arrived; where
    /// nothing comes, from the own start until the last has been sent.
    pub delay: f64,
    /// The latency in it.
    pub latency: f64,
}

/// The messages of an exchange of a body: index of the body's offsets, bytes.
struct Messages {
    task: usize,
    sends: Vec<(usize, u64)>,
    receives: Vec<(usize, u64)>,
}

/// A body with what does not depend on the rank worked out.
struct Facts {
    kernels: Vec<KernelCost>,
    exchanges: HashMap<u32, Messages>,
    collectives: HashMap<u32, usize>,
}

struct Builder<'a> {
    program: &'a Program,
    topology: &'a Topology,
    classes: &'a Classes,
    costs: &'a dyn Costs,
    facts: Vec<Facts>,
    /// Bytes of the messages that pass a node's adapters in an exchange: (node, sequence, is_out).
    flows: HashMap<(u32, u32, bool), Vec<u64>>,
    meetings: Vec<usize>,
    /// (sequence, axis set, first participant) to its meeting.
    meeting_of: HashMap<(u32, usize, u32), usize>,
    /// (sequence, axis set, group) to its cost.
    collective_costs: HashMap<(u32, usize, u32), CollectiveCost>,
    /// (axis set, group) to the participants that stand for its members, ascending.
    attendants: HashMap<(usize, u32), Vec<u32>>,
}

impl<'p> Schedule<'p> {
    pub fn new(
        program: &'p Program,
        topology: &Topology,
        classes: &Classes,
        costs: &dyn Costs,
    ) -> Result<Self, SimulateError> {
        let facts = program
            .bodies
            .iter()
            .zip(&topology.offsets)
            .map(|(body, offsets)| Facts::new(body, offsets, costs))
            .collect::<Result<_, _>>()?;
        let mut builder = Builder {
            program,
            topology,
            classes,
            costs,
            facts,
            flows: HashMap::new(),
            meetings: Vec::new(),
            meeting_of: HashMap::new(),
            collective_costs: HashMap::new(),
            attendants: HashMap::new(),
        };
        let mut participants = Vec::with_capacity(classes.len());
        for class in 0..classes.len() {
            let body = classes.body_of[class];
            participants.push(Player {
                who: Participant {
                    rank: classes.representatives[class],
                    ranks: classes.sizes[class],
                    body,
                },
                body: &program.bodies[body as usize],
                node: topology.node_of[classes.representatives[class]] as usize,
                duties: builder.duties(class)?,
            });
        }
        Ok(Self {
            crowds: crowds(&participants),
            participants,
            meetings: builder.meetings,
            delivers_between_kernels: costs.delivers_between_kernels(),
        })
    }
}

fn crowds(participants: &[Player<'_>]) -> Vec<Vec<usize>> {
    let is_disturbed = |duty: &Duty| match duty {
        Duty::Alone { cost } => cost.alone != cost.together,
        Duty::Exchange { .. } | Duty::Collective { .. } => false,
    };
    let mut kernels = participants.iter().flat_map(|player| &player.duties);
    if participants.iter().any(|player| player.who.ranks > 1) || !kernels.any(is_disturbed) {
        return Vec::new();
    }
    let nodes = participants.iter().map(|player| player.node + 1).max();
    let mut crowds = vec![Vec::new(); nodes.unwrap_or(0)];
    for (at, player) in participants.iter().enumerate() {
        crowds[player.node].push(at);
    }
    crowds
}

impl Schedule<'_> {
    /// Seconds of the kernels of all ranks by how they are known.
    pub fn known(&self) -> BTreeMap<Known, Seconds> {
        let mut known = BTreeMap::new();
        for player in &self.participants {
            for (task, duty) in player.body.tasks.iter().zip(&player.duties) {
                if let (Work::Compute { .. }, Duty::Alone { cost }) = (&task.work, duty) {
                    let seconds = known.entry(cost.known).or_insert(Seconds(0.0));
                    *seconds += cost.together * player.who.ranks as f64;
                }
            }
        }
        known
    }

    /// Seconds of the kernels of a participant in a step, by kernel name; among others that compute, as
    /// they were played.
    pub fn kernels(&self, participant: usize, played: &[Trace]) -> BTreeMap<&'static str, Seconds> {
        let player = &self.participants[participant];
        let mut by_kind = BTreeMap::new();
        let mut add = |task: usize, seconds| {
            if let Work::Compute { kernel, .. } = &player.body.tasks[task].work {
                *by_kind.entry(kernel.name()).or_insert(Seconds(0.0)) += seconds;
            }
        };
        if self.crowds.is_empty() {
            for (task, duty) in player.duties.iter().enumerate() {
                match duty {
                    Duty::Alone { cost } => add(task, cost.together),
                    Duty::Exchange { .. } | Duty::Collective { .. } => {}
                }
            }
        } else {
            let steps = played.len() as f64;
            for event in played.iter().flat_map(|trace| &trace.events) {
                add(
                    event.task.0 as usize,
                    (event.end - event.start) * (1.0 / steps),
                );
            }
        }
        by_kind
    }
}

/// Seconds of a participant's tasks, from the last start that they need to their end; of kernels those
/// with all ranks of the node at work.
pub(super) fn durations(player: &Player<'_>) -> Vec<Seconds> {
    let seconds = |duty: &Duty| match duty {
        Duty::Alone { cost } => cost.together.0,
        Duty::Collective { seconds, .. } => *seconds,
        Duty::Exchange { peers, .. } => peers.iter().map(|peer| peer.delay).fold(0.0, f64::max),
    };
    player
        .duties
        .iter()
        .map(|duty| Seconds(seconds(duty)))
        .collect()
}

impl Facts {
    fn new(
        body: &Body,
        offsets: &[partita_space::Offset],
        costs: &dyn Costs,
    ) -> Result<Self, SimulateError> {
        let mut facts = Self {
            kernels: vec![KernelCost::default(); body.tasks.len()],
            exchanges: HashMap::new(),
            collectives: HashMap::new(),
        };
        let index = |offset| {
            offsets
                .binary_search(&offset)
                .unwrap_or_else(|_| panic!("offset {offset:?} is not listed"))
        };
        let bytes = |view: &partita_program::View| view.bytes(&body.buffers).0;
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
                    facts.kernels[id] = costs.kernel(&shape, algorithm, &count)?;
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
                    facts.exchanges.insert(exchange.sequence, messages);
                }
                Work::Collective(collective) => {
                    facts.collectives.insert(collective.sequence, id);
                }
                Work::Load(_) => {}
            }
        }
        Ok(facts)
    }
}

impl Builder<'_> {
    fn duties(&mut self, class: usize) -> Result<Vec<Duty>, SimulateError> {
        let rank = self.classes.representatives[class];
        let body_index = self.classes.body_of[class] as usize;
        let program = self.program;
        let body = &program.bodies[body_index];
        let ranks = program.mesh.ranks();
        let mut duties = Vec::with_capacity(body.tasks.len());
        for (id, task) in body.tasks.iter().enumerate() {
            duties.push(match &task.work {
                Work::Compute { .. } => Duty::Alone {
                    cost: self.facts[body_index].kernels[id],
                },
                Work::Load(load) => Duty::Alone {
                    cost: KernelCost::undisturbed(self.costs.load(
                        rank,
                        load.target.bytes(&body.buffers),
                        ranks,
                    )?),
                },
                Work::Exchange(exchange) => self.exchange(rank, body_index, exchange.sequence)?,
                Work::Collective(collective) => {
                    let axes = self.topology.index_of(collective.group());
                    self.collective(rank, collective.sequence, axes, &collective.kind, body)?
                }
            });
        }
        Ok(duties)
    }

    fn exchange(&mut self, rank: Rank, body: usize, sequence: u32) -> Result<Duty, SimulateError> {
        let peers_of = &self.topology.peers[rank];
        let messages = &self.facts[body].exchanges[&sequence];
        let out = messages
            .sends
            .iter()
            .map(|&(at, bytes)| (rank, peers_of[at] as Rank, bytes));
        let back = messages
            .receives
            .iter()
            .map(|&(at, bytes)| (peers_of[at] as Rank, rank, bytes));
        let all: Vec<(Rank, Rank, u64)> = out.chain(back).collect();
        let mut peers: BTreeMap<usize, Peer> = BTreeMap::new();
        let mut host = 0.0;
        for (from, to, bytes) in all {
            let sharing = self.sharing(from, to, bytes, sequence);
            let cost = self.costs.message(from, to, Bytes(bytes), sharing)?;
            host += cost.host.0;
            let other = if from == rank { to } else { from };
            let task = self.peer_task(rank, other, sequence)?;
            let participant = self.classes.class_of[other] as usize;
            let peer = peers.entry(participant).or_insert(Peer {
                participant,
                task,
                is_awaited: false,
                delay: 0.0,
                latency: 0.0,
            });
            peer.is_awaited |= to == rank;
            let delay = cost.seconds().0;
            if delay > peer.delay {
                (peer.delay, peer.latency) = (delay, cost.latency.0);
            }
        }
        Ok(Duty::Exchange {
            peers: peers.into_values().collect(),
            host,
        })
    }

    fn peer_task(&self, rank: Rank, peer: Rank, sequence: u32) -> Result<usize, SimulateError> {
        let body = self.program.class_of[peer] as usize;
        match self.facts[body].exchanges.get(&sequence) {
            Some(messages) => Ok(messages.task),
            None => Err(SimulateError::Unmatched {
                rank,
                peer,
                work: "exchange",
                sequence,
            }),
        }
    }

    /// The longer of the queues at the sender's and at the receiver's adapters.
    fn sharing(&mut self, from: Rank, to: Rank, bytes: u64, sequence: u32) -> f64 {
        let (here, there) = (self.topology.node_of[from], self.topology.node_of[to]);
        if here == there {
            return 1.0;
        }
        let out = link::fair_sharing(bytes, self.flows(here, sequence, true));
        let back = link::fair_sharing(bytes, self.flows(there, sequence, false));
        out.max(back)
    }

    fn flows(&mut self, node: u32, sequence: u32, is_out: bool) -> &[u64] {
        let (topology, facts, program) = (self.topology, &self.facts, self.program);
        self.flows
            .entry((node, sequence, is_out))
            .or_insert_with(|| {
                let mut flows = Vec::new();
                for &rank in &topology.node_ranks[node as usize] {
                    let body = program.class_of[rank] as usize;
                    let Some(messages) = facts[body].exchanges.get(&sequence) else {
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

    fn collective(
        &mut self,
        rank: Rank,
        sequence: u32,
        axes: usize,
        kind: &CollectiveKind,
        body: &Body,
    ) -> Result<Duty, SimulateError> {
        let group = self.topology.groups[axes].group_of[rank];
        let cost = match self.collective_costs.get(&(sequence, axes, group)) {
            Some(&cost) => cost,
            None => {
                let cost = self.collective_cost(rank, sequence, axes, kind, body)?;
                self.collective_costs.insert((sequence, axes, group), cost);
                cost
            }
        };
        let (topology, classes) = (self.topology, self.classes);
        let attendants = self.attendants.entry((axes, group)).or_insert_with(|| {
            let members = &topology.groups[axes].members[group as usize];
            let mut all: Vec<u32> = members.iter().map(|&rank| classes.class_of[rank]).collect();
            all.sort_unstable();
            all.dedup();
            all
        });
        let key = (sequence, axes, attendants[0]);
        let next = self.meetings.len();
        let meeting = *self.meeting_of.entry(key).or_insert(next);
        if meeting == next {
            self.meetings.push(attendants.len());
        }
        Ok(Duty::Collective {
            meeting,
            latency: cost.latency.0,
            seconds: cost.seconds().0,
            host: cost.host.0,
        })
    }

    fn collective_cost(
        &self,
        rank: Rank,
        sequence: u32,
        axes: usize,
        kind: &CollectiveKind,
        body: &Body,
    ) -> Result<CollectiveCost, SimulateError> {
        let groups = &self.topology.groups[axes];
        let group = groups.group_of[rank] as usize;
        let members = &groups.members[group];
        let sharing = f64::from(groups.sharing[group]);
        let mut sources = Vec::with_capacity(members.len());
        for &member in members {
            sources.push(self.source_bytes(rank, member, sequence)?);
        }
        let total = |blocks: &Vec<Bytes>| -> Bytes { blocks.iter().copied().sum() };
        let given: Vec<Bytes> = sources.iter().map(total).collect();
        let bytes = |view: &View| view.bytes(&body.buffers);
        Ok(match kind {
            CollectiveKind::AllReduce { view } => {
                self.costs.allreduce(members, bytes(view), sharing)?
            }
            CollectiveKind::AllGather { .. } => self.costs.allgather(members, &given, sharing)?,
            CollectiveKind::ReduceScatter { sources, .. } => {
                let shares: Vec<Bytes> = sources.iter().map(bytes).collect();
                self.costs.reduce_scatter(members, &shares, sharing)?
            }
            CollectiveKind::AllToAll { .. } => {
                let sent = sources.iter().enumerate().flat_map(|(place, blocks)| {
                    let others = blocks.iter().enumerate();
                    others.filter(move |&(to, _)| to != place)
                });
                let blocks = Blocks {
                    largest: sent.map(|(_, &bytes)| bytes).max().unwrap_or_default(),
                    given: given.iter().copied().max().unwrap_or_default(),
                };
                self.costs.alltoall(members, blocks, sharing)?
            }
        })
    }

    /// What a member gives to a collective, view by view.
    fn source_bytes(
        &self,
        rank: Rank,
        member: Rank,
        sequence: u32,
    ) -> Result<Vec<Bytes>, SimulateError> {
        let index = self.program.class_of[member] as usize;
        let body = &self.program.bodies[index];
        let task = self.facts[index].collectives.get(&sequence);
        match task.map(|&id| &body.tasks[id].work) {
            Some(Work::Collective(collective)) => {
                let sources = collective.kind.sources().iter();
                Ok(sources.map(|view| view.bytes(&body.buffers)).collect())
            }
            Some(Work::Compute { .. } | Work::Exchange(_) | Work::Load(_)) | None => {
                Err(SimulateError::Unmatched {
                    rank,
                    peer: member,
                    work: "collective",
                    sequence,
                })
            }
        }
    }
}
