//! Random fused kernels.

use super::Maker;
use partita_program::{Access, Kernel, View};

/// What a later part does to the output of the first one; in this order they follow each other.
#[derive(Clone, Copy)]
enum Step {
    Normalize,
    Add,
    Activate,
    Mask,
    Sum,
    SumGradient,
}

const OF_PRODUCTS: [&[Step]; 2] = [
    &[
        Step::Normalize,
        Step::Add,
        Step::Activate,
        Step::Mask,
        Step::Sum,
    ],
    &[
        Step::Normalize,
        Step::Add,
        Step::Activate,
        Step::Mask,
        Step::SumGradient,
    ],
];
/// Parameters that one update moves; more than one call of the kernel takes.
const PARAMETERS: usize = 35;

impl Maker {
    /// Fused kernels of every kind on outputs of these extents, each with all that may follow it and
    /// with some of that; `flag` as of the first part where it accumulates, has a bias or is clipped.
    pub fn fused(&mut self, extent: [usize; 5], flag: bool) -> Vec<Kernel> {
        let mut kernels = self.fused_convolutions(extent, flag);
        kernels.extend(self.fused_linears(extent, flag));
        for kernel in self.norms(extent, flag) {
            if let Kernel::BatchNormForward { .. } | Kernel::BatchNormInference { .. } = kernel {
                kernels.extend(self.with_steps(&kernel, &[Step::Add, Step::Activate]));
            }
        }
        for kernel in self.pools(extent, flag) {
            if let Kernel::PoolForward { .. } = kernel {
                kernels.extend(self.with_steps(&kernel, &[Step::Activate]));
            } else {
                kernels.extend(self.with_steps(&kernel, &[Step::Mask]));
                kernels.push(self.with_mask_inside(&kernel));
            }
        }
        let [a, b, y] = [0; 3].map(|_| self.view(extent));
        let add = Kernel::Add { a, b, y };
        kernels.extend(self.with_steps(&add, &[Step::Activate, Step::Sum]));
        kernels.extend(self.fused_updates(flag));
        kernels
    }

    fn fused_convolutions(&mut self, extent: [usize; 5], flag: bool) -> Vec<Kernel> {
        let mut parts = self.convolutions(extent, flag);
        let bias = parts.split_off(2);
        let mut kernels = vec![Kernel::Fused { parts: bias }];
        for kernel in parts {
            for steps in OF_PRODUCTS {
                kernels.extend(self.with_steps(&kernel, steps));
            }
        }
        kernels
    }

    fn fused_linears(&mut self, extent: [usize; 5], flag: bool) -> Vec<Kernel> {
        let mut kernels = Vec::new();
        for mut kernel in self.linears(extent, flag) {
            if let Kernel::LinearBackwardWeight { dy, accumulate, .. } = kernel {
                let db = self.vector(dy.extent[4]);
                let bias = Kernel::BiasBackward { dy, db, accumulate };
                let parts = vec![kernel, bias];
                kernels.push(Kernel::Fused { parts });
                continue;
            }
            if let Kernel::LinearBackwardData { dx, .. } = &mut kernel {
                *dx = self.dense(dx.extent);
            }
            // No normalization, and sums only where each sample has one position.
            let last = 5 - usize::from(output(&kernel).extent[1..4] != [1; 3]);
            for steps in OF_PRODUCTS {
                kernels.extend(self.with_steps(&kernel, &steps[1..last]));
            }
        }
        kernels
    }

    /// One kernel for each rule; the parameters are some rows each of a tensor.
    fn fused_updates(&mut self, clipped: bool) -> Vec<Kernel> {
        let sizes: Vec<usize> = (0..PARAMETERS).map(|_| self.pick(1, 3)).collect();
        let (rows, channels) = (
            sizes.iter().sum(),
            self.pick(1, if cfg!(miri) { 3 } else { 40 }),
        );
        let mut kernels = self.updates([1, 1, 1, rows, channels], clipped);
        kernels.retain(|kernel| matches!(kernel, Kernel::Update { .. } | Kernel::Average { .. }));
        let fused = kernels.iter().map(|kernel| {
            let mut next = 0;
            let parts = sizes.iter().map(|&size| {
                let (mut part, first) = (kernel.clone(), next);
                next += size;
                part.each_view_mut(&mut |view| {
                    if view.extent[3] == rows {
                        (view.start[3], view.extent[3]) = (first, size);
                    }
                });
                part
            });
            let parts = parts.collect();
            Kernel::Fused { parts }
        });
        fused.collect()
    }

    fn with_steps(&mut self, first: &Kernel, steps: &[Step]) -> [Kernel; 2] {
        let some: Vec<Step> = steps
            .iter()
            .filter(|_| self.draws.one_in(2))
            .copied()
            .collect();
        let last = &steps[steps.len() - 1..];
        let some = if some.is_empty() { last } else { &some[..] };
        [steps, some].map(|steps| {
            let out = output(first);
            let parts = steps.iter().map(|step| self.part(*step, out));
            let parts = [first.clone()].into_iter().chain(parts).collect();
            Kernel::Fused { parts }
        })
    }

    /// The mask covers some positions of the output only.
    fn with_mask_inside(&mut self, first: &Kernel) -> Kernel {
        let mut on = output(first);
        for dim in 1..4 {
            let less = self.pick(0, on.extent[dim] - 1);
            on.start[dim] += less;
            on.extent[dim] -= less;
        }
        let parts = vec![first.clone(), self.part(Step::Mask, on)];
        Kernel::Fused { parts }
    }

    fn part(&mut self, step: Step, on: View) -> Kernel {
        let negative_slope = self.draws.pick(&[0.0, 0.3]);
        match step {
            Step::Normalize => self.inference(on, on),
            Step::Add => {
                let other = self.like(on);
                let [a, b] = self.draws.pick(&[[on, other], [other, on]]);
                Kernel::Add { a, b, y: on }
            }
            Step::Activate => Kernel::LeakyReluForward {
                x: on,
                y: on,
                negative_slope,
            },
            Step::Mask => Kernel::LeakyReluBackward {
                y: self.like(on),
                dy: on,
                dx: on,
                negative_slope,
                accumulate: false,
            },
            Step::Sum => Kernel::BatchNormStatistics {
                x: on,
                sums: self.sums(on.extent[4], 7),
                accumulate: self.draws.one_in(2),
            },
            Step::SumGradient => Kernel::BatchNormBackwardStatistics {
                x: self.like(on),
                sums: self.sums(on.extent[4], 7),
                dy: on,
                gradient_sums: self.sums(on.extent[4], 7),
                count: 7,
                epsilon: 1e-3,
                accumulate: self.draws.one_in(2),
            },
        }
    }

    /// A box of the same extents, without gaps if this one has none.
    fn like(&mut self, view: View) -> View {
        let buffer = &self.bench.buffers()[view.buffer.0 as usize];
        if buffer.dims == view.extent {
            self.dense(view.extent)
        } else {
            self.view(view.extent)
        }
    }
}

/// The box that a kernel writes.
fn output(kernel: &Kernel) -> View {
    let written = |(view, access): (View, Access)| access.writes().then_some(view);
    let found = kernel.accesses().into_iter().find_map(written);
    found.expect("every kernel writes")
}
