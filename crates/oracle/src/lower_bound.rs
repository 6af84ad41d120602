//! A lower bound of the time of a step: the work of a rank alone, as if its peers were always ready.

use crate::cost::precision::transferred;
use crate::cost::{AlltoallBlocks, CollectiveCost, Costs, Progress, SampleRead};
use partita_program::{
    Body, Collective, CollectiveKind, Count, Exchange, Group, KernelShape, Lane, Task, View, Work,
};
use partita_space::{Bytes, Mesh, Rank, Seconds};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// A lower bound of a step in which `rank` runs this body: its tasks in the order of their lanes, as if every
/// peer were always ready, without host overhead.
///
/// A collective shares the network adapters of the rank's node with the groups of its kind on that node, as in a
/// simulation. Nor does a step end before the links of the rank have carried all that the tasks give them, one after
/// the other. Whatever is left out can only delay tasks, so no simulation with these costs is shorter. Unknown costs
/// count as 0.
pub fn rank_seconds(body: &Body, rank: Rank, mesh: &Mesh, costs: &dyn Costs) -> Seconds {
    let schedule = Schedule::of(body, &Groups::new(rank, mesh, costs, true));
    let last = schedule.ends.iter().copied().fold(0.0, f64::max);
    Seconds(schedule.links.into_iter().fold(last, f64::max))
}

/// Seconds of each task if its peers are ready, without contention.
pub fn durations(body: &Body, rank: Rank, mesh: &Mesh, costs: &dyn Costs) -> Vec<Seconds> {
    let groups = Groups::new(rank, mesh, costs, false);
    let seconds = |task| Seconds(used(body, task, &groups).seconds);
    body.tasks.iter().map(seconds).collect()
}

/// By how much each task extends the end of those before it, without contention.
pub fn task_seconds(body: &Body, rank: Rank, mesh: &Mesh, costs: &dyn Costs) -> Vec<Seconds> {
    let mut last = 0.0_f64;
    let ends = Schedule::of(body, &Groups::new(rank, mesh, costs, false)).ends;
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
    fn of(body: &Body, around: &Groups<'_>) -> Self {
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
            if let (Work::Collective(collective), Progress::Queued) =
                (&task.work, around.costs.progress())
            {
                begin = groups
                    .get(&collective.group())
                    .map_or(start, |end| start.max(*end));
            }
            let used = used(body, task, around);
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
#[derive(Clone, Copy, Default)]
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

/// A rank with the groups of its collectives and what these cost. A body has few groups and sizes, and a group can
/// have many members, so each is looked at once.
struct Groups<'a> {
    rank: Rank,
    mesh: &'a Mesh,
    costs: &'a dyn Costs,
    /// Whether groups on the rank's node share its network adapters.
    share_adapters: bool,
    known: RefCell<HashMap<Group, Rc<Members>>>,
    sums: RefCell<HashMap<(Group, Bytes), Used>>,
}

/// The group of a rank.
struct Members {
    ranks: Vec<Rank>,
    is_between_nodes: bool,
    /// Groups of its kind that leave the node of the rank; at least 1.
    contention: f64,
}

impl<'a> Groups<'a> {
    fn new(rank: Rank, mesh: &'a Mesh, costs: &'a dyn Costs, share_adapters: bool) -> Self {
        Self {
            rank,
            mesh,
            costs,
            share_adapters,
            known: RefCell::default(),
            sums: RefCell::default(),
        }
    }

    fn members(&self, group: Group) -> Rc<Members> {
        if let Some(known) = self.known.borrow().get(&group) {
            return Rc::clone(known);
        }
        let ranks = group.members(self.mesh, self.rank);
        let is_between_nodes = self.leaves_node(&ranks);
        let contention = if is_between_nodes && self.share_adapters {
            self.groups_of_node(group)
        } else {
            1
        };
        let members = Rc::new(Members {
            ranks,
            is_between_nodes,
            contention: contention as f64,
        });
        self.known.borrow_mut().insert(group, Rc::clone(&members));
        members
    }

    fn leaves_node(&self, members: &[Rank]) -> bool {
        let node = members.first().map(|&rank| self.costs.node(rank));
        members
            .iter()
            .any(|&rank| Some(self.costs.node(rank)) != node)
    }

    /// Groups of a kind with members on the node of the rank that have others elsewhere. Ranks of a node are
    /// consecutive.
    fn groups_of_node(&self, group: Group) -> usize {
        let node = self.costs.node(self.rank);
        let is_here = |&rank: &Rank| self.costs.node(rank) == node;
        let below = (0..self.rank).rev().take_while(is_here);
        let above = (self.rank..self.mesh.ranks()).take_while(is_here);
        let mut firsts: Vec<(Rank, Rank)> = below
            .chain(above)
            .map(|rank| (group.first(self.mesh, rank), rank))
            .collect();
        firsts.sort_unstable();
        firsts.dedup_by_key(|&mut (first, _)| first);
        let leaves = |&&(_, rank): &&(Rank, Rank)| {
            let members = group.members(self.mesh, rank);
            self.leaves_node(&members)
        };
        firsts.iter().filter(leaves).count().max(1)
    }
}

fn used(body: &Body, task: &Task, around: &Groups<'_>) -> Used {
    let &Groups {
        rank, mesh, costs, ..
    } = around;
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
            let cost = costs.load(rank, SampleRead::of(load, body, mesh.ranks()));
            Used::locally(cost.map_or(0.0, |cost| cost.seconds.0))
        }
        Work::Store(store) => {
            let seconds = costs.write(rank, store.source.bytes(&body.buffers), mesh.ranks());
            Used::locally(seconds.map_or(0.0, |seconds| seconds.0))
        }
        Work::Exchange(exchange) => exchange_cost(body, exchange, rank, mesh, costs),
        Work::Collective(collective) => match &collective.kind {
            CollectiveKind::AllReduce { views } => {
                let bytes = views.iter().map(|view| view.bytes(&body.buffers)).sum();
                let key = (collective.group(), bytes);
                if let Some(&known) = around.sums.borrow().get(&key) {
                    return known;
                }
                let used = collective_used(body, collective, around);
                around.sums.borrow_mut().insert(key, used);
                used
            }
            CollectiveKind::AllGather { .. }
            | CollectiveKind::ReduceScatter { .. }
            | CollectiveKind::AllToAll { .. } => collective_used(body, collective, around),
        },
    }
}

