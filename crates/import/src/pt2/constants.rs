//! Tensors that do not depend on the input, computed as PyTorch does: masks, indices, and rows of parameters that an
//! index selects. Views share their memory, so that what is written to one is seen in all.
//!
//! Source: PyTorch, `aten/src/ATen/native/native_functions.yaml`.

use super::operators::Arguments;
use super::schema::{Argument, OptionalTensor};
use crate::network::Constant;
use crate::strided::{self, row_major};
use std::collections::BTreeMap;

/// Most elements of a tensor that is computed here.
const COUNT_MAX: usize = 1 << 26;
/// The schema's number of bool.
const BOOL: u64 = 12;

/// A view of memory.
#[derive(Clone, Debug)]
struct Strided {
    memory: usize,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

/// Memory of tensors: numbers that single precision holds exactly, as masks and indices are.
#[derive(Debug)]
struct Memory {
    values: Vec<f32>,
    /// The parameter whose elements the values are, by their numbers.
    of: Option<String>,
    is_bool: bool,
}

/// All that is known.
#[derive(Debug, Default)]
pub(super) struct Constants {
    memory: Vec<Memory>,
    known: BTreeMap<String, Strided>,
}

impl Constants {
    /// A tensor of the file.
    pub(super) fn insert(
        &mut self,
        name: &str,
        shape: &[usize],
        (values, is_bool): (&[f64], bool),
    ) {
        let values: Option<Vec<f32>> = values.iter().map(|&one| exact(one)).collect();
        if let Some(values) = values {
            let strided = self.own(shape, values, None, is_bool);
            self.known.insert(name.to_owned(), strided);
        }
    }

    /// Frees what no later call reads.
    pub(super) fn forget(&mut self, name: &str) {
        let Some(gone) = self.known.remove(name) else {
            return;
        };
        if !self.known.values().any(|other| other.memory == gone.memory) {
            self.memory[gone.memory].values = Vec::new();
        }
    }

    /// The tensor as it is now.
    pub(super) fn get(&self, name: &str) -> Option<Constant> {
        let strided = self.known.get(name)?;
        let memory = &self.memory[strided.memory];
        Some(Constant {
            of: memory.of.clone(),
            shape: strided.shape.clone(),
            values: self.values(strided),
            is_bool: memory.is_bool,
        })
    }

    /// Computes a call, if all that it reads is known; whether it did. `parameter` gives the extents of a parameter.
    pub(super) fn fold<'a>(
        &mut self,
        call: &Arguments<'_>,
        outputs: &[String],
        parameter: &impl Fn(&str) -> Option<&'a [usize]>,
    ) -> bool {
        let Some(found) = self.folded(call, parameter) else {
            return false;
        };
        if let [output] = outputs {
            self.known.insert(output.clone(), found);
        }
        true
    }

