//! Times of messages and collectives.

use crate::TuneError;
use crate::barrier::{EarlyEnd, median_of_slowest, run_ranks};
use crate::other_memory::OtherMemory;
use partita_oracle::{LinkSizes, LinkTimes, TransferTime};
use partita_program::{
    Access, Body, Buffer, BufferId, Collective, CollectiveKind, Dtype, Exchange, MemberViews,
    Origin, Phase, Program, ProgramKind, Receive, Role, Send, Staging, Task, TaskId, View, Work,
};
use partita_run::{Arena, RunError, Transport};
use partita_space::{Axis, AxisSet, Bytes, Mesh, Offset, Rank, Seconds};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Makes the transports of all ranks of a mesh, in rank order.
pub type TransportMaker<'a> = dyn Fn(Mesh) -> Vec<Box<dyn Transport + std::marker::Send>> + 'a;

/// Allocates the memory of a rank from which messages are sent.
pub type ArenaMaker<'a> = dyn Fn(Rank, Bytes) -> Result<Arena, RunError> + Sync + 'a;

/// Largest collective between hosts, whose networks may be slow.
const NETWORK_MAX: Bytes = Bytes(16 << 20);

/// Before messages and collectives of this size and more, all else that a step does passes through the caches. What they
/// send is then written, since a step sends what it has just computed; where they put it is in no cache.
const COLD_MIN: Bytes = Bytes(1 << 14);

/// Seconds for all repeats of a size.
const BUDGET: f64 = 0.03;

/// Fewest repeats of a size.
const REPEATS_MIN: usize = 5;

/// Most repeats of a size, and of one before which memory passes through the caches, which takes far longer than the
/// message itself.
const REPEATS_MAX: usize = 40;
const REPEATS_COLD_MAX: usize = 8;

/// Longest sleep of a rank between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Sizes of groups, and up to which sizes their collectives and messages are measured.
pub type WantedLinks<'a> = (&'a BTreeSet<usize>, LinkSizes);

/// Ranks on hosts with equally many each, which fill one host after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLayout {
    /// Number of hosts.
    pub hosts: usize,
    /// Ranks on each host.
    pub ranks_per_host: usize,
}

impl HostLayout {
    /// All ranks on one host.
    pub fn single(ranks: usize) -> Self {
        Self {
            hosts: 1,
            ranks_per_host: ranks,
        }
    }

    /// All ranks.
    pub fn ranks(&self) -> usize {
        self.hosts * self.ranks_per_host
    }

    /// The other rank of a pair on the same host; none for the last of an odd number.
    fn neighbor(&self, rank: Rank) -> Option<Rank> {
        let local = rank % self.ranks_per_host;
        let other = local ^ 1;
        (other < self.ranks_per_host).then(|| rank - local + other)
    }

    /// The rank at the same place on the other host of a pair of hosts; none on the last of an odd number.
    fn counterpart(&self, rank: Rank) -> Option<Rank> {
        let host = rank / self.ranks_per_host;
        let other = host ^ 1;
        let at = other * self.ranks_per_host + rank % self.ranks_per_host;
        (other < self.hosts).then_some(at)
    }

    /// Sizes of the groups on one host that can all be measured at once: those that divide its ranks.
    pub fn groups_on_a_host(&self) -> BTreeSet<usize> {
        let divides = |members: &usize| self.ranks_per_host.is_multiple_of(*members);
        match self.hosts {
            1 => (2..=self.ranks_per_host).collect(),
            _ => (2..=self.ranks_per_host).filter(divides).collect(),
        }
    }
}

