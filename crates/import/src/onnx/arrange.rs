//! Operators that move elements, or nothing.

use super::Reader;
use super::fold::broadcast;
use super::node::{Stop, View, stop};
use super::steps::{Made, Source, Step, one, only, same, value};
use crate::network::{BLOCK_MAX, Operation};
use partita_graph::PadMode;

pub(super) fn concat(node: &View<'_, '_>) -> Made {
    let mut to = node.extents(0)?;
    let dim = node.dim(node.int("axis", 0)?, to.len())?;
    let mut inputs = vec![value(node, 0)?];
    for index in 1..node.count() {
        let extents = node.extents(index)?;
        if extents.len() != to.len() {
            return stop("its inputs have different numbers of dims");
        }
        to[dim] = to[dim].saturating_add(extents[dim]);
        inputs.push(value(node, index)?);
    }
    one(node, Operation::Concat { dim }, inputs, to)
}

pub(super) fn resize(node: &View<'_, '_>) -> Made {
    let extents = node.extents(0)?;
    let rank = extents.len();
    let dims = match node.ints("axes") {
        Some(all) => all
            .into_iter()
            .map(|dim| node.dim(dim, rank))
            .collect::<Result<Vec<_>, _>>()?,
        None => (0..rank).collect(),
    };
    let scales = node.constant(2)?.filter(|scales| !scales.is_empty());
    let mut to = extents.clone();
    if let Some(scales) = scales {
        if scales.len() != dims.len()
            || scales
                .iter()
                .any(|scale| scale.fract() != 0.0 || *scale < 1.0)
        {
            return stop("a resize by a factor that is not whole is not read");
        }
        for (&dim, scale) in dims.iter().zip(scales) {
            to[dim] = to[dim].saturating_mul(scale as usize);
        }
    } else {
        let sizes = node.whole_values(3)?;
        if sizes.len() != dims.len()
            || node.text("keep_aspect_ratio_policy", "stretch") != "stretch"
        {
            return stop("its sizes are not read");
        }
        for (&dim, size) in dims.iter().zip(sizes) {
            to[dim] = size;
        }
    }
    if to.iter().take(2).ne(extents.iter().take(2)) {
        return stop("a resize of samples or channels is not read");
    }
    if node.flag("antialias", false)? || node.flag("exclude_outside", false)? {
        return stop("a resize with antialias or exclude_outside is not read");
    }
    let mode = node.text("mode", "nearest");
    let transform = node.text("coordinate_transformation_mode", "half_pixel");
    let nearest = node.text("nearest_mode", "round_prefer_floor");
    let is_half = matches!(
        transform.as_str(),
        "half_pixel" | "pytorch_half_pixel" | "half_pixel_symmetric"
    );
    if transform == "pytorch_half_pixel" && has_one_position(&to, &extents) {
        return stop("a resize of pytorch_half_pixel to one position is not read");
    }
    let mut dims = to.iter().zip(&extents);
    let is_whole = dims.all(|(to, from)| *from > 0 && to % from == 0);
    let (is_linear, align_corners) = match (mode.as_str(), transform.as_str(), nearest.as_str()) {
        ("nearest", "asymmetric", "floor") => (false, false),
        // Where factors are whole, this takes the same inputs.
        ("nearest", _, "round_prefer_floor" | "round_prefer_ceil") if is_half && is_whole => {
            (false, false)
        }
        ("linear", "align_corners", _) => (true, true),
        ("linear", _, _) if is_half => (true, false),
        _ => {
            return stop(format!(
                "a resize of mode {mode}, {transform}, {nearest} is not read; possible are nearest, linear and align_corners as PyTorch has them"
            ));
        }
    };
    let operation = Operation::Upsample {
        is_linear,
        align_corners,
    };
    only(node, operation, to)
}

