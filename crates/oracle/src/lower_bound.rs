//! A lower bound of the time of a step: the work of a rank alone, as if its peers were always ready.

use crate::cost::{AlltoallBlocks, Costs};
use partita_program::{
    Body, Collective, CollectiveKind, Count, Exchange, KernelShape, Lane, Task, View, Work,
};
use partita_space::{Bytes, Mesh, Rank, Seconds};

/// A lower bound of a step in which `rank` runs this body: its tasks in the order of their lanes, as if every
/// peer were always ready, without contention and host overhead.
///
/// Whatever is left out can only delay tasks, so no simulation with these costs is shorter. Unknown costs
/// count as 0.
pub fn rank_seconds(body: &Body, rank: Rank, mesh: &Mesh, costs: &dyn Costs) -> Seconds {
    let delays = task_seconds(body, rank, mesh, costs).into_iter();
    delays.fold(Seconds(0.0), |sum, delay| sum + delay)
}

/// Seconds of each task if its peers are ready.
pub fn durations(body: &Body, rank: Rank, mesh: &Mesh, costs: &dyn Costs) -> Vec<Seconds> {
    let seconds = |task| Seconds(duration(body, task, rank, mesh, costs));
    body.tasks.iter().map(seconds).collect()
}

/// By how much each task extends the end of those before it; [`rank_seconds`] is their sum.
pub fn task_seconds(body: &Body, rank: Rank, mesh: &Mesh, costs: &dyn Costs) -> Vec<Seconds> {
    let mut last = 0.0_f64;
    let mut lanes = [0.0_f64; Lane::ALL.len()];
    let mut ends: Vec<f64> = Vec::with_capacity(body.tasks.len());
    for task in &body.tasks {
        let lane = task.work.lane();
        let ready = task.after.iter().map(|before| ends[before.0 as usize]);
        let start = ready.fold(lanes[lane as usize], f64::max);
        let end = start + duration(body, task, rank, mesh, costs);
        lanes[lane as usize] = if lane.is_serial() { end } else { start };
        ends.push(end);
    }
    let delays = ends.into_iter().map(|end| {
        let before = last;
        last = last.max(end);
        Seconds(last - before)
    });
    delays.collect()
}

fn duration(body: &Body, task: &Task, rank: Rank, mesh: &Mesh, costs: &dyn Costs) -> f64 {
    match &task.work {
        Work::Compute {
            kernel, algorithm, ..
        } => {
            let shape = KernelShape {
                kernel,
                buffers: &body.buffers,
            };
            let count = Count::of(task, &body.buffers);
            let seconds = costs.kernel(&shape, algorithm, &count);
            seconds.map_or(0.0, |seconds| seconds.alone.0)
        }
        Work::Exchange(exchange) => exchange_seconds(body, exchange, rank, mesh, costs),
        Work::Collective(collective) => collective_seconds(body, collective, rank, mesh, costs),
        Work::Load(load) => {
            let seconds = costs.load(rank, load.target.bytes(&body.buffers), mesh.ranks());
            seconds.map_or(0.0, |seconds| seconds.0)
        }
    }
}

/// The longest message.
fn exchange_seconds(
    body: &Body,
    exchange: &Exchange,
    rank: Rank,
    mesh: &Mesh,
    costs: &dyn Costs,
) -> f64 {
    let sends = exchange.sends.iter().map(|one| (one.to, one.view, true));
    let receives = exchange
        .receives
        .iter()
        .map(|one| (one.from, one.view, false));
    let seconds = sends.chain(receives).map(|(offset, view, is_out)| {
        let Some(peer) = mesh.neighbor(rank, offset) else {
            return 0.0;
        };
        let (from, to) = if is_out { (rank, peer) } else { (peer, rank) };
        let cost = costs.message(from, to, view.bytes(&body.buffers), 1.0);
        cost.map_or(0.0, |cost| cost.seconds().0)
    });
    seconds.fold(0.0, f64::max)
}

fn collective_seconds(
    body: &Body,
    collective: &Collective,
    rank: Rank,
    mesh: &Mesh,
    costs: &dyn Costs,
) -> f64 {
    let members = collective.group().members(mesh, rank);
    let cost = match &collective.kind {
        CollectiveKind::AllReduce { view } => {
            costs.allreduce(&members, view.bytes(&body.buffers), 1.0)
        }
        CollectiveKind::AllGather { targets, .. } => {
            let bytes: Vec<Bytes> = targets.iter().map(|one| one.bytes(&body.buffers)).collect();
            costs.allgather(&members, &bytes, 1.0)
        }
        CollectiveKind::ReduceScatter { sources, .. } => {
            let bytes: Vec<Bytes> = sources.iter().map(|one| one.bytes(&body.buffers)).collect();
            costs.reduce_scatter(&members, &bytes, 1.0)
        }
        CollectiveKind::AllToAll { sources, targets } => {
            let bytes = |view: &View| view.bytes(&body.buffers);
            let mine = |&(place, _): &(usize, &View)| members[place] != rank;
            let others = [sources, targets].map(|views| {
                let blocks = views.iter().enumerate().filter(mine);
                blocks.map(|(_, view)| bytes(view)).max()
            });
            let blocks = AlltoallBlocks {
                largest: others.into_iter().flatten().max().unwrap_or_default(),
                given: sources.iter().map(bytes).sum(),
            };
            costs.alltoall(&members, blocks, 1.0)
        }
    };
    cost.map_or(0.0, |cost| cost.seconds().0)
}
