//! Random numbers of augmentation.

use serde::{Deserialize, Serialize};

/// What random numbers of a sample depend on besides its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SampleKey {
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
}

/// Operations that draw random numbers; far from those of a model's layers, which count from 0.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(super) enum Operation {
    Crop = 0xda7a_0000,
    Rotate = 0xda7a_0001,
    Flip = 0xda7a_0002,
    Elastic = 0xda7a_0003,
    Intensity = 0xda7a_0004,
    Noise = 0xda7a_0005,
    Foreground = 0xda7a_0006,
}

/// A uniform whole number below a bound, of a uniform number below 1.
pub(super) fn below(unit: f64, bound: usize) -> usize {
    ((unit * bound as f64) as usize).min(bound - 1)
}
