//! 3D U-Net as LBANN has it.

use super::network::{Defaults, Network, Start, window};
use crate::{Graph, GraphError, Initialization, NodeId};

/// Sides of the cubic volume.
pub(super) const SIZES: [usize; 4] = [32, 64, 128, 256];

/// Filters of the two convolutions on the way down, per level.
const DOWN: [[usize; 2]; 3] = [[32, 64], [64, 128], [128, 256]];
const BOTTOM: [usize; 2] = [256, 512];
const CLASSES: usize = 3;
const DEFAULTS: Defaults = Defaults {
    weights: Start::As(Initialization::HeNormal),
    biases: None,
    epsilon: 1e-5,
    momentum: 0.1,
};

/// 3D U-Net for three classes per voxel of volumes with one channel.
///
/// Three levels of two 3x3x3 convolutions with batch norm and ReLU and a 2x2x2 maximum pooling, the
/// bottom, and three levels up: a 2x2x2 transposed convolution of stride 2, the concatenation with the
/// features of the way down, two convolutions. At the end a 1x1x1 convolution and the cross-entropy of
/// the softmax over the channels at each voxel. Padding keeps the extents; nothing has a bias.
/// Source: Oyama et al., "The Case for Strong Scaling in Deep Learning: Training Large 3D CNNs with
/// Hybrid Parallelism", section on 3D U-Net, which names 256, with the layers of LBANN's
/// `applications/segmentation/unet3d`; after Cicek et al., MICCAI 2016.
pub(super) fn build(name: &str, size: usize) -> Result<Graph, GraphError> {
    let (mut net, mut last) = Network::new(name, &[size; 3], 1, DEFAULTS)?;
    let mut skipped = Vec::new();
    for (i, filters) in DOWN.into_iter().enumerate() {
        let number = i + 1;
        last = add_pair(&mut net, &format!("down{number}"), last, filters)?;
        skipped.push(last);
        last = net.max_pool(&format!("pool{number}"), last, window(2, 2, 0))?;
    }
    last = add_pair(&mut net, "bottom", last, BOTTOM)?;
    for (i, skip) in skipped.into_iter().rev().enumerate() {
        let level = format!("up{}", i + 1);
        let filters = net.channels(last);
        last = net.upsampling(&format!("{level}.deconv"), last, filters)?;
        let width = net.channels(skip);
        last = net.concat(&format!("{level}.concat"), &[last, skip])?;
        last = add_pair(&mut net, &level, last, [width; 2])?;
    }
    last = net.conv("head", last, CLASSES, window(1, 1, 0))?;
    net.classify(last)
}

fn add_pair(
    net: &mut Network,
    block: &str,
    mut last: NodeId,
    filters: [usize; 2],
) -> Result<NodeId, GraphError> {
    for (i, filters) in filters.into_iter().enumerate() {
        let name = |what: &str| format!("{block}.{what}{}", i + 1);
        last = net.conv(&name("conv"), last, filters, window(3, 1, 1))?;
        last = net.norm_relu(&name("bn"), &name("relu"), last)?;
    }
    Ok(last)
}
