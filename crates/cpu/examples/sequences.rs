//! Speed of the kernels that work on sequences, in a layer of a transformer.
//!
//! `cargo run --release -p partita-cpu --example sequences -- [samples] [length] [channels] [heads] [threads] [level]`

use partita_cpu::{CpuKernels, CpuMenu, Level, Team};
use partita_program::{
    Activation, Body, Buffer, BufferId, Dtype, Kernel, KernelShape, Menu, Role, Taps, View,
};
use partita_run::{Arena, Inputs, KernelTally, Kernels, RunError};
use partita_space::{Bytes, Mesh};
use std::time::Instant;

/// Runs of which the shortest counts.
const RUNS: usize = 200;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<usize> = (words.iter().take(5))
        .map(|word| word.parse().expect("numbers"))
        .collect();
    let get = |i: usize, usual| numbers.get(i).copied().unwrap_or(usual);
    let (n, w, c) = (get(0, 8), get(1, 64), get(2, 512));
    let (heads, threads) = (get(3, 8), get(4, 1));
    let mut body = Body::default();
    let mut buffer = |role, dtype, dims: [usize; 5]| {
        let id = BufferId(body.buffers.len() as u32);
        let buffer = Buffer {
            name: format!("b{}", id.0),
            role,
            dtype,
            dims,
            tensor: None,
            offset: body.arena,
        };
        body.arena = Bytes((body.arena + buffer.bytes()).0.next_multiple_of(64));
        let view = buffer.view(id);
        body.buffers.push(buffer);
        view
    };
    let mut tokens = |channels| buffer(Role::Activation, Dtype::F32, [n, 1, 1, w, channels]);
    let narrow = [0; 8].map(|_| tokens(c));
    let (wide, numbers) = (tokens(4 * c), tokens(1));
    let [square, tall] = [c, 4 * c].map(|f| buffer(Role::Parameter, Dtype::F32, [1, 1, 1, c, f]));
    let vectors = [0; 4].map(|_| buffer(Role::Parameter, Dtype::F32, [1, 1, 1, 1, c]));
    let sums = [0; 2].map(|_| buffer(Role::Statistics, Dtype::F64, [n, 1, 1, w, 2]));
    let scratch = buffer(Role::Workspace, Dtype::F32, [1, 1, 1, 1, 1 << 24]);
    let mut kernels = attention([0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| narrow[i]), heads);
    kernels.extend(products(narrow[0], narrow[1], square, "C to C"));
    kernels.extend(products(narrow[0], wide, tall, "C to 4 C"));
    kernels.extend(norms(narrow, vectors, sums, c as u64));
    kernels.extend(pointwise(narrow, numbers, square));
    let mut arena = Arena::new(body.arena);
    arena.touch();
    let memory = arena.memory(&body);
    for view in narrow.iter().chain([&wide, &square, &tall]) {
        let mut block = memory.write::<f32>(view);
        for (i, x) in block.data_mut().iter_mut().enumerate() {
            *x = (i * 37 % 101) as f32 / 50.0 - 1.0;
        }
    }
    let level = words.get(5).map_or(Level::detect(), |word| {
        Level::named(word).expect("a level, such as avx2")
    });
    let team = Team::new(threads, level).unwrap_or_else(|error| panic!("{error}"));
    let menu = CpuMenu { threads, level };
    let mut cpu = CpuKernels::new(Mesh::new([1; 7]), 0, team);
    println!("{level:?}, {threads} threads, {n} x {w} x {c}, {heads} heads: shortest of {RUNS}");
    for (name, kernel) in kernels {
        let shape = KernelShape {
            kernel: &kernel,
            buffers: &body.buffers,
        };
        let choice = menu
            .choose(&shape)
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(choice.workspace <= scratch.bytes(&body.buffers), "{name}");
        show(&name, || {
            let (inputs, go) = (Inputs::default(), &mut || true);
            let algorithm = &choice.algorithm;
            cpu.execute(&kernel, algorithm, Some(&scratch), &memory, &inputs, go)
        });
    }
}

