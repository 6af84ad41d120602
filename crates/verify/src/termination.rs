//! Freedom from deadlock under any timing.

use crate::collectives::{GroupMembers, collectives, collectives_of};
use crate::matching::{exchanges, exchanges_of};
use crate::{Case, Fault};
use partita_program::{Group, Lane, Program};
use partita_space::{Offset, Rank};
use std::collections::{HashMap, VecDeque};

/// Checks that the step terminates under any timing with rendezvous sends: the dependency graph of starts and
/// completions of all classes is acyclic. Then that of all ranks is too, as every cycle of ranks is one of classes.
/// A cycle of classes need not be one of ranks; where there is one, the graph of all ranks is looked at.
///
/// The same is checked where a task starts only after the previous one in its lane has completed. So pools of
/// packets suffice that hold any one task of their lane.
pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let mut events = Events::of(case);
    for one_by_one in [false, true] {
        if one_by_one {
            events.one_by_one(case);
        }
        if let Some(cycle) = events.cycle() {
            if !is_cyclic(&each_rank(case.program), one_by_one) {
                continue;
            }
            let mut chain: Vec<String> = cycle
                .iter()
                .map(|&event| events.name(case, event))
                .collect();
            chain.extend(chain.first().cloned());
            faults.push(Fault::Cycle { chain, one_by_one });
            return;
        }
    }
}

/// The same program with a class of its own for each rank.
fn each_rank(program: &Program) -> Program {
    let ranks = 0..program.mesh.ranks();
    Program {
        title: program.title.clone(),
        bodies: ranks
            .clone()
            .map(|rank| program.body(rank).clone())
            .collect(),
        class_of: ranks.map(|rank| rank as u32).collect(),
        ..*program
    }
}

fn is_cyclic(program: &Program, one_by_one: bool) -> bool {
    let case = Case::new(program);
    let mut events = Events::of(&case);
    if one_by_one {
        events.one_by_one(&case);
    }
    events.cycle().is_some()
}

/// Dependency graph of starts and completions of the tasks of all classes.
///
/// Each collective of a group has a further event, that all members have started it, so that the number of edges
/// is linear in the members.
struct Events {
    /// The number of each class's first event.
    first: Vec<usize>,
    /// Starts and completions; events with larger numbers are those of collectives.
    of_tasks: usize,
    next: Vec<Vec<u32>>,
}

impl Events {
    fn of(case: &Case<'_>) -> Self {
        let mut first = Vec::new();
        let mut count = 0;
        for (_, body) in case.bodies() {
            first.push(count);
            count += 2 * body.tasks.len();
        }
        let mut events = Self {
            first,
            of_tasks: count,
            next: vec![Vec::new(); count],
        };
        for (class, body) in case.bodies() {
            for (id, task) in body.tasks.iter().enumerate() {
                events.edge(events.start(class, id), events.end(class, id));
                for before in &task.after {
                    let before = events.end(class, before.0 as usize);
                    events.edge(before, events.start(class, id));
                }
            }
            for (lane, previous, id) in neighbors(case, class) {
                let before = if lane.is_serial() {
                    events.end(class, previous)
                } else {
                    events.start(class, previous)
                };
                events.edge(before, events.start(class, id));
            }
        }
        events.exchanges(case);
        events.collectives(case);
        events
    }

    fn start(&self, class: usize, task: usize) -> usize {
        self.first[class] + 2 * task
    }

    fn end(&self, class: usize, task: usize) -> usize {
        self.start(class, task) + 1
    }

    fn edge(&mut self, before: usize, after: usize) {
        self.next[before].push(after as u32);
    }

    /// An exchange completes after all its peers have started theirs.
    fn exchanges(&mut self, case: &Case<'_>) {
        let tasks = exchanges(case);
        let mesh = &case.program.mesh;
        for (class, _) in case.bodies() {
            for (id, exchange) in exchanges_of(case, class) {
                let sends = exchange.sends.iter().map(|send| send.to);
                let receives = exchange.receives.iter().map(|receive| receive.from);
                let beside = |offset: Offset| {
                    let ranks = case.ranks_beside(class, offset).iter();
                    ranks.filter_map(move |&rank| mesh.neighbor(rank, offset))
                };
                let mut peers: Vec<usize> = sends
                    .chain(receives)
                    .flat_map(beside)
                    .map(|peer| case.class_of(peer))
                    .collect();
                peers.sort_unstable();
                peers.dedup();
                for peer in peers {
                    if let Some(&task) = tasks[peer].get(&exchange.sequence) {
                        self.edge(self.start(peer, task), self.end(class, id));
                    }
                }
            }
        }
    }

    /// A collective completes after all its members have started it.
    fn collectives(&mut self, case: &Case<'_>) {
        let tasks = collectives(case);
        let mut groups = GroupMembers::default();
        let mut all_started: HashMap<(Rank, Group, u32), usize> = HashMap::new();
        for (class, _) in case.bodies() {
            for (id, collective) in collectives_of(case, class) {
                let (kind, sequence) = (collective.group(), collective.sequence);
                for &rank in case.ranks_in(class, kind) {
                    let group = groups.of(case, rank, kind);
                    let event = *all_started
                        .entry((group.members[0], kind, sequence))
                        .or_insert_with(|| {
                            self.next.push(Vec::new());
                            let event = self.next.len() - 1;
                            for member in group.firsts.iter().map(|&rank| case.class_of(rank)) {
                                if let Some(&task) = tasks[member].get(&sequence) {
                                    self.edge(self.start(member, task), event);
                                }
                            }
                            event
                        });
                    self.edge(event, self.end(class, id));
                }
            }
        }
    }

