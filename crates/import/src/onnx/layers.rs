//! Layers with parameters, poolings and reductions.

use super::node::{Stop, View, stop};
use super::steps::{Made, Source, held, is_all, is_one, one, only, parameter, same, value};
use super::tensors::Held;
use crate::network::{Operation, Padding};
use partita_graph::PoolKind;

/// Largest window, stride or padding.
const LENGTH_MAX: usize = 1 << 31;

/// A bias of one number per channel; none where it is left out or is a constant 0.
fn bias(node: &View<'_, '_>, index: usize, channels: usize) -> Result<Source, Stop> {
    let Some(held) = held(node, index)? else {
        return Ok(Source::Nothing);
    };
    if is_all(node, held, 0.0)? {
        return Ok(Source::Nothing);
    }
    let is_last = held.shape.last() == Some(&channels);
    match held.reshaped(&[channels]).filter(|_| is_last) {
        Some(held) => Ok(parameter(held)),
        None => stop("its bias is no number per channel"),
    }
}

/// Amounts of a window per spatial dim.
struct Windows {
    kernel: Vec<usize>,
    stride: Vec<usize>,
    dilation: Vec<usize>,
    sides: Vec<(usize, usize)>,
}

fn windows(
    node: &View<'_, '_>,
    extents: &[usize],
    kernel: Option<&[usize]>,
) -> Result<Windows, Stop> {
    let Some(dims) = extents.len().checked_sub(2).filter(|&dims| dims > 0) else {
        return stop("its input has no dims of space");
    };
    let kernel = match kernel {
        Some(kernel) => kernel.to_vec(),
        None if !node.has("kernel_shape") => return stop("it has no kernel_shape"),
        None => node.amounts("kernel_shape", dims, 1)?,
    };
    if kernel.len() != dims || kernel.contains(&0) {
        return stop("its kernel has other dims than its input");
    }
    let stride = node.amounts("strides", dims, 1)?;
    let dilation = node.amounts("dilations", dims, 1)?;
    if stride.contains(&0) || dilation.contains(&0) {
        return stop("it has a stride or dilation of 0");
    }
    let span = |dim: usize| {
        let steps = dilation[dim].checked_mul(kernel[dim] - 1);
        steps.and_then(|steps| steps.checked_add(1))
    };
    let sides = match node.text("auto_pad", "NOTSET").as_str() {
        "NOTSET" => {
            let pads = node.amounts("pads", 2 * dims, 0)?;
            (0..dims).map(|dim| (pads[dim], pads[dims + dim])).collect()
        }
        "VALID" => vec![(0, 0); dims],
        text @ ("SAME_UPPER" | "SAME_LOWER") => {
            let mut sides = Vec::new();
            for dim in 0..dims {
                let extent = extents[dim + 2];
                let span = span(dim).ok_or("its window is too large")?;
                let outputs = extent.div_ceil(stride[dim]).max(1);
                let read = (outputs - 1)
                    .saturating_mul(stride[dim])
                    .saturating_add(span);
                let all = read.saturating_sub(extent);
                let less = all / 2;
                sides.push(match text {
                    "SAME_UPPER" => (less, all - less),
                    _ => (all - less, less),
                });
            }
            sides
        }
        _ => return stop("its attribute `auto_pad` has a value that is not read"),
    };
    let all = sides.iter().flat_map(|&(low, high)| [low, high]);
    let mut all = all.chain((0..dims).map(|dim| span(dim).unwrap_or(usize::MAX)));
    if all.any(|one| one > LENGTH_MAX) || stride.iter().any(|&one| one > LENGTH_MAX) {
        return stop("its window is too large");
    }
    Ok(Windows {
        kernel,
        stride,
        dilation,
        sides,
    })
}

impl Windows {
    /// The extent of the output along a dim; rounded up, no window begins beyond the input and its left padding.
    fn output(&self, dim: usize, extent: usize, rounds_up: bool) -> Result<usize, Stop> {
        let span = self.dilation[dim] * (self.kernel[dim] - 1) + 1;
        let (low, high) = self.sides[dim];
        let padded = extent
            .checked_add(low)
            .and_then(|one| one.checked_add(high));
        let Some(rest) = padded.and_then(|padded| padded.checked_sub(span)) else {
            return stop(format!(
                "its window of {span} is larger than its input of {extent}"
            ));
        };
        let stride = self.stride[dim];
        if !rounds_up {
            return Ok(rest / stride + 1);
        }
        let count = rest.div_ceil(stride) + 1;
        let begins_beyond = (count - 1).saturating_mul(stride) >= extent + low;
        Ok(count - usize::from(begins_beyond))
    }

    fn outputs(&self, extents: &[usize], rounds_up: bool) -> Result<Vec<usize>, Stop> {
        let space = extents.iter().skip(2).enumerate();
        space
            .map(|(dim, &extent)| self.output(dim, extent, rounds_up))
            .collect()
    }
}

