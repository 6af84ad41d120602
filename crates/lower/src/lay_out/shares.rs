//! Sharding of the training state of parameters (ZeRO).

use crate::Strategy;
use crate::network::{Layer, positions};
use crate::strategy::Shard;
use partita_graph::{Graph, ParameterRole};
use partita_program::Distribution;
use partita_space::AxisList;

/// Distributions of the training state of each parameter: split further by the axes over which all
/// contributions to its gradient are summed, along the first dim that divides evenly, or else the longest.
pub(super) fn shares(
    graph: &Graph,
    strategy: &Strategy,
    layers: &[Layer],
    distributions: &[Vec<Distribution>],
) -> Vec<Vec<Distribution>> {
    let mut shares = distributions.to_vec();
    if strategy.shard == Shard::Off {
        return shares;
    }
    let world = strategy.mesh();
    let mesh_of = |id: usize| distributions[id][0].mesh(&world);
    let mut summed: Vec<_> = (0..distributions.len())
        .map(|id| mesh_of(id).split_axes())
        .collect();
    for layer in layers {
        let axes = positions(&layer.distribution);
        for id in &layer.parameters {
            let known = &mut summed[id.0];
            *known = known.minus(known.minus(axes));
        }
    }
    for (id, share) in shares.iter_mut().enumerate() {
        let axes = AxisList::of(summed[id].iter());
        // Parameters on several submeshes are not sharded.
        let [share] = &mut share[..] else { continue };
        if graph.parameters[id].role != ParameterRole::Weight || axes.is_empty() {
            continue;
        }
        let mesh = mesh_of(id);
        // Smallest extent of a dim after the split by layers.
        let left = |dim: usize| share.shape[dim] / mesh.parts(share.axes[dim]);
        let parts = mesh.parts(axes);
        let dims = [3, 4, 0, 1, 2];
        let even = dims
            .into_iter()
            .find(|&dim| left(dim).is_multiple_of(parts) && left(dim) > 0);
        let longest = || dims.into_iter().max_by_key(|&dim| left(dim));
        let chosen = even.or_else(longest).filter(|&dim| left(dim) >= parts);
        if let Some(dim) = chosen {
            share.axes[dim] = share.axes[dim].then(axes);
        }
    }
    shares
}
