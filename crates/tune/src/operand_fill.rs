//! Operand values of benchmarks: finite, normal, and in the domain of the kernel.

use half::{bf16, f16};
use partita_program::{Body, Buffer, Dtype, Kernel, Role, View};
use partita_run::{Element, Memory};
use std::ops::AddAssign;

/// Fills all buffers of these views.
pub(crate) fn fill_operands(
    memory: &Memory<'_>,
    kernel: &Kernel,
    views: impl IntoIterator<Item = View>,
) {
    let classes = class_views(kernel);
    for view in views {
        let buffer = memory.body().buffer(view.buffer);
        let whole = buffer.view(view.buffer);
        let labels = classes.filter(|(target, _)| target.buffer == view.buffer);
        let fill = Fill::of(buffer, labels.map(|(_, classes)| classes));
        let channels = buffer.dims[4].max(1);
        match buffer.dtype {
            Dtype::F32 => set(memory, &whole, |i| fill.value(i, channels) as f32),
            Dtype::F64 => set(memory, &whole, |i| fill.value(i, channels)),
            Dtype::Bf16 => set(memory, &whole, |i| bf16::from_f64(fill.value(i, channels))),
            Dtype::F16 => set(memory, &whole, |i| f16::from_f64(fill.value(i, channels))),
            Dtype::I16 => set(memory, &whole, |i| fill.value(i, channels) as i16),
        }
    }
}

/// Reads a view, which brings it into the caches; those of a device are left alone.
pub(crate) fn touch(memory: &Memory<'_>, body: &Body, view: &View) -> u64 {
    if memory.device().is_some() {
        return 0;
    }
    fn folded<T: Copy>(data: &[T], bits: impl Fn(T) -> u64) -> u64 {
        data.iter().fold(0, |sum, &value| sum ^ bits(value))
    }
    match body.buffer(view.buffer).dtype {
        Dtype::F32 => folded(memory.read::<f32>(view).data(), |value| {
            u64::from(value.to_bits())
        }),
        Dtype::F64 => folded(memory.read::<f64>(view).data(), f64::to_bits),
        Dtype::Bf16 => folded(memory.read::<bf16>(view).data(), |value| {
            u64::from(value.to_bits())
        }),
        Dtype::F16 => folded(memory.read::<f16>(view).data(), |value| {
            u64::from(value.to_bits())
        }),
        Dtype::I16 => folded(memory.read::<i16>(view).data(), |value| value as u64),
    }
}

fn set<T: Element + AddAssign>(memory: &Memory<'_>, view: &View, value: impl Fn(usize) -> T) {
    if memory.device().is_some() {
        let values: Vec<T> = (0..view.volume()).map(value).collect();
        memory.unpack(view, &values, false);
        return;
    }
    let mut block = memory.write::<T>(view);
    for (i, element) in block.data_mut().iter_mut().enumerate() {
        *element = value(i);
    }
}

/// The view with class indices, and the number of classes.
fn class_views(kernel: &Kernel) -> Option<(View, usize)> {
    if let Kernel::SoftmaxCrossEntropy { x, target, .. }
    | Kernel::ClassCounts { x, target, .. }
    | Kernel::ClassTotals { x, target, .. }
    | Kernel::DiceSums { x, target, .. }
    | Kernel::ClassLoss { x, target, .. } = kernel
    {
        Some((*target, x.extent[4].max(1)))
    } else if let Kernel::EmbeddingForward { x, w, .. }
    | Kernel::EmbeddingBackward { x, dw: w, .. } = kernel
    {
        Some((*x, w.extent[3].max(1)))
    } else {
        None
    }
}

/// Distribution of the values of a buffer.
enum Fill {
    /// Signed, with magnitudes from 1/16 to 1 times this.
    Signed(f64),
    /// Positive, from 1/16 to 1.
    Positive,
    /// Integers below this.
    Whole(usize),
    /// Sums of x, then of x squared, with a variance above 0.
    Sums,
}

impl Fill {
    fn of(buffer: &Buffer, classes: Option<usize>) -> Self {
        if let Some(classes) = classes {
            return Fill::Whole(classes);
        }
        match buffer.role {
            // Trained weights are small; so are their averages and gradients.
            Role::Parameter
            | Role::Average
            | Role::Gradient
            | Role::PackedWeights
            | Role::Gathered => Fill::Signed(0.125),
            // Scales, variances and second moments are positive.
            Role::State | Role::Constant | Role::Optimizer => Fill::Positive,
            // Stored samples are counts, of which kernels may take logarithms.
            Role::Staging => Fill::Whole(4),
            Role::Activation | Role::ActivationGradient | Role::Workspace => Fill::Signed(1.0),
            Role::Statistics => Fill::Sums,
        }
    }

    /// The value of element `i` of a buffer with this many channels.
    fn value(&self, i: usize, channels: usize) -> f64 {
        let bits = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let share = 0.0625 + 0.9375 * (bits >> 1) as f64 / f64::from(1 << 23);
        match self {
            Fill::Signed(scale) => {
                if bits & 1 == 0 {
                    share * scale
                } else {
                    -share * scale
                }
            }
            Fill::Positive => share,
            Fill::Whole(limit) => (bits % *limit as u64) as f64,
            Fill::Sums => {
                if (i / channels).is_multiple_of(2) {
                    0.125 * share
                } else {
                    1.0
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::Bytes;

    fn buffer(role: Role) -> Buffer {
        Buffer {
            name: "b".to_owned(),
            role,
            dtype: Dtype::F32,
            dims: [1, 1, 1, 2, 8],
            tensor: None,
            offset: Bytes(0),
        }
    }

    #[test]
    fn values_are_normal_and_in_their_domain() {
        for role in [
            Role::Parameter,
            Role::State,
            Role::Constant,
            Role::Optimizer,
            Role::Average,
            Role::Gradient,
            Role::Staging,
            Role::Activation,
            Role::ActivationGradient,
            Role::PackedWeights,
            Role::Gathered,
            Role::Statistics,
            Role::Workspace,
        ] {
            let fill = Fill::of(&buffer(role), None);
            let values: Vec<f64> = (0..10_000).map(|i| fill.value(i, 8)).collect();
            for &value in &values {
                assert!(
                    value == 0.0 && role == Role::Staging || (0.001..4.0).contains(&value.abs()),
                    "{role:?} {value}"
                );
                let signed = matches!(fill, Fill::Signed(_));
                assert!(signed || value >= 0.0, "{role:?} {value}");
            }
            if matches!(fill, Fill::Signed(_)) {
                let negative = values.iter().filter(|value| **value < 0.0).count();
                assert!((4_000..6_000).contains(&negative), "{role:?} {negative}");
            }
        }
    }

    #[test]
    fn class_indices_are_below_the_number_of_classes() {
        let fill = Fill::of(&buffer(Role::Staging), Some(3));
        let mut seen = [false; 3];
        for i in 0..100 {
            seen[fill.value(i, 1) as usize] = true;
        }
        assert_eq!(seen, [true; 3]);
    }

    #[test]
    fn sums_have_a_variance_above_0() {
        let fill = Fill::of(&buffer(Role::Statistics), None);
        for channel in 0..8 {
            let (sum, squares) = (fill.value(channel, 8), fill.value(8 + channel, 8));
            for count in [1.0, 1e6] {
                let mean = sum / count;
                assert!(squares / count - mean * mean > 0.0);
            }
        }
    }
}
