//! The epilogue of a fused kernel: the parts after the first one.

use super::Run;
use super::norm::by;
use super::operand::{Input, rows};
use crate::epilogue::{Epilogue, Summed, Sums};
use partita_program::{Buffer, Kernel, View};
use partita_run::{Block, BlockMut, Element};

/// Operations on the output of the first part, in this order.
#[derive(Clone, Copy, Default)]
pub(super) struct Tail<'k> {
    /// A normalization by running statistics.
    inference: Option<&'k Kernel>,
    /// What is added.
    pub add: Option<&'k View>,
    /// Of a leaky ReLU.
    pub slope: Option<f64>,
    /// The box that is multiplied, the activation whose sign decides, and its slope.
    pub mask: Option<(&'k View, &'k View, f64)>,
    /// Statistics of a batch norm.
    pub sums: Option<&'k Kernel>,
}

impl<'k> Tail<'k> {
    /// The parts after the first one, if they change or sum the box `out` in the order of the fields.
    pub fn of(parts: &'k [Kernel], out: &View) -> Option<Tail<'k>> {
        let mut tail = Tail::default();
        let mut stage = 0;
        for part in parts {
            let (at, fits) = if let Kernel::BatchNormInference { x, y, .. } = part {
                tail.inference = Some(part);
                (1, x == out && y == out)
            } else if let Kernel::Add { a, b, y } = part {
                let other = if a == out { b } else { a };
                tail.add = Some(other);
                (2, y == out && other != out && (a == out || b == out))
            } else if let Kernel::LeakyReluForward {
                x,
                y,
                negative_slope,
            } = part
            {
                tail.slope = Some(*negative_slope);
                (3, x == out && y == out)
            } else if let Kernel::LeakyReluBackward {
                y,
                dy,
                dx,
                negative_slope,
                accumulate: false,
            } = part
            {
                tail.mask = Some((dx, y, *negative_slope));
                let inside = dx.buffer == out.buffer
                    && out.region().holds(&dx.region())
                    && [0, 4].iter().all(|&dim| dx.extent[dim] == out.extent[dim]);
                (4, dx == dy && inside)
            } else if let Kernel::BatchNormStatistics { x: of, .. }
            | Kernel::BatchNormBackwardStatistics { dy: of, .. } = part
            {
                tail.sums = Some(part);
                (5, of == out)
            } else {
                return None;
            };
            if !fits || at <= stage {
                return None;
            }
            stage = at;
        }
        Some(tail)
    }

    /// Whether a convolution or linear layer can end with it: a mask covers all of `out`.
    pub fn suits_product(&self, out: &View) -> bool {
        self.mask.is_none_or(|(dx, ..)| dx == out)
    }

    /// The boxes that it reads.
    pub fn boxes(&self) -> impl Iterator<Item = &'k View> {
        let against = if let Some(Kernel::BatchNormBackwardStatistics { x, .. }) = self.sums {
            Some(x)
        } else {
            None
        };
        let mask = self.mask.map(|(_, y, _)| y);
        [self.add, mask, against].into_iter().flatten()
    }

    /// Whether a linear layer can: its samples are rows, and so are the boxes. It sums over samples,
    /// a batch norm over positions too.
    pub fn suits_rows(&self, out: &View, buffers: &[Buffer]) -> bool {
        let is_row = |view: &View| {
            let pitches = buffers[view.buffer.0 as usize].pitches();
            rows(view.extent, pitches).is_some()
        };
        let mut boxes = std::iter::once(out).chain(self.boxes());
        let is_summed = self.sums.is_none() || out.extent[1..4] == [1; 3];
        let channelwise = self.inference.is_none() && is_summed;
        self.suits_product(out) && channelwise && boxes.all(is_row)
    }

    /// Whether it is an addition and an activation at most.
    pub fn suits_normalization(&self) -> bool {
        self.inference.is_none() && self.mask.is_none() && self.sums.is_none()
    }

    /// Whether it is an activation, and sums of what is written, at most.
    pub fn suits_addition(&self) -> bool {
        let own = matches!(self.sums, None | Some(Kernel::BatchNormStatistics { .. }));
        self.inference.is_none() && self.add.is_none() && self.mask.is_none() && own
    }

    /// Whether it is an activation at most.
    pub fn suits_pooling(&self) -> bool {
        self.suits_normalization() && self.add.is_none()
    }

    /// Whether it is a mask at most.
    pub fn suits_pooling_backward(&self) -> bool {
        let rest = [self.inference, self.sums].iter().all(Option::is_none);
        rest && self.add.is_none() && self.slope.is_none()
    }

    /// Flops of all its steps over a box.
    pub fn flops(&self, out: &View) -> u64 {
        let elements = out.volume() as u64;
        let sums = match self.sums {
            Some(Kernel::BatchNormStatistics { .. }) => 3,
            Some(_) => 5,
            None => 0,
        };
        let masked = self.mask.map_or(0, |(dx, ..)| dx.volume() as u64);
        let ones = u64::from(self.add.is_some()) + u64::from(self.slope.is_some());
        elements * (2 * u64::from(self.inference.is_some()) + ones + sums) + masked
    }

    /// Scratch for the scale and offset of a normalization, in elements.
    pub fn scales(&self, channels: usize) -> usize {
        if self.inference.is_some() {
            2 * channels
        } else {
            0
        }
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
        let inference = tail.inference.map(|kernel| match kernel {
            Kernel::BatchNormInference {
                mean,
                variance,
                gamma,
                beta,
                epsilon,
                ..
            } => {
                let views = [mean, variance, gamma, beta];
                (views.map(|view| run.dense(view)), *epsilon)
            }
            other => panic!("{} normalizes by no running statistics", other.name()),
        });
        TailOperands {
            inference,
            add: tail.add.map(|view| run.input_of(view)),
            slope: tail.slope.map(|slope| slope as f32),
            mask: tail
                .mask
                .map(|(_, y, slope)| (run.input_of(y), slope as f32)),
            sums: tail.sums.map(|kernel| TailSums::new(kernel, run)),
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

    /// `scales` is as long as [`Tail::scales`] says.
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
    fn new(kernel: &Kernel, run: &Run<'m, '_>) -> Self {
        match kernel {
            Kernel::BatchNormStatistics {
                sums, accumulate, ..
            } => TailSums {
                into: run.memory.write::<f64>(sums),
                accumulate: *accumulate,
                against: None,
            },
            Kernel::BatchNormBackwardStatistics {
                x,
                sums,
                gradient_sums,
                count,
                epsilon,
                accumulate,
                ..
            } => TailSums {
                into: run.memory.write::<f64>(gradient_sums),
                accumulate: *accumulate,
                against: Some(Against {
                    x: run.input_of(x),
                    sums: run.sums(sums),
                    count: *count,
                    epsilon: *epsilon,
                }),
            },
            other => panic!("{} takes no sums", other.name()),
        }
    }
}
