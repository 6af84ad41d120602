//! Speed of the convolutions on the layers of CosmoFlow, next to the measured FMA peak.
//!
//! `cargo run --release -p partita-cpu --example kernels -- [threads] [level]`

use partita_cpu::{Call, Convolution, Grid, Level, Team, View, ViewMut, Window};
use std::time::Instant;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(1);
    let level = match args.next().as_deref() {
        Some("portable") => Level::Portable,
        Some("avx2") => Level::Avx2,
        Some("avx512") => Level::Avx512,
        _ => Level::detect(),
    };
    let mut team = Team::new(threads, level).expect("a team");
    println!("{level:?}, {threads} threads");
    println!("GFLOP/s, median (best)");
    println!("{:26} {:>14} {:>14} {:>14}", "layer", "forward", "data", "weight");
    let layers = [
        ("c0   4->16  @128", 4, 16, 128, 1),
        ("c1  16->32  @64", 16, 32, 64, 1),
        ("c2  32->64  @32", 32, 64, 32, 1),
        ("c3  64->128 @16 stride 2", 64, 128, 16, 2),
        ("c4 128->256 @4", 128, 256, 4, 1),
        ("c5 256->256 @2", 256, 256, 2, 1),
    ];
    for (name, c, f, extent, stride) in layers {
        layer(&mut team, name, c, f, extent, stride);
    }
}

fn layer(team: &mut Team, name: &str, c: usize, f: usize, extent: usize, stride: usize) {
    let out = extent / stride;
    let conv = Convolution {
        window: Window { kernel: [3; 3], stride: [stride; 3], dilation: [1; 3] },
        groups: 1,
    };
    let full = Grid::dense(1, [extent + 2; 3], c);
    let xg = Grid { extent: conv.window.input_extent([out; 3]), ..full };
    let yg = Grid::dense(1, [out; 3], f);
    let x = ramp(full.elements());
    let w = ramp(conv.weight_elements(c, f));
    let mut y = vec![0.0f32; yg.elements()];
    let need = [
        partita_cpu::conv_forward_scratch(team, &conv, c, f, yg.positions()),
        partita_cpu::conv_backward_data_scratch(team, &conv, c, f),
        partita_cpu::conv_backward_weight_scratch(team, &conv, &xg, f),
    ];
    let mut scratch = vec![0.0; need.into_iter().max().unwrap_or(0)];
    let mut progress = || true;
    let mut call = Call { team, scratch: &mut scratch, progress: &mut progress };
    let forward = median(|| {
        let (xv, yv) = (View::new(&x, &xg), ViewMut::new(&mut y, &yg));
        let work = partita_cpu::conv_forward(&mut call, xv, &w, None, yv, &conv, false);
        work.expect("not canceled").flops
    });
    // The gradient of the image without its frame, from a dy with a frame: complete for stride 1.
    let framed = Grid::dense(1, [out + 2; 3], f);
    let (dyg, shift) = match stride {
        1 => (framed, [2; 3]),
        _ => (yg, [1; 3]),
    };
    let dy = ramp(framed.elements());
    let dxg = Grid::dense(1, [extent; 3], c);
    let mut dx = vec![0.0f32; dxg.elements()];
    let useful = 2 * (yg.positions() * w.len()) as u64;
    let data = median(|| {
        let (dyv, dxv) = (View::new(&dy, &dyg), ViewMut::new(&mut dx, &dxg));
        let work = partita_cpu::conv_backward_data(&mut call, dyv, &w, dxv, &conv, shift, false);
        // dy with its frame counts more than the image needs.
        work.expect("not canceled").flops.min(useful)
    });
    let mut dw = vec![0.0; w.len()];
    let weight = median(|| {
        let (xv, dyv) = (View::new(&x, &xg), View::new(&dy, &yg));
        let work = partita_cpu::conv_backward_weight(&mut call, xv, dyv, &mut dw, &conv, false);
        work.expect("not canceled").flops
    });
    println!("{name:26} {forward:>14} {data:>14} {weight:>14}");
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1000) as f32 * 1e-3 - 0.5).collect()
}

/// Median and best GFLOP/s over a second of runs.
fn median(mut run: impl FnMut() -> u64) -> String {
    run();
    let (mut rates, begin) = (Vec::new(), Instant::now());
    while begin.elapsed().as_secs_f64() < 0.6 || rates.len() < 3 {
        let start = Instant::now();
        let flops = run();
        rates.push(flops as f64 / start.elapsed().as_secs_f64() * 1e-9);
    }
    rates.sort_by(f64::total_cmp);
    format!("{:.0} ({:.0})", rates[rates.len() / 2], rates[rates.len() - 1])
}
