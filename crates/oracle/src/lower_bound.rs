//! A lower bound of the time of a step: the work of a rank alone, as if its peers were always ready.

use crate::cost::precision::transferred;
use crate::cost::{AlltoallBlocks, CollectiveCost, Costs, Progress};
use partita_program::{
    Body, Collective, CollectiveKind, Count, Exchange, Group, KernelShape, Lane, Task, View, Work,
};
use partita_space::{Bytes, Mesh, Rank, Seconds};
use std::collections::HashMap;

/// A lower bound of a step in which `rank` runs this body: its tasks in the order of their lanes, as if every
/// peer were always ready, without contention and host overhead.
///
/// Nor does it end before its links have carried all that the tasks give them, one after the other. Whatever
/// is left out can only delay tasks, so no simulation with these costs is shorter. Unknown costs count as 0.
pub fn rank_seconds(body: &Body, rank: Rank, mesh: &Mesh, costs: &dyn Costs) -> Seconds {
    let schedule = Schedule::of(body, rank, mesh, costs);
    let last = schedule.ends.iter().copied().fold(0.0, f64::max);
    Seconds(schedule.links.into_iter().fold(last, f64::max))
}

/// Seconds of each task if its peers are ready.
pub fn durations(body: &Body, rank: Rank, mesh: &Mesh, costs: &dyn Costs) -> Vec<Seconds> {
    let seconds = |task| Seconds(used(body, task, rank, mesh, costs).seconds);
    body.tasks.iter().map(seconds).collect()
}

/// By how much each task extends the end of those before it.
pub fn task_seconds(body: &Body, rank: Rank, mesh: &Mesh, costs: &dyn Costs) -> Vec<Seconds> {
    let mut last = 0.0_f64;
    let ends = Schedule::of(body, rank, mesh, costs).ends;
    let delays = ends.into_iter().map(|end| {
        let before = last;
        last = last.max(end);
        Seconds(last - before)
    });
    delays.collect()
}

/// The tasks of a rank as early as its lanes and queues let them be.
struct Schedule {
    /// Per task.
    ends: Vec<f64>,
    /// When the links into the rank have carried all, within its node and from other nodes.
    links: [f64; 2],
}

impl Schedule {
    fn of(body: &Body, rank: Rank, mesh: &Mesh, costs: &dyn Costs) -> Self {
        let mut lanes = [0.0_f64; Lane::ALL.len()];
        let mut groups: HashMap<Group, f64> = HashMap::new();
        let mut schedule = Self {
            ends: Vec::with_capacity(body.tasks.len()),
            links: [0.0; 2],
        };
        for task in &body.tasks {
            let lane = task.work.lane();
            let ready = task
                .after
                .iter()
                .map(|before| schedule.ends[before.0 as usize]);
            let start = ready.fold(lanes[lane as usize], f64::max);
            let mut begin = start;
            if let (Work::Collective(collective), Progress::Queued) = (&task.work, costs.progress())
            {
                begin = groups
                    .get(&collective.group())
                    .map_or(start, |end| start.max(*end));
            }
            let used = used(body, task, rank, mesh, costs);
            for (link, seconds) in schedule.links.iter_mut().zip(used.links) {
                if seconds > 0.0 {
                    *link = link.max(begin) + seconds;
                }
            }
            let end = begin + used.seconds;
            if let Work::Collective(collective) = &task.work {
                groups.insert(collective.group(), end);
            }
            lanes[lane as usize] = if lane.is_serial() { end } else { start };
            schedule.ends.push(end);
        }
        schedule
    }
}

/// What a task takes.
#[derive(Default)]
struct Used {
    /// From its start to its end.
    seconds: f64,
    /// Of each link into the rank, as in [`Schedule`].
    links: [f64; 2],
}

impl Used {
    fn locally(seconds: f64) -> Self {
        Self {
            seconds,
            links: [0.0; 2],
        }
    }
}

