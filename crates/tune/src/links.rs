//! Times of messages and collectives.

use crate::TuneError;
use crate::gate::{Stop, median_of_slowest, memory_of, together};
use partita_oracle::{LinkTimes, Point};
use partita_program::{
    Body, Buffer, BufferId, Collective, CollectiveKind, Dtype, Exchange, Origin, Phase, Program,
    ProgramKind, Receive, Role, Send, Staging, Task, TaskId, View, Work,
};
use partita_run::{Arena, RunError, Transport};
use partita_space::{Axis, AxisSet, Bytes, Mesh, Offset, Rank, Seconds};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Makes the transports of all ranks of a mesh, in rank order.
pub type TransportMaker<'a> = dyn Fn(Mesh) -> Vec<Box<dyn Transport + std::marker::Send>> + 'a;

/// Largest message; sizes grow by a factor of 4 from 64 bytes.
const MESSAGE_MAX: u64 = 16 << 20;

/// Largest collective.
const COLLECTIVE_MAX: u64 = 64 << 20;

/// Repeats of a size take about this long in all.
const BUDGET: f64 = 0.03;

/// Fewest repeats of a size.
const REPEATS_MIN: usize = 5;

/// Most repeats of a size.
const REPEATS_MAX: usize = 40;

/// How long a rank sleeps at most before it looks around again.
const NAP: Duration = Duration::from_millis(20);

/// Times what is not `known` of exchanges of 64 bytes to 16 MiB between neighbors, and of collectives of
/// 64 bytes to 64 MiB in groups of these sizes: as many groups as `ranks` have room for, all at work at
/// the same time.
///
/// One rank has nothing to say. Errors: a transport that fails. Panics at a group that is larger than
/// `ranks`.
pub fn measure_links(
    ranks: usize,
    groups: &BTreeSet<usize>,
    known: &LinkTimes,
    transports: &TransportMaker<'_>,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<LinkTimes, TuneError> {
    let mut times = LinkTimes::default();
    for sweep in sweeps(ranks, groups, known) {
        progress(&sweep.name());
        let Sweep {
            what, mesh, trials, ..
        } = &sweep;
        let staging = sweep.staging();
        let all = together(what, transports(*mesh), |gate, rank, mut transport| {
            let allocated = transport.allocate(&staging);
            allocated.map_err(|source| transport_error((*what).to_owned(), source))?;
            sweep.repeats(rank, transport.as_mut(), &mut |_| Ok(gate.wait()?))
        })?;
        put(&mut times, &sweep, points(trials, &all));
    }
    Ok(times)
}

/// The part of a rank that is a process in the same measurements: seconds of every repeat of every size.
/// What all ranks found makes [`link_times_of_ranks`].
///
/// `transports` makes the transport of this rank for a program; all ranks call it in the same order.
/// Errors: a transport that cannot be made or that fails.
pub fn measure_links_of_rank(
    (rank, ranks): (Rank, usize),
    groups: &BTreeSet<usize>,
    known: &LinkTimes,
    transports: &mut RankTransportMaker<'_>,
) -> Result<OwnTimes, TuneError> {
    let mut own = Vec::new();
    for sweep in sweeps(ranks, groups, known) {
        if rank >= sweep.mesh.ranks() {
            own.push(Vec::new());
            continue;
        }
        let mut transport = transports(&sweep.program())?;
        // Ranks leave a sum over all of them at about the same moment.
        let barrier = barrier();
        let mut arena = memory_of(sweep.what, rank, barrier.arena)?;
        let all = sweep.repeats(rank, transport.as_mut(), &mut |transport| match once(
            &barrier, &mut arena, transport,
        ) {
            Ok(_) => Ok(()),
            Err(source) => Err(transport_error(sweep.what.to_owned(), source).into()),
        });
        own.push(match all {
            Ok(all) => all,
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Broken) => panic!("there is no gate to break"),
        });
    }
    Ok(own)
}

