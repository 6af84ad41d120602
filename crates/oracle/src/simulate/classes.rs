//! Equivalence classes of ranks for the simulation: the coarsest stable partition, or of many classes a coarser one.

use super::SimulateError;
use super::contraction::Contraction;
use super::topology::{GroupSet, Topology};
use partita_program::Program;
use partita_space::{AXES, Rank};
use std::collections::HashMap;

/// A partition of the ranks. The ranks of a class have the same body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    /// Class of each rank; numbered in the order of their first ranks.
    pub class_of: Vec<u32>,
    /// Body of each class in the program.
    pub body_of: Vec<u32>,
    /// First rank of each class.
    pub representatives: Vec<Rank>,
    /// Ranks of each class.
    pub sizes: Vec<usize>,
    /// Whether ranks of a class may have peers of other classes.
    pub is_joined: bool,
}

/// The coarsest partition in which all ranks of a class have the same body, peers of the same classes
/// over the same kinds of link, groups of the same classes with the same layout on nodes, and nodes with
/// the same classes.
///
/// `node` is the node of a rank, `link` the kind of link between two ranks.
/// Bodies are not copied: classes split from one class share its body.
/// Errors: a peer outside the mesh.
pub fn refine(
    program: &Program,
    node: impl Fn(Rank) -> usize,
    link: impl Fn(Rank, Rank) -> u32,
) -> Result<Classes, SimulateError> {
    let topology = Topology::new(program, &node)?;
    let all = Contraction::none(program);
    Ok(stable(program, [&topology; 2], &all, &link))
}

impl Classes {
    /// One class per rank.
    pub(super) fn of_ranks(program: &Program) -> Self {
        let ranks = program.mesh.ranks();
        Self::new(&program.class_of, (0..ranks as u32).collect())
    }

    fn new(bodies: &[u32], class_of: Vec<u32>) -> Self {
        let (mut representatives, mut sizes) = (Vec::new(), Vec::new());
        for (rank, &class) in class_of.iter().enumerate() {
            if class as usize == sizes.len() {
                representatives.push(rank);
                sizes.push(0);
            }
            sizes[class as usize] += 1;
        }
        let body_of = representatives.iter().map(|&rank| bodies[rank]).collect();
        Self {
            class_of,
            body_of,
            representatives,
            sizes,
            is_joined: false,
        }
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Whether there are no classes.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }
}

/// Numbers for lists, in the order of their first appearance.
#[derive(Default)]
struct Interner {
    numbers: HashMap<Vec<u32>, u32>,
}

