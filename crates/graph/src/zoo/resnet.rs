//! ResNet as torchvision has it.

use super::network::{Defaults, Network, Start, window};
use crate::{Graph, GraphError, Initialization, NodeId};

/// Sides of the image: those whose features average to one position.
pub(super) const SIZES: [usize; 7] = [32, 64, 128, 224, 256, 512, 1024];

/// Filters of the 3x3 convolutions, per stage.
const WIDTHS: [usize; 4] = [64, 128, 256, 512];
const DEFAULTS: Defaults = Defaults {
    weights: Start::As(Initialization::HeNormalFanOut),
    biases: None,
    epsilon: 1e-5,
    momentum: 0.1,
};

/// What lies between two additions.
#[derive(Clone, Copy)]
pub(super) enum Block {
    /// Two 3x3 convolutions.
    Basic,
    /// A 1x1, a 3x3 and a 1x1 convolution of four times the filters.
    Bottleneck,
}

/// A ResNet for 1000 classes of RGB images with this many blocks per stage, as torchvision has it: a
/// bottleneck has its stride at the 3x3 convolution. Layers have its names.
///
/// Source: He et al., "Deep residual learning for image recognition", CVPR 2016, table 1; torchvision
/// 0.29.2, `resnet.py`.
pub(super) fn build(
    name: &str,
    size: usize,
    block: Block,
    blocks: [usize; 4],
) -> Result<Graph, GraphError> {
    let (mut net, mut last) = Network::new(name, &[size; 2], 3, DEFAULTS)?;
    last = net.conv("conv1", last, WIDTHS[0], window(7, 2, 3))?;
    last = net.norm_relu("bn1", "relu", last)?;
    last = net.max_pool("maxpool", last, window(3, 2, 1))?;
    for (stage, (width, blocks)) in WIDTHS.into_iter().zip(blocks).enumerate() {
        for i in 0..blocks {
            let stride = if stage > 0 && i == 0 { 2 } else { 1 };
            let layer = format!("layer{}.{i}", stage + 1);
            last = add_block(&mut net, &layer, last, block, width, stride)?;
        }
    }
    last = net.global_average("avgpool", last)?;
    last = net.flatten("flatten", last)?;
    last = net.linear("fc", last, 1000, Start::FanIn, Start::FanIn)?;
    net.classify(last)
}

fn add_block(
    net: &mut Network,
    layer: &str,
    input: NodeId,
    block: Block,
    width: usize,
    stride: usize,
) -> Result<NodeId, GraphError> {
    let (filters, windows): (usize, &[_]) = match block {
        Block::Basic => (width, &[window(3, stride, 1), window(3, 1, 1)]),
        Block::Bottleneck => (
            4 * width,
            &[window(1, 1, 0), window(3, stride, 1), window(1, 1, 0)],
        ),
    };
    let mut last = input;
    for (i, &shape) in windows.iter().enumerate() {
        let number = i + 1;
        let is_last = number == windows.len();
        let filters = if is_last { filters } else { width };
        last = net.conv(&format!("{layer}.conv{number}"), last, filters, shape)?;
        last = net.norm(&format!("{layer}.bn{number}"), last)?;
        if !is_last {
            last = net.relu(&format!("{layer}.relu{number}"), last)?;
        }
    }
    let mut identity = input;
    if stride != 1 || net.channels(input) != filters {
        let name = format!("{layer}.downsample");
        identity = net.conv(&format!("{name}.0"), input, filters, window(1, stride, 0))?;
        identity = net.norm(&format!("{name}.1"), identity)?;
    }
    last = net.add(&format!("{layer}.add"), last, identity)?;
    net.relu(&format!("{layer}.relu"), last)
}