/// Times exchanges between neighbors and collectives in groups of these sizes, unless they are `known`: of 64 bytes and
/// four times as much each time, up to the sizes that are wanted. As many groups as possible of `ranks` run at the same time.
///
/// What is sent was just written, as in a step; what has 16 KiB and more is received into memory that is in no cache, of
/// which `cache` is the part that a rank has.
/// There is nothing to measure for one rank.
/// Errors: a transport that fails, or no memory. Panics at a group that is
/// larger than `ranks`.
pub fn measure_links(
    ranks: usize,
    wanted: WantedLinks<'_>,
    known: &LinkTimes,
    (transports, arenas, cache): (&TransportMaker<'_>, &ArenaMaker<'_>, Bytes),
    progress: &(dyn Fn(&str) + Sync),
) -> Result<LinkTimes, TuneError> {
    let mut times = LinkTimes::default();
    for sweep in sweeps(HostLayout::single(ranks), wanted, known) {
        progress(&sweep.name());
        let Sweep {
            what, mesh, trials, ..
        } = &sweep;
        let staging = sweep.staging();
        let all = run_ranks(what, transports(*mesh), |barrier, rank, mut transport| {
            let allocated = transport.allocate(&staging);
            allocated.map_err(|source| transport_error((*what).to_owned(), source))?;
            let memory = sweep.memory(rank, arenas, cache)?;
            let mut meet = |_: &mut dyn Transport| Ok(barrier.wait()?);
            sweep.repeats(rank, memory, transport.as_mut(), &mut meet)
        })?;
        put(&mut times, &sweep, points(trials, &all));
    }
    Ok(times)
}

/// The same measurements by a rank that is a process, between ranks of one host: its seconds by size and repeat.
/// [`link_times_of_ranks`] combines those of all ranks.
///
/// `transports` makes the transport of this rank for a program; all ranks call it in the same order. On several
/// hosts, groups must be among [`HostLayout::groups_on_a_host`].
/// Errors: a transport that cannot be made or that fails.
pub fn measure_links_of_rank(
    (rank, layout): (Rank, HostLayout),
    wanted: WantedLinks<'_>,
    known: &LinkTimes,
    (transports, arenas, cache): (&mut RankTransportMaker<'_>, &ArenaMaker<'_>, Bytes),
) -> Result<RankTimes, TuneError> {
    let sweeps = sweeps(layout, wanted, known);
    let all = sweeps.iter();
    all.map(|sweep| sweep.times_of_rank(rank, transports, (arenas, cache)))
        .collect()
}

/// Combines what each rank measured, in rank order.
pub fn link_times_of_ranks(
    layout: HostLayout,
    wanted: WantedLinks<'_>,
    known: &LinkTimes,
    rank_times: &[RankTimes],
) -> LinkTimes {
    let mut times = LinkTimes::default();
    for (index, sweep) in sweeps(layout, wanted, known).iter().enumerate() {
        put(&mut times, sweep, sweep.points_of_ranks(index, rank_times));
    }
    times
}

/// Times between ranks of several hosts, by how many ranks of each host take part.
///
/// Messages are those of pairs of ranks on two hosts: one pair alone under 1, as many pairs as a host has ranks at
/// once under that number. Groups have 1 rank on each of their hosts, as many groups at once as a host has ranks,
/// or all ranks of their hosts.
pub type NetworkTimes = BTreeMap<usize, LinkTimes>;

/// Measures messages and collectives between hosts as one of their ranks; [`network_times_of_ranks`] combines those
/// of all ranks. There is nothing to measure for one host.
///
/// Errors: a transport that cannot be made or that fails.
pub fn measure_network_of_rank(
    (rank, layout): (Rank, HostLayout),
    (transports, arenas, cache): (&mut RankTransportMaker<'_>, &ArenaMaker<'_>, Bytes),
) -> Result<RankTimes, TuneError> {
    let sweeps = network_sweeps(layout);
    let all = sweeps.iter();
    all.map(|(_, sweep)| sweep.times_of_rank(rank, transports, (arenas, cache)))
        .collect()
}

