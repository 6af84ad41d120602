//! DenseNet-121 as torchvision has it.

use super::network::{Defaults, Network, Start, window};
use crate::{Graph, GraphError, Initialization, NodeId};

/// Sides of the image: those whose features average to one position.
pub(super) const SIZES: [usize; 7] = [32, 64, 128, 224, 256, 512, 1024];

/// Layers per dense block.
const LAYERS: [usize; 4] = [6, 12, 24, 16];
/// Channels that a layer adds.
const GROWTH: usize = 32;
/// Filters of a layer's 1x1 convolution.
const BOTTLENECK: usize = 4 * GROWTH;
const DEFAULTS: Defaults = Defaults {
    weights: Start::As(Initialization::HeNormal),
    biases: None,
    epsilon: 1e-5,
    momentum: 0.1,
};

/// DenseNet-121 for 1000 classes of RGB images, as torchvision has it; layers have its names.
///
/// Source: Huang et al., "Densely connected convolutional networks", CVPR 2017, table 1; torchvision
/// 0.29.2, `densenet.py`.
pub(super) fn build(name: &str, size: usize) -> Result<Graph, GraphError> {
    let (mut net, mut last) = Network::new(name, &[size; 2], 3, DEFAULTS)?;
    last = net.conv("features.conv0", last, 2 * GROWTH, window(7, 2, 3))?;
    last = net.norm_relu("features.norm0", "features.relu0", last)?;
    last = net.max_pool("features.pool0", last, window(3, 2, 1))?;
    for (i, layers) in LAYERS.into_iter().enumerate() {
        let number = i + 1;
        last = add_dense_block(&mut net, number, last, layers)?;
        if number < LAYERS.len() {
            last = add_transition(&mut net, number, last)?;
        }
    }
    last = net.norm_relu("features.norm5", "relu", last)?;
    last = net.global_average("avgpool", last)?;
    last = net.flatten("flatten", last)?;
    last = net.linear("classifier", last, 1000, Start::FanIn, Start::ZERO)?;
    net.classify(last)
}

/// Layers that each read the concatenation of all before them, and at last the concatenation of all.
fn add_dense_block(
    net: &mut Network,
    number: usize,
    input: NodeId,
    layers: usize,
) -> Result<NodeId, GraphError> {
    let block = format!("features.denseblock{number}");
    let mut features = vec![input];
    for i in 1..=layers {
        let layer = format!("{block}.denselayer{i}");
        let all = match features.as_slice() {
            [only] => *only,
            several => net.concat(&format!("{layer}.concat"), several)?,
        };
        let name = |what: &str| format!("{layer}.{what}");
        let mut last = net.norm_relu(&name("norm1"), &name("relu1"), all)?;
        last = net.conv(&name("conv1"), last, BOTTLENECK, window(1, 1, 0))?;
        last = net.norm_relu(&name("norm2"), &name("relu2"), last)?;
        features.push(net.conv(&name("conv2"), last, GROWTH, window(3, 1, 1))?);
    }
    net.concat(&format!("{block}.concat"), &features)
}

/// Halves channels and extents.
fn add_transition(net: &mut Network, number: usize, input: NodeId) -> Result<NodeId, GraphError> {
    let name = |what: &str| format!("features.transition{number}.{what}");
    let mut last = net.norm_relu(&name("norm"), &name("relu"), input)?;
    last = net.conv(
        &name("conv"),
        last,
        net.channels(input) / 2,
        window(1, 1, 0),
    )?;
    net.average_pool(&name("pool"), last, window(2, 2, 0))
}
