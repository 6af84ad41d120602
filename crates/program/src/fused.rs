//! The fused kernels that kernel sets compute as one: a kernel with its epilogue, the gradients of weights and bias, and
//! updates by one rule.

use crate::{Buffer, Kernel, View};

/// An epilogue: operations on the output of the first part, in this order.
#[derive(Clone, Copy, Default)]
pub struct Tail<'k> {
    /// A normalization by running statistics.
    pub inference: Option<Inference<'k>>,
    /// What is added.
    pub add: Option<&'k View>,
    /// Of a leaky ReLU.
    pub slope: Option<f64>,
    /// The box that is multiplied, the activation whose sign decides, and its slope.
    pub mask: Option<(&'k View, &'k View, f64)>,
    /// Statistics of a batch norm.
    pub sums: Option<Sums<'k>>,
}

/// A normalization by running statistics; vectors by channel.
#[derive(Clone, Copy, Debug)]
pub struct Inference<'k> {
    /// Running mean.
    pub mean: &'k View,
    /// Running variance.
    pub variance: &'k View,
    /// Scale.
    pub gamma: &'k View,
    /// Offset.
    pub beta: &'k View,
    /// Added to variances.
    pub epsilon: f64,
}

/// Sums by channel over the output: of it and its squares, or of it and its products with a normalized box.
#[derive(Clone, Copy, Debug)]
pub struct Sums<'k> {
    /// Where they go.
    pub into: &'k View,
    /// Whether they are added to what is there.
    pub accumulate: bool,
    /// The normalized box.
    pub against: Option<Against<'k>>,
}

/// A box normalized by the statistics of its batch.
#[derive(Clone, Copy, Debug)]
pub struct Against<'k> {
    /// The box.
    pub x: &'k View,
    /// Sums of it and its squares.
    pub sums: &'k View,
    /// Over this many elements.
    pub count: u64,
    /// Added to variances.
    pub epsilon: f64,
}

