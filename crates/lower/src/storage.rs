//! Buffers shared by tensors in place, and the width of their halos.

use crate::geometry::{Geometry, Parts, Rows};
use crate::network::{Layer, LayerId, Network, Step};
use crate::overlap::Overlap;
use crate::slabs::Block;
use crate::windows::{is_periodic, transposed_window, window};
use partita_graph::Op;
use partita_program::Distribution;
use partita_space::{Interval, Mesh};
use std::collections::BTreeMap;

/// How the gradient of a convolution's input is computed where a dim is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataGradient {
    /// Halo exchange of the output's gradient; each rank computes all of its owned part.
    Halo,
    /// Reverse halo exchange: each rank computes the contributions of its own outputs, and those in halos are
    /// sent to their owners and added.
    Reverse,
}

/// A buffer of a tensor, shared with the tensors computed from it in place.
pub(crate) struct Storage {
    /// The producer, then the layers in place.
    pub members: Vec<LayerId>,
    /// What each rank computes: the owned part, and for a tensor inside a halo group all that it reads.
    pub computed: Geometry,
    /// Whether it is inside a halo group: then each rank computes its halo redundantly, and the gradient of
    /// the halo is that of this copy.
    pub inner: bool,
    /// What each rank holds of the value: all that its consumers read.
    pub value: Geometry,
    /// Whether a convolution may read zero padding. Readers with another padding have another storage.
    pub zero_padding: bool,
    /// The region of the gradient to which each rank contributes.
    pub partial: Geometry,
    /// The region of the gradient that the producer's data gradient reads.
    pub around: Geometry,
    /// How the producer computes the gradient of its input, if it is a convolution.
    pub rule: Option<DataGradient>,
    /// Whether it has a gradient.
    pub has_gradient: bool,
    /// Number of the tensor; the same before and after a redistribution.
    pub tensor: u32,
}

impl Storage {
    /// What each rank has of the tensor for a block in chunks: what it computes inside, and what it holds of what enters;
    /// to be clipped to the tensor.
    pub fn present(&self, network: &Network) -> &Geometry {
        let first = network.layer(self.members[0]);
        let is_inside = first.chunks.is_some() && first.op().is_some();
        if is_inside {
            &self.computed
        } else {
            &self.value
        }
    }
}

/// The storages of a network.
pub(crate) struct Storages {
    /// Storage of each layer.
    pub of: Vec<usize>,
    /// All storages.
    pub all: Vec<Storage>,
    /// Blocks in chunks, by their number.
    pub blocks: BTreeMap<usize, Block>,
}

impl Storages {
    /// `rows` interns the rows of all storages.
    pub fn new(network: &Network, mesh: &Mesh, rows: &Rows) -> Self {
        let groups = groups(network);
        let mut of = vec![0; network.layers.len()];
        for (index, members) in groups.iter().enumerate() {
            members.iter().for_each(|member| of[member.0] = index);
        }
        let own = |layer: &Layer| {
            let mesh = layer.distribution.mesh(mesh);
            std::array::from_fn(|dim| rows.parts(&layer.distribution, &mesh, dim))
        };
        let own: Vec<[Parts; 5]> = network.layers.iter().map(own).collect();
        let context = Context {
            network,
            mesh,
            rows,
            overlap: Overlap::new(network, &own),
            own,
        };
        let rules: Vec<Option<DataGradient>> =
            groups.iter().map(|members| context.rule(members)).collect();
        let mut all: Vec<Storage> = groups
            .into_iter()
            .enumerate()
            .map(|(index, members)| context.storage(members, rules[index], &of, &rules))
            .collect();
        for index in 0..all.len() {
            let first = network.layer(all[index].members[0]);
            all[index].tensor = match first.step {
                Step::Layer(_) => index as u32,
                // A copy for readers outside of a halo group is a tensor of its own.
                Step::Move if is_copy(network, first) => index as u32,
                Step::Move => all[of[first.inputs[0].0]].tensor,
            };
        }
        let mut blocks = BTreeMap::new();
        for chunks in network.layers.iter().filter_map(|layer| layer.chunks) {
            let block = || Block::of(network, chunks);
            blocks.entry(chunks.block).or_insert_with(block);
        }
        Self { of, all, blocks }
    }

    /// The same for a micro-batch of as many samples of the network.
    pub fn of_micro_batch(&self, network: &Network, world: (&Mesh, &Rows)) -> Self {
        let of_storage = |storage: &Storage| {
            let distribution = network.layer(storage.members[0]).distribution;
            let of = |geometry: &Geometry| geometry.with_samples_of(distribution, world);
            Storage {
                members: storage.members.clone(),
                computed: of(&storage.computed),
                value: of(&storage.value),
                partial: of(&storage.partial),
                around: of(&storage.around),
                ..*storage
            }
        };
        Self {
            of: self.of.clone(),
            all: self.all.iter().map(of_storage).collect(),
            blocks: self.blocks.clone(),
        }
    }

