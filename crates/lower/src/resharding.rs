//! Resharding between submeshes: from stage to stage, or from a fork to its branches and back.
//!
//! Each target rank receives the part that it will own from owners in the source submesh. Among replicas,
//! those with the same part of the mini-batch are preferred, and the load is balanced round-robin. A rank in
//! both submeshes copies what it has. Both sides derive the same messages.
//!
//! Example: a stage with `depth=2` sends to a stage of two ranks that split samples. Each rank of the first
//! sends its planes of half the samples to each rank of the second, which then has whole volumes.

use crate::body::{Builder, TensorBuffer};
use crate::redistribute::MovedTensor;
use partita_program::{Distribution, Exchange, Receive, Send, Work};
use partita_space::{Axis, AxisSet, Coord, Mesh, Rank, Region};
use std::ops::Range;

/// A resharding between two submeshes.
pub(crate) struct Resharding {
    world: Mesh,
    from: Distribution,
    to: Distribution,
    meshes: [Mesh; 2],
    /// Partial sums: each rank sends its own to the rank at the same coordinates.
    partial_sums: bool,
}

impl Resharding {
    pub fn new(world: &Mesh, from: &Distribution, to: &Distribution) -> Self {
        Self {
            world: *world,
            from: *from,
            to: *to,
            meshes: [from.mesh(world), to.mesh(world)],
            partial_sums: false,
        }
    }

    /// From each rank of a submesh to the one at the same coordinates of another, of equal extents.
    pub fn of_partial_sums(world: &Mesh, from: &Distribution, to: &Distribution) -> Self {
        Self {
            partial_sums: true,
            ..Self::new(world, from, to)
        }
    }

    /// The distribution afterwards.
    pub fn target(&self) -> &Distribution {
        &self.to
    }

    /// Regions that a rank receives, and their senders, the rank itself included.
    fn incoming(&self, rank: Rank) -> Vec<(Rank, Region)> {
        let coord = self.world.coord(rank);
        let Some(there) = self.to.local_coord(&self.world, &coord) else {
            return Vec::new();
        };
        let wanted = self.to.owned_at(&self.meshes[1], &there);
        if wanted.is_empty() {
            return Vec::new();
        }
        if self.partial_sums {
            return vec![(self.from.rank(&self.world, &there), wanted)];
        }
        let parts = corners(&self.from, &self.meshes[0], &wanted);
        let get = |corner: Coord| {
            let owned = self.from.owned_at(&self.meshes[0], &corner);
            let common = owned.intersect(&wanted);
            (!common.is_empty()).then(|| (self.owner(rank, &there, corner), common))
        };
        parts.into_iter().filter_map(get).collect()
    }

    /// The rank that sends to `rank`, which is at `there` in the target mesh, the part that belongs to a
    /// coordinate of the source mesh.
    fn owner(&self, rank: Rank, there: &Coord, corner: Coord) -> Rank {
        let mesh = &self.meshes[0];
        let split = self.from.split_axes();
        let is_owner = |there: &Coord| {
            let axes = split.iter();
            axes.map(Axis::index)
                .all(|axis| there[axis] == corner[axis])
        };
        // A rank that owns the part copies it.
        let own = self.from.local_coord(&self.world, &self.world.coord(rank));
        if own.as_ref().is_some_and(is_owner) {
            return rank;
        }
        if self.meshes[0] == self.meshes[1] && is_owner(there) {
            return self.from.rank(&self.world, there);
        }
        let copies = self.world.extent(Axis::Data);
        let each = self.world.ranks() / copies;
        let (part, mut turn) = (rank / each, rank % each);
        let mut there = corner;
        for axis in mesh.split_axes().minus(split).iter() {
            let extent = mesh.extent(axis);
            // Along data, ranks of one part of the mini-batch are consecutive.
            let (first, among) = match axis {
                Axis::Data => (part * (extent / copies), extent / copies),
                _ => (0, extent),
            };
            there[axis.index()] = first + turn % among.max(1);
            turn /= among.max(1);
        }
        self.from.rank(&self.world, &there)
    }

    /// The coordinates along data of the receivers of one part, where the target has replicas along data: all,
    /// or those of the same part of the mini-batch where the source has replicas too.
    fn samples_taken(&self, rank: Rank, copied: AxisSet) -> Range<usize> {
        let extent = self.meshes[1].extent(Axis::Data);
        let copies = self.world.extent(Axis::Data);
        let (each, among) = (self.world.ranks() / copies, extent / copies);
        match (
            copied.has(Axis::Data),
            self.from.split_axes().has(Axis::Data),
        ) {
            (false, _) => 0..1,
            (true, true) => 0..extent,
            (true, false) => rank / each * among..(rank / each + 1) * among,
        }
    }

