//! Peers, groups and nodes of every rank.

use super::SimulateError;
use super::contraction::{Contraction, Nodes};
use partita_program::{Group, Program, Work};
use partita_space::{Mesh, Offset, Rank};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Peers, groups and nodes of every rank, as integers.
pub(super) struct Topology {
    /// Per body, the offsets of its messages, ascending.
    pub offsets: Vec<Vec<Offset>>,
    /// Per rank, its peers, in the order of its body's offsets.
    pub peers: Vec<Vec<u32>>,
    /// Per body, the kinds of groups of its collectives, as indices into `groups`.
    pub body_groups: Vec<Vec<usize>>,
    /// Per kind of group, the groups of that kind.
    pub groups: Vec<GroupSet>,
    /// Per rank, its node, numbered densely.
    pub node_of: Vec<u32>,
    /// Per node, its ranks, ascending.
    pub node_ranks: Vec<Vec<Rank>>,
}

/// The groups of one kind.
pub(super) struct GroupSet {
    pub kind: Group,
    /// Per rank, its group.
    pub group_of: Vec<u32>,
    /// Per group, its members, ascending.
    pub members: Vec<Vec<Rank>>,
    /// Per group, the most groups that share the network adapters of a node of its members; 1 within a
    /// node.
    pub contention: Vec<u32>,
}

impl Topology {
    /// `node` is the node of a rank.
    pub fn new(program: &Program, node: &dyn Fn(Rank) -> usize) -> Result<Self, SimulateError> {
        let ranks = program.mesh.ranks();
        let offsets: Vec<Vec<Offset>> = program.bodies.iter().map(body_offsets).collect();
        let peers = (0..ranks)
            .map(|rank| {
                let of_body = &offsets[program.class_of[rank] as usize];
                of_body
                    .iter()
                    .map(|&offset| peer(program, rank, offset))
                    .collect()
            })
            .collect::<Result<_, _>>()?;
        let (node_of, node_ranks) = nodes(ranks, node);
        let kinds: Vec<BTreeSet<Group>> = program.bodies.iter().map(body_groups).collect();
        let distinct: BTreeSet<Group> = kinds.iter().flatten().copied().collect();
        let distinct: Vec<Group> = distinct.into_iter().collect();
        let groups = distinct
            .iter()
            .map(|&kind| GroupSet::new(program, kind, &node_of, &node_ranks))
            .collect();
        let body_groups = kinds
            .iter()
            .map(|set| {
                (0..distinct.len())
                    .filter(|&at| set.contains(&distinct[at]))
                    .collect()
            })
            .collect();
        Ok(Self {
            offsets,
            peers,
            body_groups,
            groups,
            node_of,
            node_ranks,
        })
    }

    /// The ranks that stand for others; none where all are simulated.
    pub fn contraction(&self, program: &Program) -> Option<Contraction> {
        let kinds: Vec<Group> = self.groups.iter().map(|groups| groups.kind).collect();
        let nodes = Nodes {
            of: &self.node_of,
            ranks: &self.node_ranks,
        };
        Contraction::of(program, &kinds, nodes)
    }

    /// The topology of a contraction of the mesh; none where its ranks have other surroundings than theirs in
    /// the program: peers of other classes or over other links, groups without a class, nodes without a rank.
    pub fn contracted(
        &self,
        program: &Program,
        contraction: &Contraction,
        link: &dyn Fn(Rank, Rank) -> u32,
    ) -> Option<Self> {
        let (originals, alike) = (&contraction.originals, &contraction.alike);
        let (node_of, node_ranks) = nodes(originals.len(), &|rank| {
            self.node_of[originals[rank]] as usize
        });
        let is_whole = |ranks: &Vec<Rank>| {
            let node = self.node_of[originals[ranks[0]]] as usize;
            self.node_ranks[node].len() == ranks.len()
        };
        if !node_ranks.iter().all(is_whole) {
            return None;
        }
        let mut peers = Vec::with_capacity(originals.len());
        for (rank, &original) in originals.iter().enumerate() {
            let offsets = self.offsets[program.class_of[original] as usize].iter();
            let all = offsets.zip(&self.peers[original]).map(|(&offset, &there)| {
                let peer = contraction.neighbor(rank, offset)?;
                let is_like = alike[originals[peer]] == alike[there as usize];
                // The peer, too, sees such a rank at this link.
                let back = program.mesh.neighbor(originals[peer], offset.reversed())?;
                let is_mutual = alike[back] == alike[original]
                    && contraction.neighbor(peer, offset.reversed()) == Some(rank);
                let is_linked = link(original, there as Rank) == link(back, originals[peer]);
                (is_like && is_mutual && is_linked).then_some(peer as u32)
            });
            peers.push(all.collect::<Option<Vec<u32>>>()?);
        }
        let groups = self.groups.iter();
        let groups = groups.map(|groups| groups.contracted(contraction));
        Some(Self {
            offsets: self.offsets.clone(),
            peers,
            body_groups: self.body_groups.clone(),
            groups: groups.collect::<Option<_>>()?,
            node_of,
            node_ranks,
        })
    }

