//! Operations that nodes become, and what they read.

use super::node::{Stop, View, stop};
use super::tensors::{Held, is_real};
use crate::network::Operation;
use crate::strided::volume;

/// An operation with what it reads and makes.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) operation: Operation,
    pub(super) inputs: Vec<Source>,
    /// Names and extents.
    pub(super) outputs: Vec<(String, Vec<usize>)>,
}

/// What an operation reads.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Nothing,
    Value(String),
    Parameter(Box<Held>),
}

/// Steps of a node, most often one.
pub(super) type Made = Result<Vec<Step>, Stop>;

pub(super) fn is_one(value: f64) -> bool {
    (value - 1.0).abs() < f64::EPSILON
}

pub(super) fn value(node: &View<'_, '_>, index: usize) -> Result<Source, Stop> {
    match node.name(index) {
        Some(name) => Ok(Source::Value(name.to_owned())),
        None => stop(format!("it has no input {index}")),
    }
}

pub(super) fn parameter(held: Held) -> Source {
    Source::Parameter(Box::new(held))
}

/// A step of the first input alone.
pub(super) fn only(node: &View<'_, '_>, operation: Operation, extents: Vec<usize>) -> Made {
    one(node, operation, vec![value(node, 0)?], extents)
}

/// A step that keeps the extents of the first input.
pub(super) fn same(node: &View<'_, '_>, operation: Operation) -> Made {
    let extents = node.extents(0)?;
    only(node, operation, extents)
}

pub(super) fn one(
    node: &View<'_, '_>,
    operation: Operation,
    inputs: Vec<Source>,
    extents: Vec<usize>,
) -> Made {
    if volume(&extents).is_none_or(|count| count > 1 << 46) {
        return stop("its output has too many elements");
    }
    Ok(vec![Step {
        operation,
        inputs,
        outputs: vec![(node.output().to_owned(), extents)],
    }])
}

/// A parameter of a layer; none where it is left out.
pub(super) fn held<'r>(node: &View<'r, '_>, index: usize) -> Result<Option<&'r Held>, Stop> {
    let Some(name) = node.name(index) else {
        return Ok(None);
    };
    match node.held(index) {
        Some(held) if is_real(held.element) => Ok(Some(held)),
        Some(_) => stop(format!("its parameter `{name}` has whole numbers")),
        None if node.reader.unknown.contains(name) => Err(Stop::Follows),
        None => stop(format!(
            "its parameter `{name}` is computed, and an initializer is possible"
        )),
    }
}

/// Whether a tensor is a constant of one number. Initializers are parameters, whatever they hold, but those that
/// PyTorch's exporter has computed and numbered.
pub(super) fn is_all(node: &View<'_, '_>, held: &Held, number: f64) -> Result<bool, Stop> {
    let is_numbered = held
        .name
        .strip_prefix("val_")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()));
    if !(held.is_constant || is_numbered) {
        return Ok(false);
    }
    let values = node.values(held)?;
    Ok(values
        .iter()
        .all(|&one| one.to_bits() == number.to_bits() || one == number))
}
