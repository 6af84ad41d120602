//! Redistribution of a tensor on one mesh, derived from the regions that ranks own before and after.
//!
//! Example: from C split over `filter` to C unsplit is an allgather; its reverse is a local slice, or for
//! partial sums a reduce-scatter. From D split over `depth` to C split over `depth` is an all-to-all. Other
//! changes are point-to-point messages.

use crate::body::{Builder, TensorBuffer};
use partita_program::{
    CollectiveKind, Distribution, Exchange, Kernel, MemberViews, Phase, Receive, Role, Send,
    SplitView, View, Work,
};
use partita_space::{Axis, AxisList, AxisSet, Coord, Interval, Mesh, Region};

/// One step of a redistribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Movement {
    /// Sum over a group; each member keeps its part.
    ReduceScatter(AxisSet),
    /// Sum over a group, for every member.
    AllReduce(AxisSet),
    /// Each member receives the parts of all.
    AllGather(AxisSet),
    /// Each rank keeps a part of what it has.
    Slice,
    /// Each member sends a part to each other member.
    AllToAll(AxisSet),
    /// Point-to-point messages between the members of a group.
    Messages(AxisSet),
}

/// The steps from a distribution, with a partial sum over `partial`, to another, each with the distribution
/// after it. Empty where nothing has to be done.
pub(crate) fn movements(
    mesh: &Mesh,
    from: &Distribution,
    partial: AxisSet,
    to: &Distribution,
) -> Vec<(Movement, Distribution)> {
    let mut movements = Vec::new();
    let mut now = *from;
    let mut unreduced = AxisSet::of(partial.iter().filter(|&axis| mesh.extent(axis) > 1));
    let mut scattered = AxisSet::NONE;
    for dim in 0..5 {
        let inner = to.axes[dim].strip_prefix(now.axes[dim]).unwrap_or_default();
        for axis in inner.iter().take_while(|&axis| unreduced.has(axis)) {
            now.axes[dim] = now.axes[dim].inside(axis);
            scattered = scattered.union(AxisSet::of([axis]));
        }
        // Even in another order than the target's, a reduce-scatter and a move cost less than an allreduce.
        let other = to.axes[dim].within(unreduced.minus(scattered)).iter();
        for axis in other {
            now.axes[dim] = now.axes[dim].inside(axis);
            scattered = scattered.union(AxisSet::of([axis]));
        }
    }
    unreduced = unreduced.minus(scattered);
    if !scattered.is_empty() {
        movements.push((Movement::ReduceScatter(scattered), now));
    }
    if !unreduced.is_empty() {
        movements.push((Movement::AllReduce(unreduced), now));
    }
    if now.axes != to.axes {
        movements.push((change(&now, to), *to));
    }
    movements
}

/// Elements that a rank receives in a redistribution, on average.
pub(crate) fn moved(mesh: &Mesh, from: &Distribution, partial: AxisSet, to: &Distribution) -> f64 {
    let movements = movements(mesh, from, partial, to);
    if movements.is_empty() {
        return 0.0;
    }
    let split = |distribution: &Distribution| distribution.split_axes();
    let all = movements
        .iter()
        .fold(split(from).union(partial), |all, (_, next)| {
            all.union(split(next))
        });
    // A part of the samples stands for all that are as large.
    let each: Vec<&Distribution> = movements
        .iter()
        .map(|(_, next)| next)
        .chain([from])
        .collect();
    let ranks = mesh.group(0, all.minus(alike(mesh, all, &each)));
    let first = Owned::new(mesh, from, ranks.len());
    let owned: Vec<Owned<'_>> = movements
        .iter()
        .map(|(_, next)| Owned::new(mesh, next, ranks.len()))
        .collect();
    let (mut sum, count) = (0.0, ranks.len() as f64);
    for rank in ranks {
        let coord = mesh.coord(rank);
        let mut before = first.at(&coord);
        for ((movement, _), next) in movements.iter().zip(&owned) {
            let after = next.at(&coord);
            let others = |group: AxisSet| (mesh.group_size(group) - 1) as f64;
            sum += match *movement {
                Movement::ReduceScatter(group) => others(group) * after.volume() as f64,
                Movement::AllReduce(group) => {
                    let members = mesh.group_size(group) as f64;
                    2.0 * others(group) / members * after.volume() as f64
                }
                Movement::AllGather(_)
                | Movement::Slice
                | Movement::AllToAll(_)
                | Movement::Messages(_) => {
                    (after.volume() - after.intersect(&before).volume()) as f64
                }
            };
            before = after;
        }
    }
    sum / count
}

