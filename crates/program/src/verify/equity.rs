use super::collectives::collectives_of;
use super::matching::{exchanges, messages};
use super::{Case, Fault};
use crate::{CollectiveKind, Place, View, Work};
use partita_space::{AXES, Axis, AxisSet, Coord, Interval, Mesh, Offset, Rank, Split};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Every rank of a class stands to its peers as the representative does: classes of neighbors and of
/// group members, extents of what it owns, and distances between its own regions and its peers'.
///
/// With this, what is found true of a representative's messages is true of every rank's.
pub(super) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let tasks = exchanges(case);
    let uses: Vec<Uses> = case
        .bodies()
        .map(|(class, _)| Uses::of(case, class, &tasks))
        .collect();
    let all_groups: BTreeSet<AxisSet> =
        uses.iter().flat_map(|uses| &uses.groups).copied().collect();
    let numbers: HashMap<AxisSet, Vec<u32>> = all_groups
        .into_iter()
        .map(|axes| (axes, group_numbers(case, axes)))
        .collect();
    let mesh = &case.program.mesh;
    let coords: Vec<Coord> = (0..mesh.ranks()).map(|rank| mesh.coord(rank)).collect();
    for (class, uses) in uses.iter().enumerate() {
        Class {
            case,
            class,
            uses,
            coords: &coords,
            numbers: &numbers,
        }
        .check(faults);
    }
}

/// A run of indices that a rank owns along one dim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    extent: usize,
    axis: Option<Axis>,
}

/// Distance from the start of one part to the start of another, which may be at a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Distance {
    mine: Part,
    theirs: Part,
    /// Along the axis of `theirs`.
    step: i32,
}

impl Part {
    fn along(place: &Place, dim: usize) -> Self {
        Self {
            extent: place.shape[dim],
            axis: place.axes[dim],
        }
    }

    fn at(&self, mesh: &Mesh, coord: &Coord, step: i32) -> Option<Interval> {
        let Some(axis) = self.axis else {
            return Some(Interval::all(self.extent));
        };
        let at = coord[axis.index()] as i64 + i64::from(step);
        let parts = mesh.extent(axis);
        let split = Split {
            extent: self.extent,
            parts,
        };
        let part = usize::try_from(at).ok().filter(|&part| part < parts)?;
        Some(split.part(part))
    }
}

impl Distance {
    /// Modulo the extent; none where there is no peer.
    fn at(&self, mesh: &Mesh, coord: &Coord) -> Option<i64> {
        let mine = self.mine.at(mesh, coord, 0)?;
        let theirs = self.theirs.at(mesh, coord, self.step)?;
        Some((theirs.start - mine.start).rem_euclid(self.mine.extent.max(1) as i64))
    }
}

/// On what a body depends of the place its rank has in the mesh.
#[derive(Default)]
struct Uses {
    offsets: BTreeSet<Offset>,
    groups: BTreeSet<AxisSet>,
    parts: BTreeSet<Part>,
    distances: BTreeSet<Distance>,
}

impl Uses {
    fn of(case: &Case<'_>, class: usize, tasks: &[HashMap<u32, usize>]) -> Self {
        let mut uses = Self::default();
        let body = &case.program.bodies[class];
        let homes = body
            .buffers
            .iter()
            .filter_map(|buffer| buffer.home.as_ref());
        homes.for_each(|home| uses.place(&home.place));
        for task in &body.tasks {
            match &task.work {
                Work::Load(load) => uses.place(&load.place),
                Work::Compute { .. } | Work::Exchange(_) | Work::Collective(_) => {}
            }
        }
        uses.exchanges(case, class, tasks);
        uses.collectives(case, class);
        uses
    }

    fn place(&mut self, place: &Place) {
        let parts = (0..5).map(|dim| Part::along(place, dim));
        self.parts.extend(parts.filter(|part| part.axis.is_some()));
    }

    fn exchanges(&mut self, case: &Case<'_>, class: usize, tasks: &[HashMap<u32, usize>]) {
        for message in messages(case, tasks, class) {
            let offset = message.offset;
            self.offsets.insert(offset);
            let Some((peer, view)) = message.other.filter(|(_, view)| !view.is_empty()) else {
                continue;
            };
            if let (Some(mine), Some(theirs)) =
                (case.home(class, &message.view), case.home(peer, &view))
            {
                let step = |axis: Axis| Some(offset.0[axis.index()]);
                self.distance(&mine.place, &theirs.place, step);
            }
        }
    }

    /// `step` tells how far away the other one is along an axis, or that it does not depend on this
    /// rank.
    fn distance(&mut self, mine: &Place, theirs: &Place, step: impl Fn(Axis) -> Option<i32>) {
        for dim in 0..5 {
            let (mine, mut theirs) = (Part::along(mine, dim), Part::along(theirs, dim));
            let step = match theirs.axis.map(&step) {
                None => 0,
                Some(Some(step)) => step,
                Some(None) => {
                    theirs.axis = None;
                    0
                }
            };
            if mine.axis.is_some() || theirs.axis.is_some() {
                self.distances.insert(Distance { mine, theirs, step });
            }
        }
    }