fn collective_used(body: &Body, collective: &Collective, around: &Groups<'_>) -> Used {
    let members = around.members(collective.group());
    let with = |contention| {
        let (rank, costs) = (around.rank, around.costs);
        collective_cost(body, collective, (rank, &members.ranks), costs, contention)
    };
    let mut links = [0.0; 2];
    links[usize::from(members.is_between_nodes)] = with(1.0).transfer_min.0;
    Used {
        seconds: with(members.contention).seconds().0,
        links,
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
    (rank, members): (Rank, &[Rank]),
    costs: &dyn Costs,
    contention: f64,
) -> CollectiveCost {
    let bytes = |view: &View| transferred(view, &body.buffers, costs.precision());
    let cost = match &collective.kind {
        CollectiveKind::AllReduce { views } => {
            let bytes = views.iter().map(bytes).sum();
            costs.allreduce(members, bytes, contention)
        }
        CollectiveKind::AllGather { targets, .. } => {
            let bytes: Vec<Bytes> = targets.views().iter().map(|view| bytes(&view)).collect();
            costs.allgather(members, &bytes, contention)
        }
        CollectiveKind::ReduceScatter { sources, .. } => {
            let bytes: Vec<Bytes> = sources.views().iter().map(|view| bytes(&view)).collect();
            costs.reduce_scatter(members, &bytes, contention)
        }
        CollectiveKind::AllToAll { sources, targets } => {
            let mine = |&(place, _): &(usize, View)| members[place] != rank;
            let others = [sources, targets].map(|views| {
                let blocks = views.views().iter().enumerate().filter(mine);
                blocks.map(|(_, view)| bytes(&view)).max()
            });
            let blocks = AlltoallBlocks {
                largest: others.into_iter().flatten().max().unwrap_or_default(),
                given: sources.views().iter().map(|view| bytes(&view)).sum(),
            };
            costs.alltoall(members, blocks, contention)
        }
    };
    cost.unwrap_or_default()
}
