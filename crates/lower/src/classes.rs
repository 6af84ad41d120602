//! Classes of equivalent ranks: members have equal bodies, as bodies tell places and peers relative to a rank's own.
//! In space these are the first ranks, the inner ones and the last along each dim, if all extents are even.
//!
//! Where layers run on some ranks only, all ranks of one part of the mini-batch are lowered, and equal bodies are
//! found among them; ranks of other parts are lowered only where their part has another size.

use crate::geometry::Geometry;
use crate::network::{Layer, LayerId, Network, Step};
use crate::redistribute::{Movement, movements};
use crate::request::LowerError;
use crate::storage::{Storage, Storages};
use crate::strategy::Shard;
use crate::windows::{contributors, resampling, transposed_window, window};
use partita_program::{Body, Distribution, Group, ProgramKind, Work};
use partita_space::{AXES, Axis, AxisList, AxisSet, Coord, Interval, Mesh, Offset, Rank};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The class of each rank, numbered by first appearance, and the first rank of each class.
///
/// A body depends on the coordinates along each bundle of axes independently. A bundle has the axes that
/// split one dim together, or between which a redistribution moves a dim. So classes are products of classes
/// of coordinates along bundles.
pub(crate) fn classes(
    mesh: &Mesh,
    network: &Network,
    storages: &Storages,
    shard: Shard,
    kind: ProgramKind,
) -> (Vec<u32>, Vec<Rank>) {
    let bundles = bundles(mesh, network);
    let colors: Vec<Vec<usize>> = bundles
        .iter()
        .map(|&axes| {
            let bundle = Bundle {
                mesh,
                axes,
                shard,
                kind,
            };
            bundle.colors(network, storages)
        })
        .collect();
    let mut known: HashMap<Vec<usize>, u32> = HashMap::new();
    let mut class_of = Vec::with_capacity(mesh.ranks());
    let mut representatives = Vec::new();
    for rank in 0..mesh.ranks() {
        let coord = mesh.coord(rank);
        let along = bundles.iter().zip(&colors);
        let key = along.map(|(&axes, colors)| colors[mesh.part_index(axes, &coord)]);
        let next = known.len() as u32;
        let class = *known.entry(key.collect()).or_insert_with(|| {
            representatives.push(rank);
            next
        });
        class_of.push(class);
    }
    (class_of, representatives)
}

/// The body of each class and the class of each rank, where layers run on some ranks only: ranks with
/// equal bodies and peers of equal classes.
///
/// Where all parts of the mini-batch have equal size, only the ranks of the first part are lowered.
pub(crate) fn by_bodies(
    world: &Mesh,
    is_even: bool,
    lower: &dyn Fn(Rank) -> Result<Body, LowerError>,
) -> Result<(Vec<Body>, Vec<u32>), LowerError> {
    let each = world.ranks() / world.extent(Axis::Data);
    let models = if is_even { each } else { world.ranks() };
    let mut bodies: Vec<Body> = Vec::new();
    let mut body_of: Vec<usize> = Vec::new();
    let mut alike: HashMap<u64, Vec<usize>> = HashMap::new();
    for rank in 0..models {
        let body = lower(rank)?;
        let alike = alike.entry(fingerprint(&body)).or_default();
        let known = alike.iter().copied().find(|&known| bodies[known] == body);
        body_of.push(known.unwrap_or(bodies.len()));
        if known.is_none() {
            alike.push(bodies.len());
            bodies.push(body);
        }
    }
    renumber(&mut bodies);
    let mut class_of: Vec<usize> = (0..world.ranks())
        .map(|rank| body_of[rank % models])
        .collect();
    loop {
        let next = refined(world, &bodies, &|rank| body_of[rank % models], &class_of);
        if next == class_of {
            break;
        }
        class_of = next;
    }
    let mut all = Vec::new();
    for (rank, &class) in class_of.iter().enumerate() {
        if class == all.len() {
            all.push(bodies[body_of[rank % models]].clone());
        }
    }
    Ok((
        all,
        class_of.into_iter().map(|class| class as u32).collect(),
    ))
}

