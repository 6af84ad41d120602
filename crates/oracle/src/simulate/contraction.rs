//! A smaller mesh in which inner ranks along space stand for others that do the same.
//!
//! Ranks far from all borders do the same at nearly the same times. So of a long row of equal ranks only some are
//! simulated: the first and the last, and inner ones that have inner ranks as neighbors. Costs stay those of the
//! whole mesh: links within and between nodes, collectives of all members, groups that share adapters. Left out is
//! only how delays from the borders fade over the ranks that are cut out.

use super::Contracted;
use partita_program::{Body, Group, Program, Task, Work};
use partita_space::{AXES, Axis, Bytes, Coord, Mesh, Offset, Rank};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Ranks in space up to which all are simulated, and to which more are cut down where that is possible.
pub(super) const SIMULATED_MAX: usize = 128;

/// The longest period of equal ranks along an axis: ranks of a node, usually.
const PERIOD_MAX: usize = 16;

/// Where ranks are.
#[derive(Clone, Copy)]
pub(super) struct Nodes<'n> {
    /// Per rank, its node.
    pub of: &'n [u32],
    /// Per node, its ranks, ascending.
    pub ranks: &'n [Vec<Rank>],
}

/// Some ranks of a mesh, themselves a mesh.
pub(super) struct Contraction {
    /// The mesh of what is left.
    pub mesh: Mesh,
    /// Per rank of it, the rank of the program.
    pub originals: Vec<Rank>,
    /// Per rank of it, how many ranks of the program it stands for.
    pub weights: Vec<usize>,
    /// The whole mesh.
    world: Mesh,
    /// Per rank of the program the first class whose body costs the same.
    pub alike: Vec<u32>,
}

/// A coordinate along an axis that is kept.
#[derive(Clone, Copy)]
struct Kept {
    coordinate: usize,
    /// Coordinates that it stands for.
    weight: usize,
    /// Equal where all ranks do the same at the same places of their nodes.
    sign: u32,
    /// Whether no node holds ranks on both sides of its start.
    starts_nodes: bool,
}

impl Contraction {
    /// All ranks.
    pub fn none(program: &Program) -> Self {
        let ranks = program.mesh.ranks();
        Self {
            mesh: program.mesh,
            originals: (0..ranks).collect(),
            weights: vec![1; ranks],
            world: program.mesh,
            alike: program.class_of.clone(),
        }
    }

    /// None where there are few ranks in space, or no equal ones in a row, or a collective of part of the mesh.
    pub fn of(program: &Program, kinds: &[Group], nodes: Nodes<'_>) -> Option<Self> {
        let space = [Axis::Depth, Axis::Height, Axis::Width];
        let extents = space.map(|axis| program.mesh.extent(axis));
        let on_submesh = |kind: &Group| kind.submesh.is_some();
        if extents.into_iter().product::<usize>() <= SIMULATED_MAX || kinds.iter().any(on_submesh) {
            return None;
        }
        let first = first_alike(&program.bodies);
        let alike = program.class_of.iter().map(|&class| first[class as usize]);
        let alike: Vec<u32> = alike.collect();
        let mut kept = space.map(|axis| coordinates(&program.mesh, &alike, nodes, axis));
        while kept.iter().map(Vec::len).product::<usize>() > SIMULATED_MAX {
            let mut longest: Vec<usize> = (0..3).collect();
            longest.sort_by_key(|&at| std::cmp::Reverse(kept[at].len()));
            if !longest.into_iter().any(|at| cut(&mut kept[at])) {
                break;
            }
        }
        if (0..3).all(|at| kept[at].len() == extents[at]) {
            return None;
        }
        let mut along: [Vec<Kept>; 7] = AXES.map(|axis| coordinates_of(program.mesh.extent(axis)));
        for (axis, kept) in space.into_iter().zip(kept) {
            along[axis.index()] = kept;
        }
        let mesh = Mesh::new(std::array::from_fn(|axis| along[axis].len()));
        let at = |rank: Rank| {
            let coord = mesh.coord(rank);
            let kept: [Kept; 7] = std::array::from_fn(|axis| along[axis][coord[axis]]);
            let original: Coord = kept.map(|one| one.coordinate);
            let weight: usize = kept.iter().map(|one| one.weight).product();
            (program.mesh.rank(original), weight)
        };
        let (originals, weights) = (0..mesh.ranks()).map(at).unzip();
        Some(Self {
            mesh,
            originals,
            weights,
            world: program.mesh,
            alike,
        })
    }

