//! Shapes of what works on sequences or on all positions of a sample, and of normalizations.

use super::{check_epsilon, in_f32, list, number};
use crate::{GraphError, Op, ScoreBias, Shape};
use partita_space::AttentionWindow;

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
        &Op::Attention {
            heads,
            causal,
            window,
            bias,
        } => {
            check_heads(node, heads, input.channels)?;
            check_keys(node, inputs)?;
            if let Some(window) = &window {
                check_window(node, window, (inputs, causal))?;
            }
            if let Some(ScoreBias::Relative(table)) = bias {
                check_table(node, table, window.as_ref(), inputs)?;
            }
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

/// Windows tile the positions of q, k and v, and a shift is less than a window.
fn check_window(
    node: &str,
    window: &AttentionWindow,
    (inputs, causal): (&[Shape], bool),
) -> Result<(), GraphError> {
    let refused = |what: String, nearest: String| GraphError::AttentionWindow {
        node: node.to_owned(),
        what,
        nearest,
    };
    let (extent, of_keys) = (inputs[0].extent, inputs[1].extent);
    if extent != of_keys {
        let what = format!("reads q of {} and k of {}", inputs[0], inputs[1]);
        return Err(refused(what, "q, k and v of one shape".to_owned()));
    }
    if causal {
        let what = "has a causal mask".to_owned();
        return Err(refused(what, "causal=false".to_owned()));
    }
    for dim in 0..3 {
        number(node, "window", window.extent[dim])?;
        let (own, all) = (window.extent[dim], extent[dim]);
        if !all.is_multiple_of(own) {
            let what = format!("has windows of {own} positions, which do not divide {all}");
            let possible = super::common_divisors(all, all);
            let nearest = possible.iter().min_by_key(|one| one.abs_diff(own));
            let nearest = nearest.map_or_else(String::new, ToString::to_string);
            return Err(refused(what, format!("{nearest}, or a pad before")));
        }
        if window.shift[dim] >= own {
            let what = format!("shifts windows of {own} positions by {}", window.shift[dim]);
            return Err(refused(what, format!("less than {own}")));
        }
    }
    if in_f32(window.mask) {
        return Ok(());
    }
    let what = format!("masks scores with {}", window.mask);
    Err(refused(what, AttentionWindow::MASK.to_string()))
}

/// The table has a row for each distance.
fn check_table(
    node: &str,
    table: [usize; 3],
    window: Option<&AttentionWindow>,
    inputs: &[Shape],
) -> Result<(), GraphError> {
    let volume = |extent: [usize; 3]| extent.into_iter().fold(1, usize::saturating_mul);
    for extent in table {
        number(node, "table", extent)?;
    }
    let own = window.map_or(inputs[0].extent, |window| window.extent);
    let is_alike = inputs[0].extent == inputs[1].extent;
    if is_alike && volume(own) <= volume(table) {
        return Ok(());
    }
    let all = |[d, h, w]: [usize; 3]| format!("{d}x{h}x{w}");
    let what = if is_alike {
        let (own, table) = (all(own), all(table));
        format!("attends between {own} positions with a table for {table}")
    } else {
        format!(
            "has a relative bias between {} and {}",
            inputs[0], inputs[1]
        )
    };
    Err(GraphError::AttentionWindow {
        node: node.to_owned(),
        what,
        nearest: if is_alike {
            format!("table={}", all(own))
        } else {
            "bias=pairs".to_owned()
        },
    })
}