/// A hash of a body.
fn fingerprint(body: &Body) -> u64 {
    let mut hasher = DefaultHasher::new();
    for buffer in &body.buffers {
        (buffer.dims, buffer.offset.0).hash(&mut hasher);
    }
    for task in &body.tasks {
        (&task.origin, &task.after).hash(&mut hasher);
        match &task.work {
            Work::Exchange(exchange) => {
                exchange.sequence.hash(&mut hasher);
                let sends = exchange.sends.iter().map(|send| send.to);
                let receives = exchange.receives.iter().map(|receive| receive.from);
                sends
                    .chain(receives)
                    .for_each(|offset| offset.hash(&mut hasher));
            }
            Work::Collective(collective) => collective.sequence.hash(&mut hasher),
            Work::Compute { .. } | Work::Load(_) | Work::Store(_) => {}
        }
    }
    hasher.finish()
}

/// Closes the gaps between the numbers of exchanges and collectives.
fn renumber(bodies: &mut [Body]) {
    let mut used = BTreeSet::new();
    let number = |work: &mut Work, with: &mut dyn FnMut(&mut u32)| match work {
        Work::Exchange(exchange) => with(&mut exchange.sequence),
        Work::Collective(collective) => with(&mut collective.sequence),
        Work::Compute { .. } | Work::Load(_) | Work::Store(_) => {}
    };
    for task in bodies.iter_mut().flat_map(|body| &mut body.tasks) {
        number(&mut task.work, &mut |sequence| {
            used.insert(*sequence);
        });
    }
    let dense: HashMap<u32, u32> = used.into_iter().zip(1..).collect();
    for task in bodies.iter_mut().flat_map(|body| &mut body.tasks) {
        number(&mut task.work, &mut |sequence| *sequence = dense[sequence]);
    }
}

/// One step of refinement, by the classes of each rank's peers and groups; numbered by first appearance.
fn refined(
    world: &Mesh,
    bodies: &[Body],
    body_of: &dyn Fn(Rank) -> usize,
    class_of: &[usize],
) -> Vec<usize> {
    let around: Vec<(BTreeSet<Offset>, BTreeSet<Group>)> = bodies.iter().map(peers).collect();
    let kinds: BTreeSet<Group> = around
        .iter()
        .flat_map(|(_, kinds)| kinds)
        .copied()
        .collect();
    let groups: HashMap<Group, Vec<usize>> = kinds
        .into_iter()
        .map(|kind| (kind, numbers_of_groups(world, kind, class_of)))
        .collect();
    let keys: Vec<_> = (0..world.ranks())
        .map(|rank| {
            let (offsets, kinds) = &around[body_of(rank)];
            let peer = |&offset: &Offset| Some(class_of[world.neighbor(rank, offset)?]);
            let peers: Vec<Option<usize>> = offsets.iter().map(peer).collect();
            let members: Vec<usize> = kinds.iter().map(|kind| groups[kind][rank]).collect();
            (class_of[rank], peers, members)
        })
        .collect();
    number(&keys)
}

/// For each rank a number that identifies the classes of the members of its group.
fn numbers_of_groups(world: &Mesh, kind: Group, class_of: &[usize]) -> Vec<usize> {
    let mut members = vec![Vec::new(); class_of.len()];
    let firsts: Vec<Rank> = (0..class_of.len())
        .map(|rank| kind.first(world, rank))
        .collect();
    for (rank, &first) in firsts.iter().enumerate() {
        members[first].push(class_of[rank]);
    }
    let numbers = number(&members);
    firsts.into_iter().map(|first| numbers[first]).collect()
}

/// The offsets to the peers of a body, and its groups.
fn peers(body: &Body) -> (BTreeSet<Offset>, BTreeSet<Group>) {
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
    (offsets, groups)
}

