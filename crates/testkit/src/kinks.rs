use partita_program::{Algorithm, Kernel, PoolKind, Taps, View};
use partita_run::{Inputs, Kernels, Memory, RunError, Worked};
use std::sync::{Arc, Mutex};

/// Wraps f64 kernels and notes how close any activation or maximum comes to a kink: there the
/// gradient jumps, and rounding decides on which side a value falls.
///
/// A zero, and a tie of equal values, do not count: they come from a ReLU, a dropout, or from copies of
/// one value, and are the same in any precision.
pub struct KinkWatch<K> {
    kernels: K,
    nearest: Arc<Mutex<f64>>,
}

impl<K: Kernels> KinkWatch<K> {
    /// Watches `kernels`; the second part tells the nearest kink so far.
    pub fn new(kernels: K) -> (Self, Arc<Mutex<f64>>) {
        let nearest = Arc::new(Mutex::new(f64::INFINITY));
        (
            Self {
                kernels,
                nearest: Arc::clone(&nearest),
            },
            nearest,
        )
    }

    fn note(&self, margin: f64) {
        let mut nearest = self.nearest.lock().expect("nobody panics while noting");
        if margin != 0.0 {
            *nearest = nearest.min(margin);
        }
    }

    fn watch(&self, kernel: &Kernel, memory: &Memory<'_>) {
        if let Kernel::LeakyReluForward { x, .. } = kernel {
            let mut values = Vec::new();
            memory.pack::<f64>(x, &mut values);
            values.iter().for_each(|value| self.note(value.abs()));
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
                    self.note(first - second);
                }
            });
        }
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

impl<K: Kernels> Kernels for KinkWatch<K> {
    fn execute(
        &mut self,
        kernel: &Kernel,
        algorithm: &Algorithm,
        workspace: Option<&View>,
        memory: &Memory<'_>,
        inputs: &Inputs,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<Worked, RunError> {
        if let Kernel::Fused { parts } = kernel {
            let mut worked = Worked::default();
            for part in parts {
                worked += self.execute(part, algorithm, None, memory, inputs, progress)?;
            }
            return Ok(Worked { bytes: 0, ..worked });
        }
        self.watch(kernel, memory);
        self.kernels
            .execute(kernel, algorithm, workspace, memory, inputs, progress)
    }
}