    /// Regions that a rank sends, and their receivers, the rank itself excluded.
    fn outgoing(&self, rank: Rank) -> Vec<(Rank, Region)> {
        let coord = self.world.coord(rank);
        let Some(there) = self.from.local_coord(&self.world, &coord) else {
            return Vec::new();
        };
        let to: Vec<Rank> = if self.partial_sums {
            vec![self.to.rank(&self.world, &there)]
        } else {
            let own = self.from.owned_at(&self.meshes[0], &there);
            let mesh = &self.meshes[1];
            let free = mesh.split_axes().minus(self.to.split_axes());
            let corners = corners(&self.to, mesh, &own).into_iter();
            let samples = self.samples_taken(rank, free);
            let along_data = |corner: Coord| {
                let there = samples.clone().map(move |data| (corner, data));
                there.map(|(mut corner, data)| {
                    corner[Axis::Data.index()] += data;
                    corner
                })
            };
            let others = free.minus(AxisSet::of([Axis::Data]));
            corners
                .flat_map(along_data)
                .flat_map(|corner| mesh.group(mesh.rank(corner), others))
                .map(|at| self.to.rank(&self.world, &mesh.coord(at)))
                .collect()
        };
        let mut given: Vec<(Rank, Region)> = Vec::new();
        for receiver in to.into_iter().filter(|&receiver| receiver != rank) {
            let got = self.incoming(receiver).into_iter();
            let mine = got.filter(|(owner, _)| *owner == rank);
            given.extend(mine.map(|(_, region)| (receiver, region)));
        }
        given
    }
}

/// The coordinates of the parts that intersect a region, 0 along axes that split no dim.
fn corners(distribution: &Distribution, mesh: &Mesh, wanted: &Region) -> Vec<Coord> {
    let mut corners = vec![[0; 7]];
    for (dim, &axes) in distribution.axes.iter().enumerate() {
        let range = distribution.part_range(mesh, dim, &wanted.0[dim]);
        let has_some = |part: &usize| {
            let part = distribution.part(mesh, dim, *part);
            part.touches(&wanted.0[dim])
        };
        let parts: Vec<usize> = range.filter(has_some).collect();
        let there = |corner: Coord| {
            parts.iter().map(move |&part| {
                let mut corner = corner;
                mesh.go_to_part(axes, part, &mut corner);
                corner
            })
        };
        corners = corners.into_iter().flat_map(there).collect();
    }
    corners
}

