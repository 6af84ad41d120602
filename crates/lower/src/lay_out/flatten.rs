//! Distribution of a flattened tensor.
//!
//! Features are ordered (D, H, W, C), so a slab of the outermost dim is a range of features: a tensor split
//! into equal slabs is split by features without communication. Example: 4x2x2 positions with 8 channels under
//! `depth=2; fc1: C=depth`: rank 1 has planes 2 and 3, which are features 64 to 127, just those that its rows
//! of the weights need.

use super::{Axes, Layout};
use partita_graph::{NodeId, Shape};
use partita_space::{AxisList, Mesh};

impl Layout<'_> {
    /// Axes of the input and of the output of a flatten, given the present ones of the input. Features are split
    /// where their only reader reads parts of them and the input has these slabs already, or where the reader
    /// needs parts in any case: moving slabs costs less than gathering. Otherwise only samples are split.
    pub(super) fn flattened(&self, id: NodeId, known: &Axes, whole: Axes) -> (Axes, Axes) {
        let shape = self.graph.node(self.graph.node(id).inputs[0]).shape;
        let split = |features: AxisList| {
            let (mut reads, mut made) = (whole, whole);
            reads[1..].copy_from_slice(&slabs(&self.mesh, shape, features)?);
            made[4] = features;
            let is_free = features.iter().all(|axis| !whole[0].has(axis));
            let is_read = is_free && self.features_read(id, made) == features;
            is_read.then_some((reads, made))
        };
        let as_it_lies = AxisList::of(known[1..].iter().flat_map(|axes| axes.iter()));
        let stays = |(reads, _): &(Axes, Axes)| reads[1..] == known[1..];
        split(as_it_lies)
            .filter(stays)
            .or_else(|| split(self.features_read(id, whole)))
            .unwrap_or((whole, whole))
    }

    /// The axes that split the features as the only reader of a layer needs them; none with several readers.
    fn features_read(&self, mut id: NodeId, mut axes: Axes) -> AxisList {
        loop {
            let &[reader] = &self.readers[id.0][..] else {
                return AxisList::NONE;
            };
            let node = self.graph.node(reader);
            if node.inputs[0] != id {
                return AxisList::NONE;
            }
            if node.op.has_weights() {
                let (_, _, channels) = self.weighted_axes(reader, axes);
                return channels;
            }
            let (reads, made) = self.axes_of_unweighted(reader, axes);
            if reads != axes {
                return reads[4];
            }
            (id, axes) = (reader, made);
        }
    }
}

/// Axes of D, H, W and C that split the features into the same parts as `features`; none where the parts
/// are not boxes of equal extents.
fn slabs(mesh: &Mesh, shape: Shape, features: AxisList) -> Option<[AxisList; 4]> {
    let [d, h, w] = shape.extent;
    let extents = [d, h, w, shape.channels];
    let mut slabs = [AxisList::NONE; 4];
    let (mut dim, mut left) = (0, d);
    for axis in features.iter() {
        while left == 1 && dim < 3 {
            dim += 1;
            left = extents[dim];
        }
        if !left.is_multiple_of(mesh.extent(axis)) {
            return None;
        }
        left /= mesh.extent(axis);
        slabs[dim] = slabs[dim].inside(axis);
    }
    Some(slabs)
}
