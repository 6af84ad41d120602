//! A node with what is known of its inputs.

use super::Reader;
use super::schema::{Attribute, NodeMessage, TensorMessage};
use super::tensors::{Held, element_of};
use crate::Reason;
use crate::strided::volume;
use crate::weights::Element;

/// Why a node has no operation.
#[derive(Debug)]
pub(super) enum Stop {
    Reason(Reason),
    /// The extents of an input are unknown, for a node before has none.
    Follows,
}

impl<R: Into<Reason>> From<R> for Stop {
    fn from(reason: R) -> Self {
        Self::Reason(reason.into())
    }
}

pub(super) fn stop<T>(text: impl Into<Reason>) -> Result<T, Stop> {
    Err(Stop::Reason(text.into()))
}

/// A node in its network.
pub(super) struct View<'r, 'm> {
    pub(super) node: &'m NodeMessage,
    pub(super) reader: &'r Reader<'m>,
}

/// A part along one dim.
pub(super) struct Cut {
    pub(super) dim: usize,
    pub(super) start: usize,
    pub(super) count: usize,
    pub(super) step: i64,
}

impl<'r, 'm> View<'r, 'm> {
    pub(super) fn operator(&self) -> &'m str {
        &self.node.op_type
    }

    pub(super) fn count(&self) -> usize {
        self.node.input.len()
    }

    /// The name of an input; none where it is left out.
    pub(super) fn name(&self, index: usize) -> Option<&'m str> {
        let name = self.node.input.get(index).map(String::as_str);
        name.filter(|name| !name.is_empty())
    }

    pub(super) fn output(&self) -> &'m str {
        self.node.output.first().map_or("", String::as_str)
    }

    /// An input that does not depend on that of the network.
    pub(super) fn held(&self, index: usize) -> Option<&'r Held> {
        self.reader.known.get(self.name(index)?)
    }

    pub(super) fn extents(&self, index: usize) -> Result<Vec<usize>, Stop> {
        let Some(name) = self.name(index) else {
            return stop(format!("it has no input {index}"));
        };
        if let Some(held) = self.reader.known.get(name) {
            return Ok(held.shape.clone());
        }
        match self.reader.network.shapes.get(name) {
            Some(extents) => Ok(extents.clone()),
            None if self.reader.unknown.contains(name) => Err(Stop::Follows),
            None => stop(format!("it reads `{name}`, which nothing computes")),
        }
    }

    pub(super) fn element(&self, index: usize) -> Option<Element> {
        let name = self.name(index)?;
        let held = self.reader.known.get(name).map(|held| held.element);
        held.or_else(|| self.reader.elements.get(name).copied())
    }

    fn attribute(&self, name: &str) -> Option<&'m Attribute> {
        self.node.attribute.iter().find(|one| one.name == name)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.attribute(name).is_some()
    }

    pub(super) fn tensor_attribute(&self, name: &str) -> Option<&'m TensorMessage> {
        self.attribute(name)?.t.as_ref()
    }

    pub(super) fn int(&self, name: &str, default: i64) -> Result<i64, Stop> {
        match self.attribute(name) {
            None => Ok(default),
            Some(one) => match one.i {
                Some(value) => Ok(value),
                None => stop(strange(name)),
            },
        }
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, Stop> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    /// A number; those of single precision are read as the shortest decimal, which is what was written.
    pub(super) fn float(&self, name: &str, default: f64) -> Result<f64, Stop> {
        match self.attribute(name) {
            None => Ok(default),
            Some(one) => match one.f {
                Some(value) => Ok(decimal(value)),
                None => stop(strange(name)),
            },
        }
    }

    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        Some(self.attribute(name)?.ints.clone())
    }

    pub(super) fn floats(&self, name: &str) -> Option<Vec<f64>> {
        let all = self.attribute(name)?.floats.iter().copied();
        Some(all.map(decimal).collect())
    }

    pub(super) fn text(&self, name: &str, default: &str) -> String {
        let bytes = self.attribute(name).and_then(|one| one.s.as_ref());
        bytes.map_or_else(
            || default.to_owned(),
            |bytes| String::from_utf8_lossy(bytes).into_owned(),
        )
    }

    /// Whole numbers per spatial dim.
    pub(super) fn amounts(
        &self,
        name: &str,
        dims: usize,
        default: usize,
    ) -> Result<Vec<usize>, Stop> {
        let Some(values) = self.ints(name) else {
            return Ok(vec![default; dims]);
        };
        let values: Option<Vec<usize>> = values.iter().map(|&one| one.try_into().ok()).collect();
        match values {
            Some(values) if values.len() == dims => Ok(values),
            Some(_) | None => stop(strange(name)),
        }
    }

    /// The numbers of a tensor that does not depend on the input.
    pub(super) fn values(&self, held: &Held) -> Result<Vec<f64>, Stop> {
        Ok(held.values(&self.reader.folder)?)
    }

    /// The numbers of an input that has to be constant; none where it is left out.
    pub(super) fn constant(&self, index: usize) -> Result<Option<Vec<f64>>, Stop> {
        let Some(name) = self.name(index) else {
            return Ok(None);
        };
        match self.held(index) {
            Some(held) if held.volume() <= 1 << 16 => self.values(held).map(Some),
            Some(_) => stop(format!("its input `{name}` is too large")),
            None if self.reader.unknown.contains(name) => Err(Stop::Follows),
            None => stop(format!(
                "its input `{name}` depends on the input of the network, and a constant is possible"
            )),
        }
    }

    /// One constant number; the default where it is left out.
    pub(super) fn scalar(&self, index: usize, default: f64) -> Result<f64, Stop> {
        match self.constant(index)?.as_deref() {
            None => Ok(default),
            Some(&[value]) => Ok(value),
            Some(_) => stop(format!("its input {index} is no single number")),
        }
    }

    /// Whole numbers of a constant input, which may be negative.
    pub(super) fn signed_values(&self, index: usize) -> Result<Option<Vec<i64>>, Stop> {
        let values = self.constant(index)?;
        Ok(values.map(|values| values.into_iter().map(|one| one as i64).collect()))
    }

    pub(super) fn whole_values(&self, index: usize) -> Result<Vec<usize>, Stop> {
        let values = self.signed_values(index)?.unwrap_or_default();
        let values: Option<Vec<usize>> = values.iter().map(|&one| one.try_into().ok()).collect();
        match values {
            Some(values) => Ok(values),
            None => stop("it has a negative extent"),
        }
    }

    /// The index of a dim; negative ones count from the end.
    pub(super) fn dim(&self, dim: i64, rank: usize) -> Result<usize, Stop> {
        let count = rank as i64;
        let from_start = if dim < 0 {
            dim.saturating_add(count)
        } else {
            dim
        };
        match usize::try_from(from_start) {
            Ok(index) if index < rank => Ok(index),
            Ok(_) | Err(_) => stop(format!("it has no dim {dim}")),
        }
    }

    /// Dims of an attribute, or of an input in newer opsets; none if neither is there.
    pub(super) fn dims(&self, index: usize, rank: usize) -> Result<Option<Vec<usize>>, Stop> {
        let listed = match self.ints("axes") {
            Some(listed) => Some(listed),
            None => self.signed_values(index)?,
        };
        let dims = listed.map(|all| all.into_iter().map(|dim| self.dim(dim, rank)).collect());
        dims.transpose()
    }

    /// The order of dims of a transposition.
    pub(super) fn order(&self, rank: usize) -> Result<Vec<usize>, Stop> {
        match self.ints("perm") {
            None => Ok((0..rank).rev().collect()),
            Some(order) => order.into_iter().map(|dim| self.dim(dim, rank)).collect(),
        }
    }

    /// The extents of the output of a node that keeps its elements in order.
    pub(super) fn other_extents(&self, extents: &[usize]) -> Result<Vec<usize>, Stop> {
        let rank = extents.len();
        match self.operator() {
            "Flatten" => {
                let axis = self.int("axis", 1)?;
                let axis = if axis == rank as i64 {
                    rank
                } else {
                    self.dim(axis, rank)?
                };
                let product =
                    |part: &[usize]| part.iter().fold(1usize, |a, &b| a.saturating_mul(b));
                Ok(vec![product(&extents[..axis]), product(&extents[axis..])])
            }
            "Squeeze" => {
                let dims = self.dims(1, rank)?;
                let is_left_out = |dim: usize| match &dims {
                    Some(dims) => dims.contains(&dim),
                    None => extents[dim] == 1,
                };
                let kept = (0..rank).filter(|&dim| !is_left_out(dim));
                Ok(kept.map(|dim| extents[dim]).collect())
            }
            "Unsqueeze" => {
                let listed = match self.ints("axes") {
                    Some(listed) => listed,
                    None => self.signed_values(1)?.unwrap_or_default(),
                };
                let count = rank.saturating_add(listed.len());
                let new = listed.into_iter().map(|dim| self.dim(dim, count));
                let new: Vec<usize> = new.collect::<Result<_, _>>()?;
                let mut old = extents.iter().copied();
                let all = (0..count).map(|dim| {
                    let extent = if new.contains(&dim) {
                        Some(1)
                    } else {
                        old.next()
                    };
                    extent.unwrap_or(1)
                });
                Ok(all.collect())
            }
            _ => self.reshaped(extents),
        }
    }

    fn reshaped(&self, extents: &[usize]) -> Result<Vec<usize>, Stop> {
        let Some(asked) = self.signed_values(1)? else {
            return stop("it has no extents");
        };
        let keeps_zero = self.flag("allowzero", false)?;
        let mut to = Vec::with_capacity(asked.len());
        let mut open = None;
        for (dim, &one) in asked.iter().enumerate() {
            to.push(match one {
                0 if !keeps_zero => *extents
                    .get(dim)
                    .ok_or("it keeps an extent that its input lacks")?,
                -1 if open.is_none() => {
                    open = Some(dim);
                    1
                }
                one => usize::try_from(one).map_err(|_| "it has a negative extent")?,
            });
        }
        let product = |all: &[usize]| volume(all).ok_or("it has too many elements");
        let (all, named) = (product(extents)?, product(&to)?);
        if let Some(dim) = open {
            if named == 0 || !all.is_multiple_of(named) {
                return stop(format!("it makes {to:?} of {extents:?}"));
            }
            to[dim] = all / named;
        } else if all != named {
            return stop(format!("it makes {to:?} of {extents:?}"));
        }
        Ok(to)
    }

    /// The parts of a slice, in the order of its axes.
    pub(super) fn cuts(&self, extents: &[usize]) -> Result<Vec<Cut>, Stop> {
        let list = |index| self.signed_values(index);
        let (Some(starts), Some(ends)) = (list(1)?, list(2)?) else {
            return stop("it has no starts and ends");
        };
        let dims = list(3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
        let steps = list(4)?.unwrap_or_else(|| vec![1; starts.len()]);
        if [ends.len(), dims.len(), steps.len()] != [starts.len(); 3] {
            return stop("its starts, ends, axes and steps are not equally many");
        }
        let mut cuts = Vec::new();
        for index in 0..starts.len() {
            let dim = self.dim(dims[index], extents.len())?;
            let step = steps[index];
            if step < 1 {
                return stop("a slice with a negative step is not read");
            }
            let extent = extents[dim] as i64;
            let place = |value: i64| {
                let value = if value < 0 {
                    value.saturating_add(extent)
                } else {
                    value
                };
                value.clamp(0, extent)
            };
            let (start, end) = (place(starts[index]), place(ends[index]));
            let held = (end - start).max(0);
            cuts.push(Cut {
                dim,
                start: start as usize,
                count: (held / step + i64::from(held % step != 0)) as usize,
                step,
            });
        }
        Ok(cuts)
    }

    /// The element type that a cast makes.
    pub(super) fn cast_to(&self) -> Result<Option<Element>, Stop> {
        if self.operator() == "CastLike" {
            return Ok(self.element(1));
        }
        let to = i32::try_from(self.int("to", 0)?).unwrap_or(0);
        Ok(element_of(to))
    }
}

fn strange(name: &str) -> String {
    format!("its attribute `{name}` has a value that is not read")
}

/// The number whose shortest decimal in single precision is that of `value`.
fn decimal(value: f32) -> f64 {
    format!("{value}")
        .parse()
        .unwrap_or_else(|_| f64::from(value))
}
