//! Which tensors share memory, and how wide the frame of each is.

use crate::geometry::{Geometry, Parts, Rows};
use crate::network::{Layer, LayerId, Network, Step};
use crate::overlap::Overlap;
use partita_graph::Op;
use partita_program::Distribution;
use partita_space::{Interval, Mesh, Window};

/// How the gradient of a convolution's input comes together where a dim is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataGradient {
    /// The output's gradient is exchanged, and each rank computes its own part whole.
    Halo,
    /// Each rank computes what its own outputs contribute, and parts in frames go to their owners.
    Reverse,
}

/// Memory of a tensor, shared with the tensors computed from it in place.
pub(crate) struct Storage {
    /// The producer first, then those in place.
    pub members: Vec<LayerId>,
    /// What each rank computes: what it owns, and of an inner tensor what it reads of it.
    pub computed: Geometry,
    /// Whether it is made and read inside of one group: then each rank has its own copy of what it
    /// computes of others' parts, no message brings it, and its gradient is that of the copy.
    pub inner: bool,
    /// What each rank holds of the value: as much as the largest consumer reads.
    pub value: Geometry,
    /// Whether a convolution may read zeros around the image. Who reads another border has another storage.
    pub zero_padding: bool,
    /// What each rank contributes to the gradient of others.
    pub partial: Geometry,
    /// What the producer's data gradient reads around the own part.
    pub around: Geometry,
    /// How the producer computes the gradient of its input, if it is a convolution. A transposed one
    /// reads the output's gradient around for that of its weights, too.
    pub rule: Option<DataGradient>,
    /// Whether there is a gradient at all.
    pub has_gradient: bool,
    /// The storage of the tensor whose value it is: its own, or that before a change of distribution.
    pub tensor: u32,
}

/// The storages of a graph under a split.
pub(crate) struct Storages {
    /// Storage of each layer.
    pub of: Vec<usize>,
    /// All of them.
    pub all: Vec<Storage>,
}

impl Storages {
    /// `rows` are those that storages of the same world have already.
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
                // A copy for readers outside of a group is a tensor of its own.
                Step::Move if is_copy(network, first) => index as u32,
                Step::Move => all[of[first.inputs[0].0]].tensor,
            };
        }
        Self { of, all }
    }

    pub fn of(&self, id: LayerId) -> &Storage {
        &self.all[self.of[id.0]]
    }
}

/// Groups of layers in one memory: an activation runs in place where nobody else reads its input and
/// the producer's backward does not look at its own output.
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
        // The input is kept as it was imported, and a flatten may share memory with nobody.
        Some(
            Op::Input | Op::LeakyRelu { .. } | Op::Flatten | Op::Loss(_) | Op::AuxiliaryLoss { .. },
        ) => true,
        Some(
            Op::Convolution(_)
            | Op::TransposedConvolution(_)
            | Op::Pool(_)
            | Op::BatchNorm { .. }
            | Op::Linear { .. }
            | Op::Dropout { .. }
            | Op::Add
            | Op::Concat
            | Op::Slice { .. }
            | Op::Embedding { .. }
            | Op::Positions
            | Op::LayerNorm { .. }
            | Op::Activation(_)
            | Op::Attention { .. },
        ) => false,
    }
}

/// Whether a change of distribution changes nothing.
fn is_copy(network: &Network, layer: &Layer) -> bool {
    layer.partial_gradient.is_empty()
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
    /// Of each tensor, along each dim, what each coordinate owns.
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
        // The gradient of a copy is what the own outputs give, and stays with it.
        let of_copies = members
            .iter()
            .chain(&layer.inputs)
            .any(|&id| self.overlap.is_inner(id));
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
            let all: u128 = (0..5)
                .map(|dim| sum(dim, &|i| held(dim, i).len()))
                .product();
            let own: u128 = (0..5)
                .map(|dim| sum(dim, &|i| self.part(id, dim, i).len()))
                .product();
            all - own
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
            own.hull(&self.overlap.inputs_inside(producer, dim, i))
        });
        Some(if reverse < halo {
            DataGradient::Reverse
        } else {
            DataGradient::Halo
        })
    }

    /// Outputs of a convolution that touch its input's own part at a coordinate, unclipped.
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
                Some(Op::Convolution(_)) => self.overlap.inputs(reader, dim, i),
                _ => self.overlap.inputs_inside(reader, dim, i),
            })
        });
        let partial = Geometry::new(distribution, world, periodic, |dim, i| {
            hull(&|reader| {
                if self.contributes(reader, rules[of[reader.0]]) {
                    self.overlap.inputs_inside(reader, dim, i)
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

    /// What the data gradient of a layer reads of the gradient of its output at a coordinate.
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
                let inputs = self.overlap.inputs_inside(id, dim, i);
                match (window(layer, dim), transposed_window(layer, dim)) {
                    (Some(window), _) => window.outputs_of(&inputs),
                    (None, Some(window)) => window.inputs_of(&inputs),
                    (None, None) => Interval::default(),
                }
            }
            None => Interval::default(),
        }
    }

    /// Whether a reader contributes to the gradient of all that it reads, of others' parts too.
    fn contributes(&self, reader: LayerId, rule: Option<DataGradient>) -> bool {
        // Other layers read beyond their own part in groups only.
        let op = self.network.layer(reader).op();
        rule == Some(DataGradient::Reverse) || op.is_none_or(|op| !op.has_weights())
    }
}

/// Inputs of a transposed convolution that contribute to a block of outputs, among those `within`;
/// where none does, the nearest one, so that there is something to read.
///
/// Example: kernel 2, stride 2: outputs 3 to 5 get something from inputs 1 and 2.
pub(crate) fn contributors(window: &Window, outputs: &Interval, within: &Interval) -> Interval {
    let reached = window.outputs_of(outputs);
    let inside = reached.intersect(within);
    if outputs.is_empty() || within.is_empty() || !inside.is_empty() {
        return inside;
    }
    let nearest = reached.start.clamp(within.start, within.end - 1);
    Interval::new(nearest, nearest + 1)
}

/// The window of the convolution whose adjoint a transposed convolution is, along a tensor dim.
pub(crate) fn transposed_window(layer: &Layer, dim: usize) -> Option<&Window> {
    any_window(layer, dim).filter(|_| is_transposed(layer))
}

/// The window of a convolution or pooling along a tensor dim; N and C have none.
pub(crate) fn window(layer: &Layer, dim: usize) -> Option<&Window> {
    any_window(layer, dim).filter(|_| !is_transposed(layer))
}

fn any_window(layer: &Layer, dim: usize) -> Option<&Window> {
    let windows = layer.op()?.window()?;
    dim.checked_sub(1).and_then(|spatial| windows.get(spatial))
}

fn is_transposed(layer: &Layer) -> bool {
    matches!(layer.op(), Some(Op::TransposedConvolution(_)))
}

pub(crate) fn is_periodic(layer: &Layer) -> bool {
    match layer.op() {
        Some(Op::Convolution(convolution)) => convolution.periodic,
        _ => false,
    }
}
