//! Test that the redistribution of a value and that of its gradient are adjoint, `<A x, y> = <x, A' y>`, by
//! interpreting lowered tasks in integers.

use super::{Destination, MovedTensor, Movement, movements};
use crate::body::Builder;
use partita_program::{
    Body, Collective, CollectiveKind, Distribution, Dtype, Kernel, Phase, Role, Task, UnpinnedMenu,
    View, Work,
};
use partita_space::random::SplitMix;
use partita_space::{AXES, Axis, AxisSet, Mesh, Rank};
use std::collections::BTreeMap;

const CASES: u64 = 600;

/// A stream of numbers from a seed.
struct Draws(SplitMix);

impl Draws {
    fn between(&mut self, low: usize, high: usize) -> usize {
        self.0.between(low, high)
    }

    /// Small and never 0, so that a lost element changes the result.
    fn value(&mut self) -> i64 {
        let value = self.between(1, 9) as i64;
        if self.0.bits().is_multiple_of(2) {
            value
        } else {
            -value
        }
    }

    /// A distribution, and axes that it does not use for a partial sum.
    fn distribution(&mut self, shape: [usize; 5], axes: &[Axis]) -> (Distribution, AxisSet) {
        let mut distribution = Distribution::replicated(shape);
        let mut left = axes.to_vec();
        let mut partial = Vec::new();
        while !left.is_empty() {
            let axis = left.swap_remove(self.between(0, left.len() - 1));
            match self.between(0, 9) {
                dim @ 0..5 => distribution.axes[dim] = distribution.axes[dim].inside(axis),
                5 | 6 => distribution.axes[4] = distribution.axes[4].inside(axis),
                7 => partial.push(axis),
                _ => {}
            }
        }
        (distribution, AxisSet::of(partial))
    }
}

/// A case: from a distribution with a partial sum to another one.
struct Redistribution {
    mesh: Mesh,
    from: (Distribution, AxisSet),
    to: Distribution,
    accumulate: bool,
}

/// The contents of the buffers of all ranks.
type Memory = Vec<Vec<Vec<i64>>>;

/// The elements of a view in memory order.
fn elements(body: &Body, view: &View) -> Vec<usize> {
    let pitches = body.buffer(view.buffer).pitches();
    let mut all = vec![0];
    for dim in 0..5 {
        let steps: Vec<usize> = (0..view.extent[dim])
            .map(|at| (view.start[dim] + at) * pitches[dim])
            .collect();
        let extended = all
            .iter()
            .flat_map(|start| steps.iter().map(move |step| start + step));
        all = extended.collect();
    }
    all
}

fn get(bodies: &[Body], memory: &Memory, rank: Rank, view: &View) -> Vec<i64> {
    let buffer = &memory[rank][view.buffer.0 as usize];
    let elements = elements(&bodies[rank], view).into_iter();
    elements.map(|at| buffer[at]).collect()
}

fn put(
    bodies: &[Body],
    memory: &mut Memory,
    rank: Rank,
    view: &View,
    values: &[i64],
    accumulate: bool,
) {
    let elements = elements(&bodies[rank], view);
    assert_eq!(elements.len(), values.len(), "as much comes as goes");
    let buffer = &mut memory[rank][view.buffer.0 as usize];
    for (at, value) in elements.into_iter().zip(values) {
        buffer[at] = value + if accumulate { buffer[at] } else { 0 };
    }
}

impl Redistribution {
    /// The body of each rank; buffer 0 is the source, buffer 1 the destination.
    fn bodies(&self) -> Vec<Body> {
        let body = |rank: Rank| {
            let coord = self.mesh.coord(rank);
            let mut builder = Builder::new(&self.mesh, rank, Dtype::F64, &UnpinnedMenu);
            let mut hold = |name: &str, distribution: Distribution| {
                let region = distribution.owned(&self.mesh, &coord);
                builder.tensor_buffer(name, Role::Activation, 0, distribution, region)
            };
            let (source, held) = (hold("source", self.from.0), hold("target", self.to));
            let moved = MovedTensor {
                layer: "moved",
                phase: Phase::Forward,
                role: Role::Activation,
                tensor: 0,
            };
            let to = Destination {
                held,
                distribution: self.to,
                accumulate: self.accumulate,
            };
            builder.redistribute(moved, source, self.from, to);
            builder.body
        };
        (0..self.mesh.ranks()).map(body).collect()
    }