    fn folded<'a>(
        &mut self,
        call: &Arguments<'_>,
        parameter: &impl Fn(&str) -> Option<&'a [usize]>,
    ) -> Option<Strided> {
        let (base, overload) = call.name();
        if let Some(made) = self.made(base, call) {
            return Some(made);
        }
        if base == "index" {
            return self.indexed(call, parameter);
        }
        let names = call.all_tensors();
        let inputs: Option<Vec<Strided>> = names
            .iter()
            .map(|name| self.known.get(name).cloned())
            .collect();
        let inputs = inputs.filter(|inputs| !inputs.is_empty())?;
        let first = inputs[0].clone();
        if let Some(view) = self.viewed(base, call, &first) {
            return Some(view);
        }
        if self.memory[first.memory].of.is_some() {
            return None;
        }
        if call.is_in_place() {
            let values = self.computed((base, overload), call, &inputs, &first.shape)?;
            self.write(&first, &values);
            return Some(first);
        }
        let shape = call.outputs().first()?.to_vec();
        let values = self.computed((base, overload), call, &inputs, &shape)?;
        let is_bool = call.output_type() == Some(BOOL);
        Some(self.own(&shape, values, None, is_bool))
    }

    /// A tensor of given numbers.
    fn made(&mut self, base: &str, call: &Arguments<'_>) -> Option<Strided> {
        let shape = call.outputs().first()?.to_vec();
        let count = volume(&shape)?;
        let is_bool = call.output_type() == Some(BOOL);
        let values = match base {
            "zeros" | "new_zeros" | "zeros_like" => vec![0.0; count],
            "ones" | "new_ones" | "ones_like" => vec![1.0; count],
            "full" | "new_full" | "full_like" => {
                let name = ["fill_value", "value"]
                    .into_iter()
                    .find(|name| call.find(name).is_some());
                vec![exact(number(call, name?)?)?; count]
            }
            "arange" => {
                let start = call.number("start", 0.0).ok()?;
                let step = call.number("step", 1.0).ok()?;
                {
                    let all = (0..count).map(|at| exact(start + step * at as f64));
                    all.collect::<Option<_>>()?
                }
            }
            _ => return None,
        };
        Some(self.own(&shape, values, None, is_bool))
    }

    /// Rows of a constant or of a parameter.
    fn indexed<'a>(
        &mut self,
        call: &Arguments<'_>,
        parameter: &impl Fn(&str) -> Option<&'a [usize]>,
    ) -> Option<Strided> {
        let of = call.tensors(&["self"]).pop()??;
        let index = match call.find("indices")? {
            Argument::AsTensors(all) => all.as_slice().first().filter(|_| all.len() == 1),
            Argument::AsOptionalTensors(all) => match &all[..] {
                [OptionalTensor::AsTensor(index)] => Some(index),
                _ => None,
            },
            _ => None,
        };
        let index = self.known.get(&index?.name)?;
        if self.memory[index.memory].is_bool || self.memory[index.memory].of.is_some() {
            return None;
        }
        let (rows, shape_of_index) = (self.values(index), index.shape.clone());
        let (shape, all, origin) = match self.known.get(&of) {
            Some(known) => {
                let origin = self.memory[known.memory].of.clone();
                (known.shape.clone(), self.values(known), origin)
            }
            None => {
                let shape = parameter(&of)?.to_vec();
                let count = volume(&shape)?;
                (
                    shape,
                    (0..count)
                        .map(|at| exact(at as f64))
                        .collect::<Option<_>>()?,
                    Some(of),
                )
            }
        };
        let (&count, rest) = shape.split_first()?;
        let width = volume(rest)?;
        volume(&[&shape_of_index[..], rest].concat())?;
        let mut values = Vec::with_capacity(rows.len() * width);
        for row in rows {
            let row = if row < 0.0 { row + count as f32 } else { row };
            let first = (row as usize).checked_mul(width)?;
            values.extend_from_slice(all.get(first..first.checked_add(width)?)?);
        }
        let shape = [&shape_of_index[..], rest].concat();
        Some(self.own(&shape, values, origin, false))
    }

    /// What shows the memory of the first input, or a copy of it; none for other operators.
    fn viewed(&mut self, base: &str, call: &Arguments<'_>, of: &Strided) -> Option<Strided> {
        let mut view = of.clone();
        match base {
            "alias" | "detach" | "view_as" if call.outputs().first() == Some(&&of.shape[..]) => {}
            "slice" => {
                let dim = call.dim("dim", 0).ok()?;
                let extent = of.shape[dim] as i64;
                let place = |at: i64| (if at < 0 { at + extent } else { at }).clamp(0, extent);
                let start = place(call.whole("start", 0).ok()?);
                let end = place(call.whole("end", i64::MAX).ok()?);
                let step = usize::try_from(call.whole("step", 1).ok()?)
                    .ok()
                    .filter(|&one| one > 0)?;
                view.offset += start as usize * of.strides[dim];
                view.shape[dim] = ((end - start).max(0) as usize).div_ceil(step);
                view.strides[dim] *= step;
            }
            "select" => {
                let dim = call.dim("dim", 0).ok()?;
                let extent = of.shape[dim] as i64;
                let at = call.whole("index", 0).ok()?;
                let at = usize::try_from(if at < 0 { at + extent } else { at }).ok()?;
                if at >= of.shape[dim] {
                    return None;
                }
                view.offset += at * of.strides[dim];
                view.shape.remove(dim);
                view.strides.remove(dim);
            }
            "permute" | "transpose" | "t" | "swapaxes" => {
                let order = order(base, call, of.shape.len())?;
                view.shape = order.iter().map(|&dim| of.shape[dim]).collect();
                view.strides = order.iter().map(|&dim| of.strides[dim]).collect();
            }
            "expand" | "expand_as" => {
                let shape = call.outputs().first()?.to_vec();
                volume(&shape)?;
                view = of.broadcast(&shape)?;
            }
            "view" | "reshape" | "_unsafe_view" | "flatten" | "unflatten" | "squeeze"
            | "unsqueeze" | "reshape_as" | "view_as" => {
                let shape = call.outputs().first()?.to_vec();
                if !of.is_row_major() {
                    view = self.copied(of);
                }
                view.strides = row_major(&shape);
                view.shape = shape;
            }
            "contiguous" | "clone" | "lift_fresh_copy" => view = self.copied(of),
            "to" | "_to_copy" if call.is_one_type() => view = self.copied(of),
            _ => return None,
        }
        (volume(&view.shape)? == volume(call.outputs().first().unwrap_or(&&view.shape[..]))?)
            .then_some(view)
    }

    /// Values of a function of elements in these extents.
    fn computed(
        &self,
        (base, overload): (&str, &str),
        call: &Arguments<'_>,
        inputs: &[Strided],
        shape: &[usize],
    ) -> Option<Vec<f32>> {
        let count = volume(shape)?;
        let all: Option<Vec<Vec<f32>>> = inputs
            .iter()
            .map(|input| Some(self.values(&input.broadcast(shape)?)))
            .collect();
        let all = all?;
        let [first, others @ ..] = &all[..] else {
            return None;
        };
        let both = |name: &str, function: &dyn Fn(f64, f64) -> f64| -> Option<Vec<f32>> {
            match others {
                [] => {
                    let number = number(call, name)?;
                    let all = first.iter();
                    all.map(|&one| exact(function(f64::from(one), number)))
                        .collect()
                }
                [other] => {
                    let pairs = first.iter().zip(other);
                    let both = |(&one, &other): (&f32, &f32)| {
                        exact(function(f64::from(one), f64::from(other)))
                    };
                    pairs.map(both).collect()
                }
                _ => None,
            }
        };
        match base {
            "fill" => Some(vec![exact(number(call, "value")?)?; count]),
            "zero" => Some(vec![0.0; count]),
            "copy" => others.first().cloned(),
            "neg" => Some(first.iter().map(|one| -one).collect()),
            "abs" => Some(first.iter().map(|one| one.abs()).collect()),
            "logical_not" | "bitwise_not" if self.memory[inputs[0].memory].is_bool => Some(
                first
                    .iter()
                    .map(|&one| f32::from(u8::from(one == 0.0)))
                    .collect(),
            ),
            "masked_fill" => {
                let mask = others.first()?;
                let value = match others {
                    [_, value] => value.clone(),
                    _ => vec![exact(number(call, "value")?)?; count],
                };
                let all = first.iter().zip(mask).zip(&value);
                Some(
                    all.map(|((&one, &mask), &value)| if mask == 0.0 { one } else { value })
                        .collect(),
                )
            }
            "where" if overload == "self" => {
                let [yes, no] = others else { return None };
                let all = first.iter().zip(yes).zip(no);
                Some(
                    all.map(|((&one, &yes), &no)| if one == 0.0 { no } else { yes })
                        .collect(),
                )
            }
            "triu" | "tril" => triangle(
                base == "triu",
                call.whole("diagonal", 0).ok()?,
                shape,
                first,
            ),
            _ => both("other", &function(base, call)?),
        }
    }

    fn own(
        &mut self,
        shape: &[usize],
        values: Vec<f32>,
        of: Option<String>,
        is_bool: bool,
    ) -> Strided {
        self.memory.push(Memory {
            values,
            of,
            is_bool,
        });
        Strided {
            memory: self.memory.len() - 1,
            offset: 0,
            shape: shape.to_vec(),
            strides: row_major(shape),
        }
    }

    fn copied(&mut self, of: &Strided) -> Strided {
        let Memory {
            of: origin,
            is_bool,
            ..
        } = &self.memory[of.memory];
        let (origin, is_bool) = (origin.clone(), *is_bool);
        self.own(&of.shape, self.values(of), origin, is_bool)
    }

    fn values(&self, of: &Strided) -> Vec<f32> {
        let memory = &self.memory[of.memory].values;
        of.positions().map(|at| memory[at]).collect()
    }

    fn write(&mut self, to: &Strided, values: &[f32]) {
        let memory = &mut self.memory[to.memory].values;
        for (at, &value) in to.positions().zip(values) {
            memory[at] = value;
        }
    }
}