impl Interner {
    fn number(&mut self, list: &[u32]) -> u32 {
        if let Some(&number) = self.numbers.get(list) {
            return number;
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(list.to_vec(), number);
        number
    }
}

/// More classes than these are joined where ranks differ only in how far they are from others that differ.
const STABLE_MAX: usize = 256;

/// As [`stable`]; of many classes, those that do the same over the same kinds of link are joined. A class is represented by its
/// rank nearest the middle of the mesh, most of whose peers do the same.
pub(super) fn few(
    program: &Program,
    topologies: [&Topology; 2],
    contraction: &Contraction,
    link: &dyn Fn(Rank, Rank) -> u32,
) -> Classes {
    let stable = stable(program, topologies, contraction, link);
    if stable.len() <= STABLE_MAX {
        return stable;
    }
    let [world, topology] = topologies;
    let mut interner = Interner::default();
    let class_of = contraction.originals.iter().map(|&rank| {
        let mut list = vec![contraction.alike[rank]];
        let peers = world.peers[rank].iter();
        list.extend(peers.map(|&peer| link(rank, peer as Rank)));
        interner.number(&list)
    });
    let bodies: Vec<u32> = (contraction.originals.iter())
        .map(|&rank| program.class_of[rank])
        .collect();
    let mut joined = Classes::new(&bodies, class_of.collect());
    if joined.len() >= stable.len() || !have_equal_groups(topology, &joined.class_of) {
        return stable;
    }
    joined.is_joined = true;
    let off_center = |rank: Rank| -> u64 {
        let coord = contraction.mesh.coord(rank);
        let along = AXES.map(|axis| {
            let middle = contraction.mesh.extent(axis) as i64 - 1;
            (2 * coord[axis.index()] as i64 - middle).unsigned_abs()
        });
        along.into_iter().sum()
    };
    for (rank, &class) in joined.class_of.iter().enumerate() {
        let known = &mut joined.representatives[class as usize];
        if off_center(rank) < off_center(*known) {
            *known = rank;
        }
    }
    for (body, &rank) in joined.body_of.iter_mut().zip(&joined.representatives) {
        *body = bodies[rank];
    }
    joined
}

/// Whether all groups of a kind that have a class in common have the same classes.
fn have_equal_groups(topology: &Topology, class_of: &[u32]) -> bool {
    topology.groups.iter().all(|groups| {
        let mut known: HashMap<u32, usize> = HashMap::new();
        let mut lists: HashMap<Vec<u32>, usize> = HashMap::new();
        groups.members.iter().all(|members| {
            let mut classes: Vec<u32> = members.iter().map(|&rank| class_of[rank]).collect();
            classes.sort_unstable();
            classes.dedup();
            let next = lists.len();
            let number = *lists.entry(classes.clone()).or_insert(next);
            classes
                .iter()
                .all(|&class| *known.entry(class).or_insert(number) == number)
        })
    })
}

/// Of the ranks of a contraction, by the links and layouts of their originals in the whole mesh, whose topology is
/// the first.
pub(super) fn stable(
    program: &Program,
    [world, topology]: [&Topology; 2],
    contraction: &Contraction,
    link: &dyn Fn(Rank, Rank) -> u32,
) -> Classes {
    let originals = &contraction.originals;
    let links: Vec<Vec<u32>> = originals
        .iter()
        .map(|&rank| {
            let peers = world.peers[rank].iter();
            peers.map(|&peer| link(rank, peer as Rank)).collect()
        })
        .collect();
    let layouts: Vec<Vec<u32>> = (world.groups.iter().zip(&topology.groups))
        .map(|(all, left)| {
            let layouts = layouts(all, &world.node_of, link);
            let members = left.members.iter();
            let groups = members.map(|members| all.group_of[originals[members[0]]]);
            groups.map(|group| layouts[group as usize]).collect()
        })
        .collect();
    let bodies: Vec<u32> = originals
        .iter()
        .map(|&rank| program.class_of[rank])
        .collect();
    let mut class_of = bodies.clone();
    let mut count = 0;
    loop {
        let (next, classes) = split(&bodies, topology, &links, &layouts, &class_of);
        class_of = next;
        if classes == count {
            return Classes::new(&bodies, class_of);
        }
        count = classes;
    }
}

/// Per group, a number for its layout on nodes, the contention there, and the way from its first to its last
/// member.
fn layouts(groups: &GroupSet, node_of: &[u32], link: &dyn Fn(Rank, Rank) -> u32) -> Vec<u32> {
    let mut interner = Interner::default();
    let mut list = Vec::new();
    groups
        .members
        .iter()
        .zip(&groups.contention)
        .map(|(members, &contention)| {
            let mut order: HashMap<u32, u32> = HashMap::new();
            list.clear();
            list.push(contention);
            list.push(link(members[0], members[members.len() - 1]));
            for &rank in members {
                let next = order.len() as u32;
                list.push(*order.entry(node_of[rank]).or_insert(next));
            }
            interner.number(&list)
        })
        .collect()
}

/// One round of refinement: ranks stay together that have the same surroundings.
fn split(
    bodies: &[u32],
    topology: &Topology,
    links: &[Vec<u32>],
    layouts: &[Vec<u32>],
    class_of: &[u32],
) -> (Vec<u32>, usize) {
    let mut list = Vec::new();
    let mut interner = Interner::default();
    let nodes: Vec<u32> = topology
        .node_ranks
        .iter()
        .map(|ranks| {
            list.clear();
            list.extend(ranks.iter().map(|&rank| class_of[rank]));
            list.sort_unstable();
            interner.number(&list)
        })
        .collect();
    let groups: Vec<Vec<u32>> = topology
        .groups
        .iter()
        .zip(layouts)
        .map(|(groups, layouts)| {
            let mut interner = Interner::default();
            let number = |(members, &layout): (&Vec<Rank>, &u32)| {
                list.clear();
                list.push(layout);
                list.extend(members.iter().map(|&rank| class_of[rank]));
                interner.number(&list)
            };
            groups.members.iter().zip(layouts).map(number).collect()
        })
        .collect();
    let mut interner = Interner::default();
    let next = (0..class_of.len())
        .map(|rank| {
            list.clear();
            list.extend([class_of[rank], nodes[topology.node_of[rank] as usize]]);
            for (&peer, &link) in topology.peers[rank].iter().zip(&links[rank]) {
                list.extend([class_of[peer as usize], link]);
            }
            for &axes in &topology.body_groups[bodies[rank] as usize] {
                let group = topology.groups[axes].group_of[rank] as usize;
                list.push(groups[axes][group]);
            }
            interner.number(&list)
        })
        .collect();
    (next, interner.numbers.len())
}
