//! Random numbers that a network draws by itself to drop samples or channels.
//!
//! Example: torchvision's stochastic depth multiplies by `empty([N, 1, 1, 1]).bernoulli_(keep).div_(keep)`, which is
//! one dropout of samples.

use super::{Fault, Tensor, Translation, Value, reason};
use crate::network::{Call, Noise, Operation};
use partita_graph::{Activation, DropoutMask, Op};

/// What has been drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Drawn {
    /// Nothing.
    Empty,
    /// From `shift` to 1 more.
    Uniform { shift: f64 },
    /// `scale` with probability `keep`, else 0.
    Kept { keep: f64, scale: f64 },
}

impl Translation<'_> {
    /// The random numbers that a call makes; none if it makes none.
    pub(super) fn noise(&self, call: &Call, operation: &Operation) -> Result<Option<Drawn>, Fault> {
        let drawn = match operation {
            Operation::Noise(Noise::Empty) => Drawn::Empty,
            Operation::Noise(Noise::Uniform) => Drawn::Uniform { shift: 0.0 },
            Operation::Noise(Noise::Bernoulli { keep }) => Drawn::Kept {
                keep: *keep,
                scale: 1.0,
            },
            _ => {
                let Some(drawn) = self.drawn(call, 0) else {
                    return Ok(None);
                };
                match (drawn, operation) {
                    (_, Operation::Multiply) => return Ok(None),
                    (_, Operation::Identity) => drawn,
                    (
                        Drawn::Uniform { shift },
                        Operation::Activation(Activation::Affine {
                            scale: 1.0,
                            shift: more,
                        }),
                    ) => Drawn::Uniform {
                        shift: shift + more,
                    },
                    (Drawn::Uniform { shift }, Operation::Floor) if (0.0..1.0).contains(&shift) => {
                        Drawn::Kept {
                            keep: shift,
                            scale: 1.0,
                        }
                    }
                    (
                        Drawn::Kept { keep, scale },
                        Operation::Activation(Activation::Affine {
                            scale: factor,
                            shift: 0.0,
                        }),
                    ) => Drawn::Kept {
                        keep,
                        scale: scale * factor,
                    },
                    _ => return reason("it works on random numbers in a way that is not read"),
                }
            }
        };
        Ok(Some(drawn))
    }

    /// The random numbers that a call reads.
    pub(super) fn drawn(&self, call: &Call, index: usize) -> Option<Drawn> {
        let name = call.inputs.get(index)?.as_ref()?;
        match self.values.get(name) {
            Some(Value::Noise(drawn)) => Some(*drawn),
            _ => None,
        }
    }

    /// A product with random numbers, the input `index`.
    pub(super) fn drop(&mut self, call: &Call, index: usize) -> Result<Tensor, Fault> {
        let tensor = self.tensor(call, 1 - index)?;
        let Some(Drawn::Kept { keep, scale }) = self.drawn(call, index) else {
            return reason("it multiplies by random numbers in a way that is not read");
        };
        let name = call.inputs[index].as_deref().unwrap_or_default();
        let extents = self.network.shape(name);
        let whole = self.extents(&tensor);
        let ones = |from: usize| extents[from..].iter().all(|&extent| extent == 1);
        let mask = if extents.len() != whole.len() || extents[0] != whole[0] {
            return reason("it drops a part of the batch that is not read");
        } else if *extents == whole[..] {
            DropoutMask::Element
        } else if ones(1) {
            DropoutMask::Sample
        } else if extents.get(1) == whole.get(1) && ones(2) {
            DropoutMask::Channel
        } else {
            return reason("it drops a part of the samples that is not read");
        };
        if !(keep > 0.0 && keep <= 1.0) {
            return reason("it keeps nothing");
        }
        let rate = 1.0 - keep;
        let mut node = self.plain(call, Op::Dropout { rate, mask }, &[tensor.node])?;
        let scale = scale * keep;
        if (scale - 1.0).abs() > 1e-12 {
            let function = Activation::Affine { scale, shift: 0.0 };
            node = self.plain(call, Op::Activation(function), &[node])?;
        }
        Ok(Tensor {
            node,
            layout: tensor.layout,
        })
    }
}
