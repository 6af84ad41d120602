use super::collectives::{Groups, collectives, collectives_of};
use super::matching::{exchanges, exchanges_of};
use super::{Case, Fault};
use crate::Lane;
use std::collections::VecDeque;

/// The step ends under any timing, with sends that wait for their receivers: starts and completions
/// of the tasks of all classes have an order. With an order for classes there is one for ranks, since
/// every cycle of ranks is one of their classes.
pub(super) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let mut events = Events::of(case);
    for in_order in [false, true] {
        if in_order {
            events.complete_in_order(case);
        }
        if let Some(cycle) = events.cycle() {
            let mut chain: Vec<String> = cycle
                .iter()
                .map(|&event| events.name(case, event))
                .collect();
            chain.extend(chain.first().cloned());
            faults.push(Fault::Cycle { chain, in_order });
            return;
        }
    }
}

/// Starts and completions of the tasks of all classes, and which comes before which.
struct Events {
    /// The number of each class's first event.
    first: Vec<usize>,
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
                let mut peers: Vec<usize> = sends
                    .chain(receives)
                    .filter_map(|offset| mesh.neighbor(case.representatives[class], offset))
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
        let mut groups = Groups::default();
        for (class, _) in case.bodies() {
            for (id, collective) in collectives_of(case, class) {
                for &member in &groups.of(case, class, collective.group()).firsts {
                    let member = case.class_of(member);
                    if let Some(&task) = tasks[member].get(&collective.sequence) {
                        self.edge(self.start(member, task), self.end(class, id));
                    }
                }
            }
        }
    }

    fn complete_in_order(&mut self, case: &Case<'_>) {
        for (class, _) in case.bodies() {
            for (_, previous, id) in neighbors(case, class) {
                self.edge(self.end(class, previous), self.end(class, id));
            }
        }
    }

    /// The events that can be ordered are taken away, first ones first; a cycle among the rest.
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
        // Every event of the rest has one before it there: going back long enough ends in a cycle.
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

    /// The shortest cycle through an event that lies on one.
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
