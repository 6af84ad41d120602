//! Sums over positions by channel, in parts.

use crate::arg::Arg;
use crate::device::KernelError;
use crate::launch::Run;
use crate::tensor::Tensor;
use partita_program::{Dtype, Fields, Kernel, View};

/// Positions of a part, at least: fewer are not worth a work-item.
const POSITIONS_MIN: usize = 64;
/// Work-items for each multiprocessor: enough to hide the latency of its memory.
const ITEMS_PER_UNIT: usize = 1024;

/// How the positions of a tensor are cut into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// Of a sample, or of all.
    pub parts: usize,
    pub positions: usize,
    /// Samples that are summed apart; 1 if all are summed.
    pub apart: usize,
}

impl Parts {
    /// For one sum per channel, or per sample, where this many work-items take a part each.
    pub(super) fn new(of: &Tensor, of_samples: bool, width: usize, units: usize) -> Self {
        let apart = if of_samples { of.extent[0].max(1) } else { 1 };
        let all = of.positions() / apart;
        let wanted = (units * ITEMS_PER_UNIT).div_ceil((width * apart).max(1));
        let parts = wanted.min(all / POSITIONS_MIN).max(1);
        let positions = all.div_ceil(parts).max(1);
        Self {
            parts: all.div_ceil(positions).max(1),
            positions,
            apart,
        }
    }

    pub(super) fn arg(&self) -> Arg {
        Arg::Three([self.parts, self.positions, self.apart].map(|value| value as u32))
    }

    /// All parts, over all samples that are summed apart.
    pub(super) fn all(&self) -> usize {
        self.parts * self.apart
    }
}

/// Sums of parts in the workspace, several rows of channels for each part.
pub(super) struct PartialSums {
    parts: Parts,
    rows: usize,
    channels: usize,
    first: u64,
}

impl PartialSums {
    pub(super) fn new(parts: Parts, rows: usize, channels: usize, run: &mut Run<'_>) -> Self {
        let first = run.scratch(Dtype::F64, parts.all() * rows * channels);
        Self {
            parts,
            rows,
            channels,
            first,
        }
    }

    pub(super) fn arg(&self) -> Arg {
        Arg::Ulong(self.first)
    }

    /// The same parts as those of one sum over all samples.
    pub(super) fn of_batch(self) -> Self {
        let parts = Parts {
            parts: self.parts.all(),
            apart: 1,
            ..self.parts
        };
        Self { parts, ..self }
    }

    /// Adds up the parts. `y` is (samples, 1, 1, rows, C), or (1, 1, 1, 1, C) for one row.
    pub(super) fn put(
        &self,
        first_row: usize,
        y: &Tensor,
        accumulate: bool,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let args = [
            self.arg(),
            Arg::Uint(self.parts.parts as u32),
            Arg::Uint((self.rows * self.channels) as u32),
            Arg::Uint((first_row * self.channels) as u32),
            Arg::from(y),
            Arg::Extent(y.raw_extent()),
            Arg::dtype(y),
            Arg::Double(1.0),
            Arg::flag(accumulate),
        ];
        run.elements("sum_parts", &args, y)
    }
}

/// The gradient of a bias.
pub(super) fn bias(
    dy: &View,
    db: &View,
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (dy, db) = (run.tensor(dy), run.tensor(db));
    let sums = channel_sums("channel_sums", &[dy], &[], false, 1, run)?;
    sums.put(0, &db, accumulate, run)
}

/// Sums of products over positions; none for other kernels.
pub(super) fn over_positions(
    kernel: &Kernel,
    run: &mut Run<'_>,
) -> Option<Result<(), KernelError>> {
    match kernel.fields() {
        Fields::MultiplySum(of) => Some(products([of.a, of.b], of.y, *of.accumulate, run)),
        Fields::PreluBackwardSlopes(of) => {
            Some(slopes([of.x, of.dy], of.dslopes, *of.accumulate, run))
        }
        _ => None,
    }
}

fn products(
    of: [&View; 2],
    y: &View,
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (of, y) = (of.map(|view| run.tensor(view)), run.tensor(y));
    let sums = channel_sums("product_sums", &of, &[], true, 1, run)?;
    sums.put(0, &y, accumulate, run)
}

fn slopes(
    of: [&View; 2],
    dslopes: &View,
    accumulate: bool,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (of, dslopes) = (of.map(|view| run.tensor(view)), run.tensor(dslopes));
    let sums = channel_sums("slope_sums", &of, &[], false, 1, run)?;
    if dslopes.extent[4] == sums.channels {
        return sums.put(0, &dslopes, accumulate, run);
    }
    // One slope for all channels: their sums are further parts.
    let parts = Parts {
        parts: sums.parts.parts * sums.channels,
        ..sums.parts
    };
    let one = PartialSums {
        parts,
        channels: 1,
        ..sums
    };
    one.put(0, &dslopes, accumulate, run)
}

/// Sums of parts by a kernel that takes these boxes, their extents, the parts, these arguments, and the sums.
pub(super) fn channel_sums(
    name: &'static str,
    of: &[Tensor],
    rest: &[Arg],
    of_samples: bool,
    rows: usize,
    run: &mut Run<'_>,
) -> Result<PartialSums, KernelError> {
    let channels = of[0].extent[4];
    let parts = Parts::new(&of[0], of_samples, channels, run.units);
    let sums = PartialSums::new(parts, rows, channels, run);
    let mut args: Vec<Arg> = of.iter().map(Arg::from).collect();
    args.extend([Arg::Extent(of[0].raw_extent()), parts.arg()]);
    args.extend_from_slice(rest);
    args.push(sums.arg());
    run.items(name, &args, parts.all() * channels)?;
    Ok(sums)
}
