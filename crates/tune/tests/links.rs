//! Messages and collectives are timed for every size and group, by all ranks at the same time.

use partita_oracle::host_seconds_per_byte;
use partita_program::{Collective, CollectiveKind, Exchange, Staging, TaskId, View};
use partita_run::{Arena, Memory, RunError, Transport};
use partita_space::{Bytes, Mesh, Rank};
use partita_tune::{LinkSizes, LinkTimes, TuneError, measure_links};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Completes a task a while after its start, and works 1 ms for every MiB at its start.
struct Slow {
    mesh: Mesh,
    rank: Rank,
    pending: Option<(TaskId, Instant)>,
    breaks: bool,
}

/// Messages of 16 KiB and more are sent after they were written, in place of what the last repeat left.
fn check_sent(memory: &Memory<'_>, view: &View, bytes: Bytes) {
    let mut sent = memory.write::<f32>(view);
    if bytes >= Bytes(1 << 14) {
        assert_eq!(sent.data()[0], 0.0, "{bytes} of a repeat before");
    }
    sent.data_mut()[0] = 1.0;
}

impl Slow {
    fn begin(&mut self, task: TaskId, bytes: u64) {
        COUNT.fetch_add(1, Ordering::SeqCst);
        assert!(self.pending.is_none());
        std::thread::sleep(Duration::from_nanos(bytes));
        let wait = Duration::from_micros(300 * (1 + self.rank as u64));
        self.pending = Some((task, Instant::now() + wait));
    }
}

impl Transport for Slow {
    fn allocate(&mut self, staging: &Staging) -> Result<(), RunError> {
        assert!(staging.packets() > Bytes(0), "there is something to send");
        Ok(())
    }

