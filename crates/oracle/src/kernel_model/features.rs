//! Features of a kernel. Kernels with similar features take similar times.

use partita_program::{Count, Dtype, KernelShape, Role, View};
use serde::{Deserialize, Serialize};

/// Features from which the time of a kernel is estimated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// Kernels of one family share a model: the name of the first part, with the dtype if it is not f32,
    /// and with `log` if the kernel takes logarithms.
    pub family: String,
    /// [`Count::flops`].
    pub flops: f64,
    /// [`Count::read`] and [`Count::written`] together.
    pub bytes: f64,
    /// The features of [`Features::NAMES`]. Extents are natural logarithms, so that equal distances are
    /// equal ratios.
    pub shape: [f64; Features::NAMES.len()],
}

impl Features {
    /// Names of the features, which are those of the first part of a fused kernel, except the last three.
    pub const NAMES: [&'static str; 12] = [
        "positions of the largest view, without its row",
        "length of its row",
        "channels of the first view",
        "channels of the last view",
        "taps",
        "stride, all dims multiplied",
        "groups",
        "elements of the buffer for each of the largest view",
        "whether weights are packed",
        "parts fused",
        "flops",
        "bytes",
    ];
}

impl Features {
    /// Features of a kernel.
    pub fn of(shape: &KernelShape<'_>) -> Self {
        let count = Count::of_kernel(shape.kernel, shape.buffers);
        let parts = shape.kernel.parts();
        let descriptor = parts[0].descriptor();
        let views: Vec<View> = parts[0].accesses().iter().map(|(view, _)| *view).collect();
        let (flops, bytes) = (count.flops.0 as f64, (count.read + count.written).0 as f64);
        let Some(largest) = views.iter().max_by_key(|view| view.volume()) else {
            panic!("a kernel touches something")
        };
        let buffer = |view: &View| &shape.buffers[view.buffer.0 as usize];
        let held: usize = buffer(largest).dims.iter().product();
        let is_packed = |view: &View| buffer(view).role == Role::PackedWeights;
        let volume = |extents: &[usize; 3]| extents.iter().product();
        let window = descriptor.window.map(|window| {
            let taps = window.taps;
            (taps.volume(), volume(&taps.stride), window.groups)
        });
        let (taps, stride, groups) = window.unwrap_or((1, 1, 1));
        let [n, d, h, w, _] = largest.extent;
        let ln = |extent: usize| (extent.max(1) as f64).ln();
        let flag = |holds: bool| if holds { 1.0 } else { 0.0 };
        let dtype = buffer(&views[0]).dtype;
        let mut family = match dtype {
            Dtype::F32 => descriptor.name.to_owned(),
            // Machine files hold these words.
            Dtype::F64 => format!("{} F64", descriptor.name),
            Dtype::Bf16 => format!("{} BF16", descriptor.name),
            Dtype::F16 => format!("{} F16", descriptor.name),
            Dtype::I16 => format!("{} I16", descriptor.name),
        };
        if descriptor.takes_logarithms {
            family.push_str(" log");
        }
        Self {
            family,
            flops,
            bytes,
            shape: [
                ln(n * d * h),
                ln(w),
                ln(views[0].extent[4]),
                ln(views[views.len() - 1].extent[4]),
                ln(taps),
                ln(stride),
                ln(groups),
                ln(held) - ln(largest.volume()),
                flag(views.iter().any(is_packed)),
                ln(parts.len()),
                (1.0 + flops).ln(),
                (1.0 + bytes).ln(),
            ],
        }
    }
}
