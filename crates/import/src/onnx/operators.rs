//! ONNX's operators as operations.
//!
//! Source: ONNX, "Operator Schemas", opsets 13 to 28: names, order and defaults of inputs and attributes.

use super::arrange::{blocks, concat, element, pad, repeat, reshape, resize, slice, split};
use super::layers::{
    convolution, dropout, einsum, gemm, global, matmul, pool, prelu, reduce, transposed,
};
use super::node::{Stop, View, stop};
use super::steps::{Made, is_one, only, same};
use super::sums::{extreme, product, sum, without};
use crate::network::Operation;
use partita_graph::{Activation, PoolKind};

/// The operations of a node.
pub(super) fn translate(node: &View<'_, '_>) -> Made {
    if !node.node.domain.is_empty() && node.node.domain != "ai.onnx" {
        return stop(format!(
            "operators of the domain `{}` are not read",
            node.node.domain
        ));
    }
    if let Some(operation) = function(node)? {
        return same(node, operation);
    }
    match node.operator() {
        "Conv" => convolution(node),
        "ConvTranspose" => transposed(node),
        "Gemm" => gemm(node),
        "MatMul" => matmul(node),
        "Einsum" => einsum(node),
        "BatchNormalization"
        | "InstanceNormalization"
        | "GroupNormalization"
        | "LayerNormalization"
        | "RMSNormalization" => super::norms::norm(node),
        "PRelu" => prelu(node),
        "MaxPool" => pool(node, PoolKind::Max),
        "AveragePool" => {
            let count_padding = node.flag("count_include_pad", false)?;
            pool(node, PoolKind::average(count_padding))
        }
        "LpPool" if node.int("p", 2)? == 2 => pool(node, PoolKind::L2),
        "GlobalAveragePool" => global(node, PoolKind::AverageInside),
        "GlobalMaxPool" => global(node, PoolKind::Max),
        "GlobalLpPool" if node.int("p", 2)? == 2 => global(node, PoolKind::L2),
        "ReduceMean" => reduce(node, PoolKind::AverageInside),
        "ReduceMax" => reduce(node, PoolKind::Max),
        "Softmax" => {
            let rank = node.extents(0)?.len();
            let dim = node.dim(node.int("axis", -1)?, rank)?;
            same(node, Operation::Softmax { dim })
        }
        "Dropout" => dropout(node),
        "Add" | "Sum" => sum(node),
        "Mul" | "Div" => product(node),
        "Sub" => without(node),
        "Max" => extreme(node, true),
        "Min" => extreme(node, false),
        "Concat" => concat(node),
        "Resize" => resize(node),
        "Pad" => pad(node),
        "DepthToSpace" => blocks(node, true),
        "SpaceToDepth" => blocks(node, false),
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => reshape(node),
        "Transpose" => {
            let extents = node.extents(0)?;
            let order = node.order(extents.len())?;
            let to = order.iter().map(|&dim| extents[dim]).collect();
            only(node, Operation::Permute { order }, to)
        }
        "Expand" | "Tile" => repeat(node),
        "Slice" => slice(node),
        "Split" | "SplitToSequence" => split(node),
        "SequenceAt" => element(node),
        "Cast" | "CastLike" => match (node.element(0), node.cast_to()?) {
            (Some(from), Some(to)) if from == to => same(node, Operation::Identity),
            _ => stop("a change of the type of numbers is not read"),
        },
        "LpPool" | "GlobalLpPool" => stop("a norm of another order than 2 is not read"),
        _ => stop("no layer of Partita does this"),
    }
}

/// Functions of each element, which have no parameters. New ones are a line here.
fn function(node: &View<'_, '_>) -> Result<Option<Operation>, Stop> {
    let activation = |one| Ok(Some(Operation::Activation(one)));
    match node.operator() {
        "Identity" => Ok(Some(Operation::Identity)),
        "Relu" => Ok(Some(Operation::LeakyRelu { slope: 0.0 })),
        "LeakyRelu" => {
            let slope = node.float("alpha", 0.01)?;
            Ok(Some(Operation::LeakyRelu { slope }))
        }
        "Sigmoid" => activation(Activation::Sigmoid),
        "Tanh" => activation(Activation::Tanh),
        "Swish" if is_one(node.float("alpha", 1.0)?) => activation(Activation::Silu),
        "Elu" => activation(Activation::Elu {
            alpha: node.float("alpha", 1.0)?,
        }),
        "Gelu" => match node.text("approximate", "none").as_str() {
            "none" => activation(Activation::Gelu),
            _ => activation(Activation::GeluTanh),
        },
        "Clip" => {
            let low = node.scalar(1, f64::NEG_INFINITY)?;
            let high = node.scalar(2, f64::INFINITY)?;
            // Exporters write the largest number for none.
            let is_open = |limit: f64| limit.abs() >= f64::from(f32::MAX);
            match (low, high) {
                (low, high) if is_open(low) && is_open(high) => Ok(Some(Operation::Identity)),
                (0.0, high) if is_open(high) => Ok(Some(Operation::LeakyRelu { slope: 0.0 })),
                (low, high) if low < high && !is_open(low) && !is_open(high) => {
                    activation(Activation::Hardtanh { low, high })
                }
                (low, high) if low < high => activation(Activation::Clamp {
                    low: low.max(f64::from(f32::MIN)),
                    high: high.min(f64::from(f32::MAX)),
                }),
                _ => stop("a clip with nothing between its limits is not read"),
            }
        }
        "HardSwish" => activation(Activation::HardSwish),
        "Mish" => activation(Activation::Mish),
        "Softplus" => activation(Activation::Softplus { beta: 1.0 }),
        "HardSigmoid" => {
            let (alpha, beta) = (node.float("alpha", 0.2)?, node.float("beta", 0.5)?);
            // Files hold a sixth in single precision.
            let is_sixth = (alpha - 1.0 / 6.0).abs() < 1e-7;
            if !is_sixth || !is_one(2.0 * beta) {
                return stop("a hard sigmoid of another slope than 1/6 is not read");
            }
            activation(Activation::HardSigmoid)
        }
        _ => Ok(None),
    }
}