/// Those of some axes along which ranks differ by their position alone: each splits one dim of all these distributions before
/// others do, in parts of one size.
fn alike(mesh: &Mesh, axes: AxisSet, distributions: &[&Distribution]) -> AxisSet {
    let is_alike = |axis: Axis, dim: usize| {
        distributions.iter().all(|one| {
            let is_first = one.axes[dim].iter().next() == Some(axis);
            let extent = one.split_range(dim).len();
            is_first && extent.is_multiple_of(mesh.extent(axis))
        })
    };
    AxisSet::of(
        axes.iter()
            .filter(|&axis| (0..5).any(|dim| is_alike(axis, dim))),
    )
}

/// The parts of a distribution, by dim; those of dims with fewer parts than ranks are computed once for all ranks.
struct Owned<'m> {
    mesh: &'m Mesh,
    distribution: &'m Distribution,
    parts: [Option<Vec<Interval>>; 5],
}

impl<'m> Owned<'m> {
    fn new(mesh: &'m Mesh, distribution: &'m Distribution, ranks: usize) -> Self {
        let parts = |dim: usize| {
            let count = mesh.parts(distribution.axes[dim]);
            let part = |part| distribution.part(mesh, dim, part);
            (count < ranks).then(|| (0..count).map(part).collect())
        };
        Self {
            mesh,
            distribution,
            parts: std::array::from_fn(parts),
        }
    }

    fn at(&self, coord: &Coord) -> Region {
        Region(std::array::from_fn(|dim| {
            let part = self.mesh.part_index(self.distribution.axes[dim], coord);
            match &self.parts[dim] {
                Some(parts) => parts[part],
                None => self.distribution.part(self.mesh, dim, part),
            }
        }))
    }
}

/// The step between two distributions of complete values.
fn change(from: &Distribution, to: &Distribution) -> Movement {
    let sets = |inner: [Option<AxisList>; 5]| {
        let all: Option<Vec<_>> = inner.into_iter().collect();
        all.map(|lists| {
            lists
                .iter()
                .fold(AxisSet::NONE, |all, list| all.union(list.set()))
        })
    };
    let dims: [usize; 5] = std::array::from_fn(|dim| dim);
    if let Some(gone) = sets(dims.map(|dim| from.axes[dim].strip_prefix(to.axes[dim]))) {
        return Movement::AllGather(gone);
    }
    if sets(dims.map(|dim| to.axes[dim].strip_prefix(from.axes[dim]))).is_some() {
        return Movement::Slice;
    }
    let differ = dims
        .into_iter()
        .filter(|&dim| from.axes[dim] != to.axes[dim]);
    let touched = differ.fold(AxisSet::NONE, |all, dim| {
        all.union(from.axes[dim].set()).union(to.axes[dim].set())
    });
    let (before, after) = (from.split_axes(), to.split_axes());
    let splits_both = |axis| before.has(axis) && after.has(axis);
    if touched.iter().all(splits_both) {
        Movement::AllToAll(touched)
    } else {
        Movement::Messages(AxisSet::of(touched.iter().filter(|&axis| before.has(axis))))
    }
}

/// Target of a redistribution.
pub(crate) struct Destination {
    pub held: TensorBuffer,
    pub distribution: Distribution,
    pub accumulate: bool,
}

/// A tensor that is moved, for the origins of tasks and the names of buffers.
#[derive(Clone, Copy)]
pub(crate) struct MovedTensor<'a> {
    pub layer: &'a str,
    pub phase: Phase,
    pub role: Role,
    pub tensor: u32,
}

