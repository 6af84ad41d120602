//! What kernels do with results before they store them.

use crate::arg::{Arg, RawEpilogue};
use crate::device::KernelError;
use crate::launch::Run;
use crate::tensor::Tensor;
use partita_program::Dtype;
use partita_program::fused::{Inference, Tail};

/// Steps on each result, in the order of the fields.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Epilogue {
    /// Added, by channel.
    pub bias: Option<Tensor>,
    /// Whether what is stored already is added.
    pub accumulate: bool,
    /// Where factors by channel begin, which offsets follow, and how many channels there are.
    pub scales: Option<(u64, usize)>,
    /// A box that is added.
    pub added: Option<Tensor>,
    /// Factor of negative results.
    pub slope: Option<f32>,
    /// Factor of results whose element of this box is not positive.
    pub mask: Option<(Tensor, f32)>,
}

const WITH_BIAS: i32 = 1;
const ACCUMULATE: i32 = 2;
const WITH_SCALES: i32 = 4;
const WITH_ADDED: i32 = 8;
const WITH_SLOPE: i32 = 16;
const WITH_MASK: i32 = 32;

impl Epilogue {
    /// The epilogue of a fused kernel, but for its sums; factors and offsets of a normalization lie in the workspace.
    pub(crate) fn new(tail: &Tail<'_>, run: &mut Run<'_>) -> Result<Self, KernelError> {
        let scales = tail.inference.map(|by| running_factors(&by, run));
        Ok(Self {
            scales: scales.transpose()?,
            added: run.optional(tail.add),
            slope: tail.slope.map(|slope| slope as f32),
            mask: tail.mask.map(|(_, y, slope)| (run.tensor(y), slope as f32)),
            ..Self::default()
        })
    }

    /// The same with all boxes as rows. Panics if samples of one have gaps.
    pub(crate) fn into_rows(self) -> Self {
        let rows = |of: Tensor| of.rows().expect("samples of the boxes are dense");
        Self {
            added: self.added.map(rows),
            mask: self.mask.map(|(mask, slope)| (rows(mask), slope)),
            ..self
        }
    }
}

impl From<Epilogue> for Arg {
    fn from(of: Epilogue) -> Self {
        let mut raw = RawEpilogue::default();
        if let Some(bias) = of.bias {
            raw.bias = bias.offset;
            raw.steps |= WITH_BIAS;
        }
        if of.accumulate {
            raw.steps |= ACCUMULATE;
        }
        if let Some((first, channels)) = of.scales {
            (raw.scales, raw.channels) = (first, channels as u32);
            raw.steps |= WITH_SCALES;
        }
        if let Some(added) = of.added {
            raw.added = added.raw();
            raw.steps |= WITH_ADDED;
        }
        if let Some(slope) = of.slope {
            raw.slope = slope;
            raw.steps |= WITH_SLOPE;
        }
        if let Some((mask, slope)) = of.mask {
            (raw.mask, raw.mask_slope) = (mask.raw(), slope);
            raw.steps |= WITH_MASK;
        }
        Self::Epilogue(raw)
    }
}

/// Factors and offsets of a normalization by running statistics, in the workspace, and the channels.
fn running_factors(by: &Inference<'_>, run: &mut Run<'_>) -> Result<(u64, usize), KernelError> {
    let channels = by.mean.extent[4];
    let first = run.scratch(Dtype::F32, 2 * channels);
    let mut args = [by.mean, by.variance, by.gamma, by.beta]
        .map(|view| Arg::Ulong(run.tensor(view).offset))
        .to_vec();
    args.extend([
        Arg::Uint(channels as u32),
        Arg::Double(by.epsilon),
        Arg::Ulong(first),
    ]);
    run.items("running_factors", &args, channels)?;
    Ok((first, channels))
}