    /// The results of all ranks, from the initial values of all.
    fn play(&self, values: &[Vec<i64>]) -> Vec<Vec<i64>> {
        const BEFORE: i64 = 1000;
        let bodies = self.bodies();
        let mut memory: Memory = bodies
            .iter()
            .zip(values)
            .map(|(body, values)| {
                let mut buffers: Vec<Vec<i64>> = body
                    .buffers
                    .iter()
                    .map(|buffer| vec![BEFORE; buffer.dims.iter().product()])
                    .collect();
                buffers[0].clone_from(values);
                buffers
            })
            .collect();
        let mut next = vec![0; bodies.len()];
        loop {
            for rank in 0..bodies.len() {
                next[rank] = self.compute(&bodies, &mut memory, rank, next[rank]);
            }
            let at_hand = |rank: Rank| bodies[rank].tasks.get(next[rank]);
            let waiting = (0..bodies.len()).filter_map(|rank| sequence(at_hand(rank)?));
            let Some(first) = waiting.min() else {
                break;
            };
            let ready: Vec<Rank> = (0..bodies.len())
                .filter(|&rank| at_hand(rank).and_then(sequence) == Some(first))
                .collect();
            self.communicate(&bodies, &mut memory, &ready, &next);
            ready.iter().for_each(|&rank| next[rank] += 1);
        }
        let results = memory.into_iter().map(|mut buffers| buffers.swap_remove(1));
        let before = if self.accumulate { BEFORE } else { 0 };
        results
            .map(|values| values.into_iter().map(|value| value - before).collect())
            .collect()
    }

    /// Runs kernels of a rank from a task on; returns the first task that is no kernel.
    fn compute(&self, bodies: &[Body], memory: &mut Memory, rank: Rank, from: usize) -> usize {
        for (at, task) in bodies[rank].tasks.iter().enumerate().skip(from) {
            let Work::Compute { kernel, .. } = &task.work else {
                return at;
            };
            let Kernel::Copy {
                source,
                target,
                accumulate,
            } = kernel
            else {
                panic!("{} moves nothing", kernel.name());
            };
            let values = get(bodies, memory, rank, source);
            put(bodies, memory, rank, target, &values, *accumulate);
        }
        bodies[rank].tasks.len()
    }

    fn communicate(&self, bodies: &[Body], memory: &mut Memory, ready: &[Rank], next: &[usize]) {
        let before = memory.clone();
        for &rank in ready {
            match &bodies[rank].tasks[next[rank]].work {
                Work::Exchange(exchange) => {
                    for receive in &exchange.receives {
                        let peer = self.mesh.neighbor(rank, receive.from).unwrap();
                        assert!(ready.contains(&peer));
                        let Work::Exchange(there) = &bodies[peer].tasks[next[peer]].work else {
                            panic!("the peer does something else");
                        };
                        let back = receive.from.reversed();
                        let of = |send: &&partita_program::Send| {
                            (send.to, send.part) == (back, receive.part)
                        };
                        let sent = there.sends.iter().find(of).unwrap();
                        let values = get(bodies, &before, peer, &sent.view);
                        put(
                            bodies,
                            memory,
                            rank,
                            &receive.view,
                            &values,
                            receive.accumulate,
                        );
                    }
                }
                Work::Collective(collective) => {
                    for (view, values) in self.collected(bodies, &before, rank, collective, next) {
                        put(bodies, memory, rank, &view, &values, false);
                    }
                }
                Work::Compute { .. } | Work::Load(_) | Work::Store(_) => {
                    panic!("nothing else is left")
                }
            }
        }
    }

    /// What a member of a collective receives, and where.
    fn collected(
        &self,
        bodies: &[Body],
        memory: &Memory,
        rank: Rank,
        collective: &Collective,
        next: &[usize],
    ) -> Vec<(View, Vec<i64>)> {
        let members = self.mesh.group(rank, collective.group);
        let me = members.iter().position(|&member| member == rank).unwrap();
        let given = |at: usize| -> Vec<Vec<i64>> {
            let member = members[at];
            let Work::Collective(theirs) = &bodies[member].tasks[next[member]].work else {
                panic!("a member does something else");
            };
            assert_eq!(theirs.sequence, collective.sequence);
            let views = theirs.kind.sources().iter();
            views
                .map(|view| get(bodies, memory, member, &view))
                .collect()
        };
        let sum = |part: usize| {
            let mut sum = given(0)[part].clone();
            for at in 1..members.len() {
                let addend = &given(at)[part];
                sum.iter_mut()
                    .zip(addend)
                    .for_each(|(sum, more)| *sum += more);
            }
            sum
        };
        let from_all = |part: usize| (0..members.len()).map(move |at| (at, part));
        match &collective.kind {
            CollectiveKind::AllReduce { views } => (0..views.len())
                .map(|part| (views[part], sum(part)))
                .collect(),
            CollectiveKind::ReduceScatter { target, .. } => vec![(*target, sum(me))],
            kind @ (CollectiveKind::AllGather { .. } | CollectiveKind::AllToAll { .. }) => {
                let is_gather = matches!(kind, CollectiveKind::AllGather { .. });
                let parts = from_all(if is_gather { 0 } else { me });
                let into = kind.targets().iter().zip(parts);
                into.map(|(target, (at, part))| (target, given(at).swap_remove(part)))
                    .collect()
            }
        }
    }