impl Builder<'_> {
    /// Redistributes `source`, a partial sum over `partial`, to its destination. The source may be overwritten
    /// by its sum.
    pub(crate) fn redistribute(
        &mut self,
        moved: MovedTensor<'_>,
        source: TensorBuffer,
        (from, partial): (Distribution, AxisSet),
        to: Destination,
    ) {
        let movements = movements(&self.mesh, &from, partial, &to.distribution);
        let (mut held, mut distribution) = (source, from);
        for (at, &(movement, next)) in movements.iter().enumerate() {
            let is_last = at + 1 == movements.len();
            if let Movement::AllReduce(group) = movement {
                let view = held.view(&self.owned(&distribution));
                self.allreduce_of(moved, group, view);
                continue;
            }
            let target = if is_last && !to.accumulate {
                to.held
            } else {
                self.between(moved, next)
            };
            self.movement(moved, movement, (&held, &distribution), (&target, &next));
            (held, distribution) = (target, next);
        }
        if held.id != to.held.id {
            let own = self.owned(&to.distribution);
            let copy = Kernel::Copy {
                source: held.view(&own),
                target: to.held.view(&own),
                accumulate: to.accumulate,
            };
            if !own.is_empty() {
                self.kernel(moved.layer, moved.phase, copy);
            }
        }
    }

    /// A temporary buffer between two steps.
    pub(crate) fn between(
        &mut self,
        moved: MovedTensor<'_>,
        distribution: Distribution,
    ) -> TensorBuffer {
        let region = self.owned(&distribution);
        let name = format!("{}.between", moved.layer);
        self.tensor_buffer(&name, moved.role, moved.tensor, distribution, region)
    }

    pub(crate) fn allreduce_of(&mut self, moved: MovedTensor<'_>, group: AxisSet, view: View) {
        if view.is_empty() {
            // All members of the group then have an empty view.
            self.next_sequence();
        } else {
            self.allreduce(moved.layer, moved.phase, group, view);
        }
    }

    fn movement(
        &mut self,
        moved: MovedTensor<'_>,
        movement: Movement,
        from: (&TensorBuffer, &Distribution),
        to: (&TensorBuffer, &Distribution),
    ) {
        let (source, target) = (self.owned(from.1), self.owned(to.1));
        let (mesh, me) = (&{ self.mesh }, self.coord);
        let members = |group: AxisSet| {
            let ranks = mesh.group(mesh.rank(me), group).into_iter();
            ranks.map(|rank| mesh.coord(rank))
        };
        let given = |group| -> Vec<View> {
            let parts = members(group).map(|coord| to.1.owned_at(mesh, &coord));
            parts
                .map(|part| from.0.view(&common(&source, &part)))
                .collect()
        };
        let taken = |group| -> Vec<View> {
            let parts = members(group).map(|coord| from.1.owned_at(mesh, &coord));
            parts
                .map(|part| to.0.view(&common(&target, &part)))
                .collect()
        };
        let (group, kind) = match movement {
            Movement::ReduceScatter(group) => {
                let sources = split_view(mesh, group, (from.0.view(&source), from.1), to.1);
                let sources = sources.unwrap_or_else(|| given(group).into());
                let target = to.0.view(&common(&target, &target));
                (group, CollectiveKind::ReduceScatter { sources, target })
            }
            Movement::AllGather(group) => {
                let source = from.0.view(&common(&source, &source));
                let targets = split_view(mesh, group, (to.0.view(&target), to.1), from.1);
                let targets = targets.unwrap_or_else(|| taken(group).into());
                (group, CollectiveKind::AllGather { source, targets })
            }
            Movement::AllToAll(group) => {
                let (sources, targets) = (given(group).into(), taken(group).into());
                (group, CollectiveKind::AllToAll { sources, targets })
            }
            Movement::AllReduce(_) => panic!("a sum in place has no target of its own"),
            Movement::Slice => return self.keep_part(moved, from.0, to.0, &target),
            Movement::Messages(group) => return self.messages(moved, from, to, group),
        };
        let sequence = self.next_sequence();
        let mut parts = members(group).map(|coord| from.1.owned_at(mesh, &coord));
        if parts.all(|part| part.is_empty()) {
            return;
        }
        self.collective((moved.layer, moved.phase), sequence, group, kind);
    }

    pub(crate) fn keep_part(
        &mut self,
        moved: MovedTensor<'_>,
        from: &TensorBuffer,
        to: &TensorBuffer,
        part: &Region,
    ) {
        if !part.is_empty() {
            let copy = Kernel::Copy {
                source: from.view(part),
                target: to.view(part),
                accumulate: false,
            };
            self.kernel(moved.layer, moved.phase, copy);
        }
    }

    /// Each rank receives what it lacks from the owner that differs from it along `group` only.
    fn messages(
        &mut self,
        moved: MovedTensor<'_>,
        (source, from): (&TensorBuffer, &Distribution),
        (target, to): (&TensorBuffer, &Distribution),
        group: AxisSet,
    ) {
        let sequence = self.next_sequence();
        let (mesh, me) = (&{ self.mesh }, self.coord);
        let (mine, wanted) = (from.owned_at(mesh, &me), to.owned_at(mesh, &me));
        self.keep_part(moved, source, target, &mine.intersect(&wanted));
        let rank = mesh.rank(me);
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for other in mesh
            .group(rank, group)
            .into_iter()
            .filter(|&other| other != rank)
        {
            let coord = mesh.coord(other);
            let offset = self.offset_to(&coord);
            let given = mine.intersect(&to.owned_at(mesh, &coord));
            if !given.is_empty() {
                let view = source.view(&given);
                sends.push(Send {
                    to: offset,
                    part: 0,
                    view,
                });
            }
            let got = wanted.intersect(&from.owned_at(mesh, &coord));
            if !got.is_empty() {
                let view = target.view(&got);
                let (part, accumulate) = (0, false);
                receives.push(Receive {
                    from: offset,
                    part,
                    view,
                    accumulate,
                });
            }
        }
        if !(sends.is_empty() && receives.is_empty()) {
            let exchange = Exchange {
                sequence,
                sends,
                receives,
            };
            self.push(moved.layer, moved.phase, Work::Exchange(exchange));
        }
    }
}