/// Prints the shortest of all runs.
fn show(name: &str, mut run: impl FnMut() -> Result<KernelTally, RunError>) {
    let timed = |_| {
        let start = Instant::now();
        let worked = run().unwrap_or_else(|error| panic!("{error}"));
        (start.elapsed().as_secs_f64(), worked)
    };
    let all = (0..RUNS).map(timed);
    let best = all.min_by(|a, b| a.0.total_cmp(&b.0));
    let (seconds, worked) = best.expect("there are runs");
    println!(
        "{name:36} {:9.1} us {:8.1} Gflop/s {:7.1} GB/s",
        1e6 * seconds,
        1e-9 * worked.flops as f64 / seconds,
        1e-9 * worked.bytes as f64 / seconds
    );
}

type Named = Vec<(String, Kernel)>;

fn attention([q, k, v, y, dy, dq, dk, dv]: [View; 8], heads: usize) -> Named {
    let of = |causal| {
        let name = if causal { ", causal" } else { "" };
        let forward = Kernel::AttentionForward {
            q,
            k,
            v,
            y,
            heads,
            causal,
            window: None,
            bias: None,
            table: None,
        };
        let backward = Kernel::AttentionBackward {
            q,
            k,
            v,
            dy,
            dq: Some(dq),
            dk: Some(dk),
            dv: Some(dv),
            heads,
            causal,
            window: None,
            bias: None,
            table: None,
            accumulate: [false; 3],
        };
        [
            (format!("attention forward{name}"), forward),
            (format!("attention backward{name}"), backward),
        ]
    };
    [false, true].into_iter().flat_map(of).collect()
}

/// A linear layer on each token.
fn products(x: View, y: View, w: View, name: &str) -> Named {
    let taps = Taps {
        kernel: [1; 3],
        stride: [1; 3],
        dilation: [1; 3],
    };
    let (groups, accumulate) = (1, false);
    let forward = Kernel::ConvolutionForward {
        x,
        w,
        bias: None,
        y,
        taps,
        groups,
        accumulate,
    };
    let data = Kernel::ConvolutionBackwardData {
        dy: y,
        w,
        bias: None,
        dx: x,
        taps,
        shift: [0; 3],
        groups,
        accumulate,
    };
    let weight = Kernel::ConvolutionBackwardWeight {
        x,
        dy: y,
        dw: w,
        taps,
        groups,
        accumulate,
    };
    vec![
        (format!("convolution forward, {name}"), forward),
        (format!("convolution data, {name}"), data),
        (format!("convolution weight, {name}"), weight),
    ]
}

fn norms(
    [x, y, dy, dx, ..]: [View; 8],
    [gamma, beta, dgamma, dbeta]: [View; 4],
    [sums, gradient_sums]: [View; 2],
    count: u64,
) -> Named {
    let (epsilon, accumulate) = (1e-6, false);
    let kernels = [
        Kernel::LayerNormStatistics {
            x,
            sums,
            rms: false,
        },
        Kernel::LayerNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            count,
            epsilon,
        },
        Kernel::LayerNormBackwardStatistics {
            x,
            sums,
            gamma,
            dy,
            gradient_sums,
            count,
            epsilon,
            rms: false,
        },
        Kernel::LayerNormBackwardData {
            x,
            sums,
            gamma,
            dy,
            gradient_sums,
            dx,
            count,
            epsilon,
            accumulate,
        },
        Kernel::LayerNormBackwardParameters {
            x,
            sums,
            dy,
            dgamma,
            dbeta,
            count,
            epsilon,
            accumulate,
        },
    ];
    let named = kernels.map(|kernel| (kernel.name().replace('_', " "), kernel));
    named.into()
}

fn pointwise([x, y, dy, dx, ..]: [View; 8], numbers: View, w: View) -> Named {
    let kernels = [
        Kernel::ActivationForward {
            function: Activation::Gelu,
            x,
            y,
        },
        Kernel::ActivationBackward {
            function: Activation::Gelu,
            x,
            dy,
            dx,
            accumulate: false,
        },
        Kernel::SoftmaxForward { x, y },
        Kernel::SoftmaxBackward {
            y: x,
            dy,
            dx,
            accumulate: false,
        },
        Kernel::EmbeddingForward { x: numbers, w, y },
        Kernel::EmbeddingBackward {
            x: numbers,
            dy,
            dw: w,
            accumulate: true,
        },
    ];
    let named = kernels.map(|kernel| (kernel.name().replace('_', " "), kernel));
    named.into()
}
