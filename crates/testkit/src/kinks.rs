//! The distance of a run from a kink of ReLU or a maximum.

use crate::wrap_kernels;
use partita_program::{Kernel, PoolKind, Taps, View};
use partita_run::{KernelTally, Kernels, Memory};
use std::sync::{Arc, Mutex};

/// Wraps f64 kernels, and returns the least distance of any activation, maximum or norm from a kink: there the
/// gradient jumps, and rounding decides on which side a value is.
///
/// A zero, and a tie of equal values, do not count: they come from a ReLU, a dropout, or from copies of
/// one value, and are the same in any precision.
pub fn kink_watch(kernels: Box<dyn Kernels>) -> (Box<dyn Kernels>, Arc<Mutex<f64>>) {
    let nearest = Arc::new(Mutex::new(f64::INFINITY));
    let noted = Arc::clone(&nearest);
    let watching = wrap_kernels(kernels, move |kernel, memory, execute| {
        let mut worked = KernelTally::default();
        for part in kernel.parts() {
            each_margin(part, memory, |margin| {
                let mut nearest = noted.lock().expect("nobody panics while noting");
                if margin != 0.0 {
                    *nearest = nearest.min(margin);
                }
            });
            worked += execute(part)?;
        }
        if let Kernel::Fused { .. } = kernel {
            worked.bytes = 0;
        }
        Ok(worked)
    });
    (watching, nearest)
}

fn each_margin(kernel: &Kernel, memory: &Memory<'_>, mut note: impl FnMut(f64)) {
    if let Kernel::LeakyReluForward { x, .. } | Kernel::PreluForward { x, .. } = kernel {
        let mut values = Vec::new();
        memory.pack::<f64>(x, &mut values);
        values.iter().for_each(|value| note(value.abs()));
    }
    if let Kernel::ActivationForward { function, x, .. } = kernel {
        let mut values = Vec::new();
        memory.pack::<f64>(x, &mut values);
        for kink in function.kinks() {
            values.iter().for_each(|value| note((value - kink).abs()));
        }
    }
    if let Kernel::PoolForward {
        kind: PoolKind::L2,
        y,
        ..
    } = kernel
    {
        let mut values = Vec::new();
        memory.pack::<f64>(y, &mut values);
        values.into_iter().for_each(&mut note);
    }
    if let Kernel::PoolForward {
        kind: PoolKind::Max,
        x,
        y,
        taps,
        shift,
    } = kernel
    {
        let block = memory.read::<f64>(x);
        for_each(y.extent, |out| {
            let inside = window(out, x, taps, *shift).map(|at| block.data()[block.at(at)]);
            let mut inside: Vec<f64> = inside.collect();
            inside.sort_by(|a, b| b.total_cmp(a));
            if let [first, second, ..] = inside[..] {
                note(first - second);
            }
        });
    }
}

/// Indices in `x` of the taps of an output that lie inside.
fn window(
    out: [usize; 5],
    x: &View,
    taps: &Taps,
    shift: [i64; 3],
) -> impl Iterator<Item = [usize; 5]> {
    let mut found = Vec::new();
    for_each(
        [1, taps.kernel[0], taps.kernel[1], taps.kernel[2], 1],
        |tap| {
            let mut at = out;
            for dim in 0..3 {
                let step = tap[dim + 1] * taps.dilation[dim];
                let input = (out[dim + 1] * taps.stride[dim] + step) as i64 - shift[dim];
                if input < 0 || input >= x.extent[dim + 1] as i64 {
                    return;
                }
                at[dim + 1] = input as usize;
            }
            found.push(at);
        },
    );
    found.into_iter()
}

fn for_each(extent: [usize; 5], mut visit: impl FnMut([usize; 5])) {
    let total: usize = extent.iter().product();
    for flat in 0..total {
        let mut rest = flat;
        let mut index = [0; 5];
        for dim in (0..5).rev() {
            index[dim] = rest % extent[dim];
            rest /= extent[dim];
        }
        visit(index);
    }
}