/// What the members of a group have of a view of what one owns under `outer`, where each owns a part of it under `inner`; none
/// where it is not split in the order of the members.
fn split_view(
    mesh: &Mesh,
    group: AxisSet,
    (whole, outer): (View, &Distribution),
    inner: &Distribution,
) -> Option<MemberViews> {
    let mut dim_of = [None; 7];
    for dim in 0..5 {
        let mut previous = None;
        for axis in inner.axes[dim].strip_prefix(outer.axes[dim])?.iter() {
            if mesh.extent(axis) == 1 {
                continue;
            }
            if previous.is_some_and(|previous| previous > axis.index()) {
                return None;
            }
            previous = Some(axis.index());
            dim_of[axis.index()] = Some(dim);
        }
    }
    let wide = group.iter().filter(|&axis| mesh.extent(axis) > 1);
    let levels = wide.map(|axis| Some((dim_of[axis.index()].take()?, mesh.extent(axis))));
    let levels: Vec<(usize, usize)> = levels.collect::<Option<_>>()?;
    let splits_others = dim_of.iter().any(Option::is_some);
    (!levels.is_empty() && !splits_others)
        .then_some(MemberViews::Split(SplitView { whole, levels }))
}

/// Intersection of two regions; if that is empty, an empty region at the start of the first.
fn common(own: &Region, other: &Region) -> Region {
    let common = own.intersect(other);
    if !common.is_empty() {
        return common;
    }
    Region(own.0.map(|all| Interval::new(all.start, all.start)))
}

#[cfg(test)]
mod adjoint;

#[cfg(test)]
mod tests {
    use super::*;
    use partita_program::BufferId;
    use partita_space::{Axis, AxisList};

