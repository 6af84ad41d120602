//! Equivalence of the ranks of a class.

use crate::collectives::collectives_of;
use crate::matching::{Exchanges, messages};
use crate::{Case, Fault};
use partita_program::{CollectiveKind, Distribution, Group, View, Work};
use partita_space::{AXES, Axis, AxisList, AxisSet, Coord, Interval, Mesh, Offset, Rank, Submesh};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Checks that every rank of a class has the relations to its peers that the representative has: classes of
/// neighbors and group members, extents of owned regions, and distances between its regions and its peers'.
///
/// Then all that is proved of a representative's messages holds for every rank.
pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let exchanges = Exchanges::of(case);
    let uses: Vec<Uses> = case
        .bodies()
        .map(|(class, _)| Uses::of(case, class, &exchanges))
        .collect();
    let all_groups: BTreeSet<Group> = uses.iter().flat_map(|uses| &uses.groups).copied().collect();
    let numbers: HashMap<Group, Vec<u32>> = all_groups
        .into_iter()
        .map(|group| (group, group_numbers(case, group)))
        .collect();
    let mesh = &case.program.mesh;
    let coords: Vec<Coord> = (0..mesh.ranks()).map(|rank| mesh.coord(rank)).collect();
    let mut ranks: Vec<Vec<Rank>> = vec![Vec::new(); uses.len()];
    for (rank, &class) in case.program.class_of.iter().enumerate() {
        ranks[class as usize].push(rank);
    }
    for (class, (uses, ranks)) in uses.iter().zip(&ranks).enumerate() {
        Class {
            case,
            class,
            uses,
            ranks,
            coords: &coords,
            numbers: &numbers,
        }
        .check(faults);
    }
}

/// The interval that a rank owns along one dim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    extent: usize,
    axes: AxisList,
    submesh: Option<Submesh>,
}

/// Distance from the start of one part to the start of another, which may be at a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Distance {
    mine: Part,
    theirs: Part,
    /// Along the axes of `theirs`, or all of them where it is on a submesh.
    step: Offset,
}

impl Part {
    fn along(distribution: &Distribution, dim: usize) -> Self {
        Self {
            extent: distribution.split_range(dim).len(),
            axes: distribution.axes[dim],
            submesh: distribution.submesh,
        }
    }

    fn at(&self, mesh: &Mesh, coord: &Coord, step: Offset) -> Option<Interval> {
        if let Some(submesh) = self.submesh {
            let there = submesh.coord(mesh.neighbor(mesh.rank(*coord), step)?)?;
            let mesh = submesh.mesh();
            let part = mesh.part_index(self.axes, &there);
            return Some(mesh.part(self.axes, self.extent, part));
        }
        let mut there = *coord;
        for axis in self.axes.iter().map(Axis::index) {
            let at = coord[axis] as i64 + i64::from(step.0[axis]);
            there[axis] = usize::try_from(at).ok()?;
            if there[axis] >= mesh.extent(AXES[axis]) {
                return None;
            }
        }
        let part = mesh.part_index(self.axes, &there);
        Some(mesh.part(self.axes, self.extent, part))
    }
}

impl Distance {
    /// Modulo the extent; none where there is no peer.
    fn at(&self, mesh: &Mesh, coord: &Coord) -> Option<i64> {
        let mine = self.mine.at(mesh, coord, Offset::default())?;
        let theirs = self.theirs.at(mesh, coord, self.step)?;
        Some((theirs.start - mine.start).rem_euclid(self.mine.extent.max(1) as i64))
    }
}

/// The relations to peers on which a body depends.
#[derive(Default)]
struct Uses {
    offsets: BTreeSet<Offset>,
    groups: BTreeSet<Group>,
    parts: BTreeSet<Part>,
    distances: BTreeSet<Distance>,
}