/// Combines what each rank measured, in rank order.
pub fn network_times_of_ranks(layout: HostLayout, rank_times: &[RankTimes]) -> NetworkTimes {
    let mut times = NetworkTimes::new();
    for (index, (per_host, sweep)) in network_sweeps(layout).iter().enumerate() {
        let of_as_many = times.entry(*per_host).or_default();
        put(of_as_many, sweep, sweep.points_of_ranks(index, rank_times));
    }
    times
}

fn put(times: &mut LinkTimes, sweep: &Sweep, points: Vec<TransferTime>) {
    let groups = match sweep.kind {
        Kind::Message => {
            times.message = points;
            return;
        }
        Kind::AllReduce => &mut times.allreduce,
        Kind::AllGather => &mut times.allgather,
        Kind::ReduceScatter => &mut times.reduce_scatter,
        Kind::AllToAll => &mut times.alltoall,
    };
    groups.insert(sweep.members, points);
}

/// Makes the transport of a rank that is a process for a program.
pub type RankTransportMaker<'a> =
    dyn FnMut(&Program) -> Result<Box<dyn Transport + 'a>, TuneError> + 'a;

/// Times measured by a rank: by sweep, then by size.
pub type RankTimes = Vec<Vec<RepeatTimes>>;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
}

/// All sizes of one kind of communication and group.
struct Sweep {
    kind: Kind,
    what: &'static str,
    members: usize,
    mesh: Mesh,
    trials: Vec<Trial>,
}

/// What is left to measure within hosts.
fn sweeps(layout: HostLayout, (groups, sizes): WantedLinks<'_>, known: &LinkTimes) -> Vec<Sweep> {
    let ranks = layout.ranks();
    let mut sweeps = Vec::new();
    if layout.ranks_per_host < 2 {
        return sweeps;
    }
    if !known.has_messages(sizes) {
        sweeps.push(Sweep::of_messages(
            ranks,
            sizes.message,
            "messages",
            |rank| layout.neighbor(rank),
        ));
    }
    let missing = |members: &usize| *members > 1 && !known.has_group(*members, sizes);
    for members in groups.iter().copied().filter(missing) {
        assert!(
            members <= ranks
                && (layout.hosts == 1 || layout.ranks_per_host.is_multiple_of(members)),
            "a group of {members} on hosts of {} ranks",
            layout.ranks_per_host
        );
        let mesh = Mesh::new([ranks / members, members, 1, 1, 1, 1, 1]);
        sweeps.extend(Sweep::of_collectives(
            mesh,
            ranks,
            members,
            sizes.collective,
        ));
    }
    sweeps
}

/// What is measured between hosts, with the number of ranks of each host that take part in a group or at once.
fn network_sweeps(layout: HostLayout) -> Vec<(usize, Sweep)> {
    let HostLayout {
        hosts,
        ranks_per_host,
    } = layout;
    let ranks = layout.ranks();
    let mut sweeps = Vec::new();
    if hosts < 2 {
        return sweeps;
    }
    let first = |rank: Rank| {
        layout
            .counterpart(rank)
            .filter(|_| rank.is_multiple_of(ranks_per_host))
    };
    let alone = Sweep::of_messages(
        ranks,
        LinkSizes::ALL.message,
        "messages between two hosts",
        first,
    );
    sweeps.push((1, alone));
    if ranks_per_host > 1 {
        let all = |rank: Rank| layout.counterpart(rank);
        let what = "messages between hosts, all ranks at once";
        sweeps.push((
            ranks_per_host,
            Sweep::of_messages(ranks, LinkSizes::ALL.message, what, all),
        ));
    }
    for of_group in (2..=hosts).filter(|some| hosts.is_multiple_of(*some)) {
        let apart = hosts / of_group;
        let strided = Mesh::new([apart, of_group, ranks_per_host, 1, 1, 1, 1]);
        let one_each = Sweep::of_collectives(strided, ranks, of_group, NETWORK_MAX);
        sweeps.extend(one_each.into_iter().map(|sweep| (1, sweep)));
        if ranks_per_host > 1 {
            let members = of_group * ranks_per_host;
            let whole = Mesh::new([apart, members, 1, 1, 1, 1, 1]);
            let all = Sweep::of_collectives(whole, ranks, members, NETWORK_MAX);
            sweeps.extend(all.into_iter().map(|sweep| (ranks_per_host, sweep)));
        }
    }
    sweeps
}