    #[test]
    fn a_split_view_is_what_each_member_owns() {
        use Axis::{Channel, Data, Depth, Filter};
        let mesh = Mesh::new([2, 3, 1, 1, 2, 2, 1]);
        let none: [&[Axis]; 5] = [&[]; 5];
        let outer = |dims: [&[Axis]; 5], inner: [&[Axis]; 5]| {
            let of = |dims: [&[Axis]; 5]| Distribution {
                shape: [1, 1, 3, 5, 13],
                ..distribution(dims)
            };
            let whole = of(dims);
            let mut split = whole;
            for (list, more) in split.axes.iter_mut().zip(inner) {
                *list = list.then(AxisList::of(more.iter().copied()));
            }
            (whole, split)
        };
        let in_channels = |axes| [&[][..], &[], &[], &[], axes];
        // Of rank 7, at (1, 0, 0, 0, 1, 1).
        for (dims, inner, is_in_order) in [
            (none, in_channels(&[Data]), true),
            (none, in_channels(&[Data, Depth, Filter]), true),
            (in_channels(&[Filter]), in_channels(&[Data, Depth]), true),
            (none, in_channels(&[Depth, Data]), false),
            (none, [&[], &[], &[], &[Depth], &[Data, Channel]], true),
            (
                none,
                [&[], &[], &[Filter], &[Data, Depth], &[Channel]],
                true,
            ),
            (
                in_channels(&[Data]),
                [&[], &[], &[], &[Depth], &[Filter]],
                true,
            ),
        ] {
            let (outer, split) = outer(dims, inner);
            let group = split.split_axes().minus(outer.split_axes());
            let coord = mesh.coord(7);
            let own = outer.owned_at(&mesh, &coord);
            let at_start = |region: &Region| {
                let starts = own.0.map(|interval| interval.start);
                Region(std::array::from_fn(|dim| region.0[dim].shift(-starts[dim])))
            };
            let whole = View::of(BufferId(0), &at_start(&own));
            let members = mesh.group(7, group).into_iter();
            let expected = members.map(|rank| {
                let part = split.owned_at(&mesh, &mesh.coord(rank));
                View::of(BufferId(0), &at_start(&common(&own, &part)))
            });
            let found = split_view(&mesh, group, (whole, &outer), &split);
            let listed = found.map(|found| found.views().iter().collect::<Vec<View>>());
            let expected = is_in_order.then(|| expected.collect::<Vec<View>>());
            assert_eq!(listed, expected, "{group}");
        }
    }

    fn distribution(dims: [&[Axis]; 5]) -> Distribution {
        let mut distribution = Distribution::replicated([4, 8, 8, 8, 8]);
        distribution.axes = dims.map(|axes| AxisList::of(axes.iter().copied()));
        distribution
    }

    #[test]
    fn collectives_are_recognized() {
        use Axis::{Channel, Data, Depth, Filter};
        let mesh = Mesh::new([2, 2, 1, 1, 2, 2, 1]);
        let none = AxisSet::NONE;
        let of = |axes: &[Axis]| AxisSet::of(axes.iter().copied());
        let split = distribution([&[Data], &[], &[], &[], &[Filter]]);
        let whole = distribution([&[Data], &[], &[], &[], &[]]);
        let movements = |from: &Distribution, partial, to: &Distribution| -> Vec<Movement> {
            movements(&mesh, from, partial, to)
                .into_iter()
                .map(|(movement, _)| movement)
                .collect()
        };
        let filter = of(&[Filter]);
        assert_eq!(
            movements(&split, none, &whole),
            [Movement::AllGather(filter)]
        );
        assert_eq!(movements(&whole, none, &split), [Movement::Slice]);
        assert_eq!(
            movements(&whole, filter, &split),
            [Movement::ReduceScatter(filter)]
        );
        assert_eq!(
            movements(&whole, filter, &whole),
            [Movement::AllReduce(filter)]
        );
        assert_eq!(movements(&whole, none, &whole), []);
        let deep = distribution([&[Data], &[Depth], &[], &[], &[]]);
        let wide = distribution([&[Data], &[], &[], &[], &[Depth]]);
        assert_eq!(
            movements(&deep, none, &wide),
            [Movement::AllToAll(of(&[Depth]))]
        );
        let nested = distribution([&[Data], &[], &[], &[], &[Filter, Channel]]);
        let summed = [Movement::ReduceScatter(of(&[Channel]))];
        assert_eq!(movements(&split, of(&[Channel]), &nested), summed);
        assert_eq!(
            movements(&nested, none, &split),
            [Movement::AllGather(of(&[Channel]))]
        );
        let other = distribution([&[Data], &[], &[], &[], &[Channel]]);
        assert_eq!(
            movements(&split, none, &other),
            [Movement::Messages(filter)]
        );
        // A reduce-scatter inside the present split, and then the target's order.
        let turned = distribution([&[Data], &[], &[], &[], &[Channel, Filter]]);
        let in_order = [
            Movement::ReduceScatter(of(&[Channel])),
            Movement::AllToAll(of(&[Channel, Filter])),
        ];
        assert_eq!(movements(&split, of(&[Channel]), &turned), in_order);
        let both = [
            Movement::ReduceScatter(of(&[Channel])),
            Movement::AllReduce(of(&[Data])),
        ];
        let summed = distribution([&[], &[], &[], &[], &[Channel]]);
        let unreduced = distribution([&[], &[], &[], &[], &[]]);
        assert_eq!(movements(&unreduced, of(&[Channel, Data]), &summed), both);
    }
}
