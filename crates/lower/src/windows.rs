//! Windows of layers along the dims of their tensors.

use crate::network::{Layer, Network};
use partita_graph::Op;
use partita_space::{Interval, Resampling, Window};

/// Inputs of a transposed convolution that contribute to a block of outputs, among those `within`; where none
/// does, the nearest one, so that the interval is not empty.
///
/// Example: kernel 2, stride 2: inputs 1 and 2 contribute to outputs 3 to 5.
pub(crate) fn contributors(window: &Window, outputs: &Interval, within: &Interval) -> Interval {
    let reached = window.outputs_of(outputs);
    let inside = reached.intersect(within);
    if outputs.is_empty() || within.is_empty() || !inside.is_empty() {
        return inside;
    }
    let nearest = reached.start.clamp(within.start, within.end - 1);
    Interval::new(nearest, nearest + 1)
}

/// The window of a transposed convolution along a dim of the tensor.
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

/// The map of a resampling along a dim of the tensor.
pub(crate) fn resampling(network: &Network, layer: &Layer, dim: usize) -> Option<Resampling> {
    let Some(Op::Resample(resample)) = layer.op() else {
        return None;
    };
    let spatial = dim.checked_sub(1).filter(|&spatial| spatial < 3)?;
    let shape = network.layer(layer.inputs[0]).distribution.shape;
    Some(resample.maps([shape[1], shape[2], shape[3]])[spatial])
}

pub(crate) fn is_periodic(layer: &Layer) -> bool {
    match layer.op() {
        Some(Op::Convolution(convolution)) => convolution.periodic,
        _ => false,
    }
}