impl Uses {
    fn of(case: &Case<'_>, class: usize, exchanges: &Exchanges) -> Self {
        let mut uses = Self::default();
        let body = &case.program.bodies[class];
        let tensors = body
            .buffers
            .iter()
            .filter_map(|buffer| buffer.tensor.as_ref());
        tensors.for_each(|tensor| uses.distribution(&tensor.distribution));
        for task in &body.tasks {
            match &task.work {
                Work::Load(load) => uses.distribution(&load.distribution),
                Work::Store(store) => uses.distribution(&store.distribution),
                Work::Compute { .. } | Work::Exchange(_) | Work::Collective(_) => {}
            }
        }
        uses.exchanges(case, class, exchanges);
        uses.collectives(case, class);
        uses
    }

    fn distribution(&mut self, distribution: &Distribution) {
        let parts = (0..5).map(|dim| Part::along(distribution, dim));
        self.parts
            .extend(parts.filter(|part| !part.axes.is_empty()));
    }

    fn exchanges(&mut self, case: &Case<'_>, class: usize, exchanges: &Exchanges) {
        for message in messages(case, exchanges, class) {
            let offset = message.offset;
            self.offsets.insert(offset);
            let Some((peer, view)) = message.other.filter(|(_, view)| !view.is_empty()) else {
                continue;
            };
            if let (Some(mine), Some(theirs)) =
                (case.tensor(class, &message.view), case.tensor(peer, &view))
            {
                self.distance(
                    &mine.distribution,
                    &theirs.distribution,
                    AxisSet::NONE,
                    offset,
                );
            }
        }
    }

    /// `offset` leads to the peer; along the axes of `each` the peers are all ranks.
    fn distance(
        &mut self,
        mine: &Distribution,
        theirs: &Distribution,
        each: AxisSet,
        offset: Offset,
    ) {
        for dim in 0..5 {
            let (mine, mut theirs) = (Part::along(mine, dim), Part::along(theirs, dim));
            theirs.axes = theirs.axes.before(each);
            let mut step = Offset::default();
            for axis in theirs.axes.iter().map(Axis::index) {
                step.0[axis] = offset.0[axis];
            }
            if theirs.submesh.is_some() {
                step = offset;
            }
            if !(mine.axes.is_empty() && theirs.axes.is_empty()) {
                self.distances.insert(Distance { mine, theirs, step });
            }
        }
    }

    fn collectives(&mut self, case: &Case<'_>, class: usize) {
        for (_, collective) in collectives_of(case, class) {
            let group = collective.group;
            self.groups.insert(collective.group());
            let kind = &collective.kind;
            for (sources, targets) in kind.parts() {
                let (mine, theirs) = match kind {
                    CollectiveKind::AllReduce { .. } | CollectiveKind::AllGather { .. } => {
                        (targets, sources)
                    }
                    CollectiveKind::ReduceScatter { .. } | CollectiveKind::AllToAll { .. } => {
                        (sources, targets)
                    }
                };
                let held: Vec<View> = mine.iter().copied().filter(|v| !v.is_empty()).collect();
                for mut mine in distributions(case, class, &held) {
                    match kind {
                        CollectiveKind::AllReduce { .. }
                        | CollectiveKind::AllGather { .. }
                        | CollectiveKind::ReduceScatter { .. } => {}
                        // What is sent also depends on the sender's position in the group, which is checked for
                        // every member of the class; only the outer axes are left.
                        CollectiveKind::AllToAll { .. } => mine
                            .axes
                            .iter_mut()
                            .for_each(|axes| *axes = axes.before(group)),
                    }
                    for theirs in distributions(case, class, theirs) {
                        self.distance(&mine, &theirs, group, Offset::default());
                    }
                }
            }
        }
    }
}

/// Distributions of the tensors in the buffers of these views.
fn distributions(case: &Case<'_>, class: usize, views: &[View]) -> Vec<Distribution> {
    let body = &case.program.bodies[class];
    let buffers: BTreeSet<_> = views.iter().map(|view| view.buffer).collect();
    let tensors = buffers.into_iter().filter_map(|id| body.buffer(id).tensor);
    tensors.map(|tensor| tensor.distribution).collect()
}

