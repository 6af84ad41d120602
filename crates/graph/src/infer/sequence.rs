//! Shapes of what works on sequences or on all positions of a sample, and of normalizations.

use super::{check_epsilon, list, number};
use crate::{GraphError, Op, Shape};

/// Shape of what an operation computes of its inputs, whose number is right.
pub(super) fn infer(node: &str, op: &Op, inputs: &[Shape]) -> Result<Shape, GraphError> {
    let input = inputs[0];
    match op {
        &Op::Slice { start, channels } => {
            check_slice(node, start, channels, input)?;
            Ok(Shape { channels, ..input })
        }
        &Op::ChannelShuffle { groups } => {
            check_norm_groups(node, groups, input.channels)?;
            Ok(input)
        }
        &Op::Embedding { rows, channels } => {
            number(node, "rows", rows)?;
            number(node, "channels", channels)?;
            match input.channels {
                1 => Ok(Shape { channels, ..input }),
                asked => Err(GraphError::EmbeddingChannels {
                    node: node.to_owned(),
                    asked,
                }),
            }
        }
        Op::Positions => {
            check_sequence(node, op, input)?;
            Ok(input)
        }
        &Op::PositionEmbedding { rows } => {
            number(node, "rows", rows)?;
            check_rows(node, rows, input)?;
            Ok(input)
        }
        &Op::LayerNorm {
            epsilon,
            centers: _,
        } => {
            check_epsilon(node, epsilon)?;
            Ok(input)
        }
        &Op::GroupNorm { groups, epsilon } => {
            check_epsilon(node, epsilon)?;
            check_norm_groups(node, groups.unwrap_or(input.channels), input.channels)?;
            Ok(input)
        }
        &Op::Attention { heads, causal: _ } => {
            check_heads(node, heads, input.channels)?;
            check_keys(node, inputs)?;
            Ok(input)
        }
        other => panic!("{} is no operation on sequences", other.keyword()),
    }
}

fn check_slice(node: &str, start: usize, channels: usize, input: Shape) -> Result<(), GraphError> {
    number(node, "channels", channels)?;
    if start < input.channels && channels <= input.channels - start {
        return Ok(());
    }
    let first = start.min(input.channels - 1);
    Err(GraphError::Slice {
        node: node.to_owned(),
        start,
        channels,
        input: input.channels,
        nearest: format!(
            "start={first} channels={}",
            channels.min(input.channels - first)
        ),
    })
}

fn check_sequence(node: &str, op: &Op, shape: Shape) -> Result<(), GraphError> {
    let [d, h, w] = shape.extent;
    if [d, h] == [1; 2] {
        return Ok(());
    }
    Err(GraphError::NoSequence {
        node: node.to_owned(),
        operation: op.keyword(),
        shape,
        nearest: d.saturating_mul(h).saturating_mul(w),
    })
}

fn check_rows(node: &str, rows: usize, input: Shape) -> Result<(), GraphError> {
    let positions = input.extent.into_iter().fold(1, usize::saturating_mul);
    if rows <= positions {
        return Ok(());
    }
    Err(GraphError::PositionRows {
        node: node.to_owned(),
        rows,
        positions,
    })
}

fn check_norm_groups(node: &str, groups: usize, channels: usize) -> Result<(), GraphError> {
    number(node, "groups", groups)?;
    if channels.is_multiple_of(groups) {
        return Ok(());
    }
    let possible: Vec<usize> = super::common_divisors(channels, channels);
    let nearest = possible
        .iter()
        .min_by_key(|&&divisor| divisor.abs_diff(groups));
    Err(GraphError::NormGroups {
        node: node.to_owned(),
        groups,
        channels,
        nearest: nearest.copied().unwrap_or(1),
        possible: list(possible.iter().map(usize::to_string)),
    })
}

fn check_heads(node: &str, heads: usize, channels: usize) -> Result<(), GraphError> {
    number(node, "heads", heads)?;
    if channels.is_multiple_of(heads) {
        return Ok(());
    }
    let possible: Vec<usize> = super::common_divisors(channels, channels);
    let nearest = possible
        .iter()
        .min_by_key(|&&divisor| divisor.abs_diff(heads));
    Err(GraphError::Heads {
        node: node.to_owned(),
        heads,
        channels,
        nearest: nearest.copied().unwrap_or(1),
        possible: list(possible.iter().map(usize::to_string)),
    })
}

/// Keys and values are of one shape, and have the channels of the queries.
fn check_keys(node: &str, inputs: &[Shape]) -> Result<(), GraphError> {
    let (q, k, v) = (inputs[0], inputs[1], inputs[2]);
    if k == v && q.channels == k.channels {
        return Ok(());
    }
    let nearest = Shape {
        channels: q.channels,
        ..k
    };
    Err(GraphError::AttentionShapes {
        node: node.to_owned(),
        given: format!("{q}, {k} and {v}"),
        nearest: nearest.to_string(),
    })
}
