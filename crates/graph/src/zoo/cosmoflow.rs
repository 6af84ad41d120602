//! CosmoFlow as Oyama et al. extended it to larger volumes.

use crate::{Convolution, Graph, GraphBuilder, GraphError, Loss, NodeId, Pool, PoolKind};
use partita_space::Window;

/// Extents of the cubic input, per dim.
pub(super) const SIZES: [usize; 5] = [32, 64, 128, 256, 512];

const CHANNELS: usize = 4;
const FILTERS: [usize; 7] = [16, 32, 64, 128, 256, 256, 256];
/// The convolution with stride 2, counted from 1.
const STRIDED: usize = 4;
/// Pooling goes on down to this extent, so that every size ends at 2x2x2 positions.
const LAST_EXTENT: usize = 2;
const FEATURES: [usize; 3] = [2048, 256, 4];
const SLOPE: f64 = 0.01;
const DROPOUT: f64 = 0.2;
const EPSILON: f64 = 1e-5;
/// A decay of the running statistics of 0.999.
const MOMENTUM: f64 = 0.001;

/// CosmoFlow for regression of four parameters from four channels of `size` x `size` x `size`.
///
/// Seven 3x3x3 convolutions with "same" padding and without bias, the fourth of stride 2, each
/// followed by a leaky ReLU and, while the extent is above 2, by a 3x3x3 average pooling of
/// stride 2; then three linear layers without bias, each behind a dropout.
/// Source: Oyama et al., "The Case for Strong Scaling in Deep Learning: Training Large 3D CNNs with
/// Hybrid Parallelism", table 1, which lists 128, 256 and 512; 32 and 64 follow the same rule.
pub(super) fn build(name: &str, size: usize, batch_norm: bool) -> Result<Graph, GraphError> {
    let mut builder = GraphBuilder::new(name)?;
    let mut last = builder.input("x", &[size; 3], CHANNELS)?;
    for (i, filters) in FILTERS.into_iter().enumerate() {
        last = add_block(&mut builder, last, i + 1, filters, batch_norm)?;
    }
    last = builder.flatten("flatten", last)?;
    for (i, features) in FEATURES.into_iter().enumerate() {
        let number = i + 1;
        last = builder.dropout(&format!("drop{number}"), last, DROPOUT)?;
        last = builder.linear(&format!("fc{number}"), last, features, false)?;
        if number < FEATURES.len() {
            last = builder.leaky_relu(&format!("fc{number}_act"), last, SLOPE)?;
        }
    }
    builder.loss("loss", last, Loss::MeanSquaredError)?;
    builder.build()
}

fn add_block(
    builder: &mut GraphBuilder,
    input: NodeId,
    number: usize,
    filters: usize,
    batch_norm: bool,
) -> Result<NodeId, GraphError> {
    let window = |stride| Window {
        kernel: 3,
        stride,
        dilation: 1,
        pad_low: 1,
        pad_high: 1,
    };
    let convolution = Convolution {
        filters,
        window: [window(if number == STRIDED { 2 } else { 1 }); 3],
        periodic: false,
        groups: 1,
        bias: false,
    };
    let mut last = builder.convolution(&format!("conv{number}"), input, convolution)?;
    if batch_norm {
        last = builder.batch_norm(&format!("bn{number}"), last, EPSILON, MOMENTUM)?;
    }
    last = builder.leaky_relu(&format!("act{number}"), last, SLOPE)?;
    if builder.shape(last).extent[0] > LAST_EXTENT {
        let kind = PoolKind::AverageAll;
        let pool = Pool::new(kind, [window(2); 3]);
        last = builder.pool(&format!("pool{number}"), last, pool)?;
    }
    Ok(last)
}