/// A number for each rank, equal where the members of its group have the same classes in the same order.
fn group_numbers(case: &Case<'_>, group: Group) -> Vec<u32> {
    let program = case.program;
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

struct Class<'a, 'p> {
    case: &'a Case<'p>,
    class: usize,
    uses: &'a Uses,
    /// All ranks of the class.
    ranks: &'a [Rank],
    coords: &'a [Coord],
    numbers: &'a HashMap<Group, Vec<u32>>,
}

impl Class<'_, '_> {
    /// Reports each relation at most once, for the first rank that breaks it.
    fn check(&self, faults: &mut Vec<Fault>) {
        let (class_of, ranks) = (&self.case.program.class_of, self.ranks);
        let mesh = &self.case.program.mesh;
        let uses = self.uses;
        for &offset in &uses.offsets {
            let peer = |rank| mesh.neighbor(rank, offset).map(|peer| class_of[peer]);
            let what = || format!("class of the rank at {offset:?}");
            self.compare(ranks, peer, what, faults);
        }
        for group in &uses.groups {
            let number = |rank: Rank| self.numbers[group][rank];
            let what = || format!("classes of the group along {}", group.axes);
            self.compare(ranks, number, what, faults);
        }
        // Parts depend on few coordinates: one rank suffices for all with the same ones.
        let mut known = HashMap::new();
        let mut distinct = |parts: [Part; 2]| -> Vec<Rank> {
            let known = known.entry(parts.map(|part| (part.axes, part.submesh)));
            let ranks = known.or_insert_with(|| self.distinct(ranks, parts));
            ranks.clone()
        };
        for part in &uses.parts {
            let length = |rank| {
                let part = part.at(mesh, &self.coords[rank], Offset::default());
                part.map(|part| part.len())
            };
            let what = || format!("share of {} along {}", part.extent, name(part.axes));
            self.compare(&distinct([*part; 2]), length, what, faults);
        }
        for distance in &uses.distances {
            let apart = |rank| distance.at(mesh, &self.coords[rank]);
            let axes = [distance.mine.axes, distance.theirs.axes];
            let what = || {
                let (extent, step) = (distance.mine.extent, &distance.step.0);
                let [mine, theirs] = axes.map(name);
                format!("distance of {step:?} from its part of {extent} along {mine} to {theirs}")
            };
            let parts = [distance.mine, distance.theirs];
            self.compare(&distinct(parts), apart, what, faults);
        }
    }

    /// The first rank for each choice of coordinates along the axes of these parts; all ranks where one is on a
    /// submesh.
    fn distinct(&self, ranks: &[Rank], parts: [Part; 2]) -> Vec<Rank> {
        if parts.iter().any(|part| part.submesh.is_some()) {
            return ranks.to_vec();
        }
        let mut seen = HashSet::new();
        let mesh = &self.case.program.mesh;
        let key = |rank: Rank| parts.map(|part| mesh.part_index(part.axes, &self.coords[rank]));
        let ranks = ranks.iter().copied();
        ranks.filter(|&rank| seen.insert(key(rank))).collect()
    }

    fn compare<T: PartialEq>(
        &self,
        ranks: &[Rank],
        value: impl Fn(Rank) -> T,
        what: impl Fn() -> String,
        faults: &mut Vec<Fault>,
    ) {
        let representative = self.case.representatives[self.class];
        let expected = value(representative);
        if let Some(&rank) = ranks.iter().find(|&&rank| value(rank) != expected) {
            faults.push(Fault::NotEquivalent {
                class: self.class,
                rank,
                representative,
                reason: format!("another {}", what()),
            });
        }
    }
}

fn name(axes: AxisList) -> String {
    if axes.is_empty() {
        "no axis".to_owned()
    } else {
        axes.to_string()
    }
}
