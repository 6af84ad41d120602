//! Expected times of convolutions.

use partita_cpu::{CpuMenu, Level};
use partita_program::{Buffer, BufferId, Dtype, Kernel, KernelShape, Menu, Role, Taps, View};
use partita_space::Bytes;

/// A convolution whose padding keeps the extents.
#[derive(Clone, Copy, Debug)]
struct Layer {
    samples: usize,
    extent: [usize; 3],
    channels: [usize; 2],
    kernel: [usize; 3],
}

const PASSES: [&str; 3] = ["forward", "data", "weight"];

/// Levels whose processors were measured.
const LEVELS: [Level; 3] = [Level::Avx2, Level::Avx512, Level::Avx512Bf16];

impl Layer {
    /// The kernel of a pass, with its buffers.
    fn kernel(&self, pass: &str, dtype: Dtype) -> (Kernel, Vec<Buffer>) {
        let (n, [d, h, w], [c, f]) = (self.samples, self.extent, self.channels);
        let [kd, kh, kw] = self.kernel;
        let halo: [usize; 3] = std::array::from_fn(|dim| self.extent[dim] + self.kernel[dim] - 1);
        let own = |channels| [n, d, h, w, channels];
        let with_halo = |channels| [n, halo[0], halo[1], halo[2], channels];
        let buffer = |role, dtype, dims| Buffer {
            name: "operand".to_owned(),
            role,
            dtype,
            dims,
            tensor: None,
            offset: Bytes(0),
        };
        let (read, written) = match pass {
            "data" => (with_halo(f), own(c)),
            "weight" => (with_halo(c), own(f)),
            _ => (with_halo(c), own(f)),
        };
        let buffers = vec![
            buffer(Role::Activation, dtype, read),
            buffer(Role::Parameter, Dtype::F32, [kd, kh, kw, c, f]),
            buffer(Role::Activation, dtype, written),
        ];
        let view = |id: u32| -> View { buffers[id as usize].view(BufferId(id)) };
        let (read, weights, written) = (view(0), view(1), view(2));
        let taps = Taps {
            kernel: self.kernel,
            stride: [1; 3],
            dilation: [1; 3],
        };
        let kernel = match pass {
            "data" => Kernel::ConvolutionBackwardData {
                dy: read,
                w: weights,
                bias: None,
                dx: written,
                taps,
                shift: [0; 3],
                groups: 1,
                accumulate: false,
            },
            "weight" => Kernel::ConvolutionBackwardWeight {
                x: read,
                dy: written,
                dw: weights,
                taps,
                groups: 1,
                accumulate: false,
            },
            _ => Kernel::ConvolutionForward {
                x: read,
                w: weights,
                bias: None,
                y: written,
                taps,
                groups: 1,
                accumulate: false,
            },
        };
        (kernel, buffers)
    }

    /// Implementations with their expected seconds, the usual one first.
    fn expected(&self, pass: &str, dtype: Dtype, menu: CpuMenu) -> Vec<(String, f64)> {
        let (kernel, buffers) = self.kernel(pass, dtype);
        let shape = KernelShape {
            kernel: &kernel,
            buffers: &buffers,
        };
        let all = menu.implementations(&shape).expect("it is offered");
        let time = |choice: partita_program::Choice| {
            let name = choice.algorithm.0;
            let seconds = menu.expected(&shape, &name).expect("it has a model");
            (name, seconds.0)
        };
        all.into_iter().map(time).collect()
    }
}

fn layers() -> Vec<Layer> {
    let layer = |samples, extent, channels, kernel| Layer {
        samples,
        extent,
        channels,
        kernel,
    };
    vec![
        layer(1, [8, 8, 8], [16, 32], [3; 3]),
        layer(1, [32, 32, 32], [16, 16], [3; 3]),
        layer(2, [6, 6, 6], [256, 512], [3; 3]),
        layer(4, [1, 14, 14], [256, 256], [1, 3, 3]),
        layer(1, [1, 112, 112], [64, 64], [1, 3, 3]),
        layer(8, [1, 27, 27], [64, 192], [1, 5, 5]),
        layer(4, [1, 56, 56], [64, 256], [1, 1, 1]),
    ]
}

#[test]
fn more_work_takes_longer() {
    for level in LEVELS {
        let menu = CpuMenu { threads: 1, level };
        for (layer, pass) in layers()
            .into_iter()
            .flat_map(|layer| PASSES.map(|pass| (layer, pass)))
        {
            let mut larger = vec![layer; 4];
            larger[0].samples *= 2;
            larger[1].extent[1] *= 2;
            larger[2].channels[0] *= 2;
            larger[3].channels[1] *= 2;
            let times = layer.expected(pass, Dtype::F32, menu);
            for more in larger {
                for (name, seconds) in more.expected(pass, Dtype::F32, menu) {
                    let before = times.iter().find(|(other, _)| *other == name);
                    let Some((_, before)) = before else { continue };
                    let what = format!("{name} of {pass} at {level:?}: {layer:?}, {more:?}");
                    assert!(seconds > *before, "{what}: {seconds}, not above {before}");
                }
            }
        }
    }
}

#[test]
fn threads_share_the_work() {
    for layer in layers() {
        for pass in PASSES {
            let level = Level::Avx2;
            let times = |threads| layer.expected(pass, Dtype::F32, CpuMenu { threads, level });
            for ((name, one), (_, two)) in times(1).into_iter().zip(times(2)) {
                let share = two / one;
                assert!(
                    (0.45..1.0).contains(&share),
                    "{name} of {pass}: {share}, {layer:?}"
                );
            }
        }
    }
}

#[test]
fn copies_of_half_precision_count_where_they_are_made() {
    let layer = layers()[1];
    for level in LEVELS {
        let menu = CpuMenu { threads: 1, level };
        let single = layer.expected("forward", Dtype::F32, menu);
        let half = layer.expected("forward", Dtype::Bf16, menu);
        assert_eq!(single.len(), half.len());
        for ((name, single), (_, half)) in single.iter().zip(&half).skip(1) {
            assert!(half > single, "{name} at {level:?}");
        }
    }
}

#[test]
fn what_was_never_measured_has_no_expected_time() {
    let (kernel, buffers) = layers()[0].kernel("forward", Dtype::F32);
    let shape = KernelShape {
        kernel: &kernel,
        buffers: &buffers,
    };
    for level in [Level::Portable, Level::Neon] {
        let menu = CpuMenu { threads: 1, level };
        assert_eq!(menu.expected(&shape, "cpu"), None);
    }
    let menu = CpuMenu {
        threads: 1,
        level: Level::Avx2,
    };
    assert!(menu.expected(&shape, "winograd2").is_some());
    assert_eq!(menu.expected(&shape, "onednn"), None);
}
