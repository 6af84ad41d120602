//! Sums and products.

use super::fold::broadcast;
use super::layers::per_channel;
use super::node::{Stop, View, stop};
use super::steps::{Made, Source, Step, held, is_all, one, parameter, same, value};
use super::tensors::Held;
use crate::network::Operation;
use partita_graph::Activation;

/// A sum of tensors, or of a layer and its bias.
pub(super) fn sum(node: &View<'_, '_>) -> Made {
    if let Some(index) = (0..node.count()).find(|&index| node.held(index).is_some()) {
        if node.count() != 2 {
            return stop("a sum with a parameter is not read");
        }
        let shift = |shift| Activation::Affine { scale: 1.0, shift };
        return match shifted(node, index) {
            Ok(steps) => Ok(steps),
            Err(fault) => with_number(node, index, shift)?.ok_or(fault),
        };
    }
    let extents: Vec<Vec<usize>> = (0..node.count())
        .map(|index| node.extents(index))
        .collect::<Result<_, _>>()?;
    let all: Vec<&[usize]> = extents.iter().map(Vec::as_slice).collect();
    let to = broadcast(&all)?;
    if node.count() == 1 {
        return same(node, Operation::Identity);
    }
    let mut steps: Vec<Step> = Vec::new();
    let mut left = value(node, 0)?;
    for index in 1..node.count() {
        let is_last = index + 1 == node.count();
        let name = if is_last {
            node.output().to_owned()
        } else {
            format!("{}[{index}]", node.output())
        };
        steps.push(Step {
            operation: Operation::Add,
            inputs: vec![left, value(node, index)?],
            outputs: vec![(name.clone(), to.clone())],
        });
        left = Source::Value(name);
    }
    if steps.is_empty() {
        return stop("it reads nothing");
    }
    Ok(steps)
}

/// A sum with a parameter: the bias of the layer before, or nothing.
fn shifted(node: &View<'_, '_>, index: usize) -> Made {
    let other = 1 - index;
    let extents = node.extents(other)?;
    let Some(held) = held(node, index)? else {
        return stop("it reads nothing");
    };
    let is_constant = held.is_constant || held.volume() == 1;
    if is_constant && is_all(node, held, 0.0)? && broadcast(&[&extents, &held.shape])? == extents {
        return one(
            node,
            Operation::Identity,
            vec![value(node, other)?],
            extents,
        );
    }
    let before = node.name(other).and_then(|name| node.reader.producer(name));
    if let Some(call) = before {
        let mut inputs = node.reader.sources(call);
        let bias = match (&call.operation, inputs.get(2)) {
            (Ok(Operation::Linear), Some(Source::Nothing)) => {
                let features = extents.last().copied().unwrap_or(0);
                let is_last = held.shape.last() == Some(&features) && held.volume() == features;
                held.reshaped(&[features]).filter(|_| is_last)
            }
            (
                Ok(
                    Operation::GroupNorm { .. }
                    | Operation::Convolution { .. }
                    | Operation::TransposedConvolution { .. },
                ),
                Some(Source::Nothing),
            ) => per_channel(held, &extents),
            _ => None,
        };
        if let (Some(bias), Ok(operation)) = (bias, &call.operation) {
            inputs[2] = parameter(bias);
            return one(node, operation.clone(), inputs, extents);
        }
    }
    if let ([1, rows @ ..], [_, positions @ ..]) = (&held.shape[..], &extents[..])
        && rows == positions
        && rows.len() == 2
    {
        let inputs = vec![value(node, other)?, parameter(held.clone())];
        return one(node, Operation::Add, inputs, extents);
    }
    stop(
        "a sum with a parameter or a constant is not read, unless it is the bias of the layer before or has a row for \
         each position",
    )
}

/// A difference of tensors, or of a tensor and a number.
pub(super) fn without(node: &View<'_, '_>) -> Made {
    if let (Some(held), None) = (node.held(1), node.held(0))
        && is_all(node, held, 0.0)?
    {
        return same(node, Operation::Identity);
    }
    let constant = (0..2).find(|&index| node.held(index).is_some());
    let Some(index) = constant else {
        let to = broadcast(&[&node.extents(0)?, &node.extents(1)?])?;
        let inputs = vec![value(node, 0)?, value(node, 1)?];
        return one(node, Operation::Subtract { factor: 1.0 }, inputs, to);
    };
    let signs = if index == 0 { [-1.0, 1.0] } else { [1.0, -1.0] };
    match with_number(node, index, |number| Activation::Affine {
        scale: signs[0],
        shift: signs[1] * number,
    })? {
        Some(steps) => Ok(steps),
        None => stop("a difference with a parameter is not read"),
    }
}