fn used(body: &Body, task: &Task, rank: Rank, mesh: &Mesh, costs: &dyn Costs) -> Used {
    match &task.work {
        Work::Compute {
            kernel, algorithm, ..
        } => {
            let shape = KernelShape {
                kernel,
                buffers: &body.buffers,
            };
            let count = Count::of(task, &body.buffers);
            let cost = costs.kernel(&shape, algorithm, &count);
            let factor = costs.layer_factor(&task.origin);
            Used::locally(cost.map_or(0.0, |cost| factor * cost.alone.0))
        }
        Work::Load(load) => {
            let seconds = costs.load(rank, load.target.bytes(&body.buffers), mesh.ranks());
            Used::locally(seconds.map_or(0.0, |seconds| seconds.0))
        }
        Work::Exchange(exchange) => exchange_cost(body, exchange, rank, mesh, costs),
        Work::Collective(collective) => {
            let members = collective.group().members(mesh, rank);
            let cost = collective_cost(body, collective, rank, &members, costs);
            let is_elsewhere = |&member: &Rank| costs.node(member) != costs.node(rank);
            let is_between = members.iter().any(is_elsewhere);
            let mut links = [0.0; 2];
            links[usize::from(is_between)] = cost.transfer.0;
            Used {
                seconds: cost.seconds().0,
                links,
            }
        }
    }
}

/// The longest message, and on each link the longest that comes in.
fn exchange_cost(
    body: &Body,
    exchange: &Exchange,
    rank: Rank,
    mesh: &Mesh,
    costs: &dyn Costs,
) -> Used {
    let sends = exchange.sends.iter().map(|one| (one.to, one.view, true));
    let receives = exchange
        .receives
        .iter()
        .map(|one| (one.from, one.view, false));
    let mut used = Used::default();
    for (offset, view, is_out) in sends.chain(receives) {
        let Some(peer) = mesh.neighbor(rank, offset) else {
            continue;
        };
        let (from, to) = if is_out { (rank, peer) } else { (peer, rank) };
        let cost = costs.message(
            from,
            to,
            transferred(&view, &body.buffers, costs.precision()),
            1.0,
        );
        let cost = cost.unwrap_or_default();
        used.seconds = used.seconds.max(cost.seconds().0);
        if !is_out {
            let link = &mut used.links[usize::from(costs.node(from) != costs.node(to))];
            *link = link.max(cost.transfer.0);
        }
    }
    used
}

fn collective_cost(
    body: &Body,
    collective: &Collective,
    rank: Rank,
    members: &[Rank],
    costs: &dyn Costs,
) -> CollectiveCost {
    let bytes = |view: &View| transferred(view, &body.buffers, costs.precision());
    let cost = match &collective.kind {
        CollectiveKind::AllReduce { views } => {
            let bytes = views.iter().map(bytes).sum();
            costs.allreduce(members, bytes, 1.0)
        }
        CollectiveKind::AllGather { targets, .. } => {
            let bytes: Vec<Bytes> = targets.iter().map(bytes).collect();
            costs.allgather(members, &bytes, 1.0)
        }
        CollectiveKind::ReduceScatter { sources, .. } => {
            let bytes: Vec<Bytes> = sources.iter().map(bytes).collect();
            costs.reduce_scatter(members, &bytes, 1.0)
        }
        CollectiveKind::AllToAll { sources, targets } => {
            let mine = |&(place, _): &(usize, &View)| members[place] != rank;
            let others = [sources, targets].map(|views| {
                let blocks = views.iter().enumerate().filter(mine);
                blocks.map(|(_, view)| bytes(view)).max()
            });
            let blocks = AlltoallBlocks {
                largest: others.into_iter().flatten().max().unwrap_or_default(),
                given: sources.iter().map(bytes).sum(),
            };
            costs.alltoall(members, blocks, 1.0)
        }
    };
    cost.unwrap_or_default()
}
