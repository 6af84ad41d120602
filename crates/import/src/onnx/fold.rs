//! Values that do not depend on the input: extents that exporters compute, and parameters in other orders.

use super::node::{Stop, View, stop};
use super::tensors::{Held, is_real};
use crate::Reason;
use crate::strided::{positions, row_major, volume};
use crate::weights::Element;

/// Most elements of a tensor that is computed here.
const COUNT_MAX: usize = 1 << 16;

/// The output of a node that reads no tensor of the network but for its extents; none for one that is computed later.
pub(super) fn fold(node: &View<'_, '_>) -> Result<Option<Held>, Stop> {
    let operator = node.operator();
    if operator == "Constant" {
        return constant(node).map(Some);
    }
    if matches!(operator, "Shape" | "Size") {
        let Ok(extents) = node.extents(0) else {
            return Ok(None);
        };
        return Ok(Some(shape_of(node, &extents)?));
    }
    if operator == "CastLike" {
        let (Some(held), Some(like)) = (node.held(0), node.element(1)) else {
            return Ok(None);
        };
        return cast(node, held, like);
    }
    let given = (0..node.count()).filter(|&index| node.name(index).is_some());
    let held: Option<Vec<&Held>> = given.map(|index| node.held(index)).collect();
    let Some(held) = held.filter(|held| !held.is_empty()) else {
        return Ok(None);
    };
    if let Some(moved) = moved(node, held[0])? {
        return Ok(Some(moved));
    }
    if operator == "Cast" {
        let to = node.int("to", 0)?;
        let to = i32::try_from(to).ok().and_then(super::tensors::element_of);
        let Some(to) = to else {
            return stop("it makes numbers of a type that is not read");
        };
        return cast(node, held[0], to);
    }
    let is_fixed = |one: &&&Held| one.is_constant || !is_real(one.element);
    if held.iter().filter(is_fixed).count() < held.len() {
        return Ok(None);
    }
    if held.iter().any(|one| one.volume() > COUNT_MAX) {
        return Ok(None);
    }
    let mut values = Vec::with_capacity(held.len());
    for one in &held {
        values.push(node.values(one)?);
    }
    compute(node, &held, &values)
}

fn constant(node: &View<'_, '_>) -> Result<Held, Stop> {
    let name = node.output();
    if let Some(tensor) = node.tensor_attribute("value") {
        return Ok(Held::read(name, tensor, true)?);
    }
    let int = |values: Vec<i64>, shape| {
        let values = values.into_iter().map(|one| one as f64).collect();
        Held::computed(name, shape, Element::I64, values)
    };
    let real = |values: Vec<f64>, shape| Held::computed(name, shape, Element::F32, values);
    if let Some(values) = node.ints("value_ints") {
        let count = values.len();
        return Ok(int(values, vec![count]));
    }
    if let Some(values) = node.floats("value_floats") {
        let count = values.len();
        return Ok(real(values, vec![count]));
    }
    if node.has("value_int") {
        return Ok(int(vec![node.int("value_int", 0)?], Vec::new()));
    }
    if node.has("value_float") {
        return Ok(real(vec![node.float("value_float", 0.0)?], Vec::new()));
    }
    stop("it has no value that is read")
}

fn shape_of(node: &View<'_, '_>, extents: &[usize]) -> Result<Held, Stop> {
    let name = node.output();
    if node.operator() == "Size" {
        let all = volume(extents).ok_or("its input has too many elements")?;
        let values = vec![all as f64];
        return Ok(Held::computed(name, Vec::new(), Element::I64, values));
    }
    let count = extents.len() as i64;
    let place = |value: i64| (if value < 0 { value + count } else { value }).clamp(0, count);
    let (start, end) = (
        place(node.int("start", 0)?),
        place(node.int("end", i64::MAX)?),
    );
    let range = start as usize..end.max(start) as usize;
    let values: Vec<f64> = extents[range].iter().map(|&one| one as f64).collect();
    Ok(Held::computed(
        name,
        vec![values.len()],
        Element::I64,
        values,
    ))
}

/// The same numbers in other extents or another order; none if the node does something else.
fn moved(node: &View<'_, '_>, held: &Held) -> Result<Option<Held>, Stop> {
    let moved = match node.operator() {
        "Identity" => Some(held.clone()),
        "Transpose" => held.permuted(&node.order(held.shape.len())?),
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => {
            held.reshaped(&node.other_extents(&held.shape)?)
        }
        _ => return Ok(None),
    };
    match moved {
        Some(moved) => Ok(Some(moved)),
        None => stop("its dims are none of its input"),
    }
}