fn groups(node: &View<'_, '_>) -> Result<usize, Stop> {
    match usize::try_from(node.int("group", 1)?) {
        Ok(groups) if groups > 0 => Ok(groups),
        Ok(_) | Err(_) => stop("its attribute `group` has a value that is not read"),
    }
}

fn weight<'r>(node: &View<'r, '_>, rank: usize) -> Result<&'r Held, Stop> {
    match held(node, 1)? {
        Some(held) if held.shape.len() == rank => Ok(held),
        Some(_) | None => stop("its weight has other dims than its input"),
    }
}

pub(super) fn convolution(node: &View<'_, '_>) -> Made {
    let extents = node.extents(0)?;
    let weight = weight(node, extents.len())?;
    let all = windows(node, &extents, weight.shape.get(2..))?;
    let filters = weight.shape.first().copied().unwrap_or(0);
    let space = all.outputs(&extents, false)?;
    let to = [&[extents[0], filters], &space[..]].concat();
    let inputs = vec![
        value(node, 0)?,
        parameter(weight.clone()),
        bias(node, 2, filters)?,
    ];
    let operation = Operation::Convolution {
        stride: all.stride,
        padding: Padding::Sides(all.sides),
        dilation: all.dilation,
        groups: groups(node)?,
    };
    one(node, operation, inputs, to)
}

pub(super) fn transposed(node: &View<'_, '_>) -> Made {
    let extents = node.extents(0)?;
    let weight = weight(node, extents.len())?;
    if node.has("output_shape") || node.text("auto_pad", "NOTSET") != "NOTSET" {
        return stop(
            "a transposed convolution with output_shape or auto_pad is not read; give pads",
        );
    }
    let all = windows(node, &extents, weight.shape.get(2..))?;
    let dims = all.kernel.len();
    let mut output_padding = node.amounts("output_padding", dims, 0)?;
    let groups = groups(node)?;
    let filters = weight.shape[1].saturating_mul(groups);
    let mut to = vec![extents[0], filters];
    let mut padding = Vec::new();
    for dim in 0..dims {
        let (low, high) = all.sides[dim];
        // Less padding behind are more outputs there.
        let Some(more) = low.checked_sub(high) else {
            return stop(
                "a transposed convolution that is padded more behind than before is not read",
            );
        };
        output_padding[dim] = output_padding[dim].saturating_add(more);
        padding.push(low);
        let span = all.dilation[dim] * (all.kernel[dim] - 1) + 1;
        let whole = extents[dim + 2]
            .saturating_sub(1)
            .saturating_mul(all.stride[dim]);
        let whole = whole
            .saturating_add(span)
            .saturating_add(output_padding[dim]);
        let Some(extent) = whole
            .checked_sub(low.saturating_mul(2))
            .filter(|&one| one > 0)
        else {
            return stop("its padding takes all outputs away");
        };
        to.push(extent);
    }
    let inputs = vec![
        value(node, 0)?,
        parameter(weight.clone()),
        bias(node, 2, filters)?,
    ];
    let operation = Operation::TransposedConvolution {
        stride: all.stride,
        padding,
        output_padding,
        dilation: all.dilation,
        groups,
    };
    one(node, operation, inputs, to)
}

pub(super) fn gemm(node: &View<'_, '_>) -> Made {
    let factors = [node.float("alpha", 1.0)?, node.float("beta", 1.0)?];
    if !factors.into_iter().all(is_one) || node.flag("transA", false)? {
        return stop("a Gemm with alpha, beta or transA is not read");
    }
    let weight = match held(node, 1)? {
        Some(held) if node.flag("transB", false)? => Some(held.clone()),
        Some(held) => held.permuted(&[1, 0]),
        None => None,
    };
    linear(node, weight, 2)
}

pub(super) fn matmul(node: &View<'_, '_>) -> Made {
    if node.held(1).is_none() {
        return matrices(node);
    }
    let weight = held(node, 1)?.and_then(|held| held.permuted(&[1, 0]));
    linear(node, weight, 2)
}

/// Products of matrices of two tensors.
fn matrices(node: &View<'_, '_>) -> Made {
    let (mut to, second) = (node.extents(0)?, node.extents(1)?);
    let operation = match Operation::matrices(to.len()) {
        Ok(operation) if second.len() == to.len() => operation,
        Ok(_) => return stop("a product of tensors of different dims is not read"),
        Err(reason) => return stop(reason),
    };
    let last = to.len() - 1;
    to[last] = second[last];
    one(node, operation, vec![value(node, 0)?, value(node, 1)?], to)
}

/// A product of two tensors by an equation.
pub(super) fn einsum(node: &View<'_, '_>) -> Made {
    let letters = match Operation::einsum(&node.text("equation", "")) {
        Ok(Operation::Contraction(letters)) if node.count() == 2 => letters,
        Ok(_) => return stop("a product of other than two tensors is not read"),
        Err(reason) => return stop(reason),
    };
    let extents = [node.extents(0)?, node.extents(1)?];
    let extent = |letter| {
        let mut factors = letters.iter().zip(&extents);
        factors.find_map(|(of, extents)| extents.get(of.find(letter)?).copied())
    };
    let to: Option<Vec<usize>> = letters[2].chars().map(extent).collect();
    let Some(to) = to else {
        return stop("its equation names other dims than its inputs have");
    };
    let inputs = vec![value(node, 0)?, value(node, 1)?];
    one(node, Operation::Contraction(letters), inputs, to)
}

