//! Overlapped tiles: ranks compute halos redundantly, so that only tensors that enter a halo group are
//! exchanged.
//!
//! Example: two convolutions of kernel 3 in a group: for its own outputs of the second, a rank computes
//! the first one plane further, and reads the input two planes further.
//!
//! Walking back from what a rank owns at the end of a group (`halo=grouped`), each layer adds what its window
//! reads, clipped to the image. That is what the rank computes of each tensor inside the group, and how wide the
//! halo of the entering tensors is. Beyond the image the halo of every tensor is zero, not computed; otherwise the
//! border would differ.
//!
//! Backward, copies are treated as tensors of the rank's own: their gradients hold what the rank's own outputs
//! contribute. So gradients of weights add up over ranks, nothing is exchanged inside the group, and at its start
//! the halos are sent to their owners and added. Moments of a batch norm count owned elements only: gradients of
//! copies enter the sums over ranks, but only the owned element passes on what came through the moments. A layer
//! outside the group that slides over an inner tensor gets a copy of it with its own halo. Buffers with such copies
//! are marked (`TensorRegion::redundant`), and `verify` checks that no message touches them.

use crate::geometry::Parts;
use crate::network::{LayerId, Network, is_gate, reads_whole};
use crate::windows::{contributors, is_periodic, resampling, transposed_window, window};
use partita_graph::Op;
use partita_space::Interval;
use std::sync::Arc;

/// The part of each tensor that each coordinate computes: the owned part, and for a tensor inside a halo
/// group also all that the coordinate reads.
pub(crate) struct Overlap<'n> {
    network: &'n Network,
    /// Whether a tensor is inside a halo group: made and read there.
    inner: Vec<bool>,
    /// By tensor, dim and coordinate.
    parts: Vec<[Parts; 5]>,
}

impl<'n> Overlap<'n> {
    /// `own` is what each coordinate owns.
    pub fn new(network: &'n Network, own: &[[Parts; 5]]) -> Self {
        let count = network.layers.len();
        let mut overlap = Self {
            network,
            inner: vec![false; count],
            parts: own.to_vec(),
        };
        for index in (0..count).rev() {
            overlap.widen(LayerId(index));
        }
        overlap
    }

    /// Extends a tensor by what the readers in the same group read.
    fn widen(&mut self, id: LayerId) {
        let group = self.network.layer(id).group;
        let is_inside = |reader: &LayerId| self.network.layer(*reader).group == group;
        let readers: Vec<LayerId> = self
            .network
            .readers(id)
            .iter()
            .copied()
            .filter(is_inside)
            .collect();
        if group.is_none() || readers.is_empty() {
            return;
        }
        self.inner[id.0] = true;
        for dim in 1..4 {
            for i in 0..self.parts[id.0][dim].len() {
                let reads = readers.iter().map(|&r| self.inputs_inside(r, id, dim, i));
                let need = reads.fold(Interval::default(), |all, read| all.hull(&read));
                if !need.is_empty() {
                    let part = &mut Arc::make_mut(&mut self.parts[id.0][dim])[i];
                    // An empty owned part still has a position.
                    *part = Interval::new(part.start.min(need.start), part.end.max(need.end));
                }
            }
        }
    }

    /// Whether a tensor is inside a halo group.
    pub fn is_inner(&self, id: LayerId) -> bool {
        self.inner[id.0]
    }

    /// What a coordinate computes of a tensor along a dim.
    pub fn part(&self, id: LayerId, dim: usize, coordinate: usize) -> Interval {
        self.parts[id.0][dim][coordinate]
    }

    /// The part of `input` along `dim` that a coordinate reads for what it computes, padding included; none where
    /// it reads no more than what it owns.
    pub fn inputs(
        &self,
        consumer: LayerId,
        input: LayerId,
        dim: usize,
        coordinate: usize,
    ) -> Interval {
        let is_read = slides(self.network, consumer, dim) || self.inner[consumer.0];
        if !is_read || !has_positions(self.network, consumer, input, dim) {
            return Interval::default();
        }
        let outputs = self.part(consumer, dim, coordinate);
        let all = extent(self.network, self.network.layer(consumer).inputs[0], dim);
        reads(self.network, (consumer, input), dim, (&outputs, &all))
    }

    /// The same without zero padding.
    pub fn inputs_inside(
        &self,
        consumer: LayerId,
        input: LayerId,
        dim: usize,
        coordinate: usize,
    ) -> Interval {
        let inputs = self.inputs(consumer, input, dim, coordinate);
        let layer = self.network.layer(consumer);
        if is_periodic(layer) {
            return inputs;
        }
        inputs.intersect(&extent(self.network, layer.inputs[0], dim))
    }
}

/// Whether outputs of a layer have positions of an input along a dim.
fn has_positions(network: &Network, consumer: LayerId, input: LayerId, dim: usize) -> bool {
    let is_apart = |op: &Op| reads_whole(op) || is_gate(network, consumer, input);
    (1..4).contains(&dim) && !network.layer(consumer).op().is_some_and(is_apart)
}

/// Whether a layer reads other positions along a dim than those of its outputs.
fn slides(network: &Network, id: LayerId, dim: usize) -> bool {
    let layer = network.layer(id);
    let has_window = window(layer, dim).is_some() || transposed_window(layer, dim).is_some();
    has_window || resampling(network, layer, dim).is_some()
}

/// What `consumer` reads of `input` along `dim` for some of its outputs, padding included; nothing along samples and
/// channels, and where its outputs have other positions than its inputs. Layers without padding read `within` alone.
pub(crate) fn reads(
    network: &Network,
    (consumer, input): (LayerId, LayerId),
    dim: usize,
    (outputs, within): (&Interval, &Interval),
) -> Interval {
    if !has_positions(network, consumer, input, dim) {
        return Interval::default();
    }
    let layer = network.layer(consumer);
    if let Some(window) = window(layer, dim) {
        window.inputs_of(outputs)
    } else if let Some(window) = transposed_window(layer, dim) {
        contributors(window, outputs, within)
    } else if let Some(map) = resampling(network, layer, dim) {
        let all = extent(network, layer.inputs[0], dim);
        map.inputs_of(outputs, all.len())
    } else {
        outputs.intersect(within)
    }
}

pub(crate) fn extent(network: &Network, id: LayerId, dim: usize) -> Interval {
    Interval::all(network.layer(id).distribution.shape[dim])
}