/// The bundles of axes of a network.
fn bundles(mesh: &Mesh, network: &Network) -> Vec<AxisList> {
    let mut bundles: Vec<AxisSet> = AXES.map(|axis| AxisSet::of([axis])).to_vec();
    let mut join = |set: AxisSet| {
        if set.is_empty() {
            return;
        }
        let (joined, apart): (Vec<_>, Vec<_>) = bundles
            .iter()
            .partition(|bundle| bundle.iter().any(|axis| set.has(axis)));
        bundles = apart;
        bundles.push(joined.into_iter().fold(AxisSet::NONE, AxisSet::union));
    };
    for layer in &network.layers {
        for dim in 0..5 {
            let mut together = layer.distribution.axes[dim].set();
            if let Step::Move = layer.step {
                let from = network.layer(layer.inputs[0]).distribution.axes[dim];
                together = together.union(from.set());
            }
            join(together);
        }
    }
    for distribution in network.shares.iter().flatten() {
        distribution.axes.iter().for_each(|axes| join(axes.set()));
    }
    let wide = mesh.split_axes();
    let lists = bundles
        .into_iter()
        .map(|set| AxisList::of(set.iter()).within(wide));
    lists.filter(|list| !list.is_empty()).collect()
}

/// A bundle of axes; its coordinates are numbered as the parts of a dim that it splits.
struct Bundle<'m> {
    mesh: &'m Mesh,
    axes: AxisList,
    shard: Shard,
    kind: ProgramKind,
}

