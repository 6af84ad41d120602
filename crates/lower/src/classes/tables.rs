//! Colors of coordinates, tensor by tensor, and the classes of ranks that follow from them.

use super::number;
use super::signature::{Bundle, Signature};
use crate::geometry::{Geometry, Row};
use crate::network::{LayerId, Network, Step};
use crate::redistribute::Movement;
use crate::storage::{Storage, Storages};
use crate::strategy::Shard;
use partita_program::Distribution;
use partita_space::{AxisList, Mesh, Rank};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// A color for each part of a list of axes.
type Colors = Vec<u32>;

/// Where a rank holds something: along all dims of any of some tensors. By dim, the axes and whether each of their parts
/// has something.
type Presence = BTreeSet<Vec<(AxisList, Vec<bool>)>>;

/// What tells ranks apart.
pub(super) struct Tables<'m> {
    mesh: &'m Mesh,
    /// For all ranks.
    always: HashSet<(AxisList, Colors)>,
    /// For ranks that hold something.
    where_present: BTreeMap<Presence, HashSet<(AxisList, Colors)>>,
}

impl<'m> Tables<'m> {
    pub fn new(mesh: &'m Mesh) -> Self {
        Self {
            mesh,
            always: HashSet::new(),
            where_present: BTreeMap::new(),
        }
    }

    /// Adds what depends on the coordinates along a bundle.
    pub fn add(&mut self, bundle: &Bundle<'_>, network: &Network, storages: &Storages) {
        let coords = bundle.coords();
        let colors = |signature: &dyn Fn(&[usize; 7]) -> Signature| -> Colors {
            let all: Vec<Signature> = coords.iter().map(signature).collect();
            number(&all).into_iter().map(|one| one as u32).collect()
        };
        let mut presences: HashMap<usize, Presence> = HashMap::new();
        let mut known: HashMap<*const Row, Colors> = HashMap::new();
        for (index, storage) in storages.all.iter().enumerate() {
            for geometry in geometries(storage) {
                let axes = geometry.distribution.axes;
                for dim in (0..5).filter(|&dim| bundle.splits(axes[dim])) {
                    let row = known.entry(Arc::as_ptr(geometry.row(dim)));
                    let row =
                        row.or_insert_with(|| colors(&|coord| bundle.halo(coord, geometry, dim)));
                    let where_present = is_spatial(dim).then(|| {
                        let known = presences.entry(index);
                        &*known.or_insert_with(|| presence(storage))
                    });
                    self.put(where_present, bundle.axes, row.clone());
                }
            }
        }
        for block in storages.blocks.values() {
            let slabs = colors(&|coord| bundle.slabs(coord, network, storages, block));
            self.put(None, bundle.axes, slabs);
        }
        for (index, layer) in network.layers.iter().enumerate() {
            if let Step::Move = layer.step {
                for (movement, [from, to]) in bundle.movements(network, layer) {
                    for dim in 0..5 {
                        if bundle.splits(from.axes[dim]) || bundle.splits(to.axes[dim]) {
                            let own = colors(&|coord| {
                                bundle.movement(coord, movement, ([&from, &to], dim))
                            });
                            // A rank that keeps nothing copies nothing.
                            let kept = (movement == Movement::Slice && is_spatial(dim))
                                .then(|| owned(&to, self.mesh));
                            self.put(kept.as_ref(), bundle.axes, own);
                        }
                    }
                }
                continue;
            }
            if (1..4).any(|dim| bundle.splits(layer.distribution.axes[dim])) {
                let own = colors(&|coord| bundle.slides(coord, network, storages, LayerId(index)));
                let mut either = Presence::new();
                for id in layer.inputs.iter().map(|input| input.0).chain([index]) {
                    let known = presences.entry(storages.of[id]);
                    let known = known.or_insert_with(|| presence(&storages.all[storages.of[id]]));
                    either.extend(known.iter().cloned());
                }
                self.put(Some(&either), bundle.axes, own);
            }
            if bundle.axes.iter().any(|axis| layer.partial.has(axis)) {
                let first = colors(&|coord| bundle.first_of_sum(coord, layer));
                self.put(None, bundle.axes, first);
            }
        }
    }

    /// Adds the shares of the training state.
    pub fn add_shares(&mut self, network: &Network, shard: Shard) {
        let wholes = network.parameters.iter().flatten();
        let mut pairs: Vec<_> = wholes.zip(network.shares.iter().flatten()).collect();
        pairs.dedup();
        for (whole, share) in pairs {
            for dim in (0..5).filter(|&dim| !share.axes[dim].is_empty()) {
                let axes = share.axes[dim];
                let numbers = |part: usize| {
                    let mut coord = [0; 7];
                    self.mesh.go_to_part(axes, part, &mut coord);
                    let [whole, share] = [whole, share].map(|distribution| {
                        let part = self.mesh.part_index(distribution.axes[dim], &coord);
                        distribution.part(self.mesh, dim, part)
                    });
                    // The share moves inside the whole, unless that is gathered.
                    let start = (shard < Shard::Parameters).then_some(share.start - whole.start);
                    (whole.len(), share.len(), start)
                };
                let all: Vec<_> = (0..self.mesh.parts(axes)).map(numbers).collect();
                let colors = number(&all).into_iter().map(|one| one as u32).collect();
                self.put(None, axes, colors);
            }
        }
    }