    /// Its size, and a class of its ranks for each class of the program.
    pub fn told(&self, program: &Program) -> Contracted {
        let mut kept = HashMap::new();
        for &rank in &self.originals {
            kept.entry(self.alike[rank])
                .or_insert(program.class_of[rank]);
        }
        let ranks = program.representatives().into_iter();
        let classes = ranks.map(|rank| kept.get(&self.alike[rank]));
        Contracted {
            ranks: self.mesh.ranks(),
            classes: classes
                .map(|class| *class.expect("a coordinate of each kind is kept"))
                .collect(),
        }
    }

    /// The rank at an offset; an offset of more than half of the mesh leads over its border.
    pub fn neighbor(&self, rank: Rank, offset: Offset) -> Option<Rank> {
        let mut coord = self.mesh.coord(rank);
        for axis in AXES {
            let (all, left) = (self.world.extent(axis), self.mesh.extent(axis));
            let (step, at) = (offset.0[axis.index()], &mut coord[axis.index()]);
            let is_far = 2 * step.unsigned_abs() as usize > all;
            let shorter = if is_far { all as i64 - left as i64 } else { 0 };
            let step = i64::from(step) - shorter * i64::from(step.signum());
            let there = usize::try_from(*at as i64 + step).ok();
            *at = there.filter(|&there| there < left)?;
        }
        Some(self.mesh.rank(coord))
    }
}

fn coordinates_of(extent: usize) -> Vec<Kept> {
    let one = |coordinate| Kept {
        coordinate,
        weight: 1,
        sign: 0,
        starts_nodes: false,
    };
    (0..extent).map(one).collect()
}

/// For each body the first that costs the same: it is equal but for where views lie in their buffers, as those of a
/// rank's part in what it has gathered.
fn first_alike(bodies: &[Body]) -> Vec<u32> {
    let mut known: HashMap<(usize, usize, Bytes, u64), Vec<u32>> = HashMap::new();
    let mut first = Vec::with_capacity(bodies.len());
    for (class, body) in (0..).zip(bodies) {
        // Bodies have thousands of tasks, so that only those are compared whose tasks have one hash.
        let mut hasher = DefaultHasher::new();
        for task in &body.tasks {
            hash(task, &mut hasher);
        }
        let key = (
            body.tasks.len(),
            body.buffers.len(),
            body.memory(),
            hasher.finish(),
        );
        let known = known.entry(key).or_default();
        let is_like = |other: &u32| {
            let other = &bodies[*other as usize];
            let mut pairs = other.tasks.iter().zip(&body.tasks);
            other.buffers == body.buffers && pairs.all(|(one, other)| are_alike(one, other))
        };
        if let Some(other) = known.iter().copied().find(is_like) {
            first.push(other);
        } else {
            known.push(class);
            first.push(class);
        }
    }
    first
}

/// Whether two tasks are equal but for where their views lie in their buffers.
fn are_alike(one: &Task, other: &Task) -> bool {
    one == other || without_starts(one) == without_starts(other)
}

/// A task with all views at the start of their buffers.
fn without_starts(task: &Task) -> Task {
    let mut task = task.clone();
    task.each_view_mut(&mut |view| view.start = [0; 5]);
    task
}

/// The same for tasks that are alike, and seldom for others: of buffers, extents and peers.
fn hash(task: &Task, hasher: &mut DefaultHasher) {
    if let Work::Exchange(exchange) = &task.work {
        let peers = exchange.sends.iter().map(|send| send.to);
        let others = exchange.receives.iter().map(|receive| receive.from);
        peers.chain(others).for_each(|peer| peer.0.hash(hasher));
    }
    task.clone()
        .each_view_mut(&mut |view| (view.buffer.0, view.extent).hash(hasher));
}