impl Bundle<'_> {
    /// A color for each coordinate; equal colors mean equal work.
    fn colors(&self, network: &Network, storages: &Storages) -> Vec<usize> {
        let parts = self.mesh.parts(self.axes);
        let held = self.held(storages);
        let signatures: Vec<Signature> = (0..parts)
            .map(|i| self.signature(&self.coord(i), network, storages, &held))
            .collect();
        number(&signatures)
    }

    fn coord(&self, part: usize) -> Coord {
        let mut coord = [0; 7];
        self.mesh.go_to_part(self.axes, part, &mut coord);
        coord
    }

    /// Whether a dim is split along the bundle.
    fn splits(&self, axes: AxisList) -> bool {
        axes.iter().any(|axis| self.axes.has(axis))
    }

    /// The geometries split along the bundle; of those with a common row only the first.
    fn held<'s>(&self, storages: &'s Storages) -> Vec<(&'s Geometry, usize)> {
        let of_storage = |storage: &'s Storage| {
            let held = [&storage.value, &storage.partial, &storage.around];
            let computed = storage.inner.then_some(&storage.computed);
            held.into_iter().chain(computed)
        };
        let all = storages.all.iter().flat_map(of_storage);
        let dims = all.flat_map(|geometry| (0..5).map(move |dim| (geometry, dim)));
        let along = dims.filter(|(geometry, dim)| self.splits(geometry.distribution.axes[*dim]));
        let mut seen = HashSet::new();
        along
            .filter(|(geometry, dim)| seen.insert(Arc::as_ptr(geometry.row(*dim))))
            .collect()
    }

    fn signature(
        &self,
        coord: &Coord,
        network: &Network,
        storages: &Storages,
        held: &[(&Geometry, usize)],
    ) -> Signature {
        let mut signature = Signature::default();
        for &(geometry, dim) in held {
            self.halo(&mut signature, coord, geometry, dim);
        }
        for (index, layer) in network.layers.iter().enumerate() {
            match layer.step {
                Step::Move => self.redistributed(&mut signature, coord, network, layer),
                Step::Layer(_) => {
                    self.slides(&mut signature, coord, network, storages, LayerId(index));
                    self.first_of_sum(&mut signature, coord, layer);
                }
            }
        }
        let wholes = network.parameters.iter().flatten();
        for (whole, share) in wholes.zip(network.shares.iter().flatten()) {
            for dim in (0..5).filter(|&dim| self.splits(share.axes[dim])) {
                let [whole, share] =
                    [whole, share].map(|distribution| self.own(distribution, dim, coord));
                signature.numbers.push(whole.len() as i64);
                signature.numbers.push(share.len() as i64);
                if self.shard < Shard::Parameters {
                    // The share moves inside the whole.
                    signature.numbers.push(share.start - whole.start);
                }
            }
        }
        signature
    }

    fn own(&self, distribution: &Distribution, dim: usize, coord: &Coord) -> Interval {
        let part = self.mesh.part_index(distribution.axes[dim], coord);
        distribution.part(self.mesh, dim, part)
    }

    /// Adds what is held of a dim, and its sources and readers.
    fn halo(&self, signature: &mut Signature, coord: &Coord, geometry: &Geometry, dim: usize) {
        let axes = geometry.distribution.axes[dim];
        let (row, i) = (geometry.row(dim), self.mesh.part_index(axes, coord));
        let own = &row.lines()[i];
        let extent = Interval::all(geometry.distribution.shape[dim]);
        let inside = own.held.intersect(&extent);
        signature.push(own.owned.start, &[own.owned, own.held, inside]);
        for piece in &own.pieces {
            signature.push(own.owned.start, &[piece.at, piece.from]);
            self.peer(signature, coord, axes, piece.source);
        }
        for (holder, piece) in row.pieces_of(i) {
            signature.push(own.owned.start, &[piece.from]);
            self.peer(signature, coord, axes, holder);
        }
        signature.numbers.push(i64::MIN);
    }

    /// Adds the offset to the owner of another part.
    fn peer(&self, signature: &mut Signature, coord: &Coord, axes: AxisList, part: usize) {
        let mut there = *coord;
        self.mesh.go_to_part(axes, part, &mut there);
        let step: [i64; 7] = std::array::from_fn(|axis| there[axis] as i64 - coord[axis] as i64);
        signature.numbers.extend(step);
    }

    /// Adds a redistribution, forward and backward.
    fn redistributed(
        &self,
        signature: &mut Signature,
        coord: &Coord,
        network: &Network,
        layer: &Layer,
    ) {
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
        for (from, partial, to) in ways {
            let mut now = from;
            for (movement, next) in movements(self.mesh, &from, partial, &to) {
                for dim in 0..5 {
                    let (a, b) = (now.axes[dim], next.axes[dim]);
                    if self.splits(a) || self.splits(b) {
                        self.movement(signature, coord, movement, (&now, &next, dim));
                    }
                }
                now = next;
            }
        }
    }

    /// Adds what a movement sends and receives along a dim, as far as views depend on it.
    fn movement(
        &self,
        signature: &mut Signature,
        coord: &Coord,
        movement: Movement,
        (from, to, dim): (&Distribution, &Distribution, usize),
    ) {
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
        signature.numbers.push(i64::MIN);
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
    fn first_of_sum(&self, signature: &mut Signature, coord: &Coord, layer: &Layer) {
        let along = self.axes.within(layer.partial);
        let has_bias = layer.parameters.len() > 1;
        if has_bias && !along.is_empty() {
            let part = self.mesh.part_index(along, coord);
            signature.numbers.push(i64::from(part == 0));
        }
    }

    /// Where windows lie between a layer and its input.
    fn slides(
        &self,
        signature: &mut Signature,
        coord: &Coord,
        network: &Network,
        storages: &Storages,
        id: LayerId,
    ) {
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
                signature.numbers.extend([
                    local.numerator as i64,
                    local.denominator as i64,
                    local.shift,
                ]);
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
    }
}

fn number<T: Hash + Eq>(items: &[T]) -> Vec<usize> {
    let mut known: HashMap<&T, usize> = HashMap::new();
    items
        .iter()
        .map(|item| {
            let next = known.len();
            *known.entry(item).or_insert(next)
        })
        .collect()
}

/// Everything that lowering derives from one coordinate, relative to what the coordinate owns.
#[derive(Default, PartialEq, Eq, Hash)]
struct Signature {
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

    fn push(&mut self, origin: i64, intervals: &[Interval]) {
        for interval in intervals {
            let ends = [interval.start - origin, interval.end - origin];
            self.numbers.extend(ends);
        }
    }
}
