//! Equivalence of the ranks of a class.

use crate::collectives::collectives_of;
use crate::matching::{Exchanges, messages};
use crate::{Case, Fault};
use partita_program::{Buffer, CollectiveKind, Distribution, TensorRegion, View, Work};
use partita_space::{AXES, Axis, AxisList, AxisSet, Coord, Interval, Mesh, Offset, Rank, Submesh};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Checks that every rank of a class has what its representative has: extents of owned regions, as much of each
/// tensor around them as its buffers hold, and distances between its regions and those of peers of the same class.
///
/// Then all that is proved of one rank and peers of some classes holds for every rank with peers of these classes.
pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let exchanges = Exchanges::of(case);
    let mesh = &case.program.mesh;
    let coords: Vec<Coord> = (0..mesh.ranks()).map(|rank| mesh.coord(rank)).collect();
    let mut ranks: Vec<Vec<Rank>> = vec![Vec::new(); case.program.bodies.len()];
    for (rank, &class) in case.program.class_of.iter().enumerate() {
        ranks[class as usize].push(rank);
    }
    for (class, _) in case.checked() {
        Class {
            case,
            class,
            uses: &Uses::of(case, class, &exchanges),
            ranks: &ranks[class],
            coords: &coords,
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
    parts: BTreeSet<Part>,
    /// Of messages with the offset to the peer.
    distances: BTreeSet<(Distance, Option<Offset>)>,
    rooms: BTreeSet<Room>,
    /// Of tensors of which the class holds nothing.
    empty: HashSet<Distribution>,
}

/// Elements of a tensor before and after the owned ones, as far as a buffer has room for them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Room {
    part: Part,
    /// The range that is split, of a tensor of this extent.
    first: i64,
    extent: i64,
    /// Elements of the buffer before and after the owned ones.
    around: [usize; 2],
}

impl Room {
    fn at(&self, mesh: &Mesh, coord: &Coord) -> Option<[i64; 2]> {
        let owned = self.part.at(mesh, coord, Offset::default())?;
        let [before, after] = self.around.map(|around| around as i64);
        let end = self.extent - self.first - owned.end;
        Some([before.min(self.first + owned.start), after.min(end)])
    }
}