/// From what the ranks found, in rank order, that took part in the measurement of `groups`.
pub fn link_times_of_ranks(
    groups: &BTreeSet<usize>,
    known: &LinkTimes,
    own: &[OwnTimes],
) -> LinkTimes {
    let mut times = LinkTimes::default();
    for (index, sweep) in sweeps(own.len(), groups, known).iter().enumerate() {
        let taking_part = own.iter().take(sweep.mesh.ranks());
        let all: Vec<Vec<Times>> = taking_part.map(|rank| rank[index].clone()).collect();
        put(&mut times, sweep, points(&sweep.trials, &all));
    }
    times
}

fn put(times: &mut LinkTimes, sweep: &Sweep, points: Vec<Point>) {
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

/// What a rank found: by sweep, by size, seconds of a repeat and those in which its thread worked.
pub type OwnTimes = Vec<Vec<Times>>;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
}

/// All sizes of one kind.
struct Sweep {
    kind: Kind,
    what: &'static str,
    members: usize,
    mesh: Mesh,
    trials: Vec<Trial>,
}

/// What is not known of the messages of so many ranks, and of their collectives in these groups.
fn sweeps(ranks: usize, groups: &BTreeSet<usize>, known: &LinkTimes) -> Vec<Sweep> {
    let mut sweeps = Vec::new();
    if ranks < 2 {
        return sweeps;
    }
    if known.message.is_empty() {
        let works = sizes(MESSAGE_MAX).map(|bytes| message(ranks, bytes));
        sweeps.push(Sweep {
            kind: Kind::Message,
            what: "messages",
            members: 2,
            mesh: Mesh::new([ranks, 1, 1, 1, 1, 1, 1]),
            trials: works.collect(),
        });
    }
    let missing = |members: &usize| *members > 1 && !known.has_group(*members);
    for members in groups.iter().copied().filter(missing) {
        assert!(members <= ranks, "a group of {members} among {ranks} ranks");
        let mesh = Mesh::new([ranks / members, members, 1, 1, 1, 1, 1]);
        let kinds: [(Kind, &'static str, Trier); 4] = [
            (Kind::AllReduce, "allreduces", allreduce),
            (Kind::AllGather, "allgathers", allgather),
            (Kind::ReduceScatter, "reduce-scatters", reduce_scatter),
            (Kind::AllToAll, "all-to-alls", alltoall),
        ];
        for (kind, what, trial) in kinds {
            let works = sizes(COLLECTIVE_MAX).map(|bytes| trial(ranks, members, bytes));
            sweeps.push(Sweep {
                kind,
                what,
                members,
                mesh,
                trials: works.collect(),
            });
        }
    }
    sweeps
}

fn sizes(max: u64) -> impl Iterator<Item = Bytes> {
    (3..)
        .map(|power| Bytes(1 << (2 * power)))
        .take_while(move |bytes| bytes.0 <= max)
}

/// One size: a body with one task for each rank; none for a rank without a peer.
struct Trial {
    bytes: Bytes,
    bodies: Vec<Option<Body>>,
}

/// Makes the trial of a size for so many ranks in groups of so many members.
type Trier = fn(usize, usize, Bytes) -> Trial;

/// Seconds of a repeat, and those in which the thread worked.
pub type Times = Vec<[f64; 2]>;

impl Sweep {
    fn name(&self) -> String {
        match self.kind {
            Kind::Message => self.what.to_owned(),
            Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll => {
                format!("{} of {} ranks", self.what, self.members)
            }
        }
    }

    /// A program with the largest trial, and the sum over all ranks between trials.
    fn program(&self) -> Program {
        let ranks = self.mesh.ranks();
        let last = self.trials.last().map(|trial| trial.bodies.clone());
        let mut bodies: Vec<Body> = last.unwrap_or_default().into_iter().flatten().collect();
        bodies.push(barrier());
        let staging = self.staging();
        bodies.iter_mut().for_each(|body| body.staging = staging);
        Program {
            title: self.name(),
            kind: ProgramKind::Train,
            dtype: Dtype::F32,
            batch: 1,
            mesh: self.mesh,
            bodies,
            class_of: vec![0; ranks],
        }
    }

    /// Pools for the largest trial, and the sum over all ranks between trials.
    fn staging(&self) -> Staging {
        let last = self.trials.last().into_iter();
        let bodies = last.flat_map(|trial| trial.bodies.iter().flatten());
        let all = bodies.map(|body| Staging::of(body, &self.mesh));
        all.fold(Staging::of(&barrier(), &self.mesh), Staging::max)
    }

    /// Seconds of a rank by size, then by repeat; `meet` lets all ranks start together.
    fn repeats(
        &self,
        rank: Rank,
        transport: &mut dyn Transport,
        meet: &mut dyn FnMut(&mut dyn Transport) -> Result<(), Stop>,
    ) -> Result<Vec<Times>, Stop> {
        // A group that is not full has no trial for its ranks.
        let body_of = |trial: &'_ Trial| trial.bodies.get(rank).cloned().flatten();
        let bodies: Vec<Option<Body>> = self.trials.iter().map(body_of).collect();
        let sizes = bodies.iter().flatten().map(|body| body.arena);
        let bytes = sizes.max().unwrap_or_default();
        let mut arena = memory_of(self.what, rank, bytes)?;
        arena.touch();
        let mut all = Vec::with_capacity(self.trials.len());
        for (trial, body) in self.trials.iter().zip(&bodies) {
            let mut times = Vec::new();
            // The first one touches what the others find in caches.
            for turn in 0..=repeats(trial.bytes) {
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

fn transport_error(what: String, source: RunError) -> TuneError {
    let source = Box::new(source);
    TuneError::Transport { what, source }
}

/// A sum of one number over all ranks.
fn barrier() -> Body {
    let kind = CollectiveKind::AllReduce { view: row(0, 0, 1) };
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

/// The times of all ranks at each size.
fn points(trials: &[Trial], all: &[Vec<Times>]) -> Vec<Point> {
    let point = |(index, trial): (usize, &Trial)| {
        let column = |part: usize| {
            let of_rank = |rank: &Vec<Times>| -> Vec<f64> {
                rank[index].iter().map(|time| time[part]).collect()
            };
            let all: Vec<Vec<f64>> = all.iter().map(of_rank).collect();
            let all: Vec<&[f64]> = all.iter().map(Vec::as_slice).collect();
            Seconds(median_of_slowest(&all))
        };
        Point {
            bytes: trial.bytes,
            seconds: column(0),
            host: column(1),
        }
    };
    trials.iter().enumerate().map(point).collect()
}

/// All ranks repeat as often, so the number must not depend on what one of them measured: it follows
/// from the size and an assumed 1 GB/s.
fn repeats(bytes: Bytes) -> usize {
    let once = 2e-5 + bytes.0 as f64 * 1e-9;
    ((BUDGET / once) as usize).clamp(REPEATS_MIN, REPEATS_MAX)
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
                Work::Compute { .. } | Work::Load(_) => panic!("a trial is communication"),
            };
        transport.poll(&memory, &mut done)?;
        host += working.elapsed().as_secs_f64();
        if !done.is_empty() {
            return Ok([start.elapsed().as_secs_f64(), host]);
        }
        transport.wait(NAP);
        working = Instant::now();
    }
}

fn message(ranks: usize, bytes: Bytes) -> Trial {
    let length = (bytes.0 / 4) as usize;
    let body = |rank: Rank| {
        let mut to = Offset([0; 7]);
        let peer = rank ^ 1;
        to.0[Axis::Data.index()] = if peer > rank { 1 } else { -1 };
        (peer < ranks).then(|| {
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
        view: row(0, 0, length),
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

/// Elements of one member of so many that have these bytes together.
fn share(members: usize, bytes: Bytes) -> usize {
    (bytes.0 as usize / 4 / members).max(1)
}

/// A collective of shares of this length, with so many rows of them in its two buffers.
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

fn rows(buffer: u32, count: usize, length: usize) -> Vec<View> {
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
