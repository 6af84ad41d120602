//! Classes of equivalent ranks: members have equal bodies, as bodies tell places and peers relative to a rank's own.
//! In space these are the first ranks, the inner ones and the last along each dim, if all extents are even.
//!
//! Where layers run on some ranks only, all ranks of one part of the mini-batch are lowered, and equal bodies are
//! found among them; ranks of other parts are lowered only where their part has another size.

mod signature;
mod tables;

use self::signature::Bundle;
use self::tables::Tables;
use crate::network::{Network, Step};
use crate::request::LowerError;
use crate::storage::Storages;
use crate::strategy::Shard;
use partita_program::{Body, Group, ProgramKind, Work};
use partita_space::{AXES, Axis, AxisList, AxisSet, Mesh, Offset, Rank, threads};
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The class of each rank, numbered by first appearance, and the first rank of each class.
///
/// A body depends on the coordinates along each bundle of axes independently. A bundle has the axes that
/// split one dim together, or between which a redistribution moves a dim. So classes are products of classes
/// of coordinates along bundles, for each tensor. Where a rank holds nothing of a tensor, it does not matter where in
/// space it would lie.
pub(crate) fn classes(
    mesh: &Mesh,
    network: &Network,
    storages: &Storages,
    shard: Shard,
    kind: ProgramKind,
) -> (Vec<u32>, Vec<Rank>) {
    let mut tables = Tables::new(mesh);
    for axes in bundles(mesh, network) {
        let bundle = Bundle { mesh, axes, kind };
        tables.add(&bundle, network, storages);
    }
    tables.add_shares(network, shard);
    tables.classes()
}

/// The bodies of some ranks.
type Lowered = Result<Vec<Body>, LowerError>;

/// The body of each class and the class of each rank, where layers run on some ranks only: ranks with
/// equal bodies and peers of equal classes.
///
/// Where all parts of the mini-batch have equal size, only the ranks of the first part are lowered.
pub(crate) fn by_bodies(
    world: &Mesh,
    is_even: bool,
    lower: &dyn Fn(&[Rank]) -> Lowered,
) -> Result<(Vec<Body>, Vec<u32>), LowerError> {
    let each = world.ranks() / world.extent(Axis::Data);
    let models = if is_even { each } else { world.ranks() };
    let mut bodies: Vec<Body> = Vec::new();
    let mut body_of: Vec<usize> = Vec::new();
    let mut alike: HashMap<u64, Vec<usize>> = HashMap::new();
    let ranks: Vec<Rank> = (0..models).collect();
    // A few at a time, as most are like others.
    for some in ranks.chunks(4 * threads()) {
        for body in lower(some)? {
            let alike = alike.entry(fingerprint(&body)).or_default();
            let known = alike.iter().copied().find(|&known| bodies[known] == body);
            body_of.push(known.unwrap_or(bodies.len()));
            if known.is_none() {
                alike.push(bodies.len());
                bodies.push(body);
            }
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
    let mut firsts = Vec::new();
    for (rank, &class) in class_of.iter().enumerate() {
        if class == firsts.len() {
            firsts.push(body_of[rank % models]);
        }
    }
    let class_of = class_of.into_iter().map(|class| class as u32).collect();
    Ok((bodies_at(bodies, &firsts), class_of))
}

/// The bodies at these places, each of which is one of `bodies`.
fn bodies_at(mut bodies: Vec<Body>, places: &[usize]) -> Vec<Body> {
    let mut uses = vec![0; bodies.len()];
    places.iter().for_each(|&at| uses[at] += 1);
    let taken = places.iter().map(|&at| {
        uses[at] -= 1;
        if uses[at] == 0 {
            std::mem::take(&mut bodies[at])
        } else {
            bodies[at].clone()
        }
    });
    taken.collect()
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
    let wide = mesh.split_axes();
    let lists = bundles
        .into_iter()
        .map(|set| AxisList::of(set.iter()).within(wide));
    lists.filter(|list| !list.is_empty()).collect()
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
