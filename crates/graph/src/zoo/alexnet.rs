//! AlexNet as torchvision has it.

use super::network::{Defaults, Network, Start, window};
use crate::{Graph, GraphError};

/// Sides of the image: those whose features average evenly to 6x6 positions.
pub(super) const SIZES: [usize; 5] = [224, 416, 608, 800, 992];

/// Index in the original, filters, kernel, stride and padding of the convolutions.
const CONVOLUTIONS: [(usize, usize, usize, usize, usize); 5] = [
    (0, 64, 11, 4, 2),
    (3, 192, 5, 1, 2),
    (6, 384, 3, 1, 1),
    (8, 256, 3, 1, 1),
    (10, 256, 3, 1, 1),
];
/// Convolutions after whose ReLU a pooling comes.
const POOLED: [usize; 3] = [0, 3, 10];
const DEFAULTS: Defaults = Defaults {
    weights: Start::FanIn,
    biases: Some(Start::FanIn),
    epsilon: 1e-5,
    momentum: 0.1,
};

/// AlexNet for 1000 classes of RGB images, as torchvision has it; layers have its names.
///
/// Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014;
/// torchvision 0.29.2, `alexnet.py`.
pub(super) fn build(name: &str, size: usize) -> Result<Graph, GraphError> {
    let (mut net, mut last) = Network::new(name, &[size; 2], 3, DEFAULTS)?;
    for (i, filters, kernel, stride, pad) in CONVOLUTIONS {
        let shape = window(kernel, stride, pad);
        last = net.conv(&format!("features.{i}"), last, filters, shape)?;
        last = net.relu(&format!("features.{}", i + 1), last)?;
        if POOLED.contains(&i) {
            last = net.max_pool(&format!("features.{}", i + 2), last, window(3, 2, 0))?;
        }
    }
    last = net.adaptive_average("avgpool", last, 6)?;
    last = net.flatten("flatten", last)?;
    for (i, features) in [(1, 4096), (4, 4096)] {
        last = net.dropout(&format!("classifier.{}", i - 1), last, 0.5)?;
        let name = format!("classifier.{i}");
        last = net.linear(&name, last, features, Start::FanIn, Start::FanIn)?;
        last = net.relu(&format!("classifier.{}", i + 1), last)?;
    }
    last = net.linear("classifier.6", last, 1000, Start::FanIn, Start::FanIn)?;
    net.classify(last)
}