    fn collectives(&mut self, case: &Case<'_>, class: usize) {
        for (_, collective) in collectives_of(case, class) {
            let group = collective.group;
            self.groups.insert(group);
            let kind = &collective.kind;
            let (mine, theirs) = match kind {
                CollectiveKind::AllReduce { .. } | CollectiveKind::AllGather { .. } => {
                    (kind.targets(), kind.sources())
                }
                CollectiveKind::ReduceScatter { .. } | CollectiveKind::AllToAll { .. } => {
                    (kind.sources(), kind.targets())
                }
            };
            let held: Vec<View> = mine.iter().copied().filter(|v| !v.is_empty()).collect();
            for mut mine in places(case, class, &held) {
                match kind {
                    CollectiveKind::AllReduce { .. }
                    | CollectiveKind::AllGather { .. }
                    | CollectiveKind::ReduceScatter { .. } => {}
                    // What is sent depends on the sender's place in the group, too; this is seen to
                    // for every member of the class, and only the other axes are left.
                    CollectiveKind::AllToAll { .. } => mine.axes.iter_mut().for_each(|axis| {
                        *axis = axis.filter(|&axis| !group.has(axis));
                    }),
                }
                for theirs in places(case, class, theirs) {
                    // Along the group's axes each member has its own place, whoever asks.
                    let step = |axis: Axis| (!group.has(axis)).then_some(0);
                    self.distance(&mine, &theirs, step);
                }
            }
        }
    }
}

/// Places of the buffers of these views that have a home.
fn places(case: &Case<'_>, class: usize, views: &[View]) -> Vec<Place> {
    let body = &case.program.bodies[class];
    let buffers: BTreeSet<_> = views.iter().map(|view| view.buffer).collect();
    let homes = buffers.into_iter().filter_map(|id| body.buffer(id).home);
    homes.map(|home| home.place).collect()
}

/// A number per rank, equal where the members of its group have the same classes in the same order.
fn group_numbers(case: &Case<'_>, axes: AxisSet) -> Vec<u32> {
    let program = case.program;
    let mut first_of: Vec<Rank> = Vec::with_capacity(program.mesh.ranks());
    let mut members: HashMap<Rank, Vec<u32>> = HashMap::new();
    for rank in 0..program.mesh.ranks() {
        let mut coord = program.mesh.coord(rank);
        for axis in AXES.into_iter().filter(|&axis| axes.has(axis)) {
            coord[axis.index()] = 0;
        }
        let first = program.mesh.rank(coord);
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
    coords: &'a [Coord],
    numbers: &'a HashMap<AxisSet, Vec<u32>>,
}

impl Class<'_, '_> {
    /// Reports each relation at most once, for the first rank that breaks it.
    fn check(&self, faults: &mut Vec<Fault>) {
        let class_of = &self.case.program.class_of;
        let ranks: Vec<Rank> = (0..class_of.len())
            .filter(|&rank| class_of[rank] as usize == self.class)
            .collect();
        let mesh = &self.case.program.mesh;
        let uses = self.uses;
        for &offset in &uses.offsets {
            let peer = |rank| mesh.neighbor(rank, offset).map(|peer| class_of[peer]);
            let what = || format!("class of the rank at {offset:?}");
            self.compare(&ranks, peer, what, faults);
        }
        for axes in &uses.groups {
            let number = |rank: Rank| self.numbers[axes][rank];
            let what = || format!("classes of the group along {axes}");
            self.compare(&ranks, number, what, faults);
        }
        // Parts depend on one or two coordinates only: one rank stands for all that have them.
        let mut known = HashMap::new();
        let mut distinct = |axes: [Option<Axis>; 2]| -> Vec<Rank> {
            let known = known.entry(axes);
            known.or_insert_with(|| self.distinct(&ranks, axes)).clone()
        };
        for part in &uses.parts {
            let length = |rank| part.at(mesh, &self.coords[rank], 0).map(|part| part.len());
            let what = || format!("share of {} along {}", part.extent, name(part.axis));
            self.compare(&distinct([part.axis, None]), length, what, faults);
        }
        for distance in &uses.distances {
            let apart = |rank| distance.at(mesh, &self.coords[rank]);
            let axes = [distance.mine.axis, distance.theirs.axis];
            let what = || {
                let (extent, step) = (distance.mine.extent, distance.step);
                let [mine, theirs] = axes.map(name);
                format!("distance of {step} from its part of {extent} along {mine} to {theirs}")
            };
            self.compare(&distinct(axes), apart, what, faults);
        }
    }

    /// The first rank for each pair of coordinates along these axes.
    fn distinct(&self, ranks: &[Rank], axes: [Option<Axis>; 2]) -> Vec<Rank> {
        let mut seen = HashSet::new();
        let key = |rank: Rank| axes.map(|axis| axis.map(|axis| self.coords[rank][axis.index()]));
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
            faults.push(Fault::Inequitable {
                class: self.class,
                rank,
                representative,
                reason: format!("another {}", what()),
            });
        }
    }
}

fn name(axis: Option<Axis>) -> &'static str {
    axis.map_or("no axis", Axis::name)
}