impl Builder<'_> {
    /// Sends a resharding.
    pub(crate) fn send_across(
        &mut self,
        moved: MovedTensor<'_>,
        sequence: u32,
        resharding: &Resharding,
        source: &TensorBuffer,
    ) {
        let sends = self.sends(resharding, source);
        self.exchange_across(moved, sequence, sends, Vec::new());
    }

    /// Sends in the turn of the receivers: all ranks start messages in one order, which prevents deadlock. The
    /// source stays alive until then.
    pub(crate) fn send_in_turn(
        &mut self,
        turn: u32,
        moved: MovedTensor<'_>,
        sequence: u32,
        resharding: &Resharding,
        source: &TensorBuffer,
    ) {
        let now = std::mem::replace(&mut self.turn, turn);
        self.send_across(moved, sequence, resharding, source);
        self.turn = now;
    }

    /// Sends and receives in one exchange, for a rank in the source submesh, the target submesh, or both.
    pub(crate) fn move_across(
        &mut self,
        moved: MovedTensor<'_>,
        sequence: u32,
        resharding: &Resharding,
        (source, target): (Option<&TensorBuffer>, Option<&TensorBuffer>),
    ) {
        let sends = source.map(|source| self.sends(resharding, source));
        let target = target.map(|target| (target, resharding.incoming(self.rank)));
        let receives = target
            .as_ref()
            .map(|(target, incoming)| self.receives(incoming, target));
        let (sends, receives) = (sends.unwrap_or_default(), receives.unwrap_or_default());
        self.exchange_across(moved, sequence, sends, receives);
        if let Some((target, incoming)) = target {
            self.keep_own(moved, &incoming, source, target);
        }
    }

    /// Receives a resharding; `own` is the source buffer of a rank in both submeshes.
    pub(crate) fn receive_across(
        &mut self,
        moved: MovedTensor<'_>,
        sequence: u32,
        resharding: &Resharding,
        own: Option<&TensorBuffer>,
        target: &TensorBuffer,
    ) {
        let incoming = resharding.incoming(self.rank);
        self.keep_own(moved, &incoming, own, target);
        let receives = self.receives(&incoming, target);
        self.exchange_across(moved, sequence, Vec::new(), receives);
    }

    fn sends(&self, resharding: &Resharding, source: &TensorBuffer) -> Vec<Send> {
        let send = |(to, region): (Rank, Region)| Send {
            to: self.world.offset(self.rank, to),
            part: 0,
            view: source.view(&region),
        };
        resharding
            .outgoing(self.rank)
            .into_iter()
            .map(send)
            .collect()
    }

    fn receives(&self, incoming: &[(Rank, Region)], target: &TensorBuffer) -> Vec<Receive> {
        let others = incoming.iter().filter(|(from, _)| *from != self.rank);
        let receive = |(from, region): &(Rank, Region)| Receive {
            from: self.world.offset(self.rank, *from),
            part: 0,
            view: target.view(region),
            accumulate: false,
        };
        others.map(receive).collect()
    }

    /// Copies the parts that the rank itself owns.
    fn keep_own(
        &mut self,
        moved: MovedTensor<'_>,
        incoming: &[(Rank, Region)],
        own: Option<&TensorBuffer>,
        target: &TensorBuffer,
    ) {
        let rank = self.rank;
        for (_, region) in incoming.iter().filter(|(from, _)| *from == rank) {
            let own = own.expect("a rank that sends holds the source");
            self.keep_part(moved, own, target, region);
        }
    }

    fn exchange_across(
        &mut self,
        moved: MovedTensor<'_>,
        sequence: u32,
        sends: Vec<Send>,
        receives: Vec<Receive>,
    ) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::{AxisList, Submesh};
    use std::collections::BTreeSet;

    fn distribution(submesh: Submesh, axes: [&[Axis]; 5]) -> Distribution {
        let mut distribution = Distribution::replicated([6, 4, 5, 3, 2]);
        distribution.submesh = Some(submesh);
        distribution.axes = axes.map(|axes| AxisList::of(axes.iter().copied()));
        distribution
    }

    /// Every element that a rank will own is received once, from an owner, and sends match receives.
    fn check(resharding: &Resharding) -> usize {
        let mut messages = BTreeSet::new();
        for rank in 0..resharding.world.ranks() {
            let coord = resharding.world.coord(rank);
            let wanted = resharding.to.owned(&resharding.world, &coord);
            let mut volume = 0;
            for (from, region) in resharding.incoming(rank) {
                let there = resharding.world.coord(from);
                assert!(
                    resharding
                        .from
                        .owned(&resharding.world, &there)
                        .holds(&region)
                );
                assert!(wanted.holds(&region));
                volume += region.volume();
                if from != rank {
                    messages.insert((from, rank, format!("{region}")));
                }
            }
            assert_eq!(volume, wanted.volume());
        }
        let mut sent = BTreeSet::new();
        for rank in 0..resharding.world.ranks() {
            for (to, region) in resharding.outgoing(rank) {
                assert!(sent.insert((rank, to, format!("{region}"))));
            }
        }
        assert_eq!(sent, messages);
        messages.len()
    }

    #[test]
    fn sends_match_receives() {
        use Axis::{Channel, Data, Depth, Height};
        let world = Mesh::new([2, 1, 1, 1, 1, 1, 6]);
        let mesh = |extents| Mesh::new(extents);
        let tiles = Submesh::repeated(&mesh([1, 2, 2, 1, 1, 1, 1]), 0, 2, 6);
        let samples = Submesh::repeated(&mesh([2, 1, 1, 1, 1, 1, 1]), 4, 2, 6);
        let from = distribution(tiles, [&[Data], &[Depth], &[Height], &[], &[]]);
        let to = distribution(samples, [&[Data], &[], &[], &[], &[]]);
        // Each of 4 ranks of 4 tiles hands on both samples halves, for each part of the mini-batch; of 3
        // samples a part, 2 and 1.
        assert_eq!(check(&Resharding::new(&world, &from, &to)), 2 * 4 * 2);
        check(&Resharding::new(&world, &to, &from));
        let whole = distribution(tiles, [&[Data], &[], &[], &[], &[]]);
        check(&Resharding::new(&world, &whole, &to));
        check(&Resharding::new(&world, &to, &whole));
        let shares = distribution(tiles, [&[], &[], &[], &[], &[Depth]]);
        check(&Resharding::new(&world, &shares, &to));
        check(&Resharding::new(&world, &to, &shares));
        let mut all = Distribution::replicated(to.shape);
        all.axes[4] = AxisList::NONE;
        check(&Resharding::new(&world, &to, &all));
        // Two replicas on mirrored ranks.
        let chain = Mesh::new([1, 1, 1, 1, 1, 1, 8]);
        let stage = mesh([1, 1, 1, 1, 1, 2, 1]);
        let one = distribution(
            Submesh::repeated(&stage, 0, 1, 8),
            [&[], &[], &[], &[], &[Channel]],
        );
        let other = distribution(
            Submesh::repeated(&stage, 6, 1, 8),
            [&[], &[], &[], &[], &[Channel]],
        );
        assert_eq!(check(&Resharding::new(&chain, &one, &other)), 2);
        assert_eq!(check(&Resharding::of_partial_sums(&chain, &one, &other)), 2);
    }
}
