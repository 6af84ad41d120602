//! The operands of the epilogue of a fused kernel.

use super::Run;
use super::norm::by;
use super::operand::Input;
use crate::conv::epilogue::{Epilogue, Summed, Sums};
use partita_program::fused::{self, Tail};
use partita_run::{Block, BlockMut, Element};

/// Scratch for the scale and offset of a normalization, in elements.
pub(super) fn scale_elements(tail: &Tail<'_>, channels: usize) -> usize {
    if tail.inference.is_some() {
        2 * channels
    } else {
        0
    }
}

/// The operands of a tail while its kernel runs.
pub(super) struct TailOperands<'m, E: Element = f32> {
    inference: Option<([Block<'m, f32>; 4], f64)>,
    add: Option<Input<'m, E>>,
    slope: Option<f32>,
    mask: Option<(Input<'m, E>, f32)>,
    sums: Option<TailSums<'m, E>>,
}

struct TailSums<'m, E: Element> {
    into: BlockMut<'m, f64>,
    accumulate: bool,
    against: Option<Against<'m, E>>,
}

/// The normalization whose gradient sums are taken.
struct Against<'m, E: Element> {
    x: Input<'m, E>,
    sums: Block<'m, f64>,
    count: u64,
    epsilon: f64,
}

impl<'m, E: Element> TailOperands<'m, E> {
    pub fn new(tail: &Tail<'_>, run: &Run<'m, '_>) -> TailOperands<'m, E> {
        let inference = tail.inference.map(|by| {
            let views = [by.mean, by.variance, by.gamma, by.beta];
            (views.map(|view| run.dense(view)), by.epsilon)
        });
        TailOperands {
            inference,
            add: tail.add.map(|view| run.input_of(view)),
            slope: tail.slope.map(|slope| slope as f32),
            mask: tail
                .mask
                .map(|(_, y, slope)| (run.input_of(y), slope as f32)),
            sums: tail.sums.map(|sums| TailSums::new(&sums, run)),
        }
    }

    /// The same with every box as rows of features.
    pub fn into_rows(mut self) -> TailOperands<'m, E> {
        let against = self.sums.as_mut().and_then(|sums| sums.against.as_mut());
        let boxes = [
            self.add.as_mut(),
            self.mask.as_mut().map(|(y, _)| y),
            against.map(|against| &mut against.x),
        ];
        boxes.into_iter().flatten().for_each(Input::make_rows);
        self
    }

    /// `scales` is as long as [`scale_elements`] says.
    pub fn epilogue<'a>(
        &'a mut self,
        bias: Option<&'a [f32]>,
        scales: &'a mut [f32],
    ) -> Epilogue<'a, E> {
        let scale_shift = self.inference.as_ref().map(|(vectors, epsilon)| {
            let (scale, shift) = scales.split_at_mut(scales.len() / 2);
            let [mean, variance, gamma, beta] = vectors;
            for c in 0..scale.len() {
                let inverse = 1.0 / (f64::from(variance.data()[c]) + epsilon).sqrt();
                let factor = f64::from(gamma.data()[c]) * inverse;
                scale[c] = factor as f32;
                shift[c] = (f64::from(beta.data()[c]) - f64::from(mean.data()[c]) * factor) as f32;
            }
            (&*scale, &*shift)
        });
        Epilogue {
            bias,
            scale_shift,
            add: self.add.as_ref().map(Input::view),
            negative_slope: self.slope,
            mask: self.mask.as_ref().map(|(y, slope)| (y.view(), *slope)),
            sums: self.sums.as_mut().map(|sums| Sums {
                of: match &sums.against {
                    None => Summed::Squares,
                    Some(against) => Summed::Normalized(
                        against.x.view(),
                        by(&against.sums, against.count, against.epsilon),
                    ),
                },
                into: sums.into.data_mut(),
                accumulate: sums.accumulate,
            }),
        }
    }
}

impl<'m, E: Element> TailSums<'m, E> {
    fn new(of: &fused::Sums<'_>, run: &Run<'m, '_>) -> Self {
        TailSums {
            into: run.totals(of.into, of.accumulate),
            accumulate: of.accumulate,
            against: of.against.map(|against| Against {
                x: run.input_of(against.x),
                sums: run.sums(against.sums),
                count: against.count,
                epsilon: against.epsilon,
            }),
        }
    }
}
