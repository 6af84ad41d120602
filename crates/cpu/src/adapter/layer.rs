//! Convolutions and linear layers as the catalog sees them.

use super::convolution::convolution;
use super::operand::{grid, rows};
use crate::conv::convolution::Convolution;
use crate::conv::linear::LINEAR;
use crate::grid::Grid;
use partita_program::descriptor::{Cost, Layout, Pass};
use partita_program::{Buffer, Family, Kernel, Role, View};

/// A convolution, or a linear layer as the convolution that it is.
pub(super) struct Layer {
    pub conv: Convolution,
    pub pass: Pass,
    pub input: Grid,
    pub output: Grid,
    pub is_linear: bool,
    /// Elements of the samples of a linear layer that are packed into rows.
    pub row_elements: usize,
    /// Whether the weights are packed ones.
    pub is_packed: bool,
}

impl Layer {
    /// None for other kernels.
    pub fn of(kernel: &Kernel, buffers: &[Buffer]) -> Option<Self> {
        if !matches!(kernel.family(), Family::Convolution | Family::Linear) {
            return None;
        }
        let descriptor = kernel.descriptor();
        let (Cost::Convolution { pass, .. } | Cost::Linear { pass }) = descriptor.cost else {
            return None;
        };
        let (input, output, w) = match descriptor.layout {
            Layout::Product {
                from,
                to,
                w,
                is_forward,
                ..
            } => {
                let (input, output) = if is_forward { (from, to) } else { (to, from) };
                (input, output, w)
            }
            Layout::ProductGradient { x, dy, dw } => (x, dy, dw),
            Layout::Any
            | Layout::Table { .. }
            | Layout::Sequences { .. }
            | Layout::OwnShare { .. } => return None,
        };
        let buffer = |view: &View| &buffers[view.buffer.0 as usize];
        let pitches = |view: &View| buffer(view).pitches();
        let is_packed = buffer(w).role == Role::PackedWeights;
        if let Some(window) = descriptor.window {
            return Some(Self {
                conv: convolution(window.taps, window.groups),
                pass,
                input: grid(input.extent, pitches(input)),
                output: grid(output.extent, pitches(output)),
                is_linear: false,
                row_elements: 0,
                is_packed,
            });
        }
        let (samples, [.., c, f]) = (input.extent[0], w.extent);
        let are_rows = rows(input.extent, pitches(input)).is_some();
        Some(Self {
            conv: LINEAR,
            pass,
            input: Grid::dense(samples, [1; 3], c),
            output: Grid::dense(samples, [1; 3], f),
            is_linear: true,
            row_elements: if are_rows { 0 } else { input.volume() },
            is_packed,
        })
    }

    /// Of input and output.
    pub fn channels(&self) -> (usize, usize) {
        (self.input.channels, self.output.channels)
    }

    /// The box over whose positions a kernel loops.
    pub fn written(&self) -> &Grid {
        match self.pass {
            Pass::Forward | Pass::BackwardWeight => &self.output,
            Pass::BackwardData => &self.input,
        }
    }
}
