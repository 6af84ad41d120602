use crate::TuneError;
use crate::gate::{Gate, Stop, median_of_slowest, together};
use partita_program::{
    Body, Buffer, BufferId, Collective, CollectiveKind, Dtype, Exchange, Origin, Phase, Receive,
    Role, Send, Task, TaskId, View, Work,
};
use partita_run::{Arena, RunError, Transport};
use partita_space::{Axis, AxisSet, Bytes, Mesh, Offset, Rank, Seconds};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
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

/// Times of a collective by size, by number of members.
type Groups = BTreeMap<usize, Vec<Point>>;

/// The time of a size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The size.
    pub bytes: Bytes,
    /// Median over repeats of the slowest rank's time, from a common start to completion.
    pub seconds: Seconds,
    /// Part of it in which the rank's own thread worked and so could run no kernel.
    pub host: Seconds,
}

/// Times of what ranks say to each other, by size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkTimes {
    /// Messages between two ranks that send as much to each other; bytes of one of the two.
    pub message: Vec<Point>,
    /// Allreduces by number of members; bytes of one member's view.
    pub allreduce: Groups,
    /// Allgathers by number of members; bytes of all members' views together.
    pub allgather: Groups,
    /// Reduce-scatters by number of members; bytes of all shares together. Files of before there were
    /// any lack these and the next.
    #[serde(default)]
    pub reduce_scatter: Groups,
    /// All-to-alls by number of members; bytes of all blocks of one member.
    #[serde(default)]
    pub alltoall: Groups,
}

impl LinkTimes {
    /// Whether every collective was measured over this many ranks.
    pub fn has_group(&self, members: usize) -> bool {
        let all = [
            &self.allreduce,
            &self.allgather,
            &self.reduce_scatter,
            &self.alltoall,
        ];
        all.iter().all(|times| times.contains_key(&members))
    }

    /// Takes in everything of `newer`.
    pub(crate) fn merge(&mut self, newer: &Self) {
        if !newer.message.is_empty() {
            self.message.clone_from(&newer.message);
        }
        let merge = |own: &mut Groups, new: &Groups| {
            own.extend(
                new.iter()
                    .map(|(&members, points)| (members, points.clone())),
            );
        };
        merge(&mut self.allreduce, &newer.allreduce);
        merge(&mut self.allgather, &newer.allgather);
        merge(&mut self.reduce_scatter, &newer.reduce_scatter);
        merge(&mut self.alltoall, &newer.alltoall);
    }
}

/// Seconds of the rank's thread for each byte, over all points together.
///
/// `bytes_per_byte` is how many bytes pass through the thread for each byte of a point: 2 for a
/// message, which is packed at one end and unpacked at the other, 1 for a collective.
pub fn host_seconds_per_byte(points: &[Point], bytes_per_byte: f64) -> f64 {
    let bytes: f64 = points.iter().map(|point| point.bytes.0 as f64).sum();
    let host: f64 = points.iter().map(|point| point.host.0).sum();
    if bytes > 0.0 {
        host / (bytes * bytes_per_byte)
    } else {
        0.0
    }
}

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
    if ranks < 2 {
        return Ok(times);
    }
    if known.message.is_empty() {
        progress("messages");
        let line = Mesh::new([ranks, 1, 1, 1, 1, 1, 1]);
        let works = sizes(MESSAGE_MAX).map(|bytes| message(ranks, bytes));
        times.message = sweep("messages", transports(line), works.collect())?;
    }
    let missing = |members: &usize| *members > 1 && !known.has_group(*members);
    for members in groups.iter().copied().filter(missing) {
        assert!(members <= ranks, "a group of {members} among {ranks} ranks");
        let mesh = Mesh::new([ranks / members, members, 1, 1, 1, 1, 1]);
        let measured: [(&'static str, Trier, &mut BTreeMap<_, _>); 4] = [
            ("allreduces", allreduce, &mut times.allreduce),
            ("allgathers", allgather, &mut times.allgather),
            ("reduce-scatters", reduce_scatter, &mut times.reduce_scatter),
            ("all-to-alls", alltoall, &mut times.alltoall),
        ];
        for (what, trial, times) in measured {
            progress(&format!("{what} of {members} ranks"));
            let works = sizes(COLLECTIVE_MAX).map(|bytes| trial(mesh.ranks(), members, bytes));
            times.insert(members, sweep(what, transports(mesh), works.collect())?);
        }
    }
    Ok(times)
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
type Times = Vec<[f64; 2]>;

fn sweep(
    what: &'static str,
    transports: Vec<Box<dyn Transport + std::marker::Send>>,
    trials: Vec<Trial>,
) -> Result<Vec<Point>, TuneError> {
    let times = together(what, transports, |gate, rank, mut transport| {
        let bodies = trials
            .iter()
            .filter_map(|trial| trial.bodies[rank].as_ref());
        let mut arena = Arena::new(bodies.map(|body| body.arena).max().unwrap_or_default());
        arena.touch();
        let mut all: Vec<Times> = Vec::with_capacity(trials.len());
        for trial in &trials {
            let body = trial.bodies[rank].as_ref();
            all.push(repeat(
                what,
                trial.bytes,
                body,
                &mut arena,
                transport.as_mut(),
                gate,
            )?);
        }
        Ok(all)
    })?;
    let point = |(index, trial): (usize, &Trial)| {
        let column = |part: usize| {
            let of_rank = |rank: &Vec<Times>| -> Vec<f64> {
                rank[index].iter().map(|time| time[part]).collect()
            };
            let all: Vec<Vec<f64>> = times.iter().map(of_rank).collect();
            let all: Vec<&[f64]> = all.iter().map(Vec::as_slice).collect();
            Seconds(median_of_slowest(&all))
        };
        Point {
            bytes: trial.bytes,
            seconds: column(0),
            host: column(1),
        }
    };
    Ok(trials.iter().enumerate().map(point).collect())
}

/// All ranks repeat as often, so the number must not depend on what one of them measured: it follows
/// from the size and an assumed 1 GB/s.
fn repeats(bytes: Bytes) -> usize {
    let once = 2e-5 + bytes.0 as f64 * 1e-9;
    ((BUDGET / once) as usize).clamp(REPEATS_MIN, REPEATS_MAX)
}

fn repeat(
    what: &'static str,
    bytes: Bytes,
    body: Option<&Body>,
    arena: &mut Arena,
    transport: &mut dyn Transport,
    gate: &Gate,
) -> Result<Times, Stop> {
    let mut times = Vec::new();
    // The first one makes the transport's own buffers.
    for turn in 0..=repeats(bytes) {
        gate.wait()?;
        let time = match body {
            Some(body) => once(body, arena, transport).map_err(|source| {
                let what = format!("{what} of {bytes}");
                let source = Box::new(source);
                TuneError::Transport { what, source }
            })?,
            None => [0.0; 2],
        };
        gate.wait()?;
        if turn > 0 {
            times.push(time);
        }
    }
    Ok(times)
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
    match &body.tasks[0].work {
        Work::Exchange(exchange) => transport.start_exchange(TaskId(0), exchange, &memory)?,
        Work::Collective(collective) => {
            transport.start_collective(TaskId(0), collective, &memory)?;
        }
        Work::Compute { .. } | Work::Load(_) => panic!("a trial is communication"),
    }
    let mut working = start;
    loop {
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
        on: None,
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
            home: None,
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
    }
}
