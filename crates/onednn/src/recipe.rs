//! The primitives of a problem, in their order, and where their tensors lie.
//!
//! A convolution in three dims whose output has a halo:
//!
//! ```text
//! reorder      weights of the program -> weights of the library's choice   in the workspace
//! convolution  input, these weights, bias -> contiguous output             in the workspace
//! reorder      contiguous output -> output of the program
//! ```
//!
//! The library has fast code for contiguous activations only, so strided ones are copied.

use crate::api::{
    ConvolutionDesc, MemoryDesc, OneDnnError, PostOps, PrimitiveDesc, argument, query,
};
use crate::convolution::Shape;
use crate::library::Library;
use crate::problem::{Pass, Problem, Tensor};
use std::ffi::c_int;

/// Tensors in the workspace begin at multiples of this.
pub(crate) const ALIGNMENT: usize = 64;

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Input,
    Output,
    Weights,
    Bias,
    /// In the workspace, from this byte on.
    Workspace(usize),
    /// In the workspace, behind all tensors.
    Scratchpad,
}

/// A primitive with its arguments: their numbers, and tensors by index.
pub(crate) struct Step {
    pub(crate) primitive: PrimitiveDesc,
    pub(crate) arguments: Vec<(c_int, usize)>,
}

/// How a problem is computed.
pub(crate) struct Recipe<'l> {
    library: &'l Library,
    pub(crate) steps: Vec<Step>,
    pub(crate) tensors: Vec<(MemoryDesc, Place)>,
    /// Bytes of the tensors in the workspace.
    pub(crate) end: usize,
    scratchpad: usize,
}

/// The library computes a problem by plain loops.
const REFERENCE: &str = "ref";

impl<'l> Recipe<'l> {
    /// The recipe of a problem, for the threads of the caller's [`Library::with_threads`]; none if the library has no
    /// fast code for it.
    ///
    /// Errors: the library refuses the problem.
    pub(crate) fn of(library: &'l Library, problem: &Problem) -> Result<Option<Self>, OneDnnError> {
        let mut recipe = Self {
            library,
            steps: Vec::new(),
            tensors: Vec::new(),
            end: 0,
            scratchpad: 0,
        };
        let shape = Shape::of(problem);
        let is_fast = match problem.pass {
            Pass::Forward { has_bias, slope } => {
                let slope = slope.map(f32::from_bits);
                recipe.forward(problem, &shape, (has_bias, slope))
            }
            Pass::BackwardData => recipe.backward_data(problem, &shape),
            Pass::BackwardWeight { has_bias } => recipe.backward_weight(problem, &shape, has_bias),
        }?;
        Ok(is_fast.then_some(recipe))
    }

    /// Bytes of workspace.
    pub(crate) fn workspace(&self) -> usize {
        match self.end + self.scratchpad {
            0 => 0,
            // The workspace itself may begin anywhere.
            bytes => bytes + ALIGNMENT,
        }
    }

    fn forward(
        &mut self,
        problem: &Problem,
        shape: &Shape<'_>,
        (has_bias, slope): (bool, Option<f32>),
    ) -> Result<bool, OneDnnError> {
        let library = self.library;
        let is_placed = problem.output.is_dense();
        let post_ops = PostOps {
            accumulate: problem.accumulate && is_placed,
            slope,
        };
        let bias = has_bias.then(|| shape.bias(&library.api)).transpose()?;
        let primitive = self.convolution(problem, shape, bias.as_ref(), post_ops)?;
        if !self.is_fast(&primitive)? {
            return Ok(false);
        }
        let input = self.contiguous_source(shape, &problem.input, Place::Input)?;
        let weights = self.weights(shape, &primitive)?;
        let output = shape.dense(&library.api, &problem.output)?;
        let output = if is_placed {
            self.tensor(output, Place::Output)
        } else {
            self.temporary(output)
        };
        let mut arguments = vec![
            (argument::SOURCE, input),
            (argument::WEIGHTS, weights),
            (argument::TARGET, output),
        ];
        if let Some(bias) = bias {
            arguments.push((argument::BIAS, self.tensor(bias, Place::Bias)));
        }
        self.step(primitive, arguments)?;
        if !is_placed {
            let placed = shape.placed(&library.api, &problem.output)?;
            self.copy_out(output, (placed, Place::Output), problem.accumulate)?;
        }
        Ok(true)
    }