fn cast(node: &View<'_, '_>, held: &Held, to: Element) -> Result<Option<Held>, Stop> {
    if held.element == to {
        return Ok(Some(held.clone()));
    }
    if held.volume() > COUNT_MAX || (is_real(held.element) && !held.is_constant) {
        return Ok(None);
    }
    let convert = |one: f64| match to {
        Element::Bool => f64::from(u8::from(one != 0.0)),
        Element::F32 | Element::F16 | Element::Bf16 | Element::F64 => one,
        _ => one.trunc(),
    };
    let values = node.values(held)?.into_iter().map(convert).collect();
    let shape = held.shape.clone();
    Ok(Some(Held::computed(node.output(), shape, to, values)))
}

fn compute(node: &View<'_, '_>, held: &[&Held], values: &[Vec<f64>]) -> Result<Option<Held>, Stop> {
    let first = held[0];
    let made = |shape: Vec<usize>, values: Vec<f64>| {
        Ok(Some(Held::computed(
            node.output(),
            shape,
            first.element,
            values,
        )))
    };
    match node.operator() {
        "Concat" => concat(node, held, values),
        "Gather" => gather(node, held, values),
        "Slice" => slice(node, first, &values[0]),
        "Expand" => {
            let to = node.whole_values(1)?;
            let shape = broadcast(&[&first.shape, &to])?;
            let values = spread(&first.shape, &values[0], &shape)?;
            made(shape, values)
        }
        "ConstantOfShape" => {
            let shape = node.whole_values(0)?;
            let count = volume(&shape).filter(|&count| count <= COUNT_MAX);
            let count = count.ok_or("it makes a tensor that is too large")?;
            let (value, element) = match node.tensor_attribute("value") {
                Some(tensor) => {
                    let held = Held::read(node.output(), tensor, true)?;
                    let values = node.values(&held)?;
                    (values.first().copied().unwrap_or(0.0), held.element)
                }
                None => (0.0, Element::F32),
            };
            let values = vec![value; count];
            Ok(Some(Held::computed(node.output(), shape, element, values)))
        }
        "Range" if held.len() == 3 && values.iter().all(|one| one.len() == 1) => {
            let (start, end, step) = (values[0][0], values[1][0], values[2][0]);
            let count = ((end - start) / step).ceil();
            if !(0.0..=COUNT_MAX as f64).contains(&count) {
                return stop("it counts through too many numbers");
            }
            let count = count as usize;
            let all = (0..count).map(|index| start + index as f64 * step);
            made(vec![count], all.collect())
        }
        "Where" if held.len() == 3 => {
            let shape = broadcast(&[&held[0].shape, &held[1].shape, &held[2].shape])?;
            let all = |index: usize| spread(&held[index].shape, &values[index], &shape);
            let picked = all(0)?.into_iter().zip(all(1)?).zip(all(2)?);
            let picked = picked.map(|((is, one), other)| if is != 0.0 { one } else { other });
            let (values, element) = (picked.collect(), held[1].element);
            Ok(Some(Held::computed(node.output(), shape, element, values)))
        }
        "ReduceProd" => made(vec![1], vec![values[0].iter().product()]),
        _ => arithmetic(node, held, values),
    }
}

/// Functions of the elements of one or two tensors.
fn arithmetic(
    node: &View<'_, '_>,
    held: &[&Held],
    values: &[Vec<f64>],
) -> Result<Option<Held>, Stop> {
    let is_whole = !is_real(held[0].element);
    let unary: Option<fn(f64) -> f64> = match node.operator() {
        "Neg" => Some(|a| -a),
        "Abs" => Some(f64::abs),
        "Floor" => Some(f64::floor),
        "Ceil" => Some(f64::ceil),
        "Sqrt" => Some(f64::sqrt),
        "Reciprocal" => Some(f64::recip),
        "Not" => Some(|a| f64::from(u8::from(a == 0.0))),
        _ => None,
    };
    if let (Some(function), [one]) = (unary, held) {
        let values = values[0].iter().copied().map(function).collect();
        let (shape, element) = (one.shape.clone(), one.element);
        return Ok(Some(Held::computed(node.output(), shape, element, values)));
    }
    let truth = |is: bool| f64::from(u8::from(is));
    let binary: Box<dyn Fn(f64, f64) -> f64> = match node.operator() {
        "Add" => Box::new(|a, b| a + b),
        "Sub" => Box::new(|a, b| a - b),
        "Mul" => Box::new(|a, b| a * b),
        "Div" if is_whole => Box::new(|a, b| if b == 0.0 { 0.0 } else { (a / b).trunc() }),
        "Div" => Box::new(|a, b| a / b),
        "Mod" if is_whole => Box::new(|a, b| if b == 0.0 { 0.0 } else { a.rem_euclid(b) }),
        "Pow" => Box::new(f64::powf),
        "Min" => Box::new(f64::min),
        "Max" => Box::new(f64::max),
        "Equal" => Box::new(move |a, b| truth(a == b)),
        "Less" => Box::new(move |a, b| truth(a < b)),
        "Greater" => Box::new(move |a, b| truth(a > b)),
        "And" => Box::new(move |a, b| truth(a != 0.0 && b != 0.0)),
        "Or" => Box::new(move |a, b| truth(a != 0.0 || b != 0.0)),
        _ => return Ok(None),
    };
    let [one, other] = held else {
        return Ok(None);
    };
    let shape = broadcast(&[&one.shape, &other.shape])?;
    let pairs = spread(&one.shape, &values[0], &shape)?
        .into_iter()
        .zip(spread(&other.shape, &values[1], &shape)?);
    let all = pairs.map(|(a, b)| binary(a, b)).collect();
    let is_truth = ["Equal", "Less", "Greater", "And", "Or"].contains(&node.operator());
    let element = if is_truth { Element::Bool } else { one.element };
    Ok(Some(Held::computed(node.output(), shape, element, all)))
}