    pub fn of(&self, id: LayerId) -> &Storage {
        &self.all[self.of[id.0]]
    }
}

/// Groups of layers in one buffer: an activation runs in place if it is the only reader of its input and the
/// backward pass of the producer does not read its own output.
fn groups(network: &Network) -> Vec<Vec<LayerId>> {
    let mut groups: Vec<Vec<LayerId>> = Vec::new();
    let mut of: Vec<usize> = Vec::new();
    for (i, layer) in network.layers.iter().enumerate() {
        let in_place = matches!(layer.op(), Some(Op::LeakyRelu { .. })) && {
            let input = layer.inputs[0];
            network.readers(input).len() == 1
                && !reads_own_output(network.layer(input))
                && network.layer(input).group == layer.group
                && network.layer(input).stage == layer.stage
                && network.layer(input).distribution.submesh == layer.distribution.submesh
        };
        if in_place {
            let group = of[layer.inputs[0].0];
            groups[group].push(LayerId(i));
            of.push(group);
        } else {
            of.push(groups.len());
            groups.push(vec![LayerId(i)]);
        }
    }
    groups
}

fn reads_own_output(layer: &Layer) -> bool {
    match layer.op() {
        None => false,
        // The imported input is kept, and a flatten shares no memory.
        Some(
            Op::Input
            | Op::Features
            | Op::LeakyRelu { .. }
            | Op::Softmax
            | Op::Flatten
            | Op::Reshape { .. }
            | Op::Loss(_)
            | Op::AuxiliaryLoss { .. },
        ) => true,
        Some(
            Op::Convolution(_)
            | Op::TransposedConvolution(_)
            | Op::Pool(_)
            | Op::Resample(_)
            | Op::BatchNorm { .. }
            | Op::Prelu(_)
            | Op::Linear { .. }
            | Op::Dropout { .. }
            | Op::Add
            | Op::Multiply
            | Op::Concat
            | Op::Slice { .. }
            | Op::ChannelShuffle { .. }
            | Op::Embedding { .. }
            | Op::Positions
            | Op::PositionEmbedding { .. }
            | Op::LayerNorm { .. }
            | Op::GroupNorm { .. }
            | Op::Activation(_)
            | Op::Attention { .. },
        ) => false,
    }
}

/// Whether a redistribution is a copy.
fn is_copy(network: &Network, layer: &Layer) -> bool {
    layer.chunks.is_some()
        || layer.partial_gradient.is_empty()
            && layer.inputs.iter().all(|&input| {
                let input = network.layer(input);
                input.distribution == layer.distribution && input.partial.is_empty()
            })
}

struct Context<'a> {
    network: &'a Network,
    mesh: &'a Mesh,
    rows: &'a Rows,
    overlap: Overlap<'a>,
    /// Owned intervals by tensor, dim and coordinate.
    own: Vec<[Parts; 5]>,
}