    fn put(&mut self, presence: Option<&Presence>, axes: AxisList, colors: Colors) {
        if colors.iter().all(|&color| color == 0) {
            return;
        }
        let set = match presence {
            None => &mut self.always,
            Some(presence) => self.where_present.entry(presence.clone()).or_default(),
        };
        set.insert((axes, colors));
    }

    /// The class of each rank, numbered by first appearance, and the first rank of each class.
    pub fn classes(self) -> (Vec<u32>, Vec<Rank>) {
        let mut classes = Classes {
            mesh: self.mesh,
            parts: HashMap::new(),
            class_of: vec![0; self.mesh.ranks()],
            count: 1,
        };
        classes.split(&self.always, None);
        for (presence, colors) in &self.where_present {
            let present = classes.present(presence);
            classes.split(colors, Some(&present));
        }
        let class_of = number(&classes.class_of);
        let mut representatives = Vec::new();
        for (rank, &class) in class_of.iter().enumerate() {
            if class == representatives.len() {
                representatives.push(rank);
            }
        }
        let class_of = class_of.into_iter().map(|class| class as u32).collect();
        (class_of, representatives)
    }
}

/// Classes of ranks that are split further and further.
struct Classes<'m> {
    mesh: &'m Mesh,
    /// For each list of axes the part of each rank.
    parts: HashMap<AxisList, Vec<u32>>,
    class_of: Vec<u32>,
    count: usize,
}

impl Classes<'_> {
    fn parts(&mut self, axes: AxisList) -> &[u32] {
        let mesh = self.mesh;
        self.parts.entry(axes).or_insert_with(|| {
            let ranks = 0..mesh.ranks();
            let part = |rank| mesh.part_index(axes, &mesh.coord(rank)) as u32;
            ranks.map(part).collect()
        })
    }

    /// Splits classes by colors of their ranks; those that are absent have none.
    fn split(&mut self, all: &HashSet<(AxisList, Colors)>, present: Option<&[bool]>) {
        // Tables of the same axes are one.
        let mut joint: BTreeMap<AxisList, Vec<&Colors>> = BTreeMap::new();
        for (axes, colors) in all {
            joint.entry(*axes).or_default().push(colors);
        }
        for (axes, tables) in joint {
            if self.count == self.class_of.len() {
                return;
            }
            let parts = tables.first().map_or(0, |table| table.len());
            let rows: Vec<Vec<u32>> = (0..parts)
                .map(|part| tables.iter().map(|table| table[part]).collect())
                .collect();
            let colors = number(&rows);
            let parts = self.parts(axes).to_vec();
            let keys: Vec<(u32, usize)> = (self.class_of.iter().zip(&parts).enumerate())
                .map(|(rank, (&class, &part))| {
                    let is_present = present.is_none_or(|present| present[rank]);
                    let color = if is_present {
                        colors[part as usize]
                    } else {
                        usize::MAX
                    };
                    (class, color)
                })
                .collect();
            let next = number(&keys).into_iter().map(|class| class as u32);
            self.class_of = next.collect();
            self.count = 1 + self.class_of.iter().max().map_or(0, |&most| most as usize);
        }
    }

    /// Whether each rank holds something.
    fn present(&mut self, presence: &Presence) -> Vec<bool> {
        let mut any = vec![false; self.class_of.len()];
        for dims in presence {
            let mut all = vec![true; any.len()];
            for (axes, has_some) in dims.iter().filter(|one| one.1.contains(&false)) {
                let parts = self.parts(*axes).iter();
                for (is_here, &part) in all.iter_mut().zip(parts) {
                    *is_here &= has_some[part as usize];
                }
            }
            any.iter_mut().zip(all).for_each(|(any, all)| *any |= all);
        }
        any
    }
}

/// Whether a dim is one of D, H and W. Ranks sum over samples and channels of tensors that are empty in space.
fn is_spatial(dim: usize) -> bool {
    (1..4).contains(&dim)
}

fn geometries(storage: &Storage) -> impl Iterator<Item = &Geometry> {
    let held = [&storage.value, &storage.partial, &storage.around];
    let computed = storage.inner.then_some(&storage.computed);
    held.into_iter().chain(computed)
}

/// Where a rank holds something of a storage, or of the hull of all that it holds.
fn presence(storage: &Storage) -> Presence {
    let axes = storage.value.distribution.axes;
    let all = [
        &storage.value,
        &storage.partial,
        &storage.around,
        &storage.computed,
    ];
    let has_some = |dim: usize, part: usize| {
        let mut lines = all.iter().map(|one| &one.row(dim).lines()[part]);
        lines.any(|line| !line.held.is_empty())
    };
    let dims = (0..5).map(|dim| {
        let parts = storage.value.row(dim).lines().len();
        let parts = (0..parts).map(|part| has_some(dim, part));
        (axes[dim], parts.collect())
    });
    Presence::from([dims.collect()])
}

/// Where a rank owns something of a tensor.
fn owned(distribution: &Distribution, mesh: &Mesh) -> Presence {
    let dims = (0..5).map(|dim| {
        let parts = 0..mesh.parts(distribution.axes[dim]);
        let has_some = parts.map(|part| !distribution.part(mesh, dim, part).is_empty());
        (distribution.axes[dim], has_some.collect())
    });
    Presence::from([dims.collect()])
}