/// A linear layer whose weight is (F, C), with a bias at an index.
fn linear(node: &View<'_, '_>, weight: Option<Held>, at: usize) -> Made {
    let mut to = node.extents(0)?;
    let weight = weight.filter(|held| held.shape.len() == 2);
    let (Some(weight), Some(last)) = (weight, to.last_mut()) else {
        return stop("its weight is no matrix");
    };
    if *last != weight.shape[1] {
        return stop("its weight has other rows than its input has features");
    }
    *last = weight.shape[0];
    let bias = bias(node, at, weight.shape[0])?;
    let inputs = vec![value(node, 0)?, parameter(weight), bias];
    one(node, Operation::Linear, inputs, to)
}

pub(super) fn prelu(node: &View<'_, '_>) -> Made {
    let extents = node.extents(0)?;
    let Some(slopes) = held(node, 1)? else {
        return stop("it has no slopes");
    };
    let slopes = match slopes.volume() {
        1 => slopes.reshaped(&[1]),
        _ => per_channel(slopes, &extents),
    };
    match slopes {
        Some(slopes) => {
            let inputs = vec![value(node, 0)?, parameter(slopes)];
            one(node, Operation::Prelu, inputs, extents)
        }
        None => stop("slopes that are neither one number nor one per channel are not read"),
    }
}

/// A tensor of one number per channel, the second dim of these extents, as a vector.
pub(super) fn per_channel(held: &Held, extents: &[usize]) -> Option<Held> {
    let channels = *extents.get(1)?;
    let first = extents.len().checked_sub(held.shape.len())?;
    let mut dims = held.shape.iter().enumerate();
    let is_fit = dims.all(|(dim, &one)| one == 1 || (first + dim == 1 && one == channels));
    held.reshaped(&[channels]).filter(|_| is_fit)
}

pub(super) fn pool(node: &View<'_, '_>, kind: PoolKind) -> Made {
    let extents = node.extents(0)?;
    let all = windows(node, &extents, None)?;
    if all.dilation.iter().any(|&one| one != 1) {
        return stop("a pooling with dilation is not read");
    }
    if node.node.output.get(1).is_some_and(|name| !name.is_empty()) {
        return stop("the positions of maxima are not read");
    }
    let rounds_up = node.flag("ceil_mode", false)?;
    let space = all.outputs(&extents, rounds_up)?;
    let has_other_sides = all.sides.iter().any(|(low, high)| low != high);
    let counts = kind == PoolKind::AverageAll;
    if has_other_sides && counts {
        return stop("an average that counts uneven padding is not read");
    }
    if all.sides.iter().any(|(low, high)| high < low) {
        // Less padding behind: no window may read what it lacks.
        for (dim, &(low, high)) in all.sides.iter().enumerate() {
            let read = (space[dim].saturating_sub(1)) * all.stride[dim] + all.kernel[dim];
            if high < low && !rounds_up && read > extents[dim + 2] + low + high {
                return stop("its padding is not read");
            }
        }
    }
    let operation = Operation::Pool {
        kind,
        kernel: all.kernel,
        stride: all.stride,
        padding: all.sides.iter().map(|&(low, _)| low).collect(),
        // Padding behind is as much as the last window reads.
        rounds_up: rounds_up || has_other_sides,
    };
    let to = [&extents[..2], &space[..]].concat();
    only(node, operation, to)
}

pub(super) fn global(node: &View<'_, '_>, kind: PoolKind) -> Made {
    let mut to = node.extents(0)?;
    to.iter_mut().skip(2).for_each(|extent| *extent = 1);
    only(node, Operation::AdaptivePool { kind }, to)
}

pub(super) fn reduce(node: &View<'_, '_>, kind: PoolKind) -> Made {
    let extents = node.extents(0)?;
    let listed = node.dims(1, extents.len())?.filter(|dims| !dims.is_empty());
    let dims = match listed {
        Some(dims) => dims,
        None if node.flag("noop_with_empty_axes", false)? => {
            return same(node, Operation::Identity);
        }
        None => (0..extents.len()).collect(),
    };
    let keeps = node.flag("keepdims", true)?;
    let kept = extents.iter().enumerate().filter_map(|(dim, &extent)| {
        if dims.contains(&dim) {
            keeps.then_some(1)
        } else {
            Some(extent)
        }
    });
    let to = kept.collect();
    only(node, Operation::Reduce { kind, dims }, to)
}

pub(super) fn dropout(node: &View<'_, '_>) -> Made {
    let rate = node.scalar(1, 0.5)?;
    let is_on = node.scalar(2, 0.0)? != 0.0;
    if node.reader.is_training && !is_on {
        return same(node, Operation::Identity);
    }
    same(node, Operation::Dropout { rate })
}
