//! Losses of single elements.

use super::Run;
use super::loss::{Classes, EXPONENTIAL, exp, index, sum_rows};
use crate::rows::Rows;
use crate::simd::{Op, Simd};
use partita_program::{ElementFunction, Fields, Kernel};
use partita_run::RunError;
use std::ops::Range;

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let Fields::ElementLoss(of) = kernel.fields() else {
        panic!("{} is no loss of elements", kernel.name());
    };
    let (x, target, factor) = (of.x, of.target, of.weight / *of.count as f64);
    assert_eq!(x.extent, target.extent, "{x} and its target have one shape");
    if let Some(dx) = of.dx {
        assert_eq!(dx.extent, x.extent, "{dx} and {x} have one shape");
    }
    let visits = x.volume() as u64;
    let (x, target) = (run.input(x), run.any(target));
    let mut loss = run.totals(of.loss, false);
    let mut dx = of.dx.map(|dx| run.output(&dx));
    let elements = Elements {
        function: *of.function,
        x: Rows::from(x.view()),
        target: Classes::of(&target),
        dx: dx.as_mut().map(|dx| Rows::from(dx.view())),
        factor: run.inputs.gradient_factor() * factor,
        weights: of.weights,
    };
    let sum = sum_rows(run, x.view().grid, EXPONENTIAL, |level, rows| {
        // SAFETY: boxes of one shape, of which dx is borrowed alone; each row is in one range, and the team has
        // the level.
        unsafe { level.run(ElementRows { elements, rows }) }
    })?;
    loss.data_mut()[0] = factor * sum;
    Ok(6 * visits)
}

#[derive(Clone, Copy)]
struct Elements<'a> {
    function: ElementFunction,
    x: Rows<'a>,
    target: Classes<'a>,
    dx: Option<Rows<'a>>,
    factor: f64,
    weights: &'a [f64],
}

/// Pointers: the boxes have the rows, and no other thread accesses those of dx.
struct ElementRows<'a> {
    elements: Elements<'a>,
    rows: Range<usize>,
}

impl Op for ElementRows<'_> {
    type Out = f64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        let Self { elements, rows } = self;
        // SAFETY: guaranteed by the caller.
        unsafe {
            match elements.function {
                ElementFunction::Squared => elements.rows(rows, |e, _, _| [e * e, 2.0 * e]),
                ElementFunction::Absolute => elements.rows(rows, |e, _, _| [e.abs(), sign(e)]),
                ElementFunction::Huber { delta } => elements.rows(rows, |e, _, _| huber(e, delta)),
                ElementFunction::SmoothL1 { beta } => {
                    elements.rows(rows, |e, _, _| huber(e, beta).map(|number| number / beta))
                }
                ElementFunction::LogisticEntropy => elements.rows(rows, logistic_entropy),
            }
        }
    }
}

#[inline(always)]
fn sign(e: f64) -> f64 {
    if e == 0.0 { 0.0 } else { e.signum() }
}

#[inline(always)]
fn huber(e: f64, delta: f64) -> [f64; 2] {
    if e.abs() < delta {
        [e * e / 2.0, e]
    } else {
        [delta * (e.abs() - delta / 2.0), delta * e.signum()]
    }
}

#[inline(always)]
fn logistic_entropy(_: f64, x: f64, target: f64) -> [f64; 2] {
    let small = exp(-x.abs());
    let sigmoid = if x < 0.0 { small } else { 1.0 } / (1.0 + small);
    [x.max(0.0) - x * target + small.ln_1p(), sigmoid - target]
}

impl Elements<'_> {
    /// Sum of the losses of rows. `element` has the error, the input and the target, and gives value and derivative.
    ///
    /// # Safety
    /// The boxes have the rows, and no other thread accesses those of dx.
    #[inline(always)]
    unsafe fn rows(&self, rows: Range<usize>, element: impl Fn(f64, f64, f64) -> [f64; 2]) -> f64 {
        let grid = self.x.grid;
        let (width, channels) = (grid.extent[2], grid.channels);
        let mut sum = 0.0;
        for row in rows {
            let start = self.target.start(index(grid, row * width));
            for w in 0..width {
                let start = start + w * self.target.pitch[3];
                // SAFETY: positions of the boxes.
                let (x, mut dx) = unsafe {
                    let x = self.x.start(row).add(w * grid.pitch[3]);
                    let dx = self.dx.map(|dx| {
                        let start = dx.start(row).add(w * dx.grid.pitch[3]);
                        std::slice::from_raw_parts_mut(start, channels)
                    });
                    (std::slice::from_raw_parts(x.cast_const(), channels), dx)
                };
                for (c, x) in x.iter().enumerate() {
                    let (x, target) = (
                        f64::from(*x),
                        self.target.get(start + c * self.target.pitch[4]),
                    );
                    let [value, derivative] = element(x - target, x, target);
                    let weight = self.weights.get(c).copied().unwrap_or(1.0);
                    sum += weight * value;
                    if let Some(dx) = &mut dx {
                        dx[c] = (self.factor * weight * derivative) as f32;
                    }
                }
            }
        }
        sum
    }
}
