use partita_graph::{Graph, count};
use partita_lower::Strategy;
use partita_space::{Axis, Flops};

/// Flops of convolutions and linear layers that the busiest rank computes in a training step at least.
///
/// In a balanced split the last part of every dim is the longest, so the last rank of the mesh has
/// `ceil(extent / parts)` of each: its owned part of every layer's output is a part of its work, and
/// what it computes twice at borders, and every kernel limited by memory, come on top.
pub fn compute_bound(graph: &Graph, strategy: &Strategy, batch: usize) -> Flops {
    let share = |extent: usize, axis: Axis| {
        let parts = strategy.extent(axis);
        extent.div_ceil(parts) as f64 / extent.max(1) as f64
    };
    let samples = batch.div_ceil(strategy.extent(Axis::Data)) as f64;
    let layers = count(graph).layers;
    let flops: f64 = layers
        .iter()
        .map(|layer| {
            let [d, h, w] = layer.shape.extent;
            let own = share(d, Axis::Depth) * share(h, Axis::Height) * share(w, Axis::Width);
            layer.executed_flops.0 as f64 * samples * own
        })
        .sum();
    // Rounding must not lift the bound above what is computed.
    Flops((flops * (1.0 - 1e-9)) as u64)
}
