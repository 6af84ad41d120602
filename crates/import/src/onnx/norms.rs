//! Normalizations.

use super::node::{Stop, View, stop};
use super::steps::{Made, Source, held, is_all, one, parameter, value};
use crate::network::Operation;

/// A normalization with its parameters.
pub(super) fn norm(node: &View<'_, '_>) -> Made {
    let extents = node.extents(0)?;
    let epsilon = node.float("epsilon", 1e-5)?;
    let outputs = node.node.output.iter().skip(1);
    let has_more = outputs.filter(|name| !name.is_empty()).count() > 0;
    let operator = node.operator();
    if has_more && operator != "BatchNormalization" {
        return stop("the statistics of a normalization are not read");
    }
    let operation = match operator {
        "BatchNormalization" => return batch_norm(node, epsilon, extents),
        "LayerNormalization" | "RMSNormalization" => {
            let axis = node.dim(node.int("axis", -1)?, extents.len())?;
            let dims = extents.len() - axis;
            Operation::LayerNorm {
                dims,
                epsilon,
                centers: operator == "LayerNormalization",
            }
        }
        "InstanceNormalization" => Operation::GroupNorm {
            groups: None,
            epsilon,
        },
        _ => {
            let groups = usize::try_from(node.int("num_groups", 0)?).unwrap_or(0);
            if groups == 0 {
                return stop("it has no num_groups");
            }
            Operation::GroupNorm {
                groups: Some(groups),
                epsilon,
            }
        }
    };
    let inputs = vec![
        value(node, 0)?,
        affine(node, 1, 1.0)?,
        affine(node, 2, 0.0)?,
    ];
    let channels = match operation {
        Operation::LayerNorm { .. } => extents.last(),
        _ => extents.get(1),
    };
    for input in &inputs {
        if let Source::Parameter(held) = input
            && channels.is_none_or(|&channels| held.shape != [channels])
        {
            return stop("its scale or bias is no number per channel");
        }
    }
    one(node, operation, inputs, extents)
}

/// A scale or shift; none where it is left out or a constant that does nothing.
fn affine(node: &View<'_, '_>, index: usize, neutral: f64) -> Result<Source, Stop> {
    match held(node, index)? {
        Some(held) if !is_all(node, held, neutral)? => Ok(parameter(held.clone())),
        Some(_) | None => Ok(Source::Nothing),
    }
}

fn batch_norm(node: &View<'_, '_>, epsilon: f64, extents: Vec<usize>) -> Made {
    // ONNX weighs the old value, and PyTorch the new one.
    let momentum = ((1.0 - node.float("momentum", 0.9)?) * 1e9).round() / 1e9;
    let is_training = node.flag("training_mode", false)?;
    if node.reader.is_training && !is_training {
        return stop(
            "a batch norm in evaluation mode within a network in training mode is not read; export it in training \
             mode, and freeze it in the run file",
        );
    }
    // In training mode the new statistics are outputs, which belong to a training.
    let mut inputs = vec![
        value(node, 0)?,
        affine(node, 1, 1.0)?,
        affine(node, 2, 0.0)?,
    ];
    for index in [3, 4] {
        match held(node, index)? {
            Some(held) => inputs.push(parameter(held.clone())),
            None => return stop("it has no running statistics"),
        }
    }
    let channels = extents.get(1).copied().unwrap_or(0);
    for input in &inputs {
        if let Source::Parameter(held) = input
            && held.shape != [channels]
        {
            return stop("its parameters are no number per channel");
        }
    }
    one(
        node,
        Operation::BatchNorm { epsilon, momentum },
        inputs,
        extents,
    )
}

/// The group norm that a reshape ends, as exporters write it: channels of a group joined with space, an instance norm
/// without scale and shift, and back.
pub(super) fn grouped(node: &View<'_, '_>, to: &[usize]) -> Option<(Operation, String)> {
    let norm = node.reader.producer(node.name(0)?)?;
    let Ok(Operation::GroupNorm {
        groups: None,
        epsilon,
    }) = norm.operation
    else {
        return None;
    };
    let [Some(joined), None, None] = &norm.inputs[..] else {
        return None;
    };
    let join = node.reader.producer(joined)?;
    let (Ok(Operation::Reshape), Some(input)) = (&join.operation, join.inputs[0].as_ref()) else {
        return None;
    };
    let shapes = &node.reader.network.shapes;
    let (joined, input_shape) = (shapes.get(joined)?, shapes.get(input)?);
    let (&[samples, groups, ..], &[first, channels, ..]) = (&joined[..], to) else {
        return None;
    };
    let is_group = groups > 0 && channels % groups == 0 && samples == first && input_shape == to;
    let operation = Operation::GroupNorm {
        groups: Some(groups),
        epsilon,
    };
    is_group.then(|| (operation, input.clone()))
}