    fn start_exchange(
        &mut self,
        task: TaskId,
        exchange: &Exchange,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError> {
        if self.breaks {
            return Err(RunError::Cancelled);
        }
        assert_eq!((exchange.sends.len(), exchange.receives.len()), (1, 1));
        let peer = self.mesh.neighbor(self.rank, exchange.sends[0].to);
        assert_eq!(peer, Some(self.rank ^ 1));
        assert_eq!(exchange.sends[0].to, exchange.receives[0].from);
        let bytes = exchange.sends[0].view.bytes(&memory.body().buffers);
        check_sent(memory, &exchange.sends[0].view, bytes);
        self.begin(task, bytes.0);
        Ok(true)
    }

    fn start_collective(
        &mut self,
        task: TaskId,
        collective: &Collective,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError> {
        let members = self.mesh.group_size(collective.group);
        let buffers = &memory.body().buffers;
        let (bytes, sent): (Bytes, _) = match &collective.kind {
            CollectiveKind::AllReduce { views } => (views[0].bytes(buffers), views[0]),
            kind @ CollectiveKind::AllGather { source, .. } => {
                let targets = kind.targets();
                assert_eq!(targets.len(), members);
                assert!(targets.iter().all(|target| target.extent == source.extent));
                (targets.bytes(buffers), *source)
            }
            kind @ CollectiveKind::ReduceScatter { target, .. } => {
                let sources = kind.sources();
                assert_eq!(sources.len(), members);
                assert!(sources.iter().all(|source| source.extent == target.extent));
                (sources.bytes(buffers), sources.get(0).unwrap())
            }
            kind @ CollectiveKind::AllToAll { .. } => {
                let (sources, targets) = (kind.sources(), kind.targets());
                assert_eq!((sources.len(), targets.len()), (members, members));
                let first = sources.get(0).unwrap();
                let mut both = sources.iter().chain(targets.iter());
                assert!(both.all(|view| view.extent == first.extent));
                (sources.bytes(buffers), first)
            }
        };
        check_sent(memory, &sent, bytes);
        self.begin(task, bytes.0);
        Ok(true)
    }

    fn advance(&mut self) {}

    fn poll(&mut self, _memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        if let Some((task, _)) = self.pending.take_if(|(_, at)| Instant::now() >= *at) {
            done.push(task);
        }
        Ok(())
    }

    fn wait(&mut self, _limit: Duration) {
        std::thread::sleep(Duration::from_micros(50));
    }

    fn missing(&self, _task: TaskId) -> Vec<Rank> {
        Vec::new()
    }

    fn take_tally(&mut self) -> [u64; 4] {
        [0; 4]
    }
}

fn transports(mesh: Mesh, breaks: bool) -> Vec<Box<dyn Transport + Send>> {
    let one = |rank: Rank| -> Box<dyn Transport + Send> {
        Box::new(Slow {
            mesh,
            rank,
            pending: None,
            breaks,
        })
    };
    (0..mesh.ranks()).map(one).collect()
}

/// Part of the caches of each rank.
const CACHE: Bytes = Bytes(1 << 20);

#[test]
fn all_sizes_and_groups_are_measured() {
    let (groups, none) = ([1, 2].into(), LinkTimes::default());
    let times = measure_links(
        2,
        (&groups, LinkSizes::ALL),
        &none,
        (&|mesh| transports(mesh, false), &Arena::of_rank, CACHE),
        &|_| {},
    )
    .unwrap();
    let sizes: Vec<u64> = times.message.iter().map(|point| point.bytes.0).collect();
    assert_eq!(sizes.first(), Some(&64));
    assert_eq!(sizes.last(), Some(&(16 << 20)));
    assert_eq!(times.allreduce.keys().collect::<Vec<_>>(), [&2]);
    assert_eq!(times.allgather[&2].last().unwrap().bytes.0, 64 << 20);
    assert!(times.has_group(2, LinkSizes::ALL) && !times.has_group(1, LinkSizes::ALL));
    let all = [
        &times.message,
        &times.allreduce[&2],
        &times.allgather[&2],
        &times.reduce_scatter[&2],
        &times.alltoall[&2],
    ];
    for points in all {
        for point in points {
            // The slower rank waits 600 us; sleeping makes it longer.
            let work = point.bytes.0 as f64 * 1e-9;
            assert!(point.seconds.0 >= 600e-6 + work, "{point:?}");
            assert!(
                point.host.0 >= work && point.host < point.seconds,
                "{point:?}"
            );
        }
        let host = host_seconds_per_byte(points, 1.0);
        // Under load a copy may take any time.
        let per_byte = points.iter().map(|at| at.host.0 / at.bytes.0 as f64);
        let most = per_byte.fold(0.0, f64::max);
        assert!((1e-9..=most).contains(&host), "{host} of {most}");
        assert!((host_seconds_per_byte(points, 2.0) - host / 2.0).abs() < 1e-15);
    }
    assert!(COUNT.load(Ordering::SeqCst) > 0);
}

#[test]
fn one_rank_has_no_links_and_failures_are_errors() {
    let (groups, unknown) = ([1].into(), LinkTimes::default());
    let made = |mesh| transports(mesh, false);
    let none = measure_links(
        1,
        (&groups, LinkSizes::ALL),
        &unknown,
        (&made, &Arena::of_rank, CACHE),
        &|_| {},
    )
    .unwrap();
    assert!(none.message.is_empty() && none.allreduce.is_empty());
    let made = |mesh| transports(mesh, true);
    let error = measure_links(
        2,
        (&groups, LinkSizes::ALL),
        &unknown,
        (&made, &Arena::of_rank, CACHE),
        &|_| {},
    )
    .unwrap_err();
    assert!(matches!(error, TuneError::Transport { .. }), "{error}");
}

#[test]
fn groups_need_not_divide_the_ranks_and_known_times_are_not_measured() {
    let (groups, none) = ([2, 3].into(), LinkTimes::default());
    let made = |mesh| transports(mesh, false);
    let allocated = AtomicU64::new(0);
    let arenas = |rank: Rank, bytes: Bytes| {
        allocated.fetch_max(bytes.0, Ordering::Relaxed);
        Arena::of_rank(rank, bytes)
    };
    let times = measure_links(
        3,
        (&groups, LinkSizes::ALL),
        &none,
        (&made, &arenas, CACHE),
        &|_| {},
    )
    .unwrap();
    let largest = allocated.into_inner();
    assert!(
        largest >= 64 << 20,
        "messages are sent from the given memory, not {largest}"
    );
    assert_eq!(times.allreduce.keys().collect::<Vec<_>>(), [&2, &3]);
    let more = [2, 3].into();
    let measured = |sizes: LinkSizes, known: &LinkTimes| {
        let with = (&made as _, &Arena::of_rank as _, CACHE);
        measure_links(3, (&more, sizes), known, with, &|_| {}).unwrap()
    };
    let again = measured(LinkSizes::ALL, &times);
    assert_eq!(again, LinkTimes::default(), "everything is known");
    // Times up to smaller sizes are known, too, but not those up to larger ones.
    let few = LinkSizes {
        message: Bytes(64 << 10),
        collective: Bytes(1 << 20),
    };
    let short = measured(few, &none);
    assert_eq!(short.message.last().unwrap().bytes, few.message);
    assert_eq!(short.allreduce[&3].last().unwrap().bytes, few.collective);
    assert_eq!(measured(few, &short), LinkTimes::default());
    let message = Bytes(1 << 20);
    let longer = measured(LinkSizes { message, ..few }, &short);
    assert_eq!(longer.message.last().unwrap().bytes, message);
    assert!(longer.allreduce.is_empty(), "{longer:?}");
}