fn concat(node: &View<'_, '_>, held: &[&Held], values: &[Vec<f64>]) -> Result<Option<Held>, Stop> {
    // Lists of extents have one dim.
    if held.iter().any(|one| one.shape.len() != 1) {
        return Ok(None);
    }
    let all: Vec<f64> = values.iter().flatten().copied().collect();
    let element = held[0].element;
    Ok(Some(Held::computed(
        node.output(),
        vec![all.len()],
        element,
        all,
    )))
}

fn gather(node: &View<'_, '_>, held: &[&Held], values: &[Vec<f64>]) -> Result<Option<Held>, Stop> {
    let [list, indices] = held else {
        return Ok(None);
    };
    if list.shape.len() != 1 || node.int("axis", 0)? != 0 {
        return Ok(None);
    }
    let count = values[0].len() as f64;
    let pick = |&index: &f64| {
        let at = if index < 0.0 { index + count } else { index };
        let is_valid = (0.0..count).contains(&at);
        is_valid.then(|| values[0][at as usize])
    };
    let picked: Option<Vec<f64>> = values[1].iter().map(pick).collect();
    let picked = picked.ok_or("it picks an element that its input lacks")?;
    let shape = indices.shape.clone();
    let element = list.element;
    Ok(Some(Held::computed(node.output(), shape, element, picked)))
}

fn slice(node: &View<'_, '_>, held: &Held, values: &[f64]) -> Result<Option<Held>, Stop> {
    let cuts = node.cuts(&held.shape)?;
    let mut shape = held.shape.clone();
    let mut steps = row_major(&shape);
    let mut start = 0;
    for cut in cuts {
        let Ok(step) = usize::try_from(cut.step) else {
            return Ok(None);
        };
        start = cut
            .start
            .saturating_mul(steps[cut.dim])
            .saturating_add(start);
        steps[cut.dim] = steps[cut.dim].saturating_mul(step);
        shape[cut.dim] = cut.count;
    }
    let all = positions(&shape, &steps, start)
        .map(|at| values[at])
        .collect();
    Ok(Some(Held::computed(
        node.output(),
        shape,
        held.element,
        all,
    )))
}

/// The extents of tensors that are read element by element.
pub(super) fn broadcast(shapes: &[&[usize]]) -> Result<Vec<usize>, Reason> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut all = vec![1; rank];
    for shape in shapes {
        let dims = all[rank - shape.len()..].iter_mut().zip(*shape);
        for (extent, &other) in dims {
            match (*extent, other) {
                (1, _) => *extent = other,
                (_, 1) => {}
                (one, other) if one == other => {}
                (one, other) => {
                    return Err(format!(
                        "its inputs have the extents {one} and {other} along one dim"
                    )
                    .into());
                }
            }
        }
    }
    if volume(&all).is_none_or(|count| count > 1 << 40) {
        return Err("its output has too many elements".into());
    }
    Ok(all)
}

/// The elements of a tensor for each of a larger one.
fn spread(shape: &[usize], values: &[f64], to: &[usize]) -> Result<Vec<f64>, Reason> {
    if volume(to).is_none_or(|count| count > COUNT_MAX) {
        return Err("it makes a tensor that is too large".into());
    }
    let mut steps = vec![0; to.len() - shape.len()];
    let of_dims = shape.iter().zip(row_major(shape));
    steps.extend(of_dims.map(|(&extent, step)| if extent > 1 { step } else { 0 }));
    Ok(positions(to, &steps, 0).map(|at| values[at]).collect())
}
