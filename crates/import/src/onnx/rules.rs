//! Functions that exporters write as several nodes.

use super::node::{Stop, View};
use super::tensors::Held;
use crate::network::{Call, Operation};
use partita_graph::Activation;

/// The function whose product with its own input a product is, as `x * sigmoid(x)`.
pub(super) fn gated(node: &View<'_, '_>, function: usize, other: usize) -> Option<Operation> {
    let call = node.reader.producer(node.name(function)?)?;
    let input = node.name(other)?;
    let reads = call.inputs.first().and_then(Option::as_deref) == Some(input);
    match call.operation {
        Ok(Operation::Activation(Activation::Sigmoid)) if reads => {
            Some(Operation::Activation(Activation::Silu))
        }
        _ => None,
    }
}

/// The GELU that a product with 0.5 ends, and its input: `0.5 x (1 + erf(x / sqrt(2)))`, in any order of factors.
pub(super) fn gelu(
    node: &View<'_, '_>,
    other: usize,
    held: &Held,
    is_product: bool,
) -> Result<Option<(Operation, String)>, Stop> {
    if held.volume() != 1 {
        return Ok(None);
    }
    let number = node.values(held)?[0];
    let is_half = number.to_bits() == if is_product { 0.5f64 } else { 2.0 }.to_bits();
    if !is_half {
        return Ok(None);
    }
    let Some(product) = node.name(other).and_then(|name| node.reader.producer(name)) else {
        return Ok(None);
    };
    if product.operator != "Mul" {
        return Ok(None);
    }
    for (first, second) in [(0, 1), (1, 0)] {
        let (Some(Some(x)), Some(Some(gate))) =
            (product.inputs.get(first), product.inputs.get(second))
        else {
            continue;
        };
        if is_gate(node, x, gate)? {
            let operation = Operation::Activation(Activation::Gelu);
            return Ok(Some((operation, x.clone())));
        }
    }
    Ok(None)
}

/// Whether a value is `1 + erf(x / sqrt(2))`.
fn is_gate(node: &View<'_, '_>, x: &str, gate: &str) -> Result<bool, Stop> {
    let reader = node.reader;
    let Some((erf, one)) = reader.with_number(gate, "Add")? else {
        return Ok(false);
    };
    let Some(function) = reader.producer(&erf).filter(|call| call.operator == "Erf") else {
        return Ok(false);
    };
    let Some(scaled) = first(function) else {
        return Ok(false);
    };
    let root = std::f64::consts::SQRT_2;
    let is_near = |found: f64, number: f64| (found - number).abs() < 1e-6;
    let quotient = reader.with_number(scaled, "Div")?;
    let product = reader.with_number(scaled, "Mul")?;
    let is_scaled = quotient.is_some_and(|(input, by)| input == x && is_near(by, root))
        || product.is_some_and(|(input, by)| input == x && is_near(by, root.recip()));
    Ok(is_near(one, 1.0) && is_scaled)
}

fn first(call: &Call) -> Option<&str> {
    call.inputs.first()?.as_deref()
}