impl Strided {
    fn positions(&self) -> impl Iterator<Item = usize> {
        strided::positions(&self.shape, &self.strides, self.offset)
    }

    fn is_row_major(&self) -> bool {
        let dims = self
            .shape
            .iter()
            .zip(&self.strides)
            .zip(row_major(&self.shape));
        dims.into_iter()
            .all(|((&extent, &stride), dense)| extent == 1 || stride == dense)
    }

    /// The same elements in larger extents, repeated where these are 1; none if they are others.
    fn broadcast(&self, shape: &[usize]) -> Option<Self> {
        let missing = shape.len().checked_sub(self.shape.len())?;
        let mut view = self.clone();
        view.shape = shape.to_vec();
        view.strides = vec![0; shape.len()];
        for (dim, (&extent, &stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            let wanted = shape[missing + dim];
            if extent != wanted && extent != 1 {
                return None;
            }
            view.strides[missing + dim] = if extent == wanted { stride } else { 0 };
        }
        Some(view)
    }
}

/// A function of two numbers.
fn function(base: &str, call: &Arguments<'_>) -> Option<Box<dyn Fn(f64, f64) -> f64>> {
    let alpha = call.number("alpha", 1.0).ok()?;
    let holds = |relation: fn(f64, f64) -> bool| -> Box<dyn Fn(f64, f64) -> f64> {
        Box::new(move |a, b| f64::from(u8::from(relation(a, b))))
    };
    Some(match base {
        "add" => Box::new(move |a, b| a + alpha * b),
        "sub" => Box::new(move |a, b| a - alpha * b),
        "rsub" => Box::new(move |a, b| b - alpha * a),
        "mul" | "multiply" => Box::new(|a, b| a * b),
        "div" if call.find("rounding_mode").is_none() => Box::new(|a, b| a / b),
        "floor_divide" => Box::new(|a, b| (a / b).floor()),
        "remainder" => Box::new(|a, b| a - (a / b).floor() * b),
        "eq" => holds(|a, b| a == b),
        "ne" => holds(|a, b| a != b),
        "lt" => holds(|a, b| a < b),
        "le" => holds(|a, b| a <= b),
        "gt" => holds(|a, b| a > b),
        "ge" => holds(|a, b| a >= b),
        "logical_and" => holds(|a, b| a != 0.0 && b != 0.0),
        "logical_or" => holds(|a, b| a != 0.0 || b != 0.0),
        _ => return None,
    })
}

/// The dims in their new order.
fn order(base: &str, call: &Arguments<'_>, dims: usize) -> Option<Vec<usize>> {
    if base == "permute" {
        let dims = call.wholes("dims").ok()??.into_iter();
        return dims.map(|dim| call.index(dim).ok()).collect();
    }
    let names = match base {
        "swapaxes" => ["axis0", "axis1"],
        _ => ["dim0", "dim1"],
    };
    let mut order: Vec<usize> = (0..dims).collect();
    order.swap(call.dim(names[0], 0).ok()?, call.dim(names[1], 1).ok()?);
    Some(order)
}

fn triangle(is_upper: bool, diagonal: i64, shape: &[usize], values: &[f32]) -> Option<Vec<f32>> {
    let &[.., rows, columns] = shape else {
        return None;
    };
    let is_kept = |at: usize| {
        let (row, column) = ((at / columns % rows) as i64, (at % columns) as i64);
        if is_upper {
            column - row >= diagonal
        } else {
            column - row <= diagonal
        }
    };
    let all = values.iter().enumerate();
    Some(
        all.map(|(at, &one)| if is_kept(at) { one } else { 0.0 })
            .collect(),
    )
}

/// The number in single precision; none where that is another one.
fn exact(number: f64) -> Option<f32> {
    let single = number as f32;
    (f64::from(single) == number).then_some(single)
}

/// A number that is not left out.
fn number(call: &Arguments<'_>, name: &str) -> Option<f64> {
    match call.find(name)? {
        Argument::AsBool(flag) => Some(f64::from(u8::from(*flag))),
        _ => call.number(name, 0.0).ok(),
    }
}

/// Elements of these extents; none if they are too many.
fn volume(shape: &[usize]) -> Option<usize> {
    strided::volume(shape).filter(|&count| count <= COUNT_MAX)
}