/// Whether a resize leaves one of several positions: `pytorch_half_pixel` takes the first, `half_pixel` the middle.
fn has_one_position(to: &[usize], from: &[usize]) -> bool {
    let mut dims = to.iter().zip(from);
    dims.any(|(to, from)| *to == 1 && *from > 1)
}

pub(super) fn pad(node: &View<'_, '_>) -> Made {
    let extents = node.extents(0)?;
    let rank = extents.len();
    let Some(pads) = node.signed_values(1)? else {
        return stop("it has no pads");
    };
    let dims = match node.signed_values(3)? {
        Some(all) => all
            .into_iter()
            .map(|dim| node.dim(dim, rank))
            .collect::<Result<Vec<_>, _>>()?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * dims.len() {
        return stop("its pads are not two per dim");
    }
    let mut sides = vec![(0, 0); rank];
    let mut to = extents;
    for (index, &dim) in dims.iter().enumerate() {
        let both = [pads[index], pads[dims.len() + index]].map(usize::try_from);
        let [Ok(low), Ok(high)] = both else {
            return stop("a pad of less than nothing cuts, which is not read");
        };
        sides[dim] = (low, high);
        to[dim] = to[dim].saturating_add(low).saturating_add(high);
    }
    let mode = match node.text("mode", "constant").as_str() {
        "constant" if node.scalar(2, 0.0)? == f64::NEG_INFINITY => {
            sides.reverse();
            return only(node, Operation::PadLowest { sides }, to);
        }
        "constant" if node.scalar(2, 0.0)? == 0.0 => Some(PadMode::Zero),
        "reflect" => Some(PadMode::Reflect),
        "edge" => Some(PadMode::Replicate),
        "wrap" => None,
        _ => {
            return stop(
                "a pad with other values than 0, or minus infinity before a maximum pooling, is not read",
            );
        }
    };
    sides.reverse();
    only(node, Operation::Pad { sides, mode }, to)
}

/// Channels that become blocks of positions, or positions that become channels.
pub(super) fn blocks(node: &View<'_, '_>, to_space: bool) -> Made {
    let extents = node.extents(0)?;
    let size = node.int("blocksize", 1)?;
    let factor = match usize::try_from(size) {
        Ok(factor @ 2..=BLOCK_MAX) => factor,
        _ => {
            return stop(format!(
                "its blocksize is {size}; 2 to {BLOCK_MAX} are read"
            ));
        }
    };
    let &[samples, channels, height, width] = &extents[..] else {
        return stop("its input has other dims than samples, channels and two of space");
    };
    let by_block = !to_space || node.text("mode", "DCR") != "CRD";
    if to_space {
        let to = vec![
            samples,
            channels / (factor * factor),
            height.saturating_mul(factor),
            width.saturating_mul(factor),
        ];
        return only(node, Operation::PixelShuffle { factor, by_block }, to);
    }
    let channels = channels.saturating_mul(factor * factor);
    let to = vec![samples, channels, height / factor, width / factor];
    only(node, Operation::PixelUnshuffle { factor, by_block }, to)
}

pub(super) fn reshape(node: &View<'_, '_>) -> Made {
    let extents = node.extents(0)?;
    let to = node.other_extents(&extents)?;
    if let Some(operation) = super::norms::grouped(node, &to) {
        let (operation, input) = operation;
        return one(
            node,
            operation,
            vec![Source::Value(input), Source::Nothing, Source::Nothing],
            to,
        );
    }
    only(node, Operation::Reshape, to)
}

pub(super) fn repeat(node: &View<'_, '_>) -> Made {
    let extents = node.extents(0)?;
    let asked = node.whole_values(1)?;
    let to = if node.operator() == "Expand" {
        broadcast(&[&extents, &asked])?
    } else if asked.len() == extents.len() {
        let pairs = extents.iter().zip(&asked);
        pairs
            .map(|(&extent, &times)| extent.saturating_mul(times))
            .collect()
    } else {
        return stop("its repeats are not one per dim");
    };
    only(node, Operation::Repeat, to)
}

pub(super) fn slice(node: &View<'_, '_>) -> Made {
    let mut extents = node.extents(0)?;
    let cuts = node.cuts(&extents)?;
    let real: Vec<_> = cuts
        .into_iter()
        .filter(|cut| (cut.start, cut.count) != (0, extents[cut.dim]))
        .collect();
    if real.is_empty() {
        return same(node, Operation::Identity);
    }
    let mut steps = Vec::new();
    let mut input = value(node, 0)?;
    for (index, cut) in real.iter().enumerate() {
        if cut.step != 1 {
            return stop("a slice with a step is not read");
        }
        let name = if index + 1 == real.len() {
            node.output().to_owned()
        } else {
            format!("{}[{index}]", node.output())
        };
        extents[cut.dim] = cut.count;
        let operation = Operation::Parts {
            dim: cut.dim,
            starts: vec![cut.start],
        };
        steps.push(Step {
            operation,
            inputs: vec![input],
            outputs: vec![(name.clone(), extents.clone())],
        });
        input = Source::Value(name);
    }
    Ok(steps)
}

pub(super) fn split(node: &View<'_, '_>) -> Made {
    let extents = node.extents(0)?;
    let dim = node.dim(node.int("axis", 0)?, extents.len())?;
    let extent = extents[dim];
    let is_sequence = node.operator() == "SplitToSequence";
    if is_sequence && !node.flag("keepdims", true)? {
        return stop("a split that drops the dim is not read");
    }
    let lengths = match node.constant(1)?.as_deref() {
        // A single number is the extent of all parts but the last.
        Some(&[each]) if is_sequence && node.held(1).is_some_and(|one| one.shape.is_empty()) => {
            equal(extent, each as usize)?
        }
        Some(_) => node.whole_values(1)?,
        None if is_sequence => equal(extent, 1)?,
        None => {
            let count = node.int("num_outputs", node.node.output.len() as i64)?;
            let count = usize::try_from(count).unwrap_or(0).max(1);
            equal(extent, extent.div_ceil(count))?
        }
    };
    let sum = lengths
        .iter()
        .try_fold(0usize, |all, &one| all.checked_add(one));
    if sum != Some(extent) || (!is_sequence && lengths.len() != node.node.output.len()) {
        return stop("its parts are not the whole");
    }
    let mut starts = Vec::new();
    let mut outputs = Vec::new();
    let mut next = 0;
    for (index, &length) in lengths.iter().enumerate() {
        let mut to = extents.clone();
        to[dim] = length;
        let name = if is_sequence {
            Reader::part(node.output(), index)
        } else {
            node.node.output[index].clone()
        };
        outputs.push((name, to));
        starts.push(next);
        next += length;
    }
    Ok(vec![Step {
        operation: Operation::Parts { dim, starts },
        inputs: vec![value(node, 0)?],
        outputs,
    }])
}

/// Parts of one extent, the last of what is left.
fn equal(extent: usize, each: usize) -> Result<Vec<usize>, Stop> {
    if each == 0 || extent.div_ceil(each) > 1 << 16 {
        return stop("its parts are not read");
    }
    let count = extent.div_ceil(each);
    Ok((0..count)
        .map(|index| each.min(extent - index * each))
        .collect())
}

/// A part of a sequence.
pub(super) fn element(node: &View<'_, '_>) -> Made {
    let at = node.scalar(1, 0.0)?;
    let Some(name) = node.name(0) else {
        return stop("it reads nothing");
    };
    if node.reader.unknown.contains(name) {
        return Err(Stop::Follows);
    }
    let part = Reader::part(name, at as usize);
    match node.reader.network.shapes.get(&part) {
        Some(extents) if at >= 0.0 => {
            let inputs = vec![Source::Value(part)];
            one(node, Operation::Identity, inputs, extents.clone())
        }
        Some(_) | None => stop("its sequence is no split with as many parts"),
    }
}