impl Uses {
    fn of(case: &Case<'_>, class: usize, exchanges: &Exchanges) -> Self {
        let mut uses = Self::default();
        let body = &case.program.bodies[class];
        for buffer in &body.buffers {
            match &buffer.tensor {
                // Ranks that hold nothing need not have it in the same place.
                Some(tensor) if buffer.dims == [0; 5] => {
                    uses.empty.insert(tensor.distribution);
                }
                Some(tensor) => {
                    uses.distribution(&tensor.distribution);
                    uses.rooms(case, class, tensor, buffer);
                }
                None => {}
            }
        }
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

    fn rooms(&mut self, case: &Case<'_>, class: usize, tensor: &TensorRegion, buffer: &Buffer) {
        let distribution = tensor.distribution;
        let owned = distribution.owned(&case.program.mesh, &case.coords[class]);
        for dim in (0..5).filter(|&dim| !distribution.axes[dim].is_empty()) {
            let around = tensor.around(dim, buffer.dims[dim], owned.0[dim].len());
            if around != [0, 0] {
                self.rooms.insert(Room {
                    part: Part::along(&distribution, dim),
                    first: distribution.split_range(dim).start,
                    extent: distribution.shape[dim] as i64,
                    around,
                });
            }
        }
    }

    fn exchanges(&mut self, case: &Case<'_>, class: usize, exchanges: &Exchanges) {
        for message in messages(case, exchanges, class) {
            let offset = message.offset;
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
                    Some(offset),
                );
            }
        }
    }

    /// `to_peer` is the offset to the peer of a message; along the axes of `each` the peers are all ranks.
    fn distance(
        &mut self,
        mine: &Distribution,
        theirs: &Distribution,
        each: AxisSet,
        to_peer: Option<Offset>,
    ) {
        let offset = to_peer.unwrap_or_default();
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
                let distance = Distance { mine, theirs, step };
                self.distances.insert((distance, to_peer));
            }
        }
    }

    fn collectives(&mut self, case: &Case<'_>, class: usize) {
        for (_, collective) in collectives_of(case, class) {
            let group = collective.group;
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
                        self.distance(&mine, &theirs, group, None);
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

struct Class<'a, 'p> {
    case: &'a Case<'p>,
    class: usize,
    uses: &'a Uses,
    /// All ranks of the class, ascending.
    ranks: &'a [Rank],
    coords: &'a [Coord],
}

impl Class<'_, '_> {
    /// Reports each relation at most once, for the first rank that breaks it.
    fn check(&self, faults: &mut Vec<Fault>) {
        let (mesh, uses) = (&self.case.program.mesh, self.uses);
        let mut known = HashMap::new();
        let mut distinct = |parts: [Part; 2], to_peer: Option<Offset>| -> Vec<Rank> {
            let key = (parts.map(|part| (part.axes, part.submesh)), to_peer);
            let ranks = known.entry(key);
            let ranks = ranks.or_insert_with(|| self.distinct(parts, to_peer));
            ranks.clone()
        };
        for part in &uses.parts {
            let length = |rank| {
                let part = part.at(mesh, &self.coords[rank], Offset::default());
                part.map(|part| part.len())
            };
            let what = || format!("share of {} along {}", part.extent, name(part.axes));
            self.compare(&distinct([*part; 2], None), None, length, what, faults);
        }
        for room in &uses.rooms {
            let around = |rank: Rank| room.at(mesh, &self.coords[rank]);
            let what = || {
                let axes = name(room.part.axes);
                format!("rest of {} around its part along {axes}", room.extent)
            };
            self.compare(&distinct([room.part; 2], None), None, around, what, faults);
        }
        for distribution in &uses.empty {
            let is_empty = |rank: Rank| {
                let owned = distribution.owned(mesh, &self.coords[rank]);
                owned.is_empty()
            };
            let what = || format!("part of a tensor of {:?}", distribution.shape);
            self.compare(self.ranks, None, is_empty, what, faults);
        }
        for (distance, to_peer) in &uses.distances {
            let apart = |rank| distance.at(mesh, &self.coords[rank]);
            let axes = [distance.mine.axes, distance.theirs.axes];
            let what = || {
                let (extent, step) = (distance.mine.extent, &distance.step.0);
                let [mine, theirs] = axes.map(name);
                format!("distance of {step:?} from its part of {extent} along {mine} to {theirs}")
            };
            let parts = [distance.mine, distance.theirs];
            self.compare(&distinct(parts, *to_peer), *to_peer, apart, what, faults);
        }
    }

    /// The class of the rank at an offset.
    fn peer(&self, rank: Rank, to_peer: Option<Offset>) -> Option<usize> {
        let peer = self.case.program.mesh.neighbor(rank, to_peer?)?;
        Some(self.case.class_of(peer))
    }

    /// The first rank for each choice of coordinates along the axes of these parts and each class of peers; all
    /// ranks where one is on a submesh.
    fn distinct(&self, parts: [Part; 2], to_peer: Option<Offset>) -> Vec<Rank> {
        if parts.iter().any(|part| part.submesh.is_some()) {
            return self.ranks.to_vec();
        }
        let mut seen = HashSet::new();
        let mesh = &self.case.program.mesh;
        let key = |rank: Rank| {
            let at = parts.map(|part| mesh.part_index(part.axes, &self.coords[rank]));
            (at, self.peer(rank, to_peer))
        };
        let ranks = self.ranks.iter().copied();
        ranks.filter(|&rank| seen.insert(key(rank))).collect()
    }

    /// Compares a value of each rank with that of the first that has a peer of the same class.
    fn compare<T: PartialEq>(
        &self,
        ranks: &[Rank],
        to_peer: Option<Offset>,
        value: impl Fn(Rank) -> T,
        what: impl Fn() -> String,
        faults: &mut Vec<Fault>,
    ) {
        let mut first: HashMap<Option<usize>, (Rank, T)> = HashMap::new();
        for &rank in ranks {
            let got = value(rank);
            let peer = self.peer(rank, to_peer);
            let (representative, expected) = first.entry(peer).or_insert((rank, value(rank)));
            if got != *expected {
                faults.push(Fault::NotEquivalent {
                    class: self.class,
                    rank,
                    representative: *representative,
                    reason: format!("another {}", what()),
                });
                return;
            }
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
