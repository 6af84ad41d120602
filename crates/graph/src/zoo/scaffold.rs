//! The U-Net of ScaFFold, a benchmark whose network deepens with its volumes.

use super::network::{Defaults, Network, Start, window};
use crate::{ClassLoss, ClassWeights, Graph, GraphError, Loss, NodeId};

/// Sides of the cubic volume: scales 5 to 11, of which 11 is the official task.
pub(super) const SIZES: [usize; 7] = [32, 64, 128, 256, 512, 1024, 2048];

/// The side of the lowest level.
const BOTTOM: usize = 8;
/// Colors of a voxel.
const CHANNELS: usize = 3;
/// Filters of the first level; each level below has twice those of the one above.
const FILTERS: usize = 64;
/// Groups of group norms.
const GROUPS: usize = 8;
/// Five categories of fractals, and the background.
const CLASSES: usize = 6;
const DEFAULTS: Defaults = Defaults {
    weights: Start::FanIn,
    biases: None,
    epsilon: 1e-5,
    momentum: 0.1,
};

/// The U-Net for volumes of this side, for six classes per voxel of three channels.
///
/// `log2(size) - 3` levels of two 3x3x3 convolutions without bias, each with group norm and ReLU, and a 2x2x2 maximum
/// pooling, down to 8^3; up by transposed 2x2x2 convolutions of stride 2 with bias to half the channels, the
/// concatenation with the features of the way down, two convolutions. At the end a 1x1x1 convolution with bias.
///
/// The loss is that of the benchmark, cross-entropy with weights of classes plus Dice of the foreground. It weighs all
/// foreground alike by its frequency; here each class is weighed by its own.
/// Source: LBANN/ScaFFold (llnl/benchmarks, 2026).
pub(super) fn build(name: &str, size: usize) -> Result<Graph, GraphError> {
    let (mut net, mut last) = Network::new(name, &[size; 3], CHANNELS, DEFAULTS)?;
    let levels = (size / BOTTOM).ilog2() as usize;
    let mut skipped = Vec::with_capacity(levels);
    for level in 0..levels {
        let number = level + 1;
        last = add_pair(&mut net, &format!("down{number}"), last, FILTERS << level)?;
        skipped.push(last);
        last = net.max_pool(&format!("pool{number}"), last, window(2, 2, 0))?;
    }
    last = add_pair(&mut net, "bottom", last, FILTERS << levels)?;
    for (i, skip) in skipped.into_iter().rev().enumerate() {
        let level = format!("up{}", i + 1);
        let width = net.channels(skip);
        net.set_biases(Some(Start::FanIn));
        last = net.upsampling(&format!("{level}.deconv"), last, width)?;
        net.set_biases(None);
        last = net.concat(&format!("{level}.concat"), &[skip, last])?;
        last = add_pair(&mut net, &level, last, width)?;
    }
    net.set_biases(Some(Start::FanIn));
    last = net.conv("head", last, CLASSES, window(1, 1, 0))?;
    net.finish(last, loss())
}

fn loss() -> Loss {
    Loss::Classes(ClassLoss {
        dice: 1.0,
        smooth: 1e-6,
        background: false,
        weights: ClassWeights::InverseFrequency(Vec::new()),
        dice_weights: Some(ClassWeights::ONES),
        ..ClassLoss::CROSS_ENTROPY
    })
}

fn add_pair(
    net: &mut Network,
    block: &str,
    mut last: NodeId,
    filters: usize,
) -> Result<NodeId, GraphError> {
    for number in 1..=2 {
        let name = |what: &str| format!("{block}.{what}{number}");
        last = net.conv(&name("conv"), last, filters, window(3, 1, 1))?;
        last = net.group_norm(&name("norm"), last, GROUPS)?;
        last = net.relu(&name("relu"), last)?;
    }
    Ok(last)
}