impl Context<'_> {
    fn part(&self, id: LayerId, dim: usize, part: usize) -> Interval {
        self.own[id.0][dim][part]
    }

    fn distribution(&self, id: LayerId) -> &Distribution {
        &self.network.layer(id).distribution
    }

    fn extent(&self, id: LayerId, dim: usize) -> Interval {
        Interval::all(self.distribution(id).shape[dim])
    }

    fn rule(&self, members: &[LayerId]) -> Option<DataGradient> {
        let producer = members[0];
        let layer = self.network.layer(producer);
        // The gradient of a redundant copy gets the contributions of the own outputs, and is not exchanged.
        let of_copies = members
            .iter()
            .chain(&layer.inputs)
            .any(|&id| self.overlap.is_inner(id))
            || layer.chunks.is_some();
        if let Some(Op::TransposedConvolution(_)) = layer.op() {
            return Some(if of_copies {
                DataGradient::Reverse
            } else {
                DataGradient::Halo
            });
        }
        let Some(Op::Convolution(convolution)) = layer.op() else {
            return None;
        };
        if !self.network.needs_gradient(layer.inputs[0]) {
            return None;
        }
        if convolution.periodic || of_copies {
            return Some(DataGradient::Reverse);
        }
        let input = layer.inputs[0];
        let moved = |id: LayerId, held: &dyn Fn(usize, usize) -> Interval| {
            let sum = |dim: usize, f: &dyn Fn(usize) -> usize| -> u128 {
                let parts = 0..self.own[id.0][dim].len();
                parts.map(|i| f(i) as u128).sum()
            };
            // Nothing moves along samples and channels.
            let apart: u128 = [0, 4]
                .map(|dim| sum(dim, &|i| self.part(id, dim, i).len()))
                .iter()
                .product();
            let of = |held: &dyn Fn(usize, usize) -> Interval| -> u128 {
                (1..4)
                    .map(|dim| sum(dim, &|i| held(dim, i).len()))
                    .product()
            };
            apart * (of(held) - of(&|dim, i| self.part(id, dim, i)))
        };
        let halo = moved(producer, &|dim, i| {
            let own = self.part(producer, dim, i);
            let read = self
                .outputs(layer, dim, i)
                .intersect(&self.extent(producer, dim));
            own.hull(&read)
        });
        let reverse = moved(input, &|dim, i| {
            let own = self.part(input, dim, i);
            own.hull(&self.overlap.inputs_inside(producer, input, dim, i))
        });
        Some(if reverse < halo {
            DataGradient::Reverse
        } else {
            DataGradient::Halo
        })
    }

    /// Outputs of a convolution that read the owned part of its input at a coordinate, unclipped.
    fn outputs(&self, layer: &Layer, dim: usize, coordinate: usize) -> Interval {
        window(layer, dim).map_or(Interval::default(), |window| {
            window.outputs_of(&self.part(layer.inputs[0], dim, coordinate))
        })
    }

    fn storage(
        &self,
        members: Vec<LayerId>,
        rule: Option<DataGradient>,
        of: &[usize],
        rules: &[Option<DataGradient>],
    ) -> Storage {
        let (first, last) = (members[0], members[members.len() - 1]);
        let distribution = *self.distribution(first);
        let readers = self.network.readers(last);
        let inner = self.overlap.is_inner(last);
        let world = (self.mesh, self.rows);
        let computed = Geometry::new(distribution, world, false, |dim, i| match dim {
            1..4 => self.overlap.part(last, dim, i),
            _ => Interval::default(),
        });
        let periodic = readers
            .iter()
            .any(|&reader| is_periodic(self.network.layer(reader)));
        let hull = |needs: &dyn Fn(LayerId) -> Interval| {
            readers
                .iter()
                .fold(Interval::default(), |all, &reader| all.hull(&needs(reader)))
        };
        let value = Geometry::new(distribution, world, periodic, |dim, i| {
            hull(&|reader| match self.network.layer(reader).op() {
                Some(Op::Convolution(_)) => self.overlap.inputs(reader, last, dim, i),
                _ => self.overlap.inputs_inside(reader, last, dim, i),
            })
        });
        let partial = Geometry::new(distribution, world, periodic, |dim, i| {
            hull(&|reader| {
                if self.contributes(reader, rules[of[reader.0]]) {
                    self.overlap.inputs_inside(reader, last, dim, i)
                } else {
                    Interval::default()
                }
            })
        });
        let around = Geometry::new(distribution, world, false, |dim, i| {
            self.gradient_read(first, rule, dim, i)
        });
        let is_convolution =
            |&id: &LayerId| matches!(self.network.layer(id).op(), Some(Op::Convolution(_)));
        let zero_padding = !periodic && readers.iter().any(is_convolution);
        let has_gradient = self.network.needs_gradient(first);
        Storage {
            members,
            computed,
            inner,
            value,
            zero_padding,
            partial,
            around,
            rule,
            has_gradient,
            tensor: 0,
        }
    }

    /// The interval of the gradient of its output that the data gradient of a layer reads at a coordinate.
    fn gradient_read(
        &self,
        id: LayerId,
        rule: Option<DataGradient>,
        dim: usize,
        i: usize,
    ) -> Interval {
        let layer = self.network.layer(id);
        match rule {
            Some(DataGradient::Halo) => match transposed_window(layer, dim) {
                Some(window) => window.inputs_of(&self.part(layer.inputs[0], dim, i)),
                None => self.outputs(layer, dim, i),
            },
            Some(DataGradient::Reverse) => {
                let inputs = self.overlap.inputs_inside(id, layer.inputs[0], dim, i);
                match (window(layer, dim), transposed_window(layer, dim)) {
                    (Some(window), _) => window.outputs_of(&inputs),
                    (None, Some(window)) => window.inputs_of(&inputs),
                    (None, None) => Interval::default(),
                }
            }
            None => Interval::default(),
        }
    }

    /// Whether a reader contributes to the gradient of the halos that it reads.
    fn contributes(&self, reader: LayerId, rule: Option<DataGradient>) -> bool {
        // Other layers read halos in halo groups only.
        let op = self.network.layer(reader).op();
        rule == Some(DataGradient::Reverse) || op.is_none_or(|op| !op.has_weights())
    }
}
