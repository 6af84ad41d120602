//! Geometry of slabs: what a rank computes of each tensor of a block in one of its chunks.
//!
//! Example: a convolution of kernel 3 and a pooling of stride 2, `chunks=4`, 64 planes. For planes 8 to 15 of the
//! pooling's output, a slab has planes 16 to 31 of the convolution's output, which reads planes 15 to 32 of the input.
//!
//! Walking back from the part of the outputs that belongs to the slab, each layer adds what its window reads, clipped to
//! the image and to its own part, as in a halo group ([`crate::overlap`]). Beyond the image the halo is zero.

use crate::network::{Chunks, LayerId, Network, Step};
use crate::overlap::{extent, reads};
use crate::windows::{transposed_window, window};
use partita_graph::Op;
use partita_space::{Interval, Region, Split};
use std::collections::BTreeMap;

/// The layers of a block, in the order of the network.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub chunks: Chunks,
    /// The layers of the model, of which only slabs exist.
    pub inner: Vec<LayerId>,
    /// Copies of what others read, whole.
    pub exits: Vec<LayerId>,
}

impl Block {
    /// The block of a layer.
    pub fn of(network: &Network, chunks: Chunks) -> Self {
        let is_meant = |id: &LayerId| network.layer(*id).chunks == Some(chunks);
        let all = (0..network.layers.len()).map(LayerId).filter(is_meant);
        let (exits, inner) = all.partition(|&id| matches!(network.layer(id).step, Step::Move));
        Self {
            chunks,
            inner,
            exits,
        }
    }

    /// What a slab has of each tensor of the block along a dim, given what the rank owns and computes of tensors.
    pub fn lines(
        &self,
        network: &Network,
        number: usize,
        dim: usize,
        of: impl Fn(LayerId) -> [Interval; 2],
    ) -> BTreeMap<LayerId, Line> {
        let of_slab = |id: LayerId| {
            let [all, _] = of(id);
            if dim != self.chunks.dim {
                return all;
            }
            let split = Split {
                extent: all.len(),
                parts: self.chunks.count,
            };
            split.part(number).shift(all.start)
        };
        let exits = self.exits.iter();
        let mut lines: BTreeMap<LayerId, Line> =
            exits.map(|&exit| (exit, Line::of(of_slab(exit)))).collect();
        for &id in self.inner.iter().rev() {
            // Everything owned is computed by some slab, be it read or not.
            let mut line = Line::of(of_slab(id));
            let [_, inside] = of(id);
            let readers = network.readers(id).iter();
            for (&reader, outputs) in readers.filter_map(|of| Some((of, lines.get(of)?.computed))) {
                let read = match network.layer(reader).step {
                    Step::Move => outputs,
                    Step::Layer(_) => reads(network, (reader, id), dim, (&outputs, &inside)),
                };
                let own = read.intersect(&inside);
                line.computed = line.computed.hull(&own);
                let pads = matches!(network.layer(reader).op(), Some(Op::Convolution(_)));
                line.value = line.value.hull(if pads { &read } else { &own });
            }
            line.around = gradient_read(network, id, dim, &line.computed, &of);
            lines.insert(id, line);
        }
        lines
    }
}

/// What of the gradient of its output the data gradient of a layer reads.
fn gradient_read(
    network: &Network,
    id: LayerId,
    dim: usize,
    outputs: &Interval,
    of: impl Fn(LayerId) -> [Interval; 2],
) -> Interval {
    let layer = network.layer(id);
    let Some(&input) = layer.inputs.first() else {
        return *outputs;
    };
    let [_, inside] = of(input);
    let read = reads(network, (id, input), dim, (outputs, &inside));
    let inputs = read.intersect(&extent(network, input, dim));
    let read = match (window(layer, dim), transposed_window(layer, dim)) {
        (Some(window), _) => window.outputs_of(&inputs),
        (None, Some(window)) => window.inputs_of(&inputs),
        (None, None) => Interval::default(),
    };
    outputs.hull(&read)
}

/// What a slab has of a tensor along a dim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// What is computed.
    pub computed: Interval,
    /// That, and the padding that readers read.
    pub value: Interval,
    /// What of its gradient is read.
    pub around: Interval,
}

impl Line {
    fn of(interval: Interval) -> Self {
        Self {
            computed: interval,
            value: interval,
            around: interval,
        }
    }
}

/// What a slab has of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub computed: Region,
    pub value: Region,
    pub around: Region,
}

/// A slab of a block on a rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slab {
    /// By layer of the model.
    inner: BTreeMap<LayerId, Part>,
    /// What belongs to it of each whole copy.
    exits: BTreeMap<LayerId, Region>,
}

impl Slab {
    /// One of the slabs of a rank that owns and computes these regions of tensors.
    pub fn new(
        block: &Block,
        network: &Network,
        number: usize,
        of: impl Fn(LayerId) -> [Region; 2],
    ) -> Self {
        let lines: [BTreeMap<LayerId, Line>; 3] = std::array::from_fn(|spatial| {
            let dim = spatial + 1;
            block.lines(network, number, dim, |id| {
                of(id).map(|region| region.0[dim])
            })
        });
        let region = |id: LayerId, interval: fn(&Line) -> Interval| {
            let [mut region, _] = of(id);
            for (dim, lines) in lines.iter().enumerate() {
                region.0[dim + 1] = interval(&lines[&id]);
            }
            region
        };
        let part = |&id: &LayerId| {
            let part = Part {
                computed: region(id, |line| line.computed),
                value: region(id, |line| line.value),
                around: region(id, |line| line.around),
            };
            (id, part)
        };
        let exit = |&id: &LayerId| (id, region(id, |line| line.computed));
        Self {
            inner: block.inner.iter().map(part).collect(),
            exits: block.exits.iter().map(exit).collect(),
        }
    }

    /// What it has of the output of a layer of the block; none of other tensors.
    pub fn part(&self, id: LayerId) -> Option<&Part> {
        self.inner.get(&id)
    }

    /// What belongs to it of a whole copy.
    pub fn of_exit(&self, id: LayerId) -> Region {
        self.exits.get(&id).copied().unwrap_or_default()
    }
}