fn sizes(max: Bytes) -> impl Iterator<Item = Bytes> {
    (3..)
        .map(|power| Bytes(1 << (2 * power)))
        .take_while(move |bytes| *bytes <= max)
}

/// One size: a body with one task for each rank, none for a rank without a peer.
struct Trial {
    bytes: Bytes,
    bodies: Vec<Option<Body>>,
}

/// Makes a trial from the number of ranks, the members of a group, and the bytes.
type TrialMaker = fn(usize, usize, Bytes) -> Trial;

/// By repeat: seconds, and the host overhead in them.
pub type RepeatTimes = Vec<[f64; 2]>;

impl Sweep {
    /// Messages between the pairs of `peer`.
    fn of_messages(
        ranks: usize,
        most: Bytes,
        what: &'static str,
        peer: impl Fn(Rank) -> Option<Rank>,
    ) -> Self {
        let works = sizes(most).map(|bytes| message(ranks, bytes, &peer));
        Self {
            kind: Kind::Message,
            what,
            members: 2,
            mesh: Mesh::new([ranks, 1, 1, 1, 1, 1, 1]),
            trials: works.collect(),
        }
    }

    /// All collectives up to a size, of the groups along the second axis of a mesh.
    fn of_collectives(mesh: Mesh, ranks: usize, members: usize, most: Bytes) -> Vec<Self> {
        let kinds: [(Kind, &'static str, TrialMaker); 4] = [
            (Kind::AllReduce, "allreduces", allreduce),
            (Kind::AllGather, "allgathers", allgather),
            (Kind::ReduceScatter, "reduce-scatters", reduce_scatter),
            (Kind::AllToAll, "all-to-alls", alltoall),
        ];
        let sweep = |(kind, what, trial): (Kind, &'static str, TrialMaker)| Self {
            kind,
            what,
            members,
            mesh,
            trials: sizes(most)
                .map(|bytes| trial(ranks, members, bytes))
                .collect(),
        };
        kinds.into_iter().map(sweep).collect()
    }

    /// Times of a rank that is a process, by size and repeat; none of a rank outside of all groups.
    fn times_of_rank(
        &self,
        rank: Rank,
        transports: &mut RankTransportMaker<'_>,
        (arenas, cache): (&ArenaMaker<'_>, Bytes),
    ) -> Result<Vec<RepeatTimes>, TuneError> {
        if rank >= self.mesh.ranks() {
            return Ok(Vec::new());
        }
        let mut transport = transports(&self.program())?;
        // Ranks leave an allreduce over all of them at about the same time.
        let barrier_body = barrier_body();
        let mut of_barrier = self.allocated(rank, barrier_body.arena, &Arena::of_rank)?;
        let mut meet =
            |transport: &mut dyn Transport| match once(&barrier_body, &mut of_barrier, transport) {
                Ok(_) => Ok(()),
                Err(source) => Err(transport_error(self.what.to_owned(), source).into()),
            };
        let memory = self.memory(rank, arenas, cache)?;
        match self.repeats(rank, memory, transport.as_mut(), &mut meet) {
            Ok(all) => Ok(all),
            Err(EarlyEnd::Failed(error)) => Err(error),
            Err(EarlyEnd::Aborted) => panic!("processes have no barrier to abort"),
        }
    }

    /// Points of this sweep, which is number `index` of what all ranks measured.
    fn points_of_ranks(&self, index: usize, rank_times: &[RankTimes]) -> Vec<TransferTime> {
        let taking_part = rank_times.iter().take(self.mesh.ranks());
        let all: Vec<Vec<RepeatTimes>> = taking_part.map(|rank| rank[index].clone()).collect();
        points(&self.trials, &all)
    }

    fn name(&self) -> String {
        match self.kind {
            Kind::Message => self.what.to_owned(),
            Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll => {
                format!("{} of {} ranks", self.what, self.members)
            }
        }
    }

    /// A program with the largest trial, and the barrier between trials.
    fn program(&self) -> Program {
        let ranks = self.mesh.ranks();
        let last = self.trials.last().map(|trial| trial.bodies.clone());
        let mut bodies: Vec<Body> = last.unwrap_or_default().into_iter().flatten().collect();
        bodies.push(barrier_body());
        let staging = self.staging();
        bodies.iter_mut().for_each(|body| body.staging = staging);
        Program {
            title: self.name(),
            kind: ProgramKind::Train,
            dtype: Dtype::F32,
            batch: 1,
            mesh: self.mesh,
            local_statistics: partita_space::AxisSet::NONE,
            bodies,
            class_of: vec![0; ranks],
        }
    }

    /// Pools for the largest trial, and the barrier between trials.
    fn staging(&self) -> Staging {
        let last = self.trials.last().into_iter();
        let bodies = last.flat_map(|trial| trial.bodies.iter().flatten());
        let all = bodies.map(|body| Staging::of(body, &self.mesh));
        all.fold(Staging::of(&barrier_body(), &self.mesh), Staging::max)
    }

    /// Memory of a rank for its largest trial, and for what passes through its part of the caches before.
    fn memory(
        &self,
        rank: Rank,
        arenas: &ArenaMaker<'_>,
        cache: Bytes,
    ) -> Result<(Arena, OtherMemory), TuneError> {
        let bodies = self
            .trials
            .iter()
            .filter_map(|trial| trial.bodies.get(rank));
        let sizes = bodies.flatten().map(|body| body.arena);
        let arena = self.allocated(rank, sizes.max().unwrap_or_default(), arenas)?;
        let has_cold = self.trials.iter().any(|trial| trial.bytes >= COLD_MIN);
        let most = Bytes(if has_cold { u64::MAX } else { 0 });
        let others = OtherMemory::new(self.what, rank, cache, most)?;
        Ok((arena, others))
    }

    fn allocated(
        &self,
        rank: Rank,
        bytes: Bytes,
        arenas: &ArenaMaker<'_>,
    ) -> Result<Arena, TuneError> {
        let what = self.what;
        arenas(rank, bytes).map_err(|error| match error {
            RunError::Memory { .. } => TuneError::Memory { rank, what, bytes },
            other => transport_error(what.to_owned(), other),
        })
    }

    /// Times of a rank by size, then by repeat, from this memory; `meet` is a barrier.
    fn repeats(
        &self,
        rank: Rank,
        (mut arena, mut others): (Arena, OtherMemory),
        transport: &mut dyn Transport,
        meet: &mut dyn FnMut(&mut dyn Transport) -> Result<(), EarlyEnd>,
    ) -> Result<Vec<RepeatTimes>, EarlyEnd> {
        // Ranks of an incomplete group have no trial.
        let body_of = |trial: &'_ Trial| trial.bodies.get(rank).cloned().flatten();
        let bodies: Vec<Option<Body>> = self.trials.iter().map(body_of).collect();
        arena.touch();
        let mut all = Vec::with_capacity(self.trials.len());
        for (trial, body) in self.trials.iter().zip(&bodies) {
            let mut times = Vec::new();
            // The first one warms up.
            for turn in 0..=repeats(trial.bytes) {
                if trial.bytes >= COLD_MIN {
                    others.pass(Bytes(u64::MAX));
                    body.iter().for_each(|body| write_sent(body, &mut arena));
                }
                meet(transport)?;
                let time = match body {
                    Some(body) => once(body, &mut arena, transport).map_err(|source| {
                        transport_error(format!("{} of {}", self.what, trial.bytes), source)
                    })?,
                    None => [0.0; 2],
                };
                meet(transport)?;
                if turn > 0 {
                    times.push(time);
                }
            }
            all.push(times);
        }
        Ok(all)
    }
}

/// Writes what the task of a body sends, as the kernels before it would have.
fn write_sent(body: &Body, arena: &mut Arena) {
    let memory = arena.memory(body);
    for (view, access) in body.tasks[0].accesses() {
        if access != Access::Write && memory.device().is_none() {
            memory.write::<f32>(&view).data_mut().fill(0.0);
        }
    }
}

fn transport_error(what: String, source: RunError) -> TuneError {
    let source = Box::new(source);
    TuneError::Transport { what, source }
}

/// An allreduce of one number over all ranks, as a barrier.
fn barrier_body() -> Body {
    let kind = CollectiveKind::AllReduce {
        views: vec![row(0, 0, 1)],
    };
    body_of(
        &[[1, 1]],
        Work::Collective(Collective {
            sequence: 2,
            group: AxisSet::of(partita_space::AXES),
            submesh: None,
            kind,
        }),
    )
}

/// Combines the times of all ranks by size.
fn points(trials: &[Trial], all: &[Vec<RepeatTimes>]) -> Vec<TransferTime> {
    let point = |(index, trial): (usize, &Trial)| {
        let column = |part: usize| {
            let of_rank = |rank: &Vec<RepeatTimes>| -> Vec<f64> {
                rank[index].iter().map(|time| time[part]).collect()
            };
            let all: Vec<Vec<f64>> = all.iter().map(of_rank).collect();
            let all: Vec<&[f64]> = all.iter().map(Vec::as_slice).collect();
            Seconds(median_of_slowest(&all))
        };
        TransferTime {
            bytes: trial.bytes,
            seconds: column(0),
            host: column(1),
        }
    };
    trials.iter().enumerate().map(point).collect()
}

/// All ranks must repeat equally often, so the number follows from the size and an assumed 1 GB/s.
fn repeats(bytes: Bytes) -> usize {
    let once = 2e-5 + bytes.0 as f64 * 1e-9;
    let most = if bytes >= COLD_MIN {
        REPEATS_COLD_MAX
    } else {
        REPEATS_MAX
    };
    ((BUDGET / once) as usize).clamp(REPEATS_MIN, most)
}

fn once(
    body: &Body,
    arena: &mut Arena,
    transport: &mut dyn Transport,
) -> Result<[f64; 2], RunError> {
    let memory = arena.memory(body);
    let mut done = Vec::new();
    let mut host = 0.0;
    let start = Instant::now();
    let mut working = start;
    let mut has_started = false;
    loop {
        // Packets of the last repeat may still be with other ranks.
        has_started = has_started
            || match &body.tasks[0].work {
                Work::Exchange(exchange) => {
                    transport.start_exchange(TaskId(0), exchange, &memory)?
                }
                Work::Collective(collective) => {
                    transport.start_collective(TaskId(0), collective, &memory)?
                }
                Work::Compute { .. } | Work::Load(_) | Work::Store(_) => {
                    panic!("a trial communicates")
                }
            };
        transport.poll(&memory, &mut done)?;
        host += working.elapsed().as_secs_f64();
        if !done.is_empty() {
            return Ok([start.elapsed().as_secs_f64(), host]);
        }
        transport.wait(POLL_INTERVAL);
        working = Instant::now();
    }
}

/// Exchanges between the pairs of `peer`, along the first axis.
fn message(ranks: usize, bytes: Bytes, peer: &dyn Fn(Rank) -> Option<Rank>) -> Trial {
    let length = (bytes.0 / 4) as usize;
    let body = |rank: Rank| {
        peer(rank).map(|peer| {
            let mut to = Offset([0; 7]);
            to.0[Axis::Data.index()] = peer as i32 - rank as i32;
            let work = Work::Exchange(Exchange {
                sequence: 1,
                sends: vec![Send {
                    to,
                    part: 0,
                    view: row(0, 0, length),
                }],
                receives: vec![Receive {
                    from: to,
                    part: 0,
                    view: row(1, 0, length),
                    accumulate: false,
                }],
            });
            body_of(&[[1, length], [1, length]], work)
        })
    };
    Trial {
        bytes,
        bodies: (0..ranks).map(body).collect(),
    }
}

fn allreduce(ranks: usize, _members: usize, bytes: Bytes) -> Trial {
    let length = (bytes.0 / 4) as usize;
    let kind = CollectiveKind::AllReduce {
        views: vec![row(0, 0, length)],
    };
    let body = body_of(&[[1, length]], collective(kind));
    Trial {
        bytes,
        bodies: vec![Some(body); ranks],
    }
}

fn allgather(ranks: usize, members: usize, bytes: Bytes) -> Trial {
    let length = share(members, bytes);
    let kind = CollectiveKind::AllGather {
        source: row(0, 0, length),
        targets: rows(1, members, length),
    };
    shared(ranks, members, length, [1, members], kind)
}

fn reduce_scatter(ranks: usize, members: usize, bytes: Bytes) -> Trial {
    let length = share(members, bytes);
    let kind = CollectiveKind::ReduceScatter {
        sources: rows(0, members, length),
        target: row(1, 0, length),
    };
    shared(ranks, members, length, [members, 1], kind)
}

fn alltoall(ranks: usize, members: usize, bytes: Bytes) -> Trial {
    let length = share(members, bytes);
    let kind = CollectiveKind::AllToAll {
        sources: rows(0, members, length),
        targets: rows(1, members, length),
    };
    shared(ranks, members, length, [members, members], kind)
}

/// Elements of one member if all have this many bytes.
fn share(members: usize, bytes: Bytes) -> usize {
    (bytes.0 as usize / 4 / members).max(1)
}

/// A collective of shares of this length, with this many shares in each of its two buffers.
fn shared(
    ranks: usize,
    members: usize,
    length: usize,
    of: [usize; 2],
    kind: CollectiveKind,
) -> Trial {
    let body = body_of(&of.map(|count| [count, length]), collective(kind));
    Trial {
        bytes: Bytes((4 * length * members) as u64),
        bodies: vec![Some(body); ranks],
    }
}

fn rows(buffer: u32, count: usize, length: usize) -> MemberViews {
    (0..count).map(|at| row(buffer, at, length)).collect()
}

fn collective(kind: CollectiveKind) -> Work {
    Work::Collective(Collective {
        sequence: 1,
        group: AxisSet::of([Axis::Depth]),
        submesh: None,
        kind,
    })
}

fn row(buffer: u32, at: usize, length: usize) -> View {
    View {
        buffer: BufferId(buffer),
        start: [0, 0, 0, at, 0],
        extent: [1, 1, 1, 1, length],
    }
}

fn body_of(buffers: &[[usize; 2]], work: Work) -> Body {
    let mut end = 0;
    let mut all = Vec::new();
    for (index, &[rows, length]) in buffers.iter().enumerate() {
        let buffer = Buffer {
            name: format!("part {index}"),
            role: Role::Activation,
            dtype: Dtype::F32,
            dims: [1, 1, 1, rows, length],
            tensor: None,
            offset: Bytes(end),
        };
        end = (end + buffer.bytes().0).next_multiple_of(64);
        all.push(buffer);
    }
    Body {
        buffers: all,
        tasks: vec![Task {
            origin: Origin {
                layer: "measurement".to_owned(),
                phase: Phase::Forward,
                turn: 0,
            },
            after: Vec::new(),
            work,
        }],
        outputs: Vec::new(),
        arena: Bytes(end),
        ..Body::default()
    }
}
