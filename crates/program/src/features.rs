use crate::{Count, Kernel, KernelShape, Role, Transform, View};
use serde::{Deserialize, Serialize};

/// What a kernel's time is judged by where it was never measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// Kernels of one family have one law: the name of the first part, with the dtype where it is not
    /// f32, and with `log` where an import takes logarithms.
    pub family: String,
    /// [`Count::flops`].
    pub flops: f64,
    /// [`Count::read`] and [`Count::written`] together.
    pub bytes: f64,
    /// Coordinates of the shape, those of extents as natural logarithms, so that equal distances are
    /// equal ratios; see [`Features::NAMES`].
    pub shape: [f64; Features::NAMES.len()],
}

impl Features {
    /// What the coordinates are, of the first part of a fused kernel, except the last three.
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

impl KernelShape<'_> {
    /// What the kernel's time is judged by where it was never measured.
    pub fn features(&self) -> Features {
        let count = Count::of_kernel(self.kernel, self.buffers);
        let parts = self.kernel.parts();
        let views: Vec<View> = parts[0].accesses().iter().map(|(view, _)| *view).collect();
        let (flops, bytes) = (count.flops.0 as f64, (count.read + count.written).0 as f64);
        let Some(largest) = views.iter().max_by_key(|view| view.volume()) else {
            panic!("a kernel touches something")
        };
        let buffer = |view: &View| &self.buffers[view.buffer.0 as usize];
        let held: usize = buffer(largest).dims.iter().product();
        let is_packed = |view: &View| buffer(view).role == Role::PackedWeights;
        let volume = |extents: &[usize; 3]| extents.iter().product();
        let window = parts[0].descriptor().window.map(|window| {
            let taps = window.taps;
            (taps.volume(), volume(&taps.stride), window.groups)
        });
        let (taps, stride, groups) = window.unwrap_or((1, 1, 1));
        let [n, d, h, w, _] = largest.extent;
        let ln = |extent: usize| (extent.max(1) as f64).ln();
        let flag = |holds: bool| if holds { 1.0 } else { 0.0 };
        let dtype = buffer(&views[0]).dtype;
        let mut family = match dtype {
            crate::Dtype::F32 => parts[0].name().to_owned(),
            crate::Dtype::F64 | crate::Dtype::I16 => format!("{} {dtype:?}", parts[0].name()),
        };
        if let Kernel::Import {
            transform: Transform::LogOnePlus,
            ..
        } = parts[0]
        {
            family.push_str(" log");
        }
        Features {
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
