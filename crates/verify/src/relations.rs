//! Which classes of ranks exchange messages or have collectives with each other.

use partita_program::{Group, Program, Work};
use partita_space::{Offset, Rank};
use std::collections::{BTreeSet, HashMap};

/// Ranks of each class that have other relations: what is proved of these holds for all ranks.
pub(crate) struct Relations {
    beside: Vec<HashMap<Offset, Vec<Rank>>>,
    in_groups: Vec<HashMap<Group, Vec<Rank>>>,
}

impl Relations {
    pub fn of(program: &Program) -> Self {
        let uses: Vec<(Vec<Offset>, Vec<Group>)> = program.bodies.iter().map(uses).collect();
        let kinds: BTreeSet<Group> = uses.iter().flat_map(|uses| &uses.1).copied().collect();
        let numbers: HashMap<Group, Vec<u32>> = kinds
            .into_iter()
            .map(|kind| (kind, group_numbers(program, kind)))
            .collect();
        // For each class, by offset or group, the peers' classes or groups' numbers seen, and their ranks.
        let classes = program.bodies.len();
        let mut beside: Vec<Vec<Distinct>> = uses.iter().map(|one| distinct(one.0.len())).collect();
        let mut groups: Vec<Vec<Distinct>> = uses.iter().map(|one| distinct(one.1.len())).collect();
        for (rank, &class) in program.class_of.iter().enumerate() {
            let class = class as usize;
            for (&offset, seen) in uses[class].0.iter().zip(&mut beside[class]) {
                let peer = program.mesh.neighbor(rank, offset);
                seen.add(peer.map(|peer| program.class_of[peer]), rank);
            }
            for (kind, seen) in uses[class].1.iter().zip(&mut groups[class]) {
                seen.add(Some(numbers[kind][rank]), rank);
            }
        }
        let ranks = |all: Vec<Distinct>| all.into_iter().map(|one| one.ranks);
        let mut relations = Self {
            beside: Vec::with_capacity(classes),
            in_groups: Vec::with_capacity(classes),
        };
        for (((offsets, kinds), beside), groups) in uses.into_iter().zip(beside).zip(groups) {
            let beside = offsets.into_iter().zip(ranks(beside)).collect();
            relations.beside.push(beside);
            let groups = kinds.into_iter().zip(ranks(groups)).collect();
            relations.in_groups.push(groups);
        }
        relations
    }

    /// Ranks of a class, one for each class at an offset, or for none there.
    pub fn beside(&self, class: usize, offset: Offset) -> &[Rank] {
        self.beside[class].get(&offset).map_or(&[], Vec::as_slice)
    }

    /// Ranks of a class, one for each list of classes of the members of their groups.
    pub fn in_groups(&self, class: usize, kind: Group) -> &[Rank] {
        self.in_groups[class].get(&kind).map_or(&[], Vec::as_slice)
    }
}

/// What was seen, and the first rank with it.
#[derive(Clone, Default)]
struct Distinct {
    seen: Vec<Option<u32>>,
    ranks: Vec<Rank>,
}

impl Distinct {
    fn add(&mut self, what: Option<u32>, rank: Rank) {
        if !self.seen.contains(&what) {
            self.seen.push(what);
            self.ranks.push(rank);
        }
    }
}

fn distinct(count: usize) -> Vec<Distinct> {
    vec![Distinct::default(); count]
}

/// The offsets to the peers of a body, and the kinds of its groups.
fn uses(body: &partita_program::Body) -> (Vec<Offset>, Vec<Group>) {
    let (mut offsets, mut groups) = (BTreeSet::new(), BTreeSet::new());
    for task in &body.tasks {
        match &task.work {
            Work::Exchange(exchange) => {
                offsets.extend(exchange.sends.iter().map(|send| send.to));
                offsets.extend(exchange.receives.iter().map(|receive| receive.from));
            }
            Work::Collective(collective) => {
                groups.insert(collective.group());
            }
            Work::Compute { .. } | Work::Load(_) | Work::Store(_) => {}
        }
    }
    (offsets.into_iter().collect(), groups.into_iter().collect())
}

/// A number for each rank, equal where the members of its group have the same classes in the same order.
fn group_numbers(program: &Program, group: Group) -> Vec<u32> {
    let mut first_of: Vec<Rank> = Vec::with_capacity(program.mesh.ranks());
    let mut members: HashMap<Rank, Vec<u32>> = HashMap::new();
    for rank in 0..program.mesh.ranks() {
        let first = group.first(&program.mesh, rank);
        first_of.push(first);
        members
            .entry(first)
            .or_default()
            .push(program.class_of[rank]);
    }
    let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
    let mut numbers: HashMap<Rank, u32> = HashMap::new();
    for (first, classes) in members {
        let next = known.len() as u32;
        numbers.insert(first, *known.entry(classes).or_insert(next));
    }
    first_of.iter().map(|first| numbers[first]).collect()
}
