//! What lowering derives from the coordinates of a rank along a bundle of axes.

use crate::geometry::Geometry;
use crate::network::{Layer, LayerId, Network};
use crate::redistribute::{Movement, movements};
use crate::slabs::Block;
use crate::storage::Storages;
use crate::windows::{contributors, resampling, transposed_window, window};
use partita_program::{Distribution, ProgramKind};
use partita_space::{AxisList, AxisSet, Coord, Interval, Mesh, Resampling};

/// A step of a redistribution, and the distributions before and after it.
pub(super) type MovementOf = (Movement, [Distribution; 2]);

/// A bundle of axes; its coordinates are numbered as the parts of a dim that it splits.
pub(super) struct Bundle<'m> {
    pub mesh: &'m Mesh,
    pub axes: AxisList,
    pub kind: ProgramKind,
}

impl Bundle<'_> {
    /// Coordinates along it.
    pub fn coords(&self) -> Vec<Coord> {
        let coord = |part: usize| {
            let mut coord = [0; 7];
            self.mesh.go_to_part(self.axes, part, &mut coord);
            coord
        };
        (0..self.mesh.parts(self.axes)).map(coord).collect()
    }

    /// Whether a dim is split along the bundle.
    pub fn splits(&self, axes: AxisList) -> bool {
        axes.iter().any(|axis| self.axes.has(axis))
    }

    fn own(&self, distribution: &Distribution, dim: usize, coord: &Coord) -> Interval {
        let part = self.mesh.part_index(distribution.axes[dim], coord);
        distribution.part(self.mesh, dim, part)
    }

    /// What is held of a dim, and its sources and readers.
    pub fn halo(&self, coord: &Coord, geometry: &Geometry, dim: usize) -> Signature {
        let mut signature = Signature::default();
        let axes = geometry.distribution.axes[dim];
        let (row, i) = (geometry.row(dim), self.mesh.part_index(axes, coord));
        let own = &row.lines()[i];
        let extent = Interval::all(geometry.distribution.shape[dim]);
        let inside = own.held.intersect(&extent);
        signature.push(own.owned.start, &[own.owned, own.held, inside]);
        for piece in &own.pieces {
            signature.push(own.owned.start, &[piece.at, piece.from]);
            self.peer(&mut signature, coord, axes, piece.source);
        }
        signature.numbers.push(i64::MIN);
        for (holder, piece) in row.pieces_of(i) {
            signature.push(own.owned.start, &[piece.from]);
            self.peer(&mut signature, coord, axes, holder);
        }
        signature
    }

    /// Adds the offset to the owner of another part.
    fn peer(&self, signature: &mut Signature, coord: &Coord, axes: AxisList, part: usize) {
        let mut there = *coord;
        self.mesh.go_to_part(axes, part, &mut there);
        let step: [i64; 7] = std::array::from_fn(|axis| there[axis] as i64 - coord[axis] as i64);
        signature.numbers.extend(step);
    }

    /// The steps of a redistribution, forward and backward, each with the distributions before and after it.
    pub fn movements(&self, network: &Network, layer: &Layer) -> Vec<MovementOf> {
        let input = network.layer(layer.inputs[0]);
        let forward = (input.distribution, input.partial, layer.distribution);
        let backward = (
            layer.distribution,
            layer.partial_gradient,
            input.distribution,
        );
        let ways = match self.kind {
            ProgramKind::Train => vec![forward, backward],
            ProgramKind::Evaluate | ProgramKind::Infer => vec![forward],
            ProgramKind::Fetch | ProgramKind::FetchSamples => Vec::new(),
        };
        let mut all = Vec::new();
        for (from, partial, to) in ways {
            let mut now = from;
            for (movement, next) in movements(self.mesh, &from, partial, &to) {
                all.push((movement, [now, next]));
                now = next;
            }
        }
        all
    }

    /// What a movement sends and receives along a dim, as far as views depend on it.
    pub fn movement(
        &self,
        coord: &Coord,
        movement: Movement,
        ([from, to], dim): ([&Distribution; 2], usize),
    ) -> Signature {
        let signature = &mut Signature::default();
        let (mine, own) = (self.own(from, dim, coord), self.own(to, dim, coord));
        let lengths = [mine.len() as i64, own.len() as i64];
        signature.numbers.extend(lengths);
        let given = |signature: &mut Signature, group: AxisSet| {
            self.shared(signature, coord, group, (mine, to, dim));
        };
        let taken = |signature: &mut Signature, group: AxisSet| {
            self.shared(signature, coord, group, (own, from, dim));
        };
        match movement {
            Movement::AllReduce(_) => {}
            Movement::ReduceScatter(group) => given(signature, group),
            Movement::AllGather(group) => taken(signature, group),
            Movement::AllToAll(group) => {
                given(signature, group);
                taken(signature, group);
            }
            Movement::Slice => signature.push_common(&mine, &own),
            Movement::Messages(group) => {
                // Along an axis that only the source splits, all others get the same.
                let copies = group.minus(to.split_axes());
                let given = from.axes[dim].iter().filter(|&axis| copies.has(axis));
                let places = given.map(|axis| coord[axis.index()] as i64);
                signature.numbers.extend(places);
                signature.push_common(&mine, &own);
                signature.push_common(&own, &mine);
                for (start, wanted, distribution) in [(&own, own, from), (&mine, mine, to)] {
                    let axes = distribution.axes[dim];
                    for part in distribution.part_range(self.mesh, dim, &wanted) {
                        let theirs = distribution.part(self.mesh, dim, part);
                        let common = theirs.intersect(&wanted);
                        if !common.is_empty() {
                            signature.push_common(start, &common);
                            self.peer(signature, coord, axes, part);
                        }
                    }
                    signature.numbers.push(i64::MIN);
                }
            }
        }
        std::mem::take(signature)
    }

    /// Adds which members of a group own parts of `wanted`.
    fn shared(
        &self,
        signature: &mut Signature,
        coord: &Coord,
        group: AxisSet,
        (wanted, distribution, dim): (Interval, &Distribution, usize),
    ) {
        let axes = distribution.axes[dim];
        let (along, across) = (axes.within(group), axes.set().minus(group));
        for part in distribution.part_range(self.mesh, dim, &wanted) {
            let mut there = *coord;
            self.mesh.go_to_part(axes, part, &mut there);
            let is_member = across
                .iter()
                .all(|axis| there[axis.index()] == coord[axis.index()]);
            let common = wanted.intersect(&distribution.part(self.mesh, dim, part));
            if is_member && !common.is_empty() {
                let member = self.mesh.part_index(along, &there);
                signature.numbers.push(member as i64);
                signature.push(wanted.start, &[common]);
            }
        }
        signature.numbers.push(i64::MIN);
    }

    /// Of a sum over shares of the channels one rank adds the bias.
    pub fn first_of_sum(&self, coord: &Coord, layer: &Layer) -> Signature {
        let mut signature = Signature::default();
        let along = self.axes.within(layer.partial);
        let has_bias = layer.parameters.len() > 1;
        if has_bias && !along.is_empty() {
            let part = self.mesh.part_index(along, coord);
            signature.numbers.push(i64::from(part == 0));
        }
        signature
    }

    /// What each slab of a block has of its tensors, and how resamplings lie in it.
    pub fn slabs(
        &self,
        coord: &Coord,
        network: &Network,
        storages: &Storages,
        block: &Block,
    ) -> Signature {
        let mut signature = Signature::default();
        let of = |id: LayerId, dim: usize| {
            let geometry = storages.of(id).present(network);
            let part = self.mesh.part_index(geometry.distribution.axes[dim], coord);
            let line = &geometry.row(dim).lines()[part];
            let extent = Interval::all(geometry.distribution.shape[dim]);
            [line.owned, line.held.intersect(&extent)]
        };
        let start = |id: LayerId, dim: usize| of(id, dim)[0].start;
        for dim in 1..4 {
            let count = if dim == block.chunks.dim {
                block.chunks.count
            } else {
                1
            };
            for number in 0..count {
                for (id, line) in block.lines(network, number, dim, |id| of(id, dim)) {
                    let layer = network.layer(id);
                    let extent = Interval::all(layer.distribution.shape[dim]);
                    let held = [line.value, line.around];
                    let inside = held.map(|held| held.intersect(&extent));
                    let all = [&[line.computed], &held[..], &inside[..]].concat();
                    signature.push(start(id, dim), &all);
                    if let Some(map) = resampling(network, layer, dim) {
                        let input = layer.inputs[0];
                        let extent = network.layer(input).distribution.shape[dim];
                        let reads = map.inputs_of(&line.computed, extent);
                        signature.push(start(input, dim), &[reads]);
                        signature.map(&map.local(line.computed.start, reads.start));
                    }
                }
            }
        }
        signature
    }

    /// Where windows lie between a layer and its input.
    pub fn slides(
        &self,
        coord: &Coord,
        network: &Network,
        storages: &Storages,
        id: LayerId,
    ) -> Signature {
        let mut signature = Signature::default();
        let layer = network.layer(id);
        for dim in (1..4).filter(|&dim| self.splits(layer.distribution.axes[dim])) {
            let at = |id: LayerId| {
                let geometry = &storages.of(id).computed;
                let part = self.mesh.part_index(geometry.distribution.axes[dim], coord);
                let line = &geometry.row(dim).lines()[part];
                (line.owned, line.held)
            };
            if let Some(map) = resampling(network, layer, dim) {
                let ((input, _), (output, computed)) = (at(layer.inputs[0]), at(id));
                let extent = network.layer(layer.inputs[0]).distribution.shape[dim];
                let reads = map.inputs_of(&computed, extent);
                let local = map.local(computed.start, reads.start);
                signature.push(input.start, &[reads]);
                signature.push(output.start, &[computed]);
                signature.map(&local);
                continue;
            }
            let transposed = transposed_window(layer, dim);
            let Some(window) = window(layer, dim).or(transposed) else {
                continue;
            };
            let ((input, _), (output, computed)) = (at(layer.inputs[0]), at(id));
            let extent = Interval::all(network.layer(layer.inputs[0]).distribution.shape[dim]);
            if transposed.is_some() {
                let reads = contributors(window, &computed, &extent);
                signature.push(input.start, &[reads]);
                signature.push(output.start, &[window.inputs_of(&input), computed]);
                let start = output.start - input.start * window.stride as i64;
                signature.numbers.push(start);
                continue;
            }
            let reads = window.inputs_of(&computed);
            signature.push(input.start, &[reads, reads.intersect(&extent)]);
            signature.push(output.start, &[window.outputs_of(&input), computed]);
            let start = input.start - output.start * window.stride as i64;
            signature.numbers.push(start);
        }
        signature
    }
}

/// Everything that lowering derives from one coordinate, relative to what the coordinate owns.
#[derive(Default, PartialEq, Eq, Hash)]
pub(super) struct Signature {
    numbers: Vec<i64>,
}

impl Signature {
    /// Where `other` lies in `own`, if it does.
    fn push_common(&mut self, own: &Interval, other: &Interval) {
        match own.intersect(other) {
            common if common.is_empty() => self.numbers.extend([0, 0]),
            common => self.push(own.start, &[common]),
        }
    }

    fn map(&mut self, map: &Resampling) {
        let numbers = [map.numerator as i64, map.denominator as i64, map.shift];
        self.numbers.extend(numbers);
    }

    /// Nothing lies anywhere.
    fn push(&mut self, origin: i64, intervals: &[Interval]) {
        for interval in intervals {
            let ends = [interval.start - origin, interval.end - origin];
            let is_some = !interval.is_empty();
            self.numbers.extend(if is_some { ends } else { [0, 0] });
        }
    }
}