    fn backward_data(&mut self, problem: &Problem, shape: &Shape<'_>) -> Result<bool, OneDnnError> {
        let library = self.library;
        let (api, engine) = (&library.api, &library.engine);
        let forward = self.convolution(problem, shape, None, PostOps::default())?;
        let free = shape.free_weights(api)?;
        let [source, target] = self.activations(problem, shape)?;
        let primitive = {
            let of = convolution_desc(shape, [&source, &free, &target], None);
            let attributes = api.attributes(PostOps::default())?;
            api.backward_data(engine, &of, &forward, &attributes)?
        };
        if !self.is_fast(&primitive)? {
            return Ok(false);
        }
        let output = self.contiguous_source(shape, &problem.output, Place::Output)?;
        let weights = self.weights(shape, &primitive)?;
        let is_placed = problem.input.is_dense() && !problem.accumulate;
        let input = if is_placed {
            self.tensor(source, Place::Input)
        } else {
            self.temporary(source)
        };
        let arguments = vec![
            (argument::TARGET_GRADIENT, output),
            (argument::WEIGHTS, weights),
            (argument::SOURCE_GRADIENT, input),
        ];
        self.step(primitive, arguments)?;
        if !is_placed {
            let placed = shape.placed(api, &problem.input)?;
            self.copy_out(input, (placed, Place::Input), problem.accumulate)?;
        }
        Ok(true)
    }

    fn backward_weight(
        &mut self,
        problem: &Problem,
        shape: &Shape<'_>,
        has_bias: bool,
    ) -> Result<bool, OneDnnError> {
        let library = self.library;
        let (api, engine) = (&library.api, &library.engine);
        let bias = has_bias.then(|| shape.bias(api)).transpose()?;
        let forward = self.convolution(problem, shape, bias.as_ref(), PostOps::default())?;
        let free = shape.free_weights(api)?;
        let [source, target] = self.activations(problem, shape)?;
        let primitive = {
            let of = convolution_desc(shape, [&source, &free, &target], bias.as_ref());
            let attributes = api.attributes(PostOps::default())?;
            api.backward_weights(engine, &of, &forward, &attributes)?
        };
        if !self.is_fast(&primitive)? {
            return Ok(false);
        }
        let input = self.contiguous_source(shape, &problem.input, Place::Input)?;
        let output = self.contiguous_source(shape, &problem.output, Place::Output)?;
        let mut arguments = vec![
            (argument::SOURCE, input),
            (argument::TARGET_GRADIENT, output),
        ];
        let mut results = Vec::new();
        let own = api.format(&primitive, query::WEIGHTS_GRADIENT)?;
        let plain = shape.plain_weights(api)?;
        let weights = (argument::WEIGHTS_GRADIENT, own, (plain, Place::Weights));
        let bias = bias.map(|own| {
            let placed = shape.bias(api)?;
            Ok((argument::BIAS_GRADIENT, own, (placed, Place::Bias)))
        });
        for (number, own, placed) in [Some(weights), bias.transpose()?].into_iter().flatten() {
            let is_placed = !problem.accumulate && api.are_equal(&own, &placed.0);
            let result = if is_placed {
                self.tensor(own, placed.1)
            } else {
                let made = self.temporary(own);
                results.push((made, placed));
                made
            };
            arguments.push((number, result));
        }
        self.step(primitive, arguments)?;
        for (made, placed) in results {
            self.copy_out(made, placed, problem.accumulate)?;
        }
        Ok(true)
    }

    /// Of contiguous activations, with weights in a format of the library's choice.
    fn convolution(
        &self,
        problem: &Problem,
        shape: &Shape<'_>,
        bias: Option<&MemoryDesc>,
        post_ops: PostOps,
    ) -> Result<PrimitiveDesc, OneDnnError> {
        let (api, engine) = (&self.library.api, &self.library.engine);
        let free = shape.free_weights(api)?;
        let [source, target] = self.activations(problem, shape)?;
        let of = convolution_desc(shape, [&source, &free, &target], bias);
        api.forward(engine, &of, &api.attributes(post_ops)?)
    }

