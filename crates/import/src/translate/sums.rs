//! Sums and products of two tensors, or of a tensor and a parameter.

use super::operate::weighted;
use super::{Fault, Tensor, Translation, reason};
use crate::layout::Axis;
use crate::network::Call;
use partita_graph::{Activation, Convolution, NodeId, Op, Shape};
use partita_space::Window;

/// Makes ones of anything finite.
const ONE: Activation = Activation::Affine {
    scale: 0.0,
    shift: 1.0,
};

impl Translation<'_> {
    pub(super) fn square(&mut self, call: &Call, tensor: &Tensor) -> Result<Tensor, Fault> {
        let node = self.plain(call, Op::Multiply, &[tensor.node; 2])?;
        let layout = tensor.layout.clone();
        Ok(Tensor { node, layout })
    }

    pub(super) fn add(&mut self, call: &Call, left: &Tensor) -> Result<Tensor, Fault> {
        let right = self.tensor(call, 1)?;
        self.sum(call, left, &right)
    }

    pub(super) fn subtract(
        &mut self,
        call: &Call,
        factor: f64,
        left: &Tensor,
    ) -> Result<Tensor, Fault> {
        let right = self.tensor(call, 1)?;
        let negated = Activation::Affine {
            scale: -factor,
            shift: 0.0,
        };
        let right = self.function(call, Op::Activation(negated), &right)?;
        self.sum(call, left, &right)
    }

    pub(super) fn sum(
        &mut self,
        call: &Call,
        left: &Tensor,
        right: &Tensor,
    ) -> Result<Tensor, Fault> {
        let (left, right) = &self.at_equal_extents(call, left, right)?;
        if left.layout != right.layout || self.shape(left) != self.shape(right) {
            return reason("a sum of tensors of different extents or orders of dims is not read");
        }
        let node = self.plain(call, Op::Add, &[left.node, right.node])?;
        Ok(Tensor {
            node,
            layout: left.layout.clone(),
        })
    }

    /// The index of the input of a product that is a parameter.
    pub(super) fn factor(&self, call: &Call) -> Option<usize> {
        (0..2).find(|&index| matches!(self.parameter(call, index), Ok(Some(_))))
    }

    /// A factor per channel that is trained: a convolution of each channel for itself.
    pub(super) fn scale(&mut self, call: &Call, index: usize) -> Result<Tensor, Fault> {
        let tensor = self.tensor(call, 1 - index)?;
        match self.count(call, index, &tensor)? {
            1 => {
                let factors = self.one_of_all(call, index, &tensor)?;
                let node = self.plain(call, Op::Multiply, &[tensor.node, factors])?;
                let layout = tensor.layout;
                Ok(Tensor { node, layout })
            }
            _ => self.scaled(call, index, &tensor),
        }
    }

    /// An offset that is trained, one or one per channel: it is what it makes of ones.
    pub(super) fn shift(&mut self, call: &Call, index: usize) -> Result<Tensor, Fault> {
        let tensor = self.tensor(call, 1 - index)?;
        let count = self.count(call, index, &tensor)?;
        let ones = self.function(call, Op::Activation(ONE), &tensor)?;
        let offsets = match count {
            1 if self.shape(&tensor).channels > 1 => {
                let one = self.one_of_all(call, index, &tensor)?;
                self.plain(call, Op::Multiply, &[ones.node, one])?
            }
            _ => self.scaled(call, index, &ones)?.node,
        };
        let node = self.plain(call, Op::Add, &[tensor.node, offsets])?;
        let layout = tensor.layout;
        Ok(Tensor { node, layout })
    }

    /// A parameter of one number, at each position of a tensor: a convolution of a channel of ones.
    fn one_of_all(&mut self, call: &Call, index: usize, tensor: &Tensor) -> Result<NodeId, Fault> {
        let mut node = tensor.node;
        if self.shape(tensor).channels > 1 {
            let slice = Op::Slice {
                start: 0,
                channels: 1,
            };
            node = self.plain(call, slice, &[node])?;
        }
        let node = self.plain(call, Op::Activation(ONE), &[node])?;
        let layout = tensor.layout.clone();
        Ok(self.scaled(call, index, &Tensor { node, layout })?.node)
    }

    /// Numbers of a parameter that a tensor is scaled or shifted by: one, or as many as channels.
    fn count(&self, call: &Call, index: usize, tensor: &Tensor) -> Result<usize, Fault> {
        let Some(factor) = self.parameter(call, index)? else {
            return reason("it has no factor that is read");
        };
        let count = factor.shape.iter().product::<usize>();
        let channels = self.shape(tensor).channels;
        if count == 1 && factor.shape.len() <= tensor.layout.dims() {
            return Ok(1);
        }
        // Dims are aligned at their ends.
        let first = tensor.layout.dims().checked_sub(factor.shape.len());
        let is_per_channel = first.is_some_and(|first| {
            let mut dims = factor.shape.iter().enumerate();
            dims.all(|(dim, &extent)| {
                extent == 1
                    || (extent == channels && *tensor.layout.axes(first + dim) == [Axis::Channel])
            })
        });
        if !is_per_channel || count != channels {
            return reason(
                "a sum or product with a parameter that is not one number, or one for each channel, is not read",
            );
        }
        Ok(count)
    }

    /// A tensor times the parameter that a call reads, one factor for each channel.
    pub(super) fn scaled(
        &mut self,
        call: &Call,
        index: usize,
        tensor: &Tensor,
    ) -> Result<Tensor, Fault> {
        let Some(factor) = self.parameter(call, index)? else {
            return reason("it has no factor that is read");
        };
        let channels = self.shape(tensor).channels;
        let op = Op::Convolution(Convolution {
            filters: channels,
            window: [Window::ONE; 3],
            periodic: false,
            groups: channels,
            bias: false,
        });
        let node = self.node(call, op, &[tensor.node], &weighted(factor, None))?;
        Ok(Tensor {
            node,
            layout: tensor.layout.clone(),
        })
    }

    pub(super) fn multiply(&mut self, call: &Call, first: &Tensor) -> Result<Tensor, Fault> {
        let second = self.tensor(call, 1)?;
        let volume = |one: &Tensor| self.shape(one).volume();
        let (large, small) = if volume(first) >= volume(&second) {
            (first, &second)
        } else {
            (&second, first)
        };
        let (shape, factors): (Shape, Shape) = (self.shape(large), self.shape(small));
        let is_per_channel = factors.extent == [1; 3] && factors.channels == shape.channels;
        let is_per_position = factors.channels == 1 && factors.extent == shape.extent;
        // Each channel of one position times each position of one channel.
        if shape.extent == [1; 3] && factors.channels == 1 && factors.extent != [1; 3] {
            return self.outer(call, large, small);
        }
        if factors.extent == [1; 3] && factors.channels > 1 && shape.channels == 1 {
            return self.outer(call, small, large);
        }
        let fits = shape == factors || is_per_channel || is_per_position;
        if !fits || !large.layout.broadcasts(&small.layout) {
            return reason("a product of tensors of these extents or orders of dims is not read");
        }
        let (inputs, layout) = ([large.node, small.node], large.layout.clone());
        let node = self.plain(call, Op::Multiply, &inputs)?;
        Ok(Tensor { node, layout })
    }
}
