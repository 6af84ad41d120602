//! What messages and collectives use of the network: the links of their ranks, the adapters of their nodes.

use super::Classes;
use super::network::{Load, Resource};
use super::task_cost::{RankProgram, Rendezvous, TaskCost};
use super::topology::Topology;
use partita_program::{Body, Work};
use partita_space::Rank;
use std::collections::HashMap;

/// A direction of a link or an adapter.
#[derive(Clone, Copy)]
enum Way {
    Out,
    In,
}

/// Finds resources and what is used of them. Of a message or collective, seconds are noted first; they become
/// parts of a resource once its duration is known ([`Usage::share_within`]).
pub(super) struct Usage<'a> {
    topology: &'a Topology,
    classes: &'a Classes,
    /// Per class, the number of those nodes that hold the same classes as the node of its ranks.
    node_of: Vec<u32>,
    /// Per class, its ranks on such a node.
    on_node: Vec<f64>,
}

/// A message or collective with what it takes.
struct Movement<'l> {
    /// Whether it is a collective, and its number.
    key: (bool, u32),
    /// From the start of the last that takes part to the end.
    seconds: f64,
    loads: &'l mut Vec<Load>,
}

impl<'a> Usage<'a> {
    pub fn new(topology: &'a Topology, classes: &'a Classes) -> Self {
        let mut numbers: HashMap<Vec<u32>, u32> = HashMap::new();
        let (mut node_of, mut on_node) = (Vec::new(), Vec::new());
        for (class, &rank) in classes.representatives.iter().enumerate() {
            let ranks = &topology.node_ranks[topology.node_of[rank] as usize];
            let mut list: Vec<u32> = ranks.iter().map(|&rank| classes.class_of[rank]).collect();
            list.sort_unstable();
            let own = list.iter().filter(|&&other| other as usize == class);
            on_node.push(own.count() as f64);
            let next = numbers.len() as u32;
            node_of.push(*numbers.entry(list).or_insert(next));
        }
        Self {
            topology,
            classes,
            node_of,
            on_node,
        }
    }

    /// The link of a class to ranks of its own node, or to other nodes.
    fn link(class: usize, is_between_nodes: bool, way: Way) -> Resource {
        4 * class as Resource + 2 * Resource::from(is_between_nodes) + way as Resource
    }

    fn adapters(&self, class: usize, way: Way) -> Resource {
        4 * self.node_of.len() as Resource + 2 * self.node_of[class] + way as Resource
    }

    fn class(&self, rank: Rank) -> usize {
        self.classes.class_of[rank] as usize
    }

    /// A message that a rank receives, with its seconds on a link and on the adapters of a node.
    ///
    /// Of as many messages as the classes of both ends exchange, the receiving class notes each that one of its
    /// ranks gets.
    pub fn add_message(&self, from: Rank, to: Rank, seconds: [f64; 2], loads: &mut Vec<Load>) {
        let [link, adapters] = seconds;
        let (sender, receiver) = (self.class(from), self.class(to));
        let is_between = self.topology.node_of[from] != self.topology.node_of[to];
        let sizes = &self.classes.sizes;
        let per_sender = sizes[receiver] as f64 / sizes[sender] as f64;
        // A rank that stands for others may get from one of few what most of these get from many.
        let per_sender_max = if self.classes.is_joined {
            1.0
        } else {
            f64::MAX
        };
        let per_sender = per_sender.min(per_sender_max);
        note(
            loads,
            Self::link(sender, is_between, Way::Out),
            per_sender * link,
        );
        note(loads, Self::link(receiver, is_between, Way::In), link);
        if is_between {
            let all = per_sender * self.on_node[sender] * adapters;
            note(loads, self.adapters(sender, Way::Out), all);
            let all = self.on_node[receiver] * adapters;
            note(loads, self.adapters(receiver, Way::In), all);
        }
    }

    /// Samples that a rank gets from the memory of other nodes, while it sends as many of those that it keeps.
    pub fn add_samples(&self, rank: Rank, parts: [f64; 2], loads: &mut Vec<Load>) {
        let [link, adapters] = parts;
        let class = self.class(rank);
        for way in [Way::Out, Way::In] {
            note(loads, Self::link(class, true, way), link);
            let all = self.on_node[class] * adapters;
            note(loads, self.adapters(class, way), all.min(1.0));
        }
    }

    /// The part of a member in a collective of its group along some axes, which needs these seconds on the link of each
    /// member and on the adapters of each node.
    pub fn add_member(&self, rank: Rank, axes: usize, seconds: [f64; 2], loads: &mut Vec<Load>) {
        let [link, adapters] = seconds;
        let (class, node) = (self.class(rank), self.topology.node_of[rank]);
        let groups = &self.topology.groups[axes];
        let group = groups.group_of[rank];
        let on_node = self.topology.node_ranks[node as usize].iter();
        let here = on_node.filter(|&&other| groups.group_of[other] == group);
        let here = here.count();
        let is_between = here < groups.members[group as usize].len();
        for way in [Way::Out, Way::In] {
            note(loads, Self::link(class, is_between, way), link);
            if is_between {
                let all = self.on_node[class] / here as f64 * adapters;
                note(loads, self.adapters(class, way), all);
            }
        }
    }

    /// Makes parts of seconds. What moves by one exchange or collective shares the network as its cost says,
    /// so that together it asks for no resource more than once.
    pub fn share_within(participants: &mut [RankProgram<'_>], rendezvous: &mut [Rendezvous]) {
        let mut movements: Vec<Movement<'_>> = Vec::new();
        for program in participants {
            let body: &Body = program.body;
            for (task, cost) in body.tasks.iter().zip(&mut program.costs) {
                if let (Work::Exchange(exchange), TaskCost::Exchange { peers, loads, .. }) =
                    (&task.work, cost)
                {
                    movements.push(Movement {
                        key: (false, exchange.sequence),
                        seconds: peers.iter().map(|peer| peer.delay).fold(0.0, f64::max),
                        loads,
                    });
                }
            }
        }
        movements.extend(rendezvous.iter_mut().map(|one| Movement {
            key: (true, one.sequence),
            seconds: one.seconds,
            loads: &mut one.loads,
        }));
        let mut asked: HashMap<(bool, u32, Resource), f64> = HashMap::new();
        for movement in &mut movements {
            let seconds = movement.seconds;
            movement
                .loads
                .retain(|load| load.part > 0.0 && seconds > 0.0);
            let (is_collective, sequence) = movement.key;
            for load in movement.loads.iter_mut() {
                load.part /= seconds;
                *asked
                    .entry((is_collective, sequence, load.resource))
                    .or_insert(0.0) += load.part;
            }
        }
        for movement in movements {
            let (is_collective, sequence) = movement.key;
            for load in movement.loads {
                load.part /= asked[&(is_collective, sequence, load.resource)].max(1.0);
            }
        }
    }
}

fn note(loads: &mut Vec<Load>, resource: Resource, seconds: f64) {
    match loads.iter_mut().find(|load| load.resource == resource) {
        Some(load) => load.part += seconds,
        None => loads.push(Load {
            resource,
            part: seconds,
        }),
    }
}