    /// Index of a kind of group in `groups`.
    pub fn index_of(&self, kind: Group) -> usize {
        self.groups
            .iter()
            .position(|groups| groups.kind == kind)
            .unwrap_or_else(|| panic!("the groups {kind:?} are not listed"))
    }
}

fn peer(program: &Program, rank: Rank, offset: Offset) -> Result<u32, SimulateError> {
    match program.mesh.neighbor(rank, offset) {
        Some(peer) => Ok(peer as u32),
        None => Err(SimulateError::Peer { rank, offset }),
    }
}

fn body_offsets(body: &partita_program::Body) -> Vec<Offset> {
    let mut offsets = BTreeSet::new();
    for task in &body.tasks {
        match &task.work {
            Work::Exchange(exchange) => {
                offsets.extend(exchange.sends.iter().map(|send| send.to));
                offsets.extend(exchange.receives.iter().map(|receive| receive.from));
            }
            Work::Compute { .. } | Work::Collective(_) | Work::Load(_) | Work::Store(_) => {}
        }
    }
    offsets.into_iter().collect()
}

fn body_groups(body: &partita_program::Body) -> BTreeSet<Group> {
    body.tasks
        .iter()
        .filter_map(|task| match &task.work {
            Work::Collective(collective) => Some(collective.group()),
            Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) | Work::Store(_) => None,
        })
        .collect()
}

fn nodes(ranks: usize, node: &dyn Fn(Rank) -> usize) -> (Vec<u32>, Vec<Vec<Rank>>) {
    let mut number: BTreeMap<usize, u32> = BTreeMap::new();
    let mut node_of = Vec::with_capacity(ranks);
    let mut node_ranks: Vec<Vec<Rank>> = Vec::new();
    for rank in 0..ranks {
        let next = node_ranks.len() as u32;
        let dense = *number.entry(node(rank)).or_insert(next);
        if dense == next {
            node_ranks.push(Vec::new());
        }
        node_ranks[dense as usize].push(rank);
        node_of.push(dense);
    }
    (node_of, node_ranks)
}

impl GroupSet {
    fn new(program: &Program, kind: Group, node_of: &[u32], node_ranks: &[Vec<Rank>]) -> Self {
        let (group_of, members) = members(&program.mesh, kind);
        let contention = contention(&members, &group_of, node_of, node_ranks);
        Self {
            kind,
            group_of,
            members,
            contention,
        }
    }

    /// None where a group has not all classes that it has in the program.
    fn contracted(&self, contraction: &Contraction) -> Option<Self> {
        let (group_of, members) = members(&contraction.mesh, self.kind);
        let (originals, alike) = (&contraction.originals, &contraction.alike);
        let mut contention = Vec::with_capacity(members.len());
        for left in &members {
            let group = self.group_of[originals[left[0]]] as usize;
            let left: BTreeSet<u32> = left.iter().map(|&rank| alike[originals[rank]]).collect();
            let mut all = self.members[group].iter();
            if !all.all(|&rank| left.contains(&alike[rank])) {
                return None;
            }
            contention.push(self.contention[group]);
        }
        Some(Self {
            kind: self.kind,
            group_of,
            members,
            contention,
        })
    }
}

/// The group of each rank, and the members of each group.
fn members(mesh: &Mesh, kind: Group) -> (Vec<u32>, Vec<Vec<Rank>>) {
    let mut number: HashMap<Rank, u32> = HashMap::new();
    let mut members: Vec<Vec<Rank>> = Vec::new();
    let mut group_of = Vec::with_capacity(mesh.ranks());
    for rank in 0..mesh.ranks() {
        let next = members.len() as u32;
        let group = *number.entry(kind.first(mesh, rank)).or_insert(next);
        if group == next {
            members.push(Vec::new());
        }
        members[group as usize].push(rank);
        group_of.push(group);
    }
    (group_of, members)
}

/// How many groups send over the network adapters of the busiest node of each group.
fn contention(
    members: &[Vec<Rank>],
    group_of: &[u32],
    node_of: &[u32],
    node_ranks: &[Vec<Rank>],
) -> Vec<u32> {
    let leaves: Vec<bool> = members
        .iter()
        .map(|group| group.iter().any(|&rank| node_of[rank] != node_of[group[0]]))
        .collect();
    let per_node: Vec<u32> = node_ranks
        .iter()
        .map(|ranks| {
            let groups: BTreeSet<u32> = ranks.iter().map(|&rank| group_of[rank]).collect();
            groups
                .iter()
                .filter(|&&group| leaves[group as usize])
                .count() as u32
        })
        .collect();
    members
        .iter()
        .zip(&leaves)
        .map(|(group, &leaves)| {
            let most = group
                .iter()
                .map(|&rank| per_node[node_of[rank] as usize])
                .max();
            if leaves { most.unwrap_or(1) } else { 1 }
        })
        .collect()
}
