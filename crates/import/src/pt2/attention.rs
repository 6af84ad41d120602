//! Products of two tensors, and attention.

use super::operators::{Arguments, Translated, tensors_of};
use crate::network::Operation;
use crate::pt2::schema::Argument;

/// `einsum`, `matmul`, `bmm` and `scaled_dot_product_attention`.
pub(super) fn products(call: &Arguments<'_>) -> Option<Translated> {
    let base = call.name().0;
    Some(match base {
        "einsum" => einsum(call),
        "matmul" | "bmm" => product(base, call),
        "scaled_dot_product_attention" => attention(call),
        _ => return None,
    })
}

fn einsum(call: &Arguments<'_>) -> Translated {
    let tensors = call.find("tensors").into_iter();
    let inputs: Vec<Option<String>> = tensors_of(tensors).into_iter().map(Some).collect();
    let Some(Argument::AsString(equation)) = call.find("equation") else {
        return Err("its equation is not read".into());
    };
    match Operation::einsum(equation)? {
        operation if inputs.len() == 2 => Ok((operation, inputs)),
        _ => Err("a product of other than two tensors is not read".into()),
    }
}

fn product(base: &str, call: &Arguments<'_>) -> Translated {
    let other = if base == "bmm" { "mat2" } else { "other" };
    let operation = Operation::matrices(call.dims_of_input())?;
    Ok((operation, call.tensors(&["self", other])))
}

fn attention(call: &Arguments<'_>) -> Translated {
    if !call.has_scalar("dropout_p", 0.0)? {
        return Err("dropout of attention weights is not read; set it to 0".into());
    }
    if call.flag("enable_gqa", false)? {
        return Err("attention with shared keys is not read".into());
    }
    let operation = Operation::Attention {
        causal: call.flag("is_causal", false)?,
        scale: match call.find("scale") {
            Some(_) => Some(call.number("scale", 1.0)?),
            None => None,
        },
    };
    Ok((
        operation,
        call.tensors(&["query", "key", "value", "attn_mask"]),
    ))
}