impl<'k> Tail<'k> {
    /// The parts after the first one, if they change or sum the box `out` in the order of the fields.
    fn of(parts: &'k [Kernel], out: &View) -> Option<Tail<'k>> {
        let mut tail = Tail::default();
        let mut stage = 0;
        for part in parts {
            let (at, fits) = if let Kernel::BatchNormInference {
                x,
                mean,
                variance,
                gamma,
                beta,
                y,
                epsilon,
            } = part
            {
                tail.inference = Some(Inference {
                    mean,
                    variance,
                    gamma,
                    beta,
                    epsilon: *epsilon,
                });
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
            } else if let Some((of, sums)) = sums_of(part) {
                tail.sums = Some(sums);
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
    fn suits_product(&self, out: &View) -> bool {
        self.mask.is_none_or(|(dx, ..)| dx == out)
    }

    /// The boxes that it reads.
    fn boxes(&self) -> impl Iterator<Item = &'k View> {
        let against = self.sums.and_then(|sums| Some(sums.against?.x));
        let mask = self.mask.map(|(_, y, _)| y);
        [self.add, mask, against].into_iter().flatten()
    }

    /// Whether a linear layer can: its samples are rows, and so are the boxes. It sums over samples,
    /// a batch norm over positions too.
    fn suits_rows(&self, out: &View, buffers: &[Buffer]) -> bool {
        let is_row = |view: &View| {
            let pitches = buffers[view.buffer.0 as usize].pitches();
            has_dense_samples(view.extent, pitches)
        };
        let mut boxes = std::iter::once(out).chain(self.boxes());
        let is_summed = self.sums.is_none() || out.extent[1..4] == [1; 3];
        let channelwise = self.inference.is_none() && is_summed;
        self.suits_product(out) && channelwise && boxes.all(is_row)
    }

    /// Whether it is an addition and an activation at most.
    fn suits_normalization(&self) -> bool {
        self.inference.is_none() && self.mask.is_none() && self.sums.is_none()
    }

    /// Whether it is an activation, and sums of what is written, at most.
    fn suits_addition(&self) -> bool {
        let own = self.sums.is_none_or(|sums| sums.against.is_none());
        self.inference.is_none() && self.add.is_none() && self.mask.is_none() && own
    }

    /// Whether it is an activation at most.
    fn suits_pooling(&self) -> bool {
        self.suits_normalization() && self.add.is_none()
    }

    /// Whether it is a mask at most.
    fn suits_pooling_backward(&self) -> bool {
        let rest = self.inference.is_none() && self.sums.is_none();
        rest && self.add.is_none() && self.slope.is_none()
    }

    /// Flops of all its steps over a box.
    pub fn flops(&self, out: &View) -> u64 {
        let elements = out.volume() as u64;
        let sums = match self.sums {
            Some(Sums { against: None, .. }) => 3,
            Some(Sums { .. }) => 5,
            None => 0,
        };
        let masked = self.mask.map_or(0, |(dx, ..)| dx.volume() as u64);
        let ones = u64::from(self.add.is_some()) + u64::from(self.slope.is_some());
        elements * (2 * u64::from(self.inference.is_some()) + ones + sums) + masked
    }
}

/// What a kernel sums, and its sums.
fn sums_of(part: &Kernel) -> Option<(&View, Sums<'_>)> {
    if let Kernel::BatchNormStatistics {
        x,
        sums,
        accumulate,
    } = part
    {
        let sums = Sums {
            into: sums,
            accumulate: *accumulate,
            against: None,
        };
        Some((x, sums))
    } else if let Kernel::BatchNormBackwardStatistics {
        x,
        sums,
        dy,
        gradient_sums,
        count,
        epsilon,
        accumulate,
    } = part
    {
        let against = Against {
            x,
            sums,
            count: *count,
            epsilon: *epsilon,
        };
        let sums = Sums {
            into: gradient_sums,
            accumulate: *accumulate,
            against: Some(against),
        };
        Some((dy, sums))
    } else {
        None
    }
}

/// Whether a kernel can end with an epilogue, given its output and the buffers.
type Suits = fn(&Tail<'_>, &View, &[Buffer]) -> bool;

/// The view that a kernel computes, if later parts may go on with it, and which of them.
fn output(kernel: &Kernel) -> Option<(&View, Suits)> {
    if let Kernel::ConvolutionForward { y: out, .. }
    | Kernel::ConvolutionBackwardData { dx: out, .. } = kernel
    {
        Some((out, |tail, out, _| tail.suits_product(out)))
    } else if let Kernel::LinearForward { y: out, .. }
    | Kernel::LinearBackwardData { dx: out, .. } = kernel
    {
        Some((out, |tail, out, buffers| tail.suits_rows(out, buffers)))
    } else if let Kernel::BatchNormForward { y, .. } | Kernel::BatchNormInference { y, .. } = kernel
    {
        Some((y, |tail, _, _| tail.suits_normalization()))
    } else if let Kernel::Add { y, .. } = kernel {
        Some((y, |tail, _, _| tail.suits_addition()))
    } else if let Kernel::PoolForward { y, .. } = kernel {
        Some((y, |tail, _, _| tail.suits_pooling()))
    } else if let Kernel::PoolBackward { dx, .. } = kernel {
        Some((dx, |tail, _, _| tail.suits_pooling_backward()))
    } else {
        None
    }
}

/// Whether the elements of each sample are contiguous in a buffer of these pitches.
pub fn has_dense_samples(extent: [usize; 5], pitches: [usize; 5]) -> bool {
    let mut features = 1;
    (1..5).rev().all(|dim| {
        let is_dense = extent[dim] <= 1 || pitches[dim] == features;
        features *= extent[dim];
        is_dense
    })
}

/// The output of the first part and the epilogue formed by the others, whether or not kernel sets compute them as one.
pub fn tail(parts: &[Kernel]) -> Option<(&View, Tail<'_>)> {
    let (first, rest) = parts.split_first()?;
    let (out, _) = output(first)?;
    Some((out, Tail::of(rest, out)?))
}

/// The gradient of the bias that goes with that of the weights.
pub fn bias_gradient(parts: &[Kernel]) -> Option<&View> {
    let (Kernel::ConvolutionBackwardWeight { dy, accumulate, .. }
    | Kernel::LinearBackwardWeight { dy, accumulate, .. }) = parts.first()?
    else {
        return None;
    };
    let [
        Kernel::BiasBackward {
            dy: of,
            db,
            accumulate: adds,
        },
    ] = &parts[1..]
    else {
        return None;
    };
    (of == dy && adds == accumulate).then_some(db)
}

/// Whether kernel sets compute these parts as one.
pub fn is_usual(parts: &[Kernel], buffers: &[Buffer]) -> bool {
    let ends = parts.split_first().and_then(|(first, rest)| {
        let (out, suits) = output(first)?;
        Some(suits(&Tail::of(rest, out)?, out, buffers))
    });
    ends.unwrap_or(false)
        || bias_gradient(parts).is_some()
        || is_one_rule(parts)
        || is_one_average(parts)
}

/// Whether all are averages of one decay, kept or moved together.
pub fn is_one_average(parts: &[Kernel]) -> bool {
    let Some(Kernel::Average { decay, total, .. }) = parts.first() else {
        return false;
    };
    parts.iter().all(|part| {
        matches!(part, Kernel::Average { decay: own, total: own_total, .. }
            if own == decay && own_total == total)
    })
}

/// Whether all are updates by one rule.
pub fn is_one_rule(parts: &[Kernel]) -> bool {
    let Some(Kernel::Update { rule, clip, .. }) = parts.first() else {
        return false;
    };
    parts.iter().all(|part| {
        matches!(part, Kernel::Update { rule: own, clip: own_clip, .. }
            if own == rule && own_clip == clip)
    })
}
