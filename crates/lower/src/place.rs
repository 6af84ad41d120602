//! How the dims of each tensor lie on the axes of the mesh.

use partita_graph::{Graph, Op};
use partita_program::Place;
use partita_space::{Axis, AxisSet, Dim, Mesh};

/// Places of all tensors: samples on `data`, and D, H, W on their axes up to the first flatten.
pub(crate) fn places(graph: &Graph, mesh: &Mesh, batch: usize) -> Vec<Place> {
    let mut flat = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        flat[i] = matches!(node.op, Op::Flatten) || node.inputs.iter().any(|input| flat[input.0]);
    }
    let axis = |axis: Axis| (mesh.extent(axis) > 1).then_some(axis);
    graph
        .nodes
        .iter()
        .enumerate()
        .map(|(i, node)| {
            let mut place = Place::replicated(node.shape.batched(batch));
            place.axes[Dim::N.index()] = axis(Axis::Data);
            if !flat[i] {
                place.axes[Dim::D.index()] = axis(Axis::Depth);
                place.axes[Dim::H.index()] = axis(Axis::Height);
                place.axes[Dim::W.index()] = axis(Axis::Width);
            }
            place
        })
        .collect()
}

/// Axes that split a tensor of this place; a sum over its elements is partial along them.
pub(crate) fn split_axes(place: &Place) -> AxisSet {
    AxisSet::of(place.axes.into_iter().flatten())
}