    /// Input and output, contiguous.
    fn activations(
        &self,
        problem: &Problem,
        shape: &Shape<'_>,
    ) -> Result<[MemoryDesc; 2], OneDnnError> {
        let api = &self.library.api;
        let input = shape.dense(api, &problem.input)?;
        Ok([input, shape.dense(api, &problem.output)?])
    }

    fn is_fast(&self, primitive: &PrimitiveDesc) -> Result<bool, OneDnnError> {
        let name = self.library.api.implementation(primitive)?;
        Ok(!name.starts_with(REFERENCE))
    }

    fn tensor(&mut self, desc: MemoryDesc, place: Place) -> usize {
        self.tensors.push((desc, place));
        self.tensors.len() - 1
    }

    fn temporary(&mut self, desc: MemoryDesc) -> usize {
        let start = self.end;
        self.end += self.library.api.bytes(&desc).next_multiple_of(ALIGNMENT);
        self.tensor(desc, Place::Workspace(start))
    }

    fn step(
        &mut self,
        primitive: PrimitiveDesc,
        mut arguments: Vec<(c_int, usize)>,
    ) -> Result<(), OneDnnError> {
        let api = &self.library.api;
        let scratchpad = api.format(&primitive, query::SCRATCHPAD)?;
        let bytes = api.bytes(&scratchpad);
        if bytes > 0 {
            self.scratchpad = self.scratchpad.max(bytes);
            let scratchpad = self.tensor(scratchpad, Place::Scratchpad);
            arguments.push((argument::SCRATCHPAD, scratchpad));
        }
        self.steps.push(Step {
            primitive,
            arguments,
        });
        Ok(())
    }

    /// A tensor that is read, copied if it is strided.
    fn contiguous_source(
        &mut self,
        shape: &Shape<'_>,
        tensor: &Tensor,
        place: Place,
    ) -> Result<usize, OneDnnError> {
        let library = self.library;
        let dense = shape.dense(&library.api, tensor)?;
        if tensor.is_dense() {
            return Ok(self.tensor(dense, place));
        }
        let placed = self.tensor(shape.placed(&library.api, tensor)?, place);
        let copied = self.temporary(dense);
        self.reorder(placed, copied, PostOps::default())?;
        Ok(copied)
    }

    /// Weights that are read, in the format of a primitive.
    fn weights(
        &mut self,
        shape: &Shape<'_>,
        primitive: &PrimitiveDesc,
    ) -> Result<usize, OneDnnError> {
        let library = self.library;
        let plain = shape.plain_weights(&library.api)?;
        let own = library.api.format(primitive, query::WEIGHTS)?;
        let is_plain = library.api.are_equal(&plain, &own);
        let plain = self.tensor(plain, Place::Weights);
        if is_plain {
            return Ok(plain);
        }
        let copied = self.temporary(own);
        self.reorder(plain, copied, PostOps::default())?;
        Ok(copied)
    }

    /// Copies a result to its place, or adds it there.
    fn copy_out(
        &mut self,
        made: usize,
        (desc, place): (MemoryDesc, Place),
        accumulate: bool,
    ) -> Result<(), OneDnnError> {
        let placed = self.tensor(desc, place);
        let post_ops = PostOps {
            accumulate,
            slope: None,
        };
        self.reorder(made, placed, post_ops)
    }

    fn reorder(&mut self, from: usize, to: usize, post_ops: PostOps) -> Result<(), OneDnnError> {
        let (api, engine) = (&self.library.api, &self.library.engine);
        let attributes = api.attributes(post_ops)?;
        let [source, target] = [from, to].map(|at| &self.tensors[at].0);
        let primitive = api.reorder(engine, source, target, &attributes)?;
        let arguments = vec![(argument::SOURCE, from), (argument::TARGET, to)];
        self.step(primitive, arguments)
    }
}

fn convolution_desc<'d>(
    shape: &Shape<'_>,
    [source, weights, target]: [&'d MemoryDesc; 3],
    bias: Option<&'d MemoryDesc>,
) -> ConvolutionDesc<'d> {
    ConvolutionDesc {
        source,
        weights,
        bias,
        target,
        strides: shape.strides(),
        dilations: shape.dilations(),
        padding: shape.padding(),
    }
}
