//! ResNet with pre-activation, as the Keras example has it.

use super::network::{Defaults, Network, Start, window};
use crate::{Graph, GraphError, Initialization, NodeId};

/// Sides of the image: CIFAR's, and larger ones.
pub(super) const SIZES: [usize; 10] = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

/// Filters of the first convolution.
const FIRST: usize = 16;
/// Filters of the inner convolutions of a block and of its last, per stage.
const WIDTHS: [(usize, usize); 3] = [(16, 64), (64, 128), (128, 256)];
const CLASSES: usize = 10;
/// The original draws He's normal distribution cut at two deviations.
const HE: Start = Start::As(Initialization::HeNormal);
const DEFAULTS: Defaults = Defaults {
    weights: HE,
    biases: Some(Start::ZERO),
    epsilon: 1e-3,
    momentum: 0.01,
};

/// A pre-activation ResNet of `depth = 9 n + 2` layers for ten classes of RGB images, as the Keras
/// example has it: three stages of n blocks, a block being 1x1, 3x3 and 1x1 convolutions with batch
/// norm and ReLU before each, all with bias. Its second and third stage are wider than the paper's
/// (1001 layers: 30 million parameters, the paper has 10 million). The average pooling is over all
/// positions at every size, as it is at 32.
///
/// Source: He et al., "Identity mappings in deep residual networks", ECCV 2016; Keras,
/// `examples/cifar10_resnet.py`, `resnet_v2`.
pub(super) fn build(name: &str, size: usize, depth: usize) -> Result<Graph, GraphError> {
    let (mut net, mut last) = Network::new(name, &[size; 2], 3, DEFAULTS)?;
    last = net.conv("conv1", last, FIRST, window(3, 1, 1))?;
    last = net.norm_relu("bn1", "relu1", last)?;
    for (stage, (width, filters)) in WIDTHS.into_iter().enumerate() {
        for i in 0..(depth - 2) / 9 {
            let index = BlockIndex { stage, block: i };
            last = add_block(&mut net, index, last, width, filters)?;
        }
    }
    last = net.norm_relu("bn2", "relu2", last)?;
    last = net.global_average("avgpool", last)?;
    last = net.flatten("flatten", last)?;
    last = net.linear("fc", last, CLASSES, HE, Start::ZERO)?;
    net.classify(last)
}

/// Stage and index of a block in it, from 0.
#[derive(Clone, Copy)]
struct BlockIndex {
    stage: usize,
    block: usize,
}

fn add_block(
    net: &mut Network,
    index: BlockIndex,
    input: NodeId,
    width: usize,
    filters: usize,
) -> Result<NodeId, GraphError> {
    let BlockIndex { stage, block } = index;
    let stride = if stage > 0 && block == 0 { 2 } else { 1 };
    let name = |what: &str| format!("stage{stage}.block{block}.{what}");
    let mut last = input;
    // The first convolution has the batch norm and the ReLU of the very first layer before it.
    if stage > 0 || block > 0 {
        last = net.norm_relu(&name("bn1"), &name("relu1"), last)?;
    }
    last = net.conv(&name("conv1"), last, width, window(1, stride, 0))?;
    last = net.norm_relu(&name("bn2"), &name("relu2"), last)?;
    last = net.conv(&name("conv2"), last, width, window(3, 1, 1))?;
    last = net.norm_relu(&name("bn3"), &name("relu3"), last)?;
    last = net.conv(&name("conv3"), last, filters, window(1, 1, 0))?;
    let mut identity = input;
    if block == 0 {
        identity = net.conv(&name("shortcut"), input, filters, window(1, stride, 0))?;
    }
    net.add(&name("add"), identity, last)
}