    /// Random initial values, equal on replicas.
    fn draw(&self, draws: &mut Draws) -> Vec<Vec<i64>> {
        let (distribution, partial) = &self.from;
        let told = distribution.split_axes().union(*partial);
        let mut known: BTreeMap<Vec<usize>, Vec<i64>> = BTreeMap::new();
        let mut all = Vec::new();
        for rank in 0..self.mesh.ranks() {
            let coord = self.mesh.coord(rank);
            let key: Vec<usize> = told.iter().map(|axis| coord[axis.index()]).collect();
            let volume = distribution.owned(&self.mesh, &coord).volume();
            let make = || (0..volume).map(|_| draws.value()).collect();
            all.push(known.entry(key).or_insert_with(make).clone());
        }
        all
    }
}

fn sequence(task: &Task) -> Option<u32> {
    match &task.work {
        Work::Exchange(exchange) => Some(exchange.sequence),
        Work::Collective(collective) => Some(collective.sequence),
        Work::Compute { .. } | Work::Load(_) | Work::Store(_) => None,
    }
}

/// Inner product over all ranks.
fn product(a: &[Vec<i64>], b: &[Vec<i64>]) -> i64 {
    let pairs = a.iter().zip(b);
    let of_rank = |(a, b): (&Vec<i64>, &Vec<i64>)| -> i64 {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    };
    pairs.map(of_rank).sum()
}

fn movement_name(movement: &Movement) -> &'static str {
    match movement {
        Movement::ReduceScatter(_) => "reduce_scatter",
        Movement::AllReduce(_) => "allreduce",
        Movement::AllGather(_) => "allgather",
        Movement::Slice => "slice",
        Movement::AllToAll(_) => "alltoall",
        Movement::Messages(_) => "messages",
    }
}

#[test]
fn every_change_of_distribution_and_its_reverse_are_adjoint() {
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    let mut telling = 0;
    for seed in 0..CASES {
        let mut draws = Draws(SplitMix(seed));
        let mut extents = [0; 7];
        while !(2..=12).contains(&extents.iter().product::<usize>()) {
            extents = std::array::from_fn(|axis| match axis {
                6 => 1,
                _ => draws.between(1, 3),
            });
        }
        let mesh = Mesh::new(extents);
        let axes: Vec<Axis> = AXES
            .into_iter()
            .filter(|&axis| mesh.extent(axis) > 1)
            .collect();
        let shape = std::array::from_fn(|_| draws.between(1, 4));
        let (from, to) = (
            draws.distribution(shape, &axes),
            draws.distribution(shape, &axes),
        );
        let forward = Redistribution {
            mesh,
            from,
            to: to.0,
            accumulate: draws.between(0, 1) == 1,
        };
        let backward = Redistribution {
            mesh,
            from: to,
            to: from.0,
            accumulate: draws.between(0, 1) == 1,
        };
        for case in [&forward, &backward] {
            for (movement, _) in movements(&mesh, &case.from.0, case.from.1, &case.to) {
                *seen.entry(movement_name(&movement)).or_default() += 1;
            }
        }
        let (x, y) = (forward.draw(&mut draws), backward.draw(&mut draws));
        let (ax, aty) = (forward.play(&x), backward.play(&y));
        // Ranks that hold the same count as one.
        let alike = |(distribution, partial): (Distribution, AxisSet)| {
            let told = distribution.split_axes().union(partial);
            mesh.group_size(mesh.split_axes().minus(told)) as i64
        };
        let (left, right) = (product(&ax, &y), product(&x, &aty));
        assert_eq!(
            left * alike(from),
            right * alike(to),
            "seed {seed}: {from:?} to {to:?} on {extents:?}"
        );
        telling += u32::from(left != 0);
    }
    assert!(telling > 500, "{telling} of {CASES} cases tell anything");
    for movement in [
        "reduce_scatter",
        "allreduce",
        "allgather",
        "slice",
        "alltoall",
        "messages",
    ] {
        let count = seen.get(movement).copied().unwrap_or_default();
        assert!(count >= 30, "{movement} comes {count} times");
    }
}
