//! VGG16 as torchvision has it.

use super::network::{Defaults, Network, Start, window};
use crate::{Graph, GraphError, Initialization};

/// Sides of the image: those whose features average evenly to 7x7 positions.
pub(super) const SIZES: [usize; 4] = [224, 448, 896, 1792];

/// Filters of the convolutions between one pooling and the next.
const STAGES: [&[usize]; 5] = [&[64; 2], &[128; 2], &[256; 3], &[512; 3], &[512; 3]];
const DEFAULTS: Defaults = Defaults {
    weights: Start::As(Initialization::HeNormalFanOut),
    biases: Some(Start::ZERO),
    epsilon: 1e-5,
    momentum: 0.1,
};
const LINEAR: Start = Start::As(Initialization::Normal(0.01));

/// VGG16 for 1000 classes of RGB images, as torchvision has it (`vgg16` and `vgg16_bn`); layers have
/// its names.
///
/// Source: Simonyan and Zisserman, "Very deep convolutional networks for large-scale image
/// recognition", ICLR 2015, configuration D; torchvision 0.29.2, `vgg.py`.
pub(super) fn build(name: &str, size: usize, batch_norm: bool) -> Result<Graph, GraphError> {
    let (mut net, mut last) = Network::new(name, &[size; 2], 3, DEFAULTS)?;
    let mut indices = (0..).map(|index| format!("features.{index}"));
    let mut next = || indices.next().unwrap_or_default();
    for stage in STAGES {
        for &filters in stage {
            last = net.conv(&next(), last, filters, window(3, 1, 1))?;
            if batch_norm {
                last = net.norm(&next(), last)?;
            }
            last = net.relu(&next(), last)?;
        }
        last = net.max_pool(&next(), last, window(2, 2, 0))?;
    }
    last = net.adaptive_average("avgpool", last, 7)?;
    last = net.flatten("flatten", last)?;
    for i in [0, 3] {
        let name = format!("classifier.{i}");
        last = net.linear(&name, last, 4096, LINEAR, Start::ZERO)?;
        last = net.relu(&format!("classifier.{}", i + 1), last)?;
        last = net.dropout(&format!("classifier.{}", i + 2), last, 0.5)?;
    }
    last = net.linear("classifier.6", last, 1000, LINEAR, Start::ZERO)?;
    net.classify(last)
}