    fn one_by_one(&mut self, case: &Case<'_>) {
        for (class, _) in case.bodies() {
            for (_, previous, id) in neighbors(case, class) {
                self.edge(self.end(class, previous), self.start(class, id));
            }
        }
    }

    /// A cycle among the events that a topological sort leaves.
    fn cycle(&self) -> Option<Vec<usize>> {
        let mut waits = vec![0u32; self.next.len()];
        for &after in self.next.iter().flatten() {
            waits[after as usize] += 1;
        }
        let mut free: Vec<usize> = (0..waits.len())
            .filter(|&event| waits[event] == 0)
            .collect();
        let mut taken = 0;
        while let Some(event) = free.pop() {
            taken += 1;
            for &after in &self.next[event] {
                waits[after as usize] -= 1;
                if waits[after as usize] == 0 {
                    free.push(after as usize);
                }
            }
        }
        if taken == self.next.len() {
            return None;
        }
        // Every remaining event has a remaining predecessor, so going back ends in a cycle.
        let mut before = vec![usize::MAX; self.next.len()];
        for event in (0..waits.len()).filter(|&event| waits[event] > 0) {
            for &after in &self.next[event] {
                before[after as usize] = event;
            }
        }
        let mut event = (0..waits.len()).find(|&event| waits[event] > 0)?;
        for _ in 0..waits.len() {
            event = before[event];
        }
        Some(self.shortest(event, &waits))
    }

    /// The shortest cycle through an event, without the events of collectives.
    fn shortest(&self, from: usize, waits: &[u32]) -> Vec<usize> {
        let mut before = vec![usize::MAX; self.next.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(event) = queue.pop_front() {
            for after in self.next[event].iter().map(|&after| after as usize) {
                if waits[after] > 0 && before[after] == usize::MAX {
                    before[after] = event;
                    queue.push_back(after);
                }
            }
        }
        let mut cycle = vec![from];
        let mut event = before[from];
        while event != from {
            cycle.push(event);
            event = before[event];
        }
        cycle.reverse();
        cycle.retain(|&event| event < self.of_tasks);
        cycle
    }

    fn name(&self, case: &Case<'_>, event: usize) -> String {
        let class = self.first.partition_point(|&first| first <= event) - 1;
        let within = event - self.first[class];
        let what = if within.is_multiple_of(2) {
            "start"
        } else {
            "end"
        };
        format!("{what} of {}", case.site(class, within / 2))
    }
}

/// Pairs of tasks that follow each other in a lane.
fn neighbors(case: &Case<'_>, class: usize) -> Vec<(Lane, usize, usize)> {
    let mut last: [Option<usize>; Lane::ALL.len()] = [None; Lane::ALL.len()];
    let mut pairs = Vec::new();
    for (id, task) in case.program.bodies[class].tasks.iter().enumerate() {
        let lane = task.work.lane();
        if let Some(previous) = last[lane as usize].replace(id) {
            pairs.push((lane, previous, id));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_program::{
        Body, Collective, CollectiveKind, Dtype, Origin, Phase, ProgramKind, Task, View, Work,
    };
    use partita_space::{Axis, AxisSet, Mesh};

    /// This many ranks, each a class of its own, which take part in two sums over all of them.
    fn sums(ranks: usize) -> Program {
        let sum = |sequence: u32| Task {
            origin: Origin {
                layer: "c".to_owned(),
                phase: Phase::Reduce,
                turn: 0,
            },
            after: Vec::new(),
            work: Work::Collective(Collective {
                sequence,
                group: AxisSet::of([Axis::Width]),
                submesh: None,
                kind: CollectiveKind::AllReduce {
                    views: vec![View::of(
                        partita_program::BufferId(0),
                        &partita_space::Region::default(),
                    )],
                },
            }),
        };
        let body = Body {
            tasks: vec![sum(1), sum(2)],
            ..Body::default()
        };
        Program {
            title: "sums".to_owned(),
            kind: ProgramKind::Train,
            dtype: Dtype::F32,
            batch: 1,
            mesh: Mesh::new([1, 1, 1, ranks, 1, 1, 1]),
            local_statistics: partita_space::AxisSet::NONE,
            bodies: vec![body; ranks],
            class_of: (0..ranks as u32).collect(),
        }
    }

    #[test]
    fn edges_are_as_many_as_members_of_collectives_and_cycles_are_still_found() {
        let edges = |program: &Program| {
            let events = Events::of(&Case::new(program));
            events.next.iter().map(Vec::len).sum::<usize>()
        };
        // Of each task from its start to its end and to and from the collective, and from one to the next.
        assert_eq!(edges(&sums(10)), 10 * (2 * 3 + 1));
        assert_eq!(edges(&sums(1000)), 1000 * (2 * 3 + 1));
        let mut program = sums(3);
        let mut faults = Vec::new();
        check(&Case::new(&program), &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
        // The second waits for the first on one rank, and the first for the second on another.
        program.bodies[0].tasks[1].after = vec![partita_program::TaskId(0)];
        program.bodies[1].tasks.swap(0, 1);
        program.bodies[1].tasks[1].after = vec![partita_program::TaskId(0)];
        check(&Case::new(&program), &mut faults);
        let [Fault::Cycle { chain, .. }] = &faults[..] else {
            panic!("{faults:?}");
        };
        assert_eq!(chain.len(), 5, "{chain:?}");
        assert_eq!(chain[0], chain[4]);
    }
}