/// All coordinates along an axis, with what tells them apart.
fn coordinates(mesh: &Mesh, alike: &[u32], nodes: Nodes<'_>, axis: Axis) -> Vec<Kept> {
    let mut along = coordinates_of(mesh.extent(axis));
    let mut signs: Vec<Vec<(u32, u32)>> = vec![Vec::new(); along.len()];
    along.iter_mut().for_each(|one| one.starts_nodes = true);
    let mut back = Offset::default();
    back.0[axis.index()] = -1;
    for rank in 0..mesh.ranks() {
        let at = mesh.coord(rank)[axis.index()];
        let node = nodes.of[rank];
        let place = nodes.ranks[node as usize].partition_point(|&other| other < rank);
        signs[at].push((alike[rank], place as u32));
        if let Some(before) = mesh.neighbor(rank, back) {
            along[at].starts_nodes &= nodes.of[before] != node;
        }
    }
    let mut numbers = HashMap::new();
    for (one, sign) in along.iter_mut().zip(signs) {
        let next = numbers.len() as u32;
        one.sign = *numbers.entry(sign).or_insert(next);
    }
    along
}

/// Cuts out one period of a run of equal coordinates of at least two more, at the border of nodes; false where there is
/// none.
fn cut(along: &mut Vec<Kept>) -> bool {
    for period in 1..=PERIOD_MAX.min(along.len() / 3) {
        let is_like = |at: usize| along[at].sign == along[at + period].sign;
        let ends = along.len() - period;
        let mut first = 0;
        while first < ends {
            let run = (first..ends).take_while(|&at| is_like(at)).count();
            if run >= 2 * period {
                // Coordinates before and after it are like those that were its neighbors.
                let starts = first + 1..=first + run - period;
                let middle = first + run / 2;
                let starts = starts.filter(|&at| along[at].starts_nodes);
                if let Some(start) = starts.min_by_key(|&at| at.abs_diff(middle)) {
                    for at in start..start + period {
                        along[at + period].weight += along[at].weight;
                    }
                    along.drain(start..start + period);
                    return true;
                }
            }
            first += run + 1;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Coordinates of these signs, whose nodes start at each multiple of `node`.
    fn row(signs: &[u32], node: usize) -> Vec<Kept> {
        let mut along = coordinates_of(signs.len());
        for (at, one) in along.iter_mut().enumerate() {
            (one.sign, one.starts_nodes) = (signs[at], at % node == 0);
        }
        along
    }

    fn left(mut along: Vec<Kept>) -> Vec<(usize, usize)> {
        while cut(&mut along) {}
        along
            .iter()
            .map(|one| (one.coordinate, one.weight))
            .collect()
    }

    #[test]
    fn the_first_the_last_and_two_inner_ones_are_left() {
        let even = row(&[0, 1, 1, 1, 1, 1, 1, 2], 1);
        let kept = left(even);
        assert_eq!(
            kept.iter().map(|one| one.1).collect::<Vec<_>>(),
            [1, 1, 5, 1]
        );
        assert_eq!((kept[0].0, kept[1].0, kept[3].0), (0, 1, 7));
        // Two lengths of parts.
        let kept = left(row(&[0, 1, 1, 1, 1, 3, 3, 3, 3, 2], 1));
        assert_eq!(kept.len(), 6);
        assert_eq!(kept.iter().map(|one| one.1).sum::<usize>(), 10);
    }

    #[test]
    fn nodes_are_kept_whole() {
        // Sixteen ranks on nodes of four: first, inner and last node.
        let signs = [0, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 5];
        let kept = left(row(&signs, 4));
        let expected: Vec<usize> = (0..4).chain(8..16).collect();
        assert_eq!(kept.iter().map(|one| one.0).collect::<Vec<_>>(), expected);
        assert_eq!(kept.iter().map(|one| one.1).sum::<usize>(), 16);
        // All ranks on one node.
        assert_eq!(left(row(&[0, 1, 1, 1, 1, 1, 1, 2], 100)).len(), 8);
    }

    #[test]
    fn unlike_ranks_are_kept() {
        assert_eq!(left(row(&[0, 1, 2, 3, 4, 5], 1)).len(), 6);
        assert_eq!(left(row(&[0, 1, 1, 2], 1)).len(), 4);
        assert_eq!(left(row(&[], 1)).len(), 0);
    }
}