/// The larger or smaller of two tensors, or of a tensor and a number.
pub(super) fn extreme(node: &View<'_, '_>, is_maximum: bool) -> Made {
    if node.count() != 2 {
        return stop("only of two tensors, or of a tensor and a number, it is read");
    }
    let Some(index) = (0..2).find(|&index| node.held(index).is_some()) else {
        let to = broadcast(&[&node.extents(0)?, &node.extents(1)?])?;
        let inputs = vec![value(node, 0)?, value(node, 1)?];
        return one(node, Operation::Extreme { is_maximum }, inputs, to);
    };
    let [least, most] = [f32::MIN, f32::MAX].map(f64::from);
    match with_number(node, index, |number| {
        let (low, high) = if is_maximum {
            (number, most)
        } else {
            (least, number)
        };
        Activation::Clamp { low, high }
    })? {
        Some(steps) => Ok(steps),
        None => stop("a maximum or minimum with a parameter is not read"),
    }
}

/// A function of a tensor and the number that input `index` is; none where that is no number.
fn with_number(
    node: &View<'_, '_>,
    index: usize,
    function: impl FnOnce(f64) -> Activation,
) -> Result<Option<Vec<Step>>, Stop> {
    let extents = node.extents(1 - index)?;
    let Some(held) = held(node, index)? else {
        return Ok(None);
    };
    if broadcast(&[&extents, &held.shape])? != extents {
        return Ok(None);
    }
    let Some(number) = number(node, held)? else {
        return Ok(None);
    };
    let inputs = vec![value(node, 1 - index)?];
    one(
        node,
        Operation::Activation(function(number)),
        inputs,
        extents,
    )
    .map(Some)
}

/// The number that a tensor is, if it is no parameter.
fn number(node: &View<'_, '_>, held: &Held) -> Result<Option<f64>, Stop> {
    // PyTorch's exporter keeps numbers of the module's code under these names; others may be trained.
    let is_number = ["scalar_tensor_default", "val_"]
        .iter()
        .any(|name| held.name.starts_with(name));
    if held.volume() != 1 || !(held.is_constant || is_number) {
        return Ok(None);
    }
    let found = node.values(held)?.first().copied();
    Ok(found.filter(|number| number.is_finite()))
}

/// A product of tensors, or with a parameter.
pub(super) fn product(node: &View<'_, '_>) -> Made {
    let is_product = node.operator() == "Mul";
    let constant = (0..2).find(|&index| node.held(index).is_some());
    if let Some(index) = constant.filter(|&index| is_product || index == 1) {
        return scaled(node, index, is_product);
    }
    if !is_product {
        return stop("a quotient of tensors is not read");
    }
    let (first, second) = (node.extents(0)?, node.extents(1)?);
    let to = broadcast(&[&first, &second])?;
    for (function, other) in [(0, 1), (1, 0)] {
        if let Some(operation) = super::rules::gated(node, function, other) {
            return one(node, operation, vec![value(node, other)?], to);
        }
    }
    let inputs = vec![value(node, 0)?, value(node, 1)?];
    one(node, Operation::Multiply, inputs, to)
}

/// A product with a parameter, or a quotient by it.
fn scaled(node: &View<'_, '_>, index: usize, is_product: bool) -> Made {
    let other = 1 - index;
    let Some(held) = held(node, index)? else {
        return stop("it reads nothing");
    };
    if let Some((operation, name)) = super::rules::gelu(node, other, held, is_product)? {
        let extents = node.reader.network.shapes.get(&name);
        let extents = extents.cloned().ok_or(Stop::Follows)?;
        return one(node, operation, vec![Source::Value(name)], extents);
    }
    let extents = node.extents(other)?;
    let fits = broadcast(&[&extents, &held.shape])? == extents;
    let is_constant = held.is_constant || held.volume() == 1;
    if fits && is_constant && is_all(node, held, 1.0)? {
        return one(
            node,
            Operation::Identity,
            vec![value(node, other)?],
            extents,
        );
    }
    let before = node.name(other).and_then(|name| node.reader.producer(name));
    if let (Some(call), true) = (before, is_product)
        && let Ok(operation @ Operation::GroupNorm { .. }) = &call.operation
    {
        let mut inputs = node.reader.sources(call);
        let is_plain = matches!(inputs[..], [_, Source::Nothing, Source::Nothing]);
        if let (true, Some(scale)) = (is_plain, per_channel(held, &extents)) {
            inputs[1] = parameter(scale);
            return one(node, operation.clone(), inputs, extents);
        }
    }
    if fits && let Some(number) = number(node, held)? {
        let scale = if is_product { number } else { 1.0 / number };
        let function = Activation::Affine { scale, shift: 0.0 };
        if scale.is_finite() {
            let inputs = vec![value(node, other)?];
            return one(node, Operation::Activation(function), inputs, extents);
        }
    }
    if !is_product || held.volume() == 1 || !fits {
        return stop("a product with a number is not read");
    }
    let inputs = vec![value(node, other)?, parameter(held.clone())];
    one(node, Operation::Multiply, inputs, extents)
}
