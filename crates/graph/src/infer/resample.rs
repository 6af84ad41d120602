//! Shapes of upsampling, padding, adaptive means and reshapes.

use super::{DIM_NAMES, MAX_NUMBER, in_range, number};
use crate::{GraphError, Interpolation, PadMode, Resample, Shape};

/// Shape of the output, after all checks.
pub(super) fn infer(
    node: &str,
    resample: &Resample,
    input: Shape,
    spatial_rank: usize,
) -> Result<Shape, GraphError> {
    for (i, dim) in DIM_NAMES.into_iter().enumerate() {
        let is_changed = check_dim(node, resample, (i, dim), input.extent[i])?;
        if i < 3 - spatial_rank && is_changed {
            return Err(GraphError::MissingDim {
                node: node.to_owned(),
                dim,
                spatial_rank,
            });
        }
    }
    Ok(Shape {
        extent: resample.output_extent(input.extent),
        channels: input.channels,
    })
}

/// Shape of a reshape, which keeps the number of positions.
pub(super) fn reshape(
    node: &str,
    extent: [usize; 3],
    input: Shape,
    spatial_rank: usize,
) -> Result<Shape, GraphError> {
    for (i, dim) in DIM_NAMES.into_iter().enumerate() {
        number(node, "extent", extent[i])?;
        if i < 3 - spatial_rank && extent[i] != 1 {
            return Err(GraphError::MissingDim {
                node: node.to_owned(),
                dim,
                spatial_rank,
            });
        }
    }
    let positions = |extent: [usize; 3]| extent.into_iter().fold(1, usize::saturating_mul);
    if positions(extent) == positions(input.extent) {
        return Ok(Shape { extent, ..input });
    }
    let [d, h, w] = extent;
    Err(GraphError::ReshapeExtent {
        node: node.to_owned(),
        asked: format!("{d}x{h}x{w}"),
        input,
        nearest: positions(input.extent),
    })
}

/// Whether it changes the dim.
fn check_dim(
    node: &str,
    resample: &Resample,
    (i, dim): (usize, &'static str),
    extent: usize,
) -> Result<bool, GraphError> {
    let is_unchanged = match resample {
        Resample::Upsample {
            factors,
            interpolation,
        } => {
            number(node, "factor", factors[i])?;
            if *interpolation
                == (Interpolation::Linear {
                    align_corners: true,
                })
            {
                check_corners(node, extent, factors[i])?;
            }
            factors[i] == 1
        }
        Resample::AdaptiveAverage { outputs } => {
            number(node, "output", outputs[i])?;
            number(node, "extent", extent)?;
            outputs[i] == 1
        }
        Resample::Pad { sides, mode } => {
            for pad in [sides[i].0, sides[i].1] {
                let ok = pad <= MAX_NUMBER;
                in_range(node, "pad", ok, pad, "0 to 2^31", MAX_NUMBER)?;
                if *mode == PadMode::Reflect && pad >= extent {
                    return Err(GraphError::ReflectPadding {
                        node: node.to_owned(),
                        dim,
                        asked: pad,
                        extent,
                        nearest: extent - 1,
                    });
                }
            }
            sides[i] == (0, 0)
        }
        Resample::Resize {
            outputs,
            interpolation: _,
        } => {
            number(node, "output", outputs[i])?;
            number(node, "extent", extent)?;
            outputs[i] == extent
        }
        Resample::Crop {
            starts,
            steps,
            outputs,
        } => {
            number(node, "output", outputs[i])?;
            number(node, "step", steps[i])?;
            let (start, step) = (starts[i], steps[i]);
            let nearest = extent.saturating_sub(1);
            in_range(
                node,
                "start",
                start < extent,
                start,
                "below the extent of the input",
                nearest,
            )?;
            let possible = 1 + (extent - 1 - start) / step;
            let ok = outputs[i] <= possible;
            let words = "as many as lie in the input from `start` on";
            in_range(node, "output", ok, outputs[i], words, possible)?;
            (start, step, outputs[i]) == (0, 1, extent)
        }
    };
    Ok(!is_unchanged)
}

/// Positions are fractions of these extents.
fn check_corners(node: &str, extent: usize, factor: usize) -> Result<(), GraphError> {
    number(node, "extent", extent)?;
    let ok = extent.saturating_mul(factor) <= MAX_NUMBER;
    let possible = "up to 2^31 outputs along a dim with align_corners=true";
    in_range(node, "factor", ok, factor, possible, MAX_NUMBER / extent)
}
